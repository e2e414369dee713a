//! The event queue: a calendar whose slots are no wider than the shortest way from node to node.
//!
//! So what happens at one node in a slot cannot touch another node before the slot has ended, and the events of a slot may
//! be taken node by node, each node's in order of time: a node's state comes into the cache once a slot instead of once
//! an event, which is what a run costs at scale. Causality is that of the strictest order, and so are results.
//!
//! Nodes that follow each other form a group, and a slot has a page for each group: few enough events that they stay in
//! the cache from being put in order to being used. An event is written once, into a block of its page. Events of
//! the same node and time come out in the order in which they went in, so a run is repeatable. What lies beyond the calendar's
//! end waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::event::{Event, Kind};
use crate::sort::Sorter;

/// Events in a block: two kilobytes.
const BLOCK: usize = 64;
const NONE: u32 = u32::MAX;
/// The widest slot, picoseconds: wider ones would gain nothing.
const WIDEST: u64 = 1 << 26;

/// The newest block of a page, and how many events the page holds; all blocks but the newest are full.
#[derive(Clone, Copy)]
struct Page {
    head: u32,
    filled: u32,
}

const EMPTY: Page = Page { head: NONE, filled: 0 };

/// An event outside the pages, ordered by time and then by arrival.
struct Loose {
    time: u64,
    order: u64,
    group: u32,
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
    /// Width of a slot, picoseconds, and 2^64 over it.
    width: u64,
    inverse: u64,
    /// Slots, a power of two.
    slots: usize,
    /// By slot and group.
    pages: Vec<Page>,
    /// Events in each slot.
    counts: Vec<u32>,
    /// First node of each group, and one past the last of all.
    groups: Vec<u32>,
    blocks: Vec<[Event; BLOCK]>,
    /// The block filled before, or the next free one.
    links: Vec<u32>,
    free: u32,
    /// The slot whose turn it is, counted from 1; nothing has begun at 0.
    current: u64,
    /// When it begins: before the beginning of time for the one that is none.
    begin: u64,
    /// The next group of this slot whose page is to be opened.
    group: usize,
    /// The open page: its blocks, oldest first; and its events in order, as node, time and place.
    chain: Vec<u32>,
    order: Vec<u64>,
    sorter: Sorter,
    next: usize,
    /// Where a key has its node, and the bits of its place.
    node_shift: u32,
    place_mask: u64,
    first_node: u32,
    /// Events that the current node has given itself for this same slot.
    local: BinaryHeap<Reverse<Loose>>,
    node: u32,
    far: BinaryHeap<Reverse<Loose>>,
    pushed: u64,
    /// Events in pages not yet opened.
    near: usize,
}

impl Calendar {
    /// A calendar for nodes in groups, which begin as `groups` says and of which the last ends with its last entry; with slots of at
    /// most `width` picoseconds that reach over `reach` or a little more.
    pub fn new(groups: Vec<u32>, width: u64, reach: u64) -> Self {
        let width = width.clamp(1, WIDEST);
        let slots = (reach / width + 2).next_power_of_two().min(1 << 12) as usize;
        Calendar {
            width,
            inverse: (u64::MAX / width).wrapping_add(1),
            slots,
            pages: vec![EMPTY; slots * (groups.len() - 1)],
            counts: vec![0; slots],
            groups,
            blocks: Vec::new(),
            links: Vec::new(),
            free: NONE,
            current: 0,
            begin: width.wrapping_neg(),
            group: 0,
            chain: Vec::new(),
            order: Vec::new(),
            sorter: Sorter::default(),
            next: 0,
            node_shift: 0,
            place_mask: 0,
            first_node: 0,
            local: BinaryHeap::new(),
            node: 0,
            far: BinaryHeap::new(),
            pushed: 0,
            near: 0,
        }
    }

    /// Width of a slot, picoseconds: what one node tells another takes effect no sooner than this.
    pub fn lookahead(&self) -> u64 {
        self.width
    }

