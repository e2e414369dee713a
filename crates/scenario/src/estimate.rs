//! Estimate of the memory of a run, before anything is built. How its numbers were measured, and their error:
//! docs/simulator.md, "Memory".

use crate::engine::Engine;
use crate::error::ScenarioError;
use crate::filling::Filling;
use crate::footprint::Footprint;
use crate::load::Load;
use crate::numbers::Duration;
use crate::record::Record;
use crate::results::Totals;
use crate::run::NetworkConfig;
use crate::run::SeriesConfig;
use crate::scenario::{Checked, Scenario};
use crate::traffic::Pattern;
use crate::transport::{OwnParts, Transport};

/// An entry of the schedule, and its event.
const PER_FAULT: u64 = 130;
/// A number of a sample of the time series.
const PER_NUMBER: u64 = 8;
/// Samples that are left in the results where an interval was not given, as a share of the most that there may be: the
/// interval doubles when there are so many.
const LEFT_OF_MOST: f64 = 0.75;
/// Numbers of a group of ports in a sample: sent, waiting, longest queue, upwards and downwards.
const PER_GROUP: u64 = 6;
/// Numbers of a link in a sample: sent and waiting, upwards and downwards.
const PER_LINK: u64 = 4;
/// Counters of a link and its name, in the simulator and in the results. Measured.
const PER_LINK_RECORDED: u64 = 560;
/// Counters of a connection and an entropy value, in the simulator and in the results. Measured.
const PER_EV_RECORDED: u64 = 200;
/// The tasks and times of a node, in the simulator and in the results: the sizes of their fields, added up.
const PER_NODE_RECORDED: u64 = 128;
/// Memory of every run, independent of its size. Measured.
const ANY_RUN: u64 = 1_500_000;

/// About how large a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Estimate {
    /// Messages, those of parallel queue pairs counted one by one.
    pub messages: u64,
    /// Connections, those of parallel queue pairs counted one by one.
    pub connections: u64,
    /// Bytes of memory that each part takes.
    pub memory: Memory,
}

/// Bytes by the part of the scenario that makes a run take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Ports and hosts.
    pub topology: u64,
    /// Messages, queue pairs, packets in flight, and the rows of the results.
    pub traffic: u64,
    /// The schedule of faults.
    pub faults: u64,
    /// The time series, counters of links and paths.
    pub record: u64,
}

impl Memory {
    /// The parts by their names in a scenario.
    pub const fn named(&self) -> [(&'static str, u64); 4] {
        [
            ("topology", self.topology),
            ("traffic", self.traffic),
            ("faults", self.faults),
            ("record", self.record),
        ]
    }
}

impl Checked {
    /// About how large the run is in an engine.
    ///
    /// # Errors
    /// [`ScenarioError`] if a target of a fault does not exist, which was checked before.
    pub fn estimate<E: Engine>(&self) -> Result<Estimate, ScenarioError> {
        let (scenario, network) = (self.scenario(), self.network());
        let queue_pairs = scenario.transport.queue_pairs();
        let transport = scenario.transport.config(network, OwnParts::default())?;
        let footprint = E::footprint(network, &transport, scenario.threads.u32())?;
        let filling = Filling::new(network, &transport);
        let (mut messages, mut connections) = (0u64, 0u64);
        let mut of_messages = 0u64;
        for pattern in &scenario.traffic {
            let volume = pattern.volume(network);
            messages = messages.saturating_add(volume.messages.saturating_mul(queue_pairs));
            connections = connections.saturating_add(volume.connections.saturating_mul(queue_pairs));
            // A message of few packets uses few of its queue pairs.
            let used = (queue_pairs as f64).min(pattern.packets_of_a_message(network));
            let times = |count: u64, bytes: u64| (count as f64 * used * bytes as f64) as u64;
            of_messages = of_messages
                .saturating_add(times(volume.messages, footprint.per_message))
                .saturating_add(times(volume.connections, footprint.per_connection))
                .saturating_add(volume.messages.saturating_mul(footprint.per_result));
        }
        let mut faults = 0u64;
        for fault in &scenario.faults {
            faults = faults.saturating_add(fault.volume(&network.fabric, scenario.limit_us)?);
        }
        let shape = network.fabric.shape();
        let memory = Memory {
            topology: ANY_RUN
                + 2 * u64::from(network.fabric.links()) * footprint.per_port
                + u64::from(shape.hosts) * footprint.per_host,
            traffic: of_messages.saturating_add(in_flight(scenario, network, &footprint, &filling)),
            faults: faults.saturating_mul(PER_FAULT),
            record: series(scenario, network, &scenario.record)
                + counters(scenario, network, connections)
                + nodes(scenario),
        };
        Ok(Estimate { messages, connections, memory })
    }
}

/// What patterns that run at the same time have in the network together. Whole numbers, so that a pattern that has
/// ended leaves nothing.
#[derive(Clone, Copy, Default)]
struct Running {
    senders: u64,
    bytes: u128,
    connections: u64,
    open: u64,
    /// Packets that do not depend on the others: of connections that each fill a path of their own.
    of_connections: u64,
}

/// Bytes to send that no window and no queue can hold.
const WITHOUT_END: f64 = 1e15;

impl Running {
    fn of(load: Load, network: &NetworkConfig, filling: &Filling, qps: Option<f64>) -> Self {
        let mtu = f64::from(network.path_mtu);
        let of_connections = match (qps, load.message) {
            (Some(qps), Some(message)) => load.open * filling.paused((message / mtu).max(1.0), qps),
            _ => 0.0,
        };
        let on_connections = qps.is_some() && load.message.is_some();
        let bytes = if on_connections { 0.0 } else { load.senders * load.bytes.min(WITHOUT_END) };
        Running {
            senders: load.senders.ceil() as u64,
            bytes: bytes as u128,
            connections: (load.senders * load.connections).ceil() as u64,
            open: load.open.ceil() as u64,
            of_connections: of_connections as u64,
        }
    }

