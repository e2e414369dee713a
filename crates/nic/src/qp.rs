//! The application's side of queue pairs: states and work requests (spec: API, QueuePair). The engine has its own side.
//!
//! Posting takes a lock of the queue pair and, if the engine sleeps, one system call to wake it. It never waits for the
//! engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_transport::mrc::{EvState, MAX_MESSAGE, QpStats};
use openmrc_transport::node::Place;
use openmrc_transport::{PathEntry, PortSet, Time};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::attr::{QpAttr, QpCap, QpInfo};
use crate::cq::{Completion, CompletionQueue, CqShared, Opcode, Status};
use crate::error::{Error, Result};
use crate::memory::Access;
use crate::qp_state::QpState;
use crate::shared::Shared;
use crate::sys;

/// A piece of registered memory. It has the layout of `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// [`crate::MemoryRegion::lkey`].
    pub lkey: u32,
}

/// The payload of a send.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, which must not change until the send has completed.
    Sges(&'a [Sge]),
    /// Any bytes, at most `max_inline_data`. They are copied while posting.
    Inline(&'a [u8]),
}

/// An RDMA WRITE, with immediate if `imm` is given.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Its payload.
    pub data: SendData<'a>,
    /// Address in the peer's memory.
    pub remote_addr: u64,
    /// Key of the peer's region.
    pub rkey: u32,
    /// Immediate. The message then consumes a receive of the peer.
    pub imm: Option<u32>,
    /// Raise a completion. An error always raises one.
    pub signaled: bool,
    /// Ask for a solicited event at the peer.
    pub solicited: bool,
}

/// A receive: lets the peer send one message with immediate. It has no buffer, as the message names its remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// Identifier that the completion returns.
    pub wr_id: u64,
}

/// A queue pair. Dropping it destroys it.
pub struct QueuePair {
    shared: Arc<Shared>,
    qp: Arc<QpShared>,
    destroyed: AtomicBool,
}

impl QueuePair {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        pd: u32,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Result<Self> {
        let limits = [
            ("max_send_wr", cap.max_send_wr, 1, QpCap::MAX.max_send_wr),
            ("max_recv_wr", cap.max_recv_wr, 0, QpCap::MAX.max_recv_wr),
            ("max_send_sge", cap.max_send_sge, 1, QpCap::MAX.max_send_sge),
            ("max_inline_data", cap.max_inline_data, 0, QpCap::MAX.max_inline_data),
        ];
        for (name, value, min, max) in limits {
            if value < min || value > max {
                return Err(Error::invalid(format!("{name} must be {min} to {max}, not {value}")));
            }
        }
        let (send_cq, recv_cq) = (Arc::clone(&send_cq.queue), Arc::clone(&recv_cq.queue));
        let qp = shared.lock_open()?.create_qp(pd, send_cq, recv_cq, cap, sq_sig_all)?;
        Ok(QueuePair { shared: Arc::clone(shared), qp, destroyed: AtomicBool::new(false) })
    }

    /// Its number, 24 bits: the peer's `dest_qp_num`.
    pub fn qp_num(&self) -> u32 {
        self.qp.num
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.qp.state()
    }

    /// Its capacities.
    pub fn cap(&self) -> QpCap {
        self.qp.cap
    }

    /// Moves it to another state and sets the attributes given.
    ///
    /// # Errors
    /// [`Error::Transition`] if there is no such transition, or it needs other attributes;
    /// [`Error::InvalidArgument`] if a value is out of range. Nothing has changed then.
    pub fn modify(&self, state: QpState, attr: &QpAttr) -> Result<()> {
        self.engine()?.modify_qp(&self.shared, self.qp.place, state, attr)?;
        self.shared.kick();
        Ok(())
    }

