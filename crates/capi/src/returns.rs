//! From results to what C functions return (docs/spec/c-interface.md, sections 3 and 9). No panic crosses the border.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::errno::{EIO, Result, set};
use crate::process;

#[inline]
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        process::panicked();
        Err(EIO)
    })
}

/// 0, or the errno value, which is also left in errno.
#[inline]
pub fn e0(work: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(work) {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno.0
        }
    }
}

/// What `work` returns, or -1 with errno set.
#[inline]
pub fn m1(work: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(work).unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// What `work` returns, or minus the errno value.
pub fn minus(work: impl FnOnce() -> Result<c_int>) -> c_int {
    guarded(work).unwrap_or_else(|errno| {
        set(errno);
        -errno.0
    })
}

/// A pointer, or NULL with errno set.
pub fn pointer<T>(work: impl FnOnce() -> Result<*mut T>) -> *mut T {
    guarded(work).unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}
