//! Events that are not completions: ports up and down, queue pairs and completion queues in error, peers that are
//! silent, paths assumed bad and good again. The queues are bounded; events that do not fit are dropped and counted.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::OnceLock;

use openmrc_sockets::EventFd;
use openmrc_transport::{EvChange, Fatal};
use openmrc_wire::Ev;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// An event of a port, queue pair or completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsyncEvent {
    /// A port came up.
    PortUp(u8),
    /// A port went down.
    PortDown(u8),
    /// A peer reported a change of its ports.
    PeerPorts {
        /// A queue pair connected to the peer.
        qp_num: u32,
        /// Bit p: the peer's port p is up.
        up: u16,
    },
    /// A queue pair went to ERROR without being told to.
    QpFatal {
        /// The queue pair.
        qp_num: u32,
        /// Why.
        reason: Fatal,
    },
    /// With keepalive: the peer of a queue pair does not answer. The queue pair stays in RTS until its retries end.
    PeerSilent {
        /// The queue pair.
        qp_num: u32,
    },
    /// A peer that was silent is heard again.
    PeerHeard {
        /// The queue pair.
        qp_num: u32,
    },
    /// A completion queue overran.
    CqError {
        /// [`crate::CompletionQueue::handle`].
        cq: u32,
    },
}

/// A queue pair changed its judgement of a path (spec: paths, EV events).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathEvent {
    /// Time of the change, nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The queue pair.
    pub qp_num: u32,
    /// EV profile.
    pub profile: u16,
    /// Entropy value.
    pub ev: Ev,
    /// Port (plane).
    pub port: u8,
    /// The change.
    pub change: EvChange,
}

/// A bounded queue of events with a descriptor that is readable while the queue is not empty.
pub(crate) struct EventQueue<T> {
    queue: Mutex<Inner<T>>,
    event: EventFd,
    capacity: usize,
    sink: OnceLock<Sink<T>>,
}

/// Takes events in place of the queue.
type Sink<T> = Box<dyn Fn(T) + Send + Sync>;

struct Inner<T> {
    events: VecDeque<T>,
    dropped: u64,
}

impl<T> EventQueue<T> {
    pub fn new(capacity: usize) -> Result<Self> {
        let event = EventFd::new().map_err(|e| Error::os("event queue", e))?;
        Ok(EventQueue {
            queue: Mutex::new(Inner { events: VecDeque::new(), dropped: 0 }),
            event,
            capacity,
            sink: OnceLock::new(),
        })
    }

    /// Adds an event. If the queue is full, drops and counts it.
    pub fn push(&self, event: T) {
        if let Some(sink) = self.sink.get() {
            return sink(event);
        }
        let mut inner = self.queue.lock();
        if inner.events.len() == self.capacity {
            inner.dropped += 1;
            return;
        }
        inner.events.push_back(event);
        self.event.signal();
    }

    /// Passes events to `sink` from now on, first those that are queued.
    pub fn give_to(&self, sink: Sink<T>) {
        if self.sink.set(sink).is_ok()
            && let Some(sink) = self.sink.get()
        {
            while let Some(event) = self.pop() {
                sink(event);
            }
        }
    }

    /// Removes the oldest event.
    pub fn pop(&self) -> Option<T> {
        let mut inner = self.queue.lock();
        let event = inner.events.pop_front();
        if inner.events.is_empty() {
            self.event.clear();
        }
        event
    }

    /// Number of dropped events.
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
    fn events_that_do_not_fit_are_counted_and_the_others_stay_in_order() {
        let queue = EventQueue::new(3).unwrap();
        (0..5).for_each(|i| queue.push(i));
        assert_eq!(queue.dropped(), 2);
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!queue.event.clear());
    }
}
