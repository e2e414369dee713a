//! What a requestor takes for lost and on what evidence, what it makes of a packet that was not lost after all, and what
//! a SACK measures.

use std::sync::Arc;

use openmrc_transport::mrc::{Capabilities, EvState};
use openmrc_transport::{EvProfile, PathEntry, Span, Time, Transport as _};
use openmrc_wire::{Body, CcState, Ev, Mark, NackReason, Packet, Psn, Sack};

use super::bench::{Bench, MTU, QP, RTT, config, config_in_ticks, nack, psns, sack};

/// Send times are kept in this unit.
const UNIT: Span = Span(1 << 17);
/// No path has this entropy value.
const UNKNOWN: Ev = Ev(0x5555_5555);
/// The cumulative point before anything has arrived.
const NOTHING: u32 = 0xFF_FFFF;

/// A SACK that was triggered by packet `psn`.
fn triggered_by(psn: u32, sack: Sack) -> Sack {
    let offset = (psn.wrapping_sub(sack.cack_psn.get()) << 8) as i32 >> 8;
    Sack { ack_psn_offset: offset as i16, ..sack }
}

/// A SACK of these packets, beyond the cumulative point and at most 64 from `base` on.
fn naming(base: u32, psns: &[u32], sack: Sack) -> Sack {
    let offset = (base.wrapping_sub(sack.cack_psn.get()) << 8) as i32 >> 8;
    let bitmap = psns.iter().map(|psn| 1 << (psn - base)).sum();
    Sack { sack_offset: offset.try_into().unwrap(), bitmap, ..sack }
}

/// The answer to a retransmission.
fn of_a_retransmission(bench: &Bench, sack: Sack) -> Packet {
    let timestamp = Time(bench.now.0 - RTT.0).wire_ticks();
    let sack = Sack { cc: CcState { timestamp, ..sack.cc }, ..sack };
    Packet { rtx: true, ..Packet::new(QP, sack.cack_psn, Body::Sack(sack)) }
}

#[test]
fn a_packet_is_lost_once_one_has_arrived_that_was_sent_a_reorder_window_later_and_not_before() {
    let config = config_in_ticks(true);
    // At first the window is the target delay.
    let window = config.paths.model.target_qdelay;
    assert_eq!(window, Span::from_nanos(9600));
    let just = window.0.div_ceil(UNIT.0);
    for (units, is_lost) in [(just - 1, false), (just, true)] {
        let later = UNIT.times(units);
        // A first transmission. What was sent just before the packet that has arrived may be as young.
        let mut bench = Bench::new(&config);
        bench.send_packets(2);
        bench.now += later;
        let last = bench.send_packets(1)[0];
        bench.now += RTT;
        bench.hear_prompt(triggered_by(2, naming(0, &[2], sack(NOTHING, last.ev))));
        assert_eq!(psns(&bench.send()), if is_lost { vec![0] } else { vec![] }, "{units}");
        // A retransmission.
        let mut bench = Bench::new(&config);
        let first = bench.send_packets(1)[0];
        bench.hear_packet(nack(0, NackReason::Trimmed, first.ev));
        assert_eq!(psns(&bench.send()), [0]);
        bench.now += later;
        let last = bench.send_packets(1)[0];
        bench.now += RTT;
        bench.hear_prompt(triggered_by(1, naming(0, &[1], sack(NOTHING, last.ev))));
        assert_eq!(psns(&bench.send()), if is_lost { vec![0] } else { vec![] }, "{units}");
        // By a SACK that is not the last of its report: of what its bitmap covers, from PSN 2.
        let mut bench = Bench::new(&config);
        let first = bench.send_packets(4)[0];
        bench.now += later;
        bench.send_packets(1);
        bench.now += RTT;
        bench.hear_prompt(naming(2, &[4], sack(0, first.ev)));
        assert_eq!(psns(&bench.send()), if is_lost { vec![2] } else { vec![] }, "{units}");
    }
}

