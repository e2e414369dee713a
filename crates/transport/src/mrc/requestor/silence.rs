//! Silent peers: probes, timeouts and the end of retries (docs/spec/transport.md, "Deciding that a packet is lost",
//! rules 3 and 4).

use super::Requestor;
use super::send_times::Stamp;
use crate::api::{Fatal, Host, PortSet, SendStatus, TrafficClass};
use crate::mrc::config::RequestorConfig;
use crate::mrc::paths::EvIndex;
use crate::mrc::retries::RetrySchedule;
use crate::mrc::shared::{RttEstimate, Shared};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Longest interval between unanswered probes.
const LONGEST: Span = Span::from_secs(1);
/// After this many unanswered tail probes, each goes out on every plane: asking one plane at a time takes long.
const EVERY_PLANE_AFTER: u8 = 3;
/// On this many paths at least, several of a plane where there are fewer planes \[choice\].
const LEAST_ASKED: usize = 4;
/// After this many unanswered probes the peer is also asked on the ports that it has said are down: it may have failed
/// to say that they are up again, and no packet of its own may tell \[choice\].
const EVERY_PORT_AFTER: u8 = 3;

/// No probe has this sequence number: seven bits of an id hold it.
const NOT_ASKED: u8 = u8::MAX;

/// What a timeout or a recoverable NACK means for the retry counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    /// Another attempt.
    Counted,
    /// It belongs to the last attempt: a burst of losses is one attempt.
    SameInterval,
    /// The attempts are used up.
    Exhausted,
}

/// How long the peer has been silent, and what was sent to it meanwhile.
#[derive(Serialize, Deserialize)]
pub(super) struct Silence {
    timeout: Span,
    linear_cnt: u8,
    exp_cnt: u8,
    /// Last sign of life from the peer, or the moment something was first sent to it.
    heard_at: Time,
    /// Last progress, or the last timeout.
    progress_at: Time,
    /// The retry counter: timeouts and recoverable NACKs since the cumulative PSN last advanced.
    retries: u8,
    /// When it last went up, unless it is zero.
    counted_at: Stamp,
    /// When the last tail probe fell due, and how many have gone unanswered.
    tail_at: Time,
    tails: u8,
    /// Probes that asked the peer since it was heard last.
    asked_in_vain: u8,
    asked_path: EvIndex,
    /// When the last probe that asked the peer was sent, and the sequence number in its id; [`NOT_ASKED`] if none was.
    asked: Stamp,
    asked_sequence: u8,
}

impl Silence {
    pub fn new(now: Time, config: &RequestorConfig) -> Self {
        Silence {
            timeout: config.timeout,
            linear_cnt: config.linear_cnt,
            exp_cnt: config.exp_cnt,
            heard_at: now,
            progress_at: now,
            retries: 0,
            counted_at: Stamp(0),
            tail_at: Time::ZERO,
            tails: 0,
            asked_in_vain: 0,
            asked_path: 0,
            asked: Stamp(0),
            asked_sequence: NOT_ASKED,
        }
    }

    /// Changes timeout and numbers of retries, from the next timeout on.
    pub fn set_retries(&mut self, config: &RequestorConfig) {
        self.timeout = config.timeout;
        self.linear_cnt = config.linear_cnt;
        self.exp_cnt = config.exp_cnt;
    }

    /// The peer has something to answer from now on: its silence, and the lack of progress, count from here.
    pub fn begin(&mut self, now: Time) {
        self.heard(now);
        self.progress(now);
        self.advanced();
    }

    /// Something is sent to the peer after a wait in which it had nothing to answer.
    pub fn resume(&mut self, now: Time) {
        self.heard(now);
        self.progress(now);
    }

    /// The peer answers, and only its application keeps it from completing a message: no attempt is counted.
    fn begin_wait(&mut self, now: Time) {
        self.progress(now);
        self.advanced();
    }

    /// The peer has given a sign of life.
    pub fn heard(&mut self, now: Time) {
        self.heard_at = now;
        self.tails = 0;
        self.asked_in_vain = 0;
    }

    /// Questions asked since then, up to 255.
    pub fn unanswered(&self) -> u8 {
        self.tails
    }

    /// Something new has arrived: the timeout counts from here.
    pub fn progress(&mut self, now: Time) {
        self.progress_at = now;
    }

    /// The cumulative PSN has advanced, or a message is complete: attempts are counted from zero again.
    pub fn advanced(&mut self) {
        self.retries = 0;
    }

