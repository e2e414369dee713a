//! Putting the keys of a page in order: spread over about as many buckets as there are keys, by their highest bits, they are
//! nearly in order, and what is left costs a comparison a key.

/// Below this many a comparison sort is as fast.
const FEW: usize = 64;
/// Binary logarithm of the most buckets: their counters take 32 kilobytes.
const MOST: u32 = 13;

/// Working memory, kept from one sort to the next.
#[derive(Default)]
pub(crate) struct Sorter {
    spare: Vec<u64>,
    counts: Vec<u32>,
}

impl Sorter {
    /// Sorts `keys`, all below `2^bits` and no two alike.
    pub fn sort(&mut self, keys: &mut Vec<u64>, bits: u32) {
        if keys.len() < FEW {
            keys.sort_unstable();
            return;
        }
        let shift = bits.saturating_sub(keys.len().ilog2().min(MOST));
        self.counts.clear();
        self.counts.resize(1 << (bits - shift), 0);
        for &key in &*keys {
            self.counts[(key >> shift) as usize] += 1;
        }
        let mut begin = 0;
        for place in &mut self.counts {
            begin += std::mem::replace(place, begin);
        }
        self.spare.resize(keys.len(), 0);
        for &key in &*keys {
            let place = &mut self.counts[(key >> shift) as usize];
            self.spare[*place as usize] = key;
            *place += 1;
        }
        std::mem::swap(keys, &mut self.spare);
        if !finish(keys) {
            keys.sort_unstable();
        }
    }
}

/// Sorts what is nearly in order by insertion; gives up where it turns out not to be.
fn finish(keys: &mut [u64]) -> bool {
    let mut patience = 8 * keys.len();
    for i in 1..keys.len() {
        let key = keys[i];
        let mut place = i;
        while place > 0 && keys[place - 1] > key {
            keys[place] = keys[place - 1];
            place -= 1;
        }
        keys[place] = key;
        patience = patience.saturating_sub(i - place);
        if patience == 0 {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Evenly spread, and crowded together where no bucket tells them apart.
        #[test]
        fn sorts_as_the_standard_library_does(
            numbers in proptest::collection::btree_set(0u64..1 << 33, 0..2000),
            seed in 0u64..1000,
            squeeze in 0u32..22,
        ) {
            let mut keys: Vec<u64> = numbers.into_iter().map(|n| n >> squeeze).collect();
            keys.dedup();
            let sorted = keys.clone();
            keys.sort_by_key(|&key| crate::endpoints::mix(key ^ seed));
            Sorter::default().sort(&mut keys, 33);
            prop_assert_eq!(&keys, &sorted);
        }
    }
}
