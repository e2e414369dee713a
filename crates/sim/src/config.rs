//! What a simulated network is made of: rates, lengths, switches, routing. All defaults live here, each with its source.

use openmrc_fabric::Fabric;
use openmrc_transport::Span;

/// What goes around a packet on the cable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encapsulation {
    /// Ethernet | IPv6 | UDP.
    Udp,
    /// Ethernet | outer IPv6 | inner IPv6 | UDP: the outer destination address is the path (RFC 9800).
    Srv6,
}

impl Encapsulation {
    /// Preamble and start delimiter, least gap (IEEE 802.3): time on the cable that is no part of a frame.
    pub(crate) const BETWEEN_FRAMES: u32 = 8 + 12;
    /// Header and checksum beside that.
    const ETHERNET: u32 = Self::BETWEEN_FRAMES + 14 + 4;
    /// Shortest frame, with preamble and gap.
    const SHORTEST: u32 = Self::BETWEEN_FRAMES + 64;
    const IPV6: u32 = 40;
    const UDP: u32 = 8;

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
}

/// How switches choose among equally good ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// The entropy value is the path (SRv6 uN, or structured entropy values): switches choose nothing.
    SourceRouted,
    /// By a hash of connection and entropy value, which each switch salts in its own way.
    Ecmp,
    /// The uplink with the shortest queue; among equals, another for each packet.
    Adaptive,
}

/// What a switch does with data that its queue has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    /// Cuts the payload off and forwards the headers in the control queue.
    Trim,
    /// Drops it.
    Drop,
}

/// How the control queue shares a port with the data queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// Control first.
    Strict,
    /// Deficit round robin: this share of the port is for control while both wait, in 1/256. With real queues only.
    Weighted(u8),
}

/// Where a data queue marks packets, at dequeue, by what is left behind them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EcnMarking {
    /// Nothing is marked up to here, bytes.
    pub min_bytes: u64,
    /// From here on everything is; in between linearly from nothing to `probability`. Equal to `min_bytes` for a step.
    pub max_bytes: u64,
    /// Probability just below `max_bytes`.
    pub probability: f64,
    /// Whether the last hop marks as well.
    pub on_last_hop: bool,
}

impl EcnMarking {
    /// How likely a packet with so many bytes behind it is marked.
    #[inline]
    pub(crate) fn probability_at(&self, behind: u64) -> f64 {
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

/// Priority flow control of the data class: nothing is dropped for want of room, senders are stopped instead.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PfcConfig {
    /// Buffer of a switch, bytes; `None` for what a switch of its capacity has ([`PfcConfig::BUFFER_TIME`]).
    pub buffer: Option<u64>,
    /// A port may have so many times what is free of the shared buffer in it before its peer is stopped ...
    pub alpha: f64,
    /// ... and never more than this, bytes: a static threshold.
    pub xoff: Option<u64>,
    /// The peer may go on so many bytes below the threshold.
    pub xon_offset: u64,
    /// Set aside for each port, for what still comes after XOFF; `None` for what its cable and the longest packets need.
    pub headroom: Option<u64>,
}

impl PfcConfig {
    /// How long a switch's buffer takes to fill at its whole capacity: 165.2 MB at 51.2 Tb/s (Broadcom Tomahawk 5).
    pub const BUFFER_TIME: Span = Span::from_nanos(25_800);

    /// Dynamic thresholds with alpha 1, so that ECN acts before PFC, and XON two full packets below XOFF (Zhu et al., SIGCOMM
    /// 2015, section 4).
    pub fn new(full_packet_bytes: u32) -> Self {
        let xon_offset = 2 * u64::from(full_packet_bytes);
        PfcConfig { buffer: None, alpha: 1.0, xoff: None, xon_offset, headroom: None }
    }

    /// The buffer of a switch of this capacity, bits per second.
    pub(crate) fn buffer_of(&self, capacity_bps: u64) -> u64 {
        self.buffer.unwrap_or((Self::BUFFER_TIME.as_secs_f64() * capacity_bps as f64 / 8.0) as u64)
    }

    /// What one port may have in a shared buffer of `size` bytes of which `used` are in use.
    pub(crate) fn threshold(&self, size: u64, used: u64) -> u64 {
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
    /// What happens beyond `data_bytes`.
    pub overflow: Overflow,
    /// How control and data share a port.
    pub scheduling: Scheduling,
    /// ECN; `None` marks nothing.
    pub ecn: Option<EcnMarking>,
    /// PFC; `None` for a network that may lose data. With it the limits of the data queue and `overflow` mean nothing.
    pub pfc: Option<PfcConfig>,
}

/// How fast routing reacts to a link that goes down or comes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoutingReaction {
    /// Until the switch at the link knows, and uses its other links instead: loss of carrier takes about a millisecond, BFD 300 ms, a hold
    /// timer 9 to 180 s.
    pub detection: Span,
    /// From then until all switches route accordingly: propagation and reprogramming, 0.1 s to tens of seconds.
    pub convergence: Span,
}

/// A network: a fabric, and how fast, how long and how clever its parts are.
#[derive(Clone, Debug)]
pub struct NetworkConfig {
    /// Which switches and cables there are.
    pub fabric: Fabric,
    /// Rate of every port, bits per second.
    pub port_rate_bps: u64,
    /// Propagation delay of the cables of each layer: host to T0, T0 to T1, and so on.
    pub cable: [Span; 4],
    /// From the last bit of a packet coming in to its queue.
    pub switch_latency: Span,
    /// From the last bit of a packet coming in to the transport.
    pub nic_latency: Span,
    /// Headers around each packet.
    pub encapsulation: Encapsulation,
    /// How ports are chosen.
    pub routing: Routing,
    /// How routing reacts to failures; `None` for static routes, which do not (spec: baselines, "Routing").
    pub routing_reaction: Option<RoutingReaction>,
    /// Payload bytes per data packet.
    pub path_mtu: u16,
    /// Queues; computed from rate and delay if left open ([`NetworkConfig::default_switch`]).
    pub switch: Option<SwitchConfig>,
    /// Real queues instead of departures computed on arrival: slower, and exact where control overtakes data. PFC and weighted
    /// scheduling have them anyway.
    pub exact_queues: bool,
    /// Seed of everything that is left to chance in the network.
    pub seed: u64,
}

impl NetworkConfig {
    /// 500 ns for every cable (100 m), 500 ns for every switch, 500 ns for a NIC: a round trip of about 10 us through two
    /// tiers at 100 Gb/s, near the reference network of NSCC.
    pub fn new(fabric: Fabric, port_rate_bps: u64) -> Self {
        NetworkConfig {
            fabric,
            port_rate_bps,
            cable: [Span::from_nanos(500); 4],
            switch_latency: Span::from_nanos(500),
            nic_latency: Span::from_nanos(500),
            encapsulation: Encapsulation::Srv6,
            routing: Routing::SourceRouted,
            routing_reaction: None,
            path_mtu: 4096,
            switch: None,
            exact_queues: false,
            seed: 1,
        }
    }

