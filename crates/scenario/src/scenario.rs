//! The whole of a scenario: reading it, checking it, and the run that it describes.

use openmrc_workload::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, EngineKind};
use crate::error::ScenarioError;
use crate::faults::Fault;
use crate::network::Network;
use crate::numbers::{Duration, Seed, Whole, first_seed};
use crate::read;
use crate::record::Record;
use crate::run::{MrcConfig, NetworkConfig, RecordConfig, Run, TransportConfig};
use crate::topology::Topology;
use crate::traffic::Pattern;
use crate::transport::{OwnParts, Transport};

/// A run, as people write it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Hosts, planes, switches.
    pub topology: Topology,
    /// How fast and long its parts are.
    #[serde(default)]
    pub network: Network,
    /// What hosts speak.
    #[serde(default)]
    pub transport: Transport,
    /// What they send: patterns that run beside each other.
    pub traffic: Vec<Pattern>,
    /// What breaks.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Virtual time at which the run ends at the latest.
    #[serde(default = "ten_seconds")]
    pub limit_us: Duration,
    /// Of everything left to chance in the network and in queue pairs; patterns and faults have their own.
    #[serde(default = "first_seed")]
    pub seed: Seed,
    /// What is written down on the way.
    #[serde(default)]
    pub record: Record,
    /// Threads that simulate it, each a part of the network. The results are the same for every number.
    #[serde(default = "one_thread")]
    pub threads: Threads,
    /// What executes it: `packets`; `auto` for packets only where something changes; `flow` for shares of links instead.
    #[serde(default)]
    pub engine: EngineKind,
}

/// A number of threads.
type Threads = Whole<1, { Run::MOST_THREADS as u64 }>;

fn one_thread() -> Threads {
    Whole::of(1)
}

/// Much longer than runs that end take.
fn ten_seconds() -> Duration {
    Duration::of(10_000_000.0)
}

impl Scenario {
    /// Reads a scenario from JSON and checks what is known without its fabric.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first thing that is wrong, with its place.
    pub fn from_json(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Scenario = read::from_json(text)?;
        scenario.check_parts()?;
        Ok(scenario)
    }

    /// The scenario as JSON.
    pub fn to_json(&self) -> String {
        // Numbers and names only: no key that is not text.
        serde_json::to_string(self).unwrap_or_else(|error| unreachable!("a scenario is JSON: {error}"))
    }

    pub(crate) fn check_parts(&self) -> Result<(), ScenarioError> {
        if self.traffic.is_empty() {
            return Err(ScenarioError::at("traffic", "there is none"));
        }
        self.network.check().map_err(|error| error.inside("network"))?;
        if self.network.software.is_some() && !matches!(self.transport, Transport::Mrc(_)) {
            let message = "hosts whose NIC is software speak MRC";
            return Err(ScenarioError::at("software", message).inside("network"));
        }
        for (index, pattern) in self.traffic.iter().enumerate() {
            pattern.check().map_err(|error| error.inside(index).inside("traffic"))?;
        }
        for (index, fault) in self.faults.iter().enumerate() {
            fault.check().map_err(|error| error.inside(index).inside("faults"))?;
        }
        self.record.check().map_err(|error| error.inside("record"))
    }

