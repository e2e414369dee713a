//! Impairment rules: a bad network on purpose, for tests and demonstrations. A rule selects packets that a port is
//! about to send and says what happens to them.
//!
//! Rules are tried in order. Every rule that matches acts, until one drops the packet. One seed determines all
//! randomness.

use std::time::Duration;

use openmrc_transport::PortSet;
use openmrc_wire::Ev;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most rules in force at a time.
pub const MAX_RULES: usize = u64::BITS as usize;

/// Which packets a rule applies to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PacketClass {
    /// All.
    #[default]
    Any,
    /// RDMA writes.
    Data,
    /// Everything else: feedback, probes, endpoint requests.
    Control,
}

/// Which paths a rule applies to.
#[derive(Clone, PartialEq, Default, Debug)]
pub enum EvSelection {
    /// All.
    #[default]
    All,
    /// The paths with these entropy values.
    Set(Vec<Ev>),
    /// A fraction of all entropy values, 0..=1. A hash of value and seed decides, so the same seed selects the same
    /// values.
    Fraction(f64),
}

/// What happens to a packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Impairment {
    /// Dropped.
    Drop,
    /// Sent twice.
    Duplicate,
    /// Held until `packets` later packets of its port have left, at most `at_most`.
    Reorder {
        /// Packets that overtake it.
        packets: u32,
        /// Longest time it is held.
        at_most: Duration,
    },
    /// Bits at random places are flipped.
    Corrupt {
        /// Number of flipped bits.
        bits: u32,
    },
    /// Sent after `delay` and a random part of `jitter`.
    Delay {
        /// Constant delay.
        delay: Duration,
        /// Largest random delay.
        jitter: Duration,
    },
    /// Marked "congestion experienced".
    EcnMark,
    /// Trimmed as a switch does: the payload is cut off and the DSCP changed. Applies to data only.
    Trim {
        /// By the switch before the receiver ("trimmed at the last hop").
        last_hop: bool,
    },
}

/// A rule.
#[derive(Clone, PartialEq, Debug)]
pub struct ImpairRule {
    /// Ports it applies to; bit p for port p.
    pub ports: u16,
    /// Paths it applies to.
    pub evs: EvSelection,
    /// Packets it applies to.
    pub class: PacketClass,
    /// What it does.
    pub kind: Impairment,
    /// Probability that it acts on a packet, 0..=1.
    pub probability: f64,
    /// When it starts, counted from the moment the rules are set.
    pub start: Duration,
    /// When it ends, counted from the same moment; `None`: never.
    pub end: Option<Duration>,
}

impl ImpairRule {
    /// A rule for every packet of every port, in force at once and for ever.
    pub fn new(kind: Impairment) -> Self {
        ImpairRule {
            ports: u16::MAX,
            evs: EvSelection::All,
            class: PacketClass::Any,
            kind,
            probability: 1.0,
            start: Duration::ZERO,
            end: None,
        }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let fraction = |name: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(Error::invalid(format!("{name} must be 0 to 1, not {value}")))
            }
        };
        fraction("probability", self.probability)?;
        if let EvSelection::Fraction(evs) = self.evs {
            fraction("fraction of entropy values", evs)?;
        }
        if self.end.is_some_and(|end| end <= self.start) {
            return Err(Error::invalid("a rule must end after it starts"));
        }
        Ok(())
    }
}

/// What happens to a packet, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // As those of `Impairment`.
pub enum ImpairKind {
    #[serde(alias = "loss")]
    Drop,
    Duplicate,
    Reorder,
    Corrupt,
    Delay,
    #[serde(alias = "mark")]
    EcnMark,
    Trim,
}

