//! What sending needs: ports, paths, peers and impairments, and counters.

use std::net::{IpAddr, SocketAddr};

use openmrc_transport::node::PeerId;
use openmrc_transport::{PathEntry, PortSet, Time};
use openmrc_wire::IcrcSeed;

use crate::error::{Error, Result};
use crate::impairer::Impairer;
use crate::path::TxPath;
use crate::peer::Peers;
use crate::port::{HeldRun, Port};
use crate::profiles::engine::Paths;
use crate::stats::{Cause, Causes, PeerDifferences};
use crate::tx::RunKey;

/// Ports, paths and peers of a device.
pub(crate) struct Network {
    pub ports: Vec<Port>,
    pub paths: Vec<TxPath>,
    pub peers: Peers,
    pub impairer: Impairer,
    pub causes: Causes,
    pub differences: PeerDifferences,
    /// Ports of peers to which the kernel has refused to send for want of a route.
    pub unreachable: Vec<(PeerId, PortSet)>,
    /// Ports that have refused packets to a peer because they are longer than the interface's MTU.
    pub narrow: Vec<(PeerId, PortSet)>,
}

impl Network {
    /// Ports that are up.
    pub fn ports_up(&self) -> PortSet {
        self.ports_that(Port::is_up)
    }

    /// Ports that can take a packet now.
    pub fn free_ports(&self) -> PortSet {
        self.ports_that(Port::is_free)
    }

    fn ports_that(&self, fits: impl Fn(&Port) -> bool) -> PortSet {
        let fitting = self.ports.iter().enumerate().filter(|(_, port)| fits(port));
        fitting.fold(PortSet::EMPTY, |set, (index, _)| set.with(index as u8))
    }

    /// # Errors
    /// [`Error::InvalidArgument`] if the device has no such port.
    pub fn check_port(&self, port: usize) -> Result<()> {
        match self.ports.get(port) {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!(
                "port {port} does not exist: the device has {}",
                self.ports.len()
            ))),
        }
    }

    /// The device's own address on each port.
    fn own_addrs(&self) -> Vec<IpAddr> {
        self.ports.iter().map(|port| port.addr.ip()).collect()
    }

    /// Adds a user of the peer with these addresses. `paths` lead to it.
    pub fn acquire_peer(&mut self, addrs: &[SocketAddr], paths: &Paths) -> Result<PeerId> {
        let peer = self.peers.acquire(addrs, &self.own_addrs())?;
        if let Some(known) = self.peers.get_mut(peer).filter(|_| !paths.peer.is_empty()) {
            known.set_paths(paths.iter());
        }
        Ok(peer)
    }

    /// The port of a path.
    #[inline]
    pub fn port_of(&self, path: u16) -> usize {
        usize::from(self.paths[usize::from(path)].port)
    }

    /// The number of the path to a node at `addrs` with this entropy value. Paths over UDP sockets lead to every node.
    pub fn path_to(&self, addrs: &[SocketAddr], entry: PathEntry) -> Option<u16> {
        let addr = addrs.get(usize::from(entry.port));
        let fits =
            |path: &TxPath| path.ev == entry.ev && path.port == entry.port && path.leads_to(addr.copied());
        self.paths.iter().position(fits).map(|index| index as u16)
    }

    /// The next path by this port to a peer, in rotation, for a packet that may take any.
    pub fn any_path(&mut self, peer: PeerId, port: u8) -> Option<u16> {
        let to_peer = self.peers.get_mut(peer).and_then(|peer| peer.any_path(port));
        to_peer.or_else(|| self.ports.get_mut(usize::from(port)).and_then(Port::any_path))
    }

    /// The iCRC's constant part for packets from any address to our port.
    pub fn seed_between(&self, source: IpAddr, port: usize) -> Option<IcrcSeed> {
        IcrcSeed::between(source, self.ports[port].addr.ip())
    }

    /// Counts packets sent on a path by one system call.
    pub fn count_call(&mut self, key: RunKey, packets: usize, bytes: usize, now: Time) {
        self.count_sent(key, packets, bytes, now);
        let port = self.port_of(key.path);
        self.ports[port].stats.tx_calls += 1;
    }

    /// Counts packets sent on a path, but not the system call.
    #[inline]
    pub fn count_sent(&mut self, key: RunKey, packets: usize, bytes: usize, now: Time) {
        let path = &mut self.paths[usize::from(key.path)];
        path.packets += packets as u64;
        path.bytes += bytes as u64;
        // Nothing tells whether feedback and answers arrive, which may go on any path.
        if key.asks_for_feedback() {
            path.last_tx_ns = now.0 / 1000;
        }
        let port = &mut self.ports[usize::from(path.port)];
        port.end_refusal();
        port.stats.tx_packets += packets as u64;
        port.stats.tx_bytes += bytes as u64;
    }

    /// Packets to a peer are lost before they are on a wire.
    pub fn count_lost(&mut self, key: RunKey, cause: Cause, packets: usize) {
        self.causes.add(cause, packets as u64);
        let noted = match cause {
            Cause::TxUnreachable => &mut self.unreachable,
            Cause::TxTooLong => &mut self.narrow,
            _ => return,
        };
        let port = self.paths[usize::from(key.path)].port;
        match noted.iter_mut().find(|(peer, _)| *peer == key.peer) {
            Some((_, ports)) => *ports = ports.with(port),
            None => noted.push((key.peer, PortSet::one(port))),
        }
    }

    /// Reads the state of every receive buffer; returns how many packets the sockets have dropped since the last
    /// time.
    pub fn sample_buffers(&mut self) -> u64 {
        let dropped = self.ports.iter_mut().map(Port::sample_buffer).sum();
        self.causes.add(Cause::SocketOverflow, dropped);
        dropped
    }

    /// Keeps packets until their port can take them; no data is offered to it before.
    pub fn hold(&mut self, key: RunKey, bytes: Vec<u8>, segment: usize) {
        let held = HeldRun { key, segment, bytes };
        self.causes.add(Cause::TxHeld, held.packets());
        let port = self.port_of(key.path);
        self.ports[port].held.push_back(held);
    }

    /// A port is down: what it holds is lost.
    pub fn drop_held(&mut self, port: usize) {
        let lost = self.ports[port].held.drain(..).map(|held| held.packets()).sum();
        self.causes.add(Cause::TxNoPort, lost);
    }
}
