//! Devices and contexts of `mrc.h` (docs/spec/c-interface.md, section 3).

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use openmrc_nic::limits;

use super::*;
use crate::abi::mrc::*;
use crate::abi::verbs::*;
use crate::context::{AsyncQueue, CONTEXTS, Context};
use crate::cq;
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::hint;
use crate::qp;
use crate::returns::{m1, pointer};

/// What every device reports.
const DEVICE: MrcDeviceAttr = MrcDeviceAttr {
    mrc_protocol_version: MRC_PROTOCOL_VERSION_1,
    max_wimm: limits::MAX_WIMM,
    max_wimm_dest: limits::MAX_WIMM,
    max_mpr: limits::MAX_MPR,
    mpr_resolution: limits::MPR_RESOLUTION,
    max_qp_hint: limits::MAX_QP_HINTS,
    cap: MRC_DEVICE_CAP_TRIM_NACK | MRC_DEVICE_CAP_DYNAMIC_MPR | MRC_DEVICE_CAP_SVC_TIME,
};

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_device_ex(
    context: *mut IbvContext,
    mcontext: Handle,
    attr: *mut MrcDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| {
        if !mcontext.is_null() {
            let parent = MRC_CONTEXTS.get(mcontext)?;
            if !Arc::ptr_eq(&parent.context, &CONTEXTS.get(context)?) {
                return Err(EINVAL);
            }
        }
        query_device(context, attr, supported)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_device(
    context: *mut IbvContext,
    attr: *mut MrcDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| query_device(context, attr, supported))
}

/// A device of somebody else does not support MRC, which is no error.
fn query_device(context: *mut IbvContext, attr: *mut MrcDeviceAttr, supported: *mut c_int) -> Result<c_int> {
    if context.is_null() {
        return Err(EINVAL);
    }
    let ours = match CONTEXTS.get(context) {
        Ok(_) => true,
        Err(EINVAL) => false,
        Err(dead) => return Err(dead),
    };
    // SAFETY: the program gives room for both, or null.
    unsafe {
        let (attr, supported) = attr.as_mut().zip(supported.as_mut()).ok_or(EINVAL)?;
        *attr = if ours { DEVICE } else { MrcDeviceAttr::default() };
        *supported = ours.into();
    }
    Ok(0)
}

/// Fills the four versions; null pointers are skipped.
///
/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_version(
    current: *mut u32,
    last_supported: *mut u32,
    vendor: *mut u32,
    last_supported_vendor: *mut u32,
) {
    for (to, value) in [
        (current, CURRENT_VERSION),
        (last_supported, LAST_SUPPORTED_VERSION),
        (vendor, VENDOR_CURRENT_VERSION),
        (last_supported_vendor, LAST_SUPPORTED_VERSION),
    ] {
        // SAFETY: the program gives room for a number, or null.
        if let Some(to) = unsafe { to.as_mut() } {
            *to = value;
        }
    }
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_context(context: *mut IbvContext, attr: *mut MrcContextAttr) -> Handle {
    pointer(|| {
        let context = CONTEXTS.get(context)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        let accepted = |used: u32, current: u32| used <= current || used == LATEST_VERSION;
        if !accepted(attr.mrc_api_version_used, CURRENT_VERSION)
            || !accepted(attr.mrc_vendor_api_version_used, VENDOR_CURRENT_VERSION)
        {
            return Err(EOPNOTSUPP);
        }
        let queue = Arc::new(AsyncQueue::new()?);
        context.router.add_queue(&queue);
        let core = MrcContext { context, api_version: attr.mrc_api_version_used, queue };
        let object = MrcContextObject::make((), ptr::null(), 0);
        MRC_CONTEXTS.insert(object.expose_provenance(), Arc::new(core));
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_context(mrc_ctx: Handle) -> c_int {
    m1(|| destroy_context(mrc_ctx).map(|()| 0))
}

/// Takes everything on it along.
fn destroy_context(mrc_ctx: Handle) -> Result<()> {
    let core = MRC_CONTEXTS.remove(mrc_ctx, |_| Ok(()))?;
    let parent = mrc_ctx.addr();
    core.context.router.remove_queue(&core.queue);
    qp::destroy_where(of(parent));
    cq::destroy_where(of(parent));
    hint::destroy_of(parent);
    core.queue.close();
    // SAFETY: it was in the table, so it was made as such an object, and it was removed once.
    unsafe { MrcContextObject::retire(mrc_ctx.cast()) };
    Ok(())
}

/// The MRC contexts of a device that is closed.
pub fn close_of(context: &Arc<Context>) {
    for (address, _) in MRC_CONTEXTS.all(|each| Arc::ptr_eq(&each.context, context)) {
        let _ = destroy_context(ptr::with_exposed_provenance_mut(address));
    }
}
