//! Which thread drives a device's engine.
//!
//! Normally the engine has a thread of its own that sleeps while there is nothing to do. While any [`Polling`] guard
//! lives that thread stands by, and the threads that poll ([`crate::CompletionQueue::poll`],
//! [`crate::Context::progress`]) drive the engine themselves: no hand-over between threads, for the lowest latency.
//! What arrives while they do not poll wakes the thread, which takes turns for them. With [`crate::config::DeviceConfig::callers_drive`], threads that poll and find nothing drive it without
//! a guard; see [`crate::driving`].

use std::any::Any;
use std::hash::Hash;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openmrc_sockets::{PollSet, thread};
use openmrc_transport::{PortSet, Span, Time};
use parking_lot::{Mutex, MutexGuard};

use crate::config::DeviceConfig;
use crate::driving::{EmptyPolls, Verdict, Wait, Watch};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::handover::Handover;
use crate::shared::{Answers, Shared};
use crate::sys;

/// How long a thread that waits for an answer sleeps at a time.
const ANSWER_NAP: Duration = Duration::from_millis(1);

/// For how long the engine's thread, woken by what has arrived, lets callers begin to take it: two of their empty turns.
const GRACE: Duration = Duration::from_micros(1);

/// After this many turns in a row with nothing to do, callers let the engine's thread know that it may wait for what
/// arrives: the next arrival then wakes it, and so may be the first in half a millisecond.
const EMPTY_TURNS: u32 = 1024;

/// The engine of an open device, and the threads that may drive it.
pub(crate) struct Driver {
    pub shared: Shared,
    engine: Mutex<Engine>,
    empty_polls: EmptyPolls,
    callers: Callers,
    sleeps: AtomicU64,
}

/// What callers that drive leave for the engine's thread to see. It is written with the engine's lock held.
#[derive(Default)]
struct Callers {
    /// Turns that they took, and packets handled in them.
    work: AtomicU64,
    /// Turns in a row with nothing to do.
    empty: AtomicU32,
    /// The processor of the last one.
    cpu: AtomicU32,
    /// The engine's thread sleeps whatever arrives. It is the only one to set it.
    napping: AtomicBool,
}

/// The engine, locked. Posts whose threads find it locked by this are handed to it when it is dropped.
pub(crate) struct Locked<'a> {
    driver: &'a Driver,
    engine: ManuallyDrop<MutexGuard<'a, Engine>>,
}

