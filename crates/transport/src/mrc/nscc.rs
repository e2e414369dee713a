//! NSCC, the network-signal-based congestion control of UET 1.0 section 3.6.13, which MRC adopts (spec: congestion).
//!
//! A window in bytes, clocked by SACKs. Two signals, ECN and delay, choose one of four actions; a third, trimming or
//! loss in a round trip that achieved little, sets the window at once to what was achieved (quick adapt).

use std::sync::Arc;

use super::cc::{CcFeedback, Congestion, idle_in_flight};
use crate::time::{Span, Time};

/// The network all gains are scaled from: 100 Gb/s and 12 us (spec: congestion, "Numbers").
const REFERENCE_BDP: f64 = 100e9 / 8.0 * 12e-6;
const REFERENCE_RTT: Span = Span::from_micros(12);

/// Weight of a new sample in the average delay.
const DELAY_WEIGHT: f64 = 0.0125;

/// Parameters of NSCC. [`NsccParams::for_network`] gives the specification's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct NsccParams {
    /// Nominal size of a full packet, bytes.
    pub mtu: u32,
    /// Round-trip time of a full packet on the longest idle path.
    pub base_rtt: Span,
    /// Largest and initial window, bytes.
    pub max_wnd: u64,
    /// Queueing delay aimed at.
    pub target_qdelay: Span,
    /// Proportional increase, bytes per picosecond below target and byte acknowledged.
    pub alpha: f64,
    /// Fair increase, bytes.
    pub fi: f64,
    /// Increase once per adjust period, bytes.
    pub eta: f64,
    /// Fast increase per byte acknowledged.
    pub fi_scale: f64,
    /// Multiplicative decrease gain.
    pub gamma: f64,
    /// Multiplicative decrease never goes below this factor at once.
    pub max_md_jump: f64,
    /// Quick adapt acts when less than `max_wnd >> qa_gate` was achieved.
    pub qa_gate: u32,
    /// Quick adapt on delay above this; `Span(u64::MAX)` turns that trigger off, as with trimming.
    pub qa_threshold: Span,
    /// The window is adjusted after this time ...
    pub adjust_period: Span,
    /// ... or after so many bytes.
    pub adjust_bytes: u32,
    /// Below this window every packet asks for feedback, bytes.
    pub ack_every_bytes: u32,
}

impl NsccParams {
    /// Headers counted in a full packet's nominal size: UDP 8, BTH 12, METH 4, TSETH 4, RETH 16, ImmDt 4, iCRC 4, and 40.
    pub const OVERHEAD: u32 = 92;

    /// The defaults for a sender of `link_rate_bps` over `base_rtt` (spec: congestion, "Numbers").
    pub fn for_network(link_rate_bps: u64, base_rtt: Span, path_mtu: u16, trimming: bool) -> Self {
        let mtu = u32::from(path_mtu) + Self::OVERHEAD;
        let bdp = link_rate_bps as f64 / 8.0 * base_rtt.as_secs_f64();
        let target_qdelay = if trimming { base_rtt.scaled(0.75) } else { base_rtt };
        let scaling_a = bdp / REFERENCE_BDP;
        let scaling_b = target_qdelay.0 as f64 / REFERENCE_RTT.0 as f64;
        let mtu_f = f64::from(mtu);
        NsccParams {
            mtu,
            base_rtt,
            max_wnd: ((1.5 * bdp) as u64).max(u64::from(mtu)),
            target_qdelay,
            alpha: 4.0 * scaling_a * scaling_b * mtu_f / target_qdelay.0.max(1) as f64,
            fi: 5.0 * mtu_f * scaling_a,
            eta: 0.15 * mtu_f * scaling_a,
            fi_scale: 0.25 * scaling_a,
            gamma: 0.8,
            max_md_jump: 0.5,
            qa_gate: 3,
            qa_threshold: if trimming { Span(u64::MAX) } else { target_qdelay.times(4) },
            adjust_period: base_rtt,
            adjust_bytes: 8 * mtu,
            ack_every_bytes: 16 * 1024,
        }
    }
}

/// State of NSCC for one queue pair.
#[derive(Debug)]
pub struct Nscc {
    params: Arc<NsccParams>,
    cwnd: f64,
    in_flight: i64,
    base_rtt: Span,
    avg_delay: f64,
    inc_bytes: f64,
    adjust_received: u32,
    adjusted_at: Time,
    eta_at: Time,
    decreased_at: Time,
    /// Bytes acknowledged without any delay in a row.
    undelayed: u64,
    fast: bool,
    achieved: u64,
    qa_ends: Time,
    qa_trigger: bool,
    ignore: u64,
    saved_cwnd: Option<f64>,
}

