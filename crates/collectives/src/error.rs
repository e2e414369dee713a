//! What can go wrong in a collective operation.

use std::time::Duration;

use openmrc_schedule::Rank;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a communicator or an operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An argument is not valid. The operation was not begun.
    #[error("{0}")]
    Invalid(String),
    /// Ranks have called different operations, or the same with other arguments.
    #[error(
        "rank {rank} called {theirs} where this rank called {ours}: all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// Who called something else.
        rank: Rank,
        /// What it called.
        theirs: String,
        /// What this rank called.
        ours: String,
    },
    /// A rank has ended or cannot be reached.
    #[error("{operation}: rank {rank} on {host} is lost ({reason}); {missing}")]
    PeerLost {
        /// The rank.
        rank: Rank,
        /// Where it ran.
        host: String,
        /// What is known of its end.
        reason: String,
        /// The operation that needs it.
        operation: String,
        /// What had not arrived.
        missing: String,
    },
    /// The operation did not end in time.
    #[error("{operation} did not end within {after:.1?}; {missing}")]
    Timeout {
        /// The operation.
        operation: String,
        /// Its time limit.
        after: Duration,
        /// What had not arrived.
        missing: String,
    },
    /// The communicator was aborted, here or by another rank.
    #[error("the communicator was aborted: {0}")]
    Aborted(String),
    /// The communicator is closed.
    #[error("the communicator is closed")]
    Closed,
    /// A system call or the NIC failed.
    #[error("{what}: {reason}")]
    Device {
        /// What failed.
        what: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: impl Into<String>) -> Error {
        Error::Invalid(what.into())
    }

    pub(crate) fn device(what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
        Error::Device { what: what.into(), reason: reason.to_string() }
    }
}
