//! ParallelLayout steps as a graph: phases of computation and the collectives between them, for a layout of data, tensor,
//! pipeline and expert parallelism.

use std::collections::HashMap;

use openmrc_transport::Span;

use crate::collectives;
use crate::job::Job;
use crate::tasks::Workload;

/// A parallel layout, its computation and its communication. Zero bytes leave an operation out.
///
/// Ranks are numbered by pipeline stage, data replica and tensor shard, the last fastest, as launchers do. A step is
/// the pipeline's one-forward-one-backward schedule over its microbatches, then the all-reduce of gradients over the
/// data replicas. Each phase of a microbatch ends with the all-reduce of its tensor group and with two all-to-alls,
/// to the experts and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParallelLayout {
    /// Data replicas.
    pub data: u32,
    /// Shards of each layer.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Data replicas that share a set of experts; divides `data`.
    pub expert: u32,
    /// Microbatches a step.
    pub microbatches: u32,
    /// Steps.
    pub steps: u32,
    /// Computation of one microbatch in one stage, forwards.
    pub forward: Span,
    /// The same backwards.
    pub backward: Span,
    /// All-reduced over the tensor group after each computation, bytes.
    pub tensor_bytes: u64,
    /// Sent by each rank to the next stage for each microbatch, and back, bytes.
    pub activation_bytes: u64,
    /// Sent by each rank to each other of its expert group, and back, for each microbatch and direction, bytes.
    pub expert_bytes: u64,
    /// All-reduced over the data replicas at the end of a step, by each rank, bytes.
    pub gradient_bytes: u64,
}

impl ParallelLayout {
    /// Ranks of the layout.
    pub fn ranks(&self) -> u64 {
        u64::from(self.data) * u64::from(self.tensor) * u64::from(self.pipeline)
    }

    /// The whole run on these hosts, in rank order.
    pub fn workload(&self, hosts: &[u32]) -> Workload {
        let mut job = Job::new(hosts);
        let graphs = self.graphs();
        for step in 0..self.steps {
            self.step(&mut job, &graphs);
            job.end_step(step);
        }
        job.workload
    }

    fn graphs(&self) -> Graphs {
        let places = |ranks: u32| (0..ranks).collect::<Vec<_>>();
        let all_reduce = |ranks, bytes| collectives::ring_all_reduce(&places(ranks), bytes);
        Graphs {
            tensors: all_reduce(self.tensor, self.tensor_bytes),
            gradients: all_reduce(self.data, self.gradient_bytes),
            experts: collectives::all_to_all(&places(self.expert), self.expert_bytes),
        }
    }

    fn rank(&self, stage: u32, replica: u32, shard: u32) -> usize {
        ((stage * self.data + replica) * self.tensor + shard) as usize
    }

    fn step(&self, job: &mut Job, graphs: &Graphs) {
        // The phases of each stage in order, and how many of them are done.
        let schedule: Vec<Vec<Phase>> = (0..self.pipeline).map(|stage| self.schedule(stage)).collect();
        let mut done = vec![0; self.pipeline as usize];
        // By phase and stage: for each of its ranks, the message with its input.
        let mut inputs: HashMap<(Phase, u32), Vec<u32>> = HashMap::new();
        loop {
            let mut progress = false;
            for stage in 0..self.pipeline {
                while let Some(&phase) = schedule[stage as usize].get(done[stage as usize]) {
                    let first = match phase {
                        Phase::Forward(_) => stage == 0,
                        Phase::Backward(_) => stage + 1 == self.pipeline,
                    };
                    if !first && !inputs.contains_key(&(phase, stage)) {
                        break;
                    }
                    self.phase(job, graphs, phase, stage, &mut inputs);
                    done[stage as usize] += 1;
                    progress = true;
                }
            }
            if !progress {
                break;
            }
        }
        for stage in 0..self.pipeline {
            for shard in 0..self.tensor {
                let group: Vec<_> = (0..self.data).map(|replica| self.rank(stage, replica, shard)).collect();
                job.exchange(&group, &graphs.gradients);
            }
        }
    }

    /// One forward, one backward: forwards for the stages that follow, then both in turn, then the remaining backwards.
    fn schedule(&self, stage: u32) -> Vec<Phase> {
        let ahead = (self.pipeline - 1 - stage).min(self.microbatches);
        let mut phases: Vec<_> = (0..ahead).map(Phase::Forward).collect();
        for batch in ahead..self.microbatches {
            phases.extend([Phase::Forward(batch), Phase::Backward(batch - ahead)]);
        }
        phases.extend((self.microbatches - ahead..self.microbatches).map(Phase::Backward));
        phases
    }

    fn phase(
        &self,
        job: &mut Job,
        graphs: &Graphs,
        phase: Phase,
        stage: u32,
        inputs: &mut HashMap<(Phase, u32), Vec<u32>>,
    ) {
        let members: Vec<usize> = (0..self.data)
            .flat_map(|r| (0..self.tensor).map(move |s| (r, s)))
            .map(|(r, s)| self.rank(stage, r, s))
            .collect();
        if let Some(input) = inputs.remove(&(phase, stage)) {
            for (&rank, message) in members.iter().zip(input) {
                job.wait_for(rank, message);
            }
        }
        let (takes, next) = match phase {
            Phase::Forward(_) => (self.forward, stage + 1),
            Phase::Backward(_) => (self.backward, stage.wrapping_sub(1)),
        };
        for &rank in &members {
            job.compute(rank, takes);
        }
        for replica in 0..self.data {
            let group: Vec<_> = (0..self.tensor).map(|shard| self.rank(stage, replica, shard)).collect();
            job.exchange(&group, &graphs.tensors);
        }
        for first in (0..self.data).step_by(self.expert.max(1) as usize) {
            for shard in 0..self.tensor {
                let group: Vec<_> =
                    (first..first + self.expert).map(|replica| self.rank(stage, replica, shard)).collect();
                // To the experts and back.
                for _ in 0..2 {
                    job.exchange(&group, &graphs.experts);
                }
            }
        }
        if next < self.pipeline {
            let brought = members
                .iter()
                .map(|&rank| {
                    let there =
                        rank % (self.data * self.tensor) as usize + (next * self.data * self.tensor) as usize;
                    job.send(rank, there, self.activation_bytes.max(1))
                })
                .collect();
            inputs.insert((phase, next), brought);
        }
    }
}

/// The collectives between the places of a group; without messages where there is nothing to send.
struct Graphs {
    tensors: Workload,
    gradients: Workload,
    experts: Workload,
}

/// One microbatch in one stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Forward(u32),
    Backward(u32),
}
