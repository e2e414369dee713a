//! Configuration of a node. Hardware and software differ in these settings and nowhere else.

use std::sync::{Arc, LazyLock};

use super::limits::RequestRates;
use super::port_mask::PortMaskBase;
use super::ports::PortTrust;
use super::pressure::PressureConfig;
use super::table::Numbers;
use crate::api::PortSet;
use crate::presets;
use crate::time::Span;

/// Settings of a node. [`NodeConfig::hardware`] and [`NodeConfig::software`] give the two kinds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NodeConfig {
    /// The node's ports.
    pub ports: PortSet,
    /// Consecutive packets of one queue pair: 1 in hardware; in software, the number that fits in one system call.
    pub packets_per_turn: u8,
    /// Whether a delayed SACK is sent early, directly after data of the same queue pair.
    pub feedback_behind_data: bool,
    /// Round-trip time from which retries of port status updates start.
    pub base_rtt: Span,
    /// Queueing delay that may come on top of the base RTT. A port status update older than both is contradicted by
    /// traffic.
    pub target_qdelay: Span,
    /// How the node notices that its senders overrun it, and how it slows them down.
    pub pressure: PressureConfig,
    /// How queue pair numbers are assigned.
    pub numbers: Numbers,
    /// When a peer's port status update takes effect.
    pub port_trust: PortTrust,
    /// The bit of a port status mask that means the first port: in updates sent, and in those of a peer that has not shown
    /// its own.
    pub port_mask_base: PortMaskBase,
    /// Endpoint requests that are answered.
    pub request_rates: RequestRates,
    /// Seed of request ids and of the first numbers.
    pub seed: u64,
}

impl NodeConfig {
    /// Stands for the settings of a node that was read from a checkpoint, until it has its own again.
    pub(super) fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<NodeConfig>> =
            LazyLock::new(|| Arc::new(NodeConfig::hardware(PortSet::first(1), Span(1), PressureConfig::Off)));
        Arc::clone(&NONE)
    }

    /// A hardware NIC: queue pairs take turns packet by packet, and feedback does not wait for data.
    pub fn hardware(ports: PortSet, base_rtt: Span, pressure: PressureConfig) -> Self {
        NodeConfig {
            ports,
            packets_per_turn: 1,
            feedback_behind_data: false,
            base_rtt,
            target_qdelay: presets::target_qdelay(base_rtt, true),
            pressure,
            numbers: Numbers { slot_bits: 20, min_free: 4, key: None, prefix: None },
            port_trust: PortTrust::AtOnce,
            port_mask_base: PortMaskBase::Zero,
            request_rates: RequestRates::default(),
            seed: 0,
        }
    }

    /// A software NIC: packets are sent in bursts, one system call each, and feedback follows data.
    pub fn software(ports: PortSet, base_rtt: Span, packets_per_turn: u8, pressure: PressureConfig) -> Self {
        NodeConfig {
            packets_per_turn,
            feedback_behind_data: true,
            target_qdelay: presets::target_qdelay(base_rtt, false),
            numbers: Numbers { slot_bits: 14, min_free: 1 << 14, key: None, prefix: None },
            port_trust: PortTrust::Confirmed,
            ..Self::hardware(ports, base_rtt, pressure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_sends_in_bursts_with_feedback_behind_them_confirms_updates_and_never_reuses_a_number_early() {
        let (ports, rtt) = (PortSet::first(4), Span::from_micros(500));
        let hardware = NodeConfig::hardware(ports, rtt, PressureConfig::Off);
        assert_eq!((hardware.packets_per_turn, hardware.feedback_behind_data), (1, false));
        // Queues of a network that trims are kept shorter.
        assert_eq!(hardware.target_qdelay, Span::from_micros(375));
        let software = NodeConfig::software(ports, rtt, 15, PressureConfig::Off);
        let expected = NodeConfig {
            packets_per_turn: 15,
            feedback_behind_data: true,
            target_qdelay: rtt,
            numbers: Numbers { slot_bits: 14, min_free: 16_384, key: None, prefix: None },
            port_trust: PortTrust::Confirmed,
            ..hardware
        };
        assert_eq!(software, expected);
        assert_eq!(software.numbers.min_free, software.numbers.max_queue_pairs());
    }
}
