//! What a requestor sends, and what it makes of feedback.

use std::sync::Arc;

use openmrc_transport::mrc::{CanSend, Capabilities, CcProfile, EvState};
use openmrc_transport::{
    EvProfile, Fatal, PathEntry, PortSet, SendStatus, Span, Time, TrafficClass, Transmit, Transport,
};
use openmrc_wire::{Body, CcState, Ev, Mark, NackReason, Packet, Psn, Sack};

use super::bench::{Bench, MTU, QP, RTT, config, config_in_ticks, nack, psns, sack};

/// Nominal bytes of a full packet: payload, BTH 12, METH 4, TSETH 4, RETH 16, iCRC 4, UDP 8, and 40.
const NOMINAL: u32 = 4096 + 88;

fn asking(sent: &[Transmit]) -> Vec<u32> {
    sent.iter().filter(|t| t.packet.ack_req).map(|t| t.packet.psn.get()).collect()
}

#[test]
fn the_last_packet_before_idle_and_the_one_at_the_mpr_edge_ask() {
    let mut bench = Bench::new(&config());
    bench.post(1, 3 * u32::from(MTU), None);
    assert_eq!(asking(&bench.send()), [2]);
    let mut narrow = config();
    narrow.requestor.mpr = 1;
    let mut bench = Bench::new(&narrow);
    let sent = bench.send_packets(200);
    assert_eq!((sent.len(), asking(&sent)), (128, vec![127]));
    // The limit of immediates makes the sender wait too.
    narrow.requestor.max_wimm = 2;
    let mut bench = Bench::new(&narrow);
    (0..5).for_each(|handle| bench.post(handle, 1, Some(0)));
    assert_eq!(asking(&bench.send()), [1]);
}

#[test]
fn a_full_congestion_window_asks() {
    let mut config = config();
    config.cc = Arc::new(CcProfile::FixedWindow(8 * u64::from(NOMINAL) + 100));
    let sent = Bench::new(&config).send_packets(20);
    assert_eq!(asking(&sent), [7]);
    assert_eq!(sent.len(), 8);
    // The other reading lets one more packet overshoot.
    config.requestor.options.can_send = CanSend::Any;
    let sent = Bench::new(&config).send_packets(20);
    assert_eq!((sent.len(), asking(&sent)), (9, vec![7, 8]));
}

#[test]
fn rqmsn_is_the_same_in_all_packets_of_a_message_with_immediate_and_zero_in_others() {
    let mut bench = Bench::new(&config());
    for (handle, imm) in [(0, None), (1, Some(5)), (2, None), (3, Some(6))] {
        bench.post(handle, 2 * u32::from(MTU), imm);
    }
    let numbers: Vec<_> = bench
        .send()
        .iter()
        .map(|t| match t.packet.body {
            Body::Write(write) => (write.msn.0, write.rqmsn.0),
            _ => panic!("no data: {t:?}"),
        })
        .collect();
    assert_eq!(numbers, [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 1), (3, 1)]);
}

fn granting(mpr: u8, sack: Sack) -> Sack {
    Sack { mpr, ..sack }
}

