//! Configuration of a soft switch.

use std::collections::HashSet;

use openmrc_wire::DscpMap;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Queue thresholds of a port, in bytes of Ethernet frames without FCS (docs/spec/congestion.md, "Switch settings").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// A departing packet may be marked if at least this much data is queued behind it.
    pub ecn_min: u64,
    /// It is always marked if at least this much data is queued behind it.
    pub ecn_max: u64,
    /// An arriving packet is trimmed if the data queue is at least this long.
    pub trim: u64,
    /// Limit of the control queue. A packet that does not fit is dropped.
    pub control: u64,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Name of the interface.
    pub name: String,
    /// Ethernet address of the port.
    pub mac: Mac,
    /// Ethernet address at the other end of the link.
    pub peer: Mac,
    /// Bits per second; `None`: no limit.
    pub rate_bps: Option<u64>,
    /// Whether the other end is a host: then packets are not marked, and trimmed ones get the DSCP "trimmed at the last
    /// hop".
    pub last_hop: bool,
    /// Its queues.
    pub thresholds: Thresholds,
}

/// A switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The fabric's 32-bit uSID block.
    pub block: u32,
    /// uSIDs of this switch.
    pub own: Vec<u16>,
    /// The static table: (uSID, index of the port in `ports`).
    pub routes: Vec<(u16, usize)>,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// DSCP code points of the packet classes.
    pub dscp: DscpMap,
    /// UDP port of MRC.
    pub udp_port: u16,
    /// Seed of ECN marking.
    pub seed: u64,
}

/// Why a configuration is not valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A route names a port that does not exist.
    #[error("uSID {usid:#06x} leads to port {port}, but there are only {ports} ports")]
    NoSuchPort {
        /// uSID of the route.
        usid: u16,
        /// Index of the port.
        port: usize,
        /// Number of ports.
        ports: usize,
    },
    /// A uSID has two entries.
    #[error("uSID {0:#06x} has two entries")]
    Duplicate(u16),
    /// An entry for uSID 0, which ends a path.
    #[error("uSID 0 ends a path and cannot have an entry")]
    Zero,
    /// Thresholds or a rate out of range.
    #[error("port {0}: ecn_min must be below ecn_max, and trim, control and the rate must not be 0")]
    Thresholds(String),
    /// Two packet classes have the same code point.
    #[error("two packet classes share a DSCP code point")]
    Dscp,
}

impl Config {
    /// Checks the configuration.
    ///
    /// # Errors
    /// [`ConfigError`] for the first mistake found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut seen = HashSet::new();
        for &usid in self.own.iter().chain(self.routes.iter().map(|(usid, _)| usid)) {
            if usid == 0 {
                return Err(ConfigError::Zero);
            }
            if !seen.insert(usid) {
                return Err(ConfigError::Duplicate(usid));
            }
        }
        let ports = self.ports.len();
        if let Some(&(usid, port)) = self.routes.iter().find(|(_, port)| *port >= ports) {
            return Err(ConfigError::NoSuchPort { usid, port, ports });
        }
        for port in &self.ports {
            let t = port.thresholds;
            if t.ecn_min >= t.ecn_max || t.trim == 0 || t.control == 0 || port.rate_bps == Some(0) {
                return Err(ConfigError::Thresholds(port.name.clone()));
            }
        }
        if self.dscp.conflict().is_some() { Err(ConfigError::Dscp) } else { Ok(()) }
    }
}
