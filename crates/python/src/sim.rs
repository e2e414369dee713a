//! `openmrc._core.Simulation` and `CheckedScenario`: crates/sim for Python. Converts; decides nothing.
//! A scenario comes as one JSON text; [`openmrc_scenario`] reads, checks and builds it. Results go back as columns of
//! 64-bit numbers, which any array library reads without a copy.

use openmrc_scenario::{
    self as scenario, Checked, OwnParts, Progress, Results, ScenarioError, SkipTotals, Step, names,
};
use openmrc_transport::Time;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::sim_custom::{self, Failure};

mod checkpoint;
mod engines;
pub mod probed;
mod record;
mod rows;

use self::engines::World;
use self::rows::{PyProgress, PyStep};

pyo3::import_exception!(openmrc.errors, ArgumentError);
pyo3::import_exception!(openmrc.errors, FormatError);

/// Adds the simulator to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DEFAULT_PORT_RATE", scenario::DEFAULT_PORT_RATE_BPS)?;
    let switch = PyDict::new(module.py());
    switch.set_item("ecn_min", scenario::mrc::ECN_MIN)?;
    switch.set_item("ecn_max", scenario::mrc::ECN_MAX)?;
    switch.set_item("trim", scenario::mrc::TRIM)?;
    switch.set_item("trim_last_hop", scenario::mrc::TRIM_LAST_HOP)?;
    module.add("SWITCH_DEFAULTS", switch)?;
    module.add_class::<CheckedScenario>()?;
    module.add_class::<PySimulation>()?;
    rows::register(module)?;
    module.add_function(wrap_pyfunction!(scenario_schema, module)?)?;
    module.add_function(wrap_pyfunction!(check_scenario_part, module)?)
}

/// The JSON Schema of a scenario.
#[pyfunction]
fn scenario_schema() -> String {
    scenario::json_schema().to_string()
}

/// Checks one part of a scenario alone. `part` is the name of its type.
#[pyfunction]
fn check_scenario_part(py: Python<'_>, part: &str, json: &str) -> PyResult<()> {
    scenario::check_part(part, json).map_err(|error| refused(py, &error))
}

/// The error as an exception. Its attribute `place` has the fields and indices that lead to the wrong value.
fn refused(py: Python<'_>, error: &ScenarioError) -> PyErr {
    let text = error.to_string();
    let exception = if error.in_file { FormatError::new_err(text) } else { ArgumentError::new_err(text) };
    let steps = error.place.iter().map(|step| match step {
        Step::Field(name) => Ok(name.as_ref().into_pyobject(py)?.into_any()),
        Step::Index(index) => Ok(index.into_pyobject(py)?.into_any()),
    });
    let place = steps.collect::<PyResult<Vec<_>>>().and_then(|steps| PyTuple::new(py, steps));
    match place.and_then(|place| exception.value(py).setattr("place", place)) {
        Ok(()) => exception,
        Err(other) => other,
    }
}

/// A valid scenario.
#[pyclass(frozen, module = "openmrc._core")]
struct CheckedScenario(Checked);

#[pymethods]
impl CheckedScenario {
    /// Reads a scenario from JSON, reads its flow files, and checks it. Raises `ArgumentError`, or `FormatError` for an
    /// error in a file; the exception says what is wrong and where.
    #[new]
    fn new(py: Python<'_>, json: &str) -> PyResult<Self> {
        let checked = py.detach(|| scenario::Scenario::from_json(json)?.checked());
        checked.map(CheckedScenario).map_err(|error| refused(py, &error))
    }

    /// The scenario as JSON, including the flows of its files.
    fn with_files(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.scenario().to_json())
    }

    /// The scenario as JSON, including the flows of its files, with every field filled in.
    fn filled(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.filled().to_json())
    }

    /// Estimate of the memory that a run needs, in bytes, by the field of the scenario that causes it.
    fn memory<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let estimate = engines::estimate(&self.0).map_err(|error| refused(py, &error))?;
        let parts = PyDict::new(py);
        for (part, bytes) in estimate.memory.named() {
            parts.set_item(part, bytes)?;
        }
        Ok(parts)
    }

    /// Builds the network with its faults but without traffic, and drops it. Raises what the start of a run would
    /// raise.
    fn try_network(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| engines::try_network(&self.0)).map_err(|error| refused(py, &error))
    }
}

/// Columns of 64-bit numbers under construction.
struct Columns<'py>(Bound<'py, PyDict>);

impl<'py> Columns<'py> {
    fn new(py: Python<'py>) -> Self {
        Columns(PyDict::new(py))
    }

    /// Adds a column. A series can be most of a run's memory, so its numbers are written where they stay.
    fn add(&mut self, name: &str, values: impl Iterator<Item = u64> + Clone) -> PyResult<()> {
        const WIDTH: usize = size_of::<u64>();
        let bytes = PyBytes::new_with(self.0.py(), values.clone().count() * WIDTH, |bytes| {
            for (place, value) in bytes.chunks_exact_mut(WIDTH).zip(values) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
            Ok(())
        })?;
        self.0.set_item(name, bytes)
    }

    fn done(self) -> Bound<'py, PyDict> {
        self.0
    }
}

/// A run in virtual time.
#[pyclass(name = "Simulation", module = "openmrc._core")]
struct PySimulation {
    world: World,
    scenario: Py<CheckedScenario>,
    /// The results at the current time, once somebody has asked for them.
    results: Option<Results>,
    /// The exception of a user's class.
    failure: Failure,
}

