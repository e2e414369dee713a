//! The NIC's errors as Python's exceptions.

use std::io;

use openmrc_nic::Error;
use openmrc_nic::profiles::ProfileError;
use pyo3::prelude::*;

pyo3::import_exception!(openmrc.errors, ArgumentError);
pyo3::import_exception!(openmrc.errors, ClosedError);
pyo3::import_exception!(openmrc.errors, ConnectError);
pyo3::import_exception!(openmrc.errors, DeviceError);
pyo3::import_exception!(openmrc.errors, OverrunError);
pyo3::import_exception!(openmrc.errors, PrivilegeError);
pyo3::import_exception!(openmrc.errors, QueueFullError);
pyo3::import_exception!(openmrc.errors, RegistrationError);
pyo3::import_exception!(openmrc.errors, StateError);
pyo3::import_exception!(openmrc.errors, UnsupportedError);

/// `?` on a result of the NIC.
pub trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for openmrc_nic::Result<T> {
    fn or_raise(self) -> PyResult<T> {
        self.map_err(exception)
    }
}

fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Profile(reason) => profile_exception(&reason),
        Error::InvalidArgument(_) | Error::Attribute(_) => ArgumentError::new_err(text),
        Error::Transition(_) | Error::WrongState { .. } => StateError::new_err(text),
        Error::Busy(text) => profile_exception(&ProfileError::InUse(text)),
        Error::QueueFull { .. } => QueueFullError::new_err(text),
        Error::CqOverrun(_) => OverrunError::new_err(text),
        Error::MessageFailed { .. } => ConnectError::new_err(text),
        Error::Closed(_) | Error::OtherProcess => ClosedError::new_err(text),
        Error::Os { source, .. } => {
            let errno = source.raw_os_error();
            match (source.kind(), errno) {
                (io::ErrorKind::PermissionDenied, Some(errno)) => PrivilegeError::new_err((errno, text)),
                (_, Some(errno)) => DeviceError::new_err((errno, text)),
                (_, None) => DeviceError::new_err(text),
            }
        }
    }
}

/// The exception for a refused operation on a profile.
pub fn profile_exception(reason: &ProfileError) -> PyErr {
    let text = reason.to_string();
    let error = match reason {
        ProfileError::Own
        | ProfileError::InUse(_)
        | ProfileError::CurState { .. }
        | ProfileError::Step { .. }
        | ProfileError::NotSettable { .. }
        | ProfileError::Missing { .. }
        | ProfileError::Unpopulated { .. }
        | ProfileError::WrongState { .. }
        | ProfileError::NotExplicit(_)
        | ProfileError::Format { .. }
        | ProfileError::NoRoute(_)
        | ProfileError::NoRoom { .. } => StateError::new_err(text),
        ProfileError::Value { .. }
        | ProfileError::Fields(_)
        | ProfileError::TooWide { .. }
        | ProfileError::NoValue
        | ProfileError::SourcePort(_)
        | ProfileError::Address(_)
        | ProfileError::UnknownEv { .. } => ArgumentError::new_err(text),
        ProfileError::Unsupported { .. } => UnsupportedError::new_err(text),
    };
    Python::attach(|py| {
        // An exception that cannot take the attribute still says it in words.
        let _ = error.value(py).setattr("rule", reason.rule());
    });
    error
}

/// An `ArgumentError`.
pub fn refused(message: impl Into<String>) -> PyErr {
    ArgumentError::new_err(message.into())
}
