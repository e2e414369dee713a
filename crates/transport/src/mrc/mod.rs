//! The MRC queue pair: requestor and responder of one connection (spec: transport, paths, congestion).
//!
//! | file | subject |
//! |---|---|
//! | `config` | what a queue pair is told, and the defaults |
//! | `sendq` | messages posted, and how they are cut into packets |
//! | `window` | what is known of each packet in flight |
//! | `requestor` | sending, and what SACK, NACK and ACK change |
//! | `loss` | when a packet is lost |
//! | `paths`, `ev_state` | which path the next packet takes |
//! | `probes` | asking whether paths, or the peer, are alive |
//! | `responder`, `feedback`, `reverse` | receiving, and what is told of it on which path |
//! | `selector` | other ways to spread packets over paths: UET's, a user's own |
//! | `cc`, `nscc`, `swift` | congestion control |

mod cc;
mod config;
mod ev_state;
mod feedback;
mod loss;
mod nscc;
mod paths;
mod probes;
mod requestor;
mod responder;
mod reverse;
mod selector;
mod sendq;
mod stats;
mod swift;
mod window;

use openmrc_wire::{Aeth, Body, Ev, Mark, Packet};
use prefetch_index::prefetch_index;

pub use cc::{CcAlgorithm, CcFeedback, CcProfile, Congestion, CustomCc, FixedWindow, idle_in_flight};
pub use config::{Capabilities, ConfigError, LASTING_BURST, QpConfig};
pub use ev_state::EvState;
pub use nscc::{Nscc, NsccParams};
pub use selector::{Choice, CustomSelector, LoadBalancing, PathSelector};
pub use sendq::MAX_MESSAGE;
pub use stats::{Counters, QpStats};
pub use swift::{Swift, SwiftParams};

use crate::api::{
    Fatal, Host, PortSet, PostError, Readiness, Received, SendDone, SendStatus, Transmit, Transport,
    WorkRequest,
};
use crate::destination::Pressure;
use crate::profile::PathId;
use crate::time::{Span, Time};
use cc::Controller;
use config::Settings;
use feedback::Report;
use loss::LossDetector;
use paths::Paths;
use probes::Prober;
use responder::{Answer, Responder, Trigger};
use reverse::ReversePaths;
use sendq::SendQueue;
use window::{Flight, Seq, Window};

/// One end of an MRC connection.
pub struct QueuePair {
    config: Settings,
    /// The latest time seen: a clock that steps back stands still here.
    clock: Time,
    error: Option<Fatal>,
    /// As responder that refused: the NAK that answers whatever still comes.
    nak: Option<u8>,
    ports_up: PortSet,

    sendq: SendQueue,
    window: Window,
    loss: LossDetector,
    paths: Paths,
    cc: Controller,
    prober: Prober,
    /// The peer's window, PSNs.
    peer_window: u32,
    /// Last value of the responder's byte counter, units of 256 bytes.
    peer_rcvd: u32,
    /// Nominal bytes of all packets sent, each counted once, modulo 2^32: as much as that counter can tell apart.
    sent_bytes: u32,
    srtt: Span,
    shortest_rtt: Span,
    /// Last sign of life from the peer, or the moment something was first sent to it.
    heard_at: Time,
    /// Last progress, or the last timeout.
    progress_at: Time,
    retries: u8,
    resend_not_before: Time,

    responder: Responder,
    reverse: ReversePaths,
    sack_due: Time,
    acked_completed: u64,
    advertised_mpr: u8,
    receive_pressure: Pressure,

    stats: Counters,
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// A PSN without wrap, so far from zero that nothing ever lies below it.
fn first_seq(psn: openmrc_wire::Psn) -> Seq {
    (1 << 32) + u64::from(psn.get())
}

/// Size of a packet as congestion control counts it: UDP length + 40 (spec: congestion).
fn nominal(packet: &Packet) -> u32 {
    packet.wire_len() as u32 + 8 + 40
}

impl QueuePair {
    /// A queue pair in RTS.
    ///
    /// # Errors
    /// [`ConfigError`] names the attribute that is out of range.
    pub fn new(now: Time, config: &QpConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let window = u32::from(config.mpr) * 128;
        let mut paths = Paths::new(
            &config.paths,
            config.seed,
            config.ev_active,
            config.ev_backup,
            config.ev_min_active,
            config.ev_burst,
        );
        paths.balance(&config.cc.load_balancing, config.seed);
        let first = first_seq(config.sq_psn);
        Ok(QueuePair {
            clock: now,
            error: None,
            nak: None,
            ports_up: PortSet::first(PortSet::MAX_PORTS),
            sendq: SendQueue::new(config.max_send_wr, config.path_mtu, first),
            window: Window::new(window, first),
            loss: LossDetector::new(now, first, Self::first_window(&config.cc)),
            cc: config.cc.controller(),
            prober: Prober::new(config.seed, config.cc.nscc.base_rtt),
            peer_window: window,
            peer_rcvd: 0,
            sent_bytes: 0,
            srtt: config.cc.nscc.base_rtt,
            shortest_rtt: config.cc.nscc.base_rtt,
            heard_at: now,
            progress_at: now,
            retries: 0,
            resend_not_before: Time::ZERO,
            responder: Responder::new(
                first_seq(config.rq_psn),
                u32::from(config.mpr_dest) * 128,
                config.max_wimm_dest,
            ),
            reverse: ReversePaths::new(&paths),
            paths,
            sack_due: Time::NEVER,
            acked_completed: 0,
            advertised_mpr: config.mpr_dest,
            receive_pressure: Pressure::NONE,
            stats: Counters::default(),
            config: config.into(),
        })
    }

