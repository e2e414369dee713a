//! What all objects of a device share, and which thread drives its engine.
//!
//! Normally the engine has a thread of its own that sleeps while there is nothing to do. While any [`Polling`] guard
//! lives that thread stands aside, and those who poll ([`crate::CompletionQueue::poll`], [`crate::Context::progress`])
//! drive the engine themselves: no hand-over between threads, the way to the lowest latency. If they do not poll for
//! some milliseconds, the thread takes turns for them, so that peers are not left without answers. With
//! [`crate::config::ThreadConfig::callers_drive`] threads that poll in vain do so without a guard; see [`crate::driving`].

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_sockets::{Epoll, EventFd, Interest, Process};
use openmrc_transport::{Span, Time};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::config::DeviceConfig;
use crate::driving::{Driving, Verdict, Watch};
// The engine raises events and reads wake-ups in `Shared`, which has the engine behind its lock: a circle.
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, EventQueue, PathEvent};
use crate::qp::QpShared;
use crate::sys;

/// What the engine's epoll set reports: the receiving socket of port p with token p, and these.
pub(crate) const TOKEN_WAKE: u64 = 100;
pub(crate) const TOKEN_LINKS: u64 = 101;
/// A further receiving socket: [`crate::config::MAX_UDP_PORTS`] for each port.
pub(crate) const TOKEN_MORE: u64 = 200;
/// A sending socket that has become writable: its index on top.
pub(crate) const TOKEN_TX: u64 = 1000;

/// Events kept for whoever does not ask for them.
const EVENTS_KEPT: usize = 4096;

/// How long pollers may be silent before the engine's thread takes a turn for them ...
const POLLERS_PATIENCE: Duration = Duration::from_millis(1);
/// ... and if they have polled without fail for a while.
const POLLERS_LONGEST_PATIENCE: Duration = Duration::from_millis(32);

/// What all objects of a device share.
pub(crate) struct Shared {
    pub config: Arc<DeviceConfig>,
    /// The process that has the engine's thread.
    process: Process,
    engine: Mutex<Engine>,
    pub epoll: Epoll,
    pub wake: EventFd,
    pub events: EventQueue<AsyncEvent>,
    pub path_events: EventQueue<PathEvent>,
    pub probes: ProbeWaits,
    submissions: Mutex<Vec<u32>>,
    any_submitted: AtomicBool,
    /// The engine's thread sleeps, or is about to.
    sleeping: AtomicBool,
    stop: AtomicBool,
    closed: AtomicBool,
    pollers: AtomicUsize,
    driving: Driving,
    /// Turns taken by pollers, and packets handled in them.
    polled_work: AtomicU64,
    sleeps: AtomicU64,
    standing_aside: Mutex<()>,
    pollers_gone: Condvar,
    next_handle: AtomicU32,
}

