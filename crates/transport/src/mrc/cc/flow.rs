//! Bytes in flight, and what feedback makes of them and of the window (docs/spec/congestion.md, "Sending"): the state
//! that every controller needs, kept once.

use super::spacing::Spacing;
use super::window::{Change, Window};
use super::{Ack, CcProfile, Congestion, Penalty};
use crate::api::Pressure;
use crate::mrc::config::{CanSend, PathModel, RequestorOptions};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Below this window, in bytes, every packet asks for feedback (docs/spec/congestion.md, "Sending").
const ALWAYS_ASK_BELOW: f64 = 16.0 * 1024.0;

/// The fields of a SACK for flow and congestion control.
#[derive(Clone, Copy, Debug)]
pub(in crate::mrc) struct Feedback {
    /// The responder's byte counter, units of 256 bytes, 24 bits.
    pub rcvd_bytes: u32,
    /// Round-trip time of the packet that triggered the SACK.
    pub rtt: Option<Span>,
    /// That packet was marked.
    pub ecn: bool,
    /// Destination flow control: 0 = none .. 127.
    pub penalty: u8,
    /// The window from before the penalty may be restored.
    pub restore: bool,
    /// By how much the delivery of new packets took longer than the shortest round trip, if the SACK reports any and
    /// that is known.
    pub delay: Option<Span>,
}

/// The window of a requestor and its bytes in flight.
#[derive(Serialize, Deserialize)]
pub(in crate::mrc) struct Flow {
    window: Window,
    /// Bytes sent, not in the responder's counter, and not taken for lost. Rounding can make it slightly negative.
    in_flight: i64,
    /// What rounding made of `in_flight` when nothing was in flight: the part of the counters' difference that is no
    /// byte in flight.
    rounding: i16,
    /// Nominal bytes of all packets sent, each packet counted once, modulo 2^32: the range of the responder's counter.
    sent: u32,
    /// Last value of the responder's counter, units of 256 bytes.
    counted: u32,
    /// Nominal size of a full packet.
    mtu: u16,
    can_send: CanSend,
    spacing: Spacing,
    /// Nothing that is lost leaves before this time, and nothing at all while packets are spaced.
    not_before: Time,
}

impl Flow {
    pub fn new(profile: &CcProfile, mtu: u32, options: &RequestorOptions) -> Self {
        let window = Window::new(profile, mtu);
        let may_space = options.spacing && window.controller.follows_last_hop();
        Flow {
            window,
            in_flight: 0,
            rounding: 0,
            sent: 0,
            counted: 0,
            mtu: mtu.try_into().expect("path MTUs have 16 bits"),
            can_send: options.can_send,
            spacing: if may_space { Spacing::NONE } else { Spacing::OFF },
            not_before: Time::ZERO,
        }
    }

    /// After a checkpoint was read: the parameters of the controller.
    pub fn rejoin(&mut self, profile: &CcProfile) {
        self.window.controller.rejoin(profile);
    }

    /// Whether one more full packet may be sent.
    #[inline]
    pub fn is_open(&self) -> bool {
        let window = self.window.bytes();
        match self.can_send {
            CanSend::Mtu => self.fits(window),
            CanSend::Any => (self.in_flight as f64) < window,
        }
    }

    /// Whether one more full packet fits in this window.
    #[inline]
    fn fits(&self, window: f64) -> bool {
        (self.in_flight + i64::from(self.mtu)) as f64 <= window
    }

    /// Whether the packet just sent should ask for feedback at once.
    #[inline]
    pub fn wants_feedback(&self) -> bool {
        let window = self.window.bytes();
        !self.fits(window) || window < ALWAYS_ASK_BELOW
    }

    /// Whether a packet may be sent, as far as the network is concerned. With nothing in flight a packet is always
    /// allowed: rounding in the byte counter must not close a window of one packet for ever.
    #[inline]
    pub fn allows(&self, clock: Time, is_alone: bool) -> bool {
        self.spaced_until().is_none_or(|until| clock >= until) && (self.is_open() || is_alone)
    }

    /// While packets are spaced because a window of one packet was too large: when the next one may leave.
    #[inline]
    pub fn spaced_until(&self) -> Option<Time> {
        self.spacing.is_active().then_some(self.not_before)
    }

    /// When the next packet that is lost may leave.
    #[inline]
    pub fn resends_at(&self) -> Time {
        self.not_before
    }

