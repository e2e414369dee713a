//! Endpoint requests on QP 0x2: request ids, outstanding EV probes and port status updates of a controller
//! (docs/spec/transport.md, "Probes and port status").

use openmrc_wire::{Body, ENDPOINT_QP, Eeth, EndpointOp, Erth, Packet, Psn, Timestamp};
use serde::{Deserialize, Serialize};

use super::host::NodeHost;
use super::ids::PeerId;
use super::inquiry::is_reflected;
pub use super::route::{ProbeTimeout, Route};
use super::stats::NodeStats;
use crate::api::TrafficClass;
use crate::random::{Permutation, mix};
use crate::time::{Span, Time};

/// Largest number of outstanding EV probes.
pub const MAX_EV_PROBES: usize = 4096;

/// What a request of a controller asks.
#[derive(Clone, Copy)]
pub(super) enum Question {
    EvProbe,
    /// A port status update with this mask.
    PortStatus(u32),
}

#[derive(Serialize, Deserialize)]
struct EvProbe {
    id: u16,
    peer: PeerId,
    sent: Time,
    deadline: Time,
}

/// Request ids and the outstanding EV probes.
#[derive(Serialize, Deserialize)]
pub(super) struct Requests {
    /// Number of the last request; its id follows from it.
    last: u16,
    order: Option<Permutation>,
    probes: Vec<EvProbe>,
}

impl Requests {
    /// With a key, ids come in an order that nobody can guess; else in ascending order.
    pub fn new(seed: u64, key: Option<u64>) -> Self {
        let order = key.map(|key| Permutation::new(mix(key), u16::BITS));
        Requests { last: mix(seed) as u16, order, probes: Vec::new() }
    }

    /// Returns an id that no outstanding probe has.
    pub fn take_id(&mut self) -> u16 {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = self.order.map_or(self.last, |order| order.apply(self.last.into()) as u16);
            if self.probes.iter().all(|p| p.id != id) {
                return id;
            }
        }
    }

    /// Sends a request whose answer is reported. Returns its id; `None` if too many are outstanding.
    pub fn ask(
        &mut self,
        now: Time,
        (peer, route): (PeerId, Route),
        question: Question,
        timeout: Span,
        host: &mut impl NodeHost,
    ) -> Option<u16> {
        if self.probes.len() >= MAX_EV_PROBES {
            return None;
        }
        let id = self.take_id();
        self.probes.push(EvProbe { id, peer, sent: now, deadline: now + timeout });
        let (op, mask, class) = match question {
            Question::EvProbe => (EndpointOp::EvProbe, 0, TrafficClass::Data),
            Question::PortStatus(mask) => (EndpointOp::PortStatusUpdate, mask, TrafficClass::Control),
        };
        host.transmit_request(peer, route, endpoint_request(now, id, op, mask), class);
        Some(id)
    }

    /// A peer has answered a probe and reflected this timestamp. Returns whether that probe was outstanding.
    pub fn on_answer(
        &mut self,
        now: Time,
        peer: PeerId,
        id: u16,
        ticks: u16,
        host: &mut impl NodeHost,
    ) -> bool {
        let fits = |p: &EvProbe| p.id == id && p.peer == peer && is_reflected(ticks, p.sent, now);
        let Some(index) = self.probes.iter().position(fits) else { return false };
        let probe = self.probes.swap_remove(index);
        host.probe_done(peer, id, Ok(now.since(probe.sent)));
        true
    }

    /// Removes the probes of a peer.
    pub fn forget(&mut self, peer: PeerId) {
        self.probes.retain(|p| p.peer != peer);
    }

    /// When [`Self::expire`] is to be called.
    #[inline]
    pub fn due(&self) -> Time {
        self.probes.iter().map(|p| p.deadline).min().unwrap_or(Time::NEVER)
    }

    /// Removes the probes that have timed out and reports them.
    pub fn expire(&mut self, now: Time, host: &mut impl NodeHost, stats: &mut NodeStats) {
        let mut index = 0;
        while index < self.probes.len() {
            if now >= self.probes[index].deadline {
                let probe = self.probes.swap_remove(index);
                stats.probes_unanswered += 1;
                host.probe_done(probe.peer, probe.id, Err(ProbeTimeout));
            } else {
                index += 1;
            }
        }
    }
}

