//! What executes a [`Run`]: the packet engine of `openmrc-sim`, and any other behind the same five functions.

use openmrc_transport::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::footprint::Footprint;
use crate::results::Results;
use crate::run::{NetworkConfig, Run, RunError, TransportConfig};

/// Which engine executes a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// `openmrc-sim`: every packet.
    #[default]
    Packets,
    /// `openmrc-flow`: shares of links for each message.
    Flow,
    /// `openmrc-auto`: packets, but not for messages whose time is known.
    Auto,
}

/// How far a run has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Virtual time.
    pub now: Time,
    /// Messages completed or failed.
    pub finished: usize,
    /// All messages.
    pub messages: usize,
    /// Events processed.
    pub events: u64,
    /// Data packets sent.
    pub data_packets: u64,
}

/// Executes a run in virtual time. The results depend on the run alone: not on the stretches in which it is executed, nor
/// on the number of threads.
pub trait Engine: Sized {
    /// Bytes of memory that each thing in a run takes.
    ///
    /// # Errors
    /// [`RunError`] if the fabric has more paths than entropy values can name.
    fn footprint(
        network: &NetworkConfig,
        transport: &TransportConfig,
        threads: u32,
    ) -> Result<Footprint, RunError>;

    /// The engine at time zero of a run.
    ///
    /// # Errors
    /// [`RunError`] for the first thing in the run that is not possible.
    fn new(run: &Run) -> Result<Self, RunError>;

    /// Executes about this many events. Returns whether the run goes on.
    fn advance(&mut self, events: u64) -> bool;

    /// How far the run has come.
    fn progress(&self) -> Progress;

    /// The results so far.
    fn results(&self) -> Results;

    /// Executes the run to its end: all messages finished, no event left, or the time limit.
    fn run(&mut self) {
        while self.advance(u64::MAX) {}
    }
}
