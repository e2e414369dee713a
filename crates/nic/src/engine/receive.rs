//! From datagrams to the node: the checks of a packet, the cheapest first, and the counters of those that fail
//! (docs/spec/wire.md, "Bad input"). A packet that is refused here gets no answer.

use std::hash::{BuildHasher as _, RandomState};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use openmrc_sockets::{Interest, RecvMeta};
use openmrc_transport::mrc::{self, LASTING_BURST};
use openmrc_transport::node::Node;
use openmrc_transport::presets::software::{LEAST_PER_LOOK, PACKET_MEMORY};
use openmrc_transport::{PortSet, Received, Span, Time, Trim};
use openmrc_wire::{
    Body, Difference, Differences, Distances, ENDPOINT_QP, Entropy, IcrcSeed, NackReason, Packet,
};

use super::arrival::{ArrivalOrder, Step};
use super::egress::Egress;
use super::next_port::NextPort;
use super::verbs::Verbs;
use super::{Engine, Environment};
use crate::config::{DeviceConfig, MAX_UDP_PORTS};
use crate::datapath::Inbox;
use crate::shared::{Shared, TOKEN_LINKS, TOKEN_MORE, TOKEN_TX, TOKEN_WAKE};
use crate::socket;
use crate::stats::Cause;
use crate::sys;
use crate::tx::is_data;

/// Descriptors reported by one look.
const EVENTS: usize = 32;

/// Bytes received from one look at the receive buffers to the next: a sixteenth of a buffer, within these bounds. A
/// look takes a system call for each port; once a mebibyte, its cost is below a hundredth.
const LEAST_PER_SAMPLE: usize = LEAST_PER_LOOK as usize;
const MOST_PER_SAMPLE: usize = 1 << 20;

/// Datagrams in a turn before sending again.
pub(super) const DATAGRAMS_PER_TURN: usize = 32;

/// Eager turns without a run, sent or received, until traffic no longer counts as bulk: some milliseconds.
const BULK_TURNS: u32 = 4096;

/// After a poller has been away for this long, it looks at all ports.
const LONG_AWAY: Span = Span::from_micros(10);

/// The receiving side of a device.
pub(super) struct Ingress {
    /// By port: what was read and is not handled yet.
    inboxes: Vec<Inbox>,
    order: ArrivalOrder,
    next_port: NextPort,
    /// Room for what comes in by the ports' further sockets.
    more: Inbox,
    /// The ports' sockets are watched by epoll.
    watching: bool,
    /// This turn is taken by an application that polls.
    pub eager: bool,
    /// Eager turns for which traffic still counts as bulk, not as single messages.
    bulk: u32,
    /// Bytes received since the last look at the receive buffers, as the kernel counts them.
    unsampled: usize,
    /// And how many of them call for the next.
    sample_every: usize,
    /// Names for the addresses of unknown nodes.
    sources: RandomState,
    /// For the iCRCs of packets over IPv4.
    distances: Distances,
}

/// Counts of one read of a port.
#[derive(Default)]
struct ReadCounts {
    datagrams: usize,
    packets: usize,
    bytes: usize,
    data: usize,
}

impl ReadCounts {
    #[inline]
    fn add(&mut self, bytes: &[u8], meta: &RecvMeta) {
        let packets = bytes.len().div_ceil(meta.segment).max(1);
        self.datagrams += 1;
        self.packets += packets;
        self.bytes += bytes.len();
        if bytes.first().is_some_and(|&opcode| is_data(opcode)) {
            self.data += packets;
        }
    }
}

impl Ingress {
    /// For ports whose sockets are watched and have receive buffers of `buffer` bytes at least.
    pub fn new(inboxes: Vec<Inbox>, more: Inbox, buffer: usize) -> Self {
        let ports = inboxes.len();
        Ingress {
            inboxes,
            more,
            order: ArrivalOrder::new(ports),
            next_port: NextPort::new(ports),
            watching: true,
            eager: false,
            bulk: 0,
            unsampled: 0,
            // A full buffer is noticed before the packets that other ports received after it are handled: their SACKs
            // would show a loss that nothing explains.
            sample_every: (buffer / 16).clamp(LEAST_PER_SAMPLE, MOST_PER_SAMPLE).min(buffer / 2),
            sources: RandomState::new(),
            distances: Distances::default(),
        }
    }

    /// A whole run has been sent, or several packets have come at once.
    #[inline]
    pub fn saw_bulk(&mut self) {
        self.bulk = BULK_TURNS;
    }
}

