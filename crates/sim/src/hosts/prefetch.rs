//! Loads into the cache what the next events at hosts will need, step by step, because each step holds the address of
//! the next: packet, slot of its queue pair, queue pair, the queue pair's window.

use prefetch_index::prefetch_index;

use super::posts::Posts;
use super::queue_pair::QueuePairs;
use crate::calendar::Calendar;
use crate::event::Kind;
use crate::slab::Slab;

/// How many events before its own event a packet is loaded, then its queue pair's slot, then the queue pair, then the
/// memory that the queue pair has elsewhere.
const PACKETS_AHEAD: usize = 20;
const SLOTS_AHEAD: usize = 14;
const QPS_AHEAD: usize = 8;
const HEAPS_AHEAD: usize = 4;

/// Slots remembered: a power of two above all of these.
const REMEMBERED: usize = 32;

/// No slot: it has been loaded for an event just before.
const NO_SLOT: u32 = u32::MAX;

/// The slots of the events to come.
pub(super) struct Prefetcher {
    /// By position of the event in the calendar's page, modulo the length.
    slots: [u32; REMEMBERED],
}

impl Prefetcher {
    pub fn new() -> Self {
        Prefetcher { slots: [0; REMEMBERED] }
    }

    /// Loads what the events after the current one will need.
    #[inline(always)]
    pub fn prefetch(&mut self, calendar: &Calendar, packets: &Slab, qps: &QueuePairs, posts: &Posts) {
        let place = calendar.place();
        if let Some(event) = calendar.event_ahead(PACKETS_AHEAD)
            && event.kind == Kind::Arrive
        {
            packets.prefetch(event.packet);
        }
        if let Some(event) = calendar.event_ahead(SLOTS_AHEAD) {
            let slot = match event.kind {
                Kind::Arrive => QueuePairs::slot_of(packets.dest_qp(event.packet)),
                Kind::Wake => event.packet,
                _ => event.at,
            };
            // Most events of a node are about the same one or two queue pairs.
            let before = [1, 2].map(|n| self.slots[(place + SLOTS_AHEAD - n) % REMEMBERED]);
            self.slots[(place + SLOTS_AHEAD) % REMEMBERED] =
                if before.contains(&slot) { NO_SLOT } else { slot };
            qps.prefetch_slot(slot);
        }
        qps.prefetch_queue_pair(self.slots[(place + QPS_AHEAD) % REMEMBERED]);
        qps.prefetch_heap(self.slots[(place + HEAPS_AHEAD) % REMEMBERED]);
        if let Some(event) = calendar.event_ahead(HEAPS_AHEAD)
            && event.kind == Kind::Arrive
            && let Some(message) = packets.message(event.packet)
        {
            prefetch_index(&posts.messages, message);
        }
    }
}
