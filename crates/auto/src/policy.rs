//! Which messages arrive without packets: those of a connection that shares no port of a host with another one and of a
//! kind whose times are known, and those of connections that do share ports if the pace of each beside so many others is
//! known. Everything else goes by packets, and so does a message from the moment at which somebody joins it and this is no
//! longer so.

use std::collections::HashMap;

use openmrc_fabric::Fabric;
use openmrc_scenario::SkipTotals;
use openmrc_scenario::run::{NetworkConfig, Run};
use openmrc_sim::{Order, Skipper};
use openmrc_workload::Task;

use crate::memo::{KindId, Memo, Standing, Taken};
use crate::traffic::{Message, Passing, Traffic, Way};

/// Messages over which the share of unknown kinds is averaged.
const MEMORY: f64 = 64.0;
/// Nothing is skipped while more of the messages are of kinds that are not known: they are recorded among real packets.
const UNKNOWN: f64 = 0.1;
/// A connection that will be gone after this share of a message's time does not count as beside it: the message begins
/// then.
const OVERLAP: f64 = 0.01;

/// Base round trips before a fault from which everything goes by packets: the fault meets queues and packets as they are.
const LEAD: u64 = 20;

/// Base round trips of the line rate that a connection posts behind the message that is on its way: more than its window.
/// What it has not posted can yet be skipped.
const FEED: u64 = 2;

/// A message that went by packets and is in place. Its sender does not know yet.
struct Placed {
    kind: KindId,
    took: u64,
    at: u64,
}

/// The skipper of the auto engine.
pub(crate) struct Policy {
    pub(crate) network: NetworkConfig,
    /// By tier where paths turn: from the departure of a message's last byte until it is in place, picoseconds.
    pub(crate) latencies: Vec<u64>,
    tasks: Vec<Task>,
    pub(crate) traffic: Traffic,
    placed: HashMap<u32, Placed>,
    pub(crate) memo: Memo,
    /// The share of messages of late whose kinds are not known.
    unknown: f64,
    /// Bytes that a connection posts behind the message that is on its way.
    pub(crate) feed: u64,
    /// Nothing is skipped that arrives later, picoseconds.
    until: u64,
    /// Whether the fabric carries what its hosts send, whatever the T0s.
    is_non_blocking: bool,
    pub(crate) totals: SkipTotals,
}

impl Policy {
    /// Nothing is on its way, nothing is known.
    pub fn new(run: &Run) -> Self {
        let network = run.network.clone();
        let lead = network.base_rtt().times(LEAD).0;
        let first_fault = run.faults.iter().map(|fault| fault.at.0.saturating_sub(lead)).min();
        let full = network.full_packet_bytes();
        let latency = |turn| network.one_way_over(turn, full).0 - network.serialization(full.into()).0;
        Policy {
            latencies: (0..=network.fabric.top()).map(latency).collect(),
            traffic: Traffic::new(&network, &run.workload.connections),
            tasks: run.workload.tasks.clone(),
            placed: HashMap::new(),
            memo: Memo::default(),
            unknown: 1.0,
            feed: FEED * network.plane_bdp() * u64::from(network.fabric.shape().planes),
            until: first_fault.unwrap_or(u64::MAX),
            is_non_blocking: is_non_blocking(&network.fabric),
            network,
            totals: SkipTotals::default(),
        }
    }

    /// When the connections beside this one will be gone, if that is soon for a message of this kind.
    pub(crate) fn alone_from(&self, connection: u32, kind: KindId, now: u64) -> Option<u64> {
        let soon = now + self.memo.mean(kind).map_or(0, |mean| (mean as f64 * OVERLAP) as u64);
        let mut beside = self.traffic.beside(connection);
        beside.try_fold(now, |time, other| Some(time.max(self.free_at(other)?))).filter(|&time| time <= soon)
    }

    /// A message of a kind is due alone.
    fn count_unknown(&mut self, kind: KindId) {
        let unknown = if self.memo.standing(kind) == Standing::Unknown { 1.0 } else { 0.0 };
        self.unknown += (unknown - self.unknown) / MEMORY;
    }

    /// Whether a message of a kind may be skipped.
    fn is_known(&self, kind: KindId) -> bool {
        self.memo.standing(kind) == Standing::Known && self.unknown < UNKNOWN
    }

