//! Which thread drives a device's engine.
//!
//! Normally the engine has a thread of its own that sleeps while there is nothing to do. While any [`Polling`] guard
//! lives that thread stands aside, and the threads that poll ([`crate::CompletionQueue::poll`],
//! [`crate::Context::progress`]) drive the engine themselves: no hand-over between threads, for the lowest latency.
//! If they do not poll for some milliseconds, the thread takes turns for them, so that peers are not left without
//! answers. With [`crate::config::ThreadConfig::callers_drive`], threads that poll and find nothing drive it without
//! a guard; see [`crate::driving`].

use std::any::Any;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_transport::{Span, Time};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::config::DeviceConfig;
use crate::driving::{Driving, Verdict, Watch};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::shared::{Answers, Shared};
use crate::sys;

/// How long pollers may be silent before the engine's thread takes a turn for them ...
const POLLERS_PATIENCE: Duration = Duration::from_millis(1);
/// ... and the longest such time, after they have polled regularly.
const POLLERS_LONGEST_PATIENCE: Duration = Duration::from_millis(32);

/// The engine of an open device, and the threads that may drive it.
pub(crate) struct Driver {
    pub shared: Shared,
    engine: Mutex<Engine>,
    stop: AtomicBool,
    /// [`Polling`] guards.
    pollers: AtomicUsize,
    driving: Driving,
    /// Turns taken by pollers, and packets handled in them.
    polled_work: AtomicU64,
    sleeps: AtomicU64,
    standing_aside: Mutex<()>,
    pollers_gone: Condvar,
}

impl Driver {
    /// Opens the device's sockets. The engine does not run yet.
    pub fn open(config: &DeviceConfig) -> Result<Arc<Self>> {
        let shared = Shared::new(config)?;
        let mut engine = Engine::open(Arc::clone(&shared.config), &shared.epoll)?;
        engine.start(&shared);
        Ok(Arc::new(Driver {
            shared,
            engine: Mutex::new(engine),
            stop: AtomicBool::new(false),
            pollers: AtomicUsize::new(0),
            driving: Driving::default(),
            polled_work: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            standing_aside: Mutex::new(()),
            pollers_gone: Condvar::new(),
        }))
    }

