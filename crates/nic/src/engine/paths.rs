//! EV profiles and the device's paths: opening them, finding the one that is meant, and keeping SRv6 mode's next hops.

use std::net::IpAddr;
use std::sync::Arc;

use openmrc_transport::{PathEntry, Time};
use openmrc_wire::encap::{Encapsulation, PathHeaders};
use openmrc_wire::{Ev, EvFormat};

use super::{Engine, Qp};
use crate::attr::QpAttr;
use crate::device::MAX_PATHS;
use crate::error::{Error, Result};
use crate::path::{SegmentRoute, Srv6Path, TxPath, Via};
use crate::profile::{EvProfileConfig, Paths};
use crate::socket::TxSocket;
use crate::sys;

/// Of both IP headers in SRv6 mode, as the kernel's own packets have it.
const HOP_LIMIT: u8 = 64;

/// Most paths of a device in SRv6 mode, where they cost some memory each, but no descriptor.
const MAX_SRV6_PATHS: usize = u16::MAX as usize;

impl Engine {
    /// The number of a path; where it ends at one node, that node has to be told by [`Engine::path_to`].
    pub(super) fn path_number(&self, entry: PathEntry) -> Option<u16> {
        self.paths.iter().position(|p| p.ev == entry.ev && p.port == entry.port).map(|i| i as u16)
    }

    /// The number of a path to this peer.
    pub(super) fn path_to(&self, peer: u32, entry: PathEntry) -> Option<u16> {
        if !self.config.is_srv6() {
            return self.path_number(entry);
        }
        let addr = *self.peers.get(peer)?.addrs.get(usize::from(entry.port))?;
        let ends_there = |path: &TxPath| matches!(&path.via, Via::Srv6(srv6) if srv6.peer == addr);
        let found = self.paths.iter().position(|p| p.ev == entry.ev && p.port == entry.port && ends_there(p));
        found.map(|i| i as u16)
    }

    /// The EV profile that a queue pair's attributes mean, and its number. In SRv6 mode it must be one whose paths end at
    /// the queue pair's peer, and if none is named it is the first of those.
    pub(super) fn profile_for(&self, attr: &QpAttr) -> Result<(u16, Paths)> {
        let named = attr.ev_profile_id.unwrap_or(0);
        if !self.config.is_srv6() {
            return Ok((named, self.ev_profiles.get(named)?));
        }
        let remote = attr.remote.as_deref().unwrap_or_default();
        if named == 0 {
            return self.profile_to(remote);
        }
        let paths = self.ev_profiles.get(named)?;
        if *paths.peer != *remote {
            return Err(Error::invalid(format!(
                "the paths of EV profile {named} end at {:?}, the queue pair's peer is {remote:?}",
                paths.peer
            )));
        }
        Ok((named, paths))
    }

    /// SRv6 mode: an EV profile whose paths end at this node.
    pub(super) fn profile_to(&self, peer: &[std::net::SocketAddr]) -> Result<(u16, Paths)> {
        let id = self.ev_profiles.find(|paths| *paths.peer == *peer).ok_or_else(|| {
            Error::invalid(format!("no EV profile has SRv6 paths to {peer:?}: put one ONLINE first"))
        })?;
        Ok((id, self.ev_profiles.get(id)?))
    }

    /// A new EV profile. Sockets for paths that nobody has used yet are opened.
    pub fn create_ev_profile(&mut self, config: &EvProfileConfig) -> Result<u16> {
        let routes = if self.config.is_srv6() { config.paths.len() } else { 0 };
        if config.routes.len() != routes || config.peer.is_empty() != (routes == 0) {
            return Err(Error::invalid(match routes {
                0 => "only a device in SRv6 mode has paths with routes".to_owned(),
                _ => format!(
                    "{routes} paths in SRv6 mode need as many routes, not {}, and a peer where they end",
                    config.routes.len()
                ),
            }));
        }
        let paths = Paths::new(config, |i| match config.routes.get(i) {
            None => self.open_path(config.paths[i]),
            Some(&route) => self.open_srv6_path(config.paths[i], route, &config.peer),
        })?;
        self.refresh_next_hops(sys::now());
        self.ev_profiles.add(paths)
    }

