//! Messages: when they are posted, what waits for them, and when their connection can close.

use openmrc_transport::{PostError, SendStatus, Time, Transport, WorkRequest};

use crate::event::Kind;
use crate::memory::address_of;
use crate::queue_pair::QueuePairs;
use crate::results::MessageResult;
use crate::workload::{Connection, Workload};
use crate::world::World;

/// A message as it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageState {
    pub connection: u32,
    pub bytes: u32,
    /// Bytes in place at the responder.
    pub placed: u32,
    /// Messages it waits for.
    pub waits_for: u32,
    /// When it may be posted; then, when it was.
    pub posted: u64,
    pub delivered: u64,
    pub completed: u64,
    pub failed: bool,
}

struct ConnectionState {
    ends: Connection,
    /// Messages not finished.
    left: u32,
    /// Its requestor's slot, while it is open.
    slot: u32,
    /// Due, but its send queue was full.
    waiting: Vec<u32>,
}

const CLOSED: u32 = u32::MAX;

/// All messages and connections.
pub(crate) struct Posts {
    pub messages: Vec<MessageState>,
    connections: Vec<ConnectionState>,
    /// Messages that wait for message `i`: `waiting[first[i] .. first[i + 1]]`.
    first: Vec<u32>,
    waiting: Vec<u32>,
    /// How long computations take, by message, picoseconds; empty where nothing is computed.
    takes: Vec<u64>,
    pub finished: usize,
}

