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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_changes_just_above_each_size_and_number_of_ranks() {
        use Algorithm::*;
        let tuning = Tuning { direct: 40, halving: 80, tree: 60, direct_ranks: 8 };
        // Elements of four bytes.
        let all_reduce = |count: usize, ranks: usize| tuning.choose(&Shape::AllReduce { count }, ranks, 4);
        assert_eq!([(10, 8), (10, 7)].map(|(n, ranks)| all_reduce(n, ranks)), [Direct, Direct]);
        assert_eq!([(11, 8), (20, 8), (10, 16)].map(|(n, ranks)| all_reduce(n, ranks)), [Halving; 3]);
        assert_eq!([(10, 9), (1, 12)].map(|(n, ranks)| all_reduce(n, ranks)), [Tree; 2]);
        assert_eq!([(21, 8), (11, 9), (21, 16)].map(|(n, ranks)| all_reduce(n, ranks)), [Ring; 3]);
        for counts in [vec![4, 6], vec![4, 7]] {
            let few = if counts == [4, 6] { Direct } else { Ring };
            let gather = Shape::AllGather { counts: counts.clone() };
            let scatter = Shape::ReduceScatter { counts };
            assert_eq!([&gather, &scatter].map(|shape| tuning.choose(shape, 8, 4)), [few; 2]);
            assert_eq!([&gather, &scatter].map(|shape| tuning.choose(shape, 9, 4)), [Ring; 2]);
        }
        for (count, expected) in [(15, Tree), (16, Chain)] {
            let rooted = [Shape::Broadcast { root: 0, count }, Shape::Reduce { root: 0, count }];
            assert_eq!(rooted.map(|shape| tuning.choose(&shape, 100, 4)), [expected; 2]);
        }
        let exchanges = [Shape::Gather { root: 0, count: 99 }, Shape::Scatter { root: 0, count: 99 }];
        assert_eq!(exchanges.map(|shape| tuning.choose(&shape, 100, 4)), [Direct; 2]);
        assert_eq!(tuning.choose(&Shape::Barrier, 100, 4), Tree);
    }
}
