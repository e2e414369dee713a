//! How an EV profile expands entropy values to what switches read (docs/spec/wire.md, "EV profile expansion").

use core::net::Ipv6Addr;

use crate::ev::EvFormat;
use crate::packet::Ev;

/// Bits of an EV in a controller's hands, and of its expansion.
pub const EV_BITS: u32 = 256;

/// One field of an EV profile (mrc_ctl.h). `min` and `max` bound the number that the masked bits form, in values that a
/// device generates; expansion does not look at them. Both 0: the whole range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EvField {
    /// Width in bits, 1..=32.
    pub width: u32,
    /// Value of the bits at which `mask` is clear.
    pub init: u32,
    /// Smallest value to generate.
    pub min: u32,
    /// Largest value to generate.
    pub max: u32,
    /// The bits that the EV fills.
    pub mask: u32,
}

impl EvField {
    /// A constant field: mask, min and max are zero.
    pub const fn fixed(width: u32, value: u32) -> Self {
        EvField { width, init: value, min: 0, max: 0, mask: 0 }
    }

    /// The bounds of a generated value; `None` for a constant field.
    pub const fn bounds(&self) -> Option<(u32, u32)> {
        match (self.mask, self.min, self.max) {
            (0, ..) => None,
            (_, 0, 0) => Some((0, self.largest())),
            (_, min, max) => Some((min, max)),
        }
    }

    /// The largest number that the masked bits can hold.
    const fn largest(&self) -> u32 {
        all_ones(self.mask.count_ones())
    }
}

/// A number of `bits` ones, 0..=32.
const fn all_ones(bits: u32) -> u32 {
    ((1u64 << bits) - 1) as u32
}

/// Why a profile is not legal, or does not fit an EV. Fields count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvProfileError {
    /// More fields than the format has.
    #[error("the profile has {profile} fields, its format has {format}")]
    FieldCount {
        /// Fields of the profile.
        profile: usize,
        /// Fields of the format.
        format: usize,
    },
    /// A profile field's width outside 1..=32.
    #[error("field {field} is {width} bits wide, must be 1 to 32")]
    Width {
        /// Which field.
        field: usize,
        /// Its width.
        width: u32,
    },
    /// A format field's width outside 1..=255.
    #[error("field {field} of the format is {width} bits wide, must be 1 to 255")]
    FormatWidth {
        /// Which field.
        field: usize,
        /// Its width.
        width: u32,
    },
    /// More bits in all fields of the profile than in all of the format.
    #[error("the profile's fields have {profile} bits, its format has {format}")]
    Widths {
        /// Sum of the profile's widths.
        profile: u32,
        /// Sum of the format's.
        format: u32,
    },
    /// A profile field wider than its place in the format, whose high bits would be cut.
    #[error("field {field} is {width} bits wide, its place in the format has {room}")]
    TooWide {
        /// Which field.
        field: usize,
        /// Bits of the profile field.
        width: u32,
        /// Bits of the format field.
        room: u32,
    },
    /// init or mask with bits beyond the width.
    #[error("field {field}: {name} does not fit {width} bits")]
    Value {
        /// Which field.
        field: usize,
        /// init or mask.
        name: &'static str,
        /// The field's width.
        width: u32,
    },
    /// max beyond what the masked bits can hold.
    #[error("field {field}: max is 0x{max:x}, its mask has {bits} bits")]
    Max {
        /// Which field.
        field: usize,
        /// max.
        max: u32,
        /// Bits set in its mask.
        bits: u32,
    },
    /// min above max.
    #[error("field {field}: min is above max")]
    Range {
        /// Which field.
        field: usize,
    },
    /// More bits than the packet has room for.
    #[error("the format has {total} bits, there is room for {room}")]
    Total {
        /// Sum of the widths.
        total: u32,
        /// [`EvFormat::path_bits`].
        room: u32,
    },
    /// In a format with SRH, a field reaches over the end of the first address.
    #[error("no field of the format ends at bit 128, where the SRH's segment begins")]
    Boundary,
    /// The EV has bits that no mask takes.
    #[error("the masks take the first {taken} bits of the entropy value, a bit behind them is set")]
    UnusedBits {
        /// Bits set in all masks.
        taken: u32,
    },
}

