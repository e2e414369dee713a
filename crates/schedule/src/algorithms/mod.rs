//! The algorithms: pure functions from rank numbers and sizes to a [`Program`] (docs/spec/collectives.md,
//! "Collectives").
//!
//! | algorithm | messages per rank | used for |
//! |---|---|---|
//! | ring | 2 (n - 1) of 1/n | large all_reduce, all_gather, reduce_scatter |
//! | halving | 2 log2 n, halves, quarters ... | all_reduce of medium size, n a power of two |
//! | doubling | log2 n, all of it | all_reduce of very few bytes, n a power of two |
//! | direct | n - 1, all at once | small ones; all_to_all, gather, scatter |
//! | tree | log2 n | small broadcast, reduce; all_reduce of many ranks |
//! | chain | 1, passed on while it arrives | large broadcast, reduce |

mod direct;
mod doubling;
mod halving;
mod parts;
mod ring;
mod rooted;

pub use direct::EXCHANGES;
pub use parts::even_parts;

use crate::program::{Program, Rank, Span};

/// How an operation is executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Algorithm {
    /// Each rank passes parts on to the next.
    Ring,
    /// Recursive halving, then doubling.
    Halving,
    /// Each rank writes to every other.
    Direct,
    /// A binomial tree.
    Tree,
    /// A pipeline through all ranks.
    Chain,
    /// Recursive doubling.
    Doubling,
}

impl Algorithm {
    /// All algorithms, in the order of their codes.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Ring,
        Algorithm::Halving,
        Algorithm::Direct,
        Algorithm::Tree,
        Algorithm::Chain,
        Algorithm::Doubling,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::Halving => "halving",
            Algorithm::Direct => "direct",
            Algorithm::Tree => "tree",
            Algorithm::Chain => "chain",
            Algorithm::Doubling => "doubling",
        }
    }

    /// The algorithm with this name.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }
}

/// A collective operation with the sizes that make its program, in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Every rank gets the reduction of all inputs.
    AllReduce {
        /// Elements of each input.
        count: usize,
    },
    /// Rank r gets part r of the reduction.
    ReduceScatter {
        /// Elements of each part, by rank.
        counts: Vec<usize>,
    },
    /// Every rank gets the inputs of all.
    AllGather {
        /// Elements of each input, by rank.
        counts: Vec<usize>,
    },
    /// Rank r gets part r of every input.
    AllToAll {
        /// Elements that this rank sends, by receiver.
        send: Vec<usize>,
        /// Elements that this rank receives, by sender.
        recv: Vec<usize>,
    },
    /// Every rank gets the root's input.
    Broadcast {
        /// Who has it.
        root: Rank,
        /// Its elements.
        count: usize,
    },
    /// The root gets the reduction of all inputs.
    Reduce {
        /// Who gets it.
        root: Rank,
        /// Elements of each input.
        count: usize,
    },
    /// The root gets the inputs of all.
    Gather {
        /// Who gets them.
        root: Rank,
        /// Elements of each input.
        count: usize,
    },
    /// Rank r gets part r of the root's input.
    Scatter {
        /// Who has it.
        root: Rank,
        /// Elements of each part.
        count: usize,
    },
    /// Ends when every rank has called it.
    Barrier,
}

