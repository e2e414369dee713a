//! What a node is told. Hardware and software differ in these settings and nowhere else.

use super::pressure::PressureConfig;
use super::table::Numbers;
use crate::api::PortSet;
use crate::time::Span;

/// Settings of a node. [`NodeConfig::hardware`] and [`NodeConfig::software`] give the two kinds there are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NodeConfig {
    /// The node's ports.
    pub ports: PortSet,
    /// Consecutive packets of one queue pair: 1 in hardware. In software as many as go in one system call.
    pub packets_per_turn: u8,
    /// Whether a delayed SACK goes out early, behind data that its queue pair has just sent.
    pub feedback_behind_data: bool,
    /// Round-trip time from which retries of port status updates start.
    pub base_rtt: Span,
    /// How long a queue may delay a packet beyond that: a port status older than both is contradicted by traffic.
    pub target_qdelay: Span,
    /// How the node finds out that its senders overrun it, and what it does then.
    pub pressure: PressureConfig,
    /// How queue pair numbers are given out.
    pub numbers: Numbers,
    /// Seed of request ids and of the first numbers.
    pub seed: u64,
}

impl NodeConfig {
    /// A NIC in hardware: queue pairs take turns packet by packet, and feedback has its own way out.
    pub fn hardware(ports: PortSet, base_rtt: Span, pressure: PressureConfig) -> Self {
        NodeConfig {
            ports,
            packets_per_turn: 1,
            feedback_behind_data: false,
            base_rtt,
            target_qdelay: base_rtt.scaled(0.75),
            pressure,
            numbers: Numbers { place_bits: 20, resting: 4 },
            seed: 0,
        }
    }

    /// A NIC in software: what costs a system call goes in runs, and feedback rides behind data.
    pub fn software(ports: PortSet, base_rtt: Span, packets_per_turn: u8, pressure: PressureConfig) -> Self {
        NodeConfig {
            packets_per_turn,
            feedback_behind_data: true,
            target_qdelay: base_rtt,
            numbers: Numbers { place_bits: 14, resting: 1 << 14 },
            ..Self::hardware(ports, base_rtt, pressure)
        }
    }
}
