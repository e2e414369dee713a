//! A queue pair driven by an array of bytes: packets of every kind, valid, stale and absurd, between the calls of a
//! correct driver. The property test and the fuzz target share [`drive_arbitrary`].
//!
//! Whatever it receives, a queue pair does not panic, places only what the packet being handled says, completes every
//! send once and in order, answers a packet with a small number of packets, and does not exceed its memory.

use std::collections::HashSet;
use std::sync::Arc;

use openmrc_transport::mrc::{
    CanSend, Capabilities, CcProfile, OutOfWindow, PathConfig, PathModel, QpConfig, QueuePair,
    RequestorOptions,
};
use openmrc_transport::{
    AccessError, EvProfile, Fatal, Host, NoReceive, PathEntry, PortSet, Readiness, Received, RecvDone,
    SendDone, Span, Time, Transmit, Transport, Trim, WorkRequest,
};
use openmrc_wire::{
    Aeth, Body, CcState, Eeth, EndpointOp, Erth, Ev, Mark, Msn, Nack, NackReason, Packet, Position, Probe,
    Psn, RcWrite, Sack, Timestamp, Write,
};

/// Largest number of packets in answer to one packet.
const MAX_PER_PACKET: usize = 6;
/// Largest number of packets per timeout: delayed feedback, and one probe per path.
const fn max_per_timeout(paths: usize) -> usize {
    MAX_PER_PACKET + paths
}

const LOCAL_QP: u32 = 0x101;
const REMOTE_QP: u32 = 0x102;
const RKEY: u32 = 0xBEEF;
const BASE: u64 = 0x7F00_0000_0000;
const REGION: u64 = 1 << 20;

/// Reads numbers from bytes; returns zeros after their end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }
    fn u16(&mut self) -> u16 {
        u16::from(self.u8()) << 8 | u16::from(self.u8())
    }
    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }
    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }
    fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }
    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.u8()) % choices.len()]
    }
    /// A number near zero: usually small, sometimes arbitrary.
    fn offset(&mut self) -> i32 {
        match self.u8() {
            n @ 0..200 => i32::from(n) - 50,
            200..240 => i32::from(self.u16() as i16),
            _ => self.u32() as i32,
        }
    }
}

/// The host of the queue pair: checks its calls.
#[derive(Default)]
struct Watch {
    in_hand: Option<Packet>,
    placed: HashSet<Psn>,
    out: Vec<Transmit>,
    posted: u64,
    completed: u64,
    receives: u32,
    received: u16,
    /// Newest PSN sent; feedback refers to PSNs near it.
    next_psn: Psn,
    path_mtu: u16,
    fatal: Option<Fatal>,
}

impl Host for Watch {
    fn write(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let packet = self.in_hand.expect("placement without a packet in hand");
        let Body::Write(write) = &packet.body else { panic!("placement of what is not data") };
        assert_eq!((rkey, va, len), (write.rkey, write.va, u32::from(packet.payload_len)));
        assert!(len > 0);
        let start = va.wrapping_sub(BASE);
        if rkey != RKEY || start.checked_add(u64::from(len)).is_none_or(|end| end > REGION) {
            return Err(AccessError);
        }
        assert!(self.placed.insert(packet.psn), "PSN {} is placed a second time", packet.psn);
        Ok(())
    }
    fn transmit(&mut self, transmit: Transmit) {
        assert_eq!(transmit.packet.dest_qp, REMOTE_QP);
        assert!(transmit.payload.is_none(), "not from memory");
        // Only a probe of full size has a payload: a duplicate of a packet that was sent before.
        let of_full_size = matches!(transmit.packet.body, Body::Write(_));
        assert_eq!(transmit.packet.payload_len, if of_full_size { self.path_mtu } else { 0 });
        self.out.push(transmit);
    }
    fn send_done(&mut self, done: SendDone) {
        assert_eq!(done.handle, self.completed, "out of order");
        assert!(self.completed < self.posted, "a completion too many");
        self.completed += 1;
    }
    fn recv_done(&mut self, _: RecvDone) -> Result<(), NoReceive> {
        self.receives = self.receives.checked_sub(1).ok_or(NoReceive::Refused)?;
        self.received += 1;
        Ok(())
    }
    fn may_probe_path(&mut self, _now: Time) -> bool {
        true
    }
    fn fatal(&mut self, why: Fatal) {
        assert!(self.fatal.is_none(), "fatal twice");
        self.fatal = Some(why);
    }
}

