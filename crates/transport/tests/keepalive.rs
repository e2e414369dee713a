//! Keepalive: a peer that dies while nothing is under way is noticed within a known time, a healthy one is never called
//! silent, and nothing is sent where keepalive is off.

mod world;

use openmrc_transport::mrc::{QpConfig, QueuePair};
use openmrc_transport::{Span, Time, Transport as _};
use world::measure::{micros, millis};
use world::network::Health;
use world::{Action, Dice, Scenario, Traffic, World};

const PERIOD: Span = Span::from_millis(1);

/// Two nodes with 4 planes, and one connection that sends a few messages at the beginning.
fn idle_pair(keepalive: Option<Span>) -> (Scenario, QpConfig) {
    let mut scenario = Scenario::calm(2, 4, 8);
    let mut config = scenario.config();
    config.requestor.keepalive = keepalive;
    scenario.connect([0, 1], &config, [Traffic::of(3, 40_000), Traffic::none()]);
    (scenario, config)
}

/// Time between probes that are not answered.
fn interval(scenario: &Scenario, config: &QpConfig) -> Span {
    config.requestor.timeout.max(scenario.base_rtt(config.path_mtu).times(4))
}

fn silences(world: &World<QueuePair>, end: usize) -> Vec<bool> {
    world.ends[end].record.silences.iter().map(|(_, silent)| *silent).collect()
}

#[test]
fn a_peer_that_dies_while_idle_is_called_silent_within_the_bound_whatever_the_configuration() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let ports = dice.between(1, 8) as usize;
        let mut scenario = Scenario { seed, ..Scenario::calm(2, ports, dice.between(1, 16) as usize) };
        scenario.latency = Span::from_nanos(dice.log_between(500, 30_000));
        let mut config = scenario.config();
        let period = Span::from_nanos(dice.log_between(50_000, 20_000_000));
        config.requestor.keepalive = Some(period);
        config.requestor.timeout = QpConfig::timeout_from_exponent(dice.between(3, 12) as u8);
        let traffic = Traffic::of(dice.between(0, 3) as usize, 10_000);
        scenario.connect([0, 1], &config, [traffic, Traffic::none()]);
        let dies = millis(2) + dice.span(period.times(2));
        // One direction or both: an answer needs both.
        let both = dice.chance(0.5);
        scenario.at(dies, Action::Direction { from: 1, to: 0, health: Health::DEAD });
        if both {
            scenario.at(dies, Action::Direction { from: 0, to: 1, health: Health::DEAD });
        }
        // The last sign of life may have come just before, or still be on its way.
        let bound = dies + period + interval(&scenario, &config).times(4) + scenario.base_rtt(4096).times(2);
        let back = bound + dice.span(period.times(3));
        scenario.at(back, Action::Direction { from: 1, to: 0, health: Health::GOOD });
        scenario.at(back, Action::Direction { from: 0, to: 1, health: Health::GOOD });
        let heard = back + period.max(interval(&scenario, &config)) + scenario.base_rtt(4096).times(2);
        let mut world = World::<QueuePair>::new(scenario, false);
        world.run_until(dies);
        assert_eq!(silences(&world, 0), [], "seed {seed}");
        world.run_until(bound);
        assert_eq!(silences(&world, 0), [true], "seed {seed}");
        // The other end still hears the probes, unless both directions are dead.
        assert_eq!(silences(&world, 1), if both { vec![true] } else { vec![] }, "seed {seed}");
        world.run_until(back);
        assert_eq!(silences(&world, 0), [true], "seed {seed}: it is told once");
        world.run_until(heard);
        assert_eq!(silences(&world, 0), [true, false], "seed {seed}");
        world.run_until(heard + period.times(10));
        assert_eq!(silences(&world, 0), [true, false], "seed {seed}");
        assert_eq!(world.qp(0).error(), None);
    }
}

#[test]
fn a_healthy_peer_is_never_called_silent_and_probed_once_a_period() {
    let (scenario, _) = idle_pair(Some(PERIOD));
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(1));
    let before = world.qp(0).stats().probes;
    world.run_until(millis(1001));
    // Each probe restarts both ends' periods, so the two together send one probe per period.
    let probes = world.qp(0).stats().probes - before + world.qp(1).stats().probes;
    assert!((900..=1100).contains(&probes), "{probes}");
    assert_eq!((silences(&world, 0), silences(&world, 1)), (vec![], vec![]));
}

#[test]
fn one_plane_that_still_delivers_is_enough() {
    let (mut scenario, _) = idle_pair(Some(PERIOD));
    for port in 0..3 {
        scenario.at(micros(900), Action::Plane { port, health: Health::DEAD });
    }
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(500));
    assert_eq!((silences(&world, 0), silences(&world, 1)), (vec![], vec![]));
}

#[test]
fn two_in_five_packets_lost_are_no_silence() {
    let (mut scenario, _) = idle_pair(Some(PERIOD));
    (scenario.impairments.loss, scenario.impairments.control_loss) = (0.4, 0.4);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(500));
    // A round fails with 0.64 on one plane and 0.17 on all four: four in a row are one in 300 periods, and the peer's
    // probes are heard as well.
    assert!(silences(&world, 0).len() <= 4, "{:?}", silences(&world, 0));
}

#[test]
fn a_sender_is_told_of_a_silent_peer_while_its_retries_go_on() {
    let (mut scenario, config) = idle_pair(Some(PERIOD));
    scenario.pairs[0].traffic[0] = Traffic::of(2000, 40_000);
    let (dies, back) = (micros(900), millis(400));
    for (from, to) in [(0, 1), (1, 0)] {
        scenario.at(dies, Action::Direction { from, to, health: Health::DEAD });
        scenario.at(back, Action::Direction { from, to, health: Health::GOOD });
    }
    // The retries ask at intervals that grow by a quarter.
    let patience = PERIOD + interval(&scenario, &config).times(4);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(dies + patience);
    assert_eq!(silences(&world, 0), []);
    world.run_until(dies + patience.times(2));
    assert_eq!(silences(&world, 0), [true]);
    world.run_until(millis(550));
    assert_eq!(silences(&world, 0), [true, false]);
    assert_eq!(world.qp(0).error(), None);
}

#[test]
fn what_the_peer_sends_is_a_sign_of_life_without_any_answer() {
    let (mut scenario, config) = idle_pair(Some(PERIOD));
    scenario.pairs[0].traffic[1] = Traffic::Endless { len: 4096, imm: false };
    // Nothing of ours arrives from here on: the peer resends and probes, and is not answered.
    scenario.at(micros(900), Action::Direction { from: 0, to: 1, health: Health::DEAD });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(3) + interval(&world.scenario.clone(), &config).times(4));
    assert_eq!(silences(&world, 0), []);
}

#[test]
fn without_keepalive_nothing_is_sent_and_no_timer_runs() {
    let (scenario, _) = idle_pair(None);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(1));
    let before = (world.qp(0).stats().probes, world.qp(1).stats().probes);
    world.run_until(millis(1000));
    assert_eq!((world.qp(0).stats().probes, world.qp(1).stats().probes), before);
    assert_eq!(world.qp(0).poll_timeout(), Time::NEVER);
}

#[test]
fn a_period_of_zero_is_refused() {
    let (_, mut config) = idle_pair(Some(Span::ZERO));
    (config.local_qp, config.remote_qp) = (1, 2);
    let refusal = QueuePair::new(Time::ZERO, &config).err().expect("no period");
    assert_eq!(refusal.to_string(), "keepalive is 0: more than 0 is allowed");
}
