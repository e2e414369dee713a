//! What a host's node sees of the simulation: memory, the fabric, and where completions go.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use openmrc_transport::node::{Buffers, MtuProgress, NodeHost, PeerId, QpId, ReceiveQueueEmpty, Route};
use openmrc_transport::{
    AccessError, EvEvent, Fatal, PathId, PortSet, RecvDone, SendDone, Time, TrafficClass, Transmit,
};
use openmrc_wire::{Ev, Packet};

use super::by_host::ByHost;
use super::endpoints::Endpoints;
use super::lives::Lives;
use super::posts::{End, PathMtu, Posts};
use super::receive_buffers::ReceiveBuffers;
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::fabric::{FabricState, Fate};
use crate::memory::message_at;
use crate::record::LogEvent;
use crate::slab::Slab;
use crate::stats::Stats;

/// Endpoint packets belong to no connection. Their events have this bit and the number of the host that sent them.
pub(super) const ENDPOINT: u32 = 1 << 31;

/// Messages to which something has happened in a call of a node. Kept for its memory.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Completions {
    pub done: Vec<SendDone>,
    /// Messages that have arrived whole.
    pub delivered: Vec<u32>,
    /// Connections whose proof of the path MTU has ended, and with what.
    pub proven: Vec<(u32, PathMtu)>,
    /// Ends that have all they wait for and are destroyed, where ends linger.
    pub ended: Vec<End>,
}

impl Completions {
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.delivered.is_empty() && self.proven.is_empty() && self.ended.is_empty()
    }
}

/// What a host uses beside its own state.
pub(crate) struct Common {
    pub(super) lives: Lives,
    /// By host, if hosts are software.
    pub(super) buffers: ByHost<ReceiveBuffers>,
    pub(super) endpoints: Arc<Endpoints>,
    pub posts: Posts,
    /// Contents of the packets in flight.
    pub packets: Slab,
    pub(super) completions: Completions,
}

/// Everything around the node of a host.
pub(super) struct Environment<'a> {
    /// The host's number.
    pub host: u32,
    /// Plane by which the packet in hand came.
    pub plane: u8,
    pub common: &'a mut Common,
    pub clock: &'a mut Clock,
    pub fabric: &'a mut FabricState,
    pub stats: &'a mut Stats,
}

/// Where a packet goes.
pub(super) struct Destination {
    pub peer: u32,
    /// A connection, or [`ENDPOINT`] and the number of the host that sends.
    pub connection: u32,
    /// [`flag::TO_REQUESTOR`], or 0.
    pub flags: u8,
    pub port: u8,
    pub ev: Ev,
}

impl Environment<'_> {
    pub fn now(&self) -> Time {
        Time(self.clock.now)
    }

    /// Sends a packet of a queue pair.
    #[inline(always)]
    pub fn transmit(&mut self, qp: QpId, transmit: &Transmit) {
        let end = End(qp.context);
        let flags = if end.is_responder() { flag::TO_REQUESTOR } else { 0 };
        let connection = end.connection();
        let to = Destination { peer: qp.peer, connection, flags, port: transmit.port, ev: transmit.ev };
        self.send(&to, &transmit.packet, transmit.class);
    }

    #[inline(always)]
    fn send(&mut self, to: &Destination, packet: &Packet, class: TrafficClass) {
        let data = packet.is_data();
        let flags = match class {
            TrafficClass::Control => flag::CONTROL,
            // A probe is in the data class, but has nothing to cut off.
            _ if !data => 0,
            // Simulated hosts all send trim NACKs, so none sends data that may not be trimmed.
            TrafficClass::Data | TrafficClass::DataRetransmit | TrafficClass::DataNoTrim => flag::DATA,
        };
        let bytes = self.common.endpoints.wire_bytes(packet) as u16;
        let totals = &mut self.stats.totals.hosts;
        if data {
            totals.data_packets += 1;
            totals.data_bytes += u64::from(packet.payload_len);
        } else {
            totals.control_packets += 1;
        }
        totals.launched_bytes += u64::from(bytes);
        let event = Event {
            time: self.clock.now,
            at: 0,
            packet: self.common.packets.put(packet),
            dst: to.peer,
            ev: to.ev.0,
            connection: to.connection,
            bytes,
            flags: flags | to.flags,
            kind: Kind::Arrive,
        };
        if let Some(tally) = &mut self.stats.tally {
            tally.sent(&event, to.port);
        }
        if self.fabric.send(self.host, to.port, event, self.clock, self.stats) == Fate::Dropped {
            self.common.packets.drop_packet(event.packet);
        }
    }
}

