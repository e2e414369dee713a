//! What attackers can do to a node (docs/spec/transport.md, "Endpoint operations"; docs/security.md). Off the path they
//! send packets with any source address and see none of ours. On the path they see everything and send what they like.
//!
//! `OPENMRC_LONG` sends a million packets of each kind.

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig, QueuePair};
use openmrc_transport::node::{
    Node, NodeConfig, NodeHost, PeerId, PressureConfig, QpId, ReceiveQueueEmpty, Route, Slot,
};
use openmrc_transport::{
    AccessError, EvProfile, Fatal, PathEntry, PortSet, Received, RecvDone, SendDone, SendStatus, Span, Time,
    TrafficClass, Transmit, WorkRequest,
};
use openmrc_wire::{
    Aeth, Body, CcState, Eeth, EndpointOp, Erth, Ev, Mark, Msn, Nack, NackReason, Packet, Position, Psn,
    Sack, Timestamp, Write,
};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

const RTT: Span = Span::from_micros(500);
const PORTS: usize = 4;
const PEER: PeerId = 7;
const MTU: u16 = 1024;

/// Packets of each kind that are forged.
fn count() -> u64 {
    if std::env::var_os("OPENMRC_LONG").is_some() { 1_000_000 } else { 20_000 }
}

/// Everything that a node asked of its driver.
#[derive(Default)]
struct Notes {
    requests: Vec<(PeerId, Route, Packet)>,
    feedback: Vec<Transmit>,
    sent: Vec<SendDone>,
    received: usize,
    placed: usize,
    fatal: Vec<Fatal>,
    peer_ports: Vec<PortSet>,
}

impl NodeHost for Notes {
    fn write(&mut self, _qp: QpId, rkey: u32, _va: u64, _len: u32) -> Result<(), AccessError> {
        self.placed += 1;
        if rkey == RKEY { Ok(()) } else { Err(AccessError) }
    }
    fn feedback(&mut self, _qp: QpId, transmit: Transmit) {
        self.feedback.push(transmit);
    }
    fn send_done(&mut self, _qp: QpId, done: SendDone) {
        self.sent.push(done);
    }
    fn recv_done(&mut self, _qp: QpId, _done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        self.received += 1;
        Ok(())
    }
    fn fatal(&mut self, _qp: QpId, why: Fatal) {
        self.fatal.push(why);
    }
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, _class: TrafficClass) {
        self.requests.push((peer, route, packet));
    }
    fn peer_ports(&mut self, _qp: QpId, up: PortSet) {
        self.peer_ports.push(up);
    }
}

const RKEY: u32 = 0x5EED;

/// A node that unknown nodes can reach, as the NIC configures it.
fn guarded(seed: u64) -> Node<QueuePair> {
    let mut config = NodeConfig::software(PortSet::first(PORTS), RTT, 15, PressureConfig::Off);
    config.seed = seed;
    config.numbers.key = Some(seed);
    Node::new(&Arc::new(config))
}

fn qp_config(local_qp: u32, remote_qp: u32, psn: u32) -> QpConfig {
    let entries: Vec<_> = (0..PORTS as u32 * 4)
        .map(|i| PathEntry { ev: Ev(50_000 + i), port: (i % PORTS as u32) as u8 })
        .collect();
    let profile = Arc::new(EvProfile::new(&entries).unwrap());
    let paths = PathConfig::new(profile, PathModel::new(RTT, false));
    let mut config = QpConfig::new(local_qp, remote_qp, paths, Arc::new(CcProfile::FixedWindow(1 << 20)));
    config.path_mtu = MTU;
    config.requestor.sq_psn = Psn::new(psn);
    config.responder.rq_psn = Psn::new(psn ^ 0x80_0000);
    config
}

const REMOTE_QP: u32 = 0xABCDEF;
const FIRST_PSN: u32 = 0x123456;

