//! A host's NIC: queue pairs take turns at its ports, packets go out and come in, timers run.

use std::collections::VecDeque;

use openmrc_transport::{
    AccessError, EvEvent, Fatal, Host, NoReceive, PathId, PortSet, Readiness, Received, RecvDone, SendDone,
    Time, TrafficClass, Transmit, Transport, Trim,
};
use openmrc_wire::Ev;

use crate::event::{Event, Kind, flag};
use crate::fabric::{CarrierChange, Fate};
use crate::memory::message_at;
use crate::post::MessageState;
use crate::queue_pair::{QpSlot, QueuePairs};
use crate::record::{LogEvent, Recorder};
use crate::world::{Outbox, World};

/// One host's NIC.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    /// Queue pairs that want to be served, in turn.
    pub ring: VecDeque<u32>,
    /// When its pending wake event comes.
    pub wake_at: u64,
    /// Ports with a carrier.
    pub up: PortSet,
}

impl Nic {
    /// A NIC whose ports are all up.
    pub fn new(ports: u32) -> Self {
        Nic { ring: VecDeque::new(), wake_at: u64::MAX, up: PortSet::first(ports as usize) }
    }
}

/// What a queue pair sees of the world while it is served.
struct Surroundings<'a> {
    now: Time,
    messages: &'a mut [MessageState],
    outbox: &'a mut Outbox,
    recorder: Option<&'a mut Recorder>,
    /// Connection, host and peer's host, for the record.
    whose: (u32, u32, u32),
    plane: u8,
}

impl Host for Surroundings<'_> {
    fn place(&mut self, _rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
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

    fn transmit(&mut self, transmit: Transmit) {
        self.outbox.transmits.push(transmit);
    }

    fn send_done(&mut self, done: SendDone) {
        self.outbox.done.push(done);
    }

    fn recv_done(&mut self, _done: RecvDone) -> Result<(), NoReceive> {
        Ok(())
    }

    fn path_loss(&mut self, _path: PathId, _port: u8) {
        self.outbox.losses += 1;
    }

    fn ev_event(&mut self, event: EvEvent) {
        if let Some(recorder) = &mut self.recorder {
            let (connection, host, peer) = self.whose;
            recorder.path_event(self.now, connection, (host, peer), event);
        }
    }

    fn fatal(&mut self, _why: Fatal) {
        self.outbox.failed = true;
        if let Some(recorder) = &mut self.recorder {
            let (_, host, peer) = self.whose;
            recorder.log(self.now, LogEvent::Failed { host, peer });
        }
    }
}

impl World {
    /// The host's port can take packets again.
    pub(crate) fn wake(&mut self, host: u32, time: u64) {
        if self.nics[host as usize].wake_at == time {
            self.nics[host as usize].wake_at = u64::MAX;
            self.serve(host);
        }
    }

    /// Queue pairs send in turn, a packet at a time, as long as a port can take one.
    pub(crate) fn serve(&mut self, host: u32) {
        let mut refused = 0;
        while let Some(&slot) = self.nics[host as usize].ring.front() {
            let free = match self.fabric.free_ports(host, self.clock.now) {
                Ok(free) if refused < self.nics[host as usize].ring.len() => free,
                Ok(_) => {
                    // A queue pair wants a port that is not free now.
                    if let Some(time) = self.fabric.next_departure(host, self.clock.now) {
                        self.wake_at(host, time);
                    }
                    return;
                }
                Err(time) => {
                    if time != u64::MAX {
                        self.wake_at(host, time);
                    }
                    return;
                }
            };
            let now = Time(self.clock.now);
            let Some(qp) = self.qps.get_mut(slot) else { return };
            let Some(engine) = &mut qp.engine else {
                qp.in_ring = false;
                self.nics[host as usize].ring.pop_front();
                continue;
            };
            let waited = engine.waits();
            let sent = engine.poll_transmit(now, free);
            let ready = sent.is_some() || engine.readiness() == Readiness::Ready;
            qp.in_ring = ready;
            let ring = &mut self.nics[host as usize].ring;
            if ready && ring.len() > 1 {
                ring.rotate_left(1);
            } else if !ready {
                ring.pop_front();
            }
            match &sent {
                Some(transmit) => {
                    refused = 0;
                    self.launch(slot, transmit);
                    if !waited {
                        self.arm(slot);
                    }
                }
                None if ready => refused += 1,
                None => self.arm(slot),
            }
        }
    }

