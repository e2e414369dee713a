//! One host: its node, and the events that are pending for it.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use prefetch_index::prefetch_index;

use openmrc_transport::node::{Node, NodeConfig};
use openmrc_transport::{PortSet, Time};

use super::by_host::ByHost;
use super::environment::Environment;
use super::queue_pair::QueuePair;
use crate::clock::Clock;
use crate::event::{Event, Kind};

/// A host. What packets need comes first, as in [`Node`].
#[repr(C)]
#[derive(Serialize, Deserialize)]
pub(super) struct SimHost {
    /// Time of its pending wake event; [`u64::MAX`] without one.
    pub wake_at: u64,
    /// Time of its first pending timer event; [`u64::MAX`] without one.
    pub timer_at: u64,
    /// Time of another timer event that is pending behind it; [`u64::MAX`] without one. A deadline at or after it needs
    /// no event of its own. Otherwise a host whose pacing timer runs many times before its retransmission timer would
    /// leave an event for each of them.
    timer_behind: u64,
    /// Ports with a carrier. Its node learns of a change a moment later.
    pub carrier: PortSet,
    pub node: Node<QueuePair>,
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

impl SimHost {
    /// Bytes at the beginning of a host that packets need.
    const PACKET_BYTES: usize = std::mem::offset_of!(SimHost, node) + Node::<QueuePair>::PACKET_BYTES;

    /// A host whose ports are all up.
    pub fn new(config: &Arc<NodeConfig>) -> Self {
        SimHost {
            node: Node::new(config),
            wake_at: u64::MAX,
            timer_at: u64::MAX,
            timer_behind: u64::MAX,
            carrier: config.ports,
        }
    }

    /// Queue pairs send in turn, a packet at a time, as long as a port can take one.
    pub fn serve(&mut self, environment: &mut Environment<'_>) {
        let now = environment.clock.now;
        while self.node.has_ready() {
            let free = match environment.fabric.free_ports(environment.host, now) {
                Ok(free) => free,
                Err(time) => return self.wake_at(time, environment.host, environment.clock),
            };
            let Some(next) = self.node.poll_transmit(Time(now), free, environment) else {
                // Queue pairs want ports that are not free now.
                if self.node.has_ready() {
                    let time = environment.fabric.next_departure(environment.host, now);
                    self.wake_at(time, environment.host, environment.clock);
                }
                return;
            };
            environment.transmit(next.qp, &next.transmit);
        }
    }

    /// Serves the queue pairs, unless a wake event will.
    #[inline(always)]
    pub fn offer(&mut self, environment: &mut Environment<'_>) {
        // Without a wake event there may be queue pairs none of whose ports was up.
        if self.wake_at == u64::MAX {
            self.serve(environment);
        }
    }

    /// Schedules the wake event for `time`, if none comes before.
    #[inline(always)]
    fn wake_at(&mut self, time: u64, number: u32, clock: &mut Clock) {
        if time < self.wake_at {
            self.wake_at = time;
            // The queue pair whose turn it will be, so that it can be loaded into the cache before.
            let packet = self.node.next_ready().unwrap_or_default();
            clock.push_to_host(Event { packet, ..Event::plain(time, Kind::Wake, number, number) });
        }
    }

    /// Schedules a timer event for the node's next deadline, if none comes before.
    #[inline(always)]
    pub fn arm_timer(&mut self, number: u32, clock: &mut Clock) {
        let due = self.node.poll_timeout().0;
        if due < self.timer_at {
            self.timer_behind = self.timer_at.min(self.timer_behind);
            self.timer_at = due;
            clock.push_at_host(due.max(clock.now), Kind::Timer, number, number);
        }
    }

    /// Its first pending timer event has come.
    pub fn timer_fired(&mut self) {
        self.timer_at = std::mem::replace(&mut self.timer_behind, u64::MAX);
    }

    /// Loads a host into the cache.
    #[inline(always)]
    pub fn prefetch(hosts: &ByHost<SimHost>, number: u32) {
        // The crate loads what lies a number of elements from the first of a slice, so the slice is taken as lines.
        let Some(host) = hosts.get(number) else { return };
        let wake_at = std::slice::from_ref(&host.wake_at);
        let begin = std::mem::offset_of!(SimHost, wake_at) / size_of::<u64>();
        for line in 0..Self::PACKET_BYTES.div_ceil(CACHE_LINE) {
            prefetch_index(wake_at, (line * CACHE_LINE / size_of::<u64>()).wrapping_sub(begin));
        }
    }
}
