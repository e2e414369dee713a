//! Packets of chosen links as bytes, as a capture on the cable would hold them. Payloads are synthetic: the byte at
//! address `i` is `i` modulo 251.

use std::collections::HashSet;
use std::net::Ipv6Addr;
use std::sync::Arc;

use openmrc_fabric::{AddressPlan, End, EvLayout, Fabric, Path};
use openmrc_scenario::run::{Encapsulation, NetworkConfig, Overflow};
use openmrc_transport::Time;
use openmrc_wire::ip::{Ip, Ipv6};
use openmrc_wire::link::Ethernet;
use openmrc_wire::udp::Udp;
use openmrc_wire::{
    Body, DscpMap, Ecn, EntropyOrder, Ev, EvFormat, Layers, LinkType, Outer, Packet, ROCE_PORT, RcWrite,
    Write, trim,
};
use openmrc_workload::Connection;

use crate::event::{Event, flag};

/// A packet at the end of a cable.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// When its last bit had arrived.
    pub time: Time,
    /// The port at the cable's other end.
    pub port: u32,
    /// When the node there has processed it, picoseconds.
    handled: u64,
    packet: Packet,
    ev: u32,
    src: u32,
    dst: u32,
    flags: u8,
}

/// Packets captured and not yet taken out.
pub struct CaptureBuffer {
    /// Ports that send over the chosen links.
    ports: Arc<HashSet<u32>>,
    /// Packets still to be captured.
    left: u64,
    packets: Vec<Captured>,
}

/// What a partition hears on the chosen links.
#[derive(Clone)]
pub(crate) struct Ears {
    ports: Arc<HashSet<u32>>,
    /// Most packets that are still wanted of all partitions together.
    left: u64,
    /// Packets of this slot are wanted.
    is_open: bool,
    packets: Vec<Captured>,
}

impl CaptureBuffer {
    pub(super) fn new(ports: Vec<u32>, most: u64) -> Self {
        CaptureBuffer { ports: Arc::new(ports.into_iter().collect()), left: most, packets: Vec::new() }
    }

    /// Ears for a partition.
    pub(super) fn ears(&self) -> Ears {
        Ears { ports: Arc::clone(&self.ports), left: self.left, is_open: true, packets: Vec::new() }
    }

    /// Takes what the partitions have heard. Of packets beyond those wanted, the first ones are kept.
    pub(super) fn collect(&mut self, ears: &mut [&mut Ears]) {
        let mut heard: Vec<_> = ears.iter_mut().flat_map(|ears| ears.packets.drain(..)).collect();
        heard.sort_by_key(|packet| (packet.handled, packet.port));
        heard.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= heard.len() as u64;
        self.packets.append(&mut heard);
        for ears in ears {
            ears.left = self.left;
        }
    }

    /// Packets captured since the last call.
    pub fn take(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.packets)
    }
}

impl Ears {
    pub(super) fn begin_slot(&mut self) {
        self.is_open = (self.packets.len() as u64) < self.left;
    }

    /// Whether packets sent by `port` are still to be captured.
    pub(super) fn want(&self, port: u32) -> bool {
        self.is_open && self.ports.contains(&port)
    }

    /// Keeps a packet whose last bit arrived at `time` over the cable of `port`. `ends` are those of its connection.
    pub fn keep(&mut self, event: &Event, time: u64, port: u32, packet: Packet, ends: Connection) {
        self.packets.push(Captured {
            time: Time(time),
            port,
            handled: event.time,
            packet,
            ev: event.ev,
            src: if ends.dst == event.dst { ends.src } else { ends.dst },
            dst: event.dst,
            flags: event.flags,
        });
    }
}

impl Captured {
    /// The bytes of the packet, from the Ethernet header to the iCRC. `port_number` numbers ports as [`Captured::port`]
    /// does.
    pub(crate) fn frame(&self, config: &NetworkConfig, port_number: impl Fn(End) -> u32) -> Vec<u8> {
        let Captured { packet, ev, src, dst, flags, .. } = *self;
        let fabric = &config.fabric;
        let map = DscpMap::DEFAULT;
        let trims = config.switch.unwrap_or_else(|| config.default_switch()).overflow == Overflow::Trim;
        let dscp = map.code_of(&packet, trims && !packet.is_rocev2());
        let ecn = if flags & flag::CE != 0 { Ecn::Ce } else { Ecn::Ect0 };
        let path = EvLayout::new(fabric)
            .ok()
            .and_then(|layout| Path::from_ev(fabric, &layout, src, dst, Ev(ev)).ok());
        let format = if path.is_some() { EvFormat::Structured } else { EvFormat::Udp };
        let entropy = format.split(Ev(ev), EntropyOrder::default());
        let source = host_address(src);
        let inner = Ipv6 {
            dscp,
            ecn,
            flow_label: entropy.flow_label,
            payload_len: 0,
            next_header: 0,
            hop_limit: 64,
            src: source,
            dst: host_address(dst),
        };
        let outer = path.filter(|_| config.encapsulation == Encapsulation::Srv6).and_then(|path| {
            let plan = AddressPlan::new(fabric, AddressPlan::DEFAULT_BLOCK).ok()?;
            let mut address = plan.address(fabric, &path);
            for _ in 0..self.switches_crossed(fabric, &path, port_number) {
                address = address.shift();
            }
            Some(Outer { ip: Ipv6 { dst: address.to_ipv6(), ..inner }, srh: None })
        });
        let udp = Udp { sport: entropy.sport, dport: ROCE_PORT, length: 0, checksum: 0 };
        let ethernet = Some(Ethernet { dst: mac(dst), src: mac(src), ethertype: 0, vlan: None });
        let layers = Layers { ethernet, outer, ip: Ip::V6(inner), udp, udp_checksum: false };
        let payload = payload(&packet);
        let mut bytes = vec![0; layers.header_len() + packet.wire_len()];
        let len = layers.emit(&packet, &payload, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        if flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) != 0 {
            let last_hop = flags & flag::TRIMMED_LAST_HOP != 0;
            if let Ok(len) = trim::trim(&mut bytes, LinkType::Ethernet, ROCE_PORT, &map, last_hop) {
                bytes.truncate(len);
            }
        }
        bytes
    }

    /// Switches of its path that the packet has crossed.
    fn switches_crossed(&self, fabric: &Fabric, path: &Path, port_number: impl Fn(End) -> u32) -> usize {
        path.links(fabric)
            .position(|link| {
                [fabric.lower_end(link), fabric.upper_end(link)]
                    .iter()
                    .any(|&end| port_number(end) == self.port)
            })
            .unwrap_or(0)
    }
}

/// A host's address: unique local, numbered by host.
fn host_address(host: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits((0xFD00 << 112) + u128::from(host) + 1)
}

/// A host's hardware address: locally administered, numbered by host.
fn mac(host: u32) -> [u8; 6] {
    let [a, b, c, d] = host.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// The memory that a packet carries: as many bytes as its payload has, from its address on.
fn payload(packet: &Packet) -> Vec<u8> {
    let va = match packet.body {
        Body::Write(Write { va, .. }) | Body::RcWrite(RcWrite { va, .. }) => va,
        _ => return Vec::new(),
    };
    (0..u64::from(packet.payload_len)).map(|i| (va.wrapping_add(i) % 251) as u8).collect()
}
