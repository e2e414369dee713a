//! NSCC, the network-signal-based congestion control of UET 1.0 section 3.6.13, which MRC adopts
//! (docs/spec/congestion.md).
//!
//! A window in bytes, updated by each SACK. Two signals, ECN and delay, select one of four actions. A third signal,
//! trimming in a round trip that delivered little, sets the window to the delivered bytes at once (quick adapt).

use serde::{Deserialize, Serialize};
use std::sync::{Arc, LazyLock};

use openmrc_wire::DATA_OVERHEAD;

use super::{Ack, Congestion, NOMINAL_OUTSIDE, Penalty};
use crate::presets;
use crate::time::{Span, Time};

/// The network from which all gains are scaled: 100 Gb/s and 12 us (docs/spec/congestion.md, "Numbers").
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
    /// Largest and initial window, bytes. The largest window falls in proportion when a shorter RTT is measured.
    pub max_wnd: u64,
    /// Target queueing delay.
    pub target_qdelay: Span,
    /// Proportional increase: bytes per picosecond below the target and byte acknowledged.
    pub alpha: f64,
    /// Fair increase, bytes.
    pub fi: f64,
    /// Increase once per adjust period, bytes.
    pub eta: f64,
    /// Fast increase per byte acknowledged.
    pub fi_scale: f64,
    /// Multiplicative decrease gain.
    pub gamma: f64,
    /// Smallest factor of a single multiplicative decrease.
    pub max_md_jump: f64,
    /// Quick adapt acts when less than `max_wnd >> qa_gate` was delivered.
    pub qa_gate: u32,
    /// Quick adapt acts on delay above this; `Span(u64::MAX)` disables this trigger, as with trimming.
    pub qa_threshold: Span,
    /// Quick adapt never acts.
    pub disable_qa: bool,
    /// The window is adjusted after this time ...
    pub adjust_period: Span,
    /// ... or after more than this many bytes.
    pub adjust_bytes: u32,
}

impl NsccParams {
    /// Headers counted in a full packet's nominal size, bytes.
    pub const OVERHEAD: u32 = NOMINAL_OUTSIDE + DATA_OVERHEAD as u32;

    /// The defaults for a sender of `link_rate_bps` over `base_rtt` (docs/spec/congestion.md, "Numbers").
    pub fn for_network(link_rate_bps: u64, base_rtt: Span, path_mtu: u16, trimming: bool) -> Self {
        let mtu = u32::from(path_mtu) + Self::OVERHEAD;
        let bdp = link_rate_bps as f64 / 8.0 * base_rtt.as_secs_f64();
        let target_qdelay = presets::target_qdelay(base_rtt, trimming);
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
            disable_qa: false,
            adjust_period: base_rtt,
            adjust_bytes: 8 * mtu,
        }
    }

    /// Stands for those of a controller that was read from a checkpoint, until [`Nscc::rejoin`].
    fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<NsccParams>> =
            LazyLock::new(|| Arc::new(NsccParams::for_network(1, Span(1), 256, false)));
        Arc::clone(&NONE)
    }
}

/// State of NSCC for one queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub struct Nscc {
    #[serde(skip, default = "NsccParams::none")]
    params: Arc<NsccParams>,
    cwnd: f64,
    base_rtt: Span,
    avg_delay: f64,
    inc_bytes: f64,
    adjust_received: u32,
    adjusted_at: Time,
    eta_at: Time,
    decreased_at: Time,
    /// Consecutive bytes acknowledged without delay.
    undelayed: u32,
    fast: bool,
    /// A packet was trimmed since quick adapt last acted. Not in `quick`, whose size it would increase by 8 bytes.
    trimmed: bool,
    quick: QuickAdapt,
}

/// State of quick adapt.
#[derive(Default, Debug, Serialize, Deserialize)]
struct QuickAdapt {
    /// End of the present period; zero until the clock has been started.
    ends: Time,
    /// Bytes received in this period.
    achieved: u32,
    /// Bytes still to be heard of until marked feedback counts again: bytes_to_ignore - bytes_ignored.
    to_ignore: u32,
}

impl Nscc {
    /// After a checkpoint was read: the parameters that all queue pairs share.
    pub(super) fn rejoin(&mut self, params: &Arc<NsccParams>) {
        self.params = Arc::clone(params);
    }

    /// The initial window is the largest one.
    pub fn new(params: &Arc<NsccParams>) -> Self {
        Nscc {
            cwnd: params.max_wnd as f64,
            base_rtt: params.base_rtt,
            avg_delay: 0.0,
            inc_bytes: 0.0,
            adjust_received: 0,
            adjusted_at: Time::ZERO,
            eta_at: Time::ZERO,
            decreased_at: Time::ZERO,
            undelayed: 0,
            fast: false,
            trimmed: false,
            quick: QuickAdapt::default(),
            params: Arc::clone(params),
        }
    }

