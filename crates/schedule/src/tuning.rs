//! Which algorithm executes an operation. Every rank must choose the same, so the choice depends only on what all ranks
//! know: the operation, its size and the number of ranks.

use crate::algorithms::{Algorithm, Shape};

/// Sizes at which the choice changes, in bytes of an input. The defaults are estimates, not measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// all_reduce, reduce_scatter and all_gather: up to this many bytes each rank writes to all others.
    pub direct: usize,
    /// all_reduce with a power of two of ranks: up to this many bytes by halving; above by the ring.
    pub halving: usize,
    /// broadcast and reduce: up to this many bytes by a tree; above by a chain.
    pub tree: usize,
    /// With more ranks than this a direct exchange is replaced by trees and rings.
    pub direct_ranks: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { direct: 32 << 10, halving: 256 << 10, tree: 256 << 10, direct_ranks: 16 }
    }
}

impl Tuning {
    /// The algorithm for an operation whose elements have `size` bytes.
    pub fn choose(&self, shape: &Shape, ranks: usize, size: usize) -> Algorithm {
        let few = ranks <= self.direct_ranks;
        match shape {
            Shape::AllReduce { count } => {
                let bytes = count * size;
                if bytes <= self.direct && few {
                    Algorithm::Direct
                } else if bytes <= self.halving && ranks.is_power_of_two() {
                    Algorithm::Halving
                } else if bytes <= self.direct {
                    Algorithm::Tree
                } else {
                    Algorithm::Ring
                }
            }
            Shape::ReduceScatter { counts } | Shape::AllGather { counts } => {
                let bytes = counts.iter().sum::<usize>() * size;
                if bytes <= self.direct && few { Algorithm::Direct } else { Algorithm::Ring }
            }
            Shape::Broadcast { count, .. } | Shape::Reduce { count, .. } => {
                if count * size <= self.tree {
                    Algorithm::Tree
                } else {
                    Algorithm::Chain
                }
            }
            Shape::AllToAll { .. } | Shape::Gather { .. } | Shape::Scatter { .. } => Algorithm::Direct,
            Shape::Barrier => Algorithm::Tree,
        }
    }
}