impl Nscc {
    pub(super) fn new(params: &Arc<NsccParams>) -> Self {
        Nscc {
            cwnd: params.max_wnd as f64,
            in_flight: 0,
            base_rtt: params.base_rtt,
            avg_delay: 0.0,
            inc_bytes: 0.0,
            adjust_received: 0,
            adjusted_at: Time::ZERO,
            eta_at: Time::ZERO,
            decreased_at: Time::ZERO,
            undelayed: 0,
            fast: false,
            achieved: 0,
            qa_ends: Time::ZERO,
            qa_trigger: false,
            ignore: 0,
            saved_cwnd: None,
            params: Arc::clone(params),
        }
    }

    fn mtu(&self) -> f64 {
        f64::from(self.params.mtu)
    }

    fn shrink_to(&mut self, bytes: f64) {
        let cwnd = bytes.max(self.mtu());
        // What has been earned and not added yet was earned by the larger window, and is worth no more than it was there.
        self.inc_bytes *= (cwnd / self.cwnd).min(1.0);
        self.cwnd = cwnd;
    }

    /// Delay of a sample over the base RTT, which it may lower.
    fn delay_of(&mut self, rtt: Span) -> Span {
        if rtt < self.base_rtt {
            self.base_rtt = rtt;
        }
        rtt - self.base_rtt
    }

    fn average(&mut self, delay: Span) {
        self.avg_delay += DELAY_WEIGHT * (delay.0 as f64 - self.avg_delay);
    }

    /// Once per base RTT + target delay: if something was trimmed or lost (or, without trimming, late) and little was
    /// achieved, that little is the window. What was in flight then is old news, and is ignored.
    fn quick_adapt(&mut self, now: Time, delay: Span) -> bool {
        if now < self.qa_ends {
            return false;
        }
        let trouble = self.qa_trigger || delay > self.params.qa_threshold;
        let acted = self.qa_ends != Time::ZERO
            && trouble
            && self.achieved < self.params.max_wnd >> self.params.qa_gate;
        if acted {
            self.shrink_to(self.achieved as f64);
            self.ignore = self.in_flight.max(0) as u64;
            self.fast = false;
            self.undelayed = 0;
            self.inc_bytes = 0.0;
        }
        self.achieved = 0;
        self.qa_trigger = false;
        self.qa_ends = now + self.base_rtt + self.params.target_qdelay;
        acted
    }

    /// While delay stays about zero for a full window the window grows by a share of every byte acknowledged.
    fn fast_increase(&mut self, newly: u32, delay: Span) -> bool {
        // "About zero" is a twelfth of the base RTT: 1 us on the reference network [choice].
        // While the destination holds the window back, what it lets grow grows by equal steps for all its senders, never by a share of
        // each one's own window: that would carry an uneven start on for milliseconds.
        if delay > self.base_rtt.over(12) || self.saved_cwnd.is_some() {
            self.undelayed = 0;
            self.fast = false;
            return false;
        }
        self.undelayed += u64::from(newly);
        if self.undelayed as f64 > self.cwnd {
            self.fast = true;
        }
        if self.fast {
            self.cwnd += f64::from(newly) * self.params.fi_scale;
        }
        self.fast
    }

    fn multiplicative_decrease(&mut self, now: Time) {
        let target = self.params.target_qdelay.0 as f64;
        if self.avg_delay > target && now.since(self.decreased_at) > self.base_rtt {
            let factor = 1.0 - self.params.gamma * (self.avg_delay - target) / self.avg_delay;
            self.shrink_to(self.cwnd * factor.max(self.params.max_md_jump));
            self.decreased_at = now;
        }
    }

    fn adjust(&mut self, now: Time, newly: u32) {
        self.adjust_received = self.adjust_received.saturating_add(newly);
        let period_over = now.since(self.adjusted_at) >= self.params.adjust_period;
        if !period_over && self.adjust_received < self.params.adjust_bytes {
            return;
        }
        self.cwnd += self.inc_bytes / self.cwnd;
        if now.since(self.eta_at) >= self.params.adjust_period {
            self.cwnd += self.params.eta;
            self.eta_at = now;
        }
        self.inc_bytes = 0.0;
        self.adjust_received = 0;
        self.adjusted_at = now;
    }

    fn clamp(&mut self) {
        self.cwnd = self.cwnd.clamp(self.mtu(), self.params.max_wnd as f64);
    }
}

impl Congestion for Nscc {
    fn open(&self) -> bool {
        self.in_flight as f64 + self.mtu() <= self.cwnd
    }

    fn wants_feedback(&self) -> bool {
        self.cwnd - (self.in_flight as f64) < self.mtu() || self.cwnd < f64::from(self.params.ack_every_bytes)
    }

