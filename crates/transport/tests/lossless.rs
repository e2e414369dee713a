//! Performance of a queue pair in a network without impairments, compared with closed forms.

mod world;

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, PathModel, QueuePair};
use openmrc_transport::{Readiness, Span, Time, Transport as _};
use openmrc_wire::Psn;
use world::measure::{goodput, line_rate, micros, millis};
use world::network::Health;
use world::scenario::Post;
use world::{Action, Queues, Scenario, Traffic, World};

const RATE: u64 = 100_000_000_000;

/// One sender with endless messages over `ports` ports.
fn one_flow(ports: usize) -> Scenario {
    let mut scenario = Scenario::calm(2, ports, 16);
    let config = scenario.config();
    let endless = Traffic::Endless { len: 512 * 1024, imm: true };
    scenario.connect([0, 1], &config, [endless, Traffic::none()]);
    scenario.pairs[0].region = [8 << 20, 0];
    scenario
}

/// Asserts that `measured` is within `percent` of `expected`.
#[track_caller]
fn assert_near(measured: f64, expected: f64, percent: f64) {
    let off = (measured / expected - 1.0) * 100.0;
    assert!(off.abs() <= percent, "{measured:.4e} is {off:+.2} % off {expected:.4e}");
}

#[test]
fn a_single_flow_fills_the_line() {
    for ports in [1, 2, 8] {
        let mut world = World::<QueuePair>::new(one_flow(ports), false);
        let rate = goodput(&mut world, micros(200), micros(2200))[0];
        assert_near(rate, ports as f64 * line_rate(RATE, 4096), 2.0);
        assert_eq!(world.qp(0).stats().retransmits, 0);
        assert_eq!(world.flows[0].counters.retransmitted, 0);
    }
}

#[test]
fn small_packets_fill_the_line_too() {
    for path_mtu in [256, 1024, 8192] {
        let mut scenario = Scenario::calm(2, 2, 16);
        let cc = CcProfile::nscc(2 * RATE, scenario.base_rtt(path_mtu), path_mtu, true);
        let mut config = scenario.config_with(Arc::new(cc));
        config.path_mtu = path_mtu;
        config.paths.model = PathModel::new(scenario.base_rtt(path_mtu), true);
        config.requestor.mpr = 16;
        config.responder.mpr_dest = 16;
        scenario.connect(
            [0, 1],
            &config,
            [Traffic::Endless { len: 256 * 1024, imm: false }, Traffic::none()],
        );
        scenario.pairs[0].region = [8 << 20, 0];
        let mut world = World::<QueuePair>::new(scenario, false);
        let rate = goodput(&mut world, micros(200), micros(1200))[0];
        assert_near(rate, 2.0 * line_rate(RATE, path_mtu), 3.0);
    }
}

#[test]
fn both_directions_at_once_fill_the_line_but_for_the_feedback() {
    let mut scenario = Scenario::calm(2, 4, 16);
    let config = scenario.config();
    let endless = Traffic::Endless { len: 512 * 1024, imm: false };
    scenario.connect([0, 1], &config, [endless.clone(), endless]);
    scenario.pairs[0].region = [8 << 20; 2];
    let mut world = World::<QueuePair>::new(scenario, false);
    for rate in goodput(&mut world, micros(200), micros(1200)) {
        // One SACK, and often an ACK, per four packets: about 3 % of the line rate.
        assert_near(rate, 4.0 * line_rate(RATE, 4096) * 0.97, 3.0);
    }
}

#[test]
fn losing_one_of_eight_planes_costs_one_eighth() {
    let whole = goodput(&mut World::<QueuePair>::new(one_flow(8), false), micros(200), micros(2200))[0];
    // First by port status, then by a silent failure of the whole plane.
    let port = Action::Port { node: 1, port: 3, up: false };
    let silent = Action::Plane { port: 3, health: Health::DEAD };
    for act in [port, silent] {
        let mut scenario = one_flow(8);
        scenario.at(micros(300), act);
        let mut world = World::<QueuePair>::new(scenario, false);
        let rate = goodput(&mut world, millis(2), millis(5))[0];
        assert_near(rate, whole * 7.0 / 8.0, 1.5);
    }
}

#[test]
fn a_plane_that_comes_back_takes_its_share_again() {
    let whole = goodput(&mut World::<QueuePair>::new(one_flow(8), false), micros(200), micros(2200))[0];
    let mut scenario = one_flow(8);
    let port = |up| Action::Port { node: 1, port: 3, up };
    scenario.at(micros(300), port(false)).at(micros(900), port(true));
    let mut world = World::<QueuePair>::new(scenario, false);
    let rate = goodput(&mut world, millis(3), millis(5))[0];
    assert_near(rate, whole, 1.5);
    let before = world.sent_by_port(0);
    world.run_until(millis(6));
    let sent: Vec<u64> = world.sent_by_port(0).iter().zip(before).map(|(now, then)| now - then).collect();
    assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 4, "{sent:?}");
}

#[test]
fn planes_carry_equal_load() {
    let mut world = World::<QueuePair>::new(one_flow(8), false);
    world.run_until(millis(2));
    let sent = world.sent_by_port(0);
    assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 2, "{sent:?}");
    // The paths of a plane carry equal load too.
    let paths = &world.ends[0].sent_by_path;
    assert!(paths.iter().max().unwrap() - paths.iter().min().unwrap() <= 4, "{paths:?}");
}