    /// State, attributes and capacities.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn query(&self) -> Result<QpInfo> {
        self.engine()?.query_qp(self.qp.place)
    }

    /// Counters of the transport. They are zero before RTR.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<QpStats> {
        self.engine()?.qp_stats(self.qp.place)
    }

    /// Every path it may use, with its state. Empty before RTR.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ev_states(&self) -> Result<Vec<(PathEntry, EvState)>> {
        self.engine()?.qp_ev_states(self.qp.place)
    }

    /// Proves that packets of the path MTU reach the peer, which is in RTR or RTS: sends one on each port, several times
    /// if it is not answered, for up to a second. Nothing must have been sent before. A port on which the peer answers
    /// nothing at all is not counted: it is down, whatever the MTU.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the path MTU and the addresses that only shorter packets reach;
    /// [`Error::Closed`], [`Error::WrongState`].
    pub fn prove_path_mtu(&self) -> Result<()> {
        const FIRST_PAUSE: Duration = Duration::from_millis(10);
        const LONGEST_PAUSE: Duration = Duration::from_millis(160);
        const PATIENCE: Duration = Duration::from_secs(1);
        self.usable("prove_path_mtu", "RTS", |state| state == QpState::Rts)?;
        let place = self.qp.place;
        self.engine()?.begin_mtu_proof(place)?;
        let (begin, mut pause, mut turn) = (Instant::now(), FIRST_PAUSE, 0);
        let progress = loop {
            self.engine()?.continue_mtu_proof(sys::now(), place, turn)?;
            let until = Instant::now() + pause;
            let mut progress = self.engine()?.mtu_progress(place);
            while progress.full != progress.asked && Instant::now() < until {
                std::thread::sleep(Duration::from_micros(200));
                progress = self.engine()?.mtu_progress(place);
            }
            if progress.full == progress.asked || begin.elapsed() > PATIENCE {
                break progress;
            }
            (pause, turn) = ((pause * 2).min(LONGEST_PAUSE), turn + 1);
        };
        let mut engine = self.engine()?;
        let narrow = PortSet(progress.short.0 & !progress.full.0);
        let addresses = engine.peer_addresses(place, narrow);
        engine.end_mtu_proof(place);
        if addresses.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "path_mtu {} does not reach {}: only shorter packets arrive there; use a smaller path_mtu or raise the \
             MTU on the way",
            progress.path_mtu,
            addresses.join(", ")
        )))
    }

    /// Ports it uses now: those that have an address at both ends, are up here, and are not known to be down at the
    /// peer.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ports_up(&self) -> Result<PortSet> {
        self.engine()?.qp_ports(self.qp.place)
    }

    /// Posts sends, all or none. It needs RTS; in ERROR they complete with WR_FLUSH_ERR. In polling mode
    /// ([`crate::Context::polling`]) this thread sends them at once.
    ///
    /// # Errors
    /// [`Error::WrongState`], [`Error::QueueFull`], or [`Error::InvalidArgument`] for a request that cannot be
    /// executed. A scatter list outside of registered memory is no error here: the send completes with LOC_PROT_ERR, as
    /// in ibverbs.
    pub fn post_send(&self, requests: &[SendWr<'_>]) -> Result<()> {
        let qp = &*self.qp;
        let state = self.can_send()?;
        let capacity = qp.cap.max_send_wr as usize;
        {
            let mut pending = qp.pending.lock();
            let outstanding = qp.send_outstanding.load(Ordering::Acquire);
            if outstanding + requests.len() > capacity {
                return Err(Error::QueueFull { queue: "send", qp_num: qp.num, capacity, outstanding });
            }
            let before = pending.len();
            for request in requests {
                match Wqe::new(request, qp) {
                    Ok(wqe) => pending.push_back(wqe),
                    Err(error) => {
                        pending.truncate(before);
                        return Err(error);
                    }
                }
            }
            qp.send_outstanding.fetch_add(requests.len(), Ordering::AcqRel);
        }
        if !requests.is_empty() {
            self.hand_over(state)?;
        }
        Ok(())
    }

    /// Posts sends one after the other up to the first that is refused; returns how many were posted, and why the next
    /// was not. The list must not call the device.
    pub fn post_send_each<'a, E: From<Error>>(
        &self,
        requests: impl Iterator<Item = std::result::Result<SendWr<'a>, E>>,
    ) -> (usize, std::result::Result<(), E>) {
        let qp = &*self.qp;
        let state = match self.can_send() {
            Ok(state) => state,
            Err(error) => return (0, Err(error.into())),
        };
        let capacity = qp.cap.max_send_wr as usize;
        let mut posted = 0;
        let mut result = Ok(());
        {
            let mut pending = qp.pending.lock();
            for request in requests {
                let outstanding = qp.send_outstanding.load(Ordering::Acquire);
                let wqe = match request {
                    Err(error) => Err(error),
                    Ok(_) if outstanding >= capacity => {
                        Err(Error::QueueFull { queue: "send", qp_num: qp.num, capacity, outstanding }.into())
                    }
                    Ok(request) => Wqe::new(&request, qp).map_err(E::from),
                };
                match wqe {
                    Ok(wqe) => pending.push_back(wqe),
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                posted += 1;
                qp.send_outstanding.fetch_add(1, Ordering::AcqRel);
            }
        }
        if posted > 0
            && let Err(error) = self.hand_over(state)
        {
            result = result.and(Err(error.into()));
        }
        (posted, result)
    }

    fn can_send(&self) -> Result<QpState> {
        self.usable("post_send", "RTS or ERROR", |s| matches!(s, QpState::Rts | QpState::Error))
    }

    /// Sends were posted in this state.
    fn hand_over(&self, state: QpState) -> Result<()> {
        if state == QpState::Error {
            self.engine()?.flush_queues(&self.shared, self.qp.place);
        } else {
            self.shared.submit(&self.qp);
            self.shared.drive_if_polling();
        }
        Ok(())
    }

    /// Posts receives, all or none. It needs INIT or later; in ERROR they complete with WR_FLUSH_ERR.
    ///
    /// # Errors
    /// [`Error::WrongState`], [`Error::QueueFull`].
    pub fn post_recv(&self, requests: &[RecvWr]) -> Result<()> {
        let qp = &*self.qp;
        let state = self.can_receive()?;
        let capacity = qp.cap.max_recv_wr as usize;
        {
            let mut receives = qp.receives.lock();
            let outstanding = receives.len();
            if outstanding + requests.len() > capacity {
                return Err(Error::QueueFull { queue: "receive", qp_num: qp.num, capacity, outstanding });
            }
            receives.extend(requests.iter().map(|r| r.wr_id));
        }
        self.receives_posted(state)
    }

    /// Posts receives one after the other up to the first that is refused; returns how many were posted, and why the next
    /// was not. The list must not call the device.
    pub fn post_recv_each<E: From<Error>>(
        &self,
        requests: impl Iterator<Item = std::result::Result<RecvWr, E>>,
    ) -> (usize, std::result::Result<(), E>) {
        let qp = &*self.qp;
        let state = match self.can_receive() {
            Ok(state) => state,
            Err(error) => return (0, Err(error.into())),
        };
        let capacity = qp.cap.max_recv_wr as usize;
        let mut posted = 0;
        let mut result = Ok(());
        {
            let mut receives = qp.receives.lock();
            for request in requests {
                let outstanding = receives.len();
                match request {
                    Ok(_) if outstanding >= capacity => {
                        let qp_num = qp.num;
                        let full = Error::QueueFull { queue: "receive", qp_num, capacity, outstanding };
                        result = Err(full.into());
                        break;
                    }
                    Ok(request) => receives.push_back(request.wr_id),
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
                posted += 1;
            }
        }
        if posted > 0
            && let Err(error) = self.receives_posted(state)
        {
            result = result.and(Err(error.into()));
        }
        (posted, result)
    }

    fn can_receive(&self) -> Result<QpState> {
        self.usable("post_recv", "INIT, RTR, RTS or ERROR", |s| s != QpState::Reset)
    }

    /// Receives were posted in this state.
    fn receives_posted(&self, state: QpState) -> Result<()> {
        if state == QpState::Error || self.qp.state() == QpState::Error {
            self.engine()?.flush_queues(&self.shared, self.qp.place);
        } else if self.qp.needs_receive.load(Ordering::Relaxed) {
            self.shared.submit(&self.qp);
            self.shared.drive_if_polling();
        }
        Ok(())
    }

    /// Changes what the peer may do.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn set_access(&self, access: Access) -> Result<()> {
        self.engine()?.set_qp_access(self.qp.place, access)
    }

    /// In RTS: changes the retries, those that are given; see [`QpAttr`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a value is out of range; [`Error::Closed`].
    pub fn set_retries(
        &self,
        timeout: Option<u8>,
        linear_cnt: Option<u8>,
        exp_cnt: Option<u8>,
    ) -> Result<()> {
        self.engine()?.set_qp_retries(self.qp.place, timeout, linear_cnt, exp_cnt)
    }

    /// Sends that are posted and not completed.
    pub fn send_outstanding(&self) -> usize {
        self.qp.send_outstanding.load(Ordering::Acquire)
    }

    /// With the attribute `keepalive_ms`: for how long the peer has not answered, from the event
    /// [`PeerSilent`](crate::AsyncEvent::PeerSilent) on; `None` while it is heard.
    pub fn silent_for(&self) -> Option<Duration> {
        match self.qp.silent_since.load(Ordering::Acquire) {
            0 => None,
            since => Some(Duration::from_nanos(openmrc_sockets::monotonic_ns().saturating_sub(since))),
        }
    }

    /// Destroys the queue pair. Outstanding work is dropped without completions, and completions that were not polled
    /// are removed. A second call does nothing.
    pub fn destroy(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(mut engine) = self.shared.lock() {
            engine.destroy_qp(self.qp.place);
        }
    }

    /// As [`QueuePair::destroy`], but acknowledgements that are owed are sent first, and for 16 timeouts, at least a
    /// second, its number still answers duplicates and probes of its peer with what has arrived.
    pub fn retire(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(mut engine) = self.shared.lock() {
            engine.retire_qp(&self.shared, self.qp.place);
        }
        self.shared.kick();
    }

    fn usable(
        &self,
        operation: &'static str,
        allowed: &'static str,
        fits: impl Fn(QpState) -> bool,
    ) -> Result<QpState> {
        self.shared.check_process()?;
        if self.destroyed.load(Ordering::Acquire) || self.shared.is_closed() {
            return Err(Error::Closed("the queue pair"));
        }
        let state = self.qp.state();
        if fits(state) {
            Ok(state)
        } else {
            Err(Error::WrongState { operation, qp_num: self.qp.num, state, allowed })
        }
    }

    fn engine(&self) -> Result<parking_lot::MutexGuard<'_, crate::engine::Engine>> {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(Error::Closed("the queue pair"));
        }
        self.shared.lock_open()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// The part of a queue pair that engine and application share.
