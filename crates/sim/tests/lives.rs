//! What connections do before and after their messages, and what receivers do for each: the proof of the path MTU, ends
//! that answer for a while after they were destroyed, receives.

mod common;

use common::{all_delivered, assert_laws, multiplane, run};
use openmrc_fabric::Link;
use openmrc_scenario::run::{
    Change, Effect, FaultEvent, LifeConfig, MrcConfig, NetworkConfig, ReceivesConfig, Target, TransportConfig,
};
use openmrc_scenario::{Engine, LifeTotals, Results, Run};
use openmrc_sim::{LogEvent, World};
use openmrc_transport::{PortSet, Span, Time};
use openmrc_workload::{Workload, patterns};

const HOSTS: u32 = 32;
const PLANES: u8 = 4;

fn network() -> NetworkConfig {
    multiplane(HOSTS, PLANES.into())
}

fn with_life(workload: Workload, life: LifeConfig) -> Run {
    let mut scenario = Run::new(network(), workload);
    scenario.transport = TransportConfig::Mrc(MrcConfig { life, ..MrcConfig::default() });
    scenario
}

/// From the start on, longer IP packets are lost on a link.
fn narrow(network: &NetworkConfig, link: Link, bytes: u16) -> FaultEvent {
    let target = Target::Link(network.fabric.link_number(link));
    FaultEvent { at: Time::ZERO, target, change: Change::Begins(Effect::Mtu(bytes)) }
}

fn times(results: &Results) -> Vec<(Time, Time, Time)> {
    results.messages.iter().map(|m| (m.posted, m.delivered, m.completed)).collect()
}

fn millis(millis: u64) -> Time {
    Time(Span::from_millis(millis).0)
}

#[test]
fn without_a_wish_nothing_of_this_happens() {
    let results = run(&Run::new(network(), patterns::permutation(HOSTS, 200_000, 3)));
    assert_eq!(results.life, LifeTotals::default());
}

// The proof of the path MTU.

const PROVES: LifeConfig = LifeConfig { prove_mtu: true, linger: false, receives: None };

#[test]
fn a_path_mtu_that_all_planes_carry_is_proven_in_one_round_trip() {
    let workload = patterns::permutation(HOSTS, 4_000, 3);
    let without = run(&with_life(workload.clone(), LifeConfig::default()));
    let scenario = with_life(workload, PROVES);
    let results = run(&scenario);
    assert_eq!((results.life.mtu_proofs, results.life.mtu_refused), (HOSTS.into(), 0));
    assert!(all_delivered(&results));
    // Every message waits for its proof. A round trip is shorter between neighbours than `base_rtt`, the longest without
    // queues.
    let rtt = scenario.network.base_rtt();
    for (proven, given) in results.messages.iter().zip(&without.messages) {
        let later = proven.delivered.since(given.delivered);
        assert!(later > rtt.scaled(0.2) && later < rtt.scaled(1.5), "{later:?}, round trip {rtt:?}");
    }
}

#[test]
fn a_receiver_with_a_narrow_port_is_refused_after_a_second_and_all_others_are_served() {
    const RECEIVER: u32 = 12;
    let mut scenario = with_life(patterns::permutation(HOSTS, 200_000, 3), PROVES);
    // An IPv6 packet without room for 4096 bytes of payload.
    let port = Link { plane: 2, layer: 0, lower: RECEIVER, uplink: 0 };
    scenario.faults = vec![narrow(&scenario.network, port, 4_096)];
    scenario.record.events = true;
    let mut world = World::new(&scenario).unwrap();
    world.run();
    world.finish_record();
    let results = world.results();
    assert_laws(&scenario, &results);
    // The host's own packets cross its narrow port too.
    assert_eq!((results.life.mtu_proofs, results.life.mtu_refused), (HOSTS.into(), 2));
    for message in &results.messages {
        let concerned = [message.src, message.dst].contains(&RECEIVER);
        assert_eq!((message.failed, message.delivered == Time::NEVER), (concerned, concerned), "{message:?}");
    }
    assert!(results.totals.fabric.dropped_lossy > 0);
    let log = &world.recorder().unwrap().log;
    let refused: Vec<_> = log
        .iter()
        .filter_map(|&(at, event)| match event {
            LogEvent::NarrowPlanes { host, peer, narrow } => Some((at, host, peer, narrow)),
            _ => None,
        })
        .collect();
    assert_eq!(refused.len(), 2);
    for (at, host, peer, narrow) in refused {
        assert!([host, peer].contains(&RECEIVER));
        assert_eq!(narrow, PortSet::one(2));
        assert!(at > millis(1_000) && at < millis(1_200), "{at:?}");
    }
}

