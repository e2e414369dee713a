//! When a requestor asks a silent peer, counts an attempt, or lets the next packet go.

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, EvState, QpConfig};
use openmrc_transport::{
    EvProfile, Fatal, PathEntry, PortSet, Readiness, Span, Time, Transmit, Transport as _,
};
use openmrc_wire::{Body, CcState, Ev, Mark, NackReason, Packet, Psn, Sack};

use super::bench::{Bench, MTU, QP, RTT, config_in_ticks, nack, psns, sack};

/// A silent peer is asked after 1.5 round trips and the target delay, 9.6 us.
const TAIL: Span = Span::from_nanos(19_200 + 9600);
/// Nominal bytes of a full packet.
const NOMINAL: u32 = 4096 + 88;

fn config() -> QpConfig {
    config_in_ticks(true)
}

/// An ACK timeout of 100 us.
fn impatient() -> QpConfig {
    let mut config = config();
    config.requestor.timeout = Span::from_micros(100);
    config
}

fn answer(probe: &Transmit, cack: u32) -> Sack {
    let Body::Probe(body) = probe.packet.body else { panic!("no probe: {probe:?}") };
    Sack { probe_reply: true, ack_psn_offset: body.probe_id as i16, ..sack(cack, probe.ev) }
}

/// Moves on to the next time at which something is due.
fn next_time(bench: &mut Bench) {
    bench.now = bench.qp.poll_timeout().max(bench.now);
}

/// The probes of each of the next `count` questions to a silent peer.
fn questions(bench: &mut Bench, count: usize) -> Vec<Vec<Transmit>> {
    let mut asked = Vec::new();
    while asked.len() < count {
        next_time(bench);
        let probes = bench.questions();
        if !probes.is_empty() {
            asked.push(probes);
        }
    }
    asked
}

#[test]
fn the_fourth_question_to_a_silent_peer_goes_out_on_four_paths_one_of_them_condemned() {
    for ports in [1, 2] {
        let mut config = config();
        let path = |i: u8| PathEntry { ev: Ev(0xE0 + u32::from(i)), port: i % ports };
        config.paths.profile = Arc::new(EvProfile::new(&(0..8).map(path).collect::<Vec<_>>()).unwrap());
        let mut bench = Bench::new(&config);
        // The node has no budget for other probes.
        bench.log.budget_is_spent = true;
        let sent = bench.send_packets(20);
        for psn in 0..2 {
            bench.hear_prompt(Sack { mark: Mark::AlwaysSkip, ..sack(psn, sent[psn as usize].ev) });
        }
        let bad = |bench: &Bench, t: &Transmit| bench.state(t.ev) == EvState::AssumedBad;
        for (number, probes) in questions(&mut bench, 6).iter().enumerate() {
            let condemned = probes.iter().filter(|t| bad(&bench, t)).count();
            // With two planes, two on each.
            let second_port = probes.iter().filter(|t| t.port == 1).count();
            let expected = if number < 3 { (1, 0) } else { (4, 1) };
            assert_eq!((probes.len(), condemned), expected, "question {number}, {ports} ports");
            assert!(number < 3 || second_port == if ports == 2 { 2 } else { 0 });
        }
    }
}

#[test]
fn a_port_that_the_peer_has_said_is_down_is_asked_on_after_three_questions() {
    let mut bench = Bench::new(&config());
    bench.qp.set_ports_up(bench.now, PortSet::first(2), PortSet::one(1));
    let sent = bench.send_packets(2);
    assert!(sent.iter().all(|t| t.port == 1));
    for (number, probes) in questions(&mut bench, 6).iter().enumerate() {
        assert_eq!(probes.iter().any(|t| t.port == 0), number >= 3, "question {number}");
    }
}

