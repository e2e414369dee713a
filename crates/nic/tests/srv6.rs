//! SRv6 mode over veth pairs between two network namespaces; needs root. The lab's Python tests cover switches.

mod common;

use std::fs::File;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::*;
use openmrc_nic::*;
use openmrc_transport::PathEntry;
use openmrc_wire::{Ev, EvFormat};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Two hosts with a veth pair per port. Each end has a route for uSID lists by each port to the other.
struct Hosts {
    names: [String; 2],
    ports: usize,
}

impl Hosts {
    /// `None`, and a message, without root.
    fn up(ports: usize) -> Option<Self> {
        // SAFETY: no pointers.
        if unsafe { libc::geteuid() } != 0 {
            skipped("network namespaces need root");
            return None;
        }
        if !has_ip() {
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|end| format!("openmrc-srv6-{}-{number}{end}", std::process::id()));
        let hosts = Hosts { names, ports };
        for name in &hosts.names {
            ip(&format!("netns add {name}"));
        }
        let [a, b] = &hosts.names;
        for port in 0..ports {
            ip(&format!(
                "link add p{port} netns {a} mtu 9216 type veth peer name p{port} netns {b} mtu 9216"
            ));
            for end in 0..2 {
                hosts.ip(end, &format!("address add {}/64 dev p{port} nodad", address(end, port)));
                hosts.ip(end, &format!("link set p{port} up"));
            }
        }
        for end in 0..2 {
            for port in 0..ports {
                hosts.ip(
                    end,
                    &format!("-6 route add 5f00:{port}::/32 via {} dev p{port}", address(1 - end, port)),
                );
            }
        }
        Some(hosts)
    }

    fn ip(&self, end: usize, command: &str) {
        ip(&format!("-n {} {command}", self.names[end]));
    }

    /// Runs `run` on a thread in the namespace of an end.
    fn at<T: Send>(&self, end: usize, run: impl FnOnce() -> T + Send) -> T {
        let space = File::open(format!("/run/netns/{}", self.names[end])).unwrap();
        std::thread::scope(|scope| {
            let entered = scope.spawn(move || {
                // SAFETY: no pointers; the descriptor is open.
                assert_eq!(unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                run()
            });
            entered.join().unwrap()
        })
    }

    fn open(&self, end: usize) -> End {
        let addrs = (0..self.ports).map(|port| address(end, port).into());
        let config = DeviceConfig {
            entropy: EntropyConfig { format: EvFormat::Srv6, ..EntropyConfig::default() },
            seed: Some(end as u64),
            ..DeviceConfig::with_addresses(addrs)
        };
        self.at(end, || End::open(config, &Options::default()))
    }

    /// Both ends, connected, with four paths per port.
    fn connected(&self) -> (End, End) {
        let (a, b) = (self.open(0), self.open(1));
        for (one, two) in [(&a, &b), (&b, &a)] {
            one.context.create_ev_profile(&profile(self.ports, &two.context.addresses())).unwrap();
        }
        connect((&a.context, &a.qp), (&b.context, &b.qp), &Options::default().attr);
        (a, b)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

fn ip(command: &str) {
    let done = Command::new("ip").args(command.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {command}: {}", String::from_utf8_lossy(&done.stderr));
}

fn address(end: usize, port: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xFD5F, 0, 0, port as u16, 0, 0, 0, 1 + end as u16)
}

fn route(port: usize, number: usize) -> SegmentRoute {
    SegmentRoute {
        destination: Ipv6Addr::new(0x5F00, port as u16, 1 + number as u16, 0xE000, 0, 0, 0, 0),
        segment: None,
    }
}

fn profile(ports: usize, peer: &[SocketAddr]) -> EvProfileConfig {
    let all = || (0..ports).flat_map(|port| (0..4).map(move |number| (port, number)));
    EvProfileConfig {
        paths: all()
            .map(|(port, number)| PathEntry {
                ev: Ev((port << 31 | number << 29 | number) as u32),
                port: port as u8,
            })
            .collect(),
        routes: all().map(|(port, number)| route(port, number)).collect(),
        peer: peer.to_vec(),
        active: Some(4 * ports as u16),
        ..EvProfileConfig::default()
    }
}

/// Writes the whole buffer from `a` to `b` and compares.
fn write_and_compare(a: &End, b: &End, round: u8) {
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| ((i * 31) >> 3) as u8 ^ round).collect();
    a.buffer.write(0, &data);
    for (i, len) in [1000, 100_000, 1, 900_000].into_iter().enumerate() {
        let from = [0, 1000, 101_000, 101_001][i];
        a.write(b, from, from, len, i as u64);
    }
    a.wait_success(4);
    assert!(b.buffer.read(0, 1_001_001) == data[..1_001_001]);
}

#[test]
fn writes_arrive_over_every_path() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = hosts.connected();
    write_and_compare(&a, &b, 1);
    write_and_compare(&b, &a, 2);
    for end in [&a, &b] {
        let paths = end.context.path_stats().unwrap();
        assert_eq!(paths.len(), 8);
        assert!(paths.iter().all(|p| p.tx_packets > 0 && p.route.is_some()), "{paths:?}");
        let causes = end.context.stats().unwrap().causes;
        assert!(causes.iter().all(|(_, count)| count == 0), "{causes:?}");
    }
}

/// A frame from one end's port to the other's with the given SRH, and four bytes where the BTH should be.
fn frame_with(srh: &[u8], from: (Ipv6Addr, [u8; 6]), to: (SocketAddr, [u8; 6])) -> Vec<u8> {
    let SocketAddr::V6(peer) = to.0 else { unreachable!("IPv6") };
    let ip = |len: usize, next_header: u8, dst: Ipv6Addr| {
        let mut header = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, next_header, 64];
        header.extend(from.0.octets());
        header.extend(dst.octets());
        header
    };
    let mut frame = [to.1, from.1].concat();
    frame.extend([0x86, 0xDD]);
    frame.extend(ip(srh.len() + 52, 43, "5f00:0:1:e000::".parse().unwrap()));
    frame.extend(srh);
    frame.extend(ip(12, 17, *peer.ip()));
    frame.extend([0x12, 0x34]);
    frame.extend(peer.port().to_be_bytes());
    frame.extend([0, 12, 0, 0, 1, 2, 3, 4]);
    frame
}

