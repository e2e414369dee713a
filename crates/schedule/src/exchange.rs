//! The messages of all ranks of an operation, in an order in which each follows those that it waits for.
//!
//! Between two ranks the n-th message sent is the n-th received. So the programs of all ranks together say which message
//! each receive takes, and by that which message waits for which.

use crate::program::{After, Program, Rank, Send};

/// All messages of an operation among ranks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Exchange {
    links: Vec<(u32, u32)>,
    messages: Vec<Message>,
    waits: Vec<Wait>,
}

/// A message from one rank to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Index of its sender and receiver in [`Exchange::links`].
    pub link: u32,
    /// Length; never 0.
    pub bytes: u64,
    /// End of what it waits for in the list of all waits.
    waits_end: usize,
}

/// What a message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Index of the message that must have arrived, less than that of the one that waits.
    pub message: u32,
    /// Byte by byte: the first bytes of one message follow the first of the other, which is as long.
    pub bytewise: bool,
}

/// Programs that do not belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// A rank does not send to another what that one receives.
    Unmatched {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
    },
    /// The ranks wait for each other.
    Blocked {
        /// A rank with a message that can never be sent.
        rank: Rank,
    },
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mismatch::Unmatched { from, to } => {
                write!(f, "rank {from} does not send to rank {to} what that one receives")
            }
            Mismatch::Blocked { rank } => write!(f, "rank {rank} waits for a message that waits for it"),
        }
    }
}

impl std::error::Error for Mismatch {}

/// No message, receive or level.
const NONE: u32 = u32::MAX;

/// One rank's sends or receives as ranges of the lists of all ranks, and what connects them.
#[derive(Default)]
struct Lists {
    sends: Vec<Outgoing>,
    recvs: Vec<Incoming>,
    /// By rank: its first send, then one past the last.
    first_send: Vec<u32>,
}

struct Outgoing {
    from: u32,
    to: u32,
    bytes: u64,
    after: Link,
    /// Index of sender and receiver among all pairs, in their order.
    pair: u32,
    /// Index among the messages of the exchange.
    message: u32,
}

struct Incoming {
    from: u32,
    to: u32,
    bytes: u64,
    after: Link,
    /// The send that it takes.
    send: u32,
}

/// A receive to wait for, by its index among those of all ranks.
#[derive(Clone, Copy)]
struct Link {
    recv: u32,
    bytewise: bool,
}

impl Exchange {
    /// The exchange of `ranks` ranks with these programs.
    ///
    /// # Errors
    /// [`Mismatch`] if they are not the programs of one operation.
    pub fn new(ranks: usize, program: impl Fn(Rank) -> Program) -> Result<Exchange, Mismatch> {
        let mut lists = Lists::default();
        for rank in 0..ranks {
            lists.add(rank as u32, &program(rank));
        }
        lists.first_send.push(lists.sends.len() as u32);
        let pairs = lists.match_up()?;
        lists.in_order(pairs)
    }

    /// Sender and receiver of each pair of ranks with messages, in the order of their first messages.
    pub fn links(&self) -> &[(u32, u32)] {
        &self.links
    }

    /// The messages. Those that wait for the same steps stand together: by step, by their place in the programs, by rank.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// What a message waits for.
    pub fn waits(&self, message: usize) -> &[Wait] {
        let begin = message.checked_sub(1).map_or(0, |before| self.messages[before].waits_end);
        &self.waits[begin..self.messages[message].waits_end]
    }
}

impl Lists {
    fn add(&mut self, rank: u32, program: &Program) {
        let base = self.recvs.len() as u32;
        let link = |after: Option<After>| match after {
            None => Link { recv: NONE, bytewise: false },
            Some(After::Bytes(recv)) => Link { recv: base + recv as u32, bytewise: true },
            Some(After::All(recv)) => Link { recv: base + recv as u32, bytewise: false },
        };
        self.first_send.push(self.sends.len() as u32);
        self.sends.extend(program.sends.iter().map(|&Send { to, from, after, .. }| Outgoing {
            from: rank,
            to: to as u32,
            bytes: from.len as u64,
            after: link(after),
            pair: NONE,
            message: NONE,
        }));
        self.recvs.extend(program.recvs.iter().map(|recv| Incoming {
            from: recv.from as u32,
            to: rank,
            bytes: recv.to.len as u64,
            after: link(recv.after),
            send: NONE,
        }));
    }

