//! A network that is simulated by several threads gives what one thread gives, to the bit: results, time series, log,
//! counters, captured packets.

mod common;

use common::{assert_laws, fabric, multiplane};
use openmrc_scenario::run::{
    AdaptiveConfig, CaptureConfig, Change, Effect, Encapsulation, FaultEvent, LifeConfig, MrcConfig,
    NetworkConfig, PfcConfig, ReceivesConfig, RecordConfig, Rocev2Config, Routing, RoutingReaction,
    SeriesConfig, SoftwareHosts, SwitchConfig, Target, TransportConfig, UetConfig, faults,
};
use openmrc_scenario::{Engine, Results, Run, RunError};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};
use openmrc_workload::training::ParallelLayout;
use openmrc_workload::{Workload, collectives, patterns};
use proptest::prelude::*;

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

/// Everything that a run tells.
#[derive(PartialEq, Debug)]
struct Told {
    results: Results,
    log: String,
    series: String,
    ports: String,
    paths: String,
    frames: Vec<(Time, u32, Vec<u8>)>,
}

fn told(scenario: &Run, threads: u32, events: u64) -> Told {
    let scenario = Run { threads, ..scenario.clone() };
    let mut world = World::new(&scenario).expect("a scenario that can run");
    let mut frames = Vec::new();
    loop {
        let more = world.advance(events);
        let capture = world.recorder_mut().and_then(|recorder| recorder.capture.as_mut());
        let packets = capture.map(|capture| capture.take()).unwrap_or_default();
        frames.extend(packets.iter().map(|packet| (packet.time, packet.port, world.frame(packet))));
        if !more {
            break;
        }
    }
    world.finish_record();
    let results = world.results();
    assert_laws(&scenario, &results);
    let recorder = world.recorder().expect("a record");
    let mut paths: Vec<_> = recorder.paths.iter().collect();
    paths.sort_by_key(|(key, _)| **key);
    Told {
        results,
        log: format!("{:?} {}", recorder.log, recorder.log_missed),
        series: format!("{:?}", recorder.series),
        ports: format!("{:?}", recorder.ports),
        paths: format!("{paths:?}"),
        frames,
    }
}

fn everything(capture: u64) -> RecordConfig {
    let links: Vec<u32> = (0..16).collect();
    RecordConfig {
        series: Some(SeriesConfig { interval: None, links: links.clone() }),
        events: true,
        ports: true,
        paths: true,
        capture: Some(CaptureConfig { links, most: capture }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn every_number_of_threads_tells_the_same(
        (transport, tiers, planes) in (0u8..7, 1u8..4, 1u32..4),
        (traffic, broken, seed) in (0u8..5, 0u8..4, 1u64..1000),
        (limit, events, captured) in (prop_oneof![Just(3_000u64), 20u64..200], 500u64..20_000, 100u64..3000),
    ) {
        let (mut network, transport) = network(transport, tiers, planes);
        network.seed = seed;
        network.routing_reaction = seed.is_multiple_of(2).then_some(RoutingReaction {
            detection: Span::from_micros(3),
            silent_detection: Span::from_micros(5),
            convergence: Span::from_micros(8),
        });
        let mut scenario = Run::new(network, workload(traffic, seed));
        scenario.transport = transport;
        scenario.faults = faults(broken, &scenario.network);
        scenario.limit = Time(Span::from_micros(limit).0);
        scenario.record = everything(captured);
        let one = told(&scenario, 1, events);
        for threads in 2..=4 {
            let several = told(&scenario, threads, events);
            prop_assert_eq!(&one.results, &several.results, "{} threads", threads);
            prop_assert!(one == several, "the record of {} threads", threads);
        }
    }
}

#[test]
fn more_threads_than_hosts_are_as_good() {
    let mut scenario = Run::new(multiplane(8, 2), patterns::permutation(8, 100_000, 1));
    scenario.record = everything(100);
    assert_eq!(told(&scenario, 1, u64::MAX), told(&scenario, 20, u64::MAX));
}

#[test]
fn a_number_of_threads_has_its_range() {
    let scenario = Run::new(multiplane(8, 2), Workload::default());
    for threads in [0, 257] {
        let error = World::new(&Run { threads, ..scenario.clone() }).err();
        assert_eq!(error, Some(RunError::Threads(threads)));
    }
}
