//! UDP sockets: a run of consecutive packets of one path goes to the kernel in one system call.

use std::net::SocketAddr;
use std::sync::Arc;

use openmrc_sockets::{Epoll, Interest, SockAddr, send_bytes};
use openmrc_transport::node::PeerId;
use openmrc_transport::{PathEntry, Time};
use openmrc_wire::{Distances, DscpClass, Entropy, EntropyOrder, Ev, EvFormat, IcrcSeed, Packet};

use super::offer::{Offer, Sent};
use crate::config::{DeviceConfig, MAX_PATHS, PortConfig};
use crate::error::{Error, Result};
use crate::impairer::{Outgoing, RuleSet};
use crate::network::Network;
use crate::path::{SegmentRoute, TxPath, Via};
use crate::piece::Piece;
use crate::port::Port;
use crate::socket::{RxSocket, TxSocket, traffic_class};
use crate::stats::Cause;
use crate::tx::{RunKey, TxRun, is_data, number_packets};

/// Sends by UDP sockets.
pub(crate) struct Udp {
    config: Arc<DeviceConfig>,
    run: TxRun,
    /// The kernel cuts runs into packets.
    segmentation: bool,
    distances: Distances,
    /// The impairment rules that act on each packet of the current run.
    drawn: Vec<RuleSet>,
}

impl Udp {
    pub fn new(config: Arc<DeviceConfig>) -> Self {
        Udp {
            run: TxRun::new(),
            segmentation: config.sockets.segmentation,
            drawn: Vec::new(),
            distances: Distances::default(),
            config,
        }
    }

    // --- ports and paths -----------------------------------------------------------------------------------------

    pub fn open_port(&self, net: &mut Network, port: &PortConfig) -> Result<Port> {
        let config = &self.config;
        let index = net.ports.len();
        let addr = SocketAddr::new(port.addr, port.udp_port);
        let rx = RxSocket::open(addr, config.sockets.receive_buffer, config.sockets.segmentation)?;
        let first = net.paths.len() as u16;
        for i in 0..config.evs_of_port(index) {
            let source_port = port.source_ports.get(i).copied().unwrap_or(0);
            let socket =
                TxSocket::open(port.addr, source_port, config.sockets.send_buffer, self.data_class())?;
            // Flow labels for one source port, which fabrics hash: any numbers that differ.
            let label = if config.entropy.auto_bits == 32 { net.paths.len() as u16 + 1 } else { 0 };
            let entropy = Entropy { sport: socket.source_port, flow_label: label.into() };
            let ev = match config.entropy.format {
                EvFormat::Udp => EntropyOrder::FlowLabelHigh.join(entropy),
                _ => config.entropy.order.join(entropy),
            };
            let via = Via::Socket { socket: Arc::new(socket), watched: false };
            net.paths.push(TxPath::new(index as u8, ev, entropy, via));
        }
        let mut opened = Port::new(addr, rx, first..net.paths.len() as u16);
        for &udp_port in &config.sockets.more_udp_ports {
            let addr = SocketAddr::new(port.addr, udp_port);
            let rx = RxSocket::open(addr, config.sockets.receive_buffer, config.sockets.segmentation)?;
            opened.more.push((udp_port, rx));
        }
        Ok(opened)
    }

    /// Traffic class octet of most packets: data.
    fn data_class(&self) -> u8 {
        let class = if self.config.network.trims { DscpClass::Trimmable } else { DscpClass::NoTrim };
        traffic_class(self.config.network.dscp.code(class), true)
    }

    pub fn open_path(&self, net: &mut Network, entry: PathEntry, route: Option<SegmentRoute>) -> Result<u16> {
        if route.is_some() {
            return Err(Error::invalid("only a device in SRv6 mode has paths with routes"));
        }
        if let Some(number) = net.path_to(&[], entry) {
            return Ok(number);
        }
        let Ev(ev) = entry.ev;
        let entropy = self.config.entropy.split(entry.ev);
        let source_port = entropy.sport;
        if self.config.entropy.bits() == 16 && (source_port == 0 || ev >> 16 != 0) {
            return Err(Error::invalid(format!("EV {ev} is no UDP source port: 1 to 65535")));
        }
        if source_port == 0 {
            let half = match self.config.entropy.order {
                EntropyOrder::FlowLabelHigh => "low",
                EntropyOrder::SourcePortHigh => "high",
            };
            return Err(Error::invalid(format!(
                "EV {ev:#010x}: its {half} half is the UDP source port, not 0"
            )));
        }
        if net.paths.len() >= MAX_PATHS {
            return Err(Error::invalid(format!("a device has at most {MAX_PATHS} entropy values")));
        }
        let same_socket = net.paths.iter().find_map(|path| match &path.via {
            Via::Socket { socket, .. } if path.port == entry.port && socket.source_port == source_port => {
                Some(Arc::clone(socket))
            }
            _ => None,
        });
        let socket = match same_socket {
            Some(socket) => socket,
            None => {
                let addr = net.ports[usize::from(entry.port)].addr.ip();
                let class = self.data_class();
                Arc::new(TxSocket::open(addr, source_port, self.config.sockets.send_buffer, class)?)
            }
        };
        net.paths.push(TxPath::new(entry.port, entry.ev, entropy, Via::Socket { socket, watched: false }));
        Ok(net.paths.len() as u16 - 1)
    }