    /// The same with the messages of its files in it. As JSON it still needs the traces of recorded jobs.
    ///
    /// # Errors
    /// If a file cannot be read or is no list of messages; the message names file and line.
    pub fn with_files(mut self) -> Result<Self, ScenarioError> {
        let hosts = self.topology.hosts.u32();
        for (index, pattern) in self.traffic.iter_mut().enumerate() {
            let inside = |error: ScenarioError| error.inside(index).inside("traffic");
            match pattern {
                Pattern::Flows(flows) => {
                    *flows = std::mem::take(flows).with_file(hosts).map_err(inside)?;
                }
                Pattern::Recorded(recorded) => {
                    *recorded = std::mem::take(recorded).with_file(hosts).map_err(inside)?;
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// Reads the files of the scenario and checks that its parts fit each other: hosts, links and switches exist,
    /// rates and lengths can be simulated. Nothing is built.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first thing that is wrong, with its place.
    pub fn checked(self) -> Result<Checked, ScenarioError> {
        let scenario = self.with_files()?;
        let fabric = scenario.topology.fabric()?;
        let ports = (scenario.topology.port_rate_bps()?, &scenario.topology.cables);
        let (meant_for, seed) = (scenario.transport.meant_for(), scenario.seed.get());
        let network = scenario.network.config(fabric, ports, &meant_for, seed);
        network.check()?;
        for (index, pattern) in scenario.traffic.iter().enumerate() {
            pattern.check_fit(fabric.shape().hosts).map_err(|error| error.inside(index).inside("traffic"))?;
        }
        for (index, fault) in scenario.faults.iter().enumerate() {
            fault.check_fit(&network).map_err(|error| error.inside(index).inside("faults"))?;
        }
        scenario.record.config(&fabric).map_err(|error| error.inside("record"))?;
        Ok(Checked { scenario, network })
    }
}

/// A scenario whose parts fit each other, with the messages of its files.
#[derive(Clone, Debug)]
pub struct Checked {
    scenario: Scenario,
    network: NetworkConfig,
}

impl Checked {
    /// The scenario, what it leaves open still open.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Its network.
    pub fn network(&self) -> &NetworkConfig {
        &self.network
    }

    /// The scenario with everything filled in that has one value for the whole run. It gives the same results.
    pub fn filled(&self) -> Scenario {
        let scenario = &self.scenario;
        Scenario {
            network: scenario.network.filled(&self.network, &scenario.transport.meant_for()),
            transport: scenario.transport.filled(&self.network),
            ..scenario.clone()
        }
    }

    /// Lays out the run: every message, every fault.
    ///
    /// # Errors
    /// [`ScenarioError`] if the user's own parts do not fit the transport.
    pub fn build(&self, own: OwnParts) -> Result<Run, ScenarioError> {
        if let Some((field, name)) = self.scenario.transport.named_class().filter(|_| !own.are_any()) {
            let message = format!("{name} is a class of Python, which is not here");
            return Err(ScenarioError::at(field, message).inside("transport"));
        }
        if own.are_any() && self.scenario.threads.u32() > 1 {
            let message = format!(
                "{} threads would wait for each other in path_selector and congestion: with these it is 1",
                self.scenario.threads.u32()
            );
            return Err(ScenarioError::at("threads", message));
        }
        let mut workload = Workload::default();
        for pattern in &self.scenario.traffic {
            workload.append(&pattern.workload(&self.network));
        }
        if !self.scenario.record.nodes {
            workload.nodes = Vec::new();
        }
        self.build_with(workload, own)
    }

    /// Builds the network with its faults, without traffic, and throws it away: finds what only building finds.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first thing that is wrong, with its place.
    pub fn try_network<E: Engine>(&self) -> Result<(), ScenarioError> {
        let run = self.build_with(Workload::default(), OwnParts::default())?;
        E::new(&run)?;
        Ok(())
    }

    fn build_with(&self, workload: Workload, own: OwnParts) -> Result<Run, ScenarioError> {
        let scenario = &self.scenario;
        let fabric = &self.network.fabric;
        let mut faults = Vec::new();
        for (index, fault) in scenario.faults.iter().enumerate() {
            let schedule = fault.schedule(fabric, scenario.limit_us);
            faults.extend(schedule.map_err(|error| error.inside(index).inside("faults"))?);
        }
        Ok(Run {
            network: self.network.clone(),
            transport: scenario.transport.config(&self.network, own)?,
            workload,
            faults,
            probes: None,
            limit: scenario.limit_us.time(),
            record: scenario.record.config(fabric).map_err(|error| error.inside("record"))?,
            threads: scenario.threads.u32(),
        })
    }
}

impl Run {
    /// A run of MRC with its defaults: nothing breaks, nothing is written down.
    pub fn new(network: NetworkConfig, workload: Workload) -> Self {
        Run {
            network,
            transport: TransportConfig::Mrc(MrcConfig::default()),
            workload,
            faults: Vec::new(),
            probes: None,
            limit: ten_seconds().time(),
            record: RecordConfig::default(),
            threads: 1,
        }
    }
}