    fn mtu(&self) -> f64 {
        f64::from(self.params.mtu)
    }

    fn shrink_to(&mut self, bytes: f64) {
        let cwnd = bytes.max(self.mtu());
        // An increase that was earned with the larger window and not applied yet is scaled to the new window.
        self.inc_bytes *= (cwnd / self.cwnd).min(1.0);
        self.cwnd = cwnd;
    }

    /// The largest window: it falls with the base RTT.
    fn max_wnd(&self) -> f64 {
        let share = self.base_rtt.0 as f64 / self.params.base_rtt.0 as f64;
        (self.params.max_wnd as f64 * share).max(self.mtu())
    }

    /// A smaller sample lowers the base RTT, and the largest window with it.
    fn lower_base_rtt(&mut self, rtt: Span) {
        self.base_rtt = self.base_rtt.min(rtt.max(Span::WIRE_TICK));
    }

    /// Delay of a sample above the base RTT.
    fn delay_of(&mut self, rtt: Span) -> Span {
        self.lower_base_rtt(rtt);
        rtt - self.base_rtt
    }

    fn average(&mut self, delay: Span) {
        self.avg_delay += DELAY_WEIGHT * (delay.0 as f64 - self.avg_delay);
    }

    /// Once per base RTT + target delay: if a packet was trimmed (or, without trimming, late) and little was
    /// delivered, the window is set to the delivered bytes. Marked feedback for packets in flight at that time is then
    /// ignored. Returns whether it acted or ignores: then this feedback does nothing else.
    fn quick_adapt(&mut self, now: Time, marked: bool, delay: Span, in_flight: i64) -> bool {
        if self.params.disable_qa {
            return false;
        }
        let ignores = marked && self.quick.to_ignore > 0;
        if ignores || self.quick_adapt_acts(now, delay, in_flight) {
            self.inc_bytes = 0.0;
            self.adjust_received = 0;
            return true;
        }
        false
    }

    fn quick_adapt_acts(&mut self, now: Time, delay: Span, in_flight: i64) -> bool {
        if now < self.quick.ends {
            return false;
        }
        let is_started = self.quick.ends != Time::ZERO;
        let achieved = std::mem::take(&mut self.quick.achieved);
        self.quick.ends = now + self.base_rtt + self.params.target_qdelay;
        let trouble = self.trimmed || delay > self.params.qa_threshold;
        // The gate is a share of the configured largest window, not of the lowered one: otherwise a sender close to the
        // receiver keeps a rate at which a distant one must adapt \[choice\]. A sender that delivers half of the
        // lowered window in a period does not adapt.
        let gate = (self.params.max_wnd >> self.params.qa_gate).min(self.max_wnd() as u64 / 2);
        if !is_started || !trouble || u64::from(achieved) >= gate {
            return false;
        }
        // Trimmed packets may have shrunk the window below this already. It must not grow now \[choice\].
        self.shrink_to(self.cwnd.min(achieved.into()));
        self.fast = false;
        self.undelayed = 0;
        self.trimmed = false;
        self.quick.to_ignore = in_flight.clamp(0, u32::MAX.into()) as u32;
        true
    }

