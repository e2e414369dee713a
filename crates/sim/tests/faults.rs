//! What breaks, and what it costs.

mod common;

use common::{RATE, all_delivered, fabric, last_delivery, multiplane, run};
use openmrc_fabric::{Link, Switch};
use openmrc_scenario::run::{
    Change, EcnMarking, Effect, FaultEvent, MrcConfig, MrcCongestion, NetworkConfig, Routing,
    RoutingReaction, SlowQueues, SwitchConfig, Target, TransportConfig, faults,
};
use openmrc_scenario::{Engine, Run, RunError};
use openmrc_sim::{LogEvent, World};
use openmrc_transport::{Span, Time};
use openmrc_workload::patterns;

const AT: Time = Time(Span::from_micros(40).0);
const BYTES: u32 = 8 << 20;

fn uplink(network: &NetworkConfig, plane: u32, lower: u32, uplink: u32) -> Target {
    Target::Link(network.fabric.link_number(Link { plane, layer: 1, lower, uplink }))
}

fn with_faults(faults: Vec<FaultEvent>) -> (openmrc_scenario::Results, Time) {
    let network = multiplane(64, 4);
    let mut scenario = Run::new(network, patterns::permutation(64, BYTES, 3));
    let healthy = last_delivery(&run(&scenario));
    scenario.faults = faults;
    (run(&scenario), healthy)
}

/// One of a T0's eight uplinks gone leaves its hosts seven eighths of one plane, and of all planes, since planes carry
/// equal load: 8/7. The rest is what the detection costs a flow that lasts a dozen round trips.
const ONE_UPLINK_OF_EIGHT: u64 = 125;

#[test]
fn losing_a_link_between_switches_costs_no_more_than_its_share_and_the_finding_out() {
    let target = uplink(&multiplane(64, 4), 1, 2, 3);
    let (results, healthy) =
        with_faults(vec![FaultEvent { at: AT, target, change: Change::Begins(Effect::Down) }]);
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.dropped_down > 0, "something was on that link");
    assert!(results.totals.hosts.condemned > 0);
    let last = last_delivery(&results);
    assert!(last.0 * 100 <= healthy.0 * ONE_UPLINK_OF_EIGHT, "{last:?}, healthy {healthy:?}");
}

#[test]
fn losing_a_nic_port_of_four_leaves_three_quarters() {
    let network = multiplane(64, 4);
    let port = Target::Link(network.fabric.link_number(Link { plane: 2, layer: 0, lower: 7, uplink: 0 }));
    let (results, healthy) =
        with_faults(vec![FaultEvent { at: Time::ZERO, target: port, change: Change::Begins(Effect::Down) }]);
    assert!(all_delivered(&results));
    let last = last_delivery(&results);
    let ratio = last.0 as f64 / healthy.0 as f64;
    assert!((1.25..1.6).contains(&ratio), "4/3 is expected, {ratio} came out");
}

#[test]
fn a_host_that_was_cut_off_goes_on_when_its_ports_come_back() {
    let network = multiplane(64, 4);
    let link = |plane| network.fabric.link_number(Link { plane, layer: 0, lower: 7, uplink: 0 });
    let away = Span::from_micros(100);
    let schedule = (0..4)
        .flat_map(|plane| faults::flap(Target::Link(link(plane)), AT, away, Span::from_micros(1), 1))
        .collect();
    let (results, healthy) = with_faults(schedule);
    assert!(all_delivered(&results));
    assert!(results.totals.hosts.fatal == 0);
    let last = last_delivery(&results);
    assert!(last <= healthy + away.times(3), "{last:?}, healthy {healthy:?}");
}

#[test]
fn a_flapping_link_and_a_rebooting_switch_lose_packets_but_no_message() {
    let network = multiplane(64, 4);
    let link = uplink(&network, 0, 1, 1);
    let t1 = network.fabric.switch_number(Switch { plane: 3, tier: 1, index: 2 });
    let mut schedule = faults::flap(link, AT, Span::from_micros(5), Span::from_micros(20), 4);
    schedule.extend(faults::flap(Target::Switch(t1), AT, Span::from_micros(60), Span::from_micros(1), 1));
    let (results, healthy) = with_faults(schedule);
    assert!(all_delivered(&results));
    assert!(results.totals.fabric.dropped_down > 0 && results.totals.hosts.fatal == 0);
    // The reboot takes an eighth of plane 3 from all hosts for a third of the run. The flaps take an eighth of plane 0
    // from one T0.
    let last = last_delivery(&results);
    assert!(last.0 * 100 <= healthy.0 * 150, "{last:?}, healthy {healthy:?}");
}