    /// When the current slot begins.
    pub fn page_begin(&self) -> u64 {
        self.begin
    }

    /// How many slots after the current one `time` is.
    #[inline(always)]
    fn slots_ahead(&self, time: u64) -> u64 {
        let ahead = time.wrapping_sub(self.begin);
        // Exact for whatever lies within the calendar: both factors' errors stay below one slot in 2^64.
        if self.width == 1 { ahead } else { ((u128::from(ahead) * u128::from(self.inverse)) >> 64) as u64 }
    }

    /// Puts an event in its place; it happens at a node of `group`. One for the current slot must be for the node whose turn it is.
    #[inline(always)]
    pub fn push(&mut self, event: Event, group: u32) {
        let ahead = self.slots_ahead(event.time);
        // Before the current slot there is nothing: it is the first that has not ended.
        if ahead.wrapping_sub(1) < self.slots as u64 - 1 {
            self.push_page((self.current + ahead) as usize & (self.slots - 1), group, event);
        } else {
            self.push_loose(ahead == 0, event, group);
        }
    }

    #[inline(never)]
    fn push_loose(&mut self, local: bool, event: Event, group: u32) {
        self.pushed += 1;
        let loose = Reverse(Loose { time: event.time, order: self.pushed, group, event });
        if local { self.local.push(loose) } else { self.far.push(loose) }
    }

    #[inline(always)]
    fn push_page(&mut self, slot: usize, group: u32, event: Event) {
        self.near += 1;
        self.counts[slot] += 1;
        let index = slot * (self.groups.len() - 1) + group as usize;
        let page = &mut self.pages[index];
        let place = page.filled as usize % BLOCK;
        page.filled += 1;
        let head = if place == 0 { self.new_block(index) } else { page.head };
        self.blocks[head as usize][place].set(event);
    }

    /// A page's block is full, or it has none yet.
    #[inline(never)]
    fn new_block(&mut self, page: usize) -> u32 {
        let mut block = self.free;
        if block == NONE {
            block = self.links.len() as u32;
            self.blocks.push([Event::plain(0, Kind::Wake, 0, 0); BLOCK]);
            self.links.push(NONE);
        } else {
            self.free = self.links[block as usize];
        }
        self.links[block as usize] = std::mem::replace(&mut self.pages[page].head, block);
        block
    }

    /// The next event's key, if it is one of the open page and nothing may come before it.
    #[inline(always)]
    pub fn next_key(&mut self) -> Option<u64> {
        if !self.local.is_empty() {
            return None;
        }
        let key = self.order.get(self.next).copied();
        self.next += usize::from(key.is_some());
        key
    }

    /// The event of a key, and the node it happens at, whose turn it is now.
    #[inline(always)]
    pub fn take(&mut self, key: u64) -> (Event, u32) {
        self.node = self.node_in(key);
        (*self.event_in(key), self.node)
    }

    /// The next event of the current slot, and the node it happens at; `None` if the slot is used up. `node_of` says at which node of
    /// its group an event happens.
    pub fn pop(&mut self, node_of: impl Fn(&Event) -> u32) -> Option<(Event, u32)> {
        loop {
            let key = self.order.get(self.next).copied();
            if let Some(Reverse(local)) = self.local.peek()
                && key.is_none_or(|key| self.node_in(key) != self.node || self.time_in(key) > local.time)
            {
                return self.local.pop().map(|Reverse(loose)| (loose.event, self.node));
            }
            if let Some(key) = key {
                self.next += 1;
                return Some(self.take(key));
            }
            self.open_next(&node_of)?;
        }
    }

    #[inline(always)]
    fn node_in(&self, key: u64) -> u32 {
        self.first_node + (key >> self.node_shift) as u32
    }

    fn time_in(&self, key: u64) -> u64 {
        self.begin + ((key & ((1 << self.node_shift) - 1)) / (self.place_mask + 1))
    }

