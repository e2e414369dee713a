//! One run, as data: the nodes, their traffic, the behaviour of the network, and the required outcome.

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig};
use openmrc_transport::node::{NodeConfig, PressureConfig};
use openmrc_transport::{EvProfile, PathEntry, PathId, PortSet, Span, Time};
use openmrc_wire::Ev;

use super::network::{Health, Impairments};

/// Traffic of one end.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// These messages, each at its time or later.
    List(Vec<Post>),
    /// Messages of this length without end.
    Endless { len: u32, imm: bool },
}

impl Traffic {
    pub fn none() -> Self {
        Traffic::List(Vec::new())
    }

    /// `count` messages of `len` bytes, without immediate, at once.
    pub fn of(count: usize, len: u32) -> Self {
        Traffic::List(vec![Post { len, imm: None, not_before: Time::ZERO }; count])
    }
}

/// One message to send.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    pub len: u32,
    pub imm: Option<u32>,
    pub not_before: Time,
}

/// One connection: two queue pairs, one on each node.
#[derive(Clone, Debug)]
pub struct Pair {
    pub nodes: [usize; 2],
    pub configs: [QpConfig; 2],
    pub traffic: [Traffic; 2],
    /// Bytes of the responder's region that each end writes to.
    pub region: [usize; 2],
}

/// The queue of every last hop.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// A packet that finds at least this number of bytes in the queue is trimmed; `None` disables trimming.
    pub trim_at: Option<u64>,
    /// A packet that finds at least this number of bytes in the queue is dropped.
    pub drop_at: u64,
    /// Marking starts at the first queue length and is certain from the second on; `None` disables marking.
    pub mark_between: Option<(u64, u64)>,
}

/// An action of the schedule.
#[derive(Clone, Debug)]
pub enum Action {
    /// The impairments change.
    Impairments(Impairments),
    /// A path's health changes, in one direction.
    Path { from: usize, to: usize, path: PathId, health: Health },
    /// Every path of a plane changes health, in both directions and between all nodes.
    Plane { port: u8, health: Health },
    /// Every path from one node to another changes health.
    Direction { from: usize, to: usize, health: Health },
    /// A node's port goes down or up; it tells its peers.
    Port { node: usize, port: u8, up: bool },
    /// A node stalls: no timers, no receiving, no sending.
    Stall { node: usize, length: Span },
    /// A node's clock jumps forwards.
    Jump { node: usize, length: Span },
    /// The controller disables or enables a path of one end.
    Deny { end: usize, path: PathId, denied: bool },
    /// A responder sends a penalty to its sender; 0 ends it.
    Pressure { end: usize, penalty: u8 },
    /// A responder changes its window.
    AdvertiseMpr { end: usize, mpr: u8 },
    /// An application posts receives.
    Receives { end: usize, count: u64 },
    /// A node sends an EV probe to another.
    EvProbe { node: usize, peer: usize, path: PathId, timeout: Span },
}

impl Action {
    /// The end that it is about.
    pub fn end(&self) -> Option<usize> {
        match *self {
            Action::Deny { end, .. }
            | Action::Pressure { end, .. }
            | Action::AdvertiseMpr { end, .. }
            | Action::Receives { end, .. } => Some(end),
            _ => None,
        }
    }
}

/// The required outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Every message arrives and completes.
    Completes,
    /// Retries may be exhausted: every completion is correct, the rest is flushed.
    MayFail,
    /// Every end with work outstanding ends in ERROR.
    MustFail,
}

/// Everything that determines a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub nodes: usize,
    pub ports: usize,
    pub profile: Arc<EvProfile>,
    /// Rate of each port, bits per second.
    pub rate: u64,
    /// One-way delay without queueing.
    pub latency: Span,
    /// Paths differ in delay by up to this time.
    pub skew: Span,
    pub pairs: Vec<Pair>,
    /// Receives that each end has posted at the beginning, and how long a message waits that finds none.
    pub receives: u64,
    pub receive_wait: Span,
    /// Each end is destroyed as soon as all of both directions is done as far as it knows, and answers for this time.
    pub linger: Option<Span>,
    /// Each end proves the path MTU before it sends anything.
    pub proves_mtu: bool,
    pub impairments: Impairments,
    pub queues: Option<Queues>,
    /// Configuration of all nodes.
    pub node: NodeConfig,
    pub actions: Vec<(Time, Action)>,
    pub expect: Expect,
    /// Timers fire late by up to this time.
    pub timer_slack: Span,
    /// Probability, per packet, of a call of `handle_timeout` that no node requested.
    pub idle_timeouts: f64,
    /// The run must end before this time ...
    pub deadline: Time,
    /// ... and within this number of events.
    pub max_events: u64,
    /// Each node's clock at the beginning.
    pub epochs: Vec<Span>,
}

