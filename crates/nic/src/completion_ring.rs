//! The ring of a completion queue, which engine and application share: bounded, with one notification per arming.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use openmrc_sockets::EventFd;
use parking_lot::Mutex;

use crate::completion::{Completion, Status};
use crate::error::{Error, Result};

/// Called for each notification of a completion queue, with locks of the device held: it must not call the device.
pub type Notify = Arc<dyn Fn() + Send + Sync>;

/// What a completion queue is armed for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Armed {
    #[default]
    No,
    /// Errors, and receives whose sender asked for it.
    Solicited,
    Any,
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
    pub fn new(id: u32, capacity: usize, notify: Option<Notify>) -> Result<Self> {
        let event = EventFd::new().map_err(|e| Error::os("completion queue event", e))?;
        let ring = Ring { completions: VecDeque::with_capacity(capacity.min(4096)), armed: Armed::No };
        Ok(CqShared {
            id,
            capacity: AtomicUsize::new(capacity),
            len: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            ring: Mutex::new(ring),
            event,
            notify,
        })
    }

    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    pub fn set_capacity(&self, capacity: usize) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Completions that wait now.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// The descriptor that is readable from a notification until [`CqShared::acknowledge`].
    pub fn event_fd(&self) -> RawFd {
        self.event.fd()
    }

    /// Makes the descriptor unreadable; returns whether it was readable.
    pub fn acknowledge(&self) -> bool {
        self.event.clear()
    }

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

    pub fn arm(&self, what: Armed) {
        let mut ring = self.ring.lock();
        if !ring.completions.is_empty() || self.overrun.load(Ordering::Acquire) {
            self.raise();
        } else if ring.armed != Armed::Any {
            ring.armed = what;
        }
    }

    pub fn take(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.take_each(max, |completion| out.push(completion))
    }

    #[inline]
    pub fn take_each(&self, max: usize, mut take: impl FnMut(Completion)) -> Result<usize> {
        if self.len() == 0 {
            let overrun = self.has_overrun() && max > 0;
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