/// A node with a queue pair to [`PEER`] that has sent `messages` writes of 8 packets each.
fn sending(messages: u64) -> (Node<QueuePair>, Slot, Notes) {
    let mut node = guarded(11);
    let mut notes = Notes::default();
    let slot = node.reserve(0).unwrap();
    let config = qp_config(node.number(slot), REMOTE_QP, FIRST_PSN);
    let qp = QueuePair::new(Time(1), &config).unwrap();
    node.connect(Time(1), slot, PEER, PortSet::first(PORTS), qp);
    for handle in 0..messages {
        let len = 8 * u32::from(MTU);
        let wr = WorkRequest { handle, len, remote_va: 0, rkey: RKEY, imm: None, solicited: false };
        node.post_send(Time(2), slot, wr).unwrap();
    }
    while node.poll_transmit(Time(3), PortSet::first(PORTS), &mut notes).is_some() {}
    (node, slot, notes)
}

fn received(packet: Packet, port: u8) -> Received {
    Received { packet, ev: Ev(50_000), port, ecn_ce: false, trim: None }
}

fn port_status(id: u16, mask: u32) -> Packet {
    let erth = Erth {
        op: EndpointOp::PortStatusUpdate,
        vendor_info: 0,
        port_status_mask: mask,
        timestamp: Timestamp::default(),
    };
    Packet::new(openmrc_wire::ENDPOINT_QP, Psn::new(id.into()), Body::EndpointRequest(erth))
}

// --- ports -----------------------------------------------------------------------------------------------------------

/// A node and an honest peer, whose live ports answer after half a round trip each way.
struct Pair {
    node: Node<QueuePair>,
    slot: Slot,
    notes: Notes,
    peer_up: PortSet,
    /// Share of requests and of answers that are lost.
    loss: f64,
    dice: Xoshiro256PlusPlus,
    now: Time,
    on_the_way: std::collections::VecDeque<(Time, u8, Packet)>,
}

impl Pair {
    fn new(peer_up: PortSet) -> Self {
        let (node, slot, notes) = sending(1);
        let dice = Xoshiro256PlusPlus::seed_from_u64(3);
        Pair { node, slot, notes, peer_up, loss: 0.0, dice, now: Time(10), on_the_way: Default::default() }
    }

    fn forge(&mut self, packet: Packet, port: u8) {
        self.node.handle_endpoint(self.now, PEER, &received(packet, port), &mut self.notes);
        self.carry();
    }

    fn carry(&mut self) {
        for (_, route, packet) in self.notes.requests.drain(..) {
            if let (Route::Port(port), Body::EndpointRequest(request)) = (route, packet.body)
                && self.peer_up.contains(port)
                && !self.dice.random_bool(1.0 - (1.0 - self.loss).powi(2))
            {
                let eeth = Eeth { op: request.op, timestamp: request.timestamp.ticks };
                let answer = Packet::new(openmrc_wire::ENDPOINT_QP, packet.psn, Body::EndpointResponse(eeth));
                self.on_the_way.push_back((self.now + RTT.over(5), port, answer));
            }
        }
    }

    fn advance(&mut self, by: Span) {
        let end = self.now + by;
        loop {
            let answer = self.on_the_way.front().map_or(Time::NEVER, |(at, ..)| *at);
            let next = answer.min(self.node.poll_timeout());
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            if answer == next {
                let (_, port, packet) = self.on_the_way.pop_front().unwrap();
                self.node.handle_endpoint(self.now, PEER, &received(packet, port), &mut self.notes);
            } else {
                self.node.handle_timeout(self.now, &mut self.notes);
            }
            self.carry();
        }
        self.now = end;
    }
}

#[test]
fn a_million_forged_port_status_updates_change_no_port_and_cost_few_packets() {
    let mut pair = Pair::new(PortSet::first(PORTS));
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(1);
    let count = count();
    for i in 0..count {
        let mask = if i % 2 == 0 { 0 } else { dice.next_u32() & 0xF };
        pair.forge(port_status(dice.next_u32() as u16, mask), (i % PORTS as u64) as u8);
        pair.advance(Span::from_micros(1));
    }
    pair.advance(Span::from_secs(1));
    assert_eq!((&pair.notes.peer_ports[..], pair.node.peer_ports(PEER)), (&[][..], PortSet::first(PORTS)));
    let stats = pair.node.stats();
    assert_eq!(stats.port_updates_applied, 0);
    assert!(stats.ports_asked > 0 && stats.ports_asked < 40 + count / 500, "{stats:?}");
    // A genuine change is found out all the same.
    pair.peer_up = PortSet::first(PORTS).without(2);
    pair.forge(port_status(1, 0xB), 0);
    pair.advance(Span::from_millis(200));
    assert_eq!(pair.node.peer_ports(PEER), pair.peer_up);
}

