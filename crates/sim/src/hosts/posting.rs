//! Messages are given to queue pairs when they are due, and completions come back.

use openmrc_transport::node::Place;
use openmrc_transport::{PostError, SendStatus, Time};

use super::Hosts;
use super::endpoints::{NewQueuePair, Role};
use super::posts::{ConnectionState, Places, Posts};
use crate::clock::Clock;
use crate::fabric::FabricState;
use crate::results::HostTotals;
use crate::stats::Stats;

impl Hosts {
    /// A message is due.
    pub fn post_due(&mut self, index: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let message = &mut self.common.posts.messages[index as usize];
        let number = message.connection;
        if message.bytes == 0 {
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
        self.post_waiting(number, clock.now, &mut stats.totals.hosts);
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
            self.finish(completion.handle as u32, success, clock.now, &mut stats.totals.hosts);
        }
        self.common.completions.done = done;
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.offer(&mut environment);
    }

    /// Opens a connection if it is closed: takes a place at both hosts, and makes the requestor's queue pair. Returns
    /// false if a host has no place left.
    fn open(&mut self, number: u32, now: Time) -> bool {
        let connection = &mut self.common.posts.connections[number as usize];
        if connection.places.is_some() {
            return true;
        }
        let (src, dst) = (connection.ends.src, connection.ends.dst);
        let Ok(requestor) = self.hosts[src as usize].node.reserve(number) else { return false };
        let Ok(responder) = self.hosts[dst as usize].node.reserve(number) else {
            self.hosts[src as usize].node.release(requestor);
            return false;
        };
        connection.places = Some(Places { requestor, responder });
        let messages = connection.left;
        let remote = self.hosts[dst as usize].node.number(responder);
        let salt = u64::from(number) << 1;
        self.connect(now, (src, requestor), (dst, remote), Role::Requestor(messages), salt);
        true
    }

    /// Makes the responder's queue pair with this number at a host.
    #[cold]
    pub(super) fn make_responder(&mut self, host: u32, number: u32, now: Time) {
        let node = &self.hosts[host as usize].node;
        let responder = node.find(number).and_then(|place| Some((place, node.context(place)?)));
        let Some((place, connection)) = responder else { unreachable!("the number was found before") };
        let ConnectionState { ends, places, .. } = &self.common.posts.connections[connection as usize];
        let Some(places) = places else { unreachable!("places are given back when a connection closes") };
        let remote = self.hosts[ends.src as usize].node.number(places.requestor);
        let (src, salt) = (ends.src, u64::from(connection) << 1 | 1);
        self.connect(now, (host, place), (src, remote), Role::Responder, salt);
    }

    /// Makes a queue pair at (host, place) that is connected to (host, number).
    fn connect(
        &mut self,
        now: Time,
        (here, place): (u32, Place),
        (there, remote): (u32, u32),
        role: Role,
        salt: u64,
    ) {
        let node = &mut self.hosts[here as usize].node;
        let local = node.number(place);
        let new = NewQueuePair { numbers: (local, remote), hosts: (here, there), role, salt };
        let qp = self.common.endpoints.make(now, &new);
        node.connect(now, place, there, self.common.endpoints.node.ports, qp);
    }

    /// Posts the messages that a connection's send queue has room for.
    fn post_waiting(&mut self, number: u32, now: u64, totals: &mut HostTotals) {
        let Posts { connections, messages, .. } = &mut self.common.posts;
        let connection = &mut connections[number as usize];
        let Some(Places { requestor, .. }) = connection.places else { return };
        let node = &mut self.hosts[connection.ends.src as usize].node;
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
                self.finish(index, false, now, totals);
            }
        } else {
            connection.waiting.drain(..posted);
        }
    }

    /// A message completes or fails. Its connection posts the next ones, or closes after its last.
    fn finish(&mut self, index: u32, success: bool, now: u64, totals: &mut HostTotals) {
        let number = self.common.posts.finish(index, success, now);
        let connection = &mut self.common.posts.connections[number as usize];
        if connection.left > 0 {
            if !connection.waiting.is_empty() {
                self.post_waiting(number, now, totals);
            }
            return;
        }
        let Some(Places { requestor, responder }) = connection.places.take() else { return };
        let (src, dst) = (connection.ends.src, connection.ends.dst);
        for (host, place) in [(src, requestor), (dst, responder)] {
            if let Some(qp) = self.hosts[host as usize].node.release(place) {
                qp.add_up(totals);
            }
        }
    }
}