#[test]
fn paths_of_different_length_cause_no_retransmission() {
    // Paths differ by up to a microsecond: far less than the reorder window of three quarters of the base RTT.
    let mut scenario = one_flow(4);
    scenario.skew = Span::from_micros(1);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(3));
    assert!(world.flows[0].counters.first_sent > 20_000);
    assert_eq!(world.flows[0].counters.retransmitted, 0);
    assert!(world.ev_events(0).is_empty());
}

#[test]
fn a_queue_pair_that_is_done_is_silent() {
    let mut scenario = Scenario::calm(2, 4, 16);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [Traffic::of(20, 100_000), Traffic::of(3, 5000)]);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run().unwrap();
    world.run_until(world.now + Span::from_secs(10));
    assert!(world.is_silent());
    for (index, end) in world.ends.iter().enumerate() {
        assert_eq!(world.qp(index).readiness(), Readiness::Idle);
        assert_eq!(world.qp(index).poll_timeout(), Time::NEVER);
        assert_eq!(end.probes_by_path.iter().sum::<u64>(), world.qp(index).stats().probes.into());
    }
}

#[test]
fn a_lossless_transfer_takes_no_longer_than_its_bytes_and_one_round_trip() {
    let mut scenario = Scenario::calm(2, 1, 16);
    let config = scenario.config();
    let len = 1_000_000;
    scenario.connect([0, 1], &config, [Traffic::of(1, len), Traffic::none()]);
    let base_rtt = scenario.base_rtt(4096);
    let mut world = World::<QueuePair>::new(scenario, false);
    let finished = world.run().unwrap().finished.since(Time::ZERO);
    let bytes = Span((f64::from(len) / line_rate(RATE, 4096) * 1e12) as u64);
    assert!(finished >= bytes + base_rtt.over(2), "{finished:?} is less than the propagation delay");
    // The last SACK may be a delayed one.
    assert!(
        finished <= bytes + base_rtt + config.responder.ack_delay + Span::from_micros(1),
        "{finished:?}, {bytes:?}"
    );
}

#[test]
fn the_byte_counter_counts_nominal_sizes_in_units_of_256_rounded_up() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let config = scenario.config();
    let posts = (1..200u32).map(|i| Post {
        len: i * 97 % 9000,
        imm: (i % 3 == 0).then_some(i),
        not_before: Time::ZERO,
    });
    scenario.connect(
        [0, 1],
        &config,
        [Traffic::List(posts.filter(|p| p.len > 0).collect()), Traffic::none()],
    );
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run().unwrap();
    let nominal = world.flows[0].nominal_arrived();
    assert_eq!(u64::from(world.flows[0].last_rcvd().unwrap()), nominal.div_ceil(256));
}

#[test]
fn sequence_numbers_of_messages_wrap() {
    // Messages and immediates are counted in 16 bits; 70,000 of each wrap both counters.
    let mut scenario = Scenario::calm(2, 2, 8);
    let mut config = scenario.config();
    config.requestor.sq_psn = Psn::new(0xFF_8000);
    config.responder.rq_psn = Psn::new(0xFF_8000);
    let posts = (0..140_000u32).map(|i| Post {
        len: if i % 5 == 0 { 100 } else { 0 },
        imm: (i % 2 == 0).then_some(i),
        not_before: Time::ZERO,
    });
    scenario.connect([0, 1], &config, [Traffic::List(posts.collect()), Traffic::none()]);
    scenario.impairments.loss = 0.001;
    scenario.impairments.duplicate = 0.01;
    scenario.impairments.duplicate_delay = Span::from_micros(100);
    let outcome = World::<QueuePair>::new(scenario, false).run().unwrap();
    assert_eq!(outcome.flows[0].completed, 140_000);
    assert_eq!(outcome.flows[0].received, 70_000);
    assert!(outcome.flows[0].psn_wrapped);
}

#[test]
fn the_counter_of_received_bytes_wraps() {
    // 24 bits of 256 bytes are 4 GiB.
    let mut scenario = Scenario::calm(2, 1, 8);
    let cc = CcProfile::nscc(RATE, scenario.base_rtt(8192), 8192, true);
    let mut config = scenario.config_with(Arc::new(cc));
    config.path_mtu = 8192;
    config.paths.model = PathModel::new(scenario.base_rtt(8192), true);
    scenario.connect([0, 1], &config, [Traffic::of(4300, 1 << 20), Traffic::none()]);
    scenario.pairs[0].region = [4 << 20, 0];
    scenario.impairments.loss = 0.0001;
    let mut world = World::<QueuePair>::new(scenario, false);
    let outcome = world.run().unwrap();
    assert_eq!(outcome.flows[0].completed, 4300);
    let nominal = world.flows[0].nominal_arrived();
    assert!(nominal > 1 << 32);
    assert_eq!(u64::from(world.flows[0].last_rcvd().unwrap()), nominal.div_ceil(256) & 0xFF_FFFF);
}

#[test]
fn a_last_hop_without_competition_neither_trims_nor_marks() {
    let mut scenario = one_flow(2);
    let bdp = 100_000;
    scenario.queues =
        Some(Queues { trim_at: Some(bdp), drop_at: u64::MAX, mark_between: Some((bdp / 5, bdp)) });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(2));
    assert_eq!((world.network.counters.trimmed, world.network.counters.marked), (0, 0));
}
