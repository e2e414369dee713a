//! What is noted: entries of the log, counters by port and by path.

use openmrc_scenario::run::{Change, Target};
use openmrc_transport::PortSet;
use serde::{Deserialize, Serialize};

/// Something that the log tells of.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum LogEvent {
    /// An entry of the schedule of faults.
    Fault(Target, Change),
    /// Routing has withdrawn a port, or uses it again.
    Routing {
        /// The port.
        port: u32,
        /// Withdrawn, or used again.
        withdrawn: bool,
    },
    /// A queue pair has condemned a path, or uses it again.
    Path {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
        /// Entropy value.
        ev: u32,
        /// Plane.
        plane: u8,
        /// Back in use, or condemned.
        good: bool,
    },
    /// A queue pair has learnt which ports of its peer are up, from the peer's word or from the traffic.
    PeerPorts {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
        /// Ports that are up there.
        up: PortSet,
    },
    /// A proof of the path MTU has found planes that carry short packets only: the connection fails.
    NarrowPlanes {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
        /// These planes.
        narrow: PortSet,
    },
    /// A queue pair went to ERROR.
    Failed {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
    },
}

impl LogEvent {
    /// The host that tells of it. Events of the same time are logged by host.
    pub(super) const fn host(&self) -> Option<u32> {
        match *self {
            LogEvent::Fault(..) | LogEvent::Routing { .. } => None,
            LogEvent::Path { host, .. }
            | LogEvent::PeerPorts { host, .. }
            | LogEvent::NarrowPlanes { host, .. }
            | LogEvent::Failed { host, .. } => Some(host),
        }
    }
}

/// Losses and marks at a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortCounters {
    /// Packets trimmed.
    pub trimmed: u64,
    /// Packets dropped because a queue was full.
    pub dropped: u64,
    /// Packets lost on the cable behind the port: down, lossy, bit errors.
    pub lost: u64,
    /// Packets marked.
    pub marked: u64,
    /// Longest queue seen when a sample was taken, bytes.
    pub longest: u64,
}

/// Data packets of one connection over one path.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PathCounters {
    /// Sent.
    pub sent: u64,
    /// Arrived whole.
    pub arrived: u64,
    /// Arrived without payload.
    pub trimmed: u64,
    /// Arrived with a mark.
    pub marked: u64,
    /// Times its path was condemned.
    pub condemned: u64,
    /// Plane.
    pub plane: u8,
}

/// Most entries of the log. Later events are only counted.
pub(super) const MOST_ENTRIES: usize = 1 << 20;

impl PortCounters {
    /// Adds what a partition has counted. It does not see queues.
    pub(super) fn add(&mut self, other: &PortCounters) {
        let PortCounters { trimmed, dropped, lost, marked, longest: _ } = other;
        self.trimmed += trimmed;
        self.dropped += dropped;
        self.lost += lost;
        self.marked += marked;
    }
}

impl PathCounters {
    /// Adds what a partition has counted. Only the sender's knows the plane.
    pub(super) fn add(&mut self, other: &PathCounters) {
        let PathCounters { sent, arrived, trimmed, marked, condemned, plane } = other;
        self.sent += sent;
        self.arrived += arrived;
        self.trimmed += trimmed;
        self.marked += marked;
        self.condemned += condemned;
        self.plane = self.plane.max(*plane);
    }
}
