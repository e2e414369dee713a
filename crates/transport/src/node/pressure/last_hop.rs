//! Receive pressure derived from the capacity of the ports, where switches trim on the last hop.
//!
//! Once per round trip the node compares the arrivals with the capacity of its ports and with the number of trimmed
//! packets. For the first [`PATIENCE`] periods it leaves the incast to the congestion control of the senders, which
//! reaches a share in the second round trip. There is one instance per node and no state per sender.

use crate::api::Pressure;
use crate::time::{Span, Time};

/// Reduce slightly and do not grow: packets were trimmed. NACKs tell every sender which of its own packets were
/// trimmed, and it reduces its window by them; a larger penalty here would count the same packets twice.
const PRESS: Pressure = Pressure { penalty: 2, restore: false };
/// Reduce by a twentieth of the window per round trip. Uneven shares converge by this factor each time that the senders
/// reduce and then grow by equal steps; with the 1 / 128 of [`Pressure::HOLD`] convergence would take milliseconds.
const GIVE_WAY: Pressure = Pressure { penalty: 6, restore: false };

/// Consecutive periods with trimmed packets that are left to the senders: enough for quick adapt, which acts every 1.75
/// base RTTs, to act twice.
const PATIENCE: u8 = 3;
/// Above this share of the line rate the senders reduce, so that their sum stays just below the line rate.
const HOLD_ABOVE: f64 = 0.97;
/// Between this share and [`HOLD_ABOVE`] senders may grow only in some of the [`SLICES`] parts of a period, and in
/// fewer parts the closer they are to the line rate: each sender grows by several packets per round trip, which for
/// many senders exceeds the line rate.
const CREEP_ABOVE: f64 = 0.75;
const SLICES: u64 = 8;
/// An incast is over after [`OVER_AFTER`] consecutive periods below this share.
const OVER_BELOW: f64 = 0.6;
const OVER_AFTER: u8 = 4;

/// Destination flow control of one node.
#[derive(Clone, Debug)]
pub struct DestinationControl {
    period: Span,
    capacity: f64,
    ends: Time,
    bytes: u64,
    refused: u32,
    quiet: u8,
    /// Consecutive periods in which packets were trimmed.
    overrun: u8,
    /// Slices of a period in which senders may grow although they are held.
    growing: u64,
    judged: Pressure,
    pressure: Pressure,
}

impl DestinationControl {
    /// For a node whose ports together receive `rate_bps`, bits per second. The comparison takes place every `period`,
    /// a base RTT.
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

    /// A data packet of `bytes` on the wire has arrived. It is `refused` if its payload was trimmed on the last hop or
    /// no buffer was free for it. Returns the new pressure if it has changed.
    pub fn on_packet(&mut self, now: Time, bytes: u32, refused: bool) -> Option<Pressure> {
        if refused {
            self.refused += 1;
        } else {
            self.bytes += u64::from(bytes);
        }
        if now >= self.ends {
            if self.ends != Time::ZERO {
                let elapsed = (now.since(self.ends) + self.period).0 as f64 / self.period.0 as f64;
                self.judged = self.receive(elapsed);
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

    /// The current pressure.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    fn receive(&mut self, periods: f64) -> Pressure {
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
