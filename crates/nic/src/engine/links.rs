//! Peers, ports and the interfaces behind them, as the application and the system change them.

use std::net::SocketAddr;

use openmrc_sockets::{LinkWatch, Netlink};
use openmrc_transport::mrc::QueuePair;
use openmrc_transport::node::{PeerId, Route, Slot};
use openmrc_transport::{PathEntry, PortSet, Span, Time};

use super::Engine;
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::port::PortStatusUpdate;
use crate::shared::Shared;
use crate::sys;

/// The interfaces, as the kernel reports them.
pub(super) struct Links {
    /// About this device's network namespace; a poller's may be another.
    netlink: Netlink,
    watch: Option<LinkWatch>,
}

impl Links {
    pub fn new(netlink: Netlink, watch: Option<LinkWatch>) -> Self {
        Links { netlink, watch }
    }

    pub fn close(&mut self) {
        self.watch = None;
    }
}

impl Engine {
    // --- peers -----------------------------------------------------------------------------------------------------

    /// Adds a user of the peer with these addresses. In SRv6 mode an EV profile must have paths to it.
    pub fn add_peer(&mut self, addrs: &[SocketAddr]) -> Result<PeerId> {
        let paths = self.profiles.paths_to(addrs)?;
        let peer = self.egress.net.acquire_peer(addrs, &paths)?;
        let ports = self.peer_ports(peer);
        self.node.add_peer(sys::now(), peer, ports);
        Ok(peer)
    }

    /// Ports at which a peer has an address.
    pub(super) fn peer_ports(&self, peer: PeerId) -> PortSet {
        self.egress.net.peers.get(peer).map_or(PortSet::EMPTY, crate::peer::Peer::ports)
    }

    pub fn remove_peer(&mut self, peer: PeerId) {
        if self.egress.net.peers.get(peer).is_some() {
            self.egress.net.peers.release(peer);
            self.node.remove_peer(peer);
        }
    }

    /// Sends an EV probe on a path; gives its id.
    pub fn probe_path(
        &mut self,
        shared: &Shared,
        now: Time,
        peer: PeerId,
        entry: PathEntry,
        timeout: Span,
    ) -> Result<u16> {
        let net = &self.egress.net;
        let addrs = net.peers.get(peer).map_or(&[][..], |peer| &peer.addrs);
        let path = net
            .path_to(addrs, entry)
            .ok_or_else(|| Error::invalid(format!("no path has EV {} on port {}", entry.ev.0, entry.port)))?;
        let route = Route::Path { ev: entry.ev, path, port: entry.port };
        let id = self.with_node(shared, now, |node, host| node.probe(now, peer, route, timeout, host));
        self.egress.send_waiting(now);
        id.ok_or_else(|| Error::invalid("too many EV probes are outstanding"))
    }

    /// Begins the proof of a queue pair's path MTU, whose end comes to [`Shared::mtu_proofs`].
    pub fn prove_mtu(&mut self, shared: &Shared, now: Time, slot: Slot) -> Result<()> {
        let begun = self.with_node(shared, now, |node, host| node.prove_mtu(now, slot, host));
        self.egress.send_waiting(now);
        self.question_unreachable(shared, now);
        if begun { Ok(()) } else { Err(Error::Closed("the queue pair")) }
    }

    /// The addresses of a queue pair's peer at these ports.
    pub fn peer_addresses(&self, slot: Slot, ports: PortSet) -> Vec<String> {
        let remote = self.verbs.get(slot).and_then(|io| io.attr.remote.as_deref()).unwrap_or_default();
        ports
            .iter()
            .filter_map(|port| remote.get(usize::from(port)))
            .map(|addr| addr.ip().to_string())
            .collect()
    }

    /// Sends a port status update on a port; gives its id.
    pub fn send_port_status(
        &mut self,
        shared: &Shared,
        now: Time,
        peer: PeerId,
        update: PortStatusUpdate,
        timeout: Span,
    ) -> Result<u16> {
        let ports = self.egress.net.ports_up().and(self.peer_ports(peer));
        let port = match update.port {
            Some(port) => {
                self.egress.net.check_port(port.into())?;
                ports.contains(port).then_some(port)
            }
            None => ports.iter().next(),
        };
        let port = port.ok_or_else(|| Error::invalid("no port on which the peer can be told is up"))?;
        let id = self.with_node(shared, now, |node, host| {
            node.send_port_status(now, (peer, port), update.up, timeout, host)
        });
        self.egress.send_waiting(now);
        id.ok_or_else(|| Error::invalid("too many requests are outstanding"))
    }

    /// The kernel has no route to ports of peers: the peers are asked whether they are up.
    #[cold]
    pub(super) fn question_unreachable(&mut self, shared: &Shared, now: Time) {
        for (peer, ports) in std::mem::take(&mut self.egress.net.unreachable) {
            self.question_ports(shared, now, peer, ports);
        }
    }

    /// Packets to peers were longer than the MTU of interfaces: queue pairs leave those planes until a probe of full size
    /// is answered there.
    #[cold]
    pub(super) fn leave_narrow_ports(&mut self, shared: &Shared, now: Time) {
        for (peer, ports) in std::mem::take(&mut self.egress.net.narrow) {
            for slot in self.verbs.slots() {
                if self.node.peer(slot) != Some(peer) {
                    continue;
                }
                self.with_node(shared, now, |node, host| {
                    node.update_with(now, slot, host, |qp: &mut QueuePair, host| {
                        ports.iter().for_each(|port| qp.port_is_narrow(now, port, host));
                    });
                });
            }
        }
        self.egress.send_waiting(now);
    }

    /// Asks a peer whether these of its ports are up.
    pub(super) fn question_ports(&mut self, shared: &Shared, now: Time, peer: PeerId, ports: PortSet) {
        self.with_node(shared, now, |node, host| node.question_ports(now, peer, ports, host));
        self.egress.send_waiting(now);
    }

    // --- ports -----------------------------------------------------------------------------------------------------

    /// Switches a port on or off.
    pub fn set_port_admin(&mut self, shared: &Shared, port: usize, up: bool) -> Result<()> {
        self.egress.net.check_port(port)?;
        self.egress.net.ports[port].admin_up = up;
        self.ports_changed(shared, sys::now());
        Ok(())
    }

    /// Interfaces or addresses have changed.
    pub(super) fn links_changed(&mut self, shared: &Shared) {
        if let Some(watch) = &self.links.watch {
            watch.drain();
        }
        let Ok(list) = self.links.netlink.interface_addrs() else { return };
        let now = sys::now();
        self.egress.net.ports.iter_mut().for_each(|port| port.check_link(&list));
        self.refresh_next_hops(now);
        self.ports_changed(shared, now);
    }

    /// Takes over the kernel's routes and neighbours as they are now.
    pub fn refresh_next_hops(&mut self, now: Time) {
        self.egress.datapath.refresh_next_hops(&mut self.egress.net, now);
    }

    /// Ports may have come up or gone down: notifies the application and the node, which notifies the peers.
    fn ports_changed(&mut self, shared: &Shared, now: Time) {
        let (before, up) = (self.node.own_ports(), self.egress.net.ports_up());
        for port in PortSet(before.0 ^ up.0).iter() {
            if up.contains(port) {
                shared.events.push(AsyncEvent::PortUp(port));
            } else {
                shared.events.push(AsyncEvent::PortDown(port));
                self.egress.net.drop_held(port.into());
            }
        }
        self.with_node(shared, now, |node, host| node.set_own_ports(now, up, host));
        self.posting.blocked = false;
        self.egress.send_waiting(now);
    }
}
