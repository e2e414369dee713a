//! Training steps: phases of computation and the collectives between them, for a parallel layout.

use openmrc_workload::{Workload, training};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collective::check_parts;
use crate::error::ScenarioError;
use crate::numbers::{AmountOrNone, Count, Host, LONGEST_MESSAGE, Micros, Whole};
use crate::ranks::{Volume, check_ranks, count, members, ranks_exist};

/// Training steps. Ranks are numbered by pipeline stage, data replica and tensor shard, the last fastest. A step is the
/// pipeline's one-forward-one-backward schedule over its microbatches, then the all-reduce of gradients over the data
/// replicas. Zero bytes leave an operation out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Training {
    /// When the pattern begins.
    pub start_us: Micros,
    /// Data replicas.
    pub data: Count,
    /// Shards of each layer.
    pub tensor: Count,
    /// Pipeline stages.
    pub pipeline: Count,
    /// Data replicas that share a set of experts; divides `data`.
    pub expert: Count,
    /// Hosts in rank order; if left open the first hosts, one for each rank.
    pub ranks: Option<Vec<Host>>,
    /// Microbatches of a step.
    pub microbatches: Whole<1, { 1 << 16 }>,
    /// Steps.
    pub steps: Whole<1, { 1 << 20 }>,
    /// Computation of one microbatch in one stage, forwards.
    pub forward_us: Micros,
    /// Computation of one microbatch in one stage, backwards.
    pub backward_us: Micros,
    /// All-reduced over the tensor group after the computation of each microbatch, forwards and backwards.
    pub tensor_bytes: AmountOrNone,
    /// Sent by each rank to the next stage for each microbatch, and back.
    pub activation_bytes: Whole<0, LONGEST_MESSAGE>,
    /// Sent by each rank to each other of its expert group, and back, for each microbatch and direction.
    pub expert_bytes: Whole<0, LONGEST_MESSAGE>,
    /// All-reduced over the data replicas at the end of a step, by each rank.
    pub gradient_bytes: AmountOrNone,
}

impl Default for Training {
    /// One rank, and round numbers: every job has its own.
    fn default() -> Self {
        Training {
            start_us: Micros::ZERO,
            data: Whole::of(1),
            tensor: Whole::of(1),
            pipeline: Whole::of(1),
            expert: Whole::of(1),
            ranks: None,
            microbatches: Whole::of(4),
            steps: Whole::of(4),
            forward_us: Micros::of(100.0),
            // A layer has two matrix products backwards, one forwards.
            backward_us: Micros::of(200.0),
            tensor_bytes: Whole::of(0),
            activation_bytes: Whole::of(1 << 20),
            expert_bytes: Whole::of(0),
            gradient_bytes: Whole::of(1 << 24),
        }
    }
}

impl Training {
    /// Ranks that take part.
    fn size(&self) -> u64 {
        self.data.get().saturating_mul(self.tensor.get()).saturating_mul(self.pipeline.get())
    }

    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        check_ranks(self.ranks.as_deref())?;
        if !self.data.get().is_multiple_of(self.expert.get()) {
            let message = format!("{} does not divide data, {}", self.expert.get(), self.data.get());
            return Err(ScenarioError::at("expert", message));
        }
        Ok(())
    }

    pub(crate) fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        ranks_exist(self.ranks.as_deref(), hosts)?;
        let (need, there) = (self.size(), count(self.ranks.as_deref(), hosts));
        if need > there {
            let message = format!("data x tensor x pipeline = {need} ranks, but there are {there}");
            return Err(ScenarioError::new(message));
        }
        check_parts("gradient_bytes", self.gradient_bytes.get(), self.data.get())?;
        check_parts("tensor_bytes", self.tensor_bytes.get(), self.tensor.get())
    }

    pub(crate) fn computation_us(&self) -> f64 {
        let microbatch = self.forward_us.get() + self.backward_us.get();
        self.steps.get() as f64 * self.microbatches.get() as f64 * microbatch
    }

    pub(crate) fn volume(&self) -> Volume {
        let [data, tensor, expert, stages] =
            [self.data, self.tensor, self.expert, self.pipeline].map(|count| u128::from(count.get()));
        let ranks = data * tensor * stages;
        // Forward and backward phases.
        let phases = 2 * u128::from(self.microbatches.get());
        // A step of a ring passes every part on that has a byte. Each collective ends with a computation of no length in each of its ranks.
        let ring = |bytes: u64, group: u128| match bytes > 0 && group > 1 {
            true => ranks / group * (2 * (group - 1) * group.min(bytes.into()) + group),
            false => 0,
        };
        let of_tensors = ring(self.tensor_bytes.get(), tensor);
        let of_experts = if self.expert_bytes.get() > 0 && expert > 1 { ranks * 2 * expert } else { 0 };
        let of_gradients = ring(self.gradient_bytes.get(), data);
        let between_stages = (stages - 1) * data * tensor;
        // A rank computes in each phase, and at the end of a step it has a computation of no length.
        let step = phases * (ranks + of_tensors + of_experts + between_stages) + of_gradients + ranks;
        let connections = 2 * between_stages
            + if self.tensor_bytes.get() > 0 && tensor > 1 { ranks } else { 0 }
            + stages * tensor * self.replica_pairs();
        let counted = |count: u128| u64::try_from(count).unwrap_or(u64::MAX);
        Volume::new(counted(step * u128::from(self.steps.get())), counted(connections))
    }

    /// Connections between the replicas of one stage and shard: in the ring of gradients, and within groups of experts.
    fn replica_pairs(&self) -> u128 {
        let (data, expert) = (u128::from(self.data.get()), u128::from(self.expert.get()));
        let ring = if self.gradient_bytes.get() > 0 && data > 1 { data } else { 0 };
        if self.expert_bytes.get() == 0 || expert < 2 {
            return ring;
        }
        // Connections of the ring within a group; with one group the last, which leads back to the first, is one of
        // them.
        let shared = data / expert * (expert - 1) + u128::from(data == expert);
        data * (expert - 1) + ring.saturating_sub(shared)
    }

    pub(crate) fn workload(&self, hosts: u32) -> Workload {
        let ranks = members(self.ranks.as_deref(), hosts);
        let layout = training::ParallelLayout {
            data: self.data.u32(),
            tensor: self.tensor.u32(),
            pipeline: self.pipeline.u32(),
            expert: self.expert.u32(),
            microbatches: self.microbatches.u32(),
            steps: self.steps.u32(),
            forward: self.forward_us.span(),
            backward: self.backward_us.span(),
            tensor_bytes: self.tensor_bytes.get(),
            activation_bytes: self.activation_bytes.get(),
            expert_bytes: self.expert_bytes.get(),
            gradient_bytes: self.gradient_bytes.get(),
        };
        let used = usize::try_from(layout.ranks()).unwrap_or(usize::MAX).min(ranks.len());
        layout.workload(&ranks[..used])
    }
}
