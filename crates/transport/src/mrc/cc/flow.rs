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
mod tests;
