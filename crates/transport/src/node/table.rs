//! The queue pairs of a node, and their numbers.

use super::ids::{PeerId, QpId, Slot};
use super::timers::Scheduled;
use crate::random::{Permutation, mix};
use serde::{Deserialize, Serialize};

/// How queue pair numbers are assigned. A number consists of a slot in the table and a generation, so that it is not
/// reused soon: a late packet for a closed queue pair must not reach another one. With a key, a permutation of all
/// 24-bit numbers hides both: an attacker who cannot see packets has to guess 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// Bits of the 24-bit number that hold the slot.
    pub slot_bits: u32,
    /// A freed slot is reused only while more than this number of slots are free.
    pub min_free: u32,
    /// Key of the permutation. `None`: numbers are not permuted, for a simulator, where nobody guesses.
    pub key: Option<u64>,
    /// The upper 8 bits of every number, for nodes that share their addresses: a peer derives the UDP port from it.
    /// Only the other bits are permuted then.
    pub prefix: Option<u8>,
}

/// Bits of a number that hold the prefix, where it has one.
const PREFIX_BITS: u32 = 8;

impl Numbers {
    /// Largest number of queue pairs of a node.
    pub const fn max_queue_pairs(&self) -> u32 {
        1 << self.slot_bits
    }

    /// The prefix of a number of a node that has one.
    pub const fn prefix_of(number: u32) -> u8 {
        (number >> (NUMBER_BITS - PREFIX_BITS)) as u8
    }

    /// Bits that hold generation and slot.
    #[inline]
    const fn bits(&self) -> u32 {
        if self.prefix.is_some() { NUMBER_BITS - PREFIX_BITS } else { NUMBER_BITS }
    }

    /// The number on the wire of a generation of a slot.
    #[inline]
    fn join(&self, generation: u32, slot: Slot) -> u32 {
        let plain = generation << self.slot_bits | slot;
        let low = self.key.map_or(plain, |key| Permutation::new(key, self.bits()).apply(plain));
        self.prefix.map_or(low, |prefix| u32::from(prefix) << self.bits() | low)
    }

    /// The generation and the slot of a number. A number of another prefix has a generation that does not exist.
    #[inline]
    fn split(&self, number: u32) -> (u32, Slot) {
        if self.prefix.is_some_and(|prefix| number >> self.bits() != u32::from(prefix)) {
            return (0, 0);
        }
        let low = number & ((1 << self.bits()) - 1);
        let plain = self.key.map_or(low, |key| self.find_plain(key, low));
        (plain >> self.slot_bits, plain & (self.max_queue_pairs() - 1))
    }

    /// What the permutation made a number of. A call of its own: [`Self::split`] is inlined where there is no key.
    #[inline(never)]
    fn find_plain(&self, key: u64, number: u32) -> u32 {
        Permutation::new(key, self.bits()).invert(number)
    }
}

/// Numbers that the InfiniBand architecture reserves (0, 1, multicast), and QP 0x2 of endpoint requests.
fn is_reserved(number: u32) -> bool {
    number <= openmrc_wire::ENDPOINT_QP || number == (1 << NUMBER_BITS) - 1
}

/// The table has no free slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table is full: it holds {0} queue pairs")]
pub struct TableFull(pub u32);

/// What the receive pressure keeps for each queue pair.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Receiving {
    /// It has received data since the receive buffers were last checked.
    pub active: bool,
    /// The last overflow that it has reported to its sender.
    pub reported: u8,
    /// Number of the last period of destination flow control in which it received, and bytes received in it.
    pub period: u16,
    pub bytes: u32,
    /// Mean of what it received in the periods before.
    pub per_period: u32,
}

/// One slot of the table.
#[derive(Serialize, Deserialize)]
pub(super) struct Entry<Q> {
    /// The queue pair, once it is connected.
    pub qp: Option<Q>,
    /// Its entries in the timers.
    pub scheduled: Scheduled,
    pub peer: PeerId,
    /// The driver's own name for the queue pair.
    pub context: u32,
    /// Generation of the number.
    generation: u32,
    /// The slot is taken.
    used: bool,
    /// It is in the ready ring.
    pub waiting: bool,
    /// State of its receive pressure.
    pub receiving: Receiving,
}

impl<Q> Entry<Q> {
    /// The queue pair as its driver knows it.
    #[inline]
    pub fn id(&self, slot: Slot) -> QpId {
        QpId { slot, context: self.context, peer: self.peer }
    }
}

