//! Handling of SACK, NACK and ACK at the requestor (docs/spec/transport.md, "Requestor").

use openmrc_wire::{Aeth, CcState, Mark, Nack, NackReason, Psn, Sack, Syndrome};

use super::Requestor;
use super::loss::{Evidence, closes_report};
use super::send_times::Stamp;
use super::silence::Attempt;
use super::window::{Flight, Outstanding};
use crate::api::{Fatal, Host, Pressure, SendDone, SendStatus};
use crate::mrc::cc::Feedback;
use crate::mrc::config::PSNS_PER_MPR;
use crate::mrc::paths::{ConditionProbes, EvIndex};
use crate::mrc::shared::Shared;
use crate::mrc::stats::PeerCounters;
use crate::seq::Seq;
use crate::time::{Span, Time};

/// A timestamp may lie this much before the kept send time: both are rounded to about 130 ns.
const ROUNDING: i64 = 3 * Span::WIRE_TICK.0 as i64;

/// The 16-bit timestamp of a transmission older than this may have wrapped.
const TIMESTAMP_SPAN: i64 = (Span::WIRE_TICK.0 * 0xF000) as i64;

/// A round trip beyond that counts as at most this many smoothed ones.
const LONGEST_SAMPLE: u64 = 64;

/// The packet or probe that a SACK answers.
struct Answered {
    /// The packet that triggered it; `None` for the answer to a probe.
    seq: Option<Seq>,
    /// The id of the answered probe, if it is a probe.
    probe: Option<u16>,
    /// When that probe was sent, if it is the last that asked.
    probed: Option<Stamp>,
    /// Its path, if this queue pair uses it.
    path: Option<EvIndex>,
    /// Whether the packet or probe took this path last.
    on_last_path: bool,
}

impl Requestor {
    fn answered(&self, shared: &mut Shared, sack: &Sack, cack: Seq) -> Answered {
        let probe = sack.probe_reply.then_some(sack.ack_psn_offset as u16);
        let seq = match probe {
            None => Some(cack.wrapping_add_signed(i64::from(sack.ack_psn_offset))),
            Some(_) => None,
        };
        let last = match (probe, seq) {
            (Some(id), _) => {
                Some(ConditionProbes::path_of(id)).filter(|&i| usize::from(i) < shared.paths.len())
            }
            (None, Some(seq)) => self.window.remembered_path(seq),
            (None, None) => None,
        };
        let path = shared.paths.find(sack.entropy, last);
        let probed = probe.and_then(|id| self.silence.probe_answered(ConditionProbes::sequence_of(id)));
        Answered { seq, probe, probed, path, on_last_path: path.is_some() && path == last }
    }

    /// Whether a SACK speaks of packets that were sent, and not so long ago that the window has forgotten them. This
    /// is what an attacker who cannot see the packets has to guess.
    fn is_plausible(&self, cack: Seq, sack: &Sack) -> bool {
        let acked = cack.wrapping_add_signed(i64::from(sack.ack_psn_offset));
        let base = cack.wrapping_add_signed(i64::from(sack.sack_offset));
        let end = base + 64 - u64::from(sack.bitmap.leading_zeros());
        let next = self.window.next();
        self.window.is_recent(cack) && (sack.probe_reply || acked < next) && (sack.bitmap == 0 || end <= next)
    }

