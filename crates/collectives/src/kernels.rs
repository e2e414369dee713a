//! Reduction kernels: element by element, over memory that may be unaligned. Types of 16 and 8 bits are computed in
//! single precision and rounded once per call (docs/spec/collectives.md, "Collectives").
//!
//! The loops are plain, and compiled twice: for any x86-64, and with AVX2, which is chosen at run time.

use half::f16;

use crate::float8::{E4M3, E5M2, Float8};
use crate::types::{DataType, ReduceOp};

/// A type in memory, and the type in which it is computed.
trait Element: Copy {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

/// What the reductions need of a number.
trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn div(self, n: u32) -> Self;
    fn scale(self, factor: f64) -> Self;
}

/// A number whose bits can be combined.
trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! float {
    ($($t:ty),*) => { $(
        impl Number for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            // A NaN on either side gives NaN, whichever rank it came from.
            #[inline(always)]
            fn min(self, other: Self) -> Self { if self < other || self.is_nan() { self } else { other } }
            #[inline(always)]
            fn max(self, other: Self) -> Self { if self > other || self.is_nan() { self } else { other } }
            #[inline(always)]
            fn div(self, n: u32) -> Self { self / n as $t }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self { self * factor as $t }
        }
        impl Element for $t {
            type Wide = $t;
            #[inline(always)]
            fn widen(self) -> $t { self }
            #[inline(always)]
            fn narrow(wide: $t) -> $t { wide }
        }
    )* };
}
float!(f64, f32);

macro_rules! integer {
    ($($t:ty),*) => { $(
        impl Number for $t {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline(always)]
            fn div(self, n: u32) -> Self { (i128::from(self) / i128::from(n)) as $t }
            #[inline(always)]
            fn scale(self, factor: f64) -> Self { (self as f64 * factor) as $t }
        }
        impl Bits for $t {
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
        }
        impl Element for $t {
            type Wide = $t;
            #[inline(always)]
            fn widen(self) -> $t { self }
            #[inline(always)]
            fn narrow(wide: $t) -> $t { wide }
        }
    )* };
}
integer!(i8, i16, i32, i64, u8, u16, u32, u64);

/// A byte that is 0 or 1; any other value counts as 1.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Boolean(u8);

impl Number for Boolean {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.or(other)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.and(other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.and(other)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.or(other)
    }
    #[inline(always)]
    fn div(self, _n: u32) -> Self {
        self
    }
    #[inline(always)]
    fn scale(self, factor: f64) -> Self {
        Boolean(u8::from(self.0 != 0 && factor != 0.0))
    }
}

impl Bits for Boolean {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Boolean(u8::from(self.0 != 0 && other.0 != 0))
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Boolean(u8::from(self.0 | other.0 != 0))
    }
    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Boolean(u8::from((self.0 != 0) != (other.0 != 0)))
    }
}

impl Element for Boolean {
    type Wide = Boolean;
    #[inline(always)]
    fn widen(self) -> Boolean {
        self
    }
    #[inline(always)]
    fn narrow(wide: Boolean) -> Boolean {
        wide
    }
}

impl Element for f16 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
}

/// The upper half of a single, rounded to nearest even. Not `half::bf16`: this form becomes vector instructions.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Brain(u16);

impl Element for Brain {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Brain {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x40;
        Brain(if wide.is_nan() { quiet_nan } else { rounded } as u16)
    }
}

impl<F: Float8> Element for F {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(wide: f32) -> F {
        F::from_f32(wide)
    }
}

/// Applies `f` to each pair of elements. `dst` may be the same address as `a` or `b`, and must not overlap them
/// otherwise.
///
/// # Safety
/// All three have `n` elements; nothing else writes them meanwhile.
#[inline(always)]
unsafe fn zip<E: Element>(
    dst: *mut E,
    a: *const E,
    b: *const E,
    n: usize,
    f: impl Fn(E::Wide, E::Wide) -> E::Wide + Copy,
) {
    // With one pointer less in each of the first two, the compiler sees that nothing overlaps.
    // SAFETY: the caller's promise.
    unsafe {
        if std::ptr::eq(dst, a) {
            for i in 0..n {
                let value = f(dst.add(i).read_unaligned().widen(), b.add(i).read_unaligned().widen());
                dst.add(i).write_unaligned(E::narrow(value));
            }
        } else if std::ptr::eq(dst, b) {
            for i in 0..n {
                let value = f(a.add(i).read_unaligned().widen(), dst.add(i).read_unaligned().widen());
                dst.add(i).write_unaligned(E::narrow(value));
            }
        } else {
            for i in 0..n {
                let value = f(a.add(i).read_unaligned().widen(), b.add(i).read_unaligned().widen());
                dst.add(i).write_unaligned(E::narrow(value));
            }
        }
    }
}

