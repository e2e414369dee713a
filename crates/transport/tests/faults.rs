//! Reactions of a queue pair to loss, congestion, dead paths and errors, one at a time and measured.

mod world;

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, PathModel, QpConfig, QueuePair, RetrySchedule};
use openmrc_transport::{EvChange, Fatal, PathId, Span, Time, Transport as _};
use world::measure::{condemned_at, goodput, line_rate, micros, millis, returned_at};
use world::network::Health;
use world::scenario::Post;
use world::{Action, Expect, Scenario, Traffic, World};

const RATE: u64 = 100_000_000_000;
const ENDLESS: Traffic = Traffic::Endless { len: 256 * 1024, imm: false };

/// One sender with endless traffic over 4 ports with 8 paths each.
fn one_flow() -> Scenario {
    let mut scenario = Scenario::calm(2, 4, 8);
    let mut config = scenario.config();
    config.paths.active = 16;
    config.paths.backup = 16;
    config.paths.min_active = 4;
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    scenario.pairs[0].region = [4 << 20, 0];
    scenario
}

/// Initial reorder window: target_qdelay (docs/spec/transport.md, "Deciding that a packet is lost", rule 2).
fn reorder_window(scenario: &Scenario) -> Span {
    scenario.pairs[0].configs[0].paths.model.target_qdelay
}

/// A path that the sender has in rotation.
fn used_path(world: &World<QueuePair>) -> PathId {
    let used = world.ends[0].sent_by_path.iter().position(|&sent| sent > 10);
    used.expect("data has been sent") as PathId
}

#[test]
fn random_loss_retransmits_what_was_lost_and_no_more() {
    let mut scenario = one_flow();
    let mut impairments = scenario.impairments;
    impairments.loss = 0.002;
    scenario.impairments = impairments;
    scenario.at(millis(5), Action::Impairments(world::Impairments::calm()));
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(6));
    let (lost, again) = (world.network.counters.data_lost, world.flows[0].counters.retransmitted);
    assert!(lost > 100, "{lost}");
    // Lost probes are counted as lost data; apart from them, every loss is retransmitted exactly once.
    let probes = u64::from(world.qp(0).stats().probes);
    assert!(again <= lost && again + probes >= lost, "{lost} lost, {again} retransmitted, {probes} probes");
    assert_eq!(world.qp(0).stats().timeouts, 0);
}

#[test]
fn loss_of_feedback_alone_retransmits_next_to_nothing() {
    let mut scenario = one_flow();
    scenario.impairments.control_loss = 0.05;
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(5));
    let flow = world.flows[0].counters;
    assert!(world.network.counters.control_lost > 100);
    assert!(flow.retransmitted * 1000 < flow.first_sent, "{} of {}", flow.retransmitted, flow.first_sent);
}

#[test]
fn a_dead_path_is_left_within_a_round_trip_and_a_reorder_window() {
    for seed in 0..20 {
        let mut scenario = one_flow();
        scenario.seed = seed;
        let bound = scenario.base_rtt(4096)
            + reorder_window(&scenario)
            + scenario.pairs[0].configs[0].responder.ack_delay
            // Queued packets, and the resolution of the send time stamps.
            + Span::from_micros(4);
        let mut world = World::<QueuePair>::new(scenario, false);
        world.run_until(micros(300));
        let path = used_path(&world);
        let probes = world.qp(0).stats().probes;
        world.do_now(Action::Path { from: 0, to: 1, path, health: Health::DEAD });
        world.log = Some(Vec::new());
        world.run_until(millis(3));
        let sent: Vec<Time> =
            world.log.take().unwrap().into_iter().filter(|(_, _, p)| *p == path).map(|(t, ..)| t).collect();
        let first = sent[0];
        let condemned = condemned_at(&world, 0, path, Time::ZERO).expect("the path is condemned");
        assert!(condemned <= first + bound, "condemned {:?} after its first loss", condemned.since(first));
        assert!(sent.iter().all(|&t| t <= condemned), "data on a condemned path");
        assert!(world.ends[0].probes_by_path[path as usize] > 0, "the condemned path is not probed");
        // No other path was condemned.
        assert_eq!(world.ev_events(0).len(), 1, "{:?}", world.ev_events(0));
        assert_eq!(
            world.flows[0].counters.retransmitted,
            world.network.counters.data_lost - u64::from(world.qp(0).stats().probes - probes)
        );
    }
}

