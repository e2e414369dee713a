//! What a pattern has in the network at once: packets in flight and open connections. An estimate, for memory.

use openmrc_schedule::EXCHANGES;

use crate::collective::{Collective, Operation};
use crate::flows::Flows;
use crate::ranks::count;
use crate::recorded::Recorded;
use crate::run::NetworkConfig;
use crate::traffic::Pattern;
use crate::training::Training;

/// What a pattern has in the network at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Load {
    /// Hosts that send at once.
    pub senders: f64,
    /// Bytes that each of them has to send at once.
    pub bytes: f64,
    /// Connections that each of them sends on at once.
    pub connections: f64,
    /// Connections that are open at once.
    pub open: f64,
    /// Bytes of each message that an open connection is sending, where connections and not hosts limit what is in
    /// flight.
    pub message: Option<f64>,
}

/// Connections that close after their only message, while the next step's are opened: more are open than send.
const OF_TWO_STEPS: f64 = 1.6;

impl Load {
    /// Every sender sends on one connection.
    fn one_each(senders: f64, bytes: f64) -> Self {
        Load { senders, bytes, connections: 1.0, open: senders, message: None }
    }

    /// The load of a pattern, if a connection can use this share of a host's ports.
    pub fn of(pattern: &Pattern, network: &NetworkConfig, share: f64) -> Self {
        let hosts = f64::from(network.fabric.shape().hosts);
        match pattern {
            Pattern::Permutation(pattern) => Load::one_each(hosts, pattern.bytes.get() as f64),
            Pattern::Incast(pattern) => {
                Load::one_each(pattern.senders.len() as f64, pattern.bytes.get() as f64)
            }
            Pattern::AllToAll(pattern) => {
                let ranks = count(pattern.ranks.as_deref(), network.fabric.shape().hosts) as f64;
                let others = (ranks - 1.0).max(1.0);
                Load {
                    senders: ranks,
                    bytes: pattern.bytes.get() as f64 * others,
                    connections: others,
                    open: ranks * others,
                    message: None,
                }
            }
            Pattern::RandomTraffic(pattern) => {
                let messages = pattern.volume(network).messages as f64;
                let size = pattern.mean_size();
                // What a message takes grows with what waits before it.
                let load = pattern.load.get().min(0.95);
                let takes = (rtt_us(network) + sends_us(network, size) / share) / (1.0 - load);
                let open = (messages / pattern.duration_us.get() * takes).min(messages);
                Load {
                    senders: hosts * load,
                    bytes: f64::INFINITY,
                    connections: 2.0,
                    open,
                    message: Some(size),
                }
            }
            Pattern::Flows(flows) => of_flows(flows, network),
            Pattern::Collective(pattern) => of_collective(pattern, network.fabric.shape().hosts),
            Pattern::Training(pattern) => of_training(pattern),
            Pattern::Recorded(recorded) => of_recorded(recorded),
        }
    }
}

fn rtt_us(network: &NetworkConfig) -> f64 {
    network.base_rtt().as_secs_f64() * 1e6
}

fn sends_us(network: &NetworkConfig, bytes: f64) -> f64 {
    bytes * 8e6 / network.host_rate_bps() as f64
}

/// Most flows at once, if each takes twice as long as it must.
fn of_flows(flows: &Flows, network: &NetworkConfig) -> Load {
    let mut changes: Vec<(f64, f64, f64)> = Vec::with_capacity(2 * flows.flows.len());
    for flow in &flows.flows {
        let (bytes, start) = (flow.2.get() as f64, flow.3.get());
        let end = start + 2.0 * (rtt_us(network) + sends_us(network, bytes));
        changes.extend([(start, 1.0, bytes), (end, -1.0, -bytes)]);
    }
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut now, mut most) = ((0.0, 0.0), (0.0f64, 0.0f64));
    for (_, flows, bytes) in changes {
        now = (now.0 + flows, now.1 + bytes);
        most = (most.0.max(now.0), most.1.max(now.1));
    }
    let senders = most.0.min(f64::from(network.fabric.shape().hosts)).max(1.0);
    Load {
        senders,
        bytes: most.1 / senders,
        connections: (most.0 / senders).ceil(),
        open: most.0,
        message: None,
    }
}

fn of_collective(pattern: &Collective, hosts: u32) -> Load {
    let ranks = count(pattern.ranks.as_deref(), hosts) as f64;
    let bytes = pattern.bytes.get() as f64;
    match pattern.operation {
        Operation::RingAllReduce | Operation::AllGather | Operation::ReduceScatter => {
            Load::one_each(ranks, bytes / ranks)
        }
        Operation::RecursiveDoublingAllReduce => {
            Load { open: OF_TWO_STEPS * ranks, ..Load::one_each(ranks, bytes) }
        }
        Operation::AllToAll => {
            let connections = (ranks - 1.0).clamp(1.0, EXCHANGES as f64);
            let open = (OF_TWO_STEPS * connections).min(ranks) * ranks;
            Load { bytes: bytes * connections, connections, open, ..Load::one_each(ranks, bytes) }
        }
        Operation::Pipeline => Load::one_each(ranks - 1.0, bytes * pattern.microbatches.get() as f64),
    }
}

/// Every host sends its longest message, and all connections stay open.
fn of_recorded(recorded: &Recorded) -> Load {
    let open = recorded.volume().connections as f64;
    Load { open, ..Load::one_each(recorded.senders(), recorded.longest() as f64) }
}

/// All connections stay open from step to step.
fn of_training(pattern: &Training) -> Load {
    let [data, tensor, expert] =
        [pattern.data, pattern.tensor, pattern.expert].map(|count| count.get() as f64);
    let ranks = data * tensor * pattern.pipeline.get() as f64;
    let part = |bytes: u64, group: f64| if group > 1.0 { bytes as f64 / group } else { 0.0 };
    let experts = if expert > 1.0 { pattern.expert_bytes.get() as f64 * (expert - 1.0) } else { 0.0 };
    let stages = if pattern.pipeline.get() > 1 { pattern.activation_bytes.get() as f64 } else { 0.0 };
    let ring = part(pattern.gradient_bytes.get(), data).max(part(pattern.tensor_bytes.get(), tensor));
    Load {
        senders: ranks,
        bytes: experts.max(stages).max(ring),
        connections: if experts > stages.max(ring) { expert - 1.0 } else { 1.0 },
        open: pattern.volume().connections as f64,
        message: None,
    }
}
