//! What a node knows of the ports of its peer, and what it asks and tells it.

use openmrc_wire::Erth;

use super::*;
use crate::node::requests::endpoint_request;

/// A node with four ports and a queue pair to a peer with four.
fn node(trust: PortTrust) -> (Node<Puppet>, Notes, Slot) {
    let mut node = node_with(4, |config| config.port_trust = trust);
    let slot = connect(&mut node, 0, Puppet::default());
    (node, Notes::default(), slot)
}

/// The longest time that an answer may take: a base RTT and the target queueing delay.
fn grace() -> Span {
    RTT + crate::presets::target_qdelay(RTT, true)
}

/// A port status update of the peer, its mask counted from bit 0.
fn update(id: u16, up: u16) -> Received {
    received(endpoint_request(Time::ZERO, id, EndpointOp::PortStatusUpdate, up.into()), 0)
}

impl Node<Puppet> {
    /// An update of the peer arrives; the ports on which the node then asks.
    fn hear(&mut self, now: Time, id: u16, up: u16, notes: &mut Notes) -> Vec<u8> {
        assert!(self.handle_endpoint(now, PEER, &update(id, up), notes));
        notes.take_ports()
    }

    /// Data of the peer arrive on a port.
    fn hear_data(&mut self, now: Time, slot: Slot, port: u8, trim: Option<Trim>, notes: &mut Notes) {
        let packet = Received { trim, ..received(data(), port) };
        assert!(self.handle(now, slot, &packet, 100, notes));
    }

    /// Answers the questions on these ports among those that were just asked.
    fn answer(&mut self, now: Time, ports: &[u8], notes: &mut Notes) {
        for (_, route, packet) in std::mem::take(&mut notes.requests) {
            let Body::EndpointRequest(request) = packet.body else { continue };
            if matches!(route, Route::Port(port) if ports.contains(&port)) {
                let answer = received(endpoint_response(packet.psn, &request), 0);
                assert!(self.handle_endpoint(now, PEER, &answer, notes));
            }
        }
    }

    /// Goes on to the end of the questions, while the peer answers on these ports. Returns the time.
    fn settle_questions(&mut self, mut now: Time, ports: &[u8], notes: &mut Notes) -> Time {
        self.answer(now, ports, notes);
        while self.poll_timeout() < now + RTT.times(20) {
            now = now.max(self.poll_timeout());
            self.handle_timeout(now, notes);
            self.answer(now, ports, notes);
        }
        now
    }
}

#[test]
fn an_update_counts_if_its_id_is_newer_and_only_what_changes_is_told() {
    // The id of the last update and that of another, and whether the other one is newer.
    let table = [
        (5, 5, false),
        (5, 6, true),
        (5, 4, false),
        (0xFFFF, 0, true),
        (0, 0xFFFF, false),
        (0, 0x7FFF, true),
        (0, 0x8000, false),
        (0, 0x8001, false),
    ];
    for (last, id, is_newer) in table {
        let (mut node, mut notes, slot) = node(PortTrust::AtOnce);
        node.hear(micros(1), last, 0b1011, &mut notes);
        node.hear(micros(2), id, 0b0111, &mut notes);
        let up = if is_newer { [0b1011, 0b0111].as_slice() } else { &[0b1011] };
        assert_eq!(
            notes.peer_ports,
            up.iter().map(|&up| (slot, PortSet(up))).collect::<Vec<_>>(),
            "{last}, {id}"
        );
        assert_eq!(node.qp(slot).unwrap().ports, Some((PortSet::first(4), PortSet(up[up.len() - 1]))));
        assert_eq!((node.stats().port_updates_applied, node.stats().requests_answered), (up.len() as u64, 2));
        // The same again is nothing new.
        node.hear(micros(3), id.wrapping_add(1), up[up.len() - 1], &mut notes);
        assert_eq!(node.stats().port_updates_applied, up.len() as u64);
        assert_eq!(notes.peer_ports.len(), up.len());
    }
}

