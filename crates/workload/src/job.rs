//! The workload of a job under construction: the operations of each rank follow each other.

use std::collections::HashMap;

use openmrc_transport::Span;

use crate::tasks::Workload;

/// The next operation of a rank waits for its frontier.
pub(crate) struct Job<'a> {
    pub workload: Workload,
    hosts: &'a [u32],
    connections: HashMap<(u32, u32), u32>,
    /// By rank: the tasks that its next operation waits for.
    frontier: Vec<Vec<u32>>,
}

impl<'a> Job<'a> {
    pub fn new(hosts: &'a [u32]) -> Self {
        let frontier = vec![Vec::new(); hosts.len()];
        Job { workload: Workload::default(), hosts, connections: HashMap::new(), frontier }
    }

    /// One queue pair for each pair of hosts, for the whole run.
    fn connection(&mut self, src: u32, dst: u32) -> u32 {
        let workload = &mut self.workload;
        *self.connections.entry((src, dst)).or_insert_with(|| workload.connect(src, dst))
    }

    fn wait(&mut self, message: u32, rank: usize) {
        for &after in &self.frontier[rank] {
            self.workload.dependencies.push((message, after));
        }
    }

    /// A computation of a rank after its earlier operations; the index of its task.
    pub fn compute(&mut self, rank: usize, takes: Span) -> u32 {
        let host = self.hosts[rank];
        // It takes a number among the connections, from which queue pairs have their seeds.
        self.connection(host, host);
        let task = self.workload.compute(host, takes);
        self.wait(task, rank);
        self.frontier[rank] = vec![task];
        task
    }

    /// The next operation of a rank waits for a message too.
    pub fn wait_for(&mut self, rank: usize, message: u32) {
        self.frontier[rank].push(message);
    }

    /// The next operation of a rank waits for these messages and computations, and for nothing else.
    pub fn begin_after(&mut self, rank: usize, messages: &[u32]) {
        self.frontier[rank] = messages.to_vec();
    }

    /// A message after the sender's earlier operations, which does not hold up its later ones.
    pub fn send(&mut self, from: usize, to: usize, bytes: u64) -> u32 {
        let connection = self.connection(self.hosts[from], self.hosts[to]);
        let bytes = bytes.min(u64::from(Workload::MAX_BYTES)) as u32;
        let message = self.workload.send(connection, bytes, openmrc_transport::Time::ZERO);
        self.wait(message, from);
        message
    }

    /// A collective as a graph between places 0, 1, ... of a group. A rank sends when its earlier operations are done, and
    /// goes on when it has received everything.
    pub fn exchange(&mut self, group: &[usize], graph: &Workload) {
        if graph.tasks.is_empty() {
            return;
        }
        // So that every message of the collective waits for one operation of its rank.
        for &rank in group {
            if self.frontier[rank].len() > 1 {
                self.compute(rank, Span::ZERO);
            }
        }
        let base = self.workload.tasks.len() as u32;
        let mut received = vec![Vec::new(); group.len()];
        for (_, connection, bytes) in graph.messages() {
            let ends = graph.connections[connection as usize];
            let (from, to) = (ends.src as usize, ends.dst as usize);
            received[to].push(self.send(group[from], group[to], bytes.into()));
        }
        self.workload.dependencies.extend(graph.dependencies.iter().map(|&(m, a)| (m + base, a + base)));
        for (&rank, messages) in group.iter().zip(received) {
            self.frontier[rank].extend(messages);
            self.compute(rank, Span::ZERO);
        }
    }

    /// The step ends when every rank has reached this point.
    pub fn end_step(&mut self, step: u32) {
        for rank in 0..self.hosts.len() {
            self.compute(rank, Span::ZERO);
            self.workload.step_ends.push((self.frontier[rank][0], step));
        }
    }
}