    /// Any field of type [`Time`]: the address from which its cache lines are loaded.
    pub fn prefetch_anchor(&self) -> &Time {
        &self.not_before
    }

    /// While packets are spaced, the next one leaves after a gap from now, whatever the window.
    fn space_next(&mut self, now: Time, model: &PathModel) {
        if self.spacing.is_active() {
            self.not_before = self.spacing.next(now, model.base_rtt, u64::from(self.sent));
        }
    }

    /// Congestion window, bytes.
    pub fn window(&self) -> u64 {
        self.window.bytes() as u64
    }

    /// Bytes in flight.
    pub fn in_flight(&self) -> i64 {
        self.in_flight
    }

    /// Bytes sent and not in the responder's counter, whether lost or not.
    pub fn uncounted(&self) -> i64 {
        i64::from(self.sent.wrapping_sub(self.counted << 8) as i32) - i64::from(self.rounding)
    }

    /// The responder's counter when everything sent has arrived.
    fn all_counted(&self) -> u32 {
        self.sent.div_ceil(256) & 0xFF_FFFF
    }

    /// The receiver presses, or has pressed and does not let the window return yet.
    pub fn is_pressed(&self) -> bool {
        self.window.is_pressed()
    }

    /// A packet was sent, perhaps `again`.
    #[inline]
    pub fn on_sent(&mut self, now: Time, bytes: u32, again: bool, model: &PathModel) {
        self.count_sent(bytes, again);
        self.space_next(now, model);
    }

    #[inline]
    fn count_sent(&mut self, bytes: u32, again: bool) {
        self.in_flight += i64::from(bytes);
        if !again {
            self.sent = self.sent.wrapping_add(bytes);
        }
    }

    /// Handles a SACK: the window, and the space between packets.
    pub fn apply(&mut self, now: Time, feedback: &Feedback, model: &PathModel) {
        let was_spaced = self.spacing.is_active();
        self.on_sack(now, feedback);
        if let Some(delay) = feedback.delay {
            self.on_delivered(delay, feedback.penalty, model);
            if was_spaced {
                self.space_next(now, model);
            }
        }
        if was_spaced && !self.spacing.is_active() {
            // A retransmission would wait for the turn that spacing had given it.
            self.not_before = now;
        }
    }

    /// From feedback that is older than the present state only the round-trip time is used.
    fn on_sack(&mut self, now: Time, feedback: &Feedback) {
        let growth = feedback.rcvd_bytes.wrapping_sub(self.counted) & 0xFF_FFFF;
        let newly = if growth < 1 << 23 {
            // Not more than was sent: a counter that is ahead would open the window for all that it is ahead.
            let growth = growth.min(self.all_counted().wrapping_sub(self.counted) & 0xFF_FFFF);
            self.counted = (self.counted + growth) & 0xFF_FFFF;
            growth * 256
        } else {
            0
        };
        let before = self.in_flight;
        self.in_flight -= i64::from(newly);
        let mtu = f64::from(self.mtu);
        if feedback.penalty == 0 && feedback.restore && self.is_pressed() {
            self.window.apply(Change::Restored, mtu);
            self.spacing.end();
        }
        let penalty = match feedback.penalty {
            1.. => Penalty::Pressing,
            0 if self.is_pressed() => Penalty::Easing,
            0 => Penalty::None,
        };
        let window = self.window.bytes();
        let ack = Ack { newly, in_flight: self.in_flight, rtt: feedback.rtt, ecn: feedback.ecn, penalty };
        self.window.controller.on_sack(now, &ack);
        if penalty == Penalty::Pressing {
            // The window was full up to this when the SACK arrived: a full window has room for less than a packet.
            let filled = window.min(before.max(0) as f64 + mtu);
            let shed = f64::from(feedback.penalty) * f64::from(newly) / 128.0;
            self.window.apply(Change::Pressed { before: window, filled, shed }, mtu);
        }
    }

    /// A SACK with this penalty has reported new packets, the last of them delayed by `delay`. A receiver that presses
    /// others and lets this sender keep its window finds it slow.
    fn on_delivered(&mut self, delay: Span, penalty: u8, model: &PathModel) {
        self.spacing.on_delivered(delay, model.target_qdelay, penalty <= Pressure::HOLD.penalty);
        if self.spacing.is_active() {
            self.window.apply(Change::Spaced, f64::from(self.mtu));
        }
    }

