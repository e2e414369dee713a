use super::super::CcProfile;
use super::super::flow::{Feedback, Flow};
use super::*;
use crate::mrc::config::{PathModel, RequestorOptions};

const US: u64 = 1_000_000;
const MTU: u32 = 4188;

fn params() -> NsccParams {
    NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, true)
}

fn reference() -> Nscc {
    Nscc::new(&Arc::new(params()))
}

fn ack(newly: u32, rtt_us: f64, ecn: bool) -> Ack {
    Ack { newly, in_flight: 100_000, rtt: Some(Span((rtt_us * 1e6) as u64)), ecn, penalty: Penalty::None }
}

fn model() -> PathModel {
    PathModel::new(params().base_rtt, true)
}

/// A flow with NSCC, driven in bytes.
struct Sender {
    flow: Flow,
    received: u32,
}

impl Sender {
    fn new() -> Self {
        Sender {
            flow: Flow::new(&CcProfile::Nscc(Arc::new(params())), MTU, &RequestorOptions::default()),
            received: 0,
        }
    }

    fn send(&mut self, bytes: u32) {
        self.flow.on_sent(Time::ZERO, bytes, false, &model());
    }

    fn sack(&mut self, at_us: u64, units: u32, rtt_us: f64, penalty: u8, restore: bool) {
        self.received += units;
        let rtt = Some(Span((rtt_us * 1e6) as u64));
        let feedback = Feedback { rcvd_bytes: self.received, rtt, ecn: false, penalty, restore, delay: None };
        self.flow.apply(Time(at_us * US), &feedback, &model());
    }
}

#[test]
fn the_gains_follow_the_network() {
    // Link rate in Gb/s, base RTT in us, trimming; bandwidth-delay product as a share of that of the reference network,
    // target delay in us.
    for (gbps, rtt, trimming, share, target) in [
        (100, 12, true, 1.0, 9),
        (100, 12, false, 1.0, 12),
        (400, 24, true, 8.0, 18),
        (50, 6, false, 0.25, 6),
        (25, 48, true, 1.0, 36),
    ] {
        let p = NsccParams::for_network(gbps * 1_000_000_000, Span::from_micros(rtt), 4096, trimming);
        let is_near = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-9, "{gbps} Gb/s, {rtt} us: {found}, {expected}");
        };
        let (mtu, target_ps) = (f64::from(MTU), target as f64 * 1e6);
        is_near(p.alpha, 4.0 * share * (target as f64 / 12.0) * mtu / target_ps);
        is_near(p.fi, 5.0 * mtu * share);
        is_near(p.eta, 0.15 * mtu * share);
        is_near(p.fi_scale, 0.25 * share);
        assert!(p.max_wnd.abs_diff((225_000.0 * share) as u64) <= 1, "{}", p.max_wnd);
        assert_eq!((p.mtu, p.target_qdelay), (MTU, Span::from_micros(target)));
        assert_eq!((p.adjust_period, p.adjust_bytes), (Span::from_micros(rtt), 8 * MTU));
        let threshold = if trimming { Span(u64::MAX) } else { Span::from_micros(4 * target) };
        assert_eq!(p.qa_threshold, threshold);
    }
}

#[test]
fn a_delay_of_twice_the_target_takes_two_fifths_of_the_window() {
    let mut cc = reference();
    cc.set_window(100_000.0);
    let mut decreased = |at: Time, average_us: u64| {
        cc.avg_delay = (average_us * US) as f64;
        cc.multiplicative_decrease(at);
        cc.window()
    };
    assert_eq!(decreased(Time(99 * US), 9), 100_000.0, "the target is not above the target");
    // 1 - 0.8 x (18 - 9) / 18.
    assert_eq!(decreased(Time(100 * US), 18).round(), 60_000.0);
    // At most one half at once, and one decrease in a round trip.
    assert_eq!(decreased(Time(101 * US), 900).round(), 60_000.0);
    assert_eq!(decreased(Time(112 * US), 900).round(), 60_000.0);
    assert_eq!(decreased(Time(112 * US + 1), 900).round(), 30_000.0);
}

#[test]
fn a_sample_moves_the_average_delay_by_an_eightieth_of_the_way() {
    let mut cc = reference();
    let mut expected = 0.0;
    for (i, delay_us) in [4u64, 8, 0, 2, 8].into_iter().enumerate() {
        cc.on_sack(Time(i as u64 * US), &ack(0, 12.0 + delay_us as f64, false));
        expected = expected * 79.0 / 80.0 + (delay_us * US) as f64 / 80.0;
        assert!((cc.avg_delay - expected).abs() < 1.0, "{} {expected}", cc.avg_delay);
    }
}