#[test]
fn a_window_that_shrinks_holds_back_new_data_and_retransmissions_beyond_it() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(300);
    assert_eq!(sent.len(), 300);
    let ev = |psn: usize| sent[psn].ev;
    bench.wait(10);
    bench.hear_sack(granting(1, sack(9, ev(9))));
    bench.post(999, 1, None);
    assert_eq!(bench.send(), [], "PSN 300 is beyond 10 + 128");
    bench.hear_packet(nack(200, NackReason::Trimmed, ev(200)));
    bench.hear_packet(nack(138, NackReason::Trimmed, ev(138)));
    assert_eq!(bench.send(), [], "so are PSN 200, and PSN 138 by one");
    bench.hear_packet(nack(137, NackReason::Trimmed, ev(137)));
    assert_eq!(psns(&bench.send()), [137]);
    bench.hear_sack(granting(0, sack(10, ev(10))));
    assert_eq!(psns(&bench.send()), [138], "a window of 0 is ignored: the other one has moved on");
    assert_eq!(bench.qp.stats().peer.no_mpr, 1);
    // A late SACK may be older than one that grants less, and only takes back.
    bench.hear_sack(granting(8, sack(8, ev(8))));
    assert_eq!(bench.send(), []);
    bench.hear_sack(granting(8, sack(11, ev(11))));
    bench.hear_sack(granting(1, sack(8, ev(8))));
    assert_eq!(bench.send(), []);
    // The present one may come again.
    bench.hear_sack(granting(8, sack(11, ev(11))));
    assert_eq!(psns(&bench.send()), [200, 300]);
    // Without dynamic MPR the field says nothing.
    let mut fixed = config();
    fixed.caps.dynamic_mpr = false;
    let mut bench = Bench::new(&fixed);
    let sent = bench.send_packets(200);
    bench.hear_sack(granting(1, sack(9, sent[9].ev)));
    bench.post(999, 1, None);
    assert_eq!(psns(&bench.send()), [200]);
    assert_eq!(bench.qp.stats().peer.no_mpr, 0);
}

fn reflecting(ticks: u16, sack: Sack) -> Sack {
    Sack { cc: CcState { timestamp: ticks, ..sack.cc }, ..sack }
}

/// The smoothed RTT after one SACK for packet 0, which left 20 us before; it starts at 10 us.
fn srtt_after(ticks: impl Fn(u16) -> u16, rtx: bool) -> u64 {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(2);
    let then = bench.now.wire_ticks();
    bench.wait(20);
    let sack = reflecting(ticks(then), sack(0, sent[0].ev));
    bench.hear_packet(Packet { rtx, ..Packet::new(QP, Psn::new(0), Body::Sack(sack)) });
    bench.qp.stats().srtt_ns
}

#[test]
fn the_reflected_timestamp_gives_the_round_trip_and_without_one_the_kept_send_time_does() {
    let by_timestamp = srtt_after(|then| then, false);
    assert!(by_timestamp.abs_diff(11_250) < 50, "{by_timestamp}");
    // A responder that has held the packet for 10 us.
    let moved_on = srtt_after(|then| then + 78, false);
    assert!(moved_on.abs_diff(10_000) < 50, "{moved_on}");
    // Implausible: no timestamp, and one before the packet was sent.
    for ticks in [0, 40_000] {
        let by_send_time = srtt_after(|then| then.wrapping_sub(ticks.max(1000)), false);
        assert!(by_send_time.abs_diff(11_250) < 100, "{by_send_time}");
        // RTX says that a retransmission was answered, and this packet was never retransmitted.
        assert_eq!(srtt_after(|then| then.wrapping_sub(ticks.max(1000)), true), 10_000);
    }
}

#[test]
fn a_timestamp_is_good_for_a_retransmission_too() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(2);
    bench.wait(10);
    bench.hear_packet(nack(0, NackReason::Trimmed, sent[0].ev));
    let again = bench.send();
    let then = bench.now.wire_ticks();
    bench.wait(20);
    let mut answer = reflecting(then, sack(0, again[0].ev));
    bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(0), Body::Sack(answer)) });
    let srtt = bench.qp.stats().srtt_ns;
    assert!(srtt.abs_diff(11_250) < 50, "{srtt}");
    // A SACK without a timestamp proves nothing about the time of a retransmission.
    answer = reflecting(then.wrapping_sub(5000), sack(0, again[0].ev));
    bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(0), Body::Sack(answer)) });
    assert_eq!(bench.qp.stats().srtt_ns, srtt);
    assert_eq!(bench.qp.stats().peer.bad_timestamps, 1);
}

