//! What a node does for its queue pairs: names, turns, deadlines, probes and receive pressure.

use openmrc_wire::{Probe, Timestamp};

use super::*;

#[test]
fn what_a_queue_pair_says_reaches_the_driver_under_its_name() {
    let (mut node, mut notes) = (node_with(4, |_| ()), Notes::default());
    connect(&mut node, 11, Puppet::default());
    let slot = connect(&mut node, 12, Puppet::default());
    assert!(node.handle(micros(1), slot, &received(data(), 0), 100, &mut notes));
    let id = QpId { slot, context: 12, peer: PEER };
    assert_eq!(notes.events, [(id, EVENT)]);
    assert_eq!(notes.losses, [(id, 6, 2)]);
    assert_eq!(notes.silences, [(id, true)]);
    assert!(!node.handle(micros(1), slot + 1, &received(data(), 0), 100, &mut notes), "no such queue pair");
}

#[test]
fn a_hundred_data_packets_of_one_queue_pair_pay_for_a_probe_of_another() {
    let (mut node, mut notes) = (node_with(4, |_| ()), Notes::default());
    connect(&mut node, 0, Puppet { to_send: 100, ..Puppet::default() });
    let probing = connect(&mut node, 1, Puppet::default());
    for sent in 0..=100 {
        node.handle(micros(1), probing, &received(data(), 0), 100, &mut notes);
        assert_eq!(node.qp(probing).unwrap().probes_allowed, u32::from(sent == 100), "{sent} packets");
        let is_sent = node.poll_transmit(micros(1), PortSet::first(4), &mut notes).is_some();
        assert_eq!(is_sent, sent < 100);
    }
}

#[test]
fn a_queue_pair_is_known_by_its_context_and_its_peer_until_it_is_removed() {
    let mut node = node_with(4, |_| ());
    let slots = [5, 0].map(|context| connect(&mut node, context, Puppet::default()));
    let reserved = node.reserve(8).unwrap();
    assert_eq!(
        slots.map(|slot| (node.context(slot), node.peer(slot))),
        [5, 0].map(|c| (Some(c), Some(PEER)))
    );
    assert_eq!((node.context(reserved), node.peer(reserved)), (Some(8), None));
    assert!(node.release(slots[0]).is_some());
    assert_eq!([slots[0], 99].map(|slot| (node.context(slot), node.peer(slot))), [(None, None); 2]);
}

#[test]
fn a_node_that_rejoins_takes_its_settings_again_and_gives_each_queue_pair_its_own() {
    let mut node = node_with(4, |_| ());
    let slots = [0, 1].map(|context| connect(&mut node, context, Puppet::default()));
    node.reserve(2).unwrap();
    let plain = slots.map(|slot| node.number(slot));
    let mut config = NodeConfig::hardware(PortSet::first(4), RTT, PressureConfig::Off);
    config.numbers.key = Some(5);
    let mut peers = Vec::new();
    node.rejoin(&Arc::new(config), |peer, qp| {
        peers.push(peer);
        qp.port = 3;
    });
    assert_eq!(peers, [PEER; 2], "what is not connected has no peer");
    for (slot, plain) in slots.into_iter().zip(plain) {
        assert_eq!(node.qp(slot).unwrap().port, 3);
        assert_ne!(node.number(slot), plain);
        assert_eq!(node.find(node.number(slot)), Some(slot));
    }
}

#[test]
fn a_queue_pair_learns_at_its_connection_which_ports_are_up() {
    let (mut node, mut notes) = (node_with(8, |_| ()), Notes::default());
    let slot = connect(&mut node, 0, Puppet::default());
    assert_eq!(node.qp(slot).unwrap().ports, Some((PortSet::first(8), PortSet::first(4))));
    node.set_own_ports(micros(1), PortSet(0b0110), &mut notes);
    assert_eq!(node.own_ports(), PortSet(0b0110));
    let later = connect(&mut node, 1, Puppet::default());
    for slot in [slot, later] {
        assert_eq!(node.qp(slot).unwrap().ports, Some((PortSet(0b0110), PortSet::first(4))));
    }
}

#[test]
fn queue_pairs_take_turns_and_one_whose_port_is_taken_holds_up_no_other() {
    let (mut node, mut notes) = (node_with(4, |_| ()), Notes::default());
    assert_eq!((node.has_ready(), node.next_ready()), (false, None));
    let slots = [0, 1, 2].map(|port| connect(&mut node, 0, Puppet { to_send: 2, port, ..Puppet::default() }));
    connect(&mut node, 0, Puppet::default());
    assert_eq!((node.has_ready(), node.next_ready()), (true, Some(slots[0])));
    let mut sent = |node: &mut Node<Puppet>, free| {
        node.poll_transmit(micros(1), PortSet(free), &mut notes).map(|sent| sent.qp.slot)
    };
    assert_eq!(sent(&mut node, 0b111), Some(slots[0]));
    assert_eq!(node.next_ready(), Some(slots[1]));
    assert_eq!(sent(&mut node, 0b001), Some(slots[0]), "the only one whose port is free");
    assert_eq!(sent(&mut node, 0b001), None);
    assert!(node.has_ready(), "the others wait for their ports");
    let rest: Vec<_> = std::iter::from_fn(|| sent(&mut node, 0b111)).collect();
    assert_eq!(rest, [slots[1], slots[2], slots[1], slots[2]]);
    assert_eq!((node.has_ready(), node.next_ready()), (false, None));
}