#[test]
fn silence_counts_from_the_moment_at_which_the_peer_has_something_to_answer() {
    // After a second of nothing.
    let mut bench = Bench::new(&config());
    bench.now += Span::from_secs(1);
    bench.send_packets(1);
    assert_eq!(bench.qp.poll_timeout(), bench.now + TAIL);
    // After a second in which it could have been sent.
    let mut bench = Bench::new(&config());
    bench.post(0, 1, None);
    bench.now += Span::from_secs(1);
    assert_eq!(bench.qp.poll_timeout(), Time::NEVER);
    assert_eq!(bench.send().len(), 1);
    assert_eq!(bench.qp.poll_timeout(), bench.now + TAIL);
    // Without a port in common the peer is asked whether that is still so.
    let mut bench = Bench::new(&config());
    bench.post(0, 1, None);
    bench.now += Span::from_secs(1);
    bench.qp.set_ports_up(bench.now, PortSet::one(0), PortSet::one(1));
    assert_eq!(bench.qp.poll_timeout(), bench.now + TAIL);
    bench.now = Time(bench.now.0 + TAIL.0 - 1);
    assert_eq!(bench.questions(), []);
    bench.now += Span(1);
    assert_eq!(bench.questions().len(), 1);
}

#[test]
fn it_waits_for_the_peer_while_a_message_is_incomplete_or_cannot_be_sent() {
    for (posted, up, waits) in [(false, 2, false), (false, 0, false), (true, 2, false), (true, 0, true)] {
        let mut bench = Bench::new(&config());
        bench.qp.set_ports_up(bench.now, PortSet::first(2), PortSet::first(up));
        if posted {
            bench.post(0, 1, None);
        }
        assert_eq!(bench.qp.is_waiting(), waits, "posted {posted}, {up} ports");
        assert_eq!(bench.qp.poll_timeout() == Time::NEVER, !waits, "posted {posted}, {up} ports");
    }
    // Everything has arrived, and the peer is asked for its ACK.
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(2);
    bench.now += RTT;
    bench.hear_prompt(sack(1, sent[1].ev));
    assert!(bench.qp.is_waiting());
    assert_eq!(bench.qp.poll_timeout(), bench.now + TAIL);
    next_time(&mut bench);
    assert_eq!(bench.questions().len(), 1);
    bench.hear_aeth(0x1F, 1, 2);
    assert!(!bench.qp.is_waiting());
    assert_eq!(bench.qp.poll_timeout(), Time::NEVER);
}

#[test]
fn only_what_is_new_postpones_the_timeout() {
    type Event = fn(&mut Bench, Ev);
    let events: [(&str, bool, Event); 9] = [
        ("nothing", false, |_, _| ()),
        ("the same SACK", false, |bench, ev| _ = bench.hear_prompt(sack(0, ev))),
        ("the same ACK", false, |bench, _| bench.hear_aeth(0x1F, 0, 1)),
        ("a refusal", false, |bench, ev| _ = bench.hear_packet(nack(1, NackReason::NoResource, ev))),
        ("a trimmed packet", true, |bench, ev| _ = bench.hear_packet(nack(1, NackReason::Trimmed, ev))),
        ("a cumulative point", true, |bench, ev| _ = bench.hear_prompt(sack(1, ev))),
        ("a bit", true, |bench, ev| _ = bench.hear_prompt(Sack { bitmap: 2, ..sack(0, ev) })),
        ("a PSN of an ACK", true, |bench, _| bench.hear_aeth(0x1F, 1, 1)),
        ("a complete message", true, |bench, _| bench.hear_aeth(0x1F, 0, 2)),
    ];
    for (name, is_new, event) in events {
        let mut bench = Bench::new(&impatient());
        let sent = bench.send_packets(3);
        bench.now += RTT;
        bench.hear_prompt(sack(0, sent[0].ev));
        bench.hear_aeth(0x1F, 0, 1);
        bench.wait(90);
        event(&mut bench, sent[1].ev);
        bench.wait(10);
        bench.timers();
        assert_eq!(bench.qp.stats().timeouts, u32::from(!is_new), "{name}");
        bench.wait(90);
        bench.timers();
        assert_eq!(bench.qp.stats().timeouts, 1, "{name}");
    }
}

#[test]
fn a_new_message_does_not_postpone_the_timeout_of_one_that_has_arrived() {
    let mut bench = Bench::new(&impatient());
    let sent = bench.send_packets(1);
    bench.now += RTT;
    bench.hear_prompt(sack(0, sent[0].ev));
    bench.wait(99);
    bench.send_packets(1);
    bench.wait(1);
    bench.timers();
    assert_eq!(bench.qp.stats().timeouts, 1);
}