impl Engine {
    /// Takes datagrams from the sockets of the ports; whether there were any.
    #[inline]
    pub(super) fn receive(&mut self, shared: &Shared) -> bool {
        if self.ingress.eager {
            self.ingress.bulk = self.ingress.bulk.saturating_sub(1);
            if self.ingress.bulk == 0 {
                return self.receive_polled(shared);
            }
        }
        self.receive_in_order(shared)
    }

    /// Handles up to [`DATAGRAMS_PER_TURN`] datagrams in the order of their arrival.
    fn receive_in_order(&mut self, shared: &Shared) -> bool {
        if !self.ingress.watching {
            self.watch_ports(shared, true);
        }
        self.receive_while(shared, |engine| {
            let asked = sys::realtime_ns();
            let (ports, events) = engine.ready_ports(shared);
            engine.ingress.order.ready(asked, ports);
            (ports != 0, events)
        })
    }

    /// Handles what has arrived on these ports, as far as one turn goes.
    pub(super) fn receive_from(&mut self, shared: &Shared, ports: PortSet) -> bool {
        self.ingress.order.ready(sys::realtime_ns(), ports.0.into());
        self.receive_while(shared, |engine| {
            // What arrives from now on is for the next turn.
            engine.ingress.order.ready(sys::realtime_ns(), 0);
            (false, false)
        })
    }

    /// Handles datagrams in the order of their arrival. `ask` asks the system which ports have any; it returns whether
    /// some have, and whether the system reported anything.
    #[inline]
    fn receive_while(&mut self, shared: &Shared, mut ask: impl FnMut(&mut Self) -> (bool, bool)) -> bool {
        let mut handled = 0;
        let mut worked = false;
        while handled < DATAGRAMS_PER_TURN {
            match self.ingress.order.next() {
                Step::Read(port) => {
                    self.read_port(port);
                }
                Step::Handle(port) => {
                    self.handle_port(shared, port);
                    handled += 1;
                    if self.ingress.unsampled >= self.ingress.sample_every {
                        self.sample_buffers(shared);
                    }
                }
                Step::Ask => {
                    let (any, reported) = ask(self);
                    worked |= reported;
                    if !any && !self.ingress.order.holds_any() {
                        break;
                    }
                }
            }
        }
        if handled == DATAGRAMS_PER_TURN {
            // The system may not be asked for long: the clock is looked at nevertheless.
            self.ingress.order.clock_shows(sys::realtime_ns());
        }
        worked | (handled > 0)
    }

    /// Looks at how full the receive buffers are, and whether one has dropped packets.
    #[cold]
    fn sample_buffers(&mut self, shared: &Shared) {
        self.ingress.unsampled = 0;
        if self.egress.net.sample_buffers() > 0 {
            let now = sys::now();
            self.with_node(shared, now, |node, host| node.overflowed(now, host));
        }
    }

    /// Handles one datagram, without asking which port has any: the shortest way for an application that polls. The
    /// sockets are not even watched then, which saves their senders a wake-up.
    #[inline]
    fn receive_polled(&mut self, shared: &Shared) -> bool {
        if self.ingress.watching {
            self.watch_ports(shared, false);
        }
        let handled = match self.ingress.order.oldest() {
            Some(port) => Some(self.handle_port(shared, port)),
            None => self
                .receive_port(shared, self.ingress.next_port.port)
                .or_else(|| self.look_at_another_port(shared)),
        };
        if let Some(now) = handled {
            // The answer to a single message does not wait.
            self.handle_timers(shared, now);
        }
        handled.is_some()
    }

    /// Nothing where it was expected: now and then looks at another port, or at all if there was no look for long.
    fn look_at_another_port(&mut self, shared: &Shared) -> Option<Time> {
        if !self.ingress.next_port.looks_elsewhere() {
            return None;
        }
        let now = sys::now();
        let next = &mut self.ingress.next_port;
        let away = now.since(std::mem::replace(&mut next.looked, now));
        let count = self.egress.net.ports.len();
        for _ in 0..if away > LONG_AWAY { count } else { 1 } {
            let next = &mut self.ingress.next_port;
            let port = if next.elsewhere + 1 < count { next.elsewhere + 1 } else { 0 };
            next.elsewhere = port;
            if port != next.port {
                let handled = self.receive_port(shared, port);
                if handled.is_some() {
                    return handled;
                }
            }
        }
        None
    }

    /// Lets epoll tell of packets on the ports, or not.
    fn watch_ports(&mut self, shared: &Shared, watch: bool) {
        self.ingress.watching = watch;
        for (index, port) in self.egress.net.ports.iter_mut().enumerate() {
            port.rx.set_gro(true);
            let fd = port.rx.fd();
            // It can only fail if that is how it is already.
            let _ = match watch {
                true => shared.epoll.add(fd, Interest::Readable, index as u64),
                false => shared.epoll.remove(fd),
            };
        }
    }

