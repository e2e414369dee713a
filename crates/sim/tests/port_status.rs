//! Port status is told in packets: they take their time, can be lost or overtaken, and are repeated.

mod common;

use common::{all_delivered, assert_laws, last_delivery, multiplane};
use openmrc_fabric::Link;
use openmrc_scenario::run::{Change, Effect, FaultEvent, NetworkConfig, Target};
use openmrc_scenario::{Engine, Results, Run};
use openmrc_sim::{LogEvent, World};
use openmrc_transport::{PortSet, Span, Time};
use openmrc_workload::patterns;

/// The sender, and the receiver under another T0, whose ports go down.
const SENDER: u32 = 0;
const RECEIVER: u32 = 12;
const PLANES: u8 = 4;
const BYTES: u32 = 64 << 20;
const AT: Time = Time(Span::from_micros(100).0);

/// A change of the receiver's cable in a plane.
fn cable(network: &NetworkConfig, plane: u8, at: Time, change: Change) -> FaultEvent {
    let link = Link { plane: plane.into(), layer: 0, lower: RECEIVER, uplink: 0 };
    FaultEvent { at, target: Target::Link(network.fabric.link_number(link)), change }
}

/// What the sender has learnt of the receiver's ports, and when.
type Learnt = Vec<(Time, PortSet)>;

/// A flow of 64 MiB, for at least 1.3 ms, under these faults.
fn run(faults: impl FnOnce(&NetworkConfig) -> Vec<FaultEvent>) -> (Results, Learnt, Span) {
    let network = multiplane(16, PLANES.into());
    let rtt = network.base_rtt();
    let faults = faults(&network);
    let mut scenario = Run::new(network, patterns::incast(&[SENDER], RECEIVER, BYTES));
    scenario.faults = faults;
    scenario.record.events = true;
    let mut world = World::new(&scenario).unwrap();
    world.run();
    world.finish_record();
    let results = world.results();
    assert_laws(&scenario, &results);
    assert!(all_delivered(&results), "{:?}", results.messages);
    let log = &world.recorder().unwrap().log;
    let learnt = log.iter().filter_map(|&(time, event)| match event {
        LogEvent::PeerPorts { host: SENDER, peer: RECEIVER, up } => Some((time, up)),
        _ => None,
    });
    let learnt = learnt.collect();
    (results, learnt, rtt)
}

fn all_but(plane: u8) -> PortSet {
    PortSet::first(PLANES.into()).without(plane)
}

#[test]
fn a_peer_learns_of_a_lost_port_half_a_round_trip_later() {
    let (results, learnt, rtt) = run(|network| vec![cable(network, 2, AT, Change::Begins(Effect::Down))]);
    let [(time, up)] = learnt[..] else { panic!("{learnt:?}") };
    assert_eq!(up, all_but(2));
    assert!(time > AT + rtt.scaled(0.3) && time < AT + rtt, "{:?} after the fault", time.since(AT));
    assert_eq!(results.totals.hosts.condemned, 0, "the peer's word came before losses did");
}

#[test]
fn an_update_that_is_lost_is_repeated_on_another_port() {
    let lost = |first: u8| {
        let (_, learnt, rtt) = run(|network| {
            // Updates go out on ports 0, 1 and 3 in turn; `first` of these lose everything.
            let lossy = [0, 1, 3].into_iter().take(first.into());
            let mut faults: Vec<_> =
                lossy.map(|plane| cable(network, plane, AT, Change::Begins(Effect::Loss(1.0)))).collect();
            faults.push(cable(network, 2, AT, Change::Begins(Effect::Down)));
            faults
        });
        let told = learnt.iter().find(|(_, up)| *up == all_but(2));
        let (time, _) = told.unwrap_or_else(|| panic!("{first} lossy ports: {learnt:?}"));
        time.since(AT).as_secs_f64() / rtt.as_secs_f64()
    };
    // The first repetition comes after a round trip, the second two round trips after that.
    let round_trips = [lost(0), lost(1), lost(2)];
    for (late, expected) in round_trips.into_iter().zip([0.0, 1.0, 3.0]) {
        assert!((expected + 0.3..expected + 1.0).contains(&late), "{round_trips:?}");
    }
}

#[test]
fn an_update_that_a_newer_one_has_overtaken_is_not_believed() {
    let (_, learnt, _) = run(|network| {
        vec![
            // The first update goes out on port 1, where it takes long. The second goes out on port 0, which is back.
            cable(network, 1, AT, Change::Begins(Effect::Slow(0.0015))),
            cable(network, 0, AT, Change::Begins(Effect::Down)),
            cable(network, 0, AT + Span::from_micros(3), Change::Ends(Effect::Down)),
        ]
    });
    assert_eq!(learnt, []);
}

#[test]
fn a_peer_that_hears_of_nothing_learns_from_the_traffic() {
    let quiet = Span::from_millis(6);
    let (results, learnt, _) = run(|network| {
        // For longer than updates are repeated nothing leaves or reaches the receiver. Meanwhile it loses a port.
        let mut faults = vec![cable(network, 2, AT, Change::Begins(Effect::Down))];
        for plane in [0, 1, 3] {
            faults.push(cable(network, plane, AT, Change::Begins(Effect::Loss(1.0))));
            faults.push(cable(network, plane, AT + quiet, Change::Ends(Effect::Loss(1.0))));
        }
        faults
    });
    assert_eq!(learnt, [], "no update has arrived");
    assert_eq!(results.totals.hosts.fatal, 0);
    assert!(results.totals.hosts.condemned > 0, "paths of the dead port are found by their losses");
    // Three ports of four carry the rest.
    let picos_per_byte = multiplane(16, PLANES.into()).picos_per_byte();
    let rest = Span(u64::from(BYTES) * picos_per_byte / 3);
    // A silent peer is asked again when it has been silent for a quarter longer.
    let heard = AT + quiet.scaled(1.25);
    assert!(last_delivery(&results) < heard + rest.scaled(1.5), "{:?}", last_delivery(&results));
}

#[test]
fn a_port_whose_return_nobody_was_told_of_is_back_when_a_packet_comes_over_it() {
    let quiet = Span::from_millis(6);
    let back = AT + Span::from_micros(200);
    let (_, learnt, _) = run(|network| {
        let mut faults = vec![cable(network, 2, AT, Change::Begins(Effect::Down))];
        for plane in [0, 1, 3] {
            faults.push(cable(network, plane, back, Change::Begins(Effect::Loss(1.0))));
        }
        faults.push(cable(network, 2, back, Change::Ends(Effect::Down)));
        faults.push(cable(network, 2, back, Change::Begins(Effect::Loss(1.0))));
        let loss_ends = Change::Ends(Effect::Loss(1.0));
        faults.extend((0..PLANES).map(|plane| cable(network, plane, back + quiet, loss_ends)));
        faults
    });
    let [(_, without), (time, with)] = learnt[..] else { panic!("{learnt:?}") };
    assert_eq!((without, with), (all_but(2), PortSet::first(PLANES.into())));
    assert!(time > back + quiet, "{time:?}");
}
