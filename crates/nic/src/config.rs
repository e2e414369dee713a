//! Settings of a device: the addresses of this host that are its ports (planes), and what it does where there is a
//! choice. All defaults are here, each with its reason.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use openmrc_transport::Span;
use openmrc_transport::mrc::{DEFAULT_ROTATION_TURNS, RequestorOptions, ResponderOptions};
use openmrc_transport::node::PortMaskBase;
use openmrc_transport::presets::software;
use openmrc_wire::{DscpMap, Entropy, EntropyOrder, Ev, EvFormat, ROCE_PORT};

use crate::profiles::engine::DEFAULT_ACTIVE;

/// UDP destination port of RoCEv2 and MRC (IANA; docs/spec/wire.md, "Stack").
pub const DEFAULT_UDP_PORT: u16 = ROCE_PORT;

/// Most paths of a device: twice the largest active set (docs/spec/paths.md, "EV set"), for 16 ports.
pub const MAX_PATHS: usize = 4096;

/// Largest number of UDP ports on which a port receives in addition to its own.
pub(crate) const MAX_UDP_PORTS: usize = 4;

/// One port of a device, which is one plane of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// An address of this host. Two ports differ in address or UDP port.
    pub addr: IpAddr,
    /// UDP port it receives on.
    pub udp_port: u16,
    /// UDP source ports of the default EV profile's paths. Empty: [`EntropyConfig::per_port`] of them, chosen by the
    /// kernel. Must be empty in SRv6 mode, where EV profiles bring all paths.
    pub source_ports: Vec<u16>,
}

impl PortConfig {
    /// A port at `addr` with the default UDP port, whose source ports the kernel chooses.
    pub fn new(addr: IpAddr) -> Self {
        PortConfig { addr, udp_port: DEFAULT_UDP_PORT, source_ports: Vec::new() }
    }
}

/// Nodes whose endpoint requests (EV probes, port status updates) are answered (docs/spec/transport.md, "Endpoint
/// operations").
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum EpOps {
    /// Any node. Those without a queue pair here share a rate.
    #[default]
    Any,
    /// Nodes that a queue pair is connected to, or that were added as peers.
    Peers,
    /// Peers, and addresses that begin with one of these, each with the length of its prefix in bits.
    Prefixes(Vec<(IpAddr, u8)>),
    /// None.
    Off,
}

impl EpOps {
    /// Whether a node at this address is answered; `peer`: a queue pair is connected to it.
    pub(crate) fn answers(&self, source: IpAddr, peer: bool) -> bool {
        match self {
            EpOps::Any => true,
            EpOps::Peers => peer,
            EpOps::Prefixes(prefixes) => peer || prefixes.iter().any(|&p| begins_with(source, p)),
            EpOps::Off => false,
        }
    }
}

/// What the queue pairs of a device do where the specification leaves a choice, or public readings of it differ. The
/// defaults are the transport's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpChoices {
    /// As requestor.
    pub requestor: RequestorOptions,
    /// As responder.
    pub responder: ResponderOptions,
    /// A message with immediate is acknowledged before its receive completes, so that the receiving process may exit
    /// at once. Default off.
    pub acks_immediates: bool,
    /// The answer to a message of one packet is sent right after the next data to its sender. For programs that wait
    /// for a completion and for the peer's data alternately. Default off: it costs one more packet per message.
    pub answers_behind_data: bool,
    /// Full turns after which the order of the paths is drawn anew; 0: never.
    pub rotation_turns: u16,
}

impl Default for QpChoices {
    fn default() -> Self {
        QpChoices {
            requestor: RequestorOptions::default(),
            responder: ResponderOptions::default(),
            acks_immediates: false,
            answers_behind_data: false,
            rotation_turns: DEFAULT_ROTATION_TURNS,
        }
    }
}

/// Whether the first bits of an address are those of a prefix.
fn begins_with(addr: IpAddr, (prefix, bits): (IpAddr, u8)) -> bool {
    let number = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    };
    let ((addr, width), (prefix, of_prefix)) = (number(addr), number(prefix));
    width == of_prefix && (addr ^ prefix).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
}

