//! Switches that drop instead of trimming: what is lost to overload condemns no path, what a failure loses does.

mod world;

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, EvState, PathModel, QueuePair};
use openmrc_transport::{EvProfile, PathEntry, Span, Time};
use openmrc_wire::Ev;
use world::measure::millis;
use world::network::Health;
use world::{Action, Queues, Scenario, Traffic, World};

/// Paths of a plane.
const PATHS: usize = 64;
const SENDERS: usize = 2;
/// Messages of 256 KiB that each sender writes.
const MESSAGES: usize = 64;
/// When plane 1 changes: after about a quarter.
const FAULT: Time = millis(40);
const SEEDS: u64 = 5;

/// What a run has cost.
struct Cost {
    seconds: f64,
    sent: u64,
    again: u64,
    /// Most paths of plane 0 that a sender held for broken, at any time.
    healthy: usize,
    /// Paths of plane 1 that the first sender held for broken at the end.
    broken: usize,
}

/// Two senders with windows of 1 MiB and runs of 8 packets, and one receiver, over two planes of 1 Gb/s whose ports hold
/// 256 KiB and drop the rest: each port gets twice what it can carry.
fn overloaded(seed: u64) -> Scenario {
    let mut scenario = Scenario::calm(SENDERS + 1, 2, PATHS);
    scenario.seed = seed;
    scenario.rate = 1_000_000_000;
    scenario.queues = Some(Queues { trim_at: None, drop_at: 256 << 10, mark_between: None });
    // Without it the packets of one sender would find room each time, and those of the other never.
    scenario.impairments.jitter = Span::from_micros(100);
    let mut config = scenario.config_with(Arc::new(CcProfile::FixedWindow(1 << 20)));
    config.paths.burst = 8;
    for sender in 0..SENDERS {
        let messages = Traffic::of(MESSAGES, 256 << 10);
        scenario.connect([sender, SENDERS], &config, [messages, Traffic::none()]);
    }
    scenario
}

fn condemned(world: &World<QueuePair>, end: usize, port: u8) -> usize {
    let profile = &world.scenario.profile;
    let states = world.qp(end).ev_states();
    states
        .filter(|(path, state)| {
            *state == EvState::AssumedBad && profile.entries()[usize::from(*path)].port == port
        })
        .count()
}

fn run(scenario: Scenario) -> Cost {
    let mut world = World::<QueuePair>::new(scenario, false);
    let (mut healthy, mut time) = (0, Time::ZERO);
    let bytes = (SENDERS * MESSAGES * (256 << 10)) as u64;
    while world.flows.iter().map(|flow| flow.counters.placed_bytes).sum::<u64>() < bytes {
        time += Span::from_millis(1);
        assert!(time < Time::ZERO + Span::from_secs(20), "it never ends");
        world.run_until(time);
        healthy = (0..SENDERS).map(|sender| condemned(&world, 2 * sender, 0)).fold(healthy, usize::max);
    }
    let sent = |world: &World<QueuePair>| world.flows.iter().map(|f| f.counters.first_sent).sum();
    let again = |world: &World<QueuePair>| world.flows.iter().map(|f| f.counters.retransmitted).sum();
    Cost {
        seconds: time.since(Time::ZERO).as_secs_f64(),
        sent: sent(&world),
        again: again(&world),
        healthy,
        broken: condemned(&world, 0, 1),
    }
}

fn with_plane_1(seed: u64, health: Health) -> Cost {
    let mut scenario = overloaded(seed);
    scenario.at(FAULT, Action::Plane { port: 1, health });
    run(scenario)
}

#[test]
fn overload_condemns_no_path_and_little_is_sent_again() {
    for seed in 0..SEEDS {
        let Cost { sent, again, healthy, broken, .. } = run(overloaded(seed));
        assert_eq!((healthy, broken), (0, 0), "seed {seed}");
        assert!(again * 6 < sent, "seed {seed}: {again} of {sent} packets sent again");
    }
}

#[test]
fn a_plane_that_dies_is_left_and_the_other_is_kept_though_it_is_overloaded() {
    for seed in 0..SEEDS {
        let Cost { sent, again, healthy, broken, .. } = with_plane_1(seed, Health::DEAD);
        assert!(healthy <= 5, "seed {seed}: {healthy} healthy paths condemned");
        assert_eq!(broken, PATHS, "seed {seed}");
        assert!(again * 5 < sent, "seed {seed}: {again} of {sent} packets sent again");
    }
}

