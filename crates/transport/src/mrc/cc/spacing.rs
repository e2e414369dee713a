//! Time between the packets of a sender whose smallest window is still too large (docs/spec/congestion.md, "Numbers",
//! min cwnd; our choice, see docs/decisions.md). It must never delay a window of more than one packet.

use crate::random::mix;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Parts of a base RTT in which the time between packets is kept: a byte, for every queue pair has it.
const PARTS: u8 = 8;
/// The longest time between packets is the time for which packets have been spaced, divided by this, within the bounds
/// below, base RTTs. At the end of an incast the last senders wait as long for an idle link. 512 senders of 100 Gb/s to
/// one need 19.
const AGE_PER_LONGEST: u8 = 8;
const LONGEST_AT_LEAST: u8 = 8;
const LONGEST_AT_MOST: u8 = 20;
/// A delivered packet adds this to the packets per base RTT; a trimmed one divides them by 1.5. So the rates of senders
/// converge.
const STEP: f64 = 1.0 / 8.0;
/// ... but at most this share of them: where many senders share a link, the step is several times their rates, and most
/// of what they send is trimmed.
const STEP_AT_MOST: f64 = 0.35;

/// Mean time from one packet to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Spacing {
    /// Parts of a base RTT; zero while only the window limits the sender, [`Spacing::OFF`] if nothing else may.
    gap: u8,
    /// For how long packets have been spaced, base RTTs, since an incast has ended or nothing was left to deliver.
    age: u8,
}

impl Spacing {
    /// Packets are never spaced.
    pub const OFF: Spacing = Spacing { gap: u8::MAX, age: 0 };
    /// Only the window limits the sender.
    pub const NONE: Spacing = Spacing { gap: 0, age: 0 };

    /// Whether packets are spaced.
    #[inline]
    pub fn is_active(self) -> bool {
        (1..=LONGEST_AT_MOST * PARTS).contains(&self.gap)
    }

    /// Time of the next packet after something at `now`: between half of the gap and one and a half later, so that
    /// senders do not stay in step.
    pub fn next(self, now: Time, base_rtt: Span, salt: u64) -> Time {
        if !self.is_active() {
            return Time::ZERO;
        }
        let share = 0.5 + f64::from(mix(now.0 ^ salt) as u32) / f64::from(u32::MAX);
        now + base_rtt.scaled(f64::from(self.gap) / f64::from(PARTS) * share)
    }

    /// The receiver has let the window return: the incast is over.
    pub fn end(&mut self) {
        if *self != Spacing::OFF {
            *self = Spacing::NONE;
        }
    }

    /// Everything has been delivered: what is sent next may be of another incast.
    pub fn on_drained(&mut self) {
        self.age = 0;
    }

    /// The only packet in flight was trimmed on the last hop; a delivered one takes `rtt`.
    pub fn on_trim(&mut self, rtt: Span, base_rtt: Span) {
        if *self != Spacing::OFF {
            self.grow_older();
            let rtt = rtt.0.saturating_mul(u64::from(PARTS)).div_ceil(base_rtt.0.max(1));
            let gap = u64::from(self.gap).max(rtt) * 3 / 2;
            let longest = (self.age / AGE_PER_LONGEST).clamp(LONGEST_AT_LEAST, LONGEST_AT_MOST);
            self.gap = gap.clamp(u64::from(PARTS), u64::from(longest * PARTS)) as u8;
        }
    }

    /// A packet was delivered with this delay above the base RTT. Little delay means that the receiver's link is nearly
    /// idle; and a receiver that presses others but not this sender finds it slow (`may_grow`).
    pub fn on_delivered(&mut self, delay: Span, target: Span, may_grow: bool) {
        if !self.is_active() {
            return;
        }
        self.grow_older();
        self.gap = if delay < target.over(2) {
            self.gap / 4
        } else if delay < target || may_grow {
            self.gap / 2
        } else {
            let rate = f64::from(PARTS) / f64::from(self.gap);
            (f64::from(self.gap) * rate / (rate + STEP.min(STEP_AT_MOST * rate))) as u8
        };
        if self.gap < PARTS {
            self.gap = 0;
        }
    }

