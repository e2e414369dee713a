//! What ranks do in a collective operation, as data (docs/spec/collectives.md). Pure functions from rank numbers and
//! sizes to programs: `openmrc-collectives` executes them over the NIC and shared memory, `openmrc-sim` simulates the
//! same ones.
//!
//! | module | subject |
//! |---|---|
//! | [`program`] | what one rank sends and receives, and what waits for what |
//! | [`algorithms`] | ring, halving, doubling, direct, tree, chain, dissemination: an operation's program by each
//! algorithm |
//! | [`exchange`] | the messages of all ranks together, and which waits for which |
//! | [`tuning`] | which algorithm for which operation, size and number of ranks |
#![forbid(unsafe_code)]

pub mod algorithms;
pub mod exchange;
pub mod program;
pub mod tuning;

pub use algorithms::{Algorithm, EXCHANGES, Shape, even_parts};
pub use exchange::{Exchange, Mismatch};
pub use program::{After, Finish, Memory, Program, Rank, Recv, SLOT, Send, Span};
pub use tuning::Tuning;