    /// Whether a message that is due will be in place before a fault comes near.
    fn is_over_in_time(&self, connection: u32, bytes: u32, kind: KindId, now: u64) -> bool {
        let begin = || self.free_at(connection).map_or(now, |free| free.max(now));
        let takes = self.expected(connection, bytes, kind);
        self.until == u64::MAX || takes.is_some_and(|takes| begin().saturating_add(takes) <= self.until)
    }

    /// The kind of a message that is due now and alone: its own, or that of a row that it goes on.
    pub(crate) fn alone_kind(&mut self, connection: u32, bytes: u32) -> KindId {
        let own = self.own_kind(connection, bytes);
        let is_in_row = !self.traffic.connections[connection as usize].queue.is_empty();
        if is_in_row && self.fits_row(bytes) && self.memo.standing(own) != Standing::Known {
            return self.row_kind(connection, 0);
        }
        own
    }

    /// Whether messages of a connection may be skipped at all.
    fn suits(&self, connection: u32) -> bool {
        let state = &self.traffic.connections[connection as usize];
        state.is_warm
            && !state.goes_back
            && (state.turn == 0 || self.is_non_blocking)
            && self.totals.packets_only.is_none()
    }

    /// The kind of a message that is due now, if it may be skipped.
    pub(crate) fn skips(&mut self, connection: u32, bytes: u32, is_alone: bool, now: u64) -> Option<KindId> {
        if !self.suits(connection) {
            return None;
        }
        if !is_alone {
            return self.skips_beside(connection, bytes, now);
        }
        let kind = self.alone_kind(connection, bytes);
        (self.is_known(kind) && self.is_over_in_time(connection, bytes, kind, now)).then_some(kind)
    }

    /// The kind of a message that is due now beside others, if it may be skipped: if the pace of all of them is known. Those
    /// that still go by packets do so until what they have posted is through.
    fn skips_beside(&mut self, connection: u32, bytes: u32, now: u64) -> Option<KindId> {
        if !self.fits_row(bytes) || self.until < u64::MAX {
            return None;
        }
        let number = self.traffic.others(connection, None, now);
        let kind = self.row_kind(connection, number);
        let others: Vec<u32> = self.traffic.beside(connection).collect();
        // Packets do not see what passes without: there must be few of them left.
        let has_few = |&other: &u32| {
            !self.traffic.connections[other as usize].goes_back
                && self.posted(other) <= self.feed + u64::from(bytes)
        };
        // Unknown ones are not counted: what meets them goes by packets, so their times will be recorded.
        if !self.is_known(kind) || !others.iter().all(has_few) {
            return None;
        }
        let joins = self.traffic.connections[connection as usize].queue.is_empty().then_some(connection);
        for other in others {
            let number = self.traffic.others(other, joins, now);
            let kind = self.row_kind(other, number);
            self.memo.pace(kind)?;
        }
        Some(kind)
    }

    pub(crate) fn count(&mut self, bytes: u32) {
        self.totals.messages += 1;
        self.totals.bytes += u64::from(bytes);
        self.totals.packets += u64::from(bytes.div_ceil(self.network.path_mtu.into()));
    }
}

impl Skipper for Policy {
    fn due(&mut self, index: u32, now: u64, orders: &mut Vec<Order>) {
        let Task::Send { connection, bytes, .. } = self.tasks[index as usize] else { return };
        self.traffic.settle(now);
        let own = self.own_kind(connection, bytes);
        let alone = self.alone_from(connection, own, now);
        let joins = self.traffic.connections[connection as usize].queue.is_empty();
        let suits = self.suits(connection);
        if suits && alone.is_some() {
            let kind = self.alone_kind(connection, bytes);
            self.count_unknown(kind);
        }
        let mut skipped = self.skips(connection, bytes, alone.is_some(), now);
        let waits = |message: &Message| matches!(message.way, Way::Waiting { .. });
        if skipped.is_some() && self.traffic.connections[connection as usize].queue.back().is_some_and(waits)
        {
            if self.may_skip_waiting(connection, now) {
                self.skip_waiting(connection, now, orders);
            } else {
                skipped = None;
            }
        }
        let begin = alone.unwrap_or(now);
        let beside: Vec<u32> = match alone {
            Some(_) => Vec::new(),
            None => self.traffic.beside(connection).collect(),
        };
        let way = match skipped {
            Some(kind) => Way::Held { kind },
            None => Way::Waiting { kind: alone.filter(|_| suits).map(|_| own) },
        };
        if skipped.is_none() {
            // What is before it on the connection goes before it.
            self.return_to_packets(connection, now, orders);
            self.traffic.begins(connection, Message { index, bytes, begin, way });
            self.post_waiting(connection, orders);
            self.go_back(beside, orders);
            return;
        }
        self.traffic.begins(connection, Message { index, bytes, begin, way });
        if joins {
            self.begin_held(connection, alone.map(|_| 0), now, orders);
            for other in beside {
                self.change_pace(other, now, now, orders);
            }
        }
    }

