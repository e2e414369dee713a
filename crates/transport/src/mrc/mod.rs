//! The MRC queue pair: requestor and responder of one connection (docs/spec/transport.md, docs/spec/paths.md,
//! docs/spec/congestion.md).
//!
//! | file or folder | subject |
//! |---|---|
//! | `config` | configuration and defaults |
//! | `shared` | state that both roles use |
//! | `requestor` | sending, handling of SACK, NACK and ACK, loss detection |
//! | `responder` | receiving and feedback |
//! | `paths` | the EV set, path selection, path failure and recovery |
//! | `cc` | congestion control |
//! | `retries` | when retries come and end |

mod cc;
mod config;
mod paths;
mod requestor;
mod responder;
mod retries;
mod shared;
mod stats;

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use openmrc_wire::{Body, Probe};
use prefetch_index::prefetch_index;

pub use cc::{
    Ack, CcProfile, Congestion, CustomCc, FixedWindow, Nscc, NsccParams, Penalty, Swift, SwiftParams,
};
pub use config::{
    CanSend, Capabilities, ConfigError, DEFAULT_MPR, DEFAULT_PATH_MTU, DEFAULT_ROTATION_TURNS, LASTING_BURST,
    OutOfWindow, PATH_MTU_RANGE, PSNS_PER_MPR, PathConfig, PathModel, QpConfig, RequestorConfig,
    RequestorOptions, ResponderConfig, ResponderOptions, SackBatching,
};
pub use paths::{Choice, CustomSelector, EvState, LoadBalancing, PathSelector};
pub use requestor::MAX_MESSAGE;
pub use retries::RetrySchedule;
pub use stats::{Counters, PeerCounters, QpStats};

use crate::api::{
    Fatal, Host, MtuQuestion, PortSet, PostError, Pressure, Readiness, Received, SendStatus, Transmit,
    Transport, WorkRequest,
};
use crate::profile::{EvProfile, PathEntry, PathId};
use crate::time::Time;
use requestor::Requestor;
use responder::Responder;
use shared::{PeerIds, Shared};

/// One end of an MRC connection. The memory of each role is allocated when the role is first needed.
#[derive(Serialize, Deserialize)]
pub struct QueuePair {
    shared: Shared,
    /// From RTS on.
    requestor: Option<Box<Requestor>>,
    responder: LazyResponder,
}

/// The responder is allocated when the first data packet or probe arrives: many queue pairs only send.
#[derive(Serialize, Deserialize)]
enum LazyResponder {
    Later(ResponderConfig),
    Made(Box<Responder>),
}

impl LazyResponder {
    #[inline]
    fn make(&mut self, now: Time) -> &mut Responder {
        #[cold]
        fn make(now: Time, config: &ResponderConfig) -> Box<Responder> {
            Box::new(Responder::new(now, config))
        }
        if let LazyResponder::Later(config) = self {
            *self = LazyResponder::Made(make(now, config));
        }
        match self {
            LazyResponder::Made(responder) => responder,
            LazyResponder::Later(_) => unreachable!("made above"),
        }
    }

    #[inline]
    fn get(&self) -> Option<&Responder> {
        match self {
            LazyResponder::Made(responder) => Some(responder),
            LazyResponder::Later(_) => None,
        }
    }

    #[inline]
    fn get_mut(&mut self) -> Option<&mut Responder> {
        match self {
            LazyResponder::Made(responder) => Some(responder),
            LazyResponder::Later(_) => None,
        }
    }
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Loads all of `whole` into the cache. `inside` must be a part of it.
#[inline]
fn prefetch_lines<T>(whole: &T, inside: &Time) {
    // The crate loads the element at an index from the start of a slice; the index may lie outside the slice.
    let elements = core::slice::from_ref(inside);
    let before = (std::ptr::from_ref(inside) as usize).wrapping_sub(std::ptr::from_ref(whole) as usize)
        / size_of::<Time>();
    for line in 0..size_of::<T>().div_ceil(CACHE_LINE) {
        prefetch_index(elements, (line * CACHE_LINE / size_of::<Time>()).wrapping_sub(before));
    }
}

impl QueuePair {
    /// A queue pair that was read from a checkpoint gets back what is not part of one: its paths' profile and the
    /// parameters of its congestion control.
    pub fn rejoin(&mut self, profile: &Arc<EvProfile>, cc: &CcProfile) {
        self.shared.paths.rejoin(profile);
        if let Some(requestor) = &mut self.requestor {
            requestor.rejoin(cc);
        }
    }

