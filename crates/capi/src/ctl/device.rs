//! What a controller asks of the device, and its ports (docs/spec/c-interface.md, sections 6.1, 6.3 and 6.8).

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use openmrc_nic as nic;

use super::*;
use crate::abi::ctl::*;
use crate::abi::verbs::IbvContext;
use crate::context::{CONTEXTS, Context};
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::mrc::{Handle, mrc_query_version};
use crate::returns::m1;

fn attributes(context: &Context) -> Result<MrcCtlDeviceAttr> {
    let limits = context.nic.profiles().limits()?;
    let format = context.device.description.config.entropy.format;
    let auto = if limits.has_auto { EV_MODE_AUTO } else { 0 };
    let planes = u32::from(context.device.planes());
    Ok(MrcCtlDeviceAttr {
        mrc_ctl_protocol_version: MRC_CTL_PROTOCOL_VERSION_1,
        ev_max_fmt_profiles: limits.max_profiles,
        ev_max_profiles: limits.max_profiles,
        ev_max_count: limits.ev_max_count,
        ev_free_count: limits.ev_free_count,
        ev_max_count_profile: limits.ev_max_count_profile,
        ev_count_align: limits.ev_count_align,
        ev_max_width: limits.ev_max_width,
        ev_fmt_mode_mask: translate::format_code(format) as u32,
        ev_mode_mask: (auto | EV_MODE_EXP | EV_MODE_GEN) as u32,
        ev_op_max_entries: 0,
        gap: 0,
        cc_max_profiles: limits.max_profiles,
        algorithms: ALGORITHMS.0.as_ptr(),
        phy_port_mask: ((1 << planes) - 1) << 1,
        opt_attr: OPT_CAP_EV_EVENT | OPT_CAP_EV_EVENT_PRECISE_DROP_CNT | OPT_CAP_EP_OP_EV_PROBE,
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_device(
    context: *mut IbvContext,
    attr: *mut MrcCtlDeviceAttr,
) -> c_int {
    m1(|| {
        if context.is_null() || attr.is_null() {
            return Err(EINVAL);
        }
        let context = CONTEXTS.get(context).map_err(|e| if e == EINVAL { EOPNOTSUPP } else { e })?;
        // SAFETY: checked above.
        unsafe { attr.write(attributes(&context)?) };
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_device_ex(
    context: *mut IbvContext,
    mcontext: Handle,
    attr: *mut MrcCtlDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| {
        if context.is_null() || attr.is_null() || supported.is_null() {
            return Err(EINVAL);
        }
        let found = CONTEXTS.get(context);
        if !mcontext.is_null() && !Arc::ptr_eq(&device_of(mcontext)?, found.as_ref().map_err(|e| *e)?) {
            return Err(EINVAL);
        }
        let attributes = match found {
            Ok(context) => Some(attributes(&context)?),
            Err(EINVAL) => None,
            Err(dead) => return Err(dead),
        };
        // SAFETY: checked above.
        unsafe {
            supported.write(attributes.is_some().into());
            match attributes {
                Some(attributes) => attr.write(attributes),
                None => ptr::write_bytes(attr, 0, 1),
            }
        }
        Ok(0)
    })
}

/// The versions of both interfaces are the same.
///
/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_version(
    current: *mut u32,
    last_supported: *mut u32,
    vendor: *mut u32,
    last_supported_vendor: *mut u32,
) {
    // SAFETY: the caller's promise.
    unsafe { mrc_query_version(current, last_supported, vendor, last_supported_vendor) };
}

/// Checks the arguments of a call about a port; then calls `work` if the mask names its state, the only attribute.
///
/// # Safety
/// `attr` is null or a structure that can be written.
unsafe fn on_port(
    (mrc_ctx, port_num): (Handle, u8),
    attr: *mut MrcCtlPortAttr,
    mask: c_int,
    work: impl FnOnce(&nic::Context, usize, &mut MrcCtlPortAttr) -> Result<()>,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        let plane = context.plane(port_num.into())?;
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        if mask as u32 & !MRC_CTL_PORT_ADMIN_STATE != 0 {
            return Err(EINVAL);
        }
        if mask as u32 & MRC_CTL_PORT_ADMIN_STATE != 0 {
            work(&context.nic, plane, attr)?;
        }
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_port(
    mrc_ctx: Handle,
    port_num: u8,
    attr: *mut MrcCtlPortAttr,
    mask: c_int,
) -> c_int {
    let query = |nic: &nic::Context, plane: usize, attr: &mut MrcCtlPortAttr| {
        let up = nic.port_states()?.get(plane).is_some_and(|port| port.admin_up);
        attr.port_admin_state = if up { MRC_CTL_PORT_ADMIN_ENABLED } else { MRC_CTL_PORT_ADMIN_DISABLED };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { on_port((mrc_ctx, port_num), attr, mask, query) }
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_port(
    mrc_ctx: Handle,
    port_num: u8,
    attr: *mut MrcCtlPortAttr,
    mask: c_int,
) -> c_int {
    let modify = |nic: &nic::Context, plane: usize, attr: &mut MrcCtlPortAttr| {
        let up = match attr.port_admin_state {
            MRC_CTL_PORT_ADMIN_DISABLED => false,
            MRC_CTL_PORT_ADMIN_ENABLED => true,
            _ => return Err(EINVAL),
        };
        Ok(nic.set_port_admin(plane, up)?)
    };
    // SAFETY: the caller's promise.
    unsafe { on_port((mrc_ctx, port_num), attr, mask, modify) }
}
