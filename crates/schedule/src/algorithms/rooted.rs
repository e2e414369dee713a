//! Operations with a root: binomial trees, few steps for small messages; chains, in which every rank passes on what
//! arrives while the rest still comes. Ranks are counted from the root.

use crate::program::{After, Program, Rank, Recv, Span};

/// Ranks counted from the root.
#[derive(Clone, Copy)]
struct Rooted {
    /// This rank, counted from the root.
    place: usize,
    ranks: usize,
    root: Rank,
}

impl Rooted {
    fn new(rank: Rank, ranks: usize, root: Rank) -> Rooted {
        Rooted { place: (rank + ranks - root) % ranks, ranks, root }
    }

    fn rank(self, place: usize) -> Rank {
        (place + self.root) % self.ranks
    }

    /// The parent in a binomial tree: without the lowest bit.
    fn parent(self) -> Rank {
        self.rank(self.place & (self.place - 1))
    }

    /// The children, the one with the largest subtree first.
    fn children(self) -> Vec<Rank> {
        let bits = if self.place == 0 { usize::BITS } else { self.place.trailing_zeros() };
        (0..bits)
            .rev()
            .map(|bit| self.place + (1 << bit))
            .filter(|&place| place < self.ranks)
            .map(|place| self.rank(place))
            .collect()
    }
}

/// What the root has, to all: from the parent to the children.
fn spread(program: &mut Program, tree: Rooted, source: Span, len: usize, ready: Option<usize>) {
    let (from, after) = if tree.place == 0 {
        (source, ready)
    } else {
        (Span::output(0, len), program.store(tree.parent(), Span::output(0, len)))
    };
    for child in tree.children() {
        program.send(child, from, after.map(After::Bytes));
    }
}

/// Adds the reduction of all inputs towards the root; the receive that completes it there.
fn collect(program: &mut Program, tree: Rooted, len: usize) -> Option<usize> {
    let children = tree.children();
    let result = if tree.place == 0 {
        Span::output(0, len)
    } else {
        program.scratch = if children.is_empty() { 0 } else { len };
        Span::scratch(0, len)
    };
    let mut with = Span::input(0, len);
    let mut arrived = None;
    // The smallest subtree ends first.
    for (i, &child) in children.iter().rev().enumerate() {
        let last = tree.place == 0 && i + 1 == children.len();
        arrived = program.recv(Recv {
            from: child,
            to: result,
            with: Some(with),
            after: arrived.map(After::Bytes),
            last,
        });
        with = result;
    }
    if tree.place > 0 {
        program.send_reduced(tree.parent(), with, arrived.map(After::Bytes));
    }
    arrived
}

/// The root's input to all, by a binomial tree.
pub fn broadcast_tree(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    let tree = Rooted::new(rank, ranks, root);
    if rank == root {
        program.copy(Span::input(0, len), Span::output(0, len));
    }
    spread(&mut program, tree, Span::input(0, len), len, None);
    program
}

/// The root's input to all, through all.
pub fn broadcast_chain(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    let chain = Rooted::new(rank, ranks, root);
    let mut from = Span::input(0, len);
    let mut arrived = None;
    if chain.place == 0 {
        program.copy(Span::input(0, len), Span::output(0, len));
    } else {
        from = Span::output(0, len);
        arrived = program.store(chain.rank(chain.place - 1), from);
    }
    if chain.place + 1 < ranks {
        program.send(chain.rank(chain.place + 1), from, arrived.map(After::Bytes));
    }
    program
}

/// The reduction of all inputs to the root, by a binomial tree.
pub fn reduce_tree(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    collect(&mut program, Rooted::new(rank, ranks, root), len);
    program
}

/// The reduction of all inputs to the root, through all.
pub fn reduce_chain(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    let chain = Rooted::new(rank, ranks, root);
    let mut from = Span::input(0, len);
    let mut arrived = None;
    if chain.place + 1 < ranks {
        let to = if chain.place == 0 { Span::output(0, len) } else { Span::scratch(0, len) };
        program.scratch = if chain.place == 0 { 0 } else { len };
        arrived = program.recv(Recv {
            from: chain.rank(chain.place + 1),
            to,
            with: Some(from),
            after: None,
            last: chain.place == 0,
        });
        from = to;
    }
    if chain.place > 0 {
        program.send_reduced(chain.rank(chain.place - 1), from, arrived.map(After::Bytes));
    }
    program
}

/// Reduction to rank 0 by a tree, and back.
pub fn all_reduce(rank: Rank, ranks: usize, len: usize) -> Program {
    let mut program = Program::default();
    let tree = Rooted::new(rank, ranks, 0);
    let arrived = collect(&mut program, tree, len);
    spread(&mut program, tree, Span::output(0, len), len, arrived);
    program
}

/// In round k every rank tells the one 2^k behind it that it, and all it has heard of, have arrived (Hensgen, Finkel and
/// Manber, "Two algorithms for barrier synchronization", 1988).
pub fn barrier(rank: Rank, ranks: usize) -> Program {
    // A byte for each round, and one to send.
    let token = usize::BITS as usize;
    let mut program = Program { scratch: token + 1, ..Program::default() };
    let mut arrived = None;
    let mut distance = 1;
    for round in 0.. {
        if distance >= ranks {
            break;
        }
        program.send((rank + distance) % ranks, Span::scratch(token, 1), arrived.map(After::All));
        arrived = program.store((rank + ranks - distance) % ranks, Span::scratch(round, 1));
        distance *= 2;
    }
    program
}
