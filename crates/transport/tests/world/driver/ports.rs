//! Ports of a node: each free port sends feedback first, then the data that the node provides.

use openmrc_transport::mrc::EvState;
use openmrc_transport::node::Route;
use openmrc_transport::{PathId, PortSet, TrafficClass, Transmit};
use openmrc_wire::{Body, Ev, Packet};

use super::calls::Most;
use super::{Event, Flight, Target, World, describe, flight};
use crate::world::Subject;
use crate::world::host::EndRecord;
use crate::world::ledger::Verdict;

impl<T: Subject> World<T> {
    pub(super) fn queue_feedback(&mut self, end: usize, transmit: Transmit) {
        if matches!(transmit.packet.body, Body::Probe(_)) {
            self.ends[end].probes_by_path[transmit.path as usize] += 1;
        }
        let peer = self.ends[end].record.peer;
        let (from, to) = (self.ends[end].record.node, self.ends[peer].record.node);
        self.queue_control(flight(from, to, Target::End(peer), transmit));
    }

    /// Queues an endpoint packet on any path of its port, or on the path that it names.
    pub(super) fn queue_request(
        &mut self,
        from: usize,
        to: usize,
        route: Route,
        packet: Packet,
        class: TrafficClass,
    ) {
        let entries = self.scenario.profile.entries();
        let (port, path) = match route {
            Route::Path { port, path, .. } => (port, path),
            Route::Port(port) | Route::Reply { port, .. } => {
                let on_port: Vec<_> = (0..entries.len()).filter(|&i| entries[i].port == port).collect();
                (port, self.dice.pick(&on_port) as PathId)
            }
        };
        if !self.nodes[from].up.contains(port) && !matches!(route, Route::Reply { .. }) {
            self.break_rule(
                format_args!("node {from}"),
                format!("sends {packet:?} on port {port}, which is down"),
            );
        }
        let ev = self.scenario.profile.entries().get(path as usize).map_or(Ev(0), |entry| entry.ev);
        let transmit = Transmit { packet, ev, path, port, class, payload: None };
        self.queue_control(flight(from, to, Target::Endpoint, transmit));
    }

    fn queue_control(&mut self, flight: Flight) {
        let (from, port) = (flight.from, flight.transmit.port);
        if self.nodes[from].up.contains(port) {
            self.nodes[from].control[port as usize].push_back(flight);
        }
    }

    /// Sends feedback first, then data, while a port is free.
    pub(super) fn service(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        loop {
            for port in self.free_ports(node).iter() {
                if let Some(flight) = self.nodes[node].control[port as usize].pop_front() {
                    self.send(flight);
                }
            }
            let free = self.free_ports(node);
            if free.is_empty() {
                return;
            }
            let mut next = None;
            self.call(node, None, Most::None, |node, now, host| next = node.poll_transmit(now, free, host));
            let Some(next) = next else { return };
            let end = next.qp.context as usize;
            self.judge(end);
            self.check_data(end, &next.transmit, free);
            let peer = self.ends[end].record.peer;
            let to = self.ends[peer].record.node;
            self.send(flight(node, to, Target::End(peer), next.transmit));
        }
    }

    fn free_ports(&self, node: usize) -> PortSet {
        let node = &self.nodes[node];
        PortSet(node.up.0 & !node.busy.0)
    }

    /// Checks a data packet from a node.
    fn check_data(&mut self, end: usize, transmit: &Transmit, free: PortSet) {
        let mut verdict = self.ends[end].record.check_route(transmit);
        if !free.contains(transmit.port) {
            verdict = Err(format!("sends on port {}, which was not offered", transmit.port));
        }
        if self.ends[end].record.fatal.is_some() {
            verdict = Err("sends data in ERROR".into());
        }
        match &transmit.packet.body {
            Body::Write(_) => {
                if transmit.packet.rtx
                    && self.flows[end].last_path(transmit.packet.psn) == Some(transmit.path)
                {
                    let alternatives = no_other_path(self.qp(end), &self.ends[end].record, free);
                    verdict = verdict.and(alternatives);
                }
                let state = &mut self.ends[end];
                state.sent_by_path[transmit.path as usize] += 1;
                state.last_sent[transmit.path as usize] = self.now;
                if let Some(log) = &mut self.log {
                    log.push((self.now, end, transmit.path));
                }
                verdict = verdict.and_then(|()| self.flows[end].on_transmit(transmit));
            }
            Body::Probe(_) => self.ends[end].probes_by_path[transmit.path as usize] += 1,
            other => verdict = Err(format!("polled an unexpected packet: {other:?}")),
        }
        if let Err(text) = verdict {
            self.break_rule_of(end, text);
        }
    }

    /// Puts a packet on its port.
    fn send(&mut self, flight: Flight) {
        let transmit = flight.transmit;
        let (from, to) = (flight.from, flight.to);
        self.trace.note(
            self.now,
            b'X',
            [to as u64, u64::from(transmit.packet.psn.get()), u64::from(transmit.path)],
            || format!("{from} -> {to} {:?} path {} {}", flight.target, transmit.path, describe(&transmit)),
        );
        let gone = self.now + self.network.serialization(&transmit.packet);
        self.nodes[from].busy = self.nodes[from].busy.with(transmit.port);
        self.push(gone, Event::PortFree { node: from, port: transmit.port });
        let at = self.network.crosses_by(gone, (from, to, transmit.path), transmit.class, &mut self.dice);
        let flight = self.keep(flight);
        self.push(at, Event::LastHop { flight });
    }
}

/// A retransmission must not take the path that lost the packet (docs/spec/transport.md, "Requestor"), if another path
/// in rotation is good. The paths in rotation are known only if none is in reserve.
fn no_other_path<T: Subject>(qp: &T, record: &EndRecord, free: PortSet) -> Verdict {
    let ports = free.and(record.local_up).and(record.peer_up);
    let entries = record.config.paths.profile.entries();
    let good = |(path, state): &(PathId, EvState)| {
        *state == EvState::Good && ports.contains(entries[*path as usize].port)
    };
    let others = qp.ev_states().iter().filter(|s| good(s)).count();
    if record.config.paths.backup == 0 && others > 1 {
        return Err(format!("retransmits on the path that lost the packet; {others} are good"));
    }
    Ok(())
}