#[test]
fn what_a_dead_path_lost_is_sent_again_once() {
    let mut scenario = one_flow();
    scenario.pairs[0].traffic[0] = Traffic::of(64, 64 * 1024);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(30));
    world.do_now(Action::Path { from: 0, to: 1, path: used_path(&world), health: Health::DEAD });
    let outcome = world.run().unwrap();
    assert!(outcome.flows[0].retransmitted > 0);
    assert_eq!(outcome.flows[0].most_transmissions, 2);
    assert_eq!(world.qp(0).stats().timeouts, 0);
}

#[test]
fn a_path_comes_back_after_repair() {
    // Without backups a restored path returns directly to the rotation.
    let mut scenario = one_flow();
    for config in &mut scenario.pairs[0].configs {
        config.paths.active = 32;
        config.paths.backup = 0;
    }
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(300));
    let path = used_path(&world);
    world.do_now(Action::Path { from: 0, to: 1, path, health: Health::DEAD });
    world.run_until(millis(2));
    assert!(condemned_at(&world, 0, path, Time::ZERO).is_some());
    assert!(returned_at(&world, 0, path, Time::ZERO).is_none());
    world.do_now(Action::Path { from: 0, to: 1, path, health: Health::GOOD });
    world.run_until(millis(20));
    let returned = returned_at(&world, 0, path, millis(2)).expect("the path is restored");
    assert!(world.ends[0].last_sent[path as usize] > returned, "the restored path is not used");
    assert_eq!(world.ev_events(0).len(), 2);
}

#[test]
fn probes_of_dead_paths_are_few() {
    let mut scenario = one_flow();
    for path in 0..16 {
        // Half of every plane's paths.
        let (plane, index) = (path / 4, path % 4);
        scenario
            .at(micros(200), Action::Path { from: 0, to: 1, path: plane * 8 + index, health: Health::DEAD });
    }
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(10));
    let stats = world.qp(0).stats();
    assert!(
        u64::from(stats.probes) * 100 <= stats.data_packets,
        "{} probes, {} packets",
        stats.probes,
        stats.data_packets
    );
    assert!(stats.probes > 10);
}

/// Queue pairs share their node's budget: with one probe each whenever a path is due, those that send little would
/// probe more than they send.
#[test]
fn probes_of_dead_paths_are_few_with_many_queue_pairs_that_send_little() {
    let mut scenario = Scenario::calm(2, 4, 8);
    let mut config = scenario.config();
    (config.paths.active, config.paths.backup, config.paths.min_active) = (16, 16, 4);
    let lone = |at: u64| Post { len: 4096, imm: None, not_before: micros(at) };
    for pair in 0..64 {
        let posts = (0..100).map(|i| lone(200 + 100 * i + pair)).collect();
        scenario.connect([0, 1], &config, [Traffic::List(posts), Traffic::none()]);
    }
    for path in 0..16 {
        let (plane, index) = (path / 4, path % 4);
        scenario
            .at(Time::ZERO, Action::Path { from: 0, to: 1, path: plane * 8 + index, health: Health::DEAD });
    }
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(15));
    let stats: Vec<_> = (0..128).step_by(2).map(|end| world.qp(end).stats()).collect();
    let probes: u64 = stats.iter().map(|stats| u64::from(stats.path_probes)).sum();
    let packets: u64 = stats.iter().map(|stats| stats.data_packets).sum();
    let condemned: u64 = stats.iter().map(|stats| u64::from(stats.condemned)).sum();
    assert!(condemned > 64, "{condemned} paths condemned");
    // And one for ten milliseconds without a budget.
    assert!(probes * 100 <= packets + 100, "{probes} probes, {packets} packets");
    assert!(probes > 10, "{probes} probes");
}

