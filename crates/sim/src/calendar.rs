//! The event queue: a calendar whose slots are no wider than the shortest way from node to node.
//!
//! So what happens at one node in a slot cannot touch another node before the slot has ended, and the events of a slot may
//! be taken node by node, each node's in order of time: a node's state comes into the cache once a slot instead of once
//! an event, which is what a run costs at scale. Causality is that of the strictest order; results do not depend on how
//! events are grouped, except through the order in which one stream of random numbers is drawn.
//!
//! An event is written once into a block of its slot, and read once. Events of the same node and time come out in the order in which
//! they went in, so a run is repeatable. What lies beyond the calendar's end waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::{Event, Kind};

/// Events in a block: with its link, two kilobytes.
const BLOCK: usize = 63;
const NONE: u32 = u32::MAX;

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

/// An event outside the calendar's slots, ordered by time and then by arrival.
struct Loose {
    time: u64,
    order: u64,
    event: Event,
}

impl PartialEq for Loose {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}
impl Eq for Loose {}
impl PartialOrd for Loose {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Loose {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

/// Events by slot, node and time.
pub(crate) struct Calendar {
    /// Binary logarithm of a slot's width in picoseconds.
    shift: u32,
    slots: Vec<Slot>,
    blocks: Vec<Block>,
    free: u32,
    /// The slot whose turn it is, counted from 1; nothing has begun at 0.
    current: u64,
    /// Its events, node by node; what lies beyond `len` is of no meaning.
    today: Vec<Event>,
    len: usize,
    next: usize,
    /// One past the last event of each node; while a slot is being opened, the place of its next one.
    ends: Vec<u32>,
    /// The node whose turn it is, and where its events end.
    node: usize,
    node_end: usize,
    /// Nodes of the events of the slot being opened, as they went in.
    nodes: Vec<u32>,
    /// Events that the current node has given itself for this same slot.
    local: BinaryHeap<Reverse<Loose>>,
    far: BinaryHeap<Reverse<Loose>>,
    pushed: u64,
    /// Blocks of the slot being opened.
    chain: Vec<u32>,
    /// Events in slots.
    near: usize,
}

impl Calendar {
    /// A calendar for this many nodes, of `2^slots_log` slots, each `2^shift` picoseconds wide.
    pub fn new(nodes: usize, shift: u32, slots_log: u32) -> Self {
        Calendar {
            shift,
            slots: vec![Slot { head: NONE, filled: 0 }; 1 << slots_log],
            blocks: Vec::new(),
            free: NONE,
            current: 0,
            today: Vec::new(),
            len: 0,
            next: 0,
            ends: vec![0; nodes],
            node: 0,
            node_end: 0,
            nodes: Vec::new(),
            local: BinaryHeap::new(),
            far: BinaryHeap::new(),
            pushed: 0,
            chain: Vec::new(),
            near: 0,
        }
    }

    /// Width of a slot, picoseconds: what one node tells another takes effect no sooner than this.
    pub fn lookahead(&self) -> u64 {
        1 << self.shift
    }

    /// Puts an event in its place. One for the current slot must be for the node whose turn it is.
    #[inline]
    pub fn push(&mut self, event: Event) {
        let slot = (event.time >> self.shift) + 1;
        if slot <= self.current {
            self.pushed += 1;
            self.local.push(Reverse(Loose { time: event.time, order: self.pushed, event }));
        } else if slot - self.current < self.slots.len() as u64 {
            self.push_slot(slot as usize & (self.slots.len() - 1), event);
        } else {
            self.pushed += 1;
            self.far.push(Reverse(Loose { time: event.time, order: self.pushed, event }));
        }
    }

