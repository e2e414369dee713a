//! Messages are given to queue pairs when they are due, and completions come back.

use openmrc_scenario::HostTotals;
use openmrc_transport::node::Slot;
use openmrc_transport::{PostError, SendStatus, Span, Time};

use super::Hosts;
use super::endpoints::{NewQueuePair, Role};
use super::posts::{End, PathMtu, Posts};
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
        if self.skipper.is_none() {
            return self.post(index, clock, fabric, stats);
        }
        let here = self.common.posts.ends(number).src;
        for send in self.ask_skipper(here, clock, |skipper, now, orders| skipper.due(index, now, orders)) {
            self.send_rest(send, clock, fabric, stats);
        }
    }

    /// A message, or what is left of it, goes to its connection's queue pair.
    pub(super) fn post(
        &mut self,
        index: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let number = self.common.posts.messages[index as usize].connection;
        let host = self.common.posts.ends(number).src;
        if !self.open(number, clock, fabric, stats) {
            self.common.posts.finish(index, false, clock.now);
            return;
        }
        self.common.posts.connections[number as usize].waiting.push(index);
        self.post_waiting(number, clock, &mut stats.totals.hosts);
        let (source, mut environment) = self.at(host, 0, clock, fabric, stats);
        source.offer(&mut environment);
        self.settle(host, clock, fabric, stats);
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
            self.ask_skipper(number, clock, |skipper, now, orders| skipper.delivered(index, now, orders));
            let connection = self.common.posts.messages[index as usize].connection;
            if self.common.lives.arrived(connection) {
                self.common.completions.ended.push(End::responder(connection));
            }
        }
        while let Some((connection, mtu)) = self.common.completions.proven.pop() {
            self.common.posts.connections[connection as usize].mtu = mtu;
            self.post_waiting(connection, clock, &mut stats.totals.hosts);
        }
        let mut done = std::mem::take(&mut self.common.completions.done);
        for completion in done.drain(..) {
            let success = completion.status == SendStatus::Success;
            let index = completion.handle as u32;
            self.ask_skipper(number, clock, |skipper, now, orders| {
                skipper.completed(index, success, now, orders);
            });
            self.finish(completion.handle as u32, success, clock, &mut stats.totals.hosts);
        }
        self.common.completions.done = done;
        while let Some(end) = self.common.completions.ended.pop() {
            self.retire(end, number, clock, fabric, stats);
        }
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.offer(&mut environment);
    }

    /// Opens a connection if it is closed: makes the requestor's queue pair, which proves its path MTU if it is to.
    /// Returns false if its host has no slot left.
    fn open(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) -> bool {
        let end = End::requestor(number);
        if self.common.posts.slot(end).is_some() {
            return true;
        }
        let connection = &self.common.posts.connections[number as usize];
        let (ends, role) = (connection.ends, Role::Requestor(connection.left));
        let now = Time(clock.now);
        let Some(slot) = self.make_queue_pair(now, end, (ends.src, ends.dst), role) else { return false };
        if self.common.lives.config.prove_mtu {
            self.common.posts.connections[number as usize].mtu = PathMtu::InProof;
            let (host, mut environment) = self.at(ends.src, 0, clock, fabric, stats);
            host.node.prove_mtu(now, slot, &mut environment);
        }
        true
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
        if let Some(receives) = self.common.lives.config.receives {
            node.set_receive_wait(slot, receives.longest_wait.unwrap_or(Span(u64::MAX)));
        }
        self.common.posts.opened(end, slot);
        Some(slot)
    }

    /// Posts the messages that a connection's send queue has room for.
    fn post_waiting(&mut self, number: u32, clock: &mut Clock, totals: &mut HostTotals) {
        let now = clock.now;
        let Some(requestor) = self.common.posts.slot(End::requestor(number)) else { return };
        let needs_receive = self.common.lives.config.receives.is_some();
        let Posts { connections, messages, .. } = &mut self.common.posts;
        let connection = &mut connections[number as usize];
        let node = &mut self.hosts[connection.ends.src].node;
        let mut posted = 0;
        if connection.mtu == PathMtu::InProof {
            return;
        }
        let mut refused = connection.mtu == PathMtu::Refused;
        for &index in connection.waiting.iter().take_while(|_| !refused) {
            let request = messages[index as usize].work_request(index, needs_receive);
            match node.post_send(Time(now), requestor, request) {
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
    pub(super) fn finish(&mut self, index: u32, success: bool, clock: &mut Clock, totals: &mut HostTotals) {
        let number = self.common.posts.finish(index, success, clock.now);
        let connection = &mut self.common.posts.connections[number as usize];
        if connection.left > 0 {
            if !connection.waiting.is_empty() {
                self.post_waiting(number, clock, totals);
            }
            return;
        }
        let ends = connection.ends;
        if self.common.lives.config.linger {
            self.common.completions.ended.push(End::requestor(number));
        } else {
            self.close(End::requestor(number), ends.src, totals);
        }
        clock.push_at_host(clock.now + clock.lookahead(), Kind::Close, number, ends.dst);
    }

    /// The requestor of a connection has closed it: so does the responder, unless it has already.
    pub fn close_responder(
        &mut self,
        connection: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let (end, host) = (End::responder(connection), self.common.posts.ends(connection).dst);
        if self.common.lives.config.linger {
            self.retire(end, host, clock, fabric, stats);
            self.settle(host, clock, fabric, stats);
        } else {
            self.close(end, host, &mut stats.totals.hosts);
        }
    }

    /// The queue pair of an end at a host is destroyed, and answers its peer for a while. One that is in ERROR has
    /// nothing to say.
    fn retire(
        &mut self,
        end: End,
        number: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        if self.common.lives.lingers(end) {
            return;
        }
        let slot = self.common.posts.slot(end);
        let qp = slot.and_then(|slot| self.hosts[number].node.qp(slot));
        let (Some(slot), Some(qp)) = (slot, qp.filter(|qp| qp.can_linger())) else {
            return self.close(end, number, &mut stats.totals.hosts);
        };
        qp.add_up(&mut stats.totals.hosts);
        self.common.lives.begin_lingering(end, number, &mut stats.life);
        let linger = self.common.endpoints.linger;
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.node.retire(environment.now(), slot, linger, &mut environment);
    }

    /// The receiver of a connection posts a receive, for which a message may wait.
    pub fn post_receive(
        &mut self,
        connection: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let is_awaited = self.common.lives.post_receive(connection);
        let Some(slot) = self.common.posts.slot(End::responder(connection)).filter(|_| is_awaited) else {
            return;
        };
        let number = self.common.posts.ends(connection).dst;
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.node.receives_posted(environment.now(), slot, &mut environment);
        host.offer(&mut environment);
        self.settle(number, clock, fabric, stats);
    }

    /// Closes an end of a connection and adds up the counters of its queue pair.
    fn close(&mut self, end: End, host: u32, totals: &mut HostTotals) {
        let Some(slot) = self.common.posts.close(end) else { return };
        if let Some(qp) = self.hosts[host].node.release(slot) {
            qp.add_up(totals);
        }
    }
}
