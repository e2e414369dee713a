//! CRC-32 as a polynomial. A CRC is linear: the difference of two CRCs is the difference of the two messages times x^n,
//! modulo the polynomial, for n bits from there to the end. So the effect of a change is one multiplication, and the way
//! back is another.

/// How a change of two bytes shows in the CRC-32 at the end of a packet, and which change a difference comes from.
///
/// Packets of few lengths make up the traffic: the powers of x for the last ones are kept.
#[derive(Clone, Debug)]
pub struct Distances {
    kept: [Distance; 4],
}

/// The powers for one length.
#[derive(Clone, Copy, Debug)]
struct Distance {
    /// Bytes from the first that may change to the CRC.
    bytes: usize,
    /// x^n, and its inverse.
    powers: [u32; 2],
}

impl Default for Distances {
    fn default() -> Self {
        Distances { kept: [Distance::new(0); 4] }
    }
}

impl Distances {
    #[inline]
    fn powers(&mut self, bytes: usize) -> [u32; 2] {
        let kept = &mut self.kept[bytes / 4 % 4];
        if kept.bytes != bytes {
            *kept = Distance::new(bytes);
        }
        kept.powers
    }

    /// What a change, as a big-endian number, does to the CRC `bytes` behind its first byte.
    pub(crate) fn effect_of(&mut self, change: u16, bytes: usize) -> u32 {
        times(u32::from(change.swap_bytes()), self.powers(bytes)[0])
    }

    /// The change that does this to the CRC `bytes` behind its first byte, if one does.
    #[inline]
    pub(crate) fn origin_of(&mut self, effect: u32, bytes: usize) -> Option<u16> {
        u16::try_from(times(effect, self.powers(bytes)[1])).ok().map(u16::swap_bytes)
    }
}

impl Distance {
    fn new(bytes: usize) -> Self {
        let bits = 8 * bytes as u64;
        Distance { bytes, powers: [power(bits), power(ORDER - bits % ORDER)] }
    }
}

/// The polynomial, reflected: bit 31 stands for x^0.
const POLYNOMIAL: u32 = 0xEDB8_8320;
/// x to this power is 1: the polynomial is primitive.
const ORDER: u64 = u32::MAX as u64;

/// The product of two polynomials, modulo [`POLYNOMIAL`].
#[inline]
const fn times(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, 0);
    while bit < 32 {
        product ^= b & ((a << bit) as i32 >> 31) as u32;
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
        bit += 1;
    }
    product
}

/// x to a power, modulo [`POLYNOMIAL`].
const fn power(mut exponent: u64) -> u32 {
    let (mut result, mut square) = (1 << 31, 1 << 30);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = times(result, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    result
}