    #[inline]
    fn push_slot(&mut self, index: usize, event: Event) {
        self.near += 1;
        let mut slot = self.slots[index];
        if slot.head == NONE || slot.filled as usize == BLOCK {
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

    /// Whether the current slot is used up: time for [`Calendar::turn_page`].
    #[inline]
    pub fn page_done(&self) -> bool {
        self.next == self.len && self.local.is_empty()
    }

    /// An event that comes about `n` after the next one, if it is at one of the nodes below `nodes`.
    #[inline]
    pub fn ahead(&self, n: usize, nodes: usize) -> Option<&Event> {
        let place = self.next + n;
        (place < self.ends[nodes - 1] as usize).then(|| &self.today[place])
    }

    /// The next event of the current slot; `None` if it is used up.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        if let Some(Reverse(local)) = self.local.peek()
            && (self.next == self.node_end || self.today[self.next].time > local.time)
        {
            return self.local.pop().map(|Reverse(loose)| loose.event);
        }
        if self.next == self.node_end {
            self.next_node()?;
        }
        self.next += 1;
        Some(self.today[self.next - 1])
    }

    /// On to the next node that has events, which are put in order now that they are about to be used.
    fn next_node(&mut self) -> Option<()> {
        if self.next == self.len {
            return None;
        }
        while self.ends[self.node] as usize == self.next {
            self.node += 1;
        }
        self.node_end = self.ends[self.node] as usize;
        self.today[self.next..self.node_end].sort_by_key(|event| event.time);
        Some(())
    }

    /// On to the next slot that holds something; `false` if there is none. `node_of` says at which node an event happens.
    pub fn turn_page(&mut self, node_of: impl Fn(&Event) -> u32) -> bool {
        let near = self.next_occupied();
        let far = self.far.peek().map(|Reverse(far)| (far.time >> self.shift) + 1);
        let Some(slot) = near.into_iter().chain(far).min() else { return false };
        self.current = slot;
        // What comes into reach takes its place before anything else can be put there.
        let reach = slot + self.slots.len() as u64;
        while self.far.peek().is_some_and(|Reverse(far)| (far.time >> self.shift) + 1 < reach) {
            if let Some(Reverse(far)) = self.far.pop() {
                self.push_slot(((far.time >> self.shift) + 1) as usize & (self.slots.len() - 1), far.event);
            }
        }
        self.open(slot as usize & (self.slots.len() - 1), node_of);
        true
    }

    /// The next slot after the current one with something in it.
    fn next_occupied(&self) -> Option<u64> {
        if self.near == 0 {
            return None;
        }
        let mask = self.slots.len() - 1;
        (self.current + 1..).find(|&slot| self.slots[slot as usize & mask].head != NONE)
    }

    /// Takes a slot's events out and puts them in order.
    fn open(&mut self, index: usize, node_of: impl Fn(&Event) -> u32) {
        let Slot { head, filled } = self.slots[index];
        self.slots[index] = Slot { head: NONE, filled: 0 };
        // The newest block is first in the chain; the order of arrival begins with the last.
        self.chain.clear();
        let mut block = head;
        while block != NONE {
            self.chain.push(block);
            block = self.blocks[block as usize].next;
        }
        let used = |i: usize| if i == 0 { filled as usize } else { BLOCK };
        // How many each node has; then where each node's begin; then each event to its place.
        self.ends.fill(0);
        self.nodes.clear();
        for (i, &block) in self.chain.iter().enumerate().rev() {
            for event in &self.blocks[block as usize].events[..used(i)] {
                let node = node_of(event);
                self.nodes.push(node);
                self.ends[node as usize] += 1;
            }
        }
        let mut begin = 0;
        for end in &mut self.ends {
            begin += std::mem::replace(end, begin);
        }
        self.len = begin as usize;
        if self.today.len() < self.len {
            self.today.resize(self.len, Event::plain(0, Kind::Wake, 0));
        }
        let mut nodes = self.nodes.iter();
        for (i, &block) in self.chain.iter().enumerate().rev() {
            for (event, &node) in self.blocks[block as usize].events[..used(i)].iter().zip(&mut nodes) {
                let place = &mut self.ends[node as usize];
                self.today[*place as usize] = *event;
                *place += 1;
            }
            self.blocks[block as usize].next = self.free;
            self.free = block;
        }
        self.near -= self.len;
        (self.next, self.node, self.node_end) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(calendar: &mut Calendar) -> Option<Event> {
        if calendar.page_done() && !calendar.turn_page(|event| event.dst) {
            return None;
        }
        calendar.pop()
    }

    proptest! {
        /// Nodes give themselves events at any time and others events a slot ahead at least, as the simulator does.
        #[test]
        fn every_node_sees_its_events_by_time_and_equal_times_as_they_went_in(
            seeds in proptest::collection::vec((0u32..5, 0u64..400_000), 1..20),
            moves in proptest::collection::vec((0u64..5000, 0u32..5), 1..300),
        ) {
            let mut calendar = Calendar::new(5, 8, 8);
            let mut pending = vec![std::collections::BTreeSet::new(); 5];
            let mut id = 0;
            for (node, time) in seeds {
                calendar.push(Event { dst: node, ..Event::plain(time, Kind::Wake, id) });
                pending[node as usize].insert((time, id));
                id += 1;
            }
            let mut moves = moves.into_iter();
            let mut latest = 0;
            while let Some(event) = next(&mut calendar) {
                let first = pending[event.dst as usize].pop_first();
                prop_assert_eq!(first, Some((event.time, event.at)));
                // No event comes a whole slot after one of another node that it might have caused.
                prop_assert!(event.time + calendar.lookahead() > latest);
                latest = latest.max(event.time);
                if let Some((ahead, node)) = moves.next() {
                    let apart = if node == event.dst { 0 } else { calendar.lookahead() };
                    let time = event.time + apart + ahead;
                    calendar.push(Event { dst: node, ..Event::plain(time, Kind::Wake, id) });
                    pending[node as usize].insert((time, id));
                    id += 1;
                }
            }
            prop_assert!(pending.iter().all(|p| p.is_empty()));
        }
    }
}
