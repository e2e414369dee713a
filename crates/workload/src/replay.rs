//! A recorded job as a workload: what each rank computed and exchanged, in the order that it recorded, on any fabric
//! (docs/spec/workloads.md, "2.5 Dependencies and execution"). Operations take the time that the fabric gives them,
//! computations their own.

use std::collections::{HashMap, VecDeque};

use openmrc_schedule::{Algorithm, Exchange, SLOT, Shape, Tuning, even_parts};
use openmrc_transport::Span;

use crate::chakra::{Collective, CollectiveKind, Node, Work};
use crate::collectives;
use crate::job::Job;
use crate::tasks::{NodeTasks, Task, Workload};

/// Groups of ranks by name. Their order is that of the ring.
pub type Groups = HashMap<String, Vec<usize>>;

/// The nodes of all ranks, by rank, as a workload between these hosts.
///
/// # Errors
/// If a node waits for one that does not exist, or ranks do not agree on their operations; the message names rank and
/// node.
pub fn workload(traces: &[Vec<Node>], groups: &Groups, hosts: &[u32]) -> Result<Workload, String> {
    let mut replay = Replay::new(traces, groups, hosts)?;
    while let Some((rank, index)) = replay.ready.pop_front() {
        replay.run(rank, index)?;
    }
    replay.check_done()?;
    Ok(replay.job.workload)
}

/// A rank on its way through its nodes.
struct RankState<'a> {
    nodes: &'a [Node],
    /// Unfinished nodes that each waits for.
    waits: Vec<usize>,
    /// By node: who waits for it.
    next: Vec<Vec<usize>>,
    /// By node: the message or computation with which it ended.
    ended: Vec<Option<u32>>,
    by_id: HashMap<u64, usize>,
    /// By group: its collective operations in the order of the trace, how many of them have run, and the end of the
    /// last.
    lanes: HashMap<&'a str, Lane>,
}

#[derive(Default)]
struct Lane {
    nodes: Vec<usize>,
    done: usize,
    last: Option<u32>,
}

/// Sender, receiver and tag.
type Channel = (usize, usize, u64);

struct Replay<'a> {
    job: Job<'a>,
    ranks: Vec<RankState<'a>>,
    groups: Groups,
    /// Nodes whose parents have ended.
    ready: VecDeque<(usize, usize)>,
    /// Messages that nobody has received.
    sent: HashMap<Channel, VecDeque<u32>>,
    /// Receives without a message.
    awaited: HashMap<Channel, VecDeque<usize>>,
}

impl<'a> Replay<'a> {
    fn new(traces: &'a [Vec<Node>], groups: &Groups, hosts: &'a [u32]) -> Result<Self, String> {
        let mut groups = groups.clone();
        groups.insert(String::new(), (0..traces.len()).collect());
        let mut ready = VecDeque::new();
        let mut ranks = Vec::new();
        for (rank, nodes) in traces.iter().enumerate() {
            let state = RankState::new(rank, nodes, &groups)?;
            ready.extend(state.waits.iter().enumerate().filter(|(_, n)| **n == 0).map(|(i, _)| (rank, i)));
            ranks.push(state);
        }
        let (sent, awaited) = (HashMap::new(), HashMap::new());
        Ok(Replay { job: Job::new(hosts), ranks, groups, ready, sent, awaited })
    }

