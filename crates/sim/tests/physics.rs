//! Times against closed forms, on fabrics small enough to compute by hand.

mod common;

use common::{RATE, all_delivered, fabric, ideal, last_delivery, multiplane, run};
use openmrc_fabric::{Fabric, Link, Ratio, Sizing};
use openmrc_scenario::run::{
    CaptureConfig, EcnMarking, MrcConfig, MrcCongestion, NetworkConfig, Overflow, Routing, Scheduling,
    SwitchConfig, TransportConfig,
};
use openmrc_scenario::{Engine, Run, RunError};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};
use openmrc_workload::{Workload, patterns};

fn one_flow(network: NetworkConfig, src: u32, dst: u32, bytes: u32) -> (Run, Span) {
    let turn = network.fabric.turn(src, dst);
    let least = ideal(&network, turn, u64::from(bytes));
    let mut workload = Workload::default();
    let connection = workload.connect(src, dst);
    workload.send(connection, bytes, Time::ZERO);
    (Run::new(network, workload), least)
}

#[test]
fn one_packet_takes_exactly_the_sum_of_its_hops() {
    for tiers in 1..=4 {
        let hosts = [0, 8, 16, 16, 32][tiers as usize];
        let radix = [0, 8, 8, 4, 4][tiers as usize];
        let network = NetworkConfig::new(fabric(hosts, 1, tiers, radix), RATE);
        let dst = network.fabric.shape().hosts - 1;
        let (scenario, least) = one_flow(network, 0, dst, 4096);
        let results = run(&scenario);
        assert_eq!(results.messages[0].delivered, Time::ZERO + least, "{tiers} tiers");
    }
}

#[test]
fn one_flow_fills_every_plane_and_takes_the_least_time_there_is() {
    for planes in [1, 4, 8] {
        for dst in [1, 15] {
            let (scenario, least) = one_flow(multiplane(16, planes), 0, dst, 1 << 20);
            let results = run(&scenario);
            let took = results.messages[0].delivered.since(Time::ZERO);
            assert!(took >= least, "{planes} planes: {took:?} is less than {least:?}");
            // Feedback and its ACKs share no port with data here: only the window can cost time.
            assert!(took.0 * 100 <= least.0 * 101, "{planes} planes to {dst}: {took:?}, at best {least:?}");
            assert_eq!(results.totals.hosts.retransmits, 0);
        }
    }
}

#[test]
fn a_permutation_is_nearly_as_fast_as_one_flow_alone() {
    let network = multiplane(64, 4);
    let least = ideal(&network, 1, 4 << 20);
    let results = run(&Run::new(network, patterns::permutation(64, 4 << 20, 3)));
    let took = last_delivery(&results).since(Time::ZERO);
    assert!(all_delivered(&results));
    assert!(took >= least);
    assert!(took.0 * 100 <= least.0 * 120, "{took:?}, at best {least:?}");
}

#[test]
fn an_incast_takes_as_long_as_its_last_link_needs_and_is_shared_evenly() {
    let bytes = 1 << 20;
    // From other racks; and half of them from the receiver's own, where the round trip is half as long.
    for senders in [8..23, 1..16] {
        let network = multiplane(32, 4);
        let least = ideal(&network, 0, 15 * u64::from(bytes));
        let senders: Vec<u32> = senders.collect();
        let results = run(&Run::new(network, patterns::incast(&senders, 0, bytes)));
        assert!(all_delivered(&results));
        let took = last_delivery(&results).since(Time::ZERO);
        assert!(took.0 >= least.0 * 99 / 100, "{took:?} is less than the last link needs, {least:?}");
        assert!(took.0 * 100 <= least.0 * 120, "{took:?}, at best {least:?}");
        let first = results.messages.iter().map(|m| m.delivered).min().unwrap();
        assert!(first.0 * 10 >= took.0 * 5, "the first is done at {first:?}, the last after {took:?}");
    }
}

