//! What an engine executes: the network, the transport, every message and fault, all checked and in plain numbers. A
//! [`crate::Scenario`] is laid out as a run; tests and benchmarks make one by hand.

pub mod faults;
mod network;
mod probes;
mod record;
mod transport;

use openmrc_transport::Time;
use openmrc_workload::{Workload, WorkloadError};

pub use self::faults::{Change, Effect, FaultError, FaultEvent, Target};
pub use self::network::{
    EcnMarking, Encapsulation, NetworkConfig, Overflow, PfcConfig, Routing, RoutingReaction, Scheduling,
    SlowQueues, SoftwareHosts, SwitchConfig,
};
pub use self::probes::{ProbeConfig, ProbeLoop, Stall};
pub use self::record::{CaptureConfig, RecordConfig, SeriesConfig};
pub use self::transport::{
    AdaptiveConfig, LifeConfig, MrcConfig, MrcCongestion, ReceivesConfig, Rocev2Config, TransportConfig,
    UetConfig,
};

/// A run: network, transport, traffic.
#[derive(Clone, Debug)]
pub struct Run {
    /// The network.
    pub network: NetworkConfig,
    /// What the hosts speak.
    pub transport: TransportConfig,
    /// What they send.
    pub workload: Workload,
    /// What breaks.
    pub faults: Vec<FaultEvent>,
    /// What hosts probe beside their traffic.
    pub probes: Option<ProbeConfig>,
    /// The run ends here at the latest.
    pub limit: Time,
    /// What is recorded.
    pub record: RecordConfig,
    /// Threads that simulate it, each a part of the network. The results are the same for every number.
    pub threads: u32,
}

/// Why a run is not possible.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RunError {
    /// The workload does not fit the fabric.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The schedule of faults does not fit the fabric.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// The rate of a port is out of range.
    #[error(
        "rate: {0} b/s a port: a byte has to take whole picoseconds, at most 65535 (25, 50, 100, 200, 400, 800 Gb/s do)"
    )]
    Rate(u64),
    /// The number of threads is out of range.
    #[error("threads: {0} is out of range: 1 to {most}", most = Run::MOST_THREADS)]
    Threads(u32),
    /// A number is out of range.
    #[error("{name}: {value} is out of range: {allowed}")]
    Range {
        /// Which.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A number of the probes is out of range.
    #[error("probes: {name}: {value} is out of range: {allowed}")]
    Probes {
        /// Which.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// Headroom takes all of a switch's buffer.
    #[error(
        "pfc: the headroom of all ports takes the whole buffer of a switch: give it more, or shorter cables"
    )]
    Buffer,
    /// The engine cannot execute it.
    #[error("{}: {message}", field.join("."))]
    Engine {
        /// The field of the scenario that asks for it, from the outside inwards.
        field: &'static [&'static str],
        /// What it cannot do, and the way out.
        message: &'static str,
    },
    /// The fabric has more paths than an entropy value can name.
    #[error(transparent)]
    Ev(#[from] openmrc_fabric::path::EvError),
}

impl Run {
    /// Most threads that simulate a run.
    pub const MOST_THREADS: u32 = 256;

    /// Checks everything that can be checked before it is built.
    ///
    /// # Errors
    /// [`RunError`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), RunError> {
        self.network.check()?;
        if !(1..=Run::MOST_THREADS).contains(&self.threads) {
            return Err(RunError::Threads(self.threads));
        }
        faults::check(&self.faults, &self.network.fabric)?;
        self.probes.as_ref().map_or(Ok(()), |probes| probes.check(&self.network))?;
        self.check_slowness()?;
        self.workload.check(self.network.fabric.shape().hosts)?;
        Ok(())
    }

    /// The time of a byte on the slowest link fits the 16 bits of a port.
    fn check_slowness(&self) -> Result<(), RunError> {
        let picos = self.network.picos_per_byte() as f64;
        for fault in &self.faults {
            if let Effect::Slow(share) = fault.change.effect()
                && (picos / share).round() > f64::from(u16::MAX)
            {
                let value = (self.network.port_rate_bps as f64 * share) as u64;
                let (name, allowed) = ("rate of a slow link, b/s", "at least 122072176 (65535 ps a byte)");
                return Err(RunError::Range { name, value, allowed });
            }
        }
        Ok(())
    }
}

impl NetworkConfig {
    /// Checks that the network can be simulated.
    ///
    /// # Errors
    /// [`RunError`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), RunError> {
        let rate = self.port_rate_bps;
        if rate == 0 || !8_000_000_000_000u64.is_multiple_of(rate) || self.picos_per_byte() > 65_535 {
            return Err(RunError::Rate(rate));
        }
        let mtu = u64::from(self.path_mtu);
        if !(256..=8192).contains(&mtu) {
            return Err(RunError::Range { name: "mtu", value: mtu, allowed: "256 to 8192" });
        }
        self.check_latencies()?;
        openmrc_fabric::EvLayout::new(&self.fabric)?;
        Ok(())
    }

    /// Every hop takes time, so that the events of a calendar slot can be taken node by node; and its latency fits
    /// the 32 bits of a port.
    fn check_latencies(&self) -> Result<(), RunError> {
        let allowed = "a hop, cable and switch or NIC together, takes 10 to 4000000 ns";
        for layer in 0..self.fabric.tiers() {
            for to_host in [false, true] {
                let value = self.hop_latency(layer, to_host).as_nanos();
                if (layer == 0 || !to_host) && !(10..=4_000_000).contains(&value) {
                    return Err(RunError::Range { name: "cables", value, allowed });
                }
            }
        }
        Ok(())
    }
}