#[test]
fn an_mtu_that_is_just_large_enough_is_proven() {
    let mut scenario = with_life(patterns::permutation(HOSTS, 200_000, 3), PROVES);
    let enough = 4_096 + (scenario.network.full_packet_bytes() - 4_096 - 38) as u16;
    let faults = |network: &NetworkConfig, bytes| {
        let ports = (0..HOSTS).map(|lower| Link { plane: 1, layer: 0, lower, uplink: 0 });
        ports.map(|port| narrow(network, port, bytes)).collect()
    };
    scenario.faults = faults(&scenario.network, enough);
    assert_eq!(run(&scenario).life.mtu_refused, 0);
    scenario.faults = faults(&scenario.network, enough - 1);
    assert_eq!(run(&scenario).life.mtu_refused, u64::from(HOSTS));
}

#[test]
fn a_dead_plane_is_no_question_of_its_mtu() {
    let mut scenario = with_life(patterns::permutation(HOSTS, 200_000, 3), PROVES);
    let down = |lower| {
        let port = Link { plane: 1, layer: 0, lower, uplink: 0 };
        let target = Target::Link(scenario.network.fabric.link_number(port));
        FaultEvent { at: Time::ZERO, target, change: Change::Begins(Effect::Down) }
    };
    scenario.faults = (0..HOSTS).map(down).collect();
    let results = run(&scenario);
    assert!(all_delivered(&results));
    assert_eq!((results.life.mtu_proofs, results.life.mtu_refused), (HOSTS.into(), 0));
}

#[test]
fn one_narrow_link_of_many_is_found_by_its_losses_and_costs_no_message() {
    let mut scenario = Run::new(network(), patterns::permutation(HOSTS, 2 << 20, 3));
    let uplinks = (0..4).map(|lower| Link { plane: 1, layer: 1, lower, uplink: 3 });
    scenario.faults = uplinks.map(|link| narrow(&scenario.network, link, 1_500)).collect();
    let results = run(&scenario);
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.dropped_lossy > 0 && results.totals.hosts.condemned > 0);
    let totals = results.totals.hosts;
    assert!(totals.retransmits < totals.data_packets / 20, "{totals:?}");
}

// Ends that linger.

const LINGERS: LifeConfig = LifeConfig { prove_mtu: false, linger: true, receives: None };

/// Every link loses one packet in so many.
fn lossy(network: &NetworkConfig, probability: f64) -> Vec<FaultEvent> {
    let all = (0..network.fabric.links()).map(Target::Link);
    let change = Change::Begins(Effect::Loss(probability));
    all.map(|target| FaultEvent { at: Time::ZERO, target, change }).collect()
}

#[test]
fn a_destroyed_receiver_answers_until_its_sender_knows_that_all_has_arrived() {
    let mut scenario = with_life(patterns::permutation(HOSTS, 100_000, 3), LINGERS);
    scenario.faults = lossy(&scenario.network, 0.1);
    let results = run(&scenario);
    assert!(results.messages.iter().all(|m| m.completed != Time::NEVER), "nobody gives up");
    let life = results.life;
    assert!(life.lingered >= u64::from(2 * HOSTS - 1), "{life:?}");
    assert!(life.lingering_packets > 0, "last acknowledgements were lost: {life:?}");
    // Each host receives from one other and sends to one.
    assert_eq!(life.lingering_most, 2);
    assert_eq!(results.totals.hosts.stray, 0, "nobody is gone yet");
}

#[test]
fn where_nothing_is_lost_lingering_changes_no_time() {
    let workload = patterns::permutation(HOSTS, 500_000, 3);
    let [with, without] =
        [LINGERS, LifeConfig::default()].map(|life| run(&with_life(workload.clone(), life)));
    let delivered = |results: &Results| times(results).iter().map(|&(_, at, _)| at).collect::<Vec<_>>();
    assert_eq!(delivered(&with), delivered(&without));
    let counters = |results: &Results| {
        let hosts = results.totals.hosts;
        (hosts.data_packets, hosts.data_bytes, hosts.retransmits, hosts.timeouts, hosts.condemned)
    };
    assert_eq!(counters(&with), counters(&without), "the counters of destroyed queue pairs count once");
}