/// Receivers press senders that go on overrunning their ports. A short incast is over before that.
#[test]
fn an_incast_of_a_few_takes_the_least_time_there_is() {
    for (senders, bytes) in [(2, 4 << 20), (4, 1 << 20), (8, 1 << 18)] {
        let network = multiplane(64, 4);
        let least = ideal(&network, 1, u64::from(senders * bytes));
        let senders: Vec<u32> = (8..8 + senders).collect();
        let results = run(&Run::new(network, patterns::incast(&senders, 0, bytes)));
        let took = last_delivery(&results);
        assert!(took.0 * 100 <= least.0 * 110, "{} senders: {took:?}, at best {least:?}", senders.len());
    }
}

#[test]
fn an_incast_across_the_fabric_is_even_soon_after_it_has_begun() {
    for seed in 1..6 {
        let mut network = multiplane(64, 4);
        network.seed = seed;
        // 4.9 ms, of which the first tenth of a millisecond is anybody's.
        let senders: Vec<u32> = (1..8).map(|t0| t0 * 8).collect();
        let results = run(&Run::new(network, patterns::incast(&senders, 0, 32 << 20)));
        let took = last_delivery(&results);
        let first = results.messages.iter().map(|m| m.delivered).min().unwrap();
        assert!(first.0 * 100 >= took.0 * 85, "seed {seed}: first {first:?}, last {took:?}");
    }
}

#[test]
fn an_incast_trims_on_the_last_hop_only_and_drops_nothing() {
    let senders: Vec<u32> = (8..32).collect();
    let results = run(&Run::new(multiplane(32, 4), patterns::incast(&senders, 0, 1 << 20)));
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.trimmed_last_hop > 0);
    assert_eq!(results.totals.dropped(), 0, "{:?}", results.totals);
    assert_eq!(results.totals.hosts.losses_seen, 0, "a trimmed packet is no lost packet");
}

#[test]
fn a_victim_of_an_incast_on_its_rack_is_unharmed() {
    let network = multiplane(64, 4);
    let alone = {
        let (scenario, _) = one_flow(network.clone(), 63, 1, 4 << 20);
        run(&scenario).messages[0].delivered
    };
    let senders: Vec<u32> = (8..15).collect();
    let mut workload = patterns::incast(&senders, 0, 4 << 20);
    let connection = workload.connect(63, 1);
    workload.send(connection, 4 << 20, Time::ZERO);
    let results = run(&Run::new(network, workload));
    let victim = results.messages.last().unwrap().delivered;
    assert!(victim.0 * 100 <= alone.0 * 105, "{victim:?}, alone {alone:?}");
}

#[test]
fn every_routing_delivers_on_every_kind_of_fabric() {
    for (hosts, planes, tiers, radix) in
        [(8, 1, 1, 8), (30, 2, 2, 8), (16, 1, 3, 4), (32, 1, 4, 4), (54, 1, 3, 6)]
    {
        for routing in [Routing::SourceRouted, Routing::Ecmp, Routing::Adaptive] {
            let mut network = NetworkConfig::new(fabric(hosts, planes, tiers, radix), RATE);
            network.routing = routing;
            let results = run(&Run::new(network, patterns::permutation(hosts, 300_000, 9)));
            assert!(all_delivered(&results), "{tiers} tiers, {routing:?}: {:?}", results.totals);
        }
    }
}

#[test]
fn with_one_plane_and_one_uplink_no_bits_of_the_entropy_value_choose() {
    let mut sizing = Sizing::new(12, 1, 2, 8);
    sizing.oversubscription[0] = Ratio { down: 4, up: 1 };
    sizing.hosts_per_t0 = Some(4);
    let only = Fabric::new(sizing.smallest().unwrap()).unwrap();
    assert_eq!((only.shape().planes, only.uplinks(0)), (1, 1));
    let results = run(&Run::new(NetworkConfig::new(only, RATE), patterns::permutation(12, 300_000, 9)));
    assert!(all_delivered(&results), "{:?}", results.totals);
}

#[test]
fn the_same_seed_gives_the_same_run_bit_for_bit_and_another_seed_another() {
    let scenario = |seed| {
        let mut network = multiplane(64, 4);
        network.seed = seed;
        let mut workload = patterns::permutation(64, 500_000, 1);
        workload.append(&patterns::incast(&[1, 2, 3, 4, 5], 40, 700_000));
        Run::new(network, workload)
    };
    let results = run(&scenario(5));
    assert!(results.totals.fabric.marked > 0, "chance plays a part");
    assert_eq!(results, run(&scenario(5)));
    assert_ne!(results, run(&scenario(6)));
}

