//! Counters of a node.

use serde::{Deserialize, Serialize};

/// Counters of a node that belong to no single queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NodeStats {
    /// Port status updates sent, repetitions included.
    pub port_updates_sent: u64,
    /// Port status updates received that changed the known ports of a peer.
    pub port_updates_applied: u64,
    /// Ports of peers that are up again because traffic contradicted an update.
    pub ports_contradicted: u64,
    /// Questions to peers on which of their ports are up.
    pub ports_asked: u64,
    /// Endpoint requests answered.
    pub requests_answered: u64,
    /// Endpoint requests not answered because there were too many.
    pub requests_limited: u64,
    /// EV probes without an answer.
    pub probes_unanswered: u64,
    /// Endpoint packets that are malformed or that answer no outstanding request.
    pub endpoint_invalid: u64,
    /// Overflows of a receive buffer.
    pub overflows: u64,
}