/// # Safety
/// As [`zip`].
#[inline(always)]
unsafe fn numbers<E: Element>(op: ReduceOp, dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
    let (dst, a, b) = (dst.cast::<E>(), a.cast::<E>(), b.cast::<E>());
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            ReduceOp::Product => zip(dst, a, b, n, Number::mul),
            ReduceOp::Min => zip(dst, a, b, n, Number::min),
            ReduceOp::Max => zip(dst, a, b, n, Number::max),
            _ => zip(dst, a, b, n, Number::add),
        }
    }
}

/// # Safety
/// As [`zip`].
#[inline(always)]
unsafe fn bits<E: Element<Wide = E> + Bits + Number>(
    op: ReduceOp,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    n: usize,
) {
    let (d, x, y) = (dst.cast::<E>(), a.cast::<E>(), b.cast::<E>());
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            ReduceOp::BitAnd => zip(d, x, y, n, Bits::and),
            ReduceOp::BitOr => zip(d, x, y, n, Bits::or),
            ReduceOp::BitXor => zip(d, x, y, n, Bits::xor),
            _ => numbers::<E>(op, dst, a, b, n),
        }
    }
}

/// # Safety
/// As [`zip`].
#[inline(always)]
unsafe fn dispatch(dtype: DataType, op: ReduceOp, dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
    // SAFETY: the caller's promise; every type has the size of `dtype`.
    unsafe {
        match dtype {
            DataType::Float64 => numbers::<f64>(op, dst, a, b, n),
            DataType::Float32 => numbers::<f32>(op, dst, a, b, n),
            DataType::Float16 => numbers::<f16>(op, dst, a, b, n),
            DataType::BFloat16 => numbers::<Brain>(op, dst, a, b, n),
            DataType::Float8E4M3 => numbers::<E4M3>(op, dst, a, b, n),
            DataType::Float8E5M2 => numbers::<E5M2>(op, dst, a, b, n),
            DataType::Int8 => bits::<i8>(op, dst, a, b, n),
            DataType::Int16 => bits::<i16>(op, dst, a, b, n),
            DataType::Int32 => bits::<i32>(op, dst, a, b, n),
            DataType::Int64 => bits::<i64>(op, dst, a, b, n),
            DataType::UInt8 => bits::<u8>(op, dst, a, b, n),
            DataType::Bool => bits::<Boolean>(op, dst, a, b, n),
            DataType::UInt16 => bits::<u16>(op, dst, a, b, n),
            DataType::UInt32 => bits::<u32>(op, dst, a, b, n),
            DataType::UInt64 => bits::<u64>(op, dst, a, b, n),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn dispatch_avx2(dtype: DataType, op: ReduceOp, dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { dispatch(dtype, op, dst, a, b, n) }
}

/// `dst[i] = a[i] op b[i]`. [`ReduceOp::Avg`] adds; [`divide`] ends it.
///
/// # Safety
/// `dst` is valid for writes and `a` and `b` for reads of `n` elements of `dtype`, aligned or not. `dst` is the same
/// address as `a` or `b`, or does not overlap them. Nothing writes them meanwhile.
pub unsafe fn reduce(dtype: DataType, op: ReduceOp, dst: *mut u8, a: *const u8, b: *const u8, n: usize) {
    debug_assert!(op.fits(dtype), "{} of {}", op.name(), dtype.name());
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the processor has these instructions; the rest is the caller's promise.
        return unsafe { dispatch_avx2(dtype, op, dst, a, b, n) };
    }
    // SAFETY: the caller's promise.
    unsafe { dispatch(dtype, op, dst, a, b, n) }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("f16c")
}

/// Elements of a block that is reduced over all ranks before the next.
const BLOCK: usize = 1024;

/// `dst[i] = parts[0][i] op parts[1][i] op ...`, in this order. Types narrower than 32 bits are rounded once, at the
/// end.
///
/// # Safety
/// As [`reduce`], for every part. There is at least one.
pub unsafe fn reduce_all(dtype: DataType, op: ReduceOp, dst: *mut u8, parts: &[*const u8], n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DataType::Float16 => reduce_all_wide::<f16>(op, dst, parts, n),
            DataType::BFloat16 => reduce_all_wide::<Brain>(op, dst, parts, n),
            DataType::Float8E4M3 => reduce_all_wide::<E4M3>(op, dst, parts, n),
            DataType::Float8E5M2 => reduce_all_wide::<E5M2>(op, dst, parts, n),
            _ => reduce_all_plain(dtype, op, dst, parts, n),
        }
    }
}