#[test]
fn attempts_end_unless_the_peer_waits_for_a_receive_and_has_all_else() {
    for (peer_waits, arrived, fails) in
        [(true, true, false), (true, false, true), (false, true, true), (false, false, true)]
    {
        let mut config = impatient();
        (config.requestor.linear_cnt, config.requestor.exp_cnt) = (2, 0);
        config.requestor.peer_waits = peer_waits;
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(2);
        let cack = u32::from(arrived);
        bench.now += RTT;
        bench.hear_prompt(sack(cack, sent[cack as usize].ev));
        // It always answers at once.
        for _ in 0..100 {
            next_time(&mut bench);
            for probe in bench.questions() {
                bench.hear_sack(answer(&probe, cack));
            }
        }
        let expected = fails.then_some(Fatal::RetryExceeded);
        assert_eq!(bench.log.fatal, expected, "waits {peer_waits}, arrived {arrived}");
    }
}

#[test]
fn a_peer_that_waits_for_a_receive_is_asked_ever_more_seldom() {
    for (peer_waits, heard, pause) in
        [(false, 1000, TAIL), (true, 1000, Span::from_micros(250)), (true, 4000, Span::from_micros(1000))]
    {
        let mut config = config();
        config.requestor.peer_waits = peer_waits;
        config.requestor.timeout = Span::from_micros(8000);
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(1);
        bench.now += RTT;
        bench.hear_prompt(sack(0, sent[0].ev));
        bench.wait(heard);
        bench.hear_prompt(sack(0, sent[0].ev));
        assert_eq!(bench.qp.poll_timeout(), bench.now + pause, "{peer_waits}, {heard}");
    }
}

#[test]
fn changed_retries_hold_from_the_next_timeout_on() {
    let mut config = impatient();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (7, 0);
    let mut bench = Bench::new(&config);
    bench.send_packets(1);
    config.requestor.timeout = Span::from_micros(300);
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (1, 1);
    bench.qp.set_retries(&config.requestor);
    // One interval of the timeout, then 600 us, then 1200 us until nothing is left.
    let mut timeouts = 0;
    for (wait, failed) in [(300, false), (600, false), (1200, true)] {
        bench.now = Time(bench.now.0 + Span::from_micros(wait).0 - 1);
        bench.timers();
        assert_eq!((bench.qp.stats().timeouts, bench.log.fatal), (timeouts, None), "{wait}");
        bench.now += Span(1);
        bench.timers();
        timeouts += u32::from(!failed);
        let fatal = failed.then_some(Fatal::RetryExceeded);
        assert_eq!((bench.qp.stats().timeouts, bench.log.fatal), (timeouts, fatal), "{wait}");
    }
}

#[test]
fn a_sender_is_ready_when_it_has_a_packet_and_the_window_has_room_for_it() {
    let mut config = config();
    config.cc = Arc::new(CcProfile::FixedWindow(2 * u64::from(NOMINAL) + 100));
    let mut bench = Bench::new(&config);
    assert_eq!((bench.qp.readiness(), bench.qp.outstanding()), (Readiness::Idle, 0));
    (0..3).for_each(|handle| bench.post(handle, MTU.into(), None));
    assert_eq!((bench.qp.readiness(), bench.qp.outstanding()), (Readiness::Ready, 3));
    let sent = bench.send();
    assert_eq!((sent.len(), bench.qp.readiness()), (2, Readiness::Active), "the window is full");
    bench.hear_packet(nack(0, NackReason::Trimmed, sent[0].ev));
    assert_eq!(bench.qp.readiness(), Readiness::Ready);
    assert_eq!(psns(&bench.send()), [0]);
    let cc = CcState { rcvd_bytes: 2 * NOMINAL / 256 + 1, ..CcState::default() };
    bench.hear_prompt(Sack { cc, ..sack(1, sent[1].ev) });
    assert_eq!(bench.qp.readiness(), Readiness::Ready);
    assert_eq!((psns(&bench.send()), bench.qp.readiness()), (vec![2], Readiness::Pending));
    bench.hear_aeth(0x1F, 2, 3);
    assert_eq!((bench.qp.readiness(), bench.qp.outstanding()), (Readiness::Idle, 0));
}

