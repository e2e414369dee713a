//! `openmrc._core.Simulation` and `CheckedScenario`: crates/sim for Python. Converts; decides nothing.
//! A scenario comes as one JSON text; [`openmrc_scenario`] reads, checks and builds it. Results go back as columns of
//! 64-bit numbers, which any array library reads without a copy.

use openmrc_scenario::{self as scenario, Checked, Engine, OwnParts, Run, ScenarioError, Step, names};
use openmrc_sim::World;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::sim_custom::{self, Failure};

mod record;

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
        let estimate = self.0.estimate::<World>().map_err(|error| refused(py, &error))?;
        let parts = PyDict::new(py);
        for (part, bytes) in estimate.memory.named() {
            parts.set_item(part, bytes)?;
        }
        Ok(parts)
    }

    /// Builds the network with its faults but without traffic, and drops it. Raises what the start of a run would
    /// raise.
    fn try_network(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.try_network::<World>()).map_err(|error| refused(py, &error))
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

/// A message of the scenario.
struct Message {
    src: u32,
    dst: u32,
    bytes: u32,
    pattern: u32,
}

/// A message or computation that a step ends with.
struct StepEnd {
    pattern: u32,
    step: u32,
    message: u32,
}

/// A run in virtual time.
#[pyclass(name = "Simulation", module = "openmrc._core")]
struct PySimulation {
    world: World,
    messages: Vec<Message>,
    step_ends: Vec<StepEnd>,
    /// The exception of a user's class.
    failure: Failure,
}

/// The messages and the step ends of a run.
fn messages_and_steps(run: &Run) -> (Vec<Message>, Vec<StepEnd>) {
    let pattern_of = |message: u32| run.record.patterns.partition_point(|&end| end <= message) as u32;
    let messages = (0..).zip(&run.workload.messages).map(|(number, message)| {
        let ends = run.workload.connections[message.connection as usize];
        Message { src: ends.src, dst: ends.dst, bytes: message.bytes, pattern: pattern_of(number) }
    });
    let step_ends = run.workload.step_ends.iter().map(|&(message, step)| {
        let pattern = pattern_of(message);
        StepEnd { pattern, step, message }
    });
    (messages.collect(), step_ends.collect())
}

#[pymethods]
impl PySimulation {
    /// Builds the network and schedules messages and faults. Raises `ArgumentError` if that is not possible.
    #[new]
    #[pyo3(signature = (scenario, *, path_selector=None, congestion=None))]
    fn new(
        py: Python<'_>,
        scenario: &CheckedScenario,
        path_selector: Option<Py<PyAny>>,
        congestion: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (checked, failure) = (&scenario.0, Failure::default());
        let network = checked.network();
        let (packet, rate, rtt) =
            (network.nominal_packet_bytes(), network.host_rate_bps(), network.base_rtt());
        let own = OwnParts {
            congestion: congestion.map(|class| sim_custom::congestion(class, &failure, packet, rate, rtt.0)),
            path_selector: path_selector.map(|class| sim_custom::selector(class, &failure)),
        };
        let made = py.detach(|| -> Result<_, ScenarioError> {
            let run = checked.build(own)?;
            let (messages, step_ends) = messages_and_steps(&run);
            Ok((World::new(&run)?, messages, step_ends))
        });
        let (world, messages, step_ends) = made.map_err(|error| refused(py, &error))?;
        Ok(PySimulation { world, messages, step_ends, failure })
    }

    /// Runs for at most `events` events; returns whether the run goes on. Raises the exception of a user's class.
    fn advance(&mut self, py: Python<'_>, events: u64) -> PyResult<bool> {
        let more = py.detach(|| self.world.advance(events));
        self.failure.take().map_or(Ok(more), Err)
    }

    /// Virtual time in picoseconds, messages finished, messages, events, data packets.
    fn progress(&self) -> (u64, usize, usize, u64, u64) {
        let p = self.world.progress();
        (p.now.0, p.finished, p.messages, p.events, p.data_packets)
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
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = self.world.results();
        // Computations are messages of 0 bytes and not part of the result.
        let rows = || self.messages.iter().zip(&results.messages).filter(|(message, _)| message.bytes > 0);
        let mut columns = Columns::new(py);
        columns.add("src", rows().map(|(message, _)| message.src.into()))?;
        columns.add("dst", rows().map(|(message, _)| message.dst.into()))?;
        columns.add("bytes", rows().map(|(message, _)| message.bytes.into()))?;
        columns.add("pattern", rows().map(|(message, _)| message.pattern.into()))?;
        columns.add("posted_ps", rows().map(|(_, result)| result.posted.0))?;
        columns.add("delivered_ps", rows().map(|(_, result)| result.delivered.0))?;
        columns.add("completed_ps", rows().map(|(_, result)| result.completed.0))?;
        columns.add("failed", rows().map(|(_, result)| result.failed.into()))?;
        Ok(columns.done())
    }

    /// Steps of patterns: pattern, step, time at which the last rank finished the step (2^64 - 1 if one did not).
    fn steps(&self) -> Vec<(u32, u32, u64)> {
        let results = self.world.results();
        let mut ends = std::collections::BTreeMap::new();
        for step_end in &self.step_ends {
            let end: &mut u64 = ends.entry((step_end.pattern, step_end.step)).or_default();
            *end = (*end).max(results.messages[step_end.message as usize].delivered.0);
        }
        ends.into_iter().map(|((pattern, step), end)| (pattern, step, end)).collect()
    }

    /// Ends the time series at the current time. Must be called before the record is read.
    fn finish_record(&mut self) {
        self.world.finish_record();
    }

    /// Counters by name.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = self.world.results();
        let totals = PyDict::new(py);
        totals.set_item("end_ps", results.end.0)?;
        totals.set_item("in_flight", results.in_flight)?;
        totals.set_item("in_flight_bytes", results.in_flight_bytes)?;
        for (name, value) in results.totals.named() {
            totals.set_item(name, value)?;
        }
        Ok(totals)
    }
}
