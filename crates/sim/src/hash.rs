//! Draws for packets: the outcome depends on the draw's inputs alone, not on what was drawn before.

use openmrc_transport::random::mix;

/// A number from 0 to 1 for a packet at a port at a time. It does not depend on the order of events elsewhere.
#[inline]
pub(crate) const fn chance(seed: u64, port: u32, time: u64) -> f64 {
    let hash = mix(time ^ mix(seed ^ port as u64));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
