//! The fabric as the simulator walks it: ports in one flat array, and what is at the other end of each.
//!
//! Ports are numbered hosts first (host x planes + plane), then switch by switch, downlinks before uplinks. A port is an
//! output; the cable's other direction is the port that [`Network::peer`] names.

use std::collections::VecDeque;

use prefetch_index::prefetch_index;

use openmrc_fabric::{End, Fabric, Node};

use crate::config::{NetworkConfig, SwitchConfig};
use crate::groups::NodeGroups;

/// Nothing is connected here.
pub(crate) const UNCONNECTED: u32 = u32::MAX;

/// Properties and condition of a port.
pub(crate) mod port_flag {
    /// Out of order: nothing gets through.
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
/// What has been accepted leaves at a time that is known at once, so a queue is no list but two points in time.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Port {
    /// When everything accepted will have left.
    pub data_free: u64,
    /// When all control packets will have left.
    pub control_free: u64,
    /// Bytes accepted.
    pub bytes: u64,
    /// What comes in here by this time, at the other end of the cable, may have left a queue long enough to mark it.
    pub marked_until: u64,
    /// And what comes in by this time has left it before.
    pub marked_from: u64,
    /// From the last bit leaving to the packet in the next node's hands, picoseconds.
    pub latency: u32,
    /// The port at the other end of the cable, or [`UNCONNECTED`].
    pub peer: u32,
    /// The calendar's group of the node there.
    pub peer_group: u32,
    /// Where [`Network::backlogs`] has this port's, or [`NO_BACKLOG`].
    pub backlogs: u32,
    /// Picoseconds a byte takes.
    pub picos_per_byte: u16,
    /// See [`port_flag`].
    pub flags: u8,
}

/// The port's queue has never been long enough to mark.
pub(crate) const NO_BACKLOG: u32 = u32::MAX;

/// A queue that was long enough to mark: from a packet's acceptance on, until the next is accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backlog {
    /// When the packet was accepted.
    pub since: u64,
    /// When all that had been accepted by then will have left.
    pub free: u64,
}

/// What a port's queue takes, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Data that may wait.
    pub data: u64,
    /// Data that waits behind a packet from which that packet may be marked.
    pub marks: u64,
}

/// More than any queue holds, and still a time when multiplied by what a byte takes.
const NEVER: u64 = 1 << 46;

/// What a switch needs to know to forward by arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchInfo {
    /// First host below.
    pub first_host: u32,
    /// Places for hosts below.
    pub hosts: u32,
    /// 2^64 over the places for hosts below one downlink, or bundle of parallel ones.
    per_child: u64,
    /// Its first port.
    pub first_port: u32,
    /// Downlinks.
    pub downlinks: u16,
    /// Uplinks.
    pub uplinks: u16,
    /// Links in a bundle.
    pub parallel: u16,
    /// Where this tier's uplink is in an entropy value.
    pub ev_shift: u8,
    /// Width of that field.
    pub ev_bits: u8,
}

impl SwitchInfo {
    /// Which of its downlinks, or bundles of parallel ones, leads to the host whose number among those below it is `below`.
    #[inline(always)]
    pub fn child(&self, below: u32) -> u32 {
        (((u128::from(below) + 1) * u128::from(self.per_child)) >> 64) as u32
    }
}

/// Multiplied with the number after `n` it gives 2^64 times `n / divisor`, and less than 2^64 more: exact for any two numbers of 32
/// bits, as the error is below one part in `2^32 * divisor`.
const fn inverse_of(divisor: u32) -> u64 {
    u64::MAX / divisor as u64
}

/// Ports and switches of a fabric.
pub(crate) struct Network {
    pub fabric: Fabric,
    pub ports: Vec<Port>,
    /// By port of a switch: the switch, as a node.
    owners: Vec<u32>,
    pub switches: Vec<SwitchInfo>,
    /// How long queues have been that could mark, for packets that have left them and not arrived yet.
    pub backlogs: Vec<VecDeque<Backlog>>,
    pub planes: u32,
    host_ports: u32,
    pub switch: SwitchConfig,
    /// Of a switch's ports: of those inside the fabric, and of those that lead to hosts.
    pub limits: [Limits; 2],
    /// Some port is, or has been, out of order or lossy: arrivals have to look.
    pub impaired: bool,
}

