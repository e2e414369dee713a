//! Reading parts of a scenario from JSON, with errors that name the place.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use crate::error::{ScenarioError, Step};

/// Reads a part of a scenario from JSON.
///
/// # Errors
/// [`ScenarioError`] names the place that cannot be read.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, ScenarioError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let part = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| with_place(&error))?;
    deserializer.end().map_err(|error| ScenarioError::new(error.to_string()))?;
    Ok(part)
}

/// The error with the place where it happened.
fn with_place(error: &serde_path_to_error::Error<serde_json::Error>) -> ScenarioError {
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
    ScenarioError { place, message, in_file: false }
}

fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Field(key.clone().into())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// Encloses the place in the text of an error: errors pass through serde as text.
const INNER: char = '\u{1f}';

/// Reads a part after its type has been found in its fields. Errors keep their place.
pub(crate) fn inner<T: DeserializeOwned, E: serde::de::Error>(value: Value) -> Result<T, E> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let error = with_place(&error);
        let place: Vec<String> = error.place.iter().map(ToString::to_string).collect();
        E::custom(format!("{INNER}{}{INNER}{}", place.join("."), error.message))
    })
}

/// Takes the field `kind` out of an object.
pub(crate) fn take_kind<E: serde::de::Error>(fields: &mut Map<String, Value>) -> Result<String, E> {
    match fields.remove("kind") {
        Some(Value::String(kind)) => Ok(kind),
        Some(other) => Err(at_field("kind", &format!("{other} is not the name of a kind"))),
        None => Err(at_field("kind", "this field is missing")),
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
                match $crate::read::take_kind::<D::Error>(&mut fields)?.as_str() {
                    $($kind => $crate::read::inner(fields.into()).map($name::$variant),)+
                    other => Err($crate::read::unknown_kind(other, Self::KINDS.iter().map(|kind| kind.0))),
                }
            }
        }
    };
}
pub(crate) use by_kind;

/// The error of a kind that does not exist.
pub(crate) fn unknown_kind<'a, E: serde::de::Error>(kind: &str, kinds: impl Iterator<Item = &'a str>) -> E {
    let names: Vec<&str> = kinds.collect();
    at_field("kind", &format!("{kind} is none of {}", names.join(", ")))
}

/// The error of a field, found after its type has been found in the fields.
pub(crate) fn at_field<E: serde::de::Error>(field: &str, message: &str) -> E {
    E::custom(format!("{INNER}{field}{INNER}{message}"))
}