    /// Counts a timeout or a recoverable NACK, once in each interval.
    fn count(&mut self, now: Time, rtt: &RttEstimate) -> Attempt {
        // In whole units: an interval that has passed may be one short of its length rounded up.
        let passed = Stamp::at(now).since(self.counted_at);
        if self.retries > 0 && passed < Stamp::units(self.backed_off(rtt)) - 1 {
            return Attempt::SameInterval;
        }
        if self.schedule(rtt).is_exhausted(self.retries) {
            return Attempt::Exhausted;
        }
        self.retries = self.retries.saturating_add(1);
        self.counted_at = Stamp::at(now);
        Attempt::Counted
    }

    /// Counts a recoverable NACK.
    pub fn count_nack(&mut self, now: Time, rtt: &RttEstimate) -> Attempt {
        self.count(now, rtt)
    }

    /// A probe reply has come: when the probe with this sequence number was sent, if it is the last that asked.
    pub fn probe_answered(&self, sequence: u8) -> Option<Stamp> {
        (self.asked_sequence == sequence).then_some(self.asked)
    }

    /// When rule 3 fires: nothing heard for 1.5 RTT + target delay. A peer that does not answer is asked again when it
    /// has been silent for a quarter longer, and at least once a second \[choice\]: so it is noticed soon, compared
    /// with the time that it was away, and asked seldom if that is long.
    #[inline]
    pub fn tail_due(&self, shared: &Shared) -> Time {
        let srtt = shared.rtt.smoothed;
        let wait = Span(srtt.0 + srtt.0 / 2) + shared.config.target_qdelay;
        let silent = self.tail_at.since(self.heard_at);
        self.heard_at.max(self.tail_at) + wait.max(silent.over(4)).min(LONGEST)
    }

    /// When rule 4 fires: a fixed interval at first, then doubling ones.
    #[inline]
    pub fn timeout_due(&self, rtt: &RttEstimate) -> Time {
        self.progress_at + self.backed_off(rtt)
    }

    /// The interval of the next attempt.
    #[inline]
    fn backed_off(&self, rtt: &RttEstimate) -> Span {
        self.schedule(rtt).interval(self.retries)
    }

    fn schedule(&self, rtt: &RttEstimate) -> RetrySchedule {
        let Silence { linear_cnt, exp_cnt, .. } = *self;
        RetrySchedule { timeout: self.interval(rtt), linear_cnt, exp_cnt }
    }

    /// What an answer may take. The attribute is a floor: on a path that has become slower than it, four round trips
    /// are.
    #[inline]
    pub fn interval(&self, rtt: &RttEstimate) -> Span {
        self.timeout.max(rtt.smoothed.times(4))
    }
}

impl Requestor {
    /// When rule 3 fires. A peer whose application has no receive for a message is asked ever more seldom, but several
    /// times in the interval of an attempt \[choice\]: it tells without being asked when it has one.
    #[inline]
    pub(super) fn tail_due(&self, shared: &Shared) -> Time {
        let due = self.silence.tail_due(shared);
        if !self.waits_for_receive(shared) {
            return due;
        }
        let silence = &self.silence;
        let asked = silence.heard_at.max(silence.tail_at);
        let pause = asked.since(silence.progress_at).over(4).min(silence.interval(&shared.rtt).over(4));
        due.max(asked + pause)
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        self.check_timeout(shared, now, host);
        if shared.error.is_none() {
            self.probe_tail(shared, now, host);
            self.probe_keepalive(shared, now, host);
        }
    }

    /// Rule 3: packets or messages are outstanding and the peer is silent. Its answer, which tells all it has, counts
    /// as a packet sent now and acknowledged, and so uncovers what was lost before.
    fn probe_tail(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        if self.is_quiet(shared) || now < self.held_back_until(shared).max(self.tail_due(shared)) {
            return;
        }
        self.silence.tail_at = now;
        self.silence.tails = self.silence.tails.saturating_add(1);
        self.ask_peer(shared, now, self.silence.tails > EVERY_PLANE_AFTER, host);
    }

    /// Asks the peer what it has, by a probe on the next plane or the same probe on every plane.
    pub(super) fn ask_peer(
        &mut self,
        shared: &mut Shared,
        now: Time,
        every_plane: bool,
        host: &mut dyn Host,
    ) {
        let last = self.silence.asked_path;
        let up = if self.silence.asked_in_vain >= EVERY_PORT_AFTER {
            shared.own_ports()
        } else {
            shared.ports_to_ask()
        };
        let Some(index) = shared.paths.select(now, up, up, Some(last)) else { return };
        shared.send_probe(now, index, TrafficClass::Data, host);
        self.silence.asked = Stamp::at(now);
        self.silence.asked_sequence = shared.probes.last_sequence();
        self.silence.asked_path = index;
        self.silence.asked_in_vain = self.silence.asked_in_vain.saturating_add(1);
        if every_plane {
            let asked = shared.paths.plane_of(index);
            for plane in (0..shared.paths.plane_count()).filter(|&p| p != asked) {
                if up.contains(shared.paths.plane_port(plane))
                    && let Some(other) = shared.paths.choose_to_probe(plane)
                {
                    shared.repeat_probe(now, other, host);
                }
            }
            ask_on_more_paths(shared, now, up, host);
        }
    }

