//! `openmrc._core.Simulation`: a run of crates/sim for Python. Converts and checks; decides nothing.
//!
//! A scenario comes as plain dictionaries, made by the pydantic models of `openmrc.sim`, which have checked its types; results
//! go back as columns of 64-bit numbers that any array library reads without copying.

use openmrc_fabric::{Fabric, NameError, Node, Ratio, ShapeError, Sizing};
use openmrc_sim::training::Training;
use openmrc_sim::{
    CaptureConfig, Change, EcnMarking, Encapsulation, Fault, MrcConfig, MrcCongestion, NetworkConfig,
    Overflow, Record, Rocev2Config, Routing, Scenario, ScenarioError, Scheduling, SeriesConfig, SwitchConfig,
    Target, TransportConfig, Workload, World, collectives, faults, traffic,
};
use openmrc_transport::rocev2::Recovery;
use openmrc_transport::{Span, Time};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

mod record;

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
struct FabricSpec {
    hosts: u32,
    planes: u32,
    tiers: u8,
    radix: u32,
    hosts_per_t0: Option<u32>,
    uplinks_per_t0: Option<u32>,
    t0s_per_pod: Option<u32>,
    oversubscription: (u32, u32),
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SwitchSpec {
    preset: String,
    trim: f64,
    trim_last_hop: f64,
    control: f64,
    ecn_min: Option<f64>,
    ecn_max: f64,
    ecn_probability: f64,
    ecn_last_hop: bool,
    overflow: String,
    control_share: Option<f64>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct NetworkSpec {
    port_rate: u64,
    cable_ns: [f64; 4],
    switch_latency_ns: f64,
    nic_latency_ns: f64,
    encapsulation: String,
    routing: String,
    routing_reaction_us: Option<f64>,
    mtu: u16,
    switch: SwitchSpec,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct MrcSpec {
    ev_active: u16,
    ev_backup: u16,
    mpr: u8,
    fixed_window: Option<u64>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Rocev2Spec {
    qps: u32,
    recovery: String,
    dcqcn: bool,
    timeout_us: f64,
}

fn transport(spec: &Bound<'_, PyDict>) -> PyResult<TransportConfig> {
    if item::<String>(spec, "kind")? == "mrc" {
        let MrcSpec { ev_active, ev_backup, mpr, fixed_window } = spec.extract()?;
        let congestion = fixed_window.map_or(MrcCongestion::Nscc, MrcCongestion::FixedWindow);
        return Ok(TransportConfig::Mrc(MrcConfig { ev_active, ev_backup, mpr, congestion }));
    }
    let Rocev2Spec { qps, recovery, dcqcn, timeout_us } = spec.extract()?;
    let recoveries = [("go-back-n", Recovery::GoBackN), ("selective-repeat", Recovery::SelectiveRepeat)];
    let recovery = one_of("recovery", &recovery, &recoveries)?;
    Ok(TransportConfig::Rocev2(Rocev2Config { qps, recovery, dcqcn, timeout: nanos(timeout_us * 1e3) }))
}

fn nanos(value: f64) -> Span {
    Span((value * 1e3).round() as u64)
}

fn micros(value: f64) -> Time {
    Time((value * 1e6).round() as u64)
}

fn fabric(spec: &FabricSpec) -> Result<Fabric, ShapeError> {
    let mut sizing = Sizing::new(spec.hosts, spec.planes, spec.tiers, spec.radix);
    let (down, up) = spec.oversubscription;
    sizing.oversubscription[0] = Ratio { down, up };
    sizing.hosts_per_t0 = spec.hosts_per_t0;
    sizing.uplinks_per_t0 = spec.uplinks_per_t0;
    sizing.t0s_per_pod = spec.t0s_per_pod;
    Fabric::new(sizing.smallest()?)
}

fn one_of<T: Copy>(field: &str, value: &str, choices: &[(&str, T)]) -> PyResult<T> {
    let found = choices.iter().find(|(name, _)| *name == value).map(|&(_, choice)| choice);
    found.ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        refused(format!("{field}: {value} is not one of {}", names.join(", ")))
    })
}

fn switch(config: &NetworkConfig, spec: &SwitchSpec) -> PyResult<SwitchConfig> {
    if spec.preset == "rocev2" {
        return Ok(config.rocev2_switch());
    }
    let bdp = config.plane_bdp() as f64;
    let share = |value: f64| (bdp * value) as u64;
    let overflows = [("trim", Overflow::Trim), ("drop", Overflow::Drop)];
    Ok(SwitchConfig {
        data_bytes: share(spec.trim),
        last_hop_data_bytes: share(spec.trim_last_hop),
        control_bytes: share(spec.control),
        overflow: one_of("overflow", &spec.overflow, &overflows)?,
        scheduling: match spec.control_share {
            None => Scheduling::Strict,
            Some(part) => Scheduling::Weighted((part * 256.0).round().clamp(1.0, 255.0) as u8),
        },
        ecn: spec.ecn_min.map(|min| EcnMarking {
            min_bytes: share(min),
            max_bytes: share(spec.ecn_max),
            probability: spec.ecn_probability,
            on_last_hop: spec.ecn_last_hop,
        }),
    })
}

fn network(fabric: Fabric, spec: &NetworkSpec, seed: u64) -> PyResult<NetworkConfig> {
    let mut config = NetworkConfig::new(fabric, spec.port_rate);
    config.cable = spec.cable_ns.map(nanos);
    config.switch_latency = nanos(spec.switch_latency_ns);
    config.nic_latency = nanos(spec.nic_latency_ns);
    let encapsulations = [("srv6", Encapsulation::Srv6), ("udp", Encapsulation::Udp)];
    config.encapsulation = one_of("encapsulation", &spec.encapsulation, &encapsulations)?;
    let routings =
        [("source", Routing::SourceRouted), ("ecmp", Routing::Ecmp), ("adaptive", Routing::Adaptive)];
    config.routing = one_of("routing", &spec.routing, &routings)?;
    config.routing_reaction = spec.routing_reaction_us.map(|us| nanos(us * 1e3));
    config.path_mtu = spec.mtu;
    config.seed = seed;
    config.switch = Some(switch(&config, &spec.switch)?);
    Ok(config)
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

/// Links by their names; the fabric's numbers of them.
fn link_numbers(fabric: &Fabric, names: &[String]) -> PyResult<Vec<u32>> {
    names
        .iter()
        .map(|name| match target(fabric, name)? {
            Target::Link(link) => Ok(link),
            Target::Switch(_) => Err(refused(format!("record: {name} is a switch; name a link"))),
        })
        .collect()
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

fn record(spec: &RecordSpec, fabric: &Fabric, patterns: Vec<u32>) -> PyResult<Record> {
    let links = match &spec.links {
        None => (0..fabric.links()).collect(),
        Some(names) => link_numbers(fabric, names)?,
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
                links: link_numbers(fabric, &spec.capture)?,
                most: spec.capture_packets,
            }),
        },
        patterns,
    })
}

