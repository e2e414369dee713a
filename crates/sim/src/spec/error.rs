//! What is wrong with a scenario, and the place where it stands: `traffic.1.bytes: 0 is out of range: 1 to 2147483648`.

use std::borrow::Cow;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use crate::scenario::ScenarioError;

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
pub struct SpecError {
    /// The place, from the outside inwards; empty for the whole.
    pub place: Vec<Step>,
    /// What is wrong there.
    pub message: String,
    /// Whether a file that the scenario names is wrong, rather than the scenario itself.
    pub in_file: bool,
}

impl std::error::Error for SpecError {}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.place.iter().enumerate() {
            write!(f, "{}{step}", if number > 0 { "." } else { "" })?;
        }
        write!(f, "{}{}", if self.place.is_empty() { "" } else { ": " }, self.message)
    }
}

impl SpecError {
    /// An error of the whole.
    pub fn new(message: impl Into<String>) -> Self {
        SpecError { place: Vec::new(), message: message.into(), in_file: false }
    }

    /// An error at a field or an entry.
    pub fn at(step: impl Into<Step>, message: impl Into<String>) -> Self {
        SpecError::new(message).inside(step)
    }

    /// The same error seen from outside: its place is inside this field or entry.
    #[must_use]
    pub fn inside(mut self, step: impl Into<Step>) -> Self {
        self.place.insert(0, step.into());
        self
    }

    /// An error of another layer whose text begins with the name of a field: a field of the part `parent`.
    pub(super) fn of_field(parent: &[&'static str], error: impl fmt::Display) -> Self {
        let text = error.to_string();
        let mut error = match text.split_once(": ") {
            Some((field, message)) => SpecError {
                place: vec![Step::Field(field.to_owned().into())],
                message: message.to_owned(),
                in_file: false,
            },
            None => SpecError::new(text),
        };
        for &step in parent.iter().rev() {
            error = error.inside(step);
        }
        error
    }
}

impl From<ScenarioError> for SpecError {
    /// The place in the scenario that an error of the run is about.
    fn from(error: ScenarioError) -> Self {
        match &error {
            ScenarioError::Rate(_) | ScenarioError::Range { name: "mtu" | "cable_ns", .. } => {
                SpecError::of_field(&["network"], error)
            }
            ScenarioError::Range { .. } => SpecError::of_field(&["transport"], error),
            ScenarioError::Buffer => SpecError::of_field(&["network", "switch"], error),
            ScenarioError::Ev(_) => SpecError::at("topology", error.to_string()),
            ScenarioError::Workload(_) => SpecError::at("traffic", error.to_string()),
            ScenarioError::Fault(_) => SpecError::at("faults", error.to_string()),
        }
    }
}

/// Reads a part of a scenario from JSON.
///
/// # Errors
/// [`SpecError`] names the place that cannot be read.
pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, SpecError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let part = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| with_place(&error))?;
    deserializer.end().map_err(|error| SpecError::new(error.to_string()))?;
    Ok(part)
}

/// The error with the place where it happened.
fn with_place(error: &serde_path_to_error::Error<serde_json::Error>) -> SpecError {
    let mut place: Vec<Step> = error.path().iter().filter_map(step).collect();
    let mut message = error.inner().to_string();
    if error.inner().is_data() {
        // A place in the scenario says more than one in the text.
        let (line, column) = (error.inner().line(), error.inner().column());
        message.truncate(message.trim_end_matches(&format!(" at line {line} column {column}")).len());
    }
    // What was read by `inner` brings the rest of the place along.
    if let Some((rest, text)) = message.strip_prefix(INNER).and_then(|all| all.split_once(INNER)) {
        place.extend(rest.split('.').filter(|step| !step.is_empty()).map(|step| match step.parse() {
            Ok(index) => Step::Index(index),
            Err(_) => Step::Field(step.to_owned().into()),
        }));
        message = text.to_owned();
    }
    SpecError { place, message, in_file: false }
}

fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Field(key.clone().into())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// Encloses the place in the text of an error that passes through serde, which has texts only.
const INNER: char = '\u{1f}';

/// Reads a part whose type only a look at its fields has told; its errors keep their place.
pub(super) fn inner<T: DeserializeOwned, E: serde::de::Error>(value: Value) -> Result<T, E> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let error = with_place(&error);
        let place: Vec<String> = error.place.iter().map(ToString::to_string).collect();
        E::custom(format!("{INNER}{}{INNER}{}", place.join("."), error.message))
    })
}

/// Takes the field `kind` out of an object.
pub(super) fn take_kind<E: serde::de::Error>(fields: &mut Map<String, Value>) -> Result<String, E> {
    match fields.remove("kind") {
        Some(Value::String(kind)) => Ok(kind),
        Some(other) => Err(E::custom(format!("{INNER}kind{INNER}{other} is not the name of a kind"))),
        None => Err(E::custom(format!("{INNER}kind{INNER}this field is missing"))),
    }
}

/// An enum of parts that the field `kind` tells apart, each variant named like the type that it holds.
macro_rules! by_kind {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $kind:literal => $variant:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, serde::Serialize, schemars::JsonSchema)]
        #[serde(tag = "kind")]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $kind)] #[schemars(title = stringify!($variant))] $variant($variant),)+
        }

        impl $name {
            /// Every kind, and the name of its type.
            pub const KINDS: &'static [(&'static str, &'static str)] = &[$(($kind, stringify!($variant)),)+];

            /// The value of the field `kind`.
            pub fn kind(&self) -> &'static str {
                match self {
                    $($name::$variant(_) => $kind,)+
                }
            }
        }

        $(impl From<$variant> for $name {
            fn from(part: $variant) -> Self {
                $name::$variant(part)
            }
        })+

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut fields = serde_json::Map::deserialize(deserializer)?;
                match $crate::spec::error::take_kind::<D::Error>(&mut fields)?.as_str() {
                    $($kind => $crate::spec::error::inner(fields.into()).map($name::$variant),)+
                    other => Err($crate::spec::error::unknown_kind(other, Self::KINDS)),
                }
            }
        }
    };
}
pub(super) use by_kind;

/// The error of a kind that does not exist.
pub(super) fn unknown_kind<E: serde::de::Error>(kind: &str, kinds: &[(&str, &str)]) -> E {
    let names: Vec<&str> = kinds.iter().map(|&(name, _)| name).collect();
    E::custom(format!("{INNER}kind{INNER}{kind} is none of {}", names.join(", ")))
}