#[test]
fn trimming_condemns_no_path_and_loses_nothing() {
    for last_hop in [0.0, 1.0] {
        let mut scenario = one_flow();
        scenario.impairments.trim = 0.05;
        scenario.impairments.last_hop = last_hop;
        let mut world = World::<QueuePair>::new(scenario, false);
        world.run_until(millis(5));
        assert!(world.network.counters.trimmed > 100);
        assert!(world.ev_events(0).is_empty(), "{:?}", world.ev_events(0).first());
        assert_eq!(world.qp(0).stats().lost, 0);
        let (trimmed, again) = (world.network.counters.trimmed, world.flows[0].counters.retransmitted);
        // The last NACKs may not have arrived yet.
        assert!(again <= trimmed && again + 20 >= trimmed, "{trimmed} trimmed, {again} sent again");
    }
}

#[test]
fn a_path_that_is_always_marked_gets_every_second_turn() {
    // A fixed window, so that only path selection reacts to the marks.
    let mut scenario = Scenario::calm(2, 1, 8);
    let cc = CcProfile::FixedWindow(200_000);
    let mut config = scenario.config_with(Arc::new(cc));
    (config.paths.active, config.paths.backup) = (8, 0);
    // With so small a number of paths, a turn takes less time than feedback, unless every packet causes feedback.
    config.responder.ack_every_bytes = 1;
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    scenario.pairs[0].region = [4 << 20, 0];
    scenario.at(Time::ZERO, Action::Path { from: 0, to: 1, path: 3, health: Health::marking(1.0) });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(5));
    let sent = &world.ends[0].sent_by_path;
    let others = (sent.iter().sum::<u64>() - sent[3]) as f64 / 7.0;
    let share = sent[3] as f64 / others;
    // Marks arrive a round trip late, so the path skips less than half of its turns.
    assert!(share < 0.9 && share > 0.4, "{share}: {sent:?}");
    assert!(world.ev_events(0).is_empty());
}

#[test]
fn marks_do_not_move_load_between_planes() {
    let mut scenario = one_flow();
    scenario.at(Time::ZERO, Action::Plane { port: 2, health: Health::marking(1.0) });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(5));
    assert!(world.network.counters.marked > 1000);
    let sent = world.sent_by_port(0);
    assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= sent[0] / 500, "{sent:?}");
}

#[test]
fn a_port_that_is_known_to_be_down_carries_nothing_and_is_blamed_for_nothing() {
    let mut scenario = one_flow();
    scenario.at(micros(300), Action::Port { node: 0, port: 1, up: false });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(301));
    let before = world.sent_by_port(0)[1];
    world.run_until(millis(3));
    assert_eq!(world.sent_by_port(0)[1], before);
    assert!(world.ev_events(0).is_empty(), "{:?}", world.ev_events(0));
}

#[test]
fn denied_paths_carry_nothing_until_they_are_allowed_again() {
    let mut scenario = one_flow();
    // All but one.
    for path in 1..32 {
        scenario.at(micros(100), Action::Deny { end: 0, path, denied: true });
    }
    scenario.at(millis(1), Action::Deny { end: 0, path: 9, denied: false });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(101));
    let before = world.ends[0].sent_by_path.clone();
    world.run_until(micros(999));
    let sent: Vec<u64> =
        world.ends[0].sent_by_path.iter().zip(&before).map(|(now, then)| now - then).collect();
    assert!(sent[0] > 1000, "{sent:?}");
    assert_eq!(sent[1..].iter().sum::<u64>(), 0, "{sent:?}");
    world.run_until(millis(2));
    assert!(world.ends[0].sent_by_path[9] > before[9] + 1000);
}

