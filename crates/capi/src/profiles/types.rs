//! The profiles of a device as data, by id, and the steps between their states. What is done with them is in the files
//! of each kind; they need the open device, which has these tables.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use openmrc_nic::SegmentRoute;
use openmrc_transport::PathEntry;
use openmrc_wire::expansion::EvField;
use parking_lot::{Mutex, MutexGuard};

use super::routes::Routes;
use crate::abi::ctl::{EV_MAX_BYTES, MrcCtlCcNsccCfg, MrcCtlEv};
use crate::errno::{EINVAL, Errno, Result};

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

/// An EV format profile.
#[derive(Clone, Default)]
pub struct Format {
    pub state: State,
    pub mode: Option<i32>,
    /// Bits of each field; none while they were not given.
    pub widths: Vec<u32>,
}

/// An EV profile.
#[derive(Clone, Default)]
pub struct EvProfile {
    pub state: State,
    pub mode: Option<i32>,
    pub format: Option<u64>,
    pub count: Option<u32>,
    pub min_active: Option<u32>,
    pub event_mask: i32,
    /// As they were given; none: each field of the format with a full mask.
    pub fields: Option<Vec<EvField>>,
    /// In EXPLICIT mode from OFFLINE on, in the others while it is ONLINE.
    pub evs: Vec<MrcCtlEv>,
    pub denied: HashSet<[u8; EV_MAX_BYTES + 1]>,
    /// What it is for the NIC while it is ONLINE.
    pub online: Online,
}

/// Names an entropy value in sets and maps.
pub fn key(ev: &MrcCtlEv) -> [u8; EV_MAX_BYTES + 1] {
    let mut key = [0; EV_MAX_BYTES + 1];
    key[..EV_MAX_BYTES].copy_from_slice(&ev.val);
    key[EV_MAX_BYTES] = ev.port;
    key
}

/// Paths of entropy values.
#[derive(Clone, Default)]
pub struct Carried {
    /// What packets carry of each value, in their order.
    pub paths: Vec<PathEntry>,
    /// SRv6 mode: the route of each. Empty in the other modes.
    pub routes: Vec<SegmentRoute>,
}

/// A profile of the NIC.
#[derive(Clone)]
pub struct Made {
    pub number: u16,
    /// SRv6 mode: the node where the paths end. Empty in the other modes.
    pub peer: Vec<SocketAddr>,
    /// Leases that are out.
    pub users: usize,
}

/// An EV profile that is ONLINE.
#[derive(Clone, Default)]
pub struct Online {
    /// Of the profile's values, in their order.
    pub carried: Carried,
    /// SRv6 mode: one for each peer.
    pub made: Vec<Made>,
}

/// A congestion control profile.
#[derive(Clone, Default)]
pub struct CcProfile {
    pub state: State,
    /// `Some(true)`: NSCC, `Some(false)`: none.
    pub nscc: Option<bool>,
    pub config: Option<MrcCtlCcNsccCfg>,
    /// The NIC's number while it is ONLINE.
    pub number: Option<u16>,
    /// What the last query points to.
    pub shown: Option<Arc<MrcCtlCcNsccCfg>>,
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
    pub formats: Table<Format>,
    pub evs: Table<EvProfile>,
    pub ccs: Table<CcProfile>,
}

impl Profiles {
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// The NIC's number of an EV profile that is ONLINE. `None` in SRv6 mode, where each peer has its own
    /// ([`super::online::Lease`]).
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