#[test]
fn every_ack_syndrome_completes_and_those_that_mrc_lacks_are_dropped() {
    for syndrome in 0..=0x1F {
        let mut bench = Bench::new(&config());
        bench.send_packets(1);
        bench.hear_aeth(syndrome, 0, 1);
        assert_eq!(bench.log.done.len(), 1, "{syndrome:#x}");
    }
    for syndrome in [0x20, 0x3F, 0x40, 0x5F, 0x60, 0x80, 0xFF] {
        let mut bench = Bench::new(&config());
        bench.send_packets(1);
        bench.hear_aeth(syndrome, 0, 1);
        assert_eq!((bench.log.done.len(), bench.log.fatal), (0, None), "{syndrome:#x}");
        assert_eq!(bench.qp.stats().peer.unknown_syndrome, 1);
    }
}

#[test]
fn a_nak_is_fatal_with_its_status_even_after_a_sack() {
    use SendStatus::{RemoteAccessErr, RemoteInvalidRequestErr, RemoteOpErr};
    let of = [
        (0x61, RemoteInvalidRequestErr),
        (0x62, RemoteAccessErr),
        (0x63, RemoteOpErr),
        (0x65, RemoteInvalidRequestErr),
        (0x64, RemoteInvalidRequestErr),
        (0x7F, RemoteInvalidRequestErr),
    ];
    for (syndrome, status) in of {
        let mut bench = Bench::new(&config());
        let sent = bench.send_packets(3);
        // All have arrived; the first message is complete, the second one is refused.
        bench.hear_sack(sack(2, sent[2].ev));
        assert_eq!(bench.log.done.len(), 0, "a SACK completes nothing");
        bench.hear_aeth(syndrome, 1, 1);
        let done: Vec<_> = bench.log.done.iter().map(|done| done.status).collect();
        assert_eq!(done, [SendStatus::Success, status, SendStatus::FlushErr]);
        assert_eq!(bench.log.fatal, Some(Fatal::RemoteNak(syndrome)));
    }
}

#[test]
fn the_psn_of_an_ack_is_cumulative() {
    let mut narrow = config();
    narrow.requestor.mpr = 1;
    let mut bench = Bench::new(&narrow);
    bench.post(1, 400 * u32::from(MTU), None);
    assert_eq!(bench.send().len(), 128);
    bench.hear_aeth(0x1F, 99, 0);
    assert_eq!(bench.send().len(), 100);
    // That of a NAK is not, and one that was never sent says nothing.
    bench.hear_aeth(0x1F, 5000, 0);
    assert_eq!((bench.qp.stats().invalid, bench.log.done.len()), (1, 0));
}

#[test]
fn an_ack_that_a_later_one_has_overtaken_is_not_invalid() {
    let mut bench = Bench::new(&config());
    for number in 0..3 {
        bench.post(number, 10, None);
    }
    assert_eq!(bench.send().len(), 3);
    bench.hear_aeth(0x1F, 2, 3);
    assert_eq!(bench.log.done.len(), 3);
    bench.hear_aeth(0x1F, 0, 1);
    bench.hear_aeth(0x1F, 1, 2);
    assert_eq!((bench.qp.stats().invalid, bench.log.done.len()), (0, 3));
    // There never was a time at which it would have been right.
    bench.hear_aeth(0x1F, 1, 0xFF_FFFF);
    assert_eq!(bench.qp.stats().invalid, 1);
}

#[test]
fn an_unexpected_event_is_never_retried() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(1);
    bench.hear_packet(nack(0, NackReason::UnexpectedEvent, sent[0].ev));
    assert_eq!(bench.log.fatal, Some(Fatal::UnexpectedEvent));
    assert_eq!(bench.log.done[0].status, SendStatus::RemoteOpErr);
}