/// An EV in a controller's hands: a string of 256 bits, big-endian. A profile's masks take their bits from its top.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct EvString(pub [u8; EV_BITS as usize / 8]);

impl EvString {
    /// The string that begins with these bits.
    pub fn of_u32(value: u32) -> Self {
        let mut bytes = Self::default();
        bytes.0[..4].copy_from_slice(&value.to_be_bytes());
        bytes
    }

    const fn bit(&self, at: u32) -> bool {
        self.0[at as usize / 8] >> (7 - at % 8) & 1 == 1
    }
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

    /// Sets the bit after the first `at` bits.
    const fn set(&mut self, at: u32) {
        if at < 128 {
            self.high |= 1 << (127 - at);
        } else {
            self.low |= 1 << (255 - at);
        }
    }
}

/// Expands an EV through a profile (mrc_ctl.h). Each field starts from `init`. Each bit set in `mask`, from the most
/// significant down, takes the next bit of the EV. The fields are concatenated, most significant first; each is
/// right-aligned in its place, whose width is in `widths`, the field widths of the EV format. A field wider than its
/// place loses its high bits. Format fields without a profile field are zero.
///
/// # Errors
/// As [`check`]; [`EvProfileError::UnusedBits`] if the EV has bits that no mask takes.
pub fn expand(
    format: EvFormat,
    widths: &[u32],
    profile: &[EvField],
    ev: &EvString,
) -> Result<Expanded, EvProfileError> {
    check(format, widths, profile)?;
    let (mut taken, mut begin) = (0, 0);
    let mut out = Expanded::default();
    for (field, &room) in profile.iter().zip(widths) {
        let end = begin + room;
        for place in (0..field.width).rev() {
            let set = if field.mask >> place & 1 == 1 {
                taken += 1;
                ev.bit(taken - 1)
            } else {
                field.init >> place & 1 == 1
            };
            if set && place < room {
                out.set(end - 1 - place);
            }
        }
        begin = end;
    }
    if (taken..EV_BITS).any(|at| ev.bit(at)) {
        return Err(EvProfileError::UnusedBits { taken });
    }
    Ok(out)
}

/// Checks whether a profile is legal for a format, by the rules of OCP's own check (docs/spec/wire.md, "EV profile
/// expansion").
///
/// # Errors
/// [`EvProfileError`] for the first rule that it breaks.
pub fn check(format: EvFormat, widths: &[u32], profile: &[EvField]) -> Result<(), EvProfileError> {
    if profile.len() > widths.len() {
        return Err(EvProfileError::FieldCount { profile: profile.len(), format: widths.len() });
    }
    let mut total = 0;
    let mut boundary = format != EvFormat::Srv6Srh;
    for (i, &width) in widths.iter().enumerate() {
        if !(1..=255).contains(&width) {
            return Err(EvProfileError::FormatWidth { field: i, width });
        }
        // Checked inside the loop, so that the sum cannot overflow however long the list is.
        total += width;
        if total > format.path_bits() {
            return Err(EvProfileError::Total { total, room: format.path_bits() });
        }
        boundary |= total == 128;
    }
    if !boundary {
        return Err(EvProfileError::Boundary);
    }
    let mut used = 0;
    for (i, field) in profile.iter().enumerate() {
        check_field(i, field)?;
        used += field.width;
    }
    if used > total {
        return Err(EvProfileError::Widths { profile: used, format: total });
    }
    Ok(())
}

