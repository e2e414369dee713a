//! What neither a peer nor another node on the network can do: memory stays unchanged, nothing is answered, every refusal
//! has its counter.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::*;
use openmrc_nic::*;
use openmrc_wire::{Body, DscpMap, IcrcSeed, Msn, Packet, Position, Psn, Write};

/// Posts a write that the peer must refuse and checks that its memory is unchanged; returns the status.
fn refused_write(a: &End, b: &End, change: impl Fn(&mut SendWr<'_>)) -> Status {
    b.buffer.write(0, &vec![0xEE; b.buffer.len()]);
    a.buffer.write(0, &pattern(20_000, 1));
    let sges = [a.sge(0, 20_000)];
    let mut request = a.request(b, 0, 1, &sges);
    change(&mut request);
    a.qp.post_send(&[request]).unwrap();
    let status = a.wait(1)[0].status;
    assert!(b.buffer.read(0, b.buffer.len()).iter().all(|&x| x == 0xEE), "the memory is untouched");
    assert_eq!(a.qp.state(), QpState::Error);
    status
}

/// Waits until a counter of `end` has reached `n`.
fn counted(end: &End, cause: Cause, n: u64) {
    let deadline = Instant::now() + PATIENCE;
    while end.cause(cause) < n {
        assert!(Instant::now() < deadline, "{} is {}, not {n}", cause.name(), end.cause(cause));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_with_an_unknown_key_is_refused() {
    let (a, b) = pair(2);
    assert_eq!(refused_write(&a, &b, |r| r.rkey ^= 1), Status::RemAccessErr);
    counted(&b, Cause::RkeyUnknown, 1);
}

#[test]
fn a_write_that_begins_before_or_ends_after_its_region_is_refused() {
    let size = Options::default().buffer as u64;
    for offset in [size, size - 1, size - 4095, u64::MAX, u64::MAX - 4094] {
        let (a, b) = pair(1);
        let status = refused_write(&a, &b, |r| r.remote_addr = r.remote_addr.wrapping_add(offset));
        assert_eq!(status, Status::RemAccessErr, "offset {offset:#x}");
        counted(&b, Cause::OutOfBounds, 1);
    }
}

#[test]
fn a_region_without_remote_write_is_not_written() {
    let (a, b) = pair(1);
    let quiet = Buffer::zeroed(30_000);
    let region = b.pd.register(&quiet, Access::LOCAL_WRITE).unwrap();
    let status = refused_write(&a, &b, |r| (r.remote_addr, r.rkey) = (region.addr(), region.rkey()));
    assert_eq!(status, Status::RemAccessErr);
    assert_eq!(quiet.read(0, 30_000), vec![0; 30_000]);
    counted(&b, Cause::NoRemoteWrite, 1);
}

#[test]
fn a_queue_pair_without_remote_write_takes_none() {
    let (a, b) = (End::open(device(1), &Options::default()), End::open(device(1), &Options::default()));
    let init = QpAttr { access: Some(Access::LOCAL_READ), ..QpAttr::default() };
    b.qp.modify(QpState::Init, &init).unwrap();
    b.qp.modify(
        QpState::Rtr,
        &QpAttr {
            dest_qp_num: Some(a.qp.qp_num()),
            rq_psn: Some(0xFF_FFF0),
            remote: Some(a.context.addresses()),
            ..QpAttr::default()
        },
    )
    .unwrap();
    to_rts(&a.qp, b.qp.qp_num(), b.context.addresses(), &QpAttr::default());
    assert_eq!(refused_write(&a, &b, |_| {}), Status::RemAccessErr);
    counted(&b, Cause::NoRemoteWrite, 1);
}

#[test]
fn a_region_of_another_protection_domain_is_not_written() {
    let (a, b) = pair(1);
    let other = b.context.alloc_pd().unwrap();
    let quiet = Buffer::zeroed(30_000);
    let region = other.register(&quiet, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE)).unwrap();
    let status = refused_write(&a, &b, |r| (r.remote_addr, r.rkey) = (region.addr(), region.rkey()));
    assert_eq!(status, Status::RemAccessErr);
    assert_eq!(quiet.read(0, 30_000), vec![0; 30_000]);
    counted(&b, Cause::PdMismatch, 1);
}

#[test]
fn a_key_is_unknown_once_its_region_is_deregistered() {
    let (a, b) = pair(1);
    let quiet = Buffer::zeroed(30_000);
    let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
    let mut region = b.pd.register(&quiet, access).unwrap();
    let stale = region.rkey();
    region.deregister();
    let again = b.pd.register(&quiet, access).unwrap();
    assert_ne!(again.rkey(), stale);
    let status = refused_write(&a, &b, |r| (r.remote_addr, r.rkey) = (again.addr(), stale));
    assert_eq!(status, Status::RemAccessErr);
    assert_eq!(quiet.read(0, 30_000), vec![0; 30_000]);
}

#[test]
fn a_zero_length_write_needs_no_key() {
    let (a, b) = pair(1);
    let mut request = a.request(&b, 0, 5, &[]);
    request.rkey ^= 0xFFFF;
    a.qp.post_send(&[request]).unwrap();
    assert_eq!(a.wait_success(1), [5]);
}

#[test]
fn sending_from_memory_that_is_not_ours_ends_in_loc_prot_err() {
    let bad: [fn(&End, &mut Sge); 3] = [
        |_, sge| sge.lkey ^= 1,
        |end, sge| sge.addr = end.region.addr() + end.region.len() as u64 - 1,
        |_, sge| sge.addr = sge.addr.wrapping_sub(1 << 40),
    ];
    for spoil in bad {
        let (a, b) = pair(1);
        let mut sge = a.sge(0, 100);
        spoil(&a, &mut sge);
        let (good, bad) = ([a.sge(0, 100)], [sge]);
        a.qp.post_send(&[a.request(&b, 0, 1, &good)]).unwrap();
        a.wait_success(1);
        a.qp.post_send(&[a.request(&b, 0, 2, &bad), a.request(&b, 0, 3, &good)]).unwrap();
        let done: Vec<_> = a.wait(2).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, [(2, Status::LocProtErr), (3, Status::WrFlushErr)]);
        assert_eq!(a.qp.state(), QpState::Error);
    }
}

#[test]
fn deregistering_under_a_send_fails_it_and_reads_no_more_of_the_memory() {
    // Nothing is sent before the port is up.
    let a = End::open(device(1), &Options::default());
    let nobody: SocketAddr = "127.1.251.1:4791".parse().unwrap();
    to_rts(&a.qp, 0x4001, vec![nobody], &QpAttr::default());
    let source = Buffer::zeroed(1 << 20);
    let mut region = a.pd.register(&source, Access::LOCAL_READ).unwrap();
    let sges = [Sge { addr: region.addr(), len: 1 << 20, lkey: region.lkey() }];
    let request = SendWr { remote_addr: 0, rkey: 1, ..a.request(&a, 0, 9, &sges) };
    a.context.set_port_admin(0, false).unwrap();
    a.qp.post_send(&[request]).unwrap();
    region.deregister();
    a.context.set_port_admin(0, true).unwrap();
    let done = a.wait(1)[0];
    assert_eq!((done.wr_id, done.status), (9, Status::LocProtErr));
}

#[test]
fn an_immediate_without_a_receive_ends_both_queue_pairs() {
    let (a, b) = pair(1);
    let sges = [a.sge(0, 10)];
    let mut request = a.request(&b, 0, 1, &sges);
    request.imm = Some(1);
    a.qp.post_send(&[request]).unwrap();
    assert_eq!(a.wait(1)[0].status, Status::RemOpErr);
    let deadline = Instant::now() + PATIENCE;
    while b.qp.state() != QpState::Error {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let fatal = std::iter::from_fn(|| b.context.events().next())
        .any(|e| matches!(e, AsyncEvent::QpFatal { qp_num, .. } if qp_num == b.qp.qp_num()));
    assert!(fatal);
}

#[test]
fn a_completion_queue_that_overruns_says_so_and_ends_its_queue_pairs() {
    let (a, b) = pair_with(device(1), device(1), &Options { cqe: 8, ..Options::default() });
    for i in 0..20 {
        a.write(&b, 0, 0, 10, i);
    }
    let deadline = Instant::now() + PATIENCE;
    while a.qp.state() != QpState::Error {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let kept = a.cq.poll(100).unwrap();
    assert_eq!(kept.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(matches!(a.cq.poll(1), Err(Error::CqOverrun(id)) if id == a.cq.handle()));
    let events: Vec<_> = std::iter::from_fn(|| a.context.events().next()).collect();
    assert!(events.contains(&AsyncEvent::CqError { cq: a.cq.handle() }), "{events:?}");
    assert!(events.iter().any(|e| matches!(e, AsyncEvent::QpFatal { .. })), "{events:?}");
}

/// A host on the network that builds its own packets.
struct Attacker {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Attacker {
    fn new(from: IpAddr, to: SocketAddr) -> Self {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        Attacker { socket, to }
    }

    /// The bytes of a write to `target`, with a correct iCRC.
    fn write(&self, target: &End, psn: u32, payload: &[u8]) -> Vec<u8> {
        let body = Body::Write(Write {
            position: Position::Only,
            rqmsn: Msn(0),
            msn: Msn(0),
            timestamp: None,
            va: target.region.addr(),
            rkey: target.region.rkey(),
            dma_len: payload.len() as u32,
            imm: None,
        });
        let packet = Packet {
            payload_len: payload.len() as u16,
            ..Packet::new(target.qp.qp_num(), Psn::new(psn), body)
        };
        self.seal(&packet, payload)
    }

    fn seal(&self, packet: &Packet, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; packet.header_len()];
        packet.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + packet.pad_len(), 0);
        self.reseal(&mut bytes);
        bytes
    }

    /// Replaces the iCRC by the right one.
    fn reseal(&self, bytes: &mut Vec<u8>) {
        self.reseal_as(bytes, 0);
    }

    /// Adds the iCRC of a packet whose IPv4 header has this identification: the receiver cannot see which one it has.
    fn reseal_as(&self, bytes: &mut Vec<u8>, identification: u16) {
        let from = self.socket.local_addr().unwrap();
        let seed = IcrcSeed::between(from.ip(), self.to.ip()).unwrap().identified(identification);
        let crc = seed.of_datagram(from.port(), self.to.port(), bytes);
        bytes.extend_from_slice(&crc);
    }

    /// From now on its packets have the code point of trimmed ones.
    fn send_as_trimmed(&self) {
        use std::os::fd::AsRawFd;
        let tos = i32::from(DscpMap::DEFAULT.trimmed << 2);
        // SAFETY: a live socket and an int.
        unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_IP, libc::IP_TOS, (&raw const tos).cast(), 4);
        }
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.to).unwrap();
    }
}

