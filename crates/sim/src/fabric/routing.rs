//! How a switch chooses a port for a packet, and how routing learns of ports that are down (docs/spec/baselines.md,
//! "Routing").

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

use super::layout::{Layout, SwitchInfo, UNCONNECTED};
use super::port_model::PortModel;
use super::ports::Ports;
use openmrc_scenario::run::{NetworkConfig, Routing, RoutingReaction};
use openmrc_transport::random::mix;

use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind};
use crate::record::LogEvent;

/// Why routing avoids a port.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// It has no carrier.
    Carrier = 1,
    /// It loses every packet.
    Silent = 2,
}

/// Ports that are avoided, with the [`Failure`]s for which they are, a bit each.
#[derive(Default, Serialize, Deserialize)]
struct Avoided(HashMap<u32, u8>);

impl Avoided {
    fn contains(&self, port: u32) -> bool {
        self.0.contains_key(&port)
    }

    /// A failure of a port begins or ends. Returns whether the port is avoided from now on, or not any more.
    fn set(&mut self, port: u32, failure: Failure, failed: bool) -> bool {
        let failures = self.0.entry(port).or_default();
        let before = *failures;
        *failures = if failed { before | failure as u8 } else { before & !(failure as u8) };
        let after = *failures;
        if after == 0 {
            self.0.remove(&port);
        }
        (before == 0) != (after == 0)
    }
}

/// A step of routing's reaction to a port that has failed or has recovered.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Reaction {
    port: u32,
    failure: Failure,
    failed: bool,
    /// All switches learn of it, or only the port's own.
    everywhere: bool,
}

/// Choice of ports.
pub(crate) struct Routes {
    routing: Routing,
    seed: u64,
    reaction: Option<RoutingReaction>,
    /// Ports that their own switch does not use.
    detected: Avoided,
    /// Ports that no route leads over.
    withdrawn: Avoided,
    /// All reactions scheduled so far.
    reactions: Vec<Reaction>,
}

impl Routes {
    /// Routes of a healthy network.
    pub fn new(config: &NetworkConfig) -> Self {
        Routes {
            routing: config.routing,
            seed: config.seed,
            reaction: config.routing_reaction,
            detected: Avoided::default(),
            withdrawn: Avoided::default(),
            reactions: Vec::new(),
        }
    }

    /// Writes which ports are avoided, and the reactions to come.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&(&self.detected, &self.withdrawn, &self.reactions))
    }

    /// Reads what [`Routes::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        (self.detected, self.withdrawn, self.reactions) = from.get()?;
        Ok(())
    }

    /// The port by which a switch forwards a packet that came in by port `event.at`.
    #[inline(always)]
    pub fn choose(
        &self,
        layout: &Layout,
        ports: &Ports,
        model: &PortModel,
        switch: &SwitchInfo,
        event: &Event,
    ) -> u32 {
        let below = event.dst.wrapping_sub(switch.first_host);
        if below < switch.hosts {
            let count = u32::from(switch.parallel);
            let first = switch.first_port + switch.child(below) * count;
            return match count {
                1 => first,
                // The mirror image of the way up: of the links to a block, the one with the same position.
                _ if self.routing == Routing::SourceRouted => first + (event.at - switch.first_port) % count,
                _ => self.choose_among(layout, ports, model, first..first + count, switch, event),
            };
        }
        if self.routing == Routing::SourceRouted {
            return switch.named_uplink(event.ev);
        }
        let first = switch.first_port + u32::from(switch.downlinks);
        let count = u32::from(switch.uplinks);
        self.choose_among(layout, ports, model, first..first + count, switch, event)
    }

    /// One of several ports that are equally near to the destination.
    #[inline(never)]
    fn choose_among(
        &self,
        layout: &Layout,
        ports: &Ports,
        model: &PortModel,
        candidates: Range<u32>,
        switch: &SwitchInfo,
        event: &Event,
    ) -> u32 {
        let flow = u64::from(event.connection) << 32 | u64::from(event.ev);
        // Adaptive routing ignores flows: among equal ports each packet takes another.
        let flow = if self.routing == Routing::Adaptive { event.time } else { flow };
        let salt = mix(self.seed ^ u64::from(switch.number) ^ u64::from(event.dst) << 32);
        let hash = mix(flow ^ salt);
        let (first, count) = (candidates.start, candidates.len() as u32);
        let hashed = (((hash >> 32) * u64::from(count)) >> 32) as u32;
        let mut usable = (0..count)
            .map(|i| first + (hashed + i) % count)
            .filter(|&port| !self.avoids(layout, ports, port, event.dst));
        let chosen = match self.routing {
            // Grades of four full packets are compared, not bytes. With bytes, a flow at line rate would always find
            // the port free first that took its last packet, and never leave it.
            Routing::Adaptive => usable.filter(|&port| !ports[port].is_down()).min_by_key(|&port| {
                model.backlog(ports, port, event.time) / (4 * ports.settings.full_packet_bytes)
            }),
            Routing::Ecmp | Routing::SourceRouted => usable.next(),
        };
        chosen.unwrap_or(first + hashed)
    }

    /// Whether routing avoids a port for packets to `dst`: its switch knows that it is down, or no route leads on from
    /// its peer.
    fn avoids(&self, layout: &Layout, ports: &Ports, port: u32, dst: u32) -> bool {
        self.detected.contains(port)
            || !self.withdrawn.0.is_empty() && !self.leads_on(layout, ports, port, dst)
    }

    /// Whether the node behind a port has a route to `dst`, as far as routing knows. A route goes up, then down.
    fn leads_on(&self, layout: &Layout, ports: &Ports, port: u32, dst: u32) -> bool {
        let peer = ports[port].peer;
        if self.withdrawn.contains(port) || peer == UNCONNECTED {
            return false;
        }
        if ports[peer].is_host() {
            return true;
        }
        let switch = layout.switch_of(peer);
        let below = dst.wrapping_sub(switch.first_host);
        let next = if below < switch.hosts {
            let parallel = u32::from(switch.parallel);
            let first = switch.first_port + switch.child(below) * parallel;
            first..first + parallel
        } else {
            switch.first_port + u32::from(switch.downlinks)..switch.first_port + switch.ports()
        };
        next.into_iter().any(|port| self.leads_on(layout, ports, port, dst))
    }

    /// A switch port has failed or has recovered: its own switch reacts first, then all others.
    pub fn schedule_reaction(&mut self, port: u32, failure: Failure, failed: bool, clock: &mut Clock) {
        let Some(RoutingReaction { detection, silent_detection, convergence }) = self.reaction else {
            return;
        };
        let detection = match failure {
            Failure::Carrier => detection,
            Failure::Silent => silent_detection,
        };
        let soonest = clock.lookahead();
        let detected = clock.now + detection.0.max(soonest);
        let converged = detected + convergence.0.max(soonest);
        for (time, everywhere) in [(detected, false), (converged, true)] {
            clock.push_everywhere(time, Kind::Reroute, self.reactions.len() as u32);
            self.reactions.push(Reaction { port, failure, failed, everywhere });
        }
    }

    /// A reaction is due. Returns what the log is to say of it.
    pub fn react(&mut self, index: u32) -> Option<LogEvent> {
        let Reaction { port, failure, failed, everywhere } = self.reactions[index as usize];
        let avoided = if everywhere { &mut self.withdrawn } else { &mut self.detected };
        let changed = avoided.set(port, failure, failed);
        (changed && everywhere).then_some(LogEvent::Routing { port, withdrawn: failed })
    }
}
