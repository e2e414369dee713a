//! From the transport's packets to runs on sockets: grouping, sending, and what happens when the kernel says no.

use std::io;

use openmrc_sockets::{Interest, SendError, send_bytes};
use openmrc_transport::{Fatal, PortSet, Readiness, Time, TrafficClass, Transmit, Transport};
use openmrc_wire::{DscpMap, Packet};

use super::host::pieces;
use super::{Engine, Feedback, Qp, QpHost, RUNS_PER_TURN, Sent, qp_host};
use crate::cq::Status;
use crate::impairer::{Outgoing, is_data};
use crate::path::Via;
use crate::port::{HeldRun, NOBUFS_PAUSE};
use crate::shared::{Shared, TOKEN_TX};
use crate::socket;
use crate::stats::Cause;
use crate::tx::RunKey;

/// Adds a packet, for which there is room, to the run, or in SRv6 mode to the frames of its port; a macro because the
/// borrows are of single fields.
macro_rules! gather {
    ($engine:ident, $key:expr, $packet:expr, $data:expr) => {{
        let path = &$engine.paths[usize::from($key.path)];
        if let Some((_, dest_port, seed)) = $engine.peers.get($key.peer).and_then(|p| p.route(path.port)) {
            let ports = (path.source_port(), dest_port);
            match &path.via {
                Via::Socket { .. } => $engine.run.push($key, $packet, $data, seed, ports),
                Via::Srv6(srv6) if srv6.resolved => {
                    let batch = &mut $engine.batches[usize::from(path.port)];
                    batch.push($key, &srv6.headers, $packet, $data, seed, ports);
                }
                Via::Srv6(_) => $engine.causes.add(Cause::TxNoNeighbour, 1),
            }
        }
    }};
}

