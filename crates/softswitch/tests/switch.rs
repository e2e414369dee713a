//! A soft switch in virtual time.

use std::net::Ipv6Addr;

use openmrc_softswitch::config::{Config, ConfigError, Mac, PortConfig, Thresholds};
use openmrc_softswitch::queue::Frame;
use openmrc_softswitch::switch::{Counters, Switch};
use openmrc_wire::ip::{Ip, Ipv6};
use openmrc_wire::link::Ethernet;
use openmrc_wire::udp::Udp;
use openmrc_wire::{
    Body, DscpClass, DscpMap, Ecn, FrameConfig, Layers, LinkType, Msn, NackReason, Outer, Packet, Position,
    Psn, ROCE_PORT, UsidAddress, Write,
};
use proptest::prelude::*;

const BLOCK: u32 = 0x5F00_0000;
const OWN: u16 = 9;
const UP: usize = 0;
const DOWN: usize = 1;
const RATE: u64 = 1_000_000_000;
const MAC: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const PEER: [Mac; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

fn config() -> Config {
    let thresholds = Thresholds { ecn_min: 20_000, ecn_max: 80_000, trim: 100_000, control: 10_000 };
    let port = |i: usize, name: &str| PortConfig {
        name: name.into(),
        mac: MAC[i],
        peer: PEER[i],
        rate_bps: Some(RATE),
        last_hop: i == DOWN,
        thresholds,
    };
    Config {
        block: BLOCK,
        own: vec![OWN],
        routes: vec![(13, UP), (0xE003, DOWN)],
        ports: vec![port(UP, "up0"), port(DOWN, "down3")],
        dscp: DscpMap::DEFAULT,
        udp_port: ROCE_PORT,
        seed: 1,
    }
}

fn switch() -> Switch {
    Switch::new(&config()).unwrap()
}

/// An MRC write in SRv6, as it arrives at port 0.
fn write(usids: &[u16], class: DscpClass, ecn: Ecn, payload: usize, psn: u32) -> Frame {
    let address = |n: u16| Ipv6Addr::new(0xFD5F, 0, 0, 0, 0, 0, 0, n);
    let ip = Ipv6 {
        dscp: DscpMap::DEFAULT.code(class),
        ecn,
        flow_label: 0,
        payload_len: 0,
        next_header: 0,
        hop_limit: 64,
        src: address(1),
        dst: address(2),
    };
    let path = UsidAddress::new(BLOCK, usids).unwrap();
    let layers = Layers {
        ethernet: Some(Ethernet { dst: MAC[0], src: PEER[0], vlan: None, ethertype: 0 }),
        outer: Some(Outer { ip: Ipv6 { dst: path.to_ipv6(), ..ip }, srh: None }),
        ip: Ip::V6(ip),
        udp: Udp { sport: 50_000, dport: ROCE_PORT, length: 0, checksum: 0 },
        udp_checksum: false,
    };
    let body = Body::Write(Write {
        position: Position::Middle,
        rqmsn: Msn(0),
        msn: Msn(7),
        timestamp: None,
        va: 0x1000,
        rkey: 5,
        dma_len: 1 << 20,
        imm: None,
    });
    let packet = Packet {
        dest_qp: 3,
        psn: Psn::new(psn),
        pkey: Packet::DEFAULT_PKEY,
        payload_len: payload as u16,
        ack_req: false,
        rtx: false,
        solicited: false,
        migrated: false,
        variant: 0,
        body,
    };
    let mut buffer = vec![0; 9230].into_boxed_slice();
    let len = layers.emit(&packet, &vec![0xA5; payload], &mut buffer).unwrap();
    Frame { buffer, len }
}

fn data(usids: &[u16], payload: usize, psn: u32) -> Frame {
    write(usids, DscpClass::Trimmable, Ecn::Ect0, payload, psn)
}

fn decode(frame: &Frame) -> openmrc_wire::Frame<'_> {
    openmrc_wire::Frame::decode(frame.bytes(), frame.len, LinkType::Ethernet, &FrameConfig::default())
}

fn psn(frame: &Frame) -> u32 {
    decode(frame).packet.unwrap().psn.get()
}

/// Lets a port send until its queues are empty; returns the frames with their departure times.
fn drain(switch: &mut Switch, port: usize) -> Vec<(u64, Frame)> {
    let mut out = Vec::new();
    let mut now = 1 << 40;
    while let Some(at) = switch.next_departure() {
        now = now.max(at);
        if let Some(frame) = switch.transmit(port, now) {
            out.push((now, frame));
        }
    }
    out
}

#[test]
fn a_un_switch_removes_its_usid_and_forwards_by_the_next() {
    let mut switch = switch();
    assert!(switch.receive(UP, data(&[OWN, 13, 4, 0xE001], 100, 1)).is_none());
    let (_, frame) = drain(&mut switch, UP).pop().unwrap();
    let seen = decode(&frame);
    let outer = seen.outer.unwrap().ip;
    assert_eq!(outer.dst, UsidAddress::new(BLOCK, &[13, 4, 0xE001]).unwrap().to_ipv6());
    assert_eq!(outer.hop_limit, 63);
    let ethernet = seen.ethernet.unwrap();
    assert_eq!((ethernet.src, ethernet.dst), (MAC[UP], PEER[UP]));
    assert!(seen.is_good(), "what the iCRC covers is unchanged");
}

