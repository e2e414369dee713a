//! What an EV profile that is ONLINE is for the engine: one profile with paths to every node, or in SRv6 mode, where paths
//! end at one node, one to the profile's peer, or to the peer of each queue pair that uses it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::engine::EvProfileConfig;
use super::ev::EvProfile;
use super::names::{Named, Names};
use crate::driver::Driver;
use crate::error::{Error, Result};

/// The engine, and the names of its profiles' paths.
pub(super) struct Host {
    pub driver: Arc<Driver>,
    pub names: Names,
}

/// A profile of the engine.
#[derive(Clone, Debug)]
struct Made {
    number: u16,
    /// SRv6 mode: the node where the paths end. Empty in the other modes.
    peer: Vec<SocketAddr>,
    /// Leases that are out. None: it stays while the profile is ONLINE.
    users: Option<usize>,
}

/// The engine's profiles of an EV profile.
#[derive(Clone, Default, Debug)]
pub(super) struct Online {
    made: Vec<Made>,
    /// Leases of the profile that are out.
    pub leases: usize,
}

impl Online {
    /// The engine's numbers.
    pub fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.made.iter().map(|made| made.number)
    }

    /// That which serves every queue pair that may use the profile.
    pub fn lasting(&self) -> Option<u16> {
        self.made.iter().find(|made| made.users.is_none()).map(|made| made.number)
    }

    /// Makes a profile of the engine, which waits for its next hops in SRv6 mode.
    fn make(
        &mut self,
        host: &Host,
        id: u64,
        profile: &EvProfile,
        peer: &[SocketAddr],
        users: Option<usize>,
    ) -> Result<u16> {
        let carried = &profile.carried;
        let config = EvProfileConfig {
            paths: carried.paths.clone(),
            routes: carried.routes.clone(),
            peer: peer.to_vec(),
            active: profile.attr.active,
            min_active: Some(profile.least_in_rotation()),
            ..EvProfileConfig::default()
        };
        let number = host.driver.create_ev_profile(&config)?;
        for (_, path) in profile.named_paths().filter(|(ev, _)| profile.is_denied(ev)) {
            host.driver.set_ev_denied(number, path, true)?;
        }
        let names: HashMap<_, _> = profile.named_paths().map(|(ev, path)| (path, ev)).collect();
        host.names.set(number, Named { id, mask: profile.event_mask(), names });
        self.made.push(Made { number, peer: peer.to_vec(), users });
        Ok(number)
    }

    /// Makes what a profile that goes ONLINE needs at once.
    ///
    /// # Errors
    /// Those of the engine: a source port in use, or in SRv6 mode a path without a route or a silent next hop.
    pub fn begin(host: &Host, id: u64, profile: &EvProfile) -> Result<Self> {
        let mut online = Online::default();
        let peer = profile.attr.peer.as_deref().unwrap_or_default();
        if !peer.is_empty() || !host.driver.shared.config.entropy.is_srv6() {
            online.make(host, id, profile, peer, None)?;
        }
        Ok(online)
    }

    /// The engine's profile with paths to a peer, which gets one more lease.
    ///
    /// # Errors
    /// As [`Online::begin`].
    pub fn share(&mut self, host: &Host, id: u64, profile: &EvProfile, peer: &[SocketAddr]) -> Result<u16> {
        match self.made.iter_mut().find(|made| made.peer == peer) {
            Some(made) => {
                made.users = made.users.map(|users| users + 1);
                Ok(made.number)
            }
            None => self.make(host, id, profile, peer, Some(1)),
        }
    }

    /// Destroys it at the engine.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it.
    pub fn end(&mut self, host: &Host, id: u64) -> Result<()> {
        if self.leases > 0 {
            return Err(Error::Busy(format!("EV profile {id} is used by {} queue pairs", self.leases)));
        }
        while let Some(made) = self.made.last() {
            host.driver.destroy_ev_profile(made.number)?;
            host.names.remove(made.number);
            self.made.pop();
        }
        Ok(())
    }

    /// A lease of paths to a peer ends. A profile of the engine without leases is destroyed; if a queue pair that named
    /// no profile still uses it, this happens later.
    pub fn release(&mut self, host: &Host, number: u16) {
        let Some(place) = self.made.iter().position(|made| made.number == number) else { return };
        let Some(users) = &mut self.made[place].users else { return };
        *users -= 1;
        if *users == 0 && host.driver.destroy_ev_profile(number).is_ok() {
            host.names.remove(number);
            self.made.remove(place);
        }
    }
}