    /// Finds the send of each receive; the number of pairs of ranks with messages.
    fn match_up(&mut self) -> Result<u32, Mismatch> {
        let mut sends: Vec<u32> = (0..self.sends.len() as u32).collect();
        let mut recvs: Vec<u32> = (0..self.recvs.len() as u32).collect();
        sends.sort_by_key(|&i| (self.sends[i as usize].from, self.sends[i as usize].to));
        recvs.sort_by_key(|&i| (self.recvs[i as usize].from, self.recvs[i as usize].to));
        let mut pairs = 0;
        let mut before = None;
        for (&s, &r) in sends.iter().zip(&recvs) {
            let (send, recv) = (&mut self.sends[s as usize], &mut self.recvs[r as usize]);
            let pair = (send.from, send.to);
            if pair != (recv.from, recv.to) || send.bytes != recv.bytes {
                let (from, to) = pair.min((recv.from, recv.to));
                return Err(Mismatch::Unmatched { from: from as usize, to: to as usize });
            }
            if before != Some(pair) {
                pairs += 1;
                before = Some(pair);
            }
            send.pair = pairs - 1;
            recv.send = s;
        }
        let both = sends.len().min(recvs.len());
        let alone = sends.get(both).map(|&s| (self.sends[s as usize].from, self.sends[s as usize].to));
        let alone =
            alone.or(recvs.get(both).map(|&r| (self.recvs[r as usize].from, self.recvs[r as usize].to)));
        match alone {
            Some((from, to)) => Err(Mismatch::Unmatched { from: from as usize, to: to as usize }),
            None => Ok(pairs),
        }
    }

    /// Puts the messages in order. In each pass every rank sends, in the order of its program, what waits for messages of
    /// earlier passes only.
    fn in_order(mut self, pairs: u32) -> Result<Exchange, Mismatch> {
        let mut exchange = Exchange::default();
        let mut links = vec![NONE; pairs as usize];
        let mut next: Vec<u32> = self.first_send[..self.first_send.len() - 1].to_vec();
        while exchange.messages.len() < self.sends.len() {
            // Place in the program, and the send.
            let mut pass: Vec<(u32, u32)> = Vec::new();
            for (rank, at) in next.iter_mut().enumerate() {
                let first = self.first_send[rank];
                while *at < self.first_send[rank + 1] && self.is_ready(&self.sends[*at as usize]) {
                    pass.push((*at - first, *at));
                    *at += 1;
                }
            }
            if pass.is_empty() {
                let stuck = (0..next.len()).find(|&rank| next[rank] < self.first_send[rank + 1]);
                return Err(Mismatch::Blocked { rank: stuck.unwrap_or(0) });
            }
            pass.sort_unstable();
            let begin = exchange.messages.len() as u32;
            for (_, index) in pass.iter().copied() {
                let send = &self.sends[index as usize];
                let waits = self.waits(send);
                exchange.waits.extend(waits);
                let link = &mut links[send.pair as usize];
                if *link == NONE {
                    *link = exchange.links.len() as u32;
                    exchange.links.push((send.from, send.to));
                }
                let waits_end = exchange.waits.len();
                exchange.messages.push(Message { link: *link, bytes: send.bytes, waits_end });
            }
            for (message, (_, index)) in (begin..).zip(pass) {
                self.sends[index as usize].message = message;
            }
        }
        Ok(exchange)
    }

    fn is_ready(&self, send: &Outgoing) -> bool {
        self.waits(send).all(|wait| wait.message != NONE)
    }

