use super::*;

fn bytes<const N: usize>(elements: &[[u8; N]]) -> Vec<u8> {
    elements.concat()
}

/// The parts reduced into memory of their own.
fn reduced(dtype: DataType, op: ReduceOp, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut to = vec![0; parts[0].len()];
    let pointers: Vec<*const u8> = parts.iter().map(|part| part.as_ptr()).collect();
    // SAFETY: all parts and the result have the same number of whole elements.
    unsafe { reduce_all(dtype, op, to.as_mut_ptr(), &pointers, to.len() / dtype.size()) };
    to
}

#[test]
fn parts_are_reduced_in_their_order() {
    // A million is lost in 1e14, unless the two large ones have cancelled each other before.
    let values = [1e14f32, 1e6, -1e14, 3.0, 5.0];
    for count in 2..=values.len() {
        for turn in 0..count {
            let mut parts = values[..count].to_vec();
            parts.rotate_left(turn);
            let expected = parts[1..].iter().fold(parts[0], |sum, part| sum + part);
            // Elements that fill whole vectors, and some behind.
            let inputs: Vec<_> = parts.iter().map(|part| bytes(&[part.to_ne_bytes(); 67])).collect();
            let result = reduced(DataType::Float32, ReduceOp::Sum, &inputs);
            assert_eq!(result, bytes(&[expected.to_ne_bytes(); 67]), "{parts:?}");
        }
    }
}

#[test]
fn bfloat16_is_rounded_to_nearest_even() {
    // Halfway between two: to the even one, up and down.
    assert_eq!(Brain::narrow(f32::from_bits(0x3F80_8000)).0, 0x3F80);
    assert_eq!(Brain::narrow(f32::from_bits(0x3F81_8000)).0, 0x3F82);
    assert_eq!(Brain::narrow(f32::from_bits(0x3F80_8001)).0, 0x3F81);
    assert_eq!(Brain::narrow(f32::from_bits(0x3F81_7FFF)).0, 0x3F81);
    assert_eq!(Brain::narrow(f32::MAX).0, 0x7F80, "infinity is nearer");
    // Every upper half, at the ends and the middle of what rounds to it.
    for upper in 0..=u16::MAX {
        for lower in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let wide = f32::from_bits(u32::from(upper) << 16 | lower);
            let judge = half::bf16::from_f32(wide);
            assert_eq!(Brain::narrow(wide).0, judge.to_bits(), "{wide:e}");
        }
    }
    // 1 + 2^-8 is halfway between 1 and the next one.
    let parts = [0x3F80u16, 0x3B80].map(|bits| bytes(&[bits.to_ne_bytes(); 33]));
    assert_eq!(reduced(DataType::BFloat16, ReduceOp::Sum, &parts), bytes(&[0x3F80u16.to_ne_bytes(); 33]));
}

/// A narrow type: how it is read, and how it is written.
struct Narrow {
    dtype: DataType,
    widen: fn(&[u8]) -> f32,
    narrow: fn(f32) -> Vec<u8>,
}

const NARROW: [Narrow; 4] = [
    Narrow {
        dtype: DataType::Float16,
        widen: |bytes| f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        narrow: |wide| f16::from_f32(wide).to_ne_bytes().to_vec(),
    },
    Narrow {
        dtype: DataType::BFloat16,
        widen: |bytes| half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        narrow: |wide| half::bf16::from_f32(wide).to_ne_bytes().to_vec(),
    },
    Narrow {
        dtype: DataType::Float8E4M3,
        widen: |bytes| E4M3::from_bits(bytes[0]).to_f32(),
        narrow: |wide| vec![E4M3::from_f32(wide).bits()],
    },
    Narrow {
        dtype: DataType::Float8E5M2,
        widen: |bytes| E5M2::from_bits(bytes[0]).to_f32(),
        narrow: |wide| vec![E5M2::from_f32(wide).bits()],
    },
];

impl Narrow {
    /// Bytes of elements, each of which this type must hold exactly.
    fn exactly(&self, elements: &[f32]) -> Vec<u8> {
        let bytes: Vec<_> = elements.iter().map(|&element| (self.narrow)(element)).collect();
        assert!(bytes.iter().zip(elements).all(|(bytes, &element)| (self.widen)(bytes) == element));
        bytes.concat()
    }

