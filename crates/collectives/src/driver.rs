//! Which thread drives a communicator. A thread that waits for an operation drives all operations of the
//! communicator, so a message needs no hand-over between threads. A thread of the communicator drives operations that
//! nobody waits for.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_nic::Polling;
use openmrc_sockets::{PollSet, Process};
use parking_lot::{Condvar, Mutex};

use crate::core::{CHECK_INTERVAL, Core};
use crate::error::{Error, Result};
use crate::link::Medium;
use crate::work::WorkState;

/// How long the communicator's thread leaves new operations to threads that may wait for them.
const PATIENCE: Duration = Duration::from_micros(200);

/// Checks of the communicator's thread, one each [`PATIENCE`], that find no new operation before it sleeps until it
/// is woken. Waking it takes longer than a small operation, so it is not woken for each.
const ALERT: u32 = 25;

/// How long a thread that waits for the network drives the NIC itself before it sleeps. The NIC's thread stands aside
/// meanwhile, so a rank needs one processor instead of two.
const POLLED_SPIN: Duration = Duration::from_micros(200);

/// Drives a communicator.
pub struct Driver {
    pub core: Mutex<Core>,
    pub process: Process,
    /// Who drives has this.
    sleep: Mutex<PollSet>,
    /// Guards nothing but the condition.
    changed: Mutex<()>,
    /// For threads that wait while another one drives.
    condition: Condvar,
    /// For the communicator's thread.
    work: Condvar,
    /// The communicator's thread sleeps until it is told of an operation.
    asleep: AtomicBool,
    /// Operations that did not end at once.
    begun: AtomicU64,
    /// Threads that wait for an operation.
    waiters: AtomicUsize,
    /// The communicator's thread drives, or is about to.
    thread_drives: AtomicBool,
    closed: AtomicBool,
    spin: Duration,
    /// There are fewer processors than ranks of this host.
    crowded: bool,
    /// Waiting threads drive the NIC: there are peers on other hosts, and each rank has a processor.
    polls: bool,
}

impl Driver {
    /// Drives a communicator. A waiting thread looks for messages for the time `spin` before it sleeps, and where it is
    /// `crowded` lets others run between two looks.
    pub fn new(core: Core, spin: Duration, crowded: bool) -> Driver {
        let mut fds = vec![core.network.cq.event_fd(), core.home.doorbell_fd()];
        for link in core.links.iter().flatten() {
            if let Medium::Local(local) = &link.medium {
                fds.push(local.process.fd());
            }
        }
        let remote = core.links.iter().flatten().any(|link| !link.is_local());
        Driver {
            polls: remote && !spin.is_zero() && !crowded,
            core: Mutex::new(core),
            process: Process::current(),
            sleep: Mutex::new(PollSet::new(fds)),
            changed: Mutex::new(()),
            condition: Condvar::new(),
            work: Condvar::new(),
            asleep: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            waiters: AtomicUsize::new(0),
            thread_drives: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spin,
            crowded,
        }
    }

    /// Ends the communicator's thread.
    pub fn end(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.wake_driver();
        self.notify();
        self.wake_thread();
    }

    pub fn lock(&self) -> Result<parking_lot::MutexGuard<'_, Core>> {
        if !self.process.is_current() {
            return Err(Error::invalid("a communicator cannot be used in the child of a fork"));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(self.core.lock())
    }

    /// Something was begun: if it has not ended at once, the thread must know.
    pub fn begun(&self, state: &WorkState) {
        if state.is_done() {
            return;
        }
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.waiters.load(Ordering::SeqCst) == 0 {
            self.wake_thread();
        }
    }

    fn wake_thread(&self) {
        let _guard = self.changed.lock();
        self.work.notify_all();
    }

    /// Wakes all threads that wait for the condition.
    pub fn notify(&self) {
        let _guard = self.changed.lock();
        self.condition.notify_all();
    }

    /// Wakes the thread that drives.
    pub fn wake_driver(&self) {
        self.core.lock().home.ring_own();
    }

