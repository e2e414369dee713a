//! What the error of a failed send means for the sender.

use std::io;

/// The meaning of a send error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendError {
    /// The socket's send buffer is full. It becomes writable again.
    WouldBlock,
    /// A device queue is full or memory is short. No event says when it is over.
    NoBuffers,
    /// The kernel or the interface cannot cut one message into segments (`UDP_SEGMENT`).
    CannotSegment,
    /// There is no route, the interface is down, or the local address is gone.
    Unreachable,
    /// A firewall or a missing right forbids it, or the destination answered that nobody listens there.
    Refused,
    /// The packet is longer than the path MTU.
    TooLong,
    /// Any other error.
    Other,
}

impl From<&io::Error> for SendError {
    fn from(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => SendError::WouldBlock,
            Some(libc::ENOBUFS | libc::ENOMEM) => SendError::NoBuffers,
            Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP) => SendError::CannotSegment,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::ENETDOWN) => {
                SendError::Unreachable
            }
            Some(libc::EPERM | libc::EACCES | libc::ECONNREFUSED) => SendError::Refused,
            Some(libc::EMSGSIZE) => SendError::TooLong,
            _ => SendError::Other,
        }
    }
}

/// The error "cannot assign requested address".
pub fn address_unavailable() -> io::Error {
    io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)
}

/// The error "no route to host".
pub fn host_unreachable() -> io::Error {
    io::Error::from_raw_os_error(libc::EHOSTUNREACH)
}
