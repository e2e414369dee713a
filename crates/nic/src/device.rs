//! Devices: the addresses of this host that are ports (planes) of the NIC, and the NIC's settings. All defaults are
//! here, each with its reason.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use openmrc_transport::PortSet;
use openmrc_transport::mrc::{DEFAULT_ROTATION_TURNS, RequestorOptions, ResponderOptions};
use openmrc_wire::{DscpMap, Entropy, EntropyOrder, Ev, EvFormat};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::profile::DEFAULT_ACTIVE;

/// UDP destination port of RoCEv2 and MRC (IANA; spec: wire, Stack).
pub const DEFAULT_UDP_PORT: u16 = 4791;

/// Most paths of a device: twice the largest active set (spec: paths, EV set), for 16 ports.
pub const MAX_PATHS: usize = 4096;

/// Most UDP ports on which a port receives beside its own.
pub(crate) const MAX_UDP_PORTS: usize = 4;

/// One port of a device, which is one plane of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// An address of this host. Two ports differ in address or UDP port.
    pub addr: IpAddr,
    /// UDP port it receives on.
    pub udp_port: u16,
    /// UDP source ports of the default EV profile's paths. Empty: [`DeviceConfig::evs_per_port`] of them, chosen by the
    /// kernel. Must be empty in SRv6 mode, where EV profiles bring all paths.
    pub source_ports: Vec<u16>,
}

impl PortConfig {
    /// A port at `addr` with the default UDP port, whose source ports the kernel chooses.
    pub fn new(addr: IpAddr) -> Self {
        PortConfig { addr, udp_port: DEFAULT_UDP_PORT, source_ports: Vec::new() }
    }
}

/// Nodes whose endpoint requests (EV probes, port status updates) are answered (spec: transport, "Endpoint operations").
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
    /// Full turns after which the order of the paths is drawn anew; 0: never.
    pub rotation_turns: u16,
}

