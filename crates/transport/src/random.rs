//! Pseudorandom numbers that depend only on their inputs, so that a run is reproducible.

use serde::{Deserialize, Serialize};

/// SplitMix64's finaliser: spreads every bit of the input over the output.
#[inline]
pub const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Rounds of a permutation. Four make a Feistel network a pseudorandom permutation (Luby and Rackoff).
const ROUNDS: u64 = 4;

/// A keyed permutation of the numbers of `bits` bits, an even number up to 32: a Feistel network of two halves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Permutation {
    key: u64,
    half: u32,
}

impl Permutation {
    /// The permutation of this key.
    #[inline]
    pub const fn new(key: u64, bits: u32) -> Self {
        Permutation { key, half: bits / 2 }
    }

    /// The number that takes the place of `number`.
    #[inline]
    pub fn apply(self, number: u32) -> u32 {
        let (mut left, mut right) = self.halves(number);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.scramble(round, right));
        }
        left << self.half | right
    }

    /// The number of which [`Self::apply`] makes this one.
    #[inline]
    pub fn invert(self, number: u32) -> u32 {
        let (mut left, mut right) = self.halves(number);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.scramble(round, left), left);
        }
        left << self.half | right
    }

    const fn mask(self) -> u32 {
        (1 << self.half) - 1
    }

    const fn halves(self, number: u32) -> (u32, u32) {
        (number >> self.half & self.mask(), number & self.mask())
    }

    const fn scramble(self, round: u64, half: u32) -> u32 {
        mix(self.key ^ mix(round << 32 | half as u64)) as u32 & self.mask()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_gives_each_number_once_and_can_be_inverted() {
        for (key, bits) in [(0, 24), (1, 24), (u64::MAX, 16)] {
            let order = Permutation::new(key, bits);
            let mut seen = vec![false; 1 << bits];
            for number in 0..1 << bits {
                let permuted = order.apply(number);
                assert!(!std::mem::replace(&mut seen[permuted as usize], true), "{permuted} twice");
                assert_eq!(order.invert(permuted), number);
            }
        }
    }
}
