//! Objects are created and destroyed while packets are in flight.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::*;
use openmrc_nic::*;
use openmrc_transport::mrc::{CcProfile, PathModel};
use openmrc_transport::{PathEntry, Span};

/// Number of threads of this process with this name.
fn engine_threads(name: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn closing_under_traffic_flushes_the_work_and_leaves_nothing_behind() {
    struct Owner(Arc<AtomicUsize>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut config = device(4);
    config.name = "closing".into();
    let (a, b) = pair_with(config, device(4), &Options::default());
    let memory = Buffer::zeroed(1000);
    let owner = Box::new((memory.clone(), Owner(Arc::clone(&dropped))));
    // SAFETY: the owner keeps the buffer alive.
    let _region = unsafe { a.pd.register_raw(memory.as_ptr(), 1000, Access::LOCAL_READ, owner).unwrap() };
    for i in 0..100 {
        a.write(&b, 0, 0, 1_000_000, i);
    }
    // A thread sets its name when it starts to run.
    let deadline = std::time::Instant::now() + PATIENCE;
    while engine_threads("closing-engine") != 1 {
        assert!(std::time::Instant::now() < deadline);
    }
    a.context.close();
    assert_eq!(engine_threads("closing-engine"), 0);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let done = a.cq.poll(1000).unwrap();
    assert_eq!(done.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert_eq!(done.last().unwrap().status, Status::WrFlushErr);
    assert!(matches!(a.qp.post_send(&[]), Err(Error::Closed(_))));
    assert!(matches!(a.context.create_cq(1), Err(Error::Closed(_))));
    assert!(matches!(a.context.stats(), Err(Error::Closed(_))));
    a.context.close();
}

#[test]
fn contexts_opened_and_closed_many_times_leak_no_descriptors() {
    let run = || {
        let (a, b) = pair(2);
        a.write(&b, 0, 0, 100_000, 1);
        a.wait_success(1);
    };
    run();
    let before = open_descriptors();
    for _ in 0..20 {
        run();
    }
    // Other tests open descriptors at the same time, but not twenty times those of a pair.
    assert!(open_descriptors() < before + 200, "{before} became {}", open_descriptors());
}

#[test]
fn destroying_a_queue_pair_under_traffic_leaves_the_others_alone() {
    let (a, b) = pair(4);
    let data = pattern(300_000, 5);
    a.buffer.write(0, &data);
    for round in 0..20 {
        let make = |e: &End| e.pd.create_qp(&e.cq, &e.cq, QpCap::default(), false).unwrap();
        let (x, y) = (make(&a), make(&b));
        connect((&a.context, &x), (&b.context, &y), &QpAttr::default());
        let doomed = [a.sge(0, 500_000)];
        x.post_send(&[a.request(&b, 500_000, 99, &doomed)]).unwrap();
        a.write(&b, 0, 0, data.len(), round);
        if round % 2 == 0 {
            drop(x);
        } else {
            drop(y);
            x.modify(QpState::Error, &QpAttr::default()).unwrap();
            drop(x);
        }
        loop {
            let done = a.wait(1)[0];
            if done.qp_num == a.qp.qp_num() {
                assert_eq!((done.wr_id, done.status), (round, Status::Success));
                break;
            }
        }
    }
    assert!(b.buffer.read(0, data.len()) == data);
}

#[test]
fn deregistering_while_a_peer_writes_stops_the_writing_there_and_then() {
    for _ in 0..10 {
        let (a, b) = pair(4);
        let memory = Buffer::zeroed(1 << 20);
        let mut region = b.pd.register(&memory, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE)).unwrap();
        a.buffer.write(0, &vec![0xAA; 1 << 20]);
        let sges = [a.sge(0, 1 << 20)];
        let request =
            SendWr { remote_addr: region.addr(), rkey: region.rkey(), ..a.request(&b, 0, 1, &sges) };
        a.qp.post_send(&[request]).unwrap();
        while memory.peek(0) == 0 {
            std::thread::yield_now();
        }
        region.deregister();
        // From here on the NIC may not touch the memory.
        memory.write(0, &vec![0x55; 1 << 20]);
        let status = a.wait(1)[0].status;
        assert!(matches!(status, Status::RemAccessErr | Status::Success), "{status:?}");
        assert!(memory.read(0, 1 << 20).iter().all(|&x| x == 0x55));
    }
}

#[test]
fn a_queue_pair_that_was_reset_can_be_connected_again() {
    let (a, b) = pair(2);
    for round in 0..5 {
        a.write(&b, 0, 0, 50_000, round);
        a.wait_success(1);
        for end in [&a, &b] {
            end.qp.modify(QpState::Reset, &QpAttr::default()).unwrap();
        }
        connect((&a.context, &a.qp), (&b.context, &b.qp), &QpAttr::default());
    }
}

#[test]
fn a_peer_that_is_already_sending_is_heard_from_rtr_on() {
    let (a, b) = (End::open(device(2), &Options::default()), End::open(device(2), &Options::default()));
    let data = pattern(100_000, 8);
    a.buffer.write(0, &data);
    b.qp.modify(QpState::Init, &QpAttr::default()).unwrap();
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
    a.write(&b, 0, 0, data.len(), 1);
    a.wait_success(1);
    b.qp.modify(QpState::Rts, &QpAttr { sq_psn: Some(0xFF_FFF0), ..QpAttr::default() }).unwrap();
    // The responder keeps what it has received before, and the other direction works too.
    a.write(&b, 0, 0, data.len(), 2);
    b.write(&a, 0, 500_000, data.len(), 3);
    assert_eq!((a.wait_success(1), b.wait_success(1)), (vec![2], vec![3]));
    assert!(a.buffer.read(500_000, data.len()) == data);
}

#[test]
fn numbers_of_queue_pairs_are_24_bits_and_not_soon_used_again() {
    let end = End::open(DeviceConfig { max_qps: 4, ..device(1) }, &Options::default());
    let mut seen = std::collections::HashSet::from([end.qp.qp_num()]);
    for _ in 0..500 {
        let qp = end.pd.create_qp(&end.cq, &end.cq, QpCap::default(), false).unwrap();
        assert!(qp.qp_num() > 2 && qp.qp_num() < 1 << 24);
        assert!(seen.insert(qp.qp_num()), "0x{:06x} came again", qp.qp_num());
    }
    let held: Vec<_> =
        (0..3).map(|_| end.pd.create_qp(&end.cq, &end.cq, QpCap::default(), false).unwrap()).collect();
    assert!(end.pd.create_qp(&end.cq, &end.cq, QpCap::default(), false).is_err());
    drop(held);
    end.pd.create_qp(&end.cq, &end.cq, QpCap::default(), false).unwrap();
}

#[test]
fn queue_pairs_can_have_paths_and_congestion_control_of_their_own() {
    let (a, b) = (End::open(device(2), &Options::default()), End::open(device(2), &Options::default()));
    let paths: Vec<_> =
        (0..4u32).map(|i| PathEntry { ev: openmrc_wire::Ev(20_011 + i / 2), port: (i % 2) as u8 }).collect();
    let config = EvProfileConfig { paths: paths.clone(), ..EvProfileConfig::default() };
    let profile = a.context.create_ev_profile(&config).unwrap();
    let cc = a
        .context
        .create_cc_profile(CcProfileConfig {
            cc: Arc::new(CcProfile::FixedWindow(100_000)),
            model: PathModel::new(Span::from_micros(500), false),
        })
        .unwrap();
    let init = QpAttr::default();
    a.qp.modify(QpState::Init, &init).unwrap();
    let rtr = QpAttr {
        dest_qp_num: Some(b.qp.qp_num()),
        rq_psn: Some(0xFF_FFF0),
        remote: Some(b.context.addresses()),
        ev_profile_id: Some(profile),
        cc_profile_id: Some(cc),
        ..QpAttr::default()
    };
    a.qp.modify(QpState::Rtr, &rtr).unwrap();
    a.qp.modify(QpState::Rts, &QpAttr { sq_psn: Some(0xFF_FFF0), ..QpAttr::default() }).unwrap();
    to_rts(&b.qp, a.qp.qp_num(), a.context.addresses(), &QpAttr::default());
    a.write(&b, 0, 0, 500_000, 1);
    a.wait_success(1);
    let used: Vec<_> =
        a.context.path_stats().unwrap().into_iter().filter(|p| p.tx_packets > 0).map(|p| p.ev.0).collect();
    assert!(!used.is_empty() && used.iter().all(|ev| (20_011..20_013).contains(ev)), "{used:?}");
    assert!(a.qp.stats().unwrap().cwnd <= 100_000);
    assert!(matches!(a.context.destroy_ev_profile(profile), Err(Error::Busy(_))));
    a.qp.destroy();
    a.context.destroy_ev_profile(profile).unwrap();
    a.context.destroy_cc_profile(cc).unwrap();
    assert!(a.context.destroy_ev_profile(0).is_err());
    let wide = EvProfileConfig {
        paths: vec![PathEntry { ev: openmrc_wire::Ev(70_000), port: 0 }],
        ..EvProfileConfig::default()
    };
    assert!(a.context.create_ev_profile(&wide).unwrap_err().to_string().contains("70000"));
}

#[test]
fn an_address_of_another_host_or_a_port_in_use_cannot_be_opened() {
    let far = DeviceConfig::with_addresses(["203.0.113.1".parse().unwrap()]);
    assert!(Device::new(far).unwrap().open().is_err());
    let config = device(1);
    let _first = Device::new(config.clone()).unwrap().open().unwrap();
    let error = Device::new(config).unwrap().open().err().unwrap().to_string();
    assert!(error.contains("127.1.") && error.contains("4791"), "{error}");
}

/// Keeps 100 writes of 64 KiB outstanding until `stop`, then waits for the last; returns how many completed.
fn flood(a: &End, b: &End, stop: &AtomicBool) -> u64 {
    let (mut posted, mut completed) = (0, 0);
    let mut stopped = false;
    loop {
        while !stopped && posted < completed + 100 {
            a.write(b, 0, 0, 65_536, posted);
            posted += 1;
        }
        completed += a.wait_success(1).len() as u64;
        stopped |= stop.load(Ordering::Relaxed);
        if stopped && completed == posted {
            return completed;
        }
    }
}

#[test]
fn control_operations_get_their_turn_while_data_flows() {
    let (a, b) = pair(4);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&a, &b, &stop));
        let cq = a.context.create_cq(16).unwrap();
        for _ in 0..100 {
            drop(a.pd.create_qp(&cq, &cq, QpCap::default(), false).unwrap());
            let buffer = Buffer::zeroed(100);
            drop(a.pd.register(&buffer, Access::LOCAL_READ).unwrap());
            a.context.stats().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(flood.join().unwrap() > 0);
    });
}
