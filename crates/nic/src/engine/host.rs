//! The NIC's side of the node's host trait: placing data in memory, sending feedback, raising completions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_transport::node::{
    Buffers, MtuProgress, NodeHost, PeerId, ProbeTimeout, QpId, ReceiveQueueEmpty, Route,
};
use openmrc_transport::presets::software::PACKET_MEMORY;
use openmrc_transport::{
    AccessError, EvEvent, Fatal, PortSet, RecvDone, SendDone, Span, Time, TrafficClass, Transmit,
};
use openmrc_wire::Packet;

use super::egress::Egress;
use super::verbs::{HeldReceive, Verbs};
use crate::attr::DEFAULT_PATH_MTU;
use crate::completion::Status;
use crate::events::{AsyncEvent, PathEvent};
use crate::memory_table::Access;
use crate::port::Port;
use crate::qp_state::QpState;
use crate::shared::Shared;
use crate::stats::Cause;

/// The NIC, as the node sees it during one call.
pub(super) struct Environment<'a> {
    pub verbs: &'a mut Verbs,
    pub egress: &'a mut Egress,
    pub shared: &'a Shared,
    /// Payload of the packet that is being handled.
    pub payload: &'a [u8],
    pub now: Time,
}

impl NodeHost for Environment<'_> {
    fn write(&mut self, qp: QpId, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        if len == 0 {
            // A write of nothing names no region (IBTA).
            return Ok(());
        }
        debug_assert_eq!(len as usize, self.payload.len());
        let Some(io) = self.verbs.get(qp.slot) else { return Err(AccessError) };
        let refusal = if io.access.allows(Access::REMOTE_WRITE) {
            match self.verbs.memory.write(io.pd, rkey, va, self.payload) {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal.0,
            }
        } else {
            Cause::NoRemoteWrite
        };
        self.egress.net.causes.add(refusal, 1);
        Err(AccessError)
    }

    fn feedback(&mut self, qp: QpId, transmit: Transmit) {
        let link = self.verbs.get(qp.slot).and_then(|io| io.link.as_ref());
        let path = link.and_then(|link| link.paths.numbers.get(usize::from(transmit.path)));
        if let Some(&path) = path {
            self.egress.queue(qp.peer, path, transmit.packet, transmit.class);
        }
    }

    fn send_done(&mut self, qp: QpId, done: SendDone) {
        self.verbs.send_done(qp.slot, done);
    }

    fn recv_done(&mut self, qp: QpId, done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        let io = self.verbs.get(qp.slot).ok_or(ReceiveQueueEmpty)?;
        let shared = &io.shared;
        let mut receives = shared.receives.lock();
        let Some(wr_id) = receives.pop_front() else {
            shared.needs_receive.store(true, Ordering::Relaxed);
            return Err(ReceiveQueueEmpty);
        };
        drop(receives);
        let completion = shared.recv_completion(wr_id, Status::Success, done.byte_len, Some(done.imm));
        if self.shared.config.choices.acks_immediates {
            let cq = Arc::clone(&shared.recv_cq);
            self.verbs.held_receives.push(HeldReceive { cq, completion, solicited: done.solicited });
        } else if !shared.recv_cq.push_solicited(completion, done.solicited) {
            let cq = shared.recv_cq.id;
            self.verbs.overruns.push(cq);
        }
        Ok(())
    }

    fn ev_event(&mut self, qp: QpId, event: EvEvent) {
        let Some(io) = self.verbs.get(qp.slot) else { return };
        self.shared.path_events.push(PathEvent {
            time_ns: self.now.0 / 1000,
            qp_num: io.shared.num,
            profile: io.link.as_ref().map_or(0, |link| link.profile),
            ev: event.ev,
            port: event.port,
            change: event.change,
        });
    }

    fn peer_silence(&mut self, qp: QpId, silent: bool) {
        let Some(io) = self.verbs.get(qp.slot) else { return };
        let qp_num = io.shared.num;
        io.shared.set_silent_since(silent.then_some(self.now));
        self.shared.events.push(if silent {
            AsyncEvent::PeerSilent { qp_num }
        } else {
            AsyncEvent::PeerHeard { qp_num }
        });
    }

    fn fatal(&mut self, qp: QpId, why: Fatal) {
        let Some(io) = self.verbs.get(qp.slot) else { return };
        // If the application moved the queue pair to ERROR, no event is needed.
        if why != Fatal::Local || io.local_error.is_some() {
            self.shared.events.push(AsyncEvent::QpFatal { qp_num: io.shared.num, reason: why });
        }
        io.shared.set_state(QpState::Error);
        self.verbs.failed.push(qp.slot);
    }

    fn mtu_proven(&mut self, qp: QpId, progress: MtuProgress) {
        self.shared.mtu_proofs.done(qp.slot, progress);
    }

    fn lingered(&mut self, qp: QpId) {
        if let Some(link) = self.verbs.remove(qp.slot).and_then(|io| io.link) {
            self.egress.net.peers.release(link.peer);
        }
    }

    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass) {
        let path = match route {
            // The entropy value of a request names a path of its sender. The response takes any path in the same
            // plane.
            Route::Reply { port, .. } | Route::Port(port) => self.egress.net.any_path(peer, port),
            Route::Path { path, .. } => Some(path),
        };
        if let Some(path) = path {
            self.egress.queue(peer, path, packet, class);
        }
    }

    fn peer_ports(&mut self, qp: QpId, up: PortSet) {
        if let Some(io) = self.verbs.get(qp.slot) {
            self.shared.events.push(AsyncEvent::PeerPorts { qp_num: io.shared.num, up: up.0 });
        }
    }

    fn probe_done(&mut self, _: PeerId, id: u16, result: Result<Span, ProbeTimeout>) {
        self.shared.probes.done(id, result.ok());
    }

    fn receive_buffers(&mut self) -> Buffers {
        let ports = &mut self.egress.net.ports;
        Buffers {
            bytes: ports.iter().filter(|port| port.is_up()).map(|port| port.rx.buffer as u64).sum(),
            queued: ports.iter().map(|port| port.queued as u64).sum(),
            fill: mean(ports.iter_mut().map(Port::take_peak_fill).filter(|&fill| fill > 0.0)),
            packet: u32::from(DEFAULT_PATH_MTU) + PACKET_MEMORY,
        }
    }
}

/// The mean of some numbers; 0 if there are none.
fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), n| (sum + n, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}