#[test]
fn a_plane_that_carries_short_packets_only_is_left_like_a_dead_one() {
    for seed in 0..SEEDS {
        let dead = with_plane_1(seed, Health::DEAD);
        let narrow = with_plane_1(seed, Health::narrow(1400));
        assert!(narrow.healthy <= 5, "seed {seed}: {} healthy paths condemned", narrow.healthy);
        assert_eq!(narrow.broken, PATHS, "seed {seed}: short probes are no proof");
        let ratio = narrow.seconds / dead.seconds;
        assert!(ratio < 1.3, "seed {seed}: {ratio} times as long as with a dead plane");
    }
}

#[test]
fn a_narrow_plane_is_taken_back_when_it_carries_long_packets_again() {
    let mut scenario = overloaded(1);
    scenario.at(FAULT, Action::Plane { port: 1, health: Health::narrow(1400) });
    scenario.at(millis(80), Action::Plane { port: 1, health: Health::GOOD });
    let broken = run(scenario).broken;
    // One after the other, as probes have a hundredth of the packets.
    assert!(broken < PATHS, "{broken} paths are still condemned");
}

/// Rate, KiB of a port's queue, microseconds one way, and when plane 1 changes.
const SHAPES: [(u64, u64, u64, Time); 4] = [
    (1_000_000_000, 256, 4, FAULT),
    (1_000_000_000, 64, 4, FAULT),
    (150_000_000, 256, 10_000, millis(250)),
    (100_000_000, 128, 4, millis(250)),
];

#[test]
fn on_slow_links_of_every_shape_the_plane_that_is_left_is_kept() {
    for (rate, queue, one_way, fault) in SHAPES {
        let cost = |health: Option<Health>| {
            let mut scenario = overloaded(0);
            (scenario.rate, scenario.latency) = (rate, Span::from_micros(one_way));
            scenario.queues = Some(Queues { trim_at: None, drop_at: queue << 10, mark_between: None });
            let model = PathModel::new(scenario.base_rtt(4096), false);
            let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
            configs.for_each(|config| config.paths.model = model);
            if let Some(health) = health {
                scenario.at(fault, Action::Plane { port: 1, health });
            }
            run(scenario)
        };
        let [calm, cut, narrow] = [None, Some(Health::DEAD), Some(Health::narrow(1400))].map(cost);
        let shape = format!("{rate} bit/s, {queue} KiB, {one_way} us");
        assert_eq!((calm.healthy, calm.broken), (0, 0), "{shape}");
        assert_eq!((cut.broken, narrow.broken), (PATHS, PATHS), "{shape}");
        assert!(cut.healthy.max(narrow.healthy) <= 5, "{shape}: {} and {}", cut.healthy, narrow.healthy);
        assert!(narrow.seconds < 1.3 * cut.seconds, "{shape}: {} and {} s", narrow.seconds, cut.seconds);
    }
}

#[test]
fn a_plane_is_taken_back_though_the_other_has_the_same_entropy_values() {
    let mut scenario = overloaded(0);
    let paths: Vec<_> = (0..8).flat_map(|i| [0, 1].map(|port| PathEntry { ev: Ev(i << 8), port })).collect();
    scenario.profile = Arc::new(EvProfile::new(&paths).unwrap());
    let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
    configs.for_each(|config| {
        config.paths.profile = Arc::clone(&scenario.profile);
        (config.paths.active, config.paths.backup) = (16, 0);
        // Only probes bring a path back, not trials for want of others.
        config.paths.min_active = 1;
    });
    scenario.at(FAULT, Action::Plane { port: 1, health: Health::DEAD });
    scenario.at(millis(80), Action::Plane { port: 1, health: Health::GOOD });
    assert_eq!(run(scenario).broken, 0);
}

#[test]
fn a_single_dead_path_stands_out_in_an_overloaded_plane() {
    let mut scenario = overloaded(1);
    let path = scenario.profile.entries().iter().position(|entry| entry.port == 1).unwrap() as u16;
    scenario.at(Time::ZERO, Action::Path { from: 0, to: SENDERS, path, health: Health::DEAD });
    let Cost { healthy, broken, .. } = run(scenario);
    assert_eq!((healthy, broken), (0, 1));
}