    /// Bytes of a full data packet of MRC on a cable.
    pub fn full_packet_bytes(&self) -> u32 {
        // BTH 12, METH 4, TSETH 4, RETH 16, iCRC 4 (spec: wire).
        self.encapsulation.wire_bytes(u32::from(self.path_mtu) + 40)
    }

    /// Bytes of a data packet after trimming.
    pub fn trimmed_bytes(&self) -> u32 {
        self.encapsulation.wire_bytes(36)
    }

    /// How long `bytes` take on a port.
    pub fn serialization(&self, bytes: u64) -> Span {
        Span(bytes * self.picos_per_byte())
    }

    /// Picoseconds that a byte takes on a port.
    pub fn picos_per_byte(&self) -> u64 {
        (8_000_000_000_000 / self.port_rate_bps.max(1)).max(1)
    }

    /// Delay from the end of one node's transmission on a cable of `layer` to the packet being in the next node's hands.
    pub fn hop_latency(&self, layer: u8, to_host: bool) -> Span {
        self.cable[layer as usize] + if to_host { self.nic_latency } else { self.switch_latency }
    }

    /// The shortest delay between two nodes.
    pub fn shortest_hop(&self) -> Span {
        let layers = (0..self.fabric.tiers()).map(|layer| self.hop_latency(layer, false));
        layers.fold(self.hop_latency(0, true), |shortest, hop| shortest.min(hop))
    }

    /// One way of a packet of `bytes` on the longest idle path, stored and forwarded at every switch.
    pub fn one_way(&self, bytes: u32) -> Span {
        self.one_way_over(self.fabric.top(), bytes)
    }

    /// One way of a packet of `bytes` between hosts that meet in tier `turn`.
    pub fn one_way_over(&self, turn: u8, bytes: u32) -> Span {
        let mut total = self.hop_latency(0, false) + self.hop_latency(0, true);
        for layer in 1..=turn {
            total = total + self.hop_latency(layer, false).times(2);
        }
        total + self.serialization(u64::from(bytes)).times(2 * u64::from(turn) + 2)
    }

    /// Round trip of a full packet and its SACK on the longest idle path (spec: congestion, `base_rtt`).
    pub fn base_rtt(&self) -> Span {
        // BTH 12, SETH and CC_STATE 36, iCRC 4.
        self.one_way(self.full_packet_bytes()) + self.one_way(self.encapsulation.wire_bytes(52))
    }

    /// Plane rate x base RTT, bytes.
    pub fn plane_bdp(&self) -> u64 {
        self.base_rtt().0 / self.picos_per_byte()
    }

    /// The switch settings MRC was designed for (spec: congestion, "Switch settings").
    pub fn default_switch(&self) -> SwitchConfig {
        let bdp = self.plane_bdp();
        SwitchConfig {
            data_bytes: bdp,
            last_hop_data_bytes: bdp + bdp / 2,
            control_bytes: bdp,
            overflow: Overflow::Trim,
            scheduling: Scheduling::Strict,
            ecn: Some(EcnMarking {
                min_bytes: bdp / 5,
                max_bytes: bdp * 4 / 5,
                probability: 1.0,
                on_last_hop: false,
            }),
            pfc: None,
        }
    }

    /// The switch settings RoCEv2 with DCQCN is run with (spec: baselines): marking from 400 KB to 1,600 KB with at most 0.2 at
    /// 100 Gb/s, scaled with the rate, on every hop; lossless.
    pub fn rocev2_switch(&self) -> SwitchConfig {
        SwitchConfig { pfc: Some(PfcConfig::new(self.full_packet_bytes())), ..self.lossy_rocev2_switch() }
    }

    /// The same without PFC: four times the highest threshold of marking before anything is dropped.
    pub fn lossy_rocev2_switch(&self) -> SwitchConfig {
        let scaled = |bytes: u64| (bytes as u128 * u128::from(self.port_rate_bps) / 100_000_000_000) as u64;
        let (min_bytes, max_bytes) = (scaled(400_000), scaled(1_600_000));
        SwitchConfig {
            data_bytes: 4 * max_bytes,
            last_hop_data_bytes: 4 * max_bytes,
            overflow: Overflow::Drop,
            ecn: Some(EcnMarking { min_bytes, max_bytes, probability: 0.2, on_last_hop: true }),
            ..self.default_switch()
        }
    }
}