    fn on_send(&mut self, now: Time, bytes: u32) {
        if self.qa_ends == Time::ZERO {
            self.qa_ends = now + self.base_rtt + self.params.target_qdelay;
        }
        self.in_flight += i64::from(bytes);
    }

    fn on_sack(&mut self, now: Time, feedback: &CcFeedback) {
        let newly = feedback.newly;
        let was_in_flight = self.in_flight;
        self.in_flight -= i64::from(newly);
        self.achieved += u64::from(newly);
        let was_ignoring = self.ignore > 0;
        self.ignore = self.ignore.saturating_sub(u64::from(newly));

        let delay = feedback.rtt.map(|rtt| self.delay_of(rtt));
        if let Some(delay) = delay {
            // An unmarked packet that was late met a queue that no switch complains of; it counts for little.
            let late_unmarked = !feedback.ecn && delay > self.params.target_qdelay;
            self.average(if late_unmarked { self.base_rtt.over(4) } else { delay });
        }

        if feedback.penalty > 0 {
            self.saved_cwnd.get_or_insert(self.cwnd);
            // What the window was filled with when this left it: a full one has room for less than a packet.
            let fill = self.cwnd.min(was_in_flight.max(0) as f64 + self.mtu());
            self.shrink_to(fill - f64::from(feedback.penalty) * f64::from(newly) / 128.0);
            return;
        }
        if feedback.restore
            && let Some(saved) = self.saved_cwnd.take()
        {
            self.cwnd = self.cwnd.max(saved);
        }

        if self.quick_adapt(now, delay.unwrap_or(Span::ZERO)) || (was_ignoring && feedback.ecn) {
            return;
        }
        if let Some(delay) = delay {
            // A window's worth of acknowledgements earns one increase. After a sudden fall they are of packets that an older,
            // larger window sent; counted for the new one they would throw it open again.
            let earned = f64::from(newly) * (self.cwnd / was_in_flight.max(1) as f64).min(1.0);
            match (feedback.ecn, delay < self.params.target_qdelay) {
                (false, true) => {
                    if !self.fast_increase(newly, delay) {
                        let below = (self.params.target_qdelay - delay).0 as f64;
                        self.inc_bytes += self.params.alpha * earned * below;
                    }
                }
                (false, false) => {
                    self.fast = false;
                    self.inc_bytes += self.params.fi * earned;
                }
                (true, true) => self.fast = false,
                (true, false) => {
                    self.fast = false;
                    self.multiplicative_decrease(now);
                }
            }
        }
        self.adjust(now, newly);
        self.clamp();
    }

    fn on_nack(&mut self, now: Time, bytes: u32, congested: bool) {
        self.in_flight -= i64::from(bytes);
        if !congested {
            return;
        }
        self.average(self.base_rtt);
        self.qa_trigger = true;
        self.fast = false;
        self.ignore = self.ignore.saturating_sub(u64::from(bytes));
        if !self.quick_adapt(now, Span::ZERO) && self.ignore == 0 {
            self.shrink_to(self.cwnd - f64::from(bytes));
        }
    }

    fn on_loss(&mut self, _now: Time, bytes: u32) {
        self.in_flight -= i64::from(bytes);
        self.qa_trigger = true;
        self.fast = false;
        self.shrink_to(self.cwnd - f64::from(bytes));
    }

    fn on_found(&mut self, bytes: u32) {
        self.in_flight += i64::from(bytes);
    }

    fn on_idle(&mut self) {
        self.in_flight = idle_in_flight(self.in_flight);
        self.ignore = 0;
    }

    fn window(&self) -> u64 {
        self.cwnd as u64
    }

    fn in_flight(&self) -> i64 {
        self.in_flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000_000;

    fn reference() -> Nscc {
        Nscc::new(&Arc::new(NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, true)))
    }

    fn feedback(newly: u32, rtt_us: f64, ecn: bool) -> CcFeedback {
        CcFeedback { newly, rtt: Some(Span((rtt_us * 1e6) as u64)), ecn, penalty: 0, restore: false }
    }