    /// `rtx` is BTH.RTX of the SACK: that of the packet which triggered it.
    pub fn on_sack(&mut self, shared: &mut Shared, now: Time, sack: &Sack, rtx: bool, host: &mut dyn Host) {
        let cack = self.window.expand(sack.cack_psn);
        if !self.is_plausible(cack, sack) || !shared.ids_fit(sack.spdcid, sack.dpdcid) {
            shared.stats.invalid += 1;
            return;
        }
        shared.stats.sacks_in += 1;
        self.silence.heard(now);
        self.keepalive_heard(now, host);
        // CC_STATE of another type has a meaning of its own: only the rest of the SACK is used.
        let cc = if sack.cc_type == Sack::CC_TYPE { sack.cc } else { CcState::default() };
        self.take_overflow_report(shared, now, &cc);

        let answered = self.answered(shared, sack, cack);
        let rtt = self.measure(shared, now, (cc.timestamp, rtx), &answered);
        let (mut newest, proves_order) = self.what_answer_proves(shared, &answered, host);
        let probed = self.probed_by_duplicate(shared, sack, &answered);

        let bitmap = (cack.wrapping_add_signed(i64::from(sack.sack_offset)), sack.bitmap);
        let arrived_first = self.window.fresh64(bitmap.0) & bitmap.1;
        let arrived = self.take_arrivals(shared, now, cack, bitmap, &mut newest, host);
        if let Some(id) = answered.probe {
            self.start_probe_answered(now, id, cc.timestamp);
        }
        // The answer to a probe says nothing of the way of data.
        let rtt = rtt.filter(|_| answered.probe.is_none());
        let marked = sack.mark == Mark::SkipOnce && answered.probe.is_none();
        let delay = rtt.filter(|_| arrived).map(|rtt| rtt - shared.rtt.shortest);
        let feedback = self.feedback(&cc, rtt, marked, delay);
        self.flow.apply(now, &feedback, &shared.config.model());
        self.take_peer_window(shared, cack, sack.mpr);
        if arrived {
            self.silence.progress(now);
        }

        if let Some(index) = probed.or(answered.path) {
            let proves_path = answered.probe.is_some() || probed.is_some();
            let turns = rtt.map_or(1, |rtt| shared.turns_to_miss(rtt));
            shared.path_answered(now, index, proves_path, sack.mark, turns, host);
        }
        let ordered = proves_order && shared.config.model().ordered;
        let overtaking = answered.path.zip(answered.seq).filter(|_| ordered);
        let closes_report = closes_report(cack, bitmap.0, answered.seq);
        let evidence = Evidence { overtaking, bitmap, arrived_first, newest, closes_report };
        self.detect_all(shared, now, &evidence, host);
        if self.window.is_empty() {
            self.flow.on_idle(now);
            if self.sendq.drained() {
                self.flow.on_drained();
            }
        }
        self.probe_at_start(shared, now, host);
    }

    /// The receiver may tell that its buffers have overflowed.
    fn take_overflow_report(&mut self, shared: &Shared, now: Time, cc: &CcState) {
        let penalty = if self.limits.obeys_penalties { cc.rcv_cwnd_pen } else { 0 };
        if shared.config.caps.overflow_reports && Pressure::from(penalty).is_overflow() {
            self.loss.on_overflow_report(now);
        }
    }

    /// What a SACK says to flow and congestion control.
    fn feedback(&self, cc: &CcState, rtt: Option<Span>, ecn: bool, delay: Option<Span>) -> Feedback {
        let (penalty, restore) = match self.limits.obeys_penalties {
            true => (cc.rcv_cwnd_pen, cc.restore_cwnd),
            false => (0, false),
        };
        Feedback { rcvd_bytes: cc.rcvd_bytes, rtt, ecn, penalty, restore, delay }
    }

    /// Measures the round trip that a SACK ends. The reorder window follows it.
    fn measure(
        &mut self,
        shared: &mut Shared,
        now: Time,
        stamp: (u16, bool),
        answered: &Answered,
    ) -> Option<Span> {
        let rtt = self.rtt_sample(shared, now, stamp, answered.seq, answered.probed)?;
        let spread = shared.rtt.update(rtt);
        self.loss.on_rtt_spread(spread, &shared.config.model());
        Some(rtt)
    }

