//! The computed port model: a packet's departure is computed when it arrives, so that a packet costs one event a hop
//! (docs/spec/congestion.md, "Switch settings"). Where it is exact and where it approximates: docs/decisions.md, "Fast
//! queues, and the order of events".

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use openmrc_scenario::run::Overflow;
use openmrc_transport::PortSet;

use super::ports::{Fate, NO_BACKLOG, Port, Ports};
use crate::clock::Clock;
use crate::event::{Event, flag};
use crate::long_queue::{Backlog, LongQueue};
use crate::stats::Stats;

/// The computed model. A port's queues are two times: when all data accepted will have left ([`Port::data_free`]), and
/// when all control will have ([`Port::control_free`]). For packets that have left a queue and not arrived yet, the
/// other end of the cable keeps the history of queues that were long enough to mark.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Computed {
    /// By [`Port::backlogs`].
    backlogs: Vec<VecDeque<Backlog>>,
}

impl Computed {
    /// A packet is to leave a switch by port `out`.
    #[inline(always)]
    pub fn enqueue(
        &mut self,
        ports: &mut Ports,
        out: u32,
        event: &Event,
        flags: u8,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        let now = event.time;
        let port = &mut ports.list[out as usize];
        if port.is_down() {
            stats.totals.fabric.dropped_down += 1;
            return Fate::dropped(event, stats);
        }
        let settings = &ports.settings;
        let per_byte = u64::from(port.picos_per_byte);
        let service = u64::from(event.bytes) * per_byte;
        let (limits, per_limit_byte) = (settings.limits(port), settings.picos_per_limit_byte(port));
        let backlog = port.data_free.saturating_sub(now);
        let leaves = if flags & flag::CONTROL != 0 {
            let start = start_of_control(port, now, settings.full_packet_bytes * per_byte);
            if start - now > settings.switch.control_bytes * per_limit_byte {
                return drop_control(out, event, stats);
            }
            port.control_free = start + service;
            port.data_free = port.data_free.max(start) + service;
            port.control_free
        } else {
            if backlog > limits.data * per_limit_byte {
                return self.overflow(ports, out, Event { flags, ..*event }, clock, stats);
            }
            if backlog > stats.totals.fabric.longest_queue * per_byte {
                stats.totals.fabric.longest_queue = backlog / per_byte;
            }
            port.data_free = now + backlog + service;
            port.data_free
        };
        port.bytes += u64::from(event.bytes);
        let (peer, address, latency) = (port.peer, port.peer_address, u64::from(port.latency));
        let marks = limits.marks * per_limit_byte;
        if port.data_free - now > marks {
            self.enter_backlog(ports, out, now, marks, clock);
        }
        clock.push_on(event, leaves + latency, peer, flags, address);
        Fate::Forwarded
    }

    /// The data queue of port `out` is full.
    #[inline(never)]
    fn overflow(
        &mut self,
        ports: &mut Ports,
        out: u32,
        event: Event,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        if ports.settings.switch.overflow == Overflow::Drop || event.flags & flag::DATA == 0 {
            stats.totals.fabric.dropped_data += 1;
            stats.at_port(out, |count| count.dropped += 1);
            return Fate::dropped(&event, stats);
        }
        // The rest is a control packet.
        let event = ports.trim(out, event, stats);
        self.enqueue(ports, out, &event, event.flags, clock, stats)
    }

    /// A host sends a packet by its port `out`, which holds as much as its queue pairs give it. Control goes first.
    #[inline]
    pub fn enqueue_at_host(
        &mut self,
        ports: &mut Ports,
        out: u32,
        mut event: Event,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        let now = event.time;
        let full = ports.settings.full_packet_bytes;
        let port = &mut ports[out];
        if port.is_down() {
            stats.totals.fabric.dropped_down += 1;
            return Fate::dropped(&event, stats);
        }
        let per_byte = u64::from(port.picos_per_byte);
        let service = u64::from(event.bytes) * per_byte;
        let start = if event.flags & flag::CONTROL != 0 {
            let start = start_of_control(port, now, full * per_byte);
            port.control_free = start + service;
            port.data_free = port.data_free.max(start) + service;
            start
        } else {
            let start = port.data_free.max(now);
            port.data_free = start + service;
            start
        };
        port.bytes += u64::from(event.bytes);
        event.time = start + service + u64::from(port.latency);
        ports.send_over(out, event, clock);
        Fate::Forwarded
    }

    /// The queue of port `out` is long enough to mark now that a packet has been accepted.
    #[inline(never)]
    fn enter_backlog(&mut self, ports: &mut Ports, out: u32, now: u64, marks: u64, clock: &mut Clock) {
        let port = &ports[out];
        let latency = u64::from(port.latency);
        let queue = LongQueue {
            port: port.peer,
            backlog: Backlog { since: now, free: port.data_free },
            arrivals: (now + latency, port.data_free - marks + latency),
        };
        let address = port.peer_address;
        if address.is_elsewhere() {
            clock.report_queue(queue, address);
        } else {
            self.note(ports, &queue, clock.lookahead());
        }
    }

