//! A switch in user space, for one network namespace of a lab: SRv6 uN forwarding with static tables
//! (docs/spec/fabric.md, "SRv6 addressing plan"), and what the kernel's forwarding lacks (docs/spec/congestion.md,
//! "Switch settings"): a rate per port, finite queues, ECN marking at dequeue, packet trimming, and strict priority for
//! headers.
//!
//! [`switch`] has no sockets and no clock; [`run`](mod@run) drives it on packet sockets.
//!
//! | module | subject |
//! |---|---|
//! | [`config`] | ports, tables, thresholds |
//! | [`forward`] | which port a frame leaves by, and what changes in it |
//! | [`queue`] | the two queues of a port, their limits, its rate |
//! | [`switch`] | the switch: table, queues, counters |
//! | [`run`](mod@run), `socket`, `checksum` | the loop, packet sockets, checksums left to the interface |
#![deny(unsafe_code)]

mod checksum;
pub mod config;
pub mod forward;
pub mod queue;
pub mod run;
#[allow(unsafe_code)] // The buffers of batched system calls.
mod socket;
pub mod switch;

pub use config::{Config, ConfigError, PortConfig, Thresholds};
pub use run::{RunError, run};
pub use switch::{Counters, Switch};