#[test]
fn an_idle_peer_is_asked_when_the_period_has_passed_and_called_silent_after_four_answers_time() {
    let (period, interval) = (Span::from_micros(1000), Span::from_micros(100));
    let mut config = impatient();
    config.requestor.keepalive = Some(period);
    let mut bench = Bench::new(&config);
    assert_eq!(bench.qp.poll_timeout(), bench.now + period);
    bench.now = Time(bench.now.0 + period.0 - 1);
    assert_eq!(bench.questions(), []);
    bench.now += Span(1);
    let asked = bench.questions();
    assert_eq!(asked.len(), 1);
    // An answer starts the period anew.
    bench.hear_sack(answer(&asked[0], NOTHING));
    assert_eq!(bench.qp.poll_timeout(), bench.now + period);
    next_time(&mut bench);
    assert_eq!(bench.questions().len(), 1);
    // None does not; from the second one on every plane is asked.
    for number in 2..=5 {
        assert_eq!(bench.log.silences, [], "before question {number}");
        assert_eq!(bench.qp.poll_timeout(), bench.now + interval);
        next_time(&mut bench);
        assert_eq!(bench.questions().len(), 4, "question {number}");
    }
    assert_eq!(bench.log.silences, [true]);
    assert_eq!(bench.qp.poll_timeout(), bench.now + period, "it is known, and asked at leisure");

    // While data are under way, the same time has to pass.
    let mut bench = Bench::new(&config);
    let begin = bench.now;
    bench.send_packets(1);
    let known = begin + period + interval.times(4);
    while bench.qp.poll_timeout() < Time(known.0 - 1) {
        next_time(&mut bench);
        bench.timers();
    }
    assert_eq!(bench.log.silences, []);
    for (now, told) in [(Time(known.0 - 1), vec![]), (known, vec![true])] {
        bench.now = now;
        bench.timers();
        assert_eq!(bench.log.silences, told);
    }
}

#[test]
fn a_sender_that_was_stopped_itself_asks_five_times_before_it_calls_the_peer_silent() {
    let mut config = impatient();
    config.requestor.keepalive = Some(Span::from_micros(1000));
    let mut bench = Bench::new(&config);
    bench.send_packets(1);
    assert_eq!(questions(&mut bench, 3).len(), 3);
    bench.now += Span::from_secs(1);
    assert_eq!(bench.questions().len(), 4, "the fourth question");
    assert_eq!(bench.log.silences, []);
    questions(&mut bench, 1);
    assert_eq!(bench.log.silences, [true]);
}

/// The cumulative point before anything has arrived.
const NOTHING: u32 = 0xFF_FFFF;

/// A sender whose packets were trimmed on the last hop until it spaces them by the longest gap, eight round trips on
/// average. Nothing is in flight: three packets wait to be sent again.
fn spaced() -> Bench {
    let mut config = config();
    config.cc = Arc::new(CcProfile::nscc(100_000_000_000, RTT, MTU, true));
    let mut bench = Bench::new(&config);
    let mut sent = bench.send_packets(4);
    bench.now += RTT;
    let cc = CcState { rcv_cwnd_pen: 1, rcvd_bytes: NOMINAL.div_ceil(256), ..CcState::default() };
    bench.hear_prompt(Sack { cc, ..sack(0, sent.remove(0).ev) });
    bench.trim_on_last_hop(sent, 9);
    assert_eq!(bench.qp.stats().srtt_ns, RTT.as_nanos());
    bench
}

#[test]
fn while_packets_are_spaced_the_timer_runs_out_when_the_next_may_leave() {
    let mut bench = spaced();
    let until = bench.qp.poll_timeout();
    assert!(until > bench.now + RTT.times(4));
    bench.now = Time(until.0 - 1);
    assert_eq!((bench.send(), bench.questions()), (vec![], vec![]));
    // Other queue pairs are sending: what may leave is not due again and again until it leaves. Nor is the peer, which
    // has nothing to answer, asked before it could have answered.
    let asked_at = until + RTT;
    for now in [until, until + Span(1), Time(asked_at.0 - 1)] {
        bench.now = now;
        assert_eq!(bench.questions(), []);
        assert_eq!(bench.qp.poll_timeout(), asked_at);
    }
    bench.now = asked_at;
    assert_eq!(bench.questions().len(), 1);
    assert!(bench.qp.poll_timeout() > bench.now);
    assert_eq!(bench.send().len(), 1);
}

