//! The requestor: selects the next packet to send (docs/spec/transport.md, "Requestor").
//!
//! | file | subject |
//! |---|---|
//! | `sendq` | posted messages and their packets |
//! | `window`, `send_times`, `resends` | state of each packet in flight |
//! | `acks` | handling of SACK, NACK and ACK |
//! | `loss` | loss detection |
//! | `silence` | probes of a silent peer, and timeouts |
//! | `start_probe` | one probe at the start, for the base RTT |
//! | `keepalive` | probes of a peer that is silent while nothing is under way |
//!
//! `loss`, `silence`, `start_probe` and `keepalive` each define a part of the requestor's state and the methods of
//! [`Requestor`] that act on it. This import circle is intended: a rule and the state that it needs stay in one file.

mod acks;
mod keepalive;
mod loss;
mod resends;
mod send_times;
mod sendq;
mod silence;
mod start_probe;
mod window;

use serde::{Deserialize, Serialize};
use std::ops::Range;

use openmrc_wire::{Body, Packet, Psn, Timestamp, Write};

pub use sendq::MAX_MESSAGE;

use self::keepalive::Keepalive;
use self::loss::LossDetector;
use self::send_times::Stamp;
use self::sendq::{Part, SendQueue};
use self::silence::Silence;
use self::start_probe::StartProbe;
use self::window::{Flight, Window};
use super::cc::{CcProfile, Flow, NsccParams, nominal};
use super::config::{PSNS_PER_MPR, QpConfig, RequestorConfig};
use super::paths::EvIndex;
use super::shared::Shared;
use super::stats::Counters;
use crate::api::{
    Fatal, Host, PortSet, PostError, Readiness, SendDone, SendStatus, TrafficClass, Transmit, WorkRequest,
};
use crate::seq::{Seq, first_seq, wire};
use crate::time::Time;

#[derive(Serialize, Deserialize)]
pub(super) struct Requestor {
    limits: Limits,
    sendq: SendQueue,
    window: Window,
    flow: Flow,
    loss: LossDetector,
    silence: Silence,
    /// On request only.
    keepalive: Option<Box<Keepalive>>,
    /// The peer's window, PSNs.
    peer_window: u32,
    /// When a round trip longer than timestamps reach was last measured.
    long_sample_at: Stamp,
    start_probe: StartProbe,
}

/// The part of the configuration that is needed after creation.
#[derive(Serialize, Deserialize)]
struct Limits {
    /// PSNs in flight.
    window: u32,
    max_wimm: u16,
    burst: u8,
    /// Destination flow control.
    obeys_penalties: bool,
}

impl Requestor {
    /// Bytes per posted work request.
    pub const BYTES_PER_WORK_REQUEST: usize = SendQueue::BYTES_PER_ENTRY;

    pub fn new(now: Time, config: &QpConfig) -> Self {
        let RequestorConfig { sq_psn, mpr, max_wimm, max_send_wr, keepalive, options, .. } = config.requestor;
        let first = first_seq(sq_psn);
        let window = u32::from(mpr) * PSNS_PER_MPR;
        let paths = config.paths.active + config.paths.backup;
        Requestor {
            sendq: SendQueue::new(max_send_wr, config.path_mtu, first),
            window: Window::new(window, first, paths.into()),
            flow: Flow::new(&config.cc, u32::from(config.path_mtu) + NsccParams::OVERHEAD, &options),
            loss: LossDetector::new(now, first, &config.paths.model),
            silence: Silence::new(now, &config.requestor),
            keepalive: keepalive.map(|period| Box::new(Keepalive::new(now, period))),
            peer_window: window,
            long_sample_at: Stamp::at(now),
            start_probe: StartProbe::new(config),
            limits: Limits { window, max_wimm, burst: config.paths.burst, obeys_penalties: options.dfc },
        }
    }

    /// After a checkpoint was read: the parameters of its congestion control.
    pub fn rejoin(&mut self, cc: &CcProfile) {
        self.flow.rejoin(cc);
    }

    /// Changes timeout and numbers of retries, from the next timeout on.
    pub fn set_retries(&mut self, config: &RequestorConfig) {
        self.silence.set_retries(config);
    }

