//! The functions of `mrc_ctl.h` (docs/spec/c-interface.md, section 6), over the profiles of the process's device: what
//! the modules share.

mod cc_profiles;
mod device;
mod endpoint;
mod ev_profiles;
mod events;
mod format_profiles;
pub mod translate;

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;
use std::{ptr, slice};

use openmrc_nic::profiles::ProfileState;

use crate::abi::ctl::*;
use crate::abi::mrc::MAX_VENDOR_CFG_SIZE;
use crate::context::Context;
use crate::errno::{EINVAL, Errno, Result};
use crate::modify::check_vendor_cfg;
use crate::mrc::{Handle, MRC_CONTEXTS};

const E2BIG: Errno = Errno(libc::E2BIG);

/// The name of the algorithm that there is.
const NSCC: &CStr = c"uet-1.0-nscc";

/// The list of algorithms, which ends with null.
struct Algorithms([*const c_char; 2]);

// SAFETY: pointers to constants.
unsafe impl Sync for Algorithms {}

static ALGORITHMS: Algorithms = Algorithms([NSCC.as_ptr(), ptr::null()]);

fn device_of(mrc_ctx: Handle) -> Result<Arc<Context>> {
    Ok(Arc::clone(&MRC_CONTEXTS.get(mrc_ctx)?.context))
}

/// Checks a call's mask and the vendor's bytes.
fn check_mask(mask: u32, known: u32, vendor_cfg: &[u8; MAX_VENDOR_CFG_SIZE]) -> Result<()> {
    let common = profile_attr::STATE | profile_attr::CUR_STATE | profile_attr::VENDOR_CFG;
    if mask & !(known | common) != 0 {
        return Err(EINVAL);
    }
    check_vendor_cfg(vendor_cfg, mask & profile_attr::VENDOR_CFG != 0)
}

/// What a call on a profile gives: the device, the attributes and which of them count.
///
/// # Safety
/// `attr` is null or a structure that nothing else changes.
unsafe fn on_profile<'a, A>(
    mrc_ctx: Handle,
    attr: *mut A,
    mask: c_int,
) -> Result<(Arc<Context>, &'a mut A, u32)> {
    // SAFETY: the caller's promise.
    Ok((device_of(mrc_ctx)?, unsafe { attr.as_mut() }.ok_or(EINVAL)?, mask as u32))
}

/// Answers a query of the attributes that all profiles have.
///
/// # Errors
/// EINVAL if it asks for one of the `known` others in INIT, where there are none.
fn write_state(
    state: ProfileState,
    (mask, known): (u32, u32),
    (profile_state, current): (&mut i32, &mut i32),
    vendor_cfg: &mut [u8; MAX_VENDOR_CFG_SIZE],
) -> Result<()> {
    if mask & profile_attr::STATE != 0 {
        *profile_state = translate::state_code(state);
    }
    if mask & profile_attr::CUR_STATE != 0 {
        *current = translate::state_code(state);
    }
    if mask & profile_attr::VENDOR_CFG != 0 {
        *vendor_cfg = [0; _];
    }
    if state == ProfileState::Init && mask & known != 0 { Err(EINVAL) } else { Ok(()) }
}

/// An array of a program, which may be empty.
///
/// # Safety
/// `list` is null or has `count` members that nothing else changes.
unsafe fn array<'a, T>(list: *mut T, count: c_int) -> Result<&'a mut [T]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&mut []),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts_mut(list, count) }),
        _ => Err(EINVAL),
    }
}

/// Gives a list to a program: into its array if that is long enough, else only the length that is needed.
///
/// # Safety
/// As [`array()`].
unsafe fn give<T: Copy>(list: *mut T, count: &mut c_int, values: &[T]) -> Result<()> {
    let asks = list.is_null() && *count == 0;
    let room = usize::try_from(*count).map_err(|_| EINVAL)?;
    *count = values.len() as c_int;
    if asks {
        return Ok(());
    }
    if room < values.len() {
        return Err(E2BIG);
    }
    // SAFETY: the caller's promise.
    unsafe { array(list, *count)? }.copy_from_slice(values);
    Ok(())
}