#[test]
fn running_in_small_steps_changes_nothing() {
    let scenario = Run::new(multiplane(32, 4), patterns::permutation(32, 200_000, 1));
    let mut world = World::new(&scenario).unwrap();
    while world.advance(97) {}
    assert_eq!(world.results(), run(&scenario));
}

#[test]
fn a_time_limit_ends_the_run_there() {
    let mut scenario = Run::new(multiplane(32, 4), patterns::permutation(32, 50_000_000, 1));
    scenario.limit = Time(Span::from_micros(50).0);
    let results = run(&scenario);
    assert_eq!(results.end, scenario.limit);
    assert!(!all_delivered(&results) && results.in_flight > 0);
}

#[test]
fn where_trimming_is_off_a_full_queue_drops_and_the_transport_still_delivers() {
    let mut network = multiplane(32, 4);
    let switch = network.default_switch();
    network.switch = Some(SwitchConfig { overflow: Overflow::Drop, ..switch });
    let senders: Vec<u32> = (8..32).collect();
    let results = run(&Run::new(network, patterns::incast(&senders, 0, 1 << 20)));
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.dropped_data > 0);
    assert_eq!(results.totals.fabric.trimmed + results.totals.fabric.trimmed_last_hop, 0);
}

#[test]
fn a_control_queue_that_is_full_drops_and_is_counted() {
    let mut network = multiplane(32, 4);
    let switch = network.default_switch();
    network.switch = Some(SwitchConfig { control_bytes: 2_000, ..switch });
    let senders: Vec<u32> = (8..32).collect();
    let results = run(&Run::new(network, patterns::incast(&senders, 0, 1 << 20)));
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.dropped_control > 0);
}

#[test]
fn control_is_served_beside_data_under_either_scheduling() {
    for scheduling in [Scheduling::Strict, Scheduling::Weighted(64)] {
        let mut network = multiplane(32, 4);
        let switch = network.default_switch();
        network.switch = Some(SwitchConfig { scheduling, ..switch });
        let senders: Vec<u32> = (1..16).collect();
        let least = ideal(&network, 0, 15 << 20);
        let results = run(&Run::new(network, patterns::incast(&senders, 0, 1 << 20)));
        assert!(all_delivered(&results));
        assert!(last_delivery(&results).0 * 100 <= least.0 * 130, "{scheduling:?}");
    }
}

#[test]
fn fewer_packets_are_marked_the_higher_the_threshold_and_none_beyond_the_longest_queue() {
    let marked = |bytes| {
        let mut network = multiplane(64, 4);
        let switch = network.default_switch();
        let step = EcnMarking { min_bytes: bytes, max_bytes: bytes, probability: 1.0, on_last_hop: false };
        network.switch = Some(SwitchConfig { ecn: Some(step), ..switch });
        // What is marked changes what is sent; a fixed window and one path set leave only the switch to differ.
        let mut scenario = Run::new(network, patterns::permutation(64, 1 << 20, 3));
        let congestion = MrcCongestion::FixedWindow(600_000);
        scenario.transport = TransportConfig::Mrc(MrcConfig { congestion, ..MrcConfig::default() });
        run(&scenario).totals.fabric
    };
    let (low, high) = (marked(1), marked(8_000));
    assert!(low.marked > high.marked && high.marked > 0, "{} {}", low.marked, high.marked);
    assert_eq!(marked(low.longest_queue.max(high.longest_queue) * 2).marked, 0);
}

/// Bytes that a frame takes on a cable: with its checksum, preamble and gap.
const ROUND_A_FRAME: usize = 4 + 20;

/// The frames that went down the cable of host 0 in plane 0, with the times of their last bits.
fn down_to_host_0(scenario: &mut Run) -> (Vec<(Time, Vec<u8>)>, openmrc_scenario::Totals) {
    let link = scenario.network.fabric.link_number(Link { plane: 0, layer: 0, lower: 0, uplink: 0 });
    scenario.record.capture = Some(CaptureConfig { links: vec![link], most: u64::MAX });
    let mut world = World::new(scenario).unwrap();
    world.run();
    let [_, down] = world.link_ports(link);
    let packets = world.recorder_mut().unwrap().capture.as_mut().unwrap().take();
    let packets = packets.iter().filter(|captured| captured.port == down);
    (packets.map(|captured| (captured.time, world.frame(captured))).collect(), world.results().totals)
}