#[test]
fn a_port_that_is_down_is_given_up_once_another_one_has_answered() {
    let mut pair = Pair::new(PortSet::first(PORTS).without(1));
    pair.forge(port_status(9, 0b1101), 0);
    pair.advance(RTT.over(2));
    assert_eq!(pair.node.peer_ports(PEER), PortSet::first(PORTS), "not before it was asked");
    pair.advance(RTT.times(2));
    assert_eq!(pair.node.peer_ports(PEER), pair.peer_up);
    // It is back without any update: it is asked from time to time.
    pair.peer_up = PortSet::first(PORTS);
    pair.advance(Span::from_secs(3));
    assert_eq!(pair.node.peer_ports(PEER), pair.peer_up);
    assert_eq!(pair.notes.peer_ports.len(), 2);
}

#[test]
fn a_forged_update_does_not_change_how_later_ones_are_read() {
    // Bit 4 of four ports says that bit 1 is the first of them.
    for forged in [0b1_0010, 0b1_1110, 0b0_0001] {
        for down in 0..PORTS as u8 {
            let mut pair = Pair::new(PortSet::first(PORTS));
            pair.forge(port_status(9, forged), 0);
            pair.advance(Span::from_millis(200));
            assert_eq!(pair.node.peer_ports(PEER), PortSet::first(PORTS));
            pair.peer_up = pair.peer_up.without(down);
            pair.forge(port_status(10, 0xF & !(1 << down)), 0);
            pair.advance(Span::from_millis(200));
            assert_eq!(pair.node.peer_ports(PEER), pair.peer_up, "{forged:#b}, port {down}");
        }
    }
}

#[test]
fn a_port_whose_answers_are_lost_now_and_then_is_not_given_up_whatever_is_forged() {
    let mut pair = Pair::new(PortSet::first(PORTS));
    pair.loss = 0.02;
    for i in 0..20_000 {
        pair.forge(port_status(i, if i % 2 == 0 { 0 } else { 0b1101 }), 0);
        pair.advance(Span::from_millis(1));
    }
    assert!(pair.node.stats().ports_asked > 1000, "{:?}", pair.node.stats());
    assert_eq!(&pair.notes.peer_ports[..], &[][..]);
}

#[test]
fn a_port_on_which_traffic_arrives_is_up_though_it_answers_nothing() {
    for traffic in [true, false] {
        let mut pair = Pair::new(PortSet::first(PORTS).without(1));
        pair.forge(port_status(9, 0b1101), 0);
        for _ in 0..40 {
            pair.advance(RTT.over(10));
            if traffic {
                let sack = sack_of(pair.node.number(pair.slot), FIRST_PSN, 0);
                pair.node.handle(pair.now, pair.slot, &received(sack, 1), 100, &mut pair.notes);
            }
        }
        let expected = if traffic { PortSet::first(PORTS) } else { pair.peer_up };
        assert_eq!(pair.node.peer_ports(PEER), expected, "traffic: {traffic}");
    }
}

#[test]
fn the_last_plane_is_not_given_up_on_anybodys_word() {
    let mut pair = Pair::new(PortSet::EMPTY);
    for _ in 0..100 {
        pair.forge(port_status(3, 0), 0);
        pair.advance(Span::from_millis(50));
    }
    // Nobody answers at all: that says nothing about single ports.
    assert_eq!(pair.node.peer_ports(PEER), PortSet::first(PORTS));
    // In a closed network an update is believed at once, but not one that leaves no plane in common.
    let config = NodeConfig::hardware(PortSet::first(2), RTT, PressureConfig::Off);
    let mut node = Node::<QueuePair>::new(&Arc::new(config));
    let mut notes = Notes::default();
    node.add_peer(Time(1), PEER, PortSet::first(2));
    node.set_own_ports(Time(1), PortSet::one(0), &mut notes);
    assert!(node.handle_endpoint(Time(2), PEER, &received(port_status(5, 0b10), 0), &mut notes));
    assert_eq!(node.peer_ports(PEER), PortSet::first(2));
    assert!(node.handle_endpoint(Time(2), PEER, &received(port_status(6, 0b01), 0), &mut notes));
    assert_eq!(node.peer_ports(PEER), PortSet::one(0));
}