#[test]
fn an_end_that_has_lingered_for_its_time_leaves_its_place() {
    let mut workload = Workload::default();
    // A connection every 700 ms: more than one lingers at a time, and never all.
    for number in 0..8 {
        let connection = workload.connect(0, 8 + number);
        workload.send(connection, 10_000, millis(700 * u64::from(number)));
    }
    let results = run(&with_life(workload, LINGERS));
    assert!(all_delivered(&results));
    assert_eq!((results.life.lingered, results.life.lingering_most), (16, 2));
}

// Receives.

fn receives(posted: u32, repost: Span, longest_wait: Option<Span>) -> LifeConfig {
    let receives = Some(ReceivesConfig { posted, repost, longest_wait });
    LifeConfig { receives, ..LifeConfig::default() }
}

/// Ten messages on one connection.
fn ten_messages() -> Workload {
    let mut workload = Workload::default();
    let connection = workload.connect(0, 8);
    for _ in 0..10 {
        workload.send(connection, 10_000, Time::ZERO);
    }
    workload
}

#[test]
fn enough_receives_cost_four_bytes_a_message() {
    let results = run(&with_life(ten_messages(), receives(10, Span::from_millis(1), None)));
    assert!(all_delivered(&results));
    assert_eq!(results.life, LifeTotals::default());
    let plain = run(&with_life(ten_messages(), LifeConfig::default()));
    for (with, without) in results.messages.iter().zip(&plain.messages) {
        let later = with.delivered.since(without.delivered);
        assert!(later < Span::from_nanos(10), "{later:?}");
    }
}

#[test]
fn a_receiver_with_few_receives_takes_messages_no_faster_than_it_posts_them() {
    let repost = Span::from_micros(500);
    let results = run(&with_life(ten_messages(), receives(2, repost, None)));
    assert!(results.messages.iter().all(|m| m.completed != Time::NEVER && !m.failed));
    let mut delivered: Vec<_> = results.messages.iter().map(|m| m.delivered).collect();
    assert!(delivered.is_sorted(), "in order");
    // Message i + 2 takes the receive that message i has freed.
    for i in 0..8 {
        assert_eq!(delivered[i + 2], delivered[i] + repost);
    }
    delivered.dedup();
    assert!(results.life.receive_waits >= 4, "{:?}", results.life);
    let waited = results.life.receive_waited_ps;
    assert!(waited > repost.0 * 3 && waited <= repost.0 * 8, "{waited}");
    assert_eq!(results.totals.hosts.fatal, 0);
}

#[test]
fn a_message_that_waits_too_long_fails_both_ends() {
    let life = receives(2, Span::from_millis(5), Some(Span::from_micros(300)));
    let results = run(&with_life(ten_messages(), life));
    let failed: Vec<_> = results.messages.iter().map(|m| m.failed).collect();
    assert_eq!(failed, [vec![false; 2], vec![true; 8]].concat());
    assert_eq!((results.totals.hosts.fatal, results.life.receive_waits), (2, 1));
    assert_eq!(results.life.receive_waited_ps, 0, "it never found one");
}

#[test]
fn a_wait_of_nothing_refuses_at_once() {
    let life = receives(2, Span::from_millis(5), Some(Span::ZERO));
    let results = run(&with_life(ten_messages(), life));
    assert_eq!(results.messages.iter().filter(|m| m.failed).count(), 8);
    assert!(results.end < millis(1), "{:?}", results.end);
}

#[test]
fn all_of_it_survives_a_network_that_loses_packets() {
    let life = LifeConfig { prove_mtu: true, linger: true, ..receives(1, Span::from_micros(50), None) };
    let mut workload = Workload::default();
    for host in 0..HOSTS {
        let connection = workload.connect(host, (host + 11) % HOSTS);
        for _ in 0..5 {
            workload.send(connection, 30_000, Time::ZERO);
        }
    }
    for seed in 1..6 {
        let mut scenario = with_life(workload.clone(), life);
        scenario.network.seed = seed;
        scenario.faults = lossy(&scenario.network, 0.05);
        let results = run(&scenario);
        assert!(all_delivered(&results) && results.messages.iter().all(|m| m.completed != Time::NEVER));
        assert_eq!((results.life.mtu_proofs, results.life.mtu_refused), (HOSTS.into(), 0));
        assert!(results.life.receive_waits > 0 && results.life.lingering_packets > 0, "{:?}", results.life);
    }
}
