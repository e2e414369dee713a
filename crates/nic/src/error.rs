//! Errors of the NIC's operations. Each message names the thing, its value and what would be right. Errors of packets
//! are counted ([`crate::stats`]), not returned.

use std::io;

use openmrc_transport::mrc::ConfigError;

use crate::completion::Status;
use crate::profiles::ProfileError;
use crate::qp_state::{QpState, TransitionError};

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An argument or a configuration is not valid.
    #[error("{0}")]
    InvalidArgument(String),
    /// The queue pair cannot make this transition, or not with these attributes.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// An attribute of a queue pair is out of range.
    #[error(transparent)]
    Attribute(#[from] ConfigError),
    /// An operation on a profile was refused.
    #[error(transparent)]
    Profile(ProfileError),
    /// The queue pair's state does not allow the operation.
    #[error("{operation} needs a queue pair in {allowed}, queue pair 0x{qp_num:06x} is in {state}")]
    WrongState {
        /// The operation.
        operation: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// Its state.
        state: QpState,
        /// States in which it is allowed.
        allowed: &'static str,
    },
    /// The work requests do not fit the send or receive queue.
    #[error(
        "the {queue} queue of queue pair 0x{qp_num:06x} is full: it holds {capacity}, {outstanding} are outstanding"
    )]
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// Work requests it holds.
        capacity: usize,
        /// Work requests that are outstanding.
        outstanding: usize,
    },
    /// The completion queue overran; completions were lost and its queue pairs are in ERROR.
    #[error("completion queue {0} overran: completions were lost and its queue pairs are in ERROR")]
    CqOverrun(u32),
    /// A message was not delivered.
    #[error("message {wr_id} failed: {}", .status.name())]
    MessageFailed {
        /// Its work request.
        wr_id: u64,
        /// Status of its completion.
        status: Status,
    },
    /// Another object still uses it.
    #[error("{0}")]
    Busy(String),
    /// The object, or its context, is closed.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// The object belongs to another process: this one is a child that a fork made.
    #[error("it belongs to the process that opened the device: the child of a fork opens its own")]
    OtherProcess,
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What the call was for.
        what: String,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Error::Os { what: what.into(), source }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Error::InvalidArgument(what.into())
    }
}
