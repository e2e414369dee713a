//! Devices: which addresses of this host are ports (planes) of the NIC, and how it behaves. All defaults live here,
//! each with its source.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use openmrc_transport::PortSet;
use openmrc_wire::{DscpMap, EvFormat};

use crate::context::Context;
use crate::error::{Error, Result};

/// UDP destination port of RoCEv2 and MRC (IANA; spec: wire, Stack).
pub const DEFAULT_UDP_PORT: u16 = 4791;

/// Most entropy values of a device: twice the largest active set (spec: paths, EV set), and 16 ports.
pub const MAX_PATHS: usize = 4096;

/// One port of a device, which is one plane of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// An address of this host. Ports differ in address or in UDP port.
    pub addr: IpAddr,
    /// UDP port it receives on.
    pub udp_port: u16,
    /// UDP source ports of the device's own entropy values; empty: as many as [`DeviceConfig::evs_per_port`], chosen by the
    /// kernel. In SRv6 mode there are none: all paths come with EV profiles.
    pub source_ports: Vec<u16>,
}

impl PortConfig {
    /// A port at `addr`, with the default UDP port and source ports that the kernel chooses.
    pub fn new(addr: IpAddr) -> Self {
        PortConfig { addr, udp_port: DEFAULT_UDP_PORT, source_ports: Vec::new() }
    }
}

/// How a device is made.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceConfig {
    /// Its name, for people.
    pub name: String,
    /// Its ports, 1 to 16, all IPv4 or all IPv6.
    pub ports: Vec<PortConfig>,
    /// Where entropy values go. UDP and structured ones need UDP sockets only; SRv6, with or without SRH, packet sockets
    /// and so CAP_NET_RAW. Both ends of a connection have the same. Default UDP.
    pub ev_format: EvFormat,
    /// Entropy values per port, half of them active and half in reserve. Default: 256 over the ports, so that 128 are
    /// active (spec: paths, EV set).
    pub evs_per_port: Option<u16>,
    /// Receive buffer of each port's socket, bytes; the kernel may give less (`net.core.rmem_max`) unless
    /// privileged. Default 16 MiB: a window of 8 x 128 packets of 4096 bytes, four times over.
    pub receive_buffer: usize,
    /// Send buffer of each path's socket, bytes. Default 1 MiB: some runs of 64 KiB.
    pub send_buffer: usize,
    /// Several packets of one path in one system call (UDP GSO), and several received in one (UDP GRO), where the
    /// kernel has them. Default on.
    pub segmentation: bool,
    /// Consecutive packets on one path, at most; fewer where so many do not fit one system call, or do not come at once
    /// (8 then). 1 is what hardware does; the default 15, as many of 4096 bytes as fit, costs a fifteenth of the system calls.
    pub ev_burst: u8,
    /// DSCP code points.
    pub dscp: DscpMap,
    /// Whether switches of this network trim. Default off: a host's own network does not.
    pub network_trims: bool,
    /// Round-trip time of an idle path, from which loss detection and congestion control start. Default 500 us: a host
    /// that shares its processors, not a wire.
    pub base_rtt: Duration,
    /// Rate of all ports together, bits per second, for congestion control profiles made from it. Default 25 Gb/s.
    pub link_rate_bps: u64,
    /// Fixed window of the default congestion control profile, bytes; `None`: NSCC. Default 1 MiB: a host's sockets
    /// neither mark nor trim, and a fixed window below their buffers loses nothing.
    pub fixed_window: Option<u64>,
    /// As responder, a SACK at least after so many bytes. Default 128 KiB: feedback costs a system call at each end.
    pub ack_every_bytes: u32,
    /// As responder, a SACK at the latest so long after a packet. Default 50 us.
    pub ack_delay: Duration,
    /// How long the engine keeps looking for packets before it sleeps. Default 0: a host has other work to do.
    pub spin: Duration,
    /// Processor the engine's thread is bound to.
    pub cpu: Option<usize>,
    /// Seed of everything random except keys; default from the system.
    pub seed: Option<u64>,
    /// Most queue pairs, 1..=16384. Default 16384.
    pub max_qps: u32,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            name: "mrc0".into(),
            ports: Vec::new(),
            ev_format: EvFormat::Udp,
            evs_per_port: None,
            receive_buffer: 16 << 20,
            send_buffer: 1 << 20,
            segmentation: true,
            ev_burst: 15,
            dscp: DscpMap::DEFAULT,
            network_trims: false,
            base_rtt: Duration::from_micros(500),
            link_rate_bps: 25_000_000_000,
            fixed_window: Some(1 << 20),
            ack_every_bytes: 128 << 10,
            ack_delay: Duration::from_micros(50),
            spin: Duration::ZERO,
            cpu: None,
            seed: None,
            max_qps: 1 << 14,
        }
    }
}

impl DeviceConfig {
    /// A device with these addresses as its ports.
    pub fn with_addresses(addrs: impl IntoIterator<Item = IpAddr>) -> Self {
        DeviceConfig { ports: addrs.into_iter().map(PortConfig::new).collect(), ..Self::default() }
    }

    /// A device of `ports` planes on loopback: 127.x.`node`.1 with x = 1, 2, ... for the planes. Nothing has to be
    /// configured for that on Linux, where all of 127/8 is local.
    pub fn loopback(node: u8, ports: usize) -> Self {
        Self::with_addresses((0..ports).map(|p| IpAddr::V4(Ipv4Addr::new(127, p as u8 + 1, node, 1))))
    }

    /// Whether the NIC builds SRv6 frames itself.
    pub(crate) fn is_srv6(&self) -> bool {
        matches!(self.ev_format, EvFormat::Srv6 | EvFormat::Srv6Srh)
    }

    /// Entropy values of port `port` that are the device's own.
    pub(crate) fn evs_of_port(&self, port: usize) -> usize {
        if self.is_srv6() {
            return 0;
        }
        match (self.ports[port].source_ports.len(), self.evs_per_port) {
            (0, Some(n)) => usize::from(n),
            (0, None) => (256 / self.ports.len()).max(2),
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
        if self.is_srv6() && self.ports.iter().any(|p| !p.source_ports.is_empty()) {
            return fail(
                "in SRv6 mode a port has no source ports of its own: paths come with EV profiles".into(),
            );
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
        if self.max_qps == 0 || self.max_qps > 1 << 14 {
            return fail(format!("max_qps must be 1 to 16384, not {}", self.max_qps));
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
    /// A device of this description.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is wrong with it.
    pub fn new(config: DeviceConfig) -> Result<Self> {
        config.validate()?;
        Ok(Device { config })
    }

    /// Its description.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Where peers reach it, by port: their queue pairs' `remote` attribute.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.config.ports.iter().map(|p| SocketAddr::new(p.addr, p.udp_port)).collect()
    }

    /// Opens its sockets and starts its engine.
    ///
    /// # Errors
    /// [`Error::Os`] if an address is not of this host, a UDP port is taken, or descriptors have run out.
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
    fn an_impossible_device_is_refused_with_the_reason() {
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
        refused(DeviceConfig { dscp, ..base }, "DSCP");
    }

    #[test]
    fn by_default_128_paths_are_active_and_as_many_in_reserve() {
        for ports in [1, 2, 4, 8, 16] {
            let config = DeviceConfig::loopback(1, ports);
            assert_eq!((0..ports).map(|p| config.evs_of_port(p)).sum::<usize>(), 256);
        }
    }
}