#[test]
fn a_node_that_is_told_what_it_knows_does_not_ask_and_else_asks_about_what_is_new() {
    let (mut node, mut notes, _) = node(PortTrust::Confirmed);
    assert_eq!(node.hear(micros(1), 1, 0b1111, &mut notes), []);
    assert_eq!(node.poll_timeout(), Time::NEVER);
    // Port 2, and another one as a witness.
    assert_eq!(node.hear(micros(2), 2, 0b1011, &mut notes), [0, 2]);
    assert_eq!(node.peer_ports(PEER), PortSet::first(4), "not before it is confirmed");
    assert_eq!((node.stats().ports_asked, node.stats().port_updates_applied), (2, 0));
}

#[test]
fn a_port_is_down_when_it_is_silent_while_others_answer_and_up_after_two_answers() {
    let (mut node, mut notes, slot) = node(PortTrust::Confirmed);
    assert!(!node.ports.watches_traffic());
    node.question_ports(micros(1), PEER, PortSet::one(2), &mut notes);
    assert!(node.ports.watches_traffic(), "a port is in question");
    let now = node.settle_questions(micros(1), &[0, 1, 3], &mut notes);
    assert_eq!((node.peer_ports(PEER), node.stats().port_updates_applied), (PortSet(0b1011), 1));
    assert_eq!(notes.peer_ports, [(slot, PortSet(0b1011))]);
    // It is asked again and still silent: nothing changes.
    assert!(node.ports.watches_traffic(), "a port is down");
    node.handle_timeout(node.poll_timeout(), &mut notes);
    assert!(!notes.requests.is_empty());
    let now = node.settle_questions(node.poll_timeout().max(now), &[0, 1, 3], &mut notes);
    assert_eq!((node.stats().port_updates_applied, notes.peer_ports.len()), (1, 1));
    // Now it answers.
    let now = node.poll_timeout().max(now);
    node.handle_timeout(now, &mut notes);
    node.settle_questions(now, &[0, 1, 2, 3], &mut notes);
    assert_eq!(notes.peer_ports, [(slot, PortSet(0b1011)), (slot, PortSet::first(4))]);
    assert!(!node.ports.watches_traffic());
}

#[test]
fn an_update_that_leaves_no_common_port_is_a_question_only_if_it_says_something_new() {
    let (mut node, mut notes, _) = node(PortTrust::AtOnce);
    node.hear(micros(1), 1, 0b0010, &mut notes);
    node.set_own_ports(micros(2), PortSet(0b1101), &mut notes);
    notes.requests.clear();
    // Port 1 is the only one that is up there, and it is down here.
    assert_eq!(node.hear(micros(3), 2, 0b0010, &mut notes), []);
    assert_eq!(node.stats().ports_asked, 0);
    // That all are down there is new.
    assert_ne!(node.hear(micros(4), 3, 0, &mut notes), []);
    assert_eq!(node.peer_ports(PEER), PortSet(0b0010));
}

#[test]
fn a_port_that_comes_up_here_is_asked_about_if_it_was_down_at_the_peer() {
    for trust in [PortTrust::Confirmed, PortTrust::AtOnce] {
        for case in 0..1 << 12 {
            // The ports that are up at the peer, here before, and here then.
            let [peer, before, then] = [0, 4, 8].map(|at| case >> at & 0xF);
            if peer == 0 || before == 0 {
                continue;
            }
            let (mut node, mut notes, _) = node(trust);
            if trust == PortTrust::Confirmed {
                node.question_ports(micros(1), PEER, PortSet::first(4), &mut notes);
            } else {
                node.hear(micros(1), 1, peer, &mut notes);
            }
            let up: Vec<_> = PortSet(peer).iter().collect();
            let now = node.settle_questions(micros(1), &up, &mut notes);
            assert_eq!(node.peer_ports(PEER), PortSet(peer));
            node.set_own_ports(now, PortSet(before), &mut notes);
            let asked = node.stats().ports_asked;
            node.set_own_ports(now, PortSet(then), &mut notes);
            let asks = node.stats().ports_asked > asked;
            let expected = trust == PortTrust::Confirmed && then & !before & !peer != 0;
            assert_eq!(asks, expected, "{peer:#b} {before:#b} {then:#b} {trust:?}");
        }
    }
}

