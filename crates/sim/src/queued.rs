//! Ports with real queues, for networks where a departure cannot be known at arrival: with PFC a pause can come at any time
//! before it, and weighted scheduling lets data that comes later go before control. Each packet then costs two events a hop, its arrival and the port's falling idle, and nothing is approximated: control goes
//! before the data that waits, whenever that came, and deficit round robin is what it says.
//!
//! PFC (IEEE 802.1Qbb, on the data class alone): a switch charges each data packet to the port it came in by. Past its threshold
//! the port's peer is told to stop (XOFF); what comes until it does goes to the port's headroom. The threshold follows what is free of
//! the shared buffer (Choudhury and Hahne, 1998). Well below it the peer may go on (XON). Pause frames
//! wait for the packet on the cable and go before all others; a pause lasts until XON, as if refreshed in time.

use std::collections::VecDeque;

use crate::config::{NetworkConfig, Overflow, PfcConfig, Scheduling};
use crate::event::{Event, Kind, flag};
use crate::network::{Network, UNCONNECTED, port_flag};
use crate::world::World;

/// Preamble, the shortest frame, gap: a pause frame.
pub(crate) const PAUSE_FRAME: u32 = 8 + 64 + 12;

/// Bytes a queue that is served by deficit round robin gets a turn, both queues together.
const ROUND: i64 = 16 * 1024;

/// A packet that waits.
struct Held {
    event: Event,
    /// The port of this switch it came in by, or [`UNCONNECTED`] at a host.
    ingress: u32,
}

/// An output port's queues.
#[derive(Default)]
struct PortQueues {
    data: VecDeque<Held>,
    control: VecDeque<Held>,
    data_bytes: u64,
    control_bytes: u64,
    /// When the cable will be free: of the packet on it, and of pause frames behind that.
    free_at: u64,
    /// An event will come at `free_at`.
    busy: bool,
    /// The peer has sent XOFF.
    paused: bool,
    /// What the packet on the cable is charged to, and its length.
    leaving: Option<(u32, u32)>,
    /// Deficit round robin: what control, and data, may still send in this round.
    credit: [i64; 2],
}

/// What a switch has in its buffer from one port.
#[derive(Clone, Copy, Default)]
struct Ingress {
    shared: u64,
    headroom: u64,
    /// Most of `headroom`.
    room: u64,
    /// XOFF has been sent and XON has not.
    xoff: bool,
}

/// The queues of all ports and the buffers of all switches.
pub(crate) struct Queues {
    ports: Vec<PortQueues>,
    ingress: Vec<Ingress>,
    /// By switch: bytes of the shared buffer, and how many of them are in use.
    buffers: Vec<(u64, u64)>,
    pfc: Option<PfcConfig>,
}

impl Queues {
    /// Queues for a network that wants them, or whose ports' departures cannot be computed on arrival.
    pub fn new(config: &NetworkConfig, net: &Network) -> Option<Box<Self>> {
        let pfc = net.switch.pfc;
        if pfc.is_none() && net.switch.scheduling == Scheduling::Strict && !config.exact_queues {
            return None;
        }
        let mut ingress = vec![Ingress::default(); net.ports.len()];
        let mut buffers = Vec::new();
        if let Some(pfc) = pfc {
            for info in &net.switches {
                let ports = info.first_port..info.first_port + u32::from(info.downlinks + info.uplinks);
                let mut reserved = 0;
                for port in ports.clone().filter(|&p| net.ports[p as usize].peer != UNCONNECTED) {
                    let room = pfc.headroom.unwrap_or_else(|| headroom(config, net, port));
                    ingress[port as usize].room = room;
                    reserved += room;
                }
                let buffer = pfc.buffer_of(u64::from(info.downlinks + info.uplinks) * config.port_rate_bps);
                buffers.push((buffer.saturating_sub(reserved), 0));
            }
        }
        let ports = net.ports.iter().map(|_| PortQueues::default()).collect();
        Some(Box::new(Queues { ports, ingress, buffers, pfc }))
    }

    /// The switch with the least shared buffer left once all its ports have their headroom: none means that it cannot run.
    pub fn least_shared(&self) -> Option<u64> {
        self.buffers.iter().map(|&(size, _)| size).min()
    }

    /// Bytes that wait or are being sent at a port, as far as they are data.
    pub fn backlog(&self, port: u32, now: u64, picos_per_byte: u64) -> u64 {
        let queue = &self.ports[port as usize];
        queue.data_bytes + queue.free_at.saturating_sub(now) / picos_per_byte
    }

    /// Whether a host's port can take another data packet: none waits there.
    pub fn is_free(&self, port: u32) -> bool {
        self.ports[port as usize].data.is_empty()
    }

    /// Packets that wait, for whoever counts what is on its way.
    pub fn waiting(&self) -> impl Iterator<Item = &Event> {
        self.ports.iter().flat_map(|p| p.data.iter().chain(&p.control)).map(|held| &held.event)
    }
}