/// Counts of what happened, so that a test can check that something did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub queue_pairs: u64,
    pub placed: u64,
    pub received: u64,
    pub sent: u64,
    pub completed: u64,
    pub feedback: u64,
    pub failed: u64,
}

/// Drives queue pairs with `bytes`; when one fails, a new one takes its place.
///
/// If a queue pair breaks a rule.
pub fn drive_arbitrary(bytes: &[u8]) -> Tally {
    let mut reader = Reader(bytes);
    let mut tally = Tally::default();
    loop {
        drive_one(&mut reader, &mut tally);
        if reader.0.is_empty() {
            return tally;
        }
    }
}

/// Drives one queue pair until it fails or the bytes end.
fn drive_one(reader: &mut Reader<'_>, tally: &mut Tally) {
    let config = config(reader);
    let mut now = Time(reader.u64() >> 4);
    let mut qp = QueuePair::new(now, &config).expect("the configuration is valid");
    let mut watch = Watch { receives: 64, path_mtu: config.path_mtu, ..Watch::default() };
    // The responder is allocated when it is first used. Its memory is counted from the beginning.
    qp.set_receive_pressure(0.into());
    let memory = qp.state_bytes().0;
    let all = PortSet::first(PortSet::MAX_PORTS);
    // After a failure the queue pair is checked for a few more steps.
    let mut last_words = 5;
    tally.queue_pairs += 1;
    while !reader.0.is_empty() && last_words > 0 {
        let was_dead = watch.fatal.is_some();
        last_words -= u32::from(was_dead);
        let limit = match reader.u8() % 16 {
            0..8 => {
                let received = received(reader, &config, &watch);
                watch.in_hand = Some(received.packet);
                qp.handle_packet(now, &received, &mut watch);
                watch.in_hand = None;
                MAX_PER_PACKET
            }
            8 | 9 => {
                post(&mut qp, &mut watch, now, reader);
                0
            }
            10 | 11 => {
                let ports = reader.pick(&[
                    all,
                    all,
                    PortSet::one(0),
                    PortSet::one(1),
                    PortSet(reader.0.len() as u16),
                ]);
                for _ in 0..=reader.u8() {
                    let Some(transmit) = qp.poll_transmit(now, ports) else { break };
                    check_data(&transmit, ports, &config);
                    watch.next_psn = transmit.packet.psn;
                    tally.sent += 1;
                }
                0
            }
            12 => {
                // A driver that is on time, or one that is late.
                let due = qp.poll_timeout();
                now = if due == Time::NEVER { now + Span::from_micros(10) } else { now.max(due) };
                if reader.flag() {
                    now += Span(u64::from(reader.u32()) << (reader.u8() % 16));
                }
                serve_timers(&mut qp, &mut watch, now, max_per_timeout(config.paths.profile.entries().len()));
                usize::MAX
            }
            13 => {
                now += Span(u64::from(reader.u32()));
                0
            }
            14 => {
                match reader.u8() % 4 {
                    0 => qp.set_ports_up(now, PortSet(reader.u16()), PortSet(reader.u16())),
                    1 => {
                        let entries = config.paths.profile.entries();
                        qp.set_ev_denied(entries[usize::from(reader.u8()) % entries.len()], reader.flag());
                    }
                    2 => qp.set_advertised_mpr(reader.u8()),
                    _ => qp.set_receive_pressure(reader.u8().into()),
                }
                0
            }
            _ => {
                if reader.u8() == 77 {
                    qp.abort(now, Fatal::Local, &mut watch);
                }
                watch.receives += 16;
                0
            }
        };
        tally.feedback += watch.out.len() as u64;
        assert!(watch.out.len() <= limit, "{} packets at once: {:?}", watch.out.len(), watch.out);
        assert!(!was_dead || watch.out.len() <= 1, "a queue pair in ERROR sends {:?}", watch.out);
        watch.out.clear();
        if watch.fatal.is_some() {
            assert_eq!(watch.completed, watch.posted, "in ERROR with sends not flushed");
            assert_eq!(qp.readiness(), Readiness::Idle);
            assert_eq!(qp.poll_timeout(), Time::NEVER);
            assert_eq!(qp.poll_transmit(now, all), None);
        }
        let (bytes, stash) = qp.state_bytes();
        assert!(bytes - stash <= memory, "memory grows from {memory} to {}", bytes - stash);
    }
    tally.failed += u64::from(watch.fatal.is_some());
    // In any state, `abort` ends it.
    qp.abort(now, Fatal::Local, &mut watch);
    assert_eq!(watch.completed, watch.posted);
    tally.placed += watch.placed.len() as u64;
    tally.received += u64::from(watch.received);
    tally.completed += watch.completed;
}

