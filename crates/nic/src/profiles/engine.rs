//! EV and congestion control profiles as the engine has them, by number; number 0 of each is the device's own and
//! always exists, except for EV profiles in SRv6 mode, where a path ends at one node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel};
use openmrc_transport::{EvProfile, PathEntry};

use openmrc_sockets::error;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::path::SegmentRoute;
use crate::sys;

/// Default size of the active set (docs/spec/paths.md, "EV set"). The backup set has the same size.
pub(crate) const DEFAULT_ACTIVE: u16 = 128;

/// Which paths the queue pairs of a profile use.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EvProfileConfig {
    /// The paths: entropy values and the ports they leave by.
    pub paths: Vec<PathEntry>,
    /// SRv6 mode: the route of each path. Empty in the other modes.
    pub routes: Vec<SegmentRoute>,
    /// SRv6 mode: the node where they end, by its address on each port. Empty in the other modes.
    pub peer: Vec<SocketAddr>,
    /// Paths in rotation, at most 256; default half of `paths`, at most 128.
    pub active: Option<u16>,
    /// Size of the backup set, at most 256; default all other paths, at most as many as are active.
    pub backup: Option<u16>,
    /// If fewer usable paths are in rotation, condemned ones are tried again; default a quarter of `active`.
    pub min_active: Option<u16>,
}

impl EvProfileConfig {
    /// Routes are for SRv6 mode, and needed there.
    pub(crate) fn check_routes(&self, srv6: bool) -> Result<()> {
        let routes = if srv6 { self.paths.len() } else { 0 };
        if self.routes.len() == routes && self.peer.is_empty() == (routes == 0) {
            return Ok(());
        }
        Err(Error::invalid(match srv6 {
            false => "only a device in SRv6 mode has paths with routes".to_owned(),
            true => format!(
                "{routes} paths in SRv6 mode need as many routes, not {}, and a peer where they end",
                self.routes.len()
            ),
        }))
    }
}

/// An EV profile and the device's paths that it uses.
#[derive(Clone)]
pub(crate) struct Paths {
    pub profile: Arc<EvProfile>,
    /// By path number in the profile: that in the device.
    pub numbers: Arc<[u16]>,
    /// SRv6 mode: the node where they end.
    pub peer: Arc<[SocketAddr]>,
    /// Those that the controller denies, also to queue pairs that are connected later.
    pub denied: Vec<PathEntry>,
    pub active: u16,
    pub backup: u16,
    pub min_active: u16,
}

impl Paths {
    /// `number_of` finds or opens a path of the device, by its place in the configuration.
    pub fn new(config: &EvProfileConfig, mut number_of: impl FnMut(usize) -> Result<u16>) -> Result<Self> {
        let profile = EvProfile::new(&config.paths).map_err(|e| Error::invalid(e.to_string()))?;
        // The profile groups them by port, and leaves those of a port in order.
        let mut order: Vec<usize> = (0..config.paths.len()).collect();
        order.sort_by_key(|&i| config.paths[i].port);
        let numbers = order.into_iter().map(&mut number_of).collect::<Result<Vec<_>>>()?;
        const MOST: u16 = PathConfig::MOST;
        let usable = (profile.paths_per_port() * profile.ports()).min(2 * usize::from(MOST)) as u16;
        let active = config.active.unwrap_or(usable.div_ceil(2).min(DEFAULT_ACTIVE));
        let backup = config.backup.unwrap_or(usable.saturating_sub(active).min(active));
        if !(1..=MOST).contains(&active) || backup > MOST {
            return Err(Error::invalid(format!(
                "{active} paths in rotation and {backup} in reserve: 1 to {MOST} in rotation, at most {MOST} in reserve"
            )));
        }
        if active + backup > usable {
            return Err(Error::invalid(format!(
                "{active} paths in rotation and {backup} in reserve: the profile has {usable}, equally many per port"
            )));
        }
        let min_active = config.min_active.unwrap_or(active / 4);
        Ok(Paths {
            profile: Arc::new(profile),
            numbers: numbers.into(),
            peer: config.peer.as_slice().into(),
            denied: Vec::new(),
            active,
            backup,
            min_active,
        })
    }

    /// Every path as (port, number).
    pub fn iter(&self) -> impl Iterator<Item = (u8, u16)> + '_ {
        self.profile.entries().iter().zip(&*self.numbers).map(|(entry, &number)| (entry.port, number))
    }
}

/// A table of profiles, numbered from 0.
pub(crate) struct ProfileTable<T> {
    what: &'static str,
    slots: Vec<Option<T>>,
}

impl<T: Clone> ProfileTable<T> {
    pub fn new(what: &'static str, own: Option<T>) -> Self {
        ProfileTable { what, slots: vec![own] }
    }