/// What can come in after a switch has decided to send XOFF: while the frame waits for the longest packet, travels and is
/// acted on, the peer goes on sending; then the packet it has begun, and what is on the cable.
fn headroom(config: &NetworkConfig, net: &Network, port: u32) -> u64 {
    let own = &net.ports[port as usize];
    let peer = &net.ports[own.peer as usize];
    let there_and_back = u64::from(own.latency) + u64::from(peer.latency);
    let rate = u64::from(own.picos_per_byte);
    // The packet that crossed the threshold, the one XOFF waits for, the one the peer has begun.
    3 * u64::from(config.full_packet_bytes()) + u64::from(PAUSE_FRAME) + there_and_back.div_ceil(rate)
}

impl World {
    /// A packet is to leave by port `out`, having come in by `ingress`.
    #[inline(never)]
    pub(crate) fn enqueue_really(&mut self, out: u32, ingress: u32, event: Event) {
        if let Some(mut queues) = self.queues.take() {
            self.queue_up(&mut queues, out, ingress, event);
            self.queues = Some(queues);
        }
    }

    fn queue_up(&mut self, queues: &mut Queues, out: u32, ingress: u32, mut event: Event) {
        let port = self.net.ports[out as usize];
        if port.flags & port_flag::DOWN != 0 {
            self.stats.totals.fabric.dropped_down += 1;
            self.drop_packet(event);
            return;
        }
        let at_host = port.flags & port_flag::HOST != 0;
        let switch = &self.net.switch;
        let queue = &mut queues.ports[out as usize];
        if event.flags & flag::CONTROL == 0 {
            let last_hop = port.flags & port_flag::LAST_HOP != 0;
            let room = if last_hop { switch.last_hop_data_bytes } else { switch.data_bytes };
            if at_host || (queues.pfc.is_none() && queue.data_bytes <= room) {
                queue.data_bytes += u64::from(event.bytes);
                queue.data.push_back(Held { event, ingress });
            } else if queues.pfc.is_some() {
                if !self.admit(queues, ingress, u64::from(event.bytes)) {
                    self.stats.totals.fabric.dropped_data += 1;
                    self.dropped_at(out);
                    self.drop_packet(event);
                    return;
                }
                let queue = &mut queues.ports[out as usize];
                queue.data_bytes += u64::from(event.bytes);
                queue.data.push_back(Held { event, ingress });
            } else if switch.overflow == Overflow::Drop || event.flags & flag::DATA == 0 {
                self.stats.totals.fabric.dropped_data += 1;
                self.dropped_at(out);
                self.drop_packet(event);
                return;
            } else {
                event = self.trim(out, event, last_hop);
            }
            if !at_host {
                let waits = queues.ports[out as usize].data_bytes;
                self.stats.totals.fabric.longest_queue = self.stats.totals.fabric.longest_queue.max(waits);
            }
        }
        if event.flags & flag::CONTROL != 0 {
            let queue = &mut queues.ports[out as usize];
            if !at_host && queue.control_bytes > self.net.switch.control_bytes {
                self.stats.totals.fabric.dropped_control += 1;
                self.dropped_at(out);
                self.drop_packet(event);
                return;
            }
            queue.control_bytes += u64::from(event.bytes);
            queue.control.push_back(Held { event, ingress: UNCONNECTED });
        }
        if !queues.ports[out as usize].busy {
            self.send_next(queues, out);
        }
    }

    /// Puts the next packet that may go on the cable.
    fn send_next(&mut self, queues: &mut Queues, out: u32) {
        let port = &mut self.net.ports[out as usize];
        let queue = &mut queues.ports[out as usize];
        let now = self.clock.now;
        let scheduling =
            if port.flags & port_flag::HOST != 0 { Scheduling::Strict } else { self.net.switch.scheduling };
        let Some(control) = queue.whose_turn(scheduling) else { return };
        let held = if control { queue.control.pop_front() } else { queue.data.pop_front() };
        let Some(Held { mut event, ingress }) = held else { return };
        let bytes = u64::from(event.bytes);
        if control {
            queue.control_bytes -= bytes;
        } else {
            queue.data_bytes -= bytes;
        }
        let may_be_marked = port.flags & port_flag::ECN != 0
            && !control
            && event.flags & (flag::DATA | flag::CE) == flag::DATA;
        let behind = queue.data_bytes;
        let leaves = now + bytes * u64::from(port.picos_per_byte);
        queue.leaving = (ingress != UNCONNECTED).then_some((ingress, u32::from(event.bytes)));
        queue.free_at = leaves;
        queue.busy = true;
        port.bytes += bytes;
        port.data_free = leaves;
        event.time = leaves + u64::from(port.latency);
        if may_be_marked
            && let Some(ecn) = self.net.switch.ecn
            && self.marks(&ecn, out, now, behind)
        {
            event.flags |= flag::CE;
        }
        self.cross(out, event);
        self.at_port(leaves, Kind::Depart, out, 0);
    }

