//! A packet-level simulator of multi-plane fabrics. Its hosts run the queue pairs of [`openmrc_transport`], as the
//! software NIC does, in virtual time.
//!
//! ```text
//! spec::Scenario ──checked, build──> Scenario ──> World ──run──> Results
//!              ├─ clock      virtual time and the calendar of events; a packet in flight is an event of 32 bytes
//!              ├─ fabric     ports, queues, routes, faults: forwards packets by arithmetic
//!              ├─ hosts      queue pairs take turns at a NIC's ports; messages are posted and complete
//!              └─ stats      counters, and a recorder for what the scenario wants recorded
//! ```
#![forbid(unsafe_code)]

mod barrier;
mod calendar;
mod clock;
pub mod config;
mod division;
mod event;
mod fabric;
mod footprint;
mod groups;
mod hash;
mod hosts;
mod long_queue;
mod mailbox;
mod memory;
mod partition;
pub mod record;
pub mod results;
mod scenario;
pub mod schedule;
mod slab;
pub mod spec;
mod stats;
mod threads;
mod transport;
mod world;

pub use config::{
    EcnMarking, Encapsulation, NetworkConfig, Overflow, PfcConfig, Routing, RoutingReaction, Scheduling,
    SwitchConfig,
};
pub use record::{Capture, CaptureConfig, Captured, LogEvent, Record, Recorder, SeriesConfig};
pub use results::{FabricTotals, HostTotals, MessageResult, Results, Totals};
pub use scenario::{Scenario, ScenarioError};
pub use schedule::{Change, Fault, FaultError, Target};
pub use transport::{AdaptiveConfig, MrcConfig, MrcCongestion, Rocev2Config, TransportConfig, UetConfig};
pub use world::{Progress, World};