/// Queue pairs by slot.
#[repr(C)]
#[derive(Serialize, Deserialize)]
pub(super) struct Table<Q> {
    entries: Vec<Entry<Q>>,
    /// Free slots that were used before, oldest first.
    free: std::collections::VecDeque<Slot>,
}

/// Bits of a queue pair number.
const NUMBER_BITS: u32 = 24;

impl<Q> Default for Table<Q> {
    fn default() -> Self {
        Table { entries: Vec::new(), free: Default::default() }
    }
}

impl<Q> Table<Q> {
    /// Takes a slot. The seed determines the first generation of each slot.
    pub fn reserve(&mut self, numbers: &Numbers, seed: u64, context: u32) -> Result<Slot, TableFull> {
        let fresh = self.entries.len() as u32;
        let generations = (1 << (numbers.bits() - numbers.slot_bits)) - 1;
        let enough_free = self.free.len() as u32 > numbers.min_free;
        let slot = if fresh < numbers.max_queue_pairs() && !enough_free {
            if self.entries.is_empty() {
                self.entries.reserve_exact(1);
            }
            self.entries.push(Entry {
                qp: None,
                scheduled: Scheduled::NEVER,
                peer: 0,
                context,
                generation: mix(seed ^ u64::from(fresh)) as u32,
                used: false,
                waiting: false,
                receiving: Receiving::default(),
            });
            fresh
        } else {
            self.free.pop_front().ok_or(TableFull(fresh))?
        };
        let entry = &mut self.entries[slot as usize];
        // Generation 0 is not used, so that without a key no number is smaller than the number of slots.
        entry.generation = entry.generation % generations + 1;
        while is_reserved(numbers.join(entry.generation, slot)) {
            entry.generation = entry.generation % generations + 1;
        }
        entry.context = context;
        entry.used = true;
        Ok(slot)
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: Slot) -> Option<Q> {
        let entry = self.entries.get_mut(slot as usize).filter(|entry| entry.used)?;
        entry.used = false;
        entry.scheduled = Scheduled::NEVER;
        self.free.push_back(slot);
        entry.qp.take()
    }

    /// The number of a slot that is taken.
    #[inline]
    pub fn number(&self, numbers: &Numbers, slot: Slot) -> u32 {
        numbers.join(self.entries[slot as usize].generation, slot)
    }

