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