    /// RTR to RTS: the requestor begins anew as `config` says, nothing having been posted yet; the responder, which may
    /// have received since RTR, stays as it is.
    ///
    /// # Errors
    /// As [`QueuePair::new`]; nothing has changed then.
    pub fn start_requestor(&mut self, now: Time, config: &QpConfig) -> Result<(), ConfigError> {
        let fresh = QueuePair::new(now, config)?;
        let rtr = core::mem::replace(self, fresh);
        self.error = rtr.error;
        self.nak = rtr.nak;
        self.ports_up = rtr.ports_up;
        self.responder = rtr.responder;
        self.sack_due = rtr.sack_due;
        self.acked_completed = rtr.acked_completed;
        self.advertised_mpr = rtr.advertised_mpr;
        self.receive_pressure = rtr.receive_pressure;
        self.stats = rtr.stats;
        Ok(())
    }

    /// Why it is in ERROR, if it is.
    pub fn error(&self) -> Option<Fatal> {
        self.error
    }

    /// Work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.sendq.len()
    }

    /// Counters and gauges.
    pub fn stats(&self) -> QpStats {
        use cc::Congestion as _;
        QpStats {
            counters: self.stats,
            duplicates_in: self.responder.duplicates,
            refused_in: self.responder.refused,
            trimmed_in: self.responder.trimmed,
            cwnd: self.cc.window(),
            in_flight: self.cc.in_flight(),
            srtt_ns: self.srtt.as_nanos(),
            reorder_window_ns: self.loss.reorder_window().as_nanos(),
        }
    }

    /// Bytes that the controller has to count as in flight: sent, not in the responder's counter, and not taken for lost. For tests:
    /// it looks at every packet of the window. Only as long as there is no error.
    pub fn expected_in_flight(&self) -> i64 {
        let lost =
            (self.window.base()..self.window.next()).filter(|&seq| self.window.state(seq) == Flight::Lost);
        let lost_bytes: u32 =
            if self.window.lost() == 0 { 0 } else { lost.map(|seq| self.size_of(seq)).sum() };
        i64::from(self.sent_bytes.wrapping_sub(self.peer_rcvd << 8).wrapping_sub(lost_bytes) as i32)
    }

    /// As responder: advertise another window, units of 128 PSNs, at most `mpr_dest`. Takes effect where both ends have
    /// dynamic MPR; what was granted before is still accepted.
    pub fn set_advertised_mpr(&mut self, mpr: u8) {
        self.advertised_mpr = mpr.clamp(1, self.config.mpr_dest);
    }

    /// As responder: destination flow control for the SACKs from now on, as [`crate::destination`] computes it.
    pub fn set_receive_pressure(&mut self, pressure: impl Into<Pressure>) {
        let pressure = pressure.into();
        self.receive_pressure = Pressure { penalty: pressure.penalty.min(127), ..pressure };
    }

    /// The controller switches a path off or on again. Says whether this queue pair uses it at all.
    pub fn set_ev_denied(&mut self, ev: Ev, denied: bool) -> bool {
        let found = self.paths.find(ev, None);
        if let Some(index) = found {
            self.paths.set_denied(index, denied);
        }
        found.is_some()
    }

