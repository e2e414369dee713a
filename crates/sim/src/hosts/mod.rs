//! Hosts: their queue pairs take turns at the NIC's ports, packets go out and come in, timers run, messages are posted.
//!
//! ```text
//! posts         messages and connections; knows nothing of queue pairs
//! queue_pair    queue pairs by number, of either transport
//! endpoints     how queue pairs are made for a network
//! environment   what a queue pair sees while it is served
//! nic           whose turn it is to send
//! prefetch      loads what the events to come will need
//! ```

mod endpoints;
mod environment;
mod nic;
mod posts;
mod prefetch;
mod queue_pair;

use openmrc_transport::node::DestinationControl;
use openmrc_transport::{
    PostError, Readiness, Received, SendStatus, Time, TrafficClass, Transmit, Transport, Trim,
};
use openmrc_wire::Ev;
use prefetch_index::prefetch_index;

pub(crate) use self::endpoints::Endpoints;
use self::environment::{Environment, Outbox, Owner};
use self::nic::Nic;
pub(crate) use self::posts::Posts;
use self::prefetch::Prefetcher;
use self::queue_pair::{QpSlot, QueuePairs};
use crate::clock::Clock;
use crate::config::{Encapsulation, NetworkConfig};
use crate::event::{Event, Kind, flag};
use crate::fabric::{CarrierChange, FabricState, Fate};
use crate::results::HostTotals;
use crate::slab::Slab;
use crate::stats::Stats;

/// All hosts.
pub(crate) struct Hosts {
    nics: Vec<Nic>,
    /// By host: the destination control of its receivers. Empty if the transport has none.
    controls: Vec<DestinationControl>,
    qps: QueuePairs,
    endpoints: Endpoints,
    pub posts: Posts,
    /// Contents of the packets in flight.
    pub packets: Slab,
    outbox: Outbox,
    prefetcher: Prefetcher,
    encapsulation: Encapsulation,
    /// From a change of carrier at one host to the port status update at another, on top of lookahead, picoseconds.
    port_status_delay: u64,
}

impl Hosts {
    /// The hosts of a network, with all ports up and nothing posted.
    pub fn new(config: &NetworkConfig, endpoints: Endpoints, posts: Posts) -> Self {
        let shape = config.fabric.shape();
        let rate = config.port_rate_bps * u64::from(shape.planes);
        let control = DestinationControl::new(rate, config.base_rtt());
        let controls = if endpoints.destination_control { shape.hosts as usize } else { 0 };
        Hosts {
            nics: vec![Nic::new(shape.planes); shape.hosts as usize],
            controls: vec![control; controls],
            qps: QueuePairs::default(),
            endpoints,
            posts,
            packets: Slab::default(),
            outbox: Outbox::default(),
            prefetcher: Prefetcher::new(),
            encapsulation: config.encapsulation,
            port_status_delay: config.one_way(config.encapsulation.wire_bytes(36)).0,
        }
    }

