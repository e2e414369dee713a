//! What the transport asks of the NIC while it works on a packet: placing data in memory, sending feedback, raising
//! completions.

use std::sync::atomic::Ordering;

use openmrc_transport::{
    AccessError, EvEvent, Fatal, Host, NoReceive, RecvDone, SendDone, SendStatus, Time, Transmit,
};
use smallvec::SmallVec;

use super::{Feedback, QpIo};
use crate::cq::Status;
use crate::events::{AsyncEvent, PathEvent};
use crate::memory::{Access, MemoryTable};
use crate::qp::{Wqe, WqeData};
use crate::qp_state::QpState;
use crate::shared::Shared;
use crate::stats::{Cause, Causes};

/// The world of one queue pair during one call.
pub(super) struct QpHost<'a> {
    pub io: &'a mut QpIo,
    pub memory: &'a MemoryTable,
    pub feedback: &'a mut Vec<Feedback>,
    pub causes: &'a mut Causes,
    pub overruns: &'a mut Vec<u32>,
    pub shared: &'a Shared,
    /// Payload of the packet in hand.
    pub payload: &'a [u8],
    pub now: Time,
}

impl Host for QpHost<'_> {
    fn place(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        if len == 0 {
            // A write of nothing names no region (IBTA).
            return Ok(());
        }
        debug_assert_eq!(len as usize, self.payload.len());
        let refusal = if self.io.access.allows(Access::REMOTE_WRITE) {
            match self.memory.place(self.io.pd, rkey, va, self.payload) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal.0,
            }
        } else {
            Cause::NoRemoteWrite
        };
        self.causes.add(refusal, 1);
        Err(AccessError)
    }

    fn transmit(&mut self, transmit: Transmit) {
        let path = self.io.paths.as_ref().and_then(|p| p.numbers.get(usize::from(transmit.path)));
        if let (Some(peer), Some(&path)) = (self.io.peer, path) {
            self.feedback.push(Feedback { peer, path, transmit });
        }
    }

    fn send_done(&mut self, done: SendDone) {
        let status = match (done.status, self.io.failed) {
            (SendStatus::Success, _) => Status::Success,
            (SendStatus::FlushErr, Some((handle, status))) if handle == done.handle => status,
            (SendStatus::FlushErr, _) => Status::WrFlushErr,
            (SendStatus::RemoteAccessErr, _) => Status::RemAccessErr,
            (SendStatus::RemoteOpErr, _) => Status::RemOpErr,
            (SendStatus::RemoteInvalidRequestErr, _) => Status::RemInvReqErr,
            (SendStatus::RetryExceededErr, _) => Status::RetryExcErr,
        };
        debug_assert_eq!(done.handle, self.io.oldest_send, "sends complete in order");
        let wqe = std::mem::take(self.io.send_mut(done.handle));
        self.io.oldest_send = done.handle + 1;
        self.complete_send(&wqe, status);
    }

    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive> {
        let shared = &self.io.shared;
        let wr_id = shared.receives.lock().pop_front().ok_or(NoReceive)?;
        let completion = shared.recv_completion(wr_id, Status::Success, done.byte_len, Some(done.imm));
        if !shared.recv_cq.push(completion) {
            self.overruns.push(shared.recv_cq.id);
        }
        Ok(())
    }

    fn ev_event(&mut self, event: EvEvent) {
        self.shared.path_events.push(PathEvent {
            time_ns: self.now.0 / 1000,
            qp_num: self.io.shared.num,
            profile: self.io.ev_profile,
            ev: event.ev,
            port: event.port,
            change: event.change,
        });
    }

    fn fatal(&mut self, why: Fatal) {
        self.io.shared.set_state(QpState::Error);
        if why != Fatal::Local || self.io.failed.is_some() {
            self.shared.events.push(AsyncEvent::QpFatal { qp_num: self.io.shared.num, reason: why });
        }
    }
}

impl QpHost<'_> {
    fn complete_send(&mut self, wqe: &Wqe, status: Status) {
        let shared = &self.io.shared;
        // The slot is free before its completion can be seen, so that who sees it can post.
        shared.send_outstanding.fetch_sub(1, Ordering::AcqRel);
        if (wqe.signaled || status != Status::Success)
            && !shared.send_cq.push(shared.send_completion(wqe, status))
        {
            self.overruns.push(shared.send_cq.id);
        }
    }

    /// In ERROR: what the transport never saw, and the receives, complete with WR_FLUSH_ERR.
    pub fn flush_queues(&mut self) {
        self.io.flushed = true;
        let pending: SmallVec<[Wqe; 4]> = self.io.shared.pending.lock().drain(..).collect();
        for wqe in &pending {
            self.complete_send(wqe, Status::WrFlushErr);
        }
        let shared = &self.io.shared;
        let receives: SmallVec<[u64; 16]> = shared.receives.lock().drain(..).collect();
        for wr_id in receives {
            if !shared.recv_cq.push(shared.recv_completion(wr_id, Status::WrFlushErr, 0, None)) {
                self.overruns.push(shared.recv_cq.id);
            }
        }
    }
}

/// Whether every byte of a send may be read.
pub(super) fn readable(memory: &MemoryTable, pd: u32, wqe: &Wqe) -> bool {
    match &wqe.data {
        WqeData::Inline(_) => true,
        WqeData::Sges(sges) => sges.iter().all(|s| memory.readable(pd, s.lkey, s.addr, s.len)),
    }
}

/// The pieces in which `len` bytes of a send from `offset` on lie; `None` if a region is no longer registered.
///
/// # Safety
/// The pieces may be used only while the engine's lock is held: deregistration takes it.
#[inline]
pub(super) unsafe fn pieces<'a>(
    memory: &MemoryTable,
    pd: u32,
    wqe: &'a Wqe,
    offset: u32,
    len: u32,
) -> Option<SmallVec<[&'a [u8]; 4]>> {
    let mut out = SmallVec::new();
    match &wqe.data {
        WqeData::Inline(bytes) => out.push(bytes.get(offset as usize..(offset + len) as usize)?),
        WqeData::Sges(sges) => {
            let (mut skip, mut left) = (offset, len);
            for sge in sges {
                if skip >= sge.len {
                    skip -= sge.len;
                    continue;
                }
                let n = left.min(sge.len - skip);
                let addr = sge.addr + u64::from(skip);
                if !memory.readable(pd, sge.lkey, addr, n) {
                    return None;
                }
                // SAFETY: the range lies in a region whose registrant promised that it is readable until it is
                // deregistered, which takes the lock that the caller holds.
                out.push(unsafe {
                    std::slice::from_raw_parts(std::ptr::with_exposed_provenance(addr as usize), n as usize)
                });
                skip = 0;
                left -= n;
                if left == 0 {
                    break;
                }
            }
        }
    }
    Some(out)
}
