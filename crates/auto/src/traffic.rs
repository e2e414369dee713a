//! Which connections have messages on their way, and where they meet: at ports of hosts, and at T0s.

use std::collections::VecDeque;

use openmrc_scenario::run::NetworkConfig;
use openmrc_workload::Connection;

use crate::memo::{Kind, KindId};

/// How a message goes. Times are picoseconds.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// By packets; if its time will say something, its kind.
    Packets { kind: Option<KindId> },
    /// It waits for the message before it on its connection.
    Held { kind: KindId },
    /// Without packets, as times were recorded.
    Skipped { begin: u64, last_byte: u64, delivered: u64 },
}

/// A message on its way.
#[derive(Clone, Copy)]
pub(crate) struct Message {
    /// Its task.
    pub index: u32,
    pub bytes: u32,
    /// When it was due, or what was beside it was gone.
    pub begin: u64,
    pub way: Way,
}

/// Messages of one kind that went by packets and left one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub kind: KindId,
    /// When the last byte before them had left, picoseconds.
    pub since: u64,
    pub messages: u32,
}

/// A connection.
pub(crate) struct ConnectionState {
    pub ends: Connection,
    /// The tier in which its paths turn.
    pub turn: u8,
    /// Its first message has been delivered.
    pub is_warm: bool,
    /// Its messages on the way, in the order in which they were due.
    pub queue: VecDeque<Message>,
    /// When its last byte left that belongs to a message in place, picoseconds.
    pub free_at: u64,
    /// The kind of its last message.
    pub kind: Option<(Kind, KindId)>,
    /// The row that its last messages are.
    pub row: Option<Row>,
}

/// Since when packets of all messages of a place are really there.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Messages that pass without packets.
    skipped: u32,
    /// When the last of them had passed, picoseconds.
    until: u64,
}

impl Place {
    fn is_real_since(&self, time: u64) -> bool {
        self.skipped == 0 && self.until <= time
    }
}

/// The connections on their way.
pub(crate) struct Traffic {
    pub connections: Vec<ConnectionState>,
    /// By host: connections with messages on the way from it, and to it.
    from: Vec<Vec<u32>>,
    to: Vec<Vec<u32>>,
    /// By T0: how many of them leave it, and come from above.
    up: Vec<u32>,
    down: Vec<u32>,
    hosts: Vec<Place>,
    t0s: Vec<Place>,
    hosts_per_t0: u32,
}

impl Traffic {
    /// Nothing is on its way.
    pub fn new(network: &NetworkConfig, connections: &[Connection]) -> Self {
        let (fabric, shape) = (&network.fabric, network.fabric.shape());
        let state = |&ends: &Connection| ConnectionState {
            ends,
            turn: fabric.turn(ends.src, ends.dst),
            is_warm: false,
            queue: VecDeque::new(),
            free_at: 0,
            kind: None,
            row: None,
        };
        let (hosts, hosts_per_t0) = (shape.hosts as usize, shape.hosts_per_t0);
        let t0s = hosts.div_ceil(hosts_per_t0 as usize);
        Traffic {
            connections: connections.iter().map(state).collect(),
            from: vec![Vec::new(); hosts],
            to: vec![Vec::new(); hosts],
            up: vec![0; t0s],
            down: vec![0; t0s],
            hosts: vec![Place::default(); hosts],
            t0s: vec![Place::default(); t0s],
            hosts_per_t0,
        }
    }

    fn t0(&self, host: u32) -> usize {
        (host / self.hosts_per_t0) as usize
    }

    /// The T0s of a connection, if it leaves the one for the other.
    fn t0s(&self, connection: u32) -> Option<(usize, usize)> {
        let state = &self.connections[connection as usize];
        (state.turn > 0).then(|| (self.t0(state.ends.src), self.t0(state.ends.dst)))
    }

    /// A message of a connection is on its way.
    pub fn begins(&mut self, connection: u32, message: Message) {
        let state = &mut self.connections[connection as usize];
        state.queue.push_back(message);
        if state.queue.len() > 1 {
            return;
        }
        let Connection { src, dst } = state.ends;
        self.from[src as usize].push(connection);
        self.to[dst as usize].push(connection);
        if let Some((up, down)) = self.t0s(connection) {
            self.up[up] += 1;
            self.down[down] += 1;
        }
    }

    /// A message that is on its way.
    pub fn on_the_way(&self, connection: u32, index: u32) -> Option<Message> {
        let queue = &self.connections[connection as usize].queue;
        queue.iter().find(|message| message.index == index).copied()
    }

    /// A message is in place, or has failed. Returns how it went, if it was on its way.
    pub fn ends(&mut self, connection: u32, index: u32) -> Option<Message> {
        let state = &mut self.connections[connection as usize];
        let place = state.queue.iter().position(|message| message.index == index)?;
        let ended = state.queue.remove(place);
        if !state.queue.is_empty() {
            return ended;
        }
        let Connection { src, dst } = state.ends;
        self.from[src as usize].retain(|&other| other != connection);
        self.to[dst as usize].retain(|&other| other != connection);
        if let Some((up, down)) = self.t0s(connection) {
            self.up[up] -= 1;
            self.down[down] -= 1;
        }
        ended
    }

    /// The other connections at the sender's ports out and at the receiver's ports in.
    pub fn beside(&self, connection: u32) -> impl Iterator<Item = u32> + '_ {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        let all = self.from[src as usize].iter().chain(&self.to[dst as usize]);
        all.copied().filter(move |&other| other != connection)
    }

    /// Whether the sender of a connection receives something.
    pub fn sender_receives(&self, connection: u32) -> bool {
        !self.to[self.connections[connection as usize].ends.src as usize].is_empty()
    }

    /// How many hosts beneath a connection's T0s use the uplinks, in eighths.
    pub fn load(&self, connection: u32) -> u8 {
        let Some((up, down)) = self.t0s(connection) else { return 0 };
        (self.up[up].max(self.down[down]) * 8).div_ceil(self.hosts_per_t0).min(u8::MAX.into()) as u8
    }

    /// Messages of a connection begin to pass without packets.
    pub fn skip_begins(&mut self, connection: u32, messages: u32) {
        if messages == 0 {
            return;
        }
        let Connection { src, dst } = self.connections[connection as usize].ends;
        self.hosts[src as usize].skipped += messages;
        self.hosts[dst as usize].skipped += messages;
        if let Some((up, down)) = self.t0s(connection) {
            self.t0s[up].skipped += messages;
            self.t0s[down].skipped += messages;
        }
    }

    /// One of them does so no longer.
    pub fn skip_ends(&mut self, connection: u32, now: u64) {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        let end = |place: &mut Place| {
            place.skipped -= 1;
            place.until = now;
        };
        end(&mut self.hosts[src as usize]);
        end(&mut self.hosts[dst as usize]);
        if let Some((up, down)) = self.t0s(connection) {
            end(&mut self.t0s[up]);
            end(&mut self.t0s[down]);
        }
    }

    /// Whether everything that a connection can meet has gone by packets since a time.
    pub fn is_real_since(&self, connection: u32, time: u64) -> bool {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        let hosts = [src, dst].iter().all(|&host| self.hosts[host as usize].is_real_since(time));
        hosts
            && self
                .t0s(connection)
                .is_none_or(|(up, down)| [up, down].iter().all(|&t0| self.t0s[t0].is_real_since(time)))
    }
}
