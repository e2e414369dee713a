//! `openmrc._core.Simulation`: a run of crates/sim for Python. Converts and checks; decides nothing.
//!
//! A scenario comes as plain dictionaries, made by the pydantic models of `openmrc.sim`, which have checked its types; results
//! go back as columns of 64-bit numbers that any array library reads without copying.

use openmrc_fabric::Fabric;
use openmrc_sim::training::Training;
use openmrc_sim::{
    AdaptiveConfig, CaptureConfig, MrcConfig, MrcCongestion, NetworkConfig, Record, Rocev2Config, Scenario,
    ScenarioError, SeriesConfig, TransportConfig, UetConfig, Workload, World, collectives, traffic,
};
use openmrc_transport::mrc::{LoadBalancing, NsccParams, SwiftParams};
use openmrc_transport::rocev2::{DcqcnParams, Recovery};
use openmrc_transport::{Span, Time};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::sim_custom::{self, Failure};

mod faults;
mod network;
mod record;

use faults::{fault_schedule, link_number, link_numbers};
use network::{FabricSpec, NetworkSpec, fabric, network};

pyo3::import_exception!(openmrc.errors, ArgumentError);

/// Adds the simulator's class to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySimulation>()
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    ArgumentError::new_err(error.to_string())
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct MrcSpec {
    ev_active: u16,
    ev_backup: u16,
    mpr: u8,
    fixed_window: Option<u64>,
    destination_control: bool,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct DcqcnSpec {
    g: f64,
    alpha_timer_us: f64,
    rate_timer_us: f64,
    byte_counter: u64,
    fast_recovery: u32,
    additive_bps: Option<f64>,
    hyper_bps: Option<f64>,
    least_bps: f64,
    cnp_interval_us: f64,
}

/// Off, on, or on with parameters.
#[derive(FromPyObject)]
enum DcqcnChoice {
    Switch(bool),
    Parameters(DcqcnSpec),
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Rocev2Spec {
    qps: u32,
    recovery: String,
    dcqcn: DcqcnChoice,
    timeout_us: f64,
    retry_count: u8,
    window: u32,
    ack_every: u32,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct UetSpec {
    load_balancing: String,
    evs: u16,
    mpr: u8,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct AdaptiveSpec {
    mpr: u8,
    target_us: Option<f64>,
    beta: f64,
    max_decrease: f64,
    increase: Option<f64>,
}

/// A user's own classes.
struct Custom {
    path_selector: Option<Py<PyAny>>,
    congestion: Option<Py<PyAny>>,
    failure: Failure,
}

fn transport(spec: &Bound<'_, PyDict>, network: &NetworkConfig, own: Custom) -> PyResult<TransportConfig> {
    let kind = item::<String>(spec, "kind")?;
    if kind != "mrc" && (own.path_selector.is_some() || own.congestion.is_some()) {
        return Err(refused(format!(
            "path_selector and congestion stand in for parts of MRC: transport is {kind}"
        )));
    }
    match kind.as_str() {
        "mrc" => mrc(spec.extract()?, network, own),
        "uet" => {
            let UetSpec { load_balancing, evs, mpr } = spec.extract()?;
            let load_balancing = match load_balancing.as_str() {
                "oblivious" => LoadBalancing::Oblivious,
                "reps" => LoadBalancing::Reps,
                "skip" => LoadBalancing::EvSkip,
                other => {
                    return Err(refused(format!("load_balancing: {other} is not oblivious, reps or skip")));
                }
            };
            Ok(TransportConfig::Uet(UetConfig { load_balancing, evs, mpr }))
        }
        "adaptive" => {
            let AdaptiveSpec { mpr, target_us, beta, max_decrease, increase } = spec.extract()?;
            let default = SwiftParams::for_network(rate(network), network.base_rtt(), mtu(network));
            let base_target = target_us.map_or(default.base_target, |us| nanos(us * 1e3));
            let swift = SwiftParams {
                base_target,
                scaling_range: base_target.times(4),
                beta,
                max_decrease,
                increase: increase.unwrap_or(default.increase),
                ..default
            };
            Ok(TransportConfig::Adaptive(AdaptiveConfig { swift: Some(swift), mpr }))
        }
        "rocev2" => rocev2(&spec.extract()?, network),
        other => Err(refused(format!("kind: {other} is not a transport"))),
    }
}

/// Rate of a host, all ports together.
fn rate(network: &NetworkConfig) -> u64 {
    network.port_rate_bps * u64::from(network.fabric.shape().planes)
}

/// Nominal size of a full packet.
fn mtu(network: &NetworkConfig) -> u32 {
    u32::from(network.path_mtu) + NsccParams::OVERHEAD
}

fn mrc(spec: MrcSpec, network: &NetworkConfig, own: Custom) -> PyResult<TransportConfig> {
    let MrcSpec { ev_active, ev_backup, mpr, fixed_window, destination_control } = spec;
    let Custom { path_selector, congestion, failure } = own;
    let congestion = match (congestion, fixed_window) {
        (Some(_), Some(_)) => return Err(refused("congestion: the transport has a fixed_window")),
        (Some(class), None) => MrcCongestion::Custom(sim_custom::congestion(
            class,
            &failure,
            mtu(network),
            rate(network),
            network.base_rtt().0,
        )),
        (None, Some(bytes)) => MrcCongestion::FixedWindow(bytes),
        (None, None) => MrcCongestion::Nscc,
    };
    let load_balancing = path_selector.map_or(LoadBalancing::EvStates, |class| {
        LoadBalancing::Custom(sim_custom::selector(class, &failure))
    });
    Ok(TransportConfig::Mrc(MrcConfig {
        ev_active,
        ev_backup,
        mpr,
        congestion,
        load_balancing,
        destination_control,
    }))
}

fn rocev2(spec: &Rocev2Spec, network: &NetworkConfig) -> PyResult<TransportConfig> {
    let recoveries = [("go-back-n", Recovery::GoBackN), ("selective-repeat", Recovery::SelectiveRepeat)];
    let (dcqcn, dcqcn_params) = match &spec.dcqcn {
        DcqcnChoice::Switch(on) => (*on, None),
        DcqcnChoice::Parameters(p) => {
            let default = DcqcnParams::for_rate(network.port_rate_bps);
            let additive_bps = p.additive_bps.unwrap_or(default.additive_bps);
            let params = DcqcnParams {
                line_rate_bps: default.line_rate_bps,
                g: p.g,
                alpha_timer: nanos(p.alpha_timer_us * 1e3),
                rate_timer: nanos(p.rate_timer_us * 1e3),
                byte_counter: p.byte_counter,
                fast_recovery: p.fast_recovery,
                additive_bps,
                hyper_bps: p.hyper_bps.unwrap_or(10.0 * additive_bps),
                least_bps: p.least_bps,
                cnp_interval: nanos(p.cnp_interval_us * 1e3),
            };
            (true, Some(params))
        }
    };
    Ok(TransportConfig::Rocev2(Rocev2Config {
        qps: spec.qps,
        recovery: one_of("recovery", &spec.recovery, &recoveries)?,
        dcqcn,
        dcqcn_params,
        timeout: nanos(spec.timeout_us * 1e3),
        retry_count: spec.retry_count,
        window: spec.window,
        ack_every: spec.ack_every,
    }))
}

fn nanos(value: f64) -> Span {
    Span((value * 1e3).round() as u64)
}

fn micros(value: f64) -> Time {
    Time((value * 1e6).round() as u64)
}

fn one_of<T: Copy>(field: &str, value: &str, choices: &[(&str, T)]) -> PyResult<T> {
    let found = choices.iter().find(|(name, _)| *name == value).map(|&(_, choice)| choice);
    found.ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        refused(format!("{field}: {value} is not one of {}", names.join(", ")))
    })
}

fn item<'py, T: FromPyObjectOwned<'py>>(spec: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
    let value = spec.get_item(name)?.ok_or_else(|| refused(format!("{name} is missing")))?;
    value.extract::<T>().map_err(Into::into)
}

/// Hosts that a pattern names, or all of them.
fn members(spec: &Bound<'_, PyDict>, hosts: u32) -> PyResult<Vec<u32>> {
    Ok(item::<Option<Vec<u32>>>(spec, "ranks")?.unwrap_or_else(|| (0..hosts).collect()))
}

fn pattern(spec: &Bound<'_, PyDict>, network: &NetworkConfig) -> PyResult<Workload> {
    let shape = network.fabric.shape();
    let kind: String = item(spec, "kind")?;
    let mut workload = match kind.as_str() {
        "permutation" => traffic::permutation(shape.hosts, item(spec, "bytes")?, item(spec, "seed")?),
        "incast" => traffic::incast(
            &item::<Vec<u32>>(spec, "senders")?,
            item(spec, "receiver")?,
            item(spec, "bytes")?,
        ),
        "all-to-all" => traffic::all_to_all(&members(spec, shape.hosts)?, item(spec, "bytes")?),
        "random" => traffic::random(
            shape.hosts,
            network.port_rate_bps * u64::from(shape.planes),
            item(spec, "load")?,
            &item::<Vec<(u32, f64)>>(spec, "sizes")?,
            nanos(item::<f64>(spec, "duration_us")? * 1e3),
            item(spec, "seed")?,
        ),
        "flows" => {
            let mut workload = Workload::default();
            for (src, dst, bytes, start_us) in item::<Vec<(u32, u32, u32, f64)>>(spec, "flows")? {
                let connection = workload.connect(src, dst);
                workload.send(connection, bytes, micros(start_us));
            }
            workload
        }
        "collective" => {
            let (ranks, bytes) = (members(spec, shape.hosts)?, item::<u64>(spec, "bytes")?);
            match item::<String>(spec, "operation")?.as_str() {
                "ring-all-reduce" => collectives::ring_all_reduce(&ranks, bytes),
                "all-gather" | "reduce-scatter" => collectives::ring_pass(&ranks, bytes),
                "recursive-doubling-all-reduce" => collectives::recursive_doubling_all_reduce(&ranks, bytes),
                "all-to-all" => collectives::stepped_all_to_all(&ranks, bytes),
                "pipeline" => collectives::pipeline(&ranks, bytes, item(spec, "microbatches")?),
                other => return Err(refused(format!("operation: {other} is not a collective"))),
            }
        }
        "training" => {
            let ranks = members(spec, shape.hosts)?;
            let training = training(spec)?;
            let need = training.ranks();
            let used = ranks.get(..need as usize).ok_or_else(|| {
                refused(format!(
                    "ranks: data x tensor x pipeline = {need} ranks, but there are {}",
                    ranks.len()
                ))
            })?;
            training.workload(used)
        }
        other => return Err(refused(format!("kind: {other} is not a traffic pattern"))),
    };
    workload.delay(nanos(item::<f64>(spec, "start_us")? * 1e3));
    Ok(workload)
}

fn training(spec: &Bound<'_, PyDict>) -> PyResult<Training> {
    let span = |name| Ok::<_, PyErr>(nanos(item::<f64>(spec, name)? * 1e3));
    Ok(Training {
        data: item(spec, "data")?,
        tensor: item(spec, "tensor")?,
        pipeline: item(spec, "pipeline")?,
        expert: item(spec, "expert")?,
        microbatches: item(spec, "microbatches")?,
        steps: item(spec, "steps")?,
        forward: span("forward_us")?,
        backward: span("backward_us")?,
        tensor_bytes: item(spec, "tensor_bytes")?,
        activation_bytes: item(spec, "activation_bytes")?,
        expert_bytes: item(spec, "expert_bytes")?,
        gradient_bytes: item(spec, "gradient_bytes")?,
    })
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RecordSpec {
    series: bool,
    interval_us: Option<f64>,
    links: Option<Vec<String>>,
    events: bool,
    ports: bool,
    evs: bool,
    capture: Vec<String>,
    capture_packets: u64,
}

fn record(py: Python<'_>, spec: &RecordSpec, fabric: &Fabric, patterns: Vec<u32>) -> PyResult<Record> {
    let links = match &spec.links {
        None => (0..fabric.links()).collect(),
        Some(names) => link_numbers(fabric, names).map_err(|e| at_place(py, &e, "record.links"))?,
    };
    let interval = spec.interval_us.map(|us| nanos(us * 1e3));
    Ok(Record {
        series: spec.series.then_some(SeriesConfig { interval, links }),
        events: spec.events,
        ports: spec.ports,
        paths: spec.evs,
        capture: match spec.capture.is_empty() {
            true => None,
            false => Some(CaptureConfig {
                links: link_numbers(fabric, &spec.capture)
                    .map_err(|e| at_place(py, &e, "record.capture.links"))?,
                most: spec.capture_packets,
            }),
        },
        patterns,
    })
}

/// The same error, with the place in the scenario that it is about in front.
fn at_place(py: Python<'_>, error: &PyErr, place: &str) -> PyErr {
    refused(format!("{place}: {}", error.value(py)))
}

/// Columns of 64-bit numbers under construction.
struct Columns<'py>(Bound<'py, PyDict>);

impl<'py> Columns<'py> {
    fn new(py: Python<'py>) -> Self {
        Columns(PyDict::new(py))
    }

    fn add(&mut self, name: &str, values: impl Iterator<Item = u64>) -> PyResult<()> {
        let bytes: Vec<u8> = values.flat_map(u64::to_ne_bytes).collect();
        self.0.set_item(name, PyBytes::new(self.0.py(), &bytes))
    }

    fn done(self) -> Bound<'py, PyDict> {
        self.0
    }
}

/// A run in virtual time.
#[pyclass(name = "Simulation", module = "openmrc._core")]
struct PySimulation {
    world: World,
    /// Source, destination, bytes of each message, and the pattern it is of.
    messages: Vec<(u32, u32, u32, u32)>,
    /// Pattern, step, message or computation that the step ends with.
    step_ends: Vec<(u32, u32, u32)>,
    /// What a user's own class has raised.
    failure: Failure,
}

#[pymethods]
impl PySimulation {
    /// Lays out the network and schedules everything; `ArgumentError` says what cannot be.
    #[new]
    #[pyo3(signature = (fabric_spec, network_spec, transport_spec, traffic, faults, limit_us, seed, record_spec, *,
        path_selector=None, congestion=None))]
    #[allow(clippy::too_many_arguments)] // Called by one function of the package.
    fn new(
        py: Python<'_>,
        fabric_spec: FabricSpec,
        network_spec: NetworkSpec,
        transport_spec: Bound<'_, PyDict>,
        traffic: Vec<Bound<'_, PyDict>>,
        faults: Vec<Bound<'_, PyDict>>,
        limit_us: f64,
        seed: u64,
        record_spec: RecordSpec,
        path_selector: Option<Py<PyAny>>,
        congestion: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let fabric = fabric(&fabric_spec).map_err(refused)?;
        let network = network(fabric, &network_spec, seed)?;
        let mut workload = Workload::default();
        let (mut patterns, mut step_ends) = (Vec::new(), Vec::new());
        for (index, spec) in traffic.iter().enumerate() {
            let known = workload.step_ends.len();
            let pattern =
                pattern(spec, &network).map_err(|e| at_place(py, &e, &format!("traffic.{index}")))?;
            pattern
                .check(network.fabric.shape().hosts)
                .map_err(|e| refused(format!("traffic.{index}: {e}")))?;
            workload.append(&pattern);
            patterns.push(workload.messages.len() as u32);
            step_ends.extend(
                workload.step_ends[known..].iter().map(|&(message, step)| (index as u32, step, message)),
            );
        }
        let limit = micros(limit_us);
        let mut schedule = Vec::new();
        for (index, spec) in faults.iter().enumerate() {
            let faults = fault_schedule(spec, &fabric, limit)
                .map_err(|e| at_place(py, &e, &format!("faults.{index}.targets")))?;
            schedule.extend(faults);
        }
        let failure = Failure::default();
        let own = Custom { path_selector, congestion, failure: failure.clone() };
        let transport = transport(&transport_spec, &network, own)?;
        let record = record(py, &record_spec, &fabric, patterns.clone())?;
        let messages = workload
            .messages
            .iter()
            .enumerate()
            .map(|(index, m)| {
                let ends = workload.connections[m.connection as usize];
                let pattern = patterns.partition_point(|&end| end as usize <= index);
                (ends.src, ends.dst, m.bytes, pattern as u32)
            })
            .collect();
        let scenario = Scenario { network, transport, workload, faults: schedule, limit, record };
        let world = py.detach(|| World::new(&scenario)).map_err(|e: ScenarioError| refused(e))?;
        Ok(PySimulation { world, messages, step_ends, failure })
    }

    /// Goes on for at most so many events; whether there is more to do.
    ///
    /// What a user's own class raises, this raises.
    fn advance(&mut self, py: Python<'_>, events: u64) -> PyResult<bool> {
        let more = py.detach(|| self.world.run_for(events));
        self.failure.take().map_or(Ok(more), Err)
    }

    /// Virtual time in picoseconds, messages finished, messages, events, data packets.
    fn progress(&self) -> (u64, usize, usize, u64, u64) {
        let p = self.world.progress();
        (p.now.0, p.finished, p.messages, p.events, p.data_packets)
    }

    /// Number of a link by its name, or by that of the host's port it leads to.
    fn link_number(&self, name: &str) -> PyResult<u32> {
        link_number(&self.world.config().fabric, name)
    }

    /// Base RTT of the network, picoseconds.
    fn base_rtt(&self) -> u64 {
        self.world.config().base_rtt().0
    }

    /// The columns of all messages, 64-bit numbers each, picoseconds where they are times; what did not happen is 2^64 - 1.
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = self.world.results();
        // Computations are no messages.
        let rows = || self.messages.iter().zip(&results.messages).filter(|(m, _)| m.2 > 0);
        let mut columns = Columns::new(py);
        columns.add("src", rows().map(|(m, _)| m.0.into()))?;
        columns.add("dst", rows().map(|(m, _)| m.1.into()))?;
        columns.add("bytes", rows().map(|(m, _)| m.2.into()))?;
        columns.add("pattern", rows().map(|(m, _)| m.3.into()))?;
        columns.add("posted_ps", rows().map(|(_, r)| r.posted.0))?;
        columns.add("delivered_ps", rows().map(|(_, r)| r.delivered.0))?;
        columns.add("completed_ps", rows().map(|(_, r)| r.completed.0))?;
        columns.add("failed", rows().map(|(_, r)| r.failed.into()))?;
        Ok(columns.done())
    }

    /// Steps of patterns that have them: pattern, step, when the last rank had come to its end (2^64 - 1: not all have).
    fn steps(&self) -> Vec<(u32, u32, u64)> {
        let results = self.world.results();
        let mut ends = std::collections::BTreeMap::new();
        for &(pattern, step, message) in &self.step_ends {
            let end: &mut u64 = ends.entry((pattern, step)).or_default();
            *end = (*end).max(results.messages[message as usize].delivered.0);
        }
        ends.into_iter().map(|((pattern, step), end)| (pattern, step, end)).collect()
    }

    /// Ends the time series where the run stands. To be called before the record is read.
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
