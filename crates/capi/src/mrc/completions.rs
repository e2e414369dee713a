//! Completion channels and queues of `mrc.h` (docs/spec/c-interface.md, section 3).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use super::*;
use crate::abi::verbs::*;
use crate::context::Context;
use crate::cq::{self, Api, CHANNELS, CQS, Channel, Cq, MRC_CQ, MrcChannel, MrcCq};
use crate::errno::{EINVAL, Result};
use crate::notifier::Notifier;
use crate::returns::{e0, m1, pointer};

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_comp_channel(mrc_ctx: Handle, channel: *mut Handle) -> c_int {
    e0(|| {
        // SAFETY: the program gives room for a pointer, or null.
        let to = unsafe { channel.as_mut() }.ok_or(EINVAL)?;
        *to = ptr::null_mut();
        let parent = MRC_CONTEXTS.get(mrc_ctx)?;
        let core = Arc::new(Channel::new(Arc::clone(&parent.context), Api::Mrc, mrc_ctx.addr())?);
        let object = MrcChannel::make((), Arc::as_ptr(&core), 0);
        CHANNELS.insert(object.expose_provenance(), core);
        *to = object.cast();
        Ok(())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_comp_channel_fd(comp_channel: Handle, fd: *mut c_int) -> c_int {
    m1(|| {
        let channel = Channel::of(comp_channel, Api::Mrc)?;
        // SAFETY: the program gives room for a number, or null.
        *unsafe { fd.as_mut() }.ok_or(EINVAL)? = channel.queue.fd();
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_comp_channel(channel: Handle) -> c_int {
    // SAFETY: channels of MRC have no public part.
    e0(|| unsafe { cq::destroy_channel(channel.cast::<()>(), Api::Mrc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
) -> Handle {
    pointer(|| create_cq(mrc_ctx, cqe, cq_context, channel, comp_vector, Cq::of_work))
}

/// A completion queue of MRC, for completions of work requests or EV events.
pub fn create_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
    make: impl FnOnce(&Context, usize, Notifier) -> Result<cq::Source>,
) -> Result<Handle> {
    let parent = MRC_CONTEXTS.get(mrc_ctx)?;
    if comp_vector != 0 {
        return Err(EINVAL);
    }
    let context = Arc::clone(&parent.context);
    let via = cq::channel_of(channel, &context, Api::Mrc)?;
    if via.as_ref().is_some_and(|via| via.parent != mrc_ctx.addr()) {
        return Err(EINVAL);
    }
    let core = Arc::new(Cq::new(context, (Api::Mrc, mrc_ctx.addr()), cqe, cq_context, via, make)?);
    let object = MrcCq::make((), Arc::as_ptr(&core), MRC_CQ);
    core.publish(object.expose_provenance(), &parent.queue);
    Ok(object.cast())
}

/// # Safety
/// As in `mrc.h`: `wc` has room for this many completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_poll_cq(cq: Handle, num_entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { cq::core(cq.cast::<()>(), MRC_CQ)?.poll(num_entries, wc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_cq(cq: Handle) -> c_int {
    // SAFETY: completion queues of MRC have no public part.
    e0(|| unsafe { cq::destroy(cq.cast::<()>(), Api::Mrc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_req_notify_cq(cq: Handle, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { cq::core(cq.cast::<()>(), MRC_CQ)? }.arm(solicited_only != 0))
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_cq_event(
    comp_channel: Handle,
    cq: *mut Handle,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program gives places for both, or null.
    m1(|| unsafe { Channel::wait(Channel::of(comp_channel, Api::Mrc), cq, cq_context) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ack_cq_events(cq: Handle, nevents: c_uint) {
    if let Ok(cq) = CQS.get(cq) {
        cq.acknowledge(nevents);
    }
}
