//! The way of a packet from its port through the network, which may lose, change or duplicate it or add other packets,
//! to the destination node.

use openmrc_transport::node::PeerId;
use openmrc_transport::{PortSet, Time, TrafficClass};
use openmrc_wire::Body;

use super::calls::Most;
use super::{Event, Flight, Target, World, describe};
use crate::world::{Subject, hostile, sizes};

impl<T: Subject> World<T> {
    pub(super) fn keep(&mut self, flight: Flight) -> usize {
        if let Some(index) = self.free_flights.pop() {
            self.flights[index] = flight;
            return index;
        }
        self.flights.push(flight);
        self.flights.len() - 1
    }

    pub(super) fn at_last_hop(&mut self, index: usize) {
        let flight = self.flights[index];
        let transmit = flight.transmit;
        let way = (flight.from, flight.to, transmit.path);
        let fate =
            self.network.fate(self.now, way, transmit.port, transmit.class, &transmit.packet, &mut self.dice);
        let Some(fate) = fate else {
            self.trace
                .say(self.now, format_args!("   lost on path {}: {}", transmit.path, describe(&transmit)));
            self.free_flights.push(index);
            return;
        };
        let impairments = self.network.impairments;
        let received = &mut self.flights[index].received;
        received.ecn_ce = fate.marked;
        received.trim = fate.trim;
        if fate.trim.is_some() {
            received.packet.payload_len = 0;
            if self.dice.chance(impairments.garble_trimmed) {
                self.network.counters.garbled += 1;
                hostile::garble(received, &mut self.dice);
            }
        }
        let flight = self.flights[index];
        if let Some(later) = fate.copy {
            let copy = self.keep(flight);
            self.push(fate.arrives + later, Event::Arrival { flight: copy });
        }
        self.inject(flight, fate.arrives);
        self.push(fate.arrives, Event::Arrival { flight: index });
    }

    /// Repeats old packets and injects meaningless ones.
    fn inject(&mut self, flight: Flight, at: Time) {
        let impairments = self.network.impairments;
        if impairments.stale > 0.0 {
            if self.history.len() < 32 {
                self.history.push(flight);
            } else if self.dice.chance(0.1) {
                let slot = self.dice.below(32) as usize;
                self.history[slot] = flight;
            }
            if self.dice.chance(impairments.stale) {
                let slot = self.dice.below(self.history.len() as u64) as usize;
                let again = self.keep(Flight { stale: true, ..self.history[slot] });
                self.network.counters.stale += 1;
                self.push(at, Event::Arrival { flight: again });
            }
        }
        if let Target::End(to) = flight.target
            && self.dice.chance(impairments.garbage)
        {
            let from = to ^ 1;
            let ports = PortSet::first(self.scenario.ports);
            let (dest, source) =
                (self.ends[to].record.config.local_qp, self.ends[from].record.config.local_qp);
            let received =
                hostile::garbage(dest, source, &self.flows[to], &self.flows[from], ports, &mut self.dice);
            self.network.counters.garbage += 1;
            let made_up = self.keep(Flight { received, garbage: true, ..flight });
            self.push(at, Event::Arrival { flight: made_up });
        }
        if let (Target::End(to), Body::Write(write)) = (flight.target, flight.received.packet.body)
            && self.dice.chance(impairments.holes)
        {
            let path_mtu = self.ends[to].record.config.path_mtu;
            let made_up = hostile::hole(&flight.received, &write, path_mtu, &mut self.dice);
            self.network.counters.holes += 1;
            let made_up = self.keep(Flight { received: made_up, garbage: true, ..flight });
            self.push(at, Event::Arrival { flight: made_up });
        }
        if let (Target::End(to), Body::Sack(sack)) = (flight.target, flight.received.packet.body)
            && self.dice.chance(impairments.forgeries)
        {
            let complete = self.flows[to].complete();
            let forged = hostile::feedback(&flight.received, &sack, complete, &mut self.dice);
            self.network.counters.forgeries += 1;
            self.flows[to].deceive();
            let made_up = self.keep(Flight { received: forged, garbage: true, ..flight });
            self.push(at, Event::Arrival { flight: made_up });
        }
    }

