//! How many probes of condemned paths a node may send (docs/spec/paths.md, "Probing condemned paths").
//!
//! The share is one of all data packets of the node: with a share of its own for each queue pair, many queue pairs that
//! send little would probe more than they send.

use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// One probe of a condemned path for this number of data packets sent ...
const SHARE: u32 = 100;
/// ... of which at most this number is saved up \[choice\].
const MAX_AT_ONCE: u32 = 8;
/// A node that sends little may send one probe when this time has passed since one was refused \[choice\].
const PATIENCE: Span = Span::from_millis(10);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ProbeBudget {
    /// Data packets sent for which no probe was sent yet.
    packets: u32,
    /// From this time on, one probe may be sent without data packets.
    waived: Time,
}

impl ProbeBudget {
    pub fn new() -> Self {
        ProbeBudget { packets: 0, waived: Time::NEVER }
    }

    /// A data packet is being sent.
    #[inline]
    pub fn count_data_packet(&mut self) {
        self.packets = (self.packets + 1).min(SHARE * MAX_AT_ONCE);
    }

    /// Whether a probe of a condemned path may be sent now. If so, it is taken off the budget.
    pub fn take(&mut self, now: Time) -> bool {
        if self.packets < SHARE && now < self.waived {
            self.waived = self.waived.min(now + PATIENCE);
            return false;
        }
        self.packets = self.packets.saturating_sub(SHARE);
        self.waived = Time::NEVER;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_probe_for_a_hundred_data_packets_and_eight_at_once() {
        let mut budget = ProbeBudget::new();
        let now = Time::ZERO;
        for _ in 0..SHARE {
            assert!(!budget.take(now));
            budget.count_data_packet();
        }
        assert!(budget.take(now));
        assert!(!budget.take(now));
        (0..10_000).for_each(|_| budget.count_data_packet());
        assert_eq!((0..100).filter(|_| budget.take(now)).count(), 8);
    }

    #[test]
    fn a_node_without_data_sends_one_each_ten_milliseconds() {
        let mut budget = ProbeBudget::new();
        let taken = (0..10_000u64).filter(|i| budget.take(Time(i * Span::from_micros(10).0))).count();
        assert_eq!(taken, 9, "in 100 ms, the first after 10 ms");
    }

    #[test]
    fn a_refused_probe_is_allowed_when_the_patience_is_over_and_the_next_waits_again() {
        let mut budget = ProbeBudget::new();
        let refused = Time(1_000);
        assert!(!budget.take(refused));
        // Asking again does not prolong it.
        assert!(!budget.take(Time(refused.0 + PATIENCE.0 - 1)));
        assert!(budget.take(refused + PATIENCE));
        assert!(!budget.take(refused + PATIENCE));
        assert!(!budget.take(refused + PATIENCE + Span(PATIENCE.0 - 1)));
        assert!(budget.take(refused + PATIENCE + PATIENCE));
    }
}
