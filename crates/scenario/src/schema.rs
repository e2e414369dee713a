//! The types of a scenario described for the Python models, and checked for them one by one.

use serde_json::Value;

use crate::collective::Collective;
use crate::error::ScenarioError;
use crate::faults::Fault;
use crate::flows::Flows;
use crate::network::{Network, Software};
use crate::read;
use crate::record::{Capture, Record};
use crate::recorded::Recorded;
use crate::scenario::Scenario;
use crate::switch::{Pfc, Switch};
use crate::topology::{Cables, Nic, Topology};
use crate::traffic::{AllToAll, Incast, Pattern, Permutation, RandomTraffic};
use crate::training::Training;
use crate::transport::{Adaptive, Dcqcn, Mrc, Receives, Rocev2, Uet};

/// The types that have fields, each with the check of what is known without the rest of the scenario.
macro_rules! parts {
    ($($part:ident: $check:expr,)+) => {
        /// Reads one part of a scenario from JSON and checks it by itself, as [`Scenario::from_json`] does.
        ///
        /// # Errors
        /// [`ScenarioError`] for the first thing that is wrong, its place counted from the part.
        pub fn check_part(part: &str, text: &str) -> Result<(), ScenarioError> {
            match part {
                $(stringify!($part) => {
                    let check: fn($part) -> Result<(), ScenarioError> = $check;
                    check(read::from_json::<$part>(text)?)
                })+
                other => match Fault::check_titled(other, text) {
                    Some(checked) => checked,
                    None => Err(ScenarioError::new(format!("{other} is not a part of a scenario"))),
                },
            }
        }
    };
}

/// For parts that need no check beyond those of their fields.
fn unchecked<T>(_: T) -> Result<(), ScenarioError> {
    Ok(())
}

fn pattern<T: Into<Pattern>>(part: T) -> Result<(), ScenarioError> {
    part.into().check()
}

parts! {
    Scenario: |scenario| scenario.check_parts(),
    Topology: unchecked,
    Nic: unchecked,
    Cables: unchecked,
    Network: |network| network.check(),
    Software: unchecked,
    Switch: |switch| switch.check(),
    Pfc: unchecked,
    Mrc: unchecked,
    Receives: unchecked,
    Rocev2: unchecked,
    Dcqcn: unchecked,
    Uet: unchecked,
    Adaptive: unchecked,
    Permutation: pattern,
    Incast: pattern,
    AllToAll: pattern,
    RandomTraffic: pattern,
    Flows: pattern,
    Collective: pattern,
    Training: pattern,
    Recorded: pattern,
    Record: |record| record.check(),
    Capture: unchecked,
}

/// The JSON Schema of a scenario: the names and kinds of all fields, their ranges and defaults. The types of its
/// parts are its definitions.
pub fn json_schema() -> Value {
    schemars::schema_for!(Scenario).to_value()
}