#[test]
fn an_unmarked_sample_above_the_target_enters_the_average_as_a_quarter_of_the_base_rtt() {
    let target = 9 * US;
    for (delay, ecn, entered) in [
        (0, false, 0),
        (3 * US, false, 3 * US),
        (target, false, target),
        (target + 1, false, 3 * US),
        (18 * US, false, 3 * US),
        (target + 1, true, target + 1),
        (18 * US, true, 18 * US),
    ] {
        let mut cc = reference();
        cc.on_sack(Time(US), &Ack { rtt: Some(Span(12 * US + delay)), ..ack(0, 0.0, ecn) });
        assert!((cc.avg_delay * 80.0 - entered as f64).abs() < 1e-3, "{delay} {ecn}: {}", cc.avg_delay);
    }
}

#[test]
fn an_acknowledgement_earns_an_increase_for_its_share_of_a_window() {
    // Bytes still in flight after 20,000 were acknowledged; bytes that count where the window is 50,000.
    for (in_flight, counted) in [(80_000, 10_000.0), (30_000, 20_000.0), (0, 20_000.0), (-200, 20_000.0)] {
        // Delay and mark; packets that a window of such bytes would be increased by.
        for (delay, ecn, packets) in [
            (3 * US, false, 4.0 * 0.75 * 6.0 / 9.0),
            (9 * US - 9, false, 4.0 * 0.75 * 1e-6),
            (9 * US, false, 5.0),
            (18 * US, false, 5.0),
            (3 * US, true, 0.0),
            (18 * US, true, 0.0),
        ] {
            let mut cc = reference();
            cc.set_window(50_000.0);
            // Nothing that is earned is applied yet.
            cc.adjusted_at = Time(100 * US);
            let rtt = Some(Span(12 * US + delay));
            cc.on_sack(Time(101 * US), &Ack { in_flight, rtt, ..ack(20_000, 0.0, ecn) });
            let expected = counted * packets * f64::from(MTU);
            assert!((cc.inc_bytes - expected).abs() <= expected * 1e-9, "{delay} {ecn}: {}", cc.inc_bytes);
            assert_eq!(cc.window(), 50_000.0);
        }
    }
}

#[test]
fn what_was_earned_and_not_applied_shrinks_with_the_window() {
    let mut cc = reference();
    cc.set_window(100_000.0);
    cc.inc_bytes = 8_000.0;
    for (window, left) in [(30_000.0, 2_400.0), (30_000.0, 2_400.0), (60_000.0, 2_400.0), (15_000.0, 600.0)] {
        cc.set_window(window);
        assert_eq!((cc.window(), cc.inc_bytes.round()), (window, left));
    }
    cc.on_loss(Time(US), 5_000, 10_000);
    assert_eq!((cc.window(), cc.inc_bytes.round()), (10_000.0, 400.0));
}

#[test]
fn fast_increase_begins_after_a_window_without_delay_and_adds_a_quarter_of_what_is_acknowledged() {
    let mut cc = reference();
    cc.set_window(50_000.0);
    assert!(!cc.fast_increase(50_000, Span::ZERO, Penalty::None));
    assert!(cc.fast_increase(4_000, Span::ZERO, Penalty::None));
    assert!((cc.window() - 51_000.0).abs() < 1e-6, "{}", cc.window());
    assert!(!cc.fast_increase(4_000, Span(2 * US), Penalty::None), "a delay ends it");
    assert!(!cc.fast_increase(4_000, Span::ZERO, Penalty::None));
    assert!((cc.window() - 51_000.0).abs() < 1e-6, "{}", cc.window());
}

#[test]
fn a_delay_of_a_twelfth_of_the_base_rtt_counts_as_none() {
    for (delay, goes_on) in [(Span(US), true), (Span(US + 1), false)] {
        let mut cc = reference();
        cc.set_window(50_000.0);
        assert!(cc.fast_increase(50_001, Span::ZERO, Penalty::None));
        assert_eq!(cc.fast_increase(4_000, delay, Penalty::None), goes_on);
    }
}

