//! What nodes, not queue pairs, say to each other on QP 0x2: port status updates and EV probes
//! (spec: transport, "Probes and port status"). Sans-IO like the queue pair.

use openmrc_wire::{Body, Eeth, EndpointOp, Erth, Ev, Packet, Psn, Timestamp};

use crate::api::{PortSet, Received, TrafficClass};
use crate::profile::PathId;
use crate::random::mix;
use crate::time::{Span, Time};

/// The reserved queue pair number of endpoint requests and responses.
pub const ENDPOINT_QP: u32 = 2;

/// The driver's number for a peer node.
pub type PeerId = u32;

/// A port status update that is not answered is repeated so often, doubling its interval to at most a second, and then
/// again every second: a peer that is down will ask nothing of us, one that comes back must know.
const LONGEST_REPEAT: Span = Span::from_secs(1);

/// Which way an endpoint packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Back where the request came from: its entropy value and port.
    Reply {
        /// Entropy value of the request.
        ev: Ev,
        /// Port it came in on.
        port: u8,
    },
    /// On this path.
    Path {
        /// Entropy value.
        ev: Ev,
        /// Its number in the profile.
        path: PathId,
        /// Its port.
        port: u8,
    },
    /// On any path of this port.
    Port(u8),
}

/// An EV probe was not answered in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no answer within the timeout")]
pub struct ProbeTimeout;

/// What an endpoint asks of its driver.
pub trait EndpointHost {
    /// Send a packet to a peer.
    fn transmit(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass);
    /// The peer says which of its ports are up.
    fn peer_ports(&mut self, peer: PeerId, up: PortSet);
    /// An EV probe was answered after this round-trip time, or not.
    fn probe_done(&mut self, peer: PeerId, id: u16, result: Result<Span, ProbeTimeout>);
}

#[derive(Clone, Copy)]
struct Update {
    id: u16,
    due: Time,
    interval: Span,
    turn: u8,
}

struct Peer {
    id: PeerId,
    /// The status update it has not answered yet.
    update: Option<Update>,
    /// Request id of the latest update it has sent, to tell old news from new.
    last_update_in: Option<u16>,
}

struct Outstanding {
    id: u16,
    peer: PeerId,
    sent: Time,
    deadline: Time,
}

/// A node's end of endpoint requests.
pub struct Endpoint {
    ports: PortSet,
    all_ports: PortSet,
    rtt: Span,
    peers: Vec<Peer>,
    probes: Vec<Outstanding>,
    next_id: u16,
}

impl Endpoint {
    /// Most EV probes that can be outstanding.
    pub const MAX_PROBES: usize = 4096;

    /// An endpoint whose ports are all up. The seed starts its request ids.
    pub fn new(ports: PortSet, seed: u64) -> Self {
        Endpoint {
            ports,
            all_ports: ports,
            rtt: Span::from_millis(1),
            peers: Vec::new(),
            probes: Vec::new(),
            next_id: mix(seed) as u16,
        }
    }

    /// Port status updates go to this peer too from now on; if some port is down now, it is told at once.
    pub fn add_peer(&mut self, now: Time, peer: PeerId) {
        if self.peers.iter().all(|p| p.id != peer) {
            self.peers.push(Peer { id: peer, update: None, last_update_in: None });
            if self.ports != self.all_ports {
                self.announce(now, self.peers.len() - 1);
            }
        }
    }

