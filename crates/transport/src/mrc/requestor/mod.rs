//! The requestor: what it sends next (spec: transport, "Requestor").
//!
//! | file | subject |
//! |---|---|
//! | `sendq` | messages posted, and how they are cut into packets |
//! | `window`, `send_times`, `resends` | what is known of each packet in flight |
//! | `acks` | what SACK, NACK and ACK change |
//! | `loss` | when a packet is lost |
//! | `silence` | what a silent peer is asked, and when it is given up |
//! | `keepalive` | noticing a peer that is silent while nothing is under way |

mod acks;
mod keepalive;
mod loss;
mod resends;
mod send_times;
mod sendq;
mod silence;
mod window;

use openmrc_wire::{Body, Packet, Timestamp, Write};

pub use sendq::MAX_MESSAGE;
pub(super) use window::{Seq, first_seq, wire};

use self::keepalive::Keepalive;
use self::loss::LossDetector;
use self::sendq::{Part, SendQueue};
use self::silence::Silence;
use self::window::{Flight, Window};
use super::cc::{Flow, NsccParams};
use super::config::{QpConfig, RequestorConfig};
use super::nominal;
use super::paths::EvIndex;
use super::shared::Shared;
use crate::api::{
    Fatal, Host, PortSet, PostError, Readiness, SendDone, SendStatus, TrafficClass, Transmit, WorkRequest,
};
use crate::time::Time;

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
    resend_not_before: Time,
}

/// The part of the configuration that is needed as it goes.
struct Limits {
    /// PSNs in flight.
    window: u32,
    max_wimm: u16,
    burst: u8,
}

impl Requestor {
    /// Bytes each posted work request takes.
    pub const BYTES_PER_WORK_REQUEST: usize = SendQueue::BYTES_PER_ENTRY;

    pub fn new(now: Time, config: &QpConfig) -> Self {
        let RequestorConfig { sq_psn, mpr, max_wimm, max_send_wr, keepalive, .. } = config.requestor;
        let first = first_seq(sq_psn);
        let window = u32::from(mpr) * 128;
        let paths = config.paths.active + config.paths.backup;
        Requestor {
            sendq: SendQueue::new(max_send_wr, config.path_mtu, first),
            window: Window::new(window, first, paths.into()),
            flow: Flow::new(&config.cc, u32::from(config.path_mtu) + NsccParams::OVERHEAD),
            loss: LossDetector::new(now, first, &config.paths.model),
            silence: Silence::new(now, &config.requestor),
            keepalive: keepalive.map(|period| Box::new(Keepalive::new(now, period))),
            peer_window: window,
            resend_not_before: Time::ZERO,
            limits: Limits { window, max_wimm, burst: config.paths.burst },
        }
    }

    /// Work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.sendq.len()
    }

    /// Congestion window, bytes in flight, and the reorder window.
    pub fn gauges(&self) -> (u64, i64, crate::time::Span) {
        (self.flow.window(), self.flow.in_flight(), self.loss.reorder_window())
    }

    /// Bytes that have to be counted as in flight: sent, not in the responder's counter, and not taken for lost. For tests:
    /// it looks at every packet of the window.
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

    /// One of its times: it says where in memory the requestor lies.
    pub fn a_time(&self) -> &Time {
        &self.resend_not_before
    }

    /// Loads what it holds on the heap into the cache.
    #[inline]
    pub fn prefetch(&self) {
        self.window.prefetch();
        self.sendq.prefetch();
    }

    /// Whether something was sent that is not known to have arrived.
    pub fn is_sending(&self) -> bool {
        !self.window.is_empty()
    }

    /// Nothing is owed: everything sent has been acknowledged, packets and messages, and what is still to be sent has a port
    /// to leave by.
    #[inline]
    pub fn is_quiet(&self, shared: &Shared) -> bool {
        self.window.is_empty()
            && self.sendq.completed() == self.sendq.fully_sent()
            && (self.sendq.drained() || !shared.ports_up.is_empty())
    }

    pub fn post(&mut self, shared: &Shared, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        let was_quiet = self.is_quiet(shared);
        self.sendq.post(wr)?;
        if was_quiet {
            self.silence.begin(now);
        }
        Ok(())
    }

    /// The peer or this end has ports again, or has lost some.
    pub fn ports_changed(&mut self, shared: &Shared, now: Time) {
        if self.is_quiet(shared) {
            self.silence.begin(now);
        }
    }

    /// Whether congestion control lets a packet go. With nothing on its way there is nothing to wait for, so one always may:
    /// the byte counter's rounding must not be able to close a window of one packet for ever.
    #[inline]
    fn window_open(&self) -> bool {
        self.flow.is_open() || self.window.flying() == 0
    }

    /// Whether a new packet may be sent if congestion control lets one go.
    #[inline]
    fn has_new(&self) -> bool {
        let window = self.peer_window.min(self.limits.window);
        self.window.next() - self.window.base() < u64::from(window)
            && self.sendq.has_new(self.window.next(), self.limits.max_wimm)
    }

    /// Whether a lost packet may be sent again if congestion control lets one go.
    #[inline]
    fn has_lost(&self, clock: Time) -> bool {
        self.window.lost() > 0 && clock >= self.resend_not_before && self.window.can_resend()
    }

    #[inline]
    pub fn readiness(&self, shared: &Shared) -> Readiness {
        // With a packet lost it is not quiet.
        if self.window.lost() == 0 && self.sendq.drained() {
            return if self.is_quiet(shared) { Readiness::Idle } else { Readiness::Pending };
        }
        if (self.has_new() || self.has_lost(shared.clock)) && self.window_open() {
            Readiness::Ready
        } else {
            Readiness::Active
        }
    }

    /// When [`Self::handle_timeout`] wants to be called.
    #[inline]
    pub fn poll_timeout(&self, shared: &Shared) -> Time {
        if self.is_quiet(shared) {
            return self.keepalive_due(&shared.rtt);
        }
        let due = self.silence.timeout_due(&shared.rtt).min(self.silence.tail_due(shared));
        if self.window.lost() > 0 && self.resend_not_before > shared.clock {
            return due.min(self.resend_not_before);
        }
        due
    }

    /// The next data packet: retransmissions first, oldest first, then new data.
    #[inline(always)]
    pub fn next_data(&mut self, shared: &mut Shared, now: Time, ports: PortSet) -> Option<Transmit> {
        if ports.and(shared.ports_up).is_empty() || !self.window_open() {
            return None;
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
            let index = shared.paths.select(now, ports, shared.ports_up, None)?;
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
            let service_time = shared.config.caps.service_time;
            write.timestamp = Some(Timestamp { ticks: now.wire_ticks(), service_time });
        }
        packet.rtx = again;
        self.flow.on_sent(now, nominal(&packet), again);
        packet.ack_req = self.flow.wants_feedback();
        shared.stats.data_packets += 1;
        shared.stats.data_bytes += u64::from(part.len);
        let class = if again { TrafficClass::DataRetransmit } else { TrafficClass::Data };
        shared.paths.transmit(packet, index, class, (part.len > 0).then_some(part.payload))
    }

    /// Nominal size of a packet that was sent.
    fn size_of(&self, shared: &Shared, seq: Seq) -> u32 {
        nominal(&write_packet(shared.config.remote_qp, seq, &self.sendq.resend(seq)))
    }

    /// Ends everything that was posted: the oldest work request with `status`, the others flushed.
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