    fn add(&mut self, other: Running) {
        self.senders += other.senders;
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.open += other.open;
        self.of_connections += other.of_connections;
    }

    fn end(&mut self, other: Running) {
        self.senders -= other.senders;
        self.bytes -= other.bytes;
        self.connections -= other.connections;
        self.open -= other.open;
        self.of_connections -= other.of_connections;
    }

    /// Bytes of memory. A host that sends for several patterns shares its ports among them.
    fn memory(
        &self,
        network: &NetworkConfig,
        footprint: &Footprint,
        filling: &Filling,
        (queue_pairs, qps): (f64, Option<f64>),
    ) -> f64 {
        let senders = self.senders.min(network.fabric.shape().hosts.into()).max(1) as f64;
        let to_send = self.bytes as f64 / senders / f64::from(network.path_mtu);
        let connections = self.connections as f64 / senders;
        let packets = if self.bytes == 0 { 0.0 } else { filling.packets(to_send.max(1.0), connections, qps) };
        senders * footprint.per_active_host as f64
            + (senders * packets + self.of_connections as f64) * footprint.per_packet as f64
            + self.open as f64 * queue_pairs * footprint.per_open_connection as f64
    }
}

/// Queue pairs and packets in flight, when patterns that run at the same time have most of them.
fn in_flight(scenario: &Scenario, network: &NetworkConfig, footprint: &Footprint, filling: &Filling) -> u64 {
    let queue_pairs = scenario.transport.queue_pairs() as f64;
    let qps = matches!(scenario.transport, Transport::Rocev2(_)).then_some(queue_pairs);
    // Each queue pair of RoCEv2 has one path on one plane.
    let planes = f64::from(network.fabric.shape().planes);
    let share = qps.map_or(1.0, |qps| (qps / planes).min(1.0));
    let mut changes = Vec::new();
    for pattern in &scenario.traffic {
        let running = Running::of(Load::of(pattern, network, share), network, filling, qps);
        let start = pattern.start().get();
        // What has ended first makes room for what begins then.
        changes.extend([(start, 1, running), (start + 2.0 * pattern.least_us(network), 0, running)]);
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut now, mut most) = (Running::default(), 0.0f64);
    for (_, begins, running) in changes {
        match begins {
            0 => now.end(running),
            _ => {
                now.add(running);
                most = most.max(now.memory(network, footprint, filling, (queue_pairs, qps)));
            }
        }
    }
    most as u64
}

/// Counters of links and paths.
fn counters(scenario: &Scenario, network: &NetworkConfig, connections: u64) -> u64 {
    let record = &scenario.record;
    let is_on = record.series || record.events || record.ports || record.evs || record.capture.is_some();
    let links = if is_on { u64::from(network.fabric.links()) * PER_LINK_RECORDED } else { 0 };
    if !record.evs {
        return links;
    }
    // A connection uses no more entropy values than it sends packets; if it draws them, some of them twice.
    let packets = |load: Load| load.bytes / load.connections / f64::from(network.path_mtu);
    let longest = scenario.traffic.iter().map(|pattern| packets(Load::of(pattern, network, 1.0)));
    let (evs, longest) = (scenario.transport.evs(network) as f64, longest.fold(1.0, f64::max));
    let used = match scenario.transport {
        Transport::Uet(_) => evs * (1.0 - (-longest / evs).exp()),
        _ => evs.min(longest),
    };
    links.saturating_add(connections.saturating_mul(used.ceil() as u64).saturating_mul(PER_EV_RECORDED))
}

/// The times of nodes of recorded jobs.
fn nodes(scenario: &Scenario) -> u64 {
    let of = |pattern: &Pattern| match pattern {
        Pattern::Recorded(recorded) if scenario.record.nodes => recorded.nodes() as u64 * PER_NODE_RECORDED,
        _ => 0,
    };
    scenario.traffic.iter().map(of).sum()
}

/// The time series in the simulator and in the results, if the run takes no longer than it must.
fn series(scenario: &Scenario, network: &NetworkConfig, record: &Record) -> u64 {
    if !record.series {
        return 0;
    }
    let (planes, tiers) = (u64::from(network.fabric.shape().planes), u64::from(network.fabric.tiers()));
    let patterns = scenario.traffic.len() as u64;
    let links = record.links.count(&network.fabric);
    let counters = Totals::default().named().len() as u64;
    let numbers = 1 + counters + patterns + planes * (1 + PER_GROUP * tiers) + PER_LINK * links;
    let (taken, left) = match record.interval_us {
        None => (SeriesConfig::MOST as f64, SeriesConfig::MOST as f64 * LEFT_OF_MOST),
        Some(interval) => {
            let samples = samples(scenario, network, interval);
            (samples, samples)
        }
    };
    ((taken + left) as u64).saturating_mul(PER_NUMBER * numbers)
}

fn samples(scenario: &Scenario, network: &NetworkConfig, interval: Duration) -> f64 {
    let ends = scenario.traffic.iter().map(|pattern| pattern.start().get() + pattern.least_us(network));
    let least = ends.fold(0.0, f64::max).min(scenario.limit_us.get());
    (least / interval.get()).floor()
}
