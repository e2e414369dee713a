//! Counters of a node.

/// What a node counts beside its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeStats {
    /// Port status updates sent, repetitions included.
    pub port_updates_sent: u64,
    /// Port status updates that changed what is known of a peer.
    pub port_updates_applied: u64,
    /// Ports of peers that were put back because traffic contradicted an update.
    pub ports_contradicted: u64,
    /// Endpoint requests answered.
    pub requests_answered: u64,
    /// EV probes that nobody answered.
    pub probes_unanswered: u64,
    /// Endpoint packets that answer nothing or are none.
    pub endpoint_invalid: u64,
    /// Times that a full receive buffer has dropped packets.
    pub overflows: u64,
}
