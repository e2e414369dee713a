use super::*;

const MTU: u32 = 4188;

fn flow(window: u64) -> Flow {
    Flow::new(&CcProfile::FixedWindow(window), MTU, &RequestorOptions::default())
}

fn nscc() -> Flow {
    let rtt = Span::from_micros(12);
    let profile = CcProfile::nscc(100_000_000_000, rtt, 4096, true);
    Flow::new(&profile, MTU, &RequestorOptions::default())
}

fn feedback(units: u32, penalty: u8, restore: bool) -> Feedback {
    Feedback { rcvd_bytes: units, rtt: None, ecn: false, penalty, restore, delay: None }
}

fn model() -> PathModel {
    PathModel::new(Span::from_micros(12), true)
}

fn fill(flow: &mut Flow) {
    while flow.is_open() {
        flow.count_sent(MTU, false);
    }
}

#[test]
fn every_controller_gives_way_to_the_receiver_and_returns() {
    let profiles = [
        CcProfile::FixedWindow(200_000),
        CcProfile::nscc(100_000_000_000, Span::from_micros(12), 4096, true),
        CcProfile::Swift(super::super::SwiftParams::for_network(100_000_000_000, Span::from_micros(12), MTU)),
    ];
    for profile in profiles {
        let mut flow = Flow::new(&profile, MTU, &RequestorOptions::default());
        let before = flow.window();
        fill(&mut flow);
        let in_flight = flow.in_flight();
        // Half of the window is acknowledged with the second largest penalty, which removes half of that half.
        let units = (in_flight / 2 / 256) as u32;
        flow.on_sack(Time(1), &feedback(units, 64, false));
        let expected = before.min(in_flight as u64 + u64::from(MTU)) - u64::from(units) * 256 / 2;
        assert!(flow.window().abs_diff(expected) <= 1, "{profile:?}: {} of {before}", flow.window());
        let held = flow.window();
        flow.on_sack(Time(2), &feedback(units, 1, false));
        assert!(flow.window() <= held, "{profile:?} grows while it is pressed");
        flow.on_sack(Time(3), &feedback(units, 0, true));
        assert!(flow.window() >= before, "{profile:?}: {} of {before}", flow.window());
    }
}

#[test]
fn what_was_trimmed_on_the_last_hop_does_not_leave_again_at_once() {
    let mut flow = nscc();
    (0..16).for_each(|_| flow.count_sent(MTU, false));
    for _ in 0..14 {
        flow.on_trim(Time(1), MTU, true, None);
    }
    // Two packets got through.
    assert!(flow.in_flight() == 2 * i64::from(MTU) && !flow.is_open(), "window {}", flow.window());
}

#[test]
fn a_window_of_one_packet_that_is_trimmed_again_waits() {
    let model = PathModel::new(Span::from_micros(12), true);
    let trimmed = |mut flow: Flow| {
        for round in 1..100 {
            flow.count_sent(MTU, false);
            flow.on_trim(Time(round), MTU, true, None);
            flow.space_out(Time(round), model.base_rtt, &model);
        }
        (flow.window(), flow.resends_at())
    };
    let (window, next) = trimmed(nscc());
    assert_eq!(window, u64::from(MTU));
    assert!(next > Time(100) + model.base_rtt, "{next:?}");
    assert_eq!(trimmed(flow(1_000_000)).1, Time::ZERO, "only NSCC's window is known to be too large");
}

#[test]
fn the_end_of_an_incast_returns_half_the_window_from_before_the_trimming() {
    let model = PathModel::new(Span::from_micros(12), true);
    let mut flow = nscc();
    let before = flow.window();
    (0..4).for_each(|_| flow.count_sent(MTU, false));
    (0..4).for_each(|_| flow.on_trim(Time(1), MTU, true, None));
    flow.space_out(Time(1), model.base_rtt, &model);
    assert!(flow.spaced_until().is_some());
    // The receiver presses only now, when the trimmed packets have taken the window away.
    flow.count_sent(MTU, true);
    flow.on_sack(Time(2), &feedback(17, 2, false));
    assert_eq!(flow.window(), u64::from(MTU));
    flow.on_sack(Time(3), &feedback(17, 0, false));
    assert!(flow.spaced_until().is_some() && flow.window() == u64::from(MTU), "not over yet");
    flow.on_sack(Time(4), &feedback(17, 0, true));
    assert_eq!(flow.window(), before / 2);
    assert!(flow.spaced_until().is_none());
}

