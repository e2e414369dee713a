//! Completion queues of EV events (docs/spec/c-interface.md, section 6.6).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use crate::abi::ctl::*;
use crate::abi::mrc::{CURRENT_VERSION, LATEST_VERSION, version};
use crate::context::Context;
use crate::cq::{CQS, Cq, Source};
use crate::errno::EINVAL;
use crate::ev_events::EvEvents;
use crate::mrc::{Handle, MRC_CONTEXTS, create_cq};
use crate::notifier::Notifier;
use crate::returns::{minus, pointer};

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_create_ev_event_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
) -> Handle {
    let make = |context: &Context, cqe: usize, notifier: Notifier| {
        let events = Arc::new(EvEvents::new(cqe, notifier));
        context.ev_queues.add(&events);
        Ok(Source::Ev(events))
    };
    pointer(|| create_cq(mrc_ctx, cqe, cq_context, channel, comp_vector, make))
}

/// # Safety
/// As in `mrc_ctl.h`: `ev_event` has room for this many events of the program's version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_poll_ev_event(
    ev_cq: Handle,
    num_entries: c_int,
    ev_event: *mut MrcCtlEvEvent,
) -> c_int {
    minus(|| {
        let cq: Arc<Cq> = CQS.get(ev_cq)?;
        let Source::Ev(events) = &cq.source else { return Err(EINVAL) };
        let most = usize::try_from(num_entries).map_err(|_| EINVAL)?;
        if most > 0 && ev_event.is_null() {
            return Err(EINVAL);
        }
        let used = MRC_CONTEXTS.get(ptr::with_exposed_provenance::<c_void>(cq.parent))?.api_version;
        let is_old = used != 0 && used != LATEST_VERSION && used < version(1, 0, 1);
        debug_assert!(CURRENT_VERSION == version(1, 0, 1));
        let stride = if is_old { OLD_EV_EVENT } else { size_of::<MrcCtlEvEvent>() };
        let taken = events.take(most);
        for (i, event) in taken.iter().enumerate() {
            // SAFETY: the program gives room for that many events of this size.
            unsafe {
                let to = ev_event.byte_add(i * stride).cast::<u8>();
                ptr::copy_nonoverlapping((&raw const *event).cast::<u8>(), to, stride);
            }
        }
        Ok(taken.len() as c_int)
    })
}
