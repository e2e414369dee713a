//! What an EV profile that is ONLINE is for the NIC: one profile of the NIC, or in SRv6 mode, where paths end at one
//! node, one for each peer of the queue pairs that use it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use openmrc_nic::EvProfileConfig;

use super::routes::Route;
use super::types::{Carried, EvProfile, Made, Online, State, key};
use crate::context::Context;
use crate::errno::{EBUSY, EINVAL, Result};

impl Online {
    pub fn new(carried: Carried) -> Self {
        Online { carried, made: Vec::new() }
    }

    /// The NIC's numbers of it.
    pub fn numbers(&self) -> impl Iterator<Item = u16> + '_ {
        self.made.iter().map(|made| made.number)
    }

    /// The NIC's number of paths that lead to every node.
    pub fn number_to_all(&self) -> Option<u16> {
        self.made.iter().find(|made| made.peer.is_empty()).map(|made| made.number)
    }

    /// Destroys it at the NIC.
    ///
    /// # Errors
    /// EBUSY while queue pairs use it.
    pub fn end(&mut self, context: &Context) -> Result<()> {
        if self.made.iter().any(|made| made.users > 0) {
            return Err(EBUSY);
        }
        while let Some(made) = self.made.last() {
            context.nic.destroy_ev_profile(made.number)?;
            context.profiles.routes.remove(made.number);
            self.made.pop();
        }
        Ok(())
    }

    /// Removes a user. A profile without users is destroyed; if a queue pair that named no profile still uses it,
    /// this happens later.
    fn release(&mut self, context: &Context, number: u16) {
        let Some(place) = self.made.iter().position(|made| made.number == number) else { return };
        self.made[place].users -= 1;
        if self.made[place].users == 0 && context.nic.destroy_ev_profile(number).is_ok() {
            context.profiles.routes.remove(number);
            self.made.remove(place);
        }
    }
}

impl EvProfile {
    /// Makes a profile of the NIC: in SRv6 mode with paths to a peer, otherwise with paths to every node (no peer).
    ///
    /// # Errors
    /// Those of the NIC: ENETUNREACH if a path has no route, EHOSTUNREACH if no neighbour answers.
    pub fn make(&mut self, context: &Context, id: u64, peer: &[SocketAddr]) -> Result<u16> {
        let Carried { paths, routes } = &self.online.carried;
        let most = (paths.len() as u32).div_ceil(2).min(128);
        let config = EvProfileConfig {
            paths: paths.clone(),
            routes: routes.clone(),
            peer: peer.to_vec(),
            min_active: self.min_active.map(|least| least.min(most) as u16),
            ..EvProfileConfig::default()
        };
        let number = context.nic.create_ev_profile(&config)?;
        for (ev, path) in self.evs.iter().zip(paths) {
            if self.denied.contains(&key(ev)) {
                context.nic.set_ev_denied(number, *path, true)?;
            }
        }
        let names: HashMap<_, _> = paths.iter().copied().zip(self.evs.iter().copied()).collect();
        context.profiles.routes.set(number, Route { id, mask: self.event_mask, names });
        self.online.made.push(Made { number, peer: peer.to_vec(), users: 0 });
        Ok(number)
    }
}

/// SRv6 mode: a profile's paths to a peer, which stay while somebody uses them.
pub struct Lease {
    context: Arc<Context>,
    id: u64,
    /// The NIC's number.
    pub number: u16,
}

impl Lease {
    /// # Errors
    /// EINVAL if the profile is not ONLINE; those of [`EvProfile::make`].
    pub fn take(context: &Arc<Context>, id: u64, peer: &[SocketAddr]) -> Result<Self> {
        let mut tables = context.profiles.lock();
        let profile =
            tables.evs.get_mut(id).filter(|profile| profile.state == State::Online).ok_or(EINVAL)?;
        let known = profile.online.made.iter().find(|made| made.peer == peer).map(|made| made.number);
        let number = known.map_or_else(|| profile.make(context, id, peer), Ok)?;
        if let Some(made) = profile.online.made.iter_mut().find(|made| made.number == number) {
            made.users += 1;
        }
        Ok(Lease { context: Arc::clone(context), id, number })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(profile) = self.context.profiles.lock().evs.get_mut(self.id) {
            profile.online.release(&self.context, self.number);
        }
    }
}
