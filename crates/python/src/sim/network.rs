//! The fabric and its network, as a scenario describes them.

use openmrc_fabric::{Fabric, Ratio, ShapeError, Sizing};
use openmrc_sim::{
    EcnMarking, Encapsulation, NetworkConfig, Overflow, PfcConfig, Routing, RoutingReaction, Scheduling,
    SwitchConfig,
};
use pyo3::prelude::*;

use super::{nanos, one_of, refused};

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct FabricSpec {
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
pub(super) struct NetworkSpec {
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

pub(super) fn fabric(spec: &FabricSpec) -> Result<Fabric, ShapeError> {
    let mut sizing = Sizing::new(spec.hosts, spec.planes, spec.tiers, spec.radix);
    let (down, up) = spec.oversubscription;
    sizing.oversubscription[0] = Ratio { down, up };
    sizing.hosts_per_t0 = spec.hosts_per_t0;
    sizing.uplinks_per_t0 = spec.uplinks_per_t0;
    sizing.t0s_per_pod = spec.t0s_per_pod;
    Fabric::new(sizing.smallest()?)
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

pub(super) fn network(fabric: Fabric, spec: &NetworkSpec, seed: u64) -> PyResult<NetworkConfig> {
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
