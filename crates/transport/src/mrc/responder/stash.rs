//! Immediates that have arrived and are not delivered yet, in PSN order (docs/spec/transport.md, "Responder").

use openmrc_wire::Msn;
use serde::{Deserialize, Serialize};

use crate::seq::Seq;

/// An immediate and the DMA length of its packet.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(super) struct StashedImm {
    pub seq: Seq,
    pub imm: u32,
    pub dma_len: u32,
    pub solicited: bool,
}

/// A ring ordered by PSN. Its memory is allocated when the first immediate arrives.
#[derive(Serialize, Deserialize)]
pub(super) struct Stash {
    ring: Box<[StashedImm]>,
    head: u16,
    len: u16,
    limit: u16,
    taken: Msn,
}

impl Stash {
    /// For at most `limit` immediates.
    pub fn new(limit: u16) -> Self {
        Stash { ring: Box::default(), head: 0, len: 0, limit: limit.max(1), taken: Msn(0) }
    }

    pub fn is_full(&self) -> bool {
        self.len == self.limit
    }

    fn index(&self, position: u16) -> usize {
        (usize::from(self.head) + usize::from(position)) % self.ring.len()
    }

    /// Adds an immediate. The stash must not be full.
    pub fn insert(&mut self, new: StashedImm) {
        if self.ring.is_empty() {
            self.ring = vec![StashedImm::default(); self.limit.into()].into();
        }
        // Nearly always it belongs close to the end.
        let mut position = self.len;
        while position > 0 && self.ring[self.index(position - 1)].seq > new.seq {
            self.ring[self.index(position)] = self.ring[self.index(position - 1)];
            position -= 1;
        }
        self.ring[self.index(position)] = new;
        self.len += 1;
    }

    /// The immediate of this PSN, if it has one. No older one may be left.
    pub fn oldest(&self, seq: Seq) -> Option<StashedImm> {
        let oldest = self.ring.get(usize::from(self.head)).filter(|_| self.len > 0)?;
        (oldest.seq == seq).then_some(*oldest)
    }

    /// Takes the oldest immediate out. There must be one.
    pub fn take_oldest(&mut self) {
        self.head = self.index(1) as u16;
        self.len -= 1;
        self.taken = self.taken.next();
    }

    /// Number of immediates taken out, modulo 2^16.
    pub fn taken(&self) -> Msn {
        self.taken
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediates_come_out_in_psn_order_whatever_the_order_of_arrival() {
        let mut stash = Stash::new(4);
        let of = |seq| StashedImm { seq, imm: seq as u32, dma_len: 0, solicited: false };
        let mut out = vec![];
        let take = |stash: &mut Stash, seq| {
            let oldest = stash.oldest(seq)?;
            stash.take_oldest();
            Some(oldest)
        };
        // The ring wraps several times.
        for round in (0..100).step_by(10) {
            for seq in [7, 3, 9, 5] {
                assert!(!stash.is_full());
                stash.insert(of(round + seq));
            }
            assert!(stash.is_full());
            out.extend((0..6).filter_map(|seq| take(&mut stash, round + seq)).map(|imm| imm.seq - round));
            stash.insert(of(round + 8));
            out.extend((6..10).filter_map(|seq| take(&mut stash, round + seq)).map(|imm| imm.seq - round));
        }
        assert!(out.chunks(5).all(|round| round == [3, 5, 7, 8, 9]), "{out:?}");
        assert_eq!(stash.taken(), Msn(50));
    }

    #[test]
    fn an_immediate_is_there_from_its_arrival_until_it_is_taken_and_the_memory_from_the_first_on() {
        let mut stash = Stash::new(1);
        assert_eq!(stash.heap_bytes(), 0);
        for seq in 5..9 {
            assert_eq!(stash.oldest(seq), None);
            let imm = StashedImm { seq, imm: 7, dma_len: 3, solicited: true };
            stash.insert(imm);
            assert_eq!((stash.oldest(seq), stash.oldest(seq + 1)), (Some(imm), None));
            stash.take_oldest();
            assert_eq!(stash.oldest(seq), None);
        }
        assert_eq!(stash.heap_bytes(), size_of::<StashedImm>());
    }
}
