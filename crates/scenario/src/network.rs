//! How fast and long the parts of the fabric are, and how packets find their way.

use openmrc_transport::mrc::DEFAULT_PATH_MTU;
use openmrc_transport::presets::software;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use openmrc_fabric::Fabric;

use crate::error::ScenarioError;
use crate::numbers::{Amount, Micros, Nanos, Whole, first_seed};
use crate::run::{Encapsulation, NetworkConfig, Routing, RoutingReaction, SoftwareHosts};
use crate::switch::{Preset, Switch};
use crate::topology::Cables;

/// How fast, how long and how clever the parts of the fabric are.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// From the last bit of a packet arriving at a switch until the packet is in its queue.
    pub switch_latency_ns: Nanos,
    /// From the last bit of a packet arriving at a NIC until the transport has the packet.
    pub nic_latency_ns: Nanos,
    /// Headers on every cable, with or without the outer IPv6 header; what the transport is meant for if left open.
    pub encapsulation: Option<Encapsulation>,
    /// Entropy values are paths (`source`) or hashed (`ecmp`), or the least loaded uplink is taken (`adaptive`); what
    /// the transport is meant for if left open.
    pub routing: Option<Routing>,
    /// Whether switches route around links that are down; unless entropy values are paths if left open.
    pub reroutes: Option<bool>,
    /// From a link's loss of carrier, or its return, until its own switches know.
    pub detection_us: Micros,
    /// The same for a link that loses every packet and has a carrier: BFD; a hold timer takes 9 to 180 s.
    pub silent_detection_us: Micros,
    /// From there until all switches route accordingly.
    pub convergence_us: Micros,
    /// Payload bytes of a full data packet.
    pub mtu: Whole<256, 8192>,
    /// NICs are software, with receive buffers; hardware if left open.
    pub software: Option<Software>,
    /// The queues of switches.
    pub switch: Switch,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            // With 100 m of fibre a round trip through two tiers at 100 Gb/s takes about 10 us, near the reference
            // network of NSCC.
            switch_latency_ns: Nanos::of(500.0),
            nic_latency_ns: Nanos::of(500.0),
            encapsulation: None,
            routing: None,
            reroutes: None,
            // A lost carrier (docs/spec/baselines.md, "Routing").
            detection_us: Micros::of(1_000.0),
            // BFD of 3 x 100 ms (docs/spec/baselines.md, "Routing").
            silent_detection_us: Micros::of(300_000.0),
            // BGP takes 0.1 s at its fastest, and up to tens of seconds (docs/spec/baselines.md, "Routing").
            convergence_us: Micros::of(100_000.0),
            // The path_mtu of a queue pair (docs/spec/transport.md).
            mtu: Whole::of(DEFAULT_PATH_MTU as u64),
            software: None,
            switch: Switch::default(),
        }
    }
}

/// Hosts whose NIC is software, as the endpoint of this project is: MRC only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Software {
    /// Receive buffer of a port, bytes of the host's memory: a packet takes 1,024 more than its own. What does not fit
    /// is dropped.
    pub receive_buffer: Amount,
    /// Rate at which a host handles the packets of all its ports, in the order of arrival, bit/s.
    pub service_rate: Whole<1_000_000, 1_000_000_000_000>,
    /// Most consecutive packets of a queue pair, and of a path.
    pub burst: Whole<1, 64>,
    /// Round trip that loss detection starts from: most of it passes in the host.
    pub base_rtt_us: Micros,
}

impl Default for Software {
    /// As the endpoint is by default, with the socket buffers of an unprivileged process.
    fn default() -> Self {
        Software {
            receive_buffer: Whole::of(212_992),
            // What one processor core takes from sockets.
            service_rate: Whole::of(20_000_000_000),
            burst: Whole::of(software::BURST.into()),
            base_rtt_us: Micros::of(software::BASE_RTT.as_nanos() as f64 / 1e3),
        }
    }
}

impl Software {
    fn config(&self) -> SoftwareHosts {
        SoftwareHosts {
            receive_buffer: self.receive_buffer.get(),
            service_rate_bps: self.service_rate.get(),
            burst: self.burst.u8(),
            base_rtt: self.base_rtt_us.span(),
        }
    }
}

/// The network that a transport is meant for: what a scenario leaves open is like this.
pub(crate) struct MeantFor {
    pub routing: Routing,
    pub encapsulation: Encapsulation,
    pub preset: Preset,
}

impl MeantFor {
    /// What MRC is meant for: SRv6 paths, and switches that trim.
    pub(crate) const MRC: MeantFor =
        MeantFor { routing: Routing::SourceRouted, encapsulation: Encapsulation::Srv6, preset: Preset::Mrc };
}

impl Network {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        self.switch.check().map_err(|error| error.inside("switch"))
    }

    /// The network of a run.
    pub(crate) fn config(
        &self,
        fabric: Fabric,
        (port_rate_bps, cables): (u64, &Cables),
        meant_for: &MeantFor,
        seed: u64,
    ) -> NetworkConfig {
        let routing = self.routing.unwrap_or(meant_for.routing);
        let reroutes = self.reroutes.unwrap_or(routing != Routing::SourceRouted);
        let mut config = NetworkConfig {
            fabric,
            port_rate_bps,
            cable: cables.delays(),
            switch_latency: self.switch_latency_ns.span(),
            nic_latency: self.nic_latency_ns.span(),
            encapsulation: self.encapsulation.unwrap_or(meant_for.encapsulation),
            routing,
            routing_reaction: reroutes.then(|| RoutingReaction {
                detection: self.detection_us.span(),
                silent_detection: self.silent_detection_us.span(),
                convergence: self.convergence_us.span(),
            }),
            path_mtu: self.mtu.u16(),
            software: self.software.as_ref().map(Software::config),
            switch: None,
            exact_queues: self.switch.exact,
            seed,
        };
        config.switch = Some(self.switch.config(&config, meant_for.preset));
        config
    }

    /// The same with everything filled in.
    pub(crate) fn filled(&self, config: &NetworkConfig, meant_for: &MeantFor) -> Self {
        Network {
            encapsulation: Some(config.encapsulation),
            routing: Some(config.routing),
            reroutes: Some(config.routing_reaction.is_some()),
            switch: self.switch.filled(config, meant_for.preset),
            ..self.clone()
        }
    }
}

impl NetworkConfig {
    /// The network that MRC is meant for, everything as a scenario has it by default.
    pub fn new(fabric: Fabric, port_rate_bps: u64) -> Self {
        let seed = first_seed().get();
        let ports = (port_rate_bps, &Cables::default());
        // Left open, queues follow later changes of rates and delays.
        NetworkConfig { switch: None, ..Network::default().config(fabric, ports, &MeantFor::MRC, seed) }
    }

    /// Rate of a host, all its ports together, bit/s.
    pub fn host_rate_bps(&self) -> u64 {
        self.port_rate_bps * u64::from(self.fabric.shape().planes)
    }
}