#[test]
fn a_responder_under_pressure_slows_its_sender_down_and_lets_it_go_again() {
    let mut scenario = one_flow();
    scenario.at(millis(1), Action::Pressure { end: 1, penalty: 60 });
    scenario.at(millis(2), Action::Pressure { end: 1, penalty: 0 });
    let mut world = World::<QueuePair>::new(scenario, false);
    let before = goodput(&mut world, micros(300), millis(1))[0];
    let under = goodput(&mut world, micros(1300), millis(2))[0];
    let after = goodput(&mut world, micros(2500), millis(4))[0];
    assert!(under < before / 4.0, "{under:.3e} of {before:.3e}");
    assert!(after > before * 0.95, "{after:.3e} of {before:.3e}");
}

#[test]
fn a_smaller_window_from_the_responder_is_obeyed() {
    // At MPR 1 there are 128 packets per round trip, less than the capacity of this network.
    let mut scenario = Scenario { latency: Span::from_micros(50), ..Scenario::calm(2, 4, 8) };
    let mut config = scenario.config_with(Arc::new(CcProfile::FixedWindow(64 << 20)));
    config.paths.model = PathModel::new(scenario.base_rtt(1024), true);
    config.path_mtu = 1024;
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    scenario.pairs[0].region = [4 << 20, 0];
    scenario.at(millis(1), Action::AdvertiseMpr { end: 1, mpr: 1 });
    let base_rtt = scenario.base_rtt(1024);
    let mut world = World::<QueuePair>::new(scenario, false);
    let wide = goodput(&mut world, micros(300), millis(1))[0];
    let narrow = goodput(&mut world, micros(1500), millis(3))[0];
    // One window in each round trip that begins in the 1500 us measured.
    let rounds = (1500e-6 / base_rtt.as_secs_f64()).ceil();
    let window = rounds * 128.0 * 1024.0 / 1500e-6;
    assert!(narrow <= window && narrow > 0.6 * window, "{narrow:.3e}, the window allows {window:.3e}");
    assert!(wide > 4.0 * narrow, "{wide:.3e}");
}

/// One message of 10 packets from node 0 to node 1 over 4 planes that fail before it is sent.
fn to_dead_planes(linear_cnt: u8, exp_cnt: u8) -> (Scenario, QpConfig) {
    let mut scenario = Scenario::calm(2, 4, 8);
    let mut config = scenario.config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (linear_cnt, exp_cnt);
    scenario.connect([0, 1], &config, [Traffic::of(10, 40_000), Traffic::none()]);
    scenario.at(Time::ZERO, Action::Direction { from: 0, to: 1, health: Health::DEAD });
    scenario.expect = Expect::MustFail;
    (scenario, config)
}

#[test]
fn with_every_path_dead_the_queue_pair_fails_after_the_configured_retries() {
    for (linear_cnt, exp_cnt) in [(0, 0), (1, 0), (3, 0), (7, 0), (3, 2), (7, 5)] {
        let (scenario, config) = to_dead_planes(linear_cnt, exp_cnt);
        let mut world = World::<QueuePair>::new(scenario, false);
        let outcome = world.run().unwrap();
        assert_eq!(outcome.fatal, [Some(Fatal::RetryExceeded), None]);
        assert_eq!(outcome.flows[0].flushed, 10);
        let stats = world.qp(0).stats();
        assert_eq!(stats.timeouts, u32::from(linear_cnt) + u32::from(exp_cnt));
        let waited = outcome.finished.since(Time::ZERO);
        let lasts = RetrySchedule::from(&config.requestor).lasts().unwrap();
        assert!(waited >= lasts, "{linear_cnt}, {exp_cnt}: {waited:?}, not {lasts:?}");
        assert!(
            waited <= lasts + config.requestor.timeout,
            "{linear_cnt}, {exp_cnt}: {waited:?}, not {lasts:?}"
        );
    }
}