    /// The number of one that fits.
    pub fn find(&self, fits: impl Fn(&T) -> bool) -> Option<u16> {
        self.slots.iter().position(|p| p.as_ref().is_some_and(&fits)).map(|i| i as u16)
    }

    pub fn add(&mut self, profile: T) -> Result<u16> {
        let others = self.slots.iter().skip(1).position(Option::is_none);
        let free = others.map(|i| i + 1).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let id =
            u16::try_from(free).map_err(|_| Error::invalid(format!("too many {} profiles", self.what)))?;
        self.slots[free] = Some(profile);
        Ok(id)
    }

    pub fn get(&self, id: u16) -> Result<T> {
        let found = self.slots.get(usize::from(id)).and_then(Option::as_ref);
        found.cloned().ok_or_else(|| Error::invalid(format!("there is no {} profile {id}", self.what)))
    }

    pub fn get_mut(&mut self, id: u16) -> Result<&mut T> {
        let found = self.slots.get_mut(usize::from(id)).and_then(Option::as_mut);
        found.ok_or_else(|| Error::invalid(format!("there is no {} profile {id}", self.what)))
    }

    pub fn remove(&mut self, id: u16) -> Result<T> {
        if id == 0 {
            return Err(Error::invalid(format!("{} profile 0 is the device's own", self.what)));
        }
        self.get(id)?;
        self.slots[usize::from(id)]
            .take()
            .ok_or_else(|| Error::invalid(format!("there is no {} profile {id}", self.what)))
    }
}

/// A congestion control profile, and the paths that it is meant for.
#[derive(Clone, Debug)]
pub struct CcProfileConfig {
    /// The algorithm and its parameters.
    pub cc: Arc<CcProfile>,
    /// What is known of the paths.
    pub model: PathModel,
}

/// How long making an EV profile waits for the other next hops if at least one has answered ...
const SOME_NEXT_HOPS: Duration = Duration::from_millis(100);
/// ... and if none has.
const ANY_NEXT_HOP: Duration = Duration::from_secs(1);

impl Driver {
    /// See [`crate::Context::create_ev_profile`].
    pub fn create_ev_profile(&self, config: &EvProfileConfig) -> Result<u16> {
        let profile = self.lock_open()?.create_ev_profile(config)?;
        let started = Instant::now();
        loop {
            let (answered, silent) = {
                let mut engine = self.lock_open()?;
                engine.refresh_next_hops(sys::now());
                engine.next_hops_of(profile)?
            };
            let Some(silent) = silent else { break };
            // A plane whose next hop is silent is probably down. The others can be used.
            if answered > 0 && started.elapsed() >= SOME_NEXT_HOPS {
                break;
            }
            if started.elapsed() >= ANY_NEXT_HOP {
                self.destroy_ev_profile(profile)?;
                let what = format!("no neighbour answers for {silent}");
                return Err(Error::os(what, error::host_unreachable()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.kick();
        Ok(profile)
    }

    /// See [`crate::Context::destroy_ev_profile`].
    pub fn destroy_ev_profile(&self, id: u16) -> Result<()> {
        self.lock_open()?.destroy_ev_profile(id)
    }

    /// See [`crate::Context::set_ev_denied`].
    pub fn set_ev_denied(&self, profile: u16, path: PathEntry, denied: bool) -> Result<usize> {
        let users = self.lock_open()?.set_ev_denied(profile, path, denied)?;
        self.shared.kick();
        Ok(users)
    }
}

#[cfg(test)]
mod tests {
    use openmrc_wire::Ev;

    use super::*;

    fn sets(paths: usize, active: Option<u16>, backup: Option<u16>) -> Result<(u16, u16)> {
        let paths = (0..paths).map(|i| PathEntry { ev: Ev(i as u32 + 1), port: (i % 4) as u8 }).collect();
        let config = EvProfileConfig { paths, active, backup, ..EvProfileConfig::default() };
        Paths::new(&config, |i| Ok(i as u16)).map(|paths| (paths.active, paths.backup))
    }

    #[test]
    fn up_to_256_paths_rotate_with_as_many_in_reserve() {
        assert_eq!(sets(8, None, None).unwrap(), (4, 4));
        assert_eq!(sets(1000, None, None).unwrap(), (128, 128));
        assert_eq!(sets(512, Some(256), None).unwrap(), (256, 256));
        assert_eq!(sets(512, Some(256), Some(0)).unwrap(), (256, 0));
        assert!(sets(1000, Some(257), Some(0)).is_err());
        assert!(sets(1000, Some(1), Some(257)).is_err());
        assert!(sets(1000, Some(0), None).is_err());
        assert!(sets(8, Some(8), Some(1)).is_err(), "the profile has no ninth path");
    }
}
