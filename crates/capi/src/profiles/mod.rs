//! Profiles of a device, by the ids that programs pick (spec: C interface, section 6.4). Every id exists, in INIT, until
//! it is configured; id 0 is the device's own. Events of paths find their profile in [`Routes`].
//!
//! The tables' lock is held while the NIC is called; that of the routes is taken with the engine's lock held.

pub mod cc;
pub mod ev;
pub mod expansion;
pub mod format;
mod generate;
pub mod online;

use std::collections::HashMap;
use std::sync::Arc;

use openmrc_nic as nic;
use openmrc_transport::{EvChange, PathEntry};
use openmrc_wire::EvFormat;
use parking_lot::{Mutex, MutexGuard};

use crate::abi::ctl::{EV_ASSUMED_BAD, EV_GOOD, MrcCtlEv};
use crate::errno::{EINVAL, Errno, Result};
use crate::ev_events::EvEvents;

/// Most profiles of a kind that are not in INIT.
pub const MOST: usize = openmrc_nic::limits::MAX_PROFILES as usize;

const ENOSPC: Errno = Errno(libc::ENOSPC);

/// State of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    #[default]
    Init,
    Offline,
    Online,
}

impl State {
    pub fn code(self) -> i32 {
        self as i32
    }

    fn of(code: i32) -> Result<Self> {
        [State::Init, State::Offline, State::Online].into_iter().find(|s| s.code() == code).ok_or(EINVAL)
    }

    /// Whether there is a step between the two.
    fn can_go(self, to: State) -> bool {
        self == to
            || matches!(
                (self, to),
                (State::Init, State::Offline)
                    | (State::Offline, State::Online | State::Init)
                    | (State::Online, State::Offline)
            )
    }
}

/// What a call wants of a profile's state.
#[derive(Clone, Copy)]
pub struct Move {
    pub to: Option<i32>,
    /// What the program takes the present state for.
    pub from: Option<i32>,
}

impl Move {
    /// The state to go to.
    ///
    /// # Errors
    /// EINVAL if there is no such step, or the present state is another.
    pub fn target(self, state: State) -> Result<State> {
        if self.from.is_some_and(|from| from != state.code()) {
            return Err(EINVAL);
        }
        let to = self.to.map_or(Ok(state), State::of)?;
        if state.can_go(to) { Ok(to) } else { Err(EINVAL) }
    }
}

/// Profiles of one kind.
pub struct Table<T> {
    entries: HashMap<u64, T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: HashMap::new() }
    }
}

impl<T: Default + Clone> Table<T> {
    pub fn get(&self, id: u64) -> T {
        self.entries.get(&id).cloned().unwrap_or_default()
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entries.get_mut(&id)
    }

    /// Takes the place of an id, or gives it back.
    pub fn set(&mut self, id: u64, profile: T, state: State) {
        if state == State::Init {
            self.entries.remove(&id);
        } else {
            self.entries.insert(id, profile);
        }
    }

    /// # Errors
    /// ENOSPC if one more does not fit.
    pub fn check_room(&self, id: u64) -> Result<()> {
        if self.entries.len() < MOST || self.entries.contains_key(&id) { Ok(()) } else { Err(ENOSPC) }
    }

    pub fn ids(&self) -> Vec<u64> {
        self.entries.keys().copied().collect()
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }
}

/// The profiles of one open device.
#[derive(Default)]
pub struct Profiles {
    tables: Mutex<Tables>,
    pub routes: Arc<Routes>,
}

/// Profiles of all kinds.
#[derive(Default)]
pub struct Tables {
    pub formats: Table<format::Format>,
    pub evs: Table<ev::EvProfile>,
    pub ccs: Table<cc::CcProfile>,
}

impl Profiles {
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// The NIC's number of an EV profile that is ONLINE. `None` in SRv6 mode, where each peer has its own
    /// ([`online::Lease`]).
    pub fn ev_number(&self, id: u64) -> Result<Option<u16>> {
        if id == 0 {
            return Ok(Some(0));
        }
        let profile = self.lock().evs.get(id);
        if profile.state == State::Online { Ok(profile.online.number_to_all()) } else { Err(EINVAL) }
    }

    /// The NIC's number of a CC profile that is ONLINE.
    pub fn cc_number(&self, id: u64) -> Result<u16> {
        if id == 0 { Ok(0) } else { self.lock().ccs.get(id).number.ok_or(EINVAL) }
    }
}

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
    pub fn tell(&self, format: EvFormat, event: nic::PathEvent) {
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
