//! Collective operations between the ranks of a job (spec: collectives): algorithms as programs of messages, reduction
//! kernels, and communicators that execute them over the software MRC NIC and, on one host, through shared memory.
//!
//! | module | subject |
//! |---|---|
//! | [`types`], [`kernels`], `float8` | element types, reductions, their loops |
//! | [`program`], [`algorithms`], [`tuning`] | what a rank sends and receives; pure functions; which one for which size |
//! | [`communicator`], [`call`], `driver`, `core`, `work` | what is called, who drives it, what is under way |
//! | `operation`: `memory`, `messages`; `p2p` | one collective operation; point-to-point messages |
//! | `link`: `local`, `remote`, `network`, `layout`, `header` | rings of slots, through shared memory or RDMA writes |
//! | [`rendezvous`], `card`, `abort`, [`record`], [`error`] | rendezvous; giving up; what was done; errors |

mod abort;
pub mod algorithms;
pub mod call;
mod card;
pub mod communicator;
mod core;
mod driver;
pub mod error;
mod float8;
mod header;
pub mod kernels;
mod layout;
mod link;
mod local;
mod memory;
mod messages;
mod network;
mod operation;
mod p2p;
pub mod program;
pub mod record;
mod remote;
pub mod rendezvous;
pub mod tuning;
pub mod types;
mod work;

pub use algorithms::{Algorithm, Shape};
pub use call::Call;
pub use communicator::{Communicator, Work};
pub use error::{Error, Result};
pub use program::Rank;
pub use record::Record;
pub use rendezvous::{Options, Rendezvous};
pub use tuning::Tuning;
pub use types::{DataType, ReduceOp};