#[test]
fn frames_that_cannot_be_forwarded_are_counted_and_not_changed() {
    let refused = |frame: Frame| {
        let before = frame.bytes().to_vec();
        let mut switch = switch();
        let back = switch.receive(UP, frame).expect("not forwarded");
        assert_eq!(back.bytes(), before);
        assert!(switch.next_departure().is_none());
        switch.counters
    };
    let zero = Counters::default();
    assert_eq!(refused(data(&[OWN], 10, 1)), Counters { dropped_end_of_path: 1, ..zero });
    assert_eq!(refused(data(&[OWN, 77], 10, 1)), Counters { dropped_no_route: 1, ..zero });
    let mut spent = data(&[OWN, 13], 10, 1);
    spent.buffer[14 + 7] = 1;
    assert_eq!(refused(spent), Counters { dropped_hop_limit: 1, ..zero });
    // Frames that are not for this switch are left to the kernel and are no drops.
    let mut unknown = data(&[OWN, 13], 10, 1);
    unknown.buffer[5] ^= 1;
    assert_eq!(refused(unknown), zero);
    let mut other_block = data(&[OWN, 13], 10, 1);
    other_block.buffer[14 + 24] = 0x20;
    assert_eq!(refused(other_block), zero);
    let mut no_ipv6 = data(&[OWN, 13], 10, 1);
    no_ipv6.buffer[12] = 8;
    assert_eq!(refused(no_ipv6), zero);
}

#[test]
fn a_full_queue_trims_data_and_sends_the_headers_first() {
    for (port, usids, reason) in
        [(UP, [OWN, 13], NackReason::Trimmed), (DOWN, [OWN, 0xE003], NackReason::TrimmedLastHop)]
    {
        let mut switch = switch();
        // 24 packets reach the threshold of 100,000 bytes; ten more find the queue full.
        let full = 100_000_u64.div_ceil(data(&usids, 4096, 0).len as u64) as u32;
        for n in 0..full + 10 {
            assert!(switch.receive(UP, data(&usids, 4096, n)).is_none());
        }
        assert_eq!((switch.counters.forwarded, switch.counters.trimmed), (u64::from(full) + 10, 10));
        let out = drain(&mut switch, port);
        let order: Vec<u32> = out.iter().map(|(_, frame)| psn(frame)).collect();
        assert_eq!(order, (full..full + 10).chain(0..full).collect::<Vec<_>>());
        for (_, frame) in &out[..10] {
            let seen = decode(frame);
            assert_eq!((seen.trimmed, seen.payload.len()), (Some(reason), 0));
            assert!(frame.len < 200);
        }
        assert!(out[10..].iter().all(|(_, frame)| decode(frame).is_good()));
    }
}

#[test]
fn packets_that_may_not_be_trimmed_are_dropped_by_a_full_queue() {
    let mut switch = switch();
    while switch.queued_bytes(UP).0 < 100_000 {
        assert!(switch.receive(UP, data(&[OWN, 13], 4096, 0)).is_none());
    }
    assert!(switch.receive(UP, write(&[OWN, 13], DscpClass::NoTrim, Ecn::Ect0, 4096, 1)).is_some());
    assert_eq!((switch.counters.dropped_data_full, switch.counters.trimmed), (1, 0));
}

#[test]
fn headers_that_do_not_fit_the_control_queue_are_dropped_and_counted() {
    let mut switch = switch();
    let mut dropped = 0;
    for n in 0..400 {
        dropped += u64::from(switch.receive(UP, data(&[OWN, 13], 4096, n)).is_some());
    }
    assert!(dropped > 0);
    assert_eq!(switch.counters.dropped_trimmed, dropped);
    assert_eq!(switch.counters.forwarded + dropped, 400);
    assert!(switch.queued_bytes(UP).1 <= 10_000);
    let before = switch.counters.dropped_control_full;
    assert!(switch.receive(UP, write(&[OWN, 13], DscpClass::Control, Ecn::NotEct, 0, 1)).is_some());
    assert_eq!(switch.counters.dropped_control_full, before + 1);
}

#[test]
fn a_port_sends_at_its_rate() {
    let mut switch = switch();
    let mut bits = 0;
    for n in 0..20 {
        let frame = data(&[OWN, 13], 4096, n);
        bits += frame.len as u64 * 8;
        assert!(switch.receive(UP, frame).is_none());
    }
    let out = drain(&mut switch, UP);
    let first_to_last = out[19].0 - out[0].0;
    let last_bits = out[19].1.len as u64 * 8;
    // The first frame leaves at once, and the port may catch up on 200 us.
    assert!(first_to_last <= bits - last_bits);
    assert!(first_to_last >= bits - last_bits - 200_000 - last_bits);
}