#[test]
fn the_silence_of_a_peer_counts_from_a_spaced_packet_as_from_any_other() {
    let mut bench = spaced();
    next_time(&mut bench);
    assert_eq!(bench.send().len(), 1);
    // The next one may leave at least four round trips later.
    let asked_at = bench.now + TAIL;
    assert_eq!(bench.qp.poll_timeout(), asked_at);
    bench.now = Time(asked_at.0 - 1);
    assert_eq!((bench.send(), bench.questions()), (vec![], vec![]));
    bench.now = asked_at;
    assert_eq!(bench.questions().len(), 1);
}

#[test]
fn two_packets_that_are_delivered_without_delay_end_the_spacing() {
    let mut bench = spaced();
    let mut counted = NOMINAL;
    for left in [2, 1] {
        next_time(&mut bench);
        let sent = bench.send();
        assert_eq!(sent.len(), 1, "{left} more");
        bench.now += RTT;
        counted += NOMINAL;
        let cc = CcState {
            timestamp: Time(bench.now.0 - RTT.0).wire_ticks(),
            rcvd_bytes: counted.div_ceil(256),
            ..CcState::default()
        };
        let psn = sent[0].packet.psn.get();
        let report = Body::Sack(Sack { cc, ..sack(psn, sent[0].ev) });
        bench.hear_packet(Packet { rtx: true, ..Packet::new(QP, Psn::new(psn), report) });
    }
    assert_eq!(psns(&bench.send()), [3], "at once");
}

#[test]
fn without_budget_a_condemned_path_is_probed_again_much_later_if_no_data_are_sent() {
    for (is_sending, round_trips) in [(true, 4), (false, 24)] {
        let mut bench = Bench::new(&config());
        bench.log.budget_is_spent = true;
        let sent = bench.send_packets(4);
        bench.now += RTT;
        bench.hear_prompt(Sack { mark: Mark::AlwaysSkip, ..sack(2, sent[2].ev) });
        if !is_sending {
            bench.hear_aeth(0x1F, 3, 4);
        }
        while bench.log.probes_asked.len() < 4 {
            next_time(&mut bench);
            bench.questions();
        }
        // Times are rounded up to a sixteenth of four round trips. Longer ones may be cut by half.
        let unit = RTT.0 / 4;
        let shortest = if is_sending { RTT.times(4) } else { RTT.times(12) };
        for pair in bench.log.probes_asked.windows(2) {
            let pause = pair[1].since(pair[0]).0;
            let longest = RTT.times(round_trips).0;
            assert!((shortest.0 - unit..=longest + unit).contains(&pause), "{pause} ps, {is_sending}");
        }
    }
}

#[test]
fn only_the_answer_to_the_probe_of_the_start_lowers_the_round_trip_of_the_idle_path() {
    // One bandwidth-delay product is 160,000 bytes, and the largest window one and a half of it.
    let cc = Arc::new(CcProfile::nscc(100_000_000_000, RTT, MTU, true));
    let [neither, another, its_own] = [None, Some(1), Some(0)].map(|wrong: Option<i16>| {
        let mut config = config();
        config.cc = Arc::clone(&cc);
        let mut bench = Bench::new(&config);
        let sent = bench.send_packets(100);
        bench.now += RTT;
        let timestamp = Time(bench.now.0 - RTT.0).wire_ticks();
        let first = Sack { cc: CcState { timestamp, ..CcState::default() }, ..sack(0, sent[0].ev) };
        bench.qp.handle_packet(
            bench.now,
            &super::bench::received(Packet::new(QP, first.cack_psn, Body::Sack(first))),
            &mut bench.log,
        );
        let [probe] = bench.log.sent.drain(..).collect::<Vec<_>>()[..] else { panic!("one probe") };
        // Half a round trip later.
        let timestamp = bench.now.wire_ticks();
        bench.now += Span(RTT.0 / 2);
        if let Some(wrong) = wrong {
            let reply = answer(&probe, 0);
            let id = reply.ack_psn_offset ^ (wrong << 9);
            let cc = CcState { timestamp, ..CcState::default() };
            bench.hear_sack(Sack { cc, ack_psn_offset: id, ..reply });
        }
        bench.now += Span(RTT.0 / 2);
        let cc = CcState { rcvd_bytes: 2 * NOMINAL / 256, ..CcState::default() };
        bench.hear_prompt(Sack { cc, ..sack(1, sent[1].ev) });
        bench.qp.stats().cwnd
    });
    assert_eq!(neither, another);
    assert!(neither > 230_000 && its_own <= 240_000 * 51 / 100, "{neither} {its_own}");
}
