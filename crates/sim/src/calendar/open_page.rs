//! The page that is open: its events by node and time, and how far they have been taken.

use std::ops::Range;

use super::pages::{BLOCK, Pages};
use super::sort;
use crate::event::{Event, Kind};

/// Most buckets that a node's part of a page is spread over.
const MAX_BUCKETS_PER_NODE: u32 = 1 << 10;

/// The events of a node in the open page: from where those of the node before end, up to `end`.
#[derive(Clone, Copy)]
struct Turn {
    node: u32,
    end: u32,
}

/// The events of one slot at one group of nodes.
#[derive(Default)]
pub(super) struct OpenPage {
    /// The page's events, and behind them what larger pages have left there.
    pub events: Vec<Event>,
    /// Number of events of the page.
    filled: usize,
    turns: Vec<Turn>,
    /// The next event.
    pub next: usize,
    /// One past the last event of the node whose turn it is.
    pub end: usize,
    /// Index of the next turn.
    turn: usize,
    /// The node whose turn it is.
    pub node: u32,
    /// By bucket: where its next event goes. Kept for its memory.
    spread: Vec<u32>,
    /// By event: its bucket. Kept for its memory.
    buckets: Vec<u32>,
}

impl OpenPage {
    /// Forgets the page.
    pub fn clear(&mut self) {
        self.turns.clear();
        (self.filled, self.next, self.end, self.turn) = (0, 0, 0, 0);
    }

    /// The events that have not been taken.
    #[inline(always)]
    pub fn left(&self) -> &[Event] {
        &self.events[self.next..self.filled]
    }

    /// The event that comes `n` after the next one.
    #[inline(always)]
    pub fn event_ahead(&self, n: usize) -> Option<&Event> {
        let place = self.next + n;
        if place < self.filled { self.events.get(place) } else { None }
    }

    /// The next event of the node whose turn it is.
    #[inline(always)]
    pub fn peek(&self) -> Option<&Event> {
        self.events[..self.end].get(self.next)
    }

    /// Goes on to the next node that has events.
    #[inline(always)]
    pub fn next_turn(&mut self) -> Option<u32> {
        let Turn { node, end } = *self.turns.get(self.turn)?;
        self.turn += 1;
        self.end = end as usize;
        self.node = node;
        Some(node)
    }

    /// The node whose turn comes `n` after the next one.
    #[inline(always)]
    pub fn node_ahead(&self, n: usize) -> Option<u32> {
        self.turns.get(self.turn + n).map(|turn| turn.node)
    }

    /// Takes the events of the page that `pages` has collected, of which there are `filled`. `node_of` says at which of
    /// `nodes` an event happens. The slot begins at `begin` and is `width` wide.
    #[inline(always)]
    pub fn fill(
        &mut self,
        pages: &Pages,
        filled: u32,
        nodes: Range<u32>,
        (begin, width): (u64, u64),
        node_of: impl Fn(&Event) -> u32,
    ) {
        self.filled = filled as usize;
        if self.events.len() < self.filled {
            self.events.resize(self.filled, Event::plain(0, Kind::Wake, 0, 0));
        }
        let count = (nodes.len() as u32).max(1);
        if filled < count / 8 {
            self.sort_few(pages, filled, node_of);
        } else {
            self.spread_many(pages, filled, nodes.start..nodes.start + count, (begin, width), node_of);
        }
    }

    /// Sorts far fewer events than there are nodes.
    fn sort_few(&mut self, pages: &Pages, filled: u32, node_of: impl Fn(&Event) -> u32) {
        let events = &mut self.events[..self.filled];
        for (event, collected) in events.iter_mut().zip(pages.collected(filled).flatten()) {
            *event = *collected;
        }
        events.sort_by_key(|event| (node_of(event), event.time, event.tie()));
        for (event, end) in events.iter().zip(1..) {
            let node = node_of(event);
            match self.turns.last_mut() {
                Some(last) if last.node == node => last.end = end,
                _ => self.turns.push(Turn { node, end }),
            }
        }
    }

    /// Spreads events over as many buckets as there are events, equally many for each node, each for a part of the
    /// slot.
    fn spread_many(
        &mut self,
        pages: &Pages,
        filled: u32,
        nodes: Range<u32>,
        (begin, width): (u64, u64),
        node_of: impl Fn(&Event) -> u32,
    ) {
        let count = nodes.len() as u32;
        let share = (filled / count).next_power_of_two().min(MAX_BUCKETS_PER_NODE);
        let scale = (u64::from(share) << 32) / width;
        let OpenPage { events, turns, spread, buckets, .. } = self;
        spread.clear();
        spread.resize((count * share) as usize, 0u32);
        buckets.clear();
        for block in pages.collected(filled) {
            buckets.extend(block.iter().map(|event| {
                let part = (((event.time - begin) * scale) >> 32) as u32;
                let bucket = (node_of(event) - nodes.start) * share + part;
                spread[bucket as usize] += 1;
                bucket
            }));
        }
        let mut begins = 0;
        for count in &mut *spread {
            begins += std::mem::replace(count, begins);
        }
        for (block, buckets) in pages.collected(filled).zip(buckets.chunks(BLOCK as usize)) {
            for (event, &bucket) in block.iter().zip(buckets) {
                let place = &mut spread[bucket as usize];
                events[*place as usize] = *event;
                *place += 1;
            }
        }
        // A node's last bucket ends where the node's events do.
        let mut begins = 0;
        for (node, ends) in nodes.zip(spread.chunks_exact(share as usize)) {
            let end = ends[ends.len() - 1];
            if end > begins {
                sort::finish(&mut events[begins as usize..end as usize]);
                turns.push(Turn { node, end });
                begins = end;
            }
        }
    }
}
