//! A communicator's objects of a device: a protection domain, a completion queue, and the queue pair to each rank.

use std::collections::HashMap;

use openmrc_nic::{Access, Completion, CompletionQueue, Context, MemoryRegion, ProtectionDomain};
use openmrc_schedule::Rank;

use crate::error::{Error, Result};

/// Completions that are taken at once.
const BATCH: usize = 256;

/// The NIC's objects of a communicator.
pub struct Network {
    pub cq: CompletionQueue,
    pub pd: ProtectionDomain,
    qps: HashMap<u32, Rank>,
    completions: Vec<Completion>,
}

impl Network {
    /// Opens what a communicator of `ranks` needs.
    pub fn open(context: &Context, ranks: usize) -> Result<Network> {
        let pd = context.alloc_pd().map_err(|e| Error::device("the device", e))?;
        let cq = context
            .create_cq((ranks * 512).clamp(1024, 1 << 20))
            .map_err(|e| Error::device("the device", e))?;
        Ok(Network { cq, pd, qps: HashMap::new(), completions: Vec::new() })
    }

    /// A queue pair leads to a rank.
    pub fn add(&mut self, qp_num: u32, peer: Rank) {
        self.qps.insert(qp_num, peer);
    }

    /// The rank to which a queue pair leads.
    pub fn peer(&self, qp_num: u32) -> Option<Rank> {
        self.qps.get(&qp_num).copied()
    }

    /// What the NIC has completed. To be given back by [`Network::handled`].
    pub fn poll(&mut self) -> Result<Vec<Completion>> {
        let mut completions = std::mem::take(&mut self.completions);
        if !self.qps.is_empty() {
            self.cq.poll_into(BATCH, &mut completions).map_err(|e| Error::device("completions", e))?;
        }
        Ok(completions)
    }

    /// Keeps the memory of completions for the next poll.
    pub fn handled(&mut self, mut completions: Vec<Completion>) {
        completions.clear();
        self.completions = completions;
    }

    /// Registers memory that the NIC reads. Its owner keeps it until the region is dropped.
    pub fn register(&self, data: *const u8, len: usize) -> Result<MemoryRegion> {
        // SAFETY: the operation owns the memory until it has ended, and the region goes before. Mappings of files keep
        // their length, as the kernels that reduce need it too.
        unsafe { self.pd.register_unmapped(data.cast_mut(), len, Access::LOCAL_READ, Box::new(())) }
            .map_err(|e| Error::device(format!("registering {len} bytes"), e))
    }
}
