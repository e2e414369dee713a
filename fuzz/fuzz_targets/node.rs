//! Arbitrary bytes as what reaches a node: datagrams for its queue pairs and endpoint requests of peers and unknown nodes, of
//! any content, at any time. Nothing panics, no port is given up unless it was silent, and answers and memory are bounded.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig, QueuePair};
use openmrc_transport::node::{
    Node, NodeConfig, NodeHost, PeerId, PressureConfig, QpId, ReceiveQueueEmpty, Route,
};
use openmrc_transport::{
    AccessError, EvProfile, Fatal, PathEntry, PortSet, Received, RecvDone, SendDone, Span, Time,
    TrafficClass, Transmit, Trim, WorkRequest,
};
use openmrc_wire::{Body, ENDPOINT_QP, Ev, Packet, Psn};

const PORTS: PortSet = PortSet::first(4);
const PEERS: PeerId = 3;
const RTT: Span = Span::from_micros(50);

/// Counts what the node asks of its driver.
#[derive(Default)]
struct Host {
    requests: usize,
    feedback: usize,
    asked: Vec<(PeerId, Route, Packet)>,
}

impl NodeHost for Host {
    fn write(&mut self, _qp: QpId, rkey: u32, _va: u64, _len: u32) -> Result<(), AccessError> {
        if rkey.is_multiple_of(2) { Ok(()) } else { Err(AccessError) }
    }
    fn feedback(&mut self, _qp: QpId, _transmit: Transmit) {
        self.feedback += 1;
    }
    fn send_done(&mut self, _qp: QpId, _done: SendDone) {}
    fn recv_done(&mut self, _qp: QpId, _done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        Ok(())
    }
    fn fatal(&mut self, _qp: QpId, _why: Fatal) {}
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, _class: TrafficClass) {
        self.requests += 1;
        if matches!(packet.body, Body::EndpointRequest(_)) && self.asked.len() < 64 {
            self.asked.push((peer, route, packet));
        }
    }
    fn peer_ports(&mut self, _qp: QpId, up: PortSet) {
        assert!(!up.is_empty() && up.and(PORTS) == up);
    }
}

/// The same for all queue pairs and executions: it takes as long to make as some packets to handle.
static PROFILE: LazyLock<Arc<EvProfile>> = LazyLock::new(|| {
    let entries: Vec<_> = (0..16).map(|i| PathEntry { ev: Ev(i), port: i as u8 % 4 }).collect();
    Arc::new(EvProfile::new(&entries).expect("paths"))
});

fn queue_pair(number: u32) -> QueuePair {
    let paths = PathConfig::new(Arc::clone(&PROFILE), PathModel::new(RTT, false));
    let mut config = QpConfig::new(number, 0x1234, paths, Arc::new(CcProfile::FixedWindow(1 << 20)));
    config.path_mtu = 256;
    config.requestor.sq_psn = Psn::new(0xFF_FFF0);
    config.responder.rq_psn = Psn::new(0xFF_FFF0);
    QueuePair::new(Time(1), &config).expect("a queue pair")
}

fuzz_target!(|input: &[u8]| {
    let Some((&[settings], mut input)) = input.split_first_chunk::<1>() else { return };
    let mut config = match settings & 1 {
        0 => NodeConfig::software(PORTS, RTT, 4, PressureConfig::Off),
        _ => NodeConfig::hardware(PORTS, RTT, PressureConfig::Off),
    };
    config.numbers.key = (settings & 2 != 0).then_some(9);
    let mut node = Node::new(&Arc::new(config));
    let mut host = Host::default();
    let mut numbers = Vec::new();
    for peer in 0..PEERS {
        let slot = node.reserve(peer).expect("a slot");
        numbers.push(node.number(slot));
        node.connect(Time(1), slot, peer, PORTS, queue_pair(node.number(slot)));
        let wr = WorkRequest { handle: 0, len: 5000, remote_va: 0, rkey: 2, imm: Some(1), solicited: false };
        node.post_send(Time(1), slot, wr).expect("room");
    }
    let mut now = Time(1000);
    let mut calls = 0;
    // Each step: what is done, how much later, port and peer, number of bytes; then the bytes.
    while let Some((&[what, later, byte, len], rest)) = input.split_first_chunk::<4>() {
        let (bytes, rest) = rest.split_at(rest.len().min(len.into()));
        input = rest;
        now += Span(u64::from(later).pow(3) * 1_000_000);
        let (port, peer) = (byte & 3, PeerId::from(byte >> 2 & 3));
        let trim = (what & 0x80 != 0).then_some(Trim::Fabric);
        let parsed = match trim {
            None => Packet::parse(bytes).map(|(packet, _)| packet),
            Some(_) => Packet::parse_trimmed(bytes),
        };
        let before = (host.requests, host.feedback);
        // The same call does what is due for other peers.
        let involved = if node.poll_timeout() <= now { PEERS as usize } else { 1 };
        match (what & 7, parsed) {
            (0..4, Ok(mut packet)) => {
                if what & 8 != 0 {
                    packet.dest_qp = numbers[peer as usize % numbers.len()];
                }
                let received = Received { packet, ev: Ev(byte.into()), port, ecn_ce: what & 16 != 0, trim };
                if packet.dest_qp == ENDPOINT_QP {
                    node.handle_endpoint(now, peer, &received, &mut host);
                    // An answer; an update, and a question on each port.
                    let sent = host.requests - before.0;
                    assert!(sent <= 1 + involved * 5, "{sent} requests, {involved} peers involved");
                } else if let Some(slot) = node.find(packet.dest_qp) {
                    node.handle(now, slot, &received, bytes.len() as u32, &mut host);
                    assert!(host.feedback - before.1 <= 8, "{} answers", host.feedback - before.1);
                }
            }
            (4, Ok(packet)) => {
                node.answer_unknown(now, byte.into(), &packet);
            }
            // The peer answers a question.
            (5, _) => {
                if let Some((peer, _, packet)) = host.asked.pop()
                    && let Body::EndpointRequest(request) = packet.body
                {
                    let eeth = openmrc_wire::Eeth { op: request.op, timestamp: request.timestamp.ticks };
                    let packet = Packet { body: Body::EndpointResponse(eeth), ..packet };
                    let received = Received { packet, ev: Ev(0), port, ecn_ce: false, trim: None };
                    node.handle_endpoint(now, peer, &received, &mut host);
                }
            }
            (6, _) => node.set_own_ports(now, PortSet(byte.into()).and(PORTS), &mut host),
            _ => {
                while node.poll_transmit(now, PORTS, &mut host).is_some() {}
                calls += 1;
            }
        }
        if node.poll_timeout() <= now {
            node.handle_timeout(now, &mut host);
        }
        for peer in 0..PEERS {
            assert!(!node.peer_ports(peer).is_empty(), "a peer without a port after {calls} calls");
        }
    }
});
