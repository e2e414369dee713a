//! A switch in user space, for one namespace of a lab: SRv6 uN forwarding with static tables (spec: fabric, "SRv6
//! addressing plan") and what the kernel's forwarding lacks: a rate, finite queues, ECN marking at dequeue, packet
//! trimming, priority for headers (spec: congestion, "Switch settings").
//!
//! [`switch`] is the switch itself, without sockets and clock; [`run`](mod@run) drives it on packet sockets.
//!
//! | module | subject |
//! |---|---|
//! | [`config`] | ports, tables, thresholds |
//! | [`forward`] | which port a frame leaves by, and what changes in it |
//! | [`queue`] | the two queues of a port, their limits, its rate |
//! | [`switch`] | all of it together: frames in, frames out |
//! | [`run`](mod@run), `socket` | packet sockets and the loop |
#![deny(unsafe_code)]

pub mod config;
pub mod forward;
pub mod queue;
pub mod run;
#[allow(unsafe_code)] // recvmmsg and sendmmsg on packet sockets
mod socket;
pub mod switch;

pub use config::{Config, ConfigError, PortConfig, Thresholds};
pub use run::{RunError, run};
pub use switch::{Counters, Switch};
