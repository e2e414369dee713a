//! Impairment rules: a bad network on purpose, for tests and demonstrations. A rule selects packets that a port is
//! about to send and says what happens to them.
//!
//! Rules are tried in order. Every rule that matches acts, until one drops the packet. One seed determines all
//! randomness.

use std::time::Duration;

use openmrc_wire::Ev;

use crate::error::{Error, Result};

/// Most rules in force at a time.
pub const MAX_RULES: usize = u64::BITS as usize;

/// Which packets a rule applies to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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