#[test]
fn the_latest_packet_that_a_sack_names_proves_more_than_its_trigger() {
    let mut bench = Bench::new(&config_in_ticks(true));
    let first = bench.send_packets(3)[0];
    bench.now += RTT.times(4);
    bench.send_packets(1);
    bench.now += RTT;
    bench.hear_prompt(naming(1, &[3], sack(0, first.ev)));
    assert_eq!(psns(&bench.send()), [1]);
}

#[test]
fn within_a_burst_a_packet_is_lost_if_a_later_one_of_it_has_arrived() {
    let random = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ n << 40;
    for burst in [1, 4] {
        let mut config = config();
        config.paths.burst = burst;
        for n in 1..40 {
            // One half, one quarter, or three quarters have arrived.
            let arrived = match n % 3 {
                0 => random(n),
                1 => random(n) & random(n + 100),
                _ => random(n) | random(n + 100),
            };
            let mut bench = Bench::new(&config);
            let sent = bench.send_packets(70);
            let is_later = |psn: usize, later: usize| {
                later - psn < burst.into() && sent[later].ev == sent[psn].ev && arrived >> later & 1 == 1
            };
            let is_lost =
                |&psn: &usize| arrived >> psn & 1 == 0 && (psn + 1..64).any(|later| is_later(psn, later));
            let expected: Vec<_> = (0..64).filter(is_lost).map(|psn| psn as u32).collect();
            assert_eq!(expected.is_empty(), burst == 1, "{n}");
            // The trigger says nothing of the order: its path is unknown.
            bench.hear_sack(Sack { bitmap: arrived, ..sack(NOTHING, UNKNOWN) });
            assert_eq!(psns(&bench.send()), expected, "{n}: {arrived:#x}");
        }
    }
}

#[test]
fn the_entropy_of_another_path_than_the_triggers_proves_no_loss_on_it() {
    for (trigger, named, lost) in [(17, 1, 1), (18, 1, 0), (18, 18, 0)] {
        let mut bench = Bench::new(&config());
        let sent = bench.send_packets(20);
        assert!(sent[17].ev == sent[1].ev && sent[18].ev != sent[1].ev);
        let report = Sack { bitmap: (1 << 19) - 2, ..sack(0, sent[named].ev) };
        bench.hear_sack(triggered_by(trigger, report));
        assert_eq!(bench.qp.stats().lost, lost, "{trigger} on the path of {named}");
    }
}

#[test]
fn an_answer_from_the_path_of_the_first_transmission_shows_that_it_was_not_lost() {
    for (which, spurious) in [("first", 1), ("second", 0), ("unknown", 0)] {
        let mut bench = Bench::new(&config_in_ticks(true));
        let sent = bench.send_packets(20);
        bench.now += RTT;
        bench.hear_prompt(triggered_by(17, Sack { bitmap: (1 << 19) - 2, ..sack(0, sent[17].ev) }));
        let [again] = bench.send()[..] else { panic!("one retransmission") };
        assert_eq!((again.packet.psn.get(), bench.state(sent[1].ev)), (1, EvState::AssumedBad));
        let path = match which {
            "first" => sent[1].ev,
            "second" => again.ev,
            _ => UNKNOWN,
        };
        bench.hear_prompt(triggered_by(1, sack(19, path)));
        let stats = bench.qp.stats();
        assert_eq!((stats.spurious, stats.lost), (spurious, 1), "{which}");
        let (state, window) =
            if spurious == 1 { (EvState::Good, 19_200) } else { (EvState::AssumedBad, 9600) };
        assert_eq!((bench.state(sent[1].ev), stats.reorder_window_ns), (state, window), "{which}");
    }
}

#[test]
fn packets_that_were_not_lost_double_the_reorder_window_up_to_four_times_round_trip_and_target_delay() {
    let mut bench = Bench::new(&config_in_ticks(true));
    let sent = bench.send_packets(10);
    assert_eq!(bench.qp.stats().reorder_window_ns, 9600);
    // The last: 4 x (12.8 + 9.6) us.
    for (psn, window) in (0..).zip([19_200, 38_400, 76_800, 89_600, 89_600]) {
        bench.hear_packet(nack(psn, NackReason::Trimmed, sent[psn as usize].ev));
        // It measures no round trip.
        let answer = sack(psn, sent[psn as usize].ev);
        bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(psn), Body::Sack(answer)) });
        let stats = bench.qp.stats();
        assert_eq!((stats.reorder_window_ns, stats.spurious), (window, psn + 1));
    }
    assert_eq!(bench.send(), []);
}