    /// From the packet or probe that was answered: a send time such that something sent then has arrived, and whether
    /// packets sent earlier on the same path are lost if they are still missing.
    fn what_answer_proves(
        &mut self,
        shared: &mut Shared,
        answered: &Answered,
        host: &mut dyn Host,
    ) -> (Option<Stamp>, bool) {
        let Some(seq) = answered.seq.filter(|&seq| self.window.contains(seq)) else {
            return (answered.probed, false);
        };
        match self.window.state(seq) {
            Flight::Sent => return (Some(self.window.sent_not_before(seq)), answered.on_last_path),
            Flight::Resent if answered.on_last_path => return (self.window.resent_at(seq), false),
            Flight::Resent if answered.path.is_some() => {
                self.loss_was_spurious(shared, answered.path, host);
            }
            Flight::Resent | Flight::Lost | Flight::Acked => {}
        }
        (answered.probed, false)
    }

    /// The path of a probe of full size that a SACK answers: a duplicate of what had arrived before.
    fn probed_by_duplicate(&self, shared: &Shared, sack: &Sack, answered: &Answered) -> Option<EvIndex> {
        let duplicate = answered.seq.filter(|&seq| seq < self.window.base())?;
        shared.paths.probed_by_duplicate(sack.entropy, duplicate)
    }

    /// The window that the peer grants, if it has a dynamic one.
    fn take_peer_window(&mut self, shared: &mut Shared, cack: Seq, mpr: u8) {
        if !shared.config.caps.dynamic_mpr {
            return;
        }
        let granted = u32::from(mpr) * PSNS_PER_MPR;
        // A late SACK may be older than one that grants more.
        let is_late = cack + 1 < self.window.base();
        if granted == 0 {
            PeerCounters::count(&mut shared.stats.peer.no_mpr);
        } else {
            self.peer_window = if is_late { granted.min(self.peer_window) } else { granted };
        }
    }

    /// Round-trip time from the reflected timestamp of a SACK with this RTX. The timestamp counts only if it lies
    /// between the recorded send time and now: a peer may reflect none, and after a retransmission it may be that of an
    /// earlier transmission. Otherwise, or if its 16 bits may have wrapped, the recorded send time is used instead: the
    /// sender would else never learn that round trips are this long.
    fn rtt_sample(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (ticks, rtx): (u16, bool),
        answered: Option<Seq>,
        probed: Option<Stamp>,
    ) -> Option<Span> {
        // It is certain which transmission is answered only for the first answer to a packet sent once (Karn's rule).
        let (sent, is_only) = match answered {
            Some(seq) => self.send_time_of(seq)?,
            None => (probed?, false),
        };
        let is_only = is_only && !rtx;
        let age = sent.age(now);
        if age < TIMESTAMP_SPAN {
            let sample = timestamp_sample(now, ticks, age);
            if sample.is_none() {
                PeerCounters::count(&mut shared.stats.peer.bad_timestamps);
            }
            return sample.or_else(|| is_only.then_some(Span(age.max(0) as u64)));
        }
        // A duplicate, a lost SACK or an outage can make round trips look much longer than they were. So a sample is
        // limited, and there is one for each flight: after an outage many packets are answered at once.
        if !is_only || sent.since(self.long_sample_at) < 0 {
            return None;
        }
        self.long_sample_at = Stamp::at(now);
        Some(Span(age as u64).min(shared.rtt.smoothed.times(LONGEST_SAMPLE)))
    }

    /// Send time of the last transmission of a packet, if it is still known, and whether it is the only one and not
    /// answered yet.
    #[inline]
    fn send_time_of(&self, seq: Seq) -> Option<(Stamp, bool)> {
        self.window.remembered_path(seq)?;
        if let Some(again) = self.window.resent_at(seq) {
            return Some((again, false));
        }
        let first = self.window.contains(seq) && self.window.state(seq) == Flight::Sent;
        Some((self.window.remembered_sent(seq)?, first))
    }