    /// Lets epoll tell when the sockets that held packets wait for can be written.
    pub fn watch_held(&mut self, shared: &Shared) {
        self.egress.datapath.watch_held(&mut self.egress.net, &shared.epoll, TOKEN_TX);
    }

    /// Ports on which something waits, one bit each; everything else that epoll reports is done at once. The flag
    /// says whether it reported anything.
    pub(super) fn ready_ports(&mut self, shared: &Shared) -> (u32, bool) {
        let mut ports = 0;
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        let events = shared.epoll.ready(&mut room);
        for event in events {
            let token = event.u64;
            match token {
                // Meant for the engine's thread: a poller must not take its wake-up call away.
                TOKEN_WAKE if !self.ingress.eager => {
                    shared.wake.clear();
                }
                TOKEN_WAKE => {}
                TOKEN_LINKS => self.links_changed(shared),
                TOKEN_MORE..TOKEN_TX => self.receive_more(shared, (token - TOKEN_MORE) as usize),
                TOKEN_TX.. => {
                    let path = (token - TOKEN_TX) as usize;
                    self.egress.datapath.writable(&mut self.egress.net, &shared.epoll, path, sys::now());
                }
                port => ports |= 1 << port,
            }
        }
        (ports, !events.is_empty())
    }

    /// Handles what waits on one of the ports' further sockets.
    #[cold]
    fn receive_more(&mut self, shared: &Shared, index: usize) {
        let (port, index) = (index / MAX_UDP_PORTS, index % MAX_UDP_PORTS);
        for _ in 0..DATAGRAMS_PER_TURN {
            let Engine { ingress, node, verbs, egress, config, .. } = self;
            let Ingress { more, sources, distances, .. } = ingress;
            let now = sys::now();
            let (dest_port, fd) = match egress.net.ports.get(port).and_then(|port| port.more.get(index)) {
                Some((dest_port, socket)) => (*dest_port, socket.fd()),
                None => return,
            };
            if more.read(fd).is_none() {
                return;
            }
            let mut receiver =
                Receiver { node, verbs, egress, config, shared, sources, distances, port, now };
            more.handle(|datagram| {
                if let Ok((bytes, meta)) = datagram {
                    // The count of drops is that of the port's own socket.
                    receiver.datagram(&RecvMeta { dest_port, dropped: None, ..meta }, bytes);
                }
            });
        }
    }

    /// Reads from a port and handles what came; returns when, if there was anything.
    #[inline]
    fn receive_port(&mut self, shared: &Shared, port: usize) -> Option<Time> {
        self.read_port(port).then(|| self.handle_port(shared, port))
    }

    /// Reads from a port, whose last datagram was handled; whether there was anything.
    #[inline]
    fn read_port(&mut self, port: usize) -> bool {
        let Ingress { inboxes, order, watching, .. } = &mut self.ingress;
        let socket = &mut self.egress.net.ports[port].rx;
        let arrived = inboxes[port].read(socket.fd());
        if arrived.is_none() && !*watching {
            socket.adapt_gro(0);
        }
        order.read(port, arrived);
        arrived.is_some()
    }

    /// Handles what was read from a port; returns when.
    #[inline]
    fn handle_port(&mut self, shared: &Shared, port: usize) -> Time {
        let now = sys::now();
        let Engine { ingress, node, verbs, egress, config, .. } = self;
        let mut counts = ReadCounts::default();
        let Ingress { inboxes, sources, distances, .. } = &mut *ingress;
        let mut receiver = Receiver { node, verbs, egress, config, shared, sources, distances, port, now };
        inboxes[port].handle(|datagram| match datagram {
            Ok((bytes, meta)) => {
                counts.add(bytes, &meta);
                receiver.datagram(&meta, bytes);
            }
            Err(cause) => receiver.egress.net.causes.add(cause, 1),
        });
        ingress.order.handled(port);
        ingress.unsampled += counts.bytes + counts.datagrams * PACKET_MEMORY as usize;
        // Feedback comes in pairs, which are too few for GRO to pay.
        if !ingress.watching && counts.data > 0 {
            egress.net.ports[port].rx.adapt_gro(counts.packets);
        }
        if counts.data > 0 {
            // A peer is expected to send in runs as this node does.
            let run = usize::from(config.sockets.burst.min(LASTING_BURST));
            ingress.next_port.received(now, port, counts.data, run);
        }
        if counts.data > 1 {
            ingress.saw_bulk();
        }
        egress.send_waiting(now);
        self.packets += counts.packets as u64;
        now
    }
}