/// A rule as a file or Python describes it; `openmrc.testing.Impairment` has these fields. Those of other kinds than its
/// own are not read.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImpairDescription {
    /// What happens; every rule needs one.
    pub kind: Option<ImpairKind>,
    /// Probability for each selected packet, 0 to 1.
    pub probability: f64,
    /// Ports it applies to; `None`: all.
    pub ports: Option<Vec<u64>>,
    /// Entropy values it applies to; `None`: all.
    pub evs: Option<Vec<u32>>,
    /// Instead of `evs`: a share of all entropy values.
    pub ev_fraction: Option<f64>,
    /// Packets it applies to.
    pub packet_class: PacketClass,
    /// When it starts, seconds from the moment the rules are set.
    pub start: f64,
    /// When it ends, seconds from the same moment; `None`: never.
    pub end: Option<f64>,
    /// [`Impairment::Reorder`]: packets that overtake it ...
    pub packets: u32,
    /// ... and the longest time it is held, microseconds.
    pub at_most_us: f64,
    /// [`Impairment::Corrupt`]: flipped bits.
    pub bits: u32,
    /// [`Impairment::Delay`]: microseconds.
    pub delay_us: f64,
    /// And its largest random addition, microseconds.
    pub jitter_us: f64,
    /// [`Impairment::Trim`]: by the switch before the receiver.
    pub last_hop: bool,
}

impl Default for ImpairDescription {
    /// Of a kind that is not given, for every packet, at once and for ever.
    fn default() -> Self {
        ImpairDescription {
            kind: None,
            probability: 1.0,
            ports: None,
            evs: None,
            ev_fraction: None,
            packet_class: PacketClass::Any,
            start: 0.0,
            end: None,
            packets: 4,
            at_most_us: 1000.0,
            bits: 1,
            delay_us: 0.0,
            jitter_us: 0.0,
            last_hop: false,
        }
    }
}

/// A duration of `value` times `unit` seconds.
fn duration(name: &str, value: f64, unit: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value * unit)
        .map_err(|_| Error::invalid(format!("{name} is {value}: a number from 0 on is allowed")))
}

impl ImpairDescription {
    /// The rule, for a device with this number of ports.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is wrong with it.
    pub fn rule(&self, ports: usize) -> Result<ImpairRule> {
        let micros = |name, value| duration(name, value, 1e-6);
        let kind = match self.kind.ok_or_else(|| Error::invalid("an impairment needs a kind"))? {
            ImpairKind::Drop => Impairment::Drop,
            ImpairKind::Duplicate => Impairment::Duplicate,
            ImpairKind::Reorder => {
                Impairment::Reorder { packets: self.packets, at_most: micros("at_most_us", self.at_most_us)? }
            }
            ImpairKind::Corrupt => Impairment::Corrupt { bits: self.bits },
            ImpairKind::Delay => Impairment::Delay {
                delay: micros("delay_us", self.delay_us)?,
                jitter: micros("jitter_us", self.jitter_us)?,
            },
            ImpairKind::EcnMark => Impairment::EcnMark,
            ImpairKind::Trim => Impairment::Trim { last_hop: self.last_hop },
        };
        let evs = match (&self.evs, self.ev_fraction) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid("an impairment takes evs or ev_fraction, not both"));
            }
            (Some(evs), None) => EvSelection::Set(evs.iter().copied().map(Ev).collect()),
            (None, Some(fraction)) => EvSelection::Fraction(fraction),
            (None, None) => EvSelection::All,
        };
        let rule = ImpairRule {
            ports: self.ports.as_deref().map_or(Ok(PortSet(u16::MAX)), |named| port_set(named, ports))?.0,
            evs,
            class: self.packet_class,
            kind,
            probability: self.probability,
            start: duration("start", self.start, 1.0)?,
            end: self.end.map(|end| duration("end", end, 1.0)).transpose()?,
        };
        rule.validate()?;
        Ok(rule)
    }
}

/// The ports that a rule names, of a device with this number of them.
fn port_set(named: &[u64], ports: usize) -> Result<PortSet> {
    named.iter().try_fold(PortSet::EMPTY, |set, &port| {
        if port < ports.min(PortSet::MAX_PORTS) as u64 {
            return Ok(PortSet(set.0 | 1 << port));
        }
        let has = if ports == 1 { "only port 0".to_owned() } else { format!("ports 0 to {}", ports - 1) };
        Err(Error::invalid(format!("port {port} cannot be impaired: this device has {has}")))
    })
}
