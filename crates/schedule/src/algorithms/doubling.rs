//! Recursive doubling: log2 n steps in which a rank exchanges all it has reduced so far with a partner (Thakur, Rabenseifner
//! and Gropp, "Optimization of collective communication operations in MPICH", 2005). Fewest steps for small messages.

use crate::program::{After, Program, Rank, Recv, Span};

/// `ranks` is a power of two. In step s the partners are 2^s apart.
///
/// Two partners add the same two partial sums, so all ranks get the same bits. Partial sums lie in scratch memory, one for
/// each step, and so does the input: the partner of a step may read them after the next steps have ended here.
pub fn all_reduce(rank: Rank, ranks: usize, len: usize) -> Program {
    let mut program = Program::default();
    let steps = ranks.trailing_zeros();
    let partial = |step: u32| Span::scratch(step as usize * len, len);
    program.copy(Span::input(0, len), partial(0));
    program.scratch = steps as usize * len;
    let mut arrived = None;
    for step in 0..steps {
        let partner = rank ^ 1 << step;
        program.send_reduced(partner, partial(step), arrived.map(After::All));
        let last = step + 1 == steps;
        let to = if last { Span::output(0, len) } else { partial(step + 1) };
        let after = arrived.map(After::All);
        arrived = program.recv(Recv { from: partner, to, with: Some(partial(step)), after, last });
    }
    program
}
