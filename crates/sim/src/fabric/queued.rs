//! The queued port model: real queues, for networks in which a departure cannot be known at arrival because a pause can
//! come before it (PFC), or data that comes later may go before control (weighted scheduling). A packet costs two
//! events a hop, its arrival and the end of its transmission. Nothing is approximated.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use openmrc_scenario::run::{NetworkConfig, Overflow, PfcConfig, Scheduling, SwitchConfig};
use openmrc_transport::PortSet;

use super::layout::{Layout, UNCONNECTED};
use super::ports::{Fate, Port, Ports, port_flag};
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::stats::Stats;

/// Bytes of a pause frame: preamble, the shortest frame, gap.
const PAUSE_FRAME: u32 = 8 + 64 + 12;

/// Bytes that deficit round robin grants in a round, both queues together.
const ROUND: i64 = 16 * 1024;

/// A packet that waits.
#[derive(Serialize, Deserialize)]
struct Waiting {
    event: Event,
    /// The port of this switch it came in by, or [`UNCONNECTED`] at a host.
    ingress: u32,
}

/// An output port's queues.
#[derive(Default, Serialize, Deserialize)]
struct PortQueues {
    data: VecDeque<Waiting>,
    control: VecDeque<Waiting>,
    data_bytes: u64,
    control_bytes: u64,
    /// When the packet on the cable, and the pause frames behind it, will have left.
    free_at: u64,
    /// A [`Kind::Depart`] event comes at `free_at`.
    busy: bool,
    /// The peer has sent XOFF.
    paused: bool,
    /// Of the packet on the cable: the ingress port it is charged to, and its length.
    leaving: Option<(u32, u32)>,
    /// Deficit round robin: bytes that control, and data, may still send in this round.
    credit: [i64; 2],
}

/// Bytes that came in by a port and are still in its switch's buffer (IEEE 802.1Qbb).
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Ingress {
    shared: u64,
    headroom: u64,
    /// Size of the headroom.
    room: u64,
    /// XOFF has been sent and XON has not.
    xoff: bool,
    /// Index of the switch's buffer.
    buffer: u32,
}

/// The shared buffer of a switch, bytes.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Buffer {
    size: u64,
    used: u64,
}

/// The queues of all ports and the buffers of all switches.
pub(crate) struct Queued {
    ports: Vec<PortQueues>,
    ingress: Vec<Ingress>,
    /// By switch; empty without PFC.
    buffers: Vec<Buffer>,
    pfc: Option<PfcConfig>,
}

