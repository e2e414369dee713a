//! Configuration of a device: the addresses of this host that are its ports (planes), and what it does where there is a
//! choice. `options` has the list of options, each with its default and the reason for it; `setting` reads their values.

mod options;
mod setting;

use std::net::{IpAddr, Ipv4Addr};

use openmrc_transport::mrc::{DEFAULT_ROTATION_TURNS, RequestorOptions, ResponderOptions};
use openmrc_transport::node::Numbers;
use openmrc_transport::presets::software;
use openmrc_wire::{Entropy, Ev, EvFormat, ROCE_PORT};

use crate::profiles::engine::DEFAULT_ACTIVE;

pub use options::{
    DEVICE_OPTIONS, DeviceOption, EndpointConfig, EntropyConfig, NetworkConfig, SackConfig, SocketConfig,
    ThreadConfig,
};
pub use setting::{Form, Setting};

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
    /// Threads that poll an empty completion queue again and again take the turns of the engine, as in polling mode,
    /// and the engine's thread stands aside until they stop. Default off: programs that want it call
    /// [`crate::Context::polling`].
    pub callers_drive: bool,
    /// The upper 8 bits of all queue pair numbers, for devices that share their addresses and differ in their
    /// UDP ports. Default none.
    pub number_slot: Option<u8>,
}

/// The [`DeviceConfig::number_slot`] of the device that has this queue pair.
pub const fn number_slot_of(qp_num: u32) -> u8 {
    Numbers::prefix_of(qp_num)
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
            callers_drive: false,
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