#[test]
fn only_trimmed_touches_an_ev_and_the_retransmission_takes_another() {
    let reasons = [
        NackReason::TrimmedLastHop,
        NackReason::NoBitmap,
        NackReason::NoPktBuffer,
        NackReason::NoResource,
        NackReason::PsnOorWindow,
    ];
    for reason in reasons {
        let mut bench = Bench::new(&config());
        let sent = bench.send_packets(4);
        bench.hear_packet(nack(1, reason, sent[1].ev));
        assert_eq!(bench.state(sent[1].ev), EvState::Good, "{reason:?}");
        bench.wait(11);
        let again = bench.send();
        assert_eq!(psns(&again), [1], "{reason:?}");
        assert!(again[0].packet.rtx && again[0].ev != sent[1].ev);
        assert_eq!(again[0].class, TrafficClass::DataRetransmit);
    }
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_packet(nack(1, NackReason::Trimmed, sent[1].ev));
    assert_eq!(bench.state(sent[1].ev), EvState::Skip);
    assert_eq!(psns(&bench.send()), [1], "at once");
}

#[test]
fn other_reasons_wait_a_round_trip() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_packet(nack(1, NackReason::NoResource, sent[1].ev));
    assert_eq!(bench.send(), []);
    bench.wait(11);
    assert_eq!(psns(&bench.send()), [1]);
}

#[test]
fn the_timer_runs_out_when_a_refused_packet_may_leave_again_and_then_waits_for_an_answer() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_packet(nack(1, NackReason::NoResource, sent[1].ev));
    let due = bench.qp.poll_timeout();
    bench.now = Time(due.0 - 1);
    assert_eq!(bench.send(), []);
    // Other queue pairs may be sending: what may leave is not due again and again until it leaves.
    for late in 0..2 {
        bench.now = due + Span(late);
        bench.timers();
        assert!(bench.qp.poll_timeout() > bench.now + Span::from_micros(1), "{late} ps late");
    }
    assert_eq!(psns(&bench.send()), [1]);

    // What has arrived all the same is not waited for.
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_packet(nack(1, NackReason::NoResource, sent[1].ev));
    let due = bench.qp.poll_timeout();
    bench.hear_sack(sack(1, sent[1].ev));
    assert!(bench.qp.poll_timeout() > due);
}

#[test]
fn a_nack_with_an_unknown_entropy_serves_reliability_and_changes_no_path() {
    let mut bench = Bench::new(&config());
    bench.send_packets(4);
    bench.hear_packet(nack(1, NackReason::Trimmed, Ev(0x5555_5555)));
    assert_eq!(psns(&bench.send()), [1]);
    // Of a transmission that is no longer the last one: RTX tells.
    bench.hear_packet(nack(1, NackReason::Trimmed, Ev(0x5555_5555)));
    assert_eq!(bench.send(), []);
    let again = Packet { rtx: true, ..nack(1, NackReason::Trimmed, Ev(0x5555_5555)) };
    bench.hear_packet(again);
    assert_eq!(psns(&bench.send()), [1]);
    assert!(bench.qp.ev_states().all(|(_, state)| state == EvState::Good));
}

#[test]
fn feedback_for_what_is_acknowledged_changes_nothing_but_its_path() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(20);
    bench.hear_sack(sack(9, sent[9].ev));
    for reason in [NackReason::PsnOorWindow, NackReason::Trimmed] {
        bench.hear_packet(nack(5, reason, sent[5].ev));
        bench.wait(11);
        assert_eq!(bench.send(), []);
    }
    assert_eq!(bench.state(sent[5].ev), EvState::Skip, "its path is congested all the same");
    // An old SACK with a mark.
    bench.hear_sack(Sack { mark: Mark::SkipOnce, ..sack(3, sent[3].ev) });
    assert_eq!(bench.state(sent[3].ev), EvState::Skip);
    // The other reading of source and destination is counted.
    bench.hear_sack(Sack { spdcid: QP as u16, dpdcid: 0x22, ..sack(11, sent[11].ev) });
    assert_eq!(bench.qp.stats().peer.other_ids, 1);
    assert_eq!(bench.qp.stats().invalid, 0);
}