    /// Marks the packets that a SACK reports as arrived: all up to `cack`, and a bitmap that starts at its base.
    /// Returns whether any was new; updates `newest` to the latest send time that this proves.
    fn take_arrivals(
        &mut self,
        shared: &mut Shared,
        now: Time,
        cack: Seq,
        (bitmap_base, bitmap): (Seq, u64),
        newest: &mut Option<Stamp>,
        host: &mut dyn Host,
    ) -> bool {
        let mut last_fresh = None;
        let mut any = false;
        let base = self.window.base();
        let mut from = base;
        while from <= cack {
            let below = cack + 1 - from;
            let mask = if below >= 64 { u64::MAX } else { (1 << below) - 1 };
            any |= self.arrived(shared, now, (from, mask), &mut last_fresh, host);
            from += 64;
        }
        if cack >= base {
            self.window.advance(cack + 1);
            self.silence.advanced();
        }
        any |= self.arrived(shared, now, (bitmap_base, bitmap), &mut last_fresh, host);
        self.window.forget_settled_resends();
        if let Some(seq) = last_fresh {
            let stamp = self.window.sent_not_before(seq);
            if newest.is_none_or(|n| stamp.since(n) > 0) {
                *newest = Some(stamp);
            }
        }
        any
    }

    /// Of the 64 PSNs from `from`, those of `reported` have arrived. Returns whether any was outstanding; updates
    /// `last_fresh` to the last one that was sent once.
    #[inline(always)]
    fn arrived(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (from, reported): (Seq, u64),
        last_fresh: &mut Option<Seq>,
        host: &mut dyn Host,
    ) -> bool {
        let Outstanding { fresh, unacked } = self.window.outstanding64(from);
        let (fresh, unacked) = (fresh & reported, unacked & reported);
        if fresh != unacked || shared.paths.hears_arrivals() {
            self.arrived_one_by_one(shared, now, (from, unacked), last_fresh, host);
        } else if fresh != 0 {
            self.window.mark_fresh_acked(from, fresh);
            *last_fresh = (*last_fresh).max(Some(from + u64::from(fresh.ilog2())));
        }
        unacked != 0
    }

    /// The same where some were sent again, or taken for lost, or the paths have to be told of each.
    #[inline(never)]
    fn arrived_one_by_one(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (from, mut bits): (Seq, u64),
        last_fresh: &mut Option<Seq>,
        host: &mut dyn Host,
    ) {
        while bits != 0 {
            let seq = from + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            let index = self.window.path(seq);
            match self.window.mark_acked(seq) {
                Flight::Sent => {
                    shared.paths.alive(index);
                    *last_fresh = (*last_fresh).max(Some(seq));
                }
                Flight::Lost => {
                    self.flow.on_spurious_loss(self.size_of(shared, seq));
                    self.loss_was_spurious(shared, Some(index), host);
                }
                Flight::Resent | Flight::Acked => {}
            }
            if shared.paths.any_condemned() {
                shared.last_resort_delivered(now, index, host);
            }
        }
    }