    /// Every path of the queue pair, those in reserve included, and its state.
    pub fn ev_states(&self) -> impl Iterator<Item = (PathId, EvState)> + '_ {
        (0..self.paths.len()).map(|i| (self.paths.path(i as u8), self.paths.state(i as u8)))
    }

    /// Bytes of state: the queue pair itself and what it holds on the heap, without the ring of posted work requests,
    /// which belongs to the application; and of those, what is there only once immediates have been received.
    pub fn state_bytes(&self) -> (usize, usize) {
        let (responder, stash) = self.responder.heap_bytes();
        let heap = self.window.heap_bytes() + self.paths.heap_bytes() + self.reverse.heap_bytes() + responder;
        (size_of::<Self>() + heap, stash)
    }

    /// Bytes each posted work request takes beside that.
    pub const BYTES_PER_WORK_REQUEST: usize = SendQueue::BYTES_PER_ENTRY;

    /// Loads the queue pair into the cache: for a driver of very many that knows which of them comes next.
    #[inline]
    pub fn prefetch(&self) {
        // The crate loads what lies so many elements from the first of a slice, inside it or not.
        let (clock, clock_at) = (core::slice::from_ref(&self.clock), core::mem::offset_of!(Self, clock) / 8);
        for line in 0..size_of::<Self>().div_ceil(CACHE_LINE) {
            prefetch_index(clock, (line * CACHE_LINE / 8).wrapping_sub(clock_at));
        }
    }

    /// Loads what the queue pair holds elsewhere, once it is itself in the cache.
    #[inline]
    pub fn prefetch_heap(&self) {
        self.paths.prefetch();
        if !self.window.is_empty() {
            self.window.prefetch();
            self.sendq.prefetch();
        }
        if self.stats.data_packets_in > 0 {
            self.responder.prefetch();
            self.reverse.prefetch();
        }
    }

    fn advance_clock(&mut self, now: Time) -> Time {
        self.clock = self.clock.max(now);
        self.clock
    }

    /// The peer has given a sign of life.
    fn heard(&mut self, now: Time) {
        self.heard_at = now;
        self.prober.heard();
    }

    /// Whether the peer owes it an answer. As long as it does, sending more brings no deadline forward.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.is_quiet()
    }

    /// Nothing is owed: everything sent has been acknowledged, packets and messages, and what is still to be sent has a port
    /// to leave by.
    fn is_quiet(&self) -> bool {
        self.window.is_empty()
            && self.sendq.completed() == self.sendq.fully_sent()
            && (self.sendq.drained() || !self.ports_up.is_empty())
    }

    /// The peer has something to answer from now on: its silence, and the lack of progress, count from here.
    fn begin_waiting(&mut self, now: Time) {
        self.heard_at = now;
        self.progress_at = now;
        self.retries = 0;
        self.prober.heard();
    }

    /// To ERROR: the oldest work request ends with `status`, the others are flushed.
    fn fail(&mut self, why: Fatal, status: SendStatus, host: &mut dyn Host) {
        if self.error.is_some() {
            return;
        }
        self.error = Some(why);
        host.fatal(why);
        let mut status = status;
        while let Some(handle) = self.sendq.complete_oldest() {
            host.send_done(SendDone { handle, status });
            status = SendStatus::FlushErr;
        }
    }

    fn on_data(&mut self, now: Time, received: &Received, write: &openmrc_wire::Write, host: &mut dyn Host) {
        self.stats.data_packets_in += 1;
        let size = nominal(&received.packet);
        let answer = self.responder.on_data(now, received, write, size, self.config.caps.trim_nack, host);
        let timestamp = write.timestamp.unwrap_or_default();
        match answer {
            Answer::Later => {
                if self.responder.unreported_bytes >= self.config.ack_every_bytes {
                    self.report(now, Mark::None, host);
                } else if self.sack_due == Time::NEVER {
                    self.sack_due = now + self.config.ack_delay;
                }
            }
            Answer::Sack(mark) => self.report(now, mark, host),
            Answer::Nack(reason) => {
                self.send_nack(now, received.packet.psn, received.ev, timestamp, reason, host);
            }
            Answer::Nak(syndrome, why) => {
                self.nak = Some(syndrome);
                self.send_nak(now, syndrome, host);
                self.fail(why, SendStatus::FlushErr, host);
            }
            Answer::Nothing => {}
        }
        if self.error.is_none() {
            self.keep_reverse_fresh(now, host);
        }
    }

    /// Brings a delayed SACK forward that has waited half its time. A driver that has just sent data calls this: the peer is
    /// busy with that data, so this is when feedback costs least.
    pub fn report_early(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.advance_clock(now);
        if self.error.is_none() && self.sack_due <= now + self.config.ack_delay.over(2) {
            self.report(now, Mark::None, host);
        }
    }

    /// A SACK for the last packet that came in.
    fn report(&mut self, now: Time, mark: Mark, host: &mut dyn Host) {
        if let Some(trigger) = self.responder.trigger {
            self.send_report(now, Report { trigger, mark, probe: None }, host);
        }
    }

    fn on_probe(&mut self, now: Time, received: &Received, probe: &openmrc_wire::Probe, host: &mut dyn Host) {
        if !self.ids_match(probe.spdcid, probe.dpdcid) {
            self.stats.invalid += 1;
            return;
        }
        let mark = if received.ecn_ce { Mark::SkipOnce } else { Mark::None };
        let trigger = Trigger {
            psn: window::wire(self.responder.cack()),
            ev: received.ev,
            timestamp: probe.timestamp,
            arrived: now,
        };
        self.send_report(now, Report { trigger, mark, probe: Some(probe.probe_id) }, host);
    }

    /// Whether feedback carries this connection's identifiers.
    fn ids_match(&self, spdcid: u16, dpdcid: u16) -> bool {
        spdcid == self.config.remote_qp as u16 && dpdcid == self.config.local_qp as u16
    }
}

