//! Decodes arbitrary bytes as a captured packet: no panic, and a decoded packet survives encoding and decoding.
//!
//! Input: link type, bytes missing in the capture, flags, then the packet.
#![no_main]

use std::net::Ipv6Addr;

use libfuzzer_sys::fuzz_target;
use openmrc_wire::trim::{TrimError, trim};
use openmrc_wire::{
    DscpMap, Frame, FrameConfig, IcrcSeed, IcrcVerdict, Layers, LinkType, MAX_HEADER_LEN, Packet, ROCE_PORT,
    UsidAddress,
};

const LINKS: [LinkType; 5] =
    [LinkType::Ip, LinkType::Ethernet, LinkType::Loopback, LinkType::LinuxSll, LinkType::LinuxSll2];

fuzz_target!(|input: &[u8]| {
    let Some((&[link, missing, flags], bytes)) = input.split_first_chunk::<3>() else { return };
    let link = LINKS[usize::from(link) % LINKS.len()];
    if flags & 1 != 0 {
        check_datagram(bytes);
    } else {
        check_captured(bytes, usize::from(missing), link, flags & 2 != 0);
    }
});

/// A UDP payload, as the NIC receives it.
fn check_datagram(bytes: &[u8]) {
    let trimmed = Packet::parse_trimmed(bytes);
    if let Ok((packet, payload)) = Packet::parse(bytes) {
        assert_eq!(payload.len(), usize::from(packet.payload_len));
        assert_eq!(packet.wire_len(), bytes.len());
        let again = encode(&packet, payload);
        assert_eq!(Packet::parse(&again), Ok((packet, payload)));
        // The headers alone are accepted too.
        assert_eq!(trimmed, Ok(Packet { payload_len: 0, ..packet }));
    }
    let seed = IcrcSeed::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
    let whole = seed.of_datagram(1, ROCE_PORT, bytes);
    let mut pieces = seed.begin(1, ROCE_PORT, bytes.len() + 4);
    for piece in bytes.chunks(7) {
        pieces.update(piece);
    }
    assert_eq!(pieces.finish(), whole);
}

fn encode(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; MAX_HEADER_LEN];
    let len = packet.emit(&mut bytes);
    assert_eq!(len, packet.header_len());
    bytes.truncate(len);
    bytes.extend(payload);
    bytes.resize(bytes.len() + packet.pad_len() + 4, 0);
    bytes
}

/// A captured frame, as `openmrc decode` reads it.
fn check_captured(bytes: &[u8], missing: usize, link: LinkType, last_hop: bool) {
    let config = FrameConfig::default();
    let frame = Frame::decode(bytes, bytes.len() + missing, link, &config);
    assert!(frame.error.is_some() || frame.packet.is_some());
    assert!(frame.payload.len() <= bytes.len());
    if let Some(outer) = frame.outer {
        let _ = UsidAddress::parse(outer.ip.dst).map(|path| path.iter().count());
    }
    if frame.icrc == IcrcVerdict::Good || matches!(frame.icrc, IcrcVerdict::Bad { .. }) {
        check_rebuilt(&frame);
    }
    check_trimmed(bytes, link, last_hop);
}

/// Encodes a completely decoded packet, with a right or wrong iCRC, and decodes it again.
fn check_rebuilt(frame: &Frame) {
    let (Some(ip), Some(udp), Some(packet)) = (frame.ip, frame.udp, frame.packet) else {
        unreachable!("an iCRC was checked without its layers")
    };
    let layers =
        Layers { ethernet: frame.ethernet, outer: frame.outer, ip, udp, udp_checksum: udp.checksum != 0 };
    let mut bytes = vec![0; 1 << 16];
    let Some(len) = layers.emit(&packet, frame.payload, &mut bytes) else { return };
    let link = if frame.ethernet.is_some() { LinkType::Ethernet } else { LinkType::Ip };
    let again = Frame::decode(&bytes[..len], len, link, &FrameConfig::default());
    assert_eq!((again.error, again.icrc), (None, IcrcVerdict::Good));
    assert_eq!((again.packet, again.payload), (frame.packet, frame.payload));
}

/// Trims the same bytes as a switch does.
fn check_trimmed(bytes: &[u8], link: LinkType, last_hop: bool) {
    let map = DscpMap::DEFAULT;
    let mut packet = bytes.to_vec();
    match trim(&mut packet, link, ROCE_PORT, &map, last_hop) {
        Ok(len) => {
            assert!(len <= bytes.len());
            packet.truncate(len);
            let frame = Frame::decode(&packet, len, link, &FrameConfig::default());
            assert_eq!(frame.trimmed.is_some(), frame.ip.is_some());
            assert!(!frame.cut && frame.payload.is_empty());
            let again = trim(&mut packet, link, ROCE_PORT, &map, last_hop);
            assert!(matches!(again, Err(TrimError::Class(_))), "{again:?}");
        }
        Err(_) => assert_eq!(packet, bytes, "a refused packet is untouched"),
    }
}