#[test]
fn forged_answers_neither_bring_back_a_port_nor_end_a_probe() {
    let mut pair = Pair::new(PortSet::first(PORTS).without(1));
    pair.forge(port_status(9, 0b1101), 0);
    pair.advance(RTT.times(3));
    assert_eq!(pair.node.peer_ports(PEER), pair.peer_up);
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(2);
    let before = pair.node.stats().endpoint_invalid;
    let mut accepted = 0;
    for _ in 0..count() {
        let eeth = Eeth { op: EndpointOp::PortStatusUpdate, timestamp: dice.next_u32() as u16 };
        let id = dice.next_u32() & 0xFFFF;
        let answer = Packet::new(openmrc_wire::ENDPOINT_QP, Psn::new(id), Body::EndpointResponse(eeth));
        accepted +=
            u64::from(pair.node.handle_endpoint(pair.now, PEER, &received(answer, 1), &mut pair.notes));
        pair.advance(Span::from_micros(1));
    }
    assert_eq!(pair.node.peer_ports(PEER), pair.peer_up);
    assert_eq!(pair.node.stats().endpoint_invalid - before + accepted, count());
    assert!(accepted <= 1 + count() / 100_000, "{accepted}");
}

#[test]
fn request_ids_cannot_be_predicted_and_do_not_come_back_soon() {
    let mut node = guarded(5);
    let mut notes = Notes::default();
    node.add_peer(Time(1), PEER, PortSet::first(PORTS));
    let ids: Vec<_> =
        (0..4096).filter_map(|_| node.probe(Time(2), PEER, Route::Port(0), RTT, &mut notes)).collect();
    let close = ids.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) < 16).count();
    assert!(close < 16, "{close} of 4095 ids are near the one before");
    let distinct: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), 4096);
}

#[test]
fn unknown_nodes_get_at_most_their_rate_and_nothing_is_kept_of_them() {
    let mut node = guarded(6);
    let request = port_status(1, 0);
    let count = count();
    let answered =
        (0..count).filter(|&i| node.answer_unknown(Time(i * 1_000_000), i, &request).is_some()).count();
    // A microsecond apart: 100,000 per second, and a burst.
    assert!(answered as u64 <= count / 10 + 100, "{answered}");
    assert_eq!(node.stats().requests_answered + node.stats().requests_limited, count);
    assert!(node.answer_unknown(Time::ZERO, 1, &sack_of(0, 0, 0)).is_none(), "requests only");
}

// --- feedback --------------------------------------------------------------------------------------------------------

fn sack_of(dest_qp: u32, cack: u32, bitmap: u64) -> Packet {
    let cack_psn = Psn::new(cack);
    let sack = Sack {
        mark: Mark::AlwaysSkip,
        probe_reply: false,
        ack_psn_offset: 0,
        entropy: Ev(50_000),
        spdcid: REMOTE_QP as u16,
        dpdcid: dest_qp as u16,
        cack_psn,
        cc_type: Sack::CC_TYPE,
        cc_flags: 0,
        mpr: 8,
        sack_offset: 1,
        bitmap,
        cc: CcState::default(),
    };
    Packet::new(dest_qp, cack_psn, Body::Sack(sack))
}

fn nack_of(dest_qp: u32, psn: u32, reason: NackReason) -> Packet {
    let nack_psn = Psn::new(psn);
    let nack = Nack {
        reason,
        vendor_info: 0,
        entropy: Ev(50_000),
        spdcid: REMOTE_QP as u16,
        dpdcid: dest_qp as u16,
        nack_psn,
        cc_flags: 0,
        timestamp: 0,
    };
    Packet::new(dest_qp, nack_psn, Body::Nack(nack))
}

fn ack_of(dest_qp: u32, psn: u32, syndrome: u8, msn: u32) -> Packet {
    Packet::new(dest_qp, Psn::new(psn), Body::Ack(Aeth { syndrome, msn: msn & 0xFF_FFFF }))
}