impl Default for QpChoices {
    fn default() -> Self {
        QpChoices {
            requestor: RequestorOptions::default(),
            responder: ResponderOptions::default(),
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

/// Configuration of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceConfig {
    /// Its name, in messages and thread names.
    pub name: String,
    /// Its ports, 1 to 16, all IPv4 or all IPv6.
    pub ports: Vec<PortConfig>,
    /// Format of entropy values; the same at both ends of a connection. UDP and structured values use UDP sockets.
    /// SRv6, with or without SRH, uses packet sockets, which need CAP_NET_RAW. Default UDP.
    pub ev_format: EvFormat,
    /// Which half of a 32-bit entropy is the UDP source port: in packets sent, and in what is reflected. Of a peer's
    /// feedback both orders are understood. Default: the low half \[choice\] (spec: wire, Where the entropy value goes).
    pub entropy_order: EntropyOrder,
    /// Bits of the values of the default EV profile in UDP mode: 16, or over IPv6 also 32, for fabrics that hash the
    /// flow label. Default 16 \[choice\].
    pub auto_bits: u8,
    /// UDP ports on which every port receives beside its own, at most 4: MRC 1.0 prints 4971 as a default. Answers go to
    /// the address that the peer gave. Default none.
    pub udp_ports: Vec<u16>,
    /// Entropy values per port in the default EV profile; half of them are active, half are backups. Default: 256 for
    /// all ports together, so that 128 are active (spec: paths, EV set).
    pub evs_per_port: Option<u16>,
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
    pub ev_burst: u8,
    /// DSCP code points.
    pub dscp: DscpMap,
    /// Whether the switches trim. Default off: a host's own network does not.
    pub network_trims: bool,
    /// Round-trip time of an idle path, the initial value of loss detection and congestion control. Default 500 us: the
    /// delay is in the scheduling of the hosts' processors, not in the network.
    pub base_rtt: Duration,
    /// Rate of all ports together, bits per second, from which the default NSCC profile is derived. Default 25 Gb/s.
    pub link_rate_bps: u64,
    /// Window of the default congestion control profile, bytes; 0: NSCC. Default: NSCC where the network trims, else
    /// 1 MiB. Sockets neither mark nor trim, and scheduling looks like queueing to NSCC.
    pub fixed_window: Option<u64>,
    /// Bytes received after which the responder sends a SACK. Default 128 KiB, as a SACK costs a system call at each
    /// end.
    pub ack_every_bytes: u32,
    /// Longest time after a packet until the responder sends a SACK. Default 50 us.
    pub ack_delay: Duration,
    /// What its queue pairs do where the specification leaves a choice.
    pub choices: QpChoices,
    /// How long an idle engine polls before it sleeps. Default 0: the host's processors have other work.
    pub spin: Duration,
    /// Processor on which the engine's thread runs; `None`: any.
    pub cpu: Option<usize>,
    /// Seed of all randomness except memory keys; `None`: a random one.
    pub seed: Option<u64>,
    /// Nodes whose endpoint requests are answered. Default: any.
    pub ep_ops: EpOps,
    /// Most queue pairs, 1..=16384. Default 16384.
    pub max_qps: u32,
    /// The upper 6 bits of all queue pair numbers, 0 to 63, for devices that share their addresses and differ in their UDP
    /// ports. Default none.
    pub number_slot: Option<u8>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            name: "mrc0".into(),
            ports: Vec::new(),
            ev_format: EvFormat::Udp,
            entropy_order: EntropyOrder::default(),
            auto_bits: 16,
            udp_ports: Vec::new(),
            evs_per_port: None,
            receive_buffer: 16 << 20,
            send_buffer: 1 << 20,
            segmentation: true,
            ev_burst: 15,
            dscp: DscpMap::DEFAULT,
            network_trims: false,
            base_rtt: Duration::from_micros(500),
            link_rate_bps: 25_000_000_000,
            fixed_window: None,
            ack_every_bytes: 128 << 10,
            ack_delay: Duration::from_micros(50),
            choices: QpChoices::default(),
            spin: Duration::ZERO,
            cpu: None,
            seed: None,
            ep_ops: EpOps::Any,
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

    /// Whether the device is in SRv6 mode: it builds whole frames itself.
    pub(crate) fn is_srv6(&self) -> bool {
        matches!(self.ev_format, EvFormat::Srv6 | EvFormat::Srv6Srh)
    }

    /// The place of an entropy value in the headers.
    pub(crate) fn place(&self, ev: Ev) -> Entropy {
        self.ev_format.place(ev, self.entropy_order)
    }

    /// Bits of the entropy values, of which a reflected one is compared.
    pub(crate) fn entropy_bits(&self) -> u8 {
        if self.ev_format == EvFormat::Udp { self.auto_bits } else { 32 }
    }

    /// Window of the default congestion control profile; `None`: NSCC.
    pub(crate) fn default_window(&self) -> Option<u64> {
        const WINDOW: u64 = 1 << 20;
        match self.fixed_window {
            None if self.network_trims => None,
            None => Some(WINDOW),
            Some(bytes) => Some(bytes).filter(|&bytes| bytes > 0),
        }
    }

    /// Entropy values of port `port` in the default EV profile.
    pub(crate) fn evs_of_port(&self, port: usize) -> usize {
        if self.is_srv6() {
            return 0;
        }
        match (self.ports[port].source_ports.len(), self.evs_per_port) {
            (0, Some(n)) => usize::from(n),
            (0, None) => (2 * usize::from(DEFAULT_ACTIVE) / self.ports.len()).max(2),
            (n, _) => n,
        }
    }

    fn validate(&self) -> Result<()> {
        let fail = |why: String| Err(Error::invalid(format!("device {}: {why}", self.name)));
        if self.ports.is_empty() || self.ports.len() > PortSet::MAX_PORTS {
            return fail(format!("needs 1 to {} ports, not {}", PortSet::MAX_PORTS, self.ports.len()));
        }
        let mut seen = std::collections::HashSet::new();
        for port in &self.ports {
            if port.addr.is_ipv4() != self.ports[0].addr.is_ipv4() {
                return fail("all ports must be IPv4, or all IPv6".into());
            }
            if port.addr.is_unspecified() || port.addr.is_multicast() {
                return fail(format!("{} is not the address of one interface", port.addr));
            }
            if port.udp_port == 0 {
                return fail("a port needs a UDP port to receive on, not 0".into());
            }
            if !seen.insert((port.addr, port.udp_port)) {
                return fail(format!("two ports receive on {} UDP port {}", port.addr, port.udp_port));
            }
        }
        if self.ev_format != EvFormat::Udp && self.ports[0].addr.is_ipv4() {
            return fail(format!(
                "entropy values in this format need IPv6 ports, not {}",
                self.ports[0].addr
            ));
        }
        let is_own = |udp_port: &u16| self.ports.iter().any(|port| port.udp_port == *udp_port);
        let distinct: std::collections::HashSet<_> = self.udp_ports.iter().collect();
        if self.udp_ports.len() > MAX_UDP_PORTS || distinct.len() < self.udp_ports.len() {
            return fail(format!("udp_ports must be at most {MAX_UDP_PORTS} different numbers"));
        }
        if self.udp_ports.contains(&0) || self.udp_ports.iter().any(is_own) {
            return fail("udp_ports must be other ports than those of its ports, and not 0".into());
        }
        if !matches!(self.auto_bits, 16 | 32) {
            return fail(format!("auto_bits must be 16 or 32, not {}", self.auto_bits));
        }
        if self.auto_bits == 32 && (self.ev_format != EvFormat::Udp || self.ports[0].addr.is_ipv4()) {
            return fail(
                "auto_bits 32 needs UDP mode over IPv6, whose flow label carries 16 of the bits".into(),
            );
        }
        if self.is_srv6() && self.ports.iter().any(|p| !p.source_ports.is_empty()) {
            return fail("in SRv6 mode a port takes no source ports: EV profiles bring all paths".into());
        }
        let paths: usize = (0..self.ports.len()).map(|p| self.evs_of_port(p)).sum();
        let none = !self.is_srv6() && (0..self.ports.len()).any(|p| self.evs_of_port(p) == 0);
        if none || paths > MAX_PATHS {
            return fail(format!(
                "needs 1 to {MAX_PATHS} entropy values, at least one per port, not {paths}"
            ));
        }
        if let Some((a, b)) = self.dscp.conflict() {
            return fail(format!("DSCP classes {a:?} and {b:?} need code points of their own below 64"));
        }
        if self.ev_burst == 0 {
            return fail("ev_burst must be at least 1".into());
        }
        if self.base_rtt.is_zero() || self.link_rate_bps == 0 {
            return fail("base_rtt and link_rate_bps must be more than 0".into());
        }
        if let EpOps::Prefixes(prefixes) = &self.ep_ops
            && let Some((addr, bits)) =
                prefixes.iter().find(|(addr, bits)| *bits > if addr.is_ipv4() { 32 } else { 128 })
        {
            return fail(format!("ep_ops: {addr}/{bits} is no prefix"));
        }
        if ![0x65, 0x61].contains(&self.choices.responder.wimm_nak_syndrome) {
            return fail(format!(
                "wimm_nak_syndrome must be 0x65 or 0x61, not {:#04x}",
                self.choices.responder.wimm_nak_syndrome
            ));
        }
        if self.max_qps == 0 || self.max_qps > 1 << 14 {
            return fail(format!("max_qps must be 1 to 16384, not {}", self.max_qps));
        }
        if let Some(slot @ 64..) = self.number_slot {
            return fail(format!("number_slot must be 0 to 63, not {slot}"));
        }
        Ok(())
    }
}

/// A software NIC that can be opened.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    config: DeviceConfig,
}

impl Device {
    /// A device with this configuration.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the configuration is not valid.
    pub fn new(config: DeviceConfig) -> Result<Self> {
        config.validate()?;
        Ok(Device { config })
    }

