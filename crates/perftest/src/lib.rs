//! The measuring loops of `openmrc write-bw` and `openmrc write-lat`, as perftest's `ib_write_bw` and `ib_write_lat` have
//! them. Both ends have connected their queue pairs and exchanged sizes, addresses and keys before.

#![forbid(unsafe_code)]

mod bandwidth;
mod ends;
mod latency;

pub use bandwidth::{BandwidthParams, BandwidthResult, Control, write_bw};
pub use ends::{Memory, Target};
pub use latency::{LatencyParams, Role, write_lat};
