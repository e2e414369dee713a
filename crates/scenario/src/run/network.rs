//! What a simulated network is made of: rates, lengths, switches, routing. Its defaults are [`crate::Network`]'s.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use openmrc_fabric::Fabric;
use openmrc_transport::Span;
use openmrc_wire::{bth, icrc, ip, link, rdma, reliability, udp};

/// What trimming leaves of a data packet: BTH, METH, TSETH and RETH (docs/spec/wire.md).
const TRIMMED: u32 = (bth::LEN + rdma::METH_LEN + rdma::TSETH_LEN + rdma::RETH_LEN) as u32;
/// A SACK: BTH, SETH with CC_STATE, iCRC.
const SACK: u32 = (bth::LEN + reliability::SACK_LEN + icrc::LEN) as u32;
const _: () = assert!(TRIMMED == 36 && SACK == 52, "as docs/spec/wire.md counts them");

/// What goes around a packet on the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Encapsulation {
    /// Ethernet | IPv6 | UDP.
    Udp,
    /// Ethernet | outer IPv6 | inner IPv6 | UDP: the outer destination address is the path (RFC 9800).
    Srv6,
}

impl Encapsulation {
    /// Preamble and start delimiter, least gap (IEEE 802.3): on the cable, but not part of a frame.
    pub const BETWEEN_FRAMES: u32 = 8 + 12;
    /// The same with header and checksum.
    const ETHERNET: u32 = Self::BETWEEN_FRAMES + link::ETHERNET_LEN as u32 + Self::CHECKSUM;
    const CHECKSUM: u32 = 4;
    /// Shortest frame, with preamble and gap.
    const SHORTEST: u32 = Self::BETWEEN_FRAMES + 64;
    const IPV6: u32 = ip::IPV6_LEN as u32;
    const UDP: u32 = udp::LEN as u32;

    /// Bytes a packet of `udp_payload` bytes takes on a cable.
    #[inline]
    pub const fn wire_bytes(self, udp_payload: u32) -> u32 {
        let ip = match self {
            Encapsulation::Udp => Self::IPV6,
            Encapsulation::Srv6 => 2 * Self::IPV6,
        };
        let bytes = udp_payload + Self::UDP + ip + Self::ETHERNET;
        if bytes < Self::SHORTEST { Self::SHORTEST } else { bytes }
    }

    /// Bytes of the IP packet in a frame that takes `wire_bytes` on a cable, padding included.
    #[inline]
    pub const fn ip_bytes(wire_bytes: u32) -> u32 {
        wire_bytes.saturating_sub(Self::ETHERNET)
    }
}

/// How switches choose among equally good ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// The entropy value is the path (SRv6 uN, or structured entropy values): switches choose nothing.
    #[serde(rename = "source")]
    SourceRouted,
    /// By a hash of connection and entropy value, with a salt of each switch's own.
    Ecmp,
    /// The uplink with the shortest queue; among equals, each packet takes another.
    Adaptive,
}

/// What a switch does with data that its queue has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Overflow {
    /// Cuts the payload off and forwards the headers in the control queue.
    Trim,
    /// Drops it.
    Drop,
}

/// What becomes of a port's queues while its link is slower than its rate.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SlowQueues {
    /// They hold as many bytes as were configured, as switches' do: they take longer to empty.
    #[default]
    Configured,
    /// They hold fewer bytes in proportion: they take as long to empty as at full rate.
    Scaled,
}

/// How the control queue shares a port with the data queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// Control first.
    Strict,
    /// Deficit round robin: the share of the port, in 1/256, that control has while both wait. With real queues only.
    Weighted(u8),
}

/// Where a data queue marks packets, at dequeue, by what is left behind them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EcnMarking {
    /// Nothing is marked up to here, bytes.
    pub min_bytes: u64,
    /// From here on every packet is marked; in between the probability rises linearly from 0 to `probability`. Equal to
    /// `min_bytes` for a step.
    pub max_bytes: u64,
    /// Probability just below `max_bytes`.
    pub probability: f64,
    /// Whether the last hop marks as well.
    pub on_last_hop: bool,
}