    /// The messages that a send waits for: that of its receive, and those that must have arrived before that one counts.
    fn waits(&self, send: &Outgoing) -> impl Iterator<Item = Wait> {
        let mut link = send.after;
        std::iter::from_fn(move || {
            let recv = self.recvs.get(link.recv as usize)?;
            let wait = Wait { message: self.sends[recv.send as usize].message, bytewise: link.bytewise };
            link = recv.after;
            Some(wait)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Shape};
    use crate::program::Span;

    fn exchange(shape: &Shape, algorithm: Algorithm, ranks: usize) -> Exchange {
        Exchange::new(ranks, |rank| shape.program(algorithm, rank, ranks, 1)).unwrap()
    }

    #[test]
    fn a_ring_goes_step_by_step_and_each_message_waits_for_the_one_before() {
        let found = exchange(&Shape::AllReduce { count: 10 }, Algorithm::Ring, 3);
        assert_eq!(found.links(), [(0, 1), (1, 2), (2, 0)]);
        let sizes: Vec<u64> = found.messages().iter().map(|message| message.bytes).collect();
        assert_eq!(sizes, [4, 3, 3, 3, 4, 3, 3, 3, 4, 4, 3, 3]);
        for (number, message) in found.messages().iter().enumerate() {
            assert_eq!(message.link as usize, number % 3);
            let before = (number >= 3).then(|| number - 3 - number % 3 + (number + 2) % 3);
            let waits: Vec<usize> = found.waits(number).iter().map(|wait| wait.message as usize).collect();
            assert_eq!(waits, Vec::from_iter(before));
        }
    }

    #[test]
    fn the_root_of_a_tree_sends_when_it_has_heard_from_all_its_children() {
        let found = exchange(&Shape::AllReduce { count: 8 }, Algorithm::Tree, 8);
        let first_of_root =
            found.messages().iter().position(|m| found.links()[m.link as usize].0 == 0).unwrap();
        let heard: Vec<u32> = (found.waits(first_of_root).iter())
            .map(|wait| found.links()[found.messages()[wait.message as usize].link as usize].0)
            .collect();
        assert_eq!(heard, [4, 2, 1]);
    }

    #[test]
    fn in_doubling_a_message_waits_for_those_of_all_steps_before() {
        let found = exchange(&Shape::AllReduce { count: 5 }, Algorithm::Doubling, 8);
        assert_eq!(found.messages().len(), 3 * 8);
        for (number, message) in found.messages().iter().enumerate() {
            let (step, rank) = (number / 8, number % 8);
            assert_eq!(found.links()[message.link as usize], (rank as u32, (rank ^ 1 << step) as u32));
            let heard =
                |step: usize| Wait { message: (step * 8 + (rank ^ 1 << step)) as u32, bytewise: false };
            assert_eq!(found.waits(number), Vec::from_iter((0..step).rev().map(heard)));
        }
    }

    #[test]
    fn messages_of_one_pass_are_in_the_order_of_their_places_in_the_programs() {
        let found = exchange(&Shape::AllGather { counts: vec![1; 3] }, Algorithm::Direct, 3);
        assert_eq!(found.links(), [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]);
        assert_eq!(Vec::from_iter(found.messages().iter().map(|message| message.link)), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn programs_that_do_not_belong_together_are_refused() {
        let part = |rank: Rank, count: usize| Shape::AllReduce { count }.program(Algorithm::Ring, rank, 3, 1);
        let found = Exchange::new(3, |rank| part(rank, if rank == 1 { 9 } else { 6 }));
        assert_eq!(found, Err(Mismatch::Unmatched { from: 0, to: 1 }));
        let circle = |rank: Rank| {
            let mut program = Program::default();
            let arrived = program.store(1 - rank, Span::output(0, 1));
            program.send(1 - rank, Span::input(0, 1), arrived.map(After::All));
            program
        };
        assert_eq!(Exchange::new(2, circle), Err(Mismatch::Blocked { rank: 0 }));
        // Rank 0 has sent everything and rank 1 has nothing to send.
        let beside = |rank: Rank| {
            let mut program = Program::default();
            match rank {
                0 => program.send(1, Span::input(0, 1), None),
                1 => {
                    program.store(0, Span::output(0, 1));
                }
                _ => {
                    let arrived = program.store(5 - rank, Span::output(0, 1));
                    program.send(5 - rank, Span::input(0, 1), arrived.map(After::All));
                }
            }
            program
        };
        assert_eq!(Exchange::new(4, beside), Err(Mismatch::Blocked { rank: 2 }));
    }
}
