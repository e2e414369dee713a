//! Recursive halving, then doubling: log2 n steps in which a rank exchanges half of its range with a partner, and log2 n
//! steps back (Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005).

use crate::program::{After, Memory, Program, Rank, Recv, Span};

/// `ranks` is a power of two. The range that a rank keeps of 0..count halves in each step.
///
/// Partial sums lie in scratch memory, one range per step, so that nothing is overwritten while it is being sent.
pub fn all_reduce(rank: Rank, ranks: usize, count: usize, size: usize) -> Program {
    let mut program = Program::default();
    let steps = ranks.trailing_zeros();
    // The range that this rank has reduced so far, in elements, and where element `begin` lies.
    let (mut begin, mut end) = (0, count);
    let (mut memory, mut offset) = (Memory::Input, 0);
    let mut arrived: Option<usize> = None;
    // What the other halves were, for the way back.
    let mut ranges = Vec::new();
    for step in 0..steps {
        let distance = ranks >> (step + 1);
        let partner = rank ^ distance;
        let middle = begin + (end - begin) / 2;
        let (mine, theirs) = if rank & distance == 0 {
            ((begin, middle), (middle, end))
        } else {
            ((middle, end), (begin, middle))
        };
        let part = |(from, to): (usize, usize)| Span {
            memory,
            offset: offset + (from - begin) * size,
            len: (to - from) * size,
        };
        program.send_reduced(partner, part(theirs), arrived.map(After::All));
        let last = step + 1 == steps;
        let len = (mine.1 - mine.0) * size;
        let to = if last {
            Span::output(mine.0 * size, len)
        } else {
            let span = Span::scratch(program.scratch, len);
            program.scratch += len;
            span
        };
        // Each receive waits for the one before: with the last, all have arrived.
        let recv = Recv { from: partner, to, with: Some(part(mine)), after: arrived.map(After::All), last };
        arrived = program.recv(recv).or(arrived);
        ranges.push((partner, theirs));
        (begin, end) = mine;
        (memory, offset) = (to.memory, to.offset);
    }
    let mut back = arrived;
    for (partner, theirs) in ranges.into_iter().rev() {
        let mine = Span::output(begin * size, (end - begin) * size);
        program.send(partner, mine, back.map(After::All));
        let (from, to) = theirs;
        let to_span = Span::output(from * size, (to - from) * size);
        let recv = Recv { from: partner, to: to_span, with: None, after: back.map(After::All), last: false };
        back = program.recv(recv).or(back);
        (begin, end) = (begin.min(from), end.max(to));
    }
    program
}
