//! Bandwidth and latency loops, as perftest's `ib_write_bw` and `ib_write_lat` have them. The two sides agree on sizes
//! and keys elsewhere; here each runs its loop on queue pairs that are connected.

mod bw;
mod lat;

pub use bw::{BwParams, BwResult, write_bw};
pub use lat::{LatParams, Role, write_lat};

use crate::error::{Error, Result};
use crate::memory::MemoryRegion;

/// A region of the peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its key.
    pub rkey: u32,
}

/// Checks that messages of `size` bytes fit both ends.
fn check_size(size: u32, source: &MemoryRegion, target: &Target) -> Result<()> {
    if source.len() < size as usize || target.len < u64::from(size) {
        return Err(Error::InvalidArgument(format!(
            "messages of {size} bytes do not fit regions of {} and {} bytes",
            source.len(),
            target.len
        )));
    }
    Ok(())
}
