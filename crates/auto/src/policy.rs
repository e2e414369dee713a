//! Which messages arrive without packets: those of a connection that shares no port of a host with another one, and of a
//! kind whose times are known. Everything else goes by packets, and so does a message from the moment at which another
//! connection joins it.

use std::collections::HashMap;

use openmrc_fabric::Fabric;
use openmrc_scenario::SkipTotals;
use openmrc_scenario::run::{NetworkConfig, Run};
use openmrc_sim::{Order, Skipper};
use openmrc_transport::random::mix;
use openmrc_workload::Task;

use crate::memo::{Kind, KindId, Memo, Standing, Taken};
use crate::traffic::{ConnectionState, Message, Row, Traffic, Way};

/// Messages over which the share of unknown kinds is averaged.
const MEMORY: f64 = 64.0;
/// Nothing is skipped while more of the messages are of kinds that are not known: they are recorded among real packets.
const UNKNOWN: f64 = 0.1;
/// A connection that will be gone after this share of a message's time does not count as beside it: the message begins
/// then.
const OVERLAP: f64 = 0.01;

/// Messages in a row whose mean time is recorded. A short one may leave early or late by more than kinds may deviate, and the
/// next one makes up for it.
const ROW: u32 = 64;

/// Base round trips before a fault from which everything goes by packets: the fault meets queues and packets as they are.
const LEAD: u64 = 20;

/// A message that went by packets and is in place. Its sender does not know yet.
struct Placed {
    kind: KindId,
    took: u64,
    at: u64,
}

/// The skipper of the auto engine.
pub(crate) struct Policy {
    network: NetworkConfig,
    /// By tier where paths turn: from the departure of a message's last byte until it is in place, picoseconds.
    latencies: Vec<u64>,
    tasks: Vec<Task>,
    traffic: Traffic,
    placed: HashMap<u32, Placed>,
    memo: Memo,
    /// The share of messages of late whose kinds are not known.
    unknown: f64,
    /// Nothing is skipped that arrives later, picoseconds.
    until: u64,
    /// Whether the fabric carries what its hosts send, whatever the T0s.
    is_non_blocking: bool,
    totals: SkipTotals,
}

impl Policy {
    /// Nothing is on its way, nothing is known.
    pub fn new(run: &Run) -> Self {
        let network = run.network.clone();
        let first_fault = run.faults.iter().map(|fault| fault.at.0).min().unwrap_or(u64::MAX);
        let full = network.full_packet_bytes();
        let latency = |turn| network.one_way_over(turn, full).0 - network.serialization(full.into()).0;
        Policy {
            latencies: (0..=network.fabric.top()).map(latency).collect(),
            traffic: Traffic::new(&network, &run.workload.connections),
            tasks: run.workload.tasks.clone(),
            placed: HashMap::new(),
            memo: Memo::default(),
            unknown: 1.0,
            until: first_fault.saturating_sub(network.base_rtt().times(LEAD).0),
            is_non_blocking: is_non_blocking(&network.fabric),
            network,
            totals: SkipTotals::default(),
        }
    }

    fn latency(&self, connection: u32) -> u64 {
        self.latencies[usize::from(self.traffic.connections[connection as usize].turn)]
    }

    /// What distinguishes a message, as things are at its hosts now.
    fn kind_now(&self, connection: u32, bytes: u32) -> Kind {
        let (load, receives) = (self.traffic.load(connection), self.traffic.sender_receives(connection));
        let turn = self.traffic.connections[connection as usize].turn;
        Kind { bytes, turn, load, receives, in_row: false }
    }

    /// The kind of a message that is due now.
    fn kind(&mut self, connection: u32, bytes: u32) -> KindId {
        let kind = self.kind_now(connection, bytes);
        let state = &mut self.traffic.connections[connection as usize];
        match state.kind {
            Some((last, id)) if last == kind => id,
            _ => {
                let id = self.memo.id(kind);
                state.kind = Some((kind, id));
                id
            }
        }
    }

    /// When the last byte of all messages of a connection will have left, if that is known.
    fn free_at(&self, connection: u32) -> Option<u64> {
        let (state, latency) = (&self.traffic.connections[connection as usize], self.latency(connection));
        if let Some(Message { way: Way::Skipped { last_byte, .. }, .. }) = state.queue.back() {
            return Some(*last_byte);
        }
        state.queue.iter().try_fold(state.free_at, |free, message| match message.way {
            Way::Skipped { last_byte, .. } => Some(last_byte),
            Way::Packets { kind: Some(kind) } | Way::Held { kind } => {
                Some(message.begin.max(free) + self.memo.mean(kind)?.saturating_sub(latency))
            }
            Way::Packets { kind: None } => None,
        })
    }

