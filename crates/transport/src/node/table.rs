//! The queue pairs of a node, and their numbers.

use crate::random::mix;
use crate::time::Time;

/// A queue pair's place in its node's table.
pub type Place = u32;

/// The driver's number for a peer node.
pub type PeerId = u32;

/// How queue pair numbers are given out. A number is a place in the table and a generation of it, so that it is not soon given
/// out again: a late packet for an ended queue pair must not reach another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// Bits of a number, of 24, that are its place.
    pub place_bits: u32,
    /// Places that have to be free before one of them is taken again.
    pub resting: u32,
}

impl Numbers {
    /// Most queue pairs of a node.
    pub const fn most(&self) -> u32 {
        1 << self.place_bits
    }
}

/// A queue pair of a node, as its driver knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpId {
    /// Its place in the node's table.
    pub place: Place,
    /// The driver's own name for it.
    pub context: u32,
    /// The node that it is connected to.
    pub peer: PeerId,
}

/// The table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table holds {0} queue pairs, which is all it can")]
pub struct TableFull(pub u32);

/// A queue pair's part in filling the receive buffers.
#[derive(Clone, Copy, Default)]
pub(super) struct Receiving {
    /// It has received since the last look at them.
    pub active: bool,
    /// The last overflow that it has told its sender of.
    pub told: u8,
}

/// One place of the table.
pub(super) struct Entry<Q> {
    /// The queue pair, once it is connected.
    pub qp: Option<Q>,
    /// Earliest entry in the timers.
    pub scheduled: Time,
    pub peer: PeerId,
    /// The driver's own name for the queue pair.
    pub context: u32,
    /// Generation of the number.
    generation: u32,
    /// The place is taken.
    used: bool,
    /// Waits for its turn to send.
    pub waiting: bool,
    /// What it says to its sender of the receive buffers.
    pub receiving: Receiving,
}

impl<Q> Entry<Q> {
    /// The queue pair as its driver knows it.
    #[inline]
    pub fn id(&self, place: Place) -> QpId {
        QpId { place, context: self.context, peer: self.peer }
    }
}

/// Queue pairs by place.
pub(super) struct Table<Q> {
    entries: Vec<Entry<Q>>,
    /// Places free again, oldest first.
    free: std::collections::VecDeque<Place>,
}

/// Bits of a queue pair number.
const NUMBER_BITS: u32 = 24;

impl<Q> Default for Table<Q> {
    fn default() -> Self {
        Table { entries: Vec::new(), free: Default::default() }
    }
}

impl<Q> Table<Q> {
    /// Takes a place. The seed chooses first generations.
    pub fn reserve(&mut self, numbers: &Numbers, seed: u64, context: u32) -> Result<Place, TableFull> {
        let fresh = self.entries.len() as u32;
        let generations = (1 << (NUMBER_BITS - numbers.place_bits)) - 1;
        let enough_free = self.free.len() as u32 > numbers.resting;
        let place = if fresh < numbers.most() && !enough_free {
            if self.entries.is_empty() {
                self.entries.reserve_exact(1);
            }
            self.entries.push(Entry {
                qp: None,
                scheduled: Time::NEVER,
                peer: 0,
                context,
                generation: mix(seed ^ u64::from(fresh)) as u32 % generations,
                used: false,
                waiting: false,
                receiving: Receiving::default(),
            });
            fresh
        } else {
            self.free.pop_front().ok_or(TableFull(fresh))?
        };
        let entry = &mut self.entries[place as usize];
        // Generation 0 is never used, so numbers smaller than the number of places, among them the reserved ones, are never given out.
        entry.generation = entry.generation % generations + 1;
        entry.context = context;
        entry.used = true;
        Ok(place)
    }

    /// Gives a place back.
    pub fn release(&mut self, place: Place) -> Option<Q> {
        let entry = self.entries.get_mut(place as usize).filter(|entry| entry.used)?;
        entry.used = false;
        entry.scheduled = Time::NEVER;
        self.free.push_back(place);
        entry.qp.take()
    }

    /// The number of a place that is taken.
    #[inline]
    pub fn number(&self, numbers: &Numbers, place: Place) -> u32 {
        self.entries[place as usize].generation << numbers.place_bits | place
    }

    /// The place of a number.
    #[inline]
    pub fn find(&self, numbers: &Numbers, number: u32) -> Option<Place> {
        let place = number & (numbers.most() - 1);
        let entry = self.entries.get(place as usize)?;
        (entry.used && entry.generation == number >> numbers.place_bits).then_some(place)
    }

    #[inline]
    pub fn get(&self, place: Place) -> Option<&Entry<Q>> {
        self.entries.get(place as usize).filter(|entry| entry.used)
    }

    #[inline]
    pub fn get_mut(&mut self, place: Place) -> Option<&mut Entry<Q>> {
        self.entries.get_mut(place as usize).filter(|entry| entry.used)
    }

    /// Every place that is taken.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &Entry<Q>)> {
        self.entries.iter().enumerate().map(|(place, entry)| (place as Place, entry)).filter(|(_, e)| e.used)
    }

    /// Places there are, taken or free.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Loads a place into the cache.
    #[inline(always)]
    pub fn prefetch(&self, place: Place) {
        prefetch_index::prefetch_index(&self.entries, place as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_queue_pair_and_no_later_one() {
        for resting in [0, 3, 16] {
            let numbers = Numbers { place_bits: 4, resting };
            let mut table = Table::<u8>::default();
            let mut seen = std::collections::HashSet::new();
            for round in 0..100 {
                let place = table.reserve(&numbers, 7, round).unwrap();
                let number = table.number(&numbers, place);
                assert!(number >= 16, "reserved numbers are never given out");
                assert!(seen.insert(number), "a number was given out again");
                assert_eq!(table.find(&numbers, number), Some(place));
                table.release(place);
                assert_eq!(table.find(&numbers, number), None);
            }
            assert!(seen.iter().all(|&number| table.find(&numbers, number).is_none()));
            assert_eq!(table.len(), (resting + 1).min(16));
        }
    }

    #[test]
    fn a_full_table_says_so_and_takes_again_what_became_free() {
        let numbers = Numbers { place_bits: 2, resting: 4 };
        let mut table = Table::<u8>::default();
        let places: Vec<_> = (0..4).map(|_| table.reserve(&numbers, 7, 0).unwrap()).collect();
        assert_eq!(table.reserve(&numbers, 7, 0), Err(TableFull(4)));
        table.release(places[2]);
        assert_eq!(table.reserve(&numbers, 7, 0), Ok(places[2]));
        assert_eq!(table.iter().count(), 4);
    }
}
