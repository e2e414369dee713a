//! The event queue: a calendar whose slots are no wider than the shortest way from node to node.
//!
//! So what happens at one node in a slot cannot touch another node before the slot has ended, and the events of a slot may
//! be taken node by node, each node's in order of time: a node's state comes into the cache once a slot instead of once
//! an event, which is what a run costs at scale. Causality is that of the strictest order, and so are results.
//!
//! Nodes that follow each other form a group, and a slot has a page for each group: few enough events that they stay in
//! the cache from being put in order to being used. An event is written into a block of its page, and once more in its place
//! when the page is opened. Events of the same node and time come out in the order in which they went in, so a run is repeatable.
//! What lies beyond the calendar's end waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::event::{Event, Kind};
use crate::sort;

/// Events in a block: two kilobytes.
const BLOCK: u32 = 64;
const NONE: u32 = u32::MAX;
/// The widest slot, picoseconds: wider ones would gain nothing.
const WIDEST: u64 = 1 << 26;
/// Most buckets that a node's part of a page is spread over before it is put in order.
const MOST_PER_NODE: u32 = 1 << 10;

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

/// A node's events in the open page: up to `end`, from where those of the node before it end.
#[derive(Clone, Copy)]
struct Turn {
    node: u32,
    end: u32,
}

/// What a group's nodes have to do in a slot.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    /// Where its next event would have gone.
    place: u32,
    first_node: u32,
    end_node: u32,
}

impl Page {
    /// First node of the page's group.
    pub fn first_node(&self) -> u32 {
        self.first_node
    }
}

/// Events by slot, node and time.
pub(crate) struct Calendar {
    /// Width of a slot, picoseconds, and 2^64 over it.
    width: u64,
    inverse: u64,
    /// Slots, a power of two.
    slots: usize,
    /// By slot and group: where the page's next event goes. A multiple of a block's size means: into a new block; 0, the page is empty.
    pages: Vec<u32>,
    /// Blocks that each slot's pages have.
    counts: Vec<u32>,
    /// First node of each group, and one past the last of all.
    groups: Vec<u32>,
    /// Block after block.
    events: Vec<Event>,
    /// The page's block before, or the next free one.
    links: Vec<u32>,
    free: u32,
    /// The slot whose turn it is, counted from 1; nothing has begun at 0.
    current: u64,
    /// When it begins: before the beginning of time for the one that is none.
    begin: u64,
    /// The next group of this slot whose page is to be opened.
    group: usize,
    /// The open page in order, and whose events they are.
    open: Vec<Event>,
    turns: Vec<Turn>,
    /// The next event of the open page, one past the last of the node whose turn it is, and the turn after that.
    next: usize,
    end: usize,
    turn: usize,
    node: u32,
    /// What pages are put in order with.
    chain: Vec<u32>,
    buckets: Vec<u32>,
    spread: Vec<u32>,
    /// Events that the current node has given itself for this same slot.
    local: BinaryHeap<Reverse<Loose>>,
    far: BinaryHeap<Reverse<Loose>>,
    pushed: u64,
    /// Blocks of pages not yet opened.
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
            pages: vec![0; slots * (groups.len() - 1)],
            counts: vec![0; slots],
            groups,
            events: Vec::new(),
            links: Vec::new(),
            free: NONE,
            current: 0,
            begin: width.wrapping_neg(),
            group: 0,
            open: Vec::new(),
            turns: Vec::new(),
            next: 0,
            end: 0,
            turn: 0,
            node: 0,
            chain: Vec::new(),
            buckets: Vec::new(),
            spread: Vec::new(),
            local: BinaryHeap::new(),
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