impl Network {
    /// Lays the fabric out.
    pub fn new(config: &NetworkConfig) -> (Self, NodeGroups) {
        let fabric = config.fabric;
        let planes = fabric.shape().planes;
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let layout = openmrc_fabric::EvLayout::new(&fabric).ok();
        let switches = switch_infos(&fabric, layout.map(|l| l.widths));
        let mut network = Network {
            fabric,
            ports: Vec::new(),
            owners: Vec::new(),
            switches,
            backlogs: Vec::new(),
            planes,
            host_ports: fabric.shape().hosts * planes,
            limits: limits(&switch),
            switch,
            impaired: false,
        };
        let count = network
            .switches
            .last()
            .map_or(0, |s| s.first_port as usize + usize::from(s.downlinks + s.uplinks));
        network.ports.reserve_exact(count);
        network.owners.reserve_exact(count - network.host_ports as usize);
        let groups = network.node_groups(config);
        for host in 0..fabric.shape().hosts {
            for plane in 0..planes {
                let peer = fabric.host_peer(host, plane);
                network.add_port(config, &groups, 0, port_flag::HOST, Some(peer));
            }
        }
        for switch in fabric.all_switches() {
            let down = fabric.downlinks(switch.tier);
            let node = fabric.shape().hosts + fabric.switch_number(switch);
            for port in 0..down + fabric.uplinks(switch.tier) {
                let layer = if port < down { switch.tier } else { switch.tier + 1 };
                let last_hop = port < down && switch.tier == 0;
                let marks = network.switch.ecn.is_some_and(|ecn| ecn.on_last_hop || !last_hop);
                let flags =
                    if last_hop { port_flag::LAST_HOP } else { 0 } | if marks { port_flag::ECN } else { 0 };
                network.owners.push(node);
                network.add_port(config, &groups, layer, flags, fabric.peer(switch, port));
            }
        }
        (network, groups)
    }

    fn add_port(
        &mut self,
        config: &NetworkConfig,
        groups: &NodeGroups,
        layer: u8,
        flags: u8,
        peer: Option<End>,
    ) {
        let latency = config.hop_latency(layer, flags & port_flag::LAST_HOP != 0);
        self.ports.push(Port {
            data_free: 0,
            control_free: 0,
            bytes: 0,
            marked_until: 0,
            marked_from: 0,
            latency: u32::try_from(latency.0).unwrap_or(u32::MAX),
            peer: peer.map_or(UNCONNECTED, |end| self.port_number(end)),
            peer_group: peer.map_or(0, |end| self.group_of(groups, end.node)),
            backlogs: NO_BACKLOG,
            picos_per_byte: config.picos_per_byte() as u16,
            flags: flags | if peer.is_none() { port_flag::DOWN } else { 0 },
        });
    }

    fn node_groups(&self, config: &NetworkConfig) -> NodeGroups {
        let shape = self.fabric.shape();
        let packet = config.serialization(u64::from(config.full_packet_bytes())).0.max(1);
        let events_per_port = config.shortest_hop().0 / packet + 1;
        let ports = self.switches.iter().map(|s| u32::from(s.downlinks + s.uplinks));
        NodeGroups::new(shape.hosts, shape.planes, ports, events_per_port)
    }

    fn group_of(&self, groups: &NodeGroups, node: Node) -> u32 {
        match node {
            Node::Host(host) => groups.of_host(host),
            Node::Switch(switch) => {
                groups.of_switch(self.fabric.shape().hosts + self.fabric.switch_number(switch))
            }
        }
    }

    /// Loads `count` ports from `first`.
    #[inline(always)]
    pub fn prefetch_ports(&self, first: u32, count: u32) {
        for port in first..first + count {
            prefetch_index(&self.ports, port as usize);
        }
    }

    /// Ports of hosts: the first ones.
    #[inline]
    pub fn host_ports(&self) -> u32 {
        self.host_ports
    }

    /// The node that a port of a switch belongs to: the hosts' number and the switch's.
    #[inline]
    pub fn owner(&self, port: u32) -> u32 {
        self.owners[(port - self.host_ports()) as usize]
    }

