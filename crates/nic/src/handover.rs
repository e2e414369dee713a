//! Who takes the engine's turns: its thread, or the threads that poll, and that nothing that is posted is left without a
//! turn when one hands over to the other. Nothing here relies on time.
//!
//! `tests/handover.rs` checks this file in all interleavings, with other primitives in place of [`crate::sync`].

use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, fence};

/// By what posting threads, polling threads and the engine's thread find each other.
///
/// A thread writes its own flag, then a fence, then reads the other's flag. So of two threads at least one sees what the
/// other has written: the one that posts sees that the engine's thread sleeps, or that thread sees the post; the one that
/// finds the engine locked is seen by the holder after unlocking.
#[derive(Default)]
pub(crate) struct Handover {
    /// Something was posted since the engine began to take what was posted before.
    posted: AtomicBool,
    /// The engine's thread sleeps until it is woken, or is about to.
    sleeping: AtomicBool,
    /// Guards by which callers have promised to poll.
    guards: AtomicUsize,
    /// Callers drive without a guard.
    callers: AtomicBool,
    stopped: AtomicBool,
}

impl Handover {
    /// Something was posted; returns whether the caller has to wake the engine's thread.
    #[inline]
    pub fn post(&self) -> bool {
        self.posted.store(true, Ordering::Release);
        self.must_wake()
    }

    /// Whether the engine's thread sleeps. Who is told so has to wake it; nobody else is told.
    #[inline]
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// Whether something was posted that the engine has not begun to take.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.posted.load(Ordering::Acquire)
    }

    /// The engine takes what is posted, from now on: a later post counts as new.
    #[inline]
    pub fn take_posted(&self) {
        self.posted.swap(false, Ordering::AcqRel);
    }

    /// Whether threads that poll take the turns.
    #[inline]
    pub fn is_polled(&self) -> bool {
        self.is_guarded() || self.callers.load(Ordering::Acquire)
    }

    /// Whether they have promised to.
    #[inline]
    pub fn is_guarded(&self) -> bool {
        self.guards.load(Ordering::Acquire) > 0
    }

    /// A caller promises to poll; returns whether it has to wake the engine's thread.
    pub fn add_guard(&self) -> bool {
        self.guards.fetch_add(1, Ordering::AcqRel);
        self.must_wake()
    }

    /// It no longer does, and has to wake the engine's thread.
    pub fn remove_guard(&self) {
        self.guards.fetch_sub(1, Ordering::AcqRel);
    }

    /// Callers drive without a guard from now on; returns whether the caller has to wake the engine's thread.
    pub fn begin_driving(&self) -> bool {
        !self.callers.swap(true, Ordering::AcqRel) && self.must_wake()
    }

    /// They no longer do; returns whether they did. Whoever is told so has to wake the engine's thread.
    pub fn end_driving(&self) -> bool {
        self.callers.load(Ordering::Acquire) && self.callers.swap(false, Ordering::AcqRel)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The engine's thread ends. It has to be woken.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// The engine's thread, which has unlocked the engine, wants to sleep until it is woken; returns whether it may.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may = !self.is_posted() && !self.is_polled() && !self.is_stopped();
        if !may {
            self.is_awake();
        }
        may
    }

    /// The engine's thread does not sleep.
    pub fn is_awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// A thread that polls takes a turn, unless another one has the engine, which then takes it after unlocking.
    /// `turn` returns whether it took what was posted.
    #[inline]
    pub fn drive<E>(&self, engine: &Mutex<E>, mut turn: impl FnMut(&mut E) -> bool) {
        while let Some(mut locked) = engine.try_lock() {
            let took = self.is_polled() && turn(&mut locked);
            drop(locked);
            if !took || !self.is_left_behind() {
                return;
            }
        }
    }

    /// After unlocking the engine for any other reason, and in the engine's thread once it sees that others poll: takes
    /// a turn for a post whose thread found the engine locked.
    #[inline]
    pub fn take_over<E>(&self, engine: &Mutex<E>, turn: impl FnMut(&mut E) -> bool) {
        if self.is_left_behind() {
            self.drive(engine, turn);
        }
    }

    /// Whether something is posted that the engine's thread does not look at, as others poll.
    #[inline]
    fn is_left_behind(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_posted() && self.is_polled()
    }
}