    /// The slot of a number.
    #[inline]
    pub fn find(&self, numbers: &Numbers, number: u32) -> Option<Slot> {
        let (generation, slot) = numbers.split(number);
        let entry = self.entries.get(slot as usize)?;
        (entry.used && entry.generation == generation).then_some(slot)
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&Entry<Q>> {
        self.entries.get(slot as usize).filter(|entry| entry.used)
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry<Q>> {
        self.entries.get_mut(slot as usize).filter(|entry| entry.used)
    }

    /// Every slot that is taken.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Entry<Q>)> {
        self.entries.iter().enumerate().map(|(slot, entry)| (slot as Slot, entry)).filter(|(_, e)| e.used)
    }

    /// Every queue pair, with its peer.
    pub fn queue_pairs(&mut self) -> impl Iterator<Item = (PeerId, &mut Q)> {
        self.entries.iter_mut().filter_map(|entry| Some((entry.peer, entry.qp.as_mut()?)))
    }

    /// Number of slots, taken or free.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Loads a slot into the cache.
    #[inline(always)]
    pub fn prefetch(&self, slot: Slot) {
        prefetch_index::prefetch_index(&self.entries, slot as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_queue_pair_and_no_later_one() {
        for min_free in [0, 3, 16] {
            let numbers = Numbers { slot_bits: 4, min_free, key: None, prefix: None };
            let mut table = Table::<u8>::default();
            let mut seen = std::collections::HashSet::new();
            for round in 0..100 {
                let slot = table.reserve(&numbers, 7, round).unwrap();
                let number = table.number(&numbers, slot);
                assert!(number >= 16, "reserved numbers are never given out");
                assert!(seen.insert(number), "a number was given out again");
                assert_eq!(table.find(&numbers, number), Some(slot));
                table.release(slot);
                assert_eq!(table.find(&numbers, number), None);
            }
            assert!(seen.iter().all(|&number| table.find(&numbers, number).is_none()));
            assert_eq!(table.len(), (min_free + 1).min(16));
        }
    }

    #[test]
    fn a_full_table_says_so_and_takes_again_what_became_free() {
        let numbers = Numbers { slot_bits: 2, min_free: 4, key: None, prefix: None };
        let mut table = Table::<u8>::default();
        let slots: Vec<_> = (0..4).map(|_| table.reserve(&numbers, 7, 0).unwrap()).collect();
        assert_eq!(table.reserve(&numbers, 7, 0), Err(TableFull(4)));
        table.release(slots[2]);
        assert_eq!(table.reserve(&numbers, 7, 0), Ok(slots[2]));
        assert_eq!(table.iter().count(), 4);
    }

    #[test]
    fn numbers_with_a_key_are_spread_over_24_bits_and_never_reserved() {
        let numbers = Numbers { slot_bits: 14, min_free: 1 << 14, key: Some(7), prefix: None };
        let mut table = Table::<u8>::default();
        let mut quarters = [0; 4];
        for _ in 0..1 << 14 {
            let slot = table.reserve(&numbers, 7, 0).unwrap();
            let number = table.number(&numbers, slot);
            assert!(!is_reserved(number) && table.find(&numbers, number) == Some(slot));
            quarters[number as usize >> 22] += 1;
        }
        assert!(quarters.iter().all(|&n| (3800..4400).contains(&n)), "{quarters:?}");
        // Of the numbers next to one that exists, none is more likely to exist than any other: 1 in 1024.
        let near =
            (1..4096).filter(|n| table.find(&numbers, table.number(&numbers, 5) ^ n).is_some()).count();
        assert!(near < 16, "{near}");
    }

    #[test]
    fn numbers_with_a_prefix_begin_with_it_and_those_with_another_are_not_found() {
        let with_prefix =
            |prefix| Numbers { slot_bits: 14, min_free: 1 << 14, key: Some(7), prefix: Some(prefix) };
        for prefix in [0, 1, 255] {
            let mut table = Table::<u8>::default();
            for _ in 0..1 << 10 {
                let slot = table.reserve(&with_prefix(prefix), 7, 0).unwrap();
                let number = table.number(&with_prefix(prefix), slot);
                assert!(!is_reserved(number) && Numbers::prefix_of(number) == prefix);
                assert_eq!(table.find(&with_prefix(prefix), number), Some(slot));
                assert_eq!(table.find(&with_prefix(prefix), number ^ 1 << 16), None);
            }
        }
    }

    #[test]
    fn no_number_is_reserved_whatever_the_key() {
        let mut skipped = 0;
        for key in 0..20_000 {
            let numbers = Numbers { slot_bits: 14, min_free: 0, key: Some(key), prefix: None };
            for number in [0, 1, 2, (1 << NUMBER_BITS) - 1] {
                let (generation, slot) = numbers.split(number);
                if slot != 0 || generation == 0 {
                    continue;
                }
                // The generation before it is what the last user of the slot had.
                let mut table = Table::<u8>::default();
                table.reserve(&numbers, 7, 0).unwrap();
                table.entries[0].generation = generation - 1;
                table.release(0);
                let slot = table.reserve(&numbers, 7, 0).unwrap();
                // The next generation whose number is not reserved; generation 0 is not used.
                let next = (0..).map(|skip| (generation - 1 + skip) % 1023 + 1);
                let expected = next.map(|next| numbers.join(next, 0)).find(|&number| !is_reserved(number));
                assert_eq!(table.number(&numbers, slot), expected.unwrap(), "key {key}");
                skipped += 1;
            }
        }
        assert!(skipped > 0);
    }

    #[test]
    fn three_low_numbers_and_the_multicast_number_are_reserved() {
        let looked_at = (0..1000).chain(0xFF_FC00..0x100_0000);
        let reserved: Vec<_> = looked_at.filter(|&number| is_reserved(number)).collect();
        assert_eq!(reserved, [0, 1, 2, 0xFF_FFFF]);
    }

    #[test]
    fn slots_begin_with_generations_of_their_own_that_follow_from_the_seed() {
        let numbers = Numbers { slot_bits: 4, min_free: 16, key: None, prefix: None };
        let mut seen = std::collections::HashSet::new();
        let seeds = [0x0F, 0x17, 0xF0, u64::MAX];
        for seed in seeds {
            let first_generations = || {
                let mut table = Table::<u8>::default();
                let mut next = || {
                    let slot = table.reserve(&numbers, seed, 0).unwrap();
                    table.number(&numbers, slot) >> 4
                };
                [(); 16].map(|()| next())
            };
            assert_eq!(first_generations(), first_generations());
            seen.extend(first_generations());
        }
        // Of a million generations 64 are hardly ever the same.
        assert_eq!(seen.len(), 16 * seeds.len());
    }
}