#[test]
fn malformed_packets_are_counted_by_cause_and_never_answered() {
    let (a, b) = pair(1);
    // From the peer's address, so that only the packet itself is wrong.
    let peer = a.context.addresses()[0].ip();
    let attacker = Attacker::new(peer, b.context.addresses()[0]);
    let good = attacker.write(&b, 0xFF_FFF0, b"12345678");
    let covered = &good[..good.len() - 4];
    let changed = |at: usize, value: u8| {
        let mut bytes = covered.to_vec();
        bytes[at] = value;
        attacker.reseal(&mut bytes);
        bytes
    };
    let cut = |len: usize| {
        let mut bytes = covered[..len].to_vec();
        attacker.reseal(&mut bytes);
        bytes
    };
    let cases: Vec<(Cause, Vec<u8>)> = vec![
        (Cause::Short, vec![]),
        (Cause::Short, vec![0xCA; 3]),
        (Cause::Short, cut(11)),
        (Cause::Short, cut(30)),
        (Cause::UnknownOpcode, changed(0, 0x04)),
        (Cause::BadTver, changed(1, 0x01)),
        (Cause::BadPad, {
            let mut b = cut(32);
            b[1] |= 0x30;
            let n = b.len();
            b.truncate(n - 4);
            attacker.reseal(&mut b);
            b
        }),
        (Cause::BadIcrc, {
            let mut b = good.clone();
            *b.last_mut().unwrap() ^= 0x80;
            b
        }),
        (Cause::BadIcrc, {
            let mut b = good.clone();
            b[40] ^= 1;
            b
        }),
        (Cause::UnknownQp, changed(7, covered[7] ^ 1)),
        (Cause::UnknownQp, changed(5, covered[5] ^ 0x80)),
    ];
    let mut expected = std::collections::HashMap::new();
    for (cause, bytes) in &cases {
        attacker.send(bytes);
        *expected.entry(*cause).or_insert(0) += 1;
    }
    for (cause, n) in expected {
        counted(&b, cause, n);
    }
    assert_eq!(b.buffer.read(0, 8), [0; 8]);
    assert!(attacker.socket.recv(&mut [0; 100]).is_err(), "nobody answers");
    let from_port = b.context.stats().unwrap().ports[0];
    assert_eq!(from_port.tx_packets, 0, "not a single packet was sent because of these");
    // The queue pair still works.
    a.write(&b, 0, 0, 1000, 1);
    a.wait_success(1);
}