#[test]
fn random_loss_is_repaired() {
    let network = multiplane(64, 4);
    let schedule: Vec<_> = (0..network.fabric.links())
        .map(|link| FaultEvent {
            at: Time::ZERO,
            target: Target::Link(link),
            change: Change::Begins(Effect::Loss(0.001)),
        })
        .collect();
    let (results, _) = with_faults(schedule);
    assert!(all_delivered(&results));
    let t = results.totals;
    let share = t.fabric.dropped_lossy as f64 / t.launched() as f64;
    // Four cables on most paths.
    assert!((0.002..0.006).contains(&share), "{share}");
    assert!(t.hosts.retransmits > 0);
}

#[test]
fn a_direction_of_a_link_loses_by_itself() {
    let Target::Link(link) = uplink(&multiplane(64, 4), 1, 2, 3) else { panic!("a link") };
    let lost = |target| {
        let change = Change::Begins(Effect::Loss(1.0));
        let (results, _) = with_faults(vec![FaultEvent { at: Time::ZERO, target, change }]);
        assert!(all_delivered(&results));
        results.totals.fabric.dropped_lossy
    };
    let [up, down, both] = [Target::Upward(link), Target::Downward(link), Target::Link(link)].map(lost);
    assert!(up > 0 && down > 0);
    assert!(up < both && down < both, "{up} and {down}, {both} in both directions");
}

#[test]
fn bit_errors_hit_long_packets_harder_than_short_ones() {
    let network = multiplane(64, 4);
    let schedule: Vec<_> = (0..network.fabric.links())
        .map(|link| FaultEvent {
            at: Time::ZERO,
            target: Target::Link(link),
            change: Change::Begins(Effect::BitErrors(1e-8)),
        })
        .collect();
    let (results, _) = with_faults(schedule);
    assert!(all_delivered(&results));
    let share = results.totals.fabric.dropped_lossy as f64 / results.totals.hosts.data_packets as f64;
    // 4 cables x 4262 bytes x 8 bits x 1e-8.
    assert!((0.0009..0.0019).contains(&share), "{share}");
}

#[test]
fn a_path_broken_from_the_start_is_found_out_and_left() {
    let target = uplink(&multiplane(64, 4), 1, 2, 3);
    let (results, healthy) =
        with_faults(vec![FaultEvent { at: Time::ZERO, target, change: Change::Begins(Effect::Down) }]);
    assert!(all_delivered(&results));
    let last = last_delivery(&results);
    assert!(last.0 * 100 <= healthy.0 * ONE_UPLINK_OF_EIGHT, "{last:?}, healthy {healthy:?}");
}

#[test]
fn a_slow_link_is_bypassed() {
    let target = uplink(&multiplane(64, 4), 1, 2, 3);
    let (results, healthy) =
        with_faults(vec![FaultEvent { at: Time::ZERO, target, change: Change::Begins(Effect::Slow(0.25)) }]);
    assert!(all_delivered(&results));
    let last = last_delivery(&results);
    assert!(last.0 * 100 <= healthy.0 * ONE_UPLINK_OF_EIGHT, "{last:?}, healthy {healthy:?}");
}

#[test]
fn a_schedule_at_random_is_the_same_for_the_same_seed_and_alternates() {
    let targets = [Target::Link(3), Target::Switch(1)];
    let (mtbf, mttr) = (Span::from_micros(50), Span::from_micros(5));
    let until = Time(Span::from_millis(2).0);
    let effect = Effect::Loss(0.1);
    let random = || faults::random(&targets, effect, mtbf, mttr, Time::ZERO..until, 11);
    let schedule = random();
    assert_eq!(schedule, random());
    for target in targets {
        let changes: Vec<_> = schedule.iter().filter(|f| f.target == target).map(|f| f.change).collect();
        assert!(changes.len() > 20);
        assert!(changes.chunks(2).all(|pair| pair == [Change::Begins(effect), Change::Ends(effect)]));
    }
}