fn config(reader: &mut Reader<'_>) -> QpConfig {
    let ports = reader.pick(&[1u8, 2, 4]);
    let per_port = reader.pick(&[1u32, 2, 7]);
    let path = |i, port| PathEntry { ev: Ev(i * 16 + u32::from(port)), port };
    let paths: Vec<_> = (0..per_port).flat_map(|i| (0..ports).map(move |port| path(i, port))).collect();
    let path_mtu = reader.pick(&[256u16, 1024, 4096]);
    let base_rtt = Span::from_micros(10);
    let (cc, trimming) = match reader.u8() % 3 {
        0 => (CcProfile::nscc(100_000_000_000, base_rtt, path_mtu, true), true),
        1 => (CcProfile::nscc(1_000_000_000, base_rtt, path_mtu, false), false),
        _ => (CcProfile::FixedWindow(1 << 20), true),
    };
    let profile = EvProfile::new(&paths).expect("there are paths");
    let mut config = {
        let paths = PathConfig::new(Arc::new(profile), PathModel::new(base_rtt, trimming));
        QpConfig::new(LOCAL_QP, REMOTE_QP, paths, Arc::new(cc))
    };
    config.path_mtu = path_mtu;
    config.requestor.sq_psn = Psn::new(reader.pick(&[0, 0xFF_FFF0, 0x80_0000]));
    config.responder.rq_psn = Psn::new(reader.pick(&[0, 0xFF_FFF0, 0x7F_FFFF]));
    config.requestor.mpr = reader.pick(&[1, 2, 16]);
    config.responder.mpr_dest = reader.pick(&[1, 2, 16]);
    config.requestor.max_wimm = reader.pick(&[1, 3, 128]);
    config.responder.max_wimm_dest = reader.pick(&[1, 3, 128]);
    config.requestor.max_send_wr = reader.pick(&[1, 5, 64]);
    config.requestor.linear_cnt = reader.u8() % 8;
    config.requestor.exp_cnt = reader.pick(&[0, 3, 25]);
    let flag = |bits: u8, bit: u8| bits >> bit & 1 == 1;
    let bits = reader.u8();
    config.caps = Capabilities {
        trim_nack: flag(bits, 0),
        dynamic_mpr: flag(bits, 1),
        service_time: flag(bits, 2),
        overflow_reports: flag(bits, 2),
    };
    config.requestor.options = RequestorOptions {
        can_send: if flag(bits, 3) { CanSend::Any } else { CanSend::Mtu },
        dfc: !flag(bits, 4),
        start_probe: !flag(bits, 5),
        ..RequestorOptions::default()
    };
    config.responder.options.trim_nack = !flag(bits, 6);
    if flag(bits, 7) {
        config.responder.options.out_of_window = OutOfWindow::Silent;
    }
    config.paths.rotation_turns = reader.pick(&[0, 1, 16]);
    config.paths.burst = reader.pick(&[1, 1, 8]);
    config.paths.active = (paths.len() as u16).div_ceil(2).max(u16::from(ports));
    config.paths.backup = paths.len() as u16 - config.paths.active;
    config.paths.min_active = (config.paths.active / 4).max(1);
    config.responder.ack_every_bytes = reader.pick(&[1, 4096, 16 * 1024]);
    config.requestor.options.spacing = reader.flag();
    config.seed = reader.u64();
    config
}

