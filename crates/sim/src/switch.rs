//! What a packet meets at a switch: the choice of a port, its queues, ECN, trimming (spec: congestion, "Switch settings").
//!
//! A port's queues are two points in time: when all data accepted will have left, and when all control will have. So a packet's
//! departure is known when it arrives, and it costs one event a hop. One thing is not exact by that: a control packet does not hold
//! up data that was accepted before it. Data accepted after it pays, so that the port's rate holds; a packet leaves early by at most what
//! the control packets take that came while it waited, which is
//! little where these are SACKs and up to half of its wait where an incast is trimmed. ECN is exact: a queue that is long enough to mark
//! is written down at every packet it accepts, and a packet that has left it looks, at the next node, what was behind it then.
//! Where queues are shorter, which is nearly always and everywhere, that costs nothing.

use crate::config::{EcnMarking, Overflow, Routing};
use crate::event::{Event, flag};
use crate::hash::{chance, mix};
use crate::network::{Backlog, NO_BACKLOG, Port, SwitchInfo, port_flag};
use crate::world::World;

impl World {
    /// All that comes to a switch in this slot, where queues are points in time.
    #[inline(always)]
    pub(crate) fn forward(&mut self, number: u32) {
        let info = self.net.switches[number as usize];
        let turn = self.clock.calendar.take_turn();
        let page = self.clock.calendar.lend_page();
        let events = &page[turn];
        self.stats.totals.events += events.len() as u64;
        if let Some(last) = events.last() {
            self.clock.end = self.clock.end.max(last.time);
        }
        for event in events {
            self.clock.now = event.time;
            if let Some(flags) = self.got_over(event) {
                let out = self.choose_port(&info, number, event);
                self.enqueue(out, event, flags);
            }
        }
        self.clock.calendar.return_page(page);
    }