    fn check_port(&self, port: u8) -> Result<()> {
        match self.ports.get(usize::from(port)) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!(
                "port {port} does not exist: the device has {}",
                self.ports.len()
            ))),
        }
    }

    fn open_path(&mut self, path: PathEntry) -> Result<u16> {
        if let Some(number) = self.path_number(path) {
            return Ok(number);
        }
        self.check_port(path.port)?;
        let Ev(ev) = path.ev;
        let structured = self.config.ev_format == EvFormat::Structured;
        let source_port = u16::try_from(if structured { ev >> 16 } else { ev })
            .ok()
            .filter(|&p| p != 0)
            .ok_or_else(|| match structured {
                true => Error::invalid(format!("EV {ev:#010x}: its high half is the UDP source port, not 0")),
                false => Error::invalid(format!("EV {ev} is no UDP source port: 1 to 65535")),
            })?;
        if self.paths.len() >= MAX_PATHS {
            return Err(Error::invalid(format!("a device has at most {MAX_PATHS} entropy values")));
        }
        let mut class = 0;
        let mut shared = None;
        for other in self.paths.iter() {
            let Via::Socket { socket, .. } = &other.via else { continue };
            class = socket.default_class;
            if other.port == path.port && socket.source_port == source_port {
                shared = Some(Arc::clone(socket));
            }
        }
        let socket = match shared {
            Some(socket) => socket,
            None => {
                let addr = self.ports[usize::from(path.port)].addr.ip();
                Arc::new(TxSocket::open(addr, source_port, self.config.send_buffer, class)?)
            }
        };
        self.paths.push(TxPath::new(path.port, path.ev, Via::Socket { socket, watched: false }));
        Ok(self.paths.len() as u16 - 1)
    }

    fn open_srv6_path(
        &mut self,
        entry: PathEntry,
        route: SegmentRoute,
        peer: &[std::net::SocketAddr],
    ) -> Result<u16> {
        self.check_port(entry.port)?;
        let Some(&peer) = peer.get(usize::from(entry.port)) else {
            return Err(Error::invalid(format!("the peer has no address on port {}", entry.port)));
        };
        let same = |p: &TxPath| {
            let Via::Srv6(path) = &p.via else { return false };
            p.ev == entry.ev && p.port == entry.port && path.route == route && path.peer == peer
        };
        if let Some(number) = self.paths.iter().position(same) {
            return Ok(number as u16);
        }
        if self.paths.len() >= MAX_SRV6_PATHS {
            return Err(Error::invalid(format!("a device has at most {MAX_SRV6_PATHS} SRv6 paths")));
        }
        let port = &self.ports[usize::from(entry.port)];
        let (IpAddr::V6(source), IpAddr::V6(peer_addr)) = (port.addr.ip(), peer.ip()) else {
            return Err(Error::invalid(format!("SRv6 mode needs IPv6 addresses, not {}", peer.ip())));
        };
        let interface = port.interface.as_deref().unwrap_or_default();
        let source_mac = port.rx.socket().mac_of(interface).unwrap_or_default();
        let headers = Encapsulation::new(&PathHeaders {
            source_mac,
            next_hop_mac: [0; 6],
            source,
            peer: peer_addr,
            path: route.destination,
            segment: route.segment,
            ev: entry.ev,
            udp_port: peer.port(),
            hop_limit: HOP_LIMIT,
        });
        let found = self.next_hops.as_mut().map(|h| h.towards(route.destination, port.interface_index));
        let next_hop = match found.transpose() {
            Ok(hop) => hop,
            // A plane that is down may be without its routes: looked for again when it is up.
            Err(_) if !port.link_up => None,
            Err(error) => {
                return Err(Error::os(
                    format!(
                        "port {}: no route to {} by {interface}; is the path one of another plane, or does a route \
                         to its first switch lack",
                        entry.port, route.destination
                    ),
                    error,
                ));
            }
        };
        let path = Srv6Path { route, peer, headers, next_hop, resolved: false };
        self.paths.push(TxPath::new(entry.port, entry.ev, Via::Srv6(Box::new(path))));
        Ok(self.paths.len() as u16 - 1)
    }

    /// Ends an EV profile that no queue pair uses.
    pub fn destroy_ev_profile(&mut self, id: u16) -> Result<()> {
        if let Some(qp) = self.qps.iter().flatten().find(|q| q.transport.is_some() && q.io.ev_profile == id) {
            let num = qp.io.shared.num;
            return Err(Error::Busy(format!("EV profile {id} is used by queue pair 0x{num:06x}")));
        }
        self.ev_profiles.remove(id).map(drop)
    }

    /// Switches an entropy value off or on in every queue pair of a profile; how many use it.
    pub fn set_ev_denied(&mut self, profile: u16, ev: Ev, denied: bool) -> Result<usize> {
        self.ev_profiles.get(profile)?;
        let mut users = 0;
        for index in 0..self.qps.len() {
            let Some(Qp { transport: Some(transport), io }) = self.qps[index].as_deref_mut() else {
                continue;
            };
            if io.ev_profile == profile && transport.set_ev_denied(ev, denied) {
                users += 1;
                self.touch(index as u32);
            }
        }
        Ok(users)
    }

    // --- next hops -----------------------------------------------------------------------------------------------

    /// SRv6 mode: takes over the kernel's routes and neighbours as they are now.
    pub fn refresh_next_hops(&mut self, now: Time) {
        let Some(hops) = &mut self.next_hops else { return };
        for path in &mut self.paths {
            let Via::Srv6(srv6) = &mut path.via else { continue };
            let port = &self.ports[usize::from(path.port)];
            if srv6.next_hop.is_none() && port.link_up {
                srv6.next_hop = hops.towards(srv6.route.destination, port.interface_index).ok();
            }
        }
        hops.refresh(now);
        for path in &mut self.paths {
            let Via::Srv6(srv6) = &mut path.via else { continue };
            if let Some(mac) = srv6.next_hop.and_then(|hop| hops.get(hop).mac) {
                srv6.headers.set_next_hop(mac);
                srv6.resolved = true;
            }
        }
    }

    /// SRv6 mode: of the paths of a profile, on ports that are up, those whose next hop has answered, and one that has not.
    pub fn next_hops_of(&self, profile: u16) -> Result<(usize, Option<String>)> {
        let paths = self.ev_profiles.get(profile)?;
        let (mut answered, mut silent) = (0, None);
        for (port, number) in paths.iter() {
            let port = &self.ports[usize::from(port)];
            let Via::Srv6(srv6) = &self.paths[usize::from(number)].via else { continue };
            let interface = port.interface.as_deref().unwrap_or_default();
            match (srv6.resolved, srv6.next_hop, &self.next_hops) {
                _ if !port.is_up() => {}
                (true, ..) => answered += 1,
                (false, Some(hop), Some(hops)) => {
                    silent = Some(format!("{} on {interface}", hops.get(hop).addr));
                }
                _ => silent = Some(format!("a next hop towards {} by {interface}", srv6.route.destination)),
            }
        }
        Ok((answered, silent))
    }
}
