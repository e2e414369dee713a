//! Queue pairs that their application has destroyed, and that answer their peers for a while: a peer whose last
//! acknowledgement was lost learns that its messages have arrived.

use super::ids::Slot;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// A destroyed queue pair answers for this number of timeouts, and for [`LEAST`] at least \[choice\].
const TIMEOUTS: u64 = 16;
const LEAST: Span = Span::from_secs(1);

/// For how long a destroyed queue pair with this ACK timeout answers its peer.
pub fn linger_time(timeout: Span) -> Span {
    LEAST.max(timeout.times(TIMEOUTS))
}

/// The queue pairs that linger.
#[derive(Serialize, Deserialize)]
pub(super) struct Lingering {
    /// When the first of them is removed.
    due: Time,
    until: Vec<(Time, Slot)>,
}

impl Lingering {
    pub fn new() -> Self {
        Lingering { due: Time::NEVER, until: Vec::new() }
    }

    /// A queue pair lingers from now on.
    pub fn begin(&mut self, slot: Slot, until: Time) {
        self.forget(slot);
        self.until.push((until, slot));
        self.due = self.due.min(until);
    }

    /// A queue pair is removed.
    pub fn forget(&mut self, slot: Slot) {
        if !self.until.is_empty() {
            self.until.retain(|&(_, of)| of != slot);
            self.due = self.until.iter().map(|&(until, _)| until).min().unwrap_or(Time::NEVER);
        }
    }

    /// When the first of them is removed.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// A queue pair whose time is over.
    pub fn over(&self, now: Time) -> Option<Slot> {
        self.until.iter().find(|&&(until, _)| until <= now).map(|&(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lingers_for_its_own_time() {
        let mut lingering = Lingering::new();
        assert_eq!((lingering.due(), lingering.over(Time(1 << 60))), (Time::NEVER, None));
        lingering.begin(5, Time(30));
        lingering.begin(7, Time(20));
        assert_eq!(lingering.due(), Time(20));
        assert_eq!([19, 20, 29].map(|now| lingering.over(Time(now))), [None, Some(7), Some(7)]);
        lingering.forget(7);
        assert_eq!((lingering.due(), lingering.over(Time(29))), (Time(30), None));
        assert_eq!(lingering.over(Time(30)), Some(5));
        lingering.begin(5, Time(40));
        assert_eq!((lingering.due(), lingering.over(Time(39))), (Time(40), None));
    }

    #[test]
    fn a_queue_pair_lingers_for_a_second_or_sixteen_timeouts() {
        assert_eq!(linger_time(Span::from_millis(10)), Span::from_secs(1));
        assert_eq!(linger_time(Span::from_millis(100)), Span::from_millis(1600));
    }
}