    /// The peer is gone.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.peers.retain(|p| p.id != peer);
        self.probes.retain(|p| p.peer != peer);
    }

    /// Ports that are up now. Peers are told on the ones that are left, every `rtt` until they answer.
    pub fn set_local_ports(&mut self, now: Time, up: PortSet, rtt: Span) {
        if up == self.ports {
            return;
        }
        self.ports = up;
        self.rtt = rtt.max(Span::from_micros(1));
        for i in 0..self.peers.len() {
            self.announce(now, i);
        }
    }

    fn announce(&mut self, now: Time, peer: usize) {
        let id = self.take_id();
        self.peers[peer].update = Some(Update { id, due: now, interval: self.rtt, turn: 0 });
    }

    fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Asks whether a path to a peer is alive. Gives the request's id; `None` if too many are outstanding.
    pub fn probe(
        &mut self,
        now: Time,
        peer: PeerId,
        (ev, path, port): (Ev, PathId, u8),
        timeout: Span,
        host: &mut dyn EndpointHost,
    ) -> Option<u16> {
        if self.probes.len() >= Self::MAX_PROBES {
            return None;
        }
        let mut id = self.take_id();
        while self.probes.iter().any(|p| p.id == id) {
            id = self.take_id();
        }
        self.probes.push(Outstanding { id, peer, sent: now, deadline: now + timeout });
        let request = self.request(now, id, EndpointOp::EvProbe);
        host.transmit(peer, Route::Path { ev, path, port }, request, TrafficClass::Data);
        Some(id)
    }

    fn request(&self, now: Time, id: u16, op: EndpointOp) -> Packet {
        let timestamp = Timestamp { ticks: now.wire_ticks(), service_time: false };
        let mask = u32::from(self.ports.0);
        let erth = Erth { op, vendor_info: 0, port_status_mask: mask, timestamp };
        Packet::new(ENDPOINT_QP, Psn::new(u32::from(id)), Body::EndpointRequest(erth))
    }

    /// A packet for QP 0x2 from a known peer. Anything else is ignored; says whether it meant something.
    pub fn handle_packet(
        &mut self,
        now: Time,
        peer: PeerId,
        received: &Received,
        host: &mut dyn EndpointHost,
    ) -> bool {
        let id = received.packet.psn.get() as u16;
        match &received.packet.body {
            Body::EndpointRequest(request) => {
                let Some(known) = self.peers.iter_mut().find(|p| p.id == peer) else { return false };
                let eeth = Eeth { op: request.op, timestamp: request.timestamp.ticks };
                let response = Packet::new(ENDPOINT_QP, received.packet.psn, Body::EndpointResponse(eeth));
                let back = Route::Reply { ev: received.ev, port: received.port };
                host.transmit(peer, back, response, TrafficClass::Control);
                let is_news = known.last_update_in.is_none_or(|last| (id.wrapping_sub(last) as i16) > 0);
                if request.op == EndpointOp::PortStatusUpdate && is_news {
                    known.last_update_in = Some(id);
                    host.peer_ports(peer, PortSet(request.port_status_mask as u16));
                }
                true
            }
            Body::EndpointResponse(response) => match response.op {
                EndpointOp::PortStatusUpdate => {
                    let known = self.peers.iter_mut().find(|p| p.id == peer);
                    let Some(known) = known.filter(|p| p.update.is_some_and(|u| u.id == id)) else {
                        return false;
                    };
                    known.update = None;
                    true
                }
                EndpointOp::EvProbe => {
                    let Some(i) = self.probes.iter().position(|p| p.id == id && p.peer == peer) else {
                        return false;
                    };
                    let probe = self.probes.swap_remove(i);
                    host.probe_done(peer, id, Ok(now.since(probe.sent)));
                    true
                }
            },
            _ => false,
        }
    }

    /// Repeats updates and gives up probes whose time has come.
    pub fn handle_timeout(&mut self, now: Time, host: &mut dyn EndpointHost) {
        let ports: Vec<u8> = self.ports.and(self.all_ports).iter().collect();
        for i in 0..self.peers.len() {
            let Some(update) = self.peers[i].update.filter(|u| now >= u.due) else { continue };
            let next = Update {
                due: now + update.interval,
                interval: update.interval.times(2).min(LONGEST_REPEAT),
                turn: update.turn.wrapping_add(1),
                ..update
            };
            self.peers[i].update = Some(next);
            if !ports.is_empty() {
                let port = ports[usize::from(update.turn) % ports.len()];
                let request = self.request(now, update.id, EndpointOp::PortStatusUpdate);
                host.transmit(self.peers[i].id, Route::Port(port), request, TrafficClass::Control);
            }
        }
        let mut i = 0;
        while i < self.probes.len() {
            if now >= self.probes[i].deadline {
                let probe = self.probes.swap_remove(i);
                host.probe_done(probe.peer, probe.id, Err(ProbeTimeout));
            } else {
                i += 1;
            }
        }
    }

    /// When [`Endpoint::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Time {
        let updates = self.peers.iter().filter_map(|p| p.update.map(|u| u.due));
        updates.chain(self.probes.iter().map(|p| p.deadline)).min().unwrap_or(Time::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Wire {
        sent: Vec<(PeerId, Route, Packet)>,
        ports: Vec<PortSet>,
        probes: Vec<Result<Span, ProbeTimeout>>,
    }

    impl EndpointHost for Wire {
        fn transmit(&mut self, peer: PeerId, route: Route, packet: Packet, _class: TrafficClass) {
            self.sent.push((peer, route, packet));
        }
        fn peer_ports(&mut self, _peer: PeerId, up: PortSet) {
            self.ports.push(up);
        }
        fn probe_done(&mut self, _peer: PeerId, _id: u16, result: Result<Span, ProbeTimeout>) {
            self.probes.push(result);
        }
    }

    fn received(packet: Packet) -> Received {
        Received { packet, ev: Ev(7), port: 1, ecn_ce: false, trim: None }
    }

    #[test]
    fn a_port_going_down_is_repeated_on_the_others_until_it_is_answered() {
        let (mut a, mut b) = (Endpoint::new(PortSet::first(4), 1), Endpoint::new(PortSet::first(4), 2));
        let (mut wire_a, mut wire_b) = (Wire::default(), Wire::default());
        a.add_peer(Time(0), 0);
        b.add_peer(Time(0), 0);
        assert_eq!(a.poll_timeout(), Time::NEVER);
        a.set_local_ports(Time(0), PortSet::first(4).without(2), Span::from_micros(10));
        for _ in 0..5 {
            let due = a.poll_timeout();
            a.handle_timeout(due, &mut wire_a);
        }
        let ports: Vec<_> = wire_a.sent.iter().map(|(_, route, _)| *route).collect();
        assert_eq!(ports, [Route::Port(0), Route::Port(1), Route::Port(3), Route::Port(0), Route::Port(1)]);
        for (_, _, packet) in &wire_a.sent {
            b.handle_packet(Time(1), 0, &received(*packet), &mut wire_b);
        }
        assert_eq!(wire_b.ports, [PortSet(0b1011)], "the news is told once");
        assert_eq!(wire_b.sent.len(), 5, "and answered every time");
        a.handle_packet(Time(2), 0, &received(wire_b.sent[0].2), &mut wire_a);
        assert_eq!(a.poll_timeout(), Time::NEVER);
    }

    #[test]
    fn an_old_port_status_does_not_undo_a_newer_one() {
        let (mut a, mut b) = (Endpoint::new(PortSet::first(2), 1), Endpoint::new(PortSet::first(2), 2));
        let (mut wire_a, mut wire_b) = (Wire::default(), Wire::default());
        a.add_peer(Time(0), 0);
        b.add_peer(Time(0), 0);
        for up in [PortSet(1), PortSet(3)] {
            a.set_local_ports(Time(0), up, Span::from_micros(10));
            a.handle_timeout(a.poll_timeout(), &mut wire_a);
        }
        for (_, _, packet) in wire_a.sent.iter().rev() {
            b.handle_packet(Time(1), 0, &received(*packet), &mut wire_b);
        }
        assert_eq!(wire_b.ports, [PortSet(3)]);
    }

    #[test]
    fn an_ev_probe_gives_its_round_trip_or_a_timeout() {
        let (mut a, mut b) = (Endpoint::new(PortSet::first(2), 1), Endpoint::new(PortSet::first(2), 2));
        let (mut wire_a, mut wire_b) = (Wire::default(), Wire::default());
        b.add_peer(Time(0), 9);
        let path = (Ev(5), 5, 1);
        a.probe(Time(0), 3, path, Span::from_micros(50), &mut wire_a).unwrap();
        a.probe(Time(0), 3, path, Span::from_micros(50), &mut wire_a).unwrap();
        b.handle_packet(Time(0), 9, &received(wire_a.sent[0].2), &mut wire_b);
        let reply = received(wire_b.sent[0].2);
        assert!(!a.handle_packet(Time(10), 4, &reply, &mut wire_a), "not from the peer that was asked");
        assert!(a.handle_packet(Time(12_000_000), 3, &reply, &mut wire_a));
        assert!(!a.handle_packet(Time(13_000_000), 3, &reply, &mut wire_a));
        a.handle_timeout(a.poll_timeout(), &mut wire_a);
        assert_eq!(wire_a.probes, [Ok(Span::from_micros(12)), Err(ProbeTimeout)]);
    }

    #[test]
    fn a_stranger_is_not_answered() {
        let (mut a, mut b) = (Endpoint::new(PortSet::first(2), 1), Endpoint::new(PortSet::first(2), 2));
        let (mut wire_a, mut wire_b) = (Wire::default(), Wire::default());
        a.probe(Time(0), 0, (Ev(5), 5, 1), Span::from_micros(50), &mut wire_a).unwrap();
        assert!(!b.handle_packet(Time(0), 77, &received(wire_a.sent[0].2), &mut wire_b));
        assert!(wire_b.sent.is_empty());
    }
}
