//! Time of the transport: picoseconds in a `u64`, passed in by the driver.

use core::ops::{Add, AddAssign, Sub};
use serde::{Deserialize, Serialize};

/// A point in time: picoseconds since an origin of the driver's choice. Wraps after 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Time(pub u64);

/// A duration in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Span(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than every deadline.
    pub const NEVER: Time = Time(u64::MAX);

    /// Time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// The wire's transmit timestamp for this time: 16 bits, units of 128 ns.
    pub const fn wire_ticks(self) -> u16 {
        (self.0 / Span::WIRE_TICK.0) as u16
    }
}

impl Span {
    /// No time.
    pub const ZERO: Span = Span(0);
    /// The unit of the wire's timestamps.
    pub const WIRE_TICK: Span = Span::from_nanos(128);

    /// `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Span {
        Span(n * 1_000)
    }
    /// `n` microseconds.
    pub const fn from_micros(n: u64) -> Span {
        Span(n * 1_000_000)
    }
    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Span {
        Span(n * 1_000_000_000)
    }
    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Span {
        Span(n * 1_000_000_000_000)
    }
    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0 / 1_000
    }
    /// Seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-12
    }
    /// `n` times the duration, saturating.
    #[must_use]
    pub const fn times(self, n: u64) -> Span {
        Span(self.0.saturating_mul(n))
    }
    /// The duration divided by `n`.
    #[must_use]
    pub const fn over(self, n: u64) -> Span {
        Span(self.0 / n)
    }
    /// Scaled by a factor, rounded towards zero.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Span {
        Span((self.0 as f64 * factor) as u64)
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}