    pub(super) fn at_node(&mut self, index: usize) {
        let flight = self.flights[index];
        let node = flight.to;
        if self.now < self.nodes[node].stalled_until {
            self.nodes[node].backlog.push_back(index);
            return;
        }
        self.free_flights.push(index);
        if !self.nodes[node].up.contains(flight.received.port) {
            self.network.count_loss(flight.transmit.class == TrafficClass::Control);
            return;
        }
        match flight.target {
            Target::End(end) => {
                self.deliver(end, &flight);
                if self.dice.chance(self.scenario.idle_timeouts) {
                    self.tick_end(end);
                }
            }
            Target::Endpoint => self.deliver_request(&flight),
        }
        self.service(node);
    }

    fn deliver(&mut self, end: usize, flight: &Flight) {
        let received = &flight.received;
        if self.ends[end].record.is_gone {
            let found = self.nodes[flight.to].node.find(received.packet.dest_qp);
            if found == Some(self.ends[end].slot) {
                self.break_rule_of(end, "its number is found after it is gone".into());
            }
            return;
        }
        self.trace.note(
            self.now,
            b'A',
            [end as u64, u64::from(received.packet.psn.get()), u64::from(received.ecn_ce)],
            || {
                let what = if flight.garbage { " GARBAGE" } else { "" };
                let marks = format!("{}{:?}", if received.ecn_ce { "CE " } else { "" }, received.trim);
                format!("<- {end} port {} {marks}{what} {:?}", received.port, received.packet)
            },
        );
        let mut in_hand = None;
        if !flight.garbage {
            // The requestor ignores feedback from long ago.
            let may_be_ignored = match received.packet.body {
                Body::Ack(_) | Body::Nack(_) => true,
                Body::Sack(_) => flight.stale,
                _ => false,
            };
            if received.trim.is_none() && !may_be_ignored {
                self.ends[end].record.heard_at = self.local(flight.to);
            }
            match &received.packet.body {
                Body::Write(_) if received.trim.is_none() => {
                    in_hand = Some(flight.transmit);
                    self.flows[end ^ 1].on_delivery(received.packet.psn);
                }
                Body::Sack(sack) => {
                    // A SACK that the requestor ignores answers no probe.
                    if !self.flows[end].is_from_long_ago(sack) {
                        self.ends[end].record.probes_unanswered = 0;
                    }
                    self.flows[end].on_sack_heard(sack);
                }
                Body::Ack(aeth) => {
                    let psn = received.packet.psn;
                    // The requestor ignores a NAK of what it has not sent: an attacker has sent that.
                    if aeth.is_ack() || !self.flows[end].is_unsent(psn) {
                        self.flows[end].on_ack_heard(aeth.msn, aeth.is_ack().then_some(psn));
                    }
                }
                _ => {}
            }
        }
        let bytes = sizes::on_wire(&flight.transmit.packet);
        self.call(flight.to, in_hand, Most::PerPacket(end), |node, now, host| {
            if let Some(slot) = node.find(received.packet.dest_qp) {
                node.handle(now, slot, received, bytes, host);
            }
        });
    }

    fn deliver_request(&mut self, flight: &Flight) {
        let received = &flight.received;
        let (node, peer) = (flight.to, flight.from as PeerId);
        self.trace.note(
            self.now,
            b'Q',
            [node as u64, u64::from(peer), u64::from(received.packet.psn.get())],
            || format!("<- node {node} from {peer} port {} {:?}", received.port, received.packet),
        );
        self.call(node, None, Most::PerTimeout, |node, now, host| {
            node.handle_endpoint(now, peer, received, host);
        });
    }
}