    /// Puts a packet's event in its place once more: it arrives next at port `at`.
    #[inline(always)]
    pub fn push_on(&mut self, event: &Event, time: u64, at: u32, flags: u8, group: u32) {
        let ahead = self.slots_ahead(time);
        if ahead.wrapping_sub(1) < self.slots as u64 - 1 {
            let place = self.next_place((self.current + ahead) as usize & (self.slots - 1), group);
            let to = &mut self.events[place as usize];
            // Field by field: put together first it would have to wait for its parts to reach the cache.
            to.time = time;
            to.at = at;
            to.packet = event.packet;
            to.dst = event.dst;
            to.ev = event.ev;
            to.connection = event.connection;
            to.bytes = event.bytes;
            to.flags = flags;
            to.kind = event.kind;
        } else {
            self.push_loose(ahead == 0, Event { time, at, flags, ..*event }, group);
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
        let place = self.next_place(slot, group);
        self.events[place as usize].set(event);
    }

    /// Where the next event of a page goes.
    #[inline(always)]
    fn next_place(&mut self, slot: usize, group: u32) -> u32 {
        let page = slot * (self.groups.len() - 1) + group as usize;
        let mut place = self.pages[page];
        if place.is_multiple_of(BLOCK) {
            place = self.new_block(slot, place);
        }
        self.pages[page] = place + 1;
        place
    }

    /// The first place of another block for a page whose next event would have gone to `place`.
    #[inline(never)]
    fn new_block(&mut self, slot: usize, place: u32) -> u32 {
        self.near += 1;
        self.counts[slot] += 1;
        let mut block = self.free;
        if block == NONE {
            block = self.links.len() as u32;
            self.events.resize(self.events.len() + BLOCK as usize, Event::plain(0, Kind::Wake, 0, 0));
            self.links.push(NONE);
        } else {
            self.free = self.links[block as usize];
        }
        self.links[block as usize] = (place / BLOCK).wrapping_sub(1);
        block * BLOCK
    }

    /// The next event of the node whose turn it is.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Event> {
        if !self.local.is_empty() {
            return self.take_earlier();
        }
        let event = self.open[..self.end].get(self.next).copied();
        self.next += usize::from(event.is_some());
        event
    }

    /// The same where the node has given itself something to do.
    #[inline(never)]
    fn take_earlier(&mut self) -> Option<Event> {
        let paged = self.open[..self.end].get(self.next).copied();
        match self.local.peek() {
            Some(Reverse(local)) if paged.is_none_or(|event| event.time > local.time) => {
                self.local.pop().map(|Reverse(loose)| loose.event)
            }
            _ => {
                self.next += usize::from(paged.is_some());
                paged
            }
        }
    }

    /// The events of the node whose turn it is, for [`Calendar::opened`]: they count as taken. For a node that gives itself nothing to do.
    #[inline]
    pub fn take_turn(&mut self) -> Range<usize> {
        let begin = std::mem::replace(&mut self.next, self.end);
        begin..self.end
    }

