//! What hosts send: patterns that run beside each other.

use openmrc_workload::{Workload, patterns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collective::Collective;
use crate::error::ScenarioError;
use crate::flows::Flows;
use crate::numbers::{Bytes, Duration, Host, Load, Micros, Probability, Seed, first_seed};
use crate::ranks::{
    Volume, all_exist, all_pairs, check_ranks, count, different, exists, members, ranks_exist,
};
use crate::read::by_kind;
use crate::recorded::Recorded;
use crate::run::NetworkConfig;
use crate::training::Training;

by_kind! {
    /// One pattern of traffic.
    pub enum Pattern {
        /// Every host sends to one other.
        "permutation" => Permutation,
        /// Several hosts send to one.
        "incast" => Incast,
        /// Every host sends to every other, all at once.
        "all-to-all" => AllToAll,
        /// Messages between random hosts.
        "random" => RandomTraffic,
        /// Messages one by one.
        "flows" => Flows,
        /// A collective operation.
        "collective" => Collective,
        /// Training steps.
        "training" => Training,
        /// A recorded job.
        "recorded" => Recorded,
    }
}

/// Every host sends to one other and receives from one other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Permutation {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// Length of each message.
    pub bytes: Bytes,
    /// Which permutation.
    #[serde(default = "first_seed")]
    pub seed: Seed,
}

/// Several hosts send to one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// The hosts that send.
    pub senders: Vec<Host>,
    /// The host that receives.
    pub receiver: Host,
    /// Length of each message.
    pub bytes: Bytes,
}

/// Every host sends to every other, all at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AllToAll {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// The hosts that take part; all of them if left open.
    #[serde(default)]
    pub ranks: Option<Vec<Host>>,
    /// Length of each message.
    pub bytes: Bytes,
}

/// Messages between random hosts, a Poisson process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RandomTraffic {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// Mean load of each host, headers not counted.
    pub load: Load,
    /// Points of the cumulative distribution of message lengths: bytes, and the share of messages of at most this
    /// length.
    pub sizes: Vec<(Bytes, Probability)>,
    /// Messages are posted for this time.
    pub duration_us: Duration,
    /// Which messages.
    #[serde(default = "first_seed")]
    pub seed: Seed,
}

impl Permutation {
    fn workload(&self, hosts: u32) -> Workload {
        patterns::permutation(hosts, self.bytes.u32(), self.seed.get())
    }
}

impl Incast {
    fn check(&self) -> Result<(), ScenarioError> {
        if self.senders.is_empty() {
            return Err(ScenarioError::at("senders", "there are none"));
        }
        different("senders", &self.senders)?;
        if self.senders.contains(&self.receiver) {
            return Err(ScenarioError::at(
                "receiver",
                format!("h{} is one of the senders", self.receiver.get()),
            ));
        }
        Ok(())
    }

    fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        exists(self.receiver, hosts).map_err(|error| error.inside("receiver"))?;
        all_exist("senders", &self.senders, hosts)
    }

    fn workload(&self) -> Workload {
        let senders: Vec<u32> = self.senders.iter().map(|host| host.u32()).collect();
        patterns::incast(&senders, self.receiver.u32(), self.bytes.u32())
    }
}

impl AllToAll {
    fn volume(&self, hosts: u32) -> Volume {
        let pairs = all_pairs(count(self.ranks.as_deref(), hosts));
        Volume::new(pairs, pairs)
    }

    fn workload(&self, hosts: u32) -> Workload {
        patterns::all_to_all(&members(self.ranks.as_deref(), hosts), self.bytes.u32())
    }
}

impl RandomTraffic {
    fn check(&self) -> Result<(), ScenarioError> {
        let grows =
            self.sizes.is_sorted_by(|(length, share), (longer, more)| length <= longer && share <= more);
        if !grows || self.sizes.last().is_none_or(|(_, share)| share.get() != 1.0) {
            return Err(ScenarioError::at("sizes", "both columns have to grow, the last share is 1"));
        }
        Ok(())
    }

    fn sizes(&self) -> Vec<(u32, f64)> {
        self.sizes.iter().map(|(length, share)| (length.u32(), share.get())).collect()
    }

    /// Mean length of a message, bytes.
    pub(crate) fn mean_size(&self) -> f64 {
        patterns::mean_size(&self.sizes()).max(1.0)
    }

    pub(crate) fn volume(&self, network: &NetworkConfig) -> Volume {
        let rate = network.host_rate_bps() as f64 * f64::from(network.fabric.shape().hosts);
        let bytes = self.load.get() * rate / 8.0 * self.duration_us.get() * 1e-6;
        let messages = (bytes / self.mean_size()) as u64;
        Volume::new(messages, messages)
    }

    fn workload(&self, network: &NetworkConfig) -> Workload {
        patterns::random(
            network.fabric.shape().hosts,
            network.host_rate_bps(),
            self.load.get(),
            &self.sizes(),
            self.duration_us.span(),
            self.seed.get(),
        )
    }
}

