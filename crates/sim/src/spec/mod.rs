//! Scenarios as people write them: every field, default, preset and check, and the run that a scenario describes.
//!
//! No other place knows them. [`Scenario::from_json`] reads, [`Scenario::checked`] checks, [`Checked::build`] lays out.

mod collective;
mod error;
mod estimate;
mod faults;
mod files;
mod flows;
mod load;
pub mod names;
mod network;
pub mod numbers;
mod ranks;
mod read;
mod record;
mod recorded;
mod scenario;
mod schema;
mod switch;
mod topology;
mod traffic;
mod training;
mod transport;

pub use collective::{Collective, Operation};
pub use error::{SpecError, Step};
pub use estimate::{Estimate, Memory};
pub use faults::{
    BitErrors, Broken, Down, Effect, Fault, Flap, Loss, NicPort, RandomFailures, Reboot, Slow, Targets,
    Transceiver,
};
pub use flows::{Flow, Flows};
pub use network::{Network, Software};
pub use ranks::Volume;
pub use record::{All, Capture, Links, Record};
pub use recorded::Recorded;
pub use scenario::{Checked, Scenario};
pub use schema::{check_part, json_schema};
pub use switch::{Pfc, PfcChoice, Preset, Switch, mrc};
pub use topology::{Cables, DEFAULT_PORT_RATE_BPS, Nic, Oversubscription, Ratio, Topology};
pub use traffic::{AllToAll, Incast, Pattern, Permutation, RandomTraffic};
pub use training::Training;
pub use transport::{
    Adaptive, Dcqcn, DcqcnChoice, Mrc, OwnParts, Recovery, Rocev2, Spraying, Transport, Uet,
};
