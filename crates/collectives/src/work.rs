//! The handle of an operation under way.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_schedule::Rank;
use openmrc_sockets::EventFd;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::header::Signature;

/// What an operation is. It is put into words only when somebody asks.
#[derive(Clone, Copy)]
pub enum Subject {
    Collective(Signature),
    Send {
        bytes: usize,
        to: Rank,
        tag: u64,
    },
    /// `None`: from any rank.
    Recv {
        bytes: usize,
        from: Option<Rank>,
        tag: u64,
    },
}

impl Subject {
    /// In words.
    pub fn describe(&self) -> String {
        match *self {
            Subject::Collective(signature) => signature.describe(),
            Subject::Send { bytes, to, tag } => format!("send of {bytes} bytes to rank {to} with tag {tag}"),
            Subject::Recv { bytes, from, tag } => {
                let source = from.map_or("any rank".into(), |from| format!("rank {from}"));
                format!("recv of {bytes} bytes from {source} with tag {tag}")
            }
        }
    }
}

/// What an operation and its handle share.
pub struct WorkState {
    pub subject: Subject,
    pub begun: Instant,
    pub timeout: Duration,
    done: AtomicBool,
    error: Mutex<Option<Error>>,
    source: AtomicUsize,
    /// For those who wait for a descriptor.
    event: Mutex<Option<EventFd>>,
}

impl WorkState {
    pub fn new(subject: Subject, timeout: Duration) -> WorkState {
        WorkState {
            subject,
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