impl Queued {
    /// Writes the queues and buffers.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&self.ports)?;
        to.put(&self.ingress)?;
        to.put(&self.buffers)
    }

    /// Reads what [`Queued::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        from.replace(&mut self.ports)?;
        from.replace(&mut self.ingress)?;
        from.replace(&mut self.buffers)
    }

    /// Whether a network needs real queues, or asks for them.
    pub fn is_needed(config: &NetworkConfig, ports: &Ports) -> bool {
        Self::are_needed_for(config, &ports.settings.switch)
    }

    /// The same before there are ports.
    pub fn is_needed_by(config: &NetworkConfig) -> bool {
        Self::are_needed_for(config, &config.switch.unwrap_or_else(|| config.default_switch()))
    }

    fn are_needed_for(config: &NetworkConfig, switch: &SwitchConfig) -> bool {
        config.exact_queues || switch.pfc.is_some() || switch.scheduling != Scheduling::Strict
    }

    /// Bytes that the two queues of a port take as soon as a packet has waited: a `VecDeque` begins with room for four.
    pub const FIRST_ROOM: usize = 2 * 4 * size_of::<Waiting>();

    /// Bytes of a port's queues.
    pub const BYTES_PER_PORT: usize = size_of::<PortQueues>() + size_of::<Ingress>();

    /// Empty queues.
    pub fn new(config: &NetworkConfig, layout: &Layout, ports: &Ports) -> Self {
        let pfc = ports.settings.switch.pfc;
        let mut ingress = vec![Ingress::default(); layout.ports()];
        let mut buffers = Vec::new();
        if let Some(pfc) = pfc {
            for switch in layout.switches() {
                let mut reserved = 0;
                for port in switch.first_port..switch.first_port + switch.ports() {
                    ingress[port as usize].buffer = switch.number;
                    if ports[port].peer != UNCONNECTED {
                        let room = pfc.headroom.unwrap_or_else(|| headroom(ports, port));
                        ingress[port as usize].room = room;
                        reserved += room;
                    }
                }
                let size = pfc.buffer_of(u64::from(switch.ports()) * config.port_rate_bps);
                buffers.push(Buffer { size: size.saturating_sub(reserved), used: 0 });
            }
        }
        let ports = (0..layout.ports()).map(|_| PortQueues::default()).collect();
        Queued { ports, ingress, buffers, pfc }
    }

    /// The least shared buffer that any switch has once all its ports have their headroom. Without any it cannot run.
    pub fn least_shared_buffer(&self) -> Option<u64> {
        self.buffers.iter().map(|buffer| buffer.size).min()
    }

    /// Bytes that a port has sent by `now`.
    pub fn sent(&self, port: &Port, number: u32, now: u64) -> u64 {
        port.bytes - self.on_cable(port, number, now)
    }

    /// Bytes of data that wait at a port, and bytes that are being sent.
    pub fn backlog(&self, port: &Port, number: u32, now: u64) -> u64 {
        self.ports[number as usize].data_bytes + self.on_cable(port, number, now)
    }

    /// Bytes of the packet that is being sent which are still to come.
    fn on_cable(&self, port: &Port, number: u32, now: u64) -> u64 {
        self.ports[number as usize].free_at.saturating_sub(now) / u64::from(port.picos_per_byte.max(1))
    }

    /// Ports of a host that can take a packet. `Err` if there is none: a port reports by itself when it can take
    /// another ([`Queued::depart`]).
    pub fn free_ports(&self, ports: &Ports, host: u32) -> Result<PortSet, u64> {
        let own = ports.of_host(host);
        let first = host as usize * own.len();
        let free = (0..)
            .zip(own.iter().zip(&self.ports[first..]))
            .filter(|(_, (port, queue))| !port.is_down() && queue.data.is_empty())
            .fold(PortSet::EMPTY, |free, (plane, _)| free.with(plane));
        if free.is_empty() { Err(u64::MAX) } else { Ok(free) }
    }

    /// Packets that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &Event> {
        self.ports.iter().flat_map(|p| p.data.iter().chain(&p.control)).map(|waiting| &waiting.event)
    }

    /// A packet is to leave by port `out`, having come in by port `ingress` of a switch. A packet from a host has none.
    #[inline(never)]
    pub fn enqueue(
        &mut self,
        ports: &mut Ports,
        out: u32,
        ingress: u32,
        mut event: Event,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        let port = ports[out];
        if port.is_down() {
            stats.totals.fabric.dropped_down += 1;
            return Fate::dropped(&event, stats);
        }
        let at_host = port.is_host();
        if event.flags & flag::CONTROL == 0 {
            let queue = &self.ports[out as usize];
            let fits = if at_host {
                true
            } else if self.pfc.is_some() {
                self.admit(ports, ingress, u64::from(event.bytes), clock, stats)
            } else {
                ports.settings.limit_bytes(&port, queue.data_bytes) <= ports.settings.limits(&port).data
            };
            let trims = ports.settings.switch.overflow == Overflow::Trim && event.flags & flag::DATA != 0;
            if fits {
                let queue = &mut self.ports[out as usize];
                queue.data_bytes += u64::from(event.bytes);
                queue.data.push_back(Waiting { event, ingress });
            } else if self.pfc.is_none() && trims {
                event = ports.trim(out, event, stats);
            } else {
                stats.totals.fabric.dropped_data += 1;
                stats.at_port(out, |count| count.dropped += 1);
                return Fate::dropped(&event, stats);
            }
            if !at_host {
                let longest = &mut stats.totals.fabric.longest_queue;
                *longest = (*longest).max(self.ports[out as usize].data_bytes);
            }
        }
        let queue = &mut self.ports[out as usize];
        if event.flags & flag::CONTROL != 0 {
            let waiting = ports.settings.limit_bytes(&port, queue.control_bytes);
            if !at_host && waiting > ports.settings.switch.control_bytes {
                stats.totals.fabric.dropped_control += 1;
                stats.at_port(out, |count| count.dropped += 1);
                return Fate::dropped(&event, stats);
            }
            queue.control_bytes += u64::from(event.bytes);
            queue.control.push_back(Waiting { event, ingress: UNCONNECTED });
        }
        if !queue.busy {
            self.send_next(ports, out, clock, stats);
        }
        Fate::Forwarded
    }

    /// Puts the next packet that may go on the cable.
    fn send_next(&mut self, ports: &mut Ports, out: u32, clock: &mut Clock, stats: &mut Stats) {
        let queue = &mut self.ports[out as usize];
        let scheduling =
            if ports[out].is_host() { Scheduling::Strict } else { ports.settings.switch.scheduling };
        let Some(control) = queue.next_is_control(scheduling) else { return };
        let next = if control { queue.control.pop_front() } else { queue.data.pop_front() };
        let Some(Waiting { mut event, ingress }) = next else { return };
        let bytes = u64::from(event.bytes);
        if control {
            queue.control_bytes -= bytes;
        } else {
            queue.data_bytes -= bytes;
        }
        let port = &mut ports[out];
        let leaves = clock.now + bytes * u64::from(port.picos_per_byte);
        queue.leaving = (ingress != UNCONNECTED).then_some((ingress, u32::from(event.bytes)));
        queue.free_at = leaves;
        queue.busy = true;
        port.bytes += bytes;
        port.data_free = leaves;
        event.time = leaves + u64::from(port.latency);
        let may_be_marked = port.flags & port_flag::ECN != 0
            && !control
            && event.flags & (flag::DATA | flag::CE) == flag::DATA;
        if may_be_marked
            && let Some(ecn) = ports.settings.switch.ecn
            && let behind = ports.settings.limit_bytes(&ports[out], queue.data_bytes)
            && ports.marks(&ecn, out, clock.now, behind, stats)
        {
            event.flags |= flag::CE;
        }
        ports.send_over(out, event, clock);
        schedule(ports, clock, leaves, Kind::Depart, out, 0);
    }

    /// A transmission at port `out` has ended. Returns the host whose port can take another packet.
    pub fn depart(
        &mut self,
        ports: &mut Ports,
        out: u32,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Option<u32> {
        if let Some((ingress, bytes)) = self.ports[out as usize].leaving.take() {
            self.discharge(ports, ingress, u64::from(bytes), clock, stats);
        }
        let queue = &mut self.ports[out as usize];
        if queue.free_at > clock.now {
            // A pause frame goes first.
            schedule(ports, clock, queue.free_at, Kind::Depart, out, 0);
        } else {
            queue.busy = false;
            self.send_next(ports, out, clock, stats);
        }
        ports.host_of(out).filter(|_| self.ports[out as usize].data.is_empty())
    }

    /// The peer of port `out` has sent XOFF or XON.
    pub fn pause(&mut self, ports: &mut Ports, out: u32, xoff: bool, clock: &mut Clock, stats: &mut Stats) {
        if ports[out].is_down() {
            return;
        }
        let queue = &mut self.ports[out as usize];
        queue.paused = xoff;
        if !xoff && !queue.busy {
            self.send_next(ports, out, clock, stats);
        }
    }

    /// The link at a port goes down or comes up. Pauses end; one that the port itself had asked for is asked for again.
    pub fn link_changed(
        &mut self,
        ports: &mut Ports,
        port: u32,
        up: bool,
        clock: &mut Clock,
        stats: &mut Stats,
    ) {
        let queue = &mut self.ports[port as usize];
        if std::mem::take(&mut queue.paused) && !queue.busy {
            self.send_next(ports, port, clock, stats);
        }
        if up && self.ingress[port as usize].xoff {
            self.send_pause(ports, port, true, clock, stats);
        }
    }

    /// Takes a packet that came in by port `ingress` into the switch's buffer, and tells its sender to stop where that
    /// is due. Returns whether there was room.
    fn admit(
        &mut self,
        ports: &mut Ports,
        ingress: u32,
        bytes: u64,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> bool {
        let Some(pfc) = self.pfc else { return true };
        let account = &mut self.ingress[ingress as usize];
        let buffer = &mut self.buffers[account.buffer as usize];
        if !account.xoff && account.shared + bytes <= pfc.threshold(buffer.size, buffer.used) {
            account.shared += bytes;
            buffer.used += bytes;
            return true;
        }
        let first = !account.xoff;
        let fits = account.headroom + bytes <= account.room;
        if fits {
            account.headroom += bytes;
        }
        account.xoff = true;
        if first {
            self.send_pause(ports, ingress, true, clock, stats);
        }
        fits
    }

    /// A packet that came in by port `ingress` has left the switch.
    fn discharge(
        &mut self,
        ports: &mut Ports,
        ingress: u32,
        bytes: u64,
        clock: &mut Clock,
        stats: &mut Stats,
    ) {
        let Some(pfc) = self.pfc else { return };
        let account = &mut self.ingress[ingress as usize];
        let buffer = &mut self.buffers[account.buffer as usize];
        let of_headroom = account.headroom.min(bytes);
        account.headroom -= of_headroom;
        account.shared -= bytes - of_headroom;
        buffer.used -= bytes - of_headroom;
        let low = pfc.threshold(buffer.size, buffer.used).saturating_sub(pfc.xon_offset);
        if account.xoff && account.headroom == 0 && (account.shared <= low || account.shared == 0) {
            account.xoff = false;
            self.send_pause(ports, ingress, false, clock, stats);
        }
    }

    /// Sends XOFF or XON by a port, right after the packet on the cable.
    fn send_pause(&mut self, ports: &mut Ports, port: u32, xoff: bool, clock: &mut Clock, stats: &mut Stats) {
        let own = &mut ports[port];
        if own.is_down() {
            return;
        }
        let queue = &mut self.ports[port as usize];
        let sent = queue.free_at.max(clock.now) + u64::from(PAUSE_FRAME) * u64::from(own.picos_per_byte);
        queue.free_at = sent;
        own.bytes += u64::from(PAUSE_FRAME);
        own.data_free = sent;
        let (peer, arrives) = (own.peer, sent + u64::from(own.latency));
        if !std::mem::replace(&mut queue.busy, true) {
            schedule(ports, clock, sent, Kind::Depart, port, 0);
        }
        stats.totals.fabric.pauses += u64::from(xoff);
        schedule(ports, clock, arrives, Kind::Pause, peer, u8::from(xoff));
    }
}

/// Schedules an event at a port.
fn schedule(ports: &Ports, clock: &mut Clock, time: u64, kind: Kind, port: u32, flags: u8) {
    let host = ports.host_of(port).unwrap_or(0);
    let event = Event { flags, ..Event::plain(time, kind, port, host) };
    clock.push(event, ports.address_of(port));
}

/// Bytes that can come in after a switch has decided to send XOFF. The frame waits for a packet, travels and is acted
/// on; the peer goes on sending until then and ends the packet it has begun.
fn headroom(ports: &Ports, port: u32) -> u64 {
    let own = &ports[port];
    let peer = &ports[own.peer];
    let round_trip = u64::from(own.latency) + u64::from(peer.latency);
    let rate = u64::from(own.picos_per_byte);
    // The packet that crossed the threshold, the one XOFF waits for, the one the peer has begun.
    3 * ports.settings.full_packet_bytes + u64::from(PAUSE_FRAME) + round_trip.div_ceil(rate)
}

impl PortQueues {
    /// Whether control or data goes next; `None` if nothing may.
    fn next_is_control(&mut self, scheduling: Scheduling) -> Option<bool> {
        let data = if self.paused { None } else { self.data.front() };
        let (control, data) = match (self.control.front(), data) {
            (Some(c), Some(d)) => (i64::from(c.event.bytes), i64::from(d.event.bytes)),
            (control, data) => {
                // A queue that sends alone keeps no credit.
                self.credit = [0, 0];
                return control.or(data).map(|_| control.is_some());
            }
        };
        let Scheduling::Weighted(share) = scheduling else { return Some(true) };
        loop {
            for (queue, bytes) in [control, data].into_iter().enumerate() {
                if self.credit[queue] >= bytes {
                    self.credit[queue] -= bytes;
                    return Some(queue == 0);
                }
            }
            let for_control = (ROUND * i64::from(share) / 256).max(1);
            self.credit[0] += for_control;
            self.credit[1] += ROUND - for_control;
        }
    }
}
