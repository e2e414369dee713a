//! What hosts do: connections, tasks, and which task waits for which.

use openmrc_transport::{Span, Time};

/// A queue pair at each of two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Requestor.
    pub src: u32,
    /// Responder.
    pub dst: u32,
}

/// Something that a host does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// It computes.
    Compute {
        /// The host.
        host: u32,
        /// For how long.
        takes: Span,
        /// Not begun before this time.
        start: Time,
    },
    /// It sends a message: one RDMA WRITE.
    Send {
        /// Index of the connection.
        connection: u32,
        /// Length, 1 ..= 2^31.
        bytes: u32,
        /// Not posted before this time.
        start: Time,
    },
}

impl Task {
    /// The earliest time at which it begins.
    pub const fn start(&self) -> Time {
        match *self {
            Task::Compute { start, .. } | Task::Send { start, .. } => start,
        }
    }

    /// Length of a message; `None` for a computation.
    pub const fn bytes(&self) -> Option<u32> {
        match *self {
            Task::Compute { .. } => None,
            Task::Send { bytes, .. } => Some(bytes),
        }
    }

    /// The same with its connection and its start changed.
    fn moved(self, connections: u32, by: Span) -> Self {
        match self {
            Task::Compute { host, takes, start } => Task::Compute { host, takes, start: start + by },
            Task::Send { connection, bytes, start } => {
                Task::Send { connection: connection + connections, bytes, start: start + by }
            }
        }
    }
}

/// A node of a recorded job, as tasks: from the begin of one to the end of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeTasks {
    /// The rank.
    pub rank: u32,
    /// The node's number in the trace of its rank.
    pub node: u64,
    /// The task with which it begins.
    pub begin: u32,
    /// The task with which it ends; it may be the same.
    pub end: u32,
}

/// Why a workload cannot run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A computation of a host that the fabric does not have.
    #[error("task {task}: host h{host} does not exist, the fabric has h0 to h{last}")]
    Computer {
        /// Index of the task.
        task: usize,
        /// The host.
        host: u32,
        /// The last one there is.
        last: u32,
    },
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
    /// A task waits for one that does not exist, or for itself.
    #[error("task {task} waits for task {after}, which does not come before it")]
    Dependency {
        /// Index of the task.
        task: u32,
        /// What it waits for.
        after: u32,
    },
    /// More tasks or connections than indices.
    #[error("{0} tasks or connections are too many: at most 2^31")]
    TooMany(usize),
}

/// Everything that hosts do in a run.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Workload {
    /// Connections.
    pub connections: Vec<Connection>,
    /// Tasks. The messages of one connection are posted in the order in which they become due.
    pub tasks: Vec<Task>,
    /// `(task, after)`: the task begins when the computation `after` is done, or when the message `after` has arrived
    /// whole, at any host.
    pub dependencies: Vec<(u32, u32)>,
    /// `(task, step)`: the step ends when this task and all others of the step are done.
    pub step_ends: Vec<(u32, u32)>,
    /// Nodes of recorded jobs.
    pub nodes: Vec<NodeTasks>,
    /// Where the tasks of each pattern of traffic end; empty if they are of one.
    pub pattern_ends: Vec<u32>,
}

impl Workload {
    /// Longest message.
    pub const MAX_BYTES: u32 = openmrc_transport::mrc::MAX_MESSAGE;

    /// Adds a connection; its index.
    pub fn connect(&mut self, src: u32, dst: u32) -> u32 {
        self.connections.push(Connection { src, dst });
        self.connections.len() as u32 - 1
    }

    fn add(&mut self, task: Task) -> u32 {
        self.tasks.push(task);
        self.tasks.len() as u32 - 1
    }

    /// Adds a message; the index of its task.
    pub fn send(&mut self, connection: u32, bytes: u32, start: Time) -> u32 {
        self.add(Task::Send { connection, bytes, start })
    }

    /// Adds a computation; the index of its task.
    pub fn compute(&mut self, host: u32, takes: Span) -> u32 {
        self.add(Task::Compute { host, takes, start: Time::ZERO })
    }

    /// `task` waits for `after`.
    pub fn wait(&mut self, task: u32, after: u32) {
        self.dependencies.push((task, after));
    }

