//! What a host's NIC does, without I/O and without a clock.
//!
//! A driver - the simulator in virtual time, the software NIC in real time - owns a [`node::Node`] and its queue pairs.
//!
//! | module | subject |
//! |---|---|
//! | [`api`] | what a queue pair is to its node, and what it asks of its host |
//! | [`node`] | everything around queue pairs: turns, timers, ports, endpoint requests, receive pressure |
//! | [`mrc`], [`rocev2`] | the queue pairs |
//! | [`profile`] | the paths between two nodes |
//! | [`random`], [`time`] | draws without state; simulated or real time in picoseconds |
#![forbid(unsafe_code)]

pub mod api;
pub mod mrc;
pub mod node;
mod port_set;
pub mod profile;
pub mod random;
pub mod rocev2;
mod seq;
pub mod time;

pub use api::{
    AccessError, EvChange, EvEvent, Fatal, Host, NoReceive, Payload, PortSet, PostError, Pressure, Readiness,
    Received, RecvDone, SendDone, SendStatus, TrafficClass, Transmit, Transport, Trim, WorkRequest,
};
pub use profile::{EvProfile, PathEntry, PathId};
pub use time::{Span, Time};
