//! What a node asks of its driver.

use openmrc_wire::Packet;
use serde::{Deserialize, Serialize};

use super::ids::{PeerId, QpId};
use super::mtu_proof::MtuProgress;
use super::pressure::Buffers;
use super::probe_budget::ProbeBudget;
use super::receive_waits::ReceiveWaits;
use super::route::{ProbeTimeout, Route};
use crate::api::{
    AccessError, EvEvent, Fatal, Host, NoReceive, PortSet, RecvDone, SendDone, TrafficClass, Transmit,
};
use crate::profile::PathId;
use crate::time::{Span, Time};

/// No receive is posted for a message with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the receive queue is empty")]
pub struct ReceiveQueueEmpty;

/// The world that a node lives in. The first methods are those of [`Host`], for one of its queue pairs.
pub trait NodeHost {
    /// Put the packet in hand's payload at `va` of the region named by `rkey`, whole or not at all.
    ///
    /// # Errors
    /// [`AccessError`] if the region does not exist, does not belong here, does not allow remote writes, or is too
    /// small.
    fn write(&mut self, qp: QpId, rkey: u32, va: u64, len: u32) -> Result<(), AccessError>;

    /// Send a feedback packet. Always taken: feedback is small and has priority.
    fn feedback(&mut self, qp: QpId, transmit: Transmit);

    /// A posted send ended. In posting order, exactly once each.
    fn send_done(&mut self, qp: QpId, done: SendDone);

    /// A message with immediate is complete. In order, exactly once each.
    ///
    /// # Errors
    /// [`ReceiveQueueEmpty`]. The message then waits, if its queue pair lets it ([`super::Node::set_receive_wait`]): it
    /// is offered again after [`super::Node::receives_posted`], and with each further packet. Else the queue pair goes
    /// to ERROR.
    fn recv_done(&mut self, qp: QpId, done: RecvDone) -> Result<(), ReceiveQueueEmpty>;

    /// A path was condemned or came back.
    fn ev_event(&mut self, qp: QpId, event: EvEvent) {
        let _ = (qp, event);
    }

    /// A packet was lost without a trace on this path.
    fn path_loss(&mut self, qp: QpId, path: PathId, port: u8) {
        let _ = (qp, path, port);
    }

    /// With keepalive: the peer of a queue pair does not answer (`true`), or is heard again.
    fn peer_silence(&mut self, qp: QpId, silent: bool) {
        let _ = (qp, silent);
    }

    /// The queue pair went to ERROR. Comes once, before the flushed completions.
    fn fatal(&mut self, qp: QpId, why: Fatal);

    /// A retired queue pair no longer answers its peer; its place in the node is free.
    fn lingered(&mut self, qp: QpId) {
        let _ = qp;
    }

    /// The proof of a queue pair's path MTU has ended.
    fn mtu_proven(&mut self, qp: QpId, progress: MtuProgress) {
        let _ = (qp, progress);
    }

    /// Send an endpoint request or response to a peer. Always taken.
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass);

    /// The peer of a queue pair now has these ports up.
    fn peer_ports(&mut self, qp: QpId, up: PortSet) {
        let _ = (qp, up);
    }

    /// An EV probe was answered after this round-trip time, or not.
    fn probe_done(&mut self, peer: PeerId, id: u16, result: Result<Span, ProbeTimeout>) {
        let _ = (peer, id, result);
    }

    /// How full the receive buffers are. Asked only with [`super::PressureConfig::Buffers`].
    fn receive_buffers(&mut self) -> Buffers {
        Buffers { bytes: u64::MAX, queued: 0, fill: 0.0, packet: 1 }
    }
}

/// What queue pairs share with the others of their node while they call their host.
#[derive(Serialize, Deserialize)]
pub(super) struct Allowances {
    pub probe_budget: ProbeBudget,
    pub receive_waits: ReceiveWaits,
}

/// A node's driver, for one queue pair.
pub(super) struct QpHost<'a, H> {
    pub qp: QpId,
    pub host: &'a mut H,
    pub now: Time,
    pub allowances: &'a mut Allowances,
}

impl<H: NodeHost> Host for QpHost<'_, H> {
    #[inline(always)]
    fn write(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        self.host.write(self.qp, rkey, va, len)
    }
    fn transmit(&mut self, transmit: Transmit) {
        self.host.feedback(self.qp, transmit);
    }
    fn send_done(&mut self, done: SendDone) {
        self.host.send_done(self.qp, done);
    }
    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive> {
        let waits = &mut self.allowances.receive_waits;
        match self.host.recv_done(self.qp, done) {
            Ok(()) => {
                waits.end(self.qp.slot);
                Ok(())
            }
            Err(ReceiveQueueEmpty) => Err(waits.without_receive(self.now, self.qp.slot)),
        }
    }
    fn ev_event(&mut self, event: EvEvent) {
        self.host.ev_event(self.qp, event);
    }
    fn path_loss(&mut self, path: PathId, port: u8) {
        self.host.path_loss(self.qp, path, port);
    }
    fn peer_silence(&mut self, silent: bool) {
        self.host.peer_silence(self.qp, silent);
    }
    fn may_probe_path(&mut self, now: Time) -> bool {
        self.allowances.probe_budget.take(now)
    }
    fn fatal(&mut self, why: Fatal) {
        self.host.fatal(self.qp, why);
    }
}