#[test]
fn a_path_that_trims_misses_three_turns_as_its_queue_is_longer_than_any_that_was_measured() {
    let mut bench = Bench::new(&config_in_ticks(true));
    let sent = bench.send_packets(8);
    let (ev, port) = (sent[1].ev, sent[1].port);
    // It is the first of the four paths of its plane. It is later than the others by the reorder window, which is a
    // target delay: that costs two turns more.
    bench.hear_packet(nack(1, NackReason::Trimmed, ev));
    bench.send();
    let on_plane = bench.send_packets(40).into_iter().filter(|t| t.port == port);
    assert_eq!(on_plane.take_while(|t| t.ev != ev).count(), 3 * 3);
}

#[test]
fn a_cumulative_point_settles_everything_below_it_however_far_it_moves() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(300);
    bench.hear_packet(nack(170, NackReason::Trimmed, sent[170].ev));
    bench.hear_sack(sack(299, sent[299].ev));
    let stats = bench.qp.stats();
    assert_eq!((stats.spurious, stats.trimmed, stats.in_flight), (1, 1, 0), "170 had arrived");
    assert_eq!(bench.send(), []);
}

#[test]
fn a_refused_packet_that_is_reported_alone_has_arrived_all_the_same() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_sack(triggered_by(3, naming(1, &[1, 3], sack(NOTHING, sent[3].ev))));
    bench.hear_packet(nack(2, NackReason::TrimmedLastHop, sent[2].ev));
    bench.hear_sack(triggered_by(2, naming(2, &[2], sack(NOTHING, sent[2].ev))));
    assert_eq!((bench.qp.stats().spurious, bench.qp.stats().trimmed), (1, 1));
    assert_eq!(bench.send(), [], "and is not sent again");
    bench.hear_packet(nack(0, NackReason::NoResource, sent[0].ev));
    assert_eq!(bench.qp.stats().trimmed, 1);
    bench.wait(11);
    assert_eq!(psns(&bench.send()), [0]);
    bench.hear_packet(Packet { rtx: true, ..nack(0, NackReason::Trimmed, UNKNOWN) });
    assert_eq!(bench.qp.stats().trimmed, 2);
}

#[test]
fn a_timeout_is_blamed_on_a_receiver_that_presses_if_both_ends_agreed_on_it() {
    for (agreed, penalty, overflowed) in [(true, 10, 1), (true, 0, 0), (false, 10, 0), (false, 0, 0)] {
        let mut config = config_in_ticks(true);
        config.requestor.timeout = Span::from_micros(100);
        config.caps = Capabilities { overflow_reports: agreed, ..Capabilities::OWN };
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(4);
        // It answers, and nothing arrives.
        bench.wait(90);
        let cc = CcState { rcv_cwnd_pen: penalty, ..CcState::default() };
        bench.hear_prompt(Sack { cc, ..sack(NOTHING, UNKNOWN) });
        bench.wait(10);
        bench.timers();
        let stats = bench.qp.stats();
        let counts = (stats.timeouts, stats.lost, stats.overflowed);
        assert_eq!(counts, (1, 1, overflowed), "agreed {agreed}, penalty {penalty}");
        let state = if overflowed == 1 { EvState::Good } else { EvState::AssumedBad };
        assert_eq!(bench.state(sent[0].ev), state, "agreed {agreed}, penalty {penalty}");
        assert_eq!(psns(&bench.send()), [0]);
    }
}