impl Engine {
    /// Serves queue pairs that are READY, round robin, a run at a time.
    pub(super) fn transmit(&mut self, shared: &Shared, now: Time) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        let ports = self.port_set(|p| p.is_free());
        for _ in 0..RUNS_PER_TURN {
            let Some(index) = self.ready.pop() else { break };
            self.serve(shared, now, index, ports);
        }
        self.flush(now);
        self.send_feedback(now);
        self.settle(shared, now);
        true
    }

    fn serve(&mut self, shared: &Shared, now: Time, index: u32, ports: PortSet) {
        for packet in 1..=self.config.ev_burst {
            let Some(Qp { transport: Some(transport), io }) = self.qps[index as usize].as_deref_mut() else {
                return;
            };
            let Some(transmit) = transport.poll_transmit(now, ports) else {
                if transport.readiness() == Readiness::Ready {
                    // None of its ports can take a packet; asked again when one can.
                    self.stalled.push(index);
                    return;
                }
                break;
            };
            let (Some(peer), Some(paths)) = (io.peer, &io.paths) else { return };
            let path = paths.numbers[usize::from(transmit.path)];
            let key = RunKey { path, class: self.class_of(&transmit.packet, transmit.class), peer };
            self.make_room(key, transmit.packet.wire_len(), now);
            if !self.gather(key, &transmit, index) {
                // Deregistered under way.
                let Some(Qp { transport: Some(transport), io }) = self.qps[index as usize].as_deref_mut()
                else {
                    return;
                };
                io.failed = transmit.payload.map(|p| (p.handle, Status::LocProtErr));
                transport.abort(now, Fatal::Local, &mut qp_host!(self, io, shared, now, &[]));
                break;
            }
            if packet == self.config.ev_burst {
                self.saw_bulk();
            }
        }
        if let Some(Qp { transport: Some(transport), io }) = self.qps[index as usize].as_deref_mut() {
            transport.report_early(now, &mut qp_host!(self, io, shared, now, &[]));
        }
        self.touch(index);
    }

    /// Sees to it that the next packet has room where it is gathered.
    #[inline]
    fn make_room(&mut self, key: RunKey, len: usize, now: Time) {
        match self.batches.get(usize::from(self.paths[usize::from(key.path)].port)) {
            None if !self.run.accepts(key, len) => self.flush_run(now),
            Some(batch) if batch.is_full() => {
                self.flush_frames_of(usize::from(self.paths[usize::from(key.path)].port), now);
            }
            _ => {}
        }
    }

    /// Gathers a data packet, for which there is room; `false` if its bytes may not be read any more.
    fn gather(&mut self, key: RunKey, transmit: &Transmit, index: u32) -> bool {
        let Some(Qp { io, .. }) = self.qps[index as usize].as_deref() else { return true };
        let len = u32::from(transmit.packet.payload_len);
        let data = match transmit.payload {
            // SAFETY: the run that takes the pieces is flushed before this turn ends, all under the engine's lock.
            Some(p) => unsafe { pieces(&self.memory, io.pd, io.send(p.handle), p.offset, len) },
            None => Some(Default::default()),
        };
        let Some(data) = data else { return false };
        gather!(self, key, &transmit.packet, &data);
        true
    }

    /// Sends all feedback that waits.
    pub(super) fn send_feedback(&mut self, now: Time) {
        if self.feedback.is_empty() {
            return;
        }
        let mut feedback = std::mem::take(&mut self.feedback);
        for Feedback { peer, path, transmit } in feedback.drain(..) {
            let key = RunKey { path, class: self.class_of(&transmit.packet, transmit.class), peer };
            self.make_room(key, transmit.packet.wire_len(), now);
            gather!(self, key, &transmit.packet, &[]);
        }
        self.flush(now);
        self.feedback = feedback;
    }

    /// The traffic class octet of a packet. Data and probes are ECN-capable.
    fn class_of(&self, packet: &Packet, class: TrafficClass) -> u8 {
        let dscp = self.config.dscp.code(DscpMap::class_of(packet, self.config.network_trims));
        socket::traffic_class(dscp, class != TrafficClass::Control)
    }

    /// Sends everything that has been gathered.
    pub(super) fn flush(&mut self, now: Time) {
        if self.batches.is_empty() {
            self.flush_run(now);
        } else {
            self.flush_frames(now);
        }
    }

    /// Sends the run that has been gathered.
    fn flush_run(&mut self, now: Time) {
        let Some(key) = self.run.key() else { return };
        let port = usize::from(self.paths[usize::from(key.path)].port);
        if !self.ports[port].is_up() {
            self.causes.add(Cause::TxNoPort, self.run.packets() as u64);
        } else if self.impairer.is_active() && self.run_is_impaired(key, now) {
            self.impair_run(key, now);
        } else if !self.ports[port].held.is_empty() {
            self.hold_run(key, port);
        } else {
            self.send_run(key, port, now);
        }
        self.run.clear();
    }

    fn send_run(&mut self, key: RunKey, port: usize, now: Time) {
        let (packets, bytes) = (self.run.packets(), self.run.bytes());
        if packets > 1 && !self.segmentation {
            let mut copy = Vec::new();
            self.run.copy_to(&mut copy);
            self.send_singly(key, port, &copy, self.run.segment(), now);
            return;
        }
        let path = &self.paths[usize::from(key.path)];
        let Via::Socket { socket, .. } = &path.via else { return };
        let Some((dest, ..)) = self.peers.get(key.peer).and_then(|p| p.route(port as u8)) else { return };
        let class = (key.class != socket.default_class).then_some(key.class);
        let result = self.run.send(socket.fd(), &dest.with_flow_label(path.ev.0 & 0xFFFF), class);
        match self.judge(result, now, packets > 1) {
            None => self.send_run(key, port, now),
            Some(Sent::Done) => self.count_sent(key, port, packets, bytes, now),
            Some(Sent::Later(until)) => {
                self.hold_run(key, port);
                self.ports[port].retry_at = until.unwrap_or(Time::NEVER);
            }
            Some(Sent::Lost(cause)) => self.causes.add(cause, packets as u64),
        }
    }

    /// What the kernel's answer means; `None`: it cannot cut runs apart, try again without.
    pub(super) fn judge(&mut self, result: io::Result<()>, now: Time, was_run: bool) -> Option<Sent> {
        let Err(error) = result else { return Some(Sent::Done) };
        Some(match SendError::from(&error) {
            SendError::WouldBlock => Sent::Later(None),
            SendError::NoBuffers => Sent::Later(Some(now + NOBUFS_PAUSE)),
            SendError::CannotSegment if was_run => {
                self.segmentation = false;
                return None;
            }
            SendError::Unreachable => Sent::Lost(Cause::TxUnreachable),
            SendError::Refused => Sent::Lost(Cause::TxRefused),
            SendError::TooLong => Sent::Lost(Cause::TxTooLong),
            SendError::CannotSegment | SendError::Other => Sent::Lost(Cause::TxError),
        })
    }

    /// Sends packets of `segment` bytes one by one.
    fn send_singly(&mut self, key: RunKey, port: usize, bytes: &[u8], segment: usize, now: Time) {
        for (i, one) in bytes.chunks(segment).enumerate() {
            if self.offer(key, port, one, one.len(), now) {
                continue;
            }
            // The kernel wants no more: what is left waits.
            let rest = &bytes[i * segment..];
            self.hold(key, port, rest.to_vec(), segment);
            return;
        }
    }

    /// Offers one or several packets in one piece; `false`: not now, and the port's next try is arranged.
    fn offer(&mut self, key: RunKey, port: usize, bytes: &[u8], segment: usize, now: Time) -> bool {
        let packets = bytes.len().div_ceil(segment.max(1));
        let path = &self.paths[usize::from(key.path)];
        let Via::Socket { socket, .. } = &path.via else { return self.offer_frame(key, port, bytes, now) };
        let Some((dest, ..)) = self.peers.get(key.peer).and_then(|p| p.route(port as u8)) else {
            return true;
        };
        let class = (key.class != socket.default_class).then_some(key.class);
        let cut = (packets > 1).then_some(segment as u16);
        let result = send_bytes(socket.fd(), &dest.with_flow_label(path.ev.0 & 0xFFFF), bytes, class, cut);
        match self.judge(result, now, packets > 1) {
            None => {
                self.send_singly(key, port, bytes, segment, now);
                true
            }
            Some(Sent::Done) => {
                self.count_sent(key, port, packets, bytes.len(), now);
                true
            }
            Some(Sent::Later(until)) => {
                self.ports[port].retry_at = until.unwrap_or(Time::NEVER);
                false
            }
            Some(Sent::Lost(cause)) => {
                self.causes.add(cause, packets as u64);
                true
            }
        }
    }

    fn count_sent(&mut self, key: RunKey, port: usize, packets: usize, bytes: usize, now: Time) {
        self.count_path(key.path, packets, bytes, now);
        self.ports[port].stats.tx_calls += 1;
    }

    /// Counts packets sent on a path, but not the system call.
    #[inline]
    pub(super) fn count_path(&mut self, path: u16, packets: usize, bytes: usize, now: Time) {
        let path = &mut self.paths[usize::from(path)];
        path.packets += packets as u64;
        path.bytes += bytes as u64;
        path.last_tx_ns = now.0 / 1000;
        let stats = &mut self.ports[usize::from(path.port)].stats;
        stats.tx_packets += packets as u64;
        stats.tx_bytes += bytes as u64;
    }

    fn hold_run(&mut self, key: RunKey, port: usize) {
        let mut bytes = Vec::new();
        self.run.copy_to(&mut bytes);
        let segment = self.run.segment();
        self.hold(key, port, bytes, segment);
    }

    /// Keeps packets until the port can take them; no data is offered to it before.
    pub(super) fn hold(&mut self, key: RunKey, port: usize, bytes: Vec<u8>, segment: usize) {
        self.causes.add(Cause::TxHeld, bytes.len().div_ceil(segment.max(1)) as u64);
        self.ports[port].held.push_back(HeldRun {
            path: key.path,
            peer: key.peer,
            class: key.class,
            segment,
            bytes,
        });
    }

    /// The sockets to watch until they are writable: those that the first held run of each port waits for.
    pub fn watch_held(&mut self, shared: &Shared) {
        for port in &self.ports {
            if port.retry_at != Time::NEVER {
                continue;
            }
            let Some(held) = port.held.front() else { continue };
            let Via::Socket { socket, watched } = &mut self.paths[usize::from(held.path)].via else {
                continue;
            };
            if !*watched {
                let token = TOKEN_TX + u64::from(held.path);
                *watched = shared.epoll.add(socket.fd(), Interest::Writable, token).is_ok();
            }
        }
    }

    /// The socket of a path has become writable.
    pub(super) fn writable(&mut self, shared: &Shared, path: usize, now: Time) {
        let Some(path) = self.paths.get_mut(path) else { return };
        if let Via::Socket { socket, watched } = &mut path.via
            && std::mem::take(watched)
        {
            // Whether the descriptor was still watched makes no difference now.
            let _ = shared.epoll.remove(socket.fd());
        }
        let port = usize::from(path.port);
        self.retry_held(shared, port, now);
    }

    /// Offers what a port holds again, in order.
    pub(super) fn retry_held(&mut self, shared: &Shared, port: usize, now: Time) {
        self.ports[port].retry_at = Time::NEVER;
        while let Some(held) = self.ports[port].held.pop_front() {
            let key = RunKey { path: held.path, class: held.class, peer: held.peer };
            if !self.ports[port].is_up() {
                self.causes.add(Cause::TxNoPort, held.bytes.len().div_ceil(held.segment.max(1)) as u64);
            } else if !self.offer(key, port, &held.bytes, held.segment, now) {
                self.ports[port].held.push_front(held);
                break;
            }
        }
        if self.ports[port].is_free() {
            self.wake_stalled();
        }
        self.watch_held(shared);
    }

    /// A port can take packets again: those who waited for one get their turn.
    pub(super) fn wake_stalled(&mut self) {
        for index in self.stalled.drain(..) {
            self.ready.push(index);
        }
    }

    /// Draws the impairment rules for each packet of the run; returns whether the impairer must see the run.
    fn run_is_impaired(&mut self, key: RunKey, now: Time) -> bool {
        let path = &self.paths[usize::from(key.path)];
        let (port, ev) = (path.port, path.ev);
        let mut impaired = self.impairer.reorders(port);
        self.drawn.clear();
        for opcode in self.run.opcodes() {
            let rules = self.impairer.draw(now, port, ev, is_data(opcode));
            impaired |= !rules.is_empty();
            self.drawn.push(rules);
        }
        impaired
    }

    /// Gives the impairer the packets of the run that a rule acts on or that others wait for, and sends what it releases.
    /// The packets between them are sent in one piece, as without impairments.
    fn impair_run(&mut self, key: RunKey, now: Time) {
        let path = &self.paths[usize::from(key.path)];
        let (port, ev) = (path.port, path.ev);
        let segment = self.run.segment();
        let mut bytes = Vec::new();
        self.run.copy_to(&mut bytes);
        let mut out = std::mem::take(&mut self.impaired);
        let (mut sent, mut end) = (0, 0);
        for (packet, one) in bytes.chunks(segment).enumerate() {
            let rules = self.drawn[packet];
            if !rules.is_empty() || self.impairer.reorders(port) {
                self.send_piece(key, usize::from(port), &bytes[sent..end], segment, now);
                let packet = Outgoing {
                    path: key.path,
                    port,
                    ev,
                    peer: key.peer,
                    class: key.class,
                    bytes: one.to_vec(),
                };
                self.impairer.apply(now, packet, rules, &mut out);
                self.send_outgoing(&mut out, now);
                sent = end + one.len();
            }
            end += one.len();
        }
        self.send_piece(key, usize::from(port), &bytes[sent..], segment, now);
        self.impaired = out;
    }

    /// Sends packets in one piece, behind what the port holds already.
    fn send_piece(&mut self, key: RunKey, port: usize, bytes: &[u8], segment: usize, now: Time) {
        if bytes.is_empty() {
            return;
        }
        let waits = !self.ports[port].held.is_empty();
        if !waits && !self.segmentation {
            self.send_singly(key, port, bytes, segment, now);
        } else if waits || !self.offer(key, port, bytes, segment, now) {
            self.hold(key, port, bytes.to_vec(), segment);
        }
    }

    /// Sends what the impairer has held back until now.
    pub(super) fn send_impaired_due(&mut self, now: Time) {
        let mut out = std::mem::take(&mut self.impaired);
        self.impairer.take_due(now, &mut out);
        self.send_outgoing(&mut out, now);
        self.impaired = out;
    }

    pub(super) fn send_outgoing(&mut self, out: &mut Vec<Outgoing>, now: Time) {
        for packet in out.drain(..) {
            let key = RunKey { path: packet.path, class: packet.class, peer: packet.peer };
            let port = usize::from(packet.port);
            if !self.ports[port].is_up() {
                self.causes.add(Cause::TxNoPort, 1);
            } else {
                self.send_piece(key, port, &packet.bytes, packet.bytes.len(), now);
            }
        }
    }
}
