//! The functions that the world needs from a queue pair beyond [`Transport`].

use openmrc_transport::mrc::{EvState, QpConfig, QpStats, QueuePair};
use openmrc_transport::{Fatal, PathEntry, PathId, Time, Transport};

/// A queue pair under test.
pub trait Subject: Transport {
    fn create(now: Time, config: &QpConfig) -> Self;
    fn stats(&self) -> QpStats;
    fn set_ev_denied(&mut self, path: PathEntry, denied: bool) -> bool;
    fn ev_states(&self) -> Vec<(PathId, EvState)>;
    fn error(&self) -> Option<Fatal>;
    fn expected_in_flight(&self) -> i64;
}

impl Subject for QueuePair {
    fn create(now: Time, config: &QpConfig) -> Self {
        QueuePair::new(now, config).expect("the scenario's configuration is valid")
    }
    fn stats(&self) -> QpStats {
        self.stats()
    }
    fn set_ev_denied(&mut self, path: PathEntry, denied: bool) -> bool {
        self.set_ev_denied(path, denied)
    }
    fn ev_states(&self) -> Vec<(PathId, EvState)> {
        self.ev_states().collect()
    }
    fn error(&self) -> Option<Fatal> {
        self.error()
    }
    fn expected_in_flight(&self) -> i64 {
        self.expected_in_flight()
    }
}
