//! The event queue: a calendar of equally wide slots, kept in blocks that go from slot to slot.
//!
//! An event is written once into a block of its slot and read once, when its slot's turn comes; only then are the events of
//! a slot sorted, by a key of eight bytes. Events of the same time come out in the order in which they went in, which is what
//! makes a run repeatable. What lies beyond the calendar's end waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::Event;

/// Events in a block: with its link, half a kilobyte.
const BLOCK: usize = 15;
const NONE: u32 = u32::MAX;
/// Bits of a sort key that number the event within its slot.
const INDEX_BITS: u32 = 32;

struct Block {
    events: [Event; BLOCK],
    next: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    /// Events in the head block; the blocks behind it are full.
    filled: u32,
}

/// An event beyond the calendar's end, ordered by time and then by arrival.
struct Far {
    time: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Far {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}
impl Eq for Far {}
impl PartialOrd for Far {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Far {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

/// Events in order of time.
pub(crate) struct Calendar {
    /// Binary logarithm of a slot's width in picoseconds.
    shift: u32,
    slots: Vec<Slot>,
    /// One bit for each slot that holds something.
    occupied: Vec<u64>,
    blocks: Vec<Block>,
    free: u32,
    /// The slot whose turn it is, counted from the origin of time.
    current: u64,
    /// Its events ...
    today: Vec<Event>,
    /// ... and their order: time within the slot, then number.
    order: Vec<u64>,
    next: usize,
    far: BinaryHeap<Reverse<Far>>,
    far_order: u64,
    /// Blocks of the slot being opened.
    chain: Vec<u32>,
    len: usize,
}

impl Calendar {
    /// A calendar of `2^slots_log` slots, each `2^shift` picoseconds wide.
    pub fn new(shift: u32, slots_log: u32) -> Self {
        assert!(shift <= 64 - INDEX_BITS && slots_log >= 6, "a slot's times fit a sort key");
        let slots = 1usize << slots_log;
        Calendar {
            shift,
            slots: vec![Slot { head: NONE, filled: 0 }; slots],
            occupied: vec![0; slots / 64],
            blocks: Vec::new(),
            free: NONE,
            current: 0,
            today: Vec::new(),
            order: Vec::new(),
            next: 0,
            far: BinaryHeap::new(),
            far_order: 0,
            chain: Vec::new(),
            len: 0,
        }
    }

    /// Events waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts an event in its place. One whose time has passed comes next.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.len += 1;
        let slot = event.time >> self.shift;
        if slot <= self.current {
            self.push_today(event);
        } else if slot - self.current < self.slots.len() as u64 {
            self.push_slot(slot as usize & (self.slots.len() - 1), event);
        } else {
            self.far_order += 1;
            self.far.push(Reverse(Far { time: event.time, order: self.far_order, event }));
        }
    }

    #[inline]
    fn push_slot(&mut self, index: usize, event: Event) {
        let mut slot = self.slots[index];
        if slot.head == NONE || slot.filled as usize == BLOCK {
            if slot.head == NONE {
                self.occupied[index / 64] |= 1 << (index % 64);
            }
            slot = Slot { head: self.take_block(slot.head, event), filled: 1 };
        } else {
            self.blocks[slot.head as usize].events[slot.filled as usize] = event;
            slot.filled += 1;
        }
        self.slots[index] = slot;
    }

    /// A block that holds `event` and is followed by `next`.
    fn take_block(&mut self, next: u32, event: Event) -> u32 {
        if self.free == NONE {
            self.blocks.push(Block { events: [event; BLOCK], next });
            return self.blocks.len() as u32 - 1;
        }
        let index = self.free;
        let block = &mut self.blocks[index as usize];
        self.free = block.next;
        block.next = next;
        block.events[0] = event;
        index
    }

    #[cold]
    fn push_today(&mut self, event: Event) {
        let start = self.current << self.shift;
        let key = (event.time.max(start) - start) << INDEX_BITS | self.today.len() as u64;
        self.today.push(event);
        let place = self.next + self.order[self.next..].partition_point(|&other| other < key);
        self.order.insert(place, key);
    }