#[test]
fn data_on_a_port_contradicts_an_update_once_the_grace_time_is_over() {
    for trust in [PortTrust::AtOnce, PortTrust::Confirmed] {
        let (mut node, mut notes, slot) = node(trust);
        let mut now = micros(1);
        if trust == PortTrust::AtOnce {
            node.hear(now, 1, 0b1011, &mut notes);
        } else {
            node.question_ports(now, PEER, PortSet::one(2), &mut notes);
            now = node.settle_questions(now, &[0, 1, 3], &mut notes);
        }
        assert_eq!(node.peer_ports(PEER), PortSet(0b1011));
        notes.peer_ports.clear();
        let over = micros(1) + grace();
        let unchanged = |node: &Node<Puppet>, notes: &Notes| {
            node.peer_ports(PEER) == PortSet(0b1011)
                && node.stats().ports_contradicted == 0
                && notes.peer_ports.is_empty()
                && notes.requests.is_empty()
        };
        notes.requests.clear();
        if trust == PortTrust::AtOnce {
            node.hear_data(over, slot, 2, None, &mut notes);
            assert!(unchanged(&node, &notes), "it may have been sent before the update");
        }
        let late = now.max(over) + Span(1);
        // A header that was trimmed proves nothing, nor do data on other ports.
        node.hear_data(late, slot, 2, Some(Trim::Fabric), &mut notes);
        for port in [0, 1, 3, 5] {
            node.hear_data(late, slot, port, None, &mut notes);
        }
        assert!(unchanged(&node, &notes));
        node.hear_data(late, slot, 2, None, &mut notes);
        if trust == PortTrust::AtOnce {
            assert_eq!((node.peer_ports(PEER), node.stats().ports_contradicted), (PortSet::first(4), 1));
            assert_eq!(notes.peer_ports, [(slot, PortSet::first(4))]);
        } else {
            // It is a reason to ask again now, and not at the end of a pause.
            assert!(unchanged(&node, &notes));
            node.handle_timeout(late, &mut notes);
            assert_eq!(notes.take_ports().len(), 2, "port 2 and a witness");
        }
    }
}

#[test]
fn a_peer_stays_known_until_its_last_user_has_gone() {
    let (mut node, mut notes, slot) = node(PortTrust::AtOnce);
    node.add_peer(micros(1), PEER, PortSet::first(4));
    node.add_peer(micros(1), 8, PortSet::first(2));
    let probe = |node: &mut Node<Puppet>, peer, notes: &mut Notes| {
        node.probe(micros(1), peer, Route::Port(0), RTT, notes).unwrap()
    };
    probe(&mut node, PEER, &mut notes);
    let other = probe(&mut node, 8, &mut notes);
    assert!(!node.remove_peer(PEER), "a queue pair is connected to it");
    assert_eq!(node.peer_ports(PEER), PortSet::first(4));
    assert!(node.release(slot).is_some());
    assert_eq!((node.peer_ports(PEER), node.peer_ports(8)), (PortSet::EMPTY, PortSet::first(2)));
    assert!(!node.remove_peer(PEER), "it has gone already");
    // What it was asked has gone with it.
    node.handle_timeout(micros(100), &mut notes);
    assert_eq!(notes.probes, [(8, other, Err(ProbeTimeout))]);
    assert!(node.remove_peer(8));
    assert_eq!((node.peer_ports(8), node.remove_peer(8)), (PortSet::EMPTY, false));
}

#[test]
fn a_peer_that_is_removed_leaves_no_question_behind() {
    let mut node = node_with(4, |config| config.port_trust = PortTrust::Confirmed);
    let mut notes = Notes::default();
    node.add_peer(micros(1), PEER, PortSet::first(4));
    let id = node.probe(micros(1), PEER, Route::Port(0), RTT, &mut notes);
    assert!(id.is_some() && node.remove_peer(PEER));
    assert_eq!(node.poll_timeout(), Time::NEVER);
    node.handle_timeout(micros(100), &mut notes);
    assert_eq!((notes.probes.len(), node.stats().probes_unanswered), (0, 0));
}