#[test]
fn marking_depends_on_the_queue_behind_a_departing_packet() {
    let run = |port: usize, usids: &[u16], ecn: Ecn| {
        let mut switch = switch();
        while switch.queued_bytes(port).0 < 100_000 {
            assert!(switch.receive(UP, write(usids, DscpClass::Trimmable, ecn, 1000, 0)).is_none());
        }
        let mut behind = switch.queued_bytes(port).0;
        let mut marks = Vec::new();
        for (_, frame) in drain(&mut switch, port) {
            behind -= frame.len as u64;
            let seen = decode(&frame);
            let outer = seen.outer.unwrap().ip.ecn;
            assert_eq!(outer, seen.ip.unwrap().ecn(), "both headers agree");
            marks.push((behind, outer == Ecn::Ce));
        }
        assert_eq!(switch.counters.marked, marks.iter().filter(|(_, marked)| *marked).count() as u64);
        marks
    };
    let marks = run(UP, &[OWN, 13], Ecn::Ect0);
    assert!(marks.iter().all(|(behind, marked)| *behind < 80_000 || *marked));
    assert!(marks.iter().all(|(behind, marked)| *behind >= 20_000 || !*marked));
    let between = marks.iter().filter(|(behind, _)| (20_000..80_000).contains(behind));
    let (count, marked) = between.fold((0, 0), |(n, m), (_, marked)| (n + 1, m + u32::from(*marked)));
    assert!(marked > count / 4 && marked < count * 3 / 4, "{marked} of {count}, half expected");
    assert!(run(DOWN, &[OWN, 0xE003], Ecn::Ect0).iter().all(|(_, marked)| !marked), "never on the last hop");
    assert!(run(UP, &[OWN, 13], Ecn::NotEct).iter().all(|(_, marked)| !marked), "never without ECN support");
}

#[test]
fn an_invalid_configuration_is_refused_with_the_reason() {
    let refused = |change: fn(&mut Config)| {
        let mut config = config();
        change(&mut config);
        Switch::new(&config).err().unwrap()
    };
    let route = |c: &mut Config| c.routes.push((14, 2));
    assert_eq!(refused(route), ConfigError::NoSuchPort { usid: 14, port: 2, ports: 2 });
    assert_eq!(refused(|c| c.routes.push((OWN, 0))), ConfigError::Duplicate(OWN));
    assert_eq!(refused(|c| c.own.push(0)), ConfigError::Zero);
    assert_eq!(refused(|c| c.ports[0].rate_bps = Some(0)), ConfigError::Thresholds("up0".into()));
    assert_eq!(refused(|c| c.ports[1].thresholds.ecn_max = 0), ConfigError::Thresholds("down3".into()));
    assert_eq!(refused(|c| c.dscp.control = c.dscp.trimmed), ConfigError::Dscp);
}

proptest! {
    #[test]
    fn any_frame_is_forwarded_or_given_back(bytes in prop::collection::vec(any::<u8>(), 0..300), whole: bool) {
        let mut frame = data(&[OWN, 13], 40, 1);
        let start = if whole { 0 } else { 14 };
        let n = bytes.len().min(frame.buffer.len() - start);
        // Random bytes as a frame, or behind a valid Ethernet header.
        frame.buffer[start..start + n].copy_from_slice(&bytes[..n]);
        frame.len = start + n;
        let mut switch = switch();
        let back = switch.receive(UP, frame);
        prop_assert_eq!(back.is_none(), switch.next_departure().is_some());
        prop_assert_eq!(switch.counters.forwarded, u64::from(back.is_none()));
    }

    #[test]
    fn every_packet_is_sent_or_counted_as_dropped(
        plan in prop::collection::vec((0usize..3, 0usize..4000, any::<bool>()), 1..200),
    ) {
        let mut switch = switch();
        let classes = [DscpClass::Trimmable, DscpClass::NoTrim, DscpClass::Control];
        let mut sent = 0;
        for (n, &(class, payload, up)) in plan.iter().enumerate() {
            let usids = if up { [OWN, 13] } else { [OWN, 0xE003] };
            switch.receive(UP, write(&usids, classes[class], Ecn::Ect0, payload, n as u32));
            if n % 7 == 0 {
                sent += u64::from(switch.transmit(UP, n as u64 * 10_000).is_some());
            }
        }
        let mut now = 1 << 40;
        while let Some(at) = switch.next_departure() {
            now = now.max(at);
            for port in [UP, DOWN] {
                sent += u64::from(switch.transmit(port, now).is_some());
            }
        }
        let c = switch.counters;
        prop_assert_eq!(sent, c.forwarded);
        let dropped = c.dropped_data_full + c.dropped_control_full + c.dropped_trimmed;
        prop_assert_eq!(c.forwarded + dropped, plan.len() as u64);
        prop_assert_eq!((switch.queued_bytes(UP), switch.queued_bytes(DOWN)), ((0, 0), (0, 0)));
    }
}