#[test]
fn a_retransmission_waits_for_the_congestion_window() {
    let mut config = config();
    config.cc = Arc::new(CcProfile::FixedWindow(4 * u64::from(NOMINAL) + 100));
    let mut bench = Bench::new(&config);
    let sent = bench.send_packets(10);
    assert_eq!(sent.len(), 4);
    bench.hear_packet(nack(1, NackReason::Trimmed, sent[1].ev));
    // The refused packet has made room for itself alone.
    assert_eq!(psns(&bench.send()), [1]);
    assert_eq!(bench.qp.stats().in_flight, 4 * i64::from(NOMINAL));
}

#[test]
fn a_peer_without_trim_nacks_gets_data_that_is_not_trimmed() {
    let mut config = config();
    config.caps.trim_nack = false;
    let mut bench = Bench::new(&config);
    let sent = bench.send_packets(2);
    assert!(sent.iter().all(|t| t.class == TrafficClass::DataNoTrim));
    bench.hear_packet(nack(1, NackReason::NoResource, sent[1].ev));
    bench.wait(11);
    assert_eq!(bench.send()[0].class, TrafficClass::DataNoTrim);
}

#[test]
fn a_retransmission_leaves_at_once_when_the_receiver_ends_the_spacing() {
    let mut config = config();
    config.cc = Arc::new(CcProfile::nscc(100_000_000_000, Span::from_micros(10), MTU, true));
    config.requestor.exp_cnt = 25;
    let mut bench = Bench::new(&config);
    let mut sent = bench.send_packets(4);
    let told = |rcv_cwnd_pen: u8, restore_cwnd: bool| {
        let cc =
            CcState { rcv_cwnd_pen, restore_cwnd, rcvd_bytes: NOMINAL.div_ceil(256), ..CcState::default() };
        Sack { cc, ..sack(0, Ev(0xE0)) }
    };
    bench.hear_sack(told(1, false));
    sent.remove(0);
    // Whatever it sends is trimmed on the last hop, in the end one packet at a time.
    bench.trim_on_last_hop(sent, 8);
    assert!(bench.send().is_empty());
    bench.hear_sack(told(0, true));
    assert!(!bench.send().is_empty());
}

#[test]
fn nacks_draw_on_the_retry_counter_once_in_an_interval() {
    let mut config = config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (3, 0);
    config.requestor.timeout = Span::from_micros(100);
    let refuse_all = |bench: &mut Bench, sent: &[Transmit]| {
        for transmit in sent {
            let Transmit { packet, ev, .. } = transmit;
            let reply = nack(packet.psn.get(), NackReason::Trimmed, *ev);
            bench.hear_packet(Packet { rtx: packet.rtx, ..reply });
        }
    };
    let mut bench = Bench::new(&config);
    let mut sent = bench.send_packets(30);
    for attempt in 0..3 {
        // A burst of 30 NACKs is one attempt.
        refuse_all(&mut bench, &sent);
        assert_eq!(bench.log.fatal, None, "attempt {attempt}");
        bench.wait(101 << (attempt / 2));
        sent = bench.send();
        assert_eq!(sent.len(), 30);
    }
    bench.wait(300);
    refuse_all(&mut bench, &sent[..1]);
    assert_eq!(bench.log.fatal, Some(Fatal::RetryExceeded));
    assert_eq!(bench.log.done[0].status, SendStatus::RetryExceededErr);
}

#[test]
fn the_retry_counter_starts_anew_when_the_cumulative_psn_advances() {
    let mut config = config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (2, 0);
    config.requestor.timeout = Span::from_micros(100);
    let mut bench = Bench::new(&config);
    let mut sent = bench.send_packets(40);
    for round in 0..10u32 {
        let last = sent.last().copied().unwrap();
        let reply = nack(39, NackReason::Trimmed, last.ev);
        bench.hear_packet(Packet { rtx: last.packet.rtx, ..reply });
        bench.wait(150);
        assert_eq!(bench.log.fatal, None, "round {round}");
        sent = bench.send();
        // The round trip stays short, and so does the interval of an attempt.
        let then = Time(bench.now.0 - Span::from_micros(10).0);
        bench.hear_sack(reflecting(then.wire_ticks(), sack(round, Ev(0xE0))));
    }
}

