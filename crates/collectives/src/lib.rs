//! Collective operations between the ranks of a job (docs/spec/collectives.md): reduction kernels, and communicators
//! that execute the programs of `openmrc-schedule` over the software MRC NIC and, on one host, through shared memory.
//!
//! | module | subject |
//! |---|---|
//! | [`types`], [`kernels`], `float8` | element types, reductions, their loops |
//! | [`communicator`], [`call`], `driver`, `core`, `work` | what is called, who drives it, what is under way |
//! | `operation`: `memory`, `messages`; `p2p` | one collective operation; point-to-point messages |
//! | `link`: `local`, `remote`, `network`, `layout`, `header` | rings of slots, through shared memory or RDMA writes |
//! | [`rendezvous`], `card`, `abort`, [`record`], [`error`] | rendezvous; giving up; what was done; errors |

mod abort;
mod agreement;
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
pub mod record;
mod remote;
pub mod rendezvous;
pub mod types;
mod work;

pub use call::Call;
pub use communicator::{Communicator, Work};
pub use error::{Error, Result};
pub use memory::Lent;
pub use openmrc_schedule::{Algorithm, Rank, Shape, Tuning};
pub use record::OperationRecord;
pub use rendezvous::{Options, Rendezvous};
pub use types::{DataType, ReduceOp};