/// A NIC with a counter of its own in the IPv4 identification, which the iCRC covers and a socket does not report.
#[test]
fn a_peer_that_numbers_its_ipv4_packets_is_understood_from_the_second_packet_on() {
    let (a, b) = pair(1);
    let peer = a.context.addresses()[0].ip();
    let attacker = Attacker::new(peer, b.context.addresses()[0]);
    let probe = |id: u16, identification: u16| {
        let probe = openmrc_wire::Probe {
            vendor_info: 0,
            probe_id: id,
            spdcid: 0,
            dpdcid: 0,
            timestamp: Default::default(),
        };
        let mut bytes = attacker.seal(&Packet::new(b.qp.qp_num(), Psn::new(0), Body::Probe(probe)), &[]);
        bytes.truncate(bytes.len() - 4);
        attacker.reseal_as(&mut bytes, identification);
        attacker.send(&bytes);
    };
    let answered = |n: u32| {
        let deadline = Instant::now() + PATIENCE;
        while b.qp.stats().unwrap().sacks_sent < n {
            assert!(Instant::now() < deadline, "probe {n} is not answered");
            std::thread::yield_now();
        }
    };
    probe(1, 17);
    answered(1);
    // Single packets may be corrupt ones.
    probe(2, 0x1234);
    counted(&b, Cause::BadIcrc, 1);
    probe(3, 0);
    answered(2);
    probe(4, 0x1235);
    counted(&b, Cause::BadIcrc, 2);
    for (n, identification) in [(3, 0x1236), (4, 0xFFFF), (5, 0)] {
        probe(n as u16 + 10, identification);
        answered(n);
    }
    counted(&b, Cause::BadIcrc, 2);
    let differences = b.context.stats().unwrap().differences;
    assert!(
        differences.iter().any(|(each, n)| each == openmrc_wire::Difference::Identification && n >= 2),
        "{differences:?}"
    );
}