#[test]
fn timeouts_fail_after_the_configured_attempts_and_never_wait_longer_than_17_s() {
    let mut config = config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (2, 25);
    config.requestor.timeout = Span::from_micros(100);
    let mut bench = Bench::new(&config);
    bench.send_packets(1);
    let mut last = bench.now;
    let mut longest = Span::ZERO;
    let mut timeouts = 0;
    while timeouts < 40 {
        bench.now = bench.qp.poll_timeout().max(bench.now);
        bench.timers();
        if bench.qp.stats().timeouts > timeouts {
            timeouts = bench.qp.stats().timeouts;
            longest = longest.max(bench.now.since(last));
            last = bench.now;
        }
        bench.now += Span(1);
    }
    assert_eq!(bench.log.fatal, None, "25 is for ever");
    assert!(longest.as_nanos().abs_diff(1024 << 24) < 1_000_000_000, "{longest:?}");
    config.requestor.exp_cnt = 1;
    let mut bench = Bench::new(&config);
    bench.send_packets(1);
    while bench.log.fatal.is_none() {
        bench.now = bench.qp.poll_timeout().max(bench.now + Span(1));
        bench.timers();
    }
    assert_eq!(bench.qp.stats().timeouts, 3);
    assert_eq!(bench.log.done[0].status, SendStatus::RetryExceededErr);
}

/// Condemns a path by an untrimmed loss; returns its entropy value and the id of the next probe of it.
fn condemned(bench: &mut Bench) -> Ev {
    let sent = bench.send_packets(20);
    let lost = sent[0].ev;
    bench.hear_sack(Sack { mark: Mark::AlwaysSkip, ..sack(0, lost) });
    assert_eq!(bench.state(lost), EvState::AssumedBad);
    bench.hear_sack(sack(19, sent[19].ev));
    bench.hear_aeth(0x1F, 19, 20);
    lost
}

/// Waits for the next probe of this path and answers it with a mark.
fn answer_probe(bench: &mut Bench, ev: Ev, mark: Mark) {
    let id = loop {
        bench.now = bench.qp.poll_timeout().max(bench.now + Span(1));
        bench.qp.handle_timeout(bench.now, &mut bench.log);
        let probe = bench.log.sent.drain(..).find_map(|t| match t.packet.body {
            Body::Probe(probe) if t.ev == ev => Some(probe.probe_id),
            _ => None,
        });
        if let Some(id) = probe {
            break id;
        }
    };
    let reply = Sack { probe_reply: true, ack_psn_offset: id as i16, mark, ..sack(19, ev) };
    bench.hear_sack(reply);
}

#[test]
fn three_answered_probes_bring_a_path_back_and_the_last_one_decides_how() {
    for (last, state) in [(Mark::None, EvState::Good), (Mark::SkipOnce, EvState::Skip)] {
        let mut bench = Bench::new(&config());
        let ev = condemned(&mut bench);
        for mark in [Mark::SkipOnce, Mark::None] {
            answer_probe(&mut bench, ev, mark);
            assert_eq!(bench.state(ev), EvState::AssumedBad);
        }
        answer_probe(&mut bench, ev, last);
        assert_eq!(bench.state(ev), state);
    }
}

#[test]
fn a_peer_that_gives_the_path_up_starts_the_row_of_successes_anew() {
    let mut bench = Bench::new(&config());
    let ev = condemned(&mut bench);
    answer_probe(&mut bench, ev, Mark::None);
    answer_probe(&mut bench, ev, Mark::None);
    answer_probe(&mut bench, ev, Mark::AlwaysSkip);
    for _ in 0..2 {
        answer_probe(&mut bench, ev, Mark::None);
        assert_eq!(bench.state(ev), EvState::AssumedBad);
    }
    answer_probe(&mut bench, ev, Mark::None);
    assert_eq!(bench.state(ev), EvState::Good);
}

