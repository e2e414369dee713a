//! What the network and its hosts make of a schedule of faults.
//!
//! A fault takes effect at the beginning of the calendar slot it falls into, at most the shortest hop latency early, before
//! anything else that happens there.

use std::collections::{HashMap, HashSet};

use openmrc_fabric::{End, Link, Node};
use openmrc_transport::{Time, Transport};

use crate::config::Encapsulation;
use crate::endpoints::chance;
use crate::event::{Event, Kind};
use crate::network::{Network, UNCONNECTED, port_flag};
use crate::record::Happening;
use crate::schedule::{Change, Fault, Target};
use crate::world::World;

/// How ports are impaired, and which ways routing has withdrawn.
#[derive(Default)]
pub(crate) struct Faults {
    pub schedule: Vec<Fault>,
    /// By port: probability that a packet, and that a bit of one, is lost.
    lossy: HashMap<u32, (f64, f64)>,
    /// Picoseconds a byte takes on ports that are slow, when they are not.
    slow: HashMap<u32, u16>,
    /// Ports that their own switch does not use.
    detected: HashSet<u32>,
    /// Ports that no route leads over.
    withdrawn: HashSet<u32>,
    /// Reactions of routing on their way: to which port, whether it is down, and whether everybody learns of it.
    reactions: Vec<(u32, bool, bool)>,
}

impl Faults {
    pub fn new(schedule: &[Fault]) -> Self {
        Faults { schedule: schedule.to_vec(), ..Faults::default() }
    }
}

impl World {
    pub(crate) fn schedule_faults(&mut self) {
        for index in 0..self.faults.schedule.len() {
            self.push_fault(self.faults.schedule[index].at.0, index as u32);
        }
    }

    fn push_fault(&mut self, time: u64, index: u32) {
        self.calendar.push(Event::plain(time, Kind::Fault, index, 0), Network::EVERYWHERE);
    }

    /// An entry of the schedule is due.
    pub(crate) fn fault(&mut self, index: u32) {
        let Fault { target, change, .. } = self.faults.schedule[index as usize];
        let now = Time(self.now);
        if let Some(recorder) = &mut self.recorder {
            recorder.log(now, Happening::Fault(target, change));
        }
        self.net.impaired = true;
        let fabric = self.net.fabric;
        let links: Vec<Link> = match target {
            Target::Link(number) => fabric.link(number).into_iter().collect(),
            Target::Switch(number) => fabric.switch_at(number).map_or_else(Vec::new, |switch| {
                let ports = fabric.downlinks(switch.tier) + fabric.uplinks(switch.tier);
                (0..ports).filter_map(|port| fabric.link_at(switch, port)).collect()
            }),
        };
        for link in links {
            for end in [fabric.lower_end(link), fabric.upper_end(link)] {
                self.change_port(end, change);
            }
        }
    }

    fn change_port(&mut self, end: End, change: Change) {
        let number = self.net.port_number(end);
        let port = &mut self.net.ports[number as usize];
        let was_down = port.flags & port_flag::DOWN != 0;
        match change {
            Change::Down => port.flags |= port_flag::DOWN,
            Change::Up => {
                port.flags &= !(port_flag::DOWN | port_flag::LOSSY);
                self.faults.lossy.remove(&number);
                if let Some(picos) = self.faults.slow.remove(&number) {
                    port.picos_per_byte = picos;
                }
            }
            Change::Loss(p) => {
                port.flags |= port_flag::LOSSY;
                self.faults.lossy.entry(number).or_default().0 = p;
            }
            Change::BitErrors(p) => {
                port.flags |= port_flag::LOSSY;
                self.faults.lossy.entry(number).or_default().1 = p;
            }
            Change::Slow(share) => {
                let full = *self.faults.slow.entry(number).or_insert(port.picos_per_byte);
                port.picos_per_byte = (f64::from(full) / share).round().min(f64::from(u16::MAX)) as u16;
            }
        }
        let down = port.flags & port_flag::DOWN != 0;
        if down == was_down {
            return;
        }
        self.reset_pause(number, !down);
        match end.node {
            Node::Host(host) => self.carrier(host, end.port as u8, !down),
            Node::Switch(_) => self.schedule_reaction(number, down),
        }
    }

    /// A host's port has lost its carrier, or has it back: its own queue pairs know at once, their peers when the port status
    /// update has crossed the fabric (spec: transport, "Probes and port status").
    fn carrier(&mut self, host: u32, port: u8, up: bool) {
        let nic = &mut self.nics[host as usize];
        nic.up = if up { nic.up.with(port) } else { nic.up.without(port) };
        let soon = self.now + self.calendar.lookahead();
        let later = soon + self.config.one_way(self.config.encapsulation.wire_bytes(36)).0;
        for slot in 0..self.qps.len() as u32 {
            let Some(qp) = self.qps.get(slot).filter(|qp| qp.engine.is_some()) else { continue };
            let (own, peer) = (qp.host, qp.peer_host);
            if own == host {
                self.at_host(soon, Kind::PortStatus, slot, own);
            } else if peer == host {
                self.at_host(later, Kind::PortStatus, slot, own);
            }
        }
        self.at_host(soon, Kind::Wake, host, host);
        self.nics[host as usize].wake_at = soon;
    }

