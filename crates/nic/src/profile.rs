//! EV and congestion control profiles of a context, by number; number 0 of each is the device's own and always there.

use std::sync::Arc;

use openmrc_transport::mrc::CcProfile;
use openmrc_transport::{EvProfile, PathEntry};

use crate::error::{Error, Result};

/// Which paths the queue pairs of a profile use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvProfileConfig {
    /// The paths: entropy values, which are UDP source ports, and the ports they leave by.
    pub paths: Vec<PathEntry>,
    /// Paths in rotation, at most 256; default half of `paths`, at most 128.
    pub active: Option<u16>,
    /// Paths in reserve; default the rest, at most as many as are active.
    pub backup: Option<u16>,
    /// Below so many usable paths in rotation, condemned ones are tried again; default a quarter of `active`.
    pub min_active: Option<u16>,
}

/// An EV profile and the sockets of its paths.
#[derive(Clone)]
pub(crate) struct Paths {
    pub profile: Arc<EvProfile>,
    /// By path number: index of the sending socket.
    pub sockets: Arc<[u16]>,
    pub active: u16,
    pub backup: u16,
    pub min_active: u16,
}

impl Paths {
    /// `socket_of` finds or opens the socket of a path.
    pub fn new(
        config: &EvProfileConfig,
        mut socket_of: impl FnMut(PathEntry) -> Result<u16>,
    ) -> Result<Self> {
        let profile = EvProfile::new(&config.paths).map_err(|e| Error::invalid(e.to_string()))?;
        let sockets = profile.entries().iter().map(|&p| socket_of(p)).collect::<Result<Vec<_>>>()?;
        let usable = (profile.paths_per_port() * profile.ports()).min(256) as u16;
        let active = config.active.unwrap_or(usable.div_ceil(2).min(128));
        let backup = config.backup.unwrap_or(usable.saturating_sub(active).min(active));
        if active == 0 || u32::from(active) + u32::from(backup) > 256 {
            return Err(Error::invalid(format!(
                "{active} paths in rotation and {backup} in reserve: at least 1 in rotation, at most 256 together"
            )));
        }
        if active + backup > usable {
            return Err(Error::invalid(format!(
                "{active} paths in rotation and {backup} in reserve: the profile has {usable}, equally many per port"
            )));
        }
        let min_active = config.min_active.unwrap_or(active / 4);
        Ok(Paths { profile: Arc::new(profile), sockets: sockets.into(), active, backup, min_active })
    }
}

/// A table of profiles, numbered from 0.
pub(crate) struct Profiles<T> {
    what: &'static str,
    slots: Vec<Option<T>>,
}

impl<T: Clone> Profiles<T> {
    pub fn new(what: &'static str, own: T) -> Self {
        Profiles { what, slots: vec![Some(own)] }
    }

    pub fn add(&mut self, profile: T) -> Result<u16> {
        let free = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
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

/// Congestion control profiles.
pub(crate) type CcProfiles = Profiles<Arc<CcProfile>>;
