//! Completion queues: bounded, polled, with a descriptor to wait on (docs/spec/api.md, "Objects").
//!
//! To wait without losing a wake-up: [`CompletionQueue::arm`], poll until empty, wait for the descriptor, then
//! [`CompletionQueue::acknowledge`]. Arming a queue that is not empty makes the descriptor readable at once.

use std::os::fd::RawFd;
use std::sync::Arc;

use openmrc_sockets::wait_readable;

use crate::completion::Completion;
use crate::completion_ring::{Armed, CqShared, Notify};
use crate::driver::{Driver, Polling};
use crate::error::{Error, Result};
use crate::limits::MAX_CQE;

/// A completion queue. It lives as long as this handle or any queue pair that uses it.
#[derive(Clone)]
pub struct CompletionQueue {
    driver: Arc<Driver>,
    pub(crate) queue: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn new(
        driver: &Arc<Driver>,
        id: u32,
        capacity: usize,
        notify: Option<Notify>,
    ) -> Result<Self> {
        if capacity == 0 || capacity > MAX_CQE {
            return Err(Error::invalid(format!(
                "a completion queue holds 1 to {MAX_CQE} completions, not {capacity}"
            )));
        }
        let queue = CqShared::new(id, capacity, notify)?;
        Ok(CompletionQueue { driver: Arc::clone(driver), queue: Arc::new(queue) })
    }

    /// Whether this process is the one that opened the device.
    ///
    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.driver.shared.check_process()
    }

    /// Number of this queue, which asynchronous events name.
    pub fn handle(&self) -> u32 {
        self.queue.id
    }

    /// Its capacity.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Changes its capacity. Completions that wait stay, also if there are more of them.
    pub fn set_capacity(&self, capacity: usize) {
        self.queue.set_capacity(capacity);
    }

    /// A queue is given up only when no queue pair uses it. One that was destroyed and still answers its peer does not.
    ///
    /// # Errors
    /// [`Error::Busy`] names a queue pair that uses it.
    pub fn check_unused(&self) -> Result<()> {
        // In the child of a fork nothing is in use.
        self.driver.lock().map_or(Ok(()), |engine| engine.check_cq_unused(self.queue.id))
    }

    /// Completions that wait now.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no completion waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes up to `max` completions, oldest first, and appends them to `out`; returns how many. In polling mode
    /// ([`crate::Context::polling`]) it first drives the engine if the queue is empty.
    ///
    /// # Errors
    /// [`Error::CqOverrun`] if the queue has overrun, after all completions that it held; [`Error::OtherProcess`].
    pub fn poll_into(&self, max: usize, out: &mut Vec<Completion>) -> Result<usize> {
        self.check_process()?;
        if self.is_empty() {
            self.driver.drive_after_empty_poll();
        }
        self.queue.take(max, out)
    }

    /// Removes up to `max` completions, oldest first, and gives each to `take`, which must not call the device; returns
    /// how many.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_into`].
    #[inline]
    pub fn poll_each(&self, max: usize, take: impl FnMut(Completion)) -> Result<usize> {
        self.check_process()?;
        if self.is_empty() {
            self.driver.drive_after_empty_poll();
        }
        self.queue.take_each(max, take)
    }

    /// Polling mode of the device; see [`crate::Context::polling`].
    #[must_use]
    pub fn polling(&self) -> Polling {
        Polling::new(&self.driver)
    }

    /// As [`CompletionQueue::poll_into`], into a new list.
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_into`].
    pub fn poll(&self, max: usize) -> Result<Vec<Completion>> {
        let mut out = Vec::new();
        self.poll_into(max, &mut out)?;
        Ok(out)
    }

    /// The descriptor that becomes readable once per [`CompletionQueue::arm`]. The queue keeps it.
    pub fn event_fd(&self) -> RawFd {
        self.queue.event_fd()
    }

    /// Lets the descriptor become readable at the next completion, or at once if one waits. In the child of a fork it
    /// does nothing.
    pub fn arm(&self) {
        if self.driver.shared.is_inherited() {
            return;
        }
        self.driver.stop_driving();
        self.queue.arm(Armed::Any);
    }

    /// As [`CompletionQueue::arm`], but only errors count, and receives whose sender asked for a solicited event. If
    /// anything waits, the notification comes at once.
    pub fn arm_solicited(&self) {
        if !self.driver.shared.is_inherited() {
            self.driver.stop_driving();
            self.queue.arm(Armed::Solicited);
        }
    }

    /// Makes the descriptor unreadable; returns whether it was readable.
    pub fn acknowledge(&self) -> bool {
        self.queue.acknowledge()
    }

    /// Arms the queue and sleeps until a completion arrives, the queue overruns, or `timeout` has passed. Returns
    /// whether polling would return a completion or an error.
    pub fn wait(&self, timeout: std::time::Duration) -> bool {
        self.arm();
        if !self.is_empty() || self.driver.shared.is_inherited() {
            self.acknowledge();
            return true;
        }
        wait_readable(self.event_fd(), timeout);
        self.acknowledge();
        !self.is_empty() || self.queue.has_overrun()
    }
}