#[test]
fn port_status_updates_that_were_all_lost_do_not_separate_two_nodes() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let mut config = scenario.config();
    config.requestor.exp_cnt = 25;
    let post = Post { len: 100_000, imm: None, not_before: millis(21) };
    scenario.connect([0, 1], &config, [Traffic::List(vec![post]), Traffic::none()]);
    scenario.at(millis(1), Action::Port { node: 1, port: 0, up: false });
    for (time, health) in [(millis(2), Health::DEAD), (millis(20), Health::GOOD)] {
        scenario.at(time, Action::Direction { from: 0, to: 1, health });
        scenario.at(time, Action::Direction { from: 1, to: 0, health });
    }
    scenario.at(millis(3), Action::Port { node: 1, port: 0, up: true });
    scenario.at(millis(3), Action::Port { node: 0, port: 1, up: false });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(21));
    // Node 0 has port 0 only, and believes that node 1 has port 1 only. No update is under way any more.
    assert!(world.network.counters.data_lost + world.network.counters.control_lost >= 16);
    let outcome = world.run().unwrap();
    assert_eq!(outcome.flows[0].completed, 1);
    assert!(outcome.finished < millis(25), "{:?}", outcome.finished);
}

#[test]
fn trials_of_dead_planes_become_rare() {
    // Two of three planes are dead for good, and the minimum cannot be reached without them.
    let mut scenario = Scenario::calm(2, 3, 16);
    let mut config = scenario.config();
    (config.paths.active, config.paths.backup, config.paths.min_active) = (48, 0, 40);
    let mut posts = Vec::new();
    for i in 0..1000 {
        posts.push(Post { len: 4096, imm: None, not_before: Time::ZERO + Span::from_micros(20 * i) });
    }
    scenario.connect([0, 1], &config, [Traffic::List(posts), Traffic::none()]);
    for port in [0, 2] {
        scenario.at(micros(100), Action::Plane { port, health: Health::DEAD });
    }
    let outcome = World::<QueuePair>::new(scenario, false).run().unwrap();
    let flow = outcome.flows[0];
    assert_eq!(flow.completed, 1000);
    assert!(flow.most_transmissions <= 16, "{}", flow.most_transmissions);
    assert!(flow.retransmitted < 100, "{}", flow.retransmitted);
}

#[test]
fn what_comes_back_before_the_retries_end_is_not_given_up() {
    let (mut scenario, config) = to_dead_planes(3, 3);
    scenario.expect = Expect::Completes;
    scenario.at(
        Time::ZERO + config.requestor.timeout.times(5),
        Action::Direction { from: 0, to: 1, health: Health::GOOD },
    );
    let outcome = World::<QueuePair>::new(scenario, false).run().unwrap();
    assert_eq!(outcome.flows[0].completed, 10);
    assert_eq!(outcome.fatal, [None, None]);
}

#[test]
fn an_immediate_without_a_receive_fails_both_ends() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let config = scenario.config();
    let posts = (0..10).map(|i| Post { len: 10_000, imm: Some(i), not_before: Time::ZERO });
    scenario.connect([0, 1], &config, [Traffic::List(posts.collect()), Traffic::of(100, 40_000)]);
    scenario.expect = Expect::MayFail;
    let mut world = World::<QueuePair>::new(scenario, false);
    world.ends[1].record.receives = 4;
    let outcome = world.run().unwrap();
    assert_eq!(outcome.fatal, [Some(Fatal::RemoteNak(0x63)), Some(Fatal::NoReceive)]);
    assert_eq!(outcome.flows[0].received, 4);
    assert_eq!((outcome.flows[0].completed, outcome.flows[0].flushed), (4, 6));
}

