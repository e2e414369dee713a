//! What a soft switch is told.

use std::collections::HashSet;

use openmrc_wire::DscpMap;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Queue thresholds of a port, in bytes of Ethernet frames without FCS (spec: congestion, "Switch settings").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Marking begins where so much waits behind the packet that leaves ...
    pub ecn_min: u64,
    /// ... and is certain from here on.
    pub ecn_max: u64,
    /// A data queue this long trims what comes.
    pub trim: u64,
    /// Length of the control queue; what does not fit is dropped.
    pub control: u64,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Name of the interface.
    pub name: String,
    /// Its own Ethernet address.
    pub mac: Mac,
    /// The address at the other end of the cable.
    pub peer: Mac,
    /// Bits per second; `None`: as fast as it goes.
    pub rate_bps: Option<u64>,
    /// Whether a host is at the other end: no ECN there, and trimmed packets say so.
    pub last_hop: bool,
    /// Its queues.
    pub thresholds: Thresholds,
}

/// A switch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The fabric's 32-bit uSID block.
    pub block: u32,
    /// uSIDs that this switch owns.
    pub own: Vec<u16>,
    /// (uSID, number of the port in `ports`): the static table.
    pub routes: Vec<(u16, usize)>,
    /// The ports.
    pub ports: Vec<PortConfig>,
    /// Code points of the packet classes.
    pub dscp: DscpMap,
    /// UDP port of MRC.
    pub udp_port: u16,
    /// Seed of the dice that ECN marking throws.
    pub seed: u64,
}

/// Why a configuration makes no sense.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// A route to a port that is not there.
    #[error("uSID {usid:#06x} leads to port {port}, there are {ports}")]
    NoSuchPort {
        /// The route's.
        usid: u16,
        /// The port it names.
        port: usize,
        /// How many there are.
        ports: usize,
    },
    /// Two entries for one uSID.
    #[error("uSID {0:#06x} has two entries")]
    Twice(u16),
    /// uSID 0 ends a path.
    #[error("uSID 0 ends a path and cannot have an entry")]
    Zero,
    /// Thresholds that no queue can have.
    #[error("port {0}: ecn_min must be below ecn_max, and trim, control and the rate must not be 0")]
    Thresholds(String),
    /// Two packet classes with one code point.
    #[error("two packet classes share a DSCP code point")]
    Dscp,
}

impl Config {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut seen = HashSet::new();
        for &usid in self.own.iter().chain(self.routes.iter().map(|(usid, _)| usid)) {
            if usid == 0 {
                return Err(ConfigError::Zero);
            }
            if !seen.insert(usid) {
                return Err(ConfigError::Twice(usid));
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