#[test]
fn what_was_trimmed_long_ago_is_no_reason_for_a_large_window() {
    let mut flow = nscc();
    (0..4).for_each(|_| flow.count_sent(MTU, false));
    (0..2).for_each(|_| flow.on_trim(Time(1), MTU, true, None));
    flow.on_idle(Time(2));
    let before = flow.window();
    flow.count_sent(MTU, false);
    flow.on_sack(Time(3), &feedback(0, 2, false));
    flow.on_sack(Time(4), &feedback(0, 0, true));
    assert_eq!(flow.window(), before);
}

#[test]
fn a_penalty_never_closes_the_window() {
    let mut flow = flow(1_000_000);
    fill(&mut flow);
    let mut units = 0;
    for round in 0..200 {
        units += 100;
        flow.on_sack(Time(round), &feedback(units, 127, false));
        assert!(flow.window() >= u64::from(MTU));
    }
    assert_eq!(flow.window(), u64::from(MTU));
}

#[test]
fn a_window_that_was_held_down_grows_by_a_packet_a_round_trip() {
    let mut flow = flow(1_000_000);
    fill(&mut flow);
    flow.on_sack(Time(1), &feedback(2000, 127, false));
    let held = flow.window();
    let mut units = 2000;
    for round in 0..10u64 {
        let window = flow.window();
        fill(&mut flow);
        units += (window / 256) as u32;
        flow.on_sack(Time(round), &feedback(units, 0, false));
    }
    let grown = flow.window() - held;
    assert!(grown.abs_diff(10 * u64::from(MTU)) < u64::from(MTU), "{grown}");
}

#[test]
fn a_refused_packet_leaves_the_window_and_makes_room() {
    for profile in
        [CcProfile::FixedWindow(200_000), CcProfile::nscc(100_000_000_000, Span::from_micros(12), 4096, true)]
    {
        let mut flow = Flow::new(&profile, MTU, &RequestorOptions::default());
        fill(&mut flow);
        let (window, in_flight) = (flow.window(), flow.in_flight());
        flow.on_refusal(MTU, Some(Span::from_micros(13)), Time(7));
        assert_eq!(flow.resends_at(), Time(7));
        assert_eq!((flow.window(), flow.in_flight()), (window, in_flight - i64::from(MTU)));
    }
}

#[test]
fn nothing_is_in_flight_when_all_is_acknowledged() {
    let mut flow = flow(1_000_000);
    for round in 1..100 {
        // 100 bytes each: the counter of the responder rounds up to 256.
        flow.count_sent(100, false);
        flow.on_sack(Time(round), &feedback((100 * round as u32).div_ceil(256), 0, false));
        flow.on_idle(Time(round));
        assert_eq!((flow.in_flight(), flow.uncounted()), (0, 0), "round {round}");
    }
    flow.count_sent(5_000, false);
    assert_eq!((flow.in_flight(), flow.uncounted()), (5_000, 5_000));
}

#[test]
fn a_counter_ahead_of_what_was_sent_takes_only_that_off_and_is_caught_up_with() {
    let mut flow = flow(1_000_000);
    fill(&mut flow);
    let sent = flow.in_flight();
    flow.on_sack(Time(1), &feedback(1 << 20, 0, false));
    let rest = flow.in_flight();
    assert!((-255..=0).contains(&rest), "{rest} bytes in flight");
    fill(&mut flow);
    let in_flight = flow.in_flight();
    flow.on_sack(Time(2), &feedback((2 * sent / 256) as u32 - 100, 0, false));
    assert!(flow.in_flight() < in_flight / 2 && flow.in_flight() >= 0, "{}", flow.in_flight());
}

#[test]
fn a_counter_that_goes_back_takes_nothing_off() {
    let mut flow = flow(1_000_000);
    fill(&mut flow);
    flow.on_sack(Time(1), &feedback(500, 0, false));
    let in_flight = flow.in_flight();
    flow.on_sack(Time(2), &feedback(400, 0, false));
    assert_eq!(flow.in_flight(), in_flight);
}

