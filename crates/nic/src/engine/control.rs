//! What the application does to queue pairs under the engine's lock: creating, modifying and destroying them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_transport::mrc::{EvState, QpConfig, QpStats, QueuePair};
use openmrc_transport::node::{Slot, linger_time};
use openmrc_transport::{Fatal, PathEntry, PortSet, Time};

use super::Engine;
use super::verbs::QpIo;
use crate::attr::{DEFAULT_ACCESS, DEFAULT_TIMEOUT, QpAttr, QpCap};
use crate::completion_ring::CqShared;
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::memory_table::Access;
use crate::qp_state::{QpInfo, QpState, check_transition};
use crate::shared::Shared;
use crate::sys;
use crate::work_queues::QpShared;

impl Engine {
    /// A queue pair in RESET.
    pub fn create_qp(
        &mut self,
        pd: u32,
        send_cq: Arc<CqShared>,
        recv_cq: Arc<CqShared>,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Result<Arc<QpShared>> {
        let most = self.config.max_qps;
        if self.verbs.count() >= most as usize {
            return Err(Error::invalid(format!("the device has {most} queue pairs, which is its maximum")));
        }
        let slot = self.node.reserve(0).map_err(|full| Error::invalid(full.to_string()))?;
        let num = self.node.number(slot);
        let shared = Arc::new(QpShared::new(num, slot, cap, sq_sig_all, send_cq, recv_cq));
        self.verbs.insert(slot, QpIo::new(Arc::clone(&shared), pd));
        Ok(shared)
    }

    pub(super) fn io(&self, slot: Slot) -> Result<&QpIo> {
        self.verbs.get(slot).ok_or(Error::Closed("the queue pair"))
    }

    fn io_mut(&mut self, slot: Slot) -> Result<&mut QpIo> {
        self.verbs.get_mut(slot).ok_or(Error::Closed("the queue pair"))
    }

    pub fn modify_qp(&mut self, shared: &Shared, slot: Slot, to: QpState, attr: &QpAttr) -> Result<()> {
        let now = sys::now();
        let io = self.io(slot)?;
        check_transition(io.shared.state(), to, attr.mask())?;
        attr.check()?;
        let mut merged = io.attr.clone();
        merged.update(attr);
        match to {
            QpState::Init => self.check_named_profiles(attr)?,
            QpState::Rtr => self.connect_qp(now, slot, &merged)?,
            QpState::Rts => self.start_qp(now, slot, &merged)?,
            QpState::Error => return self.abort_qp(shared, now, slot),
            QpState::Reset => {
                self.reset_qp(slot);
                return Ok(());
            }
        }
        let io = self.io_mut(slot)?;
        io.access = merged.access.unwrap_or(DEFAULT_ACCESS);
        io.shared.peer_num.store(merged.dest_qp_num.unwrap_or_default(), Ordering::Relaxed);
        io.attr = merged;
        io.shared.set_state(to);
        let receive_wait = io.attr.receive_wait();
        self.node.set_receive_wait(slot, receive_wait);
        Ok(())
    }

    pub(super) fn abort_qp(&mut self, shared: &Shared, now: Time, slot: Slot) -> Result<()> {
        self.io(slot)?.shared.set_state(QpState::Error);
        self.with_node(shared, now, |node, host| node.abort(now, slot, Fatal::Local, host));
        self.flush_queues(shared, slot);
        Ok(())
    }

    /// In ERROR: what has been posted since is flushed.
    pub fn flush_queues(&mut self, shared: &Shared, slot: Slot) {
        self.verbs.flush(slot);
        self.end_of_work(shared, sys::now);
    }

    /// Back to RESET: everything outstanding is forgotten, without completions.
    fn reset_qp(&mut self, slot: Slot) {
        self.node.disconnect(slot);
        let Some(io) = self.verbs.get_mut(slot) else { return };
        io.shared.reset();
        io.attr = QpAttr::default();
        io.local_error = None;
        io.sends.clear();
        if let Some(link) = io.link.take() {
            self.egress.net.peers.release(link.peer);
        }
    }

    pub fn destroy_qp(&mut self, slot: Slot) {
        self.reset_qp(slot);
        if self.verbs.remove(slot).is_some() {
            self.node.release(slot);
        }
    }

    /// Destroys a queue pair. If it was connected, its number answers duplicates and probes for a while.
    pub fn retire_qp(&mut self, shared: &Shared, slot: Slot) {
        let Some(io) = self.verbs.get_mut(slot) else { return };
        let connected = io.link.is_some() && matches!(io.shared.state(), QpState::Rtr | QpState::Rts);
        if !connected {
            return self.destroy_qp(slot);
        }
        let timeout = QpConfig::timeout_from_exponent(io.attr.timeout.unwrap_or(DEFAULT_TIMEOUT));
        io.shared.reset();
        io.sends.clear();
        self.verbs.retire(slot);
        let now = sys::now();
        self.with_node(shared, now, |node, host| node.retire(now, slot, linger_time(timeout), host));
        self.egress.send_waiting(now);
    }

    /// What the peer of a queue pair may do.
    pub fn set_qp_access(&mut self, slot: Slot, access: Access) -> Result<()> {
        let io = self.io_mut(slot)?;
        io.access = access;
        io.attr.access = Some(access);
        Ok(())
    }

    /// Changes the retries of a queue pair in RTS.
    pub fn set_qp_retries(
        &mut self,
        slot: Slot,
        timeout: Option<u8>,
        linear_cnt: Option<u8>,
        exp_cnt: Option<u8>,
    ) -> Result<()> {
        let io = self.io_mut(slot)?;
        let retries = QpAttr { timeout, linear_cnt, exp_cnt, ..QpAttr::default() };
        retries.check()?;
        let mut merged = io.attr.clone();
        merged.update(&retries);
        let (_, paths) = self.profiles.of_attributes(&merged)?;
        let config = self.transport_config(slot, &merged, &paths)?;
        config.validate()?;
        self.node.update(slot, |qp| qp.set_retries(&config.requestor));
        self.io_mut(slot)?.attr = merged;
        Ok(())
    }

    pub fn query_qp(&self, slot: Slot) -> Result<QpInfo> {
        let io = self.io(slot)?;
        Ok(QpInfo {
            state: io.shared.state(),
            attr: io.attr.clone(),
            cap: io.shared.cap,
            sq_sig_all: io.shared.sq_sig_all,
        })
    }

    pub fn qp_stats(&self, slot: Slot) -> Result<QpStats> {
        self.io(slot)?;
        Ok(self.node.qp(slot).map(QueuePair::stats).unwrap_or_default())
    }

    pub fn qp_ev_states(&self, slot: Slot) -> Result<Vec<(PathEntry, EvState)>> {
        let Some((qp, link)) = self.node.qp(slot).zip(self.io(slot)?.link.as_ref()) else {
            return Ok(Vec::new());
        };
        let entries = link.paths.profile.entries();
        Ok(qp.ev_states().map(|(path, state)| (entries[usize::from(path)], state)).collect())
    }

    /// A completion queue is used by its queue pairs until they are destroyed.
    pub fn check_cq_unused(&self, id: u32) -> Result<()> {
        let uses = |io: &QpIo| io.shared.send_cq.id == id || io.shared.recv_cq.id == id;
        self.verbs.check_unused(|| format!("completion queue {id}"), uses)
    }

    pub fn qp_ports(&self, slot: Slot) -> Result<PortSet> {
        let peer = self.io(slot)?.link.as_ref().map(|link| link.peer);
        Ok(self.node.own_ports().and(peer.map_or(PortSet::EMPTY, |peer| self.node.peer_ports(peer))))
    }

    /// Completion queues that have overrun take their queue pairs with them.
    pub(super) fn fail_overrun_queues(&mut self, shared: &Shared, now: Time) {
        while let Some(cq) = self.verbs.overruns.pop() {
            shared.events.push(AsyncEvent::CqError { cq });
            for slot in self.verbs.slots() {
                let Some(io) = self.verbs.get(slot) else { continue };
                let uses = io.shared.send_cq.id == cq || io.shared.recv_cq.id == cq;
                if uses && io.shared.state() != QpState::Error {
                    let reason = Fatal::Local;
                    shared.events.push(AsyncEvent::QpFatal { qp_num: io.shared.num, reason });
                    io.shared.set_state(QpState::Error);
                    self.verbs.failed.push(slot);
                    self.with_node(shared, now, |node, host| node.abort(now, slot, reason, host));
                }
            }
        }
    }
}
