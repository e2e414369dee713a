//! Entropy values: their place in a packet (docs/spec/wire.md, "Where the entropy value goes").

use crate::named::Named;
use crate::packet::Ev;

/// Where packets carry the entropy value that selects their path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EvFormat {
    /// 16 bits that ECMP hashes: UDP source port. 32 bits where it also hashes the flow label.
    Udp,
    /// STEV, 32 bits with a field per hop, the first in the high half.
    Structured,
    /// SRv6 uSID, 128 bits: outer destination address. The packet also carries a 32-bit EV, which the receiver
    /// reflects.
    Srv6,
    /// SRv6 uSID with SRH, 256 bits: outer destination address, then one segment.
    Srv6Srh,
}

impl Named for EvFormat {
    const NAMES: &'static [(Self, &'static str)] = &[
        (EvFormat::Udp, "udp"),
        (EvFormat::Structured, "structured"),
        (EvFormat::Srv6, "srv6"),
        (EvFormat::Srv6Srh, "srv6_srh"),
    ];
}

/// The fields of a packet's UDP and IPv6 headers that carry its entropy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Entropy {
    /// UDP source port.
    pub sport: u16,
    /// IPv6 flow label, 20 bits, of which the high four have no meaning. IPv4 has none.
    pub flow_label: u32,
}

/// Which half of the 32-bit entropy is where. The one place that knows; everything else calls [`EntropyOrder::split`]
/// and [`EntropyOrder::join`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum EntropyOrder {
    /// The high half is the low 16 bits of the flow label, the low half the UDP source port: three public readings.
    #[default]
    FlowLabelHigh,
    /// The other way round: one public tool.
    SourcePortHigh,
}

impl Named for EntropyOrder {
    const NAMES: &'static [(Self, &'static str)] = &[
        (EntropyOrder::FlowLabelHigh, "flow_label_high"),
        (EntropyOrder::SourcePortHigh, "source_port_high"),
    ];
}

impl EntropyOrder {
    /// The header fields that carry a 32-bit entropy.
    #[inline]
    pub const fn split(self, entropy: Ev) -> Entropy {
        let Ev(entropy) = match self {
            EntropyOrder::FlowLabelHigh => entropy,
            EntropyOrder::SourcePortHigh => entropy.swapped(),
        };
        Entropy { sport: entropy as u16, flow_label: entropy >> 16 }
    }

    /// The 32-bit entropy of a received packet, which a responder reflects. The high bits of the flow label are
    /// ignored, as other devices may set them. The flow label of an IPv4 packet is 0.
    #[inline]
    pub const fn join(self, Entropy { sport, flow_label }: Entropy) -> Ev {
        let entropy = Ev((flow_label & 0xFFFF) << 16 | sport as u32);
        match self {
            EntropyOrder::FlowLabelHigh => entropy,
            EntropyOrder::SourcePortHigh => entropy.swapped(),
        }
    }
}

impl Ev {
    /// With its halves exchanged.
    #[inline]
    pub const fn swapped(self) -> Self {
        Ev(self.0.rotate_left(16))
    }

    /// Whether a reflected entropy has the same low `bits` bits, 1 to 32. A host may have added others: a flow label of
    /// its own.
    #[inline]
    pub const fn matches(self, entropy: Ev, bits: u8) -> bool {
        (self.0 ^ entropy.0) << (32 - bits as u32) == 0
    }

    /// The same in either order of the halves, as readings of MRC differ.
    #[inline]
    pub const fn is_reflected_by(self, entropy: Ev, bits: u8) -> bool {
        self.matches(entropy, bits) || self.matches(entropy.swapped(), bits)
    }
}

impl EvFormat {
    /// Bits of the path that switches read. A profile expands an EV to them.
    pub const fn path_bits(self) -> u32 {
        match self {
            EvFormat::Udp => 16,
            EvFormat::Structured => 32,
            EvFormat::Srv6 => 128,
            EvFormat::Srv6Srh => 256,
        }
    }

    /// The header fields of an EV. In UDP mode the low half is always the source port.
    #[inline]
    pub const fn split(self, ev: Ev, order: EntropyOrder) -> Entropy {
        match self {
            EvFormat::Udp => EntropyOrder::FlowLabelHigh.split(ev),
            EvFormat::Structured | EvFormat::Srv6 | EvFormat::Srv6Srh => order.split(ev),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HIGH: EntropyOrder = EntropyOrder::FlowLabelHigh;

    #[test]
    fn the_low_half_is_the_source_port_and_the_high_half_the_flow_label() {
        let ev = Ev(0xABCD_1234);
        for format in [EvFormat::Structured, EvFormat::Srv6, EvFormat::Srv6Srh, EvFormat::Udp] {
            assert_eq!(format.split(ev, HIGH), Entropy { sport: 0x1234, flow_label: 0xABCD });
        }
        assert_eq!(EvFormat::Udp.split(Ev(0x1234), HIGH), Entropy { sport: 0x1234, flow_label: 0 });
    }

    #[test]
    fn the_other_order_exchanges_the_halves_of_32_bit_values() {
        let order = EntropyOrder::SourcePortHigh;
        let placed = EvFormat::Structured.split(Ev(0xABCD_1234), order);
        assert_eq!(placed, Entropy { sport: 0xABCD, flow_label: 0x1234 });
        assert_eq!(order.join(placed), Ev(0xABCD_1234));
        assert_eq!(EvFormat::Udp.split(Ev(0x1234), order), Entropy { sport: 0x1234, flow_label: 0 });
    }

    #[test]
    fn a_responder_reflects_16_bits_of_the_flow_label_and_the_source_port() {
        let read = |sport, flow_label| HIGH.join(Entropy { sport, flow_label });
        assert_eq!(read(0x1234, 0xF_ABCD), Ev(0xABCD_1234), "the top of the flow label has no meaning");
        assert_eq!(read(0x1234, 0), Ev(0x0000_1234), "IPv4");
    }

    #[test]
    fn a_reflected_entropy_is_compared_in_the_bits_of_the_value() {
        assert!(Ev(0x1234).matches(Ev(0xBEEF_1234), 16) && !Ev(0x1234).matches(Ev(0xBEEF_1234), 32));
        assert!(Ev(0x1234).is_reflected_by(Ev(0x1234_BEEF), 16) && !Ev(0x1234).matches(Ev(0x1234_BEEF), 16));
        assert!(Ev(0x2000_0000).is_reflected_by(Ev(0x2000), 32));
        assert!(!Ev(0x2000_0000).is_reflected_by(Ev(0x4000_0000), 32));
    }

    proptest! {
        #[test]
        fn every_ev_survives_placement(ev: u32) {
            for order in [EntropyOrder::FlowLabelHigh, EntropyOrder::SourcePortHigh] {
                for format in [EvFormat::Structured, EvFormat::Srv6, EvFormat::Srv6Srh] {
                    prop_assert_eq!(order.join(format.split(Ev(ev), order)), Ev(ev));
                }
            }
            prop_assert_eq!(HIGH.join(EvFormat::Udp.split(Ev(ev), HIGH)), Ev(ev));
        }
    }
}
