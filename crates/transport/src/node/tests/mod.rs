//! A driver that writes down what a node asks of it, and queue pairs that do as they are told.

mod ports;
mod queue_pairs;

use std::sync::Arc;

use openmrc_wire::{Ev, Packet, Position, Psn};

use super::*;
use crate::api::{AccessError, EvChange, EvEvent, Pressure, RecvDone, SendDone};
use crate::profile::PathId;

/// A driver that only records.
#[derive(Default)]
pub(super) struct Notes {
    pub requests: Vec<(PeerId, Route, Packet)>,
    pub probes: Vec<(PeerId, u16, Result<Span, ProbeTimeout>)>,
    /// Ports of the peer of a queue pair.
    pub peer_ports: Vec<(Slot, PortSet)>,
    pub events: Vec<(QpId, EvEvent)>,
    pub losses: Vec<(QpId, PathId, u8)>,
    pub silences: Vec<(QpId, bool)>,
    /// What the receive buffers are like.
    pub buffers: Option<Buffers>,
}

impl NodeHost for Notes {
    fn write(&mut self, _qp: QpId, _rkey: u32, _va: u64, _len: u32) -> Result<(), AccessError> {
        Ok(())
    }
    fn feedback(&mut self, _qp: QpId, _transmit: Transmit) {}
    fn send_done(&mut self, _qp: QpId, _done: SendDone) {}
    fn recv_done(&mut self, _qp: QpId, _done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        Ok(())
    }
    fn ev_event(&mut self, qp: QpId, event: EvEvent) {
        self.events.push((qp, event));
    }
    fn path_loss(&mut self, qp: QpId, path: PathId, port: u8) {
        self.losses.push((qp, path, port));
    }
    fn peer_silence(&mut self, qp: QpId, silent: bool) {
        self.silences.push((qp, silent));
    }
    fn fatal(&mut self, _qp: QpId, _why: Fatal) {}
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, _class: TrafficClass) {
        self.requests.push((peer, route, packet));
    }
    fn peer_ports(&mut self, qp: QpId, up: PortSet) {
        self.peer_ports.push((qp.slot, up));
    }
    fn probe_done(&mut self, peer: PeerId, id: u16, result: Result<Span, ProbeTimeout>) {
        self.probes.push((peer, id, result));
    }
    fn receive_buffers(&mut self) -> Buffers {
        self.buffers.expect("asked only where the buffers matter")
    }
}

impl Notes {
    /// The ports on which a peer was asked for, or told of, port status; forgets them.
    pub fn take_ports(&mut self) -> Vec<u8> {
        let port = |(_, route, packet): (PeerId, Route, Packet)| match (route, packet.body) {
            (Route::Port(port), Body::EndpointRequest(_)) => Some(port),
            _ => None,
        };
        self.requests.drain(..).filter_map(port).collect()
    }
}

/// A queue pair that does as it is told.
#[derive(Default)]
struct Puppet {
    /// Packets that it has to send, and the only port that it can use.
    to_send: u32,
    port: u8,
    /// The peer owes it an answer.
    is_waiting: bool,
    /// Its deadline; that after the next packet that it sends; and how often it has passed.
    due: Option<Time>,
    due_after_sending: Option<Time>,
    expired: u32,
    /// Packets that have come in, and how many of them it may answer with a probe of a condemned path.
    handled: u32,
    probes_allowed: u32,
    /// What it was told.
    ports: Option<(PortSet, PortSet)>,
    pressure: Option<Pressure>,
    mpr: Option<u8>,
}

const EVENT: EvEvent = EvEvent { ev: Ev(9), path: 4, port: 1, change: EvChange::AssumedBad };

impl Transport for Puppet {
    fn post_send(&mut self, _now: Time, _wr: WorkRequest) -> Result<(), PostError> {
        self.to_send += 1;
        Ok(())
    }
    fn handle_packet(&mut self, now: Time, _received: &Received, host: &mut impl Host) {
        self.handled += 1;
        host.ev_event(EVENT);
        host.path_loss(6, 2);
        host.peer_silence(true);
        self.probes_allowed += u32::from(host.may_probe_path(now));
    }
    fn handle_timeout(&mut self, _now: Time, _host: &mut dyn Host) {
        self.expired += 1;
        self.due = None;
    }
    fn poll_transmit(&mut self, _now: Time, ports: PortSet) -> Option<Transmit> {
        if self.to_send == 0 || !ports.contains(self.port) {
            return None;
        }
        self.to_send -= 1;
        self.due = self.due_after_sending;
        let class = TrafficClass::Data;
        Some(Transmit { packet: data(), ev: Ev(0), path: 0, port: self.port, class, payload: None })
    }
    fn poll_timeout(&self) -> Time {
        self.due.unwrap_or(Time::NEVER)
    }
    fn readiness(&self) -> Readiness {
        if self.to_send > 0 { Readiness::Ready } else { Readiness::Idle }
    }
    fn set_ports_up(&mut self, _now: Time, local: PortSet, peer: PortSet) {
        self.ports = Some((local, peer));
    }
    fn abort(&mut self, _now: Time, _why: Fatal, _host: &mut dyn Host) {}
    fn retire(&mut self, _now: Time, _host: &mut dyn Host) {}
    fn is_waiting(&self) -> bool {
        self.is_waiting
    }
    fn set_receive_pressure(&mut self, pressure: Pressure) {
        self.pressure = Some(pressure);
    }
    fn set_advertised_mpr(&mut self, mpr: u8) {
        self.mpr = Some(mpr);
    }
}

const RTT: Span = Span::from_micros(10);
/// The peer of every node here.
const PEER: PeerId = 7;

/// A node with this number of ports, and without queue pairs and peers.
fn node_with(ports: usize, change: impl FnOnce(&mut NodeConfig)) -> Node<Puppet> {
    let mut config = NodeConfig::hardware(PortSet::first(ports), RTT, PressureConfig::Off);
    change(&mut config);
    Node::new(&Arc::new(config))
}

/// Connects a queue pair to the peer, which has four ports.
fn connect(node: &mut Node<Puppet>, context: u32, qp: Puppet) -> Slot {
    let slot = node.reserve(context).unwrap();
    node.connect(Time::ZERO, slot, PEER, PortSet::first(4), qp);
    slot
}

/// A write without payload.
fn data() -> Packet {
    let write = openmrc_wire::Write { position: Position::Only, ..openmrc_wire::Write::duplicate(0, 0) };
    Packet::new(0, Psn::new(0), Body::Write(write))
}

fn received(packet: Packet, port: u8) -> Received {
    Received { packet, ev: Ev(7), port, ecn_ce: false, trim: None }
}

fn micros(n: u64) -> Time {
    Time::ZERO + Span::from_micros(n)
}
