//! What is wrong with a scenario, and where: `traffic.1.bytes: 0 is out of range: 1 to 2147483648`.

use std::borrow::Cow;
use std::fmt;

use crate::run::RunError;

/// One step on the way to a place: the name of a field, or an index of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A field.
    Field(Cow<'static, str>),
    /// An entry of a list, from 0.
    Index(usize),
}

impl From<&'static str> for Step {
    fn from(field: &'static str) -> Self {
        Step::Field(field.into())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Step::Index(index)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Field(name) => f.write_str(name),
            Step::Index(index) => index.fmt(f),
        }
    }
}

/// What is wrong with a scenario, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScenarioError {
    /// The place, from the outside inwards; empty for the whole.
    pub place: Vec<Step>,
    /// What is wrong there.
    pub message: String,
    /// Whether a file that the scenario names is wrong, rather than the scenario itself.
    pub in_file: bool,
}

impl std::error::Error for ScenarioError {}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.place.iter().enumerate() {
            write!(f, "{}{step}", if number > 0 { "." } else { "" })?;
        }
        write!(f, "{}{}", if self.place.is_empty() { "" } else { ": " }, self.message)
    }
}

impl ScenarioError {
    /// An error of the whole.
    pub fn new(message: impl Into<String>) -> Self {
        ScenarioError { place: Vec::new(), message: message.into(), in_file: false }
    }

    /// An error at a field or an entry.
    pub fn at(step: impl Into<Step>, message: impl Into<String>) -> Self {
        ScenarioError::new(message).inside(step)
    }

    /// The same error seen from outside: its place is inside this field or entry.
    #[must_use]
    pub fn inside(mut self, step: impl Into<Step>) -> Self {
        self.place.insert(0, step.into());
        self
    }

    /// An error of another layer whose text begins with the name of a field: a field of the part `parent`.
    pub(crate) fn of_field(parent: &[&'static str], error: impl fmt::Display) -> Self {
        let text = error.to_string();
        let mut error = match text.split_once(": ") {
            Some((field, message)) => ScenarioError {
                place: vec![Step::Field(field.to_owned().into())],
                message: message.to_owned(),
                in_file: false,
            },
            None => ScenarioError::new(text),
        };
        for &step in parent.iter().rev() {
            error = error.inside(step);
        }
        error
    }
}

impl From<RunError> for ScenarioError {
    /// The place in the scenario that an error of the run is about.
    fn from(error: RunError) -> Self {
        match &error {
            RunError::Rate(_) => ScenarioError::of_field(&["topology", "nic"], error),
            RunError::Range { name: "cables", .. } => ScenarioError::of_field(&["topology"], error),
            RunError::Range { name: "mtu", .. } => ScenarioError::of_field(&["network"], error),
            RunError::Range { .. } => ScenarioError::of_field(&["transport"], error),
            RunError::Threads(_) | RunError::Probes { .. } => ScenarioError::of_field(&[], error),
            RunError::Buffer => ScenarioError::of_field(&["network", "switch"], error),
            RunError::Engine { field, message } => {
                let place = field.iter().map(|&name| Step::from(name)).collect();
                ScenarioError { place, message: (*message).into(), in_file: false }
            }
            RunError::Ev(_) => ScenarioError::at("topology", error.to_string()),
            RunError::Workload(_) => ScenarioError::at("traffic", error.to_string()),
            RunError::Fault(_) => ScenarioError::at("faults", error.to_string()),
        }
    }
}