    /// One more packet has been spaced.
    fn grow_older(&mut self) {
        self.age = self.age.saturating_add(self.gap / PARTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Span = Span::from_micros(10);
    const TARGET: Span = Span::from_micros(8);
    const LATE: Span = Span::from_micros(20);

    #[test]
    fn a_trimmed_packet_spaces_the_next_ones_and_a_round_trip_without_delay_ends_it() {
        let mut spacing = Spacing::NONE;
        assert_eq!(spacing.next(Time(BASE.0), BASE, 1), Time::ZERO);
        spacing.on_trim(BASE, BASE);
        let wait = spacing.next(Time(BASE.0), BASE, 1).since(Time(BASE.0));
        assert!((BASE.scaled(0.75)..=BASE.scaled(2.25)).contains(&wait), "{wait:?}");
        spacing.on_delivered(Span::ZERO, TARGET, false);
        assert!(!spacing.is_active());
    }

    #[test]
    fn a_receiver_that_lets_this_sender_grow_ends_it() {
        let mut spacing = Spacing { gap: LONGEST_AT_LEAST * PARTS, age: 0 };
        (0..5).for_each(|_| spacing.on_delivered(LATE, TARGET, true));
        assert!(!spacing.is_active());
    }

    #[test]
    fn the_wait_has_an_end_which_is_later_in_a_long_incast() {
        let mut spacing = Spacing::NONE;
        let mut longest_after = |trims: u32| {
            (0..trims).for_each(|_| spacing.on_trim(LATE, BASE));
            spacing.gap / PARTS
        };
        assert_eq!(longest_after(8), LONGEST_AT_LEAST);
        let later = longest_after(8);
        assert!((LONGEST_AT_LEAST + 1..LONGEST_AT_MOST).contains(&later), "{later}");
        assert_eq!(longest_after(100), LONGEST_AT_MOST);
        for end in [Spacing::end, Spacing::on_drained] {
            let mut next = spacing;
            end(&mut next);
            next.on_trim(LATE, BASE);
            assert!(next.gap <= LONGEST_AT_LEAST * PARTS, "{next:?}");
        }
    }

    #[test]
    fn one_delivered_packet_makes_no_short_wait_of_a_long_one() {
        let mut spacing = Spacing { gap: LONGEST_AT_MOST * PARTS, age: 0 };
        spacing.on_delivered(LATE, TARGET, false);
        assert!((13..16).contains(&(spacing.gap / PARTS)), "{spacing:?}");
        let mut short = Spacing { gap: 2 * PARTS, age: 0 };
        short.on_delivered(LATE, TARGET, false);
        assert_eq!(short.gap, 12, "5/8 of a packet in a base RTT, after 4/8");
    }

    #[test]
    fn who_is_not_to_be_spaced_never_is() {
        let mut spacing = Spacing::OFF;
        spacing.on_trim(LATE, BASE);
        spacing.on_delivered(LATE, TARGET, false);
        spacing.end();
        assert!(spacing == Spacing::OFF && !spacing.is_active());
    }

    #[test]
    fn the_rates_of_two_senders_converge() {
        let (mut slow, mut fast) =
            (Spacing { gap: LONGEST_AT_MOST * PARTS, age: 0 }, Spacing { gap: 2 * PARTS, age: 0 });
        for _ in 0..100 {
            for sender in [&mut slow, &mut fast] {
                (0..8).for_each(|_| sender.on_delivered(LATE, TARGET, false));
                sender.on_trim(BASE, BASE);
            }
        }
        assert!(slow.gap.abs_diff(fast.gap) <= 2, "{slow:?} {fast:?}");
    }

    #[test]
    fn a_wait_is_half_of_the_gap_to_one_and_a_half_and_the_gap_on_average() {
        for parts in [PARTS, 2 * PARTS, LONGEST_AT_MOST * PARTS] {
            let spacing = Spacing { gap: parts, age: 0 };
            let gap = BASE.0 as f64 * f64::from(parts) / f64::from(PARTS);
            let waits: Vec<f64> = (0..1_000)
                .map(|i| Time(i * 128_000))
                .map(|now| spacing.next(now, BASE, 7).since(now).0 as f64 / gap)
                .collect();
            assert!(waits.iter().all(|wait| (0.5 - 1e-6..=1.5).contains(wait)));
            let mean = waits.iter().sum::<f64>() / waits.len() as f64;
            assert!((mean - 1.0).abs() < 0.03, "{mean}");
        }
    }

    #[test]
    fn waits_differ_from_time_to_time_and_from_sender_to_sender() {
        let spacing = Spacing { gap: 2 * PARTS, age: 0 };
        for fixed in [0, 1, 4188, u64::from(u32::MAX), u64::MAX >> 1] {
            let mut waits: Vec<Span> = (0..100)
                .map(|now| spacing.next(Time(now), BASE, fixed).since(Time(now)))
                .chain(
                    (1_000..1_100)
                        .map(|salt| spacing.next(Time(fixed >> 8), BASE, salt).since(Time(fixed >> 8))),
                )
                .collect();
            waits.sort_unstable();
            waits.dedup();
            assert!(waits.len() > 190, "{} of 200 for {fixed}", waits.len());
        }
    }

    #[test]
    fn a_delivered_packet_shortens_the_gap_to_a_quarter_a_half_or_by_its_step() {
        let half = TARGET.over(2);
        for (gap, delay, may_grow, next) in [
            (100, Span::ZERO, false, 25),
            (100, Span(half.0 - 1), false, 25),
            (100, half, false, 50),
            (100, Span(TARGET.0 - 1), false, 50),
            (100, TARGET, true, 50),
            (100, half, true, 50),
            // 8/100 of a packet in a base RTT, and 0.35 times as many more.
            (100, TARGET, false, 74),
            // 8/20, and an eighth more: 8 / 0.525.
            (20, TARGET, false, 15),
            // A base RTT is the shortest gap.
            (32, Span::ZERO, false, 8),
            (31, Span::ZERO, false, 0),
            (16, half, false, 8),
            (15, half, false, 0),
            (9, TARGET, false, 0),
        ] {
            let mut spacing = Spacing { gap, age: 0 };
            spacing.on_delivered(delay, TARGET, may_grow);
            assert_eq!(spacing.gap, next, "{gap} after {delay:?}, {may_grow}");
        }
    }
}
