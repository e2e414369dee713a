//! Which connections have messages on their way, and where they meet: at ports of hosts, and at T0s.

use std::collections::VecDeque;

use openmrc_scenario::run::NetworkConfig;
use openmrc_workload::Connection;

use crate::memo::{Kind, KindId, Others};

/// How a message goes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// By packets; if its time will say something, its kind.
    Packets { kind: Option<KindId> },
    /// It will go by packets, when enough of those before it are in place; its kind as above.
    Waiting { kind: Option<KindId> },
    /// It waits for the message before it on its connection, and then goes without packets. Its kind when it was due.
    Held { kind: KindId },
    /// Without packets.
    Skipped(Passing),
}

/// How a message passes without packets. Times are picoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Passing {
    /// Since when it has had this pace.
    pub begin: u64,
    /// How many of its bytes had not left then.
    pub bytes: u32,
    /// When the last one leaves.
    pub last_byte: u64,
    pub delivered: u64,
    /// How long after that its sender knows.
    pub answer: u32,
    /// With how many others it has this pace.
    pub others: Others,
}

impl Passing {
    /// How many bytes have not left at a time.
    pub fn left_at(&self, time: u64) -> u32 {
        let left = self.last_byte.saturating_sub(time.max(self.begin)) as f64;
        (f64::from(self.bytes) * left / (self.last_byte - self.begin) as f64) as u32
    }
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

/// Messages that went by packets and left one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub kind: KindId,
    /// When the last byte before them had left, picoseconds.
    pub since: u64,
    pub messages: u32,
    pub bytes: u64,
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
    /// Until when it counts at its T0s and its receiver: `u64::MAX` while it has messages on the way.
    pub lingers_until: Option<u64>,
    /// It has been told to go back to packets, and has not done so yet.
    pub goes_back: bool,
}

impl ConnectionState {
    /// Whether its last byte has left by a time, as far as that is known.
    fn has_left(&self, time: u64) -> bool {
        self.queue.len() == 1
            && matches!(self.queue[0].way, Way::Skipped(Passing { last_byte, .. }) if last_byte <= time)
    }
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
    /// By host: connections that it has received from of late.
    receiving: Vec<u32>,
    /// By T0: how many leave it of late, and come from above.
    up: Vec<u32>,
    down: Vec<u32>,
    /// Connections that have nothing on the way any more, and until when they count yet. Between two operations a host
    /// pauses for less than its SACKs need, and nothing changes for those beside it.
    lingering: VecDeque<(u64, u32)>,
    /// How long they count, picoseconds.
    linger: u64,
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
            lingers_until: None,
            goes_back: false,
        };
        let (hosts, hosts_per_t0) = (shape.hosts as usize, shape.hosts_per_t0);
        let t0s = hosts.div_ceil(hosts_per_t0 as usize);
        Traffic {
            connections: connections.iter().map(state).collect(),
            from: vec![Vec::new(); hosts],
            to: vec![Vec::new(); hosts],
            receiving: vec![0; hosts],
            up: vec![0; t0s],
            down: vec![0; t0s],
            lingering: VecDeque::new(),
            linger: network.base_rtt().0,
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
        let counts = state.lingers_until.replace(u64::MAX).is_some();
        self.from[src as usize].push(connection);
        self.to[dst as usize].push(connection);
        if !counts {
            self.receiving[dst as usize] += 1;
            if let Some((up, down)) = self.t0s(connection) {
                self.up[up] += 1;
                self.down[down] += 1;
            }
        }
    }

    /// What ended long enough before a time does not count any more.
    pub fn settle(&mut self, now: u64) {
        while let Some(&(until, connection)) = self.lingering.front().filter(|(until, _)| *until <= now) {
            self.lingering.pop_front();
            let state = &mut self.connections[connection as usize];
            if state.lingers_until != Some(until) {
                continue;
            }
            state.lingers_until = None;
            self.receiving[state.ends.dst as usize] -= 1;
            if let Some((up, down)) = self.t0s(connection) {
                self.up[up] -= 1;
                self.down[down] -= 1;
            }
        }
    }

    /// A message that is on its way.
    pub fn on_the_way(&self, connection: u32, index: u32) -> Option<Message> {
        let queue = &self.connections[connection as usize].queue;
        queue.iter().find(|message| message.index == index).copied()
    }

    /// A message is in place, or has failed. Returns how it went, if it was on its way.
    pub fn ends(&mut self, connection: u32, index: u32, now: u64) -> Option<Message> {
        let state = &mut self.connections[connection as usize];
        let place = state.queue.iter().position(|message| message.index == index)?;
        let ended = state.queue.remove(place);
        if !state.queue.is_empty() {
            return ended;
        }
        let Connection { src, dst } = state.ends;
        let until = now + self.linger;
        state.lingers_until = Some(until);
        self.lingering.push_back((until, connection));
        self.from[src as usize].retain(|&other| other != connection);
        self.to[dst as usize].retain(|&other| other != connection);
        ended
    }

    /// The other connections at the sender's ports out and at the receiver's ports in.
    pub fn beside(&self, connection: u32) -> impl Iterator<Item = u32> + '_ {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        let all = self.from[src as usize].iter().chain(&self.to[dst as usize]);
        all.copied().filter(move |&other| other != connection)
    }

    /// How many of them still send at a time, where most do. `joins`: one that comes to them.
    pub fn others(&self, connection: u32, joins: Option<u32>, time: u64) -> Others {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        let new = joins.map(|joins| self.connections[joins as usize].ends);
        let count = |all: &[u32], joins: bool| {
            let sends =
                |&&other: &&u32| other != connection && !self.connections[other as usize].has_left(time);
            all.iter().filter(sends).count() + usize::from(joins)
        };
        let out = count(&self.from[src as usize], new.is_some_and(|new| new.src == src));
        let into = count(&self.to[dst as usize], new.is_some_and(|new| new.dst == dst));
        Others::try_from(out.max(into)).unwrap_or(Others::MAX)
    }

    /// Whether the sender of a connection receives something, and sends SACKs.
    pub fn sender_receives(&self, connection: u32) -> bool {
        self.receiving[self.connections[connection as usize].ends.src as usize] > 0
    }

    /// How many hosts beneath a connection's T0s use the uplinks, in eighths.
    pub fn load(&self, connection: u32) -> u8 {
        let Some((up, down)) = self.t0s(connection) else { return 0 };
        (self.up[up].max(self.down[down]) * 8).div_ceil(self.hosts_per_t0).min(u8::MAX.into()) as u8
    }

    /// A message of a connection begins to pass without packets.
    pub fn skip_begins(&mut self, connection: u32) {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        self.hosts[src as usize].skipped += 1;
        self.hosts[dst as usize].skipped += 1;
        if let Some((up, down)) = self.t0s(connection) {
            self.t0s[up].skipped += 1;
            self.t0s[down].skipped += 1;
        }
    }

    /// It does so no longer.
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

    /// Whether everything at the hosts of a connection has gone by packets since a time.
    pub fn is_real_at_hosts_since(&self, connection: u32, time: u64) -> bool {
        let Connection { src, dst } = self.connections[connection as usize].ends;
        [src, dst].iter().all(|&host| self.hosts[host as usize].is_real_since(time))
    }

    /// Whether everything that a connection can meet has.
    pub fn is_real_since(&self, connection: u32, time: u64) -> bool {
        let t0s = self.t0s(connection);
        self.is_real_at_hosts_since(connection, time)
            && t0s.is_none_or(|(up, down)| [up, down].iter().all(|&t0| self.t0s[t0].is_real_since(time)))
    }
}
