//! A cruel world in virtual time, in which queue pairs are tested.
//!
//! [`World`] drives queue pairs exactly as a NIC would: ports that serialize, a ring of ready queue pairs, timers,
//! a receive queue. Between the nodes lies a [`network`] that loses, trims, marks, duplicates, delays and reorders
//! packets, lets paths die and return, and repeats old packets. The [`ledger`] knows what every packet ought to say
//! and every byte ought to be, and stops the run at the first thing that is not so.
//!
//! Everything in a run follows from one `u64` ([`Scenario::generate`]), so that a failure replays from its seed.
// Each test file uses its own part of this module.
#![allow(dead_code, unused_imports)]

pub mod dice;
pub mod driver;
pub mod generate;
pub mod host;
pub mod hostile;
pub mod ledger;
pub mod measure;
pub mod memory;
pub mod network;
pub mod sabotage;
pub mod scenario;
pub mod seeds;
pub mod sizes;
pub mod subject;
pub mod trace;

pub use dice::Dice;
pub use driver::World;
pub use network::Weather;
pub use scenario::{Act, Expect, Pair, Queues, Scenario, Traffic};
pub use subject::Subject;