impl Pattern {
    /// Checks what is known without the fabric.
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        match self {
            Pattern::Permutation(_) => Ok(()),
            Pattern::Incast(incast) => incast.check(),
            Pattern::AllToAll(all) => check_ranks(all.ranks.as_deref()),
            Pattern::RandomTraffic(random) => random.check(),
            Pattern::Flows(flows) => flows.check(),
            Pattern::Collective(collective) => collective.check(),
            Pattern::Training(training) => training.check(),
            Pattern::Recorded(recorded) => recorded.check(),
        }
    }

    /// Checks that the pattern fits a fabric of this many hosts.
    pub(crate) fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        match self {
            Pattern::Permutation(_) | Pattern::RandomTraffic(_) => Ok(()),
            Pattern::Incast(incast) => incast.check_fit(hosts),
            Pattern::AllToAll(all) => ranks_exist(all.ranks.as_deref(), hosts),
            Pattern::Flows(flows) => flows.check_fit(hosts),
            Pattern::Collective(collective) => collective.check_fit(hosts),
            Pattern::Training(training) => training.check_fit(hosts),
            Pattern::Recorded(recorded) => recorded.check_fit(hosts),
        }
    }

    /// When it begins.
    pub fn start(&self) -> Micros {
        match self {
            Pattern::Permutation(pattern) => pattern.start_us,
            Pattern::Incast(pattern) => pattern.start_us,
            Pattern::AllToAll(pattern) => pattern.start_us,
            Pattern::RandomTraffic(pattern) => pattern.start_us,
            Pattern::Flows(pattern) => pattern.start_us,
            Pattern::Collective(pattern) => pattern.start_us,
            Pattern::Training(pattern) => pattern.start_us,
            Pattern::Recorded(pattern) => pattern.start_us,
        }
    }

    /// How much it sends; of random traffic what is expected.
    pub(crate) fn volume(&self, network: &NetworkConfig) -> Volume {
        let hosts = network.fabric.shape().hosts;
        match self {
            Pattern::Permutation(_) => Volume::new(hosts.into(), hosts.into()),
            Pattern::Incast(incast) => {
                let senders = incast.senders.len() as u64;
                Volume::new(senders, senders)
            }
            Pattern::AllToAll(all) => all.volume(hosts),
            Pattern::RandomTraffic(random) => random.volume(network),
            Pattern::Flows(flows) => flows.volume(),
            Pattern::Collective(collective) => collective.volume(hosts),
            Pattern::Training(training) => training.volume(),
            Pattern::Recorded(recorded) => recorded.volume(),
        }
    }

    /// Packets of a message; of random traffic the mean.
    pub(crate) fn packets_of_a_message(&self, network: &NetworkConfig) -> f64 {
        let hosts = network.fabric.shape().hosts;
        let bytes = match self {
            Pattern::Permutation(pattern) => pattern.bytes.get(),
            Pattern::Incast(pattern) => pattern.bytes.get(),
            Pattern::AllToAll(pattern) => pattern.bytes.get(),
            Pattern::RandomTraffic(pattern) => {
                return pattern.mean_size() / f64::from(network.path_mtu) + 0.5; // The last packet is not full.
            }
            Pattern::Collective(pattern) => pattern.part(hosts),
            // Of many lengths.
            Pattern::Flows(_) | Pattern::Training(_) | Pattern::Recorded(_) => u64::MAX,
        };
        bytes.div_ceil(network.path_mtu.into()).max(1) as f64
    }

    /// The time that it takes if nothing is in its way, microseconds.
    pub(crate) fn least_us(&self, network: &NetworkConfig) -> f64 {
        let hosts = network.fabric.shape().hosts;
        let headers = f64::from(network.full_packet_bytes()) / f64::from(network.path_mtu);
        let rate = network.host_rate_bps() as f64 / headers;
        let rtt = network.base_rtt().as_secs_f64() * 1e6;
        let sends = |bytes: u64| bytes as f64 * 8e6 / rate;
        rtt + match self {
            Pattern::Permutation(pattern) => sends(pattern.bytes.get()),
            Pattern::Incast(pattern) => pattern.senders.len() as f64 * sends(pattern.bytes.get()),
            Pattern::AllToAll(pattern) => {
                let ranks = count(pattern.ranks.as_deref(), hosts);
                ranks.saturating_sub(1) as f64 * sends(pattern.bytes.get())
            }
            Pattern::RandomTraffic(pattern) => pattern.duration_us.get(),
            Pattern::Flows(flows) => flows.last_start_us(),
            Pattern::Collective(pattern) => pattern.least_us(hosts, rtt, sends),
            Pattern::Training(training) => training.computation_us(),
            Pattern::Recorded(recorded) => recorded.computation_us(),
        }
    }

    /// Its messages.
    pub(crate) fn workload(&self, network: &NetworkConfig) -> Workload {
        let hosts = network.fabric.shape().hosts;
        let mut workload = match self {
            Pattern::Permutation(permutation) => permutation.workload(hosts),
            Pattern::Incast(incast) => incast.workload(),
            Pattern::AllToAll(all) => all.workload(hosts),
            Pattern::RandomTraffic(random) => random.workload(network),
            Pattern::Flows(flows) => flows.workload(),
            Pattern::Collective(collective) => collective.workload(hosts),
            Pattern::Training(training) => training.workload(hosts),
            Pattern::Recorded(recorded) => recorded.workload(),
        };
        workload.delay(self.start().span());
        workload
    }
}
