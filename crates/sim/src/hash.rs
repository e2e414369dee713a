//! Hashes that stand in for random numbers: the outcome of a draw depends on its inputs alone, not on what was drawn
//! before.

/// SplitMix64's finaliser: spreads every bit of the input over the output.
#[inline]
pub(crate) const fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// A number from 0 to 1 for a packet at a port at a time. It does not depend on the order of events elsewhere.
#[inline]
pub(crate) const fn chance(seed: u64, port: u32, time: u64) -> f64 {
    let hash = mix(time ^ mix(seed ^ port as u64));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