impl Deref for Locked<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: it is dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.engine) };
        self.driver.take_over();
    }
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
            empty_polls: EmptyPolls::default(),
            callers: Callers::default(),
            sleeps: AtomicU64::new(0),
        }))
    }

    fn handover(&self) -> &Handover {
        &self.shared.handover
    }

    /// Tells the engine's thread to end.
    pub fn stop(&self) {
        self.handover().stop();
        self.shared.wake.signal();
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

    fn locked(&self) -> Locked<'_> {
        Locked { driver: self, engine: ManuallyDrop::new(self.engine.lock()) }
    }

    /// The engine, closed or not; `None` in the child of a fork, where its lock may be held by a thread that is not
    /// there.
    pub fn lock(&self) -> Option<Locked<'_>> {
        (!self.shared.is_inherited()).then(|| self.locked())
    }

    /// The engine, unless the context is closed.
    pub fn lock_open(&self) -> Result<Locked<'_>> {
        self.shared.check_process()?;
        let engine = self.locked();
        if self.shared.is_closed() { Err(Error::Closed("the context")) } else { Ok(engine) }
    }

    /// Takes a turn of the engine in polling mode. Otherwise the engine's thread does.
    #[inline]
    pub fn drive_if_polling(&self) {
        if self.handover().is_polled() {
            self.drive();
        }
    }

    /// A thread polls and has found nothing: takes a turn of the engine, if such threads drive it.
    #[inline]
    pub fn drive_after_empty_poll(&self) {
        if self.handover().is_polled() {
            self.drive();
        } else if self.shared.config.callers_drive
            && self.empty_polls.are_enough()
            && self.handover().begin_driving()
        {
            self.shared.wake.signal();
        }
    }

    /// A thread that has polled is going to sleep: the engine's thread drives again.
    pub fn stop_driving(&self) {
        self.end_driving(false);
    }

    /// The engine's thread drives again; `failed`: callers left work waiting.
    fn end_driving(&self, failed: bool) {
        if self.handover().end_driving() {
            self.empty_polls.start_again(failed);
            self.shared.wake.signal();
        }
    }

    /// Takes a turn of the engine, unless another thread does.
    pub fn drive(&self) {
        if !self.shared.is_inherited() {
            self.handover().drive(&self.engine, |engine| self.turn_of_caller(engine));
        }
    }

    /// Takes a turn if something was posted whose thread found the engine locked.
    fn take_over(&self) {
        if !self.shared.is_inherited() {
            self.handover().take_over(&self.engine, |engine| self.turn_of_caller(engine));
        }
    }

    /// Returns whether the engine is open.
    #[inline]
    fn turn_of_caller(&self, engine: &mut Engine) -> bool {
        if self.shared.is_closed() {
            return false;
        }
        let before = engine.packets();
        let worked = engine.turn(&self.shared, true);
        let work = 1 + engine.packets().wrapping_sub(before);
        // Only ever written with the engine's lock held.
        let Callers { work: done, empty, cpu, napping } = &self.callers;
        done.store(done.load(Ordering::Relaxed).wrapping_add(work), Ordering::Relaxed);
        cpu.store(thread::current_cpu(), Ordering::Relaxed);
        let in_vain = if worked { 0 } else { empty.load(Ordering::Relaxed).saturating_add(1) };
        empty.store(in_vain, Ordering::Relaxed);
        if in_vain >= EMPTY_TURNS && napping.load(Ordering::Relaxed) && napping.swap(false, Ordering::Relaxed)
        {
            self.shared.wake.signal();
        }
        true
    }

    /// The engine's thread.
    pub fn run(&self) {
        let spin = self.shared.config.thread.spin;
        let handover = self.handover();
        while !handover.is_stopped() {
            if handover.is_polled() {
                self.stand_by();
                continue;
            }
            let mut engine = self.engine.lock();
            let mut idle_since: Option<Instant> = None;
            loop {
                let worked = engine.turn(&self.shared, false) || engine.has_work();
                if handover.is_stopped() || handover.is_polled() {
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
            drop(engine);
            if handover.may_sleep() {
                let left = deadline.since(sys::now());
                let forever = deadline == Time::NEVER;
                if forever || left > Span::ZERO {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    self.shared.epoll.sleep((!forever).then(|| Duration::from_nanos(left.as_nanos())));
                }
            }
            handover.is_awake();
        }
    }

    /// Callers drive. The engine's thread waits for what arrives, or naps while they are busy with it, and takes a turn
    /// where they do not take what has arrived.
    fn stand_by(&self) {
        let handover = self.handover();
        let mut watch = Watch::new(handover.is_guarded());
        let mut wake = PollSet::new([self.shared.wake.fd()]);
        let sockets = self.engine.lock().sockets();
        let mut arrivals = PollSet::new([self.shared.epoll.fd()].into_iter().chain(sockets));
        while handover.is_polled() && !handover.is_stopped() {
            watch.set_guarded(handover.is_guarded());
            self.take_over();
            let before = self.callers.work.load(Ordering::Relaxed);
            let work = || self.callers.work.load(Ordering::Relaxed).wrapping_sub(before);
            let verdict = match watch.wait() {
                Wait::Nap(longest) => {
                    self.callers.napping.store(true, Ordering::Relaxed);
                    // It cannot fail; if it did, this thread would poll.
                    let _ = wake.wait(Some(longest));
                    self.callers.napping.store(false, Ordering::Relaxed);
                    match self.shared.wake.clear() {
                        true => watch.woken(),
                        false => watch.timed_out(work()),
                    }
                }
                Wait::Arrival(longest) => {
                    let _ = arrivals.wait(Some(longest));
                    let woken = arrivals.is_readable(0);
                    if woken {
                        self.shared.wake.clear();
                    }
                    let ports = (0..arrivals.len() - 1).filter(|&port| arrivals.is_readable(port + 1));
                    let ports = PortSet(ports.fold(0, |set, port| set | 1 << port));
                    match (woken, ports == PortSet::EMPTY) {
                        (false, true) => watch.timed_out(work()),
                        _ => self.arrived(&mut watch, ports, woken),
                    }
                }
            };
            match verdict {
                Verdict::Continue => {}
                // They have promised to poll: this thread takes their turns until they do, when something is due.
                Verdict::Gone | Verdict::Late if handover.is_guarded() => {
                    let mut engine = self.engine.lock();
                    engine.turn_for_callers(&self.shared, PortSet::EMPTY, true);
                    let left = engine.next_deadline().since(sys::now());
                    watch.wait_at_most(Duration::from_nanos(left.as_nanos()));
                }
                Verdict::Gone => self.end_driving(false),
                Verdict::Late => self.end_driving(true),
            }
        }
    }

    /// Something has arrived at these ports, or epoll reports something: callers take it, or this thread does.
    fn arrived(&self, watch: &mut Watch, ports: PortSet, others: bool) -> Verdict {
        // If this thread was woken on the processor of the caller, that one cannot take it now.
        let preempted = self.callers.cpu.load(Ordering::Relaxed) == thread::current_cpu();
        let (begin, before) = (Instant::now(), self.callers.work.load(Ordering::Relaxed));
        while !preempted && begin.elapsed() < GRACE {
            if self.callers.work.load(Ordering::Relaxed) != before {
                return watch.answered();
            }
            std::hint::spin_loop();
        }
        // Another thread has the engine: it takes a turn, or does something short.
        let Some(mut engine) = self.engine.try_lock() else { return watch.answered() };
        let worked = engine.turn_for_callers(&self.shared, ports, others);
        drop(engine);
        if worked { watch.served(preempted) } else { watch.answered() }
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
                None if self.handover().is_polled() => self.drive(),
                None => answers.sleep(key, ANSWER_NAP),
            }
        }
    }
}

/// Drives the engine from the threads that poll, as long as it lives; see [`crate::Context::polling`].
pub struct Polling(Arc<Driver>);

impl Polling {
    pub(crate) fn new(driver: &Arc<Driver>) -> Self {
        if driver.handover().add_guard() {
            driver.shared.wake.signal();
        }
        Polling(Arc::clone(driver))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if !self.0.shared.is_inherited() {
            self.0.handover().remove_guard();
            // The engine's thread may have slept all the time that others polled.
            self.0.shared.wake.signal();
        }
    }
}