#[test]
fn a_destroyed_queue_pair_answers_for_its_time_and_then_its_number_is_unknown() {
    let mut scenario = Scenario::calm(2, 2, 8);
    scenario.linger = Some(Span::from_millis(100));
    let config = scenario.config();
    scenario.connect([0, 1], &config, [Traffic::of(5, 40_000), Traffic::none()]);
    // All fits one window. The receiver is done when the last packet has come. Its acknowledgements are lost for 50 ms.
    scenario.at(Time::ZERO, Action::Direction { from: 1, to: 0, health: Health::DEAD });
    scenario.at(millis(50), Action::Direction { from: 1, to: 0, health: Health::GOOD });
    let mut world = World::<QueuePair>::new(scenario, false);
    let outcome = world.run().unwrap();
    assert_eq!((outcome.flows[0].completed, outcome.fatal.as_slice()), (5, &[None, None][..]));
    assert!(outcome.finished > millis(50) && outcome.answers_after > 0, "{outcome:?}");
    let (retired, linger) = world.ends[1].record.retired.expect("it was destroyed");
    world.run_until(Time(retired.0 + linger.0 - 1));
    assert!(!world.ends[1].record.is_gone);
    world.run_until(millis(1_000));
    assert!(world.ends.iter().all(|end| end.record.is_gone));
    assert!(world.is_silent(), "nothing is left to do");
}

/// Ten messages with immediate from end 0, whose receiver has four receives and waits for more. The sender has three
/// attempts of 64 us.
fn few_receives() -> Scenario {
    let mut scenario = Scenario::calm(2, 2, 8);
    let mut config = scenario.config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (2, 1);
    config.requestor.timeout = Span::from_micros(64);
    config.requestor.peer_waits = true;
    let posts = (0..10).map(|i| Post { len: 10_000, imm: Some(i), not_before: Time::ZERO });
    scenario.connect([0, 1], &config, [Traffic::List(posts.collect()), Traffic::none()]);
    (scenario.receives, scenario.receive_wait) = (4, Span(u64::MAX));
    scenario
}

#[test]
fn a_message_that_has_waited_is_refused_when_its_own_time_is_over() {
    let mut scenario = few_receives();
    scenario.receive_wait = Span::from_millis(20);
    scenario.at(micros(15_000), Action::Receives { end: 1, count: 3 });
    scenario.expect = Expect::MayFail;
    let mut world = World::<QueuePair>::new(scenario, false);
    // The fifth message has waited for 15 ms, the eighth waits from then on.
    world.run_until(micros(34_000));
    assert_eq!((world.flows[0].completed(), world.ends[1].record.fatal), (7, None));
    let outcome = world.run().unwrap();
    assert_eq!(outcome.fatal, [Some(Fatal::RemoteNak(0x63)), Some(Fatal::NoReceive)]);
    assert_eq!((outcome.flows[0].completed, outcome.flows[0].flushed), (7, 3));
    assert_eq!(outcome.flows[0].retransmitted, 0);
}

#[test]
fn a_sender_outlasts_a_long_wait_for_a_receive_and_asks_seldom_meanwhile() {
    let mut scenario = few_receives();
    scenario.at(micros(5_000_000), Action::Receives { end: 1, count: 6 });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(5_010_000));
    assert_eq!(world.flows[0].completed(), 10, "the receiver tells at once");
    let probes: u64 = world.ends[0].probes_by_path.iter().sum();
    // Several in each of 78,000 intervals.
    assert!((78_000..10 * 78_000).contains(&probes), "{probes}");
}

#[test]
fn a_receiver_that_dies_while_a_message_waits_uses_up_the_retries() {
    let mut scenario = few_receives();
    scenario.at(micros(1_000), Action::Direction { from: 1, to: 0, health: Health::DEAD });
    scenario.expect = Expect::MustFail;
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(3_000));
    assert_eq!(world.ends[0].record.fatal.map(|(_, why)| why), Some(Fatal::RetryExceeded));
    assert_eq!((world.flows[0].counters.completed, world.flows[0].counters.flushed), (4, 6));
}

