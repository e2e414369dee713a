//! Keepalive: a peer that is silent while nothing is under way is probed; and the host is told when a peer does not
//! answer, whether or not something is under way, and when it is heard again. Not in the specification. It must never
//! end a queue pair, nor change one that does not ask for it.

use super::Requestor;
use crate::api::Host;
use crate::mrc::shared::{RttEstimate, Shared};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The host is told after this many unanswered probes \[choice\]: single losses must not look like a dead peer.
const PROBES: u8 = 4;
/// After this many unanswered probes, each goes out on every plane: the first may have met the only plane that is broken.
const EVERY_PLANE_AFTER: u8 = 1;

/// Since when nothing has come from the peer, and what was done about it.
#[derive(Serialize, Deserialize)]
pub(super) struct Keepalive {
    /// Silence of this length is followed by a probe.
    period: Span,
    /// When the last packet came from the peer, of any kind.
    heard_at: Time,
    probed_at: Time,
    /// Probes sent since then, at most [`PROBES`].
    unanswered: u8,
    /// The host was told that the peer is silent.
    is_silent: bool,
}

impl Keepalive {
    pub fn new(now: Time, period: Span) -> Self {
        Keepalive { period, heard_at: now, probed_at: now, unanswered: 0, is_silent: false }
    }

    /// When the next probe is due, if nothing is under way. `interval` is what an answer may take.
    fn due(&self, interval: Span) -> Time {
        match self.unanswered {
            0 => self.heard_at + self.period,
            // The host knows. Probes only find out when the peer is back, which is not urgent.
            _ if self.is_silent => self.probed_at + self.period.max(interval),
            _ => self.probed_at + interval,
        }
    }

    /// The peer does not answer.
    fn found_silent(&mut self, host: &mut dyn Host) {
        self.unanswered = PROBES;
        if !std::mem::replace(&mut self.is_silent, true) {
            host.peer_silence(true);
        }
    }

    fn heard(&mut self, now: Time, host: &mut dyn Host) {
        self.heard_at = now;
        self.unanswered = 0;
        if std::mem::take(&mut self.is_silent) {
            host.peer_silence(false);
        }
    }
}

impl Requestor {
    /// A packet has come from the peer, whether or not it answers anything.
    #[inline]
    pub fn keepalive_heard(&mut self, now: Time, host: &mut dyn Host) {
        if let Some(keepalive) = &mut self.keepalive {
            keepalive.heard(now, host);
        }
    }

    /// When the next keepalive probe is due, if nothing is under way.
    #[inline]
    pub(super) fn keepalive_due(&self, rtt: &RttEstimate) -> Time {
        self.keepalive.as_ref().map_or(Time::NEVER, |keepalive| keepalive.due(self.silence.interval(rtt)))
    }

    /// Sends the keepalive probe that is due. While something is under way the retries ask the peer instead.
    pub(super) fn probe_keepalive(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let is_quiet = self.is_quiet(shared);
        let answer = self.silence.interval(&shared.rtt);
        let Some(keepalive) = &mut self.keepalive else { return };
        if !is_quiet {
            // Questions are counted besides the time, as this process may have been stopped.
            let patience = keepalive.period + answer.times(u64::from(PROBES));
            if self.silence.unanswered() > PROBES && now >= keepalive.heard_at + patience {
                keepalive.found_silent(host);
            }
            return;
        }
        if now < keepalive.due(answer) {
            return;
        }
        if keepalive.unanswered == PROBES {
            keepalive.found_silent(host);
        }
        keepalive.unanswered = PROBES.min(keepalive.unanswered + 1);
        keepalive.probed_at = now;
        let every_plane = keepalive.unanswered > EVERY_PLANE_AFTER;
        self.ask_peer(shared, now, every_plane, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_asked_after_a_period_then_as_soon_as_an_answer_may_take_then_at_leisure() {
        let micros = Span::from_micros;
        let (heard_at, probed_at) = (Time(1 << 40), Time(1 << 41));
        for period in [micros(1000), micros(10)] {
            let due = |unanswered, is_silent| {
                Keepalive { period, heard_at, probed_at, unanswered, is_silent }.due(micros(100))
            };
            assert_eq!(due(0, false), heard_at + period);
            for unanswered in 1..=PROBES {
                assert_eq!(due(unanswered, false), probed_at + micros(100));
                assert_eq!(due(unanswered, true), probed_at + period.max(micros(100)));
            }
        }
    }
}
