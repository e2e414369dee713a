//! When retries come, and for how long a peer may be silent until they end (docs/spec/transport.md, "The retry
//! budget").

use super::config::{QpConfig, RequestorConfig};
use crate::time::Span;

/// This `exp_cnt` means unlimited retries.
const UNLIMITED: u8 = 25;
/// Longest interval between attempts: 1.024 us x 2^24 \[choice\].
const LONGEST_INTERVAL: Span = QpConfig::timeout_from_exponent(24);

/// The intervals between attempts: `linear_cnt` of them last for the timeout, later ones twice as long as the one
/// before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetrySchedule {
    /// The first interval.
    pub timeout: Span,
    /// Retries at that interval.
    pub linear_cnt: u8,
    /// Retries with doubling interval after those; 25 is without end.
    pub exp_cnt: u8,
}

impl RetrySchedule {
    /// The interval that follows after so many retries.
    #[inline]
    pub fn interval(&self, retries: u8) -> Span {
        let doublings = retries.saturating_sub(self.linear_cnt.saturating_sub(1));
        if doublings == 0 {
            return self.timeout;
        }
        self.timeout.times(1 << doublings.min(40)).min(self.timeout.max(LONGEST_INTERVAL))
    }

    /// Whether no retry is left.
    pub fn is_exhausted(&self, retries: u8) -> bool {
        self.exp_cnt < UNLIMITED && retries >= self.linear_cnt.saturating_add(self.exp_cnt)
    }

    /// How long a peer is silent before the queue pair fails: an interval before each retry, and one after the last.
    /// `None` is for ever.
    pub fn lasts(&self) -> Option<Span> {
        let last = (0..=u8::MAX).find(|&retries| self.is_exhausted(retries))?;
        Some((0..=last).fold(Span::ZERO, |sum, retries| sum + self.interval(retries)))
    }
}

impl From<&RequestorConfig> for RetrySchedule {
    fn from(config: &RequestorConfig) -> Self {
        let RequestorConfig { timeout, linear_cnt, exp_cnt, .. } = *config;
        RetrySchedule { timeout, linear_cnt, exp_cnt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lasts(timeout: u8, linear_cnt: u8, exp_cnt: u8) -> Option<u64> {
        let timeout = QpConfig::timeout_from_exponent(timeout);
        RetrySchedule { timeout, linear_cnt, exp_cnt }.lasts().map(|span| span.0 / 1_024_000)
    }

    #[test]
    fn intervals_are_fixed_then_double_then_stay_at_the_longest() {
        assert_eq!(lasts(0, 0, 0), Some(1));
        assert_eq!(lasts(0, 1, 0), Some(1 + 2));
        assert_eq!(lasts(0, 7, 0), Some(7 + 2));
        assert_eq!(lasts(0, 3, 2), Some(3 + 2 + 4 + 8));
        assert_eq!(lasts(0, 7, 24), Some(7 + (1 << 25) - 2 + (1 << 24)));
        assert_eq!(lasts(24, 1, 2), Some(4 << 24));
        assert_eq!(lasts(0, 7, 25), None);
    }
}