fn write_of(dest_qp: u32, psn: u32, position: Position, dma_len: u32, len: u16, imm: Option<u32>) -> Packet {
    let write = Write {
        position,
        rqmsn: Msn(0),
        msn: Msn(0),
        timestamp: Some(Timestamp::default()),
        va: 0,
        rkey: RKEY,
        dma_len,
        imm,
    };
    Packet { payload_len: len, ..Packet::new(dest_qp, Psn::new(psn), Body::Write(write)) }
}

#[test]
fn a_million_blind_packets_of_each_kind_reach_no_queue_pair() {
    let (mut node, slot, mut notes) = sending(4);
    let before = node.qp(slot).unwrap().stats();
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut found = 0;
    for kind in 0..8 {
        for _ in 0..count() {
            let qp = dice.random_range(0..1 << 24);
            let psn = dice.random_range(0..1 << 24);
            let packet = match kind {
                0 => sack_of(qp, psn, dice.next_u64()),
                1 => nack_of(qp, psn, NackReason::UnexpectedEvent),
                2 => nack_of(qp, psn, NackReason::Trimmed),
                3 => ack_of(qp, psn, Aeth::ACK, dice.next_u32() % 5),
                4 => ack_of(qp, psn, Aeth::NAK_REMOTE_ACCESS, 0),
                5 => ack_of(qp, psn, Aeth::NAK_INVALID_REQUEST, 0),
                6 => write_of(qp, psn, Position::Only, 64, 64, Some(1)),
                _ => write_of(qp, psn, Position::Middle, 0, 0, None),
            };
            if let Some(slot) = node.find(qp) {
                found += 1;
                node.handle(Time(9), slot, &received(packet, 0), 100, &mut notes);
            }
        }
    }
    // With one queue pair in 2^24 numbers, one packet in 16 million finds it.
    assert!(found <= 4, "{found} packets have found a queue pair");
    assert!(notes.sent.is_empty() && notes.fatal.is_empty() && notes.received == 0 && notes.placed == 0);
    let after = node.qp(slot).unwrap().stats();
    assert_eq!(
        (after.retransmits, after.lost, after.condemned),
        (before.retransmits, before.lost, before.condemned)
    );
}

/// An attacker who has guessed the queue pair, but not the PSN: fewer than one in 2^12 packets may get through.
#[test]
fn feedback_that_is_not_about_what_is_outstanding_is_refused() {
    let (mut node, slot, mut notes) = sending(4);
    let qp = node.number(slot);
    let next = FIRST_PSN + 32;
    let mut invalid = 0;
    let mut refused = |node: &mut Node<QueuePair>, notes: &mut Notes, packet: Packet, what: &str| {
        node.handle(Time(20), slot, &received(packet, 0), 100, notes);
        invalid += 1;
        assert_eq!(node.qp(slot).unwrap().stats().invalid, invalid, "{what}");
        assert!(notes.sent.is_empty() && notes.fatal.is_empty(), "{what}");
    };
    for psn in [next, next + 1, next + 5000, FIRST_PSN - 3000, FIRST_PSN + 0x80_0000] {
        refused(&mut node, &mut notes, sack_of(qp, psn, 0), "SACK");
        refused(&mut node, &mut notes, nack_of(qp, psn, NackReason::Trimmed), "NACK");
        refused(&mut node, &mut notes, nack_of(qp, psn, NackReason::UnexpectedEvent), "fatal NACK");
        refused(&mut node, &mut notes, ack_of(qp, psn, Aeth::ACK, 1), "ACK");
        refused(&mut node, &mut notes, ack_of(qp, psn, Aeth::NAK_REMOTE_ACCESS, 0), "NAK");
    }
    let below = FIRST_PSN - 1;
    refused(&mut node, &mut notes, nack_of(qp, below, NackReason::UnexpectedEvent), "fatal NACK below");
    refused(&mut node, &mut notes, ack_of(qp, FIRST_PSN - 2, Aeth::NAK_REMOTE_ACCESS, 0), "NAK below");
    refused(&mut node, &mut notes, ack_of(qp, below, Aeth::ACK, 5), "ACK of a message that was not posted");
    refused(&mut node, &mut notes, ack_of(qp, below, Aeth::ACK, 0xFF_FFFF), "ACK of fewer messages");
    refused(&mut node, &mut notes, sack_of(qp, next - 2, 0b10), "SACK whose bitmap goes beyond");
    let mut ahead = sack_of(qp, next - 1, 0);
    if let Body::Sack(sack) = &mut ahead.body {
        sack.ack_psn_offset = 1;
    }
    refused(&mut node, &mut notes, ahead, "SACK of a packet that was not sent");
    // What is about a packet in flight is taken.
    node.handle(Time(21), slot, &received(sack_of(qp, below, 1), 0), 100, &mut notes);
    node.handle(Time(21), slot, &received(ack_of(qp, FIRST_PSN + 7, Aeth::ACK, 1), 0), 100, &mut notes);
    assert_eq!(notes.sent, [SendDone { handle: 0, status: SendStatus::Success }]);
    node.handle(
        Time(21),
        slot,
        &received(ack_of(qp, FIRST_PSN + 8, Aeth::NAK_REMOTE_ACCESS, 1), 0),
        100,
        &mut notes,
    );
    assert_eq!(notes.fatal, [Fatal::RemoteNak(Aeth::NAK_REMOTE_ACCESS)]);
}

