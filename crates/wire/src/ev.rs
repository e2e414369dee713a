//! Entropy values: their place in a packet, and how a profile expands them (spec: wire, "Where the entropy value
//! goes").

use core::net::Ipv6Addr;

use crate::packet::Ev;

/// How a packet tells switches its path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EvFormat {
    /// 16 bits that ECMP hashes: UDP source port.
    Udp,
    /// STEV, 32 bits with a field per hop: UDP source port, then the low 16 bits of the flow label.
    Structured,
    /// SRv6 uSID, 128 bits: outer destination address. The packet also carries a 32-bit EV, which the receiver
    /// reflects.
    Srv6,
    /// SRv6 uSID with SRH, 256 bits: outer destination address, then one segment.
    Srv6Srh,
}

/// The fields of a packet's UDP and IPv6 headers that carry its entropy value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Entropy {
    /// UDP source port.
    pub sport: u16,
    /// IPv6 flow label, 20 bits. IPv4 has none.
    pub flow_label: u32,
}

impl EvFormat {
    /// Bits of the EV that a packet carries and its receiver reflects.
    pub const fn ev_bits(self) -> u32 {
        match self {
            EvFormat::Udp => 16,
            EvFormat::Structured | EvFormat::Srv6 | EvFormat::Srv6Srh => 32,
        }
    }

    /// Bits of the path that switches read. A profile expands an EV to them.
    pub const fn path_bits(self) -> u32 {
        match self {
            EvFormat::Udp => 16,
            EvFormat::Structured => 32,
            EvFormat::Srv6 => 128,
            EvFormat::Srv6Srh => 256,
        }
    }

    /// The header fields of an EV. Bits beyond [`Self::ev_bits`] are not sent.
    #[inline]
    pub const fn place(self, ev: Ev) -> Entropy {
        let low = ev.0 as u16;
        match self {
            EvFormat::Udp => Entropy { sport: low, flow_label: low as u32 },
            EvFormat::Structured | EvFormat::Srv6 | EvFormat::Srv6Srh => {
                Entropy { sport: (ev.0 >> 16) as u16, flow_label: low as u32 }
            }
        }
    }

    /// The EV of a received packet. The high flow label bits are ignored, as other devices may set them. Over IPv4 the
    /// flow label is 0, so only UDP mode reads back its whole EV.
    #[inline]
    pub const fn read(self, entropy: Entropy) -> Ev {
        match self {
            EvFormat::Udp => Ev(entropy.sport as u32),
            EvFormat::Structured | EvFormat::Srv6 | EvFormat::Srv6Srh => {
                Ev((entropy.sport as u32) << 16 | entropy.flow_label & 0xFFFF)
            }
        }
    }
}

/// One field of an EV profile. `min` and `max` limit the values that a generator of EVs may choose. Expansion does not
/// check them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvField {
    /// Width in bits, 1..=128.
    pub width: u32,
    /// Value of the bits at which `mask` is clear.
    pub init: u128,
    /// Smallest value to generate.
    pub min: u128,
    /// Largest value to generate.
    pub max: u128,
    /// The bits that the EV fills.
    pub mask: u128,
}

impl EvField {
    /// A constant field: mask, min and max are zero.
    pub const fn fixed(width: u32, value: u128) -> Self {
        EvField { width, init: value, min: 0, max: 0, mask: 0 }
    }
}

/// Why a profile cannot be expanded. Fields count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvProfileError {
    /// Format and profile have different numbers of fields.
    #[error("the profile has {profile} fields, its format has {format}")]
    FieldCount {
        /// Fields of the profile.
        profile: usize,
        /// Fields of the format.
        format: usize,
    },
    /// A width outside 1..=128.
    #[error("field {field} is {width} bits wide, must be 1 to 128")]
    Width {
        /// Which field.
        field: usize,
        /// Its width, in the profile or the format.
        width: u32,
    },
    /// A profile field wider than its place in the format.
    #[error("field {field} is {width} bits wide, its place in the format has {room}")]
    TooWide {
        /// Which field.
        field: usize,
        /// Bits of the profile field.
        width: u32,
        /// Bits of the format field.
        room: u32,
    },
    /// init, min, max or mask with bits beyond the width.
    #[error("field {field}: {name} does not fit {width} bits")]
    Value {
        /// Which field.
        field: usize,
        /// init, min, max or mask.
        name: &'static str,
        /// The field's width.
        width: u32,
    },
    /// min above max.
    #[error("field {field}: min is above max")]
    Range {
        /// Which field.
        field: usize,
    },
    /// More mask bits than the EV has.
    #[error("the masks take {mask} bits, the entropy value has {ev}")]
    MaskBits {
        /// Bits set in all masks.
        mask: u32,
        /// Bits of an EV.
        ev: u32,
    },
    /// More bits than the packet has room for.
    #[error("the format has {total} bits, there is room for {room}")]
    Total {
        /// Sum of the widths.
        total: u32,
        /// [`EvFormat::path_bits`].
        room: u32,
    },
}

