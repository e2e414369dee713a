//! The path of an endpoint packet, and the failure of an EV probe.

use openmrc_wire::Ev;

use crate::profile::PathId;

/// Which way an endpoint packet goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Back where the request came from. Its entropy value names a path of the peer's, not one of ours.
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