    fn wake_at(&mut self, host: u32, time: u64) {
        let nic = &mut self.nics[host as usize];
        if time < nic.wake_at {
            nic.wake_at = time;
            // Whose turn it will be, so that it can be loaded beforehand.
            let packet = nic.ring.front().copied().unwrap_or_default();
            let event = Event { packet, ..Event::plain(time, Kind::Wake, host, host) };
            self.clock.push_to_host(event);
        }
    }

    /// Puts a queue pair in its NIC's ring if it has something to send, and sees to it that the ring is served.
    pub(crate) fn offer(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let host = qp.host;
        if !qp.in_ring {
            if qp.engine.as_ref().is_none_or(|e| e.readiness() != Readiness::Ready) {
                return;
            }
            qp.in_ring = true;
            self.nics[host as usize].ring.push_back(slot);
        }
        // A wake that is due is soon enough. Without one the ring may hold queue pairs none of whose ports was up.
        if self.nics[host as usize].wake_at == u64::MAX {
            self.serve(host);
        }
    }

    /// Sees to it that a timer event comes no later than the queue pair's deadline.
    #[inline]
    pub(crate) fn arm(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let Some(engine) = &qp.engine else { return };
        let due = engine.poll_timeout().0;
        if due < qp.timer_at {
            qp.timer_at = due;
            let host = qp.host;
            self.clock.push_at_host(due.max(self.clock.now), Kind::Timer, slot, host);
        }
    }