/// An expanded EV: up to 256 bits, the first field at the most significant end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expanded {
    high: u128,
    low: u128,
}

impl Expanded {
    /// The first 16 bits: the path in UDP mode.
    pub const fn udp(self) -> Ev {
        Ev((self.high >> 112) as u32)
    }

    /// The first 32 bits: the path in structured mode.
    pub const fn structured(self) -> Ev {
        Ev((self.high >> 96) as u32)
    }

    /// The first 128 bits: the outer destination address in both SRv6 modes.
    pub const fn destination(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.high)
    }

    /// The last 128 bits: the SRH's segment.
    pub const fn segment(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.low)
    }

    /// Writes a value of `width` bits, 1..=128, after the first `at` bits.
    const fn put(&mut self, at: u32, width: u32, value: u128) {
        // The value is aligned to bit 255 and then shifted down by `at`.
        let top = value << (128 - width);
        if at < 128 {
            self.high |= top >> at;
            if at > 0 {
                self.low |= top << (128 - at);
            }
        } else {
            self.low |= top >> (at - 128);
        }
    }
}

/// Expands an EV through a profile (mrc_ctl.h). Each field starts from `init`. Each bit set in `mask`, from the most
/// significant down, takes the next most significant bit of the EV. The fields are concatenated, most significant
/// first; each is right-aligned in its place, whose width is in `widths`, the field widths of the EV format.
///
/// # Errors
/// [`EvProfileError`] if profile and format do not fit each other, the EV, or the packet.
pub fn expand(
    format: EvFormat,
    widths: &[u32],
    profile: &[EvField],
    ev: Ev,
) -> Result<Expanded, EvProfileError> {
    check(format, widths, profile)?;
    let mut ev_bit = format.ev_bits();
    let mut at = 0;
    let mut out = Expanded::default();
    for (field, &room) in profile.iter().zip(widths) {
        let mut value = field.init;
        for place in (0..field.width).rev() {
            if field.mask >> place & 1 == 1 {
                ev_bit -= 1;
                let bit = u128::from(ev.0 >> ev_bit & 1);
                value = value & !(1 << place) | bit << place;
            }
        }
        out.put(at, room, value);
        at += room;
    }
    Ok(out)
}