#[test]
fn a_share_of_links_broken_from_the_start_costs_its_share() {
    let network = multiplane(64, 4);
    let uplinks: Vec<_> = (0..network.fabric.links())
        .filter(|&n| network.fabric.link(n).is_some_and(|link| link.layer == 1))
        .map(Target::Link)
        .collect();
    let expected = (uplinks.len() + 10) / 20;
    let broken = faults::chosen(uplinks, 0.05, 3).into_iter();
    let schedule: Vec<_> = broken
        .map(|target| FaultEvent { at: Time::ZERO, target, change: Change::Begins(Effect::Down) })
        .collect();
    assert_eq!(schedule.len(), expected);
    // Planes carry equal load, so the plane of a T0 with the fewest of its eight uplinks left sets the pace.
    let mut gone = [[0u32; 8]; 4];
    for fault in &schedule {
        let Target::Link(number) = fault.target else { panic!("{fault:?}") };
        let link = network.fabric.link(number).unwrap();
        gone[link.plane as usize][link.lower as usize] += 1;
    }
    let most = gone.iter().flatten().max().unwrap();
    let pace = 8.0 / f64::from(8 - most);
    let (results, healthy) = with_faults(schedule);
    assert!(all_delivered(&results) && results.totals.hosts.condemned > 0);
    let last = last_delivery(&results);
    assert!(last.0 as f64 <= healthy.0 as f64 * pace * 1.15, "{last:?}, healthy {healthy:?}, pace {pace}");
}

#[test]
fn routing_learns_of_a_failure_at_its_own_switch_first_and_then_everywhere() {
    for (tiers, hosts, radix) in [(2, 128, 16), (3, 54, 6)] {
        let lost = |detection, convergence| {
            let fabric = common::fabric(hosts, 1, tiers, radix);
            let mut network = NetworkConfig::new(fabric, common::RATE);
            network.routing = Routing::Ecmp;
            network.routing_reaction = Some(RoutingReaction {
                detection: Span::from_micros(detection),
                silent_detection: Span::from_micros(detection),
                convergence: Span::from_micros(convergence),
            });
            let below_top = Link { plane: 0, layer: tiers - 1, lower: 1, uplink: 1 };
            let target = Target::Link(fabric.link_number(below_top));
            let mut scenario = Run::new(network, patterns::permutation(hosts, 4 << 20, 3));
            scenario.faults = vec![FaultEvent { at: AT, target, change: Change::Begins(Effect::Down) }];
            let results = run(&scenario);
            assert!(all_delivered(&results));
            results.totals.fabric.dropped_down
        };
        let (fast, slow, never) = (lost(5, 5), lost(5, 100), lost(1_000_000, 1_000_000));
        assert!(fast < slow && slow < never, "{tiers} tiers: {fast} {slow} {never} packets lost");
    }
}

#[test]
fn routing_converges_behind_the_detection_and_not_behind_the_failure() {
    let fabric = common::fabric(16, 1, 2, 8);
    let mut network = NetworkConfig::new(fabric, common::RATE);
    network.routing = Routing::Ecmp;
    let (detection, silent, convergence) = (30, 70, 50);
    network.routing_reaction = Some(RoutingReaction {
        detection: Span::from_micros(detection),
        silent_detection: Span::from_micros(silent),
        convergence: Span::from_micros(convergence),
    });
    let link = fabric.link_number(Link { plane: 0, layer: 1, lower: 1, uplink: 1 });
    for (change, found) in
        [(Change::Begins(Effect::Down), detection), (Change::Begins(Effect::Loss(1.0)), silent)]
    {
        let mut scenario = Run::new(network.clone(), patterns::permutation(16, 4 << 20, 3));
        scenario.faults = vec![FaultEvent { at: AT, target: Target::Link(link), change }];
        scenario.record.events = true;
        let mut world = World::new(&scenario).unwrap();
        world.run();
        world.finish_record();
        let log = &world.recorder().unwrap().log;
        let withdrawn: Vec<_> = log
            .iter()
            .filter(|(_, event)| matches!(event, LogEvent::Routing { withdrawn: true, .. }))
            .collect();
        assert_eq!(withdrawn.len(), 2, "both ends of the link");
        for (time, _) in withdrawn {
            assert_eq!(*time, AT + Span::from_micros(found + convergence), "{change:?}");
        }
    }
}

#[test]
fn a_link_that_is_repaired_has_lost_its_loss_and_its_bit_errors() {
    let target = uplink(&multiplane(64, 4), 1, 2, 3);
    let at_once = |change| FaultEvent { at: Time::ZERO, target, change };
    for effect in [Effect::Loss(1.0), Effect::BitErrors(1e-3)] {
        // What comes after must not bring it back either.
        for after in
            [None, Some(Change::Begins(Effect::Loss(0.0))), Some(Change::Begins(Effect::BitErrors(0.0)))]
        {
            let mut faults = vec![at_once(Change::Begins(effect)), at_once(Change::Ends(effect))];
            faults.extend(after.map(at_once));
            let (results, _) = with_faults(faults);
            assert_eq!(results.totals.fabric.dropped_lossy, 0, "{effect:?}, {after:?}");
        }
    }
}