#[test]
fn cc_state_of_another_type_is_not_used() {
    let mut other = config();
    other.cc = Arc::new(CcProfile::FixedWindow(100 * u64::from(NOMINAL)));
    let windows = [Sack::CC_TYPE, 1].map(|cc_type| {
        let mut bench = Bench::new(&other);
        let sent = bench.send_packets(10);
        let cc = CcState { rcv_cwnd_pen: 100, rcvd_bytes: 10 * NOMINAL / 256, ..CcState::default() };
        bench.hear_sack(Sack { cc_type, cc, ..sack(4, sent[4].ev) });
        bench.qp.stats().cwnd
    });
    assert!(windows[0] < windows[1], "{windows:?}");
    assert_eq!(windows[1], 100 * u64::from(NOMINAL));
}

#[test]
fn penalties_can_be_ignored() {
    let window_after = |dfc| {
        let mut config = config();
        config.cc = Arc::new(CcProfile::FixedWindow(1_000_000));
        config.requestor.options.dfc = dfc;
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(100);
        let pressing = CcState { rcv_cwnd_pen: 127, rcvd_bytes: 1000, ..CcState::default() };
        bench.hear_sack(Sack { cc: pressing, ..sack(50, sent[50].ev) });
        bench.qp.stats().cwnd
    };
    assert!(window_after(true) < 500_000);
    assert_eq!(window_after(false), 1_000_000);
}

#[test]
fn one_probe_in_the_control_class_measures_the_idle_path_where_much_is_to_be_sent() {
    // One bandwidth-delay product is 150,000 bytes, 35 packets.
    let cc = Arc::new(CcProfile::nscc(100_000_000_000, Span::from_micros(12), MTU, true));
    let probes = |packets: u64, start_probe: bool| {
        let mut config = config();
        config.cc = Arc::clone(&cc);
        config.requestor.options.start_probe = start_probe;
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(packets);
        bench.wait(12);
        let mut probes = Vec::new();
        for psn in 0..5 {
            let answer = reflecting(
                openmrc_transport::Time(bench.now.0 - Span::from_micros(12).0).wire_ticks(),
                sack(psn, sent[psn as usize].ev),
            );
            bench.qp.handle_packet(
                bench.now,
                &super::bench::received(Packet::new(QP, Psn::new(psn), Body::Sack(answer))),
                &mut bench.log,
            );
            probes.append(&mut bench.log.sent);
        }
        (bench, probes)
    };
    assert_eq!(probes(30, true).1, []);
    assert_eq!(probes(100, false).1, []);
    let (mut bench, sent) = probes(100, true);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].class, TrafficClass::Control);
    let Body::Probe(probe) = sent[0].packet.body else { panic!("no probe: {sent:?}") };
    // Its round trip, 6 us, halves the largest window; it proves no loss.
    bench.wait(6);
    let before = bench.qp.stats();
    let reply = Sack { probe_reply: true, ack_psn_offset: probe.probe_id as i16, ..sack(4, sent[0].ev) };
    bench.hear_sack(reflecting(probe.timestamp.ticks, reply));
    assert_eq!(bench.qp.stats().lost, before.lost);
    let sack = reflecting(bench.now.wire_ticks().wrapping_sub(47), sack(5, Ev(0xE0)));
    bench.hear_sack(sack);
    assert!(bench.qp.stats().cwnd <= 225_000 * 51 / 100, "{}", bench.qp.stats().cwnd);
    assert_eq!(bench.qp.poll_transmit(bench.now, PortSet::EMPTY), None);
}

