//! Every rank exchanges with every other at once: one round trip, and n - 1 messages. Rank r begins with r + 1, so that
//! not all begin with the same one.

use super::parts::offsets;
use crate::program::{After, Finish, Program, Rank, Span};

/// The other ranks, beginning behind `rank`.
fn others(rank: Rank, ranks: usize) -> impl Iterator<Item = Rank> {
    (1..ranks).map(move |step| (rank + step) % ranks)
}

/// Every rank gets all inputs, and reduces them in the order of the ranks: the same everywhere, bit for bit.
pub fn all_reduce(rank: Rank, ranks: usize, len: usize) -> Program {
    let mut program = Program { scratch: ranks * len, ..Program::default() };
    for other in others(rank, ranks) {
        program.send(other, Span::input(0, len), None);
        program.store(other, Span::scratch(other * len, len));
    }
    program.finish = (len > 0).then(|| Finish::Reduce {
        parts: (0..ranks)
            .map(|r| if r == rank { Span::input(0, len) } else { Span::scratch(r * len, len) })
            .collect(),
        to: Span::output(0, len),
    });
    program
}

/// Every rank gets its part of all inputs, and reduces them in the order of the ranks.
pub fn reduce_scatter(rank: Rank, lens: &[usize]) -> Program {
    let (ranks, len, begin) = (lens.len(), lens[rank], offsets(lens));
    let mut program = Program { scratch: ranks * len, ..Program::default() };
    for other in others(rank, ranks) {
        program.send(other, Span::input(begin[other], lens[other]), None);
        program.store(other, Span::scratch(other * len, len));
    }
    program.finish = (len > 0).then(|| Finish::Reduce {
        parts: (0..ranks)
            .map(|r| if r == rank { Span::input(begin[rank], len) } else { Span::scratch(r * len, len) })
            .collect(),
        to: Span::output(0, len),
    });
    program
}

/// All inputs to all ranks.
pub fn all_gather(rank: Rank, lens: &[usize]) -> Program {
    let begin = offsets(lens);
    let mut program = Program::default();
    program.copy(Span::input(0, lens[rank]), Span::output(begin[rank], lens[rank]));
    for other in others(rank, lens.len()) {
        program.send(other, Span::input(0, lens[rank]), None);
        program.store(other, Span::output(begin[other], lens[other]));
    }
    program
}

/// Peers that a rank of an all_to_all writes to at once. With more, their messages would meet at the same receivers.
pub const EXCHANGES: usize = 8;

/// Part r of every input to rank r. In step s this rank sends to the one s places behind it, and receives from the one
/// s places before. A step begins when what the one [`EXCHANGES`] before it receives has arrived.
pub fn all_to_all(rank: Rank, send: &[usize], recv: &[usize]) -> Program {
    let (sent, received) = (offsets(send), offsets(recv));
    let ranks = send.len();
    let mut program = Program::default();
    program.copy(Span::input(sent[rank], send[rank]), Span::output(received[rank], recv[rank]));
    let mut arrivals = Vec::with_capacity(ranks);
    for step in 1..ranks {
        let (to, from) = ((rank + step) % ranks, (rank + ranks - step) % ranks);
        let earlier: Option<Option<usize>> = arrivals.len().checked_sub(EXCHANGES).map(|i| arrivals[i]);
        program.send(to, Span::input(sent[to], send[to]), earlier.flatten().map(After::All));
        arrivals.push(program.store(from, Span::output(received[from], recv[from])));
    }
    program
}

/// All inputs to the root.
pub fn gather(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    if rank != root {
        program.send(root, Span::input(0, len), None);
        return program;
    }
    program.copy(Span::input(0, len), Span::output(root * len, len));
    for other in others(rank, ranks) {
        program.store(other, Span::output(other * len, len));
    }
    program
}

/// Part r of the root's input to rank r.
pub fn scatter(rank: Rank, ranks: usize, root: Rank, len: usize) -> Program {
    let mut program = Program::default();
    if rank != root {
        program.store(root, Span::output(0, len));
        return program;
    }
    program.copy(Span::input(root * len, len), Span::output(0, len));
    for other in others(rank, ranks) {
        program.send(other, Span::input(other * len, len), None);
    }
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_to_all_writes_to_few_peers_at_once() {
        let parts = [100; 40];
        let program = all_to_all(3, &parts, &parts);
        let at_once = program.sends.iter().take_while(|send| send.after.is_none()).count();
        assert_eq!((program.sends.len(), at_once), (39, EXCHANGES));
        let step = |peer: Rank| (peer + 40 - 3) % 40;
        for send in &program.sends[EXCHANGES..] {
            let Some(After::All(recv)) = send.after else { panic!("{send:?} waits for nothing") };
            let from = program.recvs[recv].from;
            assert_eq!(step(send.to) - EXCHANGES, (3 + 40 - from) % 40);
        }
    }
}
