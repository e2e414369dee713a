//! From results to what C functions return (spec: C interface, sections 3 and 9). No panic crosses the border.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use openmrc_nic::Error;

/// A positive errno value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

pub type Result<T> = std::result::Result<T, Errno>;

pub const EINVAL: Errno = Errno(libc::EINVAL);
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
pub const EBUSY: Errno = Errno(libc::EBUSY);
pub const EIO: Errno = Errno(libc::EIO);
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::QueueFull { .. } => ENOMEM,
            Error::Busy(_) => EBUSY,
            Error::Closed(_) | Error::OtherProcess | Error::CqOverrun(_) | Error::MessageFailed { .. } => EIO,
            Error::Os { source, .. } => Errno(source.raw_os_error().unwrap_or(libc::EIO)),
            Error::InvalidArgument(_)
            | Error::Transition(_)
            | Error::Attribute(_)
            | Error::WrongState { .. } => EINVAL,
        }
    }
}

/// The last error of a system call.
pub fn last_os_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

pub fn set(errno: Errno) {
    // SAFETY: the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno.0 };
}

#[inline]
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        crate::process::panicked();
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