    /// `rtx` is BTH.RTX of the NACK: that of the packet which it refuses.
    pub fn on_nack(&mut self, shared: &mut Shared, now: Time, nack: &Nack, rtx: bool, host: &mut dyn Host) {
        let seq = self.window.expand(nack.nack_psn);
        let is_fatal = nack.reason == NackReason::UnexpectedEvent;
        let fits = if is_fatal { self.window.is_unacked(seq) } else { self.window.is_recent(seq) };
        if !fits || !shared.ids_fit(nack.spdcid, nack.dpdcid) {
            shared.stats.invalid += 1;
            return;
        }
        self.silence.heard(now);
        self.keepalive_heard(now, host);
        if is_fatal {
            self.fail(shared, Fatal::UnexpectedEvent, SendStatus::RemoteOpErr, host);
            return;
        }
        let trimmed = matches!(nack.reason, NackReason::Trimmed | NackReason::TrimmedLastHop);
        if trimmed {
            shared.stats.trimmed += 1;
        }
        let last = self.window.remembered_path(seq);
        let index = shared.paths.find(nack.entropy, last);
        // The other reasons speak of the receiver, not of the path.
        if let (NackReason::Trimmed, Some(index)) = (nack.reason, index) {
            // No queue that was measured was longer than the one that was full.
            let turns = shared.turns_to_miss(shared.rtt.shortest + self.loss.reorder_window());
            shared.paths.mark(index, turns);
        }
        if !self.refuses_last_transmission(seq, rtx, index, last) {
            return;
        }
        let rtt =
            self.send_time_of(seq).and_then(|(sent, _)| timestamp_sample(now, nack.timestamp, sent.age(now)));
        let path = self.window.path(seq);
        self.window.mark_lost(seq);
        self.window.forget_settled_resends();
        let size = self.size_of(shared, seq);
        if trimmed {
            // The trimmed header arrived, so the path works and is only congested.
            shared.paths.alive(path);
            self.silence.progress(now);
            let last_hop = nack.reason == NackReason::TrimmedLastHop;
            self.flow.on_trim(now, size, last_hop, rtt);
            if last_hop {
                self.flow.space_out(now, shared.rtt.smoothed, &shared.config.model());
            }
        } else {
            self.flow.on_refusal(size, rtt, now + shared.rtt.smoothed);
        }
        if self.silence.count_nack(now, &shared.rtt) == Attempt::Exhausted {
            self.fail(shared, Fatal::RetryExceeded, SendStatus::RetryExceededErr, host);
            return;
        }
        self.probe_at_start(shared, now, host);
    }

    /// The number of completed messages, if an ACK or NAK speaks of packets that were sent. A NAK must be the answer to
    /// something that is not finished.
    fn plausible_count(&self, psn: Psn, aeth: &Aeth) -> Option<u64> {
        let seq = self.window.expand(psn);
        let fits = if aeth.is_ack() {
            self.window.is_recent(seq)
        } else {
            // Its PSN is that of the refused packet or the cumulative one, so it may lie just below the window. And
            // what a SACK has acknowledged may still be refused until its message is complete.
            let next = self.window.next();
            let unfinished = self.window.base().min(self.sendq.end_of(self.sendq.completed()));
            self.sendq.is_unfinished(next) && (unfinished..=next).contains(&(seq + 1))
        };
        self.sendq.expand_completed(aeth.msn).filter(|_| fits)
    }

    /// Whether a later ACK has come in before this one, by a quicker path. It says nothing new.
    fn was_overtaken(&self, psn: Psn, aeth: &Aeth) -> bool {
        let recent = self.window.is_recent(self.window.expand(psn));
        // Each message has a packet at least.
        aeth.is_ack() && recent && self.sendq.is_recent_count(aeth.msn, self.window.capacity())
    }

    /// Whether a NACK refuses the transmission of a packet that is in flight. One for an earlier transmission is too
    /// late. The path tells them apart; if its entropy value is unknown, RTX does.
    fn refuses_last_transmission(
        &self,
        seq: Seq,
        rtx: bool,
        index: Option<EvIndex>,
        last: Option<EvIndex>,
    ) -> bool {
        let again = match self.window.contains(seq).then(|| self.window.state(seq)) {
            Some(Flight::Sent) => false,
            Some(Flight::Resent) => true,
            Some(Flight::Acked | Flight::Lost) | None => return false,
        };
        if index.is_some() { index == last } else { rtx == again }
    }

