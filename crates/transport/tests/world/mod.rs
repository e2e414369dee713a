//! A hostile network in virtual time, in which queue pairs are tested.
//!
//! [`World`] drives nodes exactly as a NIC does: ports that serialize, timers, a receive queue. The [`network`] between
//! them loses, trims, marks, duplicates, delays and reorders packets, lets paths fail and recover, and repeats old
//! packets. The [`ledger`] knows the correct contents of every packet and every byte, and stops the run at the first
//! deviation.
//!
//! A run is determined by one `u64` ([`Scenario::generate`]), so that a failure is reproduced from its seed.
// Each test file uses a part of this module.
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
pub use network::Impairments;
pub use scenario::{Action, Expect, Pair, Queues, Scenario, Traffic};
pub use subject::Subject;
