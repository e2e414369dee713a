//! What a scenario is: every field, default, preset and check, and the run that a scenario describes. No other place
//! knows them. No clock; what is random comes from a seed; files are read if a scenario names them.
//!
//! ```text
//! Scenario ──checked──> Checked ──build──> run::Run ──> an Engine ──advance──> Results
//! from_json             estimate, filled
//! ```
//!
//! | module | subject |
//! |---|---|
//! | `scenario`, `topology`, `network`, `switch`, `transport`, `traffic`, `faults`, `record` | the fields that people write; `fault_fields` how faults are written |
//! | `flows`, `collective`, `training`, `recorded` | patterns of traffic with more to say |
//! | [`numbers`], [`names`], `ranks` | numbers in their ranges; links, ports, switches and hosts by name |
//! | `read`, `schema`, `error` | from JSON, with the place of an error; the JSON Schema |
//! | [`run`] | the run: networks, transports, schedules of faults, in plain numbers |
//! | `estimate`, `load`, `filling`, `footprint` | the memory of a run before it is laid out |
//! | `engine`, [`results`], `fates` | what executes a run, and what comes out |
#![forbid(unsafe_code)]

mod collective;
mod engine;
mod error;
mod estimate;
mod fates;
mod fault_fields;
mod faults;
mod files;
mod filling;
mod flows;
mod footprint;
mod load;
pub mod names;
mod network;
pub mod numbers;
mod ranks;
mod read;
mod record;
mod recorded;
pub mod results;
pub mod run;
mod scenario;
mod schema;
mod switch;
mod topology;
mod traffic;
mod training;
mod transport;

pub use collective::{Collective, Operation};
pub use engine::{Engine, EngineKind, Progress};
pub use error::{ScenarioError, Step};
pub use estimate::{Estimate, Memory};
pub use fates::{Fate, Patterns, TaskResults};
pub use faults::{Fault, Targets, When, Which};
pub use flows::{Flow, Flows};
pub use footprint::Footprint;
pub use network::{Network, Software};
pub use ranks::Volume;
pub use record::{All, Capture, Links, Record};
pub use recorded::Recorded;
pub use results::{
    FabricTotals, HostTotals, LifeTotals, MessageResult, NodeResult, Results, SkipTotals, StepResult, Totals,
};
pub use run::{Run, RunError};
pub use scenario::{Checked, Scenario};
pub use schema::{check_part, json_schema};
pub use switch::{Pfc, PfcChoice, Preset, Switch, mrc};
pub use topology::{Cables, DEFAULT_PORT_RATE_BPS, Nic, Oversubscription, Ratio, Topology};
pub use traffic::{AllToAll, Incast, Pattern, Permutation, RandomTraffic};
pub use training::Training;
pub use transport::{
    Adaptive, Dcqcn, DcqcnChoice, Mrc, OwnParts, Receives, Recovery, Rocev2, Spraying, Transport, Uet,
};
