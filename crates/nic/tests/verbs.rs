//! Work requests between two devices over loopback: writes of every size and shape arrive, and wrong requests are
//! refused with the reason.

mod common;

use common::*;
use openmrc_nic::*;
use std::net::Ipv6Addr;
use std::time::Duration;

#[test]
fn writes_of_every_size_arrive_where_they_should_and_nowhere_else() {
    let (a, b) = pair(4);
    for (i, len) in [0usize, 1, 2, 3, 4, 63, 64, 511, 512, 513, 4095, 4096, 4097, 8193, 65_536, 300_001]
        .into_iter()
        .enumerate()
    {
        let data = pattern(len, i as u64 + 1);
        a.buffer.write(100, &data);
        b.buffer.write(0, &vec![0xEE; b.buffer.len()]);
        a.write(&b, 100, 7777, len, i as u64);
        assert_eq!(a.wait_success(1), [i as u64], "{len} bytes");
        assert!(b.buffer.read(7777, len) == data, "{len} bytes");
        assert!(b.buffer.read(0, 7777).iter().all(|&x| x == 0xEE), "{len} bytes: before");
        let after = b.buffer.read(7777 + len, b.buffer.len() - 7777 - len);
        assert!(after.iter().all(|&x| x == 0xEE), "{len} bytes: after");
    }
}

#[test]
fn a_scatter_list_is_one_message_wherever_its_pieces_lie() {
    let (a, b) = pair_with(
        device(2),
        device(2),
        &Options { cap: QpCap { max_send_sge: 16, ..QpCap::default() }, ..Options::default() },
    );
    let lens = [1usize, 0, 4095, 7, 10_000, 3, 4096, 512, 2, 1];
    let mut sges = Vec::new();
    let mut expected = Vec::new();
    let mut at = 0;
    for (i, &len) in lens.iter().enumerate() {
        let data = pattern(len, 50 + i as u64);
        a.buffer.write(at, &data);
        sges.push(a.sge(at, len));
        expected.extend(data);
        at += len + 13;
    }
    a.qp.post_send(&[a.request(&b, 64, 1, &sges)]).unwrap();
    a.wait_success(1);
    assert!(b.buffer.read(64, expected.len()) == expected);
}

#[test]
fn an_inline_payload_may_change_as_soon_as_it_is_posted() {
    let (a, b) = pair(1);
    let mut data = pattern(200, 3);
    let before = data.clone();
    let mut request = a.request(&b, 0, 1, &[]);
    request.data = SendData::Inline(&data);
    a.qp.post_send(&[request]).unwrap();
    data.fill(0);
    a.wait_success(1);
    assert_eq!(b.buffer.read(0, 200), before);
}

#[test]
fn completions_come_in_order_once_each_and_only_where_asked_for() {
    let (a, b) = pair_with(
        device(8),
        device(8),
        &Options { cap: QpCap { max_send_wr: 1024, ..QpCap::default() }, ..Options::default() },
    );
    let sge = [a.sge(0, 3000)];
    let requests: Vec<_> = (0..1000u64)
        .map(|i| SendWr { signaled: i % 10 == 9, ..a.request(&b, (i * 1000) as usize, i, &sge) })
        .collect();
    a.qp.post_send(&requests).unwrap();
    let expected: Vec<u64> = (0..1000).filter(|i| i % 10 == 9).collect();
    assert_eq!(a.wait_success(100), expected);
    assert_eq!(a.qp.send_outstanding(), 0);
    assert!(a.cq.is_empty());
}

#[test]
fn immediates_arrive_in_order_and_after_every_write_before_them() {
    let (a, b) = pair(8);
    let n = 100usize;
    b.qp.post_recv(&(0..n as u64).map(|i| RecvWr { wr_id: 1000 + i }).collect::<Vec<_>>()).unwrap();
    let data = pattern(n * 5000, 9);
    a.buffer.write(0, &data);
    for i in 0..n {
        let sges = [a.sge(i * 5000, 5000)];
        let mut request = a.request(&b, i * 5000, i as u64, &sges);
        request.imm = Some(i as u32 * 7);
        a.qp.post_send(&[request]).unwrap();
        let got = b.wait(1)[0];
        assert!(
            b.buffer.read(i * 5000, 5000) == data[i * 5000..][..5000],
            "the data was there before the immediate"
        );
        assert_eq!(
            (got.wr_id, got.status, got.opcode, got.byte_len, got.imm_data, got.qp_num),
            (
                1000 + i as u64,
                Status::Success,
                Opcode::RecvRdmaWithImm,
                5000,
                Some(i as u32 * 7),
                b.qp.qp_num()
            )
        );
    }
    a.wait_success(n);
}

