//! What a device of any configuration offers an application and a controller (docs/spec/c-interface.md, sections 5, 6.3
//! and
//! 7.5). The C interface and Python report the same numbers.

/// Messages with immediate in flight, of either role.
pub const MAX_WIMM: u16 = 16_384;
/// In-flight window, units of 128 PSNs, and the step in which it can be set.
pub const MAX_MPR: u8 = 255;
/// Step of `mpr`.
pub const MPR_RESOLUTION: u8 = 1;
/// Hints about the use of queue pairs.
pub const MAX_QP_HINTS: u32 = 16_384;
/// Queue pairs.
pub const MAX_QPS: u32 = 1 << 14;
/// Completions that a completion queue can hold.
pub const MAX_CQE: usize = 1 << 22;
/// Completion vectors: one engine serves all completion queues.
pub const COMP_VECTORS: u32 = 1;
/// Profiles of one kind that are not in INIT.
pub const MAX_PROFILES: u32 = 256;
