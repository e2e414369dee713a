//! A packet-level simulator of multi-plane fabrics: the queue pairs of [`openmrc_transport`], which the software NIC runs
//! too, in virtual time.
//!
//! ```text
//! spec::Scenario ──checked, build──> Scenario ──> World ──run──> Results
//!              ├─ calendar    events, 32 bytes each; a packet on its way is one
//!              ├─ network     ports in a flat array, switches that forward by arithmetic
//!              ├─ switch      queues, ECN, trimming
//!              ├─ nic         queue pairs take turns at a host's ports
//!              └─ post        messages, and what waits for them
//! ```
#![forbid(unsafe_code)]

mod calendar;
mod capture;
pub mod collectives;
pub mod config;
mod endpoints;
mod event;
mod faults;
mod network;
mod nic;
mod post;
mod queue_pair;
mod queued;
pub mod record;
pub mod results;
mod scenario;
pub mod schedule;
mod slab;
mod sort;
pub mod spec;
mod switch;
pub mod traffic;
pub mod training;
mod transport;
pub mod workload;
mod world;

pub use capture::{Capture, Captured};
pub use config::{
    EcnMarking, Encapsulation, NetworkConfig, Overflow, PfcConfig, Routing, RoutingReaction, Scheduling,
    SwitchConfig,
};
pub use record::{CaptureConfig, Happening, Record, Recorder, SeriesConfig};
pub use results::{MessageResult, Results, Totals};
pub use scenario::{Scenario, ScenarioError};
pub use schedule::{Change, Fault, FaultError, Target};
pub use transport::{AdaptiveConfig, MrcConfig, MrcCongestion, Rocev2Config, TransportConfig, UetConfig};
pub use workload::{Connection, Message, Workload, WorkloadError};
pub use world::{Progress, World};