fn post(qp: &mut QueuePair, watch: &mut Watch, now: Time, reader: &mut Reader<'_>) {
    let len = match reader.u8() % 4 {
        0 => 0,
        1 => u32::from(reader.u8()),
        2 => u32::from(reader.u16()),
        _ => reader.u32() >> 12,
    };
    let wr = WorkRequest {
        handle: watch.posted,
        len,
        remote_va: reader.u64(),
        rkey: reader.u32(),
        imm: reader.flag().then(|| reader.u32()),
        solicited: reader.flag(),
    };
    if qp.post_send(now, wr).is_ok() {
        watch.posted += 1;
    }
}

/// Checks a data packet against the configuration.
fn check_data(transmit: &Transmit, ports: PortSet, config: &QpConfig) {
    assert!(ports.contains(transmit.port));
    let entry = config.paths.profile.entries()[transmit.path as usize];
    assert_eq!((entry.ev, entry.port), (transmit.ev, transmit.port));
    let Body::Write(write) = &transmit.packet.body else { panic!("polled {:?}", transmit.packet.body) };
    assert!(u32::from(transmit.packet.payload_len) <= write.dma_len);
    let offset = transmit.payload.map_or(0, |p| p.offset);
    assert!(offset + u32::from(transmit.packet.payload_len) <= write.dma_len);
}

/// Serves deadlines until none is in the past.
fn serve_timers(qp: &mut QueuePair, watch: &mut Watch, now: Time, most: usize) {
    for round in 0.. {
        watch.out.clear();
        qp.handle_timeout(now, watch);
        assert!(watch.out.len() <= most, "{:?}", watch.out);
        if qp.poll_timeout() > now {
            break;
        }
        assert!(round < 100, "the deadline does not move");
    }
}

fn received(reader: &mut Reader<'_>, config: &QpConfig, watch: &Watch) -> Received {
    let bits = reader.u8();
    let flag = |bit: u8| bits >> bit & 1 == 1;
    let (psn, body, payload_len) = body(reader, config, watch);
    let mut packet = Packet::new(LOCAL_QP, psn, body);
    packet.payload_len = payload_len;
    packet.ack_req = flag(0);
    packet.rtx = flag(1);
    packet.solicited = flag(2);
    packet.migrated = bits == 0xFF;
    let entries = config.paths.profile.entries();
    let path = entries[usize::from(reader.u8()) % entries.len()];
    let ev = if flag(3) { path.ev } else { Ev(reader.u32()) };
    let trim = match bits >> 6 {
        0 => Some(if flag(4) { Trim::Fabric } else { Trim::LastHop }),
        _ => None,
    };
    if trim.is_some() {
        packet.payload_len = 0;
    }
    Received { packet, ev, port: path.port, ecn_ce: flag(5), trim }
}

