//! Completion queues of EV events: bounded, with a count of what did not fit (docs/spec/c-interface.md, section 6.6).

use std::collections::VecDeque;
use std::sync::Arc;

use openmrc_nic::profiles::EvEvent;
use openmrc_transport::EvChange;
use parking_lot::Mutex;

use crate::abi::ctl::{EV_ASSUMED_BAD, EV_GOOD, MrcCtlEv, MrcCtlEvEvent};
use crate::ctl::translate::ev_for;
use crate::notifier::Notifier;

/// The events of one queue.
pub struct EvEvents {
    state: Mutex<State>,
    capacity: usize,
    notifier: Notifier,
}

#[derive(Default)]
struct State {
    events: VecDeque<MrcCtlEvEvent>,
    /// Lost since the last that was kept.
    lost: u32,
    armed: bool,
    closed: bool,
}

impl EvEvents {
    pub fn new(capacity: usize, notifier: Notifier) -> Self {
        EvEvents { state: Mutex::default(), capacity, notifier }
    }

    pub fn push(&self, profile_id: u64, ev: MrcCtlEv, state: i32) {
        let mut queue = self.state.lock();
        if queue.closed {
            return;
        }
        if queue.events.len() >= self.capacity {
            queue.lost = queue.lost.saturating_add(1);
            return;
        }
        let drop_count = std::mem::take(&mut queue.lost);
        queue.events.push_back(MrcCtlEvEvent { profile_id, ev, drop_count, state });
        if std::mem::take(&mut queue.armed) {
            self.notifier.notify();
        }
    }

    /// Raises a notification at the next event, or at once if one waits.
    pub fn arm(&self) {
        let mut queue = self.state.lock();
        if queue.events.is_empty() {
            queue.armed = true;
        } else {
            self.notifier.notify();
        }
    }

    /// Removes up to `most` events.
    pub fn take(&self, most: usize) -> Vec<MrcCtlEvEvent> {
        let mut queue = self.state.lock();
        let n = queue.events.len().min(most);
        queue.events.drain(..n).collect()
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// No event is added any more.
    pub fn close(&self) {
        self.state.lock().closed = true;
    }
}

/// The EV event queues of a device: every event goes to each. Its locks are taken with the engine's lock held.
#[derive(Default)]
pub struct EvQueues(Mutex<Vec<Arc<EvEvents>>>);

impl EvQueues {
    pub fn add(&self, queue: &Arc<EvEvents>) {
        let mut queues = self.0.lock();
        queues.retain(|each| !each.is_closed());
        queues.push(Arc::clone(queue));
    }

    pub fn push(&self, event: &EvEvent) {
        let state = match event.change {
            EvChange::AssumedBad => EV_ASSUMED_BAD,
            EvChange::Good => EV_GOOD,
        };
        self.0.lock().iter().for_each(|queue| queue.push(event.id, ev_for(Some(event.ev)), state));
    }
}