#[test]
fn a_valid_packet_from_another_address_is_dropped() {
    let (_a, b) = pair(1);
    let attacker = Attacker::new("127.9.9.9".parse().unwrap(), b.context.addresses()[0]);
    attacker.send(&attacker.write(&b, 0xFF_FFF0, b"12345678"));
    counted(&b, Cause::WrongPeer, 1);
    assert_eq!(b.buffer.read(0, 8), [0; 8]);
    assert_eq!(b.context.stats().unwrap().ports[0].tx_packets, 0);
}

#[test]
fn endpoint_requests_of_unknown_nodes_are_not_answered_where_only_peers_are() {
    let config = || DeviceConfig {
        endpoint: EndpointConfig { answered: EpOps::Peers, ..EndpointConfig::default() },
        ..device(1)
    };
    let (_a, b) = pair_with(config(), config(), &Options::default());
    let attacker = Attacker::new("127.9.9.8".parse().unwrap(), b.context.addresses()[0]);
    let request = openmrc_wire::Erth {
        op: openmrc_wire::EndpointOp::EvProbe,
        vendor_info: 0,
        port_status_mask: 1,
        timestamp: Default::default(),
    };
    attacker.send(&attacker.seal(&Packet::new(2, Psn::new(1), Body::EndpointRequest(request)), &[]));
    counted(&b, Cause::WrongPeer, 1);
    assert!(attacker.socket.recv(&mut [0; 100]).is_err());
}