    /// A packet has come in on port `event.at` of a node.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, event: Event, node: u32) {
        let Some(flags) = self.got_over(&event) else { return };
        let Some(number) = node.checked_sub(self.nics.len() as u32) else {
            self.receive(Event { flags, ..event });
            return;
        };
        let info = self.net.switches[number as usize];
        let out = self.choose_port(&info, number, &event);
        if self.queues.is_some() {
            self.enqueue_really(out, event.at, Event { flags, ..event });
        } else {
            self.enqueue(out, &event, flags);
        }
    }

    /// Whether a packet got over the cable to port `event.at`: its flags then, as the queue before that has left them.
    #[inline(always)]
    fn got_over(&mut self, event: &Event) -> Option<u8> {
        if self.net.impaired && !self.survives(*event) {
            self.drop_packet(*event);
            return None;
        }
        let port = &self.net.ports[event.at as usize];
        if event.time <= port.marked_until && event.time > port.marked_from {
            return Some(self.leave_backlog(event));
        }
        Some(event.flags)
    }

    /// A packet has left a queue, of which it has come out at `event.at`, when that was long enough to mark or shortly after: it is
    /// marked by what had been accepted behind it by then, all of which is known now.
    #[inline(never)]
    fn leave_backlog(&mut self, event: &Event) -> u8 {
        let net = &mut self.net;
        let flags = event.flags;
        let Some(ecn) = net.switch.ecn.filter(|_| flags & flag::DATA != 0) else { return flags };
        let out = net.ports[event.at as usize].peer;
        let port = &net.ports[out as usize];
        let (per_byte, latency) = (u64::from(port.picos_per_byte), u64::from(port.latency));
        let left = event.time - latency;
        let leaves = left.saturating_sub(u64::from(event.bytes) * per_byte);
        let Some(backlogs) = net.backlogs.get_mut(port.backlogs as usize) else { return flags };
        // Packets leave in order, so none will ask about what was before this one.
        while backlogs.get(1).is_some_and(|next| next.since < leaves) {
            backlogs.pop_front();
        }
        let Some(&backlog) = backlogs.front() else { return flags };
        net.ports[event.at as usize].marked_from = backlog.since + latency;
        if flags & flag::CE != 0 || backlog.since >= leaves || backlog.free < left {
            return flags;
        }
        let behind = (backlog.free - left) / per_byte;
        if self.marks(&ecn, out, leaves, behind) { flags | flag::CE } else { flags }
    }

    /// Whether port `out` marks a packet that leaves at `leaves` with so many bytes behind it. What is marked is counted.
    #[inline]
    pub(crate) fn marks(&mut self, ecn: &EcnMarking, out: u32, leaves: u64, behind: u64) -> bool {
        let probability = ecn.probability_at(behind);
        let marked = probability > 0.0 && chance(self.config.seed, out, leaves) < probability;
        if marked {
            self.stats.totals.fabric.marked += 1;
            self.stats.at_port(out, |count| count.marked += 1);
        }
        marked
    }

    /// With what port `out` has accepted now, its queue is long enough to mark.
    #[inline(never)]
    fn enter_backlog(&mut self, out: u32, now: u64, marks: u64) {
        let port = &mut self.net.ports[out as usize];
        if port.backlogs == NO_BACKLOG {
            port.backlogs = self.net.backlogs.len() as u32;
            self.net.backlogs.push(Default::default());
        }
        let (from, until) = (now + u64::from(port.latency), port.data_free - marks + u64::from(port.latency));
        let (free, peer) = (port.data_free, port.peer);
        let backlogs = &mut self.net.backlogs[port.backlogs as usize];
        let Port { marked_until, marked_from, .. } = &mut self.net.ports[peer as usize];
        // Whoever will ask about an earlier time when the queue was long has done so.
        if *marked_until + self.clock.lookahead() < now {
            backlogs.clear();
        }
        *marked_until = until;
        if backlogs.is_empty() {
            *marked_from = from;
        }
        backlogs.push_back(Backlog { since: now, free });
    }

    /// The port by which a switch sends a packet on.
    #[inline(always)]
    fn choose_port(&self, info: &SwitchInfo, switch: u32, event: &Event) -> u32 {
        let below = event.dst.wrapping_sub(info.first_host);
        if below < info.hosts {
            let first = info.child(below) * u32::from(info.parallel);
            let lane = match info.parallel {
                1 => 0,
                // The mirror image of the way up: of the links to a block, the one with the same place.
                n if self.config.routing == Routing::SourceRouted => {
                    (event.at - info.first_port) % u32::from(n)
                }
                n => return self.choose_among(info.first_port + first, u32::from(n), switch, event),
            };
            return info.first_port + first + lane;
        }
        let first = info.first_port + u32::from(info.downlinks);
        let count = u32::from(info.uplinks);
        if self.config.routing == Routing::SourceRouted {
            let uplink = event.ev >> info.ev_shift & ((1 << info.ev_bits) - 1);
            return first + uplink.min(count - 1);
        }
        self.choose_among(first, count, switch, event)
    }

    /// One of `count` equally good ports.
    #[inline(never)]
    fn choose_among(&self, first: u32, count: u32, switch: u32, event: &Event) -> u32 {
        let flow = u64::from(event.connection) << 32 | u64::from(event.ev);
        // Adaptive routing does not care for flows: among equals each packet takes another.
        let flow = if self.config.routing == Routing::Adaptive { event.time } else { flow };
        let salt = mix(self.config.seed ^ u64::from(switch) ^ u64::from(event.dst) << 32);
        let hash = mix(flow ^ salt);
        let named = (((hash >> 32) * u64::from(count)) >> 32) as u32;
        let in_turn = (0..count).map(|i| first + (named + i) % count);
        let mut usable = in_turn.filter(|&port| !self.avoided(port, event.dst));
        let chosen = match self.config.routing {
            Routing::Adaptive => usable
                .filter(|&port| self.net.ports[port as usize].flags & port_flag::DOWN == 0)
                .min_by_key(|&port| self.load(port, event.time)),
            Routing::Ecmp | Routing::SourceRouted => usable.next(),
        };
        chosen.unwrap_or(first + named)
    }

    /// How much waits at a port, in grades of four full packets: what adaptive routing compares. Switches compare grades, not bytes; to the
    /// byte a flow at line rate finds the port that took its last packet the first to be free again, time after time, and never leaves it.
    #[inline]
    fn load(&self, port: u32, now: u64) -> u64 {
        let Port { data_free, picos_per_byte, .. } = self.net.ports[port as usize];
        let per_byte = u64::from(picos_per_byte);
        let bytes = match &self.queues {
            Some(queues) => queues.backlog(port, now, per_byte),
            None => data_free.saturating_sub(now) / per_byte,
        };
        bytes / (4 * self.full_packet_bytes)
    }

    /// The network loses a packet.
    #[cold]
    pub(crate) fn drop_packet(&mut self, event: Event) {
        self.stats.totals.fabric.dropped_bytes += u64::from(event.bytes);
        self.slab.drop_packet(event.packet);
    }

    /// Cuts a packet's payload off at port `out`.
    #[inline(never)]
    pub(crate) fn trim(&mut self, out: u32, mut event: Event, last_hop: bool) -> Event {
        self.stats.at_port(out, |count| count.trimmed += 1);
        event.flags = (event.flags & !flag::DATA) | flag::CONTROL;
        if last_hop {
            event.flags |= flag::TRIMMED_LAST_HOP;
            self.stats.totals.fabric.trimmed_last_hop += 1;
        } else {
            event.flags |= flag::TRIMMED;
            self.stats.totals.fabric.trimmed += 1;
        }
        self.stats.totals.fabric.cut_bytes += u64::from(event.bytes - self.trimmed_bytes);
        event.bytes = self.trimmed_bytes;
        event
    }

    /// Accepts a packet at an output port of a switch, now; or trims it, or drops it.
    #[inline(always)]
    fn enqueue(&mut self, out: u32, event: &Event, flags: u8) {
        let now = event.time;
        let port = &mut self.net.ports[out as usize];
        if port.flags & port_flag::DOWN != 0 {
            self.stats.totals.fabric.dropped_down += 1;
            self.drop_packet(*event);
            return;
        }
        if flags & flag::CONTROL != 0 {
            self.enqueue_control(out, event, flags);
            return;
        }
        let per_byte = u64::from(port.picos_per_byte);
        let limits = &self.net.limits[usize::from(port.flags & port_flag::LAST_HOP != 0)];
        let backlog = port.data_free.saturating_sub(now);
        if backlog > limits.data * per_byte {
            self.overflow(out, Event { flags, ..*event });
            return;
        }
        if backlog > self.stats.totals.fabric.longest_queue * per_byte {
            self.stats.totals.fabric.longest_queue = backlog / per_byte;
        }
        let queue = backlog + u64::from(event.bytes) * per_byte;
        let leaves = now + queue;
        port.data_free = leaves;
        port.bytes += u64::from(event.bytes);
        let (peer, group, latency) = (port.peer, port.peer_group, u64::from(port.latency));
        let marks = limits.marks * per_byte;
        if queue > marks {
            self.enter_backlog(out, now, marks);
        }
        self.clock.calendar.push_on(event, leaves + latency, peer, flags, group);
    }

    /// There is no room at port `out` for a packet that is not control.
    #[inline(never)]
    fn overflow(&mut self, out: u32, event: Event) {
        if self.net.switch.overflow == Overflow::Drop || event.flags & flag::DATA == 0 {
            self.stats.totals.fabric.dropped_data += 1;
            self.drop_packet(event);
            self.dropped_at(out);
            return;
        }
        let last_hop = self.net.ports[out as usize].flags & port_flag::LAST_HOP != 0;
        let event = self.trim(out, event, last_hop);
        self.enqueue_control(out, &event, event.flags);
    }

    /// Accepts a control packet at an output port of a switch, now; or drops it.
    #[inline(never)]
    fn enqueue_control(&mut self, out: u32, event: &Event, flags: u8) {
        let now = event.time;
        let port = &mut self.net.ports[out as usize];
        let per_byte = u64::from(port.picos_per_byte);
        let service = u64::from(event.bytes) * per_byte;
        let in_service = in_service(port.data_free.saturating_sub(now), self.full_packet_bytes * per_byte);
        let start = port.control_free.max(now + in_service);
        if start - now > self.net.switch.control_bytes * per_byte {
            self.stats.totals.fabric.dropped_control += 1;
            self.drop_packet(*event);
            self.dropped_at(out);
            return;
        }
        port.control_free = start + service;
        port.data_free = port.data_free.max(start) + service;
        port.bytes += u64::from(event.bytes);
        let (peer, group, queue) = (port.peer, port.peer_group, port.data_free - now);
        let arrives = start + service + u64::from(port.latency);
        let marks = self.net.limits[usize::from(port.flags & port_flag::LAST_HOP != 0)].marks * per_byte;
        if queue > marks {
            self.enter_backlog(out, now, marks);
        }
        self.clock.calendar.push_on(event, arrives, peer, flags, group);
    }
}

impl World {
    #[cold]
    pub(crate) fn dropped_at(&mut self, port: u32) {
        self.stats.at_port(port, |count| count.dropped += 1);
    }
}

/// How much longer the packet now in service takes, where `backlog` is what packets of `full` still take in all: they end
/// on a grid that begins at the last one's end.
#[inline]
fn in_service(backlog: u64, full: u64) -> u64 {
    if backlog <= full { backlog } else { backlog % full }
}