#[test]
fn the_deadline_that_a_packet_sets_is_kept() {
    let (mut node, mut notes) = (node_with(4, |_| ()), Notes::default());
    let due = micros(50);
    let slot =
        connect(&mut node, 0, Puppet { to_send: 2, due_after_sending: Some(due), ..Puppet::default() });
    assert_eq!(node.poll_timeout(), Time::NEVER);
    assert!(node.poll_transmit(micros(1), PortSet::first(4), &mut notes).is_some());
    assert_eq!(node.poll_timeout(), due);
    node.handle_timeout(Time(due.0 - 1), &mut notes);
    assert_eq!(node.qp(slot).unwrap().expired, 0);
    node.handle_timeout(due, &mut notes);
    assert_eq!(node.qp(slot).unwrap().expired, 1);
}

// --- receive pressure --------------------------------------------------------------------------------------------------

const INTERVAL: Span = Span::from_micros(100);
/// Room for 8192 packets, filled to 80 %.
const BUFFERS: Buffers = Buffers { bytes: 8192 * 5120, queued: 5000, fill: 0.8, packet: 5120 };
const GIVE_WAY: Pressure = Pressure { penalty: 6, restore: false };

fn probe() -> Packet {
    let timestamp = Timestamp { ticks: 0, tsr: false };
    let probe = Probe { vendor_info: 0, probe_id: 1, spdcid: 0, dpdcid: 0, timestamp };
    Packet::new(0, Psn::new(0), Body::Probe(probe))
}

fn request() -> Packet {
    requests::endpoint_request(Time::ZERO, 1, EndpointOp::EvProbe, 0)
}

/// A node that looks at its receive buffers, and two queue pairs.
fn buffered() -> (Node<Puppet>, Notes, [Slot; 2]) {
    let mut node = node_with(4, |config| config.pressure = PressureConfig::Buffers { interval: INTERVAL });
    let slots = [0, 1].map(|context| connect(&mut node, context, Puppet::default()));
    (node, Notes { buffers: Some(BUFFERS), ..Notes::default() }, slots)
}

/// What a queue pair was told last; forgets it.
fn told(node: &mut Node<Puppet>, slot: Slot) -> (Option<Pressure>, Option<u8>) {
    node.update(slot, |qp| (qp.pressure.take(), qp.mpr.take())).unwrap()
}

#[test]
fn data_and_probes_are_answered_with_the_pressure_of_the_buffers_and_other_packets_are_not() {
    let (mut node, mut notes, [fed, other]) = buffered();
    node.handle(micros(1), fed, &received(data(), 0), 100_000, &mut notes);
    // Nothing is known before the first look.
    assert_eq!(told(&mut node, fed), (Some(Pressure::NONE), Some(u8::MAX)));
    assert_eq!(node.poll_timeout(), micros(1) + INTERVAL);
    node.handle_timeout(micros(1) + INTERVAL, &mut notes);
    // One sender: half of 8192 packets are 32 units of 128.
    for (packet, expected) in [
        (data(), (Some(GIVE_WAY), Some(32))),
        (probe(), (Some(GIVE_WAY), Some(32))),
        (request(), (None, None)),
    ] {
        for slot in [fed, other] {
            node.handle(micros(102), slot, &received(packet, 0), 100, &mut notes);
            assert_eq!(told(&mut node, slot), expected, "{packet:?}");
        }
    }
}

#[test]
fn an_overflow_is_reported_by_each_queue_pair_that_was_connected_when_it_happened() {
    let (mut node, mut notes, [fed, other]) = buffered();
    node.handle(micros(1), fed, &received(data(), 0), 100, &mut notes);
    told(&mut node, fed);
    for overflows in 1..=3 {
        node.overflowed(micros(2), &mut notes);
        assert_eq!(node.stats().overflows, overflows);
    }
    // What was queued comes in: from then on the senders are held.
    node.handle(micros(3), fed, &received(data(), 0), 5000, &mut notes);
    assert_eq!(told(&mut node, fed).0, Some(Pressure::OVERFLOW));
    node.handle(micros(3), fed, &received(data(), 0), 100, &mut notes);
    assert_eq!(told(&mut node, fed).0, Some(Pressure::HOLD));
    // Before the other one reports without a new packet, it is told.
    node.update(other, |qp| qp.due = Some(micros(4)));
    node.handle_timeout(micros(4), &mut notes);
    assert_eq!((told(&mut node, other).0, node.qp(other).unwrap().expired), (Some(Pressure::OVERFLOW), 1));
    node.update(other, |qp| qp.due = Some(micros(5)));
    node.handle_timeout(micros(5), &mut notes);
    assert_eq!(told(&mut node, other).0, None, "it was reported");
    // It does not concern the sender of a queue pair that is connected later.
    let later = connect(&mut node, 2, Puppet::default());
    node.handle(micros(6), later, &received(data(), 0), 100, &mut notes);
    assert_eq!(told(&mut node, later).0, Some(Pressure::HOLD));
}
