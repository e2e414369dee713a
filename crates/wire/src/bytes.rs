//! Big-endian fields in fixed-size headers.
//!
//! A header is first split off a slice as an array of its exact length. Offsets into the array are constants, so the
//! compiler removes the bounds checks, and no input can cause a panic.

use crate::error::DecodeError;

/// Splits the header `what`, `N` bytes long, off the front of `bytes`.
#[inline(always)]
pub(crate) fn take<'a, const N: usize>(
    bytes: &mut &'a [u8],
    what: &'static str,
) -> Result<&'a [u8; N], DecodeError> {
    match bytes.split_first_chunk::<N>() {
        Some((head, rest)) => {
            *bytes = rest;
            Ok(head)
        }
        None => Err(DecodeError::TooShort { what, needed: N, have: bytes.len() }),
    }
}

/// Splits room for a header of `N` bytes off the front of `room`; `None` if it does not fit.
#[inline(always)]
pub(crate) fn room<'a, const N: usize>(room: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (head, rest) = core::mem::take(room).split_first_chunk_mut::<N>()?;
    *room = rest;
    Some(head)
}

#[inline(always)]
pub(crate) const fn u16_at<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline(always)]
pub(crate) const fn u24_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([0, b[at], b[at + 1], b[at + 2]])
}

#[inline(always)]
pub(crate) const fn u32_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
pub(crate) const fn u64_at<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    (u32_at(b, at) as u64) << 32 | u32_at(b, at + 4) as u64
}

#[inline(always)]
pub(crate) fn put<const N: usize, const L: usize>(b: &mut [u8; N], at: usize, value: [u8; L]) {
    b[at..at + L].copy_from_slice(&value);
}

/// The low 24 bits of `value`.
#[inline(always)]
pub(crate) fn put_u24<const N: usize>(b: &mut [u8; N], at: usize, value: u32) {
    let [_, high, middle, low] = value.to_be_bytes();
    put(b, at, [high, middle, low]);
}
