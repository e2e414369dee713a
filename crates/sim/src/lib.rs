//! A packet-level simulator of multi-plane fabrics: the queue pairs of [`openmrc_transport`], the very ones that the
//! software NIC runs, in virtual time.
//!
//! ```text
//! Scenario ──> World ──run──> Results
//!              ├─ calendar    events, 32 bytes each; a packet on its way is one
//!              ├─ network     ports in a flat array, switches that forward by arithmetic
//!              ├─ switch      queues, ECN, trimming
//!              ├─ nic         queue pairs take turns at a host's ports
//!              └─ post        messages, and what waits for them
//! ```
#![forbid(unsafe_code)]

mod calendar;
mod clock;
pub mod collectives;
pub mod config;
mod event;
mod fabric;
pub mod faults;
mod groups;
mod hash;
mod hosts;
mod memory;
pub mod record;
pub mod results;
mod scenario;
mod slab;
mod stats;
pub mod traffic;
pub mod training;
pub mod workload;
mod world;

pub use config::{
    EcnMarking, Encapsulation, NetworkConfig, Overflow, PfcConfig, Routing, RoutingReaction, Scheduling,
    SwitchConfig,
};
pub use faults::{Change, Fault, FaultError, Target};
pub use hosts::{AdaptiveConfig, MrcConfig, MrcCongestion, Rocev2Config, TransportConfig, UetConfig};
pub use record::{Capture, CaptureConfig, Captured, LogEvent, Record, Recorder, SeriesConfig};
pub use results::{FabricTotals, HostTotals, MessageResult, Results, Totals};
pub use scenario::{Scenario, ScenarioError};
pub use workload::{Connection, Message, Workload, WorkloadError};
pub use world::{Progress, World};
