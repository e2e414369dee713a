//! Events that no work request asked for: ports going up and down, queue pairs and completion queues in error, and
//! the fate of paths. Bounded queues with a descriptor to wait on; what does not fit is counted.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use openmrc_sockets::EventFd;
use openmrc_transport::{EvChange, Fatal};
use openmrc_wire::Ev;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Something happened to an object of the context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A port came up.
    PortUp(u8),
    /// A port went down.
    PortDown(u8),
    /// A peer's ports changed: the queue pair now uses these.
    PeerPorts {
        /// The queue pair.
        qp_num: u32,
        /// Bit p: the peer's port p is up.
        up: u16,
    },
    /// A queue pair went to ERROR by itself.
    QpFatal {
        /// The queue pair.
        qp_num: u32,
        /// Why.
        reason: Fatal,
    },
    /// A completion queue overran.
    CqError {
        /// [`crate::CompletionQueue::handle`].
        cq: u32,
    },
}

/// A path was condemned or came back, as one queue pair saw it (spec: paths, EV events).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEvent {
    /// When, nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The queue pair.
    pub qp_num: u32,
    /// EV profile.
    pub profile: u16,
    /// Entropy value.
    pub ev: Ev,
    /// Port (plane).
    pub port: u8,
    /// What happened.
    pub change: EvChange,
}

/// A bounded queue of events with a descriptor that is readable while it holds any.
pub(crate) struct EventQueue<T> {
    queue: Mutex<Inner<T>>,
    event: EventFd,
    capacity: usize,
}

struct Inner<T> {
    events: VecDeque<T>,
    dropped: u64,
}

impl<T> EventQueue<T> {
    pub fn new(capacity: usize) -> Result<Self> {
        let event = EventFd::new().map_err(|e| Error::os("event queue", e))?;
        Ok(EventQueue { queue: Mutex::new(Inner { events: VecDeque::new(), dropped: 0 }), event, capacity })
    }

    /// Adds an event, or counts it as dropped if the queue is full.
    pub fn push(&self, event: T) {
        let mut inner = self.queue.lock();
        if inner.events.len() == self.capacity {
            inner.dropped += 1;
            return;
        }
        inner.events.push_back(event);
        self.event.signal();
    }

    /// The oldest event.
    pub fn pop(&self) -> Option<T> {
        let mut inner = self.queue.lock();
        let event = inner.events.pop_front();
        if inner.events.is_empty() {
            self.event.clear();
        }
        event
    }

    /// Events that did not fit, since the beginning.
    pub fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    pub fn fd(&self) -> RawFd {
        self.event.fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_what_fits_comes_in_order() {
        let queue = EventQueue::new(3).unwrap();
        (0..5).for_each(|i| queue.push(i));
        assert_eq!(queue.dropped(), 2);
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!queue.event.clear());
    }
}