    /// A queue pair's timer event.
    pub(crate) fn timer(&mut self, slot: u32, time: u64) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        if qp.timer_at > time {
            return;
        }
        qp.timer_at = u64::MAX;
        let Some(engine) = &mut qp.engine else { return };
        if engine.poll_timeout().0 <= self.clock.now {
            let mut around = Surroundings {
                now: Time(self.clock.now),
                messages: &mut self.posts.messages,
                outbox: &mut self.outbox,
                recorder: self.stats.recorder.as_deref_mut(),
                whose: (qp.connection, qp.host, qp.peer_host),
                plane: 0,
            };
            engine.handle_timeout(Time(self.clock.now), &mut around);
            self.settle(slot);
        } else {
            self.arm(slot);
        }
    }

    /// Sends one packet of a queue pair.
    #[inline]
    fn launch(&mut self, slot: u32, transmit: &Transmit) {
        let Some(qp) = self.qps.get(slot) else { return };
        let QpSlot { connection, host, peer_host, .. } = *qp;
        let packet = &transmit.packet;
        let data = packet.is_data();
        let flags = match transmit.class {
            TrafficClass::Control => flag::CONTROL,
            // A probe is in the data class, but there is nothing to cut off.
            TrafficClass::Data | TrafficClass::DataRetransmit if !data => 0,
            TrafficClass::Data | TrafficClass::DataRetransmit => flag::DATA,
        };
        if data {
            self.stats.totals.hosts.data_packets += 1;
            self.stats.totals.hosts.data_bytes += u64::from(packet.payload_len);
        } else {
            self.stats.totals.hosts.control_packets += 1;
        }
        let more = if data { self.endpoints.more_bytes } else { 0 };
        let bytes = self.config.encapsulation.wire_bytes(packet.wire_len() as u32 + more) as u16;
        let event = Event {
            time: self.clock.now,
            at: 0,
            packet: self.slab.put(packet),
            dst: peer_host,
            ev: transmit.ev.0,
            connection,
            bytes,
            flags,
            kind: Kind::Arrive,
        };
        if let Some(recorder) = &mut self.stats.recorder {
            recorder.sent(&event, transmit.port);
        }
        self.stats.totals.hosts.launched_bytes += u64::from(bytes);
        if self.fabric.send(host, transmit.port, event, &mut self.clock, &mut self.stats) == Fate::Dropped {
            self.slab.drop_packet(event.packet);
        }
    }

    /// A packet has reached the host.
    pub(crate) fn receive(&mut self, event: Event) {
        self.stats.totals.hosts.arrived_bytes += u64::from(event.bytes);
        let packet = self.slab.take(event.packet);
        let slot = QueuePairs::slot_of(packet.dest_qp);
        let Some(qp) = self.qps.get_mut(slot).filter(|qp| qp.connection == event.connection) else {
            self.stats.totals.hosts.stray += 1;
            return;
        };
        self.stats.totals.hosts.arrived += 1;
        let trim = match event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) {
            0 => None,
            flag::TRIMMED => Some(Trim::Fabric),
            _ => Some(Trim::LastHop),
        };
        let mut received = Received {
            packet,
            ev: Ev(event.ev),
            port: (event.at - self.fabric.layout.host_port(event.dst, 0)) as u8,
            ecn_ce: event.flags & flag::CE != 0,
            trim,
        };
        if trim.is_some() {
            received.packet.payload_len = 0;
        }
        let now = Time(self.clock.now);
        let up = (self.nics[qp.host as usize].up, self.nics[qp.peer_host as usize].up);
        let engine = match &mut qp.engine {
            Some(engine) => engine,
            none => {
                let (local, remote) = (QueuePairs::number(slot), QueuePairs::number(slot ^ 1));
                let salt = u64::from(event.connection) << 1 | 1;
                none.insert(self.endpoints.make(now, 0, (local, remote), (qp.host, qp.peer_host), salt, up))
            }
        };
        // The receiving node's view of its ports, for the SACK that this packet may ask for.
        if let Some(control) = self.controls.get_mut(qp.host as usize)
            && received.packet.is_data()
        {
            control.on_packet(now, u32::from(event.bytes), trim == Some(Trim::LastHop));
            engine.set_receive_pressure(control.pressure());
        }
        if let Some(recorder) = &mut self.stats.recorder {
            recorder.arrived(&event);
        }
        let mut around = Surroundings {
            now,
            messages: &mut self.posts.messages,
            outbox: &mut self.outbox,
            recorder: self.stats.recorder.as_deref_mut(),
            whose: (event.connection, qp.host, qp.peer_host),
            plane: received.port,
        };
        engine.handle_packet(now, &received, &mut around);
        self.settle(slot);
    }

    /// A host's port has lost its carrier, or has it back. Its own queue pairs know at once, their peers when the port status
    /// update has crossed the fabric (spec: transport, "Probes and port status").
    pub(crate) fn carrier(&mut self, change: CarrierChange) {
        let CarrierChange { host, port, up } = change;
        let nic = &mut self.nics[host as usize];
        nic.up = if up { nic.up.with(port) } else { nic.up.without(port) };
        let soon = self.clock.now + self.clock.lookahead();
        let later = soon + self.config.one_way(self.config.encapsulation.wire_bytes(36)).0;
        for slot in 0..self.qps.len() as u32 {
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.engine.is_some()) else { continue };
            let (own, peer) = (qp.host, qp.peer_host);
            if own == host {
                self.clock.push_at_host(soon, Kind::PortStatus, slot, own);
            } else if peer == host {
                self.clock.push_at_host(later, Kind::PortStatus, slot, own);
            }
        }
        self.clock.push_at_host(soon, Kind::Wake, host, host);
        self.nics[host as usize].wake_at = soon;
    }

    /// A queue pair learns which ports are up at both ends.
    pub(crate) fn port_status(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let (local, peer) = (self.nics[qp.host as usize].up, self.nics[qp.peer_host as usize].up);
        if let Some(engine) = &mut qp.engine {
            engine.set_ports_up(Time(self.clock.now), local, peer);
            self.arm(slot);
            self.offer(slot);
        }
    }

    /// Carries out what a queue pair has asked for, and lets it send if it can.
    fn settle(&mut self, slot: u32) {
        if !self.outbox.transmits.is_empty() {
            let mut transmits = std::mem::take(&mut self.outbox.transmits);
            for transmit in transmits.drain(..) {
                self.launch(slot, &transmit);
            }
            self.outbox.transmits = transmits;
        }
        self.stats.totals.hosts.losses_seen += std::mem::take(&mut self.outbox.losses);
        if std::mem::take(&mut self.outbox.failed) {
            self.stats.totals.hosts.fatal += 1;
        }
        self.arm(slot);
        self.offer(slot);
        if !self.outbox.delivered.is_empty() || !self.outbox.done.is_empty() {
            self.news();
        }
    }
}
