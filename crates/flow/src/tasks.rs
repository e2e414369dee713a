//! Tasks and connections: what waits for what, and what has become of each task.

use openmrc_scenario::Fate;
use openmrc_transport::Time;
use openmrc_workload::{Connection, Dependents, Task, Workload};

/// Instead of the index of a task.
pub(crate) const NONE: u32 = u32::MAX;

/// A task of the run.
struct TaskState {
    /// The connection; of a computation its host.
    connection: u32,
    /// 0 for a computation.
    bytes: u32,
    waits_for: u32,
    /// The next message that its connection sends.
    next: u32,
    /// The earliest time to begin it; later, when it was posted.
    posted: u64,
    delivered: u64,
    completed: u64,
}

/// A connection sends its messages one after the other, in the order in which they are due.
#[derive(Clone, Copy)]
struct ConnectionState {
    ends: Connection,
    /// The message that it sends, and the last one that waits behind it.
    first: u32,
    last: u32,
    /// How many changes of the network it has met.
    changes: u32,
}

/// All tasks and connections.
pub(crate) struct Tasks {
    tasks: Vec<TaskState>,
    connections: Vec<ConnectionState>,
    dependents: Dependents,
    /// By task: how long it computes, picoseconds. Empty if nothing computes.
    computing_time: Vec<u64>,
    pub finished: usize,
}

/// Bytes of state of a task and of a connection, without what waits for what.
pub(crate) const BYTES_PER_TASK: usize = size_of::<TaskState>();
pub(crate) const BYTES_PER_CONNECTION: usize = size_of::<ConnectionState>();

impl Tasks {
    pub fn new(workload: &Workload) -> Self {
        let state = |task: &Task| {
            let (connection, bytes) = match *task {
                Task::Compute { host, .. } => (host, 0),
                Task::Send { connection, bytes, .. } => (connection, bytes),
            };
            let (never, posted) = (u64::MAX, task.start().0);
            let waits_for = 0;
            TaskState { connection, bytes, waits_for, next: NONE, posted, delivered: never, completed: never }
        };
        let mut tasks: Vec<_> = workload.tasks.iter().map(state).collect();
        for &(task, _) in &workload.dependencies {
            tasks[task as usize].waits_for += 1;
        }
        let connection = |&ends: &Connection| ConnectionState { ends, first: NONE, last: NONE, changes: 0 };
        let takes = |task: &Task| match *task {
            Task::Compute { takes, .. } => takes.0,
            Task::Send { .. } => 0,
        };
        let computes = workload.tasks.iter().any(|task| takes(task) > 0);
        Tasks {
            tasks,
            connections: workload.connections.iter().map(connection).collect(),
            dependents: Dependents::new(workload),
            computing_time: if computes { workload.tasks.iter().map(takes).collect() } else { Vec::new() },
            finished: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    pub fn is_computation(&self, task: u32) -> bool {
        self.tasks[task as usize].bytes == 0
    }

    pub fn bytes(&self, task: u32) -> u32 {
        self.tasks[task as usize].bytes
    }

    /// The hosts at which a task begins and ends.
    pub fn ends(&self, task: u32) -> Connection {
        let state = &self.tasks[task as usize];
        if state.bytes == 0 {
            return Connection { src: state.connection, dst: state.connection };
        }
        self.connections[state.connection as usize].ends
    }

    /// The tasks that wait for nothing, and when each is due: a computation when it has ended.
    pub fn due_at_first(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let free = (0..).zip(&self.tasks).filter(|(_, state)| state.waits_for == 0);
        free.map(|(task, state)| (state.posted + self.computing_time(task), task))
    }

    fn computing_time(&self, task: u32) -> u64 {
        self.computing_time.get(task as usize).copied().unwrap_or(0)
    }

    /// A message is due. Returns whether its connection sends it at once.
    pub fn post(&mut self, task: u32, now: u64) -> bool {
        let state = &mut self.tasks[task as usize];
        state.posted = now;
        let connection = &mut self.connections[state.connection as usize];
        let is_first = connection.first == NONE;
        let last = std::mem::replace(&mut connection.last, task);
        if is_first {
            connection.first = task;
        } else {
            self.tasks[last as usize].next = task;
        }
        is_first
    }

    /// The last byte of a message has left. Returns the next one of its connection.
    pub fn left(&mut self, task: u32) -> Option<u32> {
        let state = &self.tasks[task as usize];
        let connection = &mut self.connections[state.connection as usize];
        connection.first = state.next;
        Some(state.next).filter(|&next| next != NONE)
    }

    /// The connection of a message meets the network after this number of changes. Returns whether any is new to it.
    pub fn meets_changes(&mut self, task: u32, changes: u32) -> bool {
        let connection = self.tasks[task as usize].connection;
        let met = &mut self.connections[connection as usize].changes;
        std::mem::replace(met, changes) != changes
    }

    /// A computation has ended.
    pub fn computed(&mut self, task: u32, now: u64) {
        let takes = self.computing_time(task);
        let state = &mut self.tasks[task as usize];
        (state.posted, state.delivered, state.completed) = (now - takes, now, now);
        self.finished += 1;
    }

    /// A message has arrived; its sender knows at `completed`.
    pub fn delivered(&mut self, task: u32, now: u64, completed: u64) {
        let state = &mut self.tasks[task as usize];
        (state.delivered, state.completed) = (now, completed);
        self.finished += 1;
    }

    /// A task is done: hands out the tasks that waited for it alone, and when each is due. `far` is the time in which
    /// another host hears of it.
    pub fn release(&mut self, task: u32, (now, far): (u64, u64), mut due: impl FnMut(u64, u32)) {
        let here = self.ends(task).dst;
        for i in 0..self.dependents.of(task).len() {
            let waiter = self.dependents.of(task)[i];
            let heard = if self.ends(waiter).src == here { now } else { now + far };
            let takes = self.computing_time(waiter);
            let state = &mut self.tasks[waiter as usize];
            state.posted = state.posted.max(heard);
            state.waits_for -= 1;
            if state.waits_for == 0 {
                due(state.posted + takes, waiter);
            }
        }
    }

    /// By task: what has become of it. What lies beyond `limit` has not happened.
    pub fn fates(&self, limit: u64) -> impl Iterator<Item = Fate> + '_ {
        let until = move |time: u64| if time > limit { Time::NEVER } else { Time(time) };
        (0..).zip(&self.tasks).map(move |(task, state)| Fate {
            ends: self.ends(task),
            bytes: state.bytes,
            posted: Time(state.posted),
            delivered: until(state.delivered),
            completed: until(state.completed),
            failed: false,
        })
    }
}
