//! Congestion control profiles (spec: C interface, section 6.4).

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::*;
use crate::abi::ctl::*;
use crate::errno::EINVAL;
use crate::mrc::Handle;
use crate::profiles::{CcProfile, State, cc};
use crate::returns::m1;

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_modify_cc_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlCcProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &attr.vendor_cfg)?;
        let mut nscc = None;
        if mask & cc_attr::ALGORITHM != 0 {
            // SAFETY: the program gives a string, or null.
            let name = (!attr.algorithm.is_null()).then(|| unsafe { CStr::from_ptr(attr.algorithm) });
            nscc = match name {
                None => Some(false),
                Some(name) if name == NSCC => Some(true),
                Some(_) => return Err(EINVAL),
            };
        }
        let mut config = None;
        if mask & cc_attr::CONFIG != 0 {
            // SAFETY: the program gives the structure of the algorithm, or null.
            config =
                Some(unsafe { attr.cc_config.cast::<MrcCtlCcNsccCfg>().as_ref() }.copied().ok_or(EINVAL)?);
        }
        let step = step(mask, attr.profile_state, attr.cur_profile_state);
        cc::modify(&context, id, cc::Change { step, nscc, config })?;
        Ok(0)
    })
}

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_query_cc_profile(
    mrc_ctx: Handle,
    id: u64,
    attr: *mut MrcCtlCcProfileAttr,
    mask: c_int,
) -> c_int {
    m1(|| {
        // SAFETY: the caller's promise.
        let (context, attr, mask) = unsafe { on_profile(mrc_ctx, attr, mask)? };
        check_mask(mask, cc_attr::ALGORITHM | cc_attr::CONFIG, &[0; _])?;
        let mut tables = context.profiles.lock();
        let mut profile = tables.ccs.get(id);
        if id == 0 {
            let nscc = context.device.description.config.network.trims;
            profile = CcProfile { state: State::Online, nscc: Some(nscc), ..profile };
        }
        let states = (&mut attr.profile_state, &mut attr.cur_profile_state);
        write_state(
            profile.state,
            (mask, cc_attr::ALGORITHM | cc_attr::CONFIG),
            states,
            &mut attr.vendor_cfg,
        )?;
        if mask & cc_attr::ALGORITHM != 0 {
            attr.algorithm = if profile.nscc == Some(true) { NSCC.as_ptr() } else { ptr::null() };
        }
        if mask & cc_attr::CONFIG != 0 {
            attr.cc_config = match profile.config {
                None => ptr::null(),
                Some(config) => {
                    let shown = Arc::new(config);
                    let at = Arc::as_ptr(&shown).cast::<c_void>();
                    if let Some(kept) = tables.ccs.get_mut(id) {
                        kept.shown = Some(shown);
                    }
                    at
                }
            };
        }
        Ok(0)
    })
}
