//! No port is left to send on: posted writes end within the configured retries, or go on if a port returns before
//! (docs/spec/transport.md, "Deciding that a packet is lost", rule 4).

mod common;

use std::time::{Duration, Instant};

use common::*;
use openmrc_nic::*;
use openmrc_transport::PortSet;

const PORTS: usize = 4;

/// Two ends that give each other up after some milliseconds.
fn impatient_pair() -> (End, End) {
    let attr = QpAttr { timeout: Some(10), linear_cnt: Some(2), exp_cnt: Some(2), ..QpAttr::default() };
    pair_with(device(PORTS), device(PORTS), &Options { attr, ..Options::default() })
}

/// Two ends that go on for longer than a test may take.
fn patient_pair() -> (End, End) {
    let attr = QpAttr { timeout: Some(12), exp_cnt: Some(25), ..QpAttr::default() };
    pair_with(device(PORTS), device(PORTS), &Options { attr, ..Options::default() })
}

fn switch(end: &End, ports: impl IntoIterator<Item = usize>, on: bool) {
    for port in ports {
        end.context.set_port_admin(port, on).unwrap();
    }
}

/// Three posted writes end: the first for want of an answer, those behind it are flushed.
fn writes_are_given_up(a: &End, b: &End) {
    for wr_id in 0..3 {
        a.write(b, 0, 0, 10_000, wr_id);
    }
    let done: Vec<_> = a.wait(3).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(0, Status::RetryExcErr), (1, Status::WrFlushErr), (2, Status::WrFlushErr)]);
    assert_eq!(a.qp.state(), QpState::Error);
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn writes_posted_without_a_port_are_given_up() {
    let (a, b) = impatient_pair();
    switch(&a, 0..PORTS, false);
    writes_are_given_up(&a, &b);
}

#[test]
fn writes_under_way_when_the_last_port_goes_are_given_up() {
    let (a, b) = impatient_pair();
    // Nothing gets through, so they are under way for as long as there are ports.
    a.context.set_impairments(vec![ImpairRule::new(Impairment::Drop)], 1).unwrap();
    a.write(&b, 0, 0, 100_000, 7);
    switch(&a, 0..PORTS, false);
    assert_eq!(a.wait(1).iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(7, Status::RetryExcErr)]);
}

#[test]
fn writes_to_a_peer_without_a_port_are_given_up() {
    let (a, b) = impatient_pair();
    // It tells of the first ports that go. Nobody hears of the last one.
    switch(&b, 0..PORTS, false);
    writes_are_given_up(&a, &b);
}

#[test]
fn writes_to_a_peer_that_has_left_no_common_port_are_given_up() {
    let (a, b) = impatient_pair();
    switch(&b, 1..PORTS, false);
    until("the peer's word never came", || a.qp.ports_up().unwrap() == PortSet::first(1));
    switch(&a, [0], false);
    until("a port in common is left", || a.qp.ports_up().unwrap().is_empty());
    writes_are_given_up(&a, &b);
}

#[test]
fn writes_go_on_when_a_port_of_this_end_returns() {
    let (a, b) = patient_pair();
    let data = pattern(100_000, 5);
    a.buffer.write(0, &data);
    switch(&a, 0..PORTS, false);
    a.write(&b, 0, 500_000, data.len(), 1);
    until("no timeout ever", || a.qp.stats().unwrap().timeouts >= 2);
    switch(&a, [2], true);
    assert_eq!(a.wait_success(1), [1]);
    assert!(b.buffer.read(500_000, data.len()) == data);
}

#[test]
fn writes_go_on_when_a_port_of_the_peer_returns() {
    let (a, b) = patient_pair();
    let data = pattern(100_000, 6);
    a.buffer.write(0, &data);
    switch(&b, 0..PORTS, false);
    a.write(&b, 0, 500_000, data.len(), 1);
    until("no timeout ever", || a.qp.stats().unwrap().timeouts >= 2);
    switch(&b, [1], true);
    assert_eq!(a.wait_success(1), [1]);
    assert!(b.buffer.read(500_000, data.len()) == data);
}
