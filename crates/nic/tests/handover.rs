//! Who drives the engine, in all interleavings of posting, polling and the engine's thread: nothing posted stays behind.
//! The model has no time: what only a time-out would find is a deadlock, or is missing at the end.

/// What `src/handover.rs` takes from `crate::sync`.
mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

    /// As parking_lot's.
    #[derive(Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub fn try_lock(&self) -> Option<loom::sync::MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[allow(dead_code)] // The model does not use everything.
#[path = "../src/handover.rs"]
mod handover;

use handover::Handover;
use loom::sync::{Arc, Condvar};
use loom::thread;

/// A counter that a thread waits for.
struct Counter(loom::sync::Mutex<usize>, Condvar);

impl Counter {
    fn new() -> Self {
        Counter(loom::sync::Mutex::new(0), Condvar::new())
    }

    fn add(&self, n: usize) {
        *self.0.lock().unwrap() += n;
        self.1.notify_all();
    }

    /// Waits until it has at least `least`, and takes `taken` of them away.
    fn wait(&self, least: usize, taken: impl FnOnce(usize) -> usize) {
        let mut count = self.0.lock().unwrap();
        while *count < least {
            count = self.1.wait(count).unwrap();
        }
        *count -= taken(*count);
    }
}

/// A device whose engine counts what it takes.
struct Device {
    handover: Handover,
    engine: sync::Mutex<()>,
    posts: loom::sync::Mutex<usize>,
    taken: Counter,
    wake: Counter,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Device {
            handover: Handover::default(),
            engine: sync::Mutex::default(),
            posts: loom::sync::Mutex::new(0),
            taken: Counter::new(),
            wake: Counter::new(),
        })
    }

    /// One turn of the engine.
    fn turn(&self) -> bool {
        if self.handover.is_posted() {
            self.handover.take_posted();
            let posts = std::mem::take(&mut *self.posts.lock().unwrap());
            self.taken.add(posts);
        }
        true
    }

    fn signal(&self) {
        self.wake.add(1);
    }

    /// Sleeps until there was a signal since the last time.
    fn sleep(&self) {
        self.wake.wait(1, |signals| signals);
    }

    /// Waits until this many posts have been taken.
    fn wait_taken(&self, posts: usize) {
        self.taken.wait(posts, |_| 0);
    }

    fn drive(&self) {
        if self.handover.is_polled() {
            self.handover.drive(&self.engine, |()| self.turn());
        }
    }

    /// As `QueuePair::post_send`.
    fn post(&self) {
        *self.posts.lock().unwrap() += 1;
        if self.handover.post() {
            self.signal();
        }
        self.drive();
    }

    /// As anything that locks the engine without taking a turn.
    fn query(&self) {
        let engine = self.engine.lock();
        // Something that other threads can come before or after.
        self.handover.is_posted();
        drop(engine);
        self.take_over();
    }

    fn take_over(&self) {
        self.handover.take_over(&self.engine, |()| self.turn());
    }

    fn add_guard(&self) {
        if self.handover.add_guard() {
            self.signal();
        }
    }

    fn remove_guard(&self) {
        self.handover.remove_guard();
        self.signal();
    }

    fn begin_driving(&self) {
        if self.handover.begin_driving() {
            self.signal();
        }
    }

    fn end_driving(&self) {
        if self.handover.end_driving() {
            self.signal();
        }
    }

    fn stop(&self) {
        self.handover.stop();
        self.signal();
    }

    /// The engine's thread; it ends once it has been stopped.
    fn run(&self) {
        while !self.handover.is_stopped() {
            if self.handover.is_polled() {
                self.take_over();
                self.sleep();
                continue;
            }
            let engine = self.engine.lock();
            self.turn();
            drop(engine);
            if self.handover.may_sleep() {
                self.sleep();
            }
            self.handover.is_awake();
        }
    }
}

/// Runs `act` in a thread of its own.
fn spawn(device: &Arc<Device>, act: impl FnOnce(&Device) + Send + 'static) -> thread::JoinHandle<()> {
    let device = Arc::clone(device);
    thread::spawn(move || act(&device))
}

/// Explores all interleavings with at most this many preemptions.
fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A post, the engine's thread, and what another thread does at the same time: the post is taken.
fn check_a_post_beside(before: fn(&Device), act: fn(&Device)) {
    model(2, move || {
        let device = Device::new();
        before(&device);
        let engine = spawn(&device, Device::run);
        let other = spawn(&device, act);
        device.post();
        device.wait_taken(1);
        other.join().unwrap();
        device.stop();
        engine.join().unwrap();
    });
}

#[test]
fn a_post_wakes_the_thread_that_goes_to_sleep() {
    check_a_post_beside(|_| {}, |_| {});
}

#[test]
fn a_post_is_taken_while_something_else_has_the_engine() {
    check_a_post_beside(Device::begin_driving, Device::query);
}

#[test]
fn a_post_is_taken_while_callers_begin_to_drive() {
    check_a_post_beside(|_| {}, Device::begin_driving);
}

#[test]
fn a_post_is_taken_while_callers_end_their_driving() {
    check_a_post_beside(Device::begin_driving, Device::end_driving);
}

#[test]
fn a_post_is_taken_while_a_guard_comes_and_goes() {
    check_a_post_beside(
        |_| {},
        |device| {
            device.add_guard();
            device.remove_guard();
        },
    );
}

#[test]
fn of_two_threads_that_post_while_they_drive_one_takes_both() {
    model(4, || {
        let device = Device::new();
        device.add_guard();
        let other = spawn(&device, Device::post);
        device.post();
        other.join().unwrap();
        // The engine's thread has had no part in it.
        device.wait_taken(2);
    });
}

#[test]
fn a_post_that_finds_the_engine_locked_is_taken_after_unlocking() {
    model(4, || {
        let device = Device::new();
        device.begin_driving();
        let other = spawn(&device, Device::post);
        device.query();
        other.join().unwrap();
        device.wait_taken(1);
    });
}

#[test]
fn the_thread_ends_whoever_drives() {
    model(3, || {
        let device = Device::new();
        let engine = spawn(&device, Device::run);
        let callers = spawn(&device, Device::begin_driving);
        device.stop();
        callers.join().unwrap();
        engine.join().unwrap();
    });
}
