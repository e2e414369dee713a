//! Completion channels and queues of verbs (docs/spec/c-interface.md, sections 7.2 and 9).

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::extended::{IbvCqEx, pollers};
use crate::abi::verbs::*;
use crate::cq::{self, Api, CQS, Channel, VERBS_CQ};
use crate::returns::{e0, m1, pointer};

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    pointer(|| cq::create_verbs_channel(context))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: the public part of channels of verbs.
    e0(|| unsafe { cq::destroy_channel(channel, Api::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    let none = [std::ptr::null_mut(); pollers::COUNT];
    pointer(|| cq::create_verbs(context, cqe, cq_context, channel, comp_vector, none)).cast()
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: the public part of completion queues of verbs.
    e0(|| unsafe { cq::destroy(cq.cast::<IbvCqEx>(), Api::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program gives places for both, or null.
    m1(|| unsafe { Channel::wait(Channel::of(channel, Api::Verbs), cq, cq_context) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut IbvCq, events: c_uint) {
    if let Ok(cq) = CQS.get(cq) {
        cq.acknowledge(events);
    }
}

/// `poll_cq` of a context.
///
/// # Safety
/// As in verbs: `wc` has room for `entries` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut IbvCq, entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { cq::core(cq.cast::<IbvCqEx>(), VERBS_CQ)?.poll(entries, wc) })
}

/// `req_notify_cq` of a context.
///
/// # Safety
/// As in verbs.
pub unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { cq::core(cq.cast::<IbvCqEx>(), VERBS_CQ)? }.arm(solicited_only != 0))
}