    // --- sending -------------------------------------------------------------------------------------------------

    #[inline]
    pub fn push(&mut self, net: &mut Network, key: RunKey, packet: &Packet, pieces: &[Piece], now: Time) {
        if !self.run.accepts(key, packet.wire_len()) {
            self.flush(net, now);
        }
        let path = &net.paths[usize::from(key.path)];
        let Via::Socket { socket, .. } = &path.via else { return };
        if let Some((_, dest_port, seed)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) {
            self.run.push(key, packet, pieces, seed, (socket.source_port, dest_port), self.segmentation);
        }
    }

    /// Sends a packet without payload on a path to a node that is not a peer. It is lost if the socket is full.
    pub fn answer(
        &mut self,
        net: &mut Network,
        path: u16,
        dest: SocketAddr,
        packet: &Packet,
        class: u8,
        now: Time,
    ) {
        self.flush(net, now);
        let port = net.port_of(path);
        let seed = IcrcSeed::between(net.ports[port].addr.ip(), dest.ip());
        let (Via::Socket { socket, .. }, Some(seed)) = (&net.paths[usize::from(path)].via, seed) else {
            return;
        };
        let ports = (socket.source_port, dest.port());
        self.run.push(RunKey { path, peer: PeerId::MAX, class }, packet, &[], &seed, ports, false);
        let bytes = self.run.bytes();
        let sent = self.run.send(socket.fd(), &SockAddr::new(dest), Some(class));
        self.run.clear();
        match Sent::new(sent, now) {
            Sent::Done => net.count_call(path, 1, bytes, now),
            Sent::Lost(cause) => net.causes.add(cause, 1),
            Sent::Later(_) | Sent::OneByOne => net.causes.add(Cause::TxError, 1),
        }
    }

    /// Sends the run that has been gathered.
    pub fn flush(&mut self, net: &mut Network, now: Time) {
        let Some(key) = self.run.key() else { return };
        let port = net.port_of(key.path);
        if !net.ports[port].is_up() {
            net.causes.add(Cause::TxNoPort, self.run.packets() as u64);
        } else if net.impairer.is_active() && self.draw_impairments(net, key, now) {
            self.impair_run(net, key, now);
        } else if !net.ports[port].held.is_empty() {
            self.hold_run(net, key);
        } else {
            self.send_run(net, key, now);
        }
        self.run.clear();
    }

