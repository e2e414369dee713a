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

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        // SplitMix64 mixes a state that grows by this; its first outputs, as published, for two first states.
        const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;
        let outputs = |state: u64| [0, 1, 2].map(|i: u64| mix(state.wrapping_add(GAMMA.wrapping_mul(i))));
        assert_eq!(outputs(0), [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
        assert_eq!(
            outputs(1_234_567),
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn a_permutation_and_its_inverse_look_random_whatever_the_key() {
        let swapped = |number: u32| number >> 8 | (number & 0xFF) << 8;
        for key in [0, 1, u64::MAX, 1 << 63] {
            let (order, other) = (Permutation::new(key, 16), Permutation::new(key ^ 2, 16));
            let common =
                |f: &dyn Fn(u32) -> u32| (0..1 << 16).step_by(32).filter(|&n| order.apply(n) == f(n)).count();
            // Of all numbers one on average has the same place in two random permutations; a 32nd of them is tried.
            assert!(common(&|number| number) < 4, "it leaves numbers where they are");
            assert!(common(&|number| other.apply(number)) < 4, "the key makes no difference");
            // With equal rounds a Feistel network is its own inverse, but for the order of the halves.
            let backwards = |number| swapped(order.invert(swapped(number)));
            assert!(common(&backwards) < 4, "its rounds are alike");
        }
    }
}
