//! The requestor: what it sends next, and what SACK, NACK and ACK change (spec: transport, "Requestor").

use openmrc_wire::{Aeth, Body, Mark, Nack, NackReason, Packet, Sack, Timestamp, Write};

use super::cc::{CcFeedback, Congestion};
use super::paths::EvIndex;
use super::sendq::Part;
use super::window::{Flight, Seq, Stamp, wire};
use super::{QueuePair, nak_status, nominal};
use crate::api::{Fatal, Host, PortSet, SendDone, SendStatus, TrafficClass, Transmit};
use crate::time::{Span, Time};

/// A first transmission older than this can have wrapped its 16-bit timestamp: its round trip is not known.
const TIMESTAMP_SPAN: i64 = (Span::WIRE_TICK.0 * 0xF000) as i64;

impl QueuePair {
    /// Whether congestion control lets a packet go. With nothing on its way there is nothing to wait for, so one always may:
    /// the byte counter's rounding must not be able to close a window of one packet for ever.
    fn window_open(&self) -> bool {
        self.cc.open() || self.window.flying() == 0
    }

    /// Whether a new packet may be sent, as far as windows go.
    pub(super) fn may_send_new(&self) -> bool {
        let window = self.peer_window.min(u32::from(self.config.mpr) * 128);
        self.window.next() - self.window.base() < u64::from(window)
            && self.sendq.has_new(self.window.next(), self.config.max_wimm)
            && self.window_open()
    }

    /// Whether a lost packet may be sent again.
    pub(super) fn may_resend(&self) -> bool {
        self.window.lost() > 0
            && self.window_open()
            && self.clock >= self.resend_not_before
            && self.window.can_resend()
    }

    /// The next data packet: retransmissions first, oldest first, then new data.
    #[inline(always)]
    pub(super) fn next_data(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        if self.error.is_some() || ports.and(self.ports_up).is_empty() || !self.window_open() {
            return None;
        }
        let again = if self.may_resend() { self.window.next_lost() } else { None };
        let (seq, index, part) = if let Some(seq) = again {
            let lost_on = self.window.path(seq);
            let index = self.paths.select(ports, self.ports_up, Some(lost_on))?;
            self.window.resent(now, seq, index);
            self.stats.retransmits += 1;
            (seq, index, self.sendq.resend(seq))
        } else {
            if !self.may_send_new() {
                return None;
            }
            let index = self.paths.select(ports, self.ports_up, None)?;
            if self.is_quiet() {
                self.begin_waiting(now);
            }
            let seq = self.window.sent(now, index);
            (seq, index, self.sendq.take_new(seq))
        };
        Some(self.data_packet(now, seq, index, part, again.is_some()))
    }

    #[inline(always)]
    fn data_packet(&mut self, now: Time, seq: Seq, index: EvIndex, part: Part, again: bool) -> Transmit {
        let mut packet = write_packet(self.config.remote_qp, seq, &part);
        if let Body::Write(write) = &mut packet.body {
            write.timestamp =
                Some(Timestamp { ticks: now.wire_ticks(), service_time: self.config.caps.service_time });
        }
        packet.rtx = again;
        let size = nominal(&packet);
        self.cc.on_send(now, size);
        if !again {
            self.sent_bytes = self.sent_bytes.wrapping_add(size);
        }
        packet.ack_req = self.cc.wants_feedback();
        self.stats.data_packets += 1;
        self.stats.data_bytes += u64::from(part.len);
        let class = if again { TrafficClass::DataRetransmit } else { TrafficClass::Data };
        self.paths.transmit(packet, index, class, (part.len > 0).then_some(part.payload))
    }

    /// Nominal size of a packet that was sent.
    pub(super) fn size_of(&self, seq: Seq) -> u32 {
        nominal(&write_packet(self.config.remote_qp, seq, &self.sendq.resend(seq)))
    }