    /// A node whose parents have ended.
    fn run(&mut self, rank: usize, index: usize) -> Result<(), String> {
        let nodes = self.ranks[rank].nodes;
        match &nodes[index].work {
            Work::Compute(takes) => {
                self.begin(rank, index, None);
                let end = self.job.compute(rank, *takes);
                self.end(rank, index, end, end);
            }
            Work::Collective(collective) => self.collective(rank, collective)?,
            Work::Send { to, tag, bytes } => {
                let to = self.rank(rank, index, *to)?;
                check_length(*bytes).map_err(|what| self.named(rank, index, &what))?;
                self.begin(rank, index, None);
                let message = self.job.send(rank, to, (*bytes).max(1));
                self.end(rank, index, message, message);
                let channel = (rank, to, *tag);
                match self.awaited.get_mut(&channel).and_then(VecDeque::pop_front) {
                    Some(receive) => self.receive(to, receive, message),
                    None => self.sent.entry(channel).or_default().push_back(message),
                }
            }
            Work::Receive { from, tag } => {
                let from = self.rank(rank, index, *from)?;
                let channel = (from, rank, *tag);
                match self.sent.get_mut(&channel).and_then(VecDeque::pop_front) {
                    Some(message) => self.receive(rank, index, message),
                    None => self.awaited.entry(channel).or_default().push_back(index),
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, rank: usize, index: usize, message: u32) {
        self.begin(rank, index, Some(message));
        let end = self.job.compute(rank, Span::ZERO);
        self.end(rank, index, end, end);
    }

    /// The next operation of the group runs once all of its ranks have reached it.
    fn collective(&mut self, rank: usize, collective: &Collective) -> Result<(), String> {
        let name = collective.group.as_str();
        let group = self.groups[name].clone();
        loop {
            let heads: Vec<Option<usize>> =
                group.iter().map(|&member| self.ranks[member].head(name)).collect();
            if heads.contains(&None) {
                return Ok(());
            }
            let heads: Vec<usize> = heads.into_iter().flatten().collect();
            let first = self.ranks[group[0]].collective(heads[0]);
            for (&member, &index) in group.iter().zip(&heads) {
                let theirs = self.ranks[member].collective(index);
                let uneven = theirs.kind == CollectiveKind::AllToAll;
                if theirs.kind != first.kind || (theirs.bytes != first.bytes && !uneven) {
                    let other = &self.ranks[group[0]].nodes[heads[0]].name;
                    let what = format!("does not agree with {other} of rank {}", group[0]);
                    return Err(self.named(member, index, &what));
                }
            }
            let sizes: Vec<u64> = (group.iter().zip(&heads))
                .map(|(&member, &index)| self.ranks[member].collective(index).bytes)
                .collect();
            let graph = graph(first, &sizes).map_err(|what| self.named(rank, heads[0], &what))?;
            let mut begins = Vec::new();
            for (&member, &index) in group.iter().zip(&heads) {
                let last = self.ranks[member].lanes[name].last;
                self.begin(member, index, last);
                begins.push(self.job.compute(member, Span::ZERO));
            }
            self.job.exchange(&group, &graph);
            for ((&member, &index), begin) in group.iter().zip(&heads).zip(begins) {
                let end = self.job.compute(member, Span::ZERO);
                if let Some(lane) = self.ranks[member].lanes.get_mut(name) {
                    lane.done += 1;
                    lane.last = Some(end);
                }
                self.end(member, index, begin, end);
            }
        }
    }

    /// The rank's next operation waits for the parents of a node, and for something else.
    fn begin(&mut self, rank: usize, index: usize, other: Option<u32>) {
        let state = &self.ranks[rank];
        let parents = state.nodes[index].after.iter().filter_map(|id| state.ended[state.by_id[id]]);
        let after: Vec<u32> = parents.chain(other).collect();
        self.job.begin_after(rank, &after);
    }

    /// A node has become tasks, from `begin` to `end`.
    fn end(&mut self, rank: usize, index: usize, begin: u32, end: u32) {
        let state = &mut self.ranks[rank];
        state.ended[index] = Some(end);
        let node = NodeTasks { rank: rank as u32, node: state.nodes[index].id, begin, end };
        self.job.workload.nodes.push(node);
        for next in std::mem::take(&mut state.next[index]) {
            state.waits[next] -= 1;
            if state.waits[next] == 0 {
                self.ready.push_back((rank, next));
            }
        }
    }

    fn rank(&self, rank: usize, index: usize, other: u64) -> Result<usize, String> {
        let found = usize::try_from(other).ok().filter(|&other| other < self.ranks.len() && other != rank);
        found.ok_or_else(|| self.named(rank, index, &format!("has the peer {other}, which is none")))
    }

    fn named(&self, rank: usize, index: usize, what: &str) -> String {
        let node = &self.ranks[rank].nodes[index];
        format!("rank {rank}, node {} ({}) {what}", node.id, node.name)
    }

    fn check_done(&self) -> Result<(), String> {
        for (rank, state) in self.ranks.iter().enumerate() {
            let stuck = |index: &usize| state.ended[*index].is_none() && state.waits[*index] == 0;
            if let Some(index) = (0..state.nodes.len()).find(stuck) {
                let missing = match &state.nodes[index].work {
                    Work::Receive { from, tag } => {
                        format!("waits for a message of rank {from} with tag {tag} that is never sent")
                    }
                    _ => {
                        let group = &self.groups[state.collective(index).group.as_str()];
                        let absent = group.iter().find(|&&member| self.ranks[member].is_over());
                        let who = absent.map_or("others".into(), |rank| format!("rank {rank}"));
                        format!("waits for {who}")
                    }
                };
                return Err(self.named(rank, index, &missing));
            }
            if let Some(index) = (0..state.nodes.len()).find(|&index| state.ended[index].is_none()) {
                return Err(self.named(rank, index, "waits for itself"));
            }
        }
        Ok(())
    }
}

impl<'a> RankState<'a> {
    fn new(rank: usize, nodes: &'a [Node], groups: &Groups) -> Result<Self, String> {
        let by_id: HashMap<u64, usize> = nodes.iter().enumerate().map(|(i, node)| (node.id, i)).collect();
        let mut next = vec![Vec::new(); nodes.len()];
        let mut lanes: HashMap<&str, Lane> = HashMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let named = |what: String| format!("rank {rank}, node {} ({}) {what}", node.id, node.name);
            for parent in &node.after {
                let parent = by_id
                    .get(parent)
                    .ok_or_else(|| named(format!("waits for node {parent}, which does not exist")))?;
                next[*parent].push(index);
            }
            if let Work::Collective(collective) = &node.work {
                let group = groups.get(&collective.group).ok_or_else(|| {
                    named(format!("is of the group {:?}, which does not exist", collective.group))
                })?;
                if !group.contains(&rank) {
                    return Err(named(format!("is of the group {:?}, which it is not in", collective.group)));
                }
                lanes.entry(&collective.group).or_default().nodes.push(index);
            }
        }
        let waits = nodes.iter().map(|node| node.after.len()).collect();
        Ok(RankState { nodes, waits, next, ended: vec![None; nodes.len()], by_id, lanes })
    }

    /// The next operation of a group, if the rank has reached it.
    fn head(&self, group: &str) -> Option<usize> {
        let lane = self.lanes.get(group)?;
        lane.nodes.get(lane.done).copied().filter(|&index| self.waits[index] == 0)
    }

    fn collective(&self, index: usize) -> &'a Collective {
        match &self.nodes[index].work {
            Work::Collective(collective) => collective,
            work => unreachable!("{work:?} is in no lane"),
        }
    }

    fn is_over(&self) -> bool {
        self.ended.iter().all(Option::is_some)
    }
}

fn check_length(bytes: u64) -> Result<(), String> {
    if bytes <= u64::from(Workload::MAX_BYTES) {
        return Ok(());
    }
    Err(format!("has a message of {bytes} bytes: 2^31 are the most"))
}

/// A collective operation among places: by the algorithm that was recorded, or, if none was, the one that a
/// communicator would choose. `sizes` are the bytes that each place recorded, which only all_to_all allows to differ.
fn graph(collective: &Collective, sizes: &[u64]) -> Result<Workload, String> {
    let n = sizes.len();
    let first = shape(collective, sizes, 0);
    let algorithm = Algorithm::from_name(&collective.algorithm)
        .filter(|&algorithm| first.allows(algorithm, n))
        .unwrap_or_else(|| Tuning::default().choose(&first, n, 1));
    let program = |place| shape(collective, sizes, place).program(algorithm, place, n, 1);
    let exchange = Exchange::new(n, program).map_err(|mismatch| mismatch.to_string())?;
    let places: Vec<u32> = (0..n as u32).collect();
    let graph = collectives::workload(&exchange, &places, SLOT as u64);
    check_length(graph.tasks.iter().filter_map(Task::bytes).map(u64::from).max().unwrap_or(0))?;
    Ok(graph)
}

/// What a place called, in bytes.
fn shape(collective: &Collective, sizes: &[u64], place: usize) -> Shape {
    let n = sizes.len();
    let (count, root) = (collective.bytes as usize, collective.root as usize % n);
    match collective.kind {
        CollectiveKind::AllReduce => Shape::AllReduce { count },
        CollectiveKind::AllGather => Shape::AllGather { counts: vec![count; n] },
        CollectiveKind::ReduceScatter => Shape::ReduceScatter { counts: even_parts(count, n, 1) },
        CollectiveKind::AllToAll => {
            let part = |bytes: u64| (bytes as usize).div_ceil(n);
            let recv = sizes.iter().copied().map(part).collect();
            Shape::AllToAll { send: vec![part(sizes[place]); n], recv }
        }
        CollectiveKind::Broadcast => Shape::Broadcast { root, count },
        CollectiveKind::Reduce => Shape::Reduce { root, count },
        CollectiveKind::Gather => Shape::Gather { root, count },
        CollectiveKind::Scatter => Shape::Scatter { root, count },
        CollectiveKind::Barrier => Shape::Barrier,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u64, work: Work, after: &[u64]) -> Node {
        Node { id, name: format!("n{id}"), work, after: after.to_vec() }
    }

    fn all_reduce(id: u64, bytes: u64, after: &[u64]) -> Node {
        let kind = CollectiveKind::AllReduce;
        let (group, algorithm) = (String::new(), "ring".into());
        node(id, Work::Collective(Collective { kind, bytes, group, root: 0, algorithm }), after)
    }

    fn sent_by(workload: &Workload, host: u32) -> u64 {
        let of_host = workload.messages().filter(|m| workload.connections[m.1 as usize].src == host);
        of_host.map(|m| u64::from(m.2)).sum()
    }

    /// The pair of the specification's section 2.10.
    #[test]
    fn a_computation_an_all_reduce_and_a_message_follow_each_other() {
        let compute = node(1, Work::Compute(Span::from_micros(300)), &[]);
        let send = node(3, Work::Send { to: 1, tag: 5, bytes: 65_536 }, &[1, 2]);
        let receive = node(3, Work::Receive { from: 0, tag: 5 }, &[2]);
        let traces = [
            vec![compute.clone(), all_reduce(2, 1 << 20, &[1]), send],
            vec![compute, all_reduce(2, 1 << 20, &[1]), receive],
        ];
        let found = workload(&traces, &Groups::new(), &[4, 5]).unwrap();
        assert!(found.check(6).is_ok());
        assert_eq!((sent_by(&found, 4), sent_by(&found, 5)), (1_114_112, 1_048_576));
        let mut nodes: Vec<_> = found.nodes.iter().map(|node| (node.rank, node.node)).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]);
        for each in &found.nodes {
            let [begin, end] = [each.begin, each.end].map(|task| found.tasks[task as usize]);
            match each.node {
                1 => assert!(matches!(begin, Task::Compute { takes, .. } if takes == Span::from_micros(300))),
                2 => assert!(each.begin < each.end && begin.bytes().or(end.bytes()).is_none()),
                _ => assert_eq!((each.begin, begin.bytes().is_some()), (each.end, each.rank == 0)),
            }
        }
    }

    #[test]
    fn operations_of_a_group_run_in_the_order_of_the_trace() {
        // Rank 1 reaches the second before the first.
        let traces = [
            vec![all_reduce(1, 100, &[]), all_reduce(2, 200, &[])],
            vec![
                node(9, Work::Compute(Span::from_micros(5)), &[]),
                all_reduce(1, 100, &[9]),
                all_reduce(2, 200, &[]),
            ],
        ];
        let found = workload(&traces, &Groups::new(), &[0, 1]).unwrap();
        assert_eq!(sent_by(&found, 0), 300);
    }

    #[test]
    fn ranks_that_disagree_are_named() {
        let missing = [vec![all_reduce(1, 8, &[])], vec![]];
        let refused = |traces: &[Vec<Node>]| workload(traces, &Groups::new(), &[0, 1]).unwrap_err();
        assert_eq!(refused(&missing), "rank 0, node 1 (n1) waits for rank 1");
        let sizes = [vec![all_reduce(1, 8, &[])], vec![all_reduce(7, 16, &[])]];
        assert!(refused(&sizes).contains("rank 1, node 7 (n7) does not agree with n1 of rank 0"));
        let alone = [vec![node(1, Work::Receive { from: 1, tag: 2 }, &[])], vec![]];
        assert!(refused(&alone).contains("a message of rank 1 with tag 2 that is never sent"));
        let unknown = [vec![all_reduce(1, 8, &[77])], vec![]];
        assert!(refused(&unknown).contains("node 77, which does not exist"));
        let circle = [vec![all_reduce(1, 8, &[2]), all_reduce(2, 8, &[1])], vec![]];
        assert!(refused(&circle).contains("waits for itself"));
    }

    #[test]
    fn an_operation_is_replayed_by_the_algorithm_that_was_recorded_or_that_would_be_chosen() {
        let sizes = |algorithm: &str, bytes, n| {
            let (group, algorithm) = (String::new(), algorithm.to_owned());
            let recorded = Collective { kind: CollectiveKind::AllReduce, bytes, group, root: 0, algorithm };
            let graph = graph(&recorded, &vec![bytes; n]).unwrap();
            let from_first = graph.messages().filter(|m| graph.connections[m.1 as usize].src == 0);
            from_first.map(|m| m.2).collect::<Vec<_>>()
        };
        assert_eq!(sizes("halving", 1200, 4), [600, 300, 300, 600]);
        assert_eq!(sizes("ring", 1200, 4), [300; 6]);
        // Nothing was recorded, or what five ranks cannot do.
        for algorithm in ["", "halving"] {
            assert_eq!(sizes(algorithm, 1200, 5), [1200; 4], "direct");
            assert_eq!(sizes(algorithm, 1_000_000, 5), [200_000; 8], "ring");
        }
    }

    #[test]
    fn every_operation_sends_what_its_algorithm_sends() {
        let bytes_of = |kind, algorithm: &str| {
            let (group, algorithm) = (String::new(), algorithm.to_owned());
            let graph =
                graph(&Collective { kind, bytes: 1200, group, root: 1, algorithm }, &[1200; 4]).unwrap();
            assert!(graph.check(4).is_ok(), "{kind:?}");
            graph.bytes()
        };
        use CollectiveKind::*;
        for (kind, algorithm, bytes) in [
            (AllReduce, "ring", 4 * 1800),
            (AllReduce, "halving", 4 * 1800),
            (AllReduce, "doubling", 4 * 2 * 1200),
            (AllReduce, "direct", 12 * 1200),
            (AllReduce, "tree", 6 * 1200),
            (AllGather, "ring", 12 * 1200),
            (ReduceScatter, "ring", 12 * 300),
            (AllToAll, "direct", 12 * 300),
            (Broadcast, "tree", 3 * 1200),
            (Broadcast, "chain", 3 * 1200),
            (Reduce, "chain", 3 * 1200),
            (Gather, "direct", 3 * 1200),
            (Scatter, "direct", 3 * 1200),
            (Barrier, "tree", 8),
        ] {
            assert_eq!(bytes_of(kind, algorithm), bytes, "{kind:?} {algorithm}");
        }
    }
}
