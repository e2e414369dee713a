//! What both loops write to, and checks before and during a run.

use openmrc_nic::{self as nic, Completion, Status};

/// Memory of the peer.
pub struct Target {
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    pub rkey: u32,
}

/// Checks that messages of `size` bytes fit both ends.
pub fn check_size(size: u32, source: &nic::MemoryRegion, target: &Target) -> nic::Result<()> {
    if source.len() < size as usize || target.len < u64::from(size) {
        return Err(nic::Error::InvalidArgument(format!(
            "messages of {size} bytes do not fit regions of {} and {} bytes",
            source.len(),
            target.len
        )));
    }
    Ok(())
}

/// Checks that a message has succeeded.
pub fn check_status(done: &Completion) -> nic::Result<()> {
    match done.status {
        Status::Success => Ok(()),
        status => Err(nic::Error::MessageFailed { wr_id: done.wr_id, status }),
    }
}
