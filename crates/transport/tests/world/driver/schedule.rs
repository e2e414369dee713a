//! What the schedule, or a test by hand, does to the world.

use openmrc_transport::{EvEvent, Fatal, Span, Time};

use super::{Event, World};
use crate::world::Subject;
use crate::world::scenario::Act;

impl<T: Subject> World<T> {
    pub(super) fn act(&mut self, act: Act) {
        match act {
            Act::Weather(weather) => self.network.weather = weather,
            Act::Path { from, to, path, health } => self.network.set_path(from, to, path, health),
            Act::Plane { port, health } => self.network.set_plane(port, health),
            Act::Direction { from, to, health } => self.network.set_direction(from, to, health),
            Act::Port { node, port, up, notice } => self.change_port(node, port, up, notice),
            Act::Stall { node, length } => {
                let until = self.now + length;
                if until > self.nodes[node].stalled_until {
                    self.nodes[node].stalled_until = until;
                    self.push(until, Event::Resume { node });
                }
            }
            Act::Jump { node, length } => {
                self.nodes[node].epoch = self.nodes[node].epoch + length;
                for end in self.nodes[node].ends.clone() {
                    self.arm(end);
                }
            }
            Act::Deny { end, path, denied } => {
                let ev = self.ends[end].record.config.paths.profile.entries()[path as usize].ev;
                let known = self.ends[end].qp.set_ev_denied(ev, denied);
                if known {
                    let record = &mut self.ends[end].record;
                    record.denied[path as usize] = denied;
                    // A controller that switches a path off or on knows what it did: no event tells of it.
                    record.condemned[path as usize] = false;
                }
                self.refresh(end);
                self.service(self.ends[end].record.node);
            }
            Act::Pressure { end, penalty } => self.ends[end].qp.set_receive_pressure(penalty.into()),
            Act::AdvertiseMpr { end, mpr } => self.ends[end].qp.set_advertised_mpr(mpr),
        }
    }

    pub(super) fn change_port(&mut self, node: usize, port: u8, up: bool, notice: Span) {
        let state = &mut self.nodes[node];
        state.up = if up { state.up.with(port) } else { state.up.without(port) };
        if !up {
            let lost = state.feedback[port as usize].drain(..).count();
            (0..lost).for_each(|_| self.network.count_loss(true));
        }
        for end in self.nodes[node].ends.clone() {
            self.ends[end].record.local_up = self.nodes[node].up;
            self.tell_ports(end);
            let about = node;
            let peer_node = self.ends[end ^ 1].record.node;
            self.push(self.now + notice, Event::Notice { node: peer_node, about });
        }
        self.unblock(node);
        self.service(node);
    }

    pub(super) fn notice(&mut self, node: usize, about: usize) {
        for end in self.nodes[node].ends.clone() {
            if self.ends[end ^ 1].record.node == about {
                self.ends[end].record.peer_up = self.nodes[about].up;
                self.tell_ports(end);
            }
        }
        self.unblock(node);
        self.service(node);
    }

    pub(super) fn tell_ports(&mut self, end: usize) {
        let now = self.local_of(end);
        let (local, peer) = (self.ends[end].record.local_up, self.ends[end].record.peer_up);
        self.ends[end].qp.set_ports_up(now, local, peer);
        self.refresh(end);
    }

    pub(super) fn resume(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        while let Some(index) = self.nodes[node].backlog.pop_front() {
            self.at_node(index);
        }
        for end in self.nodes[node].ends.clone() {
            self.arm(end);
            self.pump(end);
        }
        self.unblock(node);
        self.service(node);
    }

    /// Does something now that is not in the schedule.
    pub fn do_now(&mut self, act: Act) {
        self.act(act);
    }

    /// Lets a local user end a queue pair.
    pub fn abort(&mut self, end: usize) {
        self.call(end, None, 0, |qp, now, host| qp.abort(now, Fatal::Local, host));
    }

    /// Data packets sent per port by one end.
    pub fn sent_by_port(&self, end: usize) -> Vec<u64> {
        let mut sent = vec![0; self.scenario.ports];
        for (entry, count) in self.scenario.profile.entries().iter().zip(&self.ends[end].sent_by_path) {
            sent[entry.port as usize] += count;
        }
        sent
    }

    pub fn ev_events(&self, end: usize) -> &[(Time, EvEvent)] {
        &self.ends[end].record.ev_events
    }
}