impl EcnMarking {
    /// Probability that a packet with `behind` bytes behind it is marked.
    #[inline]
    pub fn probability_at(&self, behind: u64) -> f64 {
        if behind < self.min_bytes {
            0.0
        } else if behind >= self.max_bytes {
            1.0
        } else {
            let share = (behind - self.min_bytes) as f64 / (self.max_bytes - self.min_bytes) as f64;
            share * self.probability
        }
    }
}

/// Priority flow control of the data class: senders are stopped, nothing is dropped for want of room.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PfcConfig {
    /// Buffer of a switch, bytes; `None` for that of a switch of its capacity ([`PfcConfig::BUFFER_TIME`]).
    pub buffer: Option<u64>,
    /// What a port may hold of the shared buffer before its peer is stopped, as a multiple of what is free.
    pub alpha: f64,
    /// Static threshold beside that, bytes.
    pub xoff: Option<u64>,
    /// The peer may go on when the port holds this many bytes less than its threshold.
    pub xon_offset: u64,
    /// Set aside for each port, for what still arrives after XOFF; `None` for what its cable and the longest packets
    /// need.
    pub headroom: Option<u64>,
}

impl PfcConfig {
    /// How long a switch's buffer takes to fill at its whole capacity: 165.2 MB at 51.2 Tb/s (Broadcom Tomahawk 5).
    pub const BUFFER_TIME: Span = Span::from_nanos(25_800);

    /// The buffer of a switch of this capacity, bits per second.
    pub fn buffer_of(&self, capacity_bps: u64) -> u64 {
        self.buffer.unwrap_or((Self::BUFFER_TIME.as_secs_f64() * capacity_bps as f64 / 8.0) as u64)
    }

    /// What one port may hold of a shared buffer of `size` bytes, `used` of them in use.
    #[inline]
    pub fn threshold(&self, size: u64, used: u64) -> u64 {
        let free = size.saturating_sub(used);
        let dynamic = ((free as f64 * self.alpha) as u64).min(free);
        dynamic.min(self.xoff.unwrap_or(u64::MAX))
    }
}

/// Queues of a switch port.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SwitchConfig {
    /// Data that would have to wait behind more than this is trimmed or dropped, bytes.
    pub data_bytes: u64,
    /// The same on the last hop.
    pub last_hop_data_bytes: u64,
    /// Most bytes waiting in the control queue; more are dropped.
    pub control_bytes: u64,
    /// What happens to data beyond `data_bytes`.
    pub overflow: Overflow,
    /// How control and data share a port.
    pub scheduling: Scheduling,
    /// ECN; `None` marks nothing.
    pub ecn: Option<EcnMarking>,
    /// PFC; `None` for a network that may lose data. With PFC the limits of the data queue and `overflow` are not used.
    pub pfc: Option<PfcConfig>,
    /// What the limits and ECN's thresholds mean at a link that is slow; those of PFC stay.
    pub slow_queues: SlowQueues,
}

/// How fast routing reacts to a link that goes down or comes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoutingReaction {
    /// Until the switch at a link without a carrier knows, and uses its other links instead.
    pub detection: Span,
    /// The same for a link that has a carrier and loses every packet.
    pub silent_detection: Span,
    /// From then until all switches route accordingly.
    pub convergence: Span,
}

/// Hosts whose NIC is software: packets wait in a receive buffer for each port until the processor comes to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SoftwareHosts {
    /// Receive buffer of a port, bytes of the host's memory; what does not fit is dropped.
    pub receive_buffer: u64,
    /// Rate at which a host handles the packets of all its ports, in the order of arrival, bits per second.
    pub service_rate_bps: u64,
    /// Most consecutive packets of a queue pair, and of a path.
    pub burst: u8,
    /// Round trip that loss detection starts from: most of it passes in the host.
    pub base_rtt: Span,
}

