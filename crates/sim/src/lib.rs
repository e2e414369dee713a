//! The packet engine: a simulator of multi-plane fabrics, packet by packet. Its hosts run the queue pairs of
//! [`openmrc_transport`], as the software NIC does, in virtual time.
//!
//! ```text
//! openmrc_scenario::Run ──> World, an Engine ──advance──> Results
//!              ├─ clock      virtual time and the calendar of events; a packet in flight is an event of 32 bytes
//!              ├─ fabric     ports, queues, routes, faults: forwards packets by arithmetic
//!              ├─ hosts      queue pairs take turns at a NIC's ports; messages are posted and complete
//!              ├─ skips      who decides which messages arrive without packets
//!              └─ stats      counters, and a recorder for what the run wants recorded
//! ```
#![forbid(unsafe_code)]

mod barrier;
mod calendar;
mod checkpoint;
mod clock;
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
mod skips;
mod slab;
mod stats;
mod threads;
mod world;

pub use checkpoint::CheckpointError;
pub use record::{CaptureBuffer, Captured, LogEvent, Recorder};
pub use skips::{Order, Skipper};
pub use world::{PlaneNow, World};
