//! The queue pairs that are READY, served round robin (docs/spec/congestion.md, "QP scheduling").

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use super::ids::Slot;

/// READY queue pairs in the order of their turns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ReadyRing {
    /// The queue pair whose turn it is. It is not in `later`, so that a node with one sender does not touch the heap.
    first: Option<Slot>,
    /// The other queue pairs; empty if `first` is `None`.
    later: VecDeque<Slot>,
    /// Packets that the first queue pair has sent in this turn.
    sent: u8,
}

impl ReadyRing {
    /// Adds a queue pair that is not in the ring.
    #[inline]
    pub fn push(&mut self, slot: Slot) {
        if self.first.is_none() {
            self.first = Some(slot);
        } else {
            self.later.push_back(slot);
        }
    }

    /// The queue pair whose turn it is.
    #[inline]
    pub fn first(&self) -> Option<Slot> {
        self.first
    }

    /// Counts a packet sent by the first queue pair. Returns whether its turn of `packets_per_turn` packets is over.
    #[inline]
    pub fn count_sent(&mut self, packets_per_turn: u8) -> bool {
        self.sent += 1;
        self.sent >= packets_per_turn
    }

    /// Ends the turn of the first queue pair and moves it to the end of the ring.
    #[inline]
    pub fn end_turn(&mut self) {
        self.sent = 0;
        if let Some(next) = self.later.pop_front() {
            self.later.extend(self.first.replace(next));
        }
    }

    /// Removes the first queue pair: it has nothing more to send.
    #[inline]
    pub fn drop_first(&mut self) {
        self.sent = 0;
        self.first = self.later.pop_front();
    }

    /// Removes a queue pair.
    pub fn remove(&mut self, slot: Slot) {
        if self.first == Some(slot) {
            self.drop_first();
        } else {
            self.later.retain(|&other| other != slot);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.later.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round() {
        let mut ring = ReadyRing::default();
        for slot in [3, 1, 2] {
            ring.push(slot);
        }
        let mut served = vec![];
        for _ in 0..7 {
            served.extend(ring.first());
            if ring.count_sent(2) {
                ring.end_turn();
            }
        }
        assert_eq!(served, [3, 3, 1, 1, 2, 2, 3]);
        ring.remove(3);
        ring.remove(2);
        assert_eq!((ring.first(), ring.len()), (Some(1), 1));
    }

    #[test]
    fn the_ring_knows_how_many_it_holds() {
        let mut ring = ReadyRing::default();
        assert_eq!((ring.len(), ring.is_empty(), ring.first()), (0, true, None));
        for slot in 0..5 {
            ring.push(slot);
            assert_eq!((ring.len(), ring.is_empty()), (slot as usize + 1, false));
        }
        ring.end_turn();
        assert_eq!(ring.len(), 5, "a turn that ends removes nobody");
        ring.drop_first();
        for (slot, left) in [(0, 3), (3, 2), (2, 1), (4, 0)] {
            ring.remove(slot);
            assert_eq!((ring.len(), ring.is_empty()), (left, left == 0));
        }
    }
}
