//! What hosts do and in which order, as data (docs/spec/workloads.md). Everything becomes one form, a [`Workload`] of
//! connections and [`Task`]s: an engine executes it. No I/O, no clock; what is random comes from a seed.
//!
//! | module | subject |
//! |---|---|
//! | [`tasks`] | the form itself, its checks, and connections split in several |
//! | `dependents` | which tasks a task releases |
//! | [`patterns`] | permutation, incast, all-to-all, random traffic |
//! | [`collectives`] | programs of `openmrc-schedule` between hosts |
//! | [`training`] | steps of a parallel layout |
//! | [`chakra`] | Chakra execution traces: what each rank of a recorded job did |
//! | [`replay`] | a recorded job between hosts |
#![forbid(unsafe_code)]

pub mod chakra;
pub mod collectives;
mod dependents;
mod job;
pub mod patterns;
pub mod replay;
pub mod tasks;
pub mod training;

pub use dependents::Dependents;
pub use tasks::{Connection, NodeTasks, Task, Workload, WorkloadError};
