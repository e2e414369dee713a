//! Packet and message sequence numbers, which wrap and are compared modulo their range.

use core::fmt;
use serde::{Deserialize, Serialize};

/// A 24-bit packet sequence number. [`Psn::distance`] compares two of them modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Psn(u32);

impl Psn {
    /// Number of bits on the wire.
    pub const BITS: u32 = 24;
    const MASK: u32 = (1 << Self::BITS) - 1;

    /// The PSN in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Psn(value & Self::MASK)
    }

    /// The 24-bit value.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This PSN moved by `n`, forwards or backwards, modulo 2^24.
    #[must_use]
    pub const fn offset(self, n: i32) -> Self {
        Psn::new(self.0.wrapping_add(n as u32))
    }

    /// The next PSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.offset(1)
    }

    /// Signed distance from `base` to `self`, in -2^23 .. 2^23.
    pub const fn distance(self, base: Psn) -> i32 {
        // The 24-bit difference moves to the top of the word, so that the arithmetic shift extends its sign.
        ((self.0.wrapping_sub(base.0) << (32 - Self::BITS)) as i32) >> (32 - Self::BITS)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A 16-bit message sequence number (METH.MSN and METH.RQMSN), compared modulo 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Msn(pub u16);

impl Msn {
    /// This MSN moved by `n` modulo 2^16.
    #[must_use]
    pub const fn offset(self, n: i32) -> Self {
        Msn(self.0.wrapping_add(n as u16))
    }

    /// The next MSN.
    #[must_use]
    pub const fn next(self) -> Self {
        self.offset(1)
    }

    /// Signed distance from `base` to `self`, in -2^15 .. 2^15.
    pub const fn distance(self, base: Msn) -> i32 {
        self.0.wrapping_sub(base.0) as i16 as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_distance_crosses_the_wrap() {
        assert_eq!(Psn::new(1).distance(Psn::new(0xFF_FFFF)), 2);
        assert_eq!(Psn::new(0xFF_FFFF).distance(Psn::new(1)), -2);
        assert!(Psn::new(0xFF_FFFF).distance(Psn::new(0)) < 0);
    }

    #[test]
    fn msn_distance_crosses_the_wrap() {
        assert_eq!(Msn(2).distance(Msn(0xFFFE)), 4);
        assert_eq!(Msn(0xFFFE).distance(Msn(2)), -4);
    }

    #[test]
    fn a_number_moves_both_ways_across_the_wrap() {
        for (from, by, to) in
            [(5, 1, 6), (0xFF_FFFF, 1, 0), (0, -1, 0xFF_FFFF), (2, -4, 0xFF_FFFE), (0, 1 << 24, 0), (7, 0, 7)]
        {
            assert_eq!(Psn::new(from).offset(by), Psn::new(to), "{from:#x} by {by}");
        }
        for (from, by, to) in [(5, 1, 6), (0xFFFF, 1, 0), (0, -1, 0xFFFF), (2, -4, 0xFFFE), (7, 1 << 16, 7)] {
            assert_eq!(Msn(from).offset(by), Msn(to), "{from:#x} by {by}");
        }
        assert_eq!([Psn::new(8).next(), Psn::new(0xFF_FFFF).next()], [Psn::new(9), Psn::new(0)]);
        assert_eq!([Msn(8).next(), Msn(0xFFFF).next()], [Msn(9), Msn(0)]);
    }
}
