//! Whole packets: every stack of layers survives encoding and decoding, trimming follows the spec, no input panics.

mod common;

use common::{emit, layers, link_of, packet};
use openmrc_wire::ip::{Ip, Ipv4, Ipv6};
use openmrc_wire::link::Ethernet;
use openmrc_wire::srh::Srh;
use openmrc_wire::trim::{TrimError, trim};
use openmrc_wire::{
    Aeth, Body, DecodeError, DscpClass, DscpMap, Ecn, Frame, FrameConfig, IcrcVerdict, Layers, LinkType, Msn,
    NackReason, Outer, Packet, Position, Psn, ROCE_PORT, RcWrite, Write,
};
use proptest::prelude::*;

const DATA: u8 = DscpMap::DEFAULT.trimmable;

fn decode(bytes: &[u8], link: LinkType) -> Frame<'_> {
    Frame::decode(bytes, bytes.len(), link, &FrameConfig::default())
}

/// Clears the fields that `Layers::emit` fills in.
fn without_lengths(frame: &Frame, udp_checksum: bool) -> Layers {
    let bare6 = |ip: Ipv6| Ipv6 { payload_len: 0, next_header: 0, ..ip };
    let ip = match frame.ip.unwrap() {
        Ip::V4(ip) => Ip::V4(Ipv4 { total_len: 0, protocol: 0, ..ip }),
        Ip::V6(ip) => Ip::V6(bare6(ip)),
    };
    let mut udp = frame.udp.unwrap();
    udp.length = 0;
    udp.checksum = 0;
    Layers {
        ethernet: frame.ethernet.map(|mut ethernet| {
            ethernet.ethertype = 0;
            ethernet
        }),
        outer: frame.outer.map(|outer| Outer {
            ip: bare6(outer.ip),
            srh: outer.srh.map(|mut srh| {
                srh.next_header = 0;
                srh
            }),
        }),
        ip,
        udp,
        udp_checksum,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_stack_survives_the_wire(layers in layers(DATA), (packet, payload) in packet()) {
        let bytes = emit(&layers, &packet, &payload);
        let frame = decode(&bytes, link_of(&layers));
        prop_assert_eq!(frame.error, None);
        prop_assert_eq!(frame.icrc, IcrcVerdict::Good);
        prop_assert_eq!(frame.packet, Some(packet));
        prop_assert_eq!(frame.payload, &payload[..]);
        prop_assert_eq!(frame.trimmed, None);
        prop_assert_eq!(without_lengths(&frame, layers.udp_checksum), layers);
        prop_assert_eq!(frame.udp.unwrap().checksum != 0, layers.udp_checksum);
    }

    #[test]
    fn ethernet_padding_changes_nothing(layers in layers(DATA), (packet, payload) in packet(), pad in 1usize..46) {
        let mut bytes = emit(&layers, &packet, &payload);
        bytes.extend(vec![0xAA; pad]);
        let frame = decode(&bytes, link_of(&layers));
        prop_assert_eq!((frame.error, frame.packet), (None, Some(packet)));
    }

    #[test]
    fn one_flipped_bit_after_the_bth_is_detected(
        layers in layers(DATA),
        (packet, payload) in packet(),
        at: prop::sample::Index,
        bit in 0u32..8,
    ) {
        let mut bytes = emit(&layers, &packet, &payload);
        let bth = layers.header_len();
        let at = bth + at.index(bytes.len() - bth);
        bytes[at] ^= 1 << bit;
        let frame = decode(&bytes, link_of(&layers));
        if at == bth + 4 {
            prop_assert_eq!(frame.error, None, "byte 4 of the BTH may change on the way");
        } else {
            prop_assert!(frame.error.is_some());
            prop_assert!(!frame.is_good());
        }
    }

    #[test]
    fn fields_that_routers_change_do_not_change_the_icrc(layers in layers(DATA), (packet, payload) in packet()) {
        let bytes = emit(&layers, &packet, &payload);
        let mut routed = layers;
        match &mut routed.ip {
            Ip::V4(ip) => {
                ip.ttl ^= 0xFF;
                ip.dscp = 33;
                ip.ecn = Ecn::Ce;
            }
            Ip::V6(ip) => {
                ip.hop_limit ^= 0xFF;
                ip.dscp = 33;
                ip.flow_label ^= 0xF_FFFF;
            }
        }
        let end = |bytes: &[u8]| bytes[bytes.len() - 4..].to_vec();
        prop_assert_eq!(end(&emit(&routed, &packet, &payload)), end(&bytes));
    }

    #[test]
    fn an_incomplete_capture_keeps_every_layer_that_it_contains(
        layers in layers(DATA),
        (packet, payload) in packet(),
        keep: prop::sample::Index,
    ) {
        let bytes = emit(&layers, &packet, &payload);
        let keep = keep.index(bytes.len());
        let frame = Frame::decode(&bytes[..keep], bytes.len(), link_of(&layers), &FrameConfig::default());
        prop_assert!(frame.cut);
        prop_assert_eq!(frame.icrc, IcrcVerdict::Unknown);
        if keep >= layers.header_len() + packet.header_len() {
            prop_assert_eq!((frame.error, frame.packet), (None, Some(packet)));
            prop_assert!(payload.starts_with(frame.payload));
        } else {
            let expected = DecodeError::CaptureTruncated { have: keep, wire: bytes.len() };
            prop_assert_eq!(frame.error, Some(expected));
        }
    }

    #[test]
    fn a_trimmed_packet_is_a_valid_datagram_of_headers(
        layers in layers(DATA),
        (packet, payload) in packet(),
        last_hop: bool,
    ) {
        let mut bytes = emit(&layers, &packet, &payload);
        let (before, link, map) = (bytes.clone(), link_of(&layers), DscpMap::DEFAULT);
        let result = trim(&mut bytes, link, ROCE_PORT, &map, last_hop);
        if !packet.is_data() {
            prop_assert_eq!(result, Err(TrimError::NoPayload(packet.opcode())));
            prop_assert_eq!(bytes, before, "a refused packet is untouched");
            return Ok(());
        }
        bytes.truncate(result.unwrap());
        let mut expected = Packet { payload_len: 0, ..packet };
        match &mut expected.body {
            Body::Write(w) => w.imm = w.imm.map(|_| 0),
            Body::RcWrite(w) => w.imm = w.imm.map(|_| 0),
            _ => {}
        }
        let frame = decode(&bytes, link);
        let reason = if last_hop { NackReason::TrimmedLastHop } else { NackReason::Trimmed };
        prop_assert_eq!((frame.error, frame.packet), (None, Some(expected)));
        prop_assert_eq!((frame.trimmed, frame.icrc), (Some(reason), IcrcVerdict::Trimmed));
        // The lengths match the bytes.
        let udp = frame.udp.unwrap();
        prop_assert_eq!(layers.header_len() - 8 + usize::from(udp.length), bytes.len());
        if layers.udp_checksum {
            let datagram = &bytes[layers.header_len()..];
            prop_assert_eq!(udp.checksum, udp.checksum_between(layers.ip.src(), layers.ip.dst(), datagram));
        } else {
            prop_assert_eq!(udp.checksum, 0);
        }
        if let Some(Ip::V4(ip)) = frame.ip {
            let at = layers.header_len() - 28;
            let mut header = [0; 20];
            ip.emit(&mut header);
            prop_assert_eq!(&header[..], &bytes[at..at + 20], "header checksum");
        }
        let again = trim(&mut bytes, link, ROCE_PORT, &map, last_hop);
        prop_assert_eq!(again, Err(TrimError::Class(map.code(match reason {
            NackReason::Trimmed => DscpClass::Trimmed,
            _ => DscpClass::TrimmedLastHop,
        }))));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        first in prop::sample::select(vec![0x45u8, 0x46, 0x60, 0x00]),
        next in prop::sample::select(vec![17u8, 41, 43, 4, 6]),
        more in 0usize..100,
        link in prop::sample::select(vec![
            LinkType::Ethernet, LinkType::Ip, LinkType::Loopback, LinkType::LinuxSll, LinkType::LinuxSll2,
        ]),
    ) {
        if bytes.len() > 9 {
            bytes[0] = first;
            bytes[if first == 0x60 { 6 } else { 9 }] = next;
        }
        let wire_len = bytes.len() + more;
        let frame = Frame::decode(&bytes, wire_len, link, &FrameConfig::default());
        prop_assert!(frame.error.is_some() || frame.packet.is_some());
        let _ = trim(&mut bytes, link, ROCE_PORT, &DscpMap::DEFAULT, true);
    }

    #[test]
    fn damaged_packets_never_panic(
        layers in layers(DATA),
        (packet, payload) in packet(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = emit(&layers, &packet, &payload);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let frame = decode(&bytes, link_of(&layers));
        prop_assert!(frame.error.is_some() || frame.packet.is_some());
        let _ = trim(&mut bytes, link_of(&layers), ROCE_PORT, &DscpMap::DEFAULT, false);
    }
}

/// An RC ACK in an IPv6 packet, byte by byte.
#[rustfmt::skip]
const ACK: [u8; 68] = [
    0x6B, 0x80, 0x00, 0x00, 0x00, 0x1C, 17, 64,
    0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
    0xC0, 0x01, 0x12, 0xB7, 0x00, 0x1C, 0x00, 0x00,
    0x11, 0x00, 0xFF, 0xFF, 0x00, 0x00, 0x00, 0x2A, 0x00, 0x00, 0x00, 0x07,
    0x1F, 0x00, 0x00, 0x01,
    0x00, 0x00, 0x00, 0x00,
];

#[test]
fn other_packets_are_refused_with_the_reason() {
    let counter = |change: &[(usize, u8)]| {
        let mut bytes = ACK;
        for &(at, value) in change {
            bytes[at] = value;
        }
        decode(&bytes, LinkType::Ip).error.unwrap().counter()
    };
    assert_eq!(counter(&[]), "rx_bad_icrc");
    assert_eq!(counter(&[(0, 0x50)]), "rx_bad_ip");
    assert_eq!(counter(&[(5, 0x1D)]), "rx_bad_ip");
    assert_eq!(counter(&[(6, 6)]), "rx_not_udp");
    assert_eq!(counter(&[(6, 43)]), "rx_bad_srh");
    assert_eq!(counter(&[(6, 41)]), "rx_bad_ip");
    assert_eq!(counter(&[(43, 0x00)]), "rx_other_port");
    assert_eq!(counter(&[(45, 0x1D)]), "rx_bad_udp_length");
    assert_eq!(counter(&[(45, 0x07)]), "rx_bad_udp_length");
    assert_eq!(counter(&[(48, 0x12)]), "rx_unknown_opcode");
}

#[test]
fn a_header_that_is_missing_is_the_fault_of_the_capture_only_if_that_ends_before_it() {
    let error = |bytes: &[u8], wire_len: usize| {
        let frame = Frame::decode(bytes, wire_len, LinkType::Ip, &FrameConfig::default());
        (frame.error.unwrap().counter(), frame.cut)
    };
    let truncated = DecodeError::CaptureTruncated { have: 0, wire: 1 }.counter();
    for len in [0, 1, 39] {
        assert_eq!(error(&ACK[..len], len), ("rx_short", false), "{len} bytes, and there were no more");
        assert_eq!(error(&ACK[..len], ACK.len()), (truncated, true), "{len} bytes of more");
    }
    for len in [40, 47, 59] {
        assert_eq!(error(&ACK[..len], ACK.len()), (truncated, true), "{len} bytes of more");
    }
    // The datagram ends within its BTH, and the capture within what follows the datagram.
    let mut short = ACK;
    (short[5], short[45]) = (8 + 8, 8 + 8);
    assert_eq!(error(&short[..60], 68), ("rx_short", false));
    assert_eq!(error(&short[..55], 68), (truncated, true));
}

#[test]
fn of_an_unreadable_packet_nothing_is_known_but_the_reason() {
    let error = DecodeError::CaptureTruncated { have: 1, wire: 2 };
    let frame = Frame::unreadable(error);
    assert_eq!(frame.error, Some(error));
    assert!(frame.packet.is_none() && frame.ip.is_none() && frame.udp.is_none() && !frame.is_good());
}

#[test]
fn a_frame_that_stops_early_keeps_the_layers_before() {
    let mut bytes = ACK;
    bytes[48] = 0x12;
    let frame = decode(&bytes, LinkType::Ip);
    assert_eq!(frame.udp.unwrap().sport, 0xC001);
    assert_eq!(frame.bth.unwrap().dest_qp, 0x2A);
    assert!(frame.packet.is_none() && !frame.is_good());
}

#[test]
fn trimmed_packets_with_uncorrected_lengths_are_accepted() {
    let map = DscpMap::DEFAULT;
    let layers =
        Layers::between("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), 0xC001).unwrap();
    let write = Write {
        position: Position::Middle,
        rqmsn: Msn(0),
        msn: Msn(1),
        timestamp: None,
        va: 0x1000,
        rkey: 7,
        dma_len: 4096,
        imm: None,
    };
    let packet = Packet::new(1, Psn::new(9), Body::Write(write));
    let mut bytes = emit(&layers, &packet, &[7; 256]);
    openmrc_wire::ip::rewrite_dscp(&mut bytes, map.trimmed);
    bytes.truncate(layers.header_len() + packet.header_len());
    let frame = decode(&bytes, LinkType::Ip);
    assert_eq!((frame.error, frame.packet), (None, Some(packet)));
    assert!(!frame.cut);
}

#[test]
fn data_that_may_not_be_trimmed_is_refused() {
    let layers = Layers::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1).unwrap();
    let mut bytes = emit(&layers, &Packet::new(1, Psn::new(0), Body::Cnp), &[]);
    assert_eq!(trim(&mut bytes, LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false), Err(TrimError::Class(0)),);
}

#[test]
fn a_tunnel_with_the_wrong_inner_header_is_neither_decoded_nor_trimmed() {
    let mut layers = Layers::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1).unwrap();
    let Ip::V6(outer) =
        Layers::between("fd00::1".parse().unwrap(), "5f00:0:1::".parse().unwrap(), 1).unwrap().ip
    else {
        unreachable!()
    };
    layers.outer = Some(Outer { ip: Ipv6 { dscp: DATA, ..outer }, srh: None });
    let write = RcWrite { position: Position::Middle, va: 0, rkey: 0, dma_len: 0, imm: None };
    let packet = Packet::new(2, Psn::new(0), Body::RcWrite(write));
    let mut bytes = emit(&layers, &packet, &[1; 64]);
    assert!(trim(&mut bytes.clone(), LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false).is_ok());
    bytes[6] = openmrc_wire::ip::PROTOCOL_IPV6; // but IPv4 is inside
    let mismatch = DecodeError::BadIp("inner version is not what the next header says");
    assert_eq!(decode(&bytes, LinkType::Ip).error, Some(mismatch));
    let result = trim(&mut bytes, LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false);
    assert_eq!(result, Err(TrimError::Decode(mismatch)));
}

#[test]
fn behind_an_srh_only_a_packet_in_a_packet_is_decoded() {
    let mut layers = Layers::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1).unwrap();
    let Ip::V6(outer) =
        Layers::between("fd00::1".parse().unwrap(), "5f00:0:1::".parse().unwrap(), 1).unwrap().ip
    else {
        unreachable!()
    };
    let segment = "5f00:0:2::".parse().unwrap();
    let srh = Srh { next_header: 0, segments_left: 0, segments: 1, flags: 0, tag: 0, segment };
    layers.outer = Some(Outer { ip: outer, srh: Some(srh) });
    let mut bytes = emit(&layers, &Packet::new(1, Psn::new(0), Body::Ack(Aeth { syndrome: 0, msn: 0 })), &[]);
    assert_eq!(decode(&bytes, LinkType::Ip).error, None);
    bytes[40] = 6; // TCP
    let frame = decode(&bytes, LinkType::Ip);
    assert_eq!(frame.error, Some(DecodeError::NotUdp(6)));
    assert!(frame.outer.is_some());
}

