//! Messages with immediate that wait for a receive, for programs that expect receiver-not-ready to be retried. Without a
//! wait a message that finds no receive is refused at once (docs/spec/transport.md, "Responder").

use super::ids::Slot;
use crate::api::NoReceive;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// A queue pair that lets messages wait. One waits at a time: the next that is to complete.
#[derive(Serialize, Deserialize)]
struct Wait {
    slot: Slot,
    /// How long a message may wait.
    longest: Span,
    /// When the message that waits now is refused.
    until: Option<Time>,
}

/// The waits of a node's queue pairs.
#[derive(Serialize, Deserialize)]
pub(super) struct ReceiveWaits {
    /// When the first message is refused.
    due: Time,
    /// Sorted by slot. Queue pairs that let no message wait are absent.
    waits: Vec<Wait>,
}

impl ReceiveWaits {
    /// No queue pair lets messages wait.
    pub fn new() -> Self {
        ReceiveWaits { due: Time::NEVER, waits: Vec::new() }
    }

    /// Sets how long messages of a queue pair may wait; zero refuses them at once. A message that waits already keeps
    /// its time.
    pub fn set(&mut self, slot: Slot, longest: Span) {
        match (self.find(slot), longest) {
            (Ok(_), Span::ZERO) => self.forget(slot),
            (Ok(at), _) => self.waits[at].longest = longest,
            (Err(_), Span::ZERO) => {}
            (Err(at), _) => self.waits.insert(at, Wait { slot, longest, until: None }),
        }
    }

    fn find(&self, slot: Slot) -> Result<usize, usize> {
        self.waits.binary_search_by_key(&slot, |wait| wait.slot)
    }

    /// A queue pair is removed.
    pub fn forget(&mut self, slot: Slot) {
        if let Ok(at) = self.find(slot) {
            self.waits.remove(at);
            self.find_due();
        }
    }

    fn find_due(&mut self) {
        self.due = self.waits.iter().filter_map(|wait| wait.until).min().unwrap_or(Time::NEVER);
    }

    /// A message has found no receive: whether it waits.
    #[cold]
    pub fn without_receive(&mut self, now: Time, slot: Slot) -> NoReceive {
        let Ok(at) = self.find(slot) else { return NoReceive::Refused };
        let Wait { until, longest, .. } = &mut self.waits[at];
        let until = *until.get_or_insert(now + *longest);
        self.due = self.due.min(until);
        if until > now { NoReceive::Waits } else { NoReceive::Refused }
    }

    /// A message has found its receive, or waits no longer.
    #[inline]
    pub fn end(&mut self, slot: Slot) {
        if !self.waits.is_empty()
            && let Ok(at) = self.find(slot)
            && self.waits[at].until.take().is_some()
        {
            self.find_due();
        }
    }

    /// When the first message is refused.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// A queue pair whose message has waited for too long.
    pub fn overdue(&self, now: Time) -> Option<Slot> {
        self.waits.iter().find(|wait| wait.until.is_some_and(|until| until <= now)).map(|wait| wait.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_waits_from_its_own_first_attempt() {
        let mut waits = ReceiveWaits::new();
        waits.set(3, Span(100));
        assert_eq!(waits.without_receive(Time(10), 3), NoReceive::Waits);
        assert_eq!(waits.without_receive(Time(109), 3), NoReceive::Waits);
        assert_eq!((waits.due(), waits.overdue(Time(109))), (Time(110), None));
        waits.end(3);
        assert_eq!(waits.due(), Time::NEVER);
        assert_eq!(waits.without_receive(Time(150), 3), NoReceive::Waits);
        assert_eq!((waits.due(), waits.overdue(Time(250))), (Time(250), Some(3)));
        assert_eq!(waits.without_receive(Time(250), 3), NoReceive::Refused);
    }

    #[test]
    fn queue_pairs_wait_as_long_as_each_was_told() {
        let mut waits = ReceiveWaits::new();
        for (slot, longest) in [(7, Span(50)), (2, Span(u64::MAX)), (5, Span(80))] {
            waits.set(slot, longest);
        }
        let answers = [2, 5, 6, 7].map(|slot| waits.without_receive(Time(1), slot));
        assert_eq!(
            answers,
            [NoReceive::Waits, NoReceive::Waits, NoReceive::Refused, NoReceive::Waits],
            "without a wait a message is refused at once"
        );
        let mut refused = Vec::new();
        while waits.due() != Time::NEVER {
            let due = waits.due();
            assert_eq!(waits.overdue(Time(due.0 - 1)), None);
            let slot = waits.overdue(due).expect("one is due");
            refused.push((due, slot));
            waits.end(slot);
        }
        assert_eq!(refused, [(Time(51), 7), (Time(81), 5)], "the third waits for ever");
    }

    #[test]
    fn a_removed_queue_pair_leaves_nothing_to_the_next_one_of_its_place() {
        let mut waits = ReceiveWaits::new();
        waits.set(4, Span(100));
        assert_eq!(waits.without_receive(Time(0), 4), NoReceive::Waits);
        waits.forget(4);
        assert_eq!(waits.due(), Time::NEVER);
        assert_eq!(waits.without_receive(Time(1), 4), NoReceive::Refused);
    }
}