    #[inline(always)]
    fn event_in(&self, key: u64) -> &Event {
        let place = (key & self.place_mask) as usize;
        &self.blocks[self.chain[place / BLOCK] as usize][place % BLOCK]
    }

    /// First node of the open page's group.
    #[inline(always)]
    pub fn first_node(&self) -> u32 {
        self.first_node
    }

    /// The event of this page that comes `n` after the next one.
    #[inline(always)]
    pub fn event_ahead(&self, n: usize) -> Option<&Event> {
        self.order.get(self.next + n).map(|&key| self.event_in(key))
    }

    /// The node whose first event in this page comes `n` after the next one; `None` if none does.
    #[inline(always)]
    pub fn node_ahead(&self, n: usize) -> Option<u32> {
        let around = self.order.get(self.next + n - 1..=self.next + n)?;
        ((around[0] ^ around[1]) >> self.node_shift != 0).then(|| self.node_in(around[1]))
    }

    /// Opens the next page of the current slot that holds something; `None` if there is none.
    fn open_next(&mut self, node_of: impl Fn(&Event) -> u32) -> Option<()> {
        for &block in &self.chain {
            self.links[block as usize] = self.free;
            self.free = block;
        }
        self.chain.clear();
        self.order.clear();
        self.next = 0;
        let groups = self.groups.len() - 1;
        let first = (self.current as usize & (self.slots - 1)) * groups;
        let rest = &self.pages[first + self.group..first + groups];
        let Some(skip) = rest.iter().position(|page| page.filled > 0) else {
            self.group = groups;
            return None;
        };
        self.open(self.group + skip, node_of);
        self.group += skip + 1;
        Some(())
    }

    /// Puts a page's events in order.
    fn open(&mut self, group: usize, node_of: impl Fn(&Event) -> u32) {
        let slot = self.current as usize & (self.slots - 1);
        let page = std::mem::replace(&mut self.pages[slot * (self.groups.len() - 1) + group], EMPTY);
        let filled = page.filled as usize;
        let mut block = page.head;
        while block != NONE {
            self.chain.push(block);
            block = self.links[block as usize];
        }
        self.chain.reverse();
        let bits = |n: u64| u64::BITS - n.leading_zeros();
        self.first_node = self.groups[group];
        let place_bits = bits(filled as u64);
        self.place_mask = (1 << place_bits) - 1;
        self.node_shift = place_bits + bits(self.width - 1);
        debug_assert!(
            self.node_shift + bits(u64::from(self.groups[group + 1] - self.first_node)) <= u64::BITS
        );
        for (i, &block) in self.chain.iter().enumerate() {
            let events = &self.blocks[block as usize][..BLOCK.min(filled - i * BLOCK)];
            let begin = self.begin;
            let first_node = self.first_node;
            let node_shift = self.node_shift;
            self.order.extend(events.iter().zip(i * BLOCK..).map(|(event, place)| {
                let node = u64::from(node_of(event) - first_node);
                node << node_shift | (event.time - begin) << place_bits | place as u64
            }));
        }
        let nodes = self.groups[group + 1] - self.first_node;
        let end = self.node_shift + bits(u64::from(nodes.saturating_sub(1)));
        self.sorter.sort(&mut self.order, end);
        self.near -= filled;
    }

