//! Messages are given to queue pairs when they are due, and completions come back.

use openmrc_scenario::HostTotals;
use openmrc_transport::node::Slot;
use openmrc_transport::{PostError, SendStatus, Time};

use super::Hosts;
use super::endpoints::{NewQueuePair, Role};
use super::posts::{End, Posts};
use crate::clock::Clock;
use crate::event::Kind;
use crate::fabric::FabricState;
use crate::stats::Stats;

impl Hosts {
    /// A message is due.
    pub fn post_due(&mut self, index: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let message = &mut self.common.posts.messages[index as usize];
        let number = message.connection;
        if message.is_computation() {
            self.common.posts.finish_computation(index, clock);
            return;
        }
        message.posted = clock.now;
        let host = self.common.posts.ends(number).src;
        if !self.open(number, Time(clock.now)) {
            self.common.posts.finish(index, false, clock.now);
            return;
        }
        self.common.posts.connections[number as usize].waiting.push(index);
        self.post_waiting(number, clock, &mut stats.totals.hosts);
        let (source, mut environment) = self.at(host, 0, clock, fabric, stats);
        source.offer(&mut environment);
        source.arm_timer(host, environment.clock);
    }

    /// Messages that have arrived release those that waited for them; completed ones leave their connection.
    #[inline(never)]
    pub(super) fn drain_completions(
        &mut self,
        number: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        while let Some(index) = self.common.completions.delivered.pop() {
            self.common.posts.release(index, clock);
        }
        let mut done = std::mem::take(&mut self.common.completions.done);
        for completion in done.drain(..) {
            let success = completion.status == SendStatus::Success;
            self.finish(completion.handle as u32, success, clock, &mut stats.totals.hosts);
        }
        self.common.completions.done = done;
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.offer(&mut environment);
    }

    /// Opens a connection if it is closed: makes the requestor's queue pair. Returns false if its host has no slot
    /// left.
    fn open(&mut self, number: u32, now: Time) -> bool {
        let end = End::requestor(number);
        if self.common.posts.slot(end).is_some() {
            return true;
        }
        let connection = &self.common.posts.connections[number as usize];
        let (ends, role) = (connection.ends, Role::Requestor(connection.left));
        self.make_queue_pair(now, end, (ends.src, ends.dst), role).is_some()
    }

    /// Makes the responder's queue pair when its first packet comes. Returns its slot; `None` if its host has none
    /// left, or if the connection has been closed.
    #[cold]
    pub(super) fn make_responder(&mut self, end: End, now: Time) -> Option<Slot> {
        if !end.is_responder() || !self.common.posts.is_not_made(end) {
            return None;
        }
        let ends = self.common.posts.ends(end.connection());
        self.make_queue_pair(now, end, (ends.dst, ends.src), Role::Responder)
    }

    /// Makes the queue pair of an end, whose host is `here`.
    fn make_queue_pair(
        &mut self,
        now: Time,
        end: End,
        (here, there): (u32, u32),
        role: Role,
    ) -> Option<Slot> {
        let node = &mut self.hosts[here].node;
        let slot = node.reserve(end.0).ok()?;
        let numbers = (end.number(), End(end.0 ^ 1).number());
        let new = NewQueuePair { numbers, hosts: (here, there), role, salt: end.0.into() };
        let qp = self.common.endpoints.make(now, &new);
        node.connect(now, slot, there, self.common.endpoints.node.ports, qp);
        self.common.posts.opened(end, slot);
        Some(slot)
    }

    /// Posts the messages that a connection's send queue has room for.
    fn post_waiting(&mut self, number: u32, clock: &mut Clock, totals: &mut HostTotals) {
        let now = clock.now;
        let Some(requestor) = self.common.posts.slot(End::requestor(number)) else { return };
        let Posts { connections, messages, .. } = &mut self.common.posts;
        let connection = &mut connections[number as usize];
        let node = &mut self.hosts[connection.ends.src].node;
        let mut posted = 0;
        let mut refused = false;
        for &index in &connection.waiting {
            match node.post_send(Time(now), requestor, messages[index as usize].work_request(index)) {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull(_)) => break,
                Err(_) => {
                    refused = true;
                    break;
                }
            }
        }
        if refused {
            for index in std::mem::take(&mut connection.waiting).split_off(posted) {
                self.finish(index, false, clock, totals);
            }
        } else {
            connection.waiting.drain(..posted);
        }
    }

    /// A message completes or fails. Its connection posts the next ones, or closes after its last: the responder's host
    /// closes its end no sooner than a packet could tell it.
    fn finish(&mut self, index: u32, success: bool, clock: &mut Clock, totals: &mut HostTotals) {
        let number = self.common.posts.finish(index, success, clock.now);
        let connection = &mut self.common.posts.connections[number as usize];
        if connection.left > 0 {
            if !connection.waiting.is_empty() {
                self.post_waiting(number, clock, totals);
            }
            return;
        }
        let ends = connection.ends;
        self.close(End::requestor(number), ends.src, totals);
        clock.push_at_host(clock.now + clock.lookahead(), Kind::Close, number, ends.dst);
    }

    /// The requestor of a connection has closed it: so does the responder.
    pub fn close_responder(&mut self, connection: u32, totals: &mut HostTotals) {
        let host = self.common.posts.ends(connection).dst;
        self.close(End::responder(connection), host, totals);
    }

    /// Closes an end of a connection and adds up the counters of its queue pair.
    fn close(&mut self, end: End, host: u32, totals: &mut HostTotals) {
        let Some(slot) = self.common.posts.close(end) else { return };
        if let Some(qp) = self.hosts[host].node.release(slot) {
            qp.add_up(totals);
        }
    }
}
