//! The flow engine: the runs of `openmrc-scenario` with shares of links instead of packets (docs/flow.md).
//!
//! ```text
//! openmrc_scenario::Run ──> FlowWorld, an Engine ──advance──> Results
//!              ├─ tasks      what waits for what; connections send their messages one after the other
//!              ├─ shares     the messages on their way, and the rate of each
//!              ├─ max_min    how flows share links
//!              ├─ links      groups of links by host, block and class of planes; what each carries
//!              ├─ faults     which links are down or slow
//!              ├─ bad_paths  what they take from the load of their plane
//!              ├─ timing     headers, latencies, and the numbers that were fitted to the packet engine
//!              └─ refusal    what only the packet engine can do
//! ```
#![forbid(unsafe_code)]

mod bad_paths;
mod engine;
mod faults;
mod links;
pub mod max_min;
mod refusal;
mod shares;
mod tasks;
mod timing;

pub use engine::FlowWorld;