    /// Tells the engine's thread to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.shared.wake.signal();
        let _guard = self.standing_aside.lock();
        self.pollers_gone.notify_all();
    }

    /// Closes the engine, whose thread has ended. Returns the owners of memory regions, to be dropped without locks
    /// held.
    #[must_use]
    pub fn close(&self) -> Vec<Box<dyn Any + Send>> {
        let mut engine = self.engine.lock();
        self.shared.mark_closed();
        engine.close(&self.shared)
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
        (!self.shared.is_inherited()).then(|| self.engine.lock())
    }

    /// The engine, unless the context is closed.
    pub fn lock_open(&self) -> Result<MutexGuard<'_, Engine>> {
        self.shared.check_process()?;
        let engine = self.engine.lock();
        if self.shared.is_closed() { Err(Error::Closed("the context")) } else { Ok(engine) }
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
    pub fn drive_after_empty_poll(&self) {
        if self.is_polled() {
            self.drive();
        } else if self.shared.config.thread.callers_drive && self.driving.count_empty_poll() {
            self.shared.kick();
        }
    }

    /// A thread that has polled is going to sleep: the engine's thread drives again.
    pub fn stop_driving(&self) {
        if self.driving.is_active() && self.driving.end(false) {
            let _guard = self.standing_aside.lock();
            self.pollers_gone.notify_all();
        }
    }

    /// Takes a turn of the engine, unless another thread does.
    pub fn drive(&self) {
        if self.shared.is_inherited() {
            return;
        }
        // The thread that holds the lock is taking a turn, or does something short.
        if let Some(mut engine) = self.engine.try_lock() {
            // If the engine's thread has taken over, it may sleep, and relies on its sockets being watched. A turn
            // for a poller would end that.
            let before = engine.packets();
            if !self.shared.is_closed() && self.is_polled() {
                engine.turn(&self.shared, true);
            }
            let work = 1 + engine.packets().wrapping_sub(before);
            // Only ever written with the engine's lock held.
            let done = self.polled_work.load(Ordering::Relaxed).wrapping_add(work);
            self.polled_work.store(done, Ordering::Relaxed);
        }
    }

    /// The engine's thread.
    pub fn run(&self) {
        let spin = self.shared.config.thread.spin;
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
                let worked = engine.turn(&self.shared, false) || engine.has_work();
                if self.stop.load(Ordering::Acquire) || self.is_polled() {
                    break;
                }
                if worked {
                    idle_since = None;
                } else if spin.is_zero() || idle_since.get_or_insert_with(Instant::now).elapsed() >= spin {
                    break;
                }
                // A thread that waits for the lock gets it now.
                MutexGuard::bump(&mut engine);
            }
            engine.watch_held(&self.shared);
            let deadline = engine.next_deadline();
            self.shared.set_sleeping(true);
            drop(engine);
            let must_run = self.shared.any_submitted()
                || self.stop.load(Ordering::SeqCst)
                || self.pollers.load(Ordering::SeqCst) > 0
                || self.driving.is_active();
            if !must_run {
                let left = deadline.since(sys::now());
                let forever = deadline == Time::NEVER;
                if forever || left > Span::ZERO {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    self.shared.epoll.sleep((!forever).then(|| Duration::from_nanos(left.as_nanos())));
                }
            }
            self.shared.set_sleeping(false);
        }
    }

    /// Callers drive without a guard: sleeps, and checks periodically that they still do.
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
            // During bulk transfers something always waits. That does not mean that callers are late.
            let waited = MutexGuard::unlocked(&mut guard, || {
                let mut engine = self.engine.lock();
                engine.turn(&self.shared, true) && !engine.is_bulk()
            });
            match watch.judge(work, waited) {
                Verdict::Continue => {}
                Verdict::Gone => drop(self.driving.end(false)),
                Verdict::Late => drop(self.driving.end(true)),
            }
        }
    }

    /// Other threads poll: takes a turn only if they have stopped polling. While they poll, the interval between
    /// checks grows, because each check may take the processor from them.
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
            MutexGuard::unlocked(&mut guard, || self.engine.lock().turn(&self.shared, false));
        }
    }

    /// Waits until an EV probe or port status update is answered; `None` if it is not.
    pub fn wait_for_answer(&self, id: u16, deadline: Instant) -> Option<Duration> {
        let gave_up = || Instant::now() >= deadline || self.shared.is_closed();
        let rtt = self.wait_for(&self.shared.probes, id, gave_up).flatten();
        rtt.map(|rtt| Duration::from_nanos(rtt.as_nanos()))
    }

    /// Waits for an answer; `None` if the caller gives up. Takes turns of the engine meanwhile, if callers drive it.
    pub fn wait_for<K: Copy + Eq + Hash, V>(
        &self,
        answers: &Answers<K, V>,
        key: K,
        give_up: impl Fn() -> bool,
    ) -> Option<V> {
        loop {
            match answers.take(key, &give_up) {
                Some(answer) => return answer,
                None if self.is_polled() => self.drive(),
                None => answers.sleep(key, POLLERS_PATIENCE),
            }
        }
    }
}

/// Drives the engine from the threads that poll, as long as it lives; see [`crate::Context::polling`].
pub struct Polling(Arc<Driver>);

impl Polling {
    pub(crate) fn new(driver: &Arc<Driver>) -> Self {
        driver.pollers.fetch_add(1, Ordering::SeqCst);
        driver.shared.kick();
        Polling(Arc::clone(driver))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.0.shared.is_inherited() {
            return;
        }
        {
            let _guard = self.0.standing_aside.lock();
            self.0.pollers.fetch_sub(1, Ordering::SeqCst);
            self.0.pollers_gone.notify_all();
        }
        // The engine's thread may have slept all the time that others polled.
        self.0.shared.wake.signal();
    }
}
