//! Checkpoints: all that changes in a run, as a file. A run that goes on from one ends as the run that has written it would
//! have, bit for bit. What the scenario says is not part of it: a world of the same scenario is made first, and takes its
//! state from the file.
//!
//! ```text
//! file    the header that says whose checkpoint it is, lengths and checksums
//! stream  values as bytes, one after the other
//! ```

mod file;
mod stream;

pub(crate) use self::stream::{Reader, Writer};

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be written or read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It is another kind of file.
    #[error("it is no checkpoint of openmrc simulate")]
    Foreign,
    /// Bytes are missing or wrong.
    #[error("the checkpoint is cut off or damaged: resume from another one, or start the run anew")]
    Damaged,
    /// Other sources have written it.
    #[error("another build of openmrc has written the checkpoint, and only that one can go on with it")]
    Build,
    /// It is of another scenario.
    #[error("the checkpoint is of another scenario, or of this one with another seed or other values")]
    Scenario,
    /// It is of a run with another number of threads.
    #[error("the checkpoint is of a run with threads: {0}; this one has threads: {1}")]
    Threads(u32, u32),
    /// The run has state that cannot be written.
    #[error("{0} cannot be part of a checkpoint")]
    Unsupported(&'static str),
}
