//! The event queue: a calendar whose slots are no wider than the shortest delay between two nodes.
//! So what happens at one node in a slot cannot affect another node before the slot ends, and the events of a slot are
//! taken node by node. Why: docs/decisions.md, "Events of a slot are handled node by node".

mod open_page;
mod pages;
mod sort;

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use self::open_page::OpenPage;
pub(crate) use self::pages::Page;
use self::pages::Pages;
use crate::event::Event;

/// The narrowest slot, picoseconds: 2^64 over a narrower one does not fit [`Calendar::inverse`]. Hops take far longer.
const MIN_WIDTH: u64 = 2;
/// The widest slot, picoseconds. Wider ones gain nothing.
const MAX_WIDTH: u64 = 1 << 26;
/// Most slots.
const MAX_SLOTS: usize = 1 << 12;

/// An event beyond the last slot, ordered by time and then by arrival.
#[derive(Serialize, Deserialize)]
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

/// Events by slot, node and time. Events of the same node and time come out in the order in which they went in.
///
/// Neighbouring nodes form a group, and a slot has a page for each group. Events beyond the last slot wait in a heap.
#[derive(Serialize, Deserialize)]
pub(crate) struct Calendar {
    /// Width of a slot, picoseconds, and 2^64 over it.
    width: u64,
    inverse: u64,
    /// The current slot, counted from 1. At 0 nothing has begun.
    current: u64,
    /// When it begins. Slot 0 begins before time zero.
    begin: u64,
    /// The group of this slot whose page is opened next.
    group: usize,
    pages: Pages,
    /// Empty between two slots, and so in a checkpoint.
    #[serde(skip)]
    open: OpenPage,
    /// Events that the current node has scheduled for itself in this slot, in the order in which they happen. Of a host
    /// there are one or two.
    local: VecDeque<Event>,
    /// Events beyond the last slot.
    far: BinaryHeap<Reverse<Loose>>,
    /// Events that were put in the heap so far.
    pushed: u64,
}

impl Calendar {
    /// A calendar for nodes in groups: `groups` are the nodes of each. Its slots are at most `width` picoseconds wide and
    /// cover `reach` picoseconds or a little more.
    pub fn new(groups: Vec<Range<u32>>, width: u64, reach: u64) -> Self {
        let width = width.clamp(MIN_WIDTH, MAX_WIDTH);
        let slots = (reach / width + 2).next_power_of_two().min(MAX_SLOTS as u64) as usize;
        Calendar {
            width,
            inverse: (u64::MAX / width).wrapping_add(1),
            current: 0,
            begin: width.wrapping_neg(),
            group: 0,
            pages: Pages::new(groups, slots),
            open: OpenPage::default(),
            local: VecDeque::new(),
            far: BinaryHeap::new(),
            pushed: 0,
        }
    }

    /// Width of a slot, picoseconds: the shortest time in which one node can affect another.
    #[inline(always)]
    pub fn lookahead(&self) -> u64 {
        self.width
    }

    /// When the current slot begins.
    #[inline(always)]
    pub fn page_begin(&self) -> u64 {
        self.begin
    }

    // Scheduling.

    /// How many slots after the current one `time` is.
    #[inline(always)]
    fn slots_ahead(&self, time: u64) -> u64 {
        let ahead = time.wrapping_sub(self.begin);
        // Exact for all times within the calendar: the errors of both factors stay below one slot in 2^64.
        ((u128::from(ahead) * u128::from(self.inverse)) >> 64) as u64
    }

    /// Schedules an event at a node of `group`. In the current slot it must be for the node whose turn it is.
    #[inline(always)]
    pub fn push(&mut self, event: Event, group: u32) {
        let ahead = self.slots_ahead(event.time);
        // `ahead` is 0 in the current slot. Slot 0 is over before anything happens.
        if ahead.wrapping_sub(1) < self.pages.slots_ahead() {
            self.pages.add(self.current + ahead, group).set(event);
        } else {
            self.push_beyond(ahead == 0, event, group);
        }
    }

    /// Schedules a packet's event once more: it arrives next at port `at`.
    #[inline(always)]
    pub fn push_on(&mut self, event: &Event, time: u64, at: u32, flags: u8, group: u32) {
        let ahead = self.slots_ahead(time);
        if ahead.wrapping_sub(1) < self.pages.slots_ahead() {
            let to = self.pages.add(self.current + ahead, group);
            // Field by field: an event put together first would have to wait for its parts to reach the cache.
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
            self.push_beyond(ahead == 0, Event { time, at, flags, ..*event }, group);
        }
    }

    /// Schedules an event in this slot (`local`) or beyond the last one.
    #[inline(never)]
    fn push_beyond(&mut self, local: bool, event: Event, group: u32) {
        if local {
            let later = self.local.iter().rev().take_while(|other| other.time > event.time).count();
            self.local.insert(self.local.len() - later, event);
            return;
        }
        self.pushed += 1;
        self.far.push(Reverse(Loose { time: event.time, order: self.pushed, group, event }));
    }

    // Taking events.

    /// Takes the next event of the node whose turn it is and writes it to `event`. Returns whether there was one.
    #[inline(always)]
    pub fn take(&mut self, event: &mut Event) -> bool {
        let paged = self.open.peek();
        if let Some(local) = self.local.front()
            && paged.is_none_or(|paged| paged.time > local.time)
        {
            event.set(*local);
            self.local.pop_front();
            return true;
        }
        let Some(paged) = paged else { return false };
        event.set(*paged);
        self.open.next += 1;
        true
    }

