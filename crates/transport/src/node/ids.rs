//! How a node and its driver name queue pairs and peers.

/// A queue pair's slot in its node's table.
pub type Slot = u32;

/// The driver's number for a peer node.
pub type PeerId = u32;

/// A queue pair of a node, as its driver knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpId {
    /// Its slot in the node's table.
    pub slot: Slot,
    /// The driver's own name for it.
    pub context: u32,
    /// The node that it is connected to.
    pub peer: PeerId,
}