    /// The other end of a cable learns of a queue that may mark.
    pub fn note(&mut self, ports: &mut Ports, queue: &LongQueue, lookahead: u64) {
        let &LongQueue { port, backlog, arrivals: (from, until) } = queue;
        let port = &mut ports[port];
        if port.backlogs == NO_BACKLOG {
            port.backlogs = self.backlogs.len() as u32;
            self.backlogs.push(VecDeque::new());
        }
        let backlogs = &mut self.backlogs[port.backlogs as usize];
        // All packets that left an earlier backlog have arrived.
        if port.marked_until + lookahead < backlog.since {
            backlogs.clear();
        }
        port.marked_until = until;
        if backlogs.is_empty() {
            port.marked_from = from;
        }
        backlogs.push_back(backlog);
    }

    /// Flags of a packet that arrives at port `event.at` from a queue that was long enough to mark, then or shortly
    /// before. What had been accepted behind it when it left is known by now and decides on the mark.
    #[inline(never)]
    pub fn flags_on_arrival(&mut self, ports: &mut Ports, event: &Event, stats: &mut Stats) -> u8 {
        let flags = event.flags;
        let Some(ecn) = ports.settings.switch.ecn.filter(|_| flags & flag::DATA != 0) else { return flags };
        let out = ports[event.at].peer;
        let port = &ports[out];
        let (per_byte, latency) = (u64::from(port.picos_per_byte), u64::from(port.latency));
        let per_limit_byte = ports.settings.picos_per_limit_byte(port);
        let left = event.time - latency;
        let leaves = left.saturating_sub(u64::from(event.bytes) * per_byte);
        let history = ports[event.at].backlogs;
        let Some(backlogs) = self.backlogs.get_mut(history as usize) else { return flags };
        // Packets leave in order, so the entries before this one are not needed any more.
        while backlogs.get(1).is_some_and(|next| next.since < leaves) {
            backlogs.pop_front();
        }
        let Some(&backlog) = backlogs.front() else { return flags };
        ports[event.at].marked_from = backlog.since + latency;
        if flags & flag::CE != 0 || backlog.since >= leaves || backlog.free < left {
            return flags;
        }
        let behind = (backlog.free - left) / per_limit_byte;
        if ports.marks(&ecn, out, leaves, behind, stats) { flags | flag::CE } else { flags }
    }

    /// Bytes that a port has sent by `now`.
    pub fn sent(&self, port: &Port, now: u64) -> u64 {
        port.bytes - self.backlog(port, now)
    }

    /// Bytes that wait at a port.
    #[inline]
    pub fn backlog(&self, port: &Port, now: u64) -> u64 {
        port.data_free.saturating_sub(now) / u64::from(port.picos_per_byte.max(1))
    }

    /// Ports of a host that can take a packet: at most one waits behind the one on the cable. `Err` is the time when
    /// the first port will have sent all it has, or [`u64::MAX`] if all are down.
    #[inline]
    pub fn free_ports(&self, ports: &[Port], now: u64, full_packet_bytes: u64) -> Result<PortSet, u64> {
        let (mut free, mut soonest) = (PortSet::EMPTY, u64::MAX);
        for (plane, port) in (0..).zip(ports).filter(|(_, port)| !port.is_down()) {
            if port.data_free <= now + full_packet_bytes * u64::from(port.picos_per_byte) {
                free = free.with(plane);
            }
            soonest = soonest.min(port.data_free);
        }
        if free.is_empty() { Err(soonest) } else { Ok(free) }
    }

    /// When the first of a host's busy ports will have sent all it has; [`u64::MAX`] if none is busy.
    pub fn next_departure(&self, ports: &[Port], now: u64) -> u64 {
        ports.iter().map(|port| port.data_free).filter(|&free| free > now).min().unwrap_or(u64::MAX)
    }
}

/// When a control packet that comes now begins to leave: behind other control, and behind the packet in service. Of the
/// packets that wait, each takes a service time of `full`.
#[inline(always)]
fn start_of_control(port: &Port, now: u64, full: u64) -> u64 {
    let backlog = port.data_free.saturating_sub(now);
    let in_service = if backlog <= full { backlog } else { backlog % full };
    port.control_free.max(now + in_service)
}

/// The control queue of port `out` is full.
#[cold]
fn drop_control(out: u32, event: &Event, stats: &mut Stats) -> Fate {
    stats.totals.fabric.dropped_control += 1;
    stats.at_port(out, |count| count.dropped += 1);
    Fate::dropped(event, stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Address;

    fn port(data_free: u64, control_free: u64) -> Port {
        Port {
            data_free,
            control_free,
            bytes: 0,
            marked_until: 0,
            marked_from: 0,
            latency: 0,
            peer: 0,
            peer_address: Address::EVERYWHERE,
            backlogs: NO_BACKLOG,
            picos_per_byte: 1,
            flags: 0,
        }
    }

    #[test]
    fn control_waits_for_the_packet_in_service_and_for_control_and_for_no_other_data() {
        let (now, full) = (1_000_000, 4_000);
        let start = |data, control| start_of_control(&port(now + data, control), now, full) - now;
        assert_eq!(start(0, 0), 0);
        // A packet of which 1,500 bytes are left, alone and with three behind it.
        assert_eq!(start(1_500, 0), 1_500);
        assert_eq!(start(1_500 + 3 * 4_000, 0), 1_500);
        assert_eq!(start(4_000, 0), 4_000, "a packet that has just begun");
        assert_eq!(start(1_500, now + 2_000), 2_000, "behind other control");
    }
}
