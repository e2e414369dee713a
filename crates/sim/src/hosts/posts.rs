//! Tasks and connections: when computations and messages are due, what waits for them, and when a connection can close.
//! It knows nothing of queue pairs.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

use prefetch_index::prefetch_index;

use openmrc_scenario::Fate;
use openmrc_transport::node::Slot;
use openmrc_transport::{Time, WorkRequest};
use openmrc_workload::{Connection, Dependents, Task, Workload};

use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::memory::{RKEY, address_of};

/// State of a task: a message, or a computation, which has no bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct MessageState {
    /// The connection; of a computation its host.
    pub connection: u32,
    pub bytes: u32,
    /// Bytes placed at the responder, or skipped.
    pub placed: u32,
    /// Messages it waits for.
    pub waits_for: u32,
    /// The earliest time to post it; later, the time it was posted.
    pub posted: u64,
    pub delivered: u64,
    pub completed: u64,
    pub failed: bool,
}

impl MessageState {
    pub const fn is_computation(&self) -> bool {
        self.bytes == 0
    }

    /// The work request for message number `index`, which this is. If it needs a receive, it has an immediate.
    pub fn work_request(&self, index: u32, needs_receive: bool) -> WorkRequest {
        WorkRequest {
            handle: u64::from(index),
            len: self.bytes - self.placed,
            remote_va: address_of(index),
            rkey: RKEY,
            imm: needs_receive.then_some(index),
            solicited: false,
        }
    }
}

/// An end of a connection: twice the connection's number, plus 1 for the responder's end. It is the context of the
/// queue pair there.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct End(pub u32);

impl End {
    pub const fn requestor(connection: u32) -> Self {
        End(connection << 1)
    }

    pub const fn responder(connection: u32) -> Self {
        End(connection << 1 | 1)
    }

    /// The end that a packet of a connection is for.
    #[inline(always)]
    pub const fn of(event: &Event) -> Self {
        End(event.connection << 1 | (event.flags & flag::TO_REQUESTOR == 0) as u32)
    }

    pub const fn connection(self) -> u32 {
        self.0 >> 1
    }

    pub const fn is_responder(self) -> bool {
        self.0 & 1 != 0
    }

    /// The number of its queue pair on the wire. Either end knows it without the other; 0 to 2 are reserved.
    pub const fn number(self) -> u32 {
        3 + self.0 % ((1 << 24) - 4)
    }
}

/// Instead of the slot of an end's queue pair: it has not been made, and it has been closed.
const NOT_MADE: Slot = Slot::MAX;
const CLOSED: Slot = Slot::MAX - 1;

/// State of a connection.
#[derive(Clone)]
pub(super) struct ConnectionState {
    pub ends: Connection,
    /// Messages not finished.
    pub left: u32,
    /// What is known of its path MTU.
    pub mtu: PathMtu,
    /// Messages that are due, and wait for the proof of the path MTU or for room in the send queue.
    pub waiting: Vec<u32>,
}

/// What a connection knows of its path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum PathMtu {
    /// It is taken for given, or proven.
    Good,
    /// The proof is under way.
    InProof,
    /// Some plane carries short packets only: the connection has failed.
    Refused,
}

/// Bytes of a message and of a connection here, without what waits for what.
pub(crate) const BYTES_PER_MESSAGE: usize = size_of::<MessageState>();
pub(crate) const BYTES_PER_CONNECTION: usize = size_of::<ConnectionState>() + 2 * size_of::<Slot>();

/// All messages and connections, as a partition knows them: when messages are due, posted and completed where their
/// senders are, what has been delivered where their receivers are.
#[derive(Clone)]
pub(crate) struct Posts {
    pub(super) messages: Vec<MessageState>,
    pub(super) connections: Vec<ConnectionState>,
    /// By end: the slot of its queue pair in its host's node. An array of its own, because every packet that arrives
    /// reads it.
    slots: Vec<Slot>,
    plan: Arc<Plan>,
    /// Messages completed or failed, of the partition's hosts.
    finished: usize,
}