    /// The kind whose times tell that of a message which is due now and alone: its own, or that of messages in a row if it
    /// is one and no other is known.
    fn telling(&mut self, connection: u32, bytes: u32, own: KindId, now: u64) -> KindId {
        let state = &self.traffic.connections[connection as usize];
        let is_in_row = !state.queue.is_empty() && self.free_at(connection).is_none_or(|free| free >= now);
        if is_in_row && self.memo.standing(own) != Standing::Known {
            let kind = Kind { in_row: true, ..self.kind_now(connection, bytes) };
            return self.memo.id(kind);
        }
        own
    }

    /// A message went by packets between others that did, and its last byte left at a time. Records a row that is long
    /// enough.
    fn add_to_row(&mut self, connection: u32, message: &Message, now: u64) {
        let latency = self.latency(connection);
        let kind = Kind { in_row: true, ..self.kind_now(connection, message.bytes) };
        let kind = self.memo.id(kind);
        let state = &mut self.traffic.connections[connection as usize];
        let (since, left) = (state.free_at, now.saturating_sub(latency));
        if message.begin > since {
            state.row = None;
            return;
        }
        let row = match state.row {
            Some(row) if row.kind == kind => Row { messages: row.messages + 1, ..row },
            _ => Row { kind, since, messages: 1 },
        };
        state.row = Some(row).filter(|row| row.messages < ROW);
        if row.messages == ROW {
            let each = left.saturating_sub(row.since) / u64::from(ROW);
            // The way back, about: that of a SACK is as long.
            let answer = u32::try_from(latency).unwrap_or(u32::MAX);
            self.memo.record(kind, Taken { delivered: each + latency, answer });
        }
    }

    /// When the connections beside this one will be gone, if that is soon for a message of this kind.
    fn alone_from(&self, connection: u32, kind: KindId, now: u64) -> Option<u64> {
        let soon = now + self.memo.mean(kind).map_or(0, |mean| (mean as f64 * OVERLAP) as u64);
        let mut beside = self.traffic.beside(connection);
        beside.try_fold(now, |time, other| Some(time.max(self.free_at(other)?))).filter(|&time| time <= soon)
    }

    /// A connection goes by packets, and its times say nothing about messages that are alone.
    fn go_back(&mut self, connection: u32, orders: &mut Vec<Order>) {
        let mut is_skipped = false;
        for message in &mut self.traffic.connections[connection as usize].queue {
            match &mut message.way {
                Way::Packets { kind } => *kind = None,
                _ => is_skipped = true,
            }
        }
        if is_skipped {
            orders.push(Order::Resume { connection });
        }
    }

    /// Whether a message of a kind may be skipped. Counts those of unknown kinds.
    fn may_skip(&mut self, kind: KindId) -> bool {
        let standing = self.memo.standing(kind);
        let unknown = if standing == Standing::Unknown { 1.0 } else { 0.0 };
        self.unknown += (unknown - self.unknown) / MEMORY;
        standing == Standing::Known && self.unknown < UNKNOWN
    }

    /// Whether a message that is due will be in place before a fault comes near.
    fn is_over_in_time(&self, connection: u32, kind: KindId, now: u64) -> bool {
        let begin = self.free_at(connection).map_or(now, |free| free.max(now));
        self.memo.mean(kind).is_some_and(|mean| begin.saturating_add(mean) <= self.until)
    }

    /// Messages that waited for those before them begin, if it is known when.
    fn begin_held(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>) {
        let latency = self.latency(connection);
        let ConnectionState { queue, free_at, .. } = &mut self.traffic.connections[connection as usize];
        // They are the last ones.
        let held = queue.iter().rev().take_while(|message| matches!(message.way, Way::Held { .. })).count();
        let first = queue.len() - held;
        let mut free = match first.checked_sub(1).map(|before| queue[before].way) {
            None => *free_at,
            Some(Way::Skipped { last_byte, .. }) => last_byte,
            Some(_) => return,
        };
        for message in queue.range_mut(first..) {
            let Way::Held { kind } = message.way else { continue };
            let salt = self.network.seed ^ mix(message.index.into());
            let Taken { delivered, answer } = self.memo.take(kind, salt);
            let begin = message.begin.max(free);
            let delivered = (begin + delivered).max(now + 1);
            free = delivered.saturating_sub(latency).max(begin + 1);
            message.way = Way::Skipped { begin, last_byte: free, delivered };
            orders.push(Order::Skip { message: message.index, delivered, answer });
        }
        self.traffic.skip_begins(connection, held as u32);
    }

    fn count(&mut self, bytes: u32) {
        self.totals.messages += 1;
        self.totals.bytes += u64::from(bytes);
        self.totals.packets += u64::from(bytes.div_ceil(self.network.path_mtu.into()));
    }
}