impl PySimulation {
    /// The results at the current time.
    fn results(&mut self) -> &Results {
        self.results.get_or_insert_with(|| self.world.results())
    }
}

#[pymethods]
impl PySimulation {
    /// Builds the network and schedules messages and faults. Raises `ArgumentError` if that is not possible.
    #[new]
    #[pyo3(signature = (scenario, *, path_selector=None, congestion=None))]
    fn new(
        py: Python<'_>,
        scenario: Py<CheckedScenario>,
        path_selector: Option<Py<PyAny>>,
        congestion: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (checked, failure) = (&scenario.get().0, Failure::default());
        let network = checked.network();
        let (packet, rate, rtt) =
            (network.nominal_packet_bytes(), network.host_rate_bps(), network.base_rtt());
        let own = OwnParts {
            congestion: congestion.map(|class| sim_custom::congestion(class, &failure, packet, rate, rtt.0)),
            path_selector: path_selector.map(|class| sim_custom::selector(class, &failure)),
        };
        let made = py.detach(|| World::new(checked, own));
        let world = made.map_err(|error| refused(py, &error))?;
        Ok(PySimulation { world, scenario, results: None, failure })
    }

    /// Runs for at most `events` events; returns whether the run goes on. Raises the exception of a user's class.
    fn advance(&mut self, py: Python<'_>, events: u64) -> PyResult<bool> {
        self.results = None;
        let more = py.detach(|| self.world.advance(events));
        self.failure.take().map_or(Ok(more), Err)
    }

    /// How far the run has come.
    fn progress(&self) -> PyProgress {
        let Progress { now, finished, messages, events, data_packets } = self.world.progress();
        PyProgress { now_ps: now.0, finished, messages, events, data_packets }
    }

    /// Number of a link, by its name or by the name of the host port at its end.
    fn link_number(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        names::link_number(&self.world.config().fabric, name).map_err(|error| refused(py, &error))
    }

    /// Base RTT of the network, picoseconds.
    fn base_rtt(&self) -> u64 {
        self.world.config().base_rtt().0
    }

    /// The messages, one column of 64-bit numbers per field. Times are in picoseconds; 2^64 - 1 stands for an event
    /// that did not happen.
    fn messages<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let messages = &self.results().messages;
        let mut columns = Columns::new(py);
        columns.add("src", messages.iter().map(|m| m.src.into()))?;
        columns.add("dst", messages.iter().map(|m| m.dst.into()))?;
        columns.add("bytes", messages.iter().map(|m| m.bytes.into()))?;
        columns.add("pattern", messages.iter().map(|m| m.pattern.into()))?;
        columns.add("posted_ps", messages.iter().map(|m| m.posted.0))?;
        columns.add("delivered_ps", messages.iter().map(|m| m.delivered.0))?;
        columns.add("completed_ps", messages.iter().map(|m| m.completed.0))?;
        columns.add("failed", messages.iter().map(|m| m.failed.into()))?;
        Ok(columns.done())
    }

    /// Steps of jobs, by pattern and number.
    fn steps(&mut self) -> Vec<PyStep> {
        let steps = self.results().steps.iter();
        let end_of = |end: Time| (end != Time::NEVER).then_some(end.0);
        steps.map(|s| PyStep { pattern: s.pattern, step: s.step, end_ps: end_of(s.end) }).collect()
    }

    /// Nodes of recorded jobs, one column of 64-bit numbers per field, as [`PySimulation::messages`].
    fn nodes<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let nodes = &self.results().nodes;
        let mut columns = Columns::new(py);
        columns.add("pattern", nodes.iter().map(|n| n.pattern.into()))?;
        columns.add("rank", nodes.iter().map(|n| n.rank.into()))?;
        columns.add("node", nodes.iter().map(|n| n.node))?;
        columns.add("began_ps", nodes.iter().map(|n| n.began.0))?;
        columns.add("ended_ps", nodes.iter().map(|n| n.ended.0))?;
        Ok(columns.done())
    }

    /// Ends the time series at the current time. Must be called before the record is read.
    fn finish_record(&mut self) {
        self.world.finish_record();
    }

    /// Counters by name.
    fn totals<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = self.results();
        let totals = PyDict::new(py);
        totals.set_item("end_ps", results.end.0)?;
        totals.set_item("in_flight", results.in_flight)?;
        totals.set_item("in_flight_bytes", results.in_flight_bytes)?;
        for (name, value) in results.totals.named() {
            totals.set_item(name, value)?;
        }
        Ok(totals)
    }

    /// What arrived without packets, by name; `packets_only` is why everything went by packets, or `None`.
    fn skips<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let SkipTotals { messages, bytes, packets, resumed, recorded, kinds, packets_only } =
            self.results().skips;
        let skips = PyDict::new(py);
        let counts = [
            ("messages", messages),
            ("bytes", bytes),
            ("packets", packets),
            ("resumed", resumed),
            ("recorded", recorded),
            ("kinds", kinds),
        ];
        for (name, value) in counts {
            skips.set_item(name, value)?;
        }
        skips.set_item("packets_only", packets_only)?;
        Ok(skips)
    }

    /// Counters of what connections did beside sending messages, by name.
    fn life<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let life = PyDict::new(py);
        for (name, value) in self.results().life.named() {
            life.set_item(name, value)?;
        }
        Ok(life)
    }
}
