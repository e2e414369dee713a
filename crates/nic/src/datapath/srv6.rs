//! SRv6 frames: a packet socket sends on all paths of its port, so what a turn has to send goes in one system call for
//! each port, however many paths it is sprayed over.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use openmrc_sockets::{InterfaceAddr, interface_of};
use openmrc_transport::{PathEntry, Time};
use openmrc_wire::Packet;
use openmrc_wire::encap::{Encapsulation, PathHeaders};

use super::offer::{NOBUFS_PAUSE, Offer, Sent};
use crate::config::{DeviceConfig, PortConfig};
use crate::error::{Error, Result};
use crate::frames::{FrameBatch, send_one};
use crate::impairer::Outgoing;
use crate::network::Network;
use crate::nexthop::NextHops;
use crate::path::{SegmentRoute, Srv6Path, TxPath, Via};
use crate::piece::Piece;
use crate::port::Port;
use crate::profiles::engine::Paths;
use crate::socket::RxSocket;
use crate::stats::Cause;
use crate::tx::{RunKey, is_data};

/// Of both IP headers, as the kernel's own packets have it.
const HOP_LIMIT: u8 = 64;

/// Most paths of a device, where they cost some memory each, but no descriptor.
const MAX_SRV6_PATHS: usize = u16::MAX as usize;

/// Sends SRv6 frames.
pub(crate) struct Srv6 {
    config: Arc<DeviceConfig>,
    next_hops: NextHops,
    /// By port: frames on their way out.
    batches: Vec<FrameBatch>,
}

impl Srv6 {
    pub fn open(config: &Arc<DeviceConfig>) -> Result<Self> {
        Ok(Srv6 {
            config: Arc::clone(config),
            next_hops: NextHops::open()?,
            batches: config.ports.iter().map(|_| FrameBatch::new()).collect(),
        })
    }

    // --- ports and paths -----------------------------------------------------------------------------------------

    pub fn open_port(&self, port: &PortConfig, interfaces: &[InterfaceAddr]) -> Result<Port> {
        let addr = SocketAddr::new(port.addr, port.udp_port);
        let interface = interface_of(port.addr, interfaces).ok_or_else(|| {
            Error::invalid(format!("no interface of this host has the address {}", port.addr))
        })?;
        let rx = RxSocket::open_frames(
            addr,
            &self.config.sockets.more_udp_ports,
            interface.index,
            self.config.sockets.receive_buffer,
        )?;
        Ok(Port::new(addr, rx, 0..0))
    }

