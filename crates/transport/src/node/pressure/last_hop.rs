//! Receive pressure derived from the capacity of the ports, where switches trim on the last hop.
//!
//! Once per round trip the node compares the arrivals with the capacity of its ports, with the number of trimmed packets,
//! and with the fair share of each sender. For the first [`PATIENCE`] periods it leaves the incast to the congestion
//! control of the senders, which reaches a share in the second round trip.

use crate::api::Pressure;
use crate::node::table::Receiving;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Reduce slightly and do not grow: packets were trimmed. NACKs tell every sender which of its own packets were
/// trimmed, and it reduces its window by them; a larger penalty here would count the same packets twice.
const PRESS: Pressure = Pressure { penalty: 2, restore: false };
/// The same at full load without trimmed packets: the queue on the last hop becomes shorter.
const GIVE_WAY: Pressure = Pressure { penalty: 6, restore: false };

/// Consecutive periods with trimmed packets that are left to the senders: enough for quick adapt, which acts every 1.75
/// base RTTs.
const PATIENCE: u8 = 2;
/// Above this share of the line rate the senders reduce, so that their sum stays just below the line rate.
const HOLD_ABOVE: f64 = 0.97;
/// Below [`HOLD_ABOVE`] senders may grow in some of the [`SLICES`] parts of a period, and in all of them below this
/// share: each sender grows by several packets per round trip, which for many senders exceeds the line rate.
const GROW_BELOW: f64 = 0.75;
const SLICES: u64 = 8;
/// An incast is over below this share. An idle link costs more than a few trimmed packets if it was not over ...
const OVER_BELOW: f64 = 0.8;
/// ... but then it goes on: for this many periods senders are pressed without patience.
const REMEMBERED: u8 = 100;
/// A sender above this multiple of the fair share gives half of the excess back in a round trip ...
const ABOVE_FAIR: f64 = 1.1;
const HALF_IN_A_ROUND_TRIP: f64 = 64.0;
/// ... and one below this multiple gives nothing back, and may grow as soon as there is room: growth at full load, by
/// several packets in a round trip, would be trimmed.
const BELOW_FAIR: f64 = 0.9;

/// Destination flow control of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DestinationControl {
    period: Span,
    /// Bytes that the ports receive in a period.
    capacity: f64,
    ends: Time,
    /// Number of the present period, modulo 2^16.
    number: u16,
    bytes: u64,
    refused: u32,
    /// Queue pairs that have received data in this period.
    senders: u32,
    /// Consecutive periods in which packets were trimmed.
    overrun: u8,
    /// Periods for which the last incast is remembered.
    remembered: u8,
    /// Slices of a period in which senders may grow although they are held.
    growing: u64,
    /// What each sender would send in a period if all sent the same.
    fair: f64,
    judged: Pressure,
}

impl DestinationControl {
    /// For a node whose ports together receive `rate_bps`, bits per second. The comparison takes place every `period`,
    /// a base RTT.
    pub fn new(rate_bps: u64, period: Span) -> Self {
        DestinationControl {
            period,
            capacity: rate_bps as f64 / 8.0 * period.as_secs_f64(),
            ends: Time::ZERO,
            number: 0,
            bytes: 0,
            refused: 0,
            senders: 0,
            overrun: 0,
            remembered: 0,
            growing: 0,
            fair: 0.0,
            judged: Pressure::NONE,
        }
    }

    /// A data packet of `bytes` on the wire has arrived on the queue pair `from`. It is `refused` if its payload was
    /// trimmed on the last hop or no buffer was free for it. Returns the pressure for its sender.
    #[inline]
    pub(in crate::node) fn on_packet(
        &mut self,
        now: Time,
        bytes: u32,
        refused: bool,
        from: &mut Receiving,
    ) -> Pressure {
        if now >= self.ends {
            self.end_period(now);
        }
        self.count(bytes, refused, from);
        self.pressure_for(now, from)
    }

    #[inline(never)]
    fn end_period(&mut self, now: Time) {
        if self.ends != Time::ZERO {
            let elapsed = (now.since(self.ends) + self.period).0 as f64 / self.period.0 as f64;
            self.judged = self.judge(elapsed);
            self.fair = self.capacity / f64::from(self.senders.max(1));
        }
        self.ends = now + self.period;
        self.number = self.number.wrapping_add(1);
        (self.bytes, self.refused, self.senders) = (0, 0, 0);
    }