#[test]
fn any_srh_is_skipped_at_the_end_of_its_path_and_refused_before() {
    let Some(hosts) = Hosts::up(1) else { return };
    let (a, b) = hosts.connected();
    write_and_compare(&a, &b, 1);
    let mac = |end| hosts.at(end, || openmrc_sockets::Socket::packet().unwrap().mac_of("p0").unwrap());
    let (from, to) = ((address(0, 0), mac(0)), (b.context.addresses()[0], mac(1)));
    let list = |len: u8, left: u8, last: u8| {
        let mut srh = vec![41, len, 4, left, last, 0, 0, 0];
        srh.extend(vec![0x5F; 8 * usize::from(len)]);
        srh
    };
    // One segment; two, as Linux's encapsulation writes; one with a TLV of eight bytes; one hundred and two.
    let ended = [list(2, 0, 0), list(4, 0, 1), list(3, 0, 0), list(204, 0, 101)];
    let unfinished = [list(2, 1, 0), list(4, 1, 1), list(4, 2, 1), list(2, 0, 1)];
    let before = (b.cause(Cause::Short), b.cause(Cause::BadSrh));
    hosts.at(0, || {
        let socket = openmrc_sockets::Socket::packet().unwrap();
        let index = openmrc_sockets::interface::index_of("p0").unwrap();
        socket.bind_interface(index, 0).unwrap();
        for srh in ended.iter().chain(&unfinished) {
            let frame = frame_with(srh, from, to);
            // SAFETY: the frame is valid for its length.
            let sent = unsafe { libc::send(socket.fd(), frame.as_ptr().cast(), frame.len(), 0) };
            assert_eq!(sent, frame.len() as isize);
        }
    });
    let begin = Instant::now();
    let seen = || (b.cause(Cause::Short) - before.0, b.cause(Cause::BadSrh) - before.1);
    while seen() != (ended.len() as u64, unfinished.len() as u64) {
        assert!(begin.elapsed() < PATIENCE, "{:?} of (4, 4) were counted", seen());
        std::thread::sleep(Duration::from_millis(1));
    }
    write_and_compare(&a, &b, 2);
}

#[test]
fn every_byte_arrives_over_an_impaired_network() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = hosts.connected();
    let kinds = [
        Impairment::Drop,
        Impairment::Duplicate,
        Impairment::Reorder { packets: 5, at_most: Duration::from_millis(1) },
        Impairment::Corrupt { bits: 2 },
        Impairment::Delay { delay: Duration::from_micros(200), jitter: Duration::from_micros(200) },
        Impairment::Trim { last_hop: false },
        Impairment::EcnMark,
    ];
    let rules = |seed| {
        let rule = |kind| ImpairRule { probability: 0.02, ..ImpairRule::new(kind) };
        (kinds.into_iter().map(rule).collect(), seed)
    };
    for (end, seed) in [(&a, 1), (&b, 2)] {
        let (rules, seed) = rules(seed);
        end.context.set_impairments(rules, seed).unwrap();
    }
    for round in 0..5 {
        write_and_compare(&a, &b, round);
    }
    assert!(a.context.impairment_hits().unwrap().iter().all(|&hits| hits > 0));
    assert!(b.cause(Cause::BadIcrc) > 0);
    assert!(b.qp.stats().unwrap().trimmed_in > 0);
    assert!(b.context.stats().unwrap().ports.iter().any(|port| port.rx_ecn_marked > 0));
}

