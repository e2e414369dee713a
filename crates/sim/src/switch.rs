//! What a packet meets at a switch: the choice of a port, its queues, ECN, trimming (spec: congestion, "Switch settings").
//!
//! A port's queues are two points in time: when all data accepted will have left, and when all control will have. So a packet's
//! departure is known when it arrives, and it costs one event a hop. One thing is not exact by that: a control packet does not hold
//! up data that was accepted before it. Data accepted after it pays, so that the port's rate holds; a packet leaves early by at most what
//! the control packets take that came while it waited, some hundredths of its wait. ECN is exact: a packet that waits is kept in
//! mind until something comes to its queue after it has left, or until it reaches the next node; then all that was behind it
//! as it left is known.

use crate::config::{Overflow, Routing, Scheduling};
use crate::endpoints::{chance, mix};
use crate::event::{Event, flag};
use crate::network::{Port, SwitchInfo, Waiting, port_flag};
use crate::world::{Fate, World};

impl World {
    /// A packet has come in on port `event.at` of a node.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, mut event: Event, node: u32) {
        if self.net.impaired && !self.survives(event) {
            self.drop_packet(event);
            return;
        }
        if event.flags & flag::WAITED != 0 {
            event.flags &= !flag::WAITED;
            if self.slab.fate(event.packet) == Fate::Open {
                // Nothing has come to that queue since this packet left it.
                self.dequeue(self.net.ports[event.at as usize].peer, event.time);
            }
            if self.slab.fate(event.packet) == Fate::Marked {
                event.flags |= flag::CE;
            }
        }
        let Some(number) = node.checked_sub(self.nics.len() as u32) else {
            self.receive(event);
            return;
        };
        let info = &self.net.switches[number as usize];
        let out = self.choose_port(info, number, event);
        self.enqueue(out, event);
    }

    /// Decides on the packets that have left port `out` by `time`: each by what had been accepted behind it, all of which is
    /// known, since whatever comes to the port comes through here first.
    #[inline]
    fn dequeue(&mut self, out: u32, time: u64) {
        let World { config, net, slab, totals, recorder, .. } = self;
        let Some(ecn) = net.switch.ecn else { return };
        let accepted = net.ports[out as usize].bytes as u32;
        let queue = net.waiting_at(out);
        while let Some(&first) = queue.front() {
            if first.leaves > time {
                net.ports[out as usize].first_leaves = first.leaves;
                return;
            }
            let behind = u64::from(accepted.wrapping_sub(first.accepted));
            let marked = behind >= ecn.min_bytes
                && (behind >= ecn.max_bytes || {
                    let share = (behind - ecn.min_bytes) as f64 / (ecn.max_bytes - ecn.min_bytes) as f64;
                    chance(config.seed, out, first.leaves) < share * ecn.probability
                });
            totals.marked += u64::from(marked);
            if marked && let Some(recorder) = recorder {
                recorder.at_port(out, |count| count.marked += 1);
            }
            slab.set_fate(first.packet, if marked { Fate::Marked } else { Fate::Unmarked });
            queue.pop_front();
        }
        net.ports[out as usize].first_leaves = u64::MAX;
    }

    /// The port by which a switch sends a packet on.
    #[inline(always)]
    fn choose_port(&self, info: &SwitchInfo, switch: u32, event: Event) -> u32 {
        let below = event.dst.wrapping_sub(info.first_host);
        if below < info.hosts {
            let first = below / info.hosts_per_child * u32::from(info.parallel);
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
    fn choose_among(&self, first: u32, count: u32, switch: u32, event: Event) -> u32 {
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

    /// How much waits at a port: what adaptive routing compares.
    #[inline]
    fn load(&self, port: u32, now: u64) -> u64 {
        let Port { data_free, picos_per_byte, .. } = self.net.ports[port as usize];
        match &self.queues {
            Some(queues) => queues.backlog(port, now, u64::from(picos_per_byte)),
            None => data_free.max(now),
        }
    }

    /// The network loses a packet.
    #[cold]
    pub(crate) fn drop_packet(&mut self, event: Event) {
        self.totals.dropped_bytes += u64::from(event.bytes);
        self.slab.drop_packet(event.packet);
    }

    /// Cuts a packet's payload off at port `out`.
    #[inline(never)]
    pub(crate) fn trim(&mut self, out: u32, mut event: Event, last_hop: bool) -> Event {
        if let Some(recorder) = &mut self.recorder {
            recorder.at_port(out, |count| count.trimmed += 1);
        }
        event.flags = (event.flags & !flag::DATA) | flag::CONTROL;
        if last_hop {
            event.flags |= flag::TRIMMED_LAST_HOP;
            self.totals.trimmed_last_hop += 1;
        } else {
            event.flags |= flag::TRIMMED;
            self.totals.trimmed += 1;
        }
        self.totals.cut_bytes += u64::from(event.bytes - self.trimmed_bytes);
        event.bytes = self.trimmed_bytes;
        event
    }

    /// Accepts a packet at an output port of a switch, now; or trims it, or drops it.
    #[inline(always)]
    pub(crate) fn enqueue(&mut self, out: u32, mut event: Event) {
        if self.queues.is_some() {
            self.enqueue_really(out, event.at, event);
            return;
        }
        let now = event.time;
        if self.net.ports[out as usize].first_leaves <= now {
            self.dequeue(out, now);
        }
        let switch = &self.net.switch;
        let port = &mut self.net.ports[out as usize];
        if port.flags & port_flag::DOWN != 0 {
            self.totals.dropped_down += 1;
            self.drop_packet(event);
            return;
        }
        let per_byte = u64::from(port.picos_per_byte);
        if event.flags & flag::CONTROL == 0 {
            let backlog = port.data_free.saturating_sub(now);
            let last_hop = port.flags & port_flag::LAST_HOP != 0;
            let room = if last_hop { switch.last_hop_data_bytes } else { switch.data_bytes };
            if backlog <= room * per_byte {
                if backlog > self.totals.longest_queue * per_byte {
                    self.totals.longest_queue = backlog / per_byte;
                }
                let leaves = now + backlog + u64::from(event.bytes) * per_byte;
                port.data_free = leaves;
                port.bytes += u64::from(event.bytes);
                let marks = port.flags & port_flag::ECN != 0;
                if marks && backlog > 0 && event.flags & (flag::DATA | flag::CE) == flag::DATA {
                    event.flags |= flag::WAITED;
                    self.slab.set_fate(event.packet, Fate::Open);
                    let wait =
                        Waiting { leaves: now + backlog, accepted: port.bytes as u32, packet: event.packet };
                    port.first_leaves = port.first_leaves.min(wait.leaves);
                    event.time = leaves + u64::from(port.latency);
                    self.net.waiting_at(out).push_back(wait);
                } else {
                    event.time = leaves + u64::from(port.latency);
                }
                self.cross(out, event);
                return;
            }
            if switch.overflow == Overflow::Drop || event.flags & flag::DATA == 0 {
                self.totals.dropped_data += 1;
                self.drop_packet(event);
                self.dropped_at(out);
                return;
            }
            event = self.trim(out, event, last_hop);
        }
        let switch = &self.net.switch;
        let port = &mut self.net.ports[out as usize];
        let service = u64::from(event.bytes) * per_byte;
        let start = port
            .control_free
            .max(now + in_service(port.data_free.saturating_sub(now), self.full_packet_bytes * per_byte));
        if start - now > switch.control_bytes * per_byte {
            self.totals.dropped_control += 1;
            self.drop_packet(event);
            self.dropped_at(out);
            return;
        }
        let data_waits = port.data_free > start;
        port.data_free = port.data_free.max(start) + service;
        port.control_free = start
            + match switch.scheduling {
                Scheduling::Weighted(share) if data_waits => service * 256 / u64::from(share.max(1)),
                _ => service,
            };
        port.bytes += u64::from(event.bytes);
        event.time = start + service + u64::from(port.latency);
        self.cross(out, event);
    }
}

impl World {
    #[cold]
    pub(crate) fn dropped_at(&mut self, port: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.at_port(port, |count| count.dropped += 1);
        }
    }
}

/// How much longer the packet now in service takes, where `backlog` is what packets of `full` still take in all: they end
/// on a grid that begins at the last one's end.
#[inline]
fn in_service(backlog: u64, full: u64) -> u64 {
    if backlog <= full { backlog } else { backlog % full }
}
