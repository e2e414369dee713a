//! UDP sockets: a run of consecutive packets of one path goes to the kernel in one system call.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use openmrc_sockets::send_ring::MAX_SENDS;
use openmrc_sockets::{Epoll, Interest, IoVec, SendRing, SockAddr, thread};
use openmrc_transport::node::PeerId;
use openmrc_transport::{PathEntry, Time};
use openmrc_wire::{Distances, DscpClass, Entropy, EntropyOrder, Ev, EvFormat, IcrcSeed, Packet};

use super::offer::{Offer, Sent};
use crate::config::{DeviceConfig, MAX_PATHS, PortConfig, SocketConfig};
use crate::error::{Error, Result};
use crate::impairer::{Outgoing, RuleSet};
use crate::network::Network;
use crate::path::{SegmentRoute, TxPath, Via};
use crate::piece::Piece;
use crate::port::Port;
use crate::socket::{RxSocket, TxSocket, traffic_class};
use crate::stats::Cause;
use crate::tx::{RunKey, TxRun, is_data, number_packets};

/// Most runs of one system call, if the device has a ring.
const RUNS_PER_CALL: usize = 4;
/// Runs of so many bytes do not wait for others: the receiver can begin, and the payload is still in the processor's cache
/// from the iCRC.
const BYTES_PER_CALL: usize = 32 << 10;
const _: () = assert!(RUNS_PER_CALL <= MAX_SENDS);

/// Where the process may have as many descriptors, sockets keep theirs: four devices with the most paths fit.
const PLENTY_OF_DESCRIPTORS: usize = 4 * MAX_PATHS;

/// Sends by UDP sockets.
pub(crate) struct Udp {
    config: Arc<DeviceConfig>,
    /// Complete runs that the ring sends with its next call, and then the run that is being gathered.
    runs: Vec<TxRun>,
    /// Complete runs, and their bytes.
    queued: usize,
    queued_bytes: usize,
    /// Has the sockets, which need no descriptors then; `None` where descriptors are plenty or io_uring is refused.
    ring: Option<SendRing>,
    /// The kernel cuts runs into packets.
    segmentation: bool,
    distances: Distances,
    /// The impairment rules that act on each packet of the current run.
    drawn: Vec<RuleSet>,
}

impl Udp {
    pub fn new(config: Arc<DeviceConfig>) -> Self {
        let scarce = || thread::descriptor_limit() < PLENTY_OF_DESCRIPTORS;
        let ring =
            config.sockets.io_uring.unwrap_or_else(scarce).then(|| SendRing::new(MAX_PATHS).ok()).flatten();
        let runs = if ring.is_some() { RUNS_PER_CALL } else { 1 };
        Udp {
            runs: (0..runs).map(|_| TxRun::new()).collect(),
            queued: 0,
            queued_bytes: 0,
            ring,
            segmentation: config.sockets.segmentation,
            drawn: Vec::new(),
            distances: Distances::default(),
            config,
        }
    }

    // --- ports and paths -----------------------------------------------------------------------------------------

    pub fn open_port(&mut self, net: &mut Network, port: &PortConfig) -> Result<Port> {
        let config = Arc::clone(&self.config);
        let index = net.ports.len();
        let addr = SocketAddr::new(port.addr, port.udp_port);
        let rx = RxSocket::open(addr, config.sockets.receive_buffer, config.sockets.segmentation)?;
        let first = net.paths.len() as u16;
        for i in 0..config.evs_of_port(index) {
            let source_port = port.source_ports.get(i).copied().unwrap_or(0);
            let socket = self.open_socket(port.addr, source_port)?;
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

    fn open_socket(&mut self, addr: IpAddr, source_port: u16) -> Result<TxSocket> {
        let SocketConfig { send_buffer, raise_descriptor_limit, .. } = self.config.sockets;
        if raise_descriptor_limit && !self.ring.as_ref().is_some_and(SendRing::has_room) {
            thread::raise_descriptor_limit();
        }
        TxSocket::open(addr, source_port, send_buffer, self.data_class(), self.ring.as_mut())
    }

    /// Traffic class octet of most packets: data.
    fn data_class(&self) -> u8 {
        let class = if self.config.network.trims { DscpClass::Trimmable } else { DscpClass::NoTrim };
        traffic_class(self.config.network.dscp.code(class), true)
    }

    pub fn open_path(
        &mut self,
        net: &mut Network,
        entry: PathEntry,
        route: Option<SegmentRoute>,
    ) -> Result<u16> {
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
                Arc::new(self.open_socket(addr, source_port)?)
            }
        };
        net.paths.push(TxPath::new(entry.port, entry.ev, entropy, Via::Socket { socket, watched: false }));
        Ok(net.paths.len() as u16 - 1)
    }

