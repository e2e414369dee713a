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
mod tests;