    fn send_run(&mut self, net: &mut Network, key: RunKey, now: Time) {
        let (packets, bytes) = (self.run.packets(), self.run.bytes());
        if packets > 1 && !self.segmentation {
            let mut copy = Vec::new();
            self.run.copy_to(&mut copy);
            return self.send_piece(net, key, &copy, self.run.segment(), now);
        }
        let path = &net.paths[usize::from(key.path)];
        let port = usize::from(path.port);
        let Via::Socket { socket, .. } = &path.via else { return };
        let Some((dest, ..)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else { return };
        let class = (key.class != socket.default_class).then_some(key.class);
        let result = self.run.send(socket.fd(), &dest.with_flow_label(path.entropy.flow_label), class);
        match Sent::new(result, now) {
            Sent::Done => net.count_call(key.path, packets, bytes, now),
            Sent::Later(until) => {
                self.hold_run(net, key);
                net.ports[port].pause(now, until, until < Time::NEVER);
            }
            Sent::OneByOne if packets > 1 => {
                self.segmentation = false;
                self.send_run(net, key, now);
            }
            Sent::OneByOne => net.causes.add(Cause::TxError, packets as u64),
            Sent::Lost(cause) => net.count_lost(key, cause, packets),
        }
    }

    fn hold_run(&mut self, net: &mut Network, key: RunKey) {
        let mut bytes = Vec::new();
        self.run.copy_to(&mut bytes);
        net.hold(key, bytes, self.run.segment());
    }

    /// Offers packets of `segment` bytes one by one; returns how many bytes are done with.
    fn offer_singly(
        &mut self,
        net: &mut Network,
        key: RunKey,
        bytes: &[u8],
        segment: usize,
        now: Time,
    ) -> usize {
        bytes
            .chunks(segment)
            .take_while(|one| self.offer(net, key, one, one.len(), now) > 0)
            .map(<[u8]>::len)
            .sum()
    }

    /// Draws the impairment rules for each packet of the run; returns whether the impairer must see the run.
    fn draw_impairments(&mut self, net: &mut Network, key: RunKey, now: Time) -> bool {
        let TxPath { port, ev, .. } = net.paths[usize::from(key.path)];
        let mut impaired = net.impairer.reorders(port);
        self.drawn.clear();
        for opcode in self.run.opcodes() {
            let rules = net.impairer.draw(now, port, ev, is_data(opcode));
            impaired |= !rules.is_empty();
            self.drawn.push(rules);
        }
        impaired
    }

    /// Gives the impairer the packets of the run that a rule acts on or that others wait for, and sends what it
    /// releases. The packets between them are sent in one piece, as without impairments.
    fn impair_run(&mut self, net: &mut Network, key: RunKey, now: Time) {
        let TxPath { port, ev, .. } = net.paths[usize::from(key.path)];
        let segment = self.run.segment();
        let mut bytes = Vec::new();
        self.run.copy_to(&mut bytes);
        let mut out = Vec::new();
        let (mut sent, mut end) = (0, 0);
        for (packet, one) in bytes.chunks(segment).enumerate() {
            let rules = self.drawn[packet];
            if !rules.is_empty() || net.impairer.reorders(port) {
                self.send_piece(net, key, &bytes[sent..end], segment, now);
                let packet = Outgoing { key, port, ev, bytes: one.to_vec() };
                net.impairer.apply(now, packet, rules, &mut out);
                self.send_outgoing(net, &mut out, now);
                sent = end + one.len();
            }
            end += one.len();
        }
        self.send_piece(net, key, &bytes[sent..], segment, now);
    }
}

impl Offer for Udp {
    fn offer(&mut self, net: &mut Network, key: RunKey, bytes: &[u8], segment: usize, now: Time) -> usize {
        let packets = bytes.len().div_ceil(segment.max(1));
        if packets > 1 && !self.segmentation {
            return self.offer_singly(net, key, bytes, segment, now);
        }
        let path = &net.paths[usize::from(key.path)];
        let port = usize::from(path.port);
        let Via::Socket { socket, .. } = &path.via else { return bytes.len() };
        let Some((dest, ..)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else {
            return bytes.len();
        };
        let class = (key.class != socket.default_class).then_some(key.class);
        let dest = dest.with_flow_label(path.entropy.flow_label);
        let result = if packets > 1 && dest.is_v4() {
            let mut numbered = bytes.to_vec();
            number_packets(&mut numbered, segment, &mut self.distances);
            send_bytes(socket.fd(), &dest, &numbered, class, Some(segment as u16))
        } else {
            send_bytes(socket.fd(), &dest, bytes, class, (packets > 1).then_some(segment as u16))
        };
        match Sent::new(result, now) {
            Sent::Done => net.count_call(key.path, packets, bytes.len(), now),
            Sent::Later(until) => {
                net.ports[port].pause(now, until, until < Time::NEVER);
                return 0;
            }
            Sent::OneByOne if packets > 1 => {
                self.segmentation = false;
                return self.offer_singly(net, key, bytes, segment, now);
            }
            Sent::OneByOne => net.causes.add(Cause::TxError, packets as u64),
            Sent::Lost(cause) => net.count_lost(key, cause, packets),
        }
        bytes.len()
    }
}

/// The sockets to watch until they can be written: those that the first held run of each port waits for.
pub(super) fn watch_held(net: &mut Network, epoll: &Epoll, first_token: u64) {
    for port in net.ports.iter().filter(|port| port.retry_at == Time::NEVER) {
        let Some(held) = port.held.front() else { continue };
        let Via::Socket { socket, watched } = &mut net.paths[usize::from(held.key.path)].via else {
            continue;
        };
        if !*watched {
            let token = first_token + u64::from(held.key.path);
            *watched = epoll.add(socket.fd(), Interest::Writable, token).is_ok();
        }
    }
}

/// Ends the watch on the socket of a path; returns the path's port.
pub(super) fn unwatch(net: &mut Network, epoll: &Epoll, path: usize) -> Option<usize> {
    let path = net.paths.get_mut(path)?;
    if let Via::Socket { socket, watched } = &mut path.via
        && std::mem::take(watched)
    {
        // Whether the descriptor was still watched makes no difference now.
        let _ = epoll.remove(socket.fd());
    }
    Some(path.port.into())
}
