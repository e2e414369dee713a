//! Paths: what an entropy value on a port means for the packets that take it (docs/spec/wire.md, "Where the entropy
//! value goes").

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use openmrc_wire::encap::Encapsulation;
use openmrc_wire::{Entropy, Ev};

use crate::socket::TxSocket;

/// The way of an SRv6 path through the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentRoute {
    /// Outer destination address: the uSID list.
    pub destination: Ipv6Addr,
    /// What does not fit it: one more list, in an SRH.
    pub segment: Option<Ipv6Addr>,
}

/// One entropy value on one port, and what has gone that way.
pub(crate) struct TxPath {
    /// Port of the device.
    pub port: u8,
    pub ev: Ev,
    /// Its place in the headers.
    pub entropy: Entropy,
    pub via: Via,
    pub packets: u64,
    pub bytes: u64,
    pub last_tx_ns: u64,
}

/// How packets take a path.
pub(crate) enum Via {
    /// By their UDP source port, and the flow label.
    Socket {
        /// Entropy values that differ in the flow label only share it.
        socket: Arc<TxSocket>,
        /// Watched until it is writable.
        watched: bool,
    },
    /// By their outer header.
    Srv6(Box<Srv6Path>),
}

/// A path of SRv6 packets. It ends at one node.
pub(crate) struct Srv6Path {
    pub route: SegmentRoute,
    /// Address of the node on this plane.
    pub peer: SocketAddr,
    pub headers: Encapsulation,
    /// Its number among the next hops; `None` while there is no route.
    pub next_hop: Option<u16>,
    /// The headers have the MAC address of the next hop.
    pub resolved: bool,
}

impl TxPath {
    pub fn new(port: u8, ev: Ev, entropy: Entropy, via: Via) -> Self {
        TxPath { port, ev, entropy, via, packets: 0, bytes: 0, last_tx_ns: 0 }
    }

    /// UDP source port of its packets.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.entropy.sport
    }

    /// Whether it leads to the node at this address on its plane. By UDP sockets it leads to every node.
    pub fn leads_to(&self, addr: Option<SocketAddr>) -> bool {
        match &self.via {
            Via::Socket { .. } => true,
            Via::Srv6(path) => Some(path.peer) == addr,
        }
    }

    /// Its SRv6 route, if it has one.
    pub fn route(&self) -> Option<SegmentRoute> {
        match &self.via {
            Via::Socket { .. } => None,
            Via::Srv6(path) => Some(path.route),
        }
    }
}