#[test]
fn where_switches_drop_a_plane_is_dead_after_two_round_trips_through_full_queues_without_arrivals() {
    // The longest round trip is the shortest and the reorder window, which is the target delay, a base RTT.
    let limit = RTT.times(4);
    for (silent, condemned) in [(Span(limit.0 - 1), 0), (limit, 4)] {
        let mut bench = Bench::new(&config_in_ticks(false));
        let mut sent = bench.send_packets(3);
        bench.now += RTT.times(5);
        sent.extend(bench.send_packets(6));
        assert!(sent.iter().all(|t| u32::from(t.port) == t.packet.psn.get() % 2));
        // On the second plane nothing arrives: PSN 1 is lost by what was sent later on the first.
        bench.now += RTT;
        bench.hear_prompt(triggered_by(4, naming(0, &[0, 2, 4], sack(NOTHING, sent[4].ev))));
        assert_eq!(bench.qp.stats().lost, 1);
        let begin = bench.now;
        bench.now = Time(begin.0 + silent.0 - RTT.0);
        let [again] = bench.send()[..] else { panic!("one retransmission") };
        assert_eq!((again.packet.psn.get(), again.port), (1, 0));
        // PSN 3, 5 and 7 are lost too: one packet on each path of the plane.
        bench.now = begin + silent;
        let report = triggered_by(1, naming(0, &[0, 1, 2, 4, 6, 8], sack(NOTHING, again.ev)));
        bench.hear_packet(of_a_retransmission(&bench, report));
        assert_eq!(bench.qp.stats().lost, 4);
        let bad = bench.qp.ev_states().filter(|(_, state)| *state == EvState::AssumedBad).count();
        assert_eq!(bad, condemned, "{silent:?}");
    }
}

#[test]
fn a_probe_of_full_size_is_answered_only_by_what_had_arrived_before() {
    let mut bench = Bench::new(&config_in_ticks(false));
    let sent = bench.send_packets(20);
    let path = sent[1].ev;
    bench.now += RTT;
    bench.hear_prompt(Sack { mark: Mark::AlwaysSkip, ..sack(0, path) });
    assert_eq!(bench.state(path), EvState::AssumedBad);
    // Its first probe, after four round trips.
    bench.now += RTT.times(5);
    bench.timers();
    assert_eq!(bench.qp.stats().path_probes, 1);
    // The next comes at once after an answer, else after twice the time. That packet 1 took this path is none: it is
    // the oldest outstanding, and arrives only now. As a duplicate it has the number of the path's plane.
    for (answered, probes) in [(false, 1), (true, 2)] {
        bench.hear_prompt(triggered_by(1, sack(1, path)));
        bench.wait(5);
        bench.timers();
        assert_eq!(bench.qp.stats().path_probes, probes, "answered: {answered}");
    }
}

#[test]
fn the_answer_to_a_probe_of_a_path_that_is_not_in_use_names_none() {
    let mut config = config();
    let path = |i: u32| PathEntry { ev: Ev(0xE0 + i), port: (i % 2) as u8 };
    config.paths.profile = Arc::new(EvProfile::new(&(0..16).map(path).collect::<Vec<_>>()).unwrap());
    let mut bench = Bench::new(&config);
    assert_eq!(bench.qp.ev_states().count(), 8);
    for ev in 0xE0..0xF0 {
        // The ninth path.
        bench.hear_sack(Sack { probe_reply: true, ack_psn_offset: 8, ..sack(NOTHING, Ev(ev)) });
    }
    let stats = bench.qp.stats();
    assert_eq!((stats.peer_unknown_entropy, stats.sacks_in), (8, 16));
}

/// The smoothed RTT of a queue pair, which begins at 10 us, after one more sample.
fn after(srtt: f64, sample: f64) -> f64 {
    srtt * 7.0 / 8.0 + sample / 8.0
}

#[track_caller]
fn assert_srtt(bench: &Bench, expected: f64) {
    let srtt = bench.qp.stats().srtt_ns as f64;
    assert!((srtt - expected * 1000.0).abs() < 200.0, "{srtt} ns");
}

