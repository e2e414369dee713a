//! The fabric as the simulator walks it: ports in one flat array, and what is at the other end of each.
//!
//! Ports are numbered hosts first (host x planes + plane), then switch by switch, downlinks before uplinks. A port is an
//! output; the cable's other direction is the port that [`Network::peer`] names.

use std::collections::VecDeque;

use openmrc_fabric::{End, Fabric, Node};
use openmrc_transport::Span;

use crate::config::{NetworkConfig, SwitchConfig};

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

/// An output port, in half a cache line.
///
/// What has been accepted leaves at a time that is known at once, so a queue is no list but two points in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// When everything accepted will have left.
    pub data_free: u64,
    /// When all control packets will have left.
    pub control_free: u64,
    /// Bytes accepted.
    pub bytes: u64,
    /// From the last bit leaving to the packet in the next node's hands, picoseconds.
    pub latency: u32,
    /// Picoseconds a byte takes.
    pub picos_per_byte: u16,
    /// See [`port_flag`].
    pub flags: u8,
}

/// A data packet that waits in a queue which marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// When it leaves the queue for the cable.
    pub leaves: u64,
    /// Bytes the port had accepted once it had accepted this packet, modulo 2^32.
    pub accepted: u32,
    /// Its place in the slab.
    pub packet: u32,
}

/// What is at the other end of a cable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    /// Number of the switch, or [`FarEnd::HOST`].
    pub switch: u32,
    /// The port there, in the numbering of all ports.
    pub port: u32,
}

impl FarEnd {
    /// The other end is a host.
    pub const HOST: u32 = u32::MAX;
}

/// What a switch needs to know to forward by arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwitchInfo {
    /// First host below.
    pub first_host: u32,
    /// Places for hosts below.
    pub hosts: u32,
    /// Places for hosts below one downlink, or bundle of parallel ones.
    pub hosts_per_child: u32,
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

/// Ports and switches of a fabric.
pub(crate) struct Network {
    pub fabric: Fabric,
    pub ports: Vec<Port>,
    pub far: Vec<FarEnd>,
    pub switches: Vec<SwitchInfo>,
    /// By port of a switch: packets whose fate at dequeue is open.
    pub waiting: Vec<VecDeque<Waiting>>,
    pub planes: u32,
    pub switch: SwitchConfig,
    /// Some port is, or has been, out of order or lossy: arrivals have to look.
    pub impaired: bool,
}

impl Network {
    /// Lays the fabric out.
    pub fn new(config: &NetworkConfig) -> Self {
        let fabric = config.fabric;
        let planes = fabric.shape().planes;
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let layout = openmrc_fabric::EvLayout::new(&fabric).ok();
        let switches = switch_infos(&fabric, layout.map(|l| l.widths));
        let mut network = Network {
            fabric,
            ports: Vec::new(),
            far: Vec::new(),
            switches,
            waiting: Vec::new(),
            planes,
            switch,
            impaired: false,
        };
        let count = network
            .switches
            .last()
            .map_or(0, |s| s.first_port as usize + usize::from(s.downlinks + s.uplinks));
        network.ports.reserve_exact(count);
        network.far.reserve_exact(count);
        for host in 0..fabric.shape().hosts {
            for plane in 0..planes {
                let peer = fabric.host_peer(host, plane);
                network.add_port(config, 0, port_flag::HOST, Some(peer));
            }
        }
        for switch in fabric.all_switches() {
            let down = fabric.downlinks(switch.tier);
            for port in 0..down + fabric.uplinks(switch.tier) {
                let layer = if port < down { switch.tier } else { switch.tier + 1 };
                let last_hop = port < down && switch.tier == 0;
                let marks = network.switch.ecn.is_some_and(|ecn| ecn.on_last_hop || !last_hop);
                let flags =
                    if last_hop { port_flag::LAST_HOP } else { 0 } | if marks { port_flag::ECN } else { 0 };
                network.add_port(config, layer, flags, fabric.peer(switch, port));
            }
        }
        if network.switch.ecn.is_some() {
            network
                .waiting
                .resize_with(network.ports.len() - (fabric.shape().hosts * planes) as usize, VecDeque::new);
        }
        network
    }

    /// The queue of a switch port that marks.
    #[inline]
    pub fn waiting_at(&mut self, port: u32) -> &mut VecDeque<Waiting> {
        &mut self.waiting[(port - self.fabric.shape().hosts * self.planes) as usize]
    }

    fn add_port(&mut self, config: &NetworkConfig, layer: u8, flags: u8, peer: Option<End>) {
        let latency = config.hop_latency(layer, flags & port_flag::LAST_HOP != 0);
        self.ports.push(Port {
            data_free: 0,
            control_free: 0,
            bytes: 0,
            latency: u32::try_from(latency.0).unwrap_or(u32::MAX),
            picos_per_byte: config.picos_per_byte() as u16,
            flags: flags | if peer.is_none() { port_flag::DOWN } else { 0 },
        });
        self.far.push(match peer {
            None => FarEnd { switch: UNCONNECTED, port: UNCONNECTED },
            Some(end) => FarEnd { switch: self.switch_of(end), port: self.port_number(end) },
        });
    }

    fn switch_of(&self, end: End) -> u32 {
        match end.node {
            Node::Host(_) => FarEnd::HOST,
            Node::Switch(switch) => self.fabric.switch_number(switch),
        }
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

    /// First port of a host.
    #[inline]
    pub fn host_port(&self, host: u32, plane: u32) -> u32 {
        host * self.planes + plane
    }

    /// The shortest hop latency there is.
    pub fn shortest_latency(&self) -> Span {
        Span(self.ports.iter().map(|p| u64::from(p.latency)).min().unwrap_or(1))
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
                hosts_per_child: if tier == 0 { 1 } else { span[tier - 1] },
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
