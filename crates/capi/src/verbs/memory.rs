//! Protection domains and memory regions of verbs (docs/spec/c-interface.md, sections 7.2 and 7.7).

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::verbs::*;
use crate::errno::EOPNOTSUPP;
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
    pointer(|| match iova == addr.addr() as u64 {
        true => memory::register(pd, addr, length, access),
        false => {
            told::refused("memory region", "an iova other than the address", "MRC has no such regions");
            Err(EOPNOTSUPP)
        }
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    e0(|| memory::deregister(mr))
}
