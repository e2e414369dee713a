//! The application's handle of a queue pair: states and posting (docs/spec/api.md, "Objects").
//!
//! Posting takes a lock of the queue pair and, if the engine sleeps, one system call to wake it. It never waits for the
//! engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openmrc_transport::mrc::{EvState, QpStats};
use openmrc_transport::{PathEntry, PortSet};

use crate::attr::{QpAttr, QpCap};
use crate::cq::CompletionQueue;
use crate::driver::{Driver, Locked};
use crate::error::{Error, Result};
use crate::memory_table::Access;
use crate::qp_state::{QpInfo, QpState};
use crate::sys;
use crate::work_queues::QpShared;
use crate::work_request::{RecvWr, SendList, SendWr, Wqe};

/// A queue pair. Dropping it destroys it.
pub struct QueuePair {
    driver: Arc<Driver>,
    qp: Arc<QpShared>,
    destroyed: AtomicBool,
}

impl QueuePair {
    pub(crate) fn create(
        driver: &Arc<Driver>,
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
        let qp = driver.lock_open()?.create_qp(pd, send_cq, recv_cq, cap, sq_sig_all)?;
        Ok(QueuePair { driver: Arc::clone(driver), qp, destroyed: AtomicBool::new(false) })
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
        self.engine()?.modify_qp(&self.driver.shared, self.qp.slot, state, attr)?;
        self.driver.shared.kick();
        Ok(())
    }

    /// State, attributes and capacities.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn query(&self) -> Result<QpInfo> {
        self.engine()?.query_qp(self.qp.slot)
    }

    /// Counters of the transport. They are zero before RTR.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<QpStats> {
        self.engine()?.qp_stats(self.qp.slot)
    }

    /// Every path it may use, with its state. Empty before RTR.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ev_states(&self) -> Result<Vec<(PathEntry, EvState)>> {
        self.engine()?.qp_ev_states(self.qp.slot)
    }

    /// Switches a path off or on for this queue pair, whatever its profile says; whether it uses the path. Queue pairs
    /// that are connected later are not concerned.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn set_ev_denied(&self, path: PathEntry, denied: bool) -> Result<bool> {
        Ok(self.engine()?.set_qp_ev_denied(self.qp.slot, path, denied))
    }

    /// Proves that packets of the path MTU reach the peer, which is in RTR or RTS: sends one on each port, several
    /// times if it is not answered, for up to a second. Nothing must have been sent before. A port on which the peer
    /// answers nothing at all is not counted: it is down, whatever the MTU, and the peer is asked about it on the
    /// others.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the path MTU and the addresses that only shorter packets reach;
    /// [`Error::Closed`], [`Error::WrongState`].
    pub fn prove_path_mtu(&self) -> Result<()> {
        self.usable("prove_path_mtu", "RTS", |state| state == QpState::Rts)?;
        let (slot, shared) = (self.qp.slot, &self.driver.shared);
        shared.mtu_proofs.expect(slot);
        let begun = self.engine().and_then(|mut engine| engine.prove_mtu(shared, sys::now(), slot));
        if begun.is_err() {
            shared.mtu_proofs.forget(slot);
            return begun;
        }
        // The turns of the proof have deadlines.
        shared.kick();
        let is_gone = || {
            let destroyed = self.destroyed.load(Ordering::Acquire);
            destroyed || shared.is_closed() || self.qp.state() == QpState::Reset
        };
        let progress = self.driver.wait_for(&shared.mtu_proofs, slot, is_gone);
        let progress = progress.ok_or(Error::Closed("the proof"))?;
        // In ERROR it has ended early.
        self.usable("prove_path_mtu", "RTS", |state| state == QpState::Rts)?;
        let addresses = self.engine()?.peer_addresses(slot, progress.narrow());
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
        self.engine()?.qp_ports(self.qp.slot)
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
                match Wqe::new(request, &qp.cap, qp.sq_sig_all) {
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
    pub fn post_send_each<L: SendList<Error: From<Error>>>(
        &self,
        list: &mut L,
    ) -> (usize, std::result::Result<(), L::Error>) {
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
            while let Some(request) = list.next() {
                let outstanding = qp.send_outstanding.load(Ordering::Acquire);
                let wqe = match request {
                    Err(error) => Err(error),
                    Ok(_) if outstanding >= capacity => {
                        Err(Error::QueueFull { queue: "send", qp_num: qp.num, capacity, outstanding }.into())
                    }
                    Ok(request) => Wqe::new(&request, &qp.cap, qp.sq_sig_all).map_err(L::Error::from),
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
            self.engine()?.flush_queues(&self.driver.shared, self.qp.slot);
        } else {
            self.driver.shared.submit(&self.qp);
            self.driver.drive_if_polling();
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

    /// Posts receives one after the other up to the first that is refused; returns how many were posted, and why the
    /// next was not. The list must not call the device.
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
            self.engine()?.flush_queues(&self.driver.shared, self.qp.slot);
        } else if self.qp.needs_receive.load(Ordering::Relaxed) {
            self.driver.shared.submit(&self.qp);
            self.driver.drive_if_polling();
        }
        Ok(())
    }

    /// Changes what the peer may do.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn set_access(&self, access: Access) -> Result<()> {
        self.engine()?.set_qp_access(self.qp.slot, access)
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
        self.engine()?.set_qp_retries(self.qp.slot, timeout, linear_cnt, exp_cnt)
    }

    /// Sends that are posted and not completed.
    pub fn send_outstanding(&self) -> usize {
        self.qp.send_outstanding.load(Ordering::Acquire)
    }

    /// With the attribute `keepalive_ms`: for how long the peer has not answered, from the event
    /// [`PeerSilent`](crate::AsyncEvent::PeerSilent) on; `None` while it is heard.
    pub fn silent_for(&self) -> Option<Duration> {
        match self.qp.silent_since_ns() {
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
        if let Some(mut engine) = self.driver.lock() {
            engine.destroy_qp(self.qp.slot);
        }
    }

    /// As [`QueuePair::destroy`], but acknowledgements that are owed are sent first, and for 16 timeouts, at least a
    /// second, its number still answers duplicates and probes of its peer with what has arrived.
    pub fn retire(&self) {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(mut engine) = self.driver.lock() {
            engine.retire_qp(&self.driver.shared, self.qp.slot);
        }
        self.driver.shared.kick();
    }

    fn usable(
        &self,
        operation: &'static str,
        allowed: &'static str,
        fits: impl Fn(QpState) -> bool,
    ) -> Result<QpState> {
        self.driver.shared.check_process()?;
        if self.destroyed.load(Ordering::Acquire) || self.driver.shared.is_closed() {
            return Err(Error::Closed("the queue pair"));
        }
        let state = self.qp.state();
        if fits(state) {
            Ok(state)
        } else {
            Err(Error::WrongState { operation, qp_num: self.qp.num, state, allowed })
        }
    }

    fn engine(&self) -> Result<Locked<'_>> {
        if self.destroyed.load(Ordering::Acquire) {
            return Err(Error::Closed("the queue pair"));
        }
        self.driver.lock_open()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
