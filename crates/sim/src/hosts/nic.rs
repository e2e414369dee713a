//! A host's NIC: whose turn it is to send, and which ports have a carrier.

use std::collections::VecDeque;

use openmrc_transport::PortSet;

/// One host's NIC.
#[derive(Clone, Debug)]
pub(super) struct Nic {
    /// Slots of queue pairs that want to send, in turn.
    pub ring: VecDeque<u32>,
    /// Time of its pending wake event.
    pub wake_at: u64,
    /// Ports with a carrier.
    pub up: PortSet,
}

impl Nic {
    /// A NIC whose ports are all up.
    pub fn new(ports: u32) -> Self {
        Nic { ring: VecDeque::new(), wake_at: u64::MAX, up: PortSet::first(ports as usize) }
    }
}