impl Skipper for Policy {
    fn due(&mut self, index: u32, now: u64, orders: &mut Vec<Order>) {
        let Task::Send { connection, bytes, .. } = self.tasks[index as usize] else { return };
        let kind = self.kind(connection, bytes);
        let alone = self.alone_from(connection, kind, now);
        let state = &self.traffic.connections[connection as usize];
        let suits = state.is_warm && (state.turn == 0 || self.is_non_blocking);
        let way = if alone.is_none() || !suits || self.totals.packets_only.is_some() {
            Way::Packets { kind: None }
        } else {
            let telling = self.telling(connection, bytes, kind, now);
            if self.may_skip(telling) && self.is_over_in_time(connection, telling, now) {
                Way::Held { kind: telling }
            } else {
                Way::Packets { kind: Some(kind) }
            }
        };
        if matches!(way, Way::Packets { .. }) {
            // What is before it on the connection goes before it.
            self.resume(connection, now, orders);
            orders.push(Order::Send { message: index, bytes });
        }
        if alone.is_none() {
            let beside: Vec<u32> = self.traffic.beside(connection).collect();
            beside.into_iter().for_each(|other| self.go_back(other, orders));
        }
        let begin = alone.unwrap_or(now);
        self.traffic.begins(connection, Message { index, bytes, begin, way });
        self.begin_held(connection, now, orders);
    }

    fn arrives(&mut self, index: u32, now: u64) -> bool {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return false };
        let queue = &self.traffic.connections[connection as usize].queue;
        let message = queue.iter().find(|message| message.index == index);
        message.is_some_and(|m| matches!(m.way, Way::Skipped { delivered, .. } if delivered == now))
    }

    fn delivered(&mut self, index: u32, now: u64, orders: &mut Vec<Order>) {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return };
        let Some(message) = self.traffic.on_the_way(connection, index) else { return };
        let latency = self.latency(connection);
        let begin = message.begin.max(self.traffic.connections[connection as usize].free_at);
        let tells = matches!(message.way, Way::Packets { kind: Some(_) })
            && self.traffic.is_real_since(connection, begin);
        if tells {
            self.add_to_row(connection, &message, now);
        }
        self.traffic.ends(connection, index);
        let state = &mut self.traffic.connections[connection as usize];
        state.free_at = now.saturating_sub(latency).max(state.free_at);
        state.is_warm = true;
        if !tells {
            state.row = None;
        }
        match message.way {
            Way::Packets { kind: Some(kind) } if tells => {
                self.placed.insert(index, Placed { kind, took: now - begin, at: now });
            }
            Way::Skipped { .. } => {
                self.traffic.skip_ends(connection, now);
                self.count(message.bytes);
            }
            _ => {}
        }
        self.begin_held(connection, now, orders);
    }

    fn completed(&mut self, index: u32, success: bool, now: u64) {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return };
        // One that has failed is still on its way.
        self.traffic.ends(connection, index);
        if let Some(Placed { kind, took, at }) = self.placed.remove(&index)
            && success
        {
            let answer = u32::try_from(now - at).unwrap_or(u32::MAX);
            self.memo.record(kind, Taken { delivered: took, answer });
        }
    }

    fn resume(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>) {
        let mtu = u64::from(self.network.path_mtu);
        for place in 0..self.traffic.connections[connection as usize].queue.len() {
            let message = &mut self.traffic.connections[connection as usize].queue[place];
            let Message { index, bytes, way, .. } = *message;
            let rest = match way {
                Way::Packets { .. } => continue,
                Way::Skipped { last_byte, .. } if now >= last_byte => continue,
                Way::Skipped { begin, last_byte, .. } => {
                    let left = (last_byte - now.max(begin)) as f64 / (last_byte - begin) as f64;
                    let left = (f64::from(bytes) * left) as u64;
                    left.next_multiple_of(mtu).clamp(1, bytes.into()) as u32
                }
                Way::Held { .. } => bytes,
            };
            message.way = Way::Packets { kind: None };
            if matches!(way, Way::Skipped { .. }) {
                self.traffic.skip_ends(connection, now);
                self.totals.resumed += 1;
                if rest < bytes {
                    self.count(bytes - rest);
                }
            }
            orders.push(Order::Send { message: index, bytes: rest });
        }
    }

    fn fault(&mut self, _now: u64, orders: &mut Vec<Order>) {
        self.totals.packets_only = Some("from the first fault on");
        for connection in 0..self.traffic.connections.len() as u32 {
            self.go_back(connection, orders);
        }
    }

    fn totals(&self) -> SkipTotals {
        SkipTotals { recorded: self.memo.recorded, kinds: self.memo.kinds(), ..self.totals }
    }
}

/// Whether every switch has as many uplinks as links down.
fn is_non_blocking(fabric: &Fabric) -> bool {
    (0..fabric.top()).all(|tier| fabric.uplinks(tier) >= fabric.downlinks(tier))
}