#[test]
fn the_window_stays_between_one_mtu_and_its_maximum() {
    let mut cc = reference();
    let (low, high) = (f64::from(cc.params.mtu), cc.params.max_wnd as f64);
    let mut x = 1u64;
    for i in 0..100_000u64 {
        x = crate::random::mix(x);
        let now = Time(i * US);
        match x % 6 {
            0 => cc.on_trim(now, MTU, 100_000),
            1 => cc.on_loss(now, MTU, 100_000),
            2 => cc.set_window(((x >> 8) % 300_000) as f64),
            _ => cc.on_sack(now, &ack((x >> 8) as u32 % 20_000, (x >> 40) as f64 % 60.0, x & 64 != 0)),
        }
        assert!((low..=high).contains(&cc.window()), "window {} at step {i}", cc.window());
    }
}

#[test]
fn marks_with_delay_shrink_and_marks_alone_do_not() {
    let mut cc = reference();
    for i in 0..50 {
        cc.on_sack(Time(i * 20 * US), &ack(MTU, 13.0, true));
    }
    assert_eq!(cc.window(), cc.params.max_wnd as f64);
    for i in 50..2000 {
        cc.on_sack(Time(i * 20 * US), &ack(60_000, 60.0, true));
    }
    assert!(cc.window() < cc.params.max_wnd as f64 / 4.0, "window {}", cc.window());
}

#[test]
fn without_a_round_trip_time_a_sack_only_counts_bytes() {
    let mut cc = reference();
    cc.set_window(50_000.0);
    let none = Ack { rtt: None, ..ack(40_000, 0.0, false) };
    for i in 1..100 {
        cc.on_sack(Time(i * 20 * US), &none);
    }
    assert_eq!(cc.window(), 50_000.0);
    // The bytes count: the first sample after them adjusts the window.
    cc.on_sack(Time(2_001 * US), &ack(0, 14.0, false));
    assert!(cc.window() > 50_000.0);
}

#[test]
fn the_first_pass_of_quick_adapt_starts_its_clock() {
    let mut cc = reference();
    // Late, long after the start: nothing was counted in a period yet.
    cc.on_trim(Time(1_000 * US), MTU, 100_000);
    assert_eq!(cc.window(), 225_000.0 - f64::from(MTU));
    cc.on_trim(Time(1_020 * US), MTU, 100_000);
    assert_eq!(cc.window(), 225_000.0 - 2.0 * f64::from(MTU), "the period is 12 + 9 us");
    cc.on_trim(Time(1_021 * US), MTU, 100_000);
    assert_eq!(cc.window(), f64::from(cc.params.mtu));
}

#[test]
fn the_trigger_of_quick_adapt_stays_until_it_acts_and_a_loss_does_not_set_it() {
    let mut cc = reference();
    cc.on_sack(Time(US), &ack(0, 12.0, false));
    (0..5).for_each(|i| cc.on_loss(Time((30 + i) * US), MTU, 100_000));
    cc.on_sack(Time(40 * US), &ack(0, 12.0, false));
    assert!(cc.window() > 200_000.0, "a loss triggers nothing");
    cc.on_trim(Time(41 * US), MTU, 100_000);
    // In this period much was achieved, so it does not act.
    cc.on_sack(Time(62 * US), &ack(100_000, 12.0, false));
    assert!(cc.window() > 190_000.0);
    cc.on_sack(Time(90 * US), &ack(5_000, 12.0, false));
    assert_eq!(cc.window(), 5_000.0);
}

#[test]
fn quick_adapt_ignores_marked_feedback_until_the_bytes_in_flight_are_heard_of() {
    let mut cc = reference();
    cc.on_trim(Time(US), MTU, 100_000);
    cc.on_trim(Time(30 * US), MTU, 20_000);
    let window = cc.window();
    assert_eq!(window, f64::from(cc.params.mtu));
    // Trimmed packets, losses and SACKs count.
    cc.on_trim(Time(31 * US), 5_000, 20_000);
    cc.on_loss(Time(31 * US), 5_000, 20_000);
    cc.on_sack(Time(32 * US), &ack(5_000, 60.0, true));
    assert_eq!(cc.window(), window);
    // Unmarked feedback is not ignored.
    cc.on_sack(Time(60 * US), &ack(40_000, 14.0, false));
    assert!(cc.window() > window);
}

