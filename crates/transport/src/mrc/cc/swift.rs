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

    #[test]
    fn the_parameters_follow_the_network() {
        let small = SwiftParams::for_network(100_000_000_000, Span::from_micros(12), 4188);
        assert_eq!((small.max_wnd, small.increase), (225_000, 1.0));
        assert_eq!((small.base_target, small.scaling_range), (Span::from_micros(21), Span::from_micros(84)));
        let large = swift().params;
        assert!(large.max_wnd.abs_diff(750_000) <= 1, "{}", large.max_wnd);
        assert!((large.increase - 10.0 / 3.0).abs() < 1e-9, "{}", large.increase);
        // Never less than a packet.
        let tiny = SwiftParams::for_network(1_000_000_000, Span::from_micros(1), 4188);
        assert_eq!((tiny.max_wnd, tiny.increase), (4188, 1.0));
    }

    #[test]
    fn the_addition_to_the_target_falls_with_the_root_of_the_window() {
        let params = swift().params;
        // All of the range at 0.1 packets, where 1 / sqrt is 3.1623, and nothing at 100, where it is 0.1.
        for (packets, share) in
            [(0.1, 1.0), (1.0, 0.293_90), (4.0, 0.130_62), (25.0, 0.032_656), (100.0, 0.0)]
        {
            let added = params.target(packets) - params.base_target.0 as f64;
            let found = added / params.scaling_range.0 as f64;
            assert!((found - share).abs() < 1e-5, "{packets}: {found}");
        }
    }

    #[test]
    fn the_target_of_a_window_decides_whether_it_grows() {
        // With four packets it is 17.5 us and 0.13062 times 70 us.
        let target = Span::from_nanos(26_643);
        for (rtt, grows) in [(Span(target.0 - 10_000), true), (Span(target.0 + 10_000), false)] {
            let mut cc = swift();
            cc.set_window(4.0 * 4188.0);
            cc.on_sack(Time(Span::from_millis(1).0), &feedback(4188, rtt));
            assert_eq!(cc.window() > 4.0 * 4188.0, grows, "{rtt:?}: {}", cc.window());
        }
    }

    #[test]
    fn a_decrease_is_in_proportion_to_the_excess_delay() {
        // From 100 packets on the target is 17.5 us. Factor: 1 - 0.8 x (delay - target) / delay.
        for (rtt_ns, factor) in [(17_500, 1.0), (20_000, 0.9), (35_000, 0.6), (70_000, 0.5)] {
            let mut cc = swift();
            cc.set_window(150.0 * 4188.0);
            cc.on_sack(Time(Span::from_millis(1).0), &feedback(0, Span::from_nanos(rtt_ns)));
            let found = cc.window() / (150.0 * 4188.0);
            assert!((found - factor).abs() < 1e-9, "{rtt_ns}: {found}");
        }
    }

    #[test]
    fn a_trimmed_or_lost_packet_halves_the_window_once_a_round_trip_down_to_a_packet() {
        for on_event in [Swift::on_trim, Swift::on_loss] {
            let mut cc = swift();
            let largest = cc.window();
            for expected in [largest / 2.0, largest / 4.0] {
                // The round trip is the target as long as none was measured.
                let next = cc.decreased_at + Span::from_nanos(17_500);
                for at in [next, Time(next.0 + 17_499_999)] {
                    on_event(&mut cc, at, 4188, 0);
                    assert_eq!(cc.window(), expected);
                }
            }
            (1..100).for_each(|round| on_event(&mut cc, Time(Span::from_millis(round).0), 4188, 0));
            assert_eq!(cc.window(), 4188.0);
            cc.set_window(1e9);
            assert_eq!(cc.window(), largest);
            cc.set_window(0.0);
            assert_eq!(cc.window(), 4188.0);
        }
    }
}