    /// The messages: the index of each one's task, its connection, its bytes.
    pub fn messages(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        (0..).zip(&self.tasks).filter_map(|(index, task)| match *task {
            Task::Send { connection, bytes, .. } => Some((index, connection, bytes)),
            Task::Compute { .. } => None,
        })
    }

    /// Adds all of another workload, its indices moved, as a pattern.
    pub fn append(&mut self, other: &Workload) {
        let (connections, tasks) = (self.connections.len() as u32, self.tasks.len() as u32);
        self.connections.extend_from_slice(&other.connections);
        self.tasks.extend(other.tasks.iter().map(|task| task.moved(connections, Span::ZERO)));
        self.dependencies.extend(other.dependencies.iter().map(|&(t, a)| (t + tasks, a + tasks)));
        self.step_ends.extend(other.step_ends.iter().map(|&(t, step)| (t + tasks, step)));
        let moved =
            |node: &NodeTasks| NodeTasks { begin: node.begin + tasks, end: node.end + tasks, ..*node };
        self.nodes.extend(other.nodes.iter().map(moved));
        self.pattern_ends.push(self.tasks.len() as u32);
    }

    /// The same traffic with every connection split into `ways`, each with an even share of every message. Shares are
    /// rounded up to `unit` bytes, so a short message has fewer. Task `i` becomes the tasks `parts[i] ..
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
        for &task in &self.tasks {
            match task {
                Task::Compute { .. } => {
                    striped.add(task);
                }
                Task::Send { connection, bytes, start } => {
                    let share = bytes.div_ceil(ways).next_multiple_of(unit.max(1));
                    let mut left = bytes;
                    for way in 0..ways {
                        let bytes = share.min(left);
                        left -= bytes;
                        if bytes > 0 {
                            striped.send(connection * ways + way, bytes, start);
                        }
                    }
                }
            }
            parts.push(striped.tasks.len() as u32);
        }
        let of = |task: u32| parts[task as usize]..parts[task as usize + 1];
        for &(task, after) in &self.dependencies {
            for part in of(task) {
                striped.dependencies.extend(of(after).map(|other| (part, other)));
            }
        }
        striped.pattern_ends = self.pattern_ends.iter().map(|&end| parts[end as usize]).collect();
        (striped, parts)
    }

    /// Moves the start of everything by a time.
    pub fn delay(&mut self, by: Span) {
        for task in &mut self.tasks {
            *task = task.moved(0, by);
        }
    }

    /// Bytes of all messages.
    pub fn bytes(&self) -> u64 {
        self.tasks.iter().filter_map(Task::bytes).map(u64::from).sum()
    }

    /// Checks every index and length against a fabric of `hosts` hosts.
    ///
    /// # Errors
    /// [`WorkloadError`] for the first that is wrong. A dependency must point backwards: so there is no cycle.
    pub fn check(&self, hosts: u32) -> Result<(), WorkloadError> {
        let most = self.tasks.len().max(self.connections.len());
        if most > 1 << 31 {
            return Err(WorkloadError::TooMany(most));
        }
        let last = hosts - 1;
        for (connection, &Connection { src, dst }) in self.connections.iter().enumerate() {
            if let Some(host) = [src, dst].into_iter().find(|&h| h > last) {
                return Err(WorkloadError::Host { connection, host, last });
            }
        }
        for (index, task) in self.tasks.iter().enumerate() {
            match *task {
                Task::Compute { host, .. } if host > last => {
                    return Err(WorkloadError::Computer { task: index, host, last });
                }
                Task::Compute { .. } => {}
                Task::Send { connection, bytes, .. } => self.check_message(index, connection, bytes)?,
            }
        }
        match self.dependencies.iter().find(|&&(t, a)| t as usize >= self.tasks.len() || a >= t) {
            Some(&(task, after)) => Err(WorkloadError::Dependency { task, after }),
            None => Ok(()),
        }
    }

    fn check_message(&self, message: usize, connection: u32, bytes: u32) -> Result<(), WorkloadError> {
        let Some(&Connection { src, dst }) = self.connections.get(connection as usize) else {
            return Err(WorkloadError::Connection { message, connection });
        };
        if src == dst {
            return Err(WorkloadError::Loop { connection: connection as usize, host: src });
        }
        if bytes == 0 || bytes > Self::MAX_BYTES {
            return Err(WorkloadError::Length { message, bytes });
        }
        Ok(())
    }
}
