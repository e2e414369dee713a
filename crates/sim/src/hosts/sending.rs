//! From a node to the fabric: queue pairs send in turn while a port can take a packet; feedback and endpoint packets go at
//! once.

use openmrc_transport::node::Route;
use openmrc_transport::{Time, TrafficClass};
use openmrc_wire::{Ev, Packet};

use super::environment::{EndpointPacket, Environment};
use super::{ENDPOINT, Hosts};
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::fabric::{FabricState, Fate};
use crate::stats::Stats;

/// What the fabric needs to know of a packet.
struct Outgoing {
    host: u32,
    peer: u32,
    connection: u32,
    port: u8,
    ev: Ev,
    class: TrafficClass,
}

impl Hosts {
    /// Queue pairs of a host send in turn, a packet at a time, as long as a port can take one.
    pub fn serve(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let now = Time(clock.now);
        while self.hosts[number as usize].node.has_ready() {
            let host = &mut self.hosts[number as usize];
            let free = match fabric.free_ports(number, clock.now) {
                Ok(free) => free,
                Err(time) => {
                    host.wake_at(time, number, clock);
                    return;
                }
            };
            let mut environment = Environment {
                now,
                messages: &mut self.posts.messages,
                outbox: &mut self.outbox,
                recorder: None,
                plane: 0,
            };
            let Some(next) = host.node.poll_transmit(now, free, &mut environment) else {
                // Queue pairs want ports that are not free now.
                if host.node.has_ready() {
                    host.wake_at(fabric.next_departure(number, clock.now), number, clock);
                }
                return;
            };
            let transmit = &next.transmit;
            let out = Outgoing {
                host: number,
                peer: host.node.peer(next.place).unwrap_or_default(),
                connection: host.node.context(next.place).unwrap_or_default(),
                port: transmit.port,
                ev: transmit.ev,
                class: transmit.class,
            };
            self.transmit(&out, &transmit.packet, clock, fabric, stats);
        }
    }

    /// Serves the host's queue pairs, unless a wake event will.
    #[inline(always)]
    pub(super) fn offer(
        &mut self,
        host: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        // Without a wake event there may be queue pairs none of whose ports was up.
        if self.hosts[host as usize].wake_at == u64::MAX {
            self.serve(host, clock, fabric, stats);
        }
    }

    /// Sends the feedback and the endpoint packets that a node has left in the outbox.
    #[inline]
    pub(super) fn send_outbox(
        &mut self,
        number: u32,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        if !self.outbox.feedback.is_empty() {
            let mut feedback = std::mem::take(&mut self.outbox.feedback);
            for (place, transmit) in feedback.drain(..) {
                let node = &self.hosts[number as usize].node;
                let out = Outgoing {
                    host: number,
                    peer: node.peer(place).unwrap_or_default(),
                    connection: node.context(place).unwrap_or_default(),
                    port: transmit.port,
                    ev: transmit.ev,
                    class: transmit.class,
                };
                self.transmit(&out, &transmit.packet, clock, fabric, stats);
            }
            self.outbox.feedback = feedback;
        }
        if !self.outbox.endpoint.is_empty() {
            for endpoint in std::mem::take(&mut self.outbox.endpoint) {
                self.transmit_endpoint(number, &endpoint, clock, fabric, stats);
            }
        }
    }

    /// Sends an endpoint packet.
    #[cold]
    fn transmit_endpoint(
        &mut self,
        host: u32,
        endpoint: &EndpointPacket,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let EndpointPacket { peer, route, packet, class } = *endpoint;
        let (ev, port) = match route {
            Route::Path { ev, port, .. } => (ev, port),
            // The entropy value of a request names a path of its sender's, so an answer takes one of its own.
            Route::Reply { ev, port } => (self.endpoints.ev_on(host, peer, port, ev.0.into()), port),
            Route::Port(port) => (self.endpoints.ev_on(host, peer, port, clock.now), port),
        };
        let out = Outgoing { host, peer, connection: ENDPOINT | host, port, ev, class };
        self.transmit(&out, &packet, clock, fabric, stats);
    }

    /// Sends one packet.
    #[inline]
    fn transmit(
        &mut self,
        out: &Outgoing,
        packet: &Packet,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let data = packet.is_data();
        let flags = match out.class {
            TrafficClass::Control => flag::CONTROL,
            // A probe is in the data class, but has nothing to cut off.
            TrafficClass::Data | TrafficClass::DataRetransmit if !data => 0,
            TrafficClass::Data | TrafficClass::DataRetransmit => flag::DATA,
        };
        let more = if data { self.endpoints.more_bytes } else { 0 };
        let bytes = self.encapsulation.wire_bytes(packet.wire_len() as u32 + more) as u16;
        let totals = &mut stats.totals.hosts;
        if data {
            totals.data_packets += 1;
            totals.data_bytes += u64::from(packet.payload_len);
        } else {
            totals.control_packets += 1;
        }
        totals.launched_bytes += u64::from(bytes);
        let event = Event {
            time: clock.now,
            at: 0,
            packet: self.packets.put(packet),
            dst: out.peer,
            ev: out.ev.0,
            connection: out.connection,
            bytes,
            flags,
            kind: Kind::Arrive,
        };
        if let Some(recorder) = &mut stats.recorder {
            recorder.sent(&event, out.port);
        }
        if fabric.send(out.host, out.port, event, clock, stats) == Fate::Dropped {
            self.packets.drop_packet(event.packet);
        }
    }
}
