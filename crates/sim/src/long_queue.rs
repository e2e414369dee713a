//! Queues that are long enough to mark, as the other end of their cable knows them.

use serde::{Deserialize, Serialize};

/// A queue long enough to mark: from a packet's acceptance to the acceptance of the next.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Backlog {
    /// When the packet was accepted.
    pub since: u64,
    /// When all that had been accepted by then will have left.
    pub free: u64,
}

/// A queue that has become long enough to mark, as the other end of the cable is told of it. It needs to know no sooner
/// than the first packet that may be marked arrives there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongQueue {
    /// The port at the other end of the cable.
    pub port: u32,
    pub backlog: Backlog,
    /// Packets that arrive later than the first time and by the second may be marked.
    pub arrivals: (u64, u64),
}