    /// The number of a node's port among all ports.
    pub fn port_number(&self, end: End) -> u32 {
        match end.node {
            Node::Host(host) => host * self.planes + end.port,
            Node::Switch(switch) => {
                self.switches[self.fabric.switch_number(switch) as usize].first_port + end.port
            }
        }
    }

    /// The ports of a link: the lower end's, which sends up, and the upper end's.
    pub fn link_ports(&self, link: u32) -> [u32; 2] {
        match self.fabric.link(link) {
            Some(link) => {
                [self.fabric.lower_end(link), self.fabric.upper_end(link)].map(|end| self.port_number(end))
            }
            None => [UNCONNECTED; 2],
        }
    }

    /// First port of a host.
    #[inline]
    pub fn host_port(&self, host: u32, plane: u32) -> u32 {
        host * self.planes + plane
    }

    /// By port: (plane x layers + layer of its cable) x 2, and 1 more where it leads down.
    pub fn port_groups(&self) -> Vec<u8> {
        let layers = u32::from(self.fabric.tiers());
        let mut groups = Vec::with_capacity(self.ports.len());
        let host_ports = self.fabric.shape().hosts * self.planes;
        groups.extend((0..host_ports).map(|port| (port % self.planes * layers * 2) as u8));
        for switch in self.fabric.all_switches() {
            let down = self.fabric.downlinks(switch.tier);
            for port in 0..down + self.fabric.uplinks(switch.tier) {
                let (layer, downwards) =
                    if port < down { (u32::from(switch.tier), 1) } else { (u32::from(switch.tier) + 1, 0) };
                groups.push(((switch.plane * layers + layer) * 2 + downwards) as u8);
            }
        }
        groups
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

fn switch_infos(fabric: &Fabric, widths: Option<[u32; 4]>) -> Vec<SwitchInfo> {
    let shape = fabric.shape();
    let width = shape.width();
    // Places for hosts in a block of each level.
    let mut span = [0u32; 4];
    for level in 0..shape.tiers as usize {
        span[level] = if level + 1 == shape.tiers as usize {
            u32::MAX
        } else if level == 0 {
            shape.hosts_per_t0
        } else {
            span[level - 1].saturating_mul(shape.group[level - 1])
        };
    }
    let mut first_port = shape.hosts * shape.planes;
    fabric
        .all_switches()
        .map(|switch| {
            let tier = switch.tier as usize;
            let block = switch.index / width[tier];
            let (ev_shift, ev_bits) = match widths {
                Some(w) if fabric.uplinks(switch.tier) > 0 => {
                    (32 - w[..tier + 2].iter().sum::<u32>(), w[tier + 1])
                }
                _ => (0, 0),
            };
            let info = SwitchInfo {
                first_host: if block == 0 { 0 } else { block * span[tier] },
                hosts: span[tier],
                per_child: inverse_of(if tier == 0 { 1 } else { span[tier - 1] }),
                first_port,
                downlinks: fabric.downlinks(switch.tier) as u16,
                uplinks: fabric.uplinks(switch.tier) as u16,
                parallel: fabric.parallel_below(switch.tier) as u16,
                ev_shift: ev_shift as u8,
                ev_bits: ev_bits as u8,
            };
            first_port += u32::from(info.downlinks) + u32::from(info.uplinks);
            info
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_divided_by_exactly() {
        for divisor in [1, 2, 3, 7, 64, 255, 1000, 65_537, u32::MAX / 2, u32::MAX - 1] {
            let info = SwitchInfo {
                first_host: 0,
                hosts: u32::MAX,
                per_child: inverse_of(divisor),
                first_port: 0,
                downlinks: 0,
                uplinks: 0,
                parallel: 1,
                ev_shift: 0,
                ev_bits: 0,
            };
            for quotient in [0, 1, 2, 5, 1023, u32::MAX / divisor - 1] {
                let Some(at) = quotient.checked_mul(divisor) else { continue };
                for below in [0, 1, divisor / 2, divisor - 1].map(|more| at.saturating_add(more)) {
                    assert_eq!(info.child(below), below / divisor, "{below} / {divisor}");
                }
            }
        }
    }
}