    /// A queue pair in RTR: it receives. It can send after [`QueuePair::start_requestor`] has been called.
    ///
    /// # Errors
    /// [`ConfigError`] names the attribute that is out of range.
    pub fn new_responder(now: Time, config: &QpConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let shared = Shared::new(now, config);
        Ok(QueuePair { shared, requestor: None, responder: LazyResponder::Later(config.responder) })
    }

    /// A queue pair in RTS.
    ///
    /// # Errors
    /// As [`QueuePair::new_responder`].
    pub fn new(now: Time, config: &QpConfig) -> Result<Self, ConfigError> {
        let mut qp = Self::new_responder(now, config)?;
        qp.requestor = Some(Box::new(Requestor::new(now, config)));
        Ok(qp)
    }

    /// RTR to RTS: the queue pair can send over the paths of `config`. The responder does not change.
    ///
    /// As [`QueuePair::new`]; nothing has changed in this case.
    pub fn start_requestor(&mut self, now: Time, config: &QpConfig) -> Result<(), ConfigError> {
        config.validate()?;
        let now = self.shared.advance_clock(now);
        self.shared.set_paths(config);
        self.requestor = Some(Box::new(Requestor::new(now, config)));
        Ok(())
    }

    /// Changes timeout and numbers of retries, from the next timeout on; the rest of `config` is not looked at. Without
    /// a requestor it does nothing.
    pub fn set_retries(&mut self, config: &RequestorConfig) {
        if let Some(requestor) = &mut self.requestor {
            requestor.set_retries(config);
        }
    }

    /// The reason for the ERROR state, if the queue pair is in it.
    pub fn error(&self) -> Option<Fatal> {
        self.shared.error
    }

    /// Work requests posted and not completed.
    pub fn outstanding(&self) -> usize {
        self.requestor.as_ref().map_or(0, |requestor| requestor.outstanding())
    }

    /// Counters and gauges.
    pub fn stats(&self) -> QpStats {
        let (cwnd, in_flight, reorder_window) =
            self.requestor.as_ref().map(|requestor| requestor.gauges()).unwrap_or_default();
        let refused = self.responder.get().map(|responder| responder.refused).unwrap_or_default();
        let (peer_swapped_entropy, peer_unknown_entropy) = self.shared.paths.odd_reflections();
        QpStats {
            peer_swapped_entropy,
            peer_unknown_entropy,
            counters: self.shared.stats,
            duplicates_in: refused.duplicates,
            refused_in: refused.beyond_window,
            trimmed_in: refused.trimmed,
            peer_ids_other: self.shared.peer_ids == PeerIds::Other,
            cwnd,
            in_flight,
            srtt_ns: self.shared.rtt.smoothed.as_nanos(),
            reorder_window_ns: reorder_window.as_nanos(),
        }
    }

    /// The number of bytes in flight, computed from the state of every packet of the window: sent, not in the
    /// responder's counter, and not taken for lost. For tests. Valid only while the queue pair is not in ERROR.
    pub fn expected_in_flight(&self) -> i64 {
        self.requestor.as_ref().map_or(0, |requestor| requestor.expected_in_flight(&self.shared))
    }

    /// The controller disables or enables a path. Returns whether this queue pair uses the path.
    pub fn set_ev_denied(&mut self, path: PathEntry, denied: bool) -> bool {
        let found = self.shared.paths.index_of(path);
        if let Some(index) = found {
            self.shared.paths.set_denied(index, denied);
        }
        found.is_some()
    }

    /// The driver's interface has refused a packet of this queue pair's size on a port: its paths are condemned.
    pub fn port_is_narrow(&mut self, now: Time, port: u8, host: &mut dyn Host) {
        let now = self.shared.advance_clock(now);
        self.shared.port_is_narrow(now, port, host);
    }

    /// Every path of the queue pair, in rotation or in reserve, with its state.
    pub fn ev_states(&self) -> impl Iterator<Item = (PathId, EvState)> + '_ {
        let paths = &self.shared.paths;
        (0..paths.len()).map(|i| (paths.path(i as u16), paths.state(i as u16)))
    }

    /// Bytes of state: the queue pair itself and its heap memory, without the ring of posted work requests, which
    /// belongs to the application. The second number is the part that is allocated only when immediates are received.
    pub fn state_bytes(&self) -> (usize, usize) {
        let (responder, stash) = self.responder.get().map_or((0, 0), |responder| {
            let (bytes, stash) = responder.heap_bytes();
            (size_of::<Responder>() + bytes, stash)
        });
        let requestor =
            self.requestor.as_ref().map_or(0, |requestor| size_of::<Requestor>() + requestor.heap_bytes());
        (size_of::<Self>() + requestor + responder + self.shared.heap_bytes(), stash)
    }