#[test]
fn a_timestamp_counts_as_long_as_its_16_bits_cannot_have_wrapped() {
    // 0xF000 ticks are 60,000 units of a kept send time.
    let limit = Span::WIRE_TICK.times(0xF000);
    assert_eq!(limit, UNIT.times(60_000));
    for (age, srtt) in [
        (Span(limit.0 - UNIT.0), after(10.0, (limit.0 - UNIT.0) as f64 / 1e6)),
        // Longer ones count as at most 64 smoothed ones.
        (limit, after(10.0, 640.0)),
    ] {
        let mut bench = Bench::new(&config());
        let sent = bench.send_packets(2);
        let timestamp = bench.now.wire_ticks();
        bench.now += age;
        bench.hear_sack(Sack { cc: CcState { timestamp, ..CcState::default() }, ..sack(0, sent[0].ev) });
        assert_srtt(&bench, srtt);
        assert_eq!(bench.qp.stats().peer.bad_timestamps, 0);
    }
}

#[test]
fn of_round_trips_longer_than_timestamps_reach_one_is_measured_for_each_flight() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(4);
    bench.hear_packet(nack(2, NackReason::Trimmed, sent[2].ev));
    let again = bench.send();
    assert_eq!(psns(&again), [2]);
    bench.wait(10_000);
    // It is not certain which transmission is answered.
    let answer = Body::Sack(triggered_by(2, naming(2, &[2], sack(NOTHING, again[0].ev))));
    bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(0), answer) });
    assert_srtt(&bench, 10.0);
    bench.hear_sack(sack(0, sent[0].ev));
    let first = after(10.0, 640.0);
    assert_srtt(&bench, first);
    bench.hear_sack(sack(1, sent[1].ev));
    assert_srtt(&bench, first);
    // What leaves now is another flight.
    let next = bench.send_packets(1);
    bench.wait(10_000);
    bench.hear_sack(sack(3, sent[3].ev));
    assert_srtt(&bench, first);
    bench.hear_sack(sack(4, next[0].ev));
    assert_srtt(&bench, after(first, 64.0 * first));
}

#[test]
fn only_the_first_answer_to_a_packet_measures_by_its_send_time() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(3);
    // The timestamp is that of no transmission.
    let timestamp = bench.now.wire_ticks().wrapping_sub(5000);
    let report = naming(1, &[2], sack(NOTHING, sent[2].ev));
    let report = Sack { cc: CcState { timestamp, ..CcState::default() }, ..triggered_by(2, report) };
    bench.wait(20);
    bench.hear_sack(report);
    assert_srtt(&bench, after(10.0, 20.0));
    bench.wait(20);
    bench.hear_sack(report);
    assert_srtt(&bench, after(10.0, 20.0));
    assert_eq!(bench.qp.stats().peer.bad_timestamps, 2);
}

#[test]
fn an_ack_covers_all_packets_of_the_messages_that_it_counts() {
    let mut bench = Bench::new(&config());
    (0..3).for_each(|handle| bench.post(handle, 2 * u32::from(MTU), None));
    assert_eq!(bench.send().len(), 6);
    // The peer's PSN lags behind its count.
    bench.hear_aeth(0x1F, 0, 2);
    assert_eq!((bench.log.done.len(), bench.qp.outstanding()), (2, 1));
    assert!(bench.qp.is_waiting());
    bench.hear_packet(nack(3, NackReason::Trimmed, UNKNOWN));
    assert_eq!(bench.send(), [], "it has arrived");
    bench.hear_aeth(0x1F, 0, 3);
    assert_eq!((bench.log.done.len(), bench.qp.outstanding()), (3, 0));
    assert!(!bench.qp.is_waiting());
    assert_eq!(bench.qp.stats().in_flight, 0);
}

#[test]
fn a_write_without_data_has_no_payload() {
    let mut bench = Bench::new(&config());
    bench.post(0, 0, Some(1));
    bench.post(1, 1, None);
    let lengths: Vec<_> = bench.send().iter().map(|t| (t.packet.payload_len, t.payload.is_some())).collect();
    assert_eq!(lengths, [(0, false), (1, true)]);
}

#[test]
fn the_data_of_a_retransmission_count_as_sent_once_more() {
    let mut bench = Bench::new(&config());
    bench.post(0, 100, None);
    bench.post(1, 30, None);
    let sent = bench.send();
    bench.hear_packet(nack(1, NackReason::Trimmed, sent[1].ev));
    bench.send();
    let stats = bench.qp.stats();
    assert_eq!((stats.data_packets, stats.retransmits, stats.data_bytes), (3, 1, 160));
}