    /// Takes all events of the node whose turn it is: a range of [`Calendar::lend_page`]. The node must not schedule
    /// any for itself in this slot.
    #[inline]
    pub fn take_turn(&mut self) -> Range<usize> {
        let begin = std::mem::replace(&mut self.open.next, self.open.end);
        begin..self.open.end
    }

    /// Lends the open page to a caller that schedules events while it reads. It must be returned.
    #[inline]
    pub fn lend_page(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.open.events)
    }

    /// Takes the page back.
    #[inline]
    pub fn return_page(&mut self, page: Vec<Event>) {
        self.open.events = page;
    }

    /// Goes on to the next node that has events in the open page.
    #[inline(always)]
    pub fn next_turn(&mut self) -> Option<u32> {
        self.open.next_turn()
    }

    /// The node whose turn it is.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.open.node
    }

    /// The node whose turn comes `n` after the next one in the open page.
    #[inline(always)]
    pub fn node_ahead(&self, n: usize) -> Option<u32> {
        self.open.node_ahead(n)
    }

    /// Position of the next event in the open page.
    #[inline(always)]
    pub fn position(&self) -> usize {
        self.open.next
    }

    /// The event of the open page that comes `n` after the next one.
    #[inline(always)]
    pub fn event_ahead(&self, n: usize) -> Option<&Event> {
        self.open.event_ahead(n)
    }

    // Pages and slots.

    /// The next page of the current slot that holds events. It must be opened before anything is scheduled.
    pub fn next_page(&mut self) -> Option<Page> {
        self.open.clear();
        let Some((group, page)) = self.pages.take_page(self.current, self.group) else {
            self.group = self.pages.groups();
            return None;
        };
        self.group = group + 1;
        Some(page)
    }

    /// Opens a page: its events are ordered by node and time. `node_of` says at which node an event happens.
    #[inline(always)]
    pub fn open(&mut self, page: Page, node_of: impl Fn(&Event) -> u32) {
        let filled = self.pages.collect_blocks(&page);
        self.open.fill(&self.pages, filled, page.nodes(), (self.begin, self.width), node_of);
        self.pages.free_collected();
    }

    /// The slot of a time. Slots are counted from 1.
    pub fn slot_of(&self, time: u64) -> u64 {
        time / self.width + 1
    }

    /// When a slot begins.
    pub fn begin_of(&self, slot: u64) -> u64 {
        (slot - 1).saturating_mul(self.width)
    }

    /// The next slot that holds events.
    pub fn next_slot(&self) -> Option<u64> {
        let near = self.pages.next_slot(self.current);
        let far = self.far.peek().map(|Reverse(far)| self.slot_of(far.time));
        near.into_iter().chain(far).min()
    }

    /// Goes on to a later slot. There must be no events before it.
    pub fn turn_to(&mut self, slot: u64) {
        self.pages.end_slot(self.current);
        self.current = slot;
        self.begin = self.begin_of(slot);
        self.group = 0;
        // Events that are within reach now go to their pages before any other event is put there.
        let end = self.begin.saturating_add(self.width * (self.pages.slots_ahead() + 1));
        while self.far.peek().is_some_and(|Reverse(far)| far.time < end) {
            if let Some(Reverse(far)) = self.far.pop() {
                self.pages.add(self.slot_of(far.time), far.group).set(far.event);
            }
        }
    }

    /// Every event that is still to come, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &Event> {
        let far = self.far.iter().map(|Reverse(far)| &far.event);
        self.open.left().iter().chain(self.pages.pending()).chain(&self.local).chain(far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use proptest::prelude::*;

    /// Five nodes in two groups.
    const GROUP_OF: [u32; 5] = [0, 0, 0, 1, 1];

    fn push(calendar: &mut Calendar, node: u32, time: u64, id: u32) {
        calendar.push(Event::plain(time, Kind::Wake, id, node), GROUP_OF[node as usize]);
    }

    fn next(calendar: &mut Calendar) -> Option<(Event, u32)> {
        let mut event = Event::plain(0, Kind::Wake, 0, 0);
        loop {
            if calendar.take(&mut event) {
                return Some((event, calendar.node()));
            }
            if calendar.next_turn().is_some() {
                continue;
            }
            match calendar.next_page() {
                Some(page) => calendar.open(page, |event| event.dst),
                None => calendar.turn_to(calendar.next_slot()?),
            }
        }
    }

    proptest! {
        /// Nodes give themselves events at any time and others events a slot ahead at least, as the simulator does.
        #[test]
        fn every_node_sees_its_events_by_time_and_equal_times_as_they_went_in(
            width in 2u64..3000,
            seeds in proptest::collection::vec((0u32..5, 0u64..400_000), 1..20),
            moves in proptest::collection::vec((0u64..5000, 0u32..5), 1..300),
        ) {
            let mut calendar = Calendar::new(vec![0..3, 3..5], width, 16 * width);
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
        let mut calendar = Calendar::new(vec![0..3, 3..5], 1 << 20, 16 << 20);
        let mut x = 1u64;
        let mut times = Vec::new();
        for id in 0..5000 {
            x = openmrc_transport::random::mix(x);
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
