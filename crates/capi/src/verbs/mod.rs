//! The verbs functions of write-only programs (docs/spec/c-interface.md, section 7.2), and the operations behind a
//! context. What a device without sends, reads and atomics lacks is in `refused`.

mod completions;
mod devices;
mod events;
mod extended;
mod files;
mod memory;
mod qps;
mod queries;

pub use completions::{poll_cq, req_notify_cq};
pub use events::acknowledge_async;
pub use extended::{create_cq_ex, create_qp_ex, query_device_ex};
pub use qps::{post_recv, post_send, refuse};
pub use queries::query_port_extended;

use std::ffi::c_int;

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Not needed: no memory is pinned.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
