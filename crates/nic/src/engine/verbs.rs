//! The NIC's part of queue pairs: registered memory, posted sends, completions. The protocol is in the node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_transport::node::{PeerId, Slot};
use openmrc_transport::{SendDone, SendStatus, WorkRequest};
use smallvec::SmallVec;

use crate::attr::QpAttr;
use crate::completion::{Completion, Status};
use crate::completion_ring::CqShared;
use crate::error::{Error, Result};
use crate::memory_table::{Access, MemoryTable};
use crate::piece::Piece;
use crate::profiles::engine::Paths;
use crate::qp_state::QpState;
use crate::work_queues::QpShared;
use crate::work_request::{Wqe, WqeData};

/// The application's side of the engine: memory regions and queue pairs.
pub(crate) struct Verbs {
    pub memory: MemoryTable,
    /// By slot of the node's table.
    qps: Vec<Option<Box<QpIo>>>,
    /// Queue pairs there are.
    count: usize,
    /// Queue pairs that went to ERROR: what they have not sent is to be flushed.
    pub failed: Vec<Slot>,
    /// Completion queues that have overrun in this turn.
    pub overruns: Vec<u32>,
    /// Completions of receives that become visible at the end of the turn, when their acknowledgements are sent.
    pub held_receives: Vec<HeldReceive>,
}

/// A completion of a receive that is not visible yet.
pub(crate) struct HeldReceive {
    pub cq: Arc<CqShared>,
    pub completion: Completion,
    pub solicited: bool,
}

/// The NIC's part of one queue pair.
pub(crate) struct QpIo {
    pub shared: Arc<QpShared>,
    pub pd: u32,
    pub attr: QpAttr,
    pub access: Access,
    /// Once it is connected.
    pub link: Option<QpLink>,
    pub sends: SendRing,
    /// A send that failed here, and how: its completion says so instead of "flushed".
    pub local_error: Option<(u64, Status)>,
    /// The application has destroyed it; it still answers its peer.
    pub is_retired: bool,
}

/// Where a connected queue pair sends.
pub(crate) struct QpLink {
    pub peer: PeerId,
    pub paths: Paths,
    /// The number of the EV profile that the paths are of.
    pub profile: u16,
}

/// Sends that the transport has, by number.
pub(crate) struct SendRing {
    ring: Box<[Wqe]>,
    /// Number of the next send, and of the oldest that has not completed.
    pub next: u64,
    oldest: u64,
}

impl SendRing {
    pub fn new(capacity: u32) -> Self {
        let ring = std::iter::repeat_with(Wqe::default).take((capacity as usize).next_power_of_two());
        SendRing { ring: ring.collect(), next: 0, oldest: 0 }
    }

    fn slot(&self, number: u64) -> usize {
        (number & (self.ring.len() as u64 - 1)) as usize
    }

    /// A send that has not completed.
    #[inline]
    pub fn get(&self, number: u64) -> &Wqe {
        &self.ring[self.slot(number)]
    }

    /// Adds the next send.
    pub fn push(&mut self, wqe: Wqe) {
        let slot = self.slot(self.next);
        self.ring[slot] = wqe;
        self.next += 1;
    }

    /// Removes the oldest send, which has this number.
    pub fn pop(&mut self, number: u64) -> Wqe {
        debug_assert_eq!(number, self.oldest, "sends complete in order");
        self.oldest = number + 1;
        let slot = self.slot(number);
        std::mem::take(&mut self.ring[slot])
    }

    pub fn clear(&mut self) {
        self.ring.iter_mut().for_each(|wqe| *wqe = Wqe::default());
        (self.next, self.oldest) = (0, 0);
    }
}

impl QpIo {
    pub fn new(shared: Arc<QpShared>, pd: u32) -> Self {
        QpIo {
            pd,
            attr: QpAttr::default(),
            access: Access::REMOTE_WRITE,
            link: None,
            sends: SendRing::new(shared.cap.max_send_wr),
            local_error: None,
            is_retired: false,
            shared,
        }
    }

    fn complete_send(&self, wqe: &Wqe, status: Status, overruns: &mut Vec<u32>) {
        let shared = &self.shared;
        // The slot is freed before the completion is visible, so that the application can post when it sees it.
        shared.send_outstanding.fetch_sub(1, Ordering::AcqRel);
        if (wqe.signaled || status != Status::Success)
            && !shared.send_cq.push(shared.send_completion(wqe, status))
        {
            overruns.push(shared.send_cq.id);
        }
    }

