//! Real interfaces in separate network namespaces: links that go down, addresses that are removed, a small MTU. They need
//! root and iproute2, and one needs a token bucket filter in the kernel. Without these they say what is missing and pass;
//! in CI, as root, they fail.

mod common;

use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::*;
use openmrc_nic::*;
use openmrc_transport::PortSet;

/// Runs `test` on a thread in a new network namespace.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !has_ip() {
        return;
    }
    std::thread::spawn(|| {
        // SAFETY: no pointers; only this thread changes.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            skipped("network namespaces need root");
            return;
        }
        ip("link set lo up");
        test();
    })
    .join()
    .unwrap();
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A veth pair: d`i` has the address 10.9.`i`.1, and nothing listens at its other end.
fn link(i: usize) {
    ip(&format!("link add d{i} type veth peer name e{i}"));
    ip(&format!("link set e{i} up"));
    ip(&format!("addr add 10.9.{i}.1/24 dev d{i}"));
    ip(&format!("link set d{i} up"));
}

fn config(addrs: &[&str]) -> DeviceConfig {
    let addrs: Vec<IpAddr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
    DeviceConfig {
        entropy: EntropyConfig { per_port: Some(8), ..EntropyConfig::default() },
        seed: Some(1),
        ..DeviceConfig::with_addresses(addrs)
    }
}

/// Waits until these ports are up, and discards the events until then: a link needs a moment to come up.
fn wait_up(context: &Context, ports: PortSet) {
    let deadline = Instant::now() + PATIENCE;
    while context.ports_up().unwrap() != ports {
        assert!(Instant::now() < deadline, "the links never came up");
        std::thread::sleep(Duration::from_millis(1));
    }
    while context.events().next().is_some() {}
}