impl Shape {
    /// Its name, as in torch.
    pub const fn name(&self) -> &'static str {
        Self::name_of(self.code())
    }

    /// Number of the kind of operation, which ranks compare.
    pub const fn code(&self) -> u8 {
        match self {
            Shape::AllReduce { .. } => 0,
            Shape::ReduceScatter { .. } => 1,
            Shape::AllGather { .. } => 2,
            Shape::AllToAll { .. } => 3,
            Shape::Broadcast { .. } => 4,
            Shape::Reduce { .. } => 5,
            Shape::Gather { .. } => 6,
            Shape::Scatter { .. } => 7,
            Shape::Barrier => 8,
        }
    }

    /// The name of the operation with a code.
    pub const fn name_of(code: u8) -> &'static str {
        match code {
            0 => "all_reduce",
            1 => "reduce_scatter",
            2 => "all_gather",
            3 => "all_to_all",
            4 => "broadcast",
            5 => "reduce",
            6 => "gather",
            7 => "scatter",
            8 => "barrier",
            _ => "unknown operation",
        }
    }

    /// Whether inputs are reduced.
    pub const fn reduces(&self) -> bool {
        matches!(self, Shape::AllReduce { .. } | Shape::ReduceScatter { .. } | Shape::Reduce { .. })
    }

    /// The root, of those that have one.
    pub const fn root(&self) -> Option<Rank> {
        match self {
            Shape::Broadcast { root, .. }
            | Shape::Reduce { root, .. }
            | Shape::Gather { root, .. }
            | Shape::Scatter { root, .. } => Some(*root),
            _ => None,
        }
    }

    /// Elements that every rank must agree on; 0 where each may have its own.
    pub fn common_count(&self) -> usize {
        match self {
            Shape::AllReduce { count }
            | Shape::Broadcast { count, .. }
            | Shape::Reduce { count, .. }
            | Shape::Gather { count, .. }
            | Shape::Scatter { count, .. } => *count,
            Shape::ReduceScatter { counts } | Shape::AllGather { counts } => counts.iter().sum(),
            Shape::AllToAll { .. } | Shape::Barrier => 0,
        }
    }

    /// Elements of input and output that a rank needs.
    pub fn sizes(&self, rank: Rank, ranks: usize) -> (usize, usize) {
        let at_root = |root: Rank, n: usize| if rank == root { n } else { 0 };
        match self {
            Shape::AllReduce { count } => (*count, *count),
            Shape::ReduceScatter { counts } => (counts.iter().sum(), counts[rank]),
            Shape::AllGather { counts } => (counts[rank], counts.iter().sum()),
            Shape::AllToAll { send, recv } => (send.iter().sum(), recv.iter().sum()),
            Shape::Broadcast { root, count } => (at_root(*root, *count), *count),
            Shape::Reduce { root, count } => (*count, at_root(*root, *count)),
            Shape::Gather { root, count } => (*count, at_root(*root, count * ranks)),
            Shape::Scatter { root, count } => (at_root(*root, count * ranks), *count),
            Shape::Barrier => (0, 0),
        }
    }

    /// Whether an algorithm can execute it.
    pub fn allows(&self, algorithm: Algorithm, ranks: usize) -> bool {
        use Algorithm::*;
        match self {
            Shape::AllReduce { .. } => match algorithm {
                Ring | Direct | Tree => true,
                Halving | Doubling => ranks.is_power_of_two(),
                Chain => false,
            },
            Shape::ReduceScatter { .. } | Shape::AllGather { .. } => matches!(algorithm, Ring | Direct),
            Shape::Broadcast { .. } | Shape::Reduce { .. } => matches!(algorithm, Tree | Chain),
            Shape::AllToAll { .. } | Shape::Gather { .. } | Shape::Scatter { .. } => algorithm == Direct,
            Shape::Barrier => algorithm == Tree,
        }
    }

    /// The program of a rank. `size` is that of an element, bytes. The algorithm must be [allowed](Shape::allows).
    pub fn program(&self, algorithm: Algorithm, rank: Rank, ranks: usize, size: usize) -> Program {
        use Algorithm::*;
        if ranks == 1 {
            return self.alone(size);
        }
        let bytes = |counts: &[usize]| counts.iter().map(|n| n * size).collect::<Vec<_>>();
        match self {
            Shape::AllReduce { count } => match algorithm {
                Ring => ring::all_reduce(rank, ranks, *count, size),
                Halving => halving::all_reduce(rank, ranks, *count, size),
                Doubling => doubling::all_reduce(rank, ranks, count * size),
                Tree => rooted::all_reduce(rank, ranks, count * size),
                _ => direct::all_reduce(rank, ranks, count * size),
            },
            Shape::ReduceScatter { counts } => match algorithm {
                Ring => ring::reduce_scatter(rank, &bytes(counts)),
                _ => direct::reduce_scatter(rank, &bytes(counts)),
            },
            Shape::AllGather { counts } => match algorithm {
                Ring => ring::all_gather(rank, &bytes(counts)),
                _ => direct::all_gather(rank, &bytes(counts)),
            },
            Shape::AllToAll { send, recv } => direct::all_to_all(rank, &bytes(send), &bytes(recv)),
            Shape::Broadcast { root, count } => match algorithm {
                Tree => rooted::broadcast_tree(rank, ranks, *root, count * size),
                _ => rooted::broadcast_chain(rank, ranks, *root, count * size),
            },
            Shape::Reduce { root, count } => match algorithm {
                Tree => rooted::reduce_tree(rank, ranks, *root, count * size),
                _ => rooted::reduce_chain(rank, ranks, *root, count * size),
            },
            Shape::Gather { root, count } => direct::gather(rank, ranks, *root, count * size),
            Shape::Scatter { root, count } => direct::scatter(rank, ranks, *root, count * size),
            Shape::Barrier => rooted::barrier(rank, ranks),
        }
    }

    /// The program of the only rank: its input is the result.
    fn alone(&self, size: usize) -> Program {
        let mut program = Program::default();
        let bytes = self.sizes(0, 1).1 * size;
        program.copy(Span::input(0, bytes), Span::output(0, bytes));
        program
    }
}
