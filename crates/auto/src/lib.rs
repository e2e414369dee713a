//! The auto engine: the packet engine, without packets for messages whose time is known (docs/auto.md).
//!
//! ```text
//! openmrc_scenario::Run ──> AutoWorld, an Engine ──advance──> Results
//!              ├─ openmrc_sim::World   everything else: what waits for what, and packets
//!              ├─ policy      the Skipper of that world: which messages arrive without packets
//!              ├─ ways        how they change between packets and none: posted, skipped, back again
//!              ├─ times       the kind of a message, its pace, and what is recorded
//!              ├─ traffic     which connections have messages on the way, where they meet
//!              ├─ memo        recorded times of messages of one kind
//!              └─ suited      runs that packets carry from the beginning
//! ```
#![forbid(unsafe_code)]

mod engine;
mod memo;
mod policy;
mod suited;
mod times;
mod traffic;
mod ways;

pub use engine::AutoWorld;