    /// A port's cable is free.
    pub(crate) fn depart(&mut self, out: u32) {
        let Some(mut queues) = self.queues.take() else { return };
        if let Some((ingress, bytes)) = queues.ports[out as usize].leaving.take() {
            self.discharge(&mut queues, ingress, u64::from(bytes));
        }
        let queue = &mut queues.ports[out as usize];
        if queue.free_at > self.clock.now {
            // A pause frame has been put in.
            let free_at = queue.free_at;
            self.at_port(free_at, Kind::Depart, out, 0);
        } else {
            queue.busy = false;
            self.send_next(&mut queues, out);
        }
        let host = (out < self.net.host_ports()).then(|| out / self.net.planes);
        let served = host.filter(|_| queues.is_free(out));
        self.queues = Some(queues);
        if let Some(host) = served {
            self.serve(host);
        }
    }

    /// The peer of port `out` has sent XOFF or XON.
    pub(crate) fn pause(&mut self, out: u32, xoff: bool) {
        let Some(mut queues) = self.queues.take() else { return };
        if self.net.ports[out as usize].flags & port_flag::DOWN == 0 {
            let queue = &mut queues.ports[out as usize];
            queue.paused = xoff;
            if !xoff && !queue.busy {
                self.send_next(&mut queues, out);
            }
        }
        self.queues = Some(queues);
    }

    /// The link at a port goes down or comes up: pauses are forgotten, and told again where they still hold.
    pub(crate) fn reset_pause(&mut self, port: u32, up: bool) {
        let Some(mut queues) = self.queues.take() else { return };
        let queue = &mut queues.ports[port as usize];
        if std::mem::take(&mut queue.paused) && !queue.busy {
            self.send_next(&mut queues, port);
        }
        if up && queues.ingress[port as usize].xoff {
            self.tell(&mut queues, port, true);
        }
        self.queues = Some(queues);
    }

    /// Takes a packet that came in by `ingress` into the switch's buffer, and has its sender stop where it must.
    fn admit(&mut self, queues: &mut Queues, ingress: u32, bytes: u64) -> bool {
        let Some(pfc) = queues.pfc else { return true };
        let (size, used) = &mut queues.buffers[self.net.owner(ingress) as usize - self.nics.len()];
        let account = &mut queues.ingress[ingress as usize];
        if !account.xoff && account.shared + bytes <= pfc.threshold(*size, *used) {
            account.shared += bytes;
            *used += bytes;
            return true;
        }
        let first = !account.xoff;
        let fits = account.headroom + bytes <= account.room;
        if fits {
            account.headroom += bytes;
        }
        account.xoff = true;
        if first {
            self.tell(queues, ingress, true);
        }
        fits
    }

    /// A packet that came in by `ingress` has left the switch.
    fn discharge(&mut self, queues: &mut Queues, ingress: u32, bytes: u64) {
        let Some(pfc) = queues.pfc else { return };
        let (size, used) = &mut queues.buffers[self.net.owner(ingress) as usize - self.nics.len()];
        let account = &mut queues.ingress[ingress as usize];
        let of_headroom = account.headroom.min(bytes);
        account.headroom -= of_headroom;
        account.shared -= bytes - of_headroom;
        *used -= bytes - of_headroom;
        let low = pfc.threshold(*size, *used).saturating_sub(pfc.xon_offset);
        if account.xoff && account.headroom == 0 && (account.shared <= low || account.shared == 0) {
            account.xoff = false;
            self.tell(queues, ingress, false);
        }
    }

    /// Sends XOFF or XON out of port `port`, next after the packet on the cable.
    fn tell(&mut self, queues: &mut Queues, port: u32, xoff: bool) {
        let own = &mut self.net.ports[port as usize];
        if own.flags & port_flag::DOWN != 0 {
            return;
        }
        let queue = &mut queues.ports[port as usize];
        let sent = queue.free_at.max(self.clock.now) + u64::from(PAUSE_FRAME) * u64::from(own.picos_per_byte);
        queue.free_at = sent;
        own.bytes += u64::from(PAUSE_FRAME);
        own.data_free = sent;
        let (there, arrives) = (own.peer, sent + u64::from(own.latency));
        if !std::mem::replace(&mut queue.busy, true) {
            self.at_port(sent, Kind::Depart, port, 0);
        }
        self.stats.totals.fabric.pauses += u64::from(xoff);
        self.at_port(arrives, Kind::Pause, there, u8::from(xoff));
    }

    /// Something is to happen at a port.
    fn at_port(&mut self, time: u64, kind: Kind, port: u32, flags: u8) {
        let host = if port < self.net.host_ports() { port / self.net.planes } else { 0 };
        let event = Event { flags, ..Event::plain(time, kind, port, host) };
        let peer = self.net.ports[port as usize].peer;
        self.clock.push(event, self.net.ports[peer as usize].peer_group);
    }
}

impl PortQueues {
    /// Whether control (`true`) or data goes next; `None` if nothing may.
    fn whose_turn(&mut self, scheduling: Scheduling) -> Option<bool> {
        let data = if self.paused { None } else { self.data.front() };
        let (control, data) = match (self.control.front(), data) {
            (Some(c), Some(d)) => (i64::from(c.event.bytes), i64::from(d.event.bytes)),
            (control, data) => {
                // Who is alone saves nothing up.
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
