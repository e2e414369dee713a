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