#[test]
fn a_packet_is_marked_if_the_threshold_is_behind_it_and_not_the_next_one() {
    for exact_queues in [false, true] {
        let mut network = NetworkConfig::new(fabric(8, 1, 1, 8), RATE);
        network.exact_queues = exact_queues;
        // Ten and a half packets.
        let bytes = u64::from(network.full_packet_bytes()) * 21 / 2;
        let step = EcnMarking { min_bytes: bytes, max_bytes: bytes, probability: 1.0, on_last_hop: true };
        let switch = network.default_switch();
        network.switch = Some(SwitchConfig { ecn: Some(step), last_hop_data_bytes: 1 << 30, ..switch });
        // A shorter packet is on the cable when the first ones arrive: from then on two arrive while one leaves.
        let mut workload = patterns::incast(&[1, 2], 0, 40 * 4096);
        let beside = workload.connect(3, 0);
        workload.send(beside, 3000, Time::ZERO);
        let mut scenario = Run::new(network, workload);
        let congestion = MrcCongestion::FixedWindow(1 << 20);
        scenario.transport = TransportConfig::Mrc(MrcConfig { congestion, ..MrcConfig::default() });
        let (frames, _) = down_to_host_0(&mut scenario);
        let data = frames.iter().filter(|(_, frame)| frame.len() > 4096);
        // CE, in the traffic class of the outer IPv6 header.
        let marked: Vec<bool> = data.map(|(_, frame)| frame[15] >> 4 & 3 == 3).collect();
        // Behind packet n, counted from 0, are n + 1 when it begins to leave, and in the end those that are left.
        let right: Vec<bool> = (0..80).map(|n: u32| (n + 1).min(79 - n) >= 11).collect();
        assert_eq!(marked, right, "exact queues: {exact_queues}");
    }
}

#[test]
fn a_trimmed_packet_has_the_bytes_of_its_headers() {
    let mut scenario = Run::new(multiplane(32, 1), patterns::incast(&[8, 9, 10, 11], 0, 1 << 20));
    let full = u64::from(scenario.network.full_packet_bytes());
    let (frames, totals) = down_to_host_0(&mut scenario);
    // Ethernet, two IPv6 headers, UDP, and of MRC BTH, METH, TSETH and RETH (docs/spec/wire.md, "Packets with a trimmed
    // DSCP").
    let headers = 14 + 40 + 40 + 8 + 12 + 4 + 4 + 16;
    let trimmed = frames.iter().filter(|(_, frame)| frame.len() == headers).count() as u64;
    assert!(trimmed > 0);
    assert_eq!(trimmed, totals.fabric.trimmed_last_hop);
    let cut = full - (headers + ROUND_A_FRAME) as u64;
    assert_eq!(totals.fabric.cut_bytes, (totals.fabric.trimmed + totals.fabric.trimmed_last_hop) * cut);
}

#[test]
fn no_packet_leaves_while_another_is_on_the_cable() {
    let mut network = multiplane(32, 1);
    network.exact_queues = true;
    let per_byte = network.picos_per_byte();
    // Trimmed packets are control, and go before the data that wait.
    let mut scenario = Run::new(network, patterns::incast(&[8, 9, 10, 11], 0, 1 << 20));
    let (frames, totals) = down_to_host_0(&mut scenario);
    assert!(totals.fabric.trimmed_last_hop > 0);
    for pair in frames.windows(2) {
        let [(before, _), (time, frame)] = pair else { unreachable!() };
        let least = (frame.len() + ROUND_A_FRAME).max(84) as u64 * per_byte;
        assert!(time.since(*before).0 >= least, "{} bytes {:?} later", frame.len(), time.since(*before));
    }
}

#[test]
fn a_hop_that_takes_no_time_is_refused() {
    let mut network = multiplane(16, 4);
    network.cable = [Span::ZERO; 4];
    network.switch_latency = Span::ZERO;
    let scenario = Run::new(network, patterns::permutation(16, 1000, 1));
    assert!(matches!(World::new(&scenario), Err(RunError::Range { .. })));
}
