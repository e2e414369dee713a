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