/// Checks also that no field is wider than its place, as a controller must \[choice\]: bits would be cut off silently.
///
/// # Errors
/// As [`check`], and [`EvProfileError::TooWide`].
pub fn check_fit(format: EvFormat, widths: &[u32], profile: &[EvField]) -> Result<(), EvProfileError> {
    check(format, widths, profile)?;
    for (field, (&EvField { width, .. }, &room)) in profile.iter().zip(widths).enumerate() {
        if width > room {
            return Err(EvProfileError::TooWide { field, width, room });
        }
    }
    Ok(())
}

fn check_field(index: usize, field: &EvField) -> Result<(), EvProfileError> {
    let EvField { width, init, min, max, mask } = *field;
    if !(1..=32).contains(&width) {
        return Err(EvProfileError::Width { field: index, width });
    }
    for (name, value) in [("init", init), ("mask", mask)] {
        if value > all_ones(width) {
            return Err(EvProfileError::Value { field: index, name, width });
        }
    }
    if mask == 0 {
        return Ok(());
    }
    if max > field.largest() {
        return Err(EvProfileError::Max { field: index, max, bits: mask.count_ones() });
    }
    if min > max {
        return Err(EvProfileError::Range { field: index });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usid::UsidAddress;
    use proptest::prelude::*;

    #[test]
    fn an_ev_fills_the_masked_places_from_the_top() {
        // Plane: 3 bits of 3. T0 uplink: 5 bits of a 16-bit field whose top is fixed.
        let profile = [
            EvField { width: 3, init: 0, min: 0, max: 7, mask: 0b111 },
            EvField { width: 16, init: 0x0100, min: 0, max: 31, mask: 0x001F },
        ];
        let ev = EvString::of_u32(0b101_10011 << 24);
        let out = expand(EvFormat::Structured, &[3, 16], &profile, &ev).unwrap();
        // 101 | 0000 0001 0001 0011 | rest zero
        assert_eq!(out.structured(), Ev(0b1010_0000_0010_0010_0110_0000_0000_0000));
    }

    #[test]
    fn an_ev_may_fill_scattered_places_and_overwrites_init() {
        let profile = [EvField { width: 8, init: 0xFF, min: 0, max: 0xF, mask: 0b1010_0101 }];
        let out = expand(EvFormat::Udp, &[8], &profile, &EvString::of_u32(0b0110 << 28)).unwrap();
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
        let ev = EvString::of_u32(0x0200_0000);
        let out = expand(EvFormat::Srv6, &[32, 16, 16, 16, 16], &profile, &ev).unwrap();
        let path = UsidAddress::new(0x5F00_0000, &[0x0011, 0x0102, 0x0012, 0xE00C]).unwrap();
        assert_eq!(out.destination(), path.to_ipv6());
    }

    #[test]
    fn masks_over_everything_make_the_ev_the_literal_address_and_segment() {
        let field = EvField { width: 32, init: 0, min: 0, max: 0, mask: u32::MAX };
        let bytes: [u8; 32] = core::array::from_fn(|i| i as u8 ^ 0xA5);
        let out = expand(EvFormat::Srv6Srh, &[32; 8], &[field; 8], &EvString(bytes)).unwrap();
        assert_eq!([out.destination().octets(), out.segment().octets()].concat(), bytes);
        let mut short = EvString(bytes);
        short.0[16..].fill(0);
        let out = expand(EvFormat::Srv6, &[128], &[field], &EvString::of_u32(7)).unwrap();
        assert_eq!(out.destination().to_bits(), 7, "a narrow field stands at the right of a wide one");
        let out = expand(EvFormat::Srv6, &[32; 4], &[field; 4], &short).unwrap();
        assert_eq!(out.destination().octets(), bytes[..16]);
    }

    #[test]
    fn a_field_narrower_than_its_place_is_zero_filled_at_the_top() {
        let profile = [EvField::fixed(4, 0xA), EvField::fixed(8, 0xBB)];
        let out = expand(EvFormat::Structured, &[8, 16], &profile, &EvString::default()).unwrap();
        assert_eq!(out.structured(), Ev(0x0A00_BB00));
    }

    #[test]
    fn a_field_wider_than_its_place_is_cut_and_a_controller_refuses_it() {
        let profile = [EvField::fixed(12, 0xABC), EvField::fixed(4, 0xD)];
        let out = expand(EvFormat::Structured, &[8, 16], &profile, &EvString::default()).unwrap();
        assert_eq!(out.structured(), Ev(0xBC00_0D00));
        let one_bit = [EvField::fixed(7, 0), EvField::fixed(17, 0x1_0000)];
        let out = expand(EvFormat::Structured, &[8, 16], &one_bit, &EvString::default()).unwrap();
        assert_eq!(out.structured(), Ev(0));
        assert_eq!(
            check_fit(EvFormat::Structured, &[8, 16], &profile),
            Err(EvProfileError::TooWide { field: 0, width: 12, room: 8 })
        );
    }

    #[test]
    fn format_fields_without_a_profile_field_are_zero() {
        let profile = [EvField::fixed(8, 0xAA)];
        let out = expand(EvFormat::Structured, &[8, 8, 16], &profile, &EvString::default()).unwrap();
        assert_eq!(out.structured(), Ev(0xAA00_0000));
    }

    #[test]
    fn bits_that_no_mask_takes_must_be_zero() {
        let profile = [EvField { width: 8, init: 0, min: 0, max: 0, mask: 0x0F }];
        let expand = |value| expand(EvFormat::Udp, &[16], &profile, &EvString::of_u32(value));
        assert!(expand(0xF000_0000).is_ok());
        assert_eq!(expand(0xF800_0000), Err(EvProfileError::UnusedBits { taken: 4 }));
        let mut last = EvString::default();
        last.0[31] = 1;
        let unused = super::expand(EvFormat::Udp, &[16], &profile, &last);
        assert_eq!(unused, Err(EvProfileError::UnusedBits { taken: 4 }));
    }

    #[test]
    fn bounds_are_those_of_the_masked_number() {
        let field = EvField { width: 16, init: 0x8000, min: 1, max: 0xF, mask: 0x0F00 };
        assert_eq!(check(EvFormat::Udp, &[16], &[field]), Ok(()));
        assert_eq!(field.bounds(), Some((1, 0xF)), "15 values");
        let whole = EvField { min: 0, max: 0, ..field };
        assert_eq!((whole.bounds(), check(EvFormat::Udp, &[16], &[whole])), (Some((0, 0xF)), Ok(())));
        assert_eq!(EvField { width: 32, mask: u32::MAX, ..EvField::default() }.bounds(), Some((0, u32::MAX)));
        let fixed = EvField { min: 9, max: 3, mask: 0, ..field };
        assert_eq!((fixed.bounds(), check(EvFormat::Udp, &[16], &[fixed])), (None, Ok(())));
    }

    #[test]
    fn illegal_profiles_are_refused() {
        use EvProfileError as E;
        let field = EvField { width: 8, init: 0, min: 0, max: 255, mask: 0xFF };
        let refuse = |widths: &[u32], profile: &[EvField]| check(EvFormat::Udp, widths, profile).unwrap_err();
        assert_eq!(refuse(&[8], &[field; 2]), E::FieldCount { profile: 2, format: 1 });
        assert_eq!(refuse(&[7], &[field]), E::Widths { profile: 8, format: 7 });
        assert_eq!(refuse(&[8, 7], &[field; 2]), E::Widths { profile: 16, format: 15 });
        assert_eq!(refuse(&[0], &[field]), E::FormatWidth { field: 0, width: 0 });
        assert_eq!(refuse(&[256], &[field]), E::FormatWidth { field: 0, width: 256 });
        assert_eq!(refuse(&[16], &[EvField { width: 0, ..field }]), E::Width { field: 0, width: 0 });
        let wide = EvField { width: 33, ..field };
        assert_eq!(check(EvFormat::Srv6, &[128], &[wide]), Err(E::Width { field: 0, width: 33 }));
        for (format, room) in
            [(EvFormat::Udp, 16), (EvFormat::Structured, 32), (EvFormat::Srv6, 128), (EvFormat::Srv6Srh, 256)]
        {
            assert_eq!(check(format, &[room / 2, room / 2], &[]), Ok(()));
            let total = room + 1;
            assert_eq!(check(format, &[room / 2, room / 2, 1], &[]), Err(E::Total { total, room }));
        }
        assert_eq!(check(EvFormat::Srv6Srh, &[120, 16, 120], &[]), Err(E::Boundary));
        assert_eq!(check(EvFormat::Srv6Srh, &[64], &[]), Err(E::Boundary));
        let long = EvField { init: 256, ..field };
        assert_eq!(refuse(&[8], &[long]), E::Value { field: 0, name: "init", width: 8 });
        let long = EvField { mask: 0x1FF, ..field };
        assert_eq!(refuse(&[8], &[long]), E::Value { field: 0, name: "mask", width: 8 });
        let above = EvField { mask: 0x0F, max: 16, ..field };
        assert_eq!(refuse(&[8], &[above]), E::Max { field: 0, max: 16, bits: 4 });
        assert_eq!(refuse(&[8], &[EvField { min: 9, max: 8, ..field }]), E::Range { field: 0 });
        assert_eq!(refuse(&[8], &[EvField { min: 9, max: 0, ..field }]), E::Range { field: 0 });
    }

    // The rule of the spec, on vectors of single bits.
    fn expand_bitwise(widths: &[u32], profile: &[EvField], ev: &EvString) -> Vec<bool> {
        let mut ev = (0..EV_BITS).map(|i| ev.bit(i));
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
        (1u32..=32, 0u32..=8, any::<u32>(), any::<u32>()).prop_map(|(width, extra, init, mask)| {
            let all = all_ones(width);
            (width + extra, EvField { width, init: init & all, min: 0, max: 0, mask: mask & all })
        })
    }

    proptest! {
        #[test]
        fn expansion_follows_the_rule_bit_by_bit(
            fields in prop::collection::vec(field(), 0..=7), ev: [u8; 32],
        ) {
            let (mut widths, profile): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
            prop_assume!(widths.iter().sum::<u32>() <= 128);
            let taken: u32 = profile.iter().map(|field| field.mask.count_ones()).sum();
            let ev = EvString(core::array::from_fn(|i| {
                let left = taken.saturating_sub(8 * i as u32).min(8);
                ev[i] & !(0xFFu16 >> left) as u8
            }));
            let expected = expand_bitwise(&widths, &profile, &ev);
            widths.push(128 - widths.iter().sum::<u32>());
            widths.retain(|&width| width > 0);
            let out = expand(EvFormat::Srv6Srh, &widths, &profile, &ev).unwrap();
            let bits = [out.destination().octets(), out.segment().octets()].concat();
            for (i, &bit) in expected.iter().enumerate() {
                prop_assert_eq!(bits[i / 8] >> (7 - i % 8) & 1 == 1, bit, "bit {}", i);
            }
        }

        #[test]
        fn no_profile_makes_it_panic(
            widths in prop::collection::vec(0u32..=300, 0..9),
            fields in prop::collection::vec((0u32..=300, any::<u32>(), any::<u32>()), 0..9),
            ev: [u8; 32],
        ) {
            let profile: Vec<_> = fields
                .into_iter()
                .map(|(width, init, mask)| EvField { width, init, min: 0, max: 0, mask })
                .collect();
            for format in [EvFormat::Udp, EvFormat::Structured, EvFormat::Srv6, EvFormat::Srv6Srh] {
                let _ = expand(format, &widths, &profile, &EvString(ev));
                let _ = check_fit(format, &widths, &profile);
            }
        }
    }
}