#[test]
fn the_gate_of_quick_adapt_does_not_fall_with_the_base_rtt() {
    let mut cc = reference();
    cc.on_rtt(Span::from_micros(3));
    cc.on_trim(Time(US), MTU, 100_000);
    // An eighth of the configured largest window is 28,125 bytes, of the lowered one 7,031.
    cc.on_sack(Time(2 * US), &Ack { rtt: None, ..ack(10_000, 0.0, false) });
    cc.on_trim(Time(30 * US), MTU, 100_000);
    assert_eq!(cc.window(), 10_000.0);
}

#[test]
fn without_trimming_a_delay_above_the_threshold_triggers_quick_adapt() {
    for (delay, window) in [(48 * US, 225_000.0), (48 * US + 1, 10_000.0)] {
        let params = NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, false);
        let mut cc = Nscc::new(&Arc::new(params));
        cc.on_sack(Time(US), &ack(0, 12.0, false));
        cc.on_sack(Time(30 * US), &Ack { rtt: Some(Span(12 * US + delay)), ..ack(10_000, 0.0, false) });
        assert_eq!(cc.window(), window);
    }
}

#[test]
fn with_nothing_in_flight_quick_adapt_ignores_nothing_more() {
    for (is_idle, window) in [(false, 10_240), (true, 10_240 - u64::from(MTU))] {
        let mut sender = Sender::new();
        sender.send(100_000);
        // Sent again, and the first time was not lost: twice in flight, and once in the responder's counter.
        sender.flow.on_sent(Time::ZERO, 100_000, true, &model());
        sender.flow.on_trim(Time(12 * US), MTU, false, None);
        sender.sack(15, 40, 20.0, 0, false);
        sender.flow.on_trim(Time(34 * US), MTU, false, None);
        assert_eq!(sender.flow.window(), 10_240);
        if is_idle {
            sender.flow.on_idle(Time(40 * US));
        }
        sender.flow.on_trim(Time(41 * US), MTU, false, None);
        assert_eq!(sender.flow.window(), window);
    }
}

#[test]
fn quick_adapt_never_raises_the_window() {
    let mut cc = reference();
    cc.on_trim(Time(US), MTU, 100_000);
    cc.on_sack(Time(2 * US), &Ack { rtt: None, ..ack(20_000, 0.0, false) });
    cc.on_trim(Time(3 * US), 220_000, 100_000);
    assert_eq!(cc.window(), f64::from(cc.params.mtu));
    cc.on_trim(Time(30 * US), MTU, 100_000);
    assert_eq!(cc.window(), f64::from(cc.params.mtu));
}

#[test]
fn quick_adapt_can_be_switched_off() {
    let mut cc = Nscc::new(&Arc::new(NsccParams { disable_qa: true, ..params() }));
    cc.on_trim(Time(US), MTU, 100_000);
    cc.on_trim(Time(30 * US), MTU, 100_000);
    assert_eq!(cc.window(), 225_000.0 - 2.0 * f64::from(MTU));
}

#[test]
fn an_unmarked_delay_opens_no_window_while_the_receiver_resolves_an_incast() {
    for (penalty, grows) in [(Penalty::None, true), (Penalty::Easing, false)] {
        let mut cc = reference();
        cc.set_window(50_000.0);
        // The first step is due by time and sets all clocks.
        cc.on_sack(Time(1_000 * US), &Ack { penalty, ..ack(0, 14.0, false) });
        let window = cc.window();
        cc.on_sack(Time(1_001 * US), &Ack { penalty, ..ack(50_000, 30.0, false) });
        assert_eq!(cc.window() > window, grows, "{penalty:?}");
    }
}

#[test]
fn a_shorter_round_trip_lowers_the_largest_window_in_proportion() {
    let mut cc = reference();
    // By a NACK or a probe: nothing else happens.
    cc.on_rtt(Span::from_micros(9));
    assert_eq!(cc.window(), 225_000.0);
    assert!((cc.max_wnd() - 168_750.0).abs() < 1.0);
    cc.on_rtt(Span::from_micros(30));
    cc.on_sack(Time(20 * US), &ack(1_000, 9.0, false));
    assert!((cc.window() - 168_750.0).abs() < 1.0);
    cc.set_window(100_000.0);
    cc.on_rtt(Span::from_micros(3));
    cc.set_window(100_000.0);
    assert!((cc.window() - 56_250.0).abs() < 1.0, "no larger one is restored");
    cc.on_rtt(Span::ZERO);
    assert!(cc.max_wnd() >= f64::from(cc.params.mtu));
}

