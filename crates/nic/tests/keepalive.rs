//! Keepalive: what an application learns of a peer while nothing is under way.

mod common;

use std::time::{Duration, Instant};

use common::*;
use openmrc_nic::*;

/// Two idle ends of two planes with this keepalive. The ACK timeout of 34 ms leaves a healthy peer on a busy machine
/// 150 ms.
fn idle_pair(keepalive_ms: u32) -> (End, End) {
    let attr = QpAttr { keepalive_ms: Some(keepalive_ms), timeout: Some(15), ..QpAttr::default() };
    let (a, b) = pair_with(device(2), device(2), &Options { attr, ..Options::default() });
    a.write(&b, 0, 0, 10_000, 1);
    a.wait_success(1);
    (a, b)
}

fn next_event(end: &End) -> AsyncEvent {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = end.context.events().next() {
            return event;
        }
        assert!(Instant::now() < deadline, "no event came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_that_is_closed_while_nothing_is_under_way_is_noticed() {
    let (a, b) = idle_pair(20);
    b.context.close();
    assert_eq!(next_event(&a), AsyncEvent::PeerSilent { qp_num: a.qp.qp_num() });
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn a_peer_that_cannot_be_reached_for_a_while_is_silent_and_then_heard_again() {
    let (a, b) = idle_pair(20);
    let (at_a, at_b) = (a.qp.qp_num(), b.qp.qp_num());
    a.context.set_impairments(vec![ImpairRule::new(Impairment::Drop)], 1).unwrap();
    b.context.set_impairments(vec![ImpairRule::new(Impairment::Drop)], 1).unwrap();
    assert_eq!(next_event(&a), AsyncEvent::PeerSilent { qp_num: at_a });
    assert_eq!(next_event(&b), AsyncEvent::PeerSilent { qp_num: at_b });
    for end in [&a, &b] {
        end.context.set_impairments(vec![], 1).unwrap();
    }
    assert_eq!(next_event(&a), AsyncEvent::PeerHeard { qp_num: at_a });
    assert_eq!(next_event(&b), AsyncEvent::PeerHeard { qp_num: at_b });
    a.write(&b, 0, 0, 10_000, 2);
    a.wait_success(1);
}

#[test]
fn without_keepalive_an_idle_queue_pair_sends_nothing() {
    let (a, b) = idle_pair(0);
    let sent = || a.context.stats().unwrap().ports.iter().map(|port| port.tx_packets).sum::<u64>();
    // Acknowledgments of the write may still be on their way.
    std::thread::sleep(Duration::from_millis(50));
    let before = sent();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sent(), before);
    assert_eq!((a.context.events().next(), b.context.events().next()), (None, None));
}
