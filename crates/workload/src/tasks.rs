//! What is to be sent: connections, messages on them, and which message waits for which.

use openmrc_transport::{Span, Time};

/// A queue pair at each of two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Requestor.
    pub src: u32,
    /// Responder.
    pub dst: u32,
}

/// One RDMA WRITE; or, on a connection of a host to itself, a computation that messages may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Index of its connection.
    pub connection: u32,
    /// Length, 1 ..= 2^31; 0 for a computation.
    pub bytes: u32,
    /// Not posted, or begun, before this time.
    pub start: Time,
    /// The time that a computation takes.
    pub takes: Span,
}

/// Why a workload cannot run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A connection names a host that the fabric does not have.
    #[error("connection {connection}: host h{host} does not exist, the fabric has h0 to h{last}")]
    Host {
        /// Index of the connection.
        connection: usize,
        /// The host.
        host: u32,
        /// The last one there is.
        last: u32,
    },
    /// A message from a host to itself.
    #[error("connection {connection}: host h{host} would send to itself")]
    Loop {
        /// Index of the connection.
        connection: usize,
        /// The host.
        host: u32,
    },
    /// A message names a connection that does not exist.
    #[error("message {message}: there is no connection {connection}")]
    Connection {
        /// Index of the message.
        message: usize,
        /// The connection.
        connection: u32,
    },
    /// A message's length is out of range.
    #[error("message {message}: {bytes} bytes are out of range: 1 to 2147483648")]
    Length {
        /// Index of the message.
        message: usize,
        /// Its length.
        bytes: u32,
    },
    /// A message waits for one that does not exist, or for itself.
    #[error("message {message} waits for message {after}, which does not come before it")]
    Dependency {
        /// Index of the message.
        message: u32,
        /// What it waits for.
        after: u32,
    },
    /// More messages or connections than indices.
    #[error("{0} messages or connections are too many: at most 2^31")]
    TooMany(usize),
}

/// Everything that is to be sent in a run.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Workload {
    /// Connections.
    pub connections: Vec<Connection>,
    /// Messages. Those of one connection are posted in the order in which they become due.
    pub messages: Vec<Message>,
    /// `(message, after)`: the message is posted when `after` has arrived whole, at any host.
    pub dependencies: Vec<(u32, u32)>,
    /// `(message, step)`: the step ends when this message has arrived, or this computation is done, and all others of
    /// the step.
    pub step_ends: Vec<(u32, u32)>,
}

impl Workload {
    /// Longest message.
    pub const MAX_BYTES: u32 = openmrc_transport::mrc::MAX_MESSAGE;

    /// Adds a connection; its index.
    pub fn connect(&mut self, src: u32, dst: u32) -> u32 {
        self.connections.push(Connection { src, dst });
        self.connections.len() as u32 - 1
    }

    /// Adds a message; its index.
    pub fn send(&mut self, connection: u32, bytes: u32, start: Time) -> u32 {
        self.messages.push(Message { connection, bytes, start, takes: Span::ZERO });
        self.messages.len() as u32 - 1
    }

    /// Adds a computation on a connection of a host to itself; its index among the messages.
    pub fn compute(&mut self, connection: u32, takes: Span) -> u32 {
        self.messages.push(Message { connection, bytes: 0, start: Time::ZERO, takes });
        self.messages.len() as u32 - 1
    }

    /// `message` waits for `after`.
    pub fn wait(&mut self, message: u32, after: u32) {
        self.dependencies.push((message, after));
    }

    /// Adds all of another workload, its indices moved.
    pub fn append(&mut self, other: &Workload) {
        let (connections, messages) = (self.connections.len() as u32, self.messages.len() as u32);
        self.connections.extend_from_slice(&other.connections);
        self.messages
            .extend(other.messages.iter().map(|m| Message { connection: m.connection + connections, ..*m }));
        self.dependencies.extend(other.dependencies.iter().map(|&(m, a)| (m + messages, a + messages)));
        self.step_ends.extend(other.step_ends.iter().map(|&(m, step)| (m + messages, step)));
    }

    /// The same traffic with every connection split into `ways`, each with an even share of every message. Shares are
    /// rounded up to `unit` bytes, so a short message has fewer. Message `i` becomes the messages `parts[i] ..
    /// parts[i + 1]`, where `parts` is the second value.
    pub fn striped(&self, ways: u32, unit: u32) -> (Workload, Vec<u32>) {
        let ways = ways.max(1);
        let mut striped = Workload::default();
        for connection in &self.connections {
            for _ in 0..ways {
                striped.connections.push(*connection);
            }
        }
        let mut parts = vec![0];
        for message in &self.messages {
            if message.bytes == 0 {
                striped.compute(message.connection * ways, message.takes);
                parts.push(striped.messages.len() as u32);
                continue;
            }
            let share = message.bytes.div_ceil(ways).next_multiple_of(unit.max(1));
            let mut left = message.bytes;
            for way in 0..ways {
                let bytes = share.min(left);
                left -= bytes;
                if bytes > 0 {
                    striped.send(message.connection * ways + way, bytes, message.start);
                }
            }
            parts.push(striped.messages.len() as u32);
        }
        let of = |message: u32| parts[message as usize]..parts[message as usize + 1];
        for &(message, after) in &self.dependencies {
            for part in of(message) {
                striped.dependencies.extend(of(after).map(|other| (part, other)));
            }
        }
        (striped, parts)
    }

    /// Moves the start of everything by a time.
    pub fn delay(&mut self, by: Span) {
        for message in &mut self.messages {
            message.start += by;
        }
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.messages.iter().map(|m| u64::from(m.bytes)).sum()
    }

    /// Checks every index and length against a fabric of `hosts` hosts.
    ///
    /// # Errors
    /// [`WorkloadError`] for the first that is wrong. A dependency must point backwards: so there is no cycle.
    pub fn check(&self, hosts: u32) -> Result<(), WorkloadError> {
        let most = self.messages.len().max(self.connections.len());
        if most > 1 << 31 {
            return Err(WorkloadError::TooMany(most));
        }
        for (connection, &Connection { src, dst }) in self.connections.iter().enumerate() {
            if let Some(host) = [src, dst].into_iter().find(|&h| h >= hosts) {
                return Err(WorkloadError::Host { connection, host, last: hosts - 1 });
            }
        }
        for (message, m) in self.messages.iter().enumerate() {
            if m.connection as usize >= self.connections.len() {
                return Err(WorkloadError::Connection { message, connection: m.connection });
            }
            let Connection { src, dst } = self.connections[m.connection as usize];
            if src == dst && m.bytes == 0 {
                continue;
            }
            if src == dst {
                return Err(WorkloadError::Loop { connection: m.connection as usize, host: src });
            }
            if m.bytes == 0 || m.bytes > Self::MAX_BYTES {
                return Err(WorkloadError::Length { message, bytes: m.bytes });
            }
        }
        match self.dependencies.iter().find(|&&(m, a)| m as usize >= self.messages.len() || a >= m) {
            Some(&(message, after)) => Err(WorkloadError::Dependency { message, after }),
            None => Ok(()),
        }
    }
}
