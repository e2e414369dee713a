//! About how much memory a run takes, told before anything is built.

use super::error::SpecError;
use super::numbers::Duration;
use super::record::Record;
use super::scenario::{Checked, Scenario};
use crate::config::NetworkConfig;
use crate::record::SeriesConfig;

// Bytes, measured on the full reference fabric and on all-to-alls, rounded up.
const PER_PORT: u64 = 150;
const PER_MESSAGE: u64 = 120;
const PER_CONNECTION: u64 = 80;
/// Both ends, with their part of the packets in flight.
const PER_QUEUE_PAIR: u64 = 6_000;
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
    /// Ports.
    pub topology: u64,
    /// Messages and queue pairs.
    pub traffic: u64,
    /// The schedule of faults.
    pub faults: u64,
    /// The time series.
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
        // Messages that wait for others open their queue pairs one after the other, most patterns all at once.
        let of_connections = connections.saturating_mul(PER_CONNECTION + PER_QUEUE_PAIR);
        let memory = Memory {
            topology: 2 * u64::from(network.fabric.links()) * PER_PORT,
            traffic: messages.saturating_mul(PER_MESSAGE).saturating_add(of_connections),
            faults: faults.saturating_mul(PER_FAULT),
            record: series(scenario, network, &scenario.record),
        };
        Ok(Estimate { messages, connections, memory })
    }
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
