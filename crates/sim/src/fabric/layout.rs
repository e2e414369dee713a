//! Layout of the fabric: how nodes and ports are numbered, and what a switch needs to forward by arithmetic. It never
//! changes during a run.

use openmrc_fabric::{End, EvLayout, Fabric, Node};
use openmrc_scenario::run::NetworkConfig;

use std::sync::Arc;

use crate::division::Division;
use crate::groups::Groups;

/// Number of a port that does not exist.
pub(crate) const UNCONNECTED: u32 = u32::MAX;

/// What a switch needs to know to forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchInfo {
    /// Its number among the switches.
    pub number: u32,
    /// First host below it.
    pub first_host: u32,
    /// Places for hosts below it.
    pub hosts: u32,
    /// 2^64 over the places for hosts below one downlink, or below one bundle of parallel downlinks.
    per_child: u64,
    /// Its first port.
    pub first_port: u32,
    /// Downlinks.
    pub downlinks: u16,
    /// Uplinks.
    pub uplinks: u16,
    /// Links in a bundle.
    pub parallel: u16,
    /// Position of this tier's uplink in an entropy value.
    pub ev_shift: u8,
    /// Width of that field.
    pub ev_bits: u8,
}

impl SwitchInfo {
    /// Number of ports.
    #[inline]
    pub fn ports(&self) -> u32 {
        u32::from(self.downlinks + self.uplinks)
    }

    /// The uplink that an entropy value names.
    #[inline(always)]
    pub fn named_uplink(&self, ev: u32) -> u32 {
        let uplink = ev >> self.ev_shift & ((1 << self.ev_bits) - 1);
        self.first_port + u32::from(self.downlinks) + uplink.min(u32::from(self.uplinks) - 1)
    }

    /// An entropy value that names this uplink here.
    pub fn ev_of_uplink(&self, uplink: u32) -> u32 {
        uplink << self.ev_shift
    }

    /// The downlink, or bundle of parallel downlinks, that leads to the host with number `below` among those below the
    /// switch.
    #[inline(always)]
    pub fn child(&self, below: u32) -> u32 {
        (((u128::from(below) + 1) * u128::from(self.per_child)) >> 64) as u32
    }
}

/// Multiplied with `n + 1` this gives 2^64 times `n / divisor`, and less than 2^64 more. That is exact for any two
/// numbers of 32 bits, as the error is below one part in `2^32 * divisor`.
const fn inverse_of(divisor: u32) -> u64 {
    u64::MAX / divisor as u64
}

/// Numbering of nodes and ports.
///
/// Nodes are numbered hosts first, then switches. Ports are numbered hosts first (host x planes + plane), then switch
/// by switch, downlinks before uplinks.
pub(crate) struct Layout {
    pub fabric: Fabric,
    pub planes: u32,
    /// Ports of hosts: the first ones.
    pub host_ports: u32,
    switches: Vec<SwitchInfo>,
    /// By port of a switch: the switch, as a node.
    owners: Vec<u32>,
}

impl Layout {
    /// Numbers a fabric's nodes and ports.
    pub fn new(fabric: Fabric) -> Self {
        let shape = fabric.shape();
        let widths = EvLayout::new(&fabric).ok().map(|layout| layout.widths);
        let switches = switch_infos(&fabric, widths);
        let owners = (shape.hosts..)
            .zip(&switches)
            .flat_map(|(node, switch)| std::iter::repeat_n(node, switch.ports() as usize))
            .collect();
        Layout { fabric, planes: shape.planes, host_ports: shape.hosts * shape.planes, switches, owners }
    }

    /// Number of hosts, and the node number of the first switch.
    #[inline]
    pub fn hosts(&self) -> u32 {
        self.fabric.shape().hosts
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.host_ports as usize + self.owners.len()
    }

    /// A switch by its number.
    #[inline(always)]
    pub fn switch(&self, number: u32) -> &SwitchInfo {
        &self.switches[number as usize]
    }

    /// All switches.
    pub fn switches(&self) -> &[SwitchInfo] {
        &self.switches
    }

    /// The node that a switch port belongs to.
    #[inline(always)]
    pub fn owner(&self, port: u32) -> u32 {
        self.owners[(port - self.host_ports) as usize]
    }

    /// The node that a port belongs to.
    pub fn node_of(&self, port: u32) -> u32 {
        if port < self.host_ports { port / self.planes } else { self.owner(port) }
    }

    /// The switch that a switch port belongs to.
    #[inline]
    pub fn switch_of(&self, port: u32) -> &SwitchInfo {
        self.switch(self.owner(port) - self.hosts())
    }

    /// A host's port in a plane.
    #[inline]
    pub fn host_port(&self, host: u32, plane: u32) -> u32 {
        host * self.planes + plane
    }

    /// The port of a T0 that leads to a host in a plane.
    pub fn t0_port(&self, host: u32, plane: u32) -> u32 {
        self.port_number(self.fabric.host_peer(host, plane))
    }

    /// The number of a node's port among all ports.
    pub fn port_number(&self, end: End) -> u32 {
        match end.node {
            Node::Host(host) => self.host_port(host, end.port),
            Node::Switch(switch) => self.switch(self.fabric.switch_number(switch)).first_port + end.port,
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

    /// By port: (plane x layers + layer of its cable) x 2, plus 1 if it leads down.
    pub fn port_groups(&self) -> Vec<u8> {
        let layers = u32::from(self.fabric.tiers());
        let mut groups = Vec::with_capacity(self.ports());
        groups.extend((0..self.host_ports).map(|port| (port % self.planes * layers * 2) as u8));
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

    /// Groups of nodes for the calendar.
    pub fn node_groups(&self, config: &NetworkConfig, division: Division) -> Groups {
        let packet = config.serialization(u64::from(config.full_packet_bytes())).0.max(1);
        let events_per_port = config.shortest_hop().0 / packet + 1;
        let ports = self.switches.iter().map(SwitchInfo::ports);
        Groups::new(Arc::new(division), self.planes, ports, events_per_port)
    }
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
    (0..)
        .zip(fabric.all_switches())
        .map(|(number, switch)| {
            let tier = switch.tier as usize;
            let block = switch.index / width[tier];
            let (ev_shift, ev_bits) = match widths {
                // A switch with one uplink reads no bits: with one plane the shift would be by all 32.
                Some(w) if fabric.uplinks(switch.tier) > 1 => {
                    (32 - w[..tier + 2].iter().sum::<u32>(), w[tier + 1])
                }
                _ => (0, 0),
            };
            let info = SwitchInfo {
                number,
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
            first_port += info.ports();
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
                number: 0,
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