    /// While the delay is about zero for a full window, the window grows by a share of every byte acknowledged.
    fn fast_increase(&mut self, newly: u32, delay: Span, penalty: Penalty) -> bool {
        // "About zero" is a twelfth of the base RTT: 1 us on the reference network [choice]. During destination flow
        // control all senders grow by equal steps and not by a share of their own windows, which would preserve uneven
        // shares for milliseconds.
        if delay > self.base_rtt.over(12) || penalty != Penalty::None {
            self.undelayed = 0;
            self.fast = false;
            return false;
        }
        self.undelayed = self.undelayed.saturating_add(newly);
        if f64::from(self.undelayed) > self.cwnd {
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

    fn adjust(&mut self, now: Time) {
        let period_over = now.since(self.adjusted_at) >= self.params.adjust_period;
        if !period_over && self.adjust_received <= self.params.adjust_bytes {
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
        self.cwnd = self.cwnd.clamp(self.mtu(), self.max_wnd());
    }
}

impl Congestion for Nscc {
    fn follows_last_hop(&self) -> bool {
        true
    }

    #[inline]
    fn window(&self) -> f64 {
        self.cwnd
    }

    fn set_window(&mut self, bytes: f64) {
        if bytes < self.cwnd {
            self.shrink_to(bytes);
        } else {
            self.cwnd = bytes;
            self.clamp();
        }
    }

    fn on_sack(&mut self, now: Time, ack: &Ack) {
        let newly = ack.newly;
        self.adjust_received = self.adjust_received.saturating_add(newly);
        self.quick.achieved = self.quick.achieved.saturating_add(newly);
        self.quick.to_ignore = self.quick.to_ignore.saturating_sub(newly);

        let Some(rtt) = ack.rtt else { return };
        let delay = self.delay_of(rtt);
        // An unmarked late packet passed a queue that does not mark; it counts for little.
        let late_unmarked = !ack.ecn && delay > self.params.target_qdelay;
        self.average(if late_unmarked { self.base_rtt.over(4) } else { delay });
        if ack.penalty == Penalty::Pressing || self.quick_adapt(now, ack.ecn, delay, ack.in_flight) {
            return;
        }
        // One window of acknowledgements earns one increase. After a sudden decrease the acknowledgements are for
        // packets of an older, larger window; counted for the new window they would undo the decrease at once.
        let was_in_flight = ack.in_flight + i64::from(newly);
        let earned = f64::from(newly) * (self.cwnd / was_in_flight.max(1) as f64).min(1.0);
        match (ack.ecn, delay < self.params.target_qdelay) {
            (false, true) => {
                if !self.fast_increase(newly, delay, ack.penalty) {
                    let below = (self.params.target_qdelay - delay).0 as f64;
                    self.inc_bytes += self.params.alpha * earned * below;
                }
            }
            (false, false) => {
                self.fast = false;
                // Switches do not mark on the last hop: while the receiver resolves an incast, an unmarked delay is
                // that of its own link, and the fair increase of every sender would be trimmed there \[choice\].
                if ack.penalty == Penalty::None {
                    self.inc_bytes += self.params.fi * earned;
                }
            }
            (true, true) => self.fast = false,
            (true, false) => {
                self.fast = false;
                self.multiplicative_decrease(now);
            }
        }
        self.adjust(now);
        self.clamp();
    }

    fn on_trim(&mut self, now: Time, bytes: u32, in_flight: i64) {
        self.average(self.params.base_rtt);
        self.fast = false;
        self.quick.to_ignore = self.quick.to_ignore.saturating_sub(bytes);
        self.trimmed = true;
        if !self.quick_adapt(now, true, Span::ZERO, in_flight) {
            self.shrink_to(self.cwnd - f64::from(bytes));
        }
    }

    fn on_loss(&mut self, _now: Time, bytes: u32, _in_flight: i64) {
        self.fast = false;
        self.quick.to_ignore = self.quick.to_ignore.saturating_sub(bytes);
        self.shrink_to(self.cwnd - f64::from(bytes));
    }

    fn on_rtt(&mut self, rtt: Span) {
        self.lower_base_rtt(rtt);
    }

    fn on_idle(&mut self) {
        self.quick.to_ignore = 0;
    }
}

#[cfg(test)]
mod tests {
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
            let feedback =
                Feedback { rcvd_bytes: self.received, rtt, ecn: false, penalty, restore, delay: None };
            self.flow.apply(Time(at_us * US), &feedback, &model());
        }
    }

    #[test]
    fn the_reference_network_has_the_published_gains() {
        let p = params();
        assert_eq!(p.max_wnd, 225_000);
        assert_eq!(p.target_qdelay, Span::from_micros(9));
        assert!((p.fi - 5.0 * f64::from(p.mtu)).abs() < 1e-6);
        assert!((p.alpha * 9e6 - 4.0 * 0.75 * f64::from(p.mtu)).abs() < 1e-6);
        assert!((p.eta - 0.15 * f64::from(p.mtu)).abs() < 1e-6);
        let untrimmed = NsccParams::for_network(100_000_000_000, Span::from_micros(12), 4096, false);
        assert_eq!(untrimmed.qa_threshold, Span::from_micros(48));
    }

    #[test]
    fn a_delay_of_twice_the_target_takes_two_fifths_of_the_window() {
        let mut cc = reference();
        cc.set_window(100_000.0);
        cc.avg_delay = 18e6;
        cc.multiplicative_decrease(Time(100 * US));
        // 1 - 0.8 x (18 - 9) / 18.
        assert!((cc.window() - 60_000.0).abs() < 1e-6, "{}", cc.window());
        // At most one half at once, and one decrease in a round trip.
        cc.avg_delay = 900e6;
        cc.multiplicative_decrease(Time(101 * US));
        assert!((cc.window() - 60_000.0).abs() < 1e-6, "{}", cc.window());
        cc.multiplicative_decrease(Time(113 * US));
        assert!((cc.window() - 30_000.0).abs() < 1e-6, "{}", cc.window());
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
}
