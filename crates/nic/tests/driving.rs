//! Threads that poll without pause drive the engine, and nothing waits when they stop.

mod common;

use std::time::{Duration, Instant};

use common::{End, Options, PATIENCE, connect, device};
use openmrc_nic::{Completion, DeviceConfig, QpAttr, Status};

/// Two connected ends whose callers may drive.
fn ends() -> (End, End) {
    let driven = || DeviceConfig { callers_drive: true, ..device(2) };
    let a = End::open(driven(), &Options::default());
    let b = End::open(driven(), &Options::default());
    connect((&a.context, &a.qp), (&b.context, &b.qp), &QpAttr::default());
    (a, b)
}

/// Polls without pause until there is a completion.
fn spin(end: &End) -> Completion {
    let (mut out, begin) = (Vec::new(), Instant::now());
    while out.is_empty() {
        assert!(begin.elapsed() < PATIENCE);
        end.cq.poll_into(1, &mut out).unwrap();
    }
    out[0]
}

/// Polls an empty queue for a while: long enough to drive the engine.
fn poll_in_vain(end: &End) {
    let mut out = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(5) {
        assert_eq!(end.cq.poll_into(1, &mut out).unwrap(), 0);
    }
}

/// Turns of the engine while its thread sleeps or naps: only callers take that many.
fn turns(end: &End) -> u64 {
    end.context.stats().unwrap().iterations
}

#[test]
fn a_thread_that_polls_in_vain_takes_the_turns() {
    let (a, b) = ends();
    let before = turns(&a);
    poll_in_vain(&a);
    assert!(turns(&a) > before + 300, "{} turns", turns(&a) - before);
    for round in 0..200 {
        a.write(&b, 0, 0, 64, round);
        let done = spin(&a);
        assert_eq!((done.wr_id, done.status), (round, Status::Success));
    }
}

#[test]
fn a_device_whose_callers_do_not_drive_leaves_the_turns_to_its_thread() {
    let a = End::open(device(2), &Options::default());
    let before = turns(&a);
    poll_in_vain(&a);
    assert!(turns(&a) < before + 100, "{} turns", turns(&a) - before);
}

#[test]
fn what_arrives_after_the_last_poll_is_answered_by_the_engines_thread() {
    let (a, b) = ends();
    for round in 0..20 {
        poll_in_vain(&b);
        // It has stopped: nobody polls at that end while the other writes and waits.
        a.write(&b, 0, 0, 100_000, round);
        assert_eq!(a.wait_success(1), [round]);
    }
}

#[test]
fn what_arrives_while_callers_have_promised_to_poll_and_do_not_is_answered_by_the_engines_thread() {
    let (a, b) = (End::open(device(8), &Options::default()), End::open(device(8), &Options::default()));
    connect((&a.context, &a.qp), (&b.context, &b.qp), &QpAttr::default());
    let _polling = b.context.polling();
    for round in 0..20 {
        poll_in_vain(&b);
        a.write(&b, 0, 0, 100_000, round);
        assert_eq!(a.wait_success(1), [round]);
    }
}

#[test]
fn whoever_sleeps_after_polling_is_woken() {
    let (a, b) = ends();
    for round in 0..20 {
        poll_in_vain(&a);
        a.write(&b, 0, 0, 64, round);
        // It arms the queue and sleeps.
        assert_eq!(a.wait_success(1), [round]);
        poll_in_vain(&a);
    }
    drop(b);
    a.context.close();
}
