//! `openmrc._core.Simulation`: a run of crates/sim for Python. Converts and checks; decides nothing.
//!
//! A scenario comes as plain dictionaries, made by the pydantic models of `openmrc.sim`, which have checked its types; results
//! go back as columns of 64-bit numbers that any array library reads without copying.

use openmrc_fabric::{Fabric, Link, NameError, Node, Ratio, ShapeError, Sizing};
use openmrc_sim::training::Training;
use openmrc_sim::{
    AdaptiveConfig, CaptureConfig, Change, EcnMarking, Encapsulation, Fault, MrcConfig, MrcCongestion,
    NetworkConfig, Overflow, PfcConfig, Record, Rocev2Config, Routing, RoutingReaction, Scenario,
    ScenarioError, Scheduling, SeriesConfig, SwitchConfig, Target, TransportConfig, UetConfig, Workload,
    World, collectives, faults, traffic,
};
use openmrc_transport::mrc::{LoadBalancing, NsccParams, SwiftParams};
use openmrc_transport::rocev2::{DcqcnParams, Recovery};
use openmrc_transport::{Span, Time};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::sim_custom::{self, Failure};

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
struct PfcSpec {
    buffer: Option<u64>,
    alpha: f64,
    xoff: Option<u64>,
    xon_offset: Option<u64>,
    headroom: Option<u64>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SwitchSpec {
    preset: String,
    overflow: Option<String>,
    trim: Option<f64>,
    trim_last_hop: Option<f64>,
    control: Option<f64>,
    control_share: Option<f64>,
    ecn: Option<bool>,
    ecn_min: Option<f64>,
    ecn_max: Option<f64>,
    ecn_min_bytes: Option<u64>,
    ecn_max_bytes: Option<u64>,
    ecn_probability: Option<f64>,
    ecn_last_hop: Option<bool>,
    lossless: Option<bool>,
    pfc: PfcSpec,
    exact: bool,
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
    detection_us: Option<f64>,
    convergence_us: f64,
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
    let bdp = config.plane_bdp() as f64;
    let share = |value: f64| (bdp * value) as u64;
    let pfc = PfcConfig::new(config.full_packet_bytes());
    let preset = match spec.preset.as_str() {
        "mrc" => config.default_switch(),
        "rocev2" => config.rocev2_switch(),
        "rocev2-lossy" => config.lossy_rocev2_switch(),
        "adaptive" => SwitchConfig { pfc: Some(pfc), ecn: None, ..config.default_switch() },
        other => return Err(refused(format!("preset: {other} is not a preset of switches"))),
    };
    let overflows = [("trim", Overflow::Trim), ("drop", Overflow::Drop)];
    let overflow = spec.overflow.as_deref().map(|name| one_of("overflow", name, &overflows)).transpose()?;
    let ecn = preset.ecn.or(config.default_switch().ecn).map(|ecn| {
        let min_bytes = spec.ecn_min_bytes.or(spec.ecn_min.map(share)).unwrap_or(ecn.min_bytes);
        let max_bytes = spec.ecn_max_bytes.or(spec.ecn_max.map(share)).unwrap_or(ecn.max_bytes);
        EcnMarking {
            min_bytes,
            max_bytes: max_bytes.max(min_bytes),
            probability: spec.ecn_probability.unwrap_or(ecn.probability),
            on_last_hop: spec.ecn_last_hop.unwrap_or(ecn.on_last_hop),
        }
    });
    let pfc = PfcConfig {
        buffer: spec.pfc.buffer,
        alpha: spec.pfc.alpha,
        xoff: spec.pfc.xoff,
        xon_offset: spec.pfc.xon_offset.unwrap_or(pfc.xon_offset),
        headroom: spec.pfc.headroom,
    };
    Ok(SwitchConfig {
        data_bytes: spec.trim.map_or(preset.data_bytes, share),
        last_hop_data_bytes: spec.trim_last_hop.map_or(preset.last_hop_data_bytes, share),
        control_bytes: spec.control.map_or(preset.control_bytes, share),
        overflow: overflow.unwrap_or(preset.overflow),
        scheduling: match spec.control_share {
            None => preset.scheduling,
            Some(part) => Scheduling::Weighted((part * 256.0).round().clamp(1.0, 255.0) as u8),
        },
        ecn: ecn.filter(|_| spec.ecn.unwrap_or(preset.ecn.is_some())),
        pfc: spec.lossless.unwrap_or(preset.pfc.is_some()).then_some(pfc),
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
    config.routing_reaction = spec.detection_us.map(|us| RoutingReaction {
        detection: nanos(us * 1e3),
        convergence: nanos(spec.convergence_us * 1e3),
    });
    config.exact_queues = spec.switch.exact;
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

/// Links and switches by their names, or all of a kind.
fn targets(fabric: &Fabric, name: &str) -> PyResult<Vec<Target>> {
    let links = |wanted: fn(u8) -> bool| {
        let of_layer = |&n: &u32| fabric.link(n).is_some_and(|link| wanted(link.layer));
        (0..fabric.links()).filter(of_layer).map(Target::Link).collect()
    };
    Ok(match name {
        "links" => links(|_| true),
        "host-links" => links(|layer| layer == 0),
        "fabric-links" => links(|layer| layer > 0),
        "switches" => (0..fabric.switches()).map(Target::Switch).collect(),
        _ => vec![target(fabric, name)?],
    })
}

/// A link, a host's port or a switch by its name.
fn target(fabric: &Fabric, name: &str) -> PyResult<Target> {
    let unknown = |error: NameError| refused(format!("fault: {error}"));
    if let Some((host, plane)) = name.strip_prefix('h').and_then(|rest| rest.split_once(":p"))
        && let (Ok(lower), Ok(plane)) = (host.parse::<u32>(), plane.parse::<u32>())
    {
        let shape = fabric.shape();
        if lower >= shape.hosts || plane >= shape.planes {
            let (hosts, planes) = (shape.hosts - 1, shape.planes - 1);
            return Err(refused(format!(
                "fault: there is no port {name}: hosts are h0 to h{hosts}, planes p0 to p{planes}"
            )));
        }
        return Ok(Target::Link(fabric.link_number(Link { plane, layer: 0, lower, uplink: 0 })));
    }
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
    let targets = names.iter().map(|name| targets(fabric, name)).collect::<PyResult<Vec<_>>>()?.concat();
    let kind: String = item(spec, "kind")?;
    let at = micros(item(spec, "at_us")?);
    let until = item::<Option<f64>>(spec, "until_us")?.map(micros);
    let value: f64 = item(spec, "value")?;
    let effect = match kind.as_str() {
        "random" => item::<String>(spec, "effect")?,
        _ => kind.clone(),
    };
    let change = match effect.as_str() {
        "loss" => Change::Loss(value),
        "bit-errors" => Change::BitErrors(value),
        "slow" => Change::Slow(value),
        _ => Change::Down,
    };
    match kind.as_str() {
        "down" | "loss" | "bit-errors" | "slow" | "nic-port" => {}
        "broken" => return Ok(faults::broken(&targets, value, at, item(spec, "seed")?)),
        "reboot" => {
            let down = nanos(item::<f64>(spec, "down_us")? * 1e3);
            if targets.iter().any(|target| !matches!(target, Target::Switch(_))) {
                return Err(refused(format!("fault: reboot: {} are not all switches", names.join(", "))));
            }
            return Ok(targets.iter().flat_map(|&t| faults::flap(t, at, down, Span::ZERO, 1)).collect());
        }
        "transceiver" => return transceiver(spec, fabric, &names[0], at),
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
                change,
                nanos(mtbf * 1e3),
                nanos(mttr * 1e3),
                end,
                item(spec, "seed")?,
            ));
        }
        other => return Err(refused(format!("kind: {other} is not a fault"))),
    }
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

/// Ports of a switch that share a transceiver: they go down and up together.
fn transceiver(spec: &Bound<'_, PyDict>, fabric: &Fabric, name: &str, at: Time) -> PyResult<Vec<Fault>> {
    let Node::Switch(switch) = fabric.node_named(name).map_err(|e| refused(format!("fault: {e}")))? else {
        return Err(refused(format!("fault: transceiver: {name} is not a switch")));
    };
    let (down, up) = (item::<f64>(spec, "down_us")?, item::<f64>(spec, "up_us")?);
    let times = item(spec, "times")?;
    let mut schedule = Vec::new();
    for port in item::<Vec<u32>>(spec, "ports")? {
        let link = fabric
            .link_at(switch, port)
            .ok_or_else(|| refused(format!("fault: transceiver: {name} has no cable on port {port}")))?;
        let target = Target::Link(fabric.link_number(link));
        schedule.extend(faults::flap(target, at, nanos(down * 1e3), nanos(up * 1e3), times));
    }
    Ok(schedule)
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