pub(crate) struct QpShared {
    pub num: u32,
    /// Its place in the node's table.
    pub place: Place,
    pub cap: QpCap,
    pub sq_sig_all: bool,
    pub send_cq: Arc<CqShared>,
    pub recv_cq: Arc<CqShared>,
    state: AtomicU8,
    /// Number of the peer's queue pair.
    pub peer_num: AtomicU32,
    /// Sends that the engine has not taken yet.
    pub pending: Mutex<VecDeque<Wqe>>,
    /// Number of sends that have not completed, including `pending`.
    pub send_outstanding: AtomicUsize,
    /// `wr_id`s of the posted receives.
    pub receives: Mutex<VecDeque<u64>>,
    /// A message with immediate waits for a receive: the engine is told of the next one. Changes with `receives` locked.
    pub needs_receive: AtomicBool,
    /// The engine has been told to look at `pending` and, if a message waits for one, at `receives`.
    pub submitted: AtomicBool,
    /// With keepalive: when the peer was found silent, nanoseconds of `CLOCK_MONOTONIC`; 0 while it is heard.
    silent_since: AtomicU64,
}

impl QpShared {
    pub fn new(
        num: u32,
        place: Place,
        cap: QpCap,
        sq_sig_all: bool,
        send_cq: Arc<CqShared>,
        recv_cq: Arc<CqShared>,
    ) -> Self {
        QpShared {
            num,
            place,
            cap,
            sq_sig_all,
            send_cq,
            recv_cq,
            state: AtomicU8::new(QpState::Reset as u8),
            peer_num: AtomicU32::new(0),
            pending: Mutex::new(VecDeque::with_capacity(cap.max_send_wr as usize)),
            send_outstanding: AtomicUsize::new(0),
            receives: Mutex::new(VecDeque::new()),
            needs_receive: AtomicBool::new(false),
            submitted: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
        }
    }

