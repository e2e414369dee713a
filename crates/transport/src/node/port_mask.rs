//! The port status mask on the wire (docs/spec/wire.md, "ERTH"). The C interface counts ports from 1; whether bit 0 or
//! bit 1 of the mask means the first one is not public, so both are understood.

use crate::api::PortSet;
use serde::{Deserialize, Serialize};

/// The bit of a port status mask that means the first port.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum PortMaskBase {
    /// Bit 0.
    #[default]
    Zero,
    /// Bit 1, as the ports are numbered in the C interface.
    One,
}

impl PortMaskBase {
    /// The mask of these ports.
    pub fn encode(self, ports: PortSet) -> u32 {
        u32::from(ports.0) << self as u32
    }

    /// The ports of a mask.
    pub fn decode(self, mask: u32) -> PortSet {
        PortSet((mask >> self as u32) as u16)
    }

    /// The base of a node with these ports, if a mask from it shows that: only base 0 has bit 0, and only base 1 has
    /// the bit behind the last port.
    pub fn shown_by(mask: u32, ports: PortSet) -> Option<Self> {
        let behind_last = u16::BITS - ports.0.leading_zeros();
        if mask & 1 == 1 {
            Some(PortMaskBase::Zero)
        } else if mask >> behind_last & 1 == 1 {
            Some(PortMaskBase::One)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_as_they_are_written() {
        for base in [PortMaskBase::Zero, PortMaskBase::One] {
            for ports in 0..=u16::MAX {
                assert_eq!(base.decode(base.encode(PortSet(ports))), PortSet(ports));
            }
        }
        assert_eq!(PortMaskBase::Zero.encode(PortSet(0b101)), 0b101);
        assert_eq!(PortMaskBase::One.encode(PortSet(0b101)), 0b1010);
    }

    #[test]
    fn the_first_and_the_last_port_show_the_base() {
        use PortMaskBase::{One, Zero};
        let four = PortSet::first(4);
        for (mask, expected) in [
            (0b0_1111, Some(Zero)),
            (0b1_1110, Some(One)),
            (0b0_0110, None),
            (0b1_0000, Some(One)),
            (0, None),
        ] {
            assert_eq!(PortMaskBase::shown_by(mask, four), expected, "{mask:#b}");
        }
        assert_eq!(PortMaskBase::shown_by(0x1_0000, PortSet::first(16)), Some(One));
        assert_eq!(PortMaskBase::shown_by(0b1_0001, four), Some(Zero), "a stray bit behind the last port");
    }
}
