//! Packets to bytes and back: every value survives, and no input panics.

mod common;

use common::packet;
use openmrc_wire::{Body, DecodeError, MAX_HEADER_LEN, Packet, Position, Psn, RcWrite, opcode};
use proptest::prelude::*;

/// The whole UDP payload; its iCRC is not checked.
fn datagram(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; MAX_HEADER_LEN];
    let len = packet.emit(&mut bytes);
    bytes.truncate(len);
    bytes.extend(payload);
    bytes.extend(vec![0; packet.pad_len()]);
    bytes.extend(*b"icrc");
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_packet_survives_the_wire((packet, payload) in packet()) {
        let bytes = datagram(&packet, &payload);
        prop_assert_eq!(bytes.len(), packet.wire_len());
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(bytes[0], packet.opcode());
        prop_assert_eq!(Packet::parse(&bytes), Ok((packet, &payload[..])));
    }

    #[test]
    fn emit_writes_nothing_but_its_headers((packet, _) in packet()) {
        let mut bytes = [0xEE; MAX_HEADER_LEN + 8];
        let len = packet.emit(&mut bytes);
        prop_assert_eq!(len, packet.header_len());
        prop_assert!(len <= MAX_HEADER_LEN);
        prop_assert!(bytes[len..].iter().all(|&byte| byte == 0xEE));
        prop_assert_eq!(packet.emit(&mut bytes[..len]), len, "an exact fit is a fit");
        prop_assert_eq!(packet.emit(&mut bytes[..len - 1]), 0, "one byte less is none");
    }

    #[test]
    fn every_truncation_is_an_error_not_a_panic((packet, payload) in packet(), keep: prop::sample::Index) {
        let bytes = datagram(&packet, &payload);
        let short = &bytes[..keep.index(bytes.len())];
        if let Ok((other, _)) = Packet::parse(short) {
            // A data packet cut at a multiple of four looks like one with less payload. Only the iCRC shows it.
            prop_assert!(packet.is_data() && other.payload_len < packet.payload_len);
        }
    }

    #[test]
    fn a_trimmed_packet_keeps_all_but_payload_and_immediate((packet, payload) in packet()) {
        let imm_len = match packet.body {
            Body::Write(w) if w.imm.is_some() => 4,
            Body::RcWrite(w) if w.imm.is_some() => 4,
            _ => 0,
        };
        let bytes = datagram(&packet, &payload);
        let headers = &bytes[..packet.header_len() - imm_len];
        let mut expected = Packet { payload_len: 0, ..packet };
        match &mut expected.body {
            Body::Write(w) => w.imm = w.imm.map(|_| 0),
            Body::RcWrite(w) => w.imm = w.imm.map(|_| 0),
            _ => {}
        }
        prop_assert_eq!(Packet::parse_trimmed(headers), Ok(expected));
        // A switch that cuts to a fixed size leaves a part of the payload.
        prop_assert_eq!(Packet::parse_trimmed(&bytes), Ok(Packet { payload_len: 0, ..packet }));
        prop_assert!(Packet::parse_trimmed(&headers[..headers.len() - 1]).is_err());
    }

    #[test]
    fn a_write_cut_below_its_reth_still_names_queue_pair_and_psn((packet, payload) in packet(), kept in 0usize..36) {
        let bytes = datagram(&packet, &payload);
        let cut = &bytes[..kept.min(bytes.len())];
        match Packet::parse_bare_write(cut) {
            Ok(bare) => {
                prop_assert!(matches!(packet.body, Body::Write(_)) && kept >= 12);
                prop_assert_eq!((bare.dest_qp, bare.psn, bare.rtx), (packet.dest_qp, packet.psn, packet.rtx));
                let Body::Write(write) = bare.body else { unreachable!() };
                prop_assert!(write.timestamp.is_none() && write.va == 0 && write.rkey == 0);
            }
            Err(_) => prop_assert!(!matches!(packet.body, Body::Write(_)) || kept < 12),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Packet::parse(&bytes);
        let _ = Packet::parse_trimmed(&bytes);
    }

    #[test]
    fn parsed_packets_are_the_same_when_encoded_and_parsed_again(
        opcode in prop::sample::select(vec![
            0xC6u8, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE,
            0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x11, 0x81,
        ]),
        mut bytes in prop::collection::vec(any::<u8>(), 16..120),
    ) {
        bytes[0] = opcode;
        bytes[1] &= 0xF0;
        if let Ok((packet, payload)) = Packet::parse(&bytes) {
            let again = datagram(&packet, payload);
            prop_assert_eq!(Packet::parse(&again), Ok((packet, payload)));
        }
    }
}

