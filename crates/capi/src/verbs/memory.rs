//! Protection domains and memory regions of verbs (docs/spec/c-interface.md, sections 7.2 and 7.7).

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::verbs::*;
use crate::errno::{self, EINVAL, EOPNOTSUPP};
use crate::memory;
use crate::returns::{e0, pointer};
use crate::told;

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    pointer(|| memory::alloc_pd(context))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut IbvPd) -> c_int {
    e0(|| memory::dealloc_pd(pd))
}

/// # Safety
/// As in verbs: the memory stays until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    pointer(|| memory::register(pd, addr, length, access as u32))
}

/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    pointer(|| register_at(pd, addr, length, iova, access))
}

/// Registers memory that peers address by `iova`, which is its address.
fn register_at(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> errno::Result<*mut IbvMr> {
    if iova != addr.addr() as u64 {
        told::refused("memory region", "an iova other than the address", "MRC has no such regions");
        return Err(EOPNOTSUPP);
    }
    memory::register(pd, addr, length, access)
}

/// # Safety
/// As [`ibv_reg_mr`]; the structure has the members that its mask names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut IbvPd, attr: *const IbvMrInitAttr) -> *mut IbvMr {
    pointer(|| {
        // SAFETY: the caller's promise.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let mask = attr.comp_mask;
        if mask & (IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) != 0 {
            // As ibv_reg_dmabuf_mr: programs probe for it.
            return Err(EOPNOTSUPP);
        }
        if mask & !(IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA) != 0 {
            told::refused("memory region", &format!("attributes {mask:#x}"), "MRC has no such regions");
            return Err(EOPNOTSUPP);
        }
        if mask & IBV_REG_MR_MASK_ADDR == 0 {
            return Err(EINVAL);
        }
        let iova = if mask & IBV_REG_MR_MASK_IOVA != 0 { attr.iova } else { attr.addr.addr() as u64 };
        register_at(pd, attr.addr, attr.length, iova, attr.access as c_uint)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    e0(|| memory::deregister(mr))
}
