//! The handle of an operation under way.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_schedule::Rank;
use openmrc_sockets::EventFd;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// What an operation and its handle share.
pub struct WorkState {
    /// What it is, for errors.
    pub name: String,
    pub begun: Instant,
    pub timeout: Duration,
    done: AtomicBool,
    error: Mutex<Option<Error>>,
    source: AtomicUsize,
    /// For those who wait for a descriptor.
    event: Mutex<Option<EventFd>>,
}

impl WorkState {
    pub fn new(name: String, timeout: Duration) -> WorkState {
        WorkState {
            name,
            begun: Instant::now(),
            timeout,
            done: AtomicBool::new(false),
            error: Mutex::new(None),
            source: AtomicUsize::new(usize::MAX),
            event: Mutex::new(None),
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.begun.checked_add(self.timeout)
    }

    #[inline]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Ends it. Only the first call counts.
    pub fn complete(&self, result: Result<()>) {
        let mut error = self.error.lock();
        if !self.is_done() {
            *error = result.err();
            self.done.store(true, Ordering::Release);
            if let Some(event) = &*self.event.lock() {
                event.signal();
            }
        }
    }

    /// A descriptor that is readable once it has ended.
    pub fn fd(&self) -> Result<RawFd> {
        let mut slot = self.event.lock();
        let event = match slot.take() {
            Some(event) => event,
            None => EventFd::new().map_err(|e| Error::device("an event", e))?,
        };
        if self.is_done() {
            event.signal();
        }
        Ok(slot.insert(event).fd())
    }

    /// The result of what has ended.
    pub fn result(&self) -> Result<()> {
        self.error.lock().clone().map_or(Ok(()), Err)
    }

    pub fn set_source(&self, rank: Rank) {
        self.source.store(rank, Ordering::Release);
    }

    /// Who sent what a receive from any rank has received.
    pub fn source(&self) -> Option<Rank> {
        Some(self.source.load(Ordering::Acquire)).filter(|&rank| rank != usize::MAX)
    }
}
