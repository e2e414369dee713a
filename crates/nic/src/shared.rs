//! What the objects of a device, its engine and the threads that drive it share: wake-ups, posted work, events.
//!
//! It does not know the engine, which reads it; [`crate::driver`] has the engine behind its lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use openmrc_sockets::{Epoll, EventFd, Interest, Process};
use openmrc_transport::Span;
use parking_lot::{Condvar, Mutex};

use crate::config::DeviceConfig;
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, Events, PathEvent};
use crate::handover::Handover;
use crate::work_queues::QpShared;

/// What the engine's epoll set reports: the receiving socket of port p with token p, and these.
pub(crate) const TOKEN_WAKE: u64 = 100;
pub(crate) const TOKEN_LINKS: u64 = 101;
/// A further receiving socket: [`crate::config::MAX_UDP_PORTS`] for each port.
pub(crate) const TOKEN_MORE: u64 = 200;
/// A sending socket that has become writable: its index on top.
pub(crate) const TOKEN_TX: u64 = 1000;

/// Largest number of events kept while nobody takes them.
const EVENTS_KEPT: usize = 4096;

/// What all objects of a device share with its engine.
pub(crate) struct Shared {
    pub config: Arc<DeviceConfig>,
    /// The process that has the engine's thread.
    process: Process,
    pub epoll: Epoll,
    pub wake: EventFd,
    pub events: Events<AsyncEvent>,
    pub path_events: Events<PathEvent>,
    pub probes: ProbeWaits,
    submissions: Mutex<Vec<u32>>,
    pub handover: Handover,
    closed: AtomicBool,
    next_handle: AtomicU32,
}

impl Shared {
    pub fn new(config: &DeviceConfig) -> Result<Self> {
        let epoll = Epoll::new().map_err(|e| Error::os("epoll", e))?;
        let wake = EventFd::new().map_err(|e| Error::os("wake-up event", e))?;
        epoll.add(wake.fd(), Interest::Readable, TOKEN_WAKE).map_err(|e| Error::os("wake-up event", e))?;
        Ok(Shared {
            epoll,
            wake,
            events: Events::new(EVENTS_KEPT)?,
            path_events: Events::new(EVENTS_KEPT)?,
            probes: ProbeWaits::default(),
            submissions: Mutex::new(Vec::new()),
            handover: Handover::default(),
            closed: AtomicBool::new(false),
            next_handle: AtomicU32::new(1),
            process: Process::current(),
            config: Arc::new(config.clone()),
        })
    }

    /// The context is closed from now on.
    pub fn mark_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether this process is a child that a fork made of the one that opened the device. Its threads are not here,
    /// and its locks may be held for ever: nothing of it may be used.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        !self.process.is_current()
    }

    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        if self.is_inherited() { Err(Error::OtherProcess) } else { Ok(()) }
    }

    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.is_inherited()
    }

    /// A number for a new object.
    pub fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// A queue pair has newly posted sends.
    pub fn submit(&self, qp: &QpShared) {
        if qp.submitted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.submissions.lock().push(qp.place);
        if self.handover.post() {
            self.wake.signal();
        }
    }

    /// Whether any queue pair has newly posted sends.
    #[inline]
    pub fn any_submitted(&self) -> bool {
        self.handover.is_posted()
    }

    /// Queue pairs with newly posted sends, moved to `into`, which is empty.
    pub fn take_submissions(&self, into: &mut Vec<u32>) {
        self.handover.take_posted();
        std::mem::swap(&mut *self.submissions.lock(), into);
    }

    /// Wakes the engine's thread if it sleeps.
    pub fn kick(&self) {
        if self.handover.must_wake() {
            self.wake.signal();
        }
    }
}

/// EV probes that a thread waits for.
#[derive(Default)]
pub(crate) struct ProbeWaits {
    /// By request id: `None` while the answer is outstanding, `Some(None)` if none came.
    waiting: Mutex<HashMap<u16, Option<Option<Span>>>>,
    answered: Condvar,
}

impl ProbeWaits {
    /// A thread is going to wait for the answer to this request.
    pub fn expect(&self, id: u16) {
        self.waiting.lock().insert(id, None);
    }

    /// No thread waits for it any more.
    pub fn forget(&self, id: u16) {
        self.waiting.lock().remove(&id);
    }

    /// The answer has come, or none will come.
    pub fn done(&self, id: u16, rtt: Option<Span>) {
        if let Some(slot) = self.waiting.lock().get_mut(&id) {
            *slot = Some(rtt);
            self.answered.notify_all();
        }
    }

    /// Takes the answer: `None` while it is outstanding, `Some(None)` if none came or the caller gives up.
    pub fn take(&self, id: u16, give_up: impl Fn() -> bool) -> Option<Option<Span>> {
        let mut waiting = self.waiting.lock();
        let answer = waiting.get(&id).copied().flatten().or_else(|| give_up().then_some(None))?;
        waiting.remove(&id);
        Some(answer)
    }

    /// Sleeps until an answer comes, for at most `longest`.
    pub fn sleep(&self, id: u16, longest: Duration) {
        let mut waiting = self.waiting.lock();
        if waiting.get(&id).is_some_and(Option::is_none) {
            self.answered.wait_for(&mut waiting, longest);
        }
    }
}