    fn count(&mut self, bytes: u32, refused: bool, from: &mut Receiving) {
        if from.period != self.number {
            let is_last = self.number.wrapping_sub(from.period) == 1;
            let last = if is_last { from.bytes } else { 0 };
            from.per_period = if from.per_period == 0 { last } else { from.per_period.midpoint(last) };
            (from.period, from.bytes) = (self.number, 0);
            self.senders += 1;
        }
        if refused {
            self.refused += 1;
        } else {
            self.bytes += u64::from(bytes);
            from.bytes = from.bytes.saturating_add(bytes);
        }
    }

    #[inline]
    fn pressure_for(&self, now: Time, from: &Receiving) -> Pressure {
        if self.judged == Pressure::NONE { Pressure::NONE } else { self.share_of_pressure(now, from) }
    }

    /// The pressure for one of the senders that are pressed.
    #[inline(never)]
    fn share_of_pressure(&self, now: Time, from: &Receiving) -> Pressure {
        let share = f64::from(from.per_period) / self.fair.max(1.0);
        if share > ABOVE_FAIR {
            let excess = (HALF_IN_A_ROUND_TRIP * (1.0 - 1.0 / share)) as u8;
            return Pressure { penalty: excess.max(self.judged.penalty), restore: false };
        }
        let is_slice_to_grow = || now.0 / (self.period.0 / SLICES).max(1) % SLICES < self.growing;
        if self.overrun == 0 && is_slice_to_grow() {
            return Pressure::GROW;
        }
        if self.overrun == 0 && share < BELOW_FAIR {
            return if self.growing > 0 { Pressure::GROW } else { Pressure::HOLD };
        }
        self.judged
    }