    /// Number of hosts.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.nics.len() as u32
    }

    /// Adds the counters of queue pairs that still exist.
    pub fn add_up(&self, totals: &mut HostTotals) {
        self.qps.add_up(totals);
    }

    /// Loads a host's state into the cache.
    #[inline(always)]
    pub fn prefetch_host(&self, host: u32) {
        prefetch_index(&self.nics, host as usize);
        // A control may lie in two cache lines.
        prefetch_index(&self.controls, host as usize);
        prefetch_index(&self.controls, host as usize + 1);
    }

    /// Loads what the events after the current one will need.
    #[inline(always)]
    pub fn prefetch_events(&mut self, clock: &Clock) {
        self.prefetcher.prefetch(&clock.calendar, &self.packets, &self.qps, &self.posts);
    }

    // Events.

    /// A message is due.
    pub fn post_due(&mut self, index: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let message = &mut self.posts.messages[index as usize];
        let number = message.connection;
        if message.bytes == 0 {
            self.posts.finish_computation(index, clock);
            return;
        }
        message.posted = clock.now;
        let slot = self.open(number, clock.now);
        self.posts.connections[number as usize].waiting.push(index);
        self.post_waiting(number, clock, fabric, stats);
        self.arm_timer(slot, clock);
        self.offer(slot, clock, fabric, stats);
    }

    /// The host's port can take packets again.
    pub fn wake(&mut self, host: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let nic = &mut self.nics[host as usize];
        if nic.wake_at == clock.now {
            nic.wake_at = u64::MAX;
            self.serve(host, clock, fabric, stats);
        }
    }

    /// A queue pair's timer event.
    pub fn timer(&mut self, slot: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let Some(end) = self.qps.get_mut(slot) else { return };
        if end.timer_at > clock.now {
            return;
        }
        end.timer_at = u64::MAX;
        let Some(qp) = &mut end.qp else { return };
        let now = Time(clock.now);
        if qp.poll_timeout() <= now {
            let mut environment = Environment {
                now,
                messages: &mut self.posts.messages,
                outbox: &mut self.outbox,
                recorder: stats.recorder.as_deref_mut(),
                owner: Owner { connection: end.connection, host: end.host, peer_host: end.peer_host },
                plane: 0,
            };
            qp.handle_timeout(now, &mut environment);
            self.settle(slot, clock, fabric, stats);
        } else {
            self.arm_timer(slot, clock);
        }
    }

    /// A packet has reached its host.
    pub fn receive(&mut self, event: Event, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        stats.totals.hosts.arrived_bytes += u64::from(event.bytes);
        let packet = self.packets.take(event.packet);
        let slot = QueuePairs::slot_of(packet.dest_qp);
        let Some(end) = self.qps.get_mut(slot).filter(|end| end.connection == event.connection) else {
            stats.totals.hosts.stray += 1;
            return;
        };
        stats.totals.hosts.arrived += 1;
        let trim = match event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) {
            0 => None,
            flag::TRIMMED => Some(Trim::Fabric),
            _ => Some(Trim::LastHop),
        };
        let mut received = Received {
            packet,
            ev: Ev(event.ev),
            port: (event.at - fabric.layout.host_port(event.dst, 0)) as u8,
            ecn_ce: event.flags & flag::CE != 0,
            trim,
        };
        if trim.is_some() {
            received.packet.payload_len = 0;
        }
        let now = Time(clock.now);
        let up = (self.nics[end.host as usize].up, self.nics[end.peer_host as usize].up);
        let qp = match &mut end.qp {
            Some(qp) => qp,
            none => {
                let numbers = (QueuePairs::number(slot), QueuePairs::number(slot ^ 1));
                let salt = u64::from(event.connection) << 1 | 1;
                none.insert(self.endpoints.make(now, 0, numbers, (end.host, end.peer_host), salt, up))
            }
        };
        // The SACK that this packet may ask for tells of the pressure that it has raised.
        if let Some(control) = self.controls.get_mut(end.host as usize)
            && received.packet.is_data()
        {
            control.on_packet(now, u32::from(event.bytes), trim == Some(Trim::LastHop));
            qp.set_receive_pressure(control.pressure());
        }
        if let Some(recorder) = &mut stats.recorder {
            recorder.arrived(&event);
        }
        let mut environment = Environment {
            now,
            messages: &mut self.posts.messages,
            outbox: &mut self.outbox,
            recorder: stats.recorder.as_deref_mut(),
            owner: Owner { connection: event.connection, host: end.host, peer_host: end.peer_host },
            plane: received.port,
        };
        qp.handle_packet(now, &received, &mut environment);
        self.settle(slot, clock, fabric, stats);
    }

    /// A host's port has lost its carrier, or has it back. Its own queue pairs know at once, their peers when the port
    /// status update has crossed the fabric (spec: transport, "Probes and port status").
    pub fn carrier_changed(&mut self, change: CarrierChange, clock: &mut Clock) {
        let CarrierChange { host, port, up } = change;
        let nic = &mut self.nics[host as usize];
        nic.up = if up { nic.up.with(port) } else { nic.up.without(port) };
        let soon = clock.now + clock.lookahead();
        let later = soon + self.port_status_delay;
        for slot in 0..self.qps.len() as u32 {
            let Some(end) = self.qps.get(slot).filter(|end| end.qp.is_some()) else { continue };
            if end.host == host {
                clock.push_at_host(soon, Kind::PortStatus, slot, end.host);
            } else if end.peer_host == host {
                clock.push_at_host(later, Kind::PortStatus, slot, end.host);
            }
        }
        clock.push_at_host(soon, Kind::Wake, host, host);
        self.nics[host as usize].wake_at = soon;
    }

    /// A queue pair learns which ports are up at both ends.
    pub fn port_status(&mut self, slot: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let Some(end) = self.qps.get_mut(slot) else { return };
        let (local, peer) = (self.nics[end.host as usize].up, self.nics[end.peer_host as usize].up);
        if let Some(qp) = &mut end.qp {
            qp.set_ports_up(Time(clock.now), local, peer);
            self.arm_timer(slot, clock);
            self.offer(slot, clock, fabric, stats);
        }
    }

    // Sending.

    /// Queue pairs of a host send in turn, a packet at a time, as long as a port can take one.
    pub fn serve(&mut self, host: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let mut refused = 0;
        while let Some(&slot) = self.nics[host as usize].ring.front() {
            let free = match fabric.free_ports(host, clock.now) {
                Ok(free) if refused < self.nics[host as usize].ring.len() => free,
                // The queue pairs want other ports than those that are free, or none is free.
                others => {
                    let time = others.err().unwrap_or_else(|| fabric.next_departure(host, clock.now));
                    self.wake_at(host, time, clock);
                    return;
                }
            };
            let now = Time(clock.now);
            let Some(end) = self.qps.get_mut(slot) else { return };
            let Some(qp) = &mut end.qp else {
                end.in_ring = false;
                self.nics[host as usize].ring.pop_front();
                continue;
            };
            let armed = qp.awaits_answers();
            let sent = qp.poll_transmit(now, free);
            let ready = sent.is_some() || qp.readiness() == Readiness::Ready;
            end.in_ring = ready;
            let ring = &mut self.nics[host as usize].ring;
            if ready && ring.len() > 1 {
                ring.rotate_left(1);
            } else if !ready {
                ring.pop_front();
            }
            match &sent {
                Some(transmit) => {
                    refused = 0;
                    self.transmit(slot, transmit, clock, fabric, stats);
                    if !armed {
                        self.arm_timer(slot, clock);
                    }
                }
                None if ready => refused += 1,
                None => self.arm_timer(slot, clock),
            }
        }
    }

    /// Schedules the wake event of a host for `time`, if none comes before. [`u64::MAX`] schedules none.
    #[inline(always)]
    fn wake_at(&mut self, host: u32, time: u64, clock: &mut Clock) {
        let nic = &mut self.nics[host as usize];
        if time < nic.wake_at {
            nic.wake_at = time;
            // The queue pair whose turn it will be, so that it can be loaded into the cache before.
            let packet = nic.ring.front().copied().unwrap_or_default();
            clock.push_to_host(Event { packet, ..Event::plain(time, Kind::Wake, host, host) });
        }
    }

    /// Puts a queue pair in the ring of its NIC if it has something to send, and serves the ring unless a wake event
    /// will.
    #[inline(always)]
    fn offer(&mut self, slot: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let Some(end) = self.qps.get_mut(slot) else { return };
        let host = end.host;
        if !end.in_ring {
            if end.qp.as_ref().is_none_or(|qp| qp.readiness() != Readiness::Ready) {
                return;
            }
            end.in_ring = true;
            self.nics[host as usize].ring.push_back(slot);
        }
        // Without a wake event the ring may hold queue pairs none of whose ports was up.
        if self.nics[host as usize].wake_at == u64::MAX {
            self.serve(host, clock, fabric, stats);
        }
    }

    /// Schedules a timer event for the queue pair's deadline, if none comes before.
    #[inline]
    fn arm_timer(&mut self, slot: u32, clock: &mut Clock) {
        let Some(end) = self.qps.get_mut(slot) else { return };
        let Some(qp) = &end.qp else { return };
        let due = qp.poll_timeout().0;
        if due < end.timer_at {
            end.timer_at = due;
            clock.push_at_host(due.max(clock.now), Kind::Timer, slot, end.host);
        }
    }

    /// Sends one packet of a queue pair.
    #[inline]
    fn transmit(
        &mut self,
        slot: u32,
        transmit: &Transmit,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let Some(end) = self.qps.get(slot) else { return };
        let QpSlot { connection, host, peer_host, .. } = *end;
        let packet = &transmit.packet;
        let data = packet.is_data();
        let flags = match transmit.class {
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
            dst: peer_host,
            ev: transmit.ev.0,
            connection,
            bytes,
            flags,
            kind: Kind::Arrive,
        };
        if let Some(recorder) = &mut stats.recorder {
            recorder.sent(&event, transmit.port);
        }
        if fabric.send(host, transmit.port, event, clock, stats) == Fate::Dropped {
            self.packets.drop_packet(event.packet);
        }
    }

    /// Does what a queue pair has asked for in the outbox, and lets it send.
    fn settle(&mut self, slot: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        if !self.outbox.transmits.is_empty() {
            let mut transmits = std::mem::take(&mut self.outbox.transmits);
            for transmit in transmits.drain(..) {
                self.transmit(slot, &transmit, clock, fabric, stats);
            }
            self.outbox.transmits = transmits;
        }
        stats.totals.hosts.losses_seen += std::mem::take(&mut self.outbox.losses);
        if std::mem::take(&mut self.outbox.failed) {
            stats.totals.hosts.fatal += 1;
        }
        self.arm_timer(slot, clock);
        self.offer(slot, clock, fabric, stats);
        if !self.outbox.delivered.is_empty() || !self.outbox.done.is_empty() {
            self.drain_completions(clock, fabric, stats);
        }
    }

    // Messages.

    /// Messages that have arrived release those that waited for them; completed ones leave their connection.
    fn drain_completions(&mut self, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        while let Some(index) = self.outbox.delivered.pop() {
            self.posts.release(index, clock);
        }
        let mut done = std::mem::take(&mut self.outbox.done);
        for completion in done.drain(..) {
            let success = completion.status == SendStatus::Success;
            self.finish(completion.handle as u32, success, clock, fabric, stats);
        }
        self.outbox.done = done;
    }

    /// The requestor's slot of a connection, which is opened if it is not.
    fn open(&mut self, number: u32, now: u64) -> u32 {
        let connection = &mut self.posts.connections[number as usize];
        if let Some(slot) = connection.slot {
            return slot;
        }
        let (src, dst) = (connection.ends.src, connection.ends.dst);
        let slot = self.qps.open(number, src, dst);
        connection.slot = Some(slot);
        let numbers = (QueuePairs::number(slot), QueuePairs::number(slot + 1));
        let up = (self.nics[src as usize].up, self.nics[dst as usize].up);
        let salt = u64::from(number) << 1;
        let qp = self.endpoints.make(Time(now), connection.left, numbers, (src, dst), salt, up);
        if let Some(end) = self.qps.get_mut(slot) {
            end.qp = Some(qp);
        }
        slot
    }

    /// Posts the messages that a connection's send queue has room for.
    fn post_waiting(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let Posts { connections, messages, .. } = &mut self.posts;
        let connection = &mut connections[number as usize];
        let Some(slot) = connection.slot else { return };
        let Some(qp) = self.qps.get_mut(slot).and_then(|end| end.qp.as_mut()) else { return };
        let mut posted = 0;
        let mut refused = false;
        for &index in &connection.waiting {
            match qp.post_send(Time(clock.now), messages[index as usize].work_request(index)) {
                Ok(()) => posted += 1,
                Err(PostError::QueueFull(_)) => break,
                Err(_) => {
                    refused = true;
                    break;
                }
            }
        }
        if refused {
            for index in std::mem::take(&mut connection.waiting).split_off(posted) {
                self.finish(index, false, clock, fabric, stats);
            }
        } else {
            connection.waiting.drain(..posted);
        }
    }

    /// A message completes or fails. Its connection posts the next ones, or closes after its last.
    fn finish(
        &mut self,
        index: u32,
        success: bool,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let number = self.posts.finish(index, success, clock.now);
        let connection = &mut self.posts.connections[number as usize];
        let Some(slot) = connection.slot else { return };
        if connection.left > 0 {
            if !connection.waiting.is_empty() {
                self.post_waiting(number, clock, fabric, stats);
                self.offer(slot, clock, fabric, stats);
            }
            return;
        }
        connection.slot = None;
        if let Some(end) = self.qps.get_mut(slot)
            && std::mem::take(&mut end.in_ring)
        {
            self.nics[end.host as usize].ring.retain(|&s| s != slot);
        }
        self.qps.close(slot, &mut stats.totals.hosts);
    }
}