/// The schedule of one uplink: each effect from a time to another, microseconds.
fn on_one_uplink(effects: &[(Effect, u64, u64)]) -> Vec<FaultEvent> {
    let target = uplink(&multiplane(64, 4), 1, 2, 3);
    let at = |micros| Time(Span::from_micros(micros).0);
    let of = |&(effect, from, to)| {
        [(from, Change::Begins(effect)), (to, Change::Ends(effect))].map(|(micros, change)| FaultEvent {
            at: at(micros),
            target,
            change,
        })
    };
    effects.iter().flat_map(of).collect()
}

/// Longer than any run here.
const FOR_EVER: u64 = 1_000_000;

#[test]
fn a_fault_that_ends_takes_no_other_with_it() {
    let lossy = (Effect::Loss(0.2), 0, FOR_EVER);
    let dropped = |effects: &[_]| {
        let (results, _) = with_faults(on_one_uplink(effects));
        assert!(all_delivered(&results));
        results.totals.fabric
    };
    let alone = dropped(&[lossy]).dropped_lossy;
    assert!(alone > 50, "{alone} packets lost");
    // Whatever else begins and ends in the first microseconds, before the flows have filled the link.
    for other in
        [Effect::Down, Effect::Slow(0.5), Effect::BitErrors(1e-9), Effect::Loss(0.2), Effect::Loss(0.1)]
    {
        let overlapping = dropped(&[lossy, (other, 1, 3)]).dropped_lossy;
        assert!(overlapping * 2 > alone, "{other:?}: {overlapping} packets lost, {alone} without it");
    }
    // Down twice is up again when both have ended.
    let twice = dropped(&[(Effect::Down, 0, 20), (Effect::Down, 10, FOR_EVER)]).dropped_down;
    let once = dropped(&[(Effect::Down, 0, FOR_EVER)]).dropped_down;
    let short = dropped(&[(Effect::Down, 0, 10)]).dropped_down;
    assert!(short < once && twice >= once, "{short} {twice} {once}");
}

#[test]
fn effects_that_are_on_together_add_up() {
    let run = |effects: &[_]| {
        let (results, _) = with_faults(on_one_uplink(effects));
        // Without the number of events: each fault is one.
        let openmrc_scenario::Totals { hosts, fabric, .. } = results.totals;
        (hosts, fabric, last_delivery(&results))
    };
    // The slowest counts: a half beside a quarter changes nothing, also where it ends.
    let quarter = run(&[(Effect::Slow(0.25), 0, FOR_EVER)]);
    assert_eq!(run(&[(Effect::Slow(0.25), 0, FOR_EVER), (Effect::Slow(0.5), 5, 10)]), quarter);
    assert_eq!(run(&[(Effect::Slow(0.5), 0, 10), (Effect::Slow(0.25), 0, FOR_EVER)]), quarter);
    assert_ne!(run(&[(Effect::Slow(0.25), 0, 10), (Effect::Slow(0.5), 0, FOR_EVER)]), quarter);
    // Two losses of a half each lose three quarters.
    let loss = |effects: &[_]| run(effects).1.dropped_lossy;
    assert_eq!(
        loss(&[(Effect::Loss(0.5), 0, FOR_EVER), (Effect::Loss(0.5), 0, FOR_EVER)]),
        loss(&[(Effect::Loss(0.75), 0, FOR_EVER)])
    );
}