    pub fn set_silent_since(&self, since: Option<Time>) {
        self.silent_since.store(since.map_or(0, |at| at.0 / 1000), Ordering::Release);
    }

    pub fn state(&self) -> QpState {
        const STATES: [QpState; 4] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
        let value = self.state.load(Ordering::Acquire);
        STATES.into_iter().find(|&s| s as u8 == value).unwrap_or(QpState::Error)
    }

    pub fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Back to RESET: everything outstanding is forgotten, without completions.
    pub fn reset(&self) {
        self.set_state(QpState::Reset);
        self.set_silent_since(None);
        self.pending.lock().clear();
        let mut receives = self.receives.lock();
        receives.clear();
        self.needs_receive.store(false, Ordering::Relaxed);
        drop(receives);
        self.send_outstanding.store(0, Ordering::Release);
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.forget(self.num);
        }
    }

    /// The completion of a send.
    pub fn send_completion(&self, wqe: &Wqe, status: Status) -> Completion {
        Completion {
            wr_id: wqe.wr_id,
            status,
            opcode: Opcode::RdmaWrite,
            byte_len: wqe.len,
            imm_data: None,
            qp_num: self.num,
            src_qp: 0,
        }
    }

    /// The completion of a receive.
    pub fn recv_completion(&self, wr_id: u64, status: Status, byte_len: u32, imm: Option<u32>) -> Completion {
        Completion {
            wr_id,
            status,
            opcode: Opcode::RecvRdmaWithImm,
            byte_len,
            imm_data: imm,
            qp_num: self.num,
            src_qp: self.peer_num.load(Ordering::Relaxed),
        }
    }
}