    /// `psn` is BTH.PSN: the cumulative PSN of an ACK, the refused PSN of a NAK.
    pub fn on_ack(&mut self, shared: &mut Shared, now: Time, aeth: &Aeth, psn: Psn, host: &mut dyn Host) {
        let meaning = aeth.meaning();
        if meaning == Syndrome::Undefined {
            PeerCounters::count(&mut shared.stats.peer.unknown_syndrome);
            return;
        }
        let Some(completed) = self.plausible_count(psn, aeth) else {
            if !self.was_overtaken(psn, aeth) {
                shared.stats.invalid += 1;
            }
            return;
        };
        self.silence.heard(now);
        self.keepalive_heard(now, host);
        // All packets of a complete message have arrived, even if no SACK has reported them yet.
        let mut end = self.sendq.end_of(completed);
        if meaning == Syndrome::Ack {
            end = end.max(self.window.expand(psn) + 1);
        }
        if end > self.window.base() {
            let mut newest = None;
            if self.take_arrivals(shared, now, end - 1, (end, 0), &mut newest, host) {
                self.silence.progress(now);
            }
            self.loss.has_arrived(newest);
            self.detect_losses(shared, now, host);
            if self.window.is_empty() {
                self.flow.on_idle(now);
            }
        }
        if completed > self.sendq.completed() {
            self.silence.progress(now);
            self.silence.advanced();
            while self.sendq.completed() < completed {
                if let Some(handle) = self.sendq.complete_oldest() {
                    host.send_done(SendDone { handle, status: SendStatus::Success });
                }
            }
        }
        match refusal(meaning) {
            Some(status) => self.fail(shared, Fatal::RemoteNak(aeth.syndrome), status, host),
            None => self.probe_at_start(shared, now, host),
        }
    }
}

/// Round-trip time by a reflected timestamp; `None` if it lies before a send time of this age. The age must be below
/// [`TIMESTAMP_SPAN`].
pub(super) fn timestamp_sample(now: Time, ticks: u16, age: i64) -> Option<Span> {
    let sample = Span::WIRE_TICK.times(u64::from(now.wire_ticks().wrapping_sub(ticks)));
    (age < TIMESTAMP_SPAN && sample.0 as i64 <= age + ROUNDING).then_some(sample)
}

/// The status of the message that a NAK refuses; `None` if the syndrome is none of a NAK.
fn refusal(syndrome: Syndrome) -> Option<SendStatus> {
    match syndrome {
        Syndrome::NakRemoteAccess => Some(SendStatus::RemoteAccessErr),
        Syndrome::NakRemoteOperation => Some(SendStatus::RemoteOpErr),
        Syndrome::NakInvalidRequest => Some(SendStatus::RemoteInvalidRequestErr),
        Syndrome::Ack | Syndrome::Undefined => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nak_has_the_status_of_the_table() {
        use SendStatus::{RemoteAccessErr, RemoteInvalidRequestErr, RemoteOpErr};
        for syndrome in 0..=255u8 {
            let expected = match syndrome {
                0x61 | 0x64..=0x7F => Some(RemoteInvalidRequestErr),
                0x62 => Some(RemoteAccessErr),
                0x63 => Some(RemoteOpErr),
                _ => None,
            };
            let aeth = Aeth { syndrome, msn: 0 };
            assert_eq!(refusal(aeth.meaning()), expected, "{syndrome:#04x}");
            assert_eq!(aeth.meaning() == Syndrome::Ack, syndrome < 0x20, "{syndrome:#04x}");
        }
    }

    #[test]
    fn a_timestamp_counts_only_if_it_lies_between_the_send_time_and_now() {
        let tick = Span::WIRE_TICK.0;
        let now = Time(tick * 100_000);
        let ticks = |ago: u64| Time(now.0 - ago * tick).wire_ticks();
        let age = (tick * 80) as i64;
        assert_eq!(timestamp_sample(now, ticks(80), age), Some(Span(tick * 80)));
        assert_eq!(timestamp_sample(now, ticks(70), age), Some(Span(tick * 70)));
        assert_eq!(timestamp_sample(now, ticks(200), age), None, "of an earlier transmission");
        assert_eq!(timestamp_sample(now, ticks(0).wrapping_add(1), age), None, "of the future");
        assert_eq!(timestamp_sample(now, ticks(80), TIMESTAMP_SPAN), None, "it may have wrapped");
    }
}