/// Layers over IPv6 with this code point, and an ACK.
fn plain_ack(dscp: u8) -> (Layers, Packet) {
    let mut layers = Layers::between("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 1).unwrap();
    if let Ip::V6(ip) = &mut layers.ip {
        ip.dscp = dscp;
    }
    (layers, Packet::new(1, Psn::new(0), Body::Ack(Aeth { syndrome: 0, msn: 0 })))
}

#[test]
fn the_code_point_of_a_frame_is_the_outermost() {
    let (plain, packet) = plain_ack(10);
    let Ip::V6(inner) = plain.ip else { unreachable!() };
    let outer = Some(Outer { ip: Ipv6 { dscp: 20, ..inner }, srh: None });
    for (layers, expected) in [(plain, Some(10)), (Layers { outer, ..plain }, Some(20))] {
        assert_eq!(decode(&emit(&layers, &packet, &[]), LinkType::Ip).dscp(), expected);
    }
    assert_eq!(decode(&[], LinkType::Ip).dscp(), None);
}

#[test]
fn only_data_has_a_payload() {
    let (layers, packet) = plain_ack(0);
    let mut buf = [0; 256];
    assert!(layers.emit(&packet, &[], &mut buf).is_some());
    assert_eq!(layers.emit(&packet, &[1], &mut buf), None);
}

#[test]
fn a_packet_that_ends_behind_its_headers_can_be_trimmed_and_a_shorter_one_cannot() {
    let (mut layers, _) = plain_ack(DATA);
    let write = RcWrite { position: Position::Only, va: 0, rkey: 0, dma_len: 64, imm: None };
    let packet = Packet::new(2, Psn::new(0), Body::RcWrite(write));
    for outer in [None, Some(())] {
        let Ip::V6(inner) = layers.ip else { unreachable!() };
        layers.outer = outer.map(|()| Outer { ip: inner, srh: None });
        let bytes = emit(&layers, &packet, &[1; 64]);
        let cut =
            |len: usize| trim(&mut bytes[..len].to_vec(), LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false);
        let kept = cut(bytes.len()).unwrap();
        assert_eq!(kept, bytes.len() - 64 - 4, "payload and iCRC are gone");
        assert_eq!(cut(kept), Ok(kept));
        assert!(cut(kept - 1).is_err());

        // The same for the length in the UDP header.
        let headers = layers.header_len();
        let told = |udp_length: usize| {
            let mut bytes = bytes.clone();
            bytes[headers - 4..headers - 2].copy_from_slice(&(udp_length as u16).to_be_bytes());
            trim(&mut bytes, LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false)
        };
        let least = kept - headers + 8;
        assert_eq!(told(least), Ok(kept));
        assert!(told(least - 1).is_err() && told(least - 2).is_err());

        // Each IP header says how much follows it now.
        let mut bytes = bytes.clone();
        assert_eq!(trim(&mut bytes, LinkType::Ip, ROCE_PORT, &DscpMap::DEFAULT, false), Ok(kept));
        let frame = decode(&bytes[..kept], LinkType::Ip);
        let lengths = [frame.outer.map(|outer| Ip::V6(outer.ip)), frame.ip].into_iter().flatten();
        let lengths: Vec<_> =
            lengths.map(|ip| if let Ip::V6(ip) = ip { ip.payload_len } else { 0 }).collect();
        let expected: Vec<_> = (1..=lengths.len()).map(|number| (kept - 40 * number) as u16).collect();
        assert_eq!(lengths, expected);
    }
}

#[test]
fn the_ethertype_is_that_of_the_outermost_header() {
    let (v6, packet) = plain_ack(0);
    let v4 = Layers::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 1).unwrap();
    let Ip::V6(inner) = v6.ip else { unreachable!() };
    let outer = Some(Outer { ip: inner, srh: None });
    let ethernet = Some(Ethernet { dst: [2; 6], src: [4; 6], ethertype: 0, vlan: None });
    for (layers, outer, ethertype) in
        [(v4, None, [8, 0]), (v4, outer, [0x86, 0xDD]), (v6, None, [0x86, 0xDD])]
    {
        let bytes = emit(&Layers { ethernet, outer, ..layers }, &packet, &[]);
        assert_eq!(bytes[12..14], ethertype);
    }
}
