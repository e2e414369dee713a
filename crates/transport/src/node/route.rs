//! The path of an endpoint packet, and the failure of an EV probe.

use openmrc_wire::Ev;

use crate::profile::PathId;

/// How an endpoint packet is routed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Back to the sender of the request. The entropy value names a path of the peer, not one of this node.
    Reply {
        /// Entropy value of the request.
        ev: Ev,
        /// Port it came in on.
        port: u8,
    },
    /// On this path.
    Path {
        /// Entropy value.
        ev: Ev,
        /// Its number in the driver's list of paths.
        path: PathId,
        /// Its port.
        port: u8,
    },
    /// On any path of this port.
    Port(u8),
}

/// An EV probe was not answered in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no answer within the timeout")]
pub struct ProbeTimeout;