    pub(super) fn on_sack(&mut self, now: Time, sack: &Sack, host: &mut dyn Host) {
        let cack = self.window.expand(sack.cack_psn);
        if !self.ids_match(sack.spdcid, sack.dpdcid) || cack >= self.window.next() {
            self.stats.invalid += 1;
            return;
        }
        self.stats.sacks_in += 1;
        self.heard(now);

        // The packet that this answers, its path, and when it was sent.
        let probe = sack.probe_reply.then_some(sack.ack_psn_offset as u16);
        let answered = match probe {
            None => Some(cack.wrapping_add_signed(i64::from(sack.ack_psn_offset))),
            Some(_) => None,
        };
        let hint = match (probe, answered) {
            (Some(id), _) => Some(id as EvIndex).filter(|&i| usize::from(i) < self.paths.len()),
            (None, Some(seq)) => self.window.remembered_path(seq),
            (None, None) => None,
        };
        let index = self.paths.find(sack.entropy, hint);
        let on_last_path = index.is_some() && index == hint;
        let mut newest = probe.and_then(|id| self.prober.tail_answered(id));
        let rtt = self.rtt_sample(now, sack.cc.timestamp, answered, newest);
        if let Some(rtt) = rtt {
            self.srtt = Span((self.srtt.0 * 7 + rtt.0) / 8);
            self.shortest_rtt = self.shortest_rtt.min(rtt);
            self.loss.saw_spread(rtt - self.shortest_rtt, Self::first_window(&self.config.cc));
        }
        let mut first_hand = false;
        if let Some(seq) = answered.filter(|&seq| self.window.contains(seq)) {
            match self.window.state(seq) {
                Flight::Sent => {
                    first_hand = on_last_path;
                    newest = Some(self.window.sent_not_before(seq));
                }
                Flight::Resent if on_last_path => newest = self.window.resent_at(seq),
                Flight::Resent if index.is_some() => self.loss_was_spurious(index, host),
                Flight::Resent | Flight::Lost | Flight::Acked => {}
            }
        }

        let bitmap_base = cack.wrapping_add_signed(i64::from(sack.sack_offset));
        let arrived = self.take_arrivals(now, cack, bitmap_base, sack.bitmap, &mut newest, host);
        let newly = sack.cc.rcvd_bytes.wrapping_sub(self.peer_rcvd) & 0xFF_FFFF;
        let newly = if newly < 1 << 23 {
            self.peer_rcvd = sack.cc.rcvd_bytes;
            newly * 256
        } else {
            0
        };
        self.cc.on_sack(
            now,
            &CcFeedback {
                newly,
                rtt: rtt.filter(|_| probe.is_none()),
                ecn: sack.mark == Mark::SkipOnce && probe.is_none(),
                penalty: sack.cc.rcv_cwnd_pen,
                restore: sack.cc.restore_cwnd,
            },
        );
        if self.config.caps.dynamic_mpr && cack + 1 >= self.window.base() {
            self.peer_window = u32::from(sack.mpr.max(1)) * 128;
        }
        if arrived {
            self.progress_at = now;
            self.retries = 0;
        }

        if let Some(index) = index {
            self.path_answered(now, index, probe.is_some(), sack.mark, host);
            if first_hand
                && self.config.cc.ordered_paths
                && let Some(seq) = answered
            {
                self.overtaken_on_path(now, index, seq, bitmap_base, sack.bitmap, host);
            }
        }
        self.overtaken_in_burst(now, bitmap_base, sack.bitmap, host);
        self.detect_losses(now, newest, host);
        if self.window.is_empty() {
            self.all_arrived(now);
        }
    }

    /// Everything sent has arrived, so it is known what the responder has counted. After an ACK that may be more than SACKs have
    /// told: they can be lost or late.
    fn all_arrived(&mut self, now: Time) {
        let rcvd = self.sent_bytes.div_ceil(256) & 0xFF_FFFF;
        let newly = rcvd.wrapping_sub(self.peer_rcvd) & 0xFF_FFFF;
        if (1..1 << 23).contains(&newly) {
            self.peer_rcvd = rcvd;
            let feedback =
                CcFeedback { newly: newly * 256, rtt: None, ecn: false, penalty: 0, restore: false };
            self.cc.on_sack(now, &feedback);
        }
        self.cc.on_idle();
    }

    /// Round-trip time from a reflected timestamp, unless the 16 bits can have wrapped meanwhile.
    fn rtt_sample(
        &self,
        now: Time,
        ticks: u16,
        answered: Option<Seq>,
        probed: Option<Stamp>,
    ) -> Option<Span> {
        let sent = match answered {
            Some(seq) => {
                self.window.remembered_path(seq)?;
                self.window.resent_at(seq).or_else(|| self.window.remembered_sent(seq))?
            }
            None => probed?,
        };
        (sent.age(now) < TIMESTAMP_SPAN)
            .then(|| Span::WIRE_TICK.times(u64::from(now.wire_ticks().wrapping_sub(ticks))))
    }