#[test]
fn a_route_is_avoided_until_everything_that_broke_it_has_ended() {
    let fabric = common::fabric(16, 1, 2, 8);
    let mut network = NetworkConfig::new(fabric, common::RATE);
    network.routing = Routing::Ecmp;
    let (detection, silent, convergence) = (5, 20, 10);
    network.routing_reaction = Some(RoutingReaction {
        detection: Span::from_micros(detection),
        silent_detection: Span::from_micros(silent),
        convergence: Span::from_micros(convergence),
    });
    let target = Target::Link(fabric.link_number(Link { plane: 0, layer: 1, lower: 1, uplink: 1 }));
    let dead = Effect::Loss(1.0);
    let routed = |effects: &[(Effect, u64, u64)]| {
        let mut scenario = Run::new(network.clone(), patterns::permutation(16, 16 << 20, 3));
        for &(effect, from, to) in effects {
            for (micros, change) in [(from, Change::Begins(effect)), (to, Change::Ends(effect))] {
                scenario.faults.push(FaultEvent { at: Time(Span::from_micros(micros).0), target, change });
            }
        }
        scenario.record.events = true;
        let mut world = World::new(&scenario).unwrap();
        world.run();
        world.finish_record();
        let log = &world.recorder().unwrap().log;
        let mut changes: Vec<_> = log
            .iter()
            .filter_map(|&(time, event)| match event {
                LogEvent::Routing { withdrawn, .. } => Some((time.0 / Span::from_micros(1).0, withdrawn)),
                _ => None,
            })
            .collect();
        changes.dedup();
        changes
    };
    let silently = silent + convergence;
    assert_eq!(routed(&[(dead, 10, 90)]), [(10 + silently, true), (90 + silently, false)]);
    // A carrier that comes back does not bring back what loses everything all the same.
    assert_eq!(
        routed(&[(dead, 10, 90), (Effect::Down, 50, 60)]),
        [(10 + silently, true), (90 + silently, false)]
    );
    // Nor does the end of the loss bring back what is down.
    let carrier = detection + convergence;
    assert_eq!(
        routed(&[(dead, 10, 40), (Effect::Down, 20, 100)]),
        [(20 + carrier, true), (100 + carrier, false)]
    );
}

#[test]
fn a_fault_on_what_does_not_exist_is_refused() {
    let mut scenario = Run::new(multiplane(64, 4), patterns::permutation(64, 1000, 3));
    scenario.faults =
        vec![FaultEvent { at: AT, target: Target::Switch(10_000), change: Change::Begins(Effect::Down) }];
    assert!(matches!(World::new(&scenario), Err(RunError::Fault(_))));
    scenario.faults =
        vec![FaultEvent { at: AT, target: Target::Link(0), change: Change::Begins(Effect::Loss(1.5)) }];
    assert!(matches!(World::new(&scenario), Err(RunError::Fault(_))));
}

#[test]
fn the_queues_of_a_slow_link_have_their_configured_bytes_or_shrink_with_the_rate() {
    const SHARE: u64 = 4;
    let results = |exact_queues, slow_queues, scale: u64| {
        let mut network = NetworkConfig::new(fabric(16, 1, 1, 16), RATE);
        network.exact_queues = exact_queues;
        let packet = u64::from(network.full_packet_bytes());
        let ecn = EcnMarking {
            min_bytes: 5 * packet * scale,
            max_bytes: 20 * packet * scale,
            probability: 0.5,
            on_last_hop: true,
        };
        network.switch = Some(SwitchConfig {
            last_hop_data_bytes: 40 * packet * scale,
            // Trimming more than these holds is dropped.
            control_bytes: 2_000 * scale,
            ecn: Some(ecn),
            slow_queues,
            ..network.default_switch()
        });
        let link = network.fabric.link_number(Link { plane: 0, layer: 0, lower: 0, uplink: 0 });
        let mut run = Run::new(network, patterns::incast(&[1, 2, 3, 4, 5, 6, 7, 8], 0, 1 << 20));
        let congestion = MrcCongestion::FixedWindow(300_000);
        run.transport = TransportConfig::Mrc(MrcConfig { congestion, ..MrcConfig::default() });
        let slow = Change::Begins(Effect::Slow(1.0 / SHARE as f64));
        run.faults = vec![FaultEvent { at: Time::ZERO, target: Target::Link(link), change: slow }];
        (common::run(&run), 40 * packet, packet)
    };
    for exact_queues in [false, true] {
        let (configured, limit, packet) = results(exact_queues, SlowQueues::Configured, 1);
        let fabric = configured.totals.fabric;
        assert!(fabric.longest_queue > limit - packet, "{} of {limit}", fabric.longest_queue);
        assert!(fabric.marked > 0 && fabric.trimmed_last_hop > 0 && fabric.dropped_control > 0, "{fabric:?}");
        // Scaled limits of four times as many bytes are the same limits to the last packet, as only the slow link has
        // queues.
        assert_eq!(results(exact_queues, SlowQueues::Scaled, SHARE).0, configured);
        let scaled = results(exact_queues, SlowQueues::Scaled, 1).0.totals.fabric;
        assert!(scaled.longest_queue <= limit / SHARE + packet, "{} of {limit}", scaled.longest_queue);
    }
}
