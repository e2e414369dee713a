//! What can go wrong when an application asks something of the NIC. Each message names the thing, its value and what
//! would be right. What goes wrong with packets is counted ([`crate::stats`]), not returned.

use std::io;

use openmrc_transport::mrc::ConfigError;

use crate::qp_state::{QpState, TransitionError};

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device, or something made on it, was described wrongly.
    #[error("{0}")]
    InvalidArgument(String),
    /// A queue pair cannot change state like this, or lacks an attribute for it.
    #[error(transparent)]
    Transition(#[from] TransitionError),
    /// An attribute of a queue pair is out of range.
    #[error(transparent)]
    Attribute(#[from] ConfigError),
    /// The queue pair's state does not allow the operation.
    #[error("{operation} needs a queue pair in {allowed}, queue pair 0x{qp_num:06x} is in {state}")]
    WrongState {
        /// What was asked.
        operation: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// Its state.
        state: QpState,
        /// States that would do.
        allowed: &'static str,
    },
    /// More work requests than the send or receive queue holds.
    #[error(
        "the {queue} queue of queue pair 0x{qp_num:06x} is full: it holds {capacity}, {outstanding} are outstanding"
    )]
    QueueFull {
        /// "send" or "receive".
        queue: &'static str,
        /// The queue pair.
        qp_num: u32,
        /// How many it holds.
        capacity: usize,
        /// How many are outstanding.
        outstanding: usize,
    },
    /// The completion queue overran; completions were lost and its queue pairs are in ERROR.
    #[error("completion queue {0} overran: completions were lost and its queue pairs are in ERROR")]
    CqOverrun(u32),
    /// Something else still uses it.
    #[error("{0}")]
    Busy(String),
    /// The object was destroyed, or its context closed.
    #[error("{0} is closed")]
    Closed(&'static str),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// Why it failed.
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
