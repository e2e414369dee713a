//! How many descriptors a device takes, with an io_uring and without.

mod common;

use std::net::IpAddr;
use std::sync::Mutex;

use common::*;
use openmrc_nic::*;
use openmrc_sockets::SendRing;
use openmrc_transport::PathEntry;
use openmrc_wire::Ev;

/// The descriptors of the process are counted by one test at a time.
static COUNTING: Mutex<()> = Mutex::new(());

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A device with the default number of paths.
fn with_ring(addrs: &[IpAddr], io_uring: bool) -> DeviceConfig {
    let mut config = DeviceConfig::with_addresses(addrs.iter().copied());
    config.sockets.io_uring = Some(io_uring);
    config
}

fn addrs(ports: usize) -> Vec<IpAddr> {
    device(ports).ports.iter().map(|port| port.addr).collect()
}

/// Writes arrive on every port.
fn write(a: &End, b: &End) {
    let data = pattern(3_000_000, 7);
    a.buffer.write(0, &data);
    for (wr_id, len) in [2, data.len()].into_iter().enumerate() {
        a.write(b, 0, 0, len, wr_id as u64);
        a.wait_success(1);
    }
    assert!(b.buffer.read(0, data.len()) == data);
    let stats = a.context.stats().unwrap();
    assert!(stats.ports.iter().all(|port| port.tx_packets > 0));
}

#[test]
fn a_device_takes_one_descriptor_for_all_its_paths_or_one_for_each() {
    let _alone = COUNTING.lock();
    let (before, options) = (open_descriptors(), Options { buffer: 3_000_000, ..Options::default() });
    let expected = |io_uring: bool| if io_uring && SendRing::new(1).is_ok() { 1 } else { 256 };
    for (one, other) in [(true, true), (true, false), (false, false)] {
        let (a, b) = (with_ring(&addrs(8), one), with_ring(&addrs(8), other));
        let a = End::open(a, &options);
        let opened = open_descriptors() - before;
        assert_eq!(a.context.stats().unwrap().send_descriptors, expected(one));
        // And a socket that receives for each of eight ports, epoll, netlink and events.
        assert!(opened <= 32 + expected(one) as usize, "{opened}");
        let b = End::open(b, &options);
        connect((&a.context, &a.qp), (&b.context, &b.qp), &options.attr);
        write(&a, &b);
        write(&b, &a);
        drop((a, b));
        assert_eq!(open_descriptors(), before);
    }
}

#[test]
fn paths_that_are_opened_later_are_in_the_ring_too_and_their_ports_are_free_when_the_device_is_closed() {
    let _alone = COUNTING.lock();
    let addrs = addrs(2);
    for _ in 0..3 {
        let context = Device::new(with_ring(&addrs, true)).unwrap().open().unwrap();
        let before = open_descriptors();
        let expected = context.stats().unwrap().send_descriptors;
        let paths: Vec<_> = (0..200).map(|i| PathEntry { port: i as u8 % 2, ev: Ev(20_000 + i) }).collect();
        let opened = paths.len();
        context.create_ev_profile(&EvProfileConfig { paths, ..EvProfileConfig::default() }).unwrap();
        if expected == 1 {
            assert_eq!((open_descriptors(), context.stats().unwrap().send_descriptors), (before, 1));
        } else {
            assert_eq!(open_descriptors(), before + opened);
        }
        context.close();
    }
}