    /// Every event that is still to come, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &Event> {
        let open = self.order[self.next..].iter().map(|&key| {
            let place = (key & self.place_mask) as usize;
            &self.blocks[self.chain[place / BLOCK] as usize][place % BLOCK]
        });
        let pages = self.pages.iter().filter(|page| page.filled > 0).flat_map(|page| {
            let newest = (page.filled as usize - 1) % BLOCK + 1;
            std::iter::successors(Some((page.head, newest)), |&(block, _)| {
                Some((self.links[block as usize], BLOCK)).filter(|&(older, _)| older != NONE)
            })
            .flat_map(|(block, used)| &self.blocks[block as usize][..used])
        });
        let loose = self.local.iter().chain(&self.far).map(|Reverse(loose)| &loose.event);
        open.chain(pages).chain(loose)
    }

    /// On to the next slot that holds something; `false` if there is none.
    pub fn turn_page(&mut self) -> bool {
        let mask = self.slots as u64 - 1;
        let near = (self.near > 0)
            .then(|| (self.current + 1..).find(|&slot| self.counts[(slot & mask) as usize] > 0))
            .flatten();
        let far = self.far.peek().map(|Reverse(far)| far.time / self.width + 1);
        let Some(slot) = near.into_iter().chain(far).min() else { return false };
        self.counts[(self.current & mask) as usize] = 0;
        self.current = slot;
        self.begin = (slot - 1) * self.width;
        self.group = 0;
        // What comes into reach takes its place before anything else can be put there.
        let end = self.begin.saturating_add(self.width * (mask + 1));
        while self.far.peek().is_some_and(|Reverse(far)| far.time < end) {
            if let Some(Reverse(far)) = self.far.pop() {
                self.push_page(((far.time / self.width + 1) & mask) as usize, far.group, far.event);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Five nodes in two groups.
    const GROUP_OF: [u32; 5] = [0, 0, 0, 1, 1];

    fn push(calendar: &mut Calendar, node: u32, time: u64, id: u32) {
        calendar.push(Event::plain(time, Kind::Wake, id, node), GROUP_OF[node as usize]);
    }

    fn next(calendar: &mut Calendar) -> Option<(Event, u32)> {
        loop {
            if let Some(event) = calendar.pop(|event| event.dst) {
                return Some(event);
            }
            if !calendar.turn_page() {
                return None;
            }
        }
    }

    proptest! {
        /// Nodes give themselves events at any time and others events a slot ahead at least, as the simulator does.
        #[test]
        fn every_node_sees_its_events_by_time_and_equal_times_as_they_went_in(
            width in 1u64..3000,
            seeds in proptest::collection::vec((0u32..5, 0u64..400_000), 1..20),
            moves in proptest::collection::vec((0u64..5000, 0u32..5), 1..300),
        ) {
            let mut calendar = Calendar::new(vec![0, 3, 5], width, 16 * width);
            let mut pending = vec![std::collections::BTreeSet::new(); 5];
            let mut id = 0;
            for (node, time) in seeds {
                push(&mut calendar, node, time, id);
                pending[node as usize].insert((time, id));
                id += 1;
            }
            let mut moves = moves.into_iter();
            let mut latest = 0;
            while let Some((event, node)) = next(&mut calendar) {
                prop_assert_eq!(node, event.dst);
                let first = pending[node as usize].pop_first();
                prop_assert_eq!(first, Some((event.time, event.at)));
                // No event comes a whole slot after one of another node that it might have caused.
                prop_assert!(event.time + calendar.lookahead() > latest);
                latest = latest.max(event.time);
                if let Some((ahead, node)) = moves.next() {
                    let apart = if node == event.dst { 0 } else { calendar.lookahead() };
                    let time = event.time + apart + ahead;
                    push(&mut calendar, node, time, id);
                    pending[node as usize].insert((time, id));
                    id += 1;
                }
            }
            prop_assert!(pending.iter().all(|p| p.is_empty()));
        }
    }

    /// Many events at one node: several blocks, and a page that is put in order by the other way of sorting.
    #[test]
    fn a_full_page_comes_out_in_order() {
        let mut calendar = Calendar::new(vec![0, 3, 5], 1 << 20, 16 << 20);
        let mut x = 1u64;
        let mut times = Vec::new();
        for id in 0..5000 {
            x = crate::endpoints::mix(x);
            times.push((x % (1 << 20), id));
            push(&mut calendar, 4, x % (1 << 20), id);
        }
        times.sort_unstable();
        for (time, id) in times {
            let (event, node) = next(&mut calendar).expect("an event");
            assert_eq!((event.time, event.at, node), (time, id, 4));
        }
        assert!(next(&mut calendar).is_none());
    }
}