#[test]
fn a_nak_when_nothing_is_unfinished_is_refused() {
    let (mut node, slot, mut notes) = sending(1);
    let qp = node.number(slot);
    let last = FIRST_PSN + 7;
    node.handle(Time(20), slot, &received(ack_of(qp, last, Aeth::ACK, 1), 0), 100, &mut notes);
    assert_eq!(notes.sent.len(), 1);
    node.handle(Time(21), slot, &received(ack_of(qp, last, Aeth::NAK_REMOTE_ACCESS, 1), 0), 100, &mut notes);
    assert!(notes.fatal.is_empty());
    assert_eq!(node.qp(slot).unwrap().stats().invalid, 1);
}

#[test]
fn ids_may_be_in_either_order_or_missing_until_the_peer_has_sent_them() {
    let with = |ids: (u16, u16), (node, slot, notes): &mut (Node<QueuePair>, Slot, Notes)| {
        let mut packet = sack_of(node.number(*slot), FIRST_PSN, 0);
        if let Body::Sack(sack) = &mut packet.body {
            (sack.spdcid, sack.dpdcid) = ids;
        }
        let before = node.qp(*slot).unwrap().stats().sacks_in;
        node.handle(Time(20), *slot, &received(packet, 0), 100, notes);
        node.qp(*slot).unwrap().stats().sacks_in > before
    };
    let mut at = sending(4);
    let (local, remote) = (at.0.number(at.1) as u16, REMOTE_QP as u16);
    assert!(with((0, 0), &mut at), "a peer that leaves them out");
    assert!(with((7, 9), &mut at), "a peer with ids of its own");
    assert!(at.0.qp(at.1).unwrap().stats().peer_ids_other);
    assert!(with((local, remote), &mut at), "a peer that names the requestor first");
    assert!(with((remote, local), &mut at));
    assert!(!with((0, 0), &mut at) && !with((local, local), &mut at), "a forger that does not know them");
    assert!(!at.0.qp(at.1).unwrap().stats().peer_ids_other);
}

// --- data ------------------------------------------------------------------------------------------------------------

/// What becomes of these packets (place in the message, DMA length, length), PSN by PSN.
fn deliver(packets: &[(Position, u32, u16)]) -> (usize, Vec<Fatal>) {
    let mut node = guarded(12);
    let mut notes = Notes::default();
    let slot = node.reserve(0).unwrap();
    let number = node.number(slot);
    let qp = QueuePair::new(Time(1), &qp_config(number, REMOTE_QP, FIRST_PSN)).unwrap();
    node.connect(Time(1), slot, PEER, PortSet::first(PORTS), qp);
    let first = FIRST_PSN ^ 0x80_0000;
    // The last one first: whatever the order of arrival.
    for (i, &(position, dma_len, len)) in packets.iter().enumerate().rev() {
        let imm = position.is_last().then_some(5);
        let mut packet = write_of(number, first + i as u32, position, dma_len, len, imm);
        let before = packets[..i].iter().filter(|(position, ..)| position.is_last()).count();
        if let Body::Write(write) = &mut packet.body {
            write.rqmsn = Msn(before as u16);
        }
        node.handle(Time(2 + i as u64), slot, &received(packet, 0), 100, &mut notes);
    }
    (notes.received, notes.fatal)
}

