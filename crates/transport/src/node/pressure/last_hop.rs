//! Pressure by what the ports can carry, where switches trim on the last hop.
//!
//! Once a round trip the node compares what came in with what its ports can carry, and with what was trimmed. For the first
//! [`PATIENCE`] periods it leaves the incast to the senders' own controllers, which find their shares in the second round
//! trip. One instance serves a node; it needs no state per sender.

use crate::api::Pressure;
use crate::time::{Span, Time};

/// Shed a little, and do not grow: something was refused. Every sender is told of its own refused packets, one by one, and
/// takes them off its window; if the share that was refused were taken off here as well, it would go twice.
const PRESS: Pressure = Pressure { penalty: 2, restore: false };
/// Give way by a twentieth of the window a round trip. Uneven shares come together by as much each time that senders give way
/// and grow again by equal steps; by the 1 / 128 of [`Pressure::HOLD`] they would take milliseconds.
const GIVE_WAY: Pressure = Pressure { penalty: 6, restore: false };

/// Periods with refusals in a row that are left to the senders: quick adapt, which acts every 1.75 base RTTs, will have acted
/// twice.
const PATIENCE: u8 = 3;
/// From this share of the line on senders give way, so that together they stop just short of it.
const HOLD_ABOVE: f64 = 0.97;
/// Between this share and that, they may grow in some of [`SLICES`] parts of a period, the fewer the closer they come: a
/// sender grows by several packets a round trip, which for many of them together is more than the line.
const CREEP_ABOVE: f64 = 0.75;
const SLICES: u64 = 8;
/// Below this share for [`OVER_AFTER`] periods in a row an incast is over.
const OVER_BELOW: f64 = 0.6;
const OVER_AFTER: u8 = 4;

/// The receiving node's view.
#[derive(Clone, Debug)]
pub struct DestinationControl {
    period: Span,
    capacity: f64,
    ends: Time,
    bytes: u64,
    refused: u32,
    quiet: u8,
    /// Periods in a row in which something was refused.
    overrun: u8,
    /// Slices of a period in which growth is let through while senders are held.
    growing: u64,
    judged: Pressure,
    pressure: Pressure,
}

impl DestinationControl {
    /// For a node whose ports together receive `rate_bps`, bits per second, looked at every `period`, a base RTT.
    pub fn new(rate_bps: u64, period: Span) -> Self {
        DestinationControl {
            period,
            capacity: rate_bps as f64 / 8.0 * period.as_secs_f64(),
            ends: Time::ZERO,
            bytes: 0,
            refused: 0,
            quiet: OVER_AFTER,
            overrun: 0,
            growing: 0,
            judged: Pressure::NONE,
            pressure: Pressure::NONE,
        }
    }

    /// A data packet of `bytes` on the wire came in; `refused` if its payload was trimmed on the last hop or there was no
    /// buffer for it. Gives the new pressure if it has changed.
    pub fn on_packet(&mut self, now: Time, bytes: u32, refused: bool) -> Option<Pressure> {
        if refused {
            self.refused += 1;
        } else {
            self.bytes += u64::from(bytes);
        }
        if now >= self.ends {
            if self.ends != Time::ZERO {
                let elapsed = (now.since(self.ends) + self.period).0 as f64 / self.period.0 as f64;
                self.judged = self.judge(elapsed);
            }
            self.ends = now + self.period;
            (self.bytes, self.refused) = (0, 0);
        }
        let grows = || now.0 / (self.period.0 / SLICES).max(1) % SLICES < self.growing;
        let pressure = if self.growing > 0 && grows() { Pressure::GROW } else { self.judged };
        let changed = pressure != self.pressure;
        self.pressure = pressure;
        changed.then_some(pressure)
    }

    /// The pressure now.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    fn judge(&mut self, periods: f64) -> Pressure {
        let load = self.bytes as f64 / (self.capacity * periods);
        self.growing = 0;
        self.overrun = if self.refused > 0 { self.overrun.saturating_add(1) } else { 0 };
        self.quiet = if load < OVER_BELOW { (self.quiet + 1).min(OVER_AFTER) } else { 0 };
        if self.refused > 0 {
            let goes_on = self.overrun > PATIENCE || self.judged != Pressure::NONE;
            return if goes_on { PRESS } else { Pressure::NONE };
        }
        if self.judged == Pressure::NONE || self.quiet == OVER_AFTER {
            return Pressure::NONE;
        }
        if load < CREEP_ABOVE {
            return Pressure::GROW;
        }
        if load >= HOLD_ABOVE {
            return GIVE_WAY;
        }
        let room = (HOLD_ABOVE - load) / (HOLD_ABOVE - CREEP_ABOVE);
        self.growing = (SLICES as f64 * room).ceil() as u64;
        Pressure::HOLD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000_000;

    /// A node of 100 Gb/s and 12 us: 150,000 bytes a period.
    fn feed(control: &mut DestinationControl, period: u64, bytes: u32, refused: u32) -> Pressure {
        for i in 0..100u64 {
            let at = Time((period * 12 + 1) * US + i * 120_000);
            control.on_packet(at, bytes / 100, i < u64::from(refused));
        }
        control.on_packet(Time((period * 12 + 13) * US), 0, false);
        control.pressure()
    }

    #[test]
    fn a_full_port_without_refusals_holds_nobody_back() {
        let mut control = DestinationControl::new(100_000_000_000, Span::from_micros(12));
        for period in 0..20 {
            assert_eq!(feed(&mut control, period, 150_000, 0), Pressure::NONE);
        }
    }

    #[test]
    fn senders_that_go_on_overrunning_the_port_are_pressed_then_held_then_released() {
        let mut control = DestinationControl::new(100_000_000_000, Span::from_micros(12));
        for period in 0..3 {
            assert_eq!(feed(&mut control, period, 150_000, 75), Pressure::NONE);
        }
        assert_eq!(feed(&mut control, 3, 150_000, 25), PRESS);
        assert_eq!(feed(&mut control, 4, 150_000, 0), GIVE_WAY);
        assert_eq!(feed(&mut control, 5, 100_000, 0), Pressure::GROW);
        for period in 6..9 {
            feed(&mut control, period, 10_000, 0);
        }
        assert_eq!(feed(&mut control, 9, 10_000, 0), Pressure::NONE);
    }
}
