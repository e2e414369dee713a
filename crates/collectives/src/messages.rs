//! The progress of the messages of one collective operation.

use std::collections::VecDeque;

use openmrc_schedule::{After, Program, Rank};

/// The messages with one peer that are left, as indices of the program.
#[derive(Default)]
struct Lists {
    sends: VecDeque<usize>,
    recvs: VecDeque<usize>,
    /// Sends that the NIC has not completed, or that the peer, if it is on this host, has not read.
    outstanding: usize,
}

/// Bytes sent and received of each message of a program, and what is left.
pub struct Messages {
    /// By rank.
    lists: Vec<Lists>,
    sent: Vec<usize>,
    received: Vec<usize>,
    /// Messages that are left, both ways.
    left: usize,
    /// Outstanding sends to all peers.
    outstanding: usize,
    /// Bytes sent through shared memory, and over the network.
    pub bytes: [u64; 2],
    /// Receivers and lengths of the messages in the order in which their first bytes were sent, if they are recorded.
    pub recorded: Option<Vec<(Rank, u64)>>,
}

impl Messages {
    /// The messages of a program among `ranks`.
    pub fn new(program: &Program, ranks: usize) -> Messages {
        let mut lists: Vec<Lists> = (0..ranks).map(|_| Lists::default()).collect();
        program.sends.iter().enumerate().for_each(|(i, send)| lists[send.to].sends.push_back(i));
        program.recvs.iter().enumerate().for_each(|(i, recv)| lists[recv.from].recvs.push_back(i));
        Messages {
            lists,
            sent: vec![0; program.sends.len()],
            received: vec![0; program.recvs.len()],
            left: program.sends.len() + program.recvs.len(),
            outstanding: 0,
            bytes: [0; 2],
            recorded: None,
        }
    }

    /// Whether all are sent and received, and their memory is no longer read.
    pub fn are_done(&self) -> bool {
        self.left == 0 && self.outstanding == 0
    }

    /// The next message to a rank, and how many of its bytes are sent.
    #[inline]
    pub fn next_send(&self, to: Rank) -> Option<(usize, usize)> {
        self.lists[to].sends.front().map(|&index| (index, self.sent[index]))
    }

    /// The next message from a rank, and how many of its bytes have arrived.
    #[inline]
    pub fn next_recv(&self, from: Rank) -> Option<(usize, usize)> {
        self.lists[from].recvs.front().map(|&index| (index, self.received[index]))
    }

    /// A part of the next message to a rank is sent. `held`: it is completed later.
    pub fn sent(&mut self, to: Rank, len: usize, total: usize, way: usize, held: bool) {
        let Some(&index) = self.lists[to].sends.front() else { return };
        self.outstanding += usize::from(held);
        self.lists[to].outstanding += usize::from(held);
        self.bytes[way] += len as u64;
        if self.sent[index] == 0
            && let Some(recorded) = &mut self.recorded
        {
            recorded.push((to, total as u64));
        }
        self.sent[index] += len;
        if self.sent[index] == total {
            self.lists[to].sends.pop_front();
            self.left -= 1;
        }
    }

    /// A part of the next message from a rank has arrived.
    pub fn received(&mut self, from: Rank, len: usize, total: usize) {
        let Some(&index) = self.lists[from].recvs.front() else { return };
        self.received[index] += len;
        if self.received[index] == total {
            self.lists[from].recvs.pop_front();
            self.left -= 1;
        }
    }

    /// The NIC has completed a send to a peer, or the peer has read it.
    pub fn completed(&mut self, peer: Rank) {
        self.outstanding -= 1;
        self.lists[peer].outstanding -= 1;
    }

    /// How many of its `len` bytes a message may use.
    pub fn ready(&self, program: &Program, after: After, len: usize) -> usize {
        match after {
            After::Bytes(recv) => self.received[recv],
            After::All(recv) if self.received[recv] == program.recvs[recv].to.len => len,
            After::All(_) => 0,
        }
    }

    /// Ranks from which or to which something is missing.
    pub fn waits_for(&self) -> impl Iterator<Item = (Rank, &'static str)> {
        self.lists.iter().enumerate().filter_map(|(rank, lists)| {
            match (lists.recvs.is_empty(), lists.sends.is_empty()) {
                (false, _) => Some((rank, "data")),
                (true, false) => Some((rank, "room")),
                (true, true) if lists.outstanding > 0 => Some((rank, "acknowledgement")),
                _ => None,
            }
        })
    }

    /// Whether something from or to a rank is missing.
    pub fn need(&self, peer: Rank) -> bool {
        let lists = &self.lists[peer];
        !lists.recvs.is_empty() || !lists.sends.is_empty() || lists.outstanding > 0
    }
}