#[test]
fn the_window_has_room_for_a_whole_packet_or_for_its_first_byte() {
    // Bytes in flight under a window of two packets; whether one more may leave under each rule.
    for (in_flight, whole, first_byte) in
        [(MTU, true, true), (MTU + 1, false, true), (2 * MTU - 1, false, true), (2 * MTU, false, false)]
    {
        for (can_send, expected) in [(CanSend::Mtu, whole), (CanSend::Any, first_byte)] {
            let options = RequestorOptions { can_send, ..RequestorOptions::default() };
            let mut flow = Flow::new(&CcProfile::FixedWindow(2 * u64::from(MTU)), MTU, &options);
            flow.count_sent(in_flight, false);
            assert_eq!(flow.is_open(), expected, "{in_flight} {can_send:?}");
        }
    }
}

#[test]
fn feedback_is_wanted_where_the_window_is_full_or_small() {
    for (window, in_flight, wanted) in [
        (16 * 1024, 0, false),
        (16 * 1024 - 1, 0, true),
        (100_000, 100_000 - MTU, false),
        (100_000, 100_000 - MTU + 1, true),
    ] {
        let mut flow = flow(window);
        flow.count_sent(in_flight, false);
        assert_eq!(flow.wants_feedback(), wanted, "{in_flight} of {window}");
    }
}

#[test]
fn feedback_does_not_shorten_the_wait_after_a_refusal() {
    for mut flow in [flow(200_000), nscc()] {
        flow.count_sent(MTU, false);
        flow.on_refusal(MTU, None, Time(100));
        flow.apply(Time(5), &feedback(0, 0, false), &model());
        assert_eq!(flow.resends_at(), Time(100));
        assert!(flow.allows(Time(5), false), "new packets do not wait");
    }
}

#[test]
fn a_counter_moves_forwards_by_less_than_half_of_its_range() {
    for (units, left) in [((1 << 23) - 1, 0), (1 << 23, 10 * 256), (0xFF_FFFF, 10 * 256)] {
        let mut flow = flow(1_000_000);
        flow.count_sent(10 * 256, false);
        flow.on_sack(Time(1), &feedback(units, 0, false));
        assert_eq!(flow.in_flight(), left, "{units:#x}");
    }
}

#[test]
fn a_packet_taken_for_lost_that_arrives_is_taken_off_once() {
    let mut flow = flow(1_000_000);
    flow.count_sent(3 * MTU, false);
    let mtu = i64::from(MTU);
    flow.on_loss(Time(1), MTU);
    assert_eq!(flow.in_flight(), 2 * mtu);
    flow.on_spurious_loss(MTU);
    assert_eq!(flow.in_flight(), 3 * mtu);
    flow.on_sack(Time(2), &feedback((3 * MTU).div_ceil(256), 0, false));
    assert!((-255..=0).contains(&flow.in_flight()), "{}", flow.in_flight());
}

#[test]
fn each_controller_has_its_own_price_for_a_packet_that_a_switch_drops() {
    let swift = super::super::SwiftParams::for_network(100_000_000_000, Span::from_micros(12), MTU);
    let nscc = CcProfile::nscc(100_000_000_000, Span::from_micros(12), 4096, true);
    for (profile, window) in [
        (nscc, 225_000 - u64::from(MTU)),
        (CcProfile::FixedWindow(200_000), 200_000 - u64::from(MTU) / 2),
        (CcProfile::Swift(swift), 225_000 / 2),
    ] {
        let mut flow = Flow::new(&profile, MTU, &RequestorOptions::default());
        flow.count_sent(3 * MTU, false);
        flow.on_drop(Time(Span::from_millis(1).0), MTU);
        assert_eq!((flow.window(), flow.in_flight()), (window, 2 * i64::from(MTU)), "{profile:?}");
    }
}