#[test]
fn both_sides_can_write_at_once() {
    let (a, b) = pair(4);
    let (x, y) = (pattern(400_000, 1), pattern(400_000, 2));
    a.buffer.write(0, &x);
    b.buffer.write(0, &y);
    a.write(&b, 0, 500_000, x.len(), 1);
    b.write(&a, 0, 500_000, y.len(), 2);
    assert_eq!((a.wait_success(1), b.wait_success(1)), (vec![1], vec![2]));
    assert!(b.buffer.read(500_000, x.len()) == x && a.buffer.read(500_000, y.len()) == y);
}

#[test]
fn many_queue_pairs_between_two_devices_do_not_mix_their_data() {
    let (a, b) = pair_with(device(4), device(4), &Options { cqe: 100_000, ..Options::default() });
    let n = 200;
    let qps: Vec<_> = (0..n)
        .map(|_| {
            let make = |e: &End| e.pd.create_qp(&e.cq, &e.cq, QpCap::default(), false).unwrap();
            let (x, y) = (make(&a), make(&b));
            connect((&a.context, &x), (&b.context, &y), &QpAttr::default());
            (x, y)
        })
        .collect();
    let data = pattern(n * 5000, 4);
    a.buffer.write(0, &data);
    for round in 0..5 {
        for (i, (qp, _)) in qps.iter().enumerate() {
            let sges = [a.sge(i * 5000 + round * 1000, 1000)];
            qp.post_send(&[a.request(&b, i * 5000 + round * 1000, i as u64, &sges)]).unwrap();
        }
    }
    a.wait_success(5 * n);
    assert!(b.buffer.read(0, n * 5000) == data);
}

#[test]
fn ipv6_ports_told_apart_by_udp_port_work_like_any_others() {
    // Below the ports that the kernel chooses for the paths.
    let port = |udp_port| PortConfig { udp_port, ..PortConfig::new(Ipv6Addr::LOCALHOST.into()) };
    let config = |first: u16| DeviceConfig {
        ports: (first..first + 4).map(port).collect(),
        entropy: EntropyConfig { per_port: Some(8), ..EntropyConfig::default() },
        ..DeviceConfig::default()
    };
    let (a, b) = pair_with(config(21_000), config(21_100), &Options::default());
    let data = pattern(500_000, 6);
    a.buffer.write(0, &data);
    a.write(&b, 0, 1, data.len(), 1);
    a.wait_success(1);
    assert!(b.buffer.read(1, data.len()) == data);
    let used = a.context.stats().unwrap().ports.iter().filter(|p| p.tx_packets > 0).count();
    assert_eq!(used, 4);
}

#[test]
fn traffic_is_spread_over_all_ports_and_all_active_paths() {
    let (a, b) = pair(8);
    for i in 0..20 {
        a.write(&b, 0, 0, 1_000_000, i);
    }
    a.wait_success(20);
    let paths: Vec<_> = a.context.path_stats().unwrap().into_iter().filter(|p| p.tx_packets > 0).collect();
    assert!(paths.len() >= 32, "{} paths", paths.len());
    assert!(paths.iter().all(|p| p.last_tx_ns > 0));
    let ports = a.context.stats().unwrap().ports;
    let (least, most) = (ports.iter().map(|p| p.tx_packets).min(), ports.iter().map(|p| p.tx_packets).max());
    assert!(least.unwrap() * 2 > most.unwrap(), "{ports:?}");
}

