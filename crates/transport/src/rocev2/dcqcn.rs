//! DCQCN, the congestion control of RoCEv2 (Zhu et al., SIGCOMM 2015; docs/spec/baselines.md): a rate that a CNP
//! reduces and that a timer and a byte counter raise.

use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Parameters; [`DcqcnParams::for_rate`] gives the published ones.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct DcqcnParams {
    /// Initial and largest rate, bits per second.
    pub line_rate_bps: u64,
    /// Weight of a CNP in the congestion estimate.
    pub g: f64,
    /// The estimate decays after this time without a CNP.
    pub alpha_timer: Span,
    /// The rate rises after this time ...
    pub rate_timer: Span,
    /// ... and after this number of bytes.
    pub byte_counter: u64,
    /// Steps of fast recovery.
    pub fast_recovery: u32,
    /// Additive increase, bits per second.
    pub additive_bps: f64,
    /// Hyper increase, bits per second.
    pub hyper_bps: f64,
    /// Smallest rate, bits per second.
    pub least_bps: f64,
    /// Minimum time between two CNPs of a responder.
    pub cnp_interval: Span,
}

impl DcqcnParams {
    /// The best published settings for a port of this rate: g 1/256, alpha timer 55 us, rate timer tuned to 55 us, byte
    /// counter 10 MB, F 5, additive increase 5 Mb/s per 10 Gb/s, hyper increase ten times that, CNPs 50 us apart.
    pub fn for_rate(line_rate_bps: u64) -> Self {
        let additive_bps = 5e6 * (line_rate_bps as f64 / 10e9);
        DcqcnParams {
            line_rate_bps,
            g: 1.0 / 256.0,
            alpha_timer: Span::from_micros(55),
            rate_timer: Span::from_micros(55),
            byte_counter: 10_000_000,
            fast_recovery: 5,
            additive_bps,
            hyper_bps: 10.0 * additive_bps,
            least_bps: 10e6,
            cnp_interval: Span::from_micros(50),
        }
    }
}

/// The rate of one queue pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Dcqcn {
    params: DcqcnParams,
    current: f64,
    target: f64,
    alpha: f64,
    alpha_at: Time,
    rate_at: Time,
    bytes: u64,
    timer_steps: u32,
    byte_steps: u32,
}

impl Dcqcn {
    pub fn new(params: DcqcnParams) -> Self {
        let line = params.line_rate_bps as f64;
        Dcqcn {
            params,
            current: line,
            target: line,
            alpha: 1.0,
            alpha_at: Time::ZERO,
            rate_at: Time::ZERO,
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
        }
    }

    /// The present rate, bits per second.
    pub fn rate(&self) -> f64 {
        self.current
    }