    /// The open page, for whoever goes through a turn and pushes meanwhile; it is to be given back.
    #[inline]
    pub fn lend_page(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.open)
    }

    #[inline]
    pub fn return_page(&mut self, page: Vec<Event>) {
        self.open = page;
    }

    /// On to the next node that has something to do in the open page.
    #[inline(always)]
    pub fn next_turn(&mut self) -> Option<u32> {
        let Turn { node, end } = *self.turns.get(self.turn)?;
        self.turn += 1;
        self.end = end as usize;
        self.node = node;
        Some(node)
    }

    /// The node whose turn it is.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The node whose turn comes `n` after the next one in the open page.
    #[inline(always)]
    pub fn node_ahead(&self, n: usize) -> Option<u32> {
        self.turns.get(self.turn + n).map(|turn| turn.node)
    }

    /// Where in the open page the next event is.
    #[inline(always)]
    pub fn place(&self) -> usize {
        self.next
    }

    /// The event of the open page that comes `n` after the next one.
    #[inline(always)]
    pub fn event_ahead(&self, n: usize) -> Option<&Event> {
        self.open.get(self.next + n)
    }

    /// The next page of the current slot that holds something, if there is one. It is to be opened before anything else is done.
    pub fn next_page(&mut self) -> Option<Page> {
        self.open.clear();
        self.turns.clear();
        (self.next, self.end, self.turn) = (0, 0, 0);
        let groups = self.groups.len() - 1;
        let first = (self.current as usize & (self.slots - 1)) * groups;
        let rest = &self.pages[first + self.group..first + groups];
        let Some(skip) = rest.iter().position(|&place| place > 0) else {
            self.group = groups;
            return None;
        };
        let group = self.group + skip;
        let place = std::mem::take(&mut self.pages[first + group]);
        self.group = group + 1;
        Some(Page { place, first_node: self.groups[group], end_node: self.groups[group + 1] })
    }

    /// Puts the events of a page in order: by node, of which `node_of` says at which one an event happens, and by time.
    #[inline(always)]
    pub fn open(&mut self, page: Page, node_of: impl Fn(&Event) -> u32) {
        let Page { place, first_node, end_node } = page;
        let newest = (place - 1) / BLOCK;
        let mut block = newest;
        while block != NONE {
            self.chain.push(block);
            block = self.links[block as usize];
        }
        self.chain.reverse();
        let filled = (self.chain.len() as u32 - 1) * BLOCK + (place - 1) % BLOCK + 1;
        let nodes = (end_node - first_node).max(1);
        if filled < nodes / 8 {
            self.gather_few(filled, node_of);
        } else {
            self.gather_many(filled, nodes, first_node, node_of);
        }
        self.near -= self.chain.len();
        for block in self.chain.drain(..) {
            self.links[block as usize] = self.free;
            self.free = block;
        }
    }

    /// The events of block number `i` of a page that has `filled`.
    #[inline(always)]
    fn in_block(&self, i: usize, filled: u32) -> &[Event] {
        let first = self.chain[i] * BLOCK;
        let used = (filled - i as u32 * BLOCK).min(BLOCK);
        &self.events[first as usize..(first + used) as usize]
    }

    /// Of far fewer events than there are nodes.
    fn gather_few(&mut self, filled: u32, node_of: impl Fn(&Event) -> u32) {
        let mut events = std::mem::take(&mut self.open);
        events.extend((0..self.chain.len()).flat_map(|i| self.in_block(i, filled)));
        events.sort_by_key(|event| (node_of(event), event.time));
        for (event, end) in events.iter().zip(1..) {
            let node = node_of(event);
            match self.turns.last_mut() {
                Some(last) if last.node == node => last.end = end,
                _ => self.turns.push(Turn { node, end }),
            }
        }
        self.open = events;
    }

    /// Of many: spread over as many buckets as there are events, equally many for each node, of which each is for a part of the slot.
    fn gather_many(&mut self, filled: u32, nodes: u32, first_node: u32, node_of: impl Fn(&Event) -> u32) {
        let share = (filled / nodes).next_power_of_two().min(MOST_PER_NODE);
        let scale = (u64::from(share) << 32) / self.width;
        let mut spread = std::mem::take(&mut self.spread);
        spread.clear();
        spread.resize((nodes * share) as usize, 0u32);
        let mut buckets = std::mem::take(&mut self.buckets);
        buckets.clear();
        for i in 0..self.chain.len() {
            buckets.extend(self.in_block(i, filled).iter().map(|event| {
                let part = (((event.time - self.begin) * scale) >> 32) as u32;
                let bucket = (node_of(event) - first_node) * share + part;
                spread[bucket as usize] += 1;
                bucket
            }));
        }
        let mut begins = 0;
        for count in &mut spread {
            begins += std::mem::replace(count, begins);
        }
        let mut open = std::mem::take(&mut self.open);
        open.resize(filled as usize, Event::plain(0, Kind::Wake, 0, 0));
        for (i, buckets) in buckets.chunks(BLOCK as usize).enumerate() {
            for (event, &bucket) in self.in_block(i, filled).iter().zip(buckets) {
                let place = &mut spread[bucket as usize];
                open[*place as usize] = *event;
                *place += 1;
            }
        }
        // A node's last bucket ends where its events do.
        let mut begins = 0;
        for (node, ends) in (first_node..).zip(spread.chunks_exact(share as usize)) {
            let end = ends[ends.len() - 1];
            if end > begins {
                sort::finish(&mut open[begins as usize..end as usize]);
                self.turns.push(Turn { node, end });
                begins = end;
            }
        }
        (self.open, self.spread, self.buckets) = (open, spread, buckets);
    }

    /// Every event that is still to come, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &Event> {
        let pages = self.pages.iter().filter(|&&place| place > 0).flat_map(|&place| {
            let newest = ((place - 1) / BLOCK, (place - 1) % BLOCK + 1);
            std::iter::successors(Some(newest), |&(block, _)| {
                Some((self.links[block as usize], BLOCK)).filter(|&(older, _)| older != NONE)
            })
            .flat_map(|(block, used)| &self.events[(block * BLOCK) as usize..(block * BLOCK + used) as usize])
        });
        let loose = self.local.iter().chain(&self.far).map(|Reverse(loose)| &loose.event);
        self.open[self.next..].iter().chain(pages).chain(loose)
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
            if let Some(event) = calendar.take() {
                return Some((event, calendar.node()));
            }
            if calendar.next_turn().is_some() {
                continue;
            }
            match calendar.next_page() {
                Some(page) => calendar.open(page, |event| event.dst),
                None if !calendar.turn_page() => return None,
                None => {}
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
            x = crate::hash::mix(x);
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