fn wait_event(context: &Context, event: AsyncEvent) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match context.events().next() {
            Some(found) if found == event => return,
            Some(_) => {}
            None => {
                assert!(Instant::now() < deadline, "{event:?} never came");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn a_port_follows_its_link_and_its_address() {
    in_namespace(|| {
        for i in 0..2 {
            link(i);
        }
        let end = End::open(config(&["10.9.0.1", "10.9.1.1"]), &Options::default());
        wait_up(&end.context, PortSet::first(2));
        // A peer that never answers. Sending to it must survive every change of the links.
        let nobody = vec!["10.9.0.2:4791".parse().unwrap(), "10.9.1.2:4791".parse().unwrap()];
        let attr = QpAttr { path_mtu: Some(1024), exp_cnt: Some(25), ..QpAttr::default() };
        to_rts(&end.qp, 0x4001, nobody, &attr);
        let sges = [end.sge(0, 100_000)];
        end.qp.post_send(&[SendWr { rkey: 1, ..end.request(&end, 0, 1, &sges) }]).unwrap();

        ip("link set d1 down");
        wait_event(&end.context, AsyncEvent::PortDown(1));
        assert_eq!(end.context.ports_up().unwrap(), PortSet::one(0));
        assert_eq!(end.qp.ports_up().unwrap(), PortSet::one(0));
        ip("link set d1 up");
        wait_event(&end.context, AsyncEvent::PortUp(1));
        ip("addr del 10.9.0.1/24 dev d0");
        wait_event(&end.context, AsyncEvent::PortDown(0));
        ip("addr add 10.9.0.1/24 dev d0");
        wait_event(&end.context, AsyncEvent::PortUp(0));
        ip("link del d0");
        wait_event(&end.context, AsyncEvent::PortDown(0));
        let ports = end.context.port_states().unwrap();
        assert!(!ports[0].link_up && ports[0].admin_up && ports[1].link_up);
        assert_eq!(end.qp.state(), QpState::Rts);
    });
}

#[test]
fn a_path_mtu_beyond_the_interface_mtu_is_refused_with_the_largest_possible() {
    in_namespace(|| {
        link(0);
        let end = End::open(config(&["10.9.0.1"]), &Options::default());
        end.qp.modify(QpState::Init, &QpAttr::default()).unwrap();
        let attr = QpAttr {
            dest_qp_num: Some(0x4001),
            rq_psn: Some(0),
            remote: Some(vec!["10.9.0.2:4791".parse().unwrap()]),
            ..QpAttr::default()
        };
        let error = end.qp.modify(QpState::Rtr, &attr).unwrap_err().to_string();
        assert!(
            error.contains("4096") && error.contains("d0 has 1500") && error.contains("at most 14"),
            "{error}"
        );
        end.qp.modify(QpState::Rtr, &QpAttr { path_mtu: Some(1408), ..attr }).unwrap();
    });
}

#[test]
fn writes_cross_a_real_link_and_survive_one_of_two_going_down() {
    in_namespace(|| {
        // The peer has a namespace of its own, on another thread.
        let (there_tx, there_rx) = mpsc::channel();
        let (end_tx, end_rx) = mpsc::channel();
        let (go_tx, go_rx) = mpsc::channel::<()>();
        let peer = std::thread::spawn(move || {
            // SAFETY: as above; the first namespace could be made, so this one can.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            // SAFETY: no pointers.
            there_tx.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            go_rx.recv().unwrap();
            for i in 0..2 {
                ip(&format!("addr add 10.9.{i}.2/24 dev w{i}"));
                ip(&format!("link set w{i} up"));
            }
            end_tx.send(End::open(config(&["10.9.0.2", "10.9.1.2"]), &Options::default())).unwrap();
            // The namespace and its interfaces exist as long as this thread or a socket in it.
            let _ = go_rx.recv();
        });
        let tid = there_rx.recv().unwrap();
        for i in 0..2 {
            ip(&format!("link add v{i} type veth peer name w{i}"));
            ip(&format!("link set w{i} netns {tid}"));
            ip(&format!("addr add 10.9.{i}.1/24 dev v{i}"));
            ip(&format!("link set v{i} up"));
        }
        go_tx.send(()).unwrap();
        let b = end_rx.recv().unwrap();
        let a = End::open(config(&["10.9.0.1", "10.9.1.1"]), &Options::default());
        wait_up(&a.context, PortSet::first(2));
        wait_up(&b.context, PortSet::first(2));
        let attr = QpAttr { path_mtu: Some(1024), timeout: Some(12), exp_cnt: Some(25), ..QpAttr::default() };
        connect((&a.context, &a.qp), (&b.context, &b.qp), &attr);
        let data = pattern(900_000, 1);
        a.buffer.write(0, &data);
        a.write(&b, 0, 0, data.len(), 1);
        a.wait_success(1);
        assert!(b.buffer.read(0, data.len()) == data);
        let used = a.context.stats().unwrap().ports.iter().filter(|p| p.tx_packets > 100).count();
        assert_eq!(used, 2, "both planes carry");

        b.buffer.write(0, &vec![0; data.len()]);
        a.write(&b, 0, 0, data.len(), 2);
        ip("link set v1 down");
        a.wait_success(1);
        assert!(b.buffer.read(0, data.len()) == data);
        wait_event(&a.context, AsyncEvent::PortDown(1));
        a.write(&b, 0, 0, data.len(), 3);
        b.write(&a, 0, 0, data.len(), 4);
        assert_eq!((a.wait_success(1), b.wait_success(1)), (vec![3], vec![4]));
        drop(go_tx);
        peer.join().unwrap();
    });
}

#[test]
fn a_link_slower_than_the_sender_delays_packets_and_loses_none() {
    slow_link(true);
}

#[test]
fn so_does_one_whose_sockets_have_descriptors() {
    slow_link(false);
}

fn slow_link(io_uring: bool) {
    in_namespace(move || {
        let (there_tx, there_rx) = mpsc::channel();
        let (end_tx, end_rx) = mpsc::channel();
        let (go_tx, go_rx) = mpsc::channel::<()>();
        let peer = std::thread::spawn(move || {
            // SAFETY: as above.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            // SAFETY: no pointers.
            there_tx.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            go_rx.recv().unwrap();
            ip("addr add 10.9.0.2/24 dev w0");
            ip("link set w0 up");
            end_tx.send(End::open(config(&["10.9.0.2"]), &Options::default())).unwrap();
            let _ = go_rx.recv();
        });
        let tid = there_rx.recv().unwrap();
        ip("link add v0 type veth peer name w0");
        ip(&format!("link set w0 netns {tid}"));
        ip("addr add 10.9.0.1/24 dev v0");
        ip("link set v0 up");
        // Packets queued here use the send buffer of their socket until it is full.
        let tc = "qdisc add dev v0 root tbf rate 400mbit burst 64kb limit 10mb";
        let limited = Command::new("tc").args(tc.split(' ')).status().is_ok_and(|s| s.success());
        if !limited {
            skipped("no token bucket filter in this kernel");
            return;
        }
        go_tx.send(()).unwrap();
        let b = end_rx.recv().unwrap();
        let slow = DeviceConfig {
            sockets: SocketConfig {
                send_buffer: 4 << 10,
                io_uring: Some(io_uring),
                ..SocketConfig::default()
            },
            ..config(&["10.9.0.1"])
        };
        let a = End::open(slow, &Options::default());
        wait_up(&a.context, PortSet::first(1));
        wait_up(&b.context, PortSet::first(1));
        let attr = QpAttr { path_mtu: Some(1024), timeout: Some(16), exp_cnt: Some(25), ..QpAttr::default() };
        connect((&a.context, &a.qp), (&b.context, &b.qp), &attr);
        let data = pattern(900_000, 3);
        a.buffer.write(0, &data);
        for polling in [false, true] {
            let held = a.cause(Cause::TxHeld);
            b.buffer.write(0, &vec![0; data.len()]);
            let polling = polling.then(|| a.context.polling());
            for wr_id in 0..3 {
                a.write(&b, 0, 0, data.len(), wr_id);
            }
            let mut done = Vec::new();
            while done.len() < 3 {
                if polling.is_none() {
                    a.cq.wait(PATIENCE);
                }
                a.cq.poll_into(3, &mut done).unwrap();
            }
            assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
            assert!(b.buffer.read(0, data.len()) == data);
            assert!(a.cause(Cause::TxHeld) > held, "the kernel said no at times");
            // What a pause of the machine makes look lost turns out to have arrived.
            let stats = a.qp.stats().unwrap();
            assert_eq!(stats.lost, stats.spurious, "{stats:?}");
        }
        drop(go_tx);
        peer.join().unwrap();
    });
}

#[test]
fn a_port_whose_address_is_absent_is_down_until_the_address_comes() {
    in_namespace(|| {
        link(0);
        let end = End::open(config(&["10.9.0.1", "10.9.1.1"]), &Options::default());
        wait_event(&end.context, AsyncEvent::PortDown(1));
        wait_up(&end.context, PortSet::one(0));
        link(1);
        wait_event(&end.context, AsyncEvent::PortUp(1));
        assert_eq!(end.context.ports_up().unwrap(), PortSet::first(2));
    });
}

#[test]
fn a_device_none_of_whose_addresses_is_of_this_host_is_refused() {
    in_namespace(|| {
        let device = Device::new(config(&["10.9.0.1", "10.9.1.1"])).unwrap();
        let error = device.open().err().unwrap().to_string();
        assert!(error.contains("10.9.0.1:4791, 10.9.1.1:4791"), "{error}");
    });
}

#[test]
fn an_interface_that_refuses_long_packets_takes_its_plane_out() {
    in_namespace(|| {
        for i in 0..2 {
            link(i);
        }
        let end = End::open(config(&["10.9.0.1", "10.9.1.1"]), &Options::default());
        wait_up(&end.context, PortSet::first(2));
        let nobody = vec!["10.9.0.2:4791".parse().unwrap(), "10.9.1.2:4791".parse().unwrap()];
        let attr = QpAttr { path_mtu: Some(1024), exp_cnt: Some(25), ..QpAttr::default() };
        to_rts(&end.qp, 0x4001, nobody, &attr);
        ip("link set d1 mtu 1000");
        let sges = [end.sge(0, 100_000)];
        end.qp.post_send(&[SendWr { rkey: 1, ..end.request(&end, 0, 1, &sges) }]).unwrap();
        let usable = |port| {
            let states = end.qp.ev_states().unwrap();
            states.iter().filter(|(path, state)| path.port == port && state.usable()).count()
        };
        let deadline = Instant::now() + PATIENCE;
        while usable(1) > 0 {
            assert!(Instant::now() < deadline, "{} paths are still used", usable(1));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(usable(0), 8, "nothing is known against the other plane");
        assert!(end.cause(Cause::TxTooLong) > 0);
    });
}
