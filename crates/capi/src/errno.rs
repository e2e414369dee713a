//! Errno values, and which one an error of the NIC becomes (docs/spec/c-interface.md, sections 3 and 9).

use std::ffi::c_int;

use openmrc_nic::Error;
use openmrc_nic::profiles::ProfileError;

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
            Error::Profile(reason) => profile_errno(&reason),
            Error::InvalidArgument(_)
            | Error::Transition(_)
            | Error::Attribute(_)
            | Error::WrongState { .. } => EINVAL,
        }
    }
}

/// What a refused operation on a profile becomes.
fn profile_errno(reason: &ProfileError) -> Errno {
    match reason {
        ProfileError::Own | ProfileError::InUse(_) => EBUSY,
        ProfileError::TooWide { .. } => Errno(libc::E2BIG),
        ProfileError::UnknownEv { .. } => Errno(libc::ENOENT),
        ProfileError::NoRoom { .. } => Errno(libc::ENOSPC),
        ProfileError::Unsupported { .. } => EOPNOTSUPP,
        ProfileError::CurState { .. }
        | ProfileError::Step { .. }
        | ProfileError::NotSettable { .. }
        | ProfileError::Missing { .. }
        | ProfileError::Unpopulated { .. }
        | ProfileError::WrongState { .. }
        | ProfileError::NotExplicit(_)
        | ProfileError::Format { .. }
        | ProfileError::Value { .. }
        | ProfileError::Fields(_)
        | ProfileError::NoValue
        | ProfileError::SourcePort(_)
        | ProfileError::Address(_)
        | ProfileError::NoRoute(_) => EINVAL,
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