#[test]
fn the_opcodes_are_those_of_the_table_and_no_others() {
    let known: Vec<u8> = (0..=255u8)
        .filter(|&opcode| {
            let mut bytes = [0; 64];
            bytes[0] = opcode;
            !matches!(Packet::parse(&bytes), Err(DecodeError::UnknownOpcode(_)))
        })
        .collect();
    #[rustfmt::skip]
    assert_eq!(known, [
        0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x11, 0x81,
        0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xD1, 0xD8, 0xD9, 0xDC, 0xDD, 0xDE,
    ]);
}

#[test]
fn an_mrc_write_with_immediate_equals_handwritten_bytes() {
    #[rustfmt::skip]
    let bytes = [
        0xCB, 0x10, 0xFF, 0xFF, 0x00, 0x00, 0x00, 0x2A, 0x90, 0x00, 0x01, 0x00, // BTH: pad 1, A, TS
        0x00, 0x05, 0x00, 0x09,                                                 // METH
        0x12, 0x34, 0x00, 0x01,                                                 // TSETH
        0x00, 0x00, 0x7F, 0x00, 0x00, 0x00, 0x10, 0x00,                         // RETH: address
        0xCA, 0xFE, 0xBA, 0xBE, 0x00, 0x00, 0x00, 0x03,                         //       R_Key, length
        0xDE, 0xAD, 0xBE, 0xEF,                                                 // ImmDt
        b'a', b'b', b'c', 0x00,                                                 // payload, pad
        0x11, 0x22, 0x33, 0x44,                                                 // iCRC
    ];
    let (packet, payload) = Packet::parse(&bytes).unwrap();
    assert_eq!(payload, b"abc");
    assert!(packet.ack_req && !packet.rtx);
    assert_eq!((packet.dest_qp, packet.psn, packet.payload_len), (0x2A, Psn::new(0x100), 3));
    let Body::Write(write) = packet.body else { panic!("{packet:?}") };
    assert_eq!(write.position, Position::Only);
    assert_eq!((write.rqmsn.0, write.msn.0), (5, 9));
    assert_eq!(write.timestamp.unwrap().ticks, 0x1234);
    assert_eq!((write.va, write.rkey, write.dma_len), (0x7F00_0000_1000, 0xCAFE_BABE, 3));
    assert_eq!(write.imm, Some(0xDEAD_BEEF));
}

#[test]
fn a_rocev2_middle_has_no_reth() {
    #[rustfmt::skip]
    let bytes = [
        0x07, 0x00, 0xFF, 0xFF, 0x00, 0x00, 0x00, 0x2A, 0x00, 0x00, 0x01, 0x00,
        b'a', b'b', b'c', b'd', 0x11, 0x22, 0x33, 0x44,
    ];
    let (packet, payload) = Packet::parse(&bytes).unwrap();
    assert_eq!(payload, b"abcd");
    let middle = RcWrite { position: Position::Middle, va: 0, rkey: 0, dma_len: 0, imm: None };
    assert_eq!(packet.body, Body::RcWrite(middle));
}

#[test]
fn each_cause_of_a_drop_has_its_own_counter() {
    let only = [&[opcode::RC_WRITE_FIRST + 1][..], &[0; 15]].concat();
    let with = |at: usize, value: u8, extra: usize| {
        let mut bytes = only.clone();
        bytes[at] = value;
        bytes.extend(vec![0; extra]);
        Packet::parse(&bytes).unwrap_err().counter()
    };
    assert!(Packet::parse(&only).is_ok());
    assert_eq!(Packet::parse(&[0; 3]).unwrap_err().counter(), "rx_short");
    assert_eq!(Packet::parse(&[0; 15]).unwrap_err().counter(), "rx_short");
    assert_eq!(with(0, 0x00, 0), "rx_unknown_opcode");
    assert_eq!(with(1, 0x01, 0), "rx_bad_tver");
    assert_eq!(with(1, 0x10, 0), "rx_bad_pad");
    assert_eq!(with(1, 0x00, 2), "rx_unaligned");
    assert_eq!(with(0, opcode::CNP, 20), "rx_unexpected_payload");
    assert_eq!(with(1, 0x00, 1 << 16), "rx_long");
}

#[test]
fn an_immediate_on_a_first_packet_is_left_out() {
    let body = Body::RcWrite(RcWrite { position: Position::First, va: 1, rkey: 2, dma_len: 3, imm: Some(4) });
    let packet = Packet::new(1, Psn::new(0), body);
    let mut bytes = [0; MAX_HEADER_LEN];
    assert_eq!(packet.emit(&mut bytes), 28);
    assert_eq!(bytes[0], 0x06);
}