    /// Marks what a SACK reports as arrived. Says whether anything was new; moves `newest` up to the latest send time
    /// that the news prove.
    fn take_arrivals(
        &mut self,
        now: Time,
        cack: Seq,
        bitmap_base: Seq,
        bitmap: u64,
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
            let bits = self.window.unacked64(from) & mask;
            any |= self.arrived(now, from, bits, &mut last_fresh, host);
            from += 64;
        }
        if cack >= base {
            self.window.advance(cack + 1);
        }
        let bits = self.window.unacked64(bitmap_base) & bitmap;
        any |= self.arrived(now, bitmap_base, bits, &mut last_fresh, host);
        self.window.forget_settled_resends();
        if let Some(seq) = last_fresh {
            let stamp = self.window.sent_not_before(seq);
            if newest.is_none_or(|n| stamp.since(n) > 0) {
                *newest = Some(stamp);
            }
        }
        any
    }

    fn arrived(
        &mut self,
        now: Time,
        from: Seq,
        mut bits: u64,
        last_fresh: &mut Option<Seq>,
        host: &mut dyn Host,
    ) -> bool {
        let any = bits != 0;
        while bits != 0 {
            let seq = from + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            let index = self.window.path(seq);
            match self.window.mark_acked(seq) {
                Flight::Sent => {
                    self.paths.alive(index);
                    *last_fresh = (*last_fresh).max(Some(seq));
                }
                Flight::Lost => {
                    // Taken off what is in flight when it was marked; the responder's counter takes it off as well.
                    self.cc.on_found(self.size_of(seq));
                    self.loss_was_spurious(Some(index), host);
                }
                Flight::Resent | Flight::Acked => {}
            }
            if self.paths.any_condemned() {
                self.last_resort_worked(now, index, host);
            }
        }
        any
    }

    pub(super) fn on_nack(&mut self, now: Time, nack: &Nack, host: &mut dyn Host) {
        let seq = self.window.expand(nack.nack_psn);
        if !self.ids_match(nack.spdcid, nack.dpdcid) || seq >= self.window.next() {
            self.stats.invalid += 1;
            return;
        }
        self.heard(now);
        if nack.reason == NackReason::UnexpectedEvent {
            self.fail(Fatal::UnexpectedEvent, SendStatus::RemoteOpErr, host);
            return;
        }
        let trimmed = matches!(nack.reason, NackReason::Trimmed | NackReason::TrimmedLastHop);
        if trimmed {
            self.stats.trimmed += 1;
        }
        let hint = self.window.remembered_path(seq);
        let index = self.paths.find(nack.entropy, hint);
        if let (NackReason::Trimmed, Some(index)) = (nack.reason, index) {
            self.paths.mark(index);
        }
        // Only the transmission in flight can be refused; a NACK for an earlier one is old news.
        let in_flight = self.window.contains(seq)
            && matches!(self.window.state(seq), Flight::Sent | Flight::Resent)
            && index.is_some()
            && index == hint;
        if !in_flight {
            return;
        }
        if trimmed {
            // A trimmed header got through, so the path is alive and only congested.
            self.paths.alive(self.window.path(seq));
            self.progress_at = now;
            self.retries = 0;
        } else {
            self.resend_not_before = now + self.srtt;
        }
        self.window.mark_lost(seq);
        let size = self.size_of(seq);
        self.cc.on_nack(now, size, trimmed);
    }

    pub(super) fn on_ack(&mut self, now: Time, aeth: &Aeth, host: &mut dyn Host) {
        let Some(completed) = self.sendq.expand_completed(aeth.msn) else {
            self.stats.invalid += 1;
            return;
        };
        self.heard(now);
        if completed > self.sendq.completed() {
            self.progress_at = now;
            self.retries = 0;
            // A complete message is one whose packets have all arrived, whether or not a SACK has said so yet.
            let end = self.sendq.end_of(completed);
            if end > self.window.base() {
                let mut newest = None;
                self.take_arrivals(now, end - 1, end, 0, &mut newest, host);
                self.detect_losses(now, newest, host);
                if self.window.is_empty() {
                    self.all_arrived(now);
                }
            }
            while self.sendq.completed() < completed {
                if let Some(handle) = self.sendq.complete_oldest() {
                    host.send_done(SendDone { handle, status: SendStatus::Success });
                }
            }
        }
        if !aeth.is_ack() {
            self.fail(Fatal::RemoteNak(aeth.syndrome), nak_status(aeth.syndrome), host);
        }
    }
}

/// The data packet for a part of a message, without timestamp and flags.
#[inline(always)]
fn write_packet(dest_qp: u32, seq: Seq, part: &Part) -> Packet {
    let body = Body::Write(Write {
        position: part.position,
        rqmsn: part.rqmsn,
        msn: part.msn,
        timestamp: Some(Timestamp::default()),
        va: part.va,
        rkey: part.rkey,
        dma_len: part.dma_len,
        imm: part.imm,
    });
    Packet { payload_len: part.len, solicited: part.solicited, ..Packet::new(dest_qp, wire(seq), body) }
}