    /// In ERROR: what the transport never saw, and the receives, complete with WR_FLUSH_ERR.
    fn flush(&self, overruns: &mut Vec<u32>) {
        let pending: SmallVec<[Wqe; 4]> = self.shared.pending.lock().drain(..).collect();
        for wqe in &pending {
            self.complete_send(wqe, Status::WrFlushErr, overruns);
        }
        let shared = &self.shared;
        let receives: SmallVec<[u64; 16]> = shared.receives.lock().drain(..).collect();
        for wr_id in receives {
            if !shared.recv_cq.push(shared.recv_completion(wr_id, Status::WrFlushErr, 0, None)) {
                overruns.push(shared.recv_cq.id);
            }
        }
    }
}

impl Verbs {
    pub fn new() -> Self {
        Verbs {
            memory: MemoryTable::new(),
            qps: Vec::new(),
            count: 0,
            failed: Vec::new(),
            overruns: Vec::new(),
            held_receives: Vec::new(),
        }
    }

    /// Queue pairs there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Slots that may have a queue pair.
    pub fn slots(&self) -> std::ops::Range<Slot> {
        0..self.qps.len() as Slot
    }

    pub fn insert(&mut self, slot: Slot, io: QpIo) {
        let slot = slot as usize;
        if slot >= self.qps.len() {
            self.qps.resize_with(slot + 1, || None);
        }
        self.count += 1;
        self.qps[slot] = Some(Box::new(io));
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Box<QpIo>> {
        let gone = self.qps.get_mut(slot as usize).and_then(Option::take);
        self.count -= usize::from(gone.as_ref().is_some_and(|io| !io.is_retired));
        gone
    }

    /// The application has destroyed a queue pair, which still answers its peer.
    pub fn retire(&mut self, slot: Slot) {
        if let Some(io) = self.get_mut(slot).filter(|io| !io.is_retired) {
            io.is_retired = true;
            self.count -= 1;
        }
    }

    #[inline]
    pub fn get(&self, slot: Slot) -> Option<&QpIo> {
        self.qps.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut QpIo> {
        self.qps.get_mut(slot as usize)?.as_deref_mut()
    }

    /// # Errors
    /// [`Error::Busy`] if a queue pair, other than those that only answer their peers, uses something.
    pub fn check_unused(&self, what: impl Fn() -> String, uses: impl Fn(&QpIo) -> bool) -> Result<()> {
        match self.iter().find(|(_, io)| !io.is_retired && uses(io)) {
            None => Ok(()),
            Some((_, io)) => Err(Error::Busy(format!(
                "{} is used by queue pair 0x{:06x}: close that first",
                what(),
                io.shared.num
            ))),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &QpIo)> {
        self.qps.iter().enumerate().filter_map(|(slot, io)| Some((slot as Slot, io.as_deref()?)))
    }

    /// Gives newly posted sends to `post`, until it takes no more. Returns whether one of them failed here; it
    /// completes with an error after those before it.
    pub fn post_pending(
        &mut self,
        slot: Slot,
        taken: &mut VecDeque<Wqe>,
        mut post: impl FnMut(WorkRequest) -> bool,
    ) -> bool {
        let Verbs { memory, qps, failed, .. } = self;
        let Some(io) = qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return false };
        // Cleared before the queue is read: a later post sets it again.
        io.shared.submitted.store(false, Ordering::Release);
        match io.shared.state() {
            QpState::Rts => {}
            // Only receives were posted.
            QpState::Init | QpState::Rtr => return false,
            QpState::Reset | QpState::Error => {
                // Posted just as it went to ERROR: flushed like what was there before.
                failed.push(slot);
                return false;
            }
        }
        // The whole queue is taken, so that posting threads do not wait while the transport works.
        std::mem::swap(&mut *io.shared.pending.lock(), taken);
        while let Some(wqe) = taken.pop_front() {
            let request = WorkRequest {
                handle: io.sends.next,
                len: wqe.len,
                remote_va: wqe.remote_addr,
                rkey: wqe.rkey,
                imm: wqe.imm,
                solicited: wqe.solicited,
            };
            let readable = readable(memory, io.pd, &wqe);
            if !readable {
                io.local_error = Some((io.sends.next, Status::LocProtErr));
            }
            if !post(request) {
                // The rings are equally large, so this is a queue pair in ERROR: flushed with the rest.
                taken.push_front(wqe);
                break;
            }
            io.sends.push(wqe);
            if !readable {
                break;
            }
        }
        if !taken.is_empty() {
            let mut pending = io.shared.pending.lock();
            while let Some(wqe) = taken.pop_back() {
                pending.push_front(wqe);
            }
        }
        io.local_error.is_some()
    }

    /// Whether a message of this queue pair has waited for a receive, and receives were posted since.
    pub fn take_awaited_receive(&self, slot: Slot) -> bool {
        let Some(io) = self.get(slot) else { return false };
        let receives = io.shared.receives.lock();
        !receives.is_empty() && io.shared.needs_receive.swap(false, Ordering::Relaxed)
    }

    /// A send has ended.
    pub fn send_done(&mut self, slot: Slot, done: SendDone) {
        let Verbs { qps, overruns, .. } = self;
        let Some(io) = qps.get_mut(slot as usize).and_then(Option::as_deref_mut) else { return };
        let status = match (done.status, io.local_error) {
            (SendStatus::Success, _) => Status::Success,
            (SendStatus::FlushErr, Some((handle, status))) if handle == done.handle => status,
            (SendStatus::FlushErr, _) => Status::WrFlushErr,
            (SendStatus::RemoteAccessErr, _) => Status::RemAccessErr,
            (SendStatus::RemoteOpErr, _) => Status::RemOpErr,
            (SendStatus::RemoteInvalidRequestErr, _) => Status::RemInvReqErr,
            (SendStatus::RetryExceededErr, _) => Status::RetryExcErr,
        };
        let wqe = io.sends.pop(done.handle);
        io.complete_send(&wqe, status, overruns);
    }

    /// The receives of this turn become visible.
    #[inline]
    pub fn release_receives(&mut self) {
        for HeldReceive { cq, completion, solicited } in self.held_receives.drain(..) {
            if !cq.push_solicited(completion, solicited) {
                self.overruns.push(cq.id);
            }
        }
    }

    /// In ERROR: what was posted and the transport never saw is flushed.
    pub fn flush(&mut self, slot: Slot) {
        let Verbs { qps, overruns, .. } = self;
        if let Some(io) = qps.get(slot as usize).and_then(Option::as_deref) {
            io.flush(overruns);
        }
    }

    /// The same for every queue pair that has gone to ERROR.
    #[inline]
    pub fn flush_failed(&mut self) {
        while let Some(slot) = self.failed.pop() {
            self.flush(slot);
        }
    }

    /// Forgets everything; the owners of the memory regions are returned, to be dropped without locks held.
    #[must_use]
    pub fn clear(&mut self) -> Vec<Box<dyn std::any::Any + Send>> {
        self.qps.clear();
        self.count = 0;
        self.memory.clear()
    }
}

/// Whether every byte of a send may be read.
fn readable(memory: &MemoryTable, pd: u32, wqe: &Wqe) -> bool {
    match &wqe.data {
        WqeData::Inline(_) => true,
        WqeData::Sges(sges) => sges.iter().all(|s| memory.readable(pd, s.lkey, s.addr, s.len)),
    }
}

/// The pieces in which `len` bytes of a send from `offset` on lie; `None` if a region is no longer registered, or its
/// file has become shorter.
///
/// # Safety
/// The pieces may be used only while the engine's lock is held: deregistration takes it.
#[inline]
pub(super) unsafe fn pieces(
    memory: &MemoryTable,
    pd: u32,
    wqe: &Wqe,
    offset: u32,
    len: u32,
) -> Option<SmallVec<[Piece; 4]>> {
    let mut out = SmallVec::new();
    match &wqe.data {
        WqeData::Inline(bytes) => {
            let bytes = bytes.get(offset as usize..(offset + len) as usize)?;
            // SAFETY: the request keeps them until it has completed.
            out.push(unsafe { Piece::of_memory(bytes.as_ptr(), bytes.len()) });
        }
        WqeData::Sges(sges) => {
            let (mut skip, mut left) = (offset, len);
            for sge in sges {
                if skip >= sge.len {
                    skip -= sge.len;
                    continue;
                }
                let n = left.min(sge.len - skip);
                let addr = sge.addr + u64::from(skip);
                out.push(memory.source(pd, sge.lkey, addr, n)?);
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