    /// Additional bytes per posted work request.
    pub const BYTES_PER_WORK_REQUEST: usize = Requestor::BYTES_PER_WORK_REQUEST;

    /// Loads the queue pair into the cache, for a driver of many queue pairs that knows which one is next.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_lines(self, &self.shared.clock);
    }

    /// Loads the requestor and the responder, after the queue pair itself is in the cache.
    #[inline]
    pub fn prefetch_roles(&self) {
        if let Some(requestor) = &self.requestor {
            prefetch_lines(&**requestor, requestor.prefetch_anchor());
        }
        if let Some(responder) = self.responder.get() {
            prefetch_lines(responder, responder.prefetch_anchor());
        }
        self.shared.paths.prefetch();
    }

    /// Loads the heap memory of requestor and responder, after they are in the cache themselves.
    #[inline]
    pub fn prefetch_heap(&self) {
        if let Some(requestor) = self.requestor.as_ref().filter(|r| r.is_sending()) {
            requestor.prefetch();
        }
        if let Some(responder) = self.responder.get()
            && self.shared.stats.data_packets_in > 0
        {
            responder.prefetch();
            self.shared.reverse.prefetch();
        }
    }

    /// Moves the queue pair to ERROR: the oldest work request ends with `status`, the others are flushed.
    fn fail(&mut self, why: Fatal, status: SendStatus, host: &mut dyn Host) {
        if self.shared.error.is_some() {
            return;
        }
        match &mut self.requestor {
            Some(requestor) => requestor.fail(&mut self.shared, why, status, host),
            None => self.shared.fail(why, host),
        }
    }

    /// Handles a packet that is no data: feedback, or a probe. A call of its own, so that neither it nor
    /// [`Self::on_data`] has to save what only the other one needs.
    #[inline(never)]
    fn on_control(&mut self, now: Time, received: &Received, host: &mut dyn Host) {
        match (&received.packet.body, &mut self.requestor) {
            (Body::Probe(probe), _) => self.on_probe(now, received, probe, host),
            (Body::Sack(sack), Some(requestor)) => {
                requestor.on_sack(&mut self.shared, now, sack, received.packet.rtx, host);
            }
            (Body::Nack(nack), Some(requestor)) => {
                requestor.on_nack(&mut self.shared, now, nack, received.packet.rtx, host);
            }
            (Body::Ack(aeth), Some(requestor)) => {
                requestor.on_ack(&mut self.shared, now, aeth, received.packet.psn, host);
            }
            // Before RTS the queue pair has sent only probes. Their SACKs update paths; other feedback is invalid.
            (Body::Sack(sack), None) => self.shared.on_probe_reply(now, sack, host),
            _ => self.shared.stats.invalid += 1,
        }
    }

    /// A packet has come in ERROR.
    #[cold]
    fn repeat_nak(&mut self, now: Time, received: &Received, host: &mut dyn Host) {
        if matches!(received.packet.body, Body::Write(_) | Body::Probe(_))
            && let Some(responder) = self.responder.get_mut()
        {
            responder.repeat_nak(&mut self.shared, now, &received.packet, host);
        }
    }

    fn on_probe(&mut self, now: Time, received: &Received, probe: &Probe, host: &mut dyn Host) {
        if !self.shared.ids_fit(probe.spdcid, probe.dpdcid) {
            self.shared.stats.invalid += 1;
            return;
        }
        if let Some(requestor) = &mut self.requestor {
            requestor.keepalive_heard(now, host);
        }
        self.responder.make(now).on_probe(&mut self.shared, now, received, probe, host);
    }

    #[inline]
    fn on_data(&mut self, now: Time, received: &Received, write: &openmrc_wire::Write, host: &mut impl Host) {
        let QueuePair { shared, requestor, responder } = self;
        // The header of a trimmed packet is not protected: it may not be what the peer sent.
        if let Some(requestor) = requestor.as_mut().filter(|_| received.trim.is_none()) {
            requestor.keepalive_heard(now, host);
        }
        match responder.make(now).on_data(shared, now, received, write, host) {
            Ok(()) => {
                let sending = requestor.as_ref().is_some_and(|requestor| requestor.is_sending());
                shared.keep_reverse_fresh(now, sending, host);
            }
            Err(why) => self.fail(why, SendStatus::FlushErr, host),
        }
    }
}

