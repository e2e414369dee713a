//! Asynchronous events of `mrc.h` (docs/spec/c-interface.md, section 3).

use std::ffi::c_int;

use super::*;
use crate::abi::mrc::*;
use crate::context::next_event;
use crate::errno::EINVAL;
use crate::returns::m1;
use crate::verbs::acknowledge_async;

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_async_event(mrc_ctx: Handle, event: *mut MrcAsyncEvent) -> c_int {
    m1(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        let queue = MRC_CONTEXTS.get(mrc_ctx)?.queue.clone();
        let got = next_event(&queue)?;
        // SAFETY: checked above.
        unsafe { event.write(MrcAsyncEvent { element: got.element, event_type: got.event_type }) };
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ack_async_event(event: *mut MrcAsyncEvent) {
    // SAFETY: the program gives an event, or null.
    if let Some(event) = unsafe { event.as_ref() } {
        acknowledge_async(event.element, event.event_type);
    }
}