/// Entropy values: where packets carry them, and those of the default EV profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntropyConfig {
    /// Their format; the same at both ends of a connection. UDP and structured values use UDP sockets. SRv6, with or
    /// without SRH, uses packet sockets, which need CAP_NET_RAW. Default UDP.
    pub format: EvFormat,
    /// Which half of a 32-bit entropy is the UDP source port: in packets sent, and in what is reflected. Of a peer's
    /// feedback both orders are understood. Default: the low half \[choice\] (docs/spec/wire.md, "Where the entropy
    /// value goes").
    pub order: EntropyOrder,
    /// Bits of the values of the default EV profile in UDP mode: 16, or over IPv6 also 32, for fabrics that hash the
    /// flow label. Default 16 \[choice\].
    pub auto_bits: u8,
    /// Values per port in the default EV profile; half of them are active, half are backups. Default: 256 for all ports
    /// together, so that 128 are active (docs/spec/paths.md, "EV set").
    pub per_port: Option<u16>,
}

impl Default for EntropyConfig {
    fn default() -> Self {
        EntropyConfig { format: EvFormat::Udp, order: EntropyOrder::default(), auto_bits: 16, per_port: None }
    }
}

impl EntropyConfig {
    /// Whether the device is in SRv6 mode: it builds whole frames itself.
    pub(crate) fn is_srv6(&self) -> bool {
        matches!(self.format, EvFormat::Srv6 | EvFormat::Srv6Srh)
    }

    /// The place of an entropy value in the headers.
    pub(crate) fn split(&self, ev: Ev) -> Entropy {
        self.format.split(ev, self.order)
    }

    /// Bits of the entropy values, of which a reflected one is compared.
    pub(crate) fn bits(&self) -> u8 {
        if self.format == EvFormat::Udp { self.auto_bits } else { 32 }
    }
}

/// Sockets, and how many packets one system call takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketConfig {
    /// Receive buffer of each port's socket, bytes. Without CAP_NET_ADMIN the kernel may limit it
    /// (`net.core.rmem_max`). Default 16 MiB: four windows of 8 x 128 packets of 4096 bytes.
    pub receive_buffer: usize,
    /// Send buffer of each path's socket, bytes. Default 1 MiB: 16 runs of 64 KiB.
    pub send_buffer: usize,
    /// Send and receive several packets of one path by one system call (UDP GSO and GRO), if the kernel can. Default
    /// on.
    pub segmentation: bool,
    /// Most consecutive packets on one path; fewer if they do not fit one system call, and 8 if they are not ready at
    /// the same time. Hardware uses 1. Default 15, as many packets of 4096 bytes as fit one system call.
    pub burst: u8,
    /// UDP ports on which every port receives in addition to its own, at most 4. MRC 1.0 prints 4971 as a default.
    /// Answers go to the address that the peer gave. Default none.
    pub more_udp_ports: Vec<u16>,
    /// Raise the process's limit of open descriptors to its hard limit: each path has a socket. Default on; a library in
    /// somebody else's program asks first.
    pub raise_descriptor_limit: bool,
}

impl Default for SocketConfig {
    fn default() -> Self {
        SocketConfig {
            receive_buffer: 16 << 20,
            send_buffer: 1 << 20,
            segmentation: true,
            burst: software::BURST,
            more_udp_ports: Vec::new(),
            raise_descriptor_limit: true,
        }
    }
}

/// What the device assumes of its network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetworkConfig {
    /// DSCP code points.
    pub dscp: DscpMap,
    /// Whether the switches trim. Default off: a host's own network does not.
    pub trims: bool,
    /// Round-trip time of an idle path, the initial value of loss detection and congestion control. Default 500 us: the
    /// delay is in the scheduling of the hosts' processors, not in the network.
    pub base_rtt: Duration,
    /// Rate of all ports together, bits per second, from which the default NSCC profile is derived. Default 25 Gb/s.
    pub link_rate_bps: u64,
    /// Window of the default congestion control profile, bytes; 0: NSCC. Default: NSCC where the network trims, else
    /// 1 MiB. Sockets neither mark nor trim, and scheduling looks like queueing to NSCC.
    pub fixed_window: Option<u64>,
}

/// A duration of the transport, as it is configured.
fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            dscp: DscpMap::DEFAULT,
            trims: false,
            base_rtt: duration(software::BASE_RTT),
            link_rate_bps: 25_000_000_000,
            fixed_window: None,
        }
    }
}

impl NetworkConfig {
    /// Window of the default congestion control profile; `None`: NSCC.
    pub(crate) fn default_window(&self) -> Option<u64> {
        match self.fixed_window {
            None if self.trims => None,
            Some(0) => None,
            _ => Some(self.window()),
        }
    }