/// A send, kept until it completes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wqe {
    pub wr_id: u64,
    pub remote_addr: u64,
    pub rkey: u32,
    pub len: u32,
    pub imm: Option<u32>,
    pub signaled: bool,
    pub solicited: bool,
    pub data: WqeData,
}

/// Its payload.
#[derive(Clone, Debug)]
pub(crate) enum WqeData {
    Sges(SmallVec<[Sge; 2]>),
    Inline(SmallVec<[u8; 64]>),
}

impl Default for WqeData {
    fn default() -> Self {
        WqeData::Sges(SmallVec::new())
    }
}

impl Wqe {
    fn new(request: &SendWr<'_>, qp: &QpShared) -> Result<Self> {
        let (data, len) = match request.data {
            SendData::Sges(sges) => {
                if sges.len() > qp.cap.max_send_sge as usize {
                    return Err(Error::invalid(format!(
                        "a scatter list of {} segments: the queue pair takes {}",
                        sges.len(),
                        qp.cap.max_send_sge
                    )));
                }
                let len: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
                // The keys of empty segments are not checked.
                (WqeData::Sges(sges.iter().copied().filter(|s| s.len > 0).collect()), len)
            }
            SendData::Inline(bytes) => {
                if bytes.len() > qp.cap.max_inline_data as usize {
                    return Err(Error::invalid(format!(
                        "{} bytes inline: the queue pair takes {}",
                        bytes.len(),
                        qp.cap.max_inline_data
                    )));
                }
                (WqeData::Inline(SmallVec::from_slice(bytes)), bytes.len() as u64)
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(Error::invalid(format!(
                "a message of {len} bytes: the longest is {MAX_MESSAGE} bytes"
            )));
        }
        Ok(Wqe {
            wr_id: request.wr_id,
            remote_addr: request.remote_addr,
            rkey: request.rkey,
            len: len as u32,
            imm: request.imm,
            signaled: request.signaled || qp.sq_sig_all,
            solicited: request.solicited,
            data,
        })
    }
}