    /// A queue pair learns which ports are up at both ends.
    pub(crate) fn port_status(&mut self, slot: u32) {
        let Some(qp) = self.qps.get_mut(slot) else { return };
        let (local, peer) = (self.nics[qp.host as usize].up, self.nics[qp.peer_host as usize].up);
        if let Some(engine) = &mut qp.engine {
            engine.set_ports_up(Time(self.now), local, peer);
            self.arm(slot);
            self.offer(slot);
        }
    }

    fn schedule_reaction(&mut self, port: u32, down: bool) {
        let Some(reaction) = self.config.routing_reaction else { return };
        let soon = self.calendar.lookahead();
        let detected = self.now + reaction.detection.0.max(soon);
        for (time, everywhere) in [(detected, false), (detected + reaction.convergence.0.max(soon), true)] {
            self.faults.reactions.push((port, down, everywhere));
            let index = (self.faults.schedule.len() + self.faults.reactions.len() - 1) as u32;
            self.push_fault(time, index);
        }
    }

    /// Whether `index` is a reaction of routing rather than a fault; then it is carried out.
    pub(crate) fn reaction(&mut self, index: u32) -> bool {
        let Some(which) = (index as usize).checked_sub(self.faults.schedule.len()) else { return false };
        let (port, down, everywhere) = self.faults.reactions[which];
        let now = Time(self.now);
        if let Some(recorder) = self.recorder.as_mut().filter(|_| everywhere) {
            recorder.log(now, Happening::Routing { port, withdrawn: down });
        }
        let set = if everywhere { &mut self.faults.withdrawn } else { &mut self.faults.detected };
        if down {
            set.insert(port);
        } else {
            set.remove(&port);
        }
        true
    }

    /// Whether routing avoids this port for `dst`: its own switch knows that it is down, or no route leads on from its other end.
    pub(crate) fn avoided(&self, port: u32, dst: u32) -> bool {
        if self.faults.detected.contains(&port) {
            return true;
        }
        !self.faults.withdrawn.is_empty() && !self.leads_on(port, dst)
    }

    /// Whether the node behind `port` has a route to `dst`, as far as routing knows. A route goes up, then down.
    fn leads_on(&self, port: u32, dst: u32) -> bool {
        let peer = self.net.ports[port as usize].peer;
        if self.faults.withdrawn.contains(&port) || peer == UNCONNECTED {
            return false;
        }
        if peer < self.net.host_ports() {
            return true;
        }
        let switch = &self.net.switches[self.net.owner(peer) as usize - self.nics.len()];
        let below = dst.wrapping_sub(switch.first_host);
        let ports = if below < switch.hosts {
            let parallel = u32::from(switch.parallel);
            let first = switch.first_port + switch.child(below) * parallel;
            first..first + parallel
        } else {
            let first = switch.first_port + u32::from(switch.downlinks);
            first..first + u32::from(switch.uplinks)
        };
        ports.into_iter().any(|port| self.leads_on(port, dst))
    }

    /// Whether a packet that comes in on port `event.at` got over the cable as things are.
    #[cold]
    pub(crate) fn survives(&mut self, event: Event) -> bool {
        let from = self.net.ports[event.at as usize].peer;
        let flags = self.net.ports[from as usize].flags;
        if flags & port_flag::DOWN != 0 {
            self.totals.dropped_down += 1;
            self.lost_at(from);
            return false;
        }
        if flags & port_flag::LOSSY == 0 {
            self.hear(&event, from);
            return true;
        }
        let (packet, bit) = self.faults.lossy.get(&from).copied().unwrap_or_default();
        let bits = f64::from(u32::from(event.bytes) - Encapsulation::BETWEEN_FRAMES) * 8.0;
        let whole = (1.0 - packet) * (1.0 - bit).powf(bits);
        let survives = chance(self.config.seed ^ u64::from(event.connection) << 32, from, event.time) < whole;
        if survives {
            self.hear(&event, from);
        } else {
            self.totals.dropped_lossy += 1;
            self.lost_at(from);
        }
        survives
    }

    fn lost_at(&mut self, port: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.at_port(port, |count| count.lost += 1);
        }
    }

    /// A packet has come to the end of a cable: somebody may be listening there.
    fn hear(&mut self, event: &Event, from: u32) {
        if self.recorder.as_ref().is_some_and(|r| r.capture.is_some()) {
            // What the node at the end of the cable takes to have a packet in hand.
            let to_host = self.net.ports[from as usize].flags & port_flag::LAST_HOP != 0;
            let latency = if to_host { self.config.nic_latency } else { self.config.switch_latency };
            self.capture(event, from, latency.0);
        }
    }
}
