//! From posted sends to packets: what applications have posted goes to the node, and what the node sends to the egress.

use std::collections::VecDeque;

use openmrc_transport::node::{NodeTransmit, Slot};
use openmrc_transport::{Fatal, Time};

use super::Engine;
use super::verbs::pieces;
use crate::completion::Status;
use crate::shared::Shared;
use crate::work_request::Wqe;

/// Runs in a turn before looking for packets that have come in.
const RUNS_PER_TURN: usize = 8;

/// Sends on their way to the node.
#[derive(Default)]
pub(super) struct Posting {
    /// Room for the list of queue pairs with newly posted sends.
    submitted: Vec<Slot>,
    /// Room for the sends being taken from a queue pair.
    taken: VecDeque<Wqe>,
    /// Whoever wants to send waits for a port that can take a packet.
    pub blocked: bool,
}

impl Engine {
    /// Gives newly posted sends to the node. Returns the time if there were any.
    #[inline]
    pub(super) fn take_submissions(&mut self, shared: &Shared) -> Option<Time> {
        if !shared.any_submitted() {
            return None;
        }
        let mut list = std::mem::take(&mut self.posting.submitted);
        shared.take_submissions(&mut list);
        let now = crate::sys::now();
        for slot in list.drain(..) {
            self.take_pending(shared, now, slot);
        }
        self.posting.submitted = list;
        Some(now)
    }

    fn take_pending(&mut self, shared: &Shared, now: Time, slot: Slot) {
        let Engine { node, verbs, posting, .. } = self;
        let failed = verbs
            .post_pending(slot, &mut posting.taken, |request| node.post_send(now, slot, request).is_ok());
        if failed {
            self.with_node(shared, now, |node, host| node.abort(now, slot, Fatal::Local, host));
        }
        // After the call above: a later post notifies the engine again.
        if self.verbs.take_awaited_receive(slot) {
            self.with_node(shared, now, |node, host| node.receives_posted(now, slot, host));
            self.egress.send_waiting(now);
        }
    }

    /// Sends data of the ready queue pairs, round robin; returns whether there was any.
    pub(super) fn transmit(&mut self, shared: &Shared, now: Time) -> bool {
        let free = self.egress.net.free_ports();
        let mut sent = 0;
        self.posting.blocked = false;
        while sent < RUNS_PER_TURN * usize::from(self.config.sockets.burst) {
            let next = self.with_node(shared, now, |node, host| node.poll_transmit(now, free, host));
            let Some(next) = next else {
                self.posting.blocked = true;
                break;
            };
            sent += 1;
            if !self.push_data(&next, now) {
                // Deregistered under way.
                if let Some(io) = self.verbs.get_mut(next.qp.slot) {
                    io.local_error = next.transmit.payload.map(|p| (p.handle, Status::LocProtErr));
                }
                self.with_node(shared, now, |node, host| {
                    node.abort(now, next.qp.slot, Fatal::Local, host);
                });
            }
            if next.ends_turn {
                self.ingress.saw_bulk();
            }
        }
        self.egress.flush(now);
        self.packets += sent as u64;
        sent > 0
    }

    /// Hands a data packet to the egress; `false` if its memory is no longer registered.
    #[inline]
    fn push_data(&mut self, next: &NodeTransmit, now: Time) -> bool {
        let NodeTransmit { qp, transmit, .. } = next;
        let Engine { verbs, egress, .. } = self;
        let Some(io) = verbs.get(qp.slot) else { return true };
        let Some(link) = &io.link else { return true };
        let path = link.paths.numbers[usize::from(transmit.path)];
        let len = u32::from(transmit.packet.payload_len);
        let data = match transmit.payload {
            // SAFETY: what was added to the egress is sent before this turn ends, all under the engine's lock.
            Some(p) => unsafe { pieces(&verbs.memory, io.pd, io.sends.get(p.handle), p.offset, len) },
            None => Some(Default::default()),
        };
        let Some(data) = data else { return false };
        egress.push(qp.peer, path, &transmit.packet, transmit.class, &data, now);
        true
    }
}