/// The IPv4 identification for which the iCRC of a packet is right, if there is one. It probably is the packet's place
/// in its datagram.
#[inline]
fn identification(
    seed: &IcrcSeed,
    sport: u16,
    dport: u16,
    bytes: &[u8],
    place: u16,
    distances: &mut Distances,
) -> Option<u16> {
    if place > 0 && seed.has_identification() {
        return seed.identified(place).identification(sport, dport, bytes, distances);
    }
    seed.identification(sport, dport, bytes, distances)
}

/// Handles the datagrams of one port.
struct Receiver<'a> {
    node: &'a mut Node<mrc::QueuePair>,
    verbs: &'a mut Verbs,
    egress: &'a mut Egress,
    config: &'a DeviceConfig,
    shared: &'a Shared,
    /// Names for the addresses of unknown nodes.
    sources: &'a RandomState,
    distances: &'a mut Distances,
    port: usize,
    now: Time,
}

impl Receiver<'_> {
    /// Handles the packets of a datagram, all of `meta.segment` bytes but the last.
    #[inline]
    fn datagram(&mut self, meta: &RecvMeta, bytes: &[u8]) {
        let packets = bytes.len().div_ceil(meta.segment).max(1) as u64;
        let net = &mut self.egress.net;
        let port = &mut net.ports[self.port];
        port.stats.rx_datagrams += 1;
        port.stats.rx_packets += packets;
        port.stats.rx_bytes += bytes.len() as u64;
        if socket::is_marked(meta.traffic_class) {
            port.stats.rx_ecn_marked += packets;
        }
        let dropped = meta.dropped.map_or(0, |dropped| port.count_dropped(dropped));
        if dropped > 0 {
            self.overflowed(dropped);
        }
        let net = &mut self.egress.net;
        let refused = if meta.truncated {
            Some(Cause::Truncated)
        } else if !net.ports[self.port].is_up() {
            Some(Cause::PortDown)
        } else if bytes.is_empty() {
            Some(Cause::Short)
        } else {
            None
        };
        if let Some(cause) = refused {
            net.causes.add(cause, packets);
            return;
        }
        for (place, one) in bytes.chunks(meta.segment).enumerate() {
            if let Err(cause) = self.packet(meta, one, place as u16) {
                self.egress.net.causes.add(cause, 1);
            }
        }
    }

    /// Handles one packet, the one at `place` of its datagram.
    #[inline]
    fn packet(&mut self, meta: &RecvMeta, bytes: &[u8], place: u16) -> Result<(), Cause> {
        let trim = match self.config.network.dscp.trimmed_reason(meta.traffic_class >> 2) {
            None => None,
            Some(NackReason::TrimmedLastHop) => Some(Trim::LastHop),
            Some(_) => Some(Trim::Fabric),
        };
        let (packet, payload): (Packet, &[u8]) = match trim {
            None => Packet::parse(bytes).map_err(|e| Cause::from(&e))?,
            Some(_) => match Packet::parse_trimmed(bytes)
                .or_else(|error| Packet::parse_bare_write(bytes).map_err(|_| error))
                .map_err(|e| Cause::from(&e))?
            {
                write if write.is_data() => (write, &[]),
                // Small packets lose nothing when a switch trims them. One that is cut short is of no use.
                _ => Packet::parse(bytes).map_err(|_| Cause::TrimmedControl)?,
            },
        };
        let is_cut = trim.is_some() && packet.is_data();
        let entropy = Entropy { sport: meta.source_port, flow_label: u32::from(meta.flow_label) };
        let received = Received {
            packet,
            ev: self.config.entropy.order.join(entropy),
            port: self.port as u8,
            ecn_ce: socket::is_marked(meta.traffic_class),
            trim,
        };
        if packet.dest_qp == ENDPOINT_QP {
            return self.endpoint_packet(meta, bytes, &received);
        }
        let slot = self.node.find(packet.dest_qp);
        let dest_port = self.dest_port(meta);
        let peer =
            slot.and_then(|slot| self.node.peer(slot)).and_then(|peer| self.egress.net.peers.get(peer));
        let distances = &mut *self.distances;
        let mut intact = |seed: &IcrcSeed| {
            is_cut || {
                let found = identification(seed, meta.source_port, dest_port, bytes, place, distances);
                found.is_some_and(|found| peer.is_none_or(|peer| peer.numbering.accepts(found)))
            }
        };
        // The usual packet: from the peer's address on this plane.
        match peer.and_then(|p| p.seed_rx(self.port as u8, meta.source)) {
            Some(seed) if intact(seed) => {}
            Some(_) => return Err(Cause::BadIcrc),
            None => {
                let seed = self.egress.net.seed_between(meta.source, self.port).ok_or(Cause::WrongPeer)?;
                if !intact(&seed) {
                    return Err(Cause::BadIcrc);
                }
                let owner = match slot {
                    None => return Err(Cause::UnknownQp),
                    Some(_) => peer.ok_or(Cause::QpNotReady)?,
                };
                if !owner.owns(meta.source) {
                    return Err(Cause::WrongPeer);
                }
            }
        }
        let Some(slot) = slot else { return Err(Cause::UnknownQp) };
        let numbers_own = peer.is_some_and(|peer| peer.numbering.is_own());
        self.note_differences(bytes, numbers_own);
        let Receiver { node, verbs, egress, shared, now, .. } = self;
        let mut host = Environment { verbs, egress, shared, payload, now: *now };
        node.handle(*now, slot, &received, bytes.len() as u32, &mut host);
        Ok(())
    }

    /// A socket has dropped packets. Known before the packets behind the gap are handled: their SACKs tell of it.
    fn overflowed(&mut self, dropped: u64) {
        self.egress.net.causes.add(Cause::SocketOverflow, dropped);
        // The bytes that are queued now decide how long the overflow is reported.
        self.egress.net.sample_buffers();
        let Receiver { node, verbs, egress, shared, now, .. } = self;
        node.overflowed(*now, &mut Environment { verbs, egress, shared, payload: &[], now: *now });
    }

    /// The UDP port that a datagram was sent to.
    #[inline]
    fn dest_port(&self, meta: &RecvMeta) -> u16 {
        match meta.dest_port {
            0 => self.egress.net.ports[self.port].addr.port(),
            port => port,
        }
    }

    /// Counts what a valid packet of a peer has otherwise than those of this device.
    #[inline]
    fn note_differences(&mut self, bytes: &[u8], numbers_own: bool) {
        let mut found = Differences::of(bytes);
        found.note(Difference::Identification, numbers_own);
        if !found.is_empty() {
            self.egress.net.differences.add(found);
        }
    }

    /// A packet for the endpoint: EV probes and port status.
    fn endpoint_packet(&mut self, meta: &RecvMeta, bytes: &[u8], received: &Received) -> Result<(), Cause> {
        let net = &self.egress.net;
        let seed = net.seed_between(meta.source, self.port).ok_or(Cause::WrongPeer)?;
        let peer = net.peers.by_source(received.port, meta.source);
        let numbering = peer.and_then(|peer| net.peers.get(peer)).map(|peer| &peer.numbering);
        let dest_port = self.dest_port(meta);
        // All identifications of an unknown node are accepted: its request can cause no more than an answer.
        let found = identification(&seed, meta.source_port, dest_port, bytes, 0, self.distances);
        if !found.is_some_and(|found| numbering.is_none_or(|numbering| numbering.accepts(found))) {
            return Err(Cause::BadIcrc);
        }
        let numbers_own = numbering.is_some_and(|numbering| numbering.is_own());
        let is_request = matches!(received.packet.body, Body::EndpointRequest(_));
        if is_request && !self.config.endpoint.answered.answers(meta.source, peer.is_some()) {
            return Err(Cause::WrongPeer);
        }
        let Some(peer) = peer else { return self.answer_unknown(meta.source, received, is_request) };
        self.note_differences(bytes, numbers_own);
        let Receiver { node, verbs, egress, shared, now, .. } = self;
        let mut host = Environment { verbs, egress, shared, payload: &[], now: *now };
        match node.handle_endpoint(*now, peer, received, &mut host) {
            true => Ok(()),
            false => Err(Cause::Unexpected),
        }
    }

    /// Answers a request of a node that no queue pair is connected to, at the port on which MRC nodes receive. Nothing
    /// is kept of it.
    fn answer_unknown(&mut self, source: IpAddr, received: &Received, is_request: bool) -> Result<(), Cause> {
        let own = self.egress.net.ports[self.port].addr;
        let is_node = !source.is_unspecified()
            && !source.is_multicast()
            && source != IpAddr::V4(Ipv4Addr::BROADCAST)
            && source.is_loopback() == own.ip().is_loopback();
        if !is_request || !is_node {
            return Err(Cause::WrongPeer);
        }
        let name = self.sources.hash_one(source);
        if let Some(response) = self.node.answer_unknown(self.now, name, &received.packet) {
            let dest = SocketAddr::new(source, own.port());
            self.egress.answer(self.port as u8, dest, &response, self.now);
        }
        Ok(())
    }
}
