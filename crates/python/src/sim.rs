//! `openmrc._core.Simulation`: a run of crates/sim for Python. Converts and checks; decides nothing.
//!
//! A scenario comes as plain dictionaries, made by the pydantic models of `openmrc.sim`, which have checked its types; results
//! go back as columns of 64-bit numbers that any array library reads without copying.

use openmrc_fabric::{Fabric, NameError, Node, Ratio, ShapeError, Sizing};
use openmrc_sim::{
    Change, EcnMarking, Encapsulation, Fault, MrcConfig, MrcCongestion, NetworkConfig, Overflow,
    Rocev2Config, Routing, Scenario, ScenarioError, Scheduling, SwitchConfig, Target, TransportConfig,
    Workload, World, collectives, faults, traffic,
};
use openmrc_transport::rocev2::Recovery;
use openmrc_transport::{Span, Time};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

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
        other => return Err(refused(format!("kind: {other} is not a traffic pattern"))),
    };
    workload.delay(nanos(item::<f64>(spec, "start_us")? * 1e3));
    Ok(workload)
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

/// A run in virtual time.
#[pyclass(name = "Simulation", module = "openmrc._core")]
struct PySimulation {
    world: World,
    /// Source, destination, bytes of each message.
    messages: Vec<(u32, u32, u32)>,
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
    ) -> PyResult<Self> {
        let fabric = fabric(&fabric_spec).map_err(refused)?;
        let network = network(fabric, &network_spec, seed)?;
        let mut workload = Workload::default();
        for spec in &traffic {
            workload.append(&pattern(spec, &network)?);
        }
        let limit = micros(limit_us);
        let mut schedule = Vec::new();
        for spec in &faults {
            schedule.extend(fault_schedule(spec, &fabric, limit)?);
        }
        let transport = transport(&transport_spec)?;
        let messages = workload
            .messages
            .iter()
            .map(|m| {
                let ends = workload.connections[m.connection as usize];
                (ends.src, ends.dst, m.bytes)
            })
            .collect();
        let scenario = Scenario { network, transport, workload, faults: schedule, limit };
        let world = py.detach(|| World::new(&scenario)).map_err(|e: ScenarioError| refused(e))?;
        Ok(PySimulation { world, messages })
    }

    /// Goes on for at most so many events; whether there is more to do.
    fn advance(&mut self, py: Python<'_>, events: u64) -> bool {
        py.detach(|| self.world.run_for(events))
    }

    /// Virtual time in picoseconds, messages finished, messages, events.
    fn progress(&self) -> (u64, usize, usize, u64) {
        let p = self.world.progress();
        (p.now.0, p.finished, p.messages, p.events)
    }

    /// Base RTT of the network, picoseconds.
    fn base_rtt(&self) -> u64 {
        self.world.config().base_rtt().0
    }

    /// The columns of all messages, little-endian 64-bit numbers each, picoseconds where they are times; what did not happen is
    /// 2^64 - 1.
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let results = self.world.results();
        let columns = PyDict::new(py);
        let add = |name: &str, values: &mut dyn Iterator<Item = u64>| {
            let bytes: Vec<u8> = values.flat_map(u64::to_ne_bytes).collect();
            columns.set_item(name, PyBytes::new(py, &bytes))
        };
        add("src", &mut self.messages.iter().map(|m| u64::from(m.0)))?;
        add("dst", &mut self.messages.iter().map(|m| u64::from(m.1)))?;
        add("bytes", &mut self.messages.iter().map(|m| u64::from(m.2)))?;
        add("posted_ps", &mut results.messages.iter().map(|m| m.posted.0))?;
        add("delivered_ps", &mut results.messages.iter().map(|m| m.delivered.0))?;
        add("completed_ps", &mut results.messages.iter().map(|m| m.completed.0))?;
        add("failed", &mut results.messages.iter().map(|m| u64::from(m.failed)))?;
        Ok(columns)
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
