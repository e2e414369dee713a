//! Protection domains: a queue pair may use memory regions of its own domain only.

use std::any::Any;
use std::sync::Arc;

use openmrc_sockets::memory::maps_file;

use crate::attr::QpCap;
use crate::buffer::Buffer;
use crate::cq::CompletionQueue;
use crate::driver::Driver;
use crate::error::Result;
use crate::memory::MemoryRegion;
use crate::memory_table::Access;
use crate::qp::QueuePair;

/// A protection domain. It lives as long as any object created in it.
#[derive(Clone)]
pub struct ProtectionDomain {
    driver: Arc<Driver>,
    id: u32,
}

impl ProtectionDomain {
    pub(crate) fn new(driver: &Arc<Driver>, id: u32) -> Self {
        ProtectionDomain { driver: Arc::clone(driver), id }
    }

    /// Its number.
    pub fn handle(&self) -> u32 {
        self.id
    }

    /// Registers `len` bytes at `addr`. The region keeps `owner` until it is deregistered; the deregistering thread
    /// drops it, with no lock held. Where a file is mapped, which may become shorter, the kernel copies each packet: a
    /// write of a peer beyond the end is refused, and a send from there ends with `LOC_PROT_ERR`.
    ///
    /// # Safety
    /// The bytes must stay valid for reads, and with [`Access::LOCAL_WRITE`] for writes from any thread, until `owner`
    /// is dropped; a mapped file may become shorter. Rust code must not hold references to bytes that a peer may write.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] for access flags that contradict each other or a range beyond the address
    /// space.
    pub unsafe fn register_raw(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
        owner: Box<dyn Any + Send>,
    ) -> Result<MemoryRegion> {
        let mapped_file = maps_file(addr.expose_provenance(), len);
        // SAFETY: the caller's promise.
        unsafe { MemoryRegion::register(&self.driver, self.id, addr, len, access, mapped_file, owner) }
    }

    /// As [`ProtectionDomain::register_raw`], of memory that is no mapping of a file, or of one that stays as long as
    /// it is: nothing is looked up.
    ///
    /// # Safety
    /// As [`ProtectionDomain::register_raw`]; and where a file is mapped, it keeps its length.
    ///
    /// # Errors
    /// As [`ProtectionDomain::register_raw`].
    pub unsafe fn register_unmapped(
        &self,
        addr: *mut u8,
        len: usize,
        access: Access,
        owner: Box<dyn Any + Send>,
    ) -> Result<MemoryRegion> {
        addr.expose_provenance();
        // SAFETY: the caller's promise.
        unsafe { MemoryRegion::register(&self.driver, self.id, addr, len, access, false, owner) }
    }

    /// Registers a whole [`Buffer`].
    ///
    /// # Errors
    /// As [`ProtectionDomain::register_raw`].
    pub fn register(&self, buffer: &Buffer, access: Access) -> Result<MemoryRegion> {
        // SAFETY: the owner is a clone of the buffer, whose bytes are only ever accessed by raw copies.
        unsafe { self.register_unmapped(buffer.as_ptr(), buffer.len(), access, Box::new(buffer.clone())) }
    }

    /// Creates a queue pair in RESET. With `sq_sig_all` every send raises a completion.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if a capacity is out of range or the device has its maximum of queue pairs.
    pub fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Result<QueuePair> {
        QueuePair::create(&self.driver, self.id, send_cq, recv_cq, cap, sq_sig_all)
    }
}
