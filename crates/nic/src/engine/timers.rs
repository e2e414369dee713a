//! Deadlines of queue pairs. A deadline that moves later costs nothing: its old entry is found stale, or early, when it
//! comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use openmrc_transport::Time;

/// A heap of deadlines; the owner remembers the earliest one of each queue pair.
#[derive(Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Time, u32)>>);

impl Timers {
    /// Queue pair `index` wants to be called at `due`.
    pub fn schedule(&mut self, due: Time, index: u32) {
        if due != Time::NEVER {
            self.0.push(Reverse((due, index)));
        }
    }

    /// The earliest deadline.
    pub fn next(&self) -> Time {
        self.0.peek().map_or(Time::NEVER, |Reverse((due, _))| *due)
    }

    /// An entry that is due, with the time it was made for.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, u32)> {
        if self.next() > now {
            return None;
        }
        self.0.pop().map(|Reverse(entry)| entry)
    }
}
