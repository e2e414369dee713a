//! Memory regions: the bytes of the process that queue pairs may read and peers may write (docs/spec/api.md,
//! "Objects").

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use openmrc_sockets::memory::try_copy;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::memory_table::{Access, Region};
use crate::sys;

/// A registered range of memory. Dropping it deregisters it.
///
/// When deregistration has returned, the NIC neither reads nor writes the range any more, whatever is in flight.
pub struct MemoryRegion {
    driver: Arc<Driver>,
    key: u32,
    addr: u64,
    len: usize,
    access: Access,
    mapped_file: bool,
    registered: bool,
}

impl MemoryRegion {
    /// Registers `len` bytes at `addr` in protection domain `pd`.
    ///
    /// # Safety
    /// As [`crate::ProtectionDomain::register_raw`].
    pub(crate) unsafe fn register(
        driver: &Arc<Driver>,
        pd: u32,
        addr: *mut u8,
        len: usize,
        access: Access,
        mapped_file: bool,
        owner: Box<dyn Any + Send>,
    ) -> Result<Self> {
        if access.allows(Access::REMOTE_WRITE) && !access.allows(Access::LOCAL_WRITE) {
            return Err(Error::invalid("REMOTE_WRITE needs LOCAL_WRITE, as in ibverbs"));
        }
        if (addr as usize).checked_add(len).is_none() {
            return Err(Error::invalid(format!("{len} bytes at {addr:p} reach beyond the address space")));
        }
        if len > 0 && !sys::is_readable(addr as usize + len - 1) {
            return Err(Error::invalid(format!(
                "the last of {len} bytes at {addr:p} cannot be read: is it a mapping of a file that was truncated?"
            )));
        }
        let region = Region::new(pd, access, addr as u64, len as u64, owner).of_file(mapped_file);
        let key = driver.lock_open()?.verbs.memory.insert(region)?;
        let driver = Arc::clone(driver);
        Ok(MemoryRegion { driver, key, addr: addr as u64, len, access, mapped_file, registered: true })
    }

    /// Address of the first byte, which is also the remote address that a peer uses.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Key for this side's scatter lists.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// Key for the peer's work requests.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Its access rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The byte at `offset`. Every call reads memory, so a loop can wait for a peer's write. `None` beyond the end,
    /// also of a mapped file, and after deregistration.
    #[inline]
    pub fn peek(&self, offset: usize) -> Option<u8> {
        let byte = self.byte(offset)?;
        let mut found = 0;
        // SAFETY: while the region is registered, its bytes are valid for reads by the promise of `register_raw`'s
        // caller; the kernel finds out whether those of a file are there.
        unsafe {
            if !self.mapped_file {
                return Some(byte.read_volatile());
            }
            try_copy(byte, &raw mut found, 1).then_some(found)
        }
    }

    /// Sets the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] beyond the end, after deregistration, or without [`Access::LOCAL_WRITE`].
    pub fn poke(&self, offset: usize, value: u8) -> Result<()> {
        match self.byte(offset).filter(|_| self.access.allows(Access::LOCAL_WRITE)) {
            // SAFETY: with this right, they are valid for writes by the same promise.
            Some(byte) if !self.mapped_file => unsafe {
                byte.write_volatile(value);
                Ok(())
            },
            // SAFETY: as in `peek`.
            Some(byte) if unsafe { try_copy(&raw const value, byte, 1) } => Ok(()),
            _ => Err(Error::invalid(format!("byte {offset} of the region cannot be written"))),
        }
    }

    /// A copy of up to `len` bytes from `offset`: of those before the end, and of none after deregistration.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        let len = len.min(self.len.saturating_sub(offset));
        (0..len).filter_map(|i| self.peek(offset + i)).collect()
    }

    fn byte(&self, offset: usize) -> Option<*mut u8> {
        let within = self.registered && offset < self.len && !self.driver.shared.is_inherited();
        within.then(|| ptr::with_exposed_provenance_mut(self.addr as usize + offset))
    }

    /// Ends the registration and drops the owner given at registration. Outstanding sends from the region complete with
    /// LOC_PROT_ERR. A second call does nothing.
    pub fn deregister(&mut self) {
        if std::mem::take(&mut self.registered) {
            // The lock is released before the owner is dropped, as that may run code of the application.
            let owner = self.driver.lock().map(|mut engine| engine.verbs.memory.remove(self.key));
            drop(owner);
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.deregister();
    }
}
