//! Collective operations: each rank sends when it has received what it needs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;
use crate::numbers::{Amount, Count, Host, LONGEST_MESSAGE, Micros, Whole, grouped};
use crate::ranks::{Volume, all_pairs, check_ranks, count, members, ranks_exist};
use openmrc_schedule::{Algorithm, EXCHANGES, Shape, even_parts};
use openmrc_workload::{Workload, collectives};

/// A collective operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// Which one.
    pub operation: Operation,
    /// Hosts in rank order; all of them if left open.
    #[serde(default)]
    pub ranks: Option<Vec<Host>>,
    /// The data of one rank; with `all-to-all`, of one pair; with `pipeline`, of one microbatch.
    pub bytes: Amount,
    /// Microbatches of a `pipeline`.
    #[serde(default = "eight")]
    pub microbatches: Count,
}

/// A round number: every job has its own.
const fn eight() -> Count {
    Whole::of(8)
}

/// A collective operation and its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Reduce-scatter and all-gather around a ring.
    RingAllReduce,
    /// Exchanges of all data at distances 1, 2, 4, ...
    RecursiveDoublingAllReduce,
    /// Around a ring.
    AllGather,
    /// Around a ring.
    ReduceScatter,
    /// In steps: each rank sends to the next, the one after that, and so on; eight steps are under way at once.
    AllToAll,
    /// From stage to stage.
    Pipeline,
}

impl Collective {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        check_ranks(self.ranks.as_deref())
    }

    pub(crate) fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        ranks_exist(self.ranks.as_deref(), hosts)?;
        let ranks = count(self.ranks.as_deref(), hosts);
        let parts = match self.operation {
            Operation::RingAllReduce | Operation::AllGather | Operation::ReduceScatter => ranks,
            Operation::RecursiveDoublingAllReduce if !ranks.is_power_of_two() => {
                let message = format!("recursive doubling takes a power of two of ranks, not {ranks}");
                return Err(ScenarioError::new(message));
            }
            _ => 1,
        };
        check_parts("bytes", self.bytes.get(), parts)
    }

    pub(crate) fn volume(&self, hosts: u32) -> Volume {
        let ranks = count(self.ranks.as_deref(), hosts);
        let others = ranks.saturating_sub(1);
        // Each step of a ring passes every part on. Parts without a byte are left out.
        let ring = |passes: u64| {
            let (parts, steps) = (ranks.min(self.bytes.get()), passes * others);
            Volume::new(steps * parts, ranks.min(parts + steps - 1))
        };
        match self.operation {
            Operation::RingAllReduce => ring(2),
            Operation::AllGather | Operation::ReduceScatter => ring(1),
            Operation::RecursiveDoublingAllReduce => {
                let exchanges = u64::from(ranks.ilog2()) * ranks;
                Volume::new(exchanges, exchanges)
            }
            Operation::AllToAll => Volume::new(all_pairs(ranks), all_pairs(ranks)),
            Operation::Pipeline => Volume::new(others * self.microbatches.get(), others),
        }
    }

    /// The time of its steps, of which each takes at least the sending of its data and a round trip, microseconds.
    pub(crate) fn least_us(&self, hosts: u32, rtt: f64, sends: impl Fn(u64) -> f64) -> f64 {
        let ranks = count(self.ranks.as_deref(), hosts);
        let others = ranks.saturating_sub(1);
        let steps = match self.operation {
            Operation::RingAllReduce => 2 * others,
            Operation::AllGather | Operation::ReduceScatter => others,
            // Several steps are under way at once: they share a round trip.
            Operation::AllToAll => {
                let trips = others.div_ceil(EXCHANGES as u64);
                return others as f64 * sends(self.part(hosts)) + trips as f64 * rtt;
            }
            Operation::RecursiveDoublingAllReduce => u64::from(ranks.max(1).ilog2()),
            Operation::Pipeline => others + self.microbatches.get(),
        };
        steps as f64 * (sends(self.part(hosts)) + rtt)
    }

    /// Bytes of a message.
    pub(crate) fn part(&self, hosts: u32) -> u64 {
        match self.operation {
            Operation::RingAllReduce | Operation::AllGather | Operation::ReduceScatter => {
                self.bytes.get().div_ceil(count(self.ranks.as_deref(), hosts).max(1))
            }
            _ => self.bytes.get(),
        }
    }

    pub(crate) fn workload(&self, hosts: u32) -> Workload {
        let (ranks, bytes) = (members(self.ranks.as_deref(), hosts), self.bytes.get());
        let parts = || even_parts(bytes as usize, ranks.len(), 1);
        match self.operation {
            Operation::RingAllReduce => collectives::ring_all_reduce(&ranks, bytes),
            Operation::RecursiveDoublingAllReduce => {
                let shape = Shape::AllReduce { count: bytes as usize };
                collectives::operation(&shape, Algorithm::Doubling, &ranks)
            }
            Operation::AllGather => {
                collectives::operation(&Shape::AllGather { counts: parts() }, Algorithm::Ring, &ranks)
            }
            Operation::ReduceScatter => {
                collectives::operation(&Shape::ReduceScatter { counts: parts() }, Algorithm::Ring, &ranks)
            }
            Operation::AllToAll => collectives::all_to_all(&ranks, bytes),
            Operation::Pipeline => collectives::pipeline(&ranks, bytes, self.microbatches.u32()),
        }
    }
}

/// Checks that each of `parts` even parts of some data fits a message.
pub(crate) fn check_parts(field: &'static str, bytes: u64, parts: u64) -> Result<(), ScenarioError> {
    let part = bytes.div_ceil(parts);
    if part <= LONGEST_MESSAGE {
        return Ok(());
    }
    let each =
        if parts > 1 { format!(" in {parts} parts are {} each", grouped(part)) } else { String::new() };
    let message = format!("{}{each}: a message has at most 2^31 bytes", grouped(bytes));
    Err(ScenarioError::at(field, message))
}
