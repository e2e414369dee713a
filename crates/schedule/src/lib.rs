//! What ranks do in a collective operation, as data (spec: collectives). Pure functions from rank numbers and sizes to
//! programs: `openmrc-collectives` executes them over the NIC and shared memory, `openmrc-sim` simulates the same ones.
//!
//! | module | subject |
//! |---|---|
//! | [`program`] | what one rank sends and receives, and what waits for what |
//! | [`algorithms`] | ring, halving, direct, tree, chain, dissemination: an operation's program by each algorithm |
//! | [`tuning`] | which algorithm for which operation, size and number of ranks |
#![forbid(unsafe_code)]

pub mod algorithms;
pub mod program;
pub mod tuning;

pub use algorithms::{Algorithm, Shape};
pub use program::{After, Finish, Memory, Program, Rank, Recv, Send, Span};
pub use tuning::Tuning;