    /// Rule 4: nothing has moved for the whole timeout. When retries are exhausted, so is the connection. Otherwise the
    /// oldest packet in flight is taken for lost and sent again: its acknowledgement shows what else was lost (rule 2).
    /// Not even that where the peer has given no sign of life: it may be away (its process not scheduled, its node
    /// rebooting) and have received everything. Sending it all again would only fill its buffers, and no path is more
    /// to blame than another. The probes that ask it show what is lost \[choice\].
    fn check_timeout(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        if self.is_quiet(shared)
            || now < self.held_back_until(shared).max(self.silence.timeout_due(&shared.rtt))
        {
            return;
        }
        // What was heard soon after the last progress belongs to it.
        let is_silent =
            self.silence.heard_at <= self.silence.progress_at + now.since(self.silence.progress_at).over(2);
        if !is_silent && self.waits_for_receive(shared) {
            self.silence.begin_wait(now);
            return;
        }
        if self.silence.count(now, &shared.rtt) == Attempt::Exhausted {
            self.fail(shared, Fatal::RetryExceeded, SendStatus::RetryExceededErr, host);
            return;
        }
        self.silence.progress_at = now;
        shared.stats.timeouts += 1;
        if is_silent {
            return;
        }
        self.lose_oldest(shared, now, host);
        shared.try_condemned(now, host);
    }
}

/// Where there are few planes, the same probe on more paths of each. Every second one is condemned, if the plane has such
/// a path: the peer may be behind one of those only.
fn ask_on_more_paths(shared: &mut Shared, now: Time, up: PortSet, host: &mut dyn Host) {
    let planes = shared.paths.plane_count();
    for turn in planes..LEAST_ASKED {
        let plane = turn % planes;
        if !up.contains(shared.paths.plane_port(plane)) {
            continue;
        }
        let condemned = if turn % 2 == 0 { shared.paths.condemned_to_probe(plane) } else { None };
        if let Some(other) = condemned.or_else(|| shared.paths.choose_to_probe(plane)) {
            shared.repeat_probe(now, other, host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_once_in_an_interval_and_from_zero_after_progress() {
        use Attempt::{Counted, Exhausted, SameInterval};
        // In whole units of a stamp, so that nothing is rounded.
        let unit = |n: u64| Span(n << 17);
        let begin = Time(1 << 40);
        let config =
            RequestorConfig { timeout: unit(100), linear_cnt: 2, exp_cnt: 1, ..RequestorConfig::default() };
        let rtt = RttEstimate { smoothed: unit(10), shortest: unit(10) };
        let mut silence = Silence::new(begin, &config);
        let mut count = |at| silence.count(begin + unit(at), &rtt);
        // Two intervals of 100, one of 200, and one of 400 in which the last answer may come.
        let expected = [
            (0, Counted),
            (0, SameInterval),
            (99, SameInterval),
            (100, Counted),
            (299, SameInterval),
            (300, Counted),
            (699, SameInterval),
            (700, Exhausted),
        ];
        for (at, attempt) in expected {
            assert_eq!(count(at), attempt, "{at}");
        }
        silence.advanced();
        assert_eq!(silence.count(begin + unit(701), &rtt), Counted, "the first attempt waits for nothing");
        silence.advanced();
        assert_eq!(silence.count(begin + unit(702), &rtt), Counted);
        assert_eq!(silence.count(begin + unit(703), &rtt), SameInterval);
        assert_eq!(silence.count(begin + unit(802), &rtt), Counted);
    }

    #[test]
    fn an_interval_that_has_just_passed_is_over_wherever_it_began() {
        // 1.5 units of a stamp: the timeout, or four round trips.
        for (timeout, smoothed) in [(3 << 16, 1), (1, 3 << 14)] {
            let config = RequestorConfig {
                timeout: Span(timeout),
                linear_cnt: 3,
                exp_cnt: 0,
                ..RequestorConfig::default()
            };
            let rtt = RttEstimate { smoothed: Span(smoothed), shortest: Span(smoothed) };
            for phase in (0..1 << 17).step_by(1 << 12) {
                let begin = Time((1 << 40) + phase);
                let mut silence = Silence::new(begin, &config);
                let passed =
                    [3 << 16, 6 << 16, 9 << 16, 15 << 16].map(|at| silence.count(begin + Span(at), &rtt));
                let expected = [Attempt::Counted, Attempt::Counted, Attempt::Counted, Attempt::Exhausted];
                assert_eq!(passed, expected, "{phase}");
            }
        }
    }
}