#[test]
fn a_full_receive_buffer_takes_its_packets_off_the_window_until_the_receiver_has_room() {
    let mut flow = flow(200_000);
    flow.count_sent(3 * MTU, false);
    for dropped in 1..=2 {
        flow.on_overflow(MTU);
        assert!(flow.is_pressed());
        assert_eq!(flow.window(), 200_000 - dropped * u64::from(MTU));
        assert_eq!(flow.in_flight(), (3 - dropped as i64) * i64::from(MTU));
    }
    flow.on_sack(Time(1), &feedback(0, 0, true));
    assert_eq!((flow.window(), flow.is_pressed()), (200_000, false));
    flow.on_overflow(300_000);
    assert_eq!(flow.window(), u64::from(MTU));
}

#[test]
fn a_probe_that_passed_the_queues_lowers_the_largest_window() {
    let mut flow = nscc();
    flow.on_rtt(Span::from_micros(6));
    let late = Feedback { rtt: Some(Span::from_micros(12)), ..feedback(0, 0, false) };
    flow.apply(Time(1), &late, &model());
    assert_eq!(flow.window(), 225_000 / 2);
}

#[test]
fn after_a_checkpoint_the_parameters_are_those_of_the_profile() {
    let mut flow = nscc();
    let largest = |flow: &mut Flow| {
        flow.window.controller.set_window(1e9);
        flow.window()
    };
    assert_eq!(largest(&mut flow), 225_000);
    flow.rejoin(&CcProfile::nscc(200_000_000_000, Span::from_micros(12), 4096, true));
    assert_eq!(largest(&mut flow), 450_000);
}

#[test]
fn packets_are_spaced_where_less_than_half_a_packet_is_in_flight_and_less_than_two_fit_the_window() {
    for (in_flight, window, spaced) in [
        (MTU / 2 - 1, 2 * MTU - 1, true),
        (MTU / 2, 2 * MTU - 1, false),
        (MTU / 2 - 1, 2 * MTU, false),
        (0, MTU, true),
        (MTU, MTU, false),
        (0, 10 * MTU, false),
    ] {
        let mut flow = nscc();
        flow.window.controller.set_window(window.into());
        flow.count_sent(in_flight, false);
        flow.space_out(Time(1), Span::from_micros(12), &model());
        assert_eq!(flow.spaced_until().is_some(), spaced, "{in_flight} of {window}");
    }
}

#[test]
fn a_delivered_packet_ends_the_spacing_if_it_is_in_time_or_the_receiver_lets_this_sender_grow() {
    let model = model();
    let (now, late) = (Time(Span::from_millis(1).0), model.target_qdelay.times(2));
    for (delay, penalty, ends) in
        [(late, 0, true), (late, 1, true), (late, 2, false), (late, 127, false), (Span::ZERO, 127, true)]
    {
        let mut flow = nscc();
        flow.count_sent(MTU, false);
        flow.on_trim(Time(1), MTU, true, None);
        flow.space_out(Time(1), model.base_rtt, &model);
        let before = flow.spaced_until().expect("the smallest window was trimmed");
        flow.count_sent(MTU, true);
        flow.apply(now, &Feedback { delay: Some(delay), ..feedback(17, penalty, false) }, &model);
        assert_eq!(flow.spaced_until().is_none(), ends, "{delay:?} {penalty}");
        if ends {
            assert_eq!(flow.resends_at(), now, "nothing waits for a turn that is no more");
        } else {
            assert!(flow.resends_at() > now && now > before);
            assert_eq!(flow.window(), u64::from(MTU));
        }
    }
}

#[test]
fn what_is_sent_after_all_was_delivered_is_not_spaced_for_the_incast_before() {
    let model = model();
    let longest = |drained: bool| {
        let mut flow = nscc();
        let trimmed = (1..100).map(|round| {
            if drained {
                flow.on_drained();
            }
            flow.count_sent(MTU, false);
            flow.on_trim(Time(round), MTU, true, None);
            flow.space_out(Time(round), model.base_rtt, &model);
            flow.resends_at().since(Time(round))
        });
        trimmed.max().unwrap()
    };
    // A gap of 8 base RTTs at most, and of 20 in a long incast, each with half of it more or less.
    assert!((model.base_rtt.times(8)..=model.base_rtt.times(12)).contains(&longest(true)));
    assert!((model.base_rtt.times(20)..=model.base_rtt.times(30)).contains(&longest(false)));
}
