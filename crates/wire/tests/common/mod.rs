//! Arbitrary packets and layers, with every value that a field can have.
#![allow(dead_code)]

use openmrc_wire::ip::{Ecn, Ip, Ipv4, Ipv6};
use openmrc_wire::link::Ethernet;
use openmrc_wire::srh::Srh;
use openmrc_wire::udp::Udp;
use openmrc_wire::*;
use proptest::prelude::*;

pub fn timestamp() -> impl Strategy<Value = Timestamp> {
    any::<(u16, bool)>().prop_map(|(ticks, tsr)| Timestamp { ticks, tsr })
}

/// Position and immediate. Only Last and Only can have an immediate.
pub fn position() -> impl Strategy<Value = (Position, Option<u32>)> {
    prop_oneof![
        Just((Position::First, None)),
        Just((Position::Middle, None)),
        any::<Option<u32>>().prop_map(|imm| (Position::Last, imm)),
        any::<Option<u32>>().prop_map(|imm| (Position::Only, imm)),
    ]
}

fn write() -> impl Strategy<Value = Body> {
    (position(), any::<(u16, u16, u64, u32, u32)>(), prop::option::of(timestamp())).prop_map(
        |((position, imm), (rqmsn, msn, va, rkey, dma_len), timestamp)| {
            let (rqmsn, msn) = (Msn(rqmsn), Msn(msn));
            Body::Write(Write { position, rqmsn, msn, timestamp, va, rkey, dma_len, imm })
        },
    )
}