    /// The window of a profile without an algorithm.
    pub(crate) fn window(&self) -> u64 {
        self.fixed_window.filter(|&bytes| bytes > 0).unwrap_or(software::FIXED_WINDOW)
    }
}

/// When a responder sends a SACK unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackConfig {
    /// Bytes received after which it does. Default 128 KiB, as a SACK costs a system call at each end.
    pub every_bytes: u32,
    /// Longest time after a packet until it does. Default 50 us.
    pub delay: Duration,
}

impl Default for SackConfig {
    fn default() -> Self {
        SackConfig { every_bytes: software::ACK_EVERY_BYTES, delay: duration(software::ACK_DELAY) }
    }
}

/// Endpoint requests, which are not part of a queue pair.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EndpointConfig {
    /// Nodes whose requests are answered. Default: any.
    pub answered: EpOps,
    /// Bit of a port status mask that means the first port: in updates sent, and in those of a peer of which neither
    /// the first nor the last port has been up. Default 0 \[choice\] (docs/spec/wire.md, "ERTH").
    pub port_mask_base: PortMaskBase,
}

/// The engine's thread.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ThreadConfig {
    /// How long an idle engine polls before it sleeps. Default 0: the host's processors have other work.
    pub spin: Duration,
    /// Processor on which it runs; `None`: any.
    pub cpu: Option<usize>,
    /// Threads that poll an empty completion queue again and again take the turns of the engine, as in polling mode,
    /// and the engine's thread stands aside until they stop. Default off: programs that want it call
    /// [`crate::Context::polling`].
    pub callers_drive: bool,
}

/// Configuration of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceConfig {
    /// Its name, in messages and thread names.
    pub name: String,
    /// Its ports, 1 to 16, all IPv4 or all IPv6.
    pub ports: Vec<PortConfig>,
    /// Entropy values.
    pub entropy: EntropyConfig,
    /// Sockets.
    pub sockets: SocketConfig,
    /// The network.
    pub network: NetworkConfig,
    /// Unasked SACKs.
    pub sacks: SackConfig,
    /// Endpoint requests.
    pub endpoint: EndpointConfig,
    /// What its queue pairs do where the specification leaves a choice.
    pub choices: QpChoices,
    /// The engine's thread.
    pub thread: ThreadConfig,
    /// Seed of all randomness except memory keys; `None`: a random one.
    pub seed: Option<u64>,
    /// Most queue pairs, 1..=16384. Default 16384.
    pub max_qps: u32,
    /// The upper 6 bits of all queue pair numbers, 0 to 63, for devices that share their addresses and differ in their
    /// UDP ports. Default none.
    pub number_slot: Option<u8>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            name: "mrc0".into(),
            ports: Vec::new(),
            entropy: EntropyConfig::default(),
            sockets: SocketConfig::default(),
            network: NetworkConfig::default(),
            sacks: SackConfig::default(),
            endpoint: EndpointConfig::default(),
            choices: QpChoices::default(),
            thread: ThreadConfig::default(),
            seed: None,
            max_qps: 1 << 14,
            number_slot: None,
        }
    }
}

impl DeviceConfig {
    /// A device with one port per address.
    pub fn with_addresses(addrs: impl IntoIterator<Item = IpAddr>) -> Self {
        DeviceConfig { ports: addrs.into_iter().map(PortConfig::new).collect(), ..Self::default() }
    }

    /// A device of `ports` planes on loopback: 127.x.`node`.1 with x = 1, 2, ... On Linux all of 127/8 is local, so
    /// this needs no configuration of the host.
    pub fn loopback(node: u8, ports: usize) -> Self {
        Self::with_addresses((0..ports).map(|p| IpAddr::V4(Ipv4Addr::new(127, p as u8 + 1, node, 1))))
    }

    /// Entropy values of port `port` in the default EV profile.
    pub(crate) fn evs_of_port(&self, port: usize) -> usize {
        if self.entropy.is_srv6() {
            return 0;
        }
        match (self.ports[port].source_ports.len(), self.entropy.per_port) {
            (0, Some(n)) => usize::from(n),
            (0, None) => (2 * usize::from(DEFAULT_ACTIVE) / self.ports.len()).max(2),
            (n, _) => n,
        }
    }
}
