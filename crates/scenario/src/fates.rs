//! The results of messages, steps and nodes, from what became of the tasks: for every engine.

use std::collections::BTreeMap;

use openmrc_transport::Time;
use openmrc_workload::{Connection, NodeTasks, Workload};

use crate::results::{MessageResult, NodeResult, StepResult};

/// What became of a task.
pub struct Fate {
    /// Its hosts.
    pub ends: Connection,
    /// Length of a message; 0 for a computation.
    pub bytes: u32,
    /// When it was posted; of a computation when it began.
    pub posted: Time,
    /// When its last byte was in place; of a computation when it was done.
    pub delivered: Time,
    /// When its sender knew.
    pub completed: Time,
    /// Its queue pair went to ERROR.
    pub failed: bool,
}

impl Fate {
    /// The fate of both parts of a message.
    #[must_use]
    pub fn with(self, other: Fate) -> Fate {
        Fate {
            ends: self.ends,
            bytes: self.bytes + other.bytes,
            posted: self.posted.min(other.posted),
            delivered: self.delivered.max(other.delivered),
            completed: self.completed.max(other.completed),
            failed: self.failed || other.failed,
        }
    }
}

/// What became of the tasks of a run.
pub struct TaskResults {
    /// By message.
    pub messages: Vec<MessageResult>,
    /// By pattern and number.
    pub steps: Vec<StepResult>,
    /// In the order of the workload.
    pub nodes: Vec<NodeResult>,
}

/// Which tasks are of which pattern, and which of them end a step or a node.
pub struct Patterns {
    /// Where the tasks of each pattern end.
    ends: Vec<u32>,
    /// Task and step, by task.
    step_ends: Vec<(u32, u32)>,
    nodes: Vec<NodeTasks>,
    /// Indices of the nodes, by the task with which they begin.
    by_begin: Vec<u32>,
    /// And by the task with which they end.
    by_end: Vec<u32>,
}

impl Patterns {
    /// Those of a workload.
    pub fn new(workload: &Workload) -> Self {
        let mut step_ends = workload.step_ends.clone();
        step_ends.sort_unstable();
        let nodes = workload.nodes.clone();
        let sorted = |task: fn(&NodeTasks) -> u32| {
            let mut indices: Vec<u32> = (0..nodes.len() as u32).collect();
            indices.sort_by_key(|&index| task(&nodes[index as usize]));
            indices
        };
        let (by_begin, by_end) = (sorted(|node| node.begin), sorted(|node| node.end));
        Patterns { ends: workload.pattern_ends.clone(), step_ends, nodes, by_begin, by_end }
    }

    /// The results of messages, steps and nodes.
    pub fn results(&self, fates: impl Iterator<Item = Fate>) -> TaskResults {
        let mut messages = Vec::new();
        let mut nodes: Vec<_> = (self.nodes.iter())
            .map(|&NodeTasks { rank, node, .. }| NodeResult {
                pattern: 0,
                rank,
                node,
                began: Time::NEVER,
                ended: Time::NEVER,
            })
            .collect();
        let (mut begins, mut ends) = (self.by_begin.iter().peekable(), self.by_end.iter().peekable());
        let mut steps: BTreeMap<(u32, u32), Time> = BTreeMap::new();
        let (mut pattern, mut step_ends) = (0, self.step_ends.iter().peekable());
        for (task, fate) in (0..).zip(fates) {
            while self.ends.get(pattern as usize).is_some_and(|&end| end <= task) {
                pattern += 1;
            }
            while let Some(&(_, step)) = step_ends.next_if(|&&(of, _)| of == task) {
                let end = steps.entry((pattern, step)).or_default();
                *end = (*end).max(fate.delivered);
            }
            while let Some(&index) = begins.next_if(|&&index| self.nodes[index as usize].begin == task) {
                if fate.delivered != Time::NEVER {
                    nodes[index as usize].began = fate.posted;
                }
            }
            while let Some(&index) = ends.next_if(|&&index| self.nodes[index as usize].end == task) {
                let node = &mut nodes[index as usize];
                (node.pattern, node.ended) = (pattern, fate.delivered);
            }
            if fate.bytes > 0 {
                messages.push(MessageResult {
                    src: fate.ends.src,
                    dst: fate.ends.dst,
                    bytes: fate.bytes,
                    pattern,
                    posted: fate.posted,
                    delivered: fate.delivered,
                    completed: fate.completed,
                    failed: fate.failed,
                });
            }
        }
        let steps = steps.into_iter().map(|((pattern, step), end)| StepResult { pattern, step, end });
        TaskResults { messages, steps: steps.collect(), nodes }
    }
}
