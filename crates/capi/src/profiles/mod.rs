//! Profiles of a device, by the ids that programs pick (spec: C interface, section 6.4). Every id exists, in INIT, until
//! it is configured; id 0 is the device's own. Events of paths find their profile in `routes`.
//!
//! The tables' lock is held while the NIC is called; that of the routes is taken with the engine's lock held.

pub mod cc;
pub mod ev;
pub mod expansion;
pub mod format;
mod generate;
pub mod online;
mod routes;
mod types;

pub use routes::{is_srv6, mode_of};
pub use types::{CcProfile, EvProfile, MOST, Move, Profiles, State};