impl Transport for QueuePair {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        let now = self.advance_clock(now);
        if self.error.is_some() {
            return Err(PostError::InError);
        }
        let was_quiet = self.is_quiet();
        self.sendq.post(wr)?;
        if was_quiet {
            self.begin_waiting(now);
        }
        Ok(())
    }

    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut dyn Host) {
        let now = self.advance_clock(now);
        self.reverse.heard_on(received.port);
        if self.error.is_some() {
            // The peer may not have heard the NAK: whatever it still sends is answered with it, one for one.
            if let (Some(syndrome), Body::Write(_) | Body::Probe(_)) = (self.nak, &received.packet.body) {
                self.send_nak(now, syndrome, host);
            }
            return;
        }
        match &received.packet.body {
            Body::Write(write) => self.on_data(now, received, write, host),
            Body::Sack(sack) => self.on_sack(now, sack, host),
            Body::Nack(nack) => self.on_nack(now, nack, host),
            Body::Ack(aeth) => self.on_ack(now, aeth, host),
            Body::Probe(probe) => self.on_probe(now, received, probe, host),
            Body::EndpointRequest(_)
            | Body::EndpointResponse(_)
            | Body::RcWrite(_)
            | Body::RcAck(_)
            | Body::Cnp => self.stats.invalid += 1,
        }
    }

    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.advance_clock(now);
        if self.error.is_some() {
            return;
        }
        if now >= self.sack_due {
            self.report(now, Mark::None, host);
        }
        self.check_timeout(now, host);
        if self.error.is_none() {
            self.probe_tail(now, host);
            self.probe_condemned(now, host);
        }
    }

    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        let now = self.advance_clock(now);
        self.paths.at(now);
        let next = self.next_data(now, ports);
        if next.is_none() {
            self.paths.pause_burst();
        }
        next
    }

    fn poll_timeout(&self) -> Time {
        if self.error.is_some() {
            return Time::NEVER;
        }
        let mut due = self.sack_due.min(self.prober.condemned_due());
        if !self.is_quiet() {
            due = due.min(self.timeout_due()).min(self.tail_due());
            if self.window.lost() > 0 && self.resend_not_before > self.clock {
                due = due.min(self.resend_not_before);
            }
        }
        due
    }

    fn readiness(&self) -> Readiness {
        if self.error.is_some() || (self.is_quiet() && self.sendq.drained()) {
            return Readiness::Idle;
        }
        let lost = self.window.lost() > 0;
        if !lost && self.sendq.drained() {
            return Readiness::Pending;
        }
        if self.may_send_new() || self.may_resend() { Readiness::Ready } else { Readiness::Active }
    }

    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        let now = self.advance_clock(now);
        let up = local.and(peer);
        let came_up = PortSet(up.0 & !self.ports_up.0);
        if self.is_quiet() {
            self.begin_waiting(now);
        }
        self.ports_up = up;
        if !came_up.is_empty() {
            self.paths.ports_came_up(came_up);
            self.probe_soon(now, came_up);
        }
    }

    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        self.advance_clock(now);
        let status = match why {
            Fatal::RetryExceeded => SendStatus::RetryExceededErr,
            _ => SendStatus::FlushErr,
        };
        self.fail(why, status, host);
    }
}

/// The completion status that a NAK means for the message it refuses.
fn nak_status(syndrome: u8) -> SendStatus {
    match syndrome {
        Aeth::NAK_REMOTE_ACCESS => SendStatus::RemoteAccessErr,
        Aeth::NAK_INVALID_REQUEST => SendStatus::RemoteInvalidRequestErr,
        _ => SendStatus::RemoteOpErr,
    }
}
