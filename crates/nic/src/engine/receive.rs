//! From datagrams to the transport: what is looked at before a packet may mean anything, in the order of cost, and what
//! is counted when it may not (spec: wire, "Bad input"). Nothing is ever answered to a packet refused here.

use std::net::IpAddr;

use openmrc_transport::{Received, Time, Transport, Trim};
use openmrc_wire::{ENDPOINT_QP, Ev, IcrcSeed, NackReason, Packet};

use super::{Engine, Qp, QpHost, qp_host};
use crate::context::{Shared, TOKEN_LINKS, TOKEN_TX, TOKEN_WAKE};
use crate::rx::{Meta, RxBuffer};
use crate::socket;
use crate::stats::Cause;
use crate::sys;

/// Datagrams in a turn before sending again.
const DATAGRAMS_PER_TURN: usize = 32;

/// Descriptors reported by one look.
const EVENTS: usize = 32;

impl Engine {
    /// Takes what waits on the sockets of all ports.
    ///
    /// A sender takes the ports in turn, a run on each. So after each datagram the next is looked for on the next port;
    /// only where that fails is the system asked which ports have any. This keeps packets in the order in which they
    /// were sent, which spares both ends feedback about gaps, and saves the asking.
    pub(super) fn receive(&mut self, shared: &Shared) -> bool {
        let Some(mut rx) = self.rx.take() else { return false };
        let mut worked = false;
        let mut budget = DATAGRAMS_PER_TURN;
        while budget > 0 {
            if self.rx_expected && self.receive_port(shared, self.rx_cursor, &mut rx) {
                budget -= 1;
            } else {
                let (ports, events) = self.ready_ports(shared);
                worked |= events;
                let from = self.rx_cursor;
                let next = (0..self.ports.len()).map(|i| (from + i) % self.ports.len());
                let Some(port) = next.into_iter().find(|&p| ports >> p & 1 == 1) else {
                    self.rx_expected = false;
                    break;
                };
                self.rx_cursor = port;
                self.rx_expected = true;
                budget -= 1;
                self.receive_port(shared, port, &mut rx);
            }
            worked = true;
            self.rx_cursor = if self.rx_cursor + 1 < self.ports.len() { self.rx_cursor + 1 } else { 0 };
        }
        self.rx = Some(rx);
        worked
    }

    /// Ports on which something waits, one bit each; everything else that epoll reports is done at once. The flag
    /// says whether it reported anything.
    fn ready_ports(&mut self, shared: &Shared) -> (u32, bool) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let mut ports = 0;
        let events = shared.epoll.ready(&mut events);
        for event in events {
            match { event.u64 } {
                TOKEN_WAKE => {
                    shared.wake.clear();
                }
                TOKEN_LINKS => self.links_changed(shared),
                token if token >= TOKEN_TX => self.writable(shared, (token - TOKEN_TX) as usize, sys::now()),
                port => ports |= 1 << port,
            }
        }
        (ports, !events.is_empty())
    }

    /// Takes one datagram from a port; whether there was one.
    fn receive_port(&mut self, shared: &Shared, port: usize, rx: &mut RxBuffer) -> bool {
        // An error other than "nothing there" (a route's, say) is reported once and means nothing to a receiver.
        let Ok((bytes, meta)) = rx.receive(self.ports[port].rx.fd()) else { return false };
        let now = sys::now();
        self.datagram_in(shared, now, port, &meta, bytes);
        self.settle(shared, now);
        self.send_feedback(now);
        true
    }

    fn datagram_in(&mut self, shared: &Shared, now: Time, port: usize, meta: &Meta, bytes: &[u8]) {
        let packets = bytes.len().div_ceil(meta.segment).max(1) as u64;
        let stats = &mut self.ports[port].stats;
        stats.rx_datagrams += 1;
        stats.rx_packets += packets;
        stats.rx_bytes += bytes.len() as u64;
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
        meta: &Meta,
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
            ev: Ev(u32::from(meta.source_port)),
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
