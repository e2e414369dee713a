//! Deadlines of a node's queue pairs. A deadline that moves later costs nothing: its old entry is found stale, or early,
//! when it comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::Place;
use crate::time::Time;

/// A heap of deadlines; the table remembers the earliest one of each queue pair.
#[derive(Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Time, Place)>>);

impl Timers {
    #[inline]
    pub fn schedule(&mut self, due: Time, place: Place) {
        if due != Time::NEVER {
            self.0.push(Reverse((due, place)));
        }
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |Reverse((due, _))| *due)
    }

    /// An entry that is due, with the time that it was made for.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, Place)> {
        if self.next() > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
