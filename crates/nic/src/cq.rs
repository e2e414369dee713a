//! Completion queues: bounded, polled, with a descriptor to wait on (spec: API, CompletionQueue).
//!
//! To wait without losing a wake-up: [`CompletionQueue::arm`], poll until empty, wait for the descriptor, then
//! [`CompletionQueue::acknowledge`]. Arming a queue that is not empty makes the descriptor readable at once.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use openmrc_sockets::{EventFd, wait_readable};
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::shared::{Polling, Shared};

/// Largest capacity of a queue.
pub const MAX_CQE: usize = 1 << 22;

/// How a work request ended, as in ibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// It succeeded.
    Success,
    /// The message is longer than the queue pair can send.
    LocLenErr,
    /// A scatter list named memory that is not registered, or not for this queue pair.
    LocProtErr,
    /// It was not executed, because the queue pair went to ERROR before.
    WrFlushErr,
    /// The peer refused access to its memory.
    RemAccessErr,
    /// The peer could not execute it: it had no receive posted, or too many immediates in flight.
    RemOpErr,
    /// The peer found the request invalid.
    RemInvReqErr,
    /// The peer did not answer within the retries.
    RetryExcErr,
}

impl Status {
    /// Its name in ibverbs, without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Success => "SUCCESS",
            Status::LocLenErr => "LOC_LEN_ERR",
            Status::LocProtErr => "LOC_PROT_ERR",
            Status::WrFlushErr => "WR_FLUSH_ERR",
            Status::RemAccessErr => "REM_ACCESS_ERR",
            Status::RemOpErr => "REM_OP_ERR",
            Status::RemInvReqErr => "REM_INV_REQ_ERR",
            Status::RetryExcErr => "RETRY_EXC_ERR",
        }
    }
}

/// The kind of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opcode {
    /// A send: RDMA WRITE, with or without immediate.
    RdmaWrite,
    /// A receive: a message with immediate has arrived.
    RecvRdmaWithImm,
}

impl Opcode {
    /// Its name in ibverbs, without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Opcode::RdmaWrite => "RDMA_WRITE",
            Opcode::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
        }
    }
}

/// The end of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The application's identifier of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// Its kind.
    pub opcode: Opcode,
    /// Bytes of the message.
    pub byte_len: u32,
    /// The immediate of a receive.
    pub imm_data: Option<u32>,
    /// The queue pair.
    pub qp_num: u32,
    /// Of a receive: the peer's queue pair.
    pub src_qp: u32,
}

/// Told of each notification that a completion queue raises. It is called with locks of the device held, so it must not
/// call the device.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What a completion queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Armed {
    #[default]
    No,
    /// Errors, and receives whose sender asked for it.
    Solicited,
    Any,
}

