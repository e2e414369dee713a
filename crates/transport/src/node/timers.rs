//! Deadlines of a node's queue pairs. A deadline that moves later costs nothing: its old entry is found stale, or early,
//! when it comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Place;
use crate::time::Time;

/// A heap of deadlines; the table remembers the earliest one of each queue pair.
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Place)>>,
    /// The earliest deadline: it is asked for after every packet.
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

    /// An entry that is due, with the time that it was made for.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, Place)> {
        if self.next > now {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.next = self.heap.peek().map_or(Time::NEVER, |Reverse((due, _))| *due);
        Some(entry)
    }
}