#[test]
fn a_number_of_a_queue_pair_that_is_gone_is_unknown() {
    let (a, b) = pair(1);
    let old = b.qp.qp_num();
    let peer = a.context.addresses()[0].ip();
    let attacker = Attacker::new(peer, b.context.addresses()[0]);
    let packet = attacker.write(&b, 0xFF_FFF0, b"12345678");
    b.qp.destroy();
    let newer = b.pd.create_qp(&b.cq, &b.cq, QpCap::default(), false).unwrap();
    assert_ne!(newer.qp_num(), old);
    attacker.send(&packet);
    counted(&b, Cause::UnknownQp, 1);
    assert_eq!(b.buffer.read(0, 8), [0; 8]);
}

#[test]
fn thousands_of_random_packets_change_nothing() {
    let (a, b) = pair(1);
    let peer = a.context.addresses()[0].ip();
    let attacker = Attacker::new(peer, b.context.addresses()[0]);
    let good = attacker.write(&b, 0x00_1000, b"12345678");
    let before = b.context.stats().unwrap().ports[0].rx_packets;
    let mut sent = 0;
    for round in 0..3000u64 {
        let mut bytes = if round % 2 == 0 { good.clone() } else { pattern((round % 200) as usize, round) };
        if let Some(at) = bytes.len().checked_sub(1) {
            let noise = pattern(8, round + 7);
            bytes[usize::from(noise[0]) % (at + 1)] ^= noise[1] | 1;
        }
        attacker.send(&bytes);
        sent += 1;
        if round % 64 == 63 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while b.context.stats().unwrap().ports[0].rx_packets < before + sent {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(b.buffer.read(0, b.buffer.len()), vec![0; b.buffer.len()]);
    a.write(&b, 0, 0, 1000, 1);
    a.wait_success(1);
}

#[test]
fn a_control_packet_with_a_trimmed_code_point_is_handled_if_it_is_whole() {
    let (a, b) = pair(1);
    let attacker = Attacker::new(a.context.addresses()[0].ip(), b.context.addresses()[0]);
    attacker.send_as_trimmed();
    let probe = openmrc_wire::Probe {
        vendor_info: 0,
        probe_id: 7,
        spdcid: 0,
        dpdcid: 0,
        timestamp: Default::default(),
    };
    let bytes = attacker.seal(&Packet::new(b.qp.qp_num(), Psn::new(0), Body::Probe(probe)), &[]);
    // Cut short, then with a wrong iCRC: dropped and counted.
    attacker.send(&bytes[..bytes.len() - 5]);
    counted(&b, Cause::Short, 1);
    attacker.send(&bytes[..bytes.len() - 4]);
    counted(&b, Cause::TrimmedControl, 1);
    let mut wrong = bytes.clone();
    *wrong.last_mut().unwrap() ^= 1;
    attacker.send(&wrong);
    counted(&b, Cause::BadIcrc, 1);
    assert_eq!(b.qp.stats().unwrap().sacks_sent, 0);
    attacker.send(&bytes);
    let deadline = Instant::now() + PATIENCE;
    while b.qp.stats().unwrap().sacks_sent == 0 {
        assert!(Instant::now() < deadline, "the probe is not answered");
        std::thread::yield_now();
    }
}

#[test]
fn a_trimmed_packet_is_known_by_its_dscp_and_places_nothing() {
    let (a, b) = pair(1);
    let peer = a.context.addresses()[0].ip();
    let attacker = Attacker::new(peer, b.context.addresses()[0]);
    let mut bytes = attacker.write(&b, 0xFF_FFF0, &[7; 4000]);
    attacker.send_as_trimmed();
    // Down to the BTH, which has all that a NACK needs.
    for (sent, kept) in [(1, 32), (2, 31), (3, 16), (4, 12)] {
        bytes.truncate(kept);
        attacker.send(&bytes);
        let deadline = Instant::now() + PATIENCE;
        while b.qp.stats().unwrap().trimmed_in < sent {
            assert!(Instant::now() < deadline, "{kept} bytes");
            std::thread::yield_now();
        }
    }
    bytes.truncate(11);
    attacker.send(&bytes);
    counted(&b, Cause::Short, 1);
    assert_eq!(b.buffer.read(0, 4000), vec![0; 4000]);
}
