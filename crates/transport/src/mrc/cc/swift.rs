//! Swift (Kumar et al., SIGCOMM 2020): a window controlled by the round-trip time alone. It represents the RTT-based
//! control of NICs whose own algorithm is not published (docs/spec/baselines.md, "Switch-side spraying").
//!
//! Below the target the window grows by a constant per round trip. Above it, the window shrinks in proportion to the
//! excess delay, at most once per round trip. Small windows have a higher target, so that the flows of an incast
//! converge. A window is at least one packet: pacing below that is not modelled.

use super::{Ack, Congestion, Penalty};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Parameters; [`SwiftParams::for_network`] gives the defaults.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct SwiftParams {
    /// Nominal size of a full packet, bytes.
    pub mtu: u32,
    /// Largest and initial window, bytes.
    pub max_wnd: u64,
    /// Target round-trip time with a large window.
    pub base_target: Span,
    /// Largest addition to the target for a small window.
    pub scaling_range: Span,
    /// Window, in packets, at or below which all of `scaling_range` is added ...
    pub scaling_min: f64,
    /// ... and at or above which nothing is added.
    pub scaling_max: f64,
    /// Additive increase, packets a round trip.
    pub increase: f64,
    /// Gain of the decrease.
    pub beta: f64,
    /// Largest share of the window that one decrease removes.
    pub max_decrease: f64,
}

impl SwiftParams {
    /// As published: beta 0.8, decreases of at most one half, target scaling for windows of 0.1 to 100 packets. The
    /// base target is the base RTT plus the target queueing delay of NSCC; the range is four times that. The increase
    /// of one packet per round trip is scaled with the bandwidth-delay product from 100 Gb/s and 12 us, like the gains
    /// of NSCC \[choices\].
    pub fn for_network(link_rate_bps: u64, base_rtt: Span, mtu: u32) -> Self {
        let bdp = link_rate_bps as f64 / 8.0 * base_rtt.as_secs_f64();
        let base_target = base_rtt.scaled(1.75);
        SwiftParams {
            mtu,
            max_wnd: ((1.5 * bdp) as u64).max(u64::from(mtu)),
            base_target,
            scaling_range: base_target.times(4),
            scaling_min: 0.1,
            scaling_max: 100.0,
            increase: (bdp / 150_000.0).max(1.0),
            beta: 0.8,
            max_decrease: 0.5,
        }
    }

    /// Target round-trip time with a window of `packets`.
    fn target(&self, packets: f64) -> f64 {
        let (low, high) = (self.scaling_min.sqrt().recip(), self.scaling_max.sqrt().recip());
        let share = ((packets.sqrt().recip() - high) / (low - high)).clamp(0.0, 1.0);
        self.base_target.0 as f64 + share * self.scaling_range.0 as f64
    }
}

/// Swift for one queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub struct Swift {
    params: SwiftParams,
    cwnd: f64,
    rtt: Span,
    decreased_at: Time,
}

impl Swift {
    /// Starts with the largest window.
    pub fn new(params: SwiftParams) -> Self {
        let (cwnd, rtt) = (params.max_wnd as f64, params.base_target);
        Swift { params, cwnd, rtt, decreased_at: Time::ZERO }
    }

    fn decrease(&mut self, now: Time, factor: f64) {
        if now.since(self.decreased_at) >= self.rtt {
            self.cwnd *= factor.max(1.0 - self.params.max_decrease);
            self.decreased_at = now;
        }
        self.clamp();
    }

    fn clamp(&mut self) {
        self.cwnd = self.cwnd.clamp(f64::from(self.params.mtu), self.params.max_wnd as f64);
    }
}

impl Congestion for Swift {
    fn window(&self) -> f64 {
        self.cwnd
    }

    fn set_window(&mut self, bytes: f64) {
        self.cwnd = bytes;
        self.clamp();
    }

    fn on_sack(&mut self, now: Time, ack: &Ack) {
        let Some(rtt) = ack.rtt else { return };
        self.rtt = rtt;
        let mtu = f64::from(self.params.mtu);
        let (delay, target) = (rtt.0 as f64, self.params.target(self.cwnd / mtu));
        if delay >= target {
            self.decrease(now, 1.0 - self.params.beta * (delay - target) / delay);
        } else if ack.penalty != Penalty::Pressing {
            self.cwnd += self.params.increase * mtu * f64::from(ack.newly) / self.cwnd;
            self.clamp();
        }
    }

    fn on_trim(&mut self, now: Time, _bytes: u32, _in_flight: i64) {
        self.decrease(now, 0.0);
    }

    fn on_loss(&mut self, now: Time, _bytes: u32, _in_flight: i64) {
        self.decrease(now, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swift() -> Swift {
        Swift::new(SwiftParams::for_network(400_000_000_000, Span::from_micros(10), 4188))
    }

    fn feedback(newly: u32, rtt: Span) -> Ack {
        Ack { newly, in_flight: 0, rtt: Some(rtt), ecn: false, penalty: Penalty::None }
    }

    #[test]
    fn a_small_window_has_a_higher_target() {
        let params = swift().params;
        assert_eq!(params.target(200.0), params.base_target.0 as f64);
        assert!(params.target(1.0) > params.target(10.0) && params.target(10.0) > params.target(99.0));
        assert_eq!(params.target(0.01), (params.base_target + params.scaling_range).0 as f64);
    }

    #[test]
    fn late_feedback_halves_the_window_at_most_and_once_a_round_trip() {
        let mut cc = swift();
        let full = cc.window();
        let late = Span::from_millis(1);
        cc.on_sack(Time(Span::from_millis(2).0), &feedback(0, late));
        assert_eq!(cc.window(), full / 2.0);
        cc.on_sack(Time((Span::from_millis(2) + Span::from_micros(500)).0), &feedback(0, late));
        assert_eq!(cc.window(), full / 2.0);
        cc.on_sack(Time((Span::from_millis(3) + Span::from_micros(1)).0), &feedback(0, late));
        assert_eq!(cc.window(), full / 4.0);
    }

    #[test]
    fn early_feedback_grows_the_window_by_a_constant_a_round_trip() {
        let mut cc = swift();
        cc.on_loss(Time(Span::from_millis(1).0), 0, 0);
        let before = cc.window();
        cc.on_sack(Time(Span::from_millis(2).0), &feedback(before as u32, Span::from_micros(10)));
        let grown = cc.window() - before;
        assert!((grown - cc.params.increase * 4188.0).abs() <= 1.0, "{grown}");
    }
}
