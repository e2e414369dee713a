//! Asynchronous events of verbs (docs/spec/c-interface.md, sections 7.2 and 9).

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::abi::verbs::*;
use crate::context::{CONTEXTS, next_event};
use crate::cq::CQS;
use crate::errno::EINVAL;
use crate::qp::QPS;
use crate::returns::m1;

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut IbvContext, event: *mut IbvAsyncEvent) -> c_int {
    m1(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        let queue = CONTEXTS.get(context)?.events.clone();
        let got = next_event(&queue)?;
        // SAFETY: checked above.
        unsafe { event.write(IbvAsyncEvent { element: got.element, event_type: got.event_type }) };
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: the program gives an event, or null.
    if let Some(event) = unsafe { event.as_ref() } {
        acknowledge_async(event.element, event.event_type);
    }
}

/// Counts an asynchronous event of a queue pair or completion queue as acknowledged.
pub fn acknowledge_async(element: u64, event_type: c_int) {
    let object = ptr::with_exposed_provenance::<c_void>(element as usize);
    match event_type {
        IBV_EVENT_CQ_ERR => {
            if let Ok(cq) = CQS.get(object) {
                cq.async_events.acknowledge(1);
            }
        }
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            if let Ok(qp) = QPS.get(object) {
                qp.async_events.acknowledge(1);
            }
        }
        _ => {}
    }
}