/// A network: a fabric, and how fast and long its parts are.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Which switches and cables there are.
    pub fabric: Fabric,
    /// Rate of every port, bits per second.
    pub port_rate_bps: u64,
    /// Propagation delay of the cables of each layer: host to T0, T0 to T1, and so on.
    pub cable: [Span; 4],
    /// From the last bit of a packet arriving at a switch until the packet is in its queue.
    pub switch_latency: Span,
    /// From the last bit of a packet arriving at a NIC until the transport has the packet.
    pub nic_latency: Span,
    /// Headers around each packet.
    pub encapsulation: Encapsulation,
    /// How ports are chosen.
    pub routing: Routing,
    /// How routing reacts to failures; `None` for static routes (docs/spec/baselines.md, "Routing").
    pub routing_reaction: Option<RoutingReaction>,
    /// Payload bytes per data packet.
    pub path_mtu: u16,
    /// Hosts are software; `None` for hardware, which handles packets as fast as they come.
    pub software: Option<SoftwareHosts>,
    /// Queues; [`NetworkConfig::default_switch`] if left open.
    pub switch: Option<SwitchConfig>,
    /// Real queues instead of departures computed on arrival: slower, and exact where control overtakes data. PFC and
    /// weighted scheduling have real queues anyway.
    pub exact_queues: bool,
    /// Seed of everything left to chance in the network.
    pub seed: u64,
}

impl NetworkConfig {
    /// Least rate of a port, bit/s: a byte's time, in picoseconds, fits 16 bits.
    pub const LEAST_RATE_BPS: f64 = 8e12 / 65_535.0;

    /// Bytes of a full data packet of MRC on a cable.
    pub fn full_packet_bytes(&self) -> u32 {
        self.encapsulation.wire_bytes(u32::from(self.path_mtu) + TRIMMED + icrc::LEN as u32)
    }

    /// Bytes of a data packet after trimming.
    pub fn trimmed_bytes(&self) -> u32 {
        self.encapsulation.wire_bytes(TRIMMED)
    }

    /// Bytes of a SACK on a cable.
    pub fn sack_bytes(&self) -> u32 {
        self.encapsulation.wire_bytes(SACK)
    }

    /// The time that `bytes` take on a port.
    pub fn serialization(&self, bytes: u64) -> Span {
        Span(bytes * self.picos_per_byte())
    }

    /// The time that a byte takes on a port, picoseconds.
    pub fn picos_per_byte(&self) -> u64 {
        (8_000_000_000_000 / self.port_rate_bps.max(1)).max(1)
    }

    /// From the end of a transmission on a cable of `layer` until the next node has the packet.
    pub fn hop_latency(&self, layer: u8, to_host: bool) -> Span {
        self.cable[layer as usize] + if to_host { self.nic_latency } else { self.switch_latency }
    }

    /// The shortest delay between two nodes.
    pub fn shortest_hop(&self) -> Span {
        let layers = (0..self.fabric.tiers()).map(|layer| self.hop_latency(layer, false));
        layers.fold(self.hop_latency(0, true), |shortest, hop| shortest.min(hop))
    }

    /// Delay of a packet of `bytes` on the longest idle path, stored and forwarded at every switch.
    pub fn one_way(&self, bytes: u32) -> Span {
        self.one_way_over(self.fabric.top(), bytes)
    }

    /// Delay of a packet of `bytes` between hosts whose path turns in tier `turn`.
    pub fn one_way_over(&self, turn: u8, bytes: u32) -> Span {
        let mut total = self.hop_latency(0, false) + self.hop_latency(0, true);
        for layer in 1..=turn {
            total = total + self.hop_latency(layer, false).times(2);
        }
        total + self.serialization(u64::from(bytes)).times(2 * u64::from(turn) + 2)
    }

    /// Round trip of a full packet and its SACK on the longest idle path (docs/spec/congestion.md, "Numbers").
    pub fn base_rtt(&self) -> Span {
        self.one_way(self.full_packet_bytes()) + self.one_way(self.sack_bytes())
    }

    /// Plane rate x base RTT, bytes.
    pub fn plane_bdp(&self) -> u64 {
        self.base_rtt().0 / self.picos_per_byte()
    }
}