impl Shared {
    /// Opens the device's sockets. The engine does not run yet.
    pub fn open(config: &DeviceConfig) -> Result<Arc<Self>> {
        let config = Arc::new(config.clone());
        let epoll = Epoll::new().map_err(|e| Error::os("epoll", e))?;
        let wake = EventFd::new().map_err(|e| Error::os("wake-up event", e))?;
        epoll.add(wake.fd(), Interest::Readable, TOKEN_WAKE).map_err(|e| Error::os("wake-up event", e))?;
        let engine = Engine::open(Arc::clone(&config), &epoll)?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            epoll,
            wake,
            events: EventQueue::new(EVENTS_KEPT)?,
            path_events: EventQueue::new(EVENTS_KEPT)?,
            probes: ProbeWaits::default(),
            submissions: Mutex::new(Vec::new()),
            any_submitted: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            pollers: AtomicUsize::new(0),
            driving: Driving::default(),
            polled_work: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            standing_aside: Mutex::new(()),
            pollers_gone: Condvar::new(),
            next_handle: AtomicU32::new(1),
            process: Process::current(),
            config,
        });
        shared.engine.lock().start(&shared);
        Ok(shared)
    }

    /// Tells the engine's thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake.signal();
        let _guard = self.standing_aside.lock();
        self.pollers_gone.notify_all();
    }

    /// Closes the engine, whose thread has ended. Returns the owners of memory regions, to be dropped without locks
    /// held.
    #[must_use]
    pub fn close(&self) -> Vec<Box<dyn Any + Send>> {
        let mut engine = self.engine.lock();
        self.closed.store(true, Ordering::Release);
        engine.close(self)
    }

    /// Times the engine's thread has slept.
    pub fn sleeps(&self) -> u64 {
        self.sleeps.load(Ordering::Relaxed)
    }

    /// Whether threads that poll drive the engine.
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.pollers.load(Ordering::Relaxed) > 0 || self.driving.is_active()
    }

    /// The engine, closed or not; `None` in the child of a fork, where its lock may be held by a thread that is not
    /// there.
    pub fn lock(&self) -> Option<MutexGuard<'_, Engine>> {
        (!self.is_inherited()).then(|| self.engine.lock())
    }

    /// The engine, unless the context is closed.
    pub fn lock_open(&self) -> Result<MutexGuard<'_, Engine>> {
        self.check_process()?;
        let engine = self.engine.lock();
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed("the context")) } else { Ok(engine) }
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
        self.any_submitted.store(true, Ordering::SeqCst);
        self.kick();
    }

    /// Whether any queue pair has newly posted sends.
    #[inline]
    pub fn any_submitted(&self) -> bool {
        self.any_submitted.load(Ordering::Acquire)
    }

    /// Queue pairs with newly posted sends, moved to `into`, which is empty.
    pub fn take_submissions(&self, into: &mut Vec<u32>) {
        // Before taking them: whoever posts from now on announces it again.
        self.any_submitted.store(false, Ordering::SeqCst);
        std::mem::swap(&mut *self.submissions.lock(), into);
    }

    /// Wakes the engine's thread if it sleeps.
    pub fn kick(&self) {
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.wake.signal();
        }
    }

    /// Takes a turn of the engine in polling mode. Otherwise the engine's thread does.
    #[inline]
    pub fn drive_if_polling(&self) {
        if self.is_polled() {
            self.drive();
        }
    }

    /// A thread polls and has found nothing: takes a turn of the engine, if such threads drive it.
    #[inline]
    pub fn drive_in_vain(&self) {
        if self.is_polled() {
            self.drive();
        } else if self.config.thread.callers_drive && self.driving.found_nothing() {
            self.kick();
        }
    }

    /// Whoever has polled is going to sleep: the engine's thread drives again.
    pub fn stop_driving(&self) {
        if self.driving.is_active() && self.driving.end(false) {
            let _guard = self.standing_aside.lock();
            self.pollers_gone.notify_all();
        }
    }

    /// Takes a turn of the engine, unless another thread does.
    pub fn drive(&self) {
        if self.is_inherited() {
            return;
        }
        // Whoever holds the lock is taking a turn already, or soon done with something short.
        if let Some(mut engine) = self.engine.try_lock() {
            // The engine's thread may have taken over, and sleeps only while its sockets are watched, which a turn for a
            // poller ends.
            let before = engine.packets();
            if !self.is_closed() && self.is_polled() {
                engine.turn(self, true);
            }
            let work = 1 + engine.packets().wrapping_sub(before);
            // Only ever written with the engine's lock held.
            let done = self.polled_work.load(Ordering::Relaxed).wrapping_add(work);
            self.polled_work.store(done, Ordering::Relaxed);
        }
    }

    /// The engine's thread.
    pub fn run(&self) {
        let spin = self.config.thread.spin;
        while !self.stop.load(Ordering::Acquire) {
            if self.pollers.load(Ordering::Acquire) > 0 {
                self.stand_aside();
                continue;
            }
            if self.driving.is_active() {
                self.nap_while_driven();
                continue;
            }
            let mut engine = self.engine.lock();
            let mut idle_since: Option<Instant> = None;
            loop {
                let worked = engine.turn(self, false) || engine.has_work();
                if self.stop.load(Ordering::Acquire) || self.is_polled() {
                    break;
                }
                if worked {
                    idle_since = None;
                } else if spin.is_zero() || idle_since.get_or_insert_with(Instant::now).elapsed() >= spin {
                    break;
                }
                // Whoever waits for the lock gets it now.
                MutexGuard::bump(&mut engine);
            }
            engine.watch_held(self);
            let deadline = engine.next_deadline();
            self.sleeping.store(true, Ordering::SeqCst);
            drop(engine);
            let must_run = self.any_submitted.load(Ordering::SeqCst)
                || self.stop.load(Ordering::SeqCst)
                || self.pollers.load(Ordering::SeqCst) > 0
                || self.driving.is_active();
            if !must_run {
                let left = deadline.since(sys::now());
                let forever = deadline == Time::NEVER;
                if forever || left > Span::ZERO {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    self.epoll.sleep((!forever).then(|| Duration::from_nanos(left.as_nanos())));
                }
            }
            self.sleeping.store(false, Ordering::SeqCst);
        }
    }

    /// Callers drive without a guard: sleeps, and looks now and then whether they still do.
    fn nap_while_driven(&self) {
        let mut watch = Watch::new();
        let mut guard = self.standing_aside.lock();
        while self.driving.is_active() && !self.stop.load(Ordering::Acquire) {
            let before = self.polled_work.load(Ordering::Relaxed);
            self.pollers_gone.wait_for(&mut guard, watch.nap);
            if self.pollers.load(Ordering::Acquire) > 0 {
                self.driving.end(false);
                return;
            }
            let work = self.polled_work.load(Ordering::Relaxed).wrapping_sub(before);
            // Where much is on its way something always waits, which is nobody's fault.
            let waited = MutexGuard::unlocked(&mut guard, || {
                let mut engine = self.engine.lock();
                engine.turn(self, true) && !engine.is_bulk()
            });
            match watch.judge(work, waited) {
                Verdict::Continue => {}
                Verdict::Gone => drop(self.driving.end(false)),
                Verdict::Late => drop(self.driving.end(true)),
            }
        }
    }

    /// Others poll: only takes a turn where they forget to. While they do poll it looks less and less often, for
    /// each look may take the processor from them.
    fn stand_aside(&self) {
        let mut patience = POLLERS_PATIENCE;
        let mut seen = self.polled_work.load(Ordering::Relaxed);
        let mut guard = self.standing_aside.lock();
        while self.pollers.load(Ordering::Acquire) > 0 && !self.stop.load(Ordering::Acquire) {
            self.pollers_gone.wait_for(&mut guard, patience);
            let work = self.polled_work.load(Ordering::Relaxed);
            if work != seen {
                seen = work;
                patience = (patience * 2).min(POLLERS_LONGEST_PATIENCE);
                continue;
            }
            patience = POLLERS_PATIENCE;
            MutexGuard::unlocked(&mut guard, || self.engine.lock().turn(self, false));
        }
    }
}