    /// Its configuration.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Address of each port: the `remote` attribute of the peers' queue pairs.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.config.ports.iter().map(|p| SocketAddr::new(p.addr, p.udp_port)).collect()
    }

    /// Opens its sockets and starts its engine.
    ///
    /// # Errors
    /// [`Error::Os`] if an address is not local, a UDP port is in use, or no descriptor is left.
    pub fn open(&self) -> Result<Context> {
        Context::open(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: DeviceConfig, word: &str) {
        let error = Device::new(config).unwrap_err().to_string();
        assert!(error.contains(word), "{error:?} should mention {word:?}");
    }

    #[test]
    fn an_invalid_configuration_is_refused_with_the_reason() {
        let base = DeviceConfig::loopback(1, 2);
        refused(DeviceConfig::loopback(1, 0), "1 to 16 ports");
        refused(DeviceConfig { ports: vec![base.ports[0].clone(); 2], ..base.clone() }, "two ports");
        refused(DeviceConfig { evs_per_port: Some(0), ..base.clone() }, "entropy values");
        refused(DeviceConfig { ev_burst: 0, ..base.clone() }, "ev_burst");
        let mut mixed = base.clone();
        mixed.ports[1].addr = "::1".parse().unwrap();
        refused(mixed, "IPv6");
        let mut wild = base.clone();
        wild.ports[0].addr = "0.0.0.0".parse().unwrap();
        refused(wild, "0.0.0.0");
        let dscp = DscpMap { trimmed: 46, ..DscpMap::DEFAULT };
        refused(DeviceConfig { dscp, ..base.clone() }, "DSCP");
        for udp_ports in [vec![4791], vec![0], vec![1, 1], vec![1, 2, 3, 4, 5]] {
            refused(DeviceConfig { udp_ports, ..base.clone() }, "udp_ports");
        }
        refused(DeviceConfig { auto_bits: 24, ..base.clone() }, "16 or 32");
        refused(DeviceConfig { auto_bits: 32, ..base }, "IPv6");
    }

    #[test]
    fn endpoint_requests_are_answered_to_whom_the_option_names() {
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        let prefixes = EpOps::Prefixes(vec![(addr("10.1.0.0"), 16), (addr("fd00::"), 8), (addr("::1"), 128)]);
        for (source, expected) in [
            ("10.1.255.3", true),
            ("10.2.0.1", false),
            ("fdff::1", true),
            ("fe00::1", false),
            ("::1", true),
            ("::2", false),
        ] {
            assert_eq!(prefixes.answers(addr(source), false), expected, "{source}");
            assert!(prefixes.answers(addr(source), true) && EpOps::Any.answers(addr(source), false));
            assert!(EpOps::Peers.answers(addr(source), true) && !EpOps::Peers.answers(addr(source), false));
            assert!(!EpOps::Off.answers(addr(source), true));
        }
        assert!(EpOps::Prefixes(vec![(addr("0.0.0.0"), 0)]).answers(addr("9.9.9.9"), false));
        let config = DeviceConfig {
            ep_ops: EpOps::Prefixes(vec![(addr("1.2.3.4"), 33)]),
            ..DeviceConfig::loopback(1, 1)
        };
        refused(config, "1.2.3.4/33");
    }

    #[test]
    fn by_default_128_paths_are_active_and_128_are_backups() {
        for ports in [1, 2, 4, 8, 16] {
            let config = DeviceConfig::loopback(1, ports);
            assert_eq!((0..ports).map(|p| config.evs_of_port(p)).sum::<usize>(), 256);
        }
    }
}