#[test]
fn a_write_where_it_may_not_fails_both_ends_and_touches_nothing() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [Traffic::of(50, 10_000), Traffic::none()]);
    scenario.expect = Expect::MayFail;
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(12));
    world.flows[0].revoke();
    let placed = world.flows[0].counters.placed_bytes;
    let outcome = world.run().unwrap();
    assert_eq!(outcome.fatal, [Some(Fatal::RemoteNak(0x62)), Some(Fatal::AccessViolation)]);
    assert_eq!(outcome.flows[0].placed_bytes, placed);
    assert!(outcome.flows[0].flushed > 0);
}

#[test]
fn the_refusal_reaches_a_requestor_that_missed_it() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [Traffic::of(50, 10_000), Traffic::none()]);
    scenario.expect = Expect::MayFail;
    // All feedback is lost for some time.
    scenario.at(micros(12), Action::Direction { from: 1, to: 0, health: Health::DEAD });
    scenario.at(millis(3), Action::Direction { from: 1, to: 0, health: Health::GOOD });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(12));
    world.flows[0].revoke();
    let outcome = world.run().unwrap();
    assert_eq!(outcome.fatal, [Some(Fatal::RemoteNak(0x62)), Some(Fatal::AccessViolation)]);
}

#[test]
fn more_immediates_in_flight_than_the_responder_takes_fail_both_ends() {
    let mut scenario = Scenario::calm(2, 2, 8);
    let config = scenario.config();
    let posts = (0..200).map(|i| Post { len: 0, imm: Some(i), not_before: Time::ZERO });
    scenario.connect([0, 1], &config, [Traffic::List(posts.collect()), Traffic::none()]);
    scenario.pairs[0].configs[1].responder.max_wimm_dest = 4;
    // The first packet is lost, so that the others remain incomplete.
    scenario.at(Time::ZERO, Action::Plane { port: 0, health: Health::DEAD });
    scenario.expect = Expect::MayFail;
    let outcome = World::<QueuePair>::new(scenario, false).run().unwrap();
    assert_eq!(outcome.fatal, [Some(Fatal::RemoteNak(0x65)), Some(Fatal::WimmLimit)]);
}

#[test]
fn abort_flushes_everything_in_order_and_ends_all_sending() {
    let mut world = World::<QueuePair>::new(one_flow(), false);
    world.run_until(micros(300));
    let outstanding = world.flows[0].outstanding();
    assert!(outstanding > 1);
    world.abort(0);
    assert_eq!(world.flows[0].outstanding(), 0);
    assert_eq!(world.flows[0].counters.flushed, outstanding as u64);
    let sent = world.flows[0].counters.first_sent;
    world.run_until(millis(5));
    assert_eq!(world.flows[0].counters.first_sent, sent);
    assert_eq!(world.qp(0).poll_timeout(), Time::NEVER);
}

#[test]
fn planes_dying_one_after_another_leave_what_the_others_carry() {
    let mut scenario = one_flow();
    for (i, port) in [0u8, 1, 3].into_iter().enumerate() {
        scenario.at(micros(500 * (i as u64 + 1)), Action::Plane { port, health: Health::DEAD });
    }
    let mut world = World::<QueuePair>::new(scenario, false);
    let rate = goodput(&mut world, millis(4), millis(8))[0];
    assert!(rate > 0.97 * line_rate(RATE, 4096), "{rate:.3e}");
    assert_eq!(world.qp(0).stats().timeouts, 0);
}

#[test]
fn events_tell_of_every_condemned_path_and_name_its_plane() {
    let mut scenario = one_flow();
    scenario.at(micros(300), Action::Plane { port: 1, health: Health::DEAD });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(5));
    let mut told: Vec<PathId> = world
        .ev_events(0)
        .iter()
        .map(|(_, event)| {
            assert_eq!((event.change, event.port), (EvChange::AssumedBad, 1));
            event.path
        })
        .collect();
    told.sort_unstable();
    let plane: Vec<PathId> = (8..16).collect();
    assert_eq!(told, plane);
    let states = world.qp(0).ev_states();
    let bad = states.filter(|(_, state)| *state == openmrc_transport::mrc::EvState::AssumedBad).count();
    assert_eq!(bad, 8);
}