fn rc_write() -> impl Strategy<Value = Body> {
    (position(), any::<(u64, u32, u32)>()).prop_map(|((position, imm), reth)| {
        let (va, rkey, dma_len) = if position.is_first() { reth } else { (0, 0, 0) };
        Body::RcWrite(RcWrite { position, va, rkey, dma_len, imm })
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), 0u32..1 << 24).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

fn psn() -> impl Strategy<Value = Psn> {
    any::<u32>().prop_map(Psn::new)
}

fn sack() -> impl Strategy<Value = Body> {
    let mark = prop_oneof![Just(Mark::None), Just(Mark::SkipOnce), Just(Mark::AlwaysSkip)];
    let cc = (any::<u16>(), 0u16..1 << 15, any::<bool>(), 0u8..128, 0u32..1 << 24).prop_map(
        |(timestamp, ooo_count, restore_cwnd, rcv_cwnd_pen, rcvd_bytes)| CcState {
            timestamp,
            ooo_count,
            restore_cwnd,
            rcv_cwnd_pen,
            rcvd_bytes,
        },
    );
    (mark, psn(), (0u8..16, 0u8..16), cc, any::<(bool, i16, u32, u16, u16, u8, i16, u64)>()).prop_map(
        |(mark, cack_psn, (cc_type, cc_flags), cc, rest)| {
            let (probe_reply, ack_psn_offset, entropy, spdcid, dpdcid, mpr, sack_offset, bitmap) = rest;
            Body::Sack(Sack {
                mark,
                probe_reply,
                ack_psn_offset,
                entropy: Ev(entropy),
                spdcid,
                dpdcid,
                cack_psn,
                cc_type,
                cc_flags,
                mpr,
                sack_offset,
                bitmap,
                cc,
            })
        },
    )
}

fn nack() -> impl Strategy<Value = Body> {
    let reason = prop::sample::select(vec![0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19]);
    (reason, psn(), 0u8..16, any::<(u8, u32, u16, u16, u16)>()).prop_map(
        |(reason, nack_psn, cc_flags, (vendor_info, entropy, spdcid, dpdcid, timestamp))| {
            Body::Nack(Nack {
                reason: NackReason::from_code(reason).unwrap(),
                vendor_info,
                entropy: Ev(entropy),
                spdcid,
                dpdcid,
                nack_psn,
                cc_flags,
                timestamp,
            })
        },
    )
}

pub fn body() -> impl Strategy<Value = Body> {
    let op = || prop_oneof![Just(EndpointOp::PortStatusUpdate), Just(EndpointOp::EvProbe)];
    prop_oneof![
        4 => write(),
        4 => rc_write(),
        2 => sack(),
        2 => nack(),
        1 => aeth().prop_map(Body::Ack),
        1 => aeth().prop_map(Body::RcAck),
        1 => (any::<(u8, u16, u16, u16)>(), timestamp()).prop_map(
            |((vendor_info, probe_id, spdcid, dpdcid), timestamp)| {
                Body::Probe(Probe { vendor_info, probe_id, spdcid, dpdcid, timestamp })
            }
        ),
        1 => (op(), any::<(u8, u32)>(), timestamp()).prop_map(
            |(op, (vendor_info, port_status_mask), timestamp)| {
                Body::EndpointRequest(Erth { op, vendor_info, port_status_mask, timestamp })
            }
        ),
        1 => (op(), any::<u16>())
            .prop_map(|(op, timestamp)| Body::EndpointResponse(Eeth { op, timestamp })),
        1 => Just(Body::Cnp),
    ]
}

/// A packet, with payload if its kind allows it.
pub fn packet() -> impl Strategy<Value = (Packet, Vec<u8>)> {
    let flags = any::<(bool, bool, bool, bool)>();
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    (body(), psn(), 0u32..1 << 24, any::<(u16, u8)>(), flags, payload).prop_map(
        |(body, psn, dest_qp, (pkey, variant), (ack_req, rtx, solicited, migrated), mut payload)| {
            let mut packet = Packet {
                dest_qp,
                psn,
                pkey,
                payload_len: 0,
                ack_req,
                rtx,
                solicited,
                migrated,
                variant,
                body,
            };
            packet.rtx &= !packet.is_rocev2();
            packet.migrated &= packet.is_rocev2();
            if !packet.is_data() {
                payload.clear();
            }
            packet.payload_len = payload.len() as u16;
            (packet, payload)
        },
    )
}

fn ecn() -> impl Strategy<Value = Ecn> {
    any::<u8>().prop_map(Ecn::from_bits)
}

/// An IPv6 header whose length and next header are zero.
fn ipv6(dscp: u8) -> impl Strategy<Value = Ipv6> {
    (ecn(), 0u32..1 << 20, any::<u8>(), any::<(u128, u128)>()).prop_map(
        move |(ecn, flow_label, hop_limit, (src, dst))| Ipv6 {
            dscp,
            ecn,
            flow_label,
            payload_len: 0,
            next_header: 0,
            hop_limit,
            src: src.into(),
            dst: dst.into(),
        },
    )
}

fn ipv4(dscp: u8) -> impl Strategy<Value = Ipv4> {
    (ecn(), any::<(u16, bool, u8, u32, u32)>()).prop_map(
        move |(ecn, (identification, dont_fragment, ttl, src, dst))| Ipv4 {
            dscp,
            ecn,
            total_len: 0,
            identification,
            dont_fragment,
            ttl,
            protocol: 0,
            src: src.into(),
            dst: dst.into(),
        },
    )
}

fn outer(dscp: u8) -> impl Strategy<Value = Outer> {
    let srh = (0u8..=1, any::<(u8, u16, u128)>()).prop_map(|(segments_left, (flags, tag, segment))| Srh {
        next_header: 0,
        segments_left,
        segments: 1,
        flags,
        tag,
        segment: segment.into(),
    });
    (ipv6(dscp), prop::option::of(srh)).prop_map(|(ip, srh)| Outer { ip, srh })
}

/// Every stack of headers, sent with `dscp` to the default port.
pub fn layers(dscp: u8) -> impl Strategy<Value = Layers> {
    let ethernet = any::<([u8; 6], [u8; 6], Option<u16>)>().prop_map(|(dst, src, vlan)| Ethernet {
        dst,
        src,
        vlan,
        ethertype: 0,
    });
    let ip = prop_oneof![ipv4(dscp).prop_map(Ip::V4), ipv6(dscp).prop_map(Ip::V6)];
    (prop::option::of(ethernet), prop::option::of(outer(dscp)), ip, any::<u16>(), any::<bool>()).prop_map(
        |(ethernet, outer, ip, sport, udp_checksum)| Layers {
            ethernet,
            outer,
            ip,
            udp: Udp { sport, dport: ROCE_PORT, length: 0, checksum: 0 },
            udp_checksum,
        },
    )
}

pub fn link_of(layers: &Layers) -> LinkType {
    if layers.ethernet.is_some() { LinkType::Ethernet } else { LinkType::Ip }
}

pub fn emit(layers: &Layers, packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xEE; 1024];
    let len = layers.emit(packet, payload, &mut bytes).expect("fits");
    bytes.truncate(len);
    bytes
}
