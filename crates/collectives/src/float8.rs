//! Floating point numbers of eight bits (OCP 8-bit Floating Point Specification 1.0): E4M3, which has no infinity, and
//! E5M2. Both are widened by a table and narrowed to nearest even.

use std::sync::LazyLock;

/// A number of eight bits.
pub trait Float8: Copy {
    /// Bits of the mantissa that are stored.
    const MANTISSA: u32;
    /// Exponent of one.
    const BIAS: i32;
    /// Bits of the largest finite number.
    const LARGEST: u8;
    /// Bits of what is larger: infinity, or NaN where there is none.
    const OVERFLOW: u8;
    /// Bits of a NaN.
    const NAN: u8;

    /// Its bits.
    fn bits(self) -> u8;
    /// The number with these bits.
    fn from_bits(bits: u8) -> Self;
    /// All numbers, by their bits.
    fn table() -> &'static [f32; 256];

    /// The same number in single precision.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        Self::table()[usize::from(self.bits())]
    }

    /// The nearest number; of two, the even one.
    #[inline]
    fn from_f32(value: f32) -> Self {
        let sign = ((value.to_bits() >> 24) & 0x80) as u8;
        if value.is_nan() {
            return Self::from_bits(sign | Self::NAN);
        }
        let magnitude = value.abs();
        // The distance of neighbours at this magnitude, a power of two; subnormal numbers have that of the smallest
        // normal ones.
        let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(1 - Self::BIAS);
        let step = exponent - Self::MANTISSA as i32;
        // Exact: a power of two, and the sum of the exponents is in range.
        let steps = (f64::from(magnitude) * f64::from(-step).exp2()).round_ties_even();
        if !steps.is_finite() || steps > 1e6 {
            return Self::from_bits(sign | Self::OVERFLOW);
        }
        // The bits of a float count its steps: the mantissa's overflow carries into the exponent.
        let below = (exponent - (1 - Self::BIAS)) << Self::MANTISSA;
        let bits = below + steps as i32;
        let bits = if bits > i32::from(Self::LARGEST) { Self::OVERFLOW } else { bits as u8 };
        Self::from_bits(sign | bits)
    }
}

fn table<F: Float8>() -> [f32; 256] {
    std::array::from_fn(|bits| {
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        let magnitude = (bits & 0x7f) as u8;
        if magnitude > F::LARGEST {
            return if magnitude == F::OVERFLOW && F::OVERFLOW != F::NAN {
                sign * f32::INFINITY
            } else {
                f32::NAN
            };
        }
        let mantissa = i32::from(magnitude) & ((1 << F::MANTISSA) - 1);
        let exponent = i32::from(magnitude) >> F::MANTISSA;
        let (mantissa, exponent) =
            if exponent == 0 { (mantissa, 1) } else { (mantissa + (1 << F::MANTISSA), exponent) };
        sign * mantissa as f32 * ((exponent - F::BIAS - F::MANTISSA as i32) as f32).exp2()
    })
}

/// Four bits of exponent, three of mantissa, no infinity.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct E4M3(u8);

/// Five bits of exponent, two of mantissa.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct E5M2(u8);

static E4M3_VALUES: LazyLock<[f32; 256]> = LazyLock::new(table::<E4M3>);
static E5M2_VALUES: LazyLock<[f32; 256]> = LazyLock::new(table::<E5M2>);

impl Float8 for E4M3 {
    const MANTISSA: u32 = 3;
    const BIAS: i32 = 7;
    const LARGEST: u8 = 0x7e;
    const OVERFLOW: u8 = 0x7f;
    const NAN: u8 = 0x7f;

    #[inline(always)]
    fn bits(self) -> u8 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u8) -> Self {
        E4M3(bits)
    }
    fn table() -> &'static [f32; 256] {
        &E4M3_VALUES
    }
}

impl Float8 for E5M2 {
    const MANTISSA: u32 = 2;
    const BIAS: i32 = 15;
    const LARGEST: u8 = 0x7b;
    const OVERFLOW: u8 = 0x7c;
    const NAN: u8 = 0x7e;

    #[inline(always)]
    fn bits(self) -> u8 {
        self.0
    }
    #[inline(always)]
    fn from_bits(bits: u8) -> Self {
        E5M2(bits)
    }
    fn table() -> &'static [f32; 256] {
        &E5M2_VALUES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_number_survives<F: Float8>() {
        for bits in 0..=255u8 {
            let value = F::from_bits(bits).to_f32();
            if value.is_nan() {
                assert!(F::from_f32(value).to_f32().is_nan());
            } else {
                assert_eq!(F::from_f32(value).bits(), bits, "{value}");
            }
        }
    }

    /// The nearest of all numbers, by search; of two, the one with an even mantissa.
    fn nearest<F: Float8>(value: f32) -> f32 {
        (0..=F::LARGEST)
            .map(|bits| (bits, F::from_bits(bits).to_f32()))
            .min_by(|(a, x), (b, y)| {
                let (dx, dy) = ((x - value).abs(), (y - value).abs());
                dx.total_cmp(&dy).then((a & 1).cmp(&(b & 1)))
            })
            .unwrap()
            .1
    }

    fn rounds_to_nearest<F: Float8>() {
        let largest = F::from_bits(F::LARGEST).to_f32();
        let mut value = 1e-9f32;
        while value < largest {
            for v in [value, value * 1.0625, value * 1.125, value * 1.5] {
                if v < largest {
                    assert_eq!(F::from_f32(v).to_f32(), nearest::<F>(v), "{v}");
                    assert_eq!(F::from_f32(-v).to_f32(), -nearest::<F>(v), "-{v}");
                }
            }
            value *= 1.01;
        }
    }

    #[test]
    fn every_number_is_its_own_nearest() {
        every_number_survives::<E4M3>();
        every_number_survives::<E5M2>();
    }

    #[test]
    fn narrowing_takes_the_nearest_number() {
        rounds_to_nearest::<E4M3>();
        rounds_to_nearest::<E5M2>();
    }

    #[test]
    fn what_is_too_large_is_nan_or_infinity() {
        assert_eq!(E4M3::from_bits(E4M3::LARGEST).to_f32(), 448.0);
        assert_eq!(E5M2::from_bits(E5M2::LARGEST).to_f32(), 57344.0);
        assert!(E4M3::from_f32(1e5).to_f32().is_nan());
        assert_eq!(E5M2::from_f32(1e5).to_f32(), f32::INFINITY);
        assert_eq!(E5M2::from_f32(f32::NEG_INFINITY).to_f32(), f32::NEG_INFINITY);
        // Half a step above the largest still rounds down to it in E4M3: 448 + 15.
        assert_eq!(E4M3::from_f32(463.0).to_f32(), 448.0);
        assert_eq!(E4M3::from_f32(464.0).to_f32(), 448.0);
        assert!(E4M3::from_f32(465.0).to_f32().is_nan());
    }
}
