//! Why an operation on a profile was refused. The C interface renders each reason as an errno, Python as an exception.

use openmrc_wire::expansion::EvProfileError;

use super::layout::EvName;
use super::state::{Kind, ProfileState};
use crate::error::Error;

/// Why an operation on a profile was refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// Profile 0 is the device's own.
    #[error("profile 0 is the device's own: it can be queried, not changed")]
    Own,
    /// Something uses the profile.
    #[error("{0}")]
    InUse(String),
    /// The caller is wrong about the present state.
    #[error("cur_state of {kind} is given as {said}, it is in {state}")]
    CurState {
        /// Of which kind it is.
        kind: Kind,
        /// What the caller says.
        said: ProfileState,
        /// Its state.
        state: ProfileState,
    },
    /// There is no such step.
    #[error("{kind} cannot go from {from} to {to}; from {from} it can go to {allowed}")]
    Step {
        /// Of which kind it is.
        kind: Kind,
        /// Its state.
        from: ProfileState,
        /// The state asked for.
        to: ProfileState,
        /// The steps that there are.
        allowed: String,
    },
    /// Attributes that this state or step does not take.
    #[error("{} of {kind} does not take {names}", way(*from, *to))]
    NotSettable {
        /// Of which kind it is.
        kind: Kind,
        /// Its state.
        from: ProfileState,
        /// The state asked for.
        to: ProfileState,
        /// The attributes.
        names: String,
    },
    /// Attributes that this state or step needs.
    #[error("{} of {kind} needs {names} as well", way(*from, *to))]
    Missing {
        /// Of which kind it is.
        kind: Kind,
        /// Its state.
        from: ProfileState,
        /// The state asked for.
        to: ProfileState,
        /// The attributes.
        names: String,
    },
    /// Explicit entropy values that were not given.
    #[error("{missing} of {count} entropy values are unpopulated: replace them first")]
    Unpopulated {
        /// How many.
        missing: usize,
        /// Of how many.
        count: usize,
    },
    /// The profile's state does not allow the operation.
    #[error("{operation} needs {kind} in {allowed}, this one is in {state}")]
    WrongState {
        /// The operation.
        operation: &'static str,
        /// Of which kind it is.
        kind: Kind,
        /// States in which it is allowed.
        allowed: &'static str,
        /// Its state.
        state: ProfileState,
    },
    /// The profile's mode does not allow the operation.
    #[error("replace_ev needs an EV profile of mode explicit, the mode of this one is {0}")]
    NotExplicit(&'static str),
    /// The EV format profile is in a state in which it cannot be used.
    #[error("format_profile is an EV format profile in {state}: {needed} is needed")]
    Format {
        /// Its state.
        state: ProfileState,
        /// The states that are needed.
        needed: &'static str,
    },
    /// A value that is never allowed.
    #[error("{name} is {value}: {allowed} is allowed")]
    Value {
        /// The attribute.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is right.
        allowed: String,
    },
    /// The fields break a rule of their expansion.
    #[error(transparent)]
    Fields(#[from] EvProfileError),
    /// The fields are wider than what the device's packets carry.
    #[error("the fields have {total} bits, packets of this device carry {room}")]
    TooWide {
        /// Bits of all fields.
        total: u64,
        /// The most.
        room: u32,
    },
    /// No combination of the fields' bounds is a value that packets can carry.
    #[error("the fields allow no entropy value that packets can carry, such as one with a UDP source port")]
    NoValue,
    /// The value means source port 0, which no socket sends from, and no port of the device stands in for it.
    #[error("{0}: its UDP source port is 0, 1 to 65535 is allowed")]
    SourcePort(EvName),
    /// The value means an address that is not one node's.
    #[error("{0} expands to an address that is not one node's")]
    Address(EvName),
    /// SRv6: neither a route nor fields say where the value leads.
    #[error("{0} has no route, and the profile has no fields to expand it")]
    NoRoute(EvName),
    /// The profile does not have the value.
    #[error("{} is not in the profile: {held} of its {count} entries are set", shown(*ev))]
    UnknownEv {
        /// The value; none: an unpopulated entry.
        ev: Option<EvName>,
        /// Entries that are set.
        held: usize,
        /// All entries.
        count: usize,
    },
    /// This device cannot do it.
    #[error("{name} {value} cannot be used on this device: {allowed}")]
    Unsupported {
        /// The attribute.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it can do.
        allowed: String,
    },
    /// Too many profiles of a kind are configured.
    #[error("no room for {kind}: {most} of a kind are configured, the most there can be")]
    NoRoom {
        /// Of which kind it is.
        kind: Kind,
        /// The most.
        most: usize,
    },
}

impl ProfileError {
    /// The rule, by a name that programs can compare.
    pub fn rule(&self) -> &'static str {
        match self {
            ProfileError::Own | ProfileError::InUse(_) => "in_use",
            ProfileError::CurState { .. } => "cur_state",
            ProfileError::Step { .. } => "step",
            ProfileError::NotSettable { .. } => "not_settable",
            ProfileError::Missing { .. } => "missing",
            ProfileError::Unpopulated { .. } => "unpopulated",
            ProfileError::WrongState { .. } => "wrong_state",
            ProfileError::NotExplicit(_) => "not_explicit",
            ProfileError::Format { .. } => "format",
            ProfileError::Value { .. } => "value",
            ProfileError::Fields(_) => "fields",
            ProfileError::TooWide { .. } => "too_wide",
            ProfileError::NoValue => "no_value",
            ProfileError::SourcePort(_) => "source_port",
            ProfileError::Address(_) => "address",
            ProfileError::NoRoute(_) => "no_route",
            ProfileError::UnknownEv { .. } => "unknown_ev",
            ProfileError::Unsupported { .. } => "unsupported",
            ProfileError::NoRoom { .. } => "no_room",
        }
    }

    /// A value that is not allowed.
    pub(super) fn value(name: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        ProfileError::Value { name, value: value.to_string(), allowed: allowed.into() }
    }
}

impl From<ProfileError> for Error {
    fn from(error: ProfileError) -> Self {
        match error {
            ProfileError::Own | ProfileError::InUse(_) => Error::Busy(error.to_string()),
            other => Error::Profile(other),
        }
    }
}

/// A state, or the step between two.
fn way(from: ProfileState, to: ProfileState) -> String {
    if from == to { from.to_string() } else { format!("{from} to {to}") }
}

fn shown(ev: Option<EvName>) -> String {
    ev.map_or_else(|| "an unpopulated entry".to_owned(), |ev| ev.to_string())
}