/// A profile of `per_port` paths on each of `ports` ports.
pub fn profile(ports: usize, per_port: usize) -> Arc<EvProfile> {
    let paths: Vec<_> = (0..per_port as u32)
        .flat_map(|i| {
            (0..ports as u8).map(move |port| PathEntry { ev: Ev(u32::from(port) << 24 | i << 8), port })
        })
        .collect();
    Arc::new(EvProfile::new(&paths).expect("at least one path"))
}

impl Scenario {
    /// A calm network of `nodes` nodes with `ports` ports of 100 Gb/s each and 4 us one way.
    pub fn calm(nodes: usize, ports: usize, paths_per_port: usize) -> Self {
        Scenario {
            seed: 1,
            nodes,
            ports,
            profile: profile(ports, paths_per_port),
            rate: 100_000_000_000,
            latency: Span::from_micros(4),
            skew: Span::ZERO,
            pairs: Vec::new(),
            receives: u64::MAX,
            receive_wait: Span::ZERO,
            linger: None,
            proves_mtu: false,
            impairments: Impairments::calm(),
            queues: None,
            node: NodeConfig::hardware(PortSet::first(ports), Span::from_micros(10), PressureConfig::Off),
            actions: Vec::new(),
            expect: Expect::Completes,
            timer_slack: Span::ZERO,
            idle_timeouts: 0.0,
            deadline: Time::ZERO + Span::from_secs(60),
            max_events: u64::MAX,
            epochs: vec![Span::ZERO; nodes],
        }
    }

    /// Receivers slow down their senders when their ports are overrun, as hardware does.
    pub fn press_senders(&mut self) -> &mut Self {
        let (rate_bps, period) = (self.rate * self.ports as u64, self.base_rtt(4096));
        self.node.pressure = PressureConfig::LastHop { rate_bps, period };
        self
    }

    /// Round trip of a full packet without queueing.
    pub fn base_rtt(&self, path_mtu: u16) -> Span {
        let wire = u64::from(path_mtu) + 130;
        let serialization = Span((wire * 8) * 1_000_000 / (self.rate / 1_000_000));
        self.latency.times(2) + self.skew.times(2) + serialization.times(2)
    }

    /// The defaults for both ends of a connection in this network, `path_mtu` 4096 and NSCC.
    pub fn config(&self) -> QpConfig {
        self.config_with(Arc::new(CcProfile::nscc(
            self.rate * self.ports as u64,
            self.base_rtt(4096),
            4096,
            self.queues.is_none_or(|q| q.trim_at.is_some()),
        )))
    }

    /// The defaults with this congestion control.
    pub fn config_with(&self, cc: Arc<CcProfile>) -> QpConfig {
        let trimming = self.queues.is_none_or(|q| q.trim_at.is_some());
        let model = PathModel::new(self.base_rtt(4096), trimming);
        QpConfig::new(0, 0, PathConfig::new(Arc::clone(&self.profile), model), cc)
    }

    /// Adds a connection of two ends with the same configuration; each gets its own queue pair number and seed.
    pub fn connect(&mut self, nodes: [usize; 2], config: &QpConfig, traffic: [Traffic; 2]) -> &mut Self {
        let number = self.pairs.len() as u32 * 2 + 17;
        let mut configs = [config.clone(), config.clone()];
        configs[0].seed = self.seed.wrapping_add(u64::from(number));
        configs[1].seed = self.seed.wrapping_add(u64::from(number) + 1);
        (configs[0].local_qp, configs[0].remote_qp) = (number, number + 1);
        (configs[1].local_qp, configs[1].remote_qp) = (number + 1, number);
        self.pairs.push(Pair { nodes, configs, traffic, region: [1 << 20; 2] });
        self
    }

    /// Schedules an action.
    pub fn at(&mut self, time: Time, act: Action) -> &mut Self {
        self.actions.push((time, act));
        self
    }
}