impl NodeHost for Environment<'_> {
    #[inline(always)]
    fn write(&mut self, _qp: QpId, _rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let index = message_at(va);
        let message = self.common.posts.messages.get_mut(index as usize).ok_or(AccessError)?;
        message.placed += len;
        if let Some(tally) = &mut self.stats.tally {
            tally.placed(index, self.plane, len);
        }
        if message.placed == message.bytes && self.common.lives.config.receives.is_none() {
            message.delivered = self.clock.now;
            self.common.completions.delivered.push(index);
        }
        Ok(())
    }

    #[inline(never)]
    fn feedback(&mut self, qp: QpId, transmit: Transmit) {
        if self.common.lives.lingers(End(qp.context)) {
            self.stats.life.lingering_packets += 1;
        }
        self.transmit(qp, &transmit);
    }

    fn send_done(&mut self, _qp: QpId, done: SendDone) {
        self.common.completions.done.push(done);
    }

    fn recv_done(&mut self, qp: QpId, done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        let Some(receives) = self.common.lives.config.receives else { return Ok(()) };
        let (connection, now) = (End(qp.context).connection(), self.clock.now);
        let totals = &mut self.stats.life;
        let (has_receive, posted_at) = self.common.lives.take_receive(connection, receives, now, totals);
        if let Some(time) = posted_at {
            self.clock.push_at_host(time, Kind::Receive, connection, self.host);
        }
        if !has_receive {
            return Err(ReceiveQueueEmpty);
        }
        if let Some(message) = self.common.posts.messages.get_mut(done.imm as usize) {
            message.delivered = now;
            self.common.completions.delivered.push(done.imm);
        }
        Ok(())
    }

    fn mtu_proven(&mut self, qp: QpId, progress: MtuProgress) {
        let narrow = progress.narrow();
        self.stats.life.mtu_proofs += 1;
        let mtu = if narrow.is_empty() {
            PathMtu::Good
        } else {
            self.stats.life.mtu_refused += 1;
            let (host, peer) = (self.host, qp.peer);
            self.stats.log(self.clock.now, LogEvent::NarrowPlanes { host, peer, narrow });
            PathMtu::Refused
        };
        self.common.completions.proven.push((End(qp.context).connection(), mtu));
    }

    fn lingered(&mut self, qp: QpId) {
        let end = End(qp.context);
        self.common.lives.end_lingering(end, self.host);
        self.common.posts.close(end);
    }

    fn path_loss(&mut self, _qp: QpId, _path: PathId, _port: u8) {
        self.stats.totals.hosts.losses_seen += 1;
    }

    fn ev_event(&mut self, qp: QpId, event: EvEvent) {
        let now = self.now();
        if let Some(tally) = &mut self.stats.tally {
            tally.path_event(now, End(qp.context).connection(), (self.host, qp.peer), event);
        }
    }

    fn fatal(&mut self, qp: QpId, _why: Fatal) {
        self.stats.totals.hosts.fatal += 1;
        self.stats.log(self.clock.now, LogEvent::Failed { host: self.host, peer: qp.peer });
    }

    fn peer_ports(&mut self, qp: QpId, up: PortSet) {
        self.stats.log(self.clock.now, LogEvent::PeerPorts { host: self.host, peer: qp.peer, up });
    }

    fn receive_buffers(&mut self) -> Buffers {
        match self.common.buffers.get_mut(self.host) {
            Some(buffers) => buffers.look(),
            None => Buffers { bytes: u64::MAX, queued: 0, fill: 0.0, packet: 1 },
        }
    }

    #[cold]
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass) {
        let (ev, port) = match route {
            Route::Path { ev, port, .. } => (ev, port),
            // The entropy value of a request names a path of its sender's, so an answer takes one of its own.
            Route::Reply { ev, port } => {
                (self.common.endpoints.ev_on(self.host, peer, port, ev.0.into()), port)
            }
            Route::Port(port) => (self.common.endpoints.ev_on(self.host, peer, port, self.clock.now), port),
        };
        self.send(
            &Destination { peer, connection: ENDPOINT | self.host, flags: 0, port, ev },
            &packet,
            class,
        );
    }
}
