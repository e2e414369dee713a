//! Packets of chosen links as bytes: what a capture on that cable would hold, payloads synthetic (byte `i` of a message's memory is
//! `i` modulo 251).

use std::collections::HashSet;

use std::net::Ipv6Addr;

use openmrc_fabric::{AddressPlan, EvLayout, Path};
use openmrc_transport::Time;
use openmrc_wire::ip::{Ip, Ipv6};
use openmrc_wire::link::Ethernet;
use openmrc_wire::udp::Udp;
use openmrc_wire::{
    Body, DscpMap, Ecn, Ev, EvFormat, Layers, LinkType, Outer, Packet, ROCE_PORT, RcWrite, Write, trim,
};

use crate::config::Encapsulation;
use crate::event::{Event, flag};
use crate::world::World;

/// A packet at the end of a cable.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// When its last bit had arrived.
    pub time: Time,
    /// The port at the cable's other end.
    pub port: u32,
    packet: Packet,
    ev: u32,
    src: u32,
    dst: u32,
    flags: u8,
}

/// Packets not yet taken out, and which are still wanted.
pub struct Capture {
    ports: HashSet<u32>,
    left: u64,
    packets: Vec<Captured>,
}

impl Capture {
    pub(crate) fn new(ports: Vec<u32>, most: u64) -> Self {
        Capture { ports: ports.into_iter().collect(), left: most, packets: Vec::new() }
    }

    /// Packets captured since the last call.
    pub fn take(&mut self) -> Vec<Captured> {
        std::mem::take(&mut self.packets)
    }
}

impl World {
    /// Keeps a packet that has crossed a cable which is listened to.
    pub(crate) fn capture(&mut self, event: &Event, from: u32, latency: u64) {
        let Some(capture) = self.recorder.as_mut().and_then(|r| r.capture.as_mut()) else { return };
        if capture.left == 0 || !capture.ports.contains(&from) {
            return;
        }
        capture.left -= 1;
        let ends = self.posts.ends(event.connection);
        capture.packets.push(Captured {
            time: Time(event.time.saturating_sub(latency)),
            port: from,
            packet: self.slab.get(event.packet),
            ev: event.ev,
            src: if ends.dst == event.dst { ends.src } else { ends.dst },
            dst: event.dst,
            flags: event.flags,
        });
    }

    /// The bytes of a captured packet, from the Ethernet header to the iCRC.
    pub fn frame(&self, captured: &Captured) -> Vec<u8> {
        let Captured { packet, ev, src, dst, flags, .. } = *captured;
        let map = DscpMap::DEFAULT;
        let trims = self.net.switch.overflow == crate::config::Overflow::Trim;
        let dscp = map.code_of(&packet, trims && !packet.is_rocev2());
        let ecn = if flags & flag::CE != 0 { Ecn::Ce } else { Ecn::Ect0 };
        let path = EvLayout::new(&self.net.fabric)
            .ok()
            .and_then(|layout| Path::from_ev(&self.net.fabric, &layout, src, dst, Ev(ev)).ok());
        let format = if path.is_some() { EvFormat::Structured } else { EvFormat::Udp };
        let entropy = format.place(Ev(ev));
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
        let outer = path.filter(|_| self.config.encapsulation == Encapsulation::Srv6).and_then(|path| {
            let plan = AddressPlan::new(&self.net.fabric, AddressPlan::DEFAULT_BLOCK).ok()?;
            let mut address = plan.address(&self.net.fabric, &path);
            for _ in 0..self.switches_behind(&path, captured.port) {
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

    /// How many switches of its path a packet has crossed when it is on the cable of `port`.
    fn switches_behind(&self, path: &Path, port: u32) -> usize {
        let fabric = &self.net.fabric;
        path.links(fabric)
            .position(|link| {
                [fabric.lower_end(link), fabric.upper_end(link)]
                    .iter()
                    .any(|&end| self.net.port_number(end) == port)
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

/// What stands in memory from the packet's address on, as far as the packet names one.
fn payload(packet: &Packet) -> Vec<u8> {
    let va = match packet.body {
        Body::Write(Write { va, .. }) | Body::RcWrite(RcWrite { va, .. }) => va,
        _ => return Vec::new(),
    };
    (0..u64::from(packet.payload_len)).map(|i| (va.wrapping_add(i) % 251) as u8).collect()
}
