//! A device: its configuration is checked, then it can be opened.

use std::collections::HashSet;
use std::net::SocketAddr;

use openmrc_transport::PortSet;
use openmrc_wire::EvFormat;

use crate::config::{DeviceConfig, EpOps, MAX_PATHS, MAX_UDP_PORTS};
use crate::context::Context;
use crate::error::{Error, Result};

impl DeviceConfig {
    fn validate(&self) -> Result<()> {
        let fail = |why: String| Err(Error::invalid(format!("device {}: {why}", self.name)));
        self.check_ranges().or_else(|error| fail(error.to_string()))?;
        if self.ports.is_empty() || self.ports.len() > PortSet::MAX_PORTS {
            return fail(format!("needs 1 to {} ports, not {}", PortSet::MAX_PORTS, self.ports.len()));
        }
        let mut seen = HashSet::new();
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
        if self.entropy.format != EvFormat::Udp && self.ports[0].addr.is_ipv4() {
            return fail(format!(
                "entropy values in this format need IPv6 ports, not {}",
                self.ports[0].addr
            ));
        }
        let is_own = |udp_port: &u16| self.ports.iter().any(|port| port.udp_port == *udp_port);
        let distinct: HashSet<_> = self.sockets.more_udp_ports.iter().collect();
        if self.sockets.more_udp_ports.len() > MAX_UDP_PORTS
            || distinct.len() < self.sockets.more_udp_ports.len()
        {
            return fail(format!("udp_ports must be at most {MAX_UDP_PORTS} different numbers"));
        }
        if self.sockets.more_udp_ports.contains(&0) || self.sockets.more_udp_ports.iter().any(is_own) {
            return fail("udp_ports must be other ports than those of its ports, and not 0".into());
        }
        if !matches!(self.entropy.auto_bits, 16 | 32) {
            return fail(format!("auto_bits must be 16 or 32, not {}", self.entropy.auto_bits));
        }
        if self.entropy.auto_bits == 32
            && (self.entropy.format != EvFormat::Udp || self.ports[0].addr.is_ipv4())
        {
            return fail(
                "auto_bits 32 needs UDP mode over IPv6, whose flow label carries 16 of the bits".into(),
            );
        }
        if self.entropy.is_srv6() && self.ports.iter().any(|p| !p.source_ports.is_empty()) {
            return fail("in SRv6 mode a port takes no source ports: EV profiles bring all paths".into());
        }
        let paths: usize = (0..self.ports.len()).map(|p| self.evs_of_port(p)).sum();
        let none = !self.entropy.is_srv6() && (0..self.ports.len()).any(|p| self.evs_of_port(p) == 0);
        if none || paths > MAX_PATHS {
            return fail(format!(
                "needs 1 to {MAX_PATHS} entropy values, at least one per port, not {paths}"
            ));
        }
        if let Some((a, b)) = self.network.dscp.conflict() {
            return fail(format!("DSCP classes {a:?} and {b:?} need code points of their own below 64"));
        }
        if self.network.base_rtt.is_zero() {
            return fail("base_rtt_us must be more than 0".into());
        }
        if let EpOps::Prefixes(prefixes) = &self.endpoint.answered
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
    /// [`Error::Os`] if no address is local (a port whose address is absent is down until it comes), a UDP port is in use, or
    /// no descriptor is left.
    pub fn open(&self) -> Result<Context> {
        Context::open(&self.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{EndpointConfig, EntropyConfig, NetworkConfig, SocketConfig};
    use openmrc_wire::DscpMap;
    use std::net::IpAddr;

    fn refused(config: DeviceConfig, word: &str) {
        let error = Device::new(config).unwrap_err().to_string();
        assert!(error.contains(word), "{error:?} should mention {word:?}");
    }

    #[test]
    fn an_invalid_configuration_is_refused_with_the_reason() {
        let base = DeviceConfig::loopback(1, 2);
        refused(DeviceConfig::loopback(1, 0), "1 to 16 ports");
        refused(DeviceConfig { ports: vec![base.ports[0].clone(); 2], ..base.clone() }, "two ports");
        refused(
            DeviceConfig { entropy: EntropyConfig { per_port: Some(0), ..base.entropy }, ..base.clone() },
            "evs_per_port is 0: 1 to 4096",
        );
        refused(
            DeviceConfig { sockets: SocketConfig { burst: 0, ..base.sockets.clone() }, ..base.clone() },
            "ev_burst",
        );
        let mut mixed = base.clone();
        mixed.ports[1].addr = "::1".parse().unwrap();
        refused(mixed, "IPv6");
        let mut wild = base.clone();
        wild.ports[0].addr = "0.0.0.0".parse().unwrap();
        refused(wild, "0.0.0.0");
        let dscp = DscpMap { trimmed: 46, ..DscpMap::DEFAULT };
        refused(DeviceConfig { network: NetworkConfig { dscp, ..base.network }, ..base.clone() }, "DSCP");
        for more_udp_ports in [vec![4791], vec![0], vec![1, 1], vec![1, 2, 3, 4, 5]] {
            refused(
                DeviceConfig {
                    sockets: SocketConfig { more_udp_ports, ..base.sockets.clone() },
                    ..base.clone()
                },
                "udp_ports",
            );
        }
        refused(
            DeviceConfig { entropy: EntropyConfig { auto_bits: 24, ..base.entropy }, ..base.clone() },
            "16 or 32",
        );
        refused(DeviceConfig { entropy: EntropyConfig { auto_bits: 32, ..base.entropy }, ..base }, "IPv6");
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
            endpoint: EndpointConfig {
                answered: EpOps::Prefixes(vec![(addr("1.2.3.4"), 33)]),
                ..EndpointConfig::default()
            },
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