/// # Safety
/// As [`reduce_all`].
unsafe fn reduce_all_plain(dtype: DataType, op: ReduceOp, dst: *mut u8, parts: &[*const u8], n: usize) {
    let size = dtype.size();
    let mut sum = [0u64; BLOCK];
    let sum = sum.as_mut_ptr().cast::<u8>();
    let mut at = 0;
    while at < n {
        let len = BLOCK.min(n - at);
        // SAFETY: the caller's promise; a block has room for `BLOCK` elements of at most eight bytes. `dst` may be one
        // of the parts: its block is written after all parts' have been read.
        unsafe {
            std::ptr::copy_nonoverlapping(parts[0].add(at * size), sum, len * size);
            for part in &parts[1..] {
                reduce(dtype, op, sum, sum, part.add(at * size), len);
            }
            std::ptr::copy_nonoverlapping(sum, dst.add(at * size), len * size);
        }
        at += len;
    }
}

/// # Safety
/// As [`reduce_all`].
unsafe fn reduce_all_wide<E: Element<Wide = f32>>(op: ReduceOp, dst: *mut u8, parts: &[*const u8], n: usize) {
    let mut wide = [0f32; BLOCK];
    let dst = dst.cast::<E>();
    let mut at = 0;
    while at < n {
        let len = BLOCK.min(n - at);
        for (k, part) in parts.iter().enumerate() {
            // SAFETY: the caller's promise.
            let part = unsafe { part.cast::<E>().add(at) };
            for (i, sum) in wide[..len].iter_mut().enumerate() {
                // SAFETY: `i` is below the number of elements.
                let value = unsafe { part.add(i).read_unaligned() }.widen();
                *sum = match op {
                    _ if k == 0 => value,
                    ReduceOp::Product => *sum * value,
                    ReduceOp::Min => Number::min(*sum, value),
                    ReduceOp::Max => Number::max(*sum, value),
                    _ => *sum + value,
                };
            }
        }
        for (i, &sum) in wide[..len].iter().enumerate() {
            // SAFETY: as above.
            unsafe { dst.add(at + i).write_unaligned(E::narrow(sum)) };
        }
        at += len;
    }
}

/// Calls `$body` with `$E` being the element type of a `DataType`.
macro_rules! with_element {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            DataType::Float64 => {
                type $E = f64;
                $body
            }
            DataType::Float32 => {
                type $E = f32;
                $body
            }
            DataType::Float16 => {
                type $E = f16;
                $body
            }
            DataType::BFloat16 => {
                type $E = Brain;
                $body
            }
            DataType::Float8E4M3 => {
                type $E = E4M3;
                $body
            }
            DataType::Float8E5M2 => {
                type $E = E5M2;
                $body
            }
            DataType::Int8 => {
                type $E = i8;
                $body
            }
            DataType::Int16 => {
                type $E = i16;
                $body
            }
            DataType::Int32 => {
                type $E = i32;
                $body
            }
            DataType::Int64 => {
                type $E = i64;
                $body
            }
            DataType::UInt8 => {
                type $E = u8;
                $body
            }
            DataType::Bool => {
                type $E = Boolean;
                $body
            }
            DataType::UInt16 => {
                type $E = u16;
                $body
            }
            DataType::UInt32 => {
                type $E = u32;
                $body
            }
            DataType::UInt64 => {
                type $E = u64;
                $body
            }
        }
    };
}

/// Divides each element by `n`: the end of [`ReduceOp::Avg`].
///
/// # Safety
/// `data` is valid for reads and writes of `len` elements of `dtype`, aligned or not; nothing else accesses them.
pub unsafe fn divide(dtype: DataType, data: *mut u8, len: usize, n: u32) {
    with_element!(dtype, E => {
        // SAFETY: the caller's promise.
        unsafe { map::<E>(data, data, len, |wide| wide.div(n)) }
    });
}

/// `dst[i] = factor * src[i]`, computed in the element's arithmetic type; integers are rounded towards zero.
///
/// # Safety
/// `dst` is valid for writes and `src` for reads of `len` elements of `dtype`; they are the same or do not overlap;
/// nothing else accesses them.
pub unsafe fn scale(dtype: DataType, dst: *mut u8, src: *const u8, len: usize, factor: f64) {
    with_element!(dtype, E => {
        // SAFETY: the caller's promise.
        unsafe { map::<E>(dst, src, len, |wide| wide.scale(factor)) }
    });
}

/// # Safety
/// As [`scale`].
#[inline(always)]
unsafe fn map<E: Element>(dst: *mut u8, src: *const u8, len: usize, f: impl Fn(E::Wide) -> E::Wide) {
    let (dst, src) = (dst.cast::<E>(), src.cast::<E>());
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { dst.add(i).write_unaligned(E::narrow(f(src.add(i).read_unaligned().widen()))) };
    }
}

#[cfg(test)]
mod tests;
