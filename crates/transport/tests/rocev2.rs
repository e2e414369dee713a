//! RoCEv2 RC over wires that lose, repeat, delay, mark and trim: what arrives, what is reported and what is sent are
//! held against a list that was written down before the run, whatever the seed.

#[path = "rocev2/pair.rs"]
mod pair;
mod world;

use std::cmp::Reverse;

use openmrc_transport::rocev2::{DcqcnParams, RcConfig, RcStats, Recovery};
use openmrc_transport::{
    Fatal, PostError, Readiness, Received, SendStatus, Span, Time, Transport as _, WorkRequest,
};
use openmrc_wire::{Aeth, Body};
use pair::{ALL, EV, FIRST_HANDLE, PORT, Pair, RATE, Wire, micros};
use world::Dice;

fn config() -> RcConfig {
    RcConfig { ev: EV, port: PORT, path_mtu: 1024, ..RcConfig::new(11, 22, RATE) }
}

fn generate(seed: u64) -> Pair {
    let mut dice = Dice::new(seed);
    let mut config = config();
    config.recovery = dice.pick(&[Recovery::GoBackN, Recovery::SelectiveRepeat]);
    config.path_mtu = dice.pick(&[256, 1024, 4096]);
    config.window = dice.log_between(1, 200) as u32;
    config.ack_every = dice.log_between(1, 64) as u32;
    config.retry_count = u8::MAX;
    config.timeout = Span::from_micros(dice.log_between(30, 1000));
    if dice.chance(0.3) {
        config.dcqcn = None;
    }
    let mut chance = |most: f64| if dice.chance(0.5) { dice.log_probability(0.001, most) } else { 0.0 };
    let wire = Wire {
        lost: chance(0.3),
        repeated: chance(0.3),
        late: chance(0.5),
        marked: chance(1.0),
        trimmed: chance(0.3),
        dead_from: None,
    };
    let mut pair = Pair::new(config, wire, seed ^ 0x5EED);
    for number in 0..dice.between(1, 12) {
        let len = if dice.chance(0.1) { 0 } else { dice.log_between(1, 60_000) };
        let imm = dice.chance(0.4).then_some(900 + number as u32);
        pair.post(len as u32, imm);
    }
    pair
}

#[test]
fn everything_arrives_in_order_and_is_reported_once_whatever_the_wire_does() {
    let (mut retransmits, mut notified, mut timeouts) = (0, 0, 0);
    for seed in 0..3_000 {
        let mut pair = generate(seed);
        pair.run();
        pair.judge_end();
        let stats = pair.ends[0].stats();
        retransmits += stats.retransmits;
        timeouts += stats.timeouts;
        notified += pair.notified.len();
    }
    assert!(retransmits > 10_000 && notified > 500 && timeouts > 500, "{retransmits} {notified} {timeouts}");
}

#[test]
fn on_a_good_wire_nothing_is_sent_twice_and_the_line_is_full() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let mut pair = Pair::new(RcConfig { recovery, ..config() }, Wire::default(), 1);
        for _ in 0..10 {
            pair.post(100_000, Some(5));
        }
        pair.run();
        pair.judge_end();
        let stats = pair.ends[0].stats();
        assert_eq!(stats, RcStats { data_packets: 10 * 98, ..RcStats::default() });
        let bytes: u64 = pair.sent.iter().map(|sent| sent.transmit.packet.wire_len() as u64).sum();
        let least = bytes as f64 * 8.0 / RATE as f64;
        let taken = pair.sent.last().unwrap().at.since(pair.sent[0].at).as_secs_f64();
        assert!((taken / least - 1.0).abs() < 0.01, "{taken} of {least}");
    }
}

/// Sends 40 packets, of which the wire loses one.
fn with_one_loss(recovery: Recovery, lost: u64, ack_every: u32) -> Pair {
    let mut pair = Pair::new(RcConfig { recovery, dcqcn: None, ack_every, ..config() }, Wire::default(), 1);
    pair.post(40 * 1024, None);
    pair.transmits();
    let keep = |Reverse((_, number, _)): &Reverse<(Time, u64, usize)>| *number != lost;
    pair.flying.retain(keep);
    pair.run();
    pair.judge_end();
    pair
}

#[test]
fn one_loss_costs_the_rest_of_the_window_or_one_packet() {
    for (lost, ack_every) in [0, 1, 17, 38].into_iter().flat_map(|lost| [(lost, 1), (lost, 64)]) {
        let pair = with_one_loss(Recovery::GoBackN, lost, ack_every);
        let again: Vec<u64> = pair.sent[40..].iter().map(|sent| sent.seq).collect();
        assert_eq!(again, (lost..40).collect::<Vec<_>>());
        assert_eq!((pair.ends[0].stats().naks, pair.ends[0].stats().timeouts), (1, 0));
        // The packet that fills the gap completes the message, whether or not it asks for an ACK.
        let pair = with_one_loss(Recovery::SelectiveRepeat, lost, ack_every);
        let again: Vec<u64> = pair.sent[40..].iter().map(|sent| sent.seq).collect();
        assert_eq!(again, [lost]);
        assert_eq!((pair.ends[0].stats().naks, pair.ends[0].stats().timeouts), (1, 0));
    }
}

