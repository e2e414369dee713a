//! What a run records. Recording costs time only where it is requested.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use openmrc_fabric::Fabric;

use crate::error::ScenarioError;
use crate::names::link_numbers;
use crate::numbers::{Amount, Duration, Whole};
use crate::run::{CaptureConfig, RecordConfig, SeriesConfig};

/// What is written down on the way.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Record {
    /// Time series: goodput, queues, load of links, counters.
    pub series: bool,
    /// Between two samples; about a thousand samples if left open, however long the run.
    pub interval_us: Option<Duration>,
    /// Links whose load and queues are kept one by one in the time series: `all`, or names.
    pub links: Links,
    /// A log: faults, reactions of routing, paths condemned and restored, queue pairs that failed.
    pub events: bool,
    /// Marks, trims and losses by link.
    pub ports: bool,
    /// Packets by connection and entropy value.
    pub evs: bool,
    /// When each node of recorded jobs began and ended.
    pub nodes: bool,
    /// Packets of chosen links.
    pub capture: Option<Capture>,
}

/// Links by name, or all of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected `all` or a list of names of links")]
pub enum Links {
    /// All.
    All(All),
    /// These.
    Named(Vec<String>),
}

/// The word `all`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum All {
    /// The word.
    All,
}

impl Default for Links {
    /// None.
    fn default() -> Self {
        Links::Named(Vec::new())
    }
}

impl Links {
    fn numbers(&self, fabric: &Fabric) -> Result<Vec<u32>, ScenarioError> {
        match self {
            Links::All(_) => Ok((0..fabric.links()).collect()),
            Links::Named(names) => link_numbers(fabric, names).map_err(|error| error.inside("links")),
        }
    }

    /// How many links of a fabric they are.
    pub(crate) fn count(&self, fabric: &Fabric) -> u64 {
        match self {
            Links::All(_) => fabric.links().into(),
            Links::Named(names) => names.len() as u64,
        }
    }
}

/// Packets of chosen links, as bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// Names of links; a link is listened to in both directions, where the cable ends.
    pub links: Vec<String>,
    /// The capture ends after this many packets.
    #[serde(default = "a_million")]
    pub packets: Amount,
    /// Bytes kept of each packet; 65536 keeps whole packets.
    #[serde(default = "all_headers")]
    pub snaplen: Whole<64, { 1 << 16 }>,
}

/// Some 300 MB with the default snaplen.
const fn a_million() -> Amount {
    Whole::of(1_000_000)
}

/// All headers, the longest stack of them included.
const fn all_headers() -> Whole<64, { 1 << 16 }> {
    Whole::of(256)
}

impl Record {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        match &self.capture {
            Some(capture) if capture.links.is_empty() => {
                Err(ScenarioError::at("links", "there are none").inside("capture"))
            }
            _ => Ok(()),
        }
    }

    /// What a run writes down.
    pub(crate) fn config(&self, fabric: &Fabric) -> Result<RecordConfig, ScenarioError> {
        // A name that does not exist is wrong whether a series is taken or not.
        let links = self.links.numbers(fabric)?;
        let interval = self.interval_us.map(Duration::span);
        let capture = self.capture.as_ref().map(|capture| capture.config(fabric)).transpose();
        let capture = capture.map_err(|error| error.inside("capture"))?;
        Ok(RecordConfig {
            series: self.series.then_some(SeriesConfig { interval, links }),
            events: self.events,
            ports: self.ports,
            paths: self.evs,
            capture,
        })
    }
}

impl Capture {
    fn config(&self, fabric: &Fabric) -> Result<CaptureConfig, ScenarioError> {
        let links = link_numbers(fabric, &self.links).map_err(|error| error.inside("links"))?;
        Ok(CaptureConfig { links, most: self.packets.get() })
    }
}
