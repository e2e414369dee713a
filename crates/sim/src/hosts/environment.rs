//! What a host's node sees of the simulation.

use openmrc_transport::node::{NodeHost, PeerId, Place, Route};
use openmrc_transport::{
    AccessError, EvEvent, Fatal, NoReceive, PathId, RecvDone, SendDone, Time, TrafficClass, Transmit,
};
use openmrc_wire::Packet;

use super::posts::MessageState;
use crate::memory::message_at;
use crate::record::Recorder;

/// An endpoint packet on its way to a peer.
pub(super) struct EndpointPacket {
    pub peer: PeerId,
    pub route: Route,
    pub packet: Packet,
    pub class: TrafficClass,
}

/// What a node has asked for. It is emptied after each call, and kept for its memory.
#[derive(Default)]
pub(super) struct Outbox {
    pub feedback: Vec<(Place, Transmit)>,
    pub endpoint: Vec<EndpointPacket>,
    pub done: Vec<SendDone>,
    /// Messages that have arrived whole.
    pub delivered: Vec<u32>,
    /// Queue pairs that went to ERROR.
    pub failed: Vec<Place>,
    /// Paths condemned or back in use. Empty unless there is a recorder.
    pub path_events: Vec<(Place, EvEvent)>,
    /// Packets taken for lost.
    pub losses: u64,
}

/// The environment of a node.
pub(super) struct Environment<'a> {
    pub now: Time,
    pub messages: &'a mut [MessageState],
    pub outbox: &'a mut Outbox,
    pub recorder: Option<&'a mut Recorder>,
    /// Plane by which the packet in hand came.
    pub plane: u8,
}

impl NodeHost for Environment<'_> {
    fn place(&mut self, _place: Place, _rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let index = message_at(va);
        let message = self.messages.get_mut(index as usize).ok_or(AccessError)?;
        message.placed += len;
        if let Some(recorder) = &mut self.recorder {
            recorder.placed(index, self.plane, len);
        }
        if message.placed == message.bytes {
            message.delivered = self.now.0;
            self.outbox.delivered.push(index);
        }
        Ok(())
    }

    fn feedback(&mut self, place: Place, transmit: Transmit) {
        self.outbox.feedback.push((place, transmit));
    }

    fn send_done(&mut self, _place: Place, done: SendDone) {
        self.outbox.done.push(done);
    }

    fn recv_done(&mut self, _place: Place, _done: RecvDone) -> Result<(), NoReceive> {
        Ok(())
    }

    fn path_loss(&mut self, _place: Place, _path: PathId, _port: u8) {
        self.outbox.losses += 1;
    }

    fn ev_event(&mut self, place: Place, event: EvEvent) {
        if self.recorder.is_some() {
            self.outbox.path_events.push((place, event));
        }
    }

    fn fatal(&mut self, place: Place, _why: Fatal) {
        self.outbox.failed.push(place);
    }

    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass) {
        self.outbox.endpoint.push(EndpointPacket { peer, route, packet, class });
    }
}