fn body(reader: &mut Reader<'_>, config: &QpConfig, watch: &Watch) -> (Psn, Body, u16) {
    // Data fills the first gap or arrives near it; feedback is about PSNs near the newest one sent.
    let mut expected = config.responder.rq_psn;
    while watch.placed.contains(&expected) {
        expected = expected.next();
    }
    let incoming = if reader.flag() { expected } else { expected.offset(reader.offset()) };
    let outgoing = watch.next_psn.offset(reader.offset());
    let ids =
        if reader.u8() > 4 { (REMOTE_QP as u16, LOCAL_QP as u16) } else { (reader.u16(), reader.u16()) };
    let (spdcid, dpdcid) = ids;
    let timestamp = Timestamp { ticks: reader.u16(), tsr: reader.flag() };
    let entries = config.paths.profile.entries();
    let known = entries[usize::from(reader.u8()) % entries.len()].ev;
    let entropy = if reader.u8() > 16 { known } else { Ev(reader.u32()) };
    let position = reader.pick(&[Position::First, Position::Middle, Position::Last, Position::Only]);
    match reader.u8() % 16 {
        0..7 => {
            let len = reader.pick(&[0, 1, 100, config.path_mtu, reader.0.len() as u16]);
            // Most packets have a length that fits their message.
            let mtu = config.path_mtu;
            let (len, dma_len) = match (reader.u8() > 8, position) {
                (true, Position::Only) => (len.min(mtu), u32::from(len.min(mtu))),
                (true, Position::First) => (mtu, u32::from(mtu) * 2),
                (true, Position::Middle) => (mtu, u32::from(mtu) * 3),
                (true, Position::Last) => (mtu, u32::from(mtu)),
                (false, _) => (len, if reader.u8() > 0 { 1 << 16 } else { reader.u32() }),
            };
            let write = Write {
                position,
                rqmsn: Msn(watch.received.wrapping_add(if reader.u8() > 2 { 0 } else { reader.u16() })),
                msn: Msn(reader.offset() as u16),
                timestamp: reader.flag().then_some(timestamp),
                va: if reader.u8() > 0 { BASE + u64::from(reader.u16()) } else { reader.u64() },
                rkey: if reader.u8() > 0 { RKEY } else { reader.u32() },
                dma_len,
                imm: (reader.u8() < if position.is_last() { 80 } else { 1 }).then(|| reader.u32()),
            };
            (incoming, Body::Write(write), len)
        }
        7..11 => {
            let sack = Sack {
                mark: reader.pick(&[Mark::None, Mark::None, Mark::SkipOnce, Mark::AlwaysSkip]),
                probe_reply: reader.flag(),
                ack_psn_offset: reader.offset() as i16,
                entropy,
                spdcid,
                dpdcid,
                cack_psn: outgoing,
                cc_type: Sack::CC_TYPE,
                cc_flags: reader.u8() & 15,
                mpr: reader.u8(),
                sack_offset: reader.offset() as i16,
                bitmap: reader.u64() >> (reader.u8() % 64),
                cc: CcState {
                    timestamp: timestamp.ticks,
                    ooo_count: reader.u16() & 0x7FFF,
                    restore_cwnd: reader.flag(),
                    rcv_cwnd_pen: reader.u8() & 127,
                    rcvd_bytes: reader.offset() as u32 & 0xFF_FFFF,
                },
            };
            (outgoing, Body::Sack(sack), 0)
        }
        11 => {
            let reason = reader.pick(&[
                NackReason::Trimmed,
                NackReason::TrimmedLastHop,
                NackReason::NoBitmap,
                NackReason::NoPktBuffer,
                NackReason::NoResource,
                NackReason::PsnOorWindow,
                NackReason::Trimmed,
            ]);
            let reason = if reader.u8() == 1 { NackReason::UnexpectedEvent } else { reason };
            let nack = Nack {
                reason,
                vendor_info: reader.u8(),
                entropy,
                spdcid,
                dpdcid,
                nack_psn: outgoing,
                cc_flags: 0,
                timestamp: timestamp.ticks,
            };
            (outgoing, Body::Nack(nack), 0)
        }
        12 => {
            let syndrome = if reader.u8() > 8 { Aeth::ACK } else { reader.u8() };
            let msn = (watch.completed as u32).wrapping_add_signed(reader.offset() / 16);
            (outgoing, Body::Ack(Aeth { syndrome, msn: msn & 0xFF_FFFF }), 0)
        }
        13 => {
            let probe = Probe { vendor_info: reader.u8(), probe_id: reader.u16(), spdcid, dpdcid, timestamp };
            (incoming, Body::Probe(probe), 0)
        }
        14 => {
            let op = reader.pick(&[EndpointOp::EvProbe, EndpointOp::PortStatusUpdate]);
            let request = Erth { op, vendor_info: 0, port_status_mask: reader.u32(), timestamp };
            let response = Eeth { op, timestamp: timestamp.ticks };
            let body =
                if reader.flag() { Body::EndpointRequest(request) } else { Body::EndpointResponse(response) };
            (incoming, body, 0)
        }
        _ => {
            let write = RcWrite { position, va: BASE, rkey: RKEY, dma_len: 64, imm: None };
            let ack = Aeth { syndrome: Aeth::ACK, msn: reader.u32() & 0xFF_FFFF };
            (incoming, reader.pick(&[Body::RcWrite(write), Body::RcAck(ack), Body::Cnp]), 0)
        }
    }
}
