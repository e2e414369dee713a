//! A controller's profiles of one open device (docs/spec/c-interface.md, section 6.4 and 6.5): the one place that knows
//! what each state allows, what attributes mean and what is refused. The C interface and Python are faces of it.
//!
//! Profiles have ids that the caller picks. Every id exists, in INIT, until it is configured; id 0 is the device's own.
//! What the engine has of a profile that is ONLINE has a number of its own.
//!
//! | module | subject |
//! |---|---|
//! | `state` | states, steps, which attribute each needs and takes |
//! | `format`, `ev`, `cc` | the three kinds: attributes, their ranges, operations on entropy values; pure |
//! | `layout`, `generate` | what packets carry of a value; values that the device draws; pure |
//! | `error` | why something was refused |
//! | `control`, `table` | all profiles of a device; what each operation does to the engine |
//! | `names`, `online`, `lease`, `engine` | events under the controller's names; what the engine has of profiles, and
//! who holds it |
//!
//! The tables' lock is held while the engine is called; that of the names is taken with the engine's lock held.

mod cc;
mod control;
pub(crate) mod engine;
mod error;
mod ev;
mod format;
mod generate;
mod layout;
mod lease;
mod names;
mod online;
mod state;
mod table;

pub use cc::{CcAlgorithm, CcChange, CcConfig, CcProfile};
pub use control::{ProfileLimits, Profiles};
pub use error::ProfileError;
pub use ev::{EvAttr, EvChange, EvMode, EvProfile, MOST_EVS, Replace, event_mask};
pub use format::{EvFormatChange, EvFormatProfile};
pub use layout::EvName;
pub use lease::EvLease;
pub use names::EvEvent;
pub use state::{Kind, ProfileState, Step};