#[test]
fn a_penalty_explains_losses_only_where_both_ends_agreed_on_it() {
    for (agreed, penalty, state) in [
        (false, 127, EvState::AssumedBad),
        (false, 64, EvState::AssumedBad),
        (true, 64, EvState::Good),
        (true, 0, EvState::AssumedBad),
    ] {
        let mut config = config();
        config.caps = Capabilities { overflow_reports: agreed, ..Capabilities::OWN };
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(20);
        // Everything but PSN 1 arrives, at a receiver that presses. PSN 17 took the same path.
        let cc = CcState { rcv_cwnd_pen: penalty, rcvd_bytes: 1000, ..CcState::default() };
        let bitmap = (1 << 19) - 2;
        assert_eq!(sent[17].ev, sent[1].ev);
        bench.hear_sack(Sack { cc, ack_psn_offset: 17, bitmap, ..sack(0, sent[17].ev) });
        assert_eq!(bench.qp.stats().lost, 1);
        assert_eq!(bench.state(sent[1].ev), state, "agreed {agreed}, penalty {penalty}");
        assert_eq!(bench.qp.stats().overflowed, u32::from(state == EvState::Good));
    }
}

#[test]
fn only_the_last_sack_of_a_report_tells_what_is_lost_beyond_its_bitmap() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(131);
    bench.hear_packet(nack(1, NackReason::Trimmed, sent[1].ev));
    bench.wait(500);
    let [again] = bench.send()[..] else { panic!("one retransmission") };
    // All have arrived but 71 and 130. The retransmission triggered the report, long after the others were sent. The first of
    // its SACKs shows 71 lost; what it says nothing of is judged by the second.
    let report = |offset: i16, bitmap: u64| Packet {
        rtx: true,
        ..Packet::new(QP, Psn::new(1), Body::Sack(Sack { sack_offset: offset, bitmap, ..sack(1, again.ev) }))
    };
    let upper = report(65, u64::MAX - (1 << 5));
    let main = report(1, u64::MAX);
    bench.hear_packet(upper);
    assert_eq!(psns(&bench.send()), [71]);
    assert_eq!(bench.qp.stats().lost, 1);
    // Nor does an ACK that says nothing new.
    bench.hear_aeth(0x1F, 1, 2);
    assert_eq!((bench.qp.stats().lost, bench.log.done.len()), (1, 2));
    bench.hear_packet(main);
    assert_eq!((bench.qp.stats().lost, bench.qp.stats().spurious), (2, 0));
    assert_eq!(psns(&bench.send()), [130]);
}

#[test]
fn the_answer_to_a_retransmission_of_the_oldest_packet_of_a_full_window_is_not_taken_for_that_to_the_first() {
    let mut config = config();
    config.requestor.mpr = 1;
    let mut bench = Bench::new(&config);
    let sent = bench.send_packets(129);
    assert_eq!(sent.len(), 128, "the window is full");
    bench.hear_packet(nack(0, NackReason::Trimmed, sent[0].ev));
    let [again] = bench.send()[..] else { panic!("one retransmission") };
    let answer = Body::Sack(Sack { bitmap: u64::MAX, ..sack(0, again.ev) });
    bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(0), answer) });
    assert_eq!(bench.qp.stats().spurious, 0);
}

#[test]
fn a_queue_pair_from_a_checkpoint_gets_its_paths_and_the_parameters_of_its_window_back() {
    let cc = |bits| CcProfile::nscc(bits, RTT, MTU, true);
    let mut config = config_in_ticks(true);
    config.cc = Arc::new(cc(100_000_000_000));
    let mut bench = Bench::new(&config);
    let path = |i: u32| PathEntry { ev: Ev(0xA0 + i), port: (i % 2) as u8 };
    let profile = Arc::new(EvProfile::new(&(0..8).map(path).collect::<Vec<_>>()).unwrap());
    bench.qp.rejoin(&profile, &cc(40_000_000_000));
    let sent = bench.send_packets(8);
    assert!(sent.iter().all(|t| (0xA0..0xA8).contains(&t.ev.0)));
    // One and a half bandwidth-delay products at most, from the next SACK on.
    bench.now += RTT;
    bench.hear_prompt(sack(7, sent[7].ev));
    assert_eq!(bench.qp.stats().cwnd, 96_000);
}
