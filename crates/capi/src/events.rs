//! Queues of events that a program waits for on a descriptor: of completion channels and of asynchronous events.
//!
//! The descriptor counts the events (an eventfd in semaphore mode), so waiting for one is a `read`: it blocks, is
//! interrupted by signals and obeys O_NONBLOCK just as `read` does.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::errno::{Errno, Result, last_os_error};

/// A queue of events with a descriptor.
pub struct EventQueue<T> {
    events: Mutex<VecDeque<T>>,
    fd: OwnedFd,
    closed: AtomicBool,
}

impl<T> EventQueue<T> {
    /// # Errors
    /// The kernel's: descriptors have run out.
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_os_error());
        }
        // SAFETY: the call has just created it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventQueue { events: Mutex::new(VecDeque::new()), fd, closed: AtomicBool::new(false) })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn count_up(&self, by: u64) {
        let by = by.to_ne_bytes();
        // SAFETY: writes eight bytes from a live array.
        unsafe { libc::write(self.fd(), by.as_ptr().cast(), by.len()) };
    }

    pub fn push(&self, event: T) {
        self.events.lock().push_back(event);
        self.count_up(1);
    }

    /// As [`EventQueue::push`]. If there are `most` or more events for which `may_go` holds, the oldest of them is
    /// dropped.
    pub fn push_bounded(&self, event: T, most: usize, may_go: impl Fn(&T) -> bool) {
        let mut events = self.events.lock();
        let full = events.iter().filter(|each| may_go(each)).count() >= most;
        if full && let Some(oldest) = events.iter().position(&may_go) {
            events.remove(oldest);
            events.push_back(event);
            return;
        }
        events.push_back(event);
        drop(events);
        self.count_up(1);
    }

    /// Waits for the oldest event, unless the descriptor is O_NONBLOCK. `got` runs before anything can remove the event's
    /// object.
    ///
    /// # Errors
    /// EAGAIN, EINTR as `read` has them; ECANCELED after [`EventQueue::close`].
    pub fn wait(&self, got: impl Fn(&T)) -> Result<T> {
        loop {
            let mut count = [0u8; 8];
            // SAFETY: reads eight bytes into a live array.
            let read = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
            if read < 0 {
                return Err(last_os_error());
            }
            if self.closed.load(Ordering::Acquire) {
                return Err(Errno(libc::ECANCELED));
            }
            // An event may have been removed with its object.
            let mut events = self.events.lock();
            if let Some(event) = events.pop_front() {
                got(&event);
                return Ok(event);
            }
        }
    }

    /// Removes the events for which `is` holds.
    pub fn remove(&self, is: impl Fn(&T) -> bool) {
        self.events.lock().retain(|event| !is(event));
    }

    /// Wakes all threads that wait, now and later.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.count_up(1 << 32);
    }
}

/// Events that a program got of an object and those that it has acknowledged.
#[derive(Default)]
pub struct Acknowledged {
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Acknowledged {
    pub fn got(&self) {
        self.counts.lock().0 += 1;
    }

    pub fn acknowledge(&self, events: u64) {
        self.counts.lock().1 += events;
        self.changed.notify_all();
    }

    /// Waits until all events that the program got are acknowledged.
    pub fn wait(&self) {
        let mut counts = self.counts.lock();
        while counts.1 < counts.0 {
            self.changed.wait(&mut counts);
        }
    }
}
