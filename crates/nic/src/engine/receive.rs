//! From datagrams to the transport: what is looked at before a packet may mean anything, in the order of cost, and what
//! is counted when it may not (spec: wire, "Bad input"). Nothing is ever answered to a packet refused here.

use std::mem::MaybeUninit;
use std::net::IpAddr;

use openmrc_sockets::{Interest, RecvBuffer, RecvMeta};
use openmrc_transport::mrc::LASTING_BURST;
use openmrc_transport::{Received, Span, Time, Transport, Trim};
use openmrc_wire::{ENDPOINT_QP, Entropy, IcrcSeed, NackReason, Packet, opcode};

use super::{Engine, Inbox, Qp, QpHost, qp_host};
use crate::shared::{Shared, TOKEN_LINKS, TOKEN_TX, TOKEN_WAKE};
use crate::socket;
use crate::stats::Cause;
use crate::sys;

/// Descriptors reported by one look.
const EVENTS: usize = 32;

/// A poller that has been away for so long finds all ports worth a look.
const LONG_AWAY: Span = Span::from_micros(10);

impl Engine {
    /// Takes up to `budget` datagrams from the sockets of all ports; whether there was anything.
    pub(super) fn receive(&mut self, shared: &Shared, budget: usize) -> bool {
        if !self.watching {
            self.watch_ports(shared, true);
        }
        let Some(mut inbox) = self.inbox.take() else { return false };
        let mut worked = false;
        for _ in 0..budget {
            let received =
                self.next_port.expected() && self.receive_port(shared, self.next_port.port, &mut inbox);
            if !received {
                let asked = sys::realtime_ns();
                let (ports, events) = self.ready_ports(shared);
                worked |= events;
                if !self.next_port.look(asked, ports) {
                    break;
                }
                self.receive_port(shared, self.next_port.port, &mut inbox);
            }
            worked = true;
        }
        self.inbox = Some(inbox);
        worked
    }

    /// Takes one datagram, without asking which port has any: the shortest way for who polls. The sockets are not even
    /// watched then, so that those who send to them need not tell.
    #[inline]
    pub(super) fn receive_polled(&mut self, shared: &Shared) -> bool {
        if self.watching {
            self.watch_ports(shared, false);
        }
        let Some(mut inbox) = self.inbox.take() else { return false };
        let received = self.receive_port(shared, self.next_port.port, &mut inbox)
            || self.look_beside(shared, &mut inbox);
        self.inbox = Some(inbox);
        received
    }

    /// Nothing where it was expected: now and then looks at another port, or at all if there was no look for long.
    fn look_beside(&mut self, shared: &Shared, inbox: &mut Inbox) -> bool {
        if !self.next_port.looks_beside() {
            return false;
        }
        let now = sys::now();
        let away = now.since(std::mem::replace(&mut self.next_port.looked, now));
        let count = self.ports.len();
        for _ in 0..if away > LONG_AWAY { count } else { 1 } {
            let port = if self.next_port.beside + 1 < count { self.next_port.beside + 1 } else { 0 };
            self.next_port.beside = port;
            if port != self.next_port.port && self.receive_port(shared, port, inbox) {
                return true;
            }
        }
        false
    }

