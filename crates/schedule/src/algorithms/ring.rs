//! Rings: rank r sends to r + 1 and receives from r - 1. Every link carries the same number of bytes, and what arrives is
//! passed on while the rest still comes (Patarasuk and Yuan, "Bandwidth optimal all-reduce", 2009).

use super::parts::{even_parts, offsets};
use crate::program::{After, Program, Rank, Recv, Span};

struct Ring {
    rank: Rank,
    ranks: usize,
    lens: Vec<usize>,
    offsets: Vec<usize>,
}

impl Ring {
    fn new(rank: Rank, lens: Vec<usize>) -> Ring {
        Ring { rank, ranks: lens.len(), offsets: offsets(&lens), lens }
    }

    fn next(&self) -> Rank {
        (self.rank + 1) % self.ranks
    }

    fn previous(&self) -> Rank {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// The part that is `back` places behind this rank's.
    fn part(&self, back: usize) -> usize {
        (self.rank + 2 * self.ranks - back) % self.ranks
    }

    fn input(&self, part: usize) -> Span {
        Span::input(self.offsets[part], self.lens[part])
    }

    fn output(&self, part: usize) -> Span {
        Span::output(self.offsets[part], self.lens[part])
    }

    /// Adds steps that reduce: in step s this rank sends the part `first + s` places behind its own, and adds its input
    /// to the one after that, so it ends with the part `first + n - 1` places behind. Returns the receive of that part.
    fn reduce(&self, program: &mut Program, first: usize, to: impl Fn(usize, bool) -> Span) -> Option<usize> {
        let mut arrived = None;
        for step in 0..self.ranks - 1 {
            let (sent, received) = (self.part(first + step), self.part(first + step + 1));
            let last = step == self.ranks - 2;
            let from = if step == 0 { self.input(sent) } else { to(sent, false) };
            program.send_reduced(self.next(), from, arrived.map(After::Bytes));
            let recv = Recv {
                from: self.previous(),
                to: to(received, last),
                with: Some(self.input(received)),
                after: None,
                last,
            };
            arrived = program.recv(recv);
        }
        arrived
    }

    /// Adds steps that pass finished parts on: in step s this rank sends the part `first + s` places behind its own.
    /// The first one is there once `arrived` is.
    fn gather(
        &self,
        program: &mut Program,
        first: usize,
        from: impl Fn(usize) -> Span,
        arrived: Option<usize>,
    ) {
        let mut arrived = arrived;
        for step in 0..self.ranks - 1 {
            let (sent, received) = (self.part(first + step), self.part(first + step + 1));
            let span = if step == 0 { from(sent) } else { self.output(sent) };
            program.send(self.next(), span, arrived.map(After::Bytes));
            arrived = program.store(self.previous(), self.output(received));
        }
    }
}

/// Reduces, then gathers.
///
/// With input and output in one memory nothing is overwritten too early: a part comes back finished only after the
/// bytes that this rank had sent of it have gone into it.
pub fn all_reduce(rank: Rank, ranks: usize, count: usize, size: usize) -> Program {
    let mut program = Program::default();
    let ring = Ring::new(rank, even_parts(count, ranks, size));
    let arrived = ring.reduce(&mut program, 0, |part, _| ring.output(part));
    ring.gather(&mut program, ranks - 1, |part| ring.output(part), arrived);
    program
}

/// Part r of the reduction of all inputs to rank r.
pub fn reduce_scatter(rank: Rank, lens: &[usize]) -> Program {
    let ring = Ring::new(rank, lens.to_vec());
    let mut program = Program { scratch: ring.offsets[ring.ranks], ..Program::default() };
    let to = |part: usize, last: bool| {
        if last {
            Span::output(0, ring.lens[part])
        } else {
            Span::scratch(ring.offsets[part], ring.lens[part])
        }
    };
    ring.reduce(&mut program, 1, to);
    program
}

/// All inputs to all ranks.
pub fn all_gather(rank: Rank, lens: &[usize]) -> Program {
    let mut program = Program::default();
    let ring = Ring::new(rank, lens.to_vec());
    program.copy(Span::input(0, lens[rank]), ring.output(rank));
    ring.gather(&mut program, 0, |part| Span::input(0, ring.lens[part]), None);
    program
}