    /// A round-trip time of a probe that passed all queues.
    pub fn on_rtt(&mut self, rtt: Span) {
        self.window.controller.on_rtt(rtt);
    }

    /// A packet was trimmed, perhaps on the `last_hop`. `rtt` is the round-trip time of the NACK.
    pub fn on_trim(&mut self, now: Time, bytes: u32, last_hop: bool, rtt: Option<Span>) {
        if last_hop && self.window.controller.follows_last_hop() {
            let used = self.in_flight.max(i64::from(self.mtu)) as f64;
            self.window.apply(Change::Trimmed { used }, f64::from(self.mtu));
        }
        self.take_back(bytes, rtt);
        self.window.controller.on_trim(now, bytes, self.in_flight);
    }

    /// After [`Self::on_trim`] on the last hop: if nothing else is in flight and the window is the smallest, the next
    /// packets are spaced. A delivered packet takes `rtt`.
    pub fn space_out(&mut self, now: Time, rtt: Span, model: &PathModel) {
        let was_alone = self.in_flight < i64::from(self.mtu / 2);
        if was_alone && self.window.bytes() < 2.0 * f64::from(self.mtu) {
            self.spacing.on_trim(rtt, model.base_rtt);
        }
        self.space_next(now, model);
    }

    /// Everything that was posted has been delivered.
    pub fn on_drained(&mut self) {
        self.spacing.on_drained();
    }

    /// The responder refused a packet for a reason unrelated to the network. What is lost leaves at `again_at`.
    pub fn on_refusal(&mut self, bytes: u32, rtt: Option<Span>, again_at: Time) {
        self.take_back(bytes, rtt);
        self.not_before = again_at;
    }

    /// A packet is no longer in flight. `rtt` is the round-trip time of the NACK.
    fn take_back(&mut self, bytes: u32, rtt: Option<Span>) {
        self.in_flight -= i64::from(bytes);
        if let Some(rtt) = rtt {
            self.window.controller.on_rtt(rtt);
        }
    }

    /// A packet is taken for lost.
    pub fn on_loss(&mut self, now: Time, bytes: u32) {
        self.in_flight -= i64::from(bytes);
        self.window.controller.on_loss(now, bytes, self.in_flight);
    }

    /// A switch has probably dropped a packet for want of room.
    pub fn on_drop(&mut self, now: Time, bytes: u32) {
        self.in_flight -= i64::from(bytes);
        self.window.controller.on_drop(now, bytes, self.in_flight);
    }

    /// A buffer of the receiver was full and a packet was dropped. The window shrinks by its size, whatever the
    /// controller does on losses.
    pub fn on_overflow(&mut self, bytes: u32) {
        self.in_flight -= i64::from(bytes);
        self.window.apply(Change::Overflowed { bytes }, f64::from(self.mtu));
    }

    /// A packet taken for lost has arrived before it was retransmitted. It was subtracted when it was taken for lost,
    /// and the responder's counter subtracts it again, so it is added here.
    pub fn on_spurious_loss(&mut self, bytes: u32) {
        self.in_flight += i64::from(bytes);
    }

    /// Every packet has arrived, so the value of the responder's counter is known. After an ACK it may exceed the value
    /// in the last SACK: SACKs can be lost or late.
    pub fn on_idle(&mut self, now: Time) {
        let rcvd_bytes = self.all_counted();
        if (1..1 << 23).contains(&(rcvd_bytes.wrapping_sub(self.counted) & 0xFF_FFFF)) {
            self.on_sack(
                now,
                &Feedback { rcvd_bytes, rtt: None, ecn: false, penalty: 0, restore: false, delay: None },
            );
        }
        // The rest is less than a unit of the responder's counter, which rounds up. It is more only if a peer counts
        // differently from the specification.
        self.rounding += self.uncounted().clamp(-255, 255) as i16;
        self.in_flight = 0;
        self.window.on_idle();
    }
}

#[cfg(test)]
mod tests {
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
            CcProfile::Swift(super::super::SwiftParams::for_network(
                100_000_000_000,
                Span::from_micros(12),
                MTU,
            )),
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
        for profile in [
            CcProfile::FixedWindow(200_000),
            CcProfile::nscc(100_000_000_000, Span::from_micros(12), 4096, true),
        ] {
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
}