    /// Lets epoll tell of packets on the ports, or not.
    fn watch_ports(&mut self, shared: &Shared, watch: bool) {
        self.watching = watch;
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.rx.set_gro(true);
            let fd = port.rx.fd();
            // It can only fail if that is how it is already.
            let _ = match watch {
                true => shared.epoll.add(fd, Interest::Readable, index as u64),
                false => shared.epoll.remove(fd),
            };
        }
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
                TOKEN_WAKE if !self.eager => {
                    shared.wake.clear();
                }
                TOKEN_WAKE => {}
                TOKEN_LINKS => self.links_changed(shared),
                TOKEN_TX.. => self.writable(shared, (token - TOKEN_TX) as usize, sys::now()),
                port => ports |= 1 << port,
            }
        }
        (ports, !events.is_empty())
    }

    /// Takes one datagram, or a batch of frames, from a port; whether there was one.
    #[inline]
    fn receive_port(&mut self, shared: &Shared, port: usize, inbox: &mut Inbox) -> bool {
        match inbox {
            Inbox::Datagrams(rx) => self.receive_datagram(shared, port, rx),
            Inbox::Frames(frames) => self.receive_frames(shared, port, frames),
        }
    }

    fn receive_datagram(&mut self, shared: &Shared, port: usize, rx: &mut RecvBuffer) -> bool {
        // An error other than "nothing there" (a route's, say) is reported once and means nothing to a receiver.
        let socket = &mut self.ports[port].rx;
        let Ok((bytes, meta)) = rx.receive(socket.fd()) else {
            socket.adapt_gro(0);
            if self.watching {
                self.next_port.missed(port);
            }
            return false;
        };
        let packets = bytes.len().div_ceil(meta.segment);
        if !self.watching {
            socket.adapt_gro(packets);
        }
        let now = sys::now();
        if bytes.first().is_some_and(|op| (opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM).contains(op)) {
            // Whoever sends in runs is expected to do so as we do.
            self.next_port.came(
                now,
                port,
                meta.arrived_ns,
                packets,
                usize::from(self.config.ev_burst.min(LASTING_BURST)),
            );
            if packets > 1 {
                self.saw_bulk();
            }
        } else {
            self.next_port.came_beside(port, meta.arrived_ns);
        }
        self.datagram_in(shared, now, port, &meta, bytes);
        self.settle(shared, now);
        self.send_feedback(now);
        true
    }

    pub(super) fn datagram_in(
        &mut self,
        shared: &Shared,
        now: Time,
        port: usize,
        meta: &RecvMeta,
        bytes: &[u8],
    ) {
        let packets = bytes.len().div_ceil(meta.segment).max(1) as u64;
        let stats = &mut self.ports[port].stats;
        stats.rx_datagrams += 1;
        stats.rx_packets += packets;
        stats.rx_bytes += bytes.len() as u64;
        self.pressure.received(bytes.len());
        if socket::is_marked(meta.traffic_class) {
            stats.rx_ecn_marked += packets;
        }
        if let Some(dropped) = meta.dropped {
            let new = u64::from(dropped.wrapping_sub(self.ports[port].rxq_dropped));
            self.ports[port].rxq_dropped = dropped;
            self.ports[port].stats.rx_overflow += new;
            self.causes.add(Cause::SocketOverflow, new);
        }
        let refused = if meta.truncated {
            Some(Cause::Truncated)
        } else if !self.ports[port].is_up() {
            Some(Cause::PortDown)
        } else if bytes.is_empty() {
            Some(Cause::Short)
        } else {
            None
        };
        if let Some(cause) = refused {
            self.causes.add(cause, packets);
            return;
        }
        for one in bytes.chunks(meta.segment) {
            if let Err(cause) = self.packet_in(shared, now, port, meta, one) {
                self.causes.add(cause, 1);
            }
        }
    }

    #[inline]
    fn packet_in(
        &mut self,
        shared: &Shared,
        now: Time,
        port: usize,
        meta: &RecvMeta,
        bytes: &[u8],
    ) -> Result<(), Cause> {
        let trim = match self.config.dscp.trimmed_reason(meta.traffic_class >> 2) {
            None => None,
            Some(NackReason::TrimmedLastHop) => Some(Trim::LastHop),
            Some(_) => Some(Trim::Fabric),
        };
        let (packet, payload): (Packet, &[u8]) = match trim {
            None => Packet::parse(bytes).map_err(|e| Cause::from(&e))?,
            Some(_) => (Packet::parse_trimmed(bytes).map_err(|e| Cause::from(&e))?, &[]),
        };
        if trim.is_some() && !packet.is_data() {
            return Err(Cause::TrimmedControl);
        }
        let received = Received {
            packet,
            ev: self
                .config
                .ev_format
                .read(Entropy { sport: meta.source_port, flow_label: u32::from(meta.flow_label) }),
            port: port as u8,
            ecn_ce: socket::is_marked(meta.traffic_class),
            trim,
        };
        if packet.dest_qp == ENDPOINT_QP {
            return self.endpoint_in(shared, now, meta, bytes, &received);
        }
        let index = self.place_of(packet.dest_qp);
        let peer = index
            .and_then(|i| self.qps[i].as_ref())
            .and_then(|qp| qp.io.peer)
            .and_then(|peer| self.peers.get(peer));
        let dest_port = self.ports[port].addr.port();
        let intact = |seed: &IcrcSeed| trim.is_some() || seed.verify(meta.source_port, dest_port, bytes);
        // The usual packet: from the peer's address on this plane.
        match peer.and_then(|p| p.seed_rx(port as u8, meta.source)) {
            Some(seed) if intact(seed) => {}
            Some(_) => return Err(Cause::BadIcrc),
            None => {
                let seed = self.seed_between(meta.source, port).ok_or(Cause::WrongPeer)?;
                if !intact(&seed) {
                    return Err(Cause::BadIcrc);
                }
                let owner = match index {
                    None => return Err(Cause::UnknownQp),
                    Some(_) => peer.ok_or(Cause::QpNotReady)?,
                };
                if !owner.owns(meta.source) {
                    return Err(Cause::WrongPeer);
                }
            }
        }
        let Some(index) = index else { return Err(Cause::UnknownQp) };
        let Some(Qp { transport: Some(transport), io }) = self.qps[index].as_deref_mut() else {
            return Err(Cause::QpNotReady);
        };
        if !std::mem::replace(&mut io.receiving, true) {
            self.pressure.receives(now, index as u32);
        }
        transport.handle_packet(now, &received, &mut qp_host!(self, io, shared, now, payload));
        self.touch(index as u32);
        Ok(())
    }

    /// The iCRC's constant part for packets from any address to our port.
    pub(super) fn seed_between(&self, source: IpAddr, port: usize) -> Option<IcrcSeed> {
        IcrcSeed::between(source, self.ports[port].addr.ip())
    }
}