    pub fn open_path(
        &mut self,
        net: &mut Network,
        entry: PathEntry,
        route: Option<SegmentRoute>,
        peer: &[SocketAddr],
    ) -> Result<u16> {
        let Some(route) = route else {
            return Err(Error::invalid("a path in SRv6 mode needs a route, and a peer where it ends"));
        };
        let Some(&peer) = peer.get(usize::from(entry.port)) else {
            return Err(Error::invalid(format!("the peer has no address on port {}", entry.port)));
        };
        let same = |path: &TxPath| {
            let Via::Srv6(srv6) = &path.via else { return false };
            path.ev == entry.ev && path.port == entry.port && srv6.route == route && srv6.peer == peer
        };
        if let Some(number) = net.paths.iter().position(same) {
            return Ok(number as u16);
        }
        if net.paths.len() >= MAX_SRV6_PATHS {
            return Err(Error::invalid(format!("a device has at most {MAX_SRV6_PATHS} SRv6 paths")));
        }
        let port = &net.ports[usize::from(entry.port)];
        let (IpAddr::V6(source), IpAddr::V6(peer_addr)) = (port.addr.ip(), peer.ip()) else {
            return Err(Error::invalid(format!("SRv6 mode needs IPv6 addresses, not {}", peer.ip())));
        };
        let interface = port.interface.as_deref().unwrap_or_default();
        let entropy = self.config.entropy.split(entry.ev);
        let headers = Encapsulation::new(&PathHeaders {
            source_mac: port.rx.socket().mac_of(interface).unwrap_or_default(),
            next_hop_mac: [0; 6],
            source,
            peer: peer_addr,
            path: route.destination,
            segment: route.segment,
            entropy,
            udp_port: peer.port(),
            hop_limit: HOP_LIMIT,
        });
        let next_hop = match self.next_hops.towards(route.destination, port.interface_index) {
            Ok(hop) => Some(hop),
            // A plane that is down may have no routes; they are looked up again when it is up.
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
        net.paths.push(TxPath::new(entry.port, entry.ev, entropy, Via::Srv6(Box::new(path))));
        Ok(net.paths.len() as u16 - 1)
    }

    // --- next hops -----------------------------------------------------------------------------------------------

    pub fn next_refresh(&self) -> Time {
        self.next_hops.due()
    }

    /// Takes over the kernel's routes and neighbours as they are now.
    pub fn refresh_next_hops(&mut self, net: &mut Network, now: Time) {
        let hops = &mut self.next_hops;
        for path in &mut net.paths {
            let Via::Srv6(srv6) = &mut path.via else { continue };
            let port = &net.ports[usize::from(path.port)];
            if srv6.next_hop.is_none() && port.link_up {
                srv6.next_hop = hops.towards(srv6.route.destination, port.interface_index).ok();
            }
        }
        hops.refresh(now);
        for path in &mut net.paths {
            let Via::Srv6(srv6) = &mut path.via else { continue };
            if let Some(mac) = srv6.next_hop.and_then(|hop| hops.get(hop).mac) {
                srv6.headers.set_next_hop(mac);
                srv6.resolved = true;
            }
        }
    }

    pub fn next_hops_of(&self, net: &Network, paths: &Paths) -> (usize, Option<String>) {
        let (mut answered, mut silent) = (0, None);
        for (port, number) in paths.iter() {
            let port = &net.ports[usize::from(port)];
            let Via::Srv6(srv6) = &net.paths[usize::from(number)].via else { continue };
            let interface = port.interface.as_deref().unwrap_or_default();
            match (srv6.resolved, srv6.next_hop) {
                _ if !port.is_up() => {}
                (true, _) => answered += 1,
                (false, Some(hop)) => {
                    silent = Some(format!("{} on {interface}", self.next_hops.get(hop).addr));
                }
                (false, None) => {
                    silent = Some(format!("a next hop towards {} by {interface}", srv6.route.destination));
                }
            }
        }
        (answered, silent)
    }

    // --- sending -------------------------------------------------------------------------------------------------

    #[inline]
    pub fn push(&mut self, net: &mut Network, key: RunKey, packet: &Packet, pieces: &[Piece], now: Time) {
        let port = net.port_of(key.path);
        if self.batches[port].is_full() {
            self.flush_port(net, port, now);
        }
        let path = &net.paths[usize::from(key.path)];
        let Some((_, dest_port, seed)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else {
            return;
        };
        match &path.via {
            Via::Srv6(srv6) if srv6.resolved => {
                let ports = (path.source_port(), dest_port);
                self.batches[port].push(key, &srv6.headers, packet, pieces, seed, ports);
            }
            _ => net.causes.add(Cause::TxNoNeighbour, 1),
        }
    }

    /// Sends what every port has gathered.
    pub fn flush(&mut self, net: &mut Network, now: Time) {
        for port in 0..self.batches.len() {
            if !self.batches[port].frames().is_empty() {
                self.flush_port(net, port, now);
            }
        }
    }

    fn flush_port(&mut self, net: &mut Network, port: usize, now: Time) {
        if !net.ports[port].is_up() {
            net.causes.add(Cause::TxNoPort, self.batches[port].frames().len() as u64);
        } else if net.impairer.is_active() {
            self.impair_batch(net, port, now);
        } else {
            self.send_batch(net, port, now);
        }
        self.batches[port].clear();
    }

    fn send_batch(&mut self, net: &mut Network, port: usize, now: Time) {
        let batch = &mut self.batches[port];
        let mut next = 0;
        while next < batch.frames().len() {
            if !net.ports[port].held.is_empty() {
                (next..batch.frames().len()).for_each(|index| hold_frame(net, batch, index));
                return;
            }
            match batch.send(net.ports[port].rx.tx_fd(), next) {
                Ok(sent) => {
                    for frame in &batch.frames()[next..next + sent] {
                        net.count_sent(frame.key, 1, frame.bytes, now);
                    }
                    net.ports[port].stats.tx_calls += 1;
                    next += sent;
                }
                Err(error) => {
                    match Sent::new(Err(error), now) {
                        Sent::Later(until) => {
                            hold_frame(net, batch, next);
                            net.ports[port].pause(now, now + NOBUFS_PAUSE, until < Time::NEVER);
                        }
                        Sent::Lost(cause) => net.count_lost(batch.frames()[next].key, cause, 1),
                        Sent::Done | Sent::OneByOne => net.causes.add(Cause::TxError, 1),
                    }
                    next += 1;
                }
            }
        }
    }

    /// The impairer's way: every packet by itself.
    fn impair_batch(&mut self, net: &mut Network, port: usize, now: Time) {
        let batch = &self.batches[port];
        let mut out = Vec::new();
        for (index, frame) in batch.frames().iter().enumerate() {
            let ev = net.paths[usize::from(frame.key.path)].ev;
            let rules = net.impairer.draw(now, port as u8, ev, is_data(frame.opcode));
            let packet = Outgoing { key: frame.key, port: port as u8, ev, bytes: batch.datagram(index) };
            net.impairer.apply(now, packet, rules, &mut out);
        }
        self.send_outgoing(net, &mut out, now);
    }
}

fn hold_frame(net: &mut Network, batch: &FrameBatch, index: usize) {
    let bytes = batch.datagram(index);
    let segment = bytes.len();
    net.hold(batch.frames()[index].key, bytes, segment);
}

impl Offer for Srv6 {
    fn offer(&mut self, net: &mut Network, key: RunKey, bytes: &[u8], _segment: usize, now: Time) -> usize {
        let path = &net.paths[usize::from(key.path)];
        let port = usize::from(path.port);
        let Via::Srv6(srv6) = &path.via else { return bytes.len() };
        if !srv6.resolved {
            net.causes.add(Cause::TxNoNeighbour, 1);
            return bytes.len();
        }
        let result = send_one(net.ports[port].rx.tx_fd(), &srv6.headers, key.class, bytes);
        match Sent::new(result, now) {
            Sent::Done => net.count_call(key, 1, bytes.len(), now),
            Sent::Later(until) => {
                net.ports[port].pause(now, now + NOBUFS_PAUSE, until < Time::NEVER);
                return 0;
            }
            Sent::Lost(cause) => net.count_lost(key, cause, 1),
            Sent::OneByOne => net.causes.add(Cause::TxError, 1),
        }
        bytes.len()
    }
}