#[test]
fn a_port_that_goes_down_is_avoided_and_used_again_once_it_is_up() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = hosts.connected();
    let until = |wanted: usize| {
        let deadline = Instant::now() + PATIENCE;
        while [&a, &b].iter().any(|end| end.qp.ports_up().unwrap().iter().count() != wanted) {
            assert!(Instant::now() < deadline);
            write_and_compare(&a, &b, 3);
        }
    };
    until(2);
    // The other end loses its carrier and keeps its configuration.
    hosts.ip(1, "link set p0 down");
    until(1);
    write_and_compare(&a, &b, 4);
    hosts.ip(1, "link set p0 up");
    hosts.ip(1, &format!("address replace {}/64 dev p0 nodad", address(1, 0)));
    hosts.ip(1, &format!("-6 route replace 5f00:0::/32 via {} dev p0", address(0, 0)));
    until(2);
}

#[test]
fn a_network_that_swallows_full_packets_is_named_before_anything_is_written() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = hosts.connected();
    hosts.at(0, || a.qp.prove_path_mtu()).unwrap();
    // The far end of a veth pair drops what is longer than its own MTU, and tells nobody.
    hosts.ip(1, "link set p1 mtu 3000");
    let error = hosts.at(0, || a.qp.prove_path_mtu()).unwrap_err().to_string();
    for part in ["path_mtu 4096", &address(1, 1).to_string()] {
        assert!(error.contains(part), "{error:?} should name {part}");
    }
    assert!(!error.contains(&address(1, 0).to_string()), "{error:?} names a port that passes");
    hosts.ip(1, "link set p1 mtu 9216");
    hosts.at(0, || a.qp.prove_path_mtu()).unwrap();
    write_and_compare(&a, &b, 1);
}

#[test]
fn a_plane_that_swallows_full_packets_holds_nothing_back() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = hosts.connected();
    hosts.ip(1, "link set p1 mtu 3000");
    write_and_compare(&a, &b, 1);
    let refused = || {
        a.context.stats().unwrap().causes.iter().find(|(cause, _)| *cause == Cause::TxNoBuffers).unwrap().1
    };
    let begin = Instant::now();
    while refused() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "the plane still holds its packets");
        std::thread::sleep(Duration::from_millis(1));
    }
    hosts.ip(1, "link set p1 mtu 9216");
    write_and_compare(&a, &b, 2);
}

#[test]
fn a_next_hop_with_another_mac_address_is_found() {
    let Some(hosts) = Hosts::up(1) else { return };
    let (a, b) = hosts.connected();
    write_and_compare(&a, &b, 1);
    let tell = ["netns", "exec", &hosts.names[1], "sysctl", "-qw", "net.ipv6.conf.p0.ndisc_notify=1"];
    assert!(Command::new("ip").args(tell).status().unwrap().success());
    hosts.ip(1, "link set p0 address 02:00:00:00:00:77");
    write_and_compare(&a, &b, 2);
}

#[test]
fn impossible_configurations_are_refused_with_the_reason() {
    let Some(hosts) = Hosts::up(2) else { return };
    let (a, b) = (hosts.open(0), hosts.open(1));
    let good = profile(2, &b.context.addresses());
    let refused = |config: &EvProfileConfig, words: &str| {
        let error = a.context.create_ev_profile(config).unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} should say {words:?}");
    };
    let wrong_plane = vec![route(1, 0); 8];
    refused(&EvProfileConfig { routes: wrong_plane, ..good.clone() }, "port 0: no route to 5f00:1:1:e000::");
    refused(&EvProfileConfig { routes: Vec::new(), ..good.clone() }, "8 paths in SRv6 mode");
    refused(&EvProfileConfig { peer: Vec::new(), ..good.clone() }, "a peer");
    let one_port = b.context.addresses()[..1].to_vec();
    refused(&EvProfileConfig { peer: one_port, ..good.clone() }, "no address on port 1");
    hosts.ip(0, "-6 route add 5f01::/16 dev p0");
    let silent = SegmentRoute { destination: "5f01:0:1::".parse().unwrap(), segment: None };
    let alone = EvProfileConfig {
        paths: good.paths[..1].to_vec(),
        routes: vec![silent],
        active: Some(1),
        ..good.clone()
    };
    refused(&alone, "no neighbour answers for 5f01:0:1:: on p0");
    let refused = a.context.add_peer(&b.context.addresses()).unwrap_err().to_string();
    assert!(refused.contains("no EV profile has SRv6 paths"), "{refused}");
    a.context.create_ev_profile(&good).unwrap();
    a.context.add_peer(&b.context.addresses()).unwrap();

    // Only one device can use an address and UDP port, whatever its mode.
    let udp = DeviceConfig::with_addresses([address(0, 0).into()]);
    let taken = hosts.at(0, || Device::new(udp.clone()).unwrap().open().map(drop)).unwrap_err();
    assert!(taken.to_string().contains("in use"), "{taken}");
    let v4 = DeviceConfig {
        entropy: EntropyConfig { format: EvFormat::Srv6, ..EntropyConfig::default() },
        ..DeviceConfig::loopback(1, 1)
    };
    assert!(Device::new(v4).unwrap_err().to_string().contains("IPv6"));
}