impl Posts {
    pub fn new(workload: &Workload) -> Self {
        let mut connections: Vec<_> = workload
            .connections
            .iter()
            .map(|&ends| ConnectionState { ends, left: 0, slot: CLOSED, waiting: Vec::new() })
            .collect();
        let mut messages: Vec<_> = workload
            .messages
            .iter()
            .map(|m| {
                connections[m.connection as usize].left += 1;
                MessageState {
                    connection: m.connection,
                    bytes: m.bytes,
                    placed: 0,
                    waits_for: 0,
                    posted: m.start.0,
                    delivered: u64::MAX,
                    completed: u64::MAX,
                    failed: false,
                }
            })
            .collect();
        // Edges sorted by what is waited for.
        let mut first = vec![0u32; if workload.dependencies.is_empty() { 0 } else { messages.len() + 1 }];
        for &(message, after) in &workload.dependencies {
            messages[message as usize].waits_for += 1;
            first[after as usize + 1] += 1;
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut fill = first.clone();
        let mut waiting = vec![0; workload.dependencies.len()];
        for &(message, after) in &workload.dependencies {
            waiting[fill[after as usize] as usize] = message;
            fill[after as usize] += 1;
        }
        let computes = workload.messages.iter().any(|m| m.bytes == 0);
        let takes = if computes { workload.messages.iter().map(|m| m.takes.0).collect() } else { Vec::new() };
        Posts { messages, connections, first, waiting, takes, finished: 0 }
    }

    /// The hosts at the ends of a connection.
    pub fn ends(&self, connection: u32) -> Connection {
        self.connections[connection as usize].ends
    }

    /// How long a computation takes; nothing for a message.
    fn takes(&self, message: u32) -> u64 {
        self.takes.get(message as usize).copied().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The host that a message is sent from.
    pub fn source(&self, message: u32) -> u32 {
        self.connections[self.messages[message as usize].connection as usize].ends.src
    }

    pub fn all_finished(&self) -> bool {
        self.finished == self.messages.len()
    }

    pub fn results(&self) -> Vec<MessageResult> {
        self.messages
            .iter()
            .map(|m| MessageResult {
                posted: Time(m.posted),
                delivered: Time(m.delivered),
                completed: Time(m.completed),
                failed: m.failed,
            })
            .collect()
    }
}

impl World {
    /// Every message that waits for nothing has its event.
    pub(crate) fn schedule_posts(&mut self) {
        for index in 0..self.posts.len() as u32 {
            let MessageState { waits_for, posted, .. } = self.posts.messages[index as usize];
            if waits_for == 0 {
                let due = posted + self.posts.takes(index);
                self.clock.push_at_host(due, Kind::Post, index, self.posts.source(index));
            }
        }
    }

    /// A message is due.
    pub(crate) fn post_due(&mut self, index: u32) {
        let number = self.posts.messages[index as usize].connection;
        if self.posts.messages[index as usize].bytes == 0 {
            self.computed(index);
            return;
        }
        self.posts.messages[index as usize].posted = self.clock.now;
        let connection = &mut self.posts.connections[number as usize];
        if connection.slot == CLOSED {
            let Connection { src, dst } = connection.ends;
            let up = (self.nics[src as usize].up, self.nics[dst as usize].up);
            connection.slot = self.qps.open(number, src, dst);
            let (local, remote) =
                (QueuePairs::number(connection.slot), QueuePairs::number(connection.slot + 1));
            let engine = self.endpoints.make(
                Time(self.clock.now),
                connection.left,
                (local, remote),
                (src, dst),
                u64::from(number) << 1,
                up,
            );
            if let Some(qp) = self.qps.get_mut(connection.slot) {
                qp.engine = Some(engine);
            }
        }
        let slot = connection.slot;
        connection.waiting.push(index);
        self.post_waiting(number);
        self.arm(slot);
        self.offer(slot);
    }

    /// A computation is done.
    fn computed(&mut self, index: u32) {
        let takes = self.posts.takes(index);
        let message = &mut self.posts.messages[index as usize];
        message.posted = self.clock.now - takes;
        message.delivered = self.clock.now;
        message.completed = self.clock.now;
        self.posts.finished += 1;
        self.release(index);
    }

    /// Posts what a connection's send queue has room for.
    fn post_waiting(&mut self, number: u32) {
        let connection = &mut self.posts.connections[number as usize];
        let Some(engine) = self.qps.get_mut(connection.slot).and_then(|qp| qp.engine.as_mut()) else {
            return;
        };
        let mut posted = 0;
        let mut refused = false;
        for &index in &connection.waiting {
            let wr = WorkRequest {
                handle: u64::from(index),
                len: self.posts.messages[index as usize].bytes,
                remote_va: address_of(index),
                rkey: 1,
                imm: None,
                solicited: false,
            };
            match engine.post_send(Time(self.clock.now), wr) {
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
                self.finish(index, false);
            }
        } else {
            connection.waiting.drain(..posted);
        }
    }

    /// Messages that have arrived, and completions: whatever they set free goes its way.
    pub(crate) fn news(&mut self) {
        while let Some(index) = self.outbox.delivered.pop() {
            self.release(index);
        }
        let mut done = std::mem::take(&mut self.outbox.done);
        for completion in done.drain(..) {
            self.finish(completion.handle as u32, completion.status == SendStatus::Success);
        }
        self.outbox.done = done;
    }

    /// Messages that waited for this one alone are due.
    fn release(&mut self, index: u32) {
        if self.posts.first.is_empty() {
            return;
        }
        let here = self.posts.connections[self.posts.messages[index as usize].connection as usize].ends.dst;
        let (from, to) = (self.posts.first[index as usize], self.posts.first[index as usize + 1]);
        for i in from..to {
            let waiter = self.posts.waiting[i as usize];
            let message = &mut self.posts.messages[waiter as usize];
            message.waits_for -= 1;
            if message.waits_for == 0 {
                // News from another host is no faster than a packet could be.
                let source = self.posts.source(waiter);
                let now =
                    if source == here { self.clock.now } else { self.clock.now + self.clock.lookahead() };
                let due = self.posts.messages[waiter as usize].posted.max(now) + self.posts.takes(waiter);
                self.clock.push_at_host(due, Kind::Post, waiter, source);
            }
        }
    }

    fn finish(&mut self, index: u32, success: bool) {
        let message = &mut self.posts.messages[index as usize];
        message.failed = !success;
        if success {
            message.completed = self.clock.now;
        }
        self.posts.finished += 1;
        let number = message.connection;
        let connection = &mut self.posts.connections[number as usize];
        connection.left -= 1;
        let slot = connection.slot;
        if connection.left > 0 {
            if !connection.waiting.is_empty() {
                self.post_waiting(number);
                self.offer(slot);
            }
            return;
        }
        connection.slot = CLOSED;
        if let Some(qp) = self.qps.get_mut(slot)
            && std::mem::take(&mut qp.in_ring)
        {
            let host = qp.host as usize;
            self.nics[host].ring.retain(|&s| s != slot);
        }
        self.qps.close(slot, &mut self.stats.totals.hosts);
    }
}
