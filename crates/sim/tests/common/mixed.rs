//! Runs of every transport with traffic of several kinds, whole and broken.

use openmrc_scenario::Run;
use openmrc_scenario::run::{
    AdaptiveConfig, Change, Effect, Encapsulation, FaultEvent, LifeConfig, MrcConfig, NetworkConfig,
    PfcConfig, ReceivesConfig, Rocev2Config, Routing, RoutingReaction, SoftwareHosts, SwitchConfig, Target,
    TransportConfig, UetConfig, faults,
};
use openmrc_transport::{Span, Time};
use openmrc_workload::training::ParallelLayout;
use openmrc_workload::{Workload, collectives, patterns};

use super::fabric;

/// One of 7 transports on a fabric of 1 to 3 tiers, one of 5 workloads, and one of 4 schedules of faults.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub transport: u8,
    pub tiers: u8,
    pub planes: u32,
    pub traffic: u8,
    pub broken: u8,
    pub seed: u64,
    /// Microseconds.
    pub limit: u64,
}

impl Mix {
    pub fn run(self) -> Run {
        let (mut network, transport) = network(self.transport, self.tiers, self.planes);
        network.seed = self.seed;
        network.routing_reaction = self.seed.is_multiple_of(2).then_some(RoutingReaction {
            detection: Span::from_micros(3),
            silent_detection: Span::from_micros(5),
            convergence: Span::from_micros(8),
        });
        let mut run = Run::new(network, workload(self.traffic, self.seed));
        run.transport = transport;
        run.faults = faults(self.broken, &run.network);
        run.limit = Time(Span::from_micros(self.limit).0);
        run
    }
}

/// Transports, each with the network it is meant for.
fn network(transport: u8, tiers: u8, planes: u32) -> (NetworkConfig, TransportConfig) {
    let mut network =
        NetworkConfig::new(fabric(32, planes, tiers, if tiers == 1 { 32 } else { 16 }), 100_000_000_000);
    let transport = match transport {
        0 => return (network, TransportConfig::Mrc(MrcConfig::default())),
        1 => {
            let own = MrcConfig { destination_control: true, ..MrcConfig::default() };
            network.exact_queues = true;
            return (network, TransportConfig::Mrc(own));
        }
        2 => {
            network.software = Some(SoftwareHosts {
                receive_buffer: 64 << 10,
                service_rate_bps: 100_000_000_000,
                burst: 4,
                base_rtt: Span::from_micros(50),
            });
            return (network, TransportConfig::Mrc(MrcConfig::default()));
        }
        3 => {
            let receives =
                Some(ReceivesConfig { posted: 1, repost: Span::from_micros(7), longest_wait: None });
            let life = LifeConfig { prove_mtu: true, linger: true, receives };
            return (network, TransportConfig::Mrc(MrcConfig { life, ..MrcConfig::default() }));
        }
        4 => {
            network.routing = Routing::Ecmp;
            TransportConfig::Uet(UetConfig::default())
        }
        5 => {
            network.routing = Routing::Adaptive;
            let pfc = Some(PfcConfig::new(network.full_packet_bytes()));
            network.switch = Some(SwitchConfig { pfc, ecn: None, ..network.default_switch() });
            TransportConfig::Adaptive(AdaptiveConfig::default())
        }
        _ => {
            network.routing = Routing::Ecmp;
            network.switch = Some(network.rocev2_switch());
            TransportConfig::Rocev2(Rocev2Config { qps: 2, ..Rocev2Config::default() })
        }
    };
    network.encapsulation = Encapsulation::Udp;
    (network, transport)
}

/// Traffic of several kinds at once.
fn workload(which: u8, seed: u64) -> Workload {
    let hosts: Vec<u32> = (0..32).collect();
    let mut workload = patterns::permutation(32, 120_000, seed);
    workload.append(&match which {
        0 => patterns::incast(&hosts[3..20], 1, 60_000),
        1 => patterns::all_to_all(&hosts[..12], 20_000),
        2 => collectives::ring_all_reduce(&hosts, 400_000),
        3 => {
            let sizes = [(1_000, 0.5), (40_000, 1.0)];
            patterns::random(32, 400_000_000_000, 0.3, &sizes, Span::from_micros(20), seed)
        }
        _ => ParallelLayout {
            data: 4,
            tensor: 2,
            pipeline: 2,
            expert: 2,
            microbatches: 2,
            steps: 1,
            forward: Span::from_micros(3),
            backward: Span::from_micros(5),
            tensor_bytes: 20_000,
            activation_bytes: 10_000,
            expert_bytes: 3_000,
            gradient_bytes: 40_000,
        }
        .workload(&hosts[5..21]),
    });
    workload
}

/// What breaks, and what comes back.
fn faults(which: u8, network: &NetworkConfig) -> Vec<FaultEvent> {
    let fault = |at, target, change| FaultEvent { at: Time(Span::from_micros(at).0), target, change };
    let links = network.fabric.links();
    match which {
        0 => Vec::new(),
        1 => {
            (0..links).map(|link| fault(0, Target::Link(link), Change::Begins(Effect::Loss(0.005)))).collect()
        }
        2 => faults::flap(Target::Link(3), Time(5_000_000), Span::from_micros(15), Span::from_micros(20), 3),
        _ => vec![
            fault(4, Target::Switch(network.fabric.switches() - 1), Change::Begins(Effect::Down)),
            fault(6, Target::Link(links - 1), Change::Begins(Effect::Slow(0.3))),
            fault(0, Target::Link(links / 2), Change::Begins(Effect::Mtu(1_500))),
            fault(60, Target::Switch(network.fabric.switches() - 1), Change::Ends(Effect::Down)),
        ],
    }
}
