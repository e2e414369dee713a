//! Sorting numbers by some of their bits, digit by digit from the lowest: linear, stable, and without a comparison that
//! a processor could guess wrong.

/// Bits of a digit, and how many values it has: its counters take four kilobytes.
const DIGIT: u32 = 10;
const VALUES: usize = 1 << DIGIT;
/// Below this many a comparison sort is faster.
const FEW: usize = 192;

/// Working memory, kept from one sort to the next.
#[derive(Default)]
pub(crate) struct Radix {
    spare: Vec<u64>,
}

impl Radix {
    /// Sorts `keys`, which grow in their bits below `from`, by their bits `from .. to`; all above are zero.
    pub fn sort(&mut self, keys: &mut Vec<u64>, from: u32, to: u32) {
        if keys.len() < FEW {
            keys.sort_unstable();
            return;
        }
        // The number of passes is a constant in each of these, which makes every pass a short loop.
        match (to - from).div_ceil(DIGIT) {
            0 => {}
            1 => self.sort_digits::<1>(keys, from),
            2 => self.sort_digits::<2>(keys, from),
            3 => self.sort_digits::<3>(keys, from),
            _ => keys.sort_unstable(),
        }
    }

    fn sort_digits<const DIGITS: usize>(&mut self, keys: &mut Vec<u64>, from: u32) {
        let digit = |key: u64, i: usize| (key >> (from + i as u32 * DIGIT)) as usize % VALUES;
        let mut counts = [[0u32; VALUES]; DIGITS];
        for &key in &*keys {
            for (i, count) in counts.iter_mut().enumerate() {
                count[digit(key, i)] += 1;
            }
        }
        self.spare.resize(keys.len(), 0);
        for (i, count) in counts.iter_mut().enumerate() {
            let mut begin = 0;
            for place in &mut *count {
                begin += std::mem::replace(place, begin);
            }
            for &key in &*keys {
                let place = &mut count[digit(key, i)];
                self.spare[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(keys, &mut self.spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sorts_as_the_standard_library_does(
            times in proptest::collection::vec(0u64..1 << 33, 0..2000),
            to in 13u32..47,
        ) {
            // In their lowest bits the keys grow.
            let mut keys: Vec<u64> =
                times.iter().zip(0..).map(|(&t, i)| (t << 11 | i) & ((1 << to) - 1)).collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            let mut radix = Radix::default();
            radix.sort(&mut keys, 11, to);
            prop_assert_eq!(&keys, &sorted);
        }
    }
}