/// What never changes.
struct Plan {
    dependents: Dependents,
    /// By message: how long it computes, picoseconds. Empty if nothing computes.
    computing_time: Vec<u64>,
    /// The messages that message `i` of the scenario was split into are `parts[i] .. parts[i + 1]`. Empty if none was
    /// split.
    parts: Vec<u32>,
}

impl Posts {
    /// The messages of a workload, and the parts that those of the scenario were split into.
    pub fn new(workload: &Workload, parts: Vec<u32>) -> Self {
        let mut connections: Vec<_> = workload
            .connections
            .iter()
            .map(|&ends| ConnectionState { ends, left: 0, mtu: PathMtu::Good, waiting: Vec::new() })
            .collect();
        let mut messages: Vec<_> = workload
            .tasks
            .iter()
            .map(|task| {
                let (connection, bytes) = match *task {
                    Task::Compute { host, .. } => (host, 0),
                    Task::Send { connection, bytes, .. } => {
                        connections[connection as usize].left += 1;
                        (connection, bytes)
                    }
                };
                MessageState {
                    connection,
                    bytes,
                    placed: 0,
                    waits_for: 0,
                    posted: task.start().0,
                    delivered: u64::MAX,
                    completed: u64::MAX,
                    failed: false,
                }
            })
            .collect();
        for &(message, _) in &workload.dependencies {
            messages[message as usize].waits_for += 1;
        }
        let takes = |task: &Task| match *task {
            Task::Compute { takes, .. } => Some(takes.0),
            Task::Send { .. } => None,
        };
        let computing_time = if workload.tasks.iter().any(|task| takes(task).is_some()) {
            workload.tasks.iter().map(|task| takes(task).unwrap_or(0)).collect()
        } else {
            Vec::new()
        };
        let dependents = Dependents::new(workload);
        let slots = vec![NOT_MADE; 2 * connections.len()];
        let plan = Arc::new(Plan { dependents, computing_time, parts });
        Posts { messages, connections, slots, plan, finished: 0 }
    }