/// Drives the engine from the threads that poll, as long as it lives; see [`crate::Context::polling`].
pub struct Polling(Arc<Shared>);

impl Polling {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        shared.pollers.fetch_add(1, Ordering::SeqCst);
        shared.kick();
        Polling(Arc::clone(shared))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.0.is_inherited() {
            return;
        }
        {
            let _guard = self.0.standing_aside.lock();
            self.0.pollers.fetch_sub(1, Ordering::SeqCst);
            self.0.pollers_gone.notify_all();
        }
        // It may never have stood aside, but slept all the time that others polled.
        self.0.wake.signal();
    }
}

/// EV probes that a thread waits for.
#[derive(Default)]
pub(crate) struct ProbeWaits {
    /// By request id; the answer once it is there, which may be that none came.
    waiting: Mutex<HashMap<u16, Option<Option<Span>>>>,
    answered: Condvar,
}

impl ProbeWaits {
    /// An answer to this request will be waited for.
    pub fn expect(&self, id: u16) {
        self.waiting.lock().insert(id, None);
    }

    /// It will not, after all.
    pub fn forget(&self, id: u16) {
        self.waiting.lock().remove(&id);
    }

    /// The answer has come, or will not.
    pub fn done(&self, id: u16, rtt: Option<Span>) {
        if let Some(slot) = self.waiting.lock().get_mut(&id) {
            *slot = Some(rtt);
            self.answered.notify_all();
        }
    }

    /// Waits for the answer; `None` if there is none.
    pub fn wait(&self, id: u16, deadline: Instant, shared: &Shared) -> Option<Duration> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if let Some(Some(rtt)) = waiting.get(&id).copied() {
                    waiting.remove(&id);
                    return rtt.map(|rtt| Duration::from_nanos(rtt.as_nanos()));
                }
                if Instant::now() >= deadline || shared.is_closed() {
                    waiting.remove(&id);
                    return None;
                }
                if !shared.is_polled() {
                    self.answered.wait_for(&mut waiting, POLLERS_PATIENCE);
                    continue;
                }
            }
            shared.drive();
        }
    }
}
