//! The network between the nodes: every path is a FIFO with its own delay and health, each last hop has one queue, and
//! impairments apply to all packets.

use openmrc_transport::{PathId, Span, Time, TrafficClass, Trim};
use openmrc_wire::{Body, Packet};

use super::Dice;
use super::scenario::{Queues, Scenario};
use super::sizes;

/// Impairments of all packets.
#[derive(Clone, Copy, Debug)]
pub struct Impairments {
    /// Data is lost.
    pub loss: f64,
    /// Feedback is lost.
    pub control_loss: f64,
    /// A path starts to lose every packet, for about `burst_length`.
    pub burst: f64,
    pub burst_length: Span,
    /// Data is trimmed on the way.
    pub trim: f64,
    /// Share of the trimmed packets that are trimmed on the last hop.
    pub last_hop: f64,
    /// A trimmed packet, which has no iCRC, arrives with a changed header.
    pub garble_trimmed: f64,
    /// Data is ECN-marked.
    pub mark: f64,
    /// A second copy follows, up to `duplicate_delay` later.
    pub duplicate: f64,
    pub duplicate_delay: Span,
    /// The packet is delayed by up to `reorder_delay` and overtaken on its path.
    pub reorder: f64,
    pub reorder_delay: Span,
    /// Every packet is delayed by up to this time, in order on its path.
    pub jitter: Span,
    /// Bits flip; the iCRC is wrong and the receiving driver drops the packet.
    pub corrupt: f64,
    /// An earlier packet of the connection arrives again.
    pub stale: f64,
    /// A well-formed packet arrives that no node has sent.
    pub garbage: f64,
    /// Probability that an attacker on the path adds a data packet that would leave a hole in its message.
    pub holes: f64,
    /// Probability that an attacker on the path adds feedback within the window, when genuine feedback passes.
    pub forgeries: f64,
}

impl Impairments {
    pub const fn calm() -> Self {
        Impairments {
            loss: 0.0,
            control_loss: 0.0,
            burst: 0.0,
            burst_length: Span::ZERO,
            trim: 0.0,
            last_hop: 0.0,
            garble_trimmed: 0.0,
            mark: 0.0,
            duplicate: 0.0,
            duplicate_delay: Span::ZERO,
            reorder: 0.0,
            reorder_delay: Span::ZERO,
            jitter: Span::ZERO,
            corrupt: 0.0,
            stale: 0.0,
            garbage: 0.0,
            holes: 0.0,
            forgeries: 0.0,
        }
    }
}

/// Health of a path in one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Health {
    /// Probability that a packet is delivered; 0 is a dead path.
    pub passes: f64,
    /// Probability that a delivered data packet is ECN-marked.
    pub marks: f64,
    /// Longer packets are lost, bytes on the wire.
    pub longest: u32,
}

impl Health {
    pub const GOOD: Health = Health { passes: 1.0, marks: 0.0, longest: u32::MAX };
    pub const DEAD: Health = Health { passes: 0.0, ..Health::GOOD };

    pub const fn lossy(loss: f64) -> Self {
        Health { passes: 1.0 - loss, ..Health::GOOD }
    }

    pub const fn marking(marks: f64) -> Self {
        Health { marks, ..Health::GOOD }
    }

    pub const fn narrow(longest: u32) -> Self {
        Health { longest, ..Health::GOOD }
    }
}

#[derive(Clone, Copy)]
struct PathState {
    health: Health,
    /// The path loses every packet until this time.
    burst_ends: Time,
    extra: Span,
    /// Time of the last arrival, for data and for control packets: each class stays in order.
    last: [Time; 2],
}

/// Counters of the network.
#[derive(Clone, Copy, Default, Debug)]
pub struct NetworkCounters {
    pub data_lost: u64,
    pub control_lost: u64,
    pub trimmed: u64,
    pub marked: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    pub garbled: u64,
    pub stale: u64,
    pub garbage: u64,
    pub holes: u64,
    pub forgeries: u64,
}

/// Result of a packet's way through the network.
pub struct Fate {
    pub trim: Option<Trim>,
    pub marked: bool,
    /// Time of arrival at the node.
    pub arrives: Time,
    /// Delay of a second copy.
    pub copy: Option<Span>,
}

/// Paths, queues and impairments.
pub struct Network {
    nodes: usize,
    ports: usize,
    paths: Vec<PathState>,
    path_ports: Vec<u8>,
    /// Time at which the last hop towards each port has sent its whole queue.
    last_hops: Vec<Time>,
    queues: Option<Queues>,
    rate: u64,
    latency: Span,
    pub impairments: Impairments,
    pub counters: NetworkCounters,
}

impl Network {
    pub fn new(scenario: &Scenario, dice: &mut Dice) -> Self {
        let path_ports: Vec<u8> = scenario.profile.entries().iter().map(|e| e.port).collect();
        let count = scenario.nodes * scenario.nodes * path_ports.len();
        let path =
            |extra| PathState { health: Health::GOOD, burst_ends: Time::ZERO, extra, last: [Time::ZERO; 2] };
        Network {
            nodes: scenario.nodes,
            ports: scenario.ports,
            paths: (0..count).map(|_| path(dice.span(scenario.skew))).collect(),
            path_ports,
            last_hops: vec![Time::ZERO; scenario.nodes * scenario.ports],
            queues: scenario.queues,
            rate: scenario.rate,
            latency: scenario.latency,
            impairments: scenario.impairments,
            counters: NetworkCounters::default(),
        }
    }

