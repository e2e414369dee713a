//! What the objects of a device, its engine and the threads that drive it share: wake-ups, posted work, events.
//!
//! It does not know the engine, which reads it; [`crate::driver`] has the engine behind its lock.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use openmrc_sockets::{Epoll, EventFd, Interest, Process};
use openmrc_transport::Span;
use openmrc_transport::node::{MtuProgress, Slot};
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
    pub probes: Answers<u16, Option<Span>>,
    /// Proofs of the path MTU, by slot.
    pub mtu_proofs: Answers<Slot, MtuProgress>,
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
            probes: Answers::default(),
            mtu_proofs: Answers::default(),
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
        self.submissions.lock().push(qp.slot);
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

/// Answers that threads wait for.
pub(crate) struct Answers<K, V> {
    /// `None` while the answer is outstanding.
    waiting: Mutex<HashMap<K, Option<V>>>,
    answered: Condvar,
}

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Answers { waiting: Mutex::default(), answered: Condvar::default() }
    }
}

impl<K: Eq + Hash, V> Answers<K, V> {
    /// A thread is going to wait for this answer.
    pub fn expect(&self, key: K) {
        self.waiting.lock().insert(key, None);
    }

    /// No thread waits for it any more.
    pub fn forget(&self, key: K) {
        self.waiting.lock().remove(&key);
    }

    /// The answer has come.
    pub fn done(&self, key: K, answer: V) {
        if let Some(slot) = self.waiting.lock().get_mut(&key) {
            *slot = Some(answer);
            self.answered.notify_all();
        }
    }

    /// Takes the answer: `None` while it is outstanding, `Some(None)` if the caller gives up or another thread has taken
    /// it.
    pub fn take(&self, key: K, give_up: impl Fn() -> bool) -> Option<Option<V>> {
        let mut waiting = self.waiting.lock();
        let is_over = waiting.get(&key).is_none_or(|answer| answer.is_some() || give_up());
        is_over.then(|| waiting.remove(&key).flatten())
    }

    /// Sleeps until an answer comes, for at most `longest`.
    pub fn sleep(&self, key: K, longest: Duration) {
        let mut waiting = self.waiting.lock();
        if waiting.get(&key).is_some_and(Option::is_none) {
            self.answered.wait_for(&mut waiting, longest);
        }
    }
}
