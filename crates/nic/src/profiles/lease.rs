//! Who holds an EV profile: a queue pair from the step that names it, or a probe while it waits.

use std::net::SocketAddr;
use std::sync::Arc;

use super::control::Profiles;
use crate::error::Result;

/// A queue pair's hold on an EV profile: while it is out, the profile stays ONLINE.
pub struct EvLease {
    profiles: Arc<Profiles>,
    id: u64,
    number: Option<u16>,
}

impl EvLease {
    /// The engine's number of the profile: the attribute `ev_profile_id` of a queue pair. `None` in SRv6 mode, until the
    /// peer is known.
    pub fn number(&self) -> Option<u16> {
        self.number
    }

    /// Its paths to a peer, which stay while anybody holds them.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if the profile's paths end at another peer; those of making a profile of the engine.
    pub fn paths_to(&mut self, peer: &[SocketAddr]) -> Result<u16> {
        let mut tables = self.profiles.tables.lock();
        let (profile, online) = tables.online(self.id)?;
        if let Some(lasting) = online.lasting() {
            return Ok(lasting);
        }
        if let Some(number) = self.number.take() {
            online.release(&self.profiles.host, number);
        }
        let number = online.share(&self.profiles.host, self.id, profile, peer)?;
        self.number = Some(number);
        Ok(number)
    }
}

impl Drop for EvLease {
    fn drop(&mut self) {
        if let Ok((_, online)) = self.profiles.tables.lock().online(self.id) {
            online.leases -= 1;
            if let Some(number) = self.number {
                online.release(&self.profiles.host, number);
            }
        }
    }
}

impl Profiles {
    /// Takes an EV profile into use.
    ///
    /// # Errors
    /// [`crate::Error::Profile`] if it is not ONLINE.
    pub fn lease(self: &Arc<Self>, id: u64) -> Result<EvLease> {
        let mut tables = self.tables.lock();
        let (_, online) = tables.online(id)?;
        online.leases += 1;
        let number = online.lasting();
        Ok(EvLease { profiles: Arc::clone(self), id, number })
    }
}