    /// Reduces `lanes`, of which each holds one element of every part, in one call. `step` is the operation in single
    /// precision.
    fn is_reduced_in_order(&self, op: ReduceOp, lanes: &[Vec<f32>], step: fn(f32, f32) -> f32) {
        let folded: Vec<_> = lanes.iter().map(|lane| lane.iter().copied().reduce(step).unwrap()).collect();
        let part = |k| lanes.iter().map(|lane: &Vec<f32>| lane[k]).collect::<Vec<f32>>();
        let parts: Vec<_> = (0..lanes[0].len()).map(|k| self.exactly(&part(k))).collect();
        let expected: Vec<_> = folded.iter().flat_map(|&wide| (self.narrow)(wide)).collect();
        assert_eq!(reduced(self.dtype, op, &parts), expected, "{} of {}", op.name(), self.dtype.name());
    }
}

/// Elements of a call: more than a block, and no whole number of vectors.
const LANES: usize = BLOCK + 67;

/// Every order of `values`, over and over.
fn in_every_order(values: [f32; 4]) -> Vec<Vec<f32>> {
    let orders = (0..256usize).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    let orders: Vec<_> = orders.filter(|order| (0..4).all(|k| order.contains(&k))).collect();
    assert_eq!(orders.len(), 24);
    orders.iter().cycle().take(LANES).map(|order| order.map(|k| values[k]).to_vec()).collect()
}

#[test]
fn narrow_types_are_summed_in_the_order_of_the_parts_and_in_single_precision() {
    for narrow in &NARROW {
        // The small ones are lost in the large ones, in single precision, until these have cancelled each other.
        let (large, small) = match narrow.dtype {
            DataType::BFloat16 => (20f32.exp2(), (-10f32).exp2()),
            // Its range is within the precision of singles: no order changes a sum.
            DataType::Float8E4M3 => continue,
            _ => (15f32.exp2(), (-12f32).exp2()),
        };
        let lanes = in_every_order([large, -large, small, 3.0 * small]);
        narrow.is_reduced_in_order(ReduceOp::Sum, &lanes, |sum, part| sum + part);
    }
}

#[test]
fn narrow_types_are_multiplied_in_the_order_of_the_parts_and_in_single_precision() {
    for narrow in &NARROW {
        // Small ones first end in zero, large ones first in infinity, by turns in neither.
        let large = 256.0;
        let small = if narrow.dtype == DataType::Float8E4M3 { (-9f32).exp2() } else { (-8f32).exp2() };
        let orders = [
            [vec![small; 20], vec![large; 20]].concat(),
            [vec![large; 20], vec![small; 20]].concat(),
            [large, small].repeat(20),
        ];
        let lanes: Vec<_> = orders.iter().cycle().take(LANES).cloned().collect();
        narrow.is_reduced_in_order(ReduceOp::Product, &lanes, |product, part| product * part);
    }
}

#[test]
fn narrow_types_are_rounded_once_behind_the_last_part() {
    for (narrow, large) in NARROW.iter().zip([2048.0f32, 256.0, 16.0, 8.0]) {
        // One is half the distance to the next number, and two are the whole of it.
        let rounded = |wide| (narrow.widen)(&(narrow.narrow)(wide));
        assert_eq!((rounded(large + 1.0), rounded(large + 2.0)), (large, large + 2.0));
        let parts = [large, 1.0, 1.0].map(|element| narrow.exactly(&[element; LANES]));
        let expected = narrow.exactly(&[large + 2.0; LANES]);
        assert_eq!(reduced(narrow.dtype, ReduceOp::Sum, &parts), expected, "{}", narrow.dtype.name());
    }
}

#[test]
fn a_sum_of_negative_zeros_is_negative() {
    for narrow in &NARROW {
        let zeros = narrow.exactly(&[-0.0; LANES]);
        assert!(zeros.contains(&0x80));
        assert_eq!(reduced(narrow.dtype, ReduceOp::Sum, &[zeros.clone(), zeros.clone()]), zeros);
    }
}

#[test]
fn short_integers_wrap() {
    let sum = |dtype, parts: [Vec<u8>; 3]| reduced(dtype, ReduceOp::Sum, &parts);
    let bytes_of = |x: i8| vec![x as u8; LANES];
    assert_eq!(sum(DataType::Int8, [100, 100, -100].map(bytes_of)), bytes_of(100));
    assert_eq!(sum(DataType::UInt8, [200, 100, 1].map(|x: u8| vec![x; LANES])), vec![45; LANES]);
    let words = |x: i16| x.to_ne_bytes().repeat(LANES);
    assert_eq!(sum(DataType::Int16, [30_000, 30_000, -30_000].map(words)), words(30_000));
    let words = |x: u16| x.to_ne_bytes().repeat(LANES);
    assert_eq!(sum(DataType::UInt16, [60_000, 10_000, 1].map(words)), words(4_465));
}