impl Transport for QueuePair {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        let now = self.shared.advance_clock(now);
        let Some(requestor) = self.requestor.as_mut().filter(|_| self.shared.error.is_none()) else {
            return Err(if self.shared.error.is_some() { PostError::InError } else { PostError::NotReady });
        };
        requestor.post(&self.shared, now, wr)
    }

    #[inline]
    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut impl Host) {
        let now = self.shared.advance_clock(now);
        self.shared.reverse.heard_on(received.port);
        if self.shared.error.is_some() {
            self.repeat_nak(now, received, host);
        } else if let Body::Write(write) = &received.packet.body {
            self.on_data(now, received, write, host);
        } else {
            self.on_control(now, received, host);
        }
    }

    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.shared.advance_clock(now);
        if self.shared.error.is_some() {
            return;
        }
        if let Some(responder) = self.responder.get_mut() {
            responder.handle_timeout(&mut self.shared, now, host);
        }
        if let Some(requestor) = &mut self.requestor {
            requestor.handle_timeout(&mut self.shared, now, host);
        }
        if self.shared.error.is_none() {
            let is_sending = self.requestor.as_ref().is_some_and(|requestor| requestor.is_sending());
            let arrived =
                self.requestor.as_ref().map_or(0..0, |requestor| requestor.all_arrived(&self.shared.stats));
            self.shared.probe_condemned(now, is_sending, arrived, host);
        }
    }

    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        let now = self.shared.advance_clock(now);
        if self.shared.error.is_some() {
            return None;
        }
        let next = self.requestor.as_mut()?.next_data(&mut self.shared, now, ports);
        if next.is_none() {
            self.shared.paths.pause_burst();
        }
        next
    }

    #[inline]
    fn poll_timeout(&self) -> Time {
        if self.shared.error.is_some() {
            return Time::NEVER;
        }
        let mut due = self.shared.probes.due();
        if let Some(responder) = self.responder.get() {
            due = due.min(responder.sack_due());
        }
        if let Some(requestor) = &self.requestor {
            due = due.min(requestor.poll_timeout(&self.shared));
        }
        due
    }

    #[inline]
    fn readiness(&self) -> Readiness {
        match &self.requestor {
            Some(requestor) if self.shared.error.is_none() => requestor.readiness(&self.shared),
            _ => Readiness::Idle,
        }
    }

    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        let now = self.shared.advance_clock(now);
        if let Some(requestor) = &mut self.requestor {
            requestor.ports_changed(&self.shared, now);
        }
        self.shared.set_ports_up(now, local, peer);
    }

    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        self.shared.advance_clock(now);
        let status = match why {
            Fatal::RetryExceeded => SendStatus::RetryExceededErr,
            _ => SendStatus::FlushErr,
        };
        self.fail(why, status, host);
    }

    fn retire(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.shared.advance_clock(now);
        self.requestor = None;
        if let Some(responder) = self.responder.get_mut().filter(|_| self.shared.error.is_none()) {
            responder.retire(&mut self.shared, now, host);
        }
    }

    fn mtu_question(&self) -> Option<MtuQuestion> {
        let requestor = self.requestor.as_ref().filter(|_| self.shared.error.is_none())?;
        let paths = &self.shared.paths;
        Some(MtuQuestion {
            dest_qp: self.shared.config.remote_qp,
            psn: requestor.arrived_psn(),
            path_mtu: self.shared.config.path_mtu,
            profile: Arc::clone(paths.profile()),
            denied: self
                .ev_states()
                .filter(|&(_, state)| state == EvState::Denied)
                .map(|(path, _)| path)
                .collect(),
            entropy_bits: paths.entropy_bits(),
        })
    }

    #[inline]
    fn is_waiting(&self) -> bool {
        self.requestor.as_ref().is_some_and(|requestor| !requestor.is_quiet(&self.shared))
    }

    fn receives_posted(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.shared.advance_clock(now);
        if let Some(responder) = self.responder.get_mut().filter(|_| self.shared.error.is_none())
            && let Err(why) = responder.receives_posted(&mut self.shared, now, host)
        {
            self.fail(why, SendStatus::FlushErr, host);
        }
    }

    #[inline]
    fn set_receive_pressure(&mut self, pressure: Pressure) {
        self.responder.make(self.shared.clock).set_receive_pressure(pressure);
    }

    /// At most `mpr_dest`. Takes effect if both ends have dynamic MPR; packets within the earlier window are still
    /// accepted.
    fn set_advertised_mpr(&mut self, mpr: u8) {
        self.responder.make(self.shared.clock).set_advertised_mpr(mpr);
    }

    /// Sends a delayed SACK if it has waited for at least half its delay.
    fn report_early(&mut self, now: Time, host: &mut dyn Host) {
        let now = self.shared.advance_clock(now);
        if let Some(responder) = self.responder.get_mut().filter(|_| self.shared.error.is_none()) {
            responder.report_early(&mut self.shared, now, host);
        }
    }
}
