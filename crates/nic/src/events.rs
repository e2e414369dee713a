//! Events that are not completions: ports up and down, queue pairs and completion queues in error, peers that are
//! silent, paths assumed bad and good again. Each reader's unread events are bounded; what does not fit is dropped and
//! counted.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, OnceLock, Weak};

use openmrc_sockets::{EventFd, Process};
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

/// A queue pair changed its judgement of a path (docs/spec/paths.md, "EV events").
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

/// What one reader has not read yet: bounded, with a descriptor that is readable while there is something.
pub struct EventReader<T> {
    unread: Mutex<Unread<T>>,
    event: EventFd,
    capacity: usize,
    /// The process that has the engine. In its child by a fork a lock may be held for ever.
    process: Process,
}

struct Unread<T> {
    events: VecDeque<T>,
    dropped: u64,
}

impl<T> EventReader<T> {
    fn new(capacity: usize) -> Result<Self> {
        let event = EventFd::new().map_err(|e| Error::os("event queue", e))?;
        let unread = Mutex::new(Unread { events: VecDeque::new(), dropped: 0 });
        Ok(EventReader { unread, event, capacity, process: Process::current() })
    }

    /// Adds an event. If there is no room, drops and counts it.
    fn push(&self, event: T) {
        let mut unread = self.unread.lock();
        if unread.events.len() == self.capacity {
            unread.dropped += 1;
            return;
        }
        unread.events.push_back(event);
        self.event.signal();
    }

    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork, where no events come.
    pub fn check_process(&self) -> Result<()> {
        if self.process.is_current() { Ok(()) } else { Err(Error::OtherProcess) }
    }

    /// Removes the oldest event. In the child of a fork there is none.
    pub fn next(&self) -> Option<T> {
        self.check_process().ok()?;
        let mut unread = self.unread.lock();
        let event = unread.events.pop_front();
        if unread.events.is_empty() {
            self.event.clear();
        }
        event
    }

    /// Events that were dropped because this reader had too many unread ones.
    pub fn dropped(&self) -> u64 {
        self.check_process().map_or(0, |()| self.unread.lock().dropped)
    }

    /// A descriptor that is readable while there are unread events. It belongs to the reader.
    pub fn fd(&self) -> RawFd {
        self.event.fd()
    }
}

/// Takes events in place of the first reader.
type Sink<T> = Box<dyn Fn(T) + Send + Sync>;

/// Events, published once and read by as many as want them: no reader takes them from another.
pub(crate) struct Events<T> {
    /// Reads from the beginning.
    first: Arc<EventReader<T>>,
    others: Mutex<Vec<Weak<EventReader<T>>>>,
    sink: OnceLock<Sink<T>>,
}

impl<T: Copy> Events<T> {
    /// `capacity`: most unread events of a reader.
    pub fn new(capacity: usize) -> Result<Self> {
        let first = Arc::new(EventReader::new(capacity)?);
        Ok(Events { first, others: Mutex::new(Vec::new()), sink: OnceLock::new() })
    }

    /// Publishes an event.
    pub fn push(&self, event: T) {
        match self.sink.get() {
            Some(sink) => sink(event),
            None => self.first.push(event),
        }
        self.others.lock().retain(|reader| {
            reader.upgrade().is_some_and(|reader| {
                reader.push(event);
                true
            })
        });
    }

    /// The reader that has everything since the beginning.
    pub fn first(&self) -> &Arc<EventReader<T>> {
        &self.first
    }

    /// A further reader, of what is published from now on.
    ///
    /// # Errors
    /// [`Error::Os`] if descriptors have run out.
    pub fn subscribe(&self) -> Result<Arc<EventReader<T>>> {
        let reader = Arc::new(EventReader::new(self.first.capacity)?);
        self.others.lock().push(Arc::downgrade(&reader));
        Ok(reader)
    }

    /// Passes events to `sink` from now on instead of the first reader, and at once those that it has not read.
    pub fn give_to(&self, sink: Sink<T>) {
        if self.sink.set(sink).is_ok()
            && let Some(sink) = self.sink.get()
        {
            while let Some(event) = self.first.next() {
                sink(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread(reader: &EventReader<u32>) -> Vec<u32> {
        std::iter::from_fn(|| reader.next()).collect()
    }

    #[test]
    fn events_that_do_not_fit_are_counted_and_the_others_stay_in_order() {
        let events = Events::new(3).unwrap();
        (0..5).for_each(|i| events.push(i));
        assert_eq!(events.first().dropped(), 2);
        assert_eq!(unread(events.first()), [0, 1, 2]);
        assert!(!events.first().event.clear());
    }

    #[test]
    fn no_reader_takes_events_from_another() {
        let events = Events::new(2).unwrap();
        events.push(0);
        let (slow, quick) = (events.subscribe().unwrap(), events.subscribe().unwrap());
        for i in 1..4 {
            events.push(i);
            assert_eq!(unread(&quick), [i]);
        }
        assert_eq!((unread(&slow), slow.dropped(), quick.dropped()), (vec![1, 2], 1, 0));
        assert_eq!(unread(events.first()), [0, 1], "from the beginning");
        drop(slow);
        events.push(4);
        assert_eq!((unread(&quick), events.others.lock().len()), (vec![4], 1));
    }

    #[test]
    fn a_sink_replaces_the_first_reader_only() {
        let events = Events::new(8).unwrap();
        let (other, taken) = (events.subscribe().unwrap(), Arc::new(Mutex::new(Vec::new())));
        events.push(1);
        let into = Arc::clone(&taken);
        events.give_to(Box::new(move |event| into.lock().push(event)));
        events.push(2);
        assert_eq!((taken.lock().clone(), unread(&other)), (vec![1, 2], vec![1, 2]));
        assert_eq!(events.first().next(), None);
    }
}