    /// Writes how far messages and connections have come.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&self.messages)?;
        for ConnectionState { ends: _, left, mtu, waiting } in &self.connections {
            to.put(&(left, mtu, waiting))?;
        }
        to.put(&self.slots)?;
        to.put(&self.finished)
    }

    /// Reads what [`Posts::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        from.replace(&mut self.messages)?;
        for connection in &mut self.connections {
            (connection.left, connection.mtu, connection.waiting) = from.get()?;
        }
        from.replace(&mut self.slots)?;
        self.finished = from.get()?;
        Ok(())
    }

    /// By connection: messages not finished.
    pub(super) fn messages_by_connection(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.connections.iter().map(|connection| connection.left)
    }

    /// The hosts at the ends of a connection.
    pub fn ends(&self, connection: u32) -> Connection {
        self.connections[connection as usize].ends
    }

    /// The hosts at which a task begins and ends.
    fn ends_of(&self, message: &MessageState) -> Connection {
        match message.is_computation() {
            true => Connection { src: message.connection, dst: message.connection },
            false => self.ends(message.connection),
        }
    }

    /// The slot of an end's queue pair, if it has one.
    #[inline(always)]
    pub(super) fn slot(&self, end: End) -> Option<Slot> {
        self.slots.get(end.0 as usize).copied().filter(|&slot| slot < CLOSED)
    }

    /// Loads the slot of an end into the cache.
    #[inline(always)]
    pub(super) fn prefetch_place(&self, end: End) {
        prefetch_index(&self.slots, end.0 as usize);
    }

    /// Whether an end has had no queue pair yet.
    pub(super) fn is_not_made(&self, end: End) -> bool {
        self.slots[end.0 as usize] == NOT_MADE
    }

    /// An end has its queue pair.
    pub(super) fn opened(&mut self, end: End, slot: Slot) {
        self.slots[end.0 as usize] = slot;
    }

    /// An end closes, for good. Returns the slot that its queue pair had.
    pub(super) fn close(&mut self, end: End) -> Option<Slot> {
        Some(std::mem::replace(&mut self.slots[end.0 as usize], CLOSED)).filter(|&slot| slot < CLOSED)
    }

    /// Number of messages, parts counted one by one.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Messages completed or failed.
    pub fn finished(&self) -> usize {
        self.finished
    }

    /// By task of the workload. A message that was split is delivered and completed when its last part is. `of_host` has
    /// the posts of the partition that a host belongs to.
    pub fn fates<'a>(&self, of_host: impl Fn(u32) -> &'a Posts) -> impl Iterator<Item = Fate> {
        let fate = move |index: usize| {
            let message = &self.messages[index];
            let ends = self.ends_of(message);
            let (sent, received) = (&of_host(ends.src).messages[index], &of_host(ends.dst).messages[index]);
            Fate {
                ends,
                bytes: message.bytes,
                posted: Time(sent.posted),
                delivered: Time(received.delivered),
                completed: Time(sent.completed),
                failed: sent.failed,
            }
        };
        let parts = &self.plan.parts;
        let tasks = if parts.is_empty() { self.messages.len() } else { parts.len() - 1 };
        (0..tasks).map(move |task| match parts.get(task..task + 2) {
            Some(&[from, to]) => {
                (from as usize + 1..to as usize).map(&fate).fold(fate(from as usize), Fate::with)
            }
            _ => fate(task),
        })
    }

    /// Schedules every message of these hosts that waits for no other.
    pub fn schedule(&self, hosts: &Range<u32>, clock: &mut Clock) {
        for (index, message) in (0..).zip(&self.messages) {
            if message.waits_for == 0 && hosts.contains(&self.ends_of(message).src) {
                self.schedule_one(index, message.posted, clock);
            }
        }
    }

    /// Schedules a message for `time`, or for the end of its computation if it is one.
    fn schedule_one(&self, index: u32, time: u64, clock: &mut Clock) {
        let source = self.ends_of(&self.messages[index as usize]).src;
        clock.push_at_host(time + self.computing_time(index), Kind::Post, index, source);
    }

    fn computing_time(&self, index: u32) -> u64 {
        self.plan.computing_time.get(index as usize).copied().unwrap_or(0)
    }

    /// A computation has ended.
    pub(super) fn finish_computation(&mut self, index: u32, clock: &mut Clock) {
        let takes = self.computing_time(index);
        let message = &mut self.messages[index as usize];
        message.posted = clock.now - takes;
        message.delivered = clock.now;
        message.completed = clock.now;
        self.finished += 1;
        self.release(index, clock);
    }

    /// A message was delivered: messages that waited for it alone are due.
    ///
    /// Only the host that sends a message counts what it waits for. Another host tells it no faster than by a packet.
    pub(super) fn release(&mut self, index: u32, clock: &mut Clock) {
        let here = self.ends_of(&self.messages[index as usize]).dst;
        for i in 0..self.plan.dependents.of(index).len() {
            let waiter = self.plan.dependents.of(index)[i];
            let source = self.ends_of(&self.messages[waiter as usize]).src;
            if source == here {
                self.released(waiter, clock);
            } else {
                clock.push_at_host(clock.now + clock.lookahead(), Kind::Release, waiter, source);
            }
        }
    }

    /// One of the messages that a message waits for has been delivered. After the last one it is due.
    pub(super) fn released(&mut self, index: u32, clock: &mut Clock) {
        let message = &mut self.messages[index as usize];
        message.waits_for -= 1;
        if message.waits_for == 0 {
            let earliest = message.posted;
            self.schedule_one(index, earliest.max(clock.now), clock);
        }
    }

    /// A message completes or fails. Returns its connection.
    pub(super) fn finish(&mut self, index: u32, success: bool, now: u64) -> u32 {
        let message = &mut self.messages[index as usize];
        message.failed = !success;
        if success {
            message.completed = now;
        }
        self.finished += 1;
        self.connections[message.connection as usize].left -= 1;
        message.connection
    }
}