#[test]
fn a_trimmed_packet_feeds_the_average_with_the_configured_base_rtt() {
    let mut cc = reference();
    cc.on_rtt(Span::from_micros(3));
    cc.on_trim(Time(US), MTU, 100_000);
    assert!((cc.avg_delay - DELAY_WEIGHT * 12e6).abs() < 1.0);
}

#[test]
fn the_window_steps_after_more_than_the_configured_bytes() {
    let mut cc = reference();
    cc.set_window(50_000.0);
    // The first step is due by time and sets all clocks.
    cc.on_sack(Time(1_000 * US), &ack(0, 14.0, false));
    let window = cc.window();
    cc.on_sack(Time(1_001 * US), &ack(cc.params.adjust_bytes, 14.0, false));
    assert_eq!(cc.window(), window);
    cc.on_sack(Time(1_002 * US), &ack(1, 14.0, false));
    assert!(cc.window() > window);
}

#[test]
fn fast_increase_ends_at_the_largest_window() {
    let mut cc = reference();
    cc.set_window(20_000.0);
    for i in 0..200 {
        cc.on_sack(Time(i * US), &ack(20_000, 12.0, false));
    }
    assert_eq!(cc.window(), 225_000.0);
}

#[test]
fn quick_adapt_takes_what_was_achieved_in_the_second_round_trip() {
    let mut sender = Sender::new();
    sender.send(200_000);
    sender.flow.on_trim(Time(12 * US), MTU, false, None);
    sender.sack(15, 40, 20.0, 0, false);
    sender.flow.on_trim(Time(34 * US), MTU, false, None);
    assert_eq!(sender.flow.window(), 10_240);
}

#[test]
fn the_destination_can_hold_the_sender_back_and_let_it_go() {
    let mut sender = Sender::new();
    let before = sender.flow.window();
    sender.send(100_000);
    sender.sack(1, 80, 12.0, 64, false);
    assert_eq!(sender.flow.window(), 100_000 + u64::from(MTU) - 80 * 256 / 2);
    sender.sack(2, 0, 12.0, 0, true);
    assert!(sender.flow.window() >= before);
}

#[test]
fn a_window_that_has_fallen_is_not_thrown_open_by_what_the_old_one_sent() {
    let mut sender = Sender::new();
    sender.send(200_000);
    sender.flow.on_trim(Time(12 * US), MTU, false, None);
    sender.sack(15, 40, 20.0, 0, false);
    sender.flow.on_trim(Time(34 * US), MTU, false, None);
    let fallen = sender.flow.window();
    assert_eq!(fallen, 10_240);
    // Within a round trip half of the bytes in flight are acknowledged with little delay. A round trip earns one
    // increase: at most alpha times the target, three packets here, and eta.
    for i in 0..24 {
        sender.sack(35 + i / 3, 16, 15.0, 0, false);
    }
    assert!(sender.flow.window() <= fallen + 4 * 4188, "window {} after {fallen}", sender.flow.window());
}

#[test]
fn what_was_earned_by_a_large_window_does_not_open_a_small_one() {
    let mut sender = Sender::new();
    for _ in 0..50 {
        sender.send(MTU);
    }
    // An increase is earned and not applied; then the window falls to one packet.
    sender.sack(2, 117, 14.0, 0, false);
    for i in 0..60 {
        sender.flow.on_loss(Time(3 * US + i), MTU);
    }
    assert_eq!(sender.flow.window(), 4188);
    sender.sack(20, 0, 14.0, 0, false);
    assert!(sender.flow.window() <= 3 * 4188, "window {}", sender.flow.window());
}

#[test]
fn senders_that_a_destination_lets_grow_grow_by_equal_steps() {
    let grown = |window: u32| {
        let mut sender = Sender::new();
        sender.send(window + MTU);
        sender.sack(2, 16, 12.0, 127, false);
        let before = sender.flow.window();
        for round in 1..=4u64 {
            let newly = sender.flow.window() as u32;
            sender.send(newly.saturating_sub(sender.flow.in_flight().max(0) as u32));
            sender.sack(3 + round * 12, newly / 256, 12.0, 0, false);
        }
        (before, sender.flow.window() - before)
    };
    let ((small, of_small), (large, of_large)) = (grown(30_000), grown(90_000));
    assert!(large > 2 * small, "{small}, {large}");
    assert!(of_large.abs_diff(of_small) < 2 * 4188, "{of_small} and {of_large}");
}
