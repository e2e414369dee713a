//! Output ports of hosts and switches in one flat array, and what both port models do in the same way: marking,
//! trimming, dropping.

use serde::{Deserialize, Serialize};
use std::ops::{Index, IndexMut};

use openmrc_fabric::{End, Node};
use openmrc_scenario::run::{EcnMarking, NetworkConfig, SlowQueues, SwitchConfig};
use prefetch_index::prefetch_index;

use super::layout::{Layout, UNCONNECTED};
use crate::clock::Clock;
use crate::event::{Event, flag};
use crate::groups::{Address, Groups};
use crate::hash::chance;
use crate::stats::Stats;

/// Properties and condition of a port.
pub(crate) mod port_flag {
    /// Down: nothing gets through.
    pub const DOWN: u8 = 1;
    /// Marks packets.
    pub const ECN: u8 = 2;
    /// Leads to a host.
    pub const LAST_HOP: u8 = 4;
    /// Loses some packets.
    pub const LOSSY: u8 = 8;
    /// Belongs to a host.
    pub const HOST: u8 = 16;
}

/// An output port, in a cache line of its own.
///
/// The times describe the queues of the computed port model, see [`Computed`](super::computed::Computed). The queued
/// model only keeps `data_free` up to date.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[repr(align(64))]
pub(crate) struct Port {
    /// When everything accepted will have left.
    pub data_free: u64,
    /// When all control packets will have left.
    pub control_free: u64,
    /// Bytes accepted, where departures are computed; else bytes put on the cable.
    pub bytes: u64,
    /// A packet that arrives here later than `marked_from` and by `marked_until` has left, at the other end of the
    /// cable, a queue that may have been long enough to mark it.
    pub marked_until: u64,
    pub marked_from: u64,
    /// From the last bit leaving to the packet being in the next node's hands, picoseconds.
    pub latency: u32,
    /// The port at the other end of the cable, or [`UNCONNECTED`].
    pub peer: u32,
    /// Where events at the node there go.
    pub peer_address: Address,
    /// Index of the computed model's history of the queue at the other end of the cable, or [`NO_BACKLOG`].
    pub backlogs: u32,
    /// Picoseconds that a byte takes.
    pub picos_per_byte: u16,
    /// See [`port_flag`].
    pub flags: u8,
}

/// The queue at the other end of the cable has never been long enough to mark.
pub(crate) const NO_BACKLOG: u32 = u32::MAX;

impl Port {
    /// Whether nothing gets through.
    #[inline(always)]
    pub fn is_down(&self) -> bool {
        self.flags & port_flag::DOWN != 0
    }

    /// Whether it leads to a host.
    #[inline(always)]
    pub fn is_last_hop(&self) -> bool {
        self.flags & port_flag::LAST_HOP != 0
    }

    /// Whether it belongs to a host.
    #[inline(always)]
    pub fn is_host(&self) -> bool {
        self.flags & port_flag::HOST != 0
    }
}

/// Bytes of a port here.
pub(super) const BYTES_PER_PORT: usize = size_of::<Port>();

/// Thresholds of a switch port's data queue, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most data that may wait.
    pub data: u64,
    /// Data waiting behind a packet from which on the packet may be marked.
    pub marks: u64,
}

/// More than any queue holds, and still a time when multiplied by the time of a byte.
const NEVER: u64 = 1 << 46;

/// What became of a packet at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Fate {
    /// It waits in a queue or is on a cable.
    Forwarded,
    /// It is lost. Nothing refers to it any more.
    Dropped,
}

impl Fate {
    /// The packet is lost. Its bytes are counted.
    #[cold]
    pub fn dropped(event: &Event, stats: &mut Stats) -> Fate {
        stats.totals.fabric.dropped_bytes += u64::from(event.bytes);
        Fate::Dropped
    }
}

/// Settings that all ports share.
pub(crate) struct PortSettings {
    pub switch: SwitchConfig,
    /// Of switch ports inside the fabric, and of those that lead to hosts.
    limits: [Limits; 2],
    /// Bytes of a full data packet on a cable.
    pub full_packet_bytes: u64,
    /// Most picoseconds that a byte of a queue's limit stands for. A slower port has shorter queues.
    queue_picos_per_byte: u64,
    /// Bytes of a trimmed packet on a cable.
    trimmed_bytes: u16,
    seed: u64,
}

impl PortSettings {
    /// Thresholds of a switch port.
    #[inline(always)]
    pub fn limits(&self, port: &Port) -> &Limits {
        &self.limits[usize::from(port.is_last_hop())]
    }

    /// Picoseconds that a byte of a port's limits and marking thresholds stands for.
    #[inline(always)]
    pub fn picos_per_limit_byte(&self, port: &Port) -> u64 {
        u64::from(port.picos_per_byte).min(self.queue_picos_per_byte)
    }

    /// Bytes at a port's limits and marking thresholds, of the bytes in its queue.
    #[inline(always)]
    pub fn limit_bytes(&self, port: &Port, queued: u64) -> u64 {
        let (own, limit) = (u64::from(port.picos_per_byte), self.picos_per_limit_byte(port));
        if own == limit { queued } else { queued * own / limit }
    }
}

/// All ports, by number. A partition counts and queues only at its own ports; it knows the properties and the condition
/// of all.
pub(crate) struct Ports {
    pub list: Vec<Port>,
    pub settings: PortSettings,
    planes: u32,
}

impl Index<u32> for Ports {
    type Output = Port;
    #[inline(always)]
    fn index(&self, port: u32) -> &Port {
        &self.list[port as usize]
    }
}

