//! Sizes of a packet (docs/spec/wire.md).

use openmrc_wire::{Body, Packet};

/// UDP header, BTH, iCRC.
const UDP_BTH_ICRC: u32 = 8 + 12 + 4;
/// Ethernet header, FCS, preamble and gap; IPv6 header.
const ETHERNET: u32 = 14 + 4 + 20;
const IPV6: u32 = 40;

/// UDP length.
pub fn udp(packet: &Packet) -> u32 {
    let extension = match &packet.body {
        Body::Write(w) => {
            4 + 16 + if w.timestamp.is_some() { 4 } else { 0 } + if w.imm.is_some() { 4 } else { 0 }
        }
        Body::Ack(_) => 4,
        Body::Sack(_) => 36,
        Body::Nack(_) => 20,
        Body::Probe(_) => 16,
        _ => 36,
    };
    UDP_BTH_ICRC + extension + u32::from(packet.payload_len).next_multiple_of(4)
}

/// Nominal size for congestion control (docs/spec/congestion.md, "Numbers").
pub fn nominal(packet: &Packet) -> u32 {
    udp(packet) + IPV6
}

/// Bytes that a packet occupies on a link.
pub fn on_wire(packet: &Packet) -> u32 {
    ETHERNET + IPV6 + udp(packet)
}