#[test]
fn no_message_with_a_hole_is_ever_complete() {
    use Position::{First, Last, Middle, Only};
    const M: u16 = MTU;
    const TWO: u32 = 2 * MTU as u32;
    const THREE: u32 = 3 * MTU as u32;
    // Whole messages, long and short, of peers that repeat the message's DMA length and of those that give the
    // packet's.
    let good: [&[(Position, u32, u16)]; 9] = [
        &[(First, TWO, M), (Last, TWO, M), (Only, 0, 0)],
        &[(First, TWO - 1, M), (Last, TWO - 1, M - 1)],
        &[(First, THREE, M), (Middle, THREE, M), (Last, THREE, M)],
        &[(First, THREE - 9, M), (Middle, TWO - 9, M), (Last, u32::from(M) - 9, M - 9)],
        &[(Only, M.into(), M)],
        &[(Only, 1, 1), (First, TWO, M), (Last, TWO, M)],
        &[(First, M as u32, M), (Middle, M as u32, M), (Last, 9, 9)],
        &[(First, M as u32, M), (Last, M as u32, M), (Only, 7, 7), (First, M as u32, M), (Last, 1, 1)],
        &[(First, M as u32, M), (Last, TWO, M)],
    ];
    for packets in good {
        let messages = packets.iter().filter(|(position, ..)| position.is_last()).count();
        assert_eq!(deliver(packets), (messages, vec![]), "{packets:?}");
    }
    let bad: [&[(Position, u32, u16)]; 14] = [
        &[(First, THREE, 0), (Middle, THREE, M), (Last, THREE, M)],
        &[(First, THREE, M), (Middle, THREE, 0), (Last, THREE, M)],
        &[(First, THREE, M), (Middle, THREE, M - 4), (Last, THREE, M)],
        &[(First, THREE, M), (Middle, THREE, M), (Last, THREE, M - 1)],
        &[(First, THREE, M), (Middle, THREE, M), (Last, THREE, 0)],
        // Too few packets for the DMA length, and too many.
        &[(First, THREE, M), (Last, THREE, M)],
        &[(First, TWO, M), (Middle, TWO, M), (Last, TWO, M)],
        &[(First, 1 << 31, M), (Last, 1 << 31, M)],
        // A message without a beginning, and one that begins within another.
        &[(Middle, TWO, M), (Last, TWO, M)],
        &[(First, THREE, M), (Only, 1, 1), (Last, THREE, M)],
        &[(Only, 100, 99)],
        &[(Only, 100, 0)],
        &[(First, M as u32 - 1, M), (Last, M as u32, M)],
        // A peer that gives the packet's length: an end is an end, and what begins inside is refused.
        &[(First, M as u32, M), (First, M as u32, M), (Last, 1, 1)],
    ];
    for packets in bad {
        let (complete, fatal) = deliver(packets);
        assert_eq!(fatal, [Fatal::InvalidRequest], "{packets:?}");
        let whole = packets.iter().take_while(|(position, ..)| *position == Only).count();
        assert!(complete <= whole, "{packets:?}");
    }
}

#[test]
fn data_from_long_ago_is_not_answered() {
    let (mut node, slot, mut notes) = sending(1);
    let number = node.number(slot);
    let expected = FIRST_PSN ^ 0x80_0000;
    let old = |psn| write_of(number, psn, Position::Only, 4, 4, None);
    node.handle(Time(20), slot, &received(old(expected - 1024), 0), 100, &mut notes);
    node.handle_timeout(Time(21), &mut notes);
    let answers = notes.feedback.len();
    assert!(answers > 0, "a duplicate of the last window is answered");
    for back in [1025, 5000, 0x40_0000] {
        node.handle(Time(22), slot, &received(old(expected - back), 0), 100, &mut notes);
        node.handle_timeout(Time(23), &mut notes);
    }
    assert_eq!(notes.feedback.len(), answers);
}