    #[test]
    fn the_reference_network_has_the_published_gains() {
        let p = NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, true);
        assert_eq!(p.max_wnd, 225_000);
        assert_eq!(p.target_qdelay, Span::from_micros(9));
        assert!((p.fi - 5.0 * f64::from(p.mtu)).abs() < 1e-6);
        assert!((p.alpha * 9e6 - 4.0 * 0.75 * f64::from(p.mtu)).abs() < 1e-6);
        assert!((p.eta - 0.15 * f64::from(p.mtu)).abs() < 1e-6);
        let untrimmed = NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, false);
        assert_eq!(untrimmed.qa_threshold, Span::from_micros(48));
    }

    #[test]
    fn the_window_stays_between_one_mtu_and_its_maximum() {
        let mut cc = reference();
        let (low, high) = (u64::from(cc.params.mtu), cc.params.max_wnd);
        let mut x = 1u64;
        for i in 0..100_000u64 {
            x = crate::profile::mix(x);
            let now = Time(i * US);
            match x % 5 {
                0 => cc.on_nack(now, 4188, true),
                1 => cc.on_loss(now, 4188),
                _ => {
                    cc.on_sack(now, &feedback((x >> 8) as u32 % 20_000, (x >> 40) as f64 % 60.0, x & 64 != 0))
                }
            }
            assert!((low..=high).contains(&cc.window()), "window {} at step {i}", cc.window());
        }
    }

    #[test]
    fn marks_with_delay_shrink_and_marks_alone_do_not() {
        let mut cc = reference();
        for i in 0..50 {
            cc.on_sack(Time(i * 20 * US), &feedback(4188, 13.0, true));
        }
        assert_eq!(cc.window(), cc.params.max_wnd);
        for i in 50..2000 {
            cc.on_sack(Time(i * 20 * US), &feedback(60_000, 60.0, true));
        }
        assert!(cc.window() < cc.params.max_wnd / 4, "window {}", cc.window());
    }

    #[test]
    fn quick_adapt_takes_what_was_achieved_in_the_second_round_trip() {
        let mut cc = reference();
        cc.on_send(Time(US), 200_000);
        cc.on_nack(Time(12 * US), 4188, true);
        cc.on_sack(Time(15 * US), &feedback(10_240, 20.0, false));
        cc.on_nack(Time(30 * US), 4188, true);
        assert_eq!(cc.window(), 10_240);
    }

    #[test]
    fn the_destination_can_hold_the_sender_back_and_let_it_go() {
        let mut cc = reference();
        let before = cc.window();
        cc.on_send(Time(0), 100_000);
        cc.on_sack(Time(US), &CcFeedback { penalty: 64, ..feedback(20_000, 12.0, false) });
        assert_eq!(cc.window(), 90_000 + 4188);
        cc.on_sack(Time(2 * US), &CcFeedback { restore: true, ..feedback(0, 12.0, false) });
        assert!(cc.window() >= before);
    }

    #[test]
    fn a_window_that_has_fallen_is_not_thrown_open_by_what_the_old_one_sent() {
        let mut cc = reference();
        cc.on_send(Time(US), 200_000);
        cc.on_nack(Time(12 * US), 4188, true);
        cc.on_sack(Time(15 * US), &feedback(10_240, 20.0, false));
        cc.on_nack(Time(30 * US), 4188, true);
        let fallen = cc.window();
        assert_eq!(fallen, 10_240);
        // Within a round trip half of what was in flight comes back, with little delay. A round trip earns one increase:
        // at most alpha times the target, three packets here, and eta.
        for i in 0..24 {
            cc.on_sack(Time((31 + i / 3) * US), &feedback(4188, 15.0, false));
        }
        assert!(cc.window() <= fallen + 4 * 4188, "window {} after {fallen}", cc.window());
    }

    #[test]
    fn what_was_earned_by_a_large_window_does_not_open_a_small_one() {
        let mut cc = reference();
        for _ in 0..50 {
            cc.on_send(Time(US), 4188);
        }
        // Earned, and not added yet; then the window falls to a packet.
        cc.on_sack(Time(2 * US), &feedback(30_000, 14.0, false));
        for i in 0..60 {
            cc.on_loss(Time(3 * US + i), 4188);
        }
        assert_eq!(cc.window(), 4188);
        cc.on_sack(Time(20 * US), &feedback(0, 14.0, false));
        assert!(cc.window() <= 3 * 4188, "window {}", cc.window());
    }

    #[test]
    fn senders_that_a_destination_lets_grow_grow_by_equal_steps() {
        let grown = |window: u32| {
            let mut cc = reference();
            cc.on_send(Time(US), window + 4188);
            cc.on_sack(Time(2 * US), &CcFeedback { penalty: 127, ..feedback(4188, 12.0, false) });
            let before = cc.window();
            for round in 1..=4u64 {
                let newly = cc.window() as u32;
                cc.on_send(Time((2 + round * 12) * US), newly.saturating_sub(cc.in_flight().max(0) as u32));
                cc.on_sack(Time((3 + round * 12) * US), &feedback(newly, 12.0, false));
            }
            (before, cc.window() - before)
        };
        let ((small, of_small), (large, of_large)) = (grown(30_000), grown(90_000));
        assert!(large > 2 * small, "{small}, {large}");
        assert!(of_large.abs_diff(of_small) < 2 * 4188, "{of_small} and {of_large}");
    }
}
