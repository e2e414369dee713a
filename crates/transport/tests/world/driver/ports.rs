//! A node's ports: feedback first, then ready queue pairs in turn, a packet at a time.

use openmrc_transport::mrc::EvState;
use openmrc_transport::{PathId, PortSet, Readiness, Transmit};
use openmrc_wire::Body;

use super::{Event, Flight, World, describe, flight};
use crate::world::Subject;
use crate::world::host::Record;
use crate::world::ledger::Verdict;

impl<T: Subject> World<T> {
    pub(super) fn queue_feedback(&mut self, end: usize, transmit: Transmit) {
        let record = &self.ends[end].record;
        let node = &mut self.nodes[record.node];
        if matches!(transmit.packet.body, Body::Probe(_)) {
            self.ends[end].probes_by_path[transmit.path as usize] += 1;
        }
        let record = &self.ends[end].record;
        if node.up.contains(transmit.port) {
            node.feedback[transmit.port as usize].push_back(flight(record.peer, transmit));
        }
    }

    pub(super) fn unblock(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for end in node.blocked.drain(..) {
            node.ring.push(end);
        }
    }

    /// Feedback first, then one packet of each ready queue pair in turn, as long as there is a free port.
    pub(super) fn service(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        loop {
            for port in self.free_ports(node).iter() {
                if let Some(flight) = self.nodes[node].feedback[port as usize].pop_front() {
                    self.send(node, flight);
                }
            }
            let free = self.free_ports(node);
            if free.is_empty() {
                return;
            }
            let Some(end) = self.nodes[node].ring.pop() else { return };
            self.serve(node, end as usize, free);
        }
    }

    fn free_ports(&self, node: usize) -> PortSet {
        let node = &self.nodes[node];
        PortSet(node.up.0 & !node.busy.0)
    }

    fn serve(&mut self, node: usize, end: usize, free: PortSet) {
        let now = self.local_of(end);
        let Some(transmit) = self.ends[end].qp.poll_transmit(now, free) else {
            if self.ends[end].qp.readiness() == Readiness::Ready {
                self.nodes[node].blocked.push(end as u32);
            }
            let deadline = self.ends[end].qp.poll_timeout();
            if deadline != self.ends[end].armed {
                self.ends[end].armed = deadline;
                self.arm(end);
            }
            return;
        };
        let state = &mut self.ends[end];
        let mut verdict = state.record.check_route(&transmit);
        if !free.contains(transmit.port) {
            verdict = Err(format!("sends on port {}, which was not offered", transmit.port));
        }
        if state.record.fatal.is_some() {
            verdict = Err("sends data in ERROR".into());
        }
        match &transmit.packet.body {
            Body::Write(_) => {
                if transmit.packet.rtx
                    && self.flows[end].last_path(transmit.packet.psn) == Some(transmit.path)
                {
                    verdict = verdict.and_then(|()| no_other_path(&state.qp, &state.record, free));
                }
                state.sent_by_path[transmit.path as usize] += 1;
                state.last_sent[transmit.path as usize] = self.now;
                if let Some(log) = &mut self.log {
                    log.push((self.now, end, transmit.path));
                }
                verdict = verdict.and_then(|()| self.flows[end].on_transmit(&transmit));
            }
            Body::Probe(_) => state.probes_by_path[transmit.path as usize] += 1,
            other => verdict = Err(format!("polled a strange packet: {other:?}")),
        }
        if let Err(text) = verdict {
            self.break_rule(end, text);
        }
        self.refresh(end);
        let peer = self.ends[end].record.peer;
        self.send(node, flight(peer, transmit));
    }

    /// Puts a packet on its port.
    pub(super) fn send(&mut self, node: usize, flight: Flight) {
        let transmit = flight.transmit;
        let (from, to) = (node, self.ends[flight.to].record.node);
        self.trace.note(
            self.now,
            b'X',
            [flight.to as u64, u64::from(transmit.packet.psn.get()), u64::from(transmit.path)],
            || format!("-> {} path {} {}", flight.to, transmit.path, describe(&transmit)),
        );
        let gone = self.now + self.network.serialization(&transmit.packet);
        self.nodes[node].busy = self.nodes[node].busy.with(transmit.port);
        self.push(gone, Event::PortFree { node, port: transmit.port });
        let at = self.network.crosses_by(gone, (from, to, transmit.path), transmit.class, &mut self.dice);
        let flight = self.keep(flight);
        self.push(at, Event::LastHop { flight });
    }
}

/// A retransmission takes another path than the one that lost the packet (spec: transport, requestor), if there is one
/// in rotation and good. Which ones rotate is known only where none is in reserve.
fn no_other_path<T: Subject>(qp: &T, record: &Record, free: PortSet) -> Verdict {
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
