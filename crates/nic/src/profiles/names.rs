//! What a controller calls the paths of its profiles: events of paths find their profile and name here. Its lock is taken
//! with the engine's lock held.

use std::collections::HashMap;

use openmrc_transport::{EvChange, PathEntry};
use openmrc_wire::EvFormat;
use parking_lot::Mutex;

use super::ev::event_mask;
use super::layout::EvName;
use crate::events::PathEvent;

/// A change of an entropy value that a controller wants to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvEvent {
    /// Id of the profile; 0 is the device's own.
    pub id: u64,
    /// The value, as the controller names it.
    pub ev: EvName,
    /// What happened to it.
    pub change: EvChange,
}

/// A profile of the engine, as events need it.
pub(super) struct Named {
    pub id: u64,
    /// Bits of [`event_mask`].
    pub mask: u32,
    /// What the controller calls a path.
    pub names: HashMap<PathEntry, EvName>,
}

/// The names of paths, by the engine's number of their profile.
pub(super) struct Names {
    format: EvFormat,
    profiles: Mutex<HashMap<u16, Named>>,
}

impl Names {
    pub fn new(format: EvFormat) -> Self {
        Names { format, profiles: Mutex::default() }
    }

    pub fn set(&self, number: u16, named: Named) {
        self.profiles.lock().insert(number, named);
    }

    pub fn set_mask(&self, number: u16, mask: u32) {
        if let Some(named) = self.profiles.lock().get_mut(&number) {
            named.mask = mask;
        }
    }

    pub fn remove(&self, number: u16) {
        self.profiles.lock().remove(&number);
    }

    /// The event as the controller knows it; `None` if its profile's mask holds it back. The device's own profiles, which
    /// no controller made, tell everything.
    pub fn event(&self, event: &PathEvent) -> Option<EvEvent> {
        let bit = match event.change {
            EvChange::AssumedBad => event_mask::ASSUMED_BAD,
            EvChange::Good => event_mask::GOOD,
        };
        let path = PathEntry { port: event.port, ev: event.ev };
        let own = EvName::of_path(self.format, path);
        let profiles = self.profiles.lock();
        let (id, ev) = match profiles.get(&event.profile) {
            None => (0, own),
            Some(named) if named.mask & bit != 0 => {
                (named.id, named.names.get(&path).copied().unwrap_or(own))
            }
            Some(_) => return None,
        };
        Some(EvEvent { id, ev, change: event.change })
    }
}
