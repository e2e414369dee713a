//! Deadlines of a node's queue pairs. Moving a deadline later costs nothing: its old entry expires early, and the queue
//! pair is asked again.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ids::Slot;
use crate::time::Time;

/// The entries of a queue pair in the heap that count. Others expire without effect.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Scheduled {
    /// The earliest one.
    earliest: Time,
    /// One that was the earliest before. It takes the place of the earliest when that expires, so that a queue pair
    /// that is paced under a retransmission timeout has two entries and not one for each packet.
    later: Time,
}

impl Scheduled {
    pub const NEVER: Self = Scheduled { earliest: Time::NEVER, later: Time::NEVER };

    /// An entry has expired: whether it was the earliest. Entries expire in order, so the later one is never the first.
    pub fn expire(&mut self, due: Time) -> bool {
        let is_earliest = due == self.earliest;
        if is_earliest {
            *self = Scheduled { earliest: self.later, later: Time::NEVER };
        }
        is_earliest
    }
}

/// A heap of deadlines; the table has a [`Scheduled`] for each queue pair.
#[derive(Serialize, Deserialize)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Slot)>>,
    /// The earliest deadline, cached because it is read after every packet.
    next: Time,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { heap: BinaryHeap::new(), next: Time::NEVER }
    }
}

impl Timers {
    /// Ensures that a queue pair has an entry no later than its deadline.
    #[inline]
    pub fn schedule(&mut self, scheduled: &mut Scheduled, due: Time, slot: Slot) {
        if due < scheduled.earliest {
            let later = if scheduled.later == Time::NEVER { scheduled.earliest } else { scheduled.later };
            *scheduled = Scheduled { earliest: due, later };
            self.heap.push(Reverse((due, slot)));
            self.next = self.next.min(due);
        }
    }

    /// Entries, those without effect among them.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Time {
        self.next
    }

    /// Removes an entry that is due and returns it with its time.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, Slot)> {
        if self.next > now {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.next = self.heap.peek().map_or(Time::NEVER, |Reverse((due, _))| *due);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Span;

    const SLOT: Slot = 7;
    const PACE: Span = Span(100);
    const TIMEOUT: Span = Span(1_000_000);

    #[test]
    fn a_paced_queue_pair_with_a_timeout_that_moves_has_two_entries() {
        let (mut timers, mut scheduled) = (Timers::default(), Scheduled::NEVER);
        let mut now = Time(0);
        timers.schedule(&mut scheduled, now + TIMEOUT, SLOT);
        for _ in 0..100_000 {
            // A packet is sent: the next may leave after a pause, and until then no deadline is nearer.
            timers.schedule(&mut scheduled, now + PACE, SLOT);
            now += PACE;
            while let Some((due, slot)) = timers.pop_due(now) {
                assert_eq!(slot, SLOT);
                scheduled.expire(due);
                timers.schedule(&mut scheduled, now + TIMEOUT, SLOT);
            }
            assert!(timers.len() <= 2, "{} entries", timers.len());
            assert!(timers.next() <= now + TIMEOUT);
        }
    }

    #[test]
    fn an_earlier_deadline_is_never_missed() {
        let (mut timers, mut scheduled) = (Timers::default(), Scheduled::NEVER);
        for due in [500, 300, 400, 100, 200] {
            timers.schedule(&mut scheduled, Time(due), SLOT);
        }
        let mut asked = Vec::new();
        while let Some((due, _)) = timers.pop_due(Time(600)) {
            if scheduled.expire(due) {
                asked.push(due.0);
            }
        }
        assert_eq!(asked, [100, 500]);
        assert_eq!(timers.next(), Time::NEVER);
    }

    #[test]
    fn a_deadline_that_stays_has_one_entry_and_one_that_is_never_has_none() {
        let (mut timers, mut scheduled) = (Timers::default(), Scheduled::NEVER);
        timers.schedule(&mut scheduled, Time::NEVER, SLOT);
        assert_eq!((timers.len(), timers.next()), (0, Time::NEVER));
        for due in [500, 500, 700, Time::NEVER.0, 500] {
            timers.schedule(&mut scheduled, Time(due), SLOT);
            assert_eq!((timers.len(), timers.next()), (1, Time(500)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Queue pairs whose deadlines are moved back and forth, or dropped, are asked in time, whenever the driver calls.
        #[test]
        fn no_deadline_of_any_queue_pair_is_missed(
            steps in prop::collection::vec((0..3usize, prop::option::of(0..40u64), 0..20u64), 1..100),
        ) {
            let mut timers = Timers::default();
            let (mut scheduled, mut deadlines) = ([Scheduled::NEVER; 3], [Time::NEVER; 3]);
            let mut now = Time::ZERO;
            for (slot, wait, pause) in steps {
                deadlines[slot] = wait.map_or(Time::NEVER, |wait| now + Span(wait));
                timers.schedule(&mut scheduled[slot], deadlines[slot], slot as Slot);
                prop_assert!(deadlines.iter().all(|&due| timers.next() <= due));
                now += Span(pause);
                while let Some((due, slot)) = timers.pop_due(now) {
                    let slot = slot as usize;
                    prop_assert!(due <= now);
                    if scheduled[slot].expire(due) {
                        if deadlines[slot] <= now {
                            deadlines[slot] = Time::NEVER;
                        }
                        timers.schedule(&mut scheduled[slot], deadlines[slot], slot as Slot);
                    }
                }
                prop_assert!(deadlines.iter().all(|&due| due > now && timers.next() <= due));
            }
        }
    }
}