    /// Work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.sendq.len()
    }

    /// Congestion window and flight size, both in bytes, and the reorder window.
    pub fn gauges(&self) -> (u64, i64, crate::time::Span) {
        (self.flow.window(), self.flow.in_flight(), self.loss.reorder_window())
    }

    /// The number of bytes in flight, computed from the state of every packet of the window: sent, not in the
    /// responder's counter, and not taken for lost. For tests.
    pub fn expected_in_flight(&self, shared: &Shared) -> i64 {
        let lost =
            (self.window.base()..self.window.next()).filter(|&seq| self.window.state(seq) == Flight::Lost);
        let lost_bytes: i64 = lost.map(|seq| i64::from(self.size_of(shared, seq))).sum();
        self.flow.uncounted() - lost_bytes
    }

    /// Heap bytes, without the ring of posted work requests, which belongs to the application.
    pub fn heap_bytes(&self) -> usize {
        self.window.heap_bytes() + self.keepalive.as_ref().map_or(0, |_| size_of::<Keepalive>())
    }

    /// Any field of type [`Time`]: the address from which the cache lines of the requestor are loaded.
    pub fn prefetch_anchor(&self) -> &Time {
        self.flow.prefetch_anchor()
    }

    /// Loads its heap memory into the cache.
    #[inline]
    pub fn prefetch(&self) {
        self.window.prefetch();
        self.sendq.prefetch();
    }

    /// Whether any packet or message is unacknowledged.
    pub fn is_sending(&self) -> bool {
        !self.window.is_empty()
    }

    /// The PSN before the oldest that is outstanding: to the responder, a packet with it is a duplicate.
    pub fn arrived_psn(&self) -> Psn {
        wire(self.window.base()).offset(-1)
    }

    /// The packets that have all arrived: to the responder, each of them is a duplicate.
    pub fn all_arrived(&self, stats: &Counters) -> Range<Seq> {
        let (base, next) = (self.window.base(), self.window.next());
        let first_sent = stats.data_packets - u64::from(stats.retransmits);
        next.saturating_sub(first_sent)..base
    }

    /// Whether no answer is outstanding: every packet and message sent was acknowledged, and unsent data has a port to
    /// use.
    #[inline]
    pub fn is_quiet(&self, shared: &Shared) -> bool {
        self.window.is_empty()
            && self.sendq.completed() == self.sendq.fully_sent()
            && (self.sendq.drained() || !shared.ports_up.is_empty())
    }

    /// Whether all that was sent has arrived, and the peer holds a message back that waits for a receive there: only
    /// then does nothing else remain to be done.
    #[inline]
    fn waits_for_receive(&self, shared: &Shared) -> bool {
        shared.config.peer_waits
            && self.window.packets_in_flight() == 0
            && self.window.lost() == 0
            && !self.has_new()
    }

    pub fn post(&mut self, shared: &Shared, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        let was_quiet = self.is_quiet(shared);
        self.sendq.post(wr)?;
        if was_quiet {
            self.silence.begin(now);
        }
        Ok(())
    }

    /// The usable ports of this node or of the peer have changed.
    pub fn ports_changed(&mut self, shared: &Shared, now: Time) {
        if self.is_quiet(shared) {
            self.silence.begin(now);
        }
    }

    /// Whether congestion control allows a packet.
    #[inline]
    fn window_open(&self, clock: Time) -> bool {
        self.flow.allows(clock, self.window.packets_in_flight() == 0)
    }

    /// Whether a new packet may be sent, apart from congestion control.
    #[inline(always)]
    fn has_new(&self) -> bool {
        let window = self.peer_window.min(self.limits.window);
        self.window.next() - self.window.base() < u64::from(window)
            && self.sendq.has_new(self.window.next(), self.limits.max_wimm)
    }

    /// Whether a lost packet may be retransmitted, apart from congestion control.
    #[inline]
    fn has_lost(&self, clock: Time) -> bool {
        self.window.lost() > 0
            && clock >= self.flow.resends_at()
            && self.window.can_resend()
            && self.peer_takes_oldest_lost()
    }

    /// Whether the oldest lost packet lies in the peer's window, which may have shrunk since the packet was sent.
    #[inline]
    fn peer_takes_oldest_lost(&self) -> bool {
        let edge = self.window.base() + u64::from(self.peer_window);
        self.window.next() <= edge || self.window.oldest_lost().is_some_and(|seq| seq < edge)
    }

    #[inline(never)]
    pub fn readiness(&self, shared: &Shared) -> Readiness {
        // While a packet is lost, an answer is outstanding.
        if self.window.lost() == 0 && self.sendq.drained() {
            return if self.is_quiet(shared) { Readiness::Idle } else { Readiness::Pending };
        }
        if (self.has_new() || self.has_lost(shared.clock)) && self.window_open(shared.clock) {
            Readiness::Ready
        } else {
            Readiness::Active
        }
    }

    /// Time at which [`Self::handle_timeout`] must be called. It and [`Self::readiness`] are calls of their own: most
    /// queue pairs that receive have no requestor.
    #[inline(never)]
    pub fn poll_timeout(&self, shared: &Shared) -> Time {
        let answer = self.answer_due(shared);
        match self.flow.spaced_until() {
            Some(until) if until > shared.clock => answer.min(until),
            _ => answer,
        }
    }

    /// While nothing is in flight because the next packet has to wait, the peer has nothing to answer: its silence
    /// counts from a round trip after the end of the wait.
    #[inline]
    fn held_back_until(&self, shared: &Shared) -> Time {
        match self.flow.spaced_until() {
            Some(until) if self.window.packets_in_flight() == 0 => until + shared.rtt.smoothed,
            _ => Time::ZERO,
        }
    }

    /// Time at which something has to be done about the answer to what was sent.
    #[inline]
    fn answer_due(&self, shared: &Shared) -> Time {
        if self.is_quiet(shared) {
            return self.keepalive_due(&shared.rtt);
        }
        let held_back = self.held_back_until(shared);
        if shared.clock < held_back {
            return held_back;
        }
        let due = self.silence.timeout_due(&shared.rtt).min(self.tail_due(shared));
        if self.window.lost() > 0 && self.flow.resends_at() > shared.clock {
            return due.min(self.flow.resends_at());
        }
        due
    }

    /// The next data packet: retransmissions first, oldest first, then new data.
    #[inline(always)]
    pub fn next_data(&mut self, shared: &mut Shared, now: Time, ports: PortSet) -> Option<Transmit> {
        if ports.and(shared.ports_up).is_empty() || !self.window_open(now) {
            return None;
        }
        if self.flow.spaced_until().is_some() && self.window.packets_in_flight() == 0 {
            self.silence.resume(now);
        }
        let again = if self.has_lost(now) { self.window.next_lost() } else { None };
        let (seq, index, part) = if let Some(seq) = again {
            let lost_on = self.window.path(seq);
            let index = shared.paths.select(now, ports, shared.ports_up, Some(lost_on))?;
            self.window.resent(now, seq, index);
            shared.stats.retransmits += 1;
            (seq, index, self.sendq.resend(seq))
        } else {
            if !self.has_new() {
                return None;
            }
            let index = shared.paths.select_first(now, ports, shared.ports_up)?;
            if self.is_quiet(shared) {
                self.silence.begin(now);
            }
            let seq = self.window.sent(now, index);
            (seq, index, self.sendq.take_new(seq))
        };
        Some(self.data_packet(shared, now, seq, index, part, again.is_some()))
    }

    #[inline(always)]
    fn data_packet(
        &mut self,
        shared: &mut Shared,
        now: Time,
        seq: Seq,
        index: EvIndex,
        part: Part,
        again: bool,
    ) -> Transmit {
        let mut packet = write_packet(shared.config.remote_qp, seq, &part);
        if let Body::Write(write) = &mut packet.body {
            write.timestamp = Some(Timestamp { ticks: now.wire_ticks(), tsr: false });
        }
        packet.rtx = again;
        self.flow.on_sent(now, nominal(&packet), again, &shared.config.model());
        // The responder answers few packets of its own accord, so the last one before the sender waits asks for it.
        packet.ack_req = self.flow.wants_feedback() || !(self.has_new() || self.has_lost(now));
        shared.stats.data_packets += 1;
        shared.stats.data_bytes += u64::from(part.len);
        let class = match again {
            _ if !shared.config.caps.trim_nack => TrafficClass::DataNoTrim,
            true => TrafficClass::DataRetransmit,
            false => TrafficClass::Data,
        };
        shared.paths.transmit(packet, index, class, (part.len > 0).then_some(part.payload))
    }

    /// Nominal size of a packet that was sent before.
    fn size_of(&self, shared: &Shared, seq: Seq) -> u32 {
        nominal(&write_packet(shared.config.remote_qp, seq, &self.sendq.resend(seq)))
    }

    /// Ends all posted work requests: the oldest one with `status`, the others flushed.
    pub fn fail(&mut self, shared: &mut Shared, why: Fatal, status: SendStatus, host: &mut dyn Host) {
        shared.fail(why, host);
        let mut status = status;
        while let Some(handle) = self.sendq.complete_oldest() {
            host.send_done(SendDone { handle, status });
            status = SendStatus::FlushErr;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::{PathConfig, PathModel};
    use crate::profile::{EvProfile, PathEntry};
    use crate::time::Span;
    use openmrc_wire::Ev;
    use std::sync::Arc;

    #[test]
    fn what_has_arrived_begins_with_the_first_packet_and_ends_with_the_oldest_outstanding() {
        let profile = EvProfile::new(&[PathEntry { ev: Ev(7), port: 0 }]).unwrap();
        let paths =
            PathConfig { active: 1, ..PathConfig::new(Arc::new(profile), PathModel::new(Span(1), true)) };
        let config = QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1)));
        let mut requestor = Requestor::new(Time(1 << 40), &config);
        let first = requestor.window.next();
        assert_eq!(requestor.all_arrived(&Counters::default()), first..first);
        (0..5).for_each(|_| _ = requestor.window.sent(Time(1 << 40), 0));
        requestor.window.advance(first + 3);
        let stats = Counters { data_packets: 7, retransmits: 2, ..Counters::default() };
        assert_eq!(requestor.all_arrived(&stats), first..first + 3);
    }
}