    /// Serialization time of a packet.
    pub fn serialization(&self, packet: &Packet) -> Span {
        Span(u64::from(sizes::on_wire(packet)) * 8 * 1_000_000 / (self.rate / 1_000_000))
    }

    fn path(&mut self, from: usize, to: usize, path: PathId) -> &mut PathState {
        &mut self.paths[(from * self.nodes + to) * self.path_ports.len() + path as usize]
    }

    pub fn set_path(&mut self, from: usize, to: usize, path: PathId, health: Health) {
        self.path(from, to, path).health = health;
    }

    pub fn set_plane(&mut self, port: u8, health: Health) {
        let ports = self.path_ports.iter().cycle();
        self.paths
            .iter_mut()
            .zip(ports)
            .filter(|(_, p)| **p == port)
            .for_each(|(path, _)| path.health = health);
    }

    pub fn set_direction(&mut self, from: usize, to: usize, health: Health) {
        for path in 0..self.path_ports.len() {
            self.set_path(from, to, path as PathId, health);
        }
    }

    /// A packet has left its port at `now`: the time at which it reaches the switch before the last hop.
    pub fn crosses_by(
        &mut self,
        now: Time,
        way: (usize, usize, PathId),
        class: TrafficClass,
        dice: &mut Dice,
    ) -> Time {
        let impairments = self.impairments;
        let latency = self.latency;
        let path = self.path(way.0, way.1, way.2);
        let arrival = now + latency + path.extra + dice.span(impairments.jitter);
        if dice.chance(impairments.reorder) {
            self.counters.reordered += 1;
            return arrival + dice.span(impairments.reorder_delay);
        }
        let last = &mut path.last[usize::from(class == TrafficClass::Control)];
        *last = (*last).max(arrival);
        *last
    }

    /// A packet has reached the switch before the last hop: its fate, or `None` if it is lost.
    pub fn fate(
        &mut self,
        now: Time,
        way: (usize, usize, PathId),
        port: u8,
        class: TrafficClass,
        packet: &Packet,
        dice: &mut Dice,
    ) -> Option<Fate> {
        let control = class == TrafficClass::Control;
        let impairments = self.impairments;
        let path = self.path(way.0, way.1, way.2);
        if dice.chance(impairments.burst) {
            path.burst_ends = now + dice.span(impairments.burst_length);
        }
        let (health, burst) = (path.health, now < path.burst_ends);
        let loss = if control { impairments.control_loss } else { impairments.loss };
        let fits = sizes::on_wire(packet) <= health.longest;
        if burst || !fits || !dice.chance(health.passes) || dice.chance(loss) {
            self.count_loss(control);
            return None;
        }
        if dice.chance(impairments.corrupt) {
            // Every bit that the transport reads is covered by the iCRC, so the driver drops the packet.
            self.counters.corrupted += 1;
            self.count_loss(control);
            return None;
        }
        let data = matches!(packet.body, Body::Write(_)) && !control;
        let mut marked = data && (dice.chance(impairments.mark) || dice.chance(health.marks));
        let mut trim = None;
        let trimmable = data && class != TrafficClass::DataNoTrim;
        if trimmable && dice.chance(impairments.trim) {
            trim = Some(if dice.chance(impairments.last_hop) { Trim::LastHop } else { Trim::Fabric });
        }
        let mut arrives = now;
        if !control && let Some(queues) = self.queues {
            let rate = self.rate;
            let busy_until = &mut self.last_hops[way.1 * self.ports + port as usize];
            let waiting = (busy_until.since(now).0 as f64 * 1e-12 * rate as f64 / 8.0) as u64;
            if trimmable && trim.is_none() && queues.trim_at.is_some_and(|at| waiting > at) {
                trim = Some(Trim::LastHop);
            } else if trim.is_none() && waiting > queues.drop_at {
                self.count_loss(control);
                return None;
            }
            if let (None, Some((low, high))) = (trim, queues.mark_between) {
                marked |= dice.chance((waiting.saturating_sub(low)) as f64 / (high - low) as f64);
            }
            if trim.is_none() {
                let sending = Span(u64::from(sizes::on_wire(packet)) * 8 * 1_000_000 / (rate / 1_000_000));
                *busy_until = (*busy_until).max(now) + sending;
                arrives = *busy_until;
            }
        }
        self.counters.trimmed += u64::from(trim.is_some());
        self.counters.marked += u64::from(marked);
        let copy = dice.chance(impairments.duplicate).then(|| dice.span(impairments.duplicate_delay));
        self.counters.duplicated += u64::from(copy.is_some());
        Some(Fate { trim, marked, arrives, copy })
    }

    pub fn count_loss(&mut self, control: bool) {
        if control {
            self.counters.control_lost += 1;
        } else {
            self.counters.data_lost += 1;
        }
    }
}
