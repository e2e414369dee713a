//! Queue pairs that share a port or a last hop.

mod world;

use openmrc_transport::mrc::QueuePair;
use openmrc_transport::{Span, Time};
use world::measure::{goodput, jain, line_rate, micros, millis};
use world::scenario::Post;
use world::{Queues, Scenario, Traffic, World};

const RATE: u64 = 100_000_000_000;
const ENDLESS: Traffic = Traffic::Endless { len: 64 * 1024, imm: false };

/// The switch settings of the specification for one plane (docs/spec/congestion.md, "Switch settings"): no ECN on the
/// last hop.
fn last_hop(scenario: &Scenario) -> Queues {
    let plane_bdp = (RATE as f64 / 8.0 * scenario.base_rtt(4096).as_secs_f64()) as u64;
    Queues { trim_at: Some(plane_bdp * 3 / 2), drop_at: u64::MAX, mark_between: None }
}

#[test]
fn two_queue_pairs_share_a_port_packet_by_packet() {
    let mut scenario = Scenario::calm(3, 1, 16);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    scenario.connect([0, 2], &config, [ENDLESS, Traffic::none()]);
    let mut world = World::<QueuePair>::new(scenario, false);
    let rates = goodput(&mut world, micros(200), millis(2));
    assert!((rates[0] / rates[2] - 1.0).abs() < 0.02, "{rates:?}");
    assert!(rates[0] + rates[2] > 0.97 * line_rate(RATE, 4096), "{rates:?}");
}

#[test]
fn a_queue_pair_with_many_messages_does_not_starve_one_with_few() {
    let mut scenario = Scenario::calm(3, 2, 16);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    // One packet every 20 us.
    let few = (0..50).map(|i| Post {
        len: 4096,
        imm: Some(i),
        not_before: Time::ZERO + Span::from_micros(20).times(i.into()),
    });
    scenario.connect([0, 2], &config, [Traffic::List(few.collect()), Traffic::none()]);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(2));
    assert_eq!(world.flows[2].counters.received, 50);
}

/// Eight senders on different nodes and one receiver, over `ports` planes.
fn incast(ports: usize) -> Scenario {
    let mut scenario = Scenario::calm(9, ports, 16);
    scenario.queues = Some(last_hop(&scenario));
    scenario.press_senders();
    let config = scenario.config();
    for sender in 1..9 {
        scenario.connect([sender, 0], &config, [ENDLESS, Traffic::none()]);
    }
    scenario
}

#[test]
fn an_incast_of_eight_converges_and_is_fair() {
    for ports in [1, 4] {
        let mut world = World::<QueuePair>::new(incast(ports), false);
        let rates: Vec<f64> = goodput(&mut world, millis(1), millis(6)).into_iter().step_by(2).collect();
        let total: f64 = rates.iter().sum();
        let line = ports as f64 * line_rate(RATE, 4096);
        assert!(total > 0.9 * line && total <= 1.01 * line, "{:.3} of the line: {rates:?}", total / line);
        assert!(jain(&rates) > 0.9, "{:.3}: {rates:?}", jain(&rates));
        // The windows have converged: in five further milliseconds few packets are trimmed.
        let (trimmed, sent) = (world.network.counters.trimmed, sent(&world));
        world.run_until(millis(11));
        let (trimmed, sent) = (world.network.counters.trimmed - trimmed, self::sent(&world) - sent);
        assert!(trimmed * 50 < sent, "{trimmed} of {sent} packets are still trimmed");
    }
}

#[test]
fn an_incast_condemns_no_path() {
    let mut world = World::<QueuePair>::new(incast(4), false);
    world.run_until(millis(4));
    assert!(world.network.counters.trimmed > 0, "there was no congestion");
    for end in 0..world.ends.len() {
        assert!(world.ev_events(end).is_empty(), "{:?}", world.ev_events(end).first());
    }
}

#[test]
fn a_flow_that_joins_gets_its_share() {
    let mut scenario = Scenario::calm(3, 1, 16);
    scenario.queues = Some(last_hop(&scenario));
    scenario.press_senders();
    let config = scenario.config();
    scenario.connect([1, 0], &config, [ENDLESS, Traffic::none()]);
    let late = Post { len: 64 * 1024, imm: None, not_before: millis(2) };
    scenario.connect([2, 0], &config, [Traffic::List(vec![late; 2000]), Traffic::none()]);
    let mut world = World::<QueuePair>::new(scenario, false);
    let rates = goodput(&mut world, millis(3), millis(8));
    let shares = [rates[0], rates[2]];
    assert!(jain(&shares) > 0.9, "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.9 * line_rate(RATE, 4096), "{shares:?}");
}

fn sent(world: &World<QueuePair>) -> u64 {
    world.flows.iter().map(|f| f.counters.first_sent + f.counters.retransmitted).sum()
}