    /// Closes the sockets that the ring has. Nothing can be sent afterwards.
    pub fn close(&mut self) {
        self.ring = None;
    }

    /// Descriptors of what sends: that of the ring, and those of the sockets that it does not have.
    pub fn send_descriptors(&self, net: &Network) -> usize {
        let of_path = |path: &TxPath| match &path.via {
            Via::Socket { socket, .. } => socket.fd(),
            Via::Srv6(_) => None,
        };
        let sockets: HashSet<_> = net.paths.iter().filter_map(of_path).collect();
        sockets.len() + usize::from(self.ring.is_some())
    }

    // --- sending -------------------------------------------------------------------------------------------------

    #[inline]
    pub fn push(&mut self, net: &mut Network, key: RunKey, packet: &Packet, pieces: &[Piece], now: Time) {
        if !self.runs[self.queued].accepts(key, packet.wire_len()) {
            self.end_run(net, now);
        }
        let path = &net.paths[usize::from(key.path)];
        let Via::Socket { socket, .. } = &path.via else { return };
        if let Some((_, dest_port, seed)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) {
            let ports = (socket.source_port, dest_port);
            self.runs[self.queued].push(key, packet, pieces, seed, ports, self.segmentation);
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
        let run = &mut self.runs[0];
        let key = RunKey { path, peer: PeerId::MAX, class };
        run.push(key, packet, &[], &seed, ports, false);
        let bytes = run.bytes();
        let sent = run.send(socket, self.ring.as_mut(), &SockAddr::new(dest), Some(class));
        run.clear();
        match Sent::new(sent, now) {
            Sent::Done => net.count_call(key, 1, bytes, now),
            Sent::Lost(cause) => net.causes.add(cause, 1),
            Sent::Later(_) | Sent::OneByOne => net.causes.add(Cause::TxError, 1),
        }
    }

    /// Sends everything that has been gathered.
    pub fn flush(&mut self, net: &mut Network, now: Time) {
        self.end_run(net, now);
        self.send_queued(net, now);
    }

    /// The run that has been gathered is complete: the ring sends it with others, or it is sent now.
    fn end_run(&mut self, net: &mut Network, now: Time) {
        let Some(key) = self.runs[self.queued].key() else { return };
        if self.queue_run(net, key) {
            if self.queued == self.runs.len() || self.queued_bytes >= BYTES_PER_CALL {
                self.send_queued(net, now);
            }
            return;
        }
        let current = self.queued;
        self.send_queued(net, now);
        self.runs.swap(0, current);
        let port = net.port_of(key.path);
        if !net.ports[port].is_up() {
            net.causes.add(Cause::TxNoPort, self.runs[0].packets() as u64);
        } else if net.impairer.is_active() && self.draw_impairments(net, key, now) {
            self.impair_run(net, key, now);
        } else if !net.ports[port].held.is_empty() {
            self.hold_run(net, key, 0);
        } else {
            self.send_run(net, key, now);
        }
        self.runs[0].clear();
    }

    /// Adds the run that has been gathered to the ring's next call, unless it needs another treatment.
    fn queue_run(&mut self, net: &Network, key: RunKey) -> bool {
        let run = &self.runs[self.queued];
        let path = &net.paths[usize::from(key.path)];
        let port = &net.ports[usize::from(path.port)];
        let (Some(ring), Via::Socket { socket, .. }) = (&mut self.ring, &path.via) else {
            return false;
        };
        let Some(number) = socket.number() else { return false };
        if !port.is_free() || net.impairer.is_active() || run.packets() > 1 && !self.segmentation {
            return false;
        }
        let Some((dest, ..)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else { return false };
        let class = (key.class != socket.default_class).then_some(key.class);
        let dest = dest.with_flow_label(path.entropy.flow_label);
        // SAFETY: there are at most as many runs as sends of a call. `send_queued` clears them after the call.
        unsafe { run.queue(ring, number, &dest, class) };
        self.queued += 1;
        self.queued_bytes += run.bytes();
        true
    }

    /// Sends the complete runs.
    fn send_queued(&mut self, net: &mut Network, now: Time) {
        let (Some(ring), 1..) = (&mut self.ring, self.queued) else { return };
        let results = ring.submit();
        self.queued_bytes = 0;
        for place in 0..std::mem::take(&mut self.queued) {
            if let Some(key) = self.runs[place].key() {
                self.run_sent(net, key, place, results.of(place), now);
            }
            self.runs[place].clear();
        }
    }

    /// Sends the first run by itself.
    fn send_run(&mut self, net: &mut Network, key: RunKey, now: Time) {
        let run = &mut self.runs[0];
        if run.packets() > 1 && !self.segmentation {
            let mut copy = Vec::new();
            run.copy_to(&mut copy);
            let segment = run.segment();
            return self.send_piece(net, key, &copy, segment, now);
        }
        let path = &net.paths[usize::from(key.path)];
        let Via::Socket { socket, .. } = &path.via else { return };
        let Some((dest, ..)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else { return };
        let class = (key.class != socket.default_class).then_some(key.class);
        let dest = dest.with_flow_label(path.entropy.flow_label);
        let result = run.send(socket, self.ring.as_mut(), &dest, class);
        self.run_sent(net, key, 0, result, now);
    }

    /// What became of the run at this place.
    fn run_sent(&mut self, net: &mut Network, key: RunKey, place: usize, result: io::Result<()>, now: Time) {
        let (packets, bytes) = (self.runs[place].packets(), self.runs[place].bytes());
        match Sent::new(result, now) {
            Sent::Done => net.count_call(key, packets, bytes, now),
            Sent::Later(until) => {
                self.hold_run(net, key, place);
                pause(net, key.path, until, now);
            }
            Sent::OneByOne if packets > 1 => {
                self.segmentation = false;
                let (mut copy, segment) = (Vec::new(), self.runs[place].segment());
                self.runs[place].copy_to(&mut copy);
                self.send_piece(net, key, &copy, segment, now);
            }
            Sent::OneByOne => net.causes.add(Cause::TxError, packets as u64),
            Sent::Lost(cause) => net.count_lost(key, cause, packets),
        }
    }

    fn hold_run(&mut self, net: &mut Network, key: RunKey, place: usize) {
        let mut bytes = Vec::new();
        self.runs[place].copy_to(&mut bytes);
        net.hold(key, bytes, self.runs[place].segment());
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
        for opcode in self.runs[0].opcodes() {
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
        let segment = self.runs[0].segment();
        let mut bytes = Vec::new();
        self.runs[0].copy_to(&mut bytes);
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
        let Via::Socket { socket, .. } = &path.via else { return bytes.len() };
        let Some((dest, ..)) = net.peers.get(key.peer).and_then(|p| p.route(path.port)) else {
            return bytes.len();
        };
        let class = (key.class != socket.default_class).then_some(key.class);
        let dest = dest.with_flow_label(path.entropy.flow_label);
        let mut numbered = Vec::new();
        let bytes_sent = if packets > 1 && dest.is_v4() {
            numbered.extend_from_slice(bytes);
            number_packets(&mut numbered, segment, &mut self.distances);
            &numbered[..]
        } else {
            bytes
        };
        let iovec = IoVec { iov_base: bytes_sent.as_ptr().cast_mut().cast(), iov_len: bytes_sent.len() };
        let cut = (packets > 1).then_some(segment as u16);
        // SAFETY: the iovec names `bytes_sent`.
        let result = unsafe { socket.send(self.ring.as_mut(), &dest, &[iovec], class, cut) };
        match Sent::new(result, now) {
            Sent::Done => net.count_call(key, packets, bytes.len(), now),
            Sent::Later(until) => {
                pause(net, key.path, until, now);
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

/// The kernel has not taken packets of a path. Its port sends again at `until`; [`Time::NEVER`]: when the socket has
/// room, for which one with a descriptor can be watched.
fn pause(net: &mut Network, path: u16, until: Time, now: Time) {
    let TxPath { port, via, .. } = &net.paths[usize::from(path)];
    let watched = matches!(via, Via::Socket { socket, .. } if socket.fd().is_some());
    let port = &mut net.ports[usize::from(*port)];
    match until {
        Time::NEVER if !watched => port.wait_for_room(now),
        _ => port.pause(now, until, until < Time::NEVER),
    }
}

/// The sockets to watch until they can be written: those that the first held run of each port waits for.
pub(super) fn watch_held(net: &mut Network, epoll: &Epoll, first_token: u64) {
    for port in net.ports.iter().filter(|port| port.retry_at == Time::NEVER) {
        let Some(held) = port.held.front() else { continue };
        let Via::Socket { socket, watched } = &mut net.paths[usize::from(held.key.path)].via else {
            continue;
        };
        if !*watched && let Some(fd) = socket.fd() {
            let token = first_token + u64::from(held.key.path);
            *watched = epoll.add(fd, Interest::Writable, token).is_ok();
        }
    }
}

/// Ends the watch on the socket of a path; returns the path's port.
pub(super) fn unwatch(net: &mut Network, epoll: &Epoll, path: usize) -> Option<usize> {
    let path = net.paths.get_mut(path)?;
    if let Via::Socket { socket, watched } = &mut path.via
        && std::mem::take(watched)
        && let Some(fd) = socket.fd()
    {
        // Whether the descriptor was still watched makes no difference now.
        let _ = epoll.remove(fd);
    }
    Some(path.port.into())
}