    /// The pressure for all senders after a comparison over this many periods.
    fn judge(&mut self, periods: f64) -> Pressure {
        let load = self.bytes as f64 / (self.capacity * periods);
        self.growing = 0;
        self.overrun = if self.refused > 0 { self.overrun.saturating_add(1) } else { 0 };
        if self.refused > 0 {
            let goes_on = self.overrun > PATIENCE || self.judged != Pressure::NONE || self.remembered > 0;
            if !goes_on {
                return Pressure::NONE;
            }
            self.remembered = REMEMBERED;
            return PRESS;
        }
        self.remembered = self.remembered.saturating_sub(1);
        if self.judged == Pressure::NONE || load < OVER_BELOW {
            return Pressure::NONE;
        }
        if load >= HOLD_ABOVE {
            return GIVE_WAY;
        }
        let room = (HOLD_ABOVE - load) / (HOLD_ABOVE - GROW_BELOW);
        self.growing = (SLICES as f64 * room).ceil() as u64;
        Pressure::HOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000_000;

    /// A node of 100 Gb/s and 12 us: 150,000 bytes a period.
    fn control() -> DestinationControl {
        DestinationControl::new(100_000_000_000, Span::from_micros(12))
    }

    /// Feeds a period: bytes of each sender, and how many of its 100 packets were trimmed. Returns what each is told
    /// at its end.
    fn feed<const N: usize>(
        control: &mut DestinationControl,
        senders: &mut [Receiving; N],
        period: u64,
        bytes: [u32; N],
        refused: u32,
    ) -> [Pressure; N] {
        for i in 0..100u64 {
            let at = Time((period * 12 + 1) * US + i * 120_000);
            for (sender, bytes) in senders.iter_mut().zip(bytes) {
                control.on_packet(at, bytes / 100, i < u64::from(refused), sender);
            }
        }
        let at = Time((period * 12 + 13) * US);
        senders.each_mut().map(|sender| control.on_packet(at, 0, false, sender))
    }

    #[test]
    fn a_full_port_without_refusals_holds_nobody_back() {
        let (mut control, mut sender) = (control(), [Receiving::default()]);
        for period in 0..20 {
            assert_eq!(feed(&mut control, &mut sender, period, [150_000], 0), [Pressure::NONE]);
        }
    }

    #[test]
    fn senders_that_go_on_overrunning_the_port_are_pressed_then_held_then_released() {
        let (mut control, mut sender) = (control(), [Receiving::default()]);
        for period in 0..u64::from(PATIENCE) {
            assert_eq!(feed(&mut control, &mut sender, period, [150_000], 50), [Pressure::NONE]);
        }
        assert_eq!(feed(&mut control, &mut sender, 2, [150_000], 25), [PRESS]);
        // The only sender has the whole port as its share. It gives back once it has had that for two periods.
        assert_eq!(feed(&mut control, &mut sender, 3, [150_000], 0), [Pressure::HOLD]);
        assert_eq!(feed(&mut control, &mut sender, 4, [150_000], 0), [GIVE_WAY]);
        assert_eq!(feed(&mut control, &mut sender, 5, [100_000], 0), [Pressure::NONE]);
    }

    #[test]
    fn a_sender_above_its_share_gives_way_more_than_one_below_it() {
        let (mut control, mut senders) = (control(), [Receiving::default(); 3]);
        for period in 0..4 {
            feed(&mut control, &mut senders, period, [200_000, 100_000, 20_000], 50);
        }
        let told = feed(&mut control, &mut senders, 4, [90_000, 50_000, 10_000], 0);
        let most = f64::from(told[0].penalty);
        assert!(most > 4.0 * f64::from(GIVE_WAY.penalty) && most < HALF_IN_A_ROUND_TRIP, "{told:?}");
        assert_eq!(told[1..], [GIVE_WAY, Pressure::HOLD]);
    }

    /// A node of 100 bytes a period of 8 ps, which has received this many in the present one. Its senders are pressed.
    fn pressed(bytes: u64) -> DestinationControl {
        let held = DestinationControl::new(1, Span(8));
        DestinationControl { capacity: 100.0, fair: 10.0, bytes, judged: Pressure::HOLD, ..held }
    }

    #[test]
    fn senders_are_released_held_or_pressed_by_the_load_and_grow_in_the_parts_of_a_period_that_are_free() {
        // Load in per cent, what all are told, and in how many eighths of a period senders may grow: 8 at 75 %, 0 at 97 %.
        let table = [
            (79, Pressure::NONE, 0),
            (80, Pressure::HOLD, 7),
            (85, Pressure::HOLD, 5),
            (90, Pressure::HOLD, 3),
            (95, Pressure::HOLD, 1),
            (96, Pressure::HOLD, 1),
            (97, GIVE_WAY, 0),
            (120, GIVE_WAY, 0),
        ];
        for (load, told, growing) in table {
            for periods in [1, 2, 4] {
                let mut control = pressed(load * periods);
                assert_eq!(control.judge(periods as f64), told, "{load} % in {periods} periods");
                assert_eq!(control.growing, growing, "{load} % in {periods} periods");
            }
        }
    }

    #[test]
    fn a_held_sender_may_grow_in_the_first_parts_of_each_period() {
        let sender = |per_period| Receiving { per_period, ..Receiving::default() };
        for growing in 0..=SLICES {
            let control = DestinationControl { growing, period: Span(80), ..pressed(0) };
            let told = |share, at| control.pressure_for(Time(at), &sender(share));
            for at in 0..240 {
                let is_free = at / 10 % 8 < growing;
                let expected = if is_free { Pressure::GROW } else { Pressure::HOLD };
                assert_eq!(told(10, at), expected, "at {at} with {growing} parts");
                // One below its share grows in all of them as soon as there is room.
                let expected = if growing > 0 { Pressure::GROW } else { Pressure::HOLD };
                assert_eq!(told(8, at), expected, "at {at} with {growing} parts, below its share");
            }
        }
    }

    #[test]
    fn what_a_sender_is_told_depends_on_its_share() {
        // What it sends in a period, where the fair share is 10, and what it is told: at full load, and after trims.
        let give = |penalty| Pressure { penalty, restore: false };
        let table = [
            (0, Pressure::HOLD, PRESS),
            (8, Pressure::HOLD, PRESS),
            (9, GIVE_WAY, PRESS),
            (10, GIVE_WAY, PRESS),
            (11, GIVE_WAY, PRESS),
            // Half of the excess in a round trip, in 128ths of what is acknowledged, but not less than the others.
            (12, give(10), give(10)),
            (20, give(32), give(32)),
            (40, give(48), give(48)),
        ];
        for (per_period, at_full_load, after_trims) in table {
            let sender = Receiving { per_period, ..Receiving::default() };
            let told = |judged, overrun| {
                DestinationControl { judged, overrun, ..pressed(0) }.pressure_for(Time(3), &sender)
            };
            assert_eq!([told(GIVE_WAY, 0), told(PRESS, 1)], [at_full_load, after_trims], "{per_period}");
            assert_eq!(told(Pressure::NONE, 0), Pressure::NONE);
        }
        // Just at the limit a sender gives no excess back.
        let sender = Receiving { per_period: 11, ..Receiving::default() };
        assert_eq!(pressed(0).pressure_for(Time(3), &sender), Pressure::HOLD);
    }

    #[test]
    fn an_incast_that_returns_within_a_hundred_periods_is_pressed_at_once() {
        for (clean, told) in [(1, PRESS), (99, PRESS), (100, Pressure::NONE), (101, Pressure::NONE)] {
            let mut control = pressed(0);
            let mut judge = |refused| {
                control.refused = refused;
                control.judged = control.judge(1.0);
                control.judged
            };
            assert_eq!(judge(1), PRESS);
            for _ in 0..clean {
                assert_eq!(judge(0), Pressure::NONE);
            }
            assert_eq!(judge(1), told, "after {clean} periods");
        }
    }
}
