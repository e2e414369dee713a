//! What this node says to others without queue pairs: EV probes and port status (spec: transport, "Probes and port
//! status").

use openmrc_sockets::RecvMeta;
use openmrc_transport::endpoint::{EndpointHost, PeerId, ProbeTimeout, Route};
use openmrc_transport::{
    PathEntry, Payload, PortSet, Received, Span, Time, TrafficClass, Transmit, Transport,
};
use openmrc_wire::{Ev, Packet};

use super::{Engine, Feedback, Qp};
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::peer::Peers;
use crate::port::Port;
use crate::shared::Shared;
use crate::stats::Cause;

/// What the endpoint asked for during one call; carried out after it.
struct Requests<'a> {
    ports: &'a mut [Port],
    feedback: &'a mut Vec<Feedback>,
    peer_ports: Vec<(PeerId, PortSet)>,
    shared: &'a Shared,
    peers: &'a mut Peers,
    /// Number of the path being probed.
    probe_path: u16,
}

impl EndpointHost for Requests<'_> {
    fn transmit(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass) {
        let (port, path) = match route {
            // The entropy value of a request names a path of its sender's; back goes any of ours in the same plane.
            Route::Reply { port, .. } | Route::Port(port) => {
                let to_peer = self.peers.get_mut(peer).and_then(|p| p.any_path(port));
                let own = &mut self.ports[usize::from(port)];
                match to_peer {
                    Some(path) => (port, path),
                    None if !own.own_paths.is_empty() => (port, own.any_path()),
                    None => return,
                }
            }
            Route::Path { port, .. } => (port, self.probe_path),
        };
        let payload: Option<Payload> = None;
        let transmit = Transmit { packet, ev: Ev(0), path: 0, port, class, payload };
        self.feedback.push(Feedback { peer, path, transmit });
    }

    fn peer_ports(&mut self, peer: PeerId, up: PortSet) {
        self.peer_ports.push((peer, up));
    }

    fn probe_done(&mut self, _peer: PeerId, id: u16, result: std::result::Result<Span, ProbeTimeout>) {
        self.shared.probes.done(id, result.ok());
    }
}

impl Engine {
    /// A packet for the endpoint.
    pub(super) fn endpoint_in(
        &mut self,
        shared: &Shared,
        now: Time,
        meta: &RecvMeta,
        bytes: &[u8],
        received: &Received,
    ) -> std::result::Result<(), Cause> {
        let port = usize::from(received.port);
        let seed = self.seed_between(meta.source, port).ok_or(Cause::WrongPeer)?;
        if received.trim.is_some() {
            return Err(Cause::TrimmedControl);
        }
        if !seed.verify(meta.source_port, self.ports[port].addr.port(), bytes) {
            return Err(Cause::BadIcrc);
        }
        let peer = self.peers.by_source(received.port, meta.source).ok_or(Cause::WrongPeer)?;
        let meant = self
            .with_endpoint(shared, now, |endpoint, host| endpoint.handle_packet(now, peer, received, host));
        if meant { Ok(()) } else { Err(Cause::Unexpected) }
    }

    pub(super) fn endpoint_timeout(&mut self, shared: &Shared, now: Time) {
        self.with_endpoint(shared, now, |endpoint, host| endpoint.handle_timeout(now, host));
    }

    fn with_endpoint<R>(
        &mut self,
        shared: &Shared,
        now: Time,
        call: impl FnOnce(&mut openmrc_transport::endpoint::Endpoint, &mut Requests<'_>) -> R,
    ) -> R {
        let mut host = Requests {
            ports: &mut self.ports,
            feedback: &mut self.feedback,
            peer_ports: Vec::new(),
            shared,
            peers: &mut self.peers,
            probe_path: 0,
        };
        let result = call(&mut self.endpoint, &mut host);
        let changes = host.peer_ports;
        for (peer, up) in changes {
            self.peer_ports_changed(shared, now, peer, up);
        }
        result
    }

    fn peer_ports_changed(&mut self, shared: &Shared, now: Time, peer: PeerId, up: PortSet) {
        let Some(known) = self.peers.get_mut(peer) else { return };
        known.up = up.and(known.ports());
        let up = known.up;
        for index in 0..self.qps.len() {
            if self.qps[index].as_ref().is_some_and(|qp| qp.io.peer == Some(peer)) {
                self.update_ports(now, index);
                if let Some(qp) = &self.qps[index] {
                    shared.events.push(AsyncEvent::PeerPorts { qp_num: qp.io.shared.num, up: up.0 });
                }
            }
        }
    }

    /// Tells a queue pair which ports are up at both ends.
    pub(super) fn update_ports(&mut self, now: Time, index: usize) {
        let local = self.ports_up();
        let Some(Qp { transport: Some(transport), io }) = self.qps[index].as_deref_mut() else { return };
        let peer = io.peer.and_then(|p| self.peers.get(p)).map_or(PortSet::EMPTY, |p| p.up);
        transport.set_ports_up(now, local, peer);
        self.touch(index as u32);
    }

    /// Sends an EV probe on a path; gives its id.
    pub fn probe_path(
        &mut self,
        shared: &Shared,
        now: Time,
        peer: PeerId,
        path: PathEntry,
        timeout: Span,
    ) -> Result<u16> {
        let number = self
            .path_to(peer, path)
            .ok_or_else(|| Error::invalid(format!("no path has EV {} on port {}", path.ev.0, path.port)))?;
        let id = self.with_endpoint(shared, now, |endpoint, host| {
            host.probe_path = number;
            endpoint.probe(now, peer, (path.ev, 0, path.port), timeout, host)
        });
        self.send_feedback(now);
        id.ok_or_else(|| Error::invalid("too many EV probes are outstanding"))
    }

    /// The local ports have changed: everybody who uses them is told, here and at the peers.
    pub(super) fn local_ports_changed(&mut self, shared: &Shared, now: Time, before: PortSet) {
        let up = self.ports_up();
        if up == before {
            return;
        }
        for port in 0..self.ports.len() as u8 {
            match (before.contains(port), up.contains(port)) {
                (false, true) => shared.events.push(AsyncEvent::PortUp(port)),
                (true, false) => {
                    shared.events.push(AsyncEvent::PortDown(port));
                    let held: u64 = self.ports[usize::from(port)]
                        .held
                        .drain(..)
                        .map(|h| h.bytes.len().div_ceil(h.segment.max(1)) as u64)
                        .sum();
                    self.causes.add(Cause::TxNoPort, held);
                }
                _ => {}
            }
        }
        let rtt = Span::from_nanos(self.config.base_rtt.as_nanos() as u64);
        self.endpoint.set_local_ports(now, up, rtt);
        for index in 0..self.qps.len() {
            self.update_ports(now, index);
        }
        self.wake_stalled();
        self.endpoint_timeout(shared, now);
        self.send_feedback(now);
        self.settle(shared, now);
    }
}
