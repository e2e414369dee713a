//! Where events of paths go: to the EV event queues, under the names that the program gave the paths (spec: C interface,
//! section 6.6). Its locks are taken with the engine's lock held.

use std::collections::HashMap;
use std::sync::Arc;

use openmrc_nic as nic;
use openmrc_transport::{EvChange, PathEntry};
use openmrc_wire::EvFormat;
use parking_lot::Mutex;

use crate::abi::ctl::{EV_ASSUMED_BAD, EV_GOOD, MrcCtlEv};
use crate::ev_events::EvEvents;

/// The bits of a mode mask for a format.
pub fn mode_of(format: EvFormat) -> i32 {
    use crate::abi::ctl::{EV_FMT_MODE_SRV6, EV_FMT_MODE_STEV, EV_FMT_MODE_UDP};
    match format {
        EvFormat::Udp => EV_FMT_MODE_UDP,
        EvFormat::Structured => EV_FMT_MODE_STEV,
        EvFormat::Srv6 | EvFormat::Srv6Srh => EV_FMT_MODE_SRV6,
    }
}

/// Whether a device writes SRv6 headers.
pub fn is_srv6(format: EvFormat) -> bool {
    matches!(format, EvFormat::Srv6 | EvFormat::Srv6Srh)
}

/// What packets carry of an entropy value, as the program's string of bits.
pub fn named(format: EvFormat, path: PathEntry) -> MrcCtlEv {
    let mut ev = MrcCtlEv::UNPOPULATED;
    match format {
        EvFormat::Udp => ev.val[..2].copy_from_slice(&(path.ev.0 as u16).to_be_bytes()),
        _ => ev.val[..4].copy_from_slice(&path.ev.0.to_be_bytes()),
    }
    ev.port = path.port + 1;
    ev
}

/// An EV profile that is ONLINE, as events need it.
pub struct Route {
    pub id: u64,
    /// Changes that are events: bits of GOOD and ASSUMED_BAD.
    pub mask: i32,
    /// What the program calls a path; those that are missing are called by what packets carry.
    pub names: HashMap<PathEntry, MrcCtlEv>,
}

/// Where events of paths go.
#[derive(Default)]
pub struct Routes {
    /// By the NIC's number of the profile.
    profiles: Mutex<HashMap<u16, Route>>,
    queues: Mutex<Vec<Arc<EvEvents>>>,
}

impl Routes {
    pub fn set(&self, number: u16, route: Route) {
        self.profiles.lock().insert(number, route);
    }

    pub fn set_mask(&self, number: u16, mask: i32) {
        if let Some(route) = self.profiles.lock().get_mut(&number) {
            route.mask = mask;
        }
    }

    pub fn remove(&self, number: u16) {
        self.profiles.lock().remove(&number);
    }

    pub fn add_queue(&self, queue: &Arc<EvEvents>) {
        let mut queues = self.queues.lock();
        queues.retain(|each| !each.is_closed());
        queues.push(Arc::clone(queue));
    }

    /// A path has changed.
    pub fn dispatch(&self, format: EvFormat, event: nic::PathEvent) {
        let state = match event.change {
            EvChange::AssumedBad => EV_ASSUMED_BAD,
            EvChange::Good => EV_GOOD,
        };
        let path = PathEntry { port: event.port, ev: event.ev };
        let (id, ev) = match self.profiles.lock().get(&event.profile) {
            // The device's own profile tells everything.
            None if event.profile == 0 => (0, named(format, path)),
            Some(route) if route.mask & state != 0 => {
                (route.id, route.names.get(&path).copied().unwrap_or_else(|| named(format, path)))
            }
            _ => return,
        };
        self.queues.lock().iter().for_each(|queue| queue.push(id, ev, state));
    }
}
