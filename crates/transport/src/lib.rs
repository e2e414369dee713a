//! The functions of a host's NIC, without I/O and without a clock.
//!
//! A driver - the simulator in virtual time, the software NIC in real time - owns a [`node::Node`] and its queue pairs.
//!
//! | module | subject |
//! |---|---|
//! | [`api`] | the interfaces between a queue pair, its node and its host |
//! | [`node`] | everything around queue pairs: scheduling, timers, ports, endpoint requests, receive pressure |
//! | [`loops`] | probes of a host to itself |
//! | [`mrc`], [`rocev2`] | the queue pairs |
//! | [`presets`] | defaults of NICs in hardware and in software |
//! | [`profile`] | the paths between two nodes |
//! | [`random`], [`time`] | stateless pseudorandom numbers; simulated or real time in picoseconds |
#![forbid(unsafe_code)]

pub mod api;
pub mod loops;
pub mod mrc;
#[cfg(test)]
mod nobody;
pub mod node;
mod port_set;
pub mod presets;
pub mod profile;
pub mod random;
pub mod rocev2;
mod seq;
pub mod time;

pub use api::{
    AccessError, EvChange, EvEvent, Fatal, Host, MtuQuestion, NoReceive, Payload, PortSet, PostError,
    Pressure, Readiness, Received, RecvDone, SendDone, SendStatus, TrafficClass, Transmit, Transport, Trim,
    WorkRequest,
};
pub use profile::{EvProfile, PathEntry, PathId};
pub use time::{Span, Time};
