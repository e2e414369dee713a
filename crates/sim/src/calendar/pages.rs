//! The pages of slots to come: one for each slot and group of nodes, made of blocks of events.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use crate::event::{Event, Kind};

/// Events in a block: two kilobytes.
pub(super) const BLOCK: u32 = 64;
const NO_BLOCK: u32 = u32::MAX;

/// A page taken out to be opened.
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

    /// The nodes of the page's group.
    pub(super) fn nodes(&self) -> Range<u32> {
        self.first_node..self.end_node
    }
}

/// All pages.
#[derive(Serialize, Deserialize)]
pub(super) struct Pages {
    /// Number of slots less one, with all bits below its highest one set.
    slot_mask: usize,
    /// Number of groups.
    groups: usize,
    /// By group: its nodes.
    nodes: Vec<Range<u32>>,
    /// By slot and group: where the page's next event goes. 0 is an empty page; any other multiple of a block's size
    /// means that the page needs a new block.
    places: Vec<u32>,
    /// By slot: blocks of its pages.
    counts: Vec<u32>,
    /// Blocks of all pages that are not open.
    blocks: usize,
    /// Block after block.
    events: Vec<Event>,
    /// By block: the block before it in its page, or the next free block.
    links: Vec<u32>,
    /// The first free block.
    free: u32,
    /// The blocks of the page that is being opened, in order.
    chain: Vec<u32>,
}

impl Pages {
    /// No page has events yet. `nodes` are those of each group; the number of slots is a power of two.
    pub fn new(nodes: Vec<Range<u32>>, slots: usize) -> Self {
        let groups = nodes.len();
        Pages {
            slot_mask: slots - 1,
            groups,
            nodes,
            places: vec![0; slots * groups],
            counts: vec![0; slots],
            blocks: 0,
            events: Vec::new(),
            links: Vec::new(),
            free: NO_BLOCK,
            chain: Vec::new(),
        }
    }

    /// How many slots after the current one there are.
    #[inline(always)]
    pub fn slots_ahead(&self) -> u64 {
        self.slot_mask as u64
    }

    /// Number of groups.
    #[inline(always)]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The index of a slot that is within reach.
    #[inline(always)]
    fn index(&self, slot: u64) -> usize {
        slot as usize & self.slot_mask
    }

    /// Room for one more event in the page of a slot and group.
    #[inline(always)]
    pub fn add(&mut self, slot: u64, group: u32) -> &mut Event {
        let slot = self.index(slot);
        let page = slot * self.groups + group as usize;
        let place = &mut self.places[page];
        if place.is_multiple_of(BLOCK) {
            return self.add_to_new_block(slot, page);
        }
        let event = &mut self.events[*place as usize];
        *place += 1;
        event
    }

    /// The same where the page needs another block.
    #[inline(never)]
    fn add_to_new_block(&mut self, slot: usize, page: usize) -> &mut Event {
        let place = self.new_block(slot, self.places[page]);
        self.places[page] = place + 1;
        &mut self.events[place as usize]
    }

    /// The first place of another block for a page whose next event would have gone to `place`.
    fn new_block(&mut self, slot: usize, place: u32) -> u32 {
        self.blocks += 1;
        self.counts[slot] += 1;
        let mut block = self.free;
        if block == NO_BLOCK {
            block = self.links.len() as u32;
            self.events.resize(self.events.len() + BLOCK as usize, Event::plain(0, Kind::Wake, 0, 0));
            self.links.push(NO_BLOCK);
        } else {
            self.free = self.links[block as usize];
        }
        self.links[block as usize] = (place / BLOCK).wrapping_sub(1);
        block * BLOCK
    }

    /// Takes the first page of a slot, from group `from` on, that holds events. Returns its group too.
    pub fn take_page(&mut self, slot: u64, from: usize) -> Option<(usize, Page)> {
        let first = self.index(slot) * self.groups;
        let skip = self.places[first + from..first + self.groups].iter().position(|&place| place > 0)?;
        let group = from + skip;
        let place = std::mem::take(&mut self.places[first + group]);
        let Range { start: first_node, end: end_node } = self.nodes[group];
        Some((group, Page { place, first_node, end_node }))
    }

    /// Collects the blocks of a page, for [`Pages::collected`]. Returns how many events it has.
    pub fn collect_blocks(&mut self, page: &Page) -> u32 {
        let mut block = (page.place - 1) / BLOCK;
        while block != NO_BLOCK {
            self.chain.push(block);
            block = self.links[block as usize];
        }
        self.chain.reverse();
        (self.chain.len() as u32 - 1) * BLOCK + (page.place - 1) % BLOCK + 1
    }

    /// The events of each block of the page that was collected and has `filled` events.
    #[inline(always)]
    pub fn collected(&self, filled: u32) -> impl Iterator<Item = &[Event]> {
        (0..).step_by(BLOCK as usize).zip(&self.chain).map(move |(before, block)| {
            let first = block * BLOCK;
            let used = (filled - before).min(BLOCK);
            &self.events[first as usize..(first + used) as usize]
        })
    }

    /// Frees the blocks that were collected.
    pub fn free_collected(&mut self) {
        self.blocks -= self.chain.len();
        for block in self.chain.drain(..) {
            self.links[block as usize] = self.free;
            self.free = block;
        }
    }

    /// The next slot after `current` that holds events.
    pub fn next_slot(&self, current: u64) -> Option<u64> {
        if self.blocks == 0 {
            return None;
        }
        (current + 1..).find(|&slot| self.counts[self.index(slot)] > 0)
    }

    /// The slot is over: its pages are empty.
    pub fn end_slot(&mut self, slot: u64) {
        let index = self.index(slot);
        self.counts[index] = 0;
    }

    /// Every event in a page, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &Event> {
        self.places.iter().filter(|&&place| place > 0).flat_map(|&place| {
            let newest = ((place - 1) / BLOCK, (place - 1) % BLOCK + 1);
            std::iter::successors(Some(newest), |&(block, _)| {
                Some((self.links[block as usize], BLOCK)).filter(|&(older, _)| older != NO_BLOCK)
            })
            .flat_map(|(block, used)| &self.events[(block * BLOCK) as usize..(block * BLOCK + used) as usize])
        })
    }
}