    fn arrives(&mut self, index: u32, now: u64) -> bool {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return false };
        let message = self.traffic.on_the_way(connection, index);
        message.is_some_and(|m| matches!(m.way, Way::Skipped(Passing { delivered, .. }) if delivered == now))
    }

    fn delivered(&mut self, index: u32, now: u64, orders: &mut Vec<Order>) {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return };
        let Some(message) = self.traffic.on_the_way(connection, index) else { return };
        self.traffic.settle(now);
        let latency = self.latency(connection);
        let begin = message.begin.max(self.traffic.connections[connection as usize].free_at);
        match message.way {
            Way::Packets { kind } => {
                let tells = kind.filter(|_| self.traffic.is_real_since(connection, begin));
                if self.traffic.is_real_at_hosts_since(connection, begin) {
                    self.add_to_row(connection, &message, tells.is_some(), now);
                } else {
                    self.traffic.connections[connection as usize].row = None;
                }
                if let Some(kind) = tells {
                    self.placed.insert(index, Placed { kind, took: now - begin, at: now });
                }
            }
            Way::Waiting { .. } | Way::Held { .. } => {}
            Way::Skipped(_) => {
                self.traffic.connections[connection as usize].row = None;
                self.traffic.skip_ends(connection, now);
                self.count(message.bytes);
            }
        }
        self.traffic.ends(connection, index, now);
        let state = &mut self.traffic.connections[connection as usize];
        state.free_at = now.saturating_sub(latency).max(state.free_at);
        state.is_warm = true;
        let (is_over, since) = (state.queue.is_empty(), state.free_at);
        if is_over {
            let others: Vec<u32> = self.traffic.beside(connection).collect();
            for other in others {
                self.change_pace(other, since, now, orders);
            }
        } else {
            self.begin_held(connection, None, now, orders);
        }
    }

    fn completed(&mut self, index: u32, success: bool, now: u64, orders: &mut Vec<Order>) {
        let Task::Send { connection, .. } = self.tasks[index as usize] else { return };
        // One that has failed is still on its way.
        self.traffic.ends(connection, index, now);
        if let Some(Placed { kind, took, at }) = self.placed.remove(&index)
            && success
        {
            let answer = u32::try_from(now - at).unwrap_or(u32::MAX);
            self.memo.record(kind, Taken { delivered: took, answer });
        }
        let waits = |message: &Message| matches!(message.way, Way::Waiting { .. });
        if self.traffic.connections[connection as usize].queue.back().is_some_and(waits) {
            orders.push(Order::Resume { connection });
        }
    }

    fn resume(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>) {
        self.traffic.settle(now);
        if self.traffic.connections[connection as usize].goes_back {
            self.return_to_packets(connection, now, orders);
        } else if self.may_skip_waiting(connection, now) {
            self.skip_waiting(connection, now, orders);
        }
        self.post_waiting(connection, orders);
    }

    fn fault(&mut self, _now: u64, orders: &mut Vec<Order>) {
        self.totals.packets_only = Some("from the first fault on");
        self.go_back((0..self.traffic.connections.len() as u32).collect(), orders);
    }

    fn totals(&self) -> SkipTotals {
        SkipTotals { recorded: self.memo.recorded, kinds: self.memo.kinds(), ..self.totals }
    }
}

/// Whether every switch has as many uplinks as links down.
fn is_non_blocking(fabric: &Fabric) -> bool {
    (0..fabric.top()).all(|tier| fabric.uplinks(tier) >= fabric.downlinks(tier))
}