    pub fn wait(&self, state: &WorkState, until: Option<Instant>) {
        if !self.process.is_current() {
            return;
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.thread_drives.load(Ordering::SeqCst) {
            self.wake_driver();
        }
        let over = || state.is_done() || until.is_some_and(|until| Instant::now() >= until);
        while !over() {
            if let Some(mut sleep) = self.sleep.try_lock() {
                self.drive(&mut sleep, &over, until, self.polls);
                continue;
            }
            let mut guard = self.changed.lock();
            if !over() {
                // The driving thread may stop at any time; waking it only makes this faster.
                self.condition.wait_for(&mut guard, Duration::from_millis(1));
            }
        }
        if self.waiters.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.notify();
        } else if self.asleep.load(Ordering::SeqCst) && !self.core.lock().is_idle() {
            self.wake_thread();
        }
    }

    /// Drives the communicator until `over`, and the NIC if it `polls`.
    fn drive(&self, sleep: &mut PollSet, over: &dyn Fn() -> bool, until: Option<Instant>, polls: bool) {
        let spin = if polls { self.spin.max(POLLED_SPIN) } else { self.spin };
        let mut polling: Option<Polling> = None;
        let mut idle: Option<Instant> = None;
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        while !over() {
            let mut core = self.core.lock();
            if polls && polling.is_none() {
                polling = Some(core.network.cq.polling());
            }
            let worked = core.progress();
            if worked {
                drop(core);
                if self.waiters.load(Ordering::Relaxed) > 1 {
                    self.notify();
                }
                idle = None;
                continue;
            }
            let now = Instant::now();
            if now >= next_check {
                core.check(now);
                next_check = now + CHECK_INTERVAL;
                continue;
            }
            if now.duration_since(*idle.get_or_insert(now)) < spin {
                drop(core);
                if self.crowded {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
                continue;
            }
            // The NIC's thread takes over.
            polling = None;
            core.home.set_sleeping(true);
            core.network.cq.arm();
            if core.progress() {
                core.home.set_sleeping(false);
                core.network.cq.acknowledge();
                idle = None;
                continue;
            }
            let wake = [core.next_deadline(), until].into_iter().flatten().fold(next_check, Instant::min);
            drop(core);
            // It fails only if the arguments are wrong.
            let _ = sleep.wait(Some(wake.saturating_duration_since(now)));
            let mut core = self.core.lock();
            core.home.set_sleeping(false);
            core.network.cq.acknowledge();
            core.home.clear_doorbell();
            // Behind the first two are the processes of peers.
            if sleep.any_readable_from(2) || Instant::now() >= wake {
                core.check(Instant::now());
                next_check = Instant::now() + CHECK_INTERVAL;
            }
            idle = None;
        }
    }

    /// The communicator's thread: drives what nobody waits for.
    pub fn run(&self) {
        let nothing = || self.waiters.load(Ordering::SeqCst) > 0 || self.core.lock().is_idle();
        let (mut seen, mut looks) = (0, 0);
        while !self.closed.load(Ordering::Acquire) {
            let begun = self.begun.load(Ordering::SeqCst);
            looks = if begun == seen { looks + 1 } else { 0 };
            seen = begun;
            if nothing() {
                let mut guard = self.changed.lock();
                if looks < ALERT {
                    self.work.wait_for(&mut guard, PATIENCE);
                    continue;
                }
                self.asleep.store(true, Ordering::SeqCst);
                if self.begun.load(Ordering::SeqCst) == seen {
                    self.work.wait_for(&mut guard, CHECK_INTERVAL);
                }
                self.asleep.store(false, Ordering::SeqCst);
                continue;
            }
            // Most who begin something wait for it soon.
            self.work.wait_for(&mut self.changed.lock(), PATIENCE);
            if nothing() {
                continue;
            }
            self.thread_drives.store(true, Ordering::SeqCst);
            if let Some(mut sleep) = self.sleep.try_lock() {
                let over = || self.closed.load(Ordering::Acquire) || nothing();
                self.drive(&mut sleep, &over, None, false);
            }
            self.thread_drives.store(false, Ordering::SeqCst);
            self.notify();
        }
    }
}
