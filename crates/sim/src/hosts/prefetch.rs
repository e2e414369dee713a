//! Loads into the cache what the next events at hosts will need, step by step, because each step holds the address of
//! the next: packet and host, the queue pair's entry in the host's table, the queue pair, its
//! roles, their windows.

use prefetch_index::prefetch_index;

use openmrc_transport::node::Slot;

use super::by_host::ByHost;
use super::host::SimHost;
use super::posts::{End, Posts};
use crate::calendar::Calendar;
use crate::event::Kind;
use crate::slab::Slab;

/// How many events before its own event each step is taken.
const PACKETS_AHEAD: usize = 20;
const ENTRIES_AHEAD: usize = 14;
const QPS_AHEAD: usize = 8;
const ROLES_AHEAD: usize = 6;
const HEAPS_AHEAD: usize = 3;

/// Queue pairs remembered: a power of two above all of these.
const REMEMBERED: usize = 32;

/// A queue pair: its host and its slot there. The last host's number is not taken.
type Which = (u32, Slot);

/// Nothing to load: it has been loaded for an event just before, or the event is about no queue pair.
const NOTHING: Which = (u32::MAX, 0);

/// The queue pairs of the events to come.
pub(super) struct Prefetcher {
    /// By position of the event in the calendar's page, modulo the length.
    queue_pairs: [Which; REMEMBERED],
    /// The two queue pairs found last: most events of a node are about the same one or two.
    recent: [Which; 2],
    /// The host loaded last.
    host: u32,
}

impl Prefetcher {
    pub fn new() -> Self {
        Prefetcher { queue_pairs: [NOTHING; REMEMBERED], recent: [NOTHING; 2], host: u32::MAX }
    }

    /// Loads what the events after the current one will need.
    #[inline(always)]
    pub fn prefetch(&mut self, calendar: &Calendar, packets: &Slab, hosts: &ByHost<SimHost>, posts: &Posts) {
        let position = calendar.position();
        if let Some(event) = calendar.event_ahead(PACKETS_AHEAD) {
            if event.dst != self.host {
                self.host = event.dst;
                SimHost::prefetch(hosts, event.dst);
            }
            if event.kind == Kind::Arrive {
                packets.prefetch(event.packet);
                posts.prefetch_place(End::of(event));
            }
        }
        if let Some(event) = calendar.event_ahead(ENTRIES_AHEAD) {
            let host = hosts.get(event.dst);
            let slot = match event.kind {
                Kind::Arrive => posts.slot(End::of(event)),
                Kind::Wake => Some(event.packet),
                _ => None,
            };
            let which = slot.map_or(NOTHING, |slot| (event.dst, slot));
            let is_new = which != NOTHING && !self.recent.contains(&which);
            self.queue_pairs[(position + ENTRIES_AHEAD) % REMEMBERED] = if is_new { which } else { NOTHING };
            if is_new {
                self.recent = [which, self.recent[0]];
                if let Some(host) = host {
                    host.node.prefetch(which.1);
                }
            }
        }
        let queue_pair = |ahead: usize| {
            let (host, slot) = self.queue_pairs[(position + ahead) % REMEMBERED];
            hosts.get(host).and_then(|host| host.node.qp(slot))
        };
        if let Some(qp) = queue_pair(QPS_AHEAD) {
            qp.prefetch();
        }
        if let Some(qp) = queue_pair(ROLES_AHEAD) {
            qp.prefetch_roles();
        }
        if let Some(qp) = queue_pair(HEAPS_AHEAD) {
            qp.prefetch_heap();
        }
        if let Some(event) = calendar.event_ahead(HEAPS_AHEAD)
            && event.kind == Kind::Arrive
            && let Some(message) = packets.message(event.packet)
        {
            prefetch_index(&posts.messages, message);
        }
    }
}