impl IndexMut<u32> for Ports {
    #[inline(always)]
    fn index_mut(&mut self, port: u32) -> &mut Port {
        &mut self.list[port as usize]
    }
}

impl Ports {
    /// The ports of a network at rest.
    pub fn new(config: &NetworkConfig, layout: &Layout, groups: &Groups, partition: u32) -> Self {
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let mut ports = Ports {
            list: Vec::with_capacity(layout.ports()),
            settings: PortSettings {
                limits: limits(&switch),
                queue_picos_per_byte: match switch.slow_queues {
                    SlowQueues::Configured => u64::MAX,
                    SlowQueues::Scaled => config.picos_per_byte(),
                },
                switch,
                full_packet_bytes: u64::from(config.full_packet_bytes()),
                trimmed_bytes: config.trimmed_bytes() as u16,
                seed: config.seed,
            },
            planes: layout.planes,
        };
        let fabric = &layout.fabric;
        let hosts = layout.hosts();
        let mut add = |layer: u8, flags: u8, peer: Option<End>| {
            let latency = config.hop_latency(layer, flags & port_flag::LAST_HOP != 0);
            let address = |node| match node {
                Node::Host(host) => groups.of_host(partition, host),
                Node::Switch(switch) => groups.of_switch(partition, fabric.switch_number(switch)),
            };
            ports.list.push(Port {
                data_free: 0,
                control_free: 0,
                bytes: 0,
                marked_until: 0,
                marked_from: 0,
                latency: u32::try_from(latency.0).unwrap_or(u32::MAX),
                peer: peer.map_or(UNCONNECTED, |end| layout.port_number(end)),
                peer_address: peer.map_or(Address::EVERYWHERE, |end| address(end.node)),
                backlogs: NO_BACKLOG,
                picos_per_byte: config.picos_per_byte() as u16,
                flags: flags | if peer.is_none() { port_flag::DOWN } else { 0 },
            });
        };
        for host in 0..hosts {
            for plane in 0..layout.planes {
                add(0, port_flag::HOST, Some(fabric.host_peer(host, plane)));
            }
        }
        for node in fabric.all_switches() {
            let down = fabric.downlinks(node.tier);
            for port in 0..down + fabric.uplinks(node.tier) {
                let layer = if port < down { node.tier } else { node.tier + 1 };
                let last_hop = port < down && node.tier == 0;
                let marks = switch.ecn.is_some_and(|ecn| ecn.on_last_hop || !last_hop);
                let flags =
                    if last_hop { port_flag::LAST_HOP } else { 0 } | if marks { port_flag::ECN } else { 0 };
                add(layer, flags, fabric.peer(node, port));
            }
        }
        ports
    }

    /// The ports of a host, by plane.
    #[inline]
    pub fn of_host(&self, host: u32) -> &[Port] {
        let first = (host * self.planes) as usize;
        &self.list[first..first + self.planes as usize]
    }

    /// The host that a port belongs to, if it is a host's.
    #[inline]
    pub fn host_of(&self, port: u32) -> Option<u32> {
        self[port].is_host().then(|| port / self.planes)
    }

    /// Where events at a port's own node go.
    pub fn address_of(&self, port: u32) -> Address {
        self[self[port].peer].peer_address
    }

    /// Loads `count` ports from `first` into the cache.
    #[inline(always)]
    pub fn prefetch(&self, first: u32, count: u32) {
        for port in first..first + count {
            prefetch_index(&self.list, port as usize);
        }
    }

    /// Sends a packet over the cable of port `out`. Its time is that of its arrival.
    #[inline(always)]
    pub fn send_over(&self, out: u32, mut event: Event, clock: &mut Clock) {
        let port = &self[out];
        event.at = port.peer;
        clock.push(event, port.peer_address);
    }

    /// Draws whether port `out` marks a packet that leaves at `leaves` with `behind` bytes behind it, and counts the
    /// mark.
    #[inline]
    pub fn marks(&self, ecn: &EcnMarking, out: u32, leaves: u64, behind: u64, stats: &mut Stats) -> bool {
        let probability = ecn.probability_at(behind);
        let marked = probability > 0.0 && chance(self.settings.seed, out, leaves) < probability;
        if marked {
            stats.totals.fabric.marked += 1;
            stats.at_port(out, |count| count.marked += 1);
        }
        marked
    }

    /// Cuts a packet's payload off at port `out`. The rest is a control packet.
    #[inline(never)]
    pub fn trim(&self, out: u32, mut event: Event, stats: &mut Stats) -> Event {
        stats.at_port(out, |count| count.trimmed += 1);
        event.flags = (event.flags & !flag::DATA) | flag::CONTROL;
        if self[out].is_last_hop() {
            event.flags |= flag::TRIMMED_LAST_HOP;
            stats.totals.fabric.trimmed_last_hop += 1;
        } else {
            event.flags |= flag::TRIMMED;
            stats.totals.fabric.trimmed += 1;
        }
        let bytes = self.settings.trimmed_bytes;
        stats.totals.fabric.cut_bytes += u64::from(event.bytes - bytes);
        event.bytes = bytes;
        event
    }
}

fn limits(switch: &SwitchConfig) -> [Limits; 2] {
    let marks = |last_hop: bool| {
        let ecn = switch.ecn.filter(|ecn| ecn.on_last_hop || !last_hop);
        ecn.map_or(NEVER, |ecn| ecn.min_bytes.min(NEVER))
    };
    [
        Limits { data: switch.data_bytes.min(NEVER), marks: marks(false) },
        Limits { data: switch.last_hop_data_bytes.min(NEVER), marks: marks(true) },
    ]
}