/// A link or a switch by its name.
fn target(fabric: &Fabric, name: &str) -> PyResult<Target> {
    let unknown = |error: NameError| refused(format!("fault: {error}"));
    if name.contains("--") {
        let link = fabric.link_named(name).map_err(unknown)?;
        return Ok(Target::Link(fabric.link_number(link)));
    }
    match fabric.node_named(name).map_err(unknown)? {
        Node::Switch(switch) => Ok(Target::Switch(fabric.switch_number(switch))),
        Node::Host(_) => Err(refused(format!("fault: {name} is a host; name its cable, or a switch"))),
    }
}

fn fault_schedule(spec: &Bound<'_, PyDict>, fabric: &Fabric, limit: Time) -> PyResult<Vec<Fault>> {
    let names: Vec<String> = item(spec, "targets")?;
    let targets = names.iter().map(|name| target(fabric, name)).collect::<PyResult<Vec<_>>>()?;
    let kind: String = item(spec, "kind")?;
    let at = micros(item(spec, "at_us")?);
    let until = item::<Option<f64>>(spec, "until_us")?.map(micros);
    let value: f64 = item(spec, "value")?;
    let change = match kind.as_str() {
        "down" => Change::Down,
        "loss" => Change::Loss(value),
        "bit-errors" => Change::BitErrors(value),
        "slow" => Change::Slow(value),
        "flap" => {
            let (down, up) = (item::<f64>(spec, "down_us")?, item::<f64>(spec, "up_us")?);
            let times = item(spec, "times")?;
            let flap = |&target| faults::flap(target, at, nanos(down * 1e3), nanos(up * 1e3), times);
            return Ok(targets.iter().flat_map(flap).collect());
        }
        "random" => {
            let (mtbf, mttr) = (item::<f64>(spec, "mtbf_us")?, item::<f64>(spec, "mttr_us")?);
            let end = until.unwrap_or(limit);
            return Ok(faults::random(
                &targets,
                nanos(mtbf * 1e3),
                nanos(mttr * 1e3),
                end,
                item(spec, "seed")?,
            ));
        }
        other => return Err(refused(format!("kind: {other} is not a fault"))),
    };
    let both = |&target| {
        let end = until.map(|at| Fault { at, target, change: Change::Up });
        [Some(Fault { at, target, change }), end]
    };
    Ok(targets.iter().flat_map(both).flatten().collect())
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
}

#[pymethods]
impl PySimulation {
    /// Lays out the network and schedules everything; `ArgumentError` says what cannot be.
    #[new]
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
        let transport = transport(&transport_spec)?;
        let record =
            record(&record_spec, &fabric, patterns.clone()).map_err(|e| at_place(py, &e, "record"))?;
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
        Ok(PySimulation { world, messages, step_ends })
    }

    /// Goes on for at most so many events; whether there is more to do.
    fn advance(&mut self, py: Python<'_>, events: u64) -> bool {
        py.detach(|| self.world.run_for(events))
    }

    /// Virtual time in picoseconds, messages finished, messages, events, data packets.
    fn progress(&self) -> (u64, usize, usize, u64, u64) {
        let p = self.world.progress();
        (p.now.0, p.finished, p.messages, p.events, p.data_packets)
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
        for (name, value) in results.totals.named() {
            totals.set_item(name, value)?;
        }
        Ok(totals)
    }
}
