//! Actions of the schedule or of a test.

use openmrc_transport::node::{PeerId, Route};
use openmrc_transport::{EvEvent, Fatal, Span, Time};

use super::calls::Most;
use super::{Event, World};
use crate::world::Subject;
use crate::world::scenario::Action;

impl<T: Subject> World<T> {
    pub(super) fn act(&mut self, act: Action) {
        if act.end().is_some_and(|end| self.ends[end].record.is_gone) {
            return;
        }
        match act {
            Action::Impairments(impairments) => self.network.impairments = impairments,
            Action::Path { from, to, path, health } => self.network.set_path(from, to, path, health),
            Action::Plane { port, health } => self.network.set_plane(port, health),
            Action::Direction { from, to, health } => self.network.set_direction(from, to, health),
            Action::Port { node, port, up } => self.change_port(node, port, up),
            Action::Stall { node, length } => {
                let until = self.now + length;
                if until > self.nodes[node].stalled_until {
                    self.nodes[node].stalled_until = until;
                    self.push(until, Event::Resume { node });
                }
            }
            Action::Jump { node, length } => {
                self.nodes[node].epoch = self.nodes[node].epoch + length;
                self.rearm(node);
            }
            Action::Deny { end, path, denied } => {
                let entry = self.ends[end].record.config.paths.profile.entries()[path as usize];
                let known = self.update(end, |qp| qp.set_ev_denied(entry, denied));
                if known {
                    let record = &mut self.ends[end].record;
                    record.denied[path as usize] = denied;
                    // No event reports a path that the controller disables or enables.
                    record.condemned[path as usize] = false;
                }
                self.service(self.ends[end].record.node);
            }
            Action::Pressure { end, penalty } => {
                self.update(end, |qp| qp.set_receive_pressure(penalty.into()))
            }
            Action::AdvertiseMpr { end, mpr } => self.update(end, |qp| qp.set_advertised_mpr(mpr)),
            Action::Receives { end, count } => {
                let record = &mut self.ends[end].record;
                record.receives = record.receives.saturating_add(count);
                let (node, slot) = (record.node, self.ends[end].slot);
                self.call(node, None, Most::PerTimeout, |node, now, host| {
                    node.receives_posted(now, slot, host);
                });
                self.service(node);
            }
            Action::EvProbe { node, peer, path, timeout } => self.probe(node, peer, path, timeout),
        }
    }

    /// Changes a queue pair.
    fn update<R>(&mut self, end: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let (node, slot) = (self.ends[end].record.node, self.ends[end].slot);
        let result = self.nodes[node].node.update(slot, change).expect("a connected queue pair");
        self.arm(node);
        result
    }

    fn change_port(&mut self, node: usize, port: u8, up: bool) {
        let state = &mut self.nodes[node];
        state.up = if up { state.up.with(port) } else { state.up.without(port) };
        if !up {
            let lost = state.control[port as usize].drain(..).count();
            (0..lost).for_each(|_| self.network.count_loss(true));
        }
        let ports = self.nodes[node].up;
        for end in self.nodes[node].ends.clone() {
            self.ends[end].record.local_up = ports;
        }
        self.call(node, None, Most::PerTimeout, |node, now, host| node.set_own_ports(now, ports, host));
        self.service(node);
    }

    fn probe(&mut self, node: usize, peer: usize, path: u16, timeout: Span) {
        let entry = self.scenario.profile.entries()[path as usize];
        if !self.nodes[node].up.contains(entry.port) {
            return;
        }
        let route = Route::Path { ev: entry.ev, path, port: entry.port };
        let mut asked = None;
        self.call(node, None, Most::PerTimeout, |node, now, host| {
            asked = node.probe(now, peer as PeerId, route, timeout, host);
        });
        self.nodes[node].probes.extend(asked);
        self.service(node);
    }

    pub(super) fn resume(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        while let Some(index) = self.nodes[node].backlog.pop_front() {
            self.at_node(index);
        }
        for end in self.nodes[node].ends.clone() {
            self.pump(end);
        }
        self.rearm(node);
        self.service(node);
    }

    /// Carries out an action now.
    pub fn do_now(&mut self, act: Action) {
        self.act(act);
    }

    /// Aborts a queue pair locally.
    pub fn abort(&mut self, end: usize) {
        let (node, slot) = (self.ends[end].record.node, self.ends[end].slot);
        self.call(node, None, Most::PerTimeout, |node, now, host| node.abort(now, slot, Fatal::Local, host));
    }

    /// Number of outstanding EV probes of a node.
    pub fn probes_waiting(&self, node: usize) -> usize {
        self.nodes[node].probes.len()
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