#[test]
fn peers_and_unknown_nodes_are_answered_at_rates_of_their_own() {
    for (of_peer, of_unknown) in [(0, 1000), (1000, 0)] {
        let mut node = node_with(4, |config| {
            config.request_rates =
                RequestRates { unknown: of_unknown, all_unknown: of_unknown, peer: of_peer };
        });
        let mut notes = Notes::default();
        node.add_peer(Time::ZERO, PEER, PortSet::first(4));
        let request = endpoint_request(Time::ZERO, 1, EndpointOp::EvProbe, 0);
        for _ in 0..2 {
            assert!(node.handle_endpoint(micros(1), PEER, &received(request, 0), &mut notes));
            assert!(node.handle_endpoint(micros(1), 99, &received(request, 0), &mut notes));
        }
        let answered = if of_peer > 0 { PEER } else { 99 };
        assert_eq!(notes.requests.iter().map(|sent| sent.0).collect::<Vec<_>>(), [answered; 2]);
        assert_eq!((node.stats().requests_answered, node.stats().requests_limited), (2, 2));
        // An address without a name at this node.
        let answers = [1, 2].map(|source| node.answer_unknown(micros(1), source, &request));
        let Body::EndpointRequest(asked) = request.body else { panic!("a request") };
        let expected = (of_unknown > 0).then(|| endpoint_response(request.psn, &asked));
        assert_eq!(answers, [expected; 2]);
        let counts = (node.stats().requests_answered, node.stats().requests_limited);
        assert_eq!(counts, if of_unknown > 0 { (4, 2) } else { (2, 4) });
    }
}

#[test]
fn what_is_no_request_and_answers_none_is_counted_as_invalid() {
    let (mut node, mut notes, _) = node(PortTrust::AtOnce);
    let request = request_of(&endpoint_request(Time::ZERO, 1, EndpointOp::EvProbe, 0));
    let stray = endpoint_response(Psn::new(1), &request);
    for invalid in 1..4 {
        let packet = if invalid == 2 { data() } else { stray };
        assert!(!node.handle_endpoint(micros(1), PEER, &received(packet, 0), &mut notes));
        assert_eq!(node.stats().endpoint_invalid, invalid);
    }
    for invalid in 4..7 {
        assert_eq!(node.answer_unknown(micros(1), 1, &stray), None);
        assert_eq!(node.stats().endpoint_invalid, invalid);
    }
}

fn request_of(packet: &Packet) -> Erth {
    let Body::EndpointRequest(request) = packet.body else { panic!("a request") };
    request
}

#[test]
fn a_controller_tells_a_peer_any_port_status_on_one_port_and_gets_the_answer_as_that_to_a_probe() {
    for (base, mask) in [(PortMaskBase::Zero, 0b0101), (PortMaskBase::One, 0b1010)] {
        let mut node = node_with(4, |config| config.port_mask_base = base);
        let mut notes = Notes::default();
        node.add_peer(Time::ZERO, PEER, PortSet::first(4));
        let mut tell = |node: &mut Node<Puppet>| {
            node.send_port_status(micros(5), (PEER, 3), PortSet(0b0101), RTT, &mut notes).unwrap()
        };
        let ids = [tell(&mut node), tell(&mut node)];
        assert_ne!(ids[0], ids[1]);
        assert_eq!((node.own_ports(), node.stats().port_updates_sent), (PortSet::first(4), 2));
        for (id, (peer, route, packet)) in ids.into_iter().zip(std::mem::take(&mut notes.requests)) {
            let request = request_of(&packet);
            assert_eq!((peer, route, packet.psn.get()), (PEER, Route::Port(3), id.into()));
            assert_eq!((request.op, request.port_status_mask), (EndpointOp::PortStatusUpdate, mask));
            if id == ids[0] {
                let answer = received(endpoint_response(packet.psn, &request), 3);
                assert!(node.handle_endpoint(micros(9), PEER, &answer, &mut notes));
            }
        }
        // It is told once: the other one times out.
        node.handle_timeout(micros(15), &mut notes);
        let expected = [(PEER, ids[0], Ok(Span::from_micros(4))), (PEER, ids[1], Err(ProbeTimeout))];
        assert_eq!((notes.probes.as_slice(), notes.requests.len()), (expected.as_slice(), 0));
    }
}
