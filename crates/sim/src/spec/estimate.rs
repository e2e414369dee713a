//! Estimate of the memory of a run, before anything is built. How its numbers were measured, and their error:
//! docs/simulator.md, "Memory".

use super::error::SpecError;
use super::load::Load;
use super::numbers::Duration;
use super::record::Record;
use super::scenario::{Checked, Scenario};
use super::transport::{OwnParts, Transport};
use crate::config::NetworkConfig;
use crate::footprint::{Filling, Footprint};
use crate::record::SeriesConfig;

/// An entry of the schedule, and its event.
const PER_FAULT: u64 = 130;
/// All counters of a sample of the time series.
const PER_SAMPLE: u64 = 400;
/// A number of a sample.
const PER_NUMBER: u64 = 8;
/// Numbers of a group of ports in a sample: sent, waiting, longest queue, upwards and downwards.
const PER_GROUP: u64 = 6;
/// Numbers of a link in a sample: sent and waiting, upwards and downwards.
const PER_LINK: u64 = 4;
/// Counters of a link and its name, in the simulator and in the results. Measured.
const PER_LINK_RECORDED: u64 = 560;
/// Counters of a connection and an entropy value, in the simulator and in the results. Measured.
const PER_EV_RECORDED: u64 = 250;
/// A run of RoCEv2 leaves deadlines in the timers of its hosts that only expire with the retransmission timeout: bytes
/// for each packet of a message, and the packets after which old ones expire. Measured.
const ROCEV2_PER_PACKET: f64 = 18.0;
const ROCEV2_MOST_PACKETS: f64 = 2048.0;
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
    /// About how large the run is.
    ///
    /// # Errors
    /// [`SpecError`] if a target of a fault does not exist, which was checked before.
    pub fn estimate(&self) -> Result<Estimate, SpecError> {
        let (scenario, network) = (self.scenario(), self.network());
        let queue_pairs = scenario.transport.queue_pairs();
        let (mut messages, mut connections) = (0u64, 0u64);
        for pattern in &scenario.traffic {
            let volume = pattern.volume(network);
            messages = messages.saturating_add(volume.messages.saturating_mul(queue_pairs));
            connections = connections.saturating_add(volume.connections.saturating_mul(queue_pairs));
        }
        let mut faults = 0u64;
        for fault in &scenario.faults {
            faults = faults.saturating_add(fault.volume(&network.fabric, scenario.limit_us)?);
        }
        let transport = scenario.transport.config(network, OwnParts::default())?;
        let footprint = Footprint::new(network, &transport)?;
        let filling = Filling::new(network, &transport);
        let shape = network.fabric.shape();
        let of_messages = messages.saturating_mul(footprint.per_message)
            + (messages / queue_pairs).saturating_mul(footprint.per_result)
            + connections.saturating_mul(footprint.per_connection);
        let memory = Memory {
            topology: ANY_RUN
                + 2 * u64::from(network.fabric.links()) * footprint.per_port
                + u64::from(shape.hosts) * footprint.per_host,
            traffic: of_messages.saturating_add(in_flight(scenario, network, &footprint, &filling)),
            faults: faults.saturating_mul(PER_FAULT),
            record: series(scenario, network, &scenario.record) + counters(scenario, network, connections),
        };
        Ok(Estimate { messages, connections, memory })
    }
}

/// Queue pairs and packets in flight, when patterns that run at the same time have most of them.
fn in_flight(scenario: &Scenario, network: &NetworkConfig, footprint: &Footprint, filling: &Filling) -> u64 {
    let queue_pairs = scenario.transport.queue_pairs() as f64;
    let qps = matches!(scenario.transport, Transport::Rocev2(_)).then_some(queue_pairs);
    let rate = network.host_rate_bps() as f64;
    let rtt = network.base_rtt().as_secs_f64() * 1e6;
    let mut changes = Vec::new();
    for pattern in &scenario.traffic {
        let load = Load::of(pattern, network);
        let to_send = load.bytes / f64::from(network.path_mtu);
        let mut bytes = load.senders * footprint.per_active_host as f64
            + load.senders
                * filling.packets(to_send.max(1.0), load.connections, qps)
                * footprint.per_packet as f64
            + load.open * queue_pairs * footprint.per_open_connection as f64;
        if qps.is_some() {
            bytes += load.senders * ROCEV2_PER_PACKET * to_send.min(ROCEV2_MOST_PACKETS);
        }
        let start = pattern.start().get();
        changes.extend([(start, bytes), (start + 2.0 * (pattern.least_us(rate) + 10.0 * rtt), -bytes)]);
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut now, mut most) = (0.0, 0.0f64);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
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
    // A connection uses no more entropy values than it sends packets.
    let packets = |load: Load| load.bytes / load.connections / f64::from(network.path_mtu);
    let longest = scenario.traffic.iter().map(|pattern| packets(Load::of(pattern, network)));
    let evs = scenario.transport.evs(network).min(longest.fold(1.0, f64::max) as u64);
    links.saturating_add(connections.saturating_mul(evs).saturating_mul(PER_EV_RECORDED))
}

/// The time series, if the run takes no longer than it must. It takes at least this much.
fn series(scenario: &Scenario, network: &NetworkConfig, record: &Record) -> u64 {
    if !record.series {
        return 0;
    }
    let (planes, tiers) = (u64::from(network.fabric.shape().planes), u64::from(network.fabric.tiers()));
    let patterns = scenario.traffic.len() as u64;
    let links = record.links.count(&network.fabric);
    let numbers = patterns + planes * (1 + PER_GROUP * tiers) + PER_LINK * links;
    let samples = match record.interval_us {
        None => SeriesConfig::MOST as u64,
        Some(interval) => samples(scenario, network, interval),
    };
    samples.saturating_mul(PER_SAMPLE + PER_NUMBER * numbers)
}

fn samples(scenario: &Scenario, network: &NetworkConfig, interval: Duration) -> u64 {
    let rate = network.host_rate_bps() as f64;
    let ends = scenario.traffic.iter().map(|pattern| pattern.start().get() + pattern.least_us(rate));
    let least = ends.fold(0.0, f64::max).min(scenario.limit_us.get());
    (least / interval.get()) as u64
}