/// Checks whether a profile can be expanded, whatever the EV. [`expand`] makes the same check.
///
/// # Errors
/// As [`expand`].
pub fn check(format: EvFormat, widths: &[u32], profile: &[EvField]) -> Result<(), EvProfileError> {
    if profile.len() != widths.len() {
        return Err(EvProfileError::FieldCount { profile: profile.len(), format: widths.len() });
    }
    let (mut total, mut mask) = (0u32, 0);
    for (i, (field, &room)) in profile.iter().zip(widths).enumerate() {
        for width in [field.width, room] {
            if !(1..=128).contains(&width) {
                return Err(EvProfileError::Width { field: i, width });
            }
        }
        if field.width > room {
            return Err(EvProfileError::TooWide { field: i, width: field.width, room });
        }
        let values = [("init", field.init), ("min", field.min), ("max", field.max), ("mask", field.mask)];
        for (name, value) in values {
            if field.width < 128 && value >> field.width != 0 {
                return Err(EvProfileError::Value { field: i, name, width: field.width });
            }
        }
        if field.min > field.max {
            return Err(EvProfileError::Range { field: i });
        }
        total = total.saturating_add(room);
        mask += field.mask.count_ones();
        // Checked inside the loop, so that the sums cannot overflow however long the list is.
        if total > format.path_bits() {
            return Err(EvProfileError::Total { total, room: format.path_bits() });
        }
    }
    if mask > format.ev_bits() {
        return Err(EvProfileError::MaskBits { mask, ev: format.ev_bits() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usid::UsidAddress;
    use proptest::prelude::*;

    #[test]
    fn each_format_puts_its_ev_where_the_table_says() {
        let ev = Ev(0xABCD_1234);
        assert_eq!(EvFormat::Udp.place(Ev(0x1234)), Entropy { sport: 0x1234, flow_label: 0x1234 });
        assert_eq!(EvFormat::Structured.place(ev), Entropy { sport: 0xABCD, flow_label: 0x1234 });
        assert_eq!(EvFormat::Srv6.place(ev), Entropy { sport: 0xABCD, flow_label: 0x1234 });
        let marked = Entropy { sport: 0xABCD, flow_label: 0xF_1234 };
        assert_eq!(EvFormat::Structured.read(marked), ev);
        assert_eq!(EvFormat::Udp.read(marked), Ev(0xABCD));
    }

    #[test]
    fn an_ev_fills_the_masked_places_from_the_top() {
        // Plane: 3 bits of 3. T0 uplink: 5 bits of a 16-bit field whose top is fixed.
        let profile = [
            EvField { width: 3, init: 0, min: 0, max: 7, mask: 0b111 },
            EvField { width: 16, init: 0x0100, min: 0, max: 31, mask: 0x001F },
        ];
        let ev = Ev(0b101_10011 << 24);
        let out = expand(EvFormat::Structured, &[3, 16], &profile, ev).unwrap();
        // 101 | 0000 0001 0001 0011 | rest zero
        assert_eq!(out.structured(), Ev(0b1010_0000_0010_0010_0110_0000_0000_0000));
    }

    #[test]
    fn an_ev_may_fill_scattered_places_and_overwrites_init() {
        let profile = [EvField { width: 8, init: 0xFF, min: 0, max: 0xFF, mask: 0b1010_0101 }];
        let out = expand(EvFormat::Udp, &[8], &profile, Ev(0b0110 << 12)).unwrap();
        assert_eq!(out.udp(), Ev(0b0111_1110 << 8));
    }

    #[test]
    fn a_path_address_comes_out_of_a_template() {
        // Block, sender's T0, T1 from the EV, receiver's T0, receiver's downlink.
        let profile = [
            EvField::fixed(32, 0x5F00_0000),
            EvField::fixed(16, 0x0011),
            EvField { width: 16, init: 0x0100, min: 0, max: 255, mask: 0x00FF },
            EvField::fixed(16, 0x0012),
            EvField::fixed(16, 0xE00C),
        ];
        let out = expand(EvFormat::Srv6, &[32, 16, 16, 16, 16], &profile, Ev(0x0200_0000)).unwrap();
        let path = UsidAddress::new(0x5F00_0000, &[0x0011, 0x0102, 0x0012, 0xE00C]).unwrap();
        assert_eq!(out.destination(), path.to_ipv6());
    }

    #[test]
    fn a_field_narrower_than_its_place_is_zero_filled_at_the_top() {
        let profile = [EvField::fixed(4, 0xA), EvField::fixed(8, 0xBB)];
        let out = expand(EvFormat::Structured, &[8, 16], &profile, Ev(0)).unwrap();
        assert_eq!(out.structured(), Ev(0x0A00_BB00));
    }

    #[test]
    fn the_second_address_begins_at_bit_128() {
        let profile = [EvField::fixed(120, 1), EvField::fixed(16, 0xABCD), EvField::fixed(120, 2)];
        let out = expand(EvFormat::Srv6Srh, &[120, 16, 120], &profile, Ev(0)).unwrap();
        assert_eq!(out.destination().to_bits(), 1 << 8 | 0xAB);
        assert_eq!(out.segment().to_bits(), 0xCD << 120 | 2);
    }

    #[test]
    fn profiles_that_fit_nothing_are_refused() {
        use EvProfileError as E;
        let field = EvField { width: 8, init: 0, min: 0, max: 255, mask: 0xFF };
        let refuse = |widths: &[u32], profile: &[EvField]| check(EvFormat::Udp, widths, profile).unwrap_err();
        assert_eq!(refuse(&[8], &[]), E::FieldCount { profile: 0, format: 1 });
        assert_eq!(refuse(&[7], &[field]), E::TooWide { field: 0, width: 8, room: 7 });
        assert_eq!(refuse(&[0], &[field]), E::Width { field: 0, width: 0 });
        assert_eq!(refuse(&[129], &[field]), E::Width { field: 0, width: 129 });
        assert_eq!(refuse(&[8; 3], &[field; 3]), E::Total { total: 24, room: 16 });
        let wide = EvField { init: 256, ..field };
        assert_eq!(refuse(&[8], &[wide]), E::Value { field: 0, name: "init", width: 8 });
        assert_eq!(refuse(&[8], &[EvField { min: 9, max: 8, ..field }]), E::Range { field: 0 });
        let greedy = EvField { width: 33, mask: (1 << 33) - 1, ..field };
        assert_eq!(check(EvFormat::Srv6, &[33], &[greedy]).unwrap_err(), E::MaskBits { mask: 33, ev: 32 },);
    }

    // The rule of the spec, on vectors of single bits.
    fn expand_bitwise(ev_bits: u32, widths: &[u32], profile: &[EvField], ev: Ev) -> Vec<bool> {
        let mut ev = (0..ev_bits).rev().map(|i| ev.0 >> i & 1 == 1);
        let mut out = Vec::new();
        for (field, &room) in profile.iter().zip(widths) {
            out.extend((field.width..room).map(|_| false));
            for place in (0..field.width).rev() {
                let masked = field.mask >> place & 1 == 1;
                out.push(if masked { ev.next().unwrap() } else { field.init >> place & 1 == 1 });
            }
        }
        out.resize(256, false);
        out
    }

    fn field() -> impl Strategy<Value = (u32, EvField)> {
        (1u32..=64, 0u32..=8, any::<u128>(), any::<u128>()).prop_map(|(width, extra, init, mask)| {
            let all = (1u128 << width) - 1;
            // At most eight mask bits per field, so that four fields take at most the 32 bits of an EV.
            let mask = (0..8).fold(0, |m, i| m | 1 << ((mask >> (i * 8)) as u8 as u32 % width));
            (width + extra, EvField { width, init: init & all, min: 0, max: all, mask: mask & all })
        })
    }

    proptest! {
        #[test]
        fn every_ev_in_its_own_bits_survives_placement(ev: u32) {
            prop_assert_eq!(EvFormat::Structured.read(EvFormat::Structured.place(Ev(ev))), Ev(ev));
            prop_assert_eq!(EvFormat::Udp.read(EvFormat::Udp.place(Ev(ev))), Ev(ev & 0xFFFF));
        }

        #[test]
        fn expansion_follows_the_rule_bit_by_bit(fields in prop::collection::vec(field(), 0..=4), ev: u32) {
            let (widths, profile): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
            prop_assume!(widths.iter().sum::<u32>() <= 256);
            let out = expand(EvFormat::Srv6Srh, &widths, &profile, Ev(ev)).unwrap();
            let bits = [out.destination().octets(), out.segment().octets()].concat();
            let expected = expand_bitwise(32, &widths, &profile, Ev(ev));
            for (i, &bit) in expected.iter().enumerate() {
                prop_assert_eq!(bits[i / 8] >> (7 - i % 8) & 1 == 1, bit, "bit {}", i);
            }
        }

        #[test]
        fn no_profile_makes_it_panic(
            widths in prop::collection::vec(0u32..=300, 0..5),
            fields in prop::collection::vec((0u32..=300, any::<u128>(), any::<u128>()), 0..5),
            ev: u32,
        ) {
            let profile: Vec<_> = fields
                .into_iter()
                .map(|(width, init, mask)| EvField { width, init, min: 0, max: u128::MAX, mask })
                .collect();
            for format in [EvFormat::Udp, EvFormat::Structured, EvFormat::Srv6, EvFormat::Srv6Srh] {
                let _ = expand(format, &widths, &profile, Ev(ev));
            }
        }
    }
}