#[test]
fn without_segmentation_offload_and_with_single_packets_everything_still_arrives() {
    let config = || DeviceConfig {
        sockets: SocketConfig { segmentation: false, burst: 1, ..SocketConfig::default() },
        ..device(4)
    };
    let (a, b) = pair_with(config(), config(), &Options::default());
    let data = pattern(600_000, 6);
    a.buffer.write(0, &data);
    a.write(&b, 0, 0, data.len(), 1);
    a.wait_success(1);
    assert!(b.buffer.read(0, data.len()) == data);
    // A device with segmentation offload and one without it work together.
    let (c, d) = pair_with(
        device(2),
        DeviceConfig {
            sockets: SocketConfig { segmentation: false, ..SocketConfig::default() },
            ..device(2)
        },
        &Options::default(),
    );
    c.buffer.write(0, &data);
    c.write(&d, 0, 0, data.len(), 1);
    d.write(&c, 0, 700_000, 100_000, 1);
    c.wait_success(1);
    d.wait_success(1);
    assert!(d.buffer.read(0, data.len()) == data);
}

#[test]
fn a_path_mtu_of_any_size_carries_the_same_bytes() {
    for path_mtu in [256, 1024, 1500, 8192] {
        let attr = QpAttr { path_mtu: Some(path_mtu), ..QpAttr::default() };
        let (a, b) = pair_with(device(2), device(2), &Options { attr, ..Options::default() });
        let data = pattern(123_457, u64::from(path_mtu));
        a.buffer.write(0, &data);
        a.write(&b, 0, 0, data.len(), 1);
        a.wait_success(1);
        assert!(b.buffer.read(0, data.len()) == data, "path MTU {path_mtu}");
    }
}

#[test]
fn posting_more_than_the_queues_hold_is_refused_whole() {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 2, max_send_sge: 1, max_inline_data: 8 };
    let (a, b) = pair_with(device(1), device(1), &Options { cap, ..Options::default() });
    let sges = [a.sge(0, 10)];
    let five: Vec<_> = (0..5).map(|i| a.request(&b, 0, i, &sges)).collect();
    assert!(matches!(a.qp.post_send(&five), Err(Error::QueueFull { capacity: 4, .. })));
    assert_eq!(a.qp.send_outstanding(), 0);
    assert!(matches!(a.qp.post_recv(&[RecvWr { wr_id: 0 }; 3]), Err(Error::QueueFull { capacity: 2, .. })));
    let two = [a.sge(0, 10), a.sge(10, 10)];
    let error = a.qp.post_send(&[a.request(&b, 0, 0, &sges), a.request(&b, 0, 1, &two)]).unwrap_err();
    assert!(error.to_string().contains("scatter list of 2"), "{error}");
    let mut inline = a.request(&b, 0, 0, &[]);
    inline.data = SendData::Inline(&[0; 9]);
    assert!(a.qp.post_send(&[inline]).unwrap_err().to_string().contains("9 bytes inline"));
    assert_eq!(a.qp.send_outstanding(), 0, "nothing of a refused list is taken");
    a.qp.post_send(&five[..4]).unwrap();
    assert_eq!(a.wait_success(4), [0, 1, 2, 3]);
}

#[test]
fn states_are_taken_in_order_and_work_is_posted_in_the_right_ones() {
    let end = End::open(device(1), &Options::default());
    let sges = [end.sge(0, 1)];
    let request = end.request(&end, 0, 0, &sges);
    let error = end.qp.post_send(&[request]).unwrap_err().to_string();
    assert!(error.contains("RESET") && error.contains("RTS"), "{error}");
    assert!(end.qp.post_recv(&[RecvWr { wr_id: 1 }]).is_err());
    let error = end.qp.modify(QpState::Rts, &QpAttr::default()).unwrap_err().to_string();
    assert!(error.contains("RESET to RTS"), "{error}");
    end.qp.modify(QpState::Init, &QpAttr::default()).unwrap();
    end.qp.post_recv(&[RecvWr { wr_id: 1 }]).unwrap();
    let error = end.qp.modify(QpState::Rtr, &QpAttr::default()).unwrap_err().to_string();
    assert!(error.contains("remote") && error.contains("rq_psn"), "{error}");
    assert_eq!(end.qp.state(), QpState::Init);
    end.qp.modify(QpState::Error, &QpAttr::default()).unwrap();
    let done = end.wait(1)[0];
    assert_eq!((done.wr_id, done.status, done.opcode), (1, Status::WrFlushErr, Opcode::RecvRdmaWithImm));
    end.qp.post_send(&[request]).unwrap();
    assert_eq!(end.wait(1)[0].status, Status::WrFlushErr, "sends in ERROR are flushed");
    end.qp.post_recv(&[RecvWr { wr_id: 2 }]).unwrap();
    assert_eq!(end.wait(1)[0].status, Status::WrFlushErr, "receives in ERROR are flushed");
    end.qp.modify(QpState::Reset, &QpAttr::default()).unwrap();
    assert_eq!(end.qp.state(), QpState::Reset);
}

