//! Sets of ports.

use serde::{Deserialize, Serialize};

/// A set of ports (planes), one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PortSet(pub u16);

impl PortSet {
    /// No port.
    pub const EMPTY: PortSet = PortSet(0);

    /// Largest number of ports of a device.
    pub const MAX_PORTS: usize = 16;

    /// The first `n` ports.
    pub const fn first(n: usize) -> PortSet {
        PortSet(if n >= Self::MAX_PORTS { u16::MAX } else { (1u16 << n) - 1 })
    }

    /// One port.
    pub const fn one(port: u8) -> PortSet {
        PortSet(1 << port)
    }

    /// Whether `port` is in the set.
    pub const fn contains(self, port: u8) -> bool {
        self.0 >> port & 1 == 1
    }

    /// The set with `port`.
    #[must_use]
    pub const fn with(self, port: u8) -> PortSet {
        PortSet(self.0 | 1 << port)
    }

    /// The set without `port`.
    #[must_use]
    pub const fn without(self, port: u8) -> PortSet {
        PortSet(self.0 & !(1 << port))
    }

    /// Ports in both sets.
    #[must_use]
    pub const fn and(self, other: PortSet) -> PortSet {
        PortSet(self.0 & other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of ports.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The ports, lowest first.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..Self::MAX_PORTS as u8).filter(move |&p| self.contains(p))
    }
}