/// A completion queue. It lives as long as this handle or any queue pair that uses it.
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Arc<Shared>,
    pub(crate) queue: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        id: u32,
        capacity: usize,
        notify: Option<Notify>,
    ) -> Result<Self> {
        if capacity == 0 || capacity > MAX_CQE {
            return Err(Error::invalid(format!(
                "a completion queue holds 1 to {MAX_CQE} completions, not {capacity}"
            )));
        }
        let event = EventFd::new().map_err(|e| Error::os("completion queue event", e))?;
        let ring = Ring { completions: VecDeque::with_capacity(capacity.min(4096)), armed: Armed::No };
        let queue = CqShared {
            id,
            capacity: AtomicUsize::new(capacity),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            ring: Mutex::new(ring),
            event,
            notify,
        };
        Ok(CompletionQueue { shared: Arc::clone(shared), queue: Arc::new(queue) })
    }

    /// Whether this process is the one that opened the device.
    ///
    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.shared.check_process()
    }

    /// Number of this queue, which asynchronous events name.
    pub fn handle(&self) -> u32 {
        self.queue.id
    }

    /// Its capacity.
    pub fn capacity(&self) -> usize {
        self.queue.capacity.load(Ordering::Relaxed)
    }

    /// Changes its capacity. Completions that wait stay, also if there are more of them.
    pub fn set_capacity(&self, capacity: usize) {
        self.queue.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Completions that wait now.
    pub fn len(&self) -> usize {
        self.queue.len.load(Ordering::Acquire)
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes up to `max` completions, oldest first, and appends them to `out`; returns how many. In polling mode
    /// ([`crate::Context::polling`]) it first drives the engine if the queue is empty.
    ///
    /// # Errors
    /// [`Error::CqOverrun`] if the queue has overrun, after all completions that it held; [`Error::OtherProcess`].
    pub fn poll_into(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.check_process()?;
        if self.is_empty() {
            self.shared.drive_in_vain();
        }
        self.queue.take(max, out)
    }

    /// Removes up to `max` completions, oldest first, and gives each to `take`, which must not call the device; returns
    /// how many.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_into`].
    #[inline]
    pub fn poll_each(&self, max: usize, take: impl FnMut(Completion)) -> Result<usize> {
        self.check_process()?;
        if self.is_empty() {
            self.shared.drive_in_vain();
        }
        self.queue.take_each(max, take)
    }

    /// Polling mode of the device; see [`crate::Context::polling`].
    #[must_use]
    pub fn polling(&self) -> Polling {
        Polling::new(&self.shared)
    }

    /// As [`CompletionQueue::poll_into`], into a new list.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_into`].
    pub fn poll(&self, max: usize) -> Result<Vec<Completion>> {
        let mut out = Vec::new();
        self.poll_into(max, &mut out)?;
        Ok(out)
    }

    /// The descriptor that becomes readable once per [`CompletionQueue::arm`]. The queue keeps it.
    pub fn event_fd(&self) -> RawFd {
        self.queue.event.fd()
    }

    /// Lets the descriptor become readable at the next completion, or at once if one waits. In the child of a fork it
    /// does nothing.
    pub fn arm(&self) {
        if self.shared.is_inherited() {
            return;
        }
        self.shared.stop_driving();
        self.queue.arm(Armed::Any);
    }

    /// As [`CompletionQueue::arm`], but only errors count, and receives whose sender asked for a solicited event. If
    /// anything waits, the notification comes at once.
    pub fn arm_solicited(&self) {
        if !self.shared.is_inherited() {
            self.shared.stop_driving();
            self.queue.arm(Armed::Solicited);
        }
    }

    /// Makes the descriptor unreadable; returns whether it was readable.
    pub fn acknowledge(&self) -> bool {
        self.queue.event.clear()
    }

    /// Arms the queue and sleeps until a completion arrives, the queue overruns, or `timeout` has passed. Returns
    /// whether polling would return a completion or an error.
    pub fn wait(&self, timeout: std::time::Duration) -> bool {
        self.arm();
        if !self.is_empty() || self.shared.is_inherited() {
            self.acknowledge();
            return true;
        }
        wait_readable(self.event_fd(), timeout);
        self.acknowledge();
        !self.is_empty() || self.queue.overrun.load(Ordering::Acquire)
    }
}

/// The part of a completion queue that engine and application share.
pub(crate) struct CqShared {
    pub id: u32,
    capacity: AtomicUsize,
    len: AtomicUsize,
    /// Set once, under the lock of `ring`.
    overrun: AtomicBool,
    ring: Mutex<Ring>,
    event: EventFd,
    notify: Option<Notify>,
}

struct Ring {
    completions: VecDeque<Completion>,
    armed: Armed,
}

impl CqShared {
    /// Adds a completion. Returns `false` when the queue overruns, the first time only.
    #[inline]
    pub fn push(&self, completion: Completion) -> bool {
        self.push_solicited(completion, false)
    }

    /// The same for a receive whose sender asked for a solicited event.
    #[inline]
    pub fn push_solicited(&self, completion: Completion, solicited: bool) -> bool {
        let mut ring = self.ring.lock();
        if self.overrun.load(Ordering::Relaxed) {
            return true;
        }
        let overrun = ring.completions.len() >= self.capacity.load(Ordering::Relaxed);
        if overrun {
            self.overrun.store(true, Ordering::Release);
        } else {
            ring.completions.push_back(completion);
            self.len.store(ring.completions.len(), Ordering::Release);
        }
        let counts = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited || completion.status != Status::Success || overrun,
            Armed::Any => true,
        };
        if counts {
            ring.armed = Armed::No;
            self.raise();
        }
        !overrun
    }

    fn raise(&self) {
        match &self.notify {
            Some(notify) => notify(),
            None => self.event.signal(),
        }
    }

    fn arm(&self, what: Armed) {
        let mut ring = self.ring.lock();
        if !ring.completions.is_empty() || self.overrun.load(Ordering::Acquire) {
            self.raise();
        } else if ring.armed != Armed::Any {
            ring.armed = what;
        }
    }

    fn take(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.take_each(max, |completion| out.push(completion))
    }

    #[inline]
    fn take_each(&self, max: usize, mut take: impl FnMut(Completion)) -> Result<usize> {
        if self.len.load(Ordering::Acquire) == 0 {
            let overrun = self.overrun.load(Ordering::Acquire) && max > 0;
            return if overrun { Err(Error::CqOverrun(self.id)) } else { Ok(0) };
        }
        let mut ring = self.ring.lock();
        let n = ring.completions.len().min(max);
        ring.completions.drain(..n).for_each(&mut take);
        self.len.store(ring.completions.len(), Ordering::Release);
        Ok(n)
    }

    /// Removes the completions of a destroyed queue pair, as its number may be used again.
    pub fn forget(&self, qp_num: u32) {
        let mut ring = self.ring.lock();
        ring.completions.retain(|c| c.qp_num != qp_num);
        self.len.store(ring.completions.len(), Ordering::Release);
    }
}
