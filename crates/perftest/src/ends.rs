//! What both loops write from and to, and checks before and during a run.

use openmrc_nic::{self as nic, Access, Completion, Status};

/// What the kernel maps at a time.
const PAGE: usize = 4096;

/// Registered memory of this end, which peers may write.
pub struct Memory {
    region: nic::MemoryRegion,
    // Declared after `region`, so it is freed after the region has been deregistered.
    _buffer: nic::Buffer,
}

impl Memory {
    /// `length` bytes in `domain`, every page written once: the kernel maps all pages that were never written to one page
    /// of zeros, and reading that is faster than reading data.
    ///
    /// # Errors
    /// Those of [`nic::ProtectionDomain::register`].
    pub fn new(domain: &nic::ProtectionDomain, length: usize) -> nic::Result<Self> {
        let buffer = nic::Buffer::zeroed(length);
        for start in (0..length).step_by(PAGE) {
            buffer.write(start, &[1]);
        }
        let region = domain.register(&buffer, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE))?;
        Ok(Memory { region, _buffer: buffer })
    }

    /// Its region.
    pub fn region(&self) -> &nic::MemoryRegion {
        &self.region
    }

    /// Sets every byte to 0, so that the first message of a latency run differs from the memory.
    ///
    /// # Errors
    /// [`nic::Error::Closed`].
    pub fn clear(&self) -> nic::Result<()> {
        (0..self.region.len()).try_for_each(|i| self.region.poke(i, 0))
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Address of its first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Key of its region.
    pub rkey: u32,
}

/// Checks that messages of `size` bytes fit both ends.
pub(crate) fn check_size(size: u32, source: &nic::MemoryRegion, target: &Target) -> nic::Result<()> {
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
pub(crate) fn check_status(done: &Completion) -> nic::Result<()> {
    match done.status {
        Status::Success => Ok(()),
        status => Err(nic::Error::MessageFailed { wr_id: done.wr_id, status }),
    }
}