#[test]
fn attributes_out_of_range_are_named_and_change_nothing() {
    let end = End::open(device(1), &Options::default());
    end.qp.modify(QpState::Init, &QpAttr::default()).unwrap();
    let good = QpAttr {
        dest_qp_num: Some(0x4001),
        rq_psn: Some(0),
        remote: Some(vec!["127.1.250.1:4791".parse().unwrap()]),
        ..QpAttr::default()
    };
    let refused = |attr: QpAttr, word: &str| {
        let error = end.qp.modify(QpState::Rtr, &attr).unwrap_err().to_string();
        assert!(error.contains(word), "{error:?} should mention {word:?}");
        assert_eq!(end.qp.state(), QpState::Init);
    };
    refused(QpAttr { path_mtu: Some(100), ..good.clone() }, "path_mtu");
    refused(QpAttr { rq_psn: Some(1 << 24), ..good.clone() }, "rq_psn");
    refused(QpAttr { dest_qp_num: Some(0), ..good.clone() }, "dest_qp_num");
    refused(QpAttr { mpr_dest: Some(0), ..good.clone() }, "mpr_dest");
    refused(QpAttr { remote: Some(vec![]), ..good.clone() }, "at least one port");
    refused(QpAttr { remote: Some(vec!["[::1]:4791".parse().unwrap()]), ..good.clone() }, "::1");
    refused(QpAttr { ev_profile_id: Some(9), ..good.clone() }, "EV profile 9");
    refused(QpAttr { cc_profile_id: Some(9), ..good.clone() }, "congestion control profile 9");
    end.qp.modify(QpState::Rtr, &good).unwrap();
    let info = end.qp.query().unwrap();
    assert_eq!((info.state, info.attr.dest_qp_num), (QpState::Rtr, Some(0x4001)));
    let rts = QpAttr { sq_psn: Some(0), timeout: Some(25), ..QpAttr::default() };
    assert!(end.qp.modify(QpState::Rts, &rts).unwrap_err().to_string().contains("timeout"));
}

#[test]
fn an_armed_completion_queue_wakes_its_waiter_once_even_if_a_completion_was_there_before() {
    let (a, b) = pair(1);
    a.cq.arm();
    a.write(&b, 0, 0, 10, 1);
    let readable = |ms| {
        let mut fd = libc::pollfd { fd: a.cq.event_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd.
        unsafe { libc::poll(&mut fd, 1, ms) == 1 }
    };
    assert!(readable(10_000));
    assert!(a.cq.acknowledge());
    assert!(!readable(0));
    // A completion still waits, so the descriptor is readable at once after arming.
    a.cq.arm();
    assert!(readable(0));
    a.cq.acknowledge();
    assert_eq!(a.cq.poll(10).unwrap().len(), 1);
    assert!(!a.cq.wait(Duration::from_millis(1)));
}

#[test]
fn in_polling_mode_the_caller_drives_everything() {
    let (a, b) = pair(2);
    let (_pa, _pb) = (a.context.polling(), b.context.polling());
    for i in 0..50u64 {
        a.write(&b, 0, 0, 9000, i);
        let mut done = Vec::new();
        while done.is_empty() {
            a.cq.poll_into(1, &mut done).unwrap();
            b.context.progress();
        }
        assert_eq!((done[0].wr_id, done[0].status), (i, Status::Success));
    }
}

#[test]
fn the_engine_thread_answers_peers_when_pollers_do_not_poll() {
    let (a, b) = pair(2);
    let _polling = b.context.polling();
    for i in 0..10 {
        a.write(&b, 0, 0, 9000, i);
    }
    assert_eq!(a.wait_success(10).len(), 10);
}
