//! Notifications of completion queues, which go to a channel (docs/spec/c-interface.md, section 7.2).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::events::{Acknowledged, EventQueue};

/// A notification of a completion queue.
pub struct Notification {
    /// Addresses of the queue and of what the program gave with it.
    pub cq: usize,
    pub cq_context: usize,
    pub events: Arc<Acknowledged>,
}

/// Raises notifications of one completion queue.
pub struct Notifier {
    /// Address of the queue, once it is known.
    pub address: Arc<AtomicUsize>,
    pub cq_context: usize,
    pub events: Arc<Acknowledged>,
    pub channel: Option<Arc<EventQueue<Notification>>>,
}

impl Notifier {
    pub fn notify(&self) {
        if let Some(channel) = &self.channel {
            channel.push(Notification {
                cq: self.address.load(Ordering::Acquire),
                cq_context: self.cq_context,
                events: Arc::clone(&self.events),
            });
        }
    }
}
