//! EV profiles of a device: making one opens its paths, and queue pairs use them.

use std::net::SocketAddr;

use openmrc_transport::PathEntry;
use openmrc_transport::mrc::{EvState, QueuePair};
use openmrc_transport::node::Slot;

use super::Engine;
use super::verbs::QpIo;
use crate::attr::QpAttr;
use crate::error::{Error, Result};
use crate::network::Network;
use crate::profiles::engine::{CcProfileConfig, EvProfileConfig, Paths, ProfileTable};
use crate::sys;

/// EV and congestion control profiles of a device. Number 0 of each is the device's own and always exists, except for
/// EV profiles in SRv6 mode, where a path ends at one node.
pub(crate) struct Profiles {
    pub ev: ProfileTable<Paths>,
    pub cc: ProfileTable<CcProfileConfig>,
}

impl Profiles {
    /// With the device's own: all the paths that it has from the start, and `cc`.
    pub fn new(net: &Network, cc: CcProfileConfig) -> Result<Self> {
        let own = match net.paths.is_empty() {
            true => None,
            false => {
                let entries = net.paths.iter().map(|path| PathEntry { ev: path.ev, port: path.port });
                let own = EvProfileConfig { paths: entries.collect(), ..EvProfileConfig::default() };
                Some(Paths::new(&own, |i| Ok(i as u16))?)
            }
        };
        Ok(Profiles {
            ev: ProfileTable::new("EV", own),
            cc: ProfileTable::new("congestion control", Some(cc)),
        })
    }

    /// The number of the EV profile with paths to a node where none is named: the device's own, or in SRv6 mode the
    /// first whose paths end there.
    fn number_to(&self, node: &[SocketAddr]) -> Result<u16> {
        let leads_there = |paths: &Paths| paths.peer.is_empty() || *paths.peer == *node;
        self.ev.find(leads_there).ok_or_else(|| {
            Error::invalid(format!("no EV profile has SRv6 paths to {node:?}: put one ONLINE first"))
        })
    }

    /// Paths to a node.
    pub fn paths_to(&self, node: &[SocketAddr]) -> Result<Paths> {
        self.ev.get(self.number_to(node)?)
    }

    /// The EV profile that a queue pair's attributes mean, and its number. Paths that end at one node must end at the
    /// queue pair's peer.
    pub fn of_attributes(&self, attr: &QpAttr) -> Result<(u16, Paths)> {
        let remote = attr.remote.as_deref().unwrap_or_default();
        let number = match attr.ev_profile_id.unwrap_or(0) {
            0 => self.number_to(remote)?,
            named => named,
        };
        let paths = self.ev.get(number)?;
        if !paths.peer.is_empty() && *paths.peer != *remote {
            return Err(Error::invalid(format!(
                "the paths of EV profile {number} end at {:?}, the queue pair's peer is {remote:?}",
                paths.peer
            )));
        }
        Ok((number, paths))
    }
}

impl Engine {
    /// Creates an EV profile and opens its paths, unless they are open.
    pub fn create_ev_profile(&mut self, config: &EvProfileConfig) -> Result<u16> {
        config.check_routes(self.config.entropy.is_srv6())?;
        let (net, datapath) = (&mut self.egress.net, &mut self.egress.datapath);
        let paths = Paths::new(config, |i| {
            datapath.open_path(net, config.paths[i], config.routes.get(i).copied(), &config.peer)
        })?;
        self.refresh_next_hops(sys::now());
        self.profiles.ev.add(paths)
    }

    /// Ends an EV profile that no queue pair uses.
    pub fn destroy_ev_profile(&mut self, id: u16) -> Result<()> {
        let linked = |io: &QpIo| io.link.as_ref().is_some_and(|link| link.profile == id);
        self.check_unused("EV", id, |io| io.attr.ev_profile_id == Some(id) || linked(io))?;
        self.profiles.ev.remove(id).map(drop)
    }

    /// Ends a congestion control profile that no queue pair uses.
    pub fn destroy_cc_profile(&mut self, id: u16) -> Result<()> {
        self.check_unused("congestion control", id, |io| io.attr.cc_profile_id == Some(id))?;
        self.profiles.cc.remove(id).map(drop)
    }

    /// A queue pair uses a profile from the step that names it until it is reset or destroyed.
    fn check_unused(&self, kind: &str, id: u16, uses: impl Fn(&QpIo) -> bool) -> Result<()> {
        self.verbs.check_unused(|| format!("{kind} profile {id}"), uses)
    }

    /// Profiles that a queue pair names must exist from then on.
    pub fn check_named_profiles(&self, attr: &QpAttr) -> Result<()> {
        if let Some(named) = attr.ev_profile_id.filter(|&id| id != 0) {
            self.profiles.ev.get(named)?;
        }
        attr.cc_profile_id.map_or(Ok(()), |named| self.profiles.cc.get(named).map(drop))
    }

    /// The states of paths at the queue pairs of these profiles.
    pub fn ev_states_of(&self, profiles: &[u16]) -> Vec<(PathEntry, EvState)> {
        let uses = |io: &QpIo| io.link.as_ref().is_some_and(|link| profiles.contains(&link.profile));
        let users = self.verbs.iter().filter(|(_, io)| !io.is_retired && uses(io));
        users.flat_map(|(slot, _)| self.qp_ev_states(slot).unwrap_or_default()).collect()
    }

    /// Switches a path off or on in every queue pair of a profile, and in those that are connected later; returns how
    /// many use it now.
    pub fn set_ev_denied(&mut self, profile: u16, path: PathEntry, denied: bool) -> Result<usize> {
        let known = &mut self.profiles.ev.get_mut(profile)?.denied;
        known.retain(|each| *each != path);
        if denied {
            known.push(path);
        }
        let uses = |io: &QpIo| io.link.as_ref().is_some_and(|link| link.profile == profile);
        let mut users = 0;
        for slot in self.verbs.slots() {
            if self.verbs.get(slot).is_some_and(uses) {
                let denied = self.node.update(slot, |qp: &mut QueuePair| qp.set_ev_denied(path, denied));
                users += usize::from(denied == Some(true));
            }
        }
        Ok(users)
    }

    /// Switches a path off or on in one queue pair; whether it uses the path.
    pub fn set_qp_ev_denied(&mut self, slot: Slot, path: PathEntry, denied: bool) -> bool {
        self.node.update(slot, |qp: &mut QueuePair| qp.set_ev_denied(path, denied)) == Some(true)
    }

    /// In SRv6 mode: of the paths of a profile, on ports that are up, how many have a next hop that has answered, and
    /// one that has not.
    pub fn next_hops_of(&self, profile: u16) -> Result<(usize, Option<String>)> {
        let paths = self.profiles.ev.get(profile)?;
        Ok(self.egress.datapath.next_hops_of(&self.egress.net, &paths))
    }
}
