//! Deadlines of a node's queue pairs. Moving a deadline later costs nothing: when its old entry expires, it is
//! recognised as stale and dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Place;
use crate::time::Time;

/// A heap of deadlines; the table remembers the earliest one of each queue pair.
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Place)>>,
    /// The earliest deadline, cached because it is read after every packet.
    next: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { heap: BinaryHeap::new(), next: Time::NEVER }
    }
}

impl Timers {
    #[inline]
    pub fn schedule(&mut self, due: Time, place: Place) {
        if due != Time::NEVER {
            self.heap.push(Reverse((due, place)));
            self.next = self.next.min(due);
        }
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    /// Removes an entry that is due and returns it with its time.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, Place)> {
        if self.next > now {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.next = self.heap.peek().map_or(Time::NEVER, |Reverse((due, _))| *due);
        Some(entry)
    }
}