#[test]
fn a_lost_tail_is_sent_again_after_the_timeout() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let pair = with_one_loss(recovery, 39, 1);
        let stats = pair.ends[0].stats();
        assert_eq!((stats.timeouts, stats.retransmits, stats.naks), (1, 1, 0));
        // From the last answer, which acknowledges the packet before.
        let last = micros(4) + pair.config.timeout;
        assert_eq!(pair.sent[40].at, last);
    }
}

#[test]
fn a_dead_wire_ends_the_connection_after_its_retries() {
    for retry_count in [0, 1, 7] {
        let config = RcConfig { retry_count, ..config() };
        let mut pair = Pair::new(config, Wire { dead_from: Some(Time::ZERO), ..Wire::default() }, 1);
        pair.post(10, None);
        pair.post(10, None);
        pair.post(10, None);
        pair.run();
        assert_eq!(pair.seen[0].fatal, [Fatal::RetryExceeded]);
        let statuses: Vec<_> = pair.seen[0].sends.iter().map(|done| done.status).collect();
        assert_eq!(statuses, [SendStatus::RetryExceededErr, SendStatus::FlushErr, SendStatus::FlushErr]);
        assert_eq!(pair.ends[0].stats().timeouts, u64::from(retry_count));
        assert_eq!(pair.now, Time::ZERO + config.timeout.times(u64::from(retry_count) + 1));
        let wr = WorkRequest { handle: 1, len: 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
        assert_eq!(pair.ends[0].post_send(pair.now, wr), Err(PostError::InError));
        assert_eq!((pair.ends[0].readiness(), pair.ends[0].poll_timeout()), (Readiness::Idle, Time::NEVER));
        // Neither a second end nor an answer that comes late changes anything.
        pair.ends[0].abort(pair.now, Fatal::Local, &mut pair.seen[0]);
        assert_eq!((pair.seen[0].fatal.len(), pair.seen[0].sends.len()), (1, 3));
    }
}

#[test]
fn retries_count_from_the_last_progress() {
    // Every answer brings progress, so far more timeouts than `retry_count` are survived.
    let config = RcConfig { retry_count: 2, window: 1, timeout: Span::from_micros(20), ..config() };
    let mut survived = 0;
    for seed in 0..200 {
        let mut pair = Pair::new(config, Wire { lost: 0.2, ..Wire::default() }, seed);
        pair.post(30 * 1024, None);
        pair.run();
        let timeouts = pair.ends[0].stats().timeouts;
        if pair.seen[0].fatal.is_empty() {
            pair.judge_end();
            survived += u64::from(timeouts > 4);
        } else {
            assert!(timeouts >= 2);
        }
    }
    assert!(survived > 10, "{survived}");
}

#[test]
fn what_the_memory_refuses_ends_both_ends() {
    for (refuses, done) in [(0, 0), (1, 1), (2, 1)] {
        let mut pair = Pair::new(config(), Wire::default(), 1);
        pair.seen[1].refuses = Some(refuses);
        pair.post(100, None);
        pair.post(2000, None);
        pair.post(100, None);
        pair.run();
        assert_eq!(pair.seen[1].fatal, [Fatal::AccessViolation]);
        assert_eq!(pair.seen[0].fatal, [Fatal::RemoteNak(Aeth::NAK_REMOTE_ACCESS)]);
        let mut expected = vec![SendStatus::Success; done];
        expected.push(SendStatus::RemoteAccessErr);
        expected.resize(3, SendStatus::FlushErr);
        // The message that was done before is not acknowledged by a packet of its own.
        let statuses: Vec<_> = pair.seen[0].sends.iter().map(|done| done.status).collect();
        assert_eq!(statuses, expected);
    }
}

#[test]
fn an_immediate_without_a_receive_ends_both_ends() {
    let mut pair = Pair::new(config(), Wire::default(), 1);
    pair.seen[1].posted = Some(1);
    pair.post(100, Some(1));
    pair.post(100, Some(2));
    pair.run();
    assert_eq!(pair.seen[1].fatal, [Fatal::NoReceive]);
    assert_eq!(pair.seen[0].fatal, [Fatal::RemoteNak(Aeth::NAK_REMOTE_OPERATIONAL)]);
    assert_eq!(pair.seen[0].sends[0].status, SendStatus::Success);
    assert_eq!(pair.seen[1].receives.len(), 1);
}

#[test]
fn nothing_is_sent_while_its_port_is_down_at_either_end() {
    let without = ALL.without(PORT);
    for (local, peer) in [(without, ALL), (ALL, without), (without, without)] {
        let mut pair = Pair::new(config(), Wire::default(), 1);
        pair.post(5000, None);
        pair.ends[0].set_ports_up(pair.now, local, peer);
        assert_eq!(pair.ends[0].poll_transmit(pair.now, ALL), None);
        pair.ends[0].set_ports_up(pair.now, ALL, ALL);
        assert_eq!(pair.ends[0].poll_transmit(pair.now, without), None);
        pair.run();
        pair.judge_end();
    }
}

#[test]
fn a_send_queue_that_is_full_and_a_message_that_is_too_long_are_refused() {
    let mut pair = Pair::new(RcConfig { max_send_wr: 3, ..config() }, Wire::default(), 1);
    let wr =
        WorkRequest { handle: 1, len: (1 << 31) + 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
    assert_eq!(pair.ends[0].post_send(Time::ZERO, wr), Err(PostError::TooLong(wr.len)));
    for _ in 0..3 {
        pair.post(1, None);
    }
    let wr = WorkRequest { len: 1 << 31, ..wr };
    assert_eq!(pair.ends[0].post_send(Time::ZERO, wr), Err(PostError::QueueFull(3)));
    pair.run();
    pair.judge_end();
    assert_eq!(pair.ends[0].post_send(pair.now, wr), Ok(()));
}

#[test]
fn a_queue_pair_that_is_retired_reports_nothing_and_sends_nothing() {
    let mut pair = Pair::new(config(), Wire::default(), 1);
    pair.post(5000, None);
    pair.ends[0].retire(pair.now, &mut pair.seen[0]);
    assert_eq!(pair.ends[0].poll_transmit(pair.now, ALL), None);
    assert_eq!((pair.ends[0].readiness(), pair.ends[0].poll_timeout()), (Readiness::Idle, Time::NEVER));
    assert!(pair.seen[0].sends.is_empty());
}

#[test]
fn readiness_says_what_a_queue_pair_waits_for() {
    let config = RcConfig { window: 2, dcqcn: None, ..config() };
    let mut pair = Pair::new(config, Wire::default(), 1);
    let state = |pair: &Pair| pair.ends[0].readiness();
    assert_eq!(state(&pair), Readiness::Idle);
    pair.post(3 * 1024, None);
    assert_eq!(state(&pair), Readiness::Ready);
    assert_eq!(pair.ends[0].poll_timeout(), Time::NEVER, "it can be served now");
    pair.transmits();
    assert_eq!((pair.sent.len(), state(&pair)), (2, Readiness::Active));
    let mut paced = Pair::new(self::config(), Wire::default(), 1);
    paced.post(3 * 1024, None);
    paced.transmits();
    assert_eq!((paced.sent.len(), state(&paced)), (1, Readiness::Active));
    let wait = Span(paced.sent[0].transmit.packet.wire_len() as u64 * 80);
    assert_eq!(paced.ends[0].poll_timeout(), Time::ZERO + wait);
    let mut short = Pair::new(config, Wire::default(), 1);
    short.post(10, None);
    short.transmits();
    assert_eq!(state(&short), Readiness::Pending);
    assert!(!short.ends[0].is_waiting(), "nobody may hold its next packet back for the answer");
    assert_eq!(short.ends[0].poll_timeout(), Time::ZERO + config.timeout);
}

#[test]
fn a_lying_peer_changes_nothing() {
    let mut pair = Pair::new(config(), Wire::default(), 1);
    pair.post(100 * 1024, Some(1));
    pair.transmits();
    let answer = |psn: u32, syndrome: u8| {
        let body = Body::RcAck(Aeth { syndrome, msn: 0 });
        let packet = openmrc_wire::Packet::new(11, openmrc_wire::Psn::new(psn), body);
        Received { packet, ev: EV, port: PORT, ecn_ce: false, trim: None }
    };
    // One packet was sent: the others cannot have arrived, nor have been missed.
    for syndrome in [Aeth::ACK, Aeth::NAK_PSN_SEQUENCE] {
        for psn in [1, 2, 50, 99, 100, 0x7F_FFFF, 0xFF_FFFF] {
            let end = &mut pair.ends[0];
            end.handle_packet(pair.now, &answer(psn, syndrome), &mut pair.seen[0]);
        }
    }
    assert!(pair.seen[0].sends.is_empty() && pair.seen[0].fatal.is_empty());
    let naks = pair.ends[0].stats().naks;
    pair.counted.naks = naks;
    // A NAK for the packet after the last one sent acknowledges that, and so may come from an honest peer.
    pair.acknowledged = 1;
    let first_arrives = pair.flying.len();
    assert_eq!(first_arrives, 1);
    pair.run();
    pair.judge_end();
}

#[test]
fn marks_slow_the_sender_down_and_it_recovers() {
    let dcqcn = DcqcnParams { alpha_timer: Span::from_micros(10), ..DcqcnParams::for_rate(RATE) };
    let rate_of = |marked: f64| {
        let config = RcConfig { dcqcn: Some(dcqcn), ..config() };
        let mut pair = Pair::new(config, Wire { marked, ..Wire::default() }, 1);
        for _ in 0..100 {
            pair.post(100_000, None);
        }
        pair.run();
        pair.judge_end();
        let bytes: u64 = pair.sent.iter().map(|sent| sent.transmit.packet.wire_len() as u64).sum();
        bytes as f64 * 8.0 / pair.sent.last().unwrap().at.since(Time::ZERO).as_secs_f64()
    };
    let (free, marked, always) = (rate_of(0.0), rate_of(0.001), rate_of(1.0));
    assert!(free > 0.98 * RATE as f64, "{free}");
    assert!(always < 0.3 * RATE as f64 && always < marked && marked < free, "{marked} {always}");
}

#[test]
fn an_empty_message_is_one_packet_and_touches_no_memory() {
    let mut pair = Pair::new(config(), Wire::default(), 1);
    pair.post(0, None);
    pair.post(0, Some(5));
    pair.post(10, None);
    pair.run();
    pair.judge_end();
    assert_eq!((pair.sent.len(), pair.seen[1].writes.len()), (3, 1));
}

#[test]
fn answers_count_the_messages_that_are_complete() {
    let mut pair = Pair::new(RcConfig { ack_every: 1, ..config() }, Wire::default(), 1);
    pair.post(100, None);
    pair.post(2 * 1024, Some(1));
    pair.post(0, None);
    pair.run();
    pair.judge_end();
    let msns: Vec<u32> = pair
        .packets
        .iter()
        .filter_map(|received| match received.packet.body {
            Body::RcAck(aeth) => Some(aeth.msn),
            _ => None,
        })
        .collect();
    assert_eq!(msns, [1, 1, 2, 3]);
}

#[test]
fn a_timeout_that_is_not_due_is_harmless() {
    let config = RcConfig { retry_count: 0, ..config() };
    let mut pair = Pair::new(config, Wire::default(), 1);
    let late = Time::ZERO + config.timeout.times(3);
    pair.ends[0].handle_timeout(late, &mut pair.seen[0]);
    pair.now = late;
    pair.post(10, None);
    pair.transmits();
    let due = late + config.timeout;
    assert_eq!(pair.ends[0].poll_timeout(), due);
    pair.ends[0].handle_timeout(Time(due.0 - 1), &mut pair.seen[0]);
    pair.run();
    pair.ends[0].handle_timeout(due + config.timeout, &mut pair.seen[0]);
    pair.judge_end();
    assert_eq!(pair.ends[0].stats().timeouts, 0);
}

#[test]
fn a_nak_behind_the_last_packet_acknowledges_all_and_asks_for_nothing() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let mut pair = Pair::new(RcConfig { recovery, ..config() }, Wire::default(), 1);
        pair.post(100, None);
        pair.transmits();
        let body = Body::RcAck(Aeth { syndrome: Aeth::NAK_PSN_SEQUENCE, msn: 0 });
        let packet = openmrc_wire::Packet::new(11, openmrc_wire::Psn::new(1), body);
        let nak = Received { packet, ev: EV, port: PORT, ecn_ce: false, trim: None };
        pair.ends[0].handle_packet(pair.now, &nak, &mut pair.seen[0]);
        assert_eq!(pair.seen[0].sends.len(), 1);
        assert_eq!((pair.ends[0].readiness(), pair.ends[0].poll_timeout()), (Readiness::Idle, Time::NEVER));
    }
}

#[test]
fn an_abort_flushes_what_is_outstanding_and_ends_the_connection() {
    let mut pair = Pair::new(config(), Wire::default(), 1);
    pair.post(5000, None);
    pair.post(10, None);
    pair.transmits();
    pair.ends[0].abort(micros(1), Fatal::Local, &mut pair.seen[0]);
    let done: Vec<_> = pair.seen[0].sends.iter().map(|done| (done.handle, done.status)).collect();
    assert_eq!(done, [(FIRST_HANDLE, SendStatus::FlushErr), (FIRST_HANDLE + 1, SendStatus::FlushErr)]);
    assert_eq!(pair.seen[0].fatal, [Fatal::Local]);
    assert_eq!(pair.ends[0].poll_transmit(micros(9), ALL), None);
    assert_eq!((pair.ends[0].readiness(), pair.ends[0].poll_timeout()), (Readiness::Idle, Time::NEVER));
}