pub(super) fn endpoint_request(now: Time, id: u16, op: EndpointOp, port_status_mask: u32) -> Packet {
    let timestamp = Timestamp { ticks: now.wire_ticks(), tsr: false };
    let erth = Erth { op, vendor_info: 0, port_status_mask, timestamp };
    Packet::new(ENDPOINT_QP, Psn::new(id.into()), Body::EndpointRequest(erth))
}

pub(super) fn endpoint_response(psn: Psn, request: &Erth) -> Packet {
    let eeth = Eeth { op: request.op, timestamp: request.timestamp.ticks };
    Packet::new(ENDPOINT_QP, psn, Body::EndpointResponse(eeth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::Notes;

    const ROUTE: Route = Route::Port(0);

    /// Three probes: of peers 7, 8 and 7 again, sent at 0, 1 and 2 us, which wait for 30, 20 and 10 us.
    fn asked() -> (Requests, Notes, [u16; 3]) {
        let (mut requests, mut notes) = (Requests::new(3, None), Notes::default());
        let ids = [(7, 0, 30), (8, 1, 20), (7, 2, 10)].map(|(peer, sent, wait)| {
            let (sent, wait) = (micros(sent), Span::from_micros(wait));
            requests.ask(sent, (peer, ROUTE), Question::EvProbe, wait, &mut notes).unwrap()
        });
        (requests, notes, ids)
    }

    fn micros(n: u64) -> Time {
        Time::ZERO + Span::from_micros(n)
    }

    #[test]
    fn an_answer_belongs_to_the_probe_with_its_id() {
        let (mut requests, mut notes, [first, second, third]) = asked();
        let mut answer = |requests: &mut Requests, at, peer, id, sent| {
            requests.on_answer(micros(at), peer, id, micros(sent).wire_ticks(), &mut notes)
        };
        assert!(answer(&mut requests, 6, 7, third, 2));
        assert!(!answer(&mut requests, 6, 7, second, 1), "another peer has this id");
        assert!(!answer(&mut requests, 6, 7, third, 2), "it was answered");
        assert!(answer(&mut requests, 7, 7, first, 0));
        assert!(answer(&mut requests, 9, 8, second, 1));
        let rtt = |micros| Ok(Span::from_micros(micros));
        assert_eq!(notes.probes, [(7, third, rtt(4)), (7, first, rtt(7)), (8, second, rtt(8))]);
        assert_eq!(requests.due(), Time::NEVER);
    }

    #[test]
    fn each_probe_times_out_at_its_own_deadline() {
        let (mut requests, mut notes, [first, second, third]) = asked();
        let mut stats = NodeStats::default();
        let mut missed = Vec::new();
        while requests.due() != Time::NEVER {
            let due = requests.due();
            requests.expire(Time(due.0 - 1), &mut notes, &mut stats);
            assert!(notes.probes.is_empty(), "nothing before its deadline");
            requests.expire(due, &mut notes, &mut stats);
            missed.extend(notes.probes.drain(..).map(|(peer, id, result)| (due, peer, id, result)));
            assert_eq!(stats.probes_unanswered, missed.len() as u64);
        }
        let late = Err(ProbeTimeout);
        let expected =
            [(micros(12), 7, third, late), (micros(21), 8, second, late), (micros(30), 7, first, late)];
        assert_eq!(missed, expected);
    }

    #[test]
    fn of_a_peer_that_is_forgotten_nothing_is_reported() {
        let (mut requests, mut notes, [_, second, _]) = asked();
        let mut stats = NodeStats::default();
        requests.forget(7);
        requests.expire(micros(100), &mut notes, &mut stats);
        assert_eq!(notes.probes, [(8, second, Err(ProbeTimeout))]);
        assert_eq!((requests.due(), stats.probes_unanswered), (Time::NEVER, 1));
    }
}