    /// A CNP has come.
    pub fn on_cnp(&mut self, now: Time) {
        self.advance(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(self.params.least_bps);
        self.alpha = (1.0 - self.params.g) * self.alpha + self.params.g;
        (self.alpha_at, self.rate_at) = (now, now);
        (self.bytes, self.timer_steps, self.byte_steps) = (0, 0, 0);
    }

    /// Bytes have been sent.
    pub fn on_send(&mut self, now: Time, bytes: u32) {
        self.advance(now);
        if self.at_line_rate() {
            return;
        }
        self.bytes += u64::from(bytes);
        if self.bytes >= self.params.byte_counter {
            self.bytes -= self.params.byte_counter;
            self.byte_steps += 1;
            self.raise();
        }
    }

    fn at_line_rate(&self) -> bool {
        self.current >= self.params.line_rate_bps as f64
    }

    /// Applies the timers that have expired.
    fn advance(&mut self, now: Time) {
        let decays = now.since(self.alpha_at).0 / self.params.alpha_timer.0.max(1);
        if decays > 0 {
            self.alpha *= (1.0 - self.params.g).powf(decays as f64);
            self.alpha_at += self.params.alpha_timer.times(decays);
        }
        while !self.at_line_rate() && now.since(self.rate_at) >= self.params.rate_timer {
            self.rate_at += self.params.rate_timer;
            self.timer_steps += 1;
            self.raise();
        }
        if self.at_line_rate() {
            self.rate_at = now;
        }
    }

    fn raise(&mut self) {
        let (most, least) = (self.timer_steps.max(self.byte_steps), self.timer_steps.min(self.byte_steps));
        if least > self.params.fast_recovery {
            self.target += self.params.hyper_bps;
        } else if most > self.params.fast_recovery {
            self.target += self.params.additive_bps;
        }
        let line = self.params.line_rate_bps as f64;
        self.target = self.target.min(line);
        self.current = ((self.current + self.target) / 2.0).min(line);
        // Repeated halving never reaches the line rate.
        if line - self.current < 1e-3 * line {
            self.current = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 100e9;

    fn at(micros: u64) -> Time {
        Time(Span::from_micros(micros).0)
    }

    #[test]
    fn the_first_cnp_halves_the_rate_and_fast_recovery_brings_it_back() {
        let mut cc =
            Dcqcn::new(DcqcnParams { alpha_timer: Span::from_secs(9), ..DcqcnParams::for_rate(LINE as u64) });
        cc.on_cnp(at(10));
        assert_eq!(cc.rate(), LINE / 2.0);
        cc.on_send(at(10 + 55), 1000);
        assert_eq!(cc.rate(), LINE * 0.75);
        cc.on_send(at(10 + 55 * 5), 1000);
        assert_eq!(cc.rate(), LINE * (1.0 - 1.0 / 64.0));
    }

    #[test]
    fn cnps_push_the_rate_down_to_its_floor_and_never_below() {
        let mut cc = Dcqcn::new(DcqcnParams::for_rate(LINE as u64));
        let mut last = cc.rate();
        for i in 1..100 {
            cc.on_cnp(at(50 * i));
            assert!(cc.rate() <= last);
            last = cc.rate();
        }
        assert_eq!(last, 10e6);
    }

    #[test]
    fn without_cnps_the_rate_climbs_back_to_the_line_and_stays() {
        let mut cc = Dcqcn::new(DcqcnParams::for_rate(LINE as u64));
        for i in 1..20 {
            cc.on_cnp(at(50 * i));
        }
        for i in 0..200_000 {
            cc.on_send(at(1000 + i * 10), 4096);
        }
        assert_eq!(cc.rate(), LINE);
    }

    #[test]
    fn the_estimate_decays_with_time_and_a_cnp_cuts_by_half_of_it() {
        for decays in [0, 1, 7, 100] {
            let mut cc = Dcqcn::new(DcqcnParams {
                rate_timer: Span::from_secs(9),
                ..DcqcnParams::for_rate(LINE as u64)
            });
            // The estimate begins at 1, and a CNP leaves it there.
            cc.on_cnp(at(0));
            cc.on_cnp(at(55 * decays + 54));
            let alpha = (255.0f64 / 256.0).powi(decays as i32);
            let after_two = LINE / 2.0 * (1.0 - alpha / 2.0);
            assert!((cc.rate() / after_two - 1.0).abs() < 1e-9, "{decays}");
            // Each CNP moves it a 256th of the way to 1.
            cc.on_cnp(at(55 * decays + 54));
            let alpha = alpha * 255.0 / 256.0 + 1.0 / 256.0;
            assert!((cc.rate() / (after_two * (1.0 - alpha / 2.0)) - 1.0).abs() < 1e-9, "{decays}");
        }
    }

    #[test]
    fn no_byte_is_lost_between_two_steps_of_the_counter() {
        let mut cc = Dcqcn::new(DcqcnParams { byte_counter: 1000, ..DcqcnParams::for_rate(LINE as u64) });
        cc.on_cnp(at(0));
        for sent in 1..8 {
            cc.on_send(at(0), 700);
            let steps = sent * 700 / 1000;
            assert_eq!(cc.rate(), LINE * (1.0 - 0.5f64.powi(steps + 1)), "after {sent} packets");
        }
    }

    #[test]
    fn bytes_raise_the_rate_as_time_does_and_both_together_raise_it_most() {
        let params = DcqcnParams { byte_counter: 1000, ..DcqcnParams::for_rate(LINE as u64) };
        // Steps of the timer and of the counter, and what they add to the target beyond fast recovery.
        for (timers, counters, added) in
            [(0, 5, 0.0), (5, 0, 0.0), (5, 5, 0.0), (0, 8, 3.0), (8, 0, 3.0), (8, 6, 3.0 + 5.0 + 10.0)]
        {
            let mut cc = Dcqcn::new(params);
            for _ in 0..40 {
                cc.on_cnp(at(0));
            }
            cc.on_cnp(at(1));
            let (target, mut expected) = (cc.target, cc.rate());
            // The timer runs first, then the counter: each step halves the distance to the target.
            let mut goal = target;
            let mut step = |timer: u32, counter: u32| {
                let (most, least) = (timer.max(counter), timer.min(counter));
                goal += if least > 5 {
                    params.hyper_bps
                } else if most > 5 {
                    params.additive_bps
                } else {
                    0.0
                };
                expected = (expected + goal) / 2.0;
            };
            (1..=timers).for_each(|timer| step(timer, 0));
            (1..=counters).for_each(|counter| step(timers, counter));
            cc.on_send(at(1 + 55 * u64::from(timers)), 0);
            for _ in 0..counters * 2 {
                cc.on_send(at(1 + 55 * u64::from(timers)), 500);
            }
            assert!((cc.rate() / expected - 1.0).abs() < 1e-9, "{timers} {counters}: {}", cc.rate());
            let more = (cc.target - target) / params.additive_bps;
            assert!((more - added).abs() < 1e-6, "{timers} {counters}: {more}");
        }
    }

    #[test]
    fn the_steps_beyond_fast_recovery_follow_the_line_rate() {
        for (gbps, additive_mbps) in [(10, 5.0), (25, 12.5), (100, 50.0), (800, 400.0)] {
            let params = DcqcnParams::for_rate(gbps * 1_000_000_000);
            assert!((params.additive_bps / (additive_mbps * 1e6) - 1.0).abs() < 1e-9, "{gbps}");
            assert!((params.hyper_bps / (additive_mbps * 1e7) - 1.0).abs() < 1e-9, "{gbps}");
        }
    }

    #[test]
    fn what_is_less_than_a_thousandth_from_the_line_rate_is_at_it() {
        let mut cc = Dcqcn::new(DcqcnParams {
            fast_recovery: 20,
            byte_counter: 1000,
            ..DcqcnParams::for_rate(LINE as u64)
        });
        cc.on_cnp(at(0));
        // Half of the rate is missing, and each step halves what is: a 512th after eight steps, then a 1024th.
        for step in 1..=8 {
            cc.on_send(at(0), 1000);
            assert_eq!(cc.rate(), LINE * (1.0 - 0.5f64.powi(step + 1)));
        }
        cc.on_send(at(0), 1000);
        assert_eq!(cc.rate(), LINE);
        // Twice a thousandth is missing, or just less.
        for (missing, rate) in [(200e6, LINE - 100e6), (200e6 - 2.0, LINE)] {
            (cc.current, cc.target) = (LINE - missing, LINE);
            cc.raise();
            assert_eq!(cc.rate(), rate);
        }
    }
}
