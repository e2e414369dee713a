//! Collective operations between the ranks of a job (spec: collectives): algorithms as programs of messages, reduction
//! kernels, and communicators that execute them over the software MRC NIC and, on one host, through shared memory.
//!
//! | module | subject |
//! |---|---|
//! | [`types`], [`kernels`], `float8` | element types, reductions, their loops |
//! | [`program`], [`algorithms`], [`tuning`] | what a rank sends and receives; pure functions; which one for which size |
//! | [`communicator`], `core`, `operation`, `p2p`, `work` | execution; who drives it |
//! | `link`: `local`, `remote`, `layout`, `header` | rings of slots, through shared memory or RDMA writes |
//! | `card`, `abort`, [`record`], [`error`] | rendezvous; giving up; what was done; errors |

mod abort;
pub mod algorithms;
mod card;
pub mod communicator;
mod core;
pub mod error;
mod float8;
mod header;
pub mod kernels;
mod layout;
mod link;
mod local;
mod operation;
mod p2p;
pub mod program;
pub mod record;
mod remote;
pub mod tuning;
pub mod types;
mod work;

pub use algorithms::{Algorithm, Shape};
pub use communicator::{Call, Communicator, Options, Rendezvous, Work};
pub use error::{Error, Result};
pub use program::Rank;
pub use record::Record;
pub use tuning::Tuning;
pub use types::{DataType, ReduceOp};
