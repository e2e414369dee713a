//! What a queue pair does, without I/O and without a clock.
//!
//! A driver - the simulator in virtual time, the software NIC in real time - owns the queue pairs. It hands in
//! packets, marks and the time, asks for packets to send, and offers a [`Host`] through which the queue pair
//! places data, sends feedback and reports completions:
//!
//! ```text
//! post_send(wr) ──> ┌───────────┐ ──poll_transmit(now, ports) -> Transmit {packet, path, port, payload}
//! handle_packet ──> │ QueuePair │ ──Host: place / transmit feedback / completion / EV event / fatal
//! handle_timeout ─> └───────────┘ ──poll_timeout -> next deadline
//! ```
#![forbid(unsafe_code)]

pub mod api;
pub mod endpoint;
pub mod mrc;
pub mod node;
pub mod profile;
pub mod random;
pub mod rocev2;
pub mod schedule;
pub mod time;

pub use api::{
    AccessError, EvChange, EvEvent, Fatal, Host, NoReceive, Payload, PortSet, PostError, Readiness, Received,
    RecvDone, SendDone, SendStatus, TrafficClass, Transmit, Transport, Trim, WorkRequest,
};
pub use profile::{EvProfile, PathEntry, PathId};
pub use time::{Span, Time};