    /// The next event; `None` if there is none.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        while self.next == self.order.len() {
            if !self.turn_page() {
                return None;
            }
        }
        let event = self.today[self.order[self.next] as u32 as usize];
        self.next += 1;
        self.len -= 1;
        Some(event)
    }

    /// On to the next slot that holds something.
    fn turn_page(&mut self) -> bool {
        self.today.clear();
        self.order.clear();
        self.next = 0;
        let near = self.next_occupied();
        let far = self.far.peek().map(|Reverse(far)| far.time >> self.shift);
        let Some(slot) = near.into_iter().chain(far).min() else { return false };
        self.current = slot;
        // What comes into reach takes its place before anything else can be put there.
        let reach = slot + self.slots.len() as u64;
        while self.far.peek().is_some_and(|Reverse(far)| far.time >> self.shift < reach) {
            if let Some(Reverse(far)) = self.far.pop() {
                self.push_slot((far.time >> self.shift) as usize & (self.slots.len() - 1), far.event);
            }
        }
        self.open(slot as usize & (self.slots.len() - 1));
        true
    }

    /// The next slot after the current one with something in it.
    fn next_occupied(&self) -> Option<u64> {
        let count = self.slots.len();
        let begin = (self.current as usize + 1) & (count - 1);
        let words = self.occupied.len();
        for step in 0..=words {
            let word = (begin / 64 + step) % words;
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= u64::MAX << (begin % 64);
            } else if step == words {
                bits &= !(u64::MAX << (begin % 64));
            }
            if bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                return Some(self.current + 1 + (index.wrapping_sub(begin) & (count - 1)) as u64);
            }
        }
        None
    }

    /// Takes a slot's events out and puts them in order.
    fn open(&mut self, index: usize) {
        let Slot { head, filled } = self.slots[index];
        self.slots[index] = Slot { head: NONE, filled: 0 };
        self.occupied[index / 64] &= !(1 << (index % 64));
        // The newest block is first in the chain; the order of arrival begins with the last.
        self.chain.clear();
        let mut block = head;
        while block != NONE {
            self.chain.push(block);
            block = self.blocks[block as usize].next;
        }
        let start = self.current << self.shift;
        for (i, &block) in self.chain.iter().enumerate().rev() {
            let used = if i == 0 { filled as usize } else { BLOCK };
            self.today.extend_from_slice(&self.blocks[block as usize].events[..used]);
            self.blocks[block as usize].next = self.free;
            self.free = block;
        }
        self.order.extend(
            self.today.iter().enumerate().map(|(i, event)| (event.time - start) << INDEX_BITS | i as u64),
        );
        self.order.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_out_by_time_and_equal_times_as_they_went_in(
            rounds in proptest::collection::vec((0u64..3_000_000, 1usize..20, 0usize..20), 1..60)
        ) {
            let mut calendar = Calendar::new(8, 8);
            let mut model: Vec<(u64, u32)> = Vec::new();
            let (mut now, mut id) = (0, 0);
            for (ahead, pushes, pops) in rounds {
                for i in 0..pushes {
                    // A few in the current slot, a few beyond the end, many at equal times.
                    let time = now + [0, ahead % 7, ahead % 1000, ahead][i % 4];
                    calendar.push(Event::plain(time, Kind::Wake, id));
                    model.push((time, id));
                    id += 1;
                }
                model.sort_by_key(|&(time, _)| time);
                for _ in 0..pops.min(model.len()) {
                    let expected = model.remove(0);
                    let event = calendar.pop().unwrap();
                    prop_assert_eq!((event.time, event.at), expected);
                    now = event.time;
                }
                prop_assert_eq!(calendar.len(), model.len());
            }
            while let Some(event) = calendar.pop() {
                prop_assert_eq!((event.time, event.at), model.remove(0));
            }
            prop_assert!(model.is_empty());
        }
    }
}
