//! Memory regions: the bytes of the process that queue pairs may read and peers may write (spec: API, MemoryRegion;
//! transport, Responder).
//!
//! A region's key is secret: 32 bits that cannot be guessed and are never used again, even after deregistration. Keys
//! are an encrypted counter; a region takes the first key whose low bits name a free slot, so a lookup is one array
//! access.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use openmrc_transport::AccessError;

use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::stats::Cause;
use crate::sys;

/// Access rights of a memory region. Local reading is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Access(u8);

impl Access {
    /// This side may read: enough for the source of a write.
    pub const LOCAL_READ: Access = Access(0);
    /// This side may write.
    pub const LOCAL_WRITE: Access = Access(1);
    /// Peers of queue pairs in the same protection domain may write. Requires [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Access = Access(2);

    /// The rights of both.
    #[must_use]
    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether all rights of `other` are included.
    pub const fn allows(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags as bits: 1 local write, 2 remote write (`IBV_ACCESS_*`).
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From the bits of [`Access::bits`]; `None` if any other bit is set.
    pub const fn from_bits(bits: u8) -> Option<Access> {
        if bits & !3 == 0 { Some(Access(bits)) } else { None }
    }
}

/// A registered range of memory. Dropping it deregisters it.
///
/// When deregistration has returned, the NIC neither reads nor writes the range any more, whatever is in flight.
pub struct MemoryRegion {
    shared: Arc<Shared>,
    key: u32,
    addr: u64,
    len: usize,
    access: Access,
    registered: bool,
}

impl MemoryRegion {
    /// Registers `len` bytes at `addr` in protection domain `pd`.
    ///
    /// # Safety
    /// As [`crate::ProtectionDomain::register_raw`].
    pub(crate) unsafe fn register(
        shared: &Arc<Shared>,
        pd: u32,
        addr: *mut u8,
        len: usize,
        access: Access,
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
        let region = Region { key: 0, pd, access, addr: addr as u64, len: len as u64, owner: Some(owner) };
        let key = shared.lock_open()?.verbs.memory.insert(region)?;
        Ok(MemoryRegion { shared: Arc::clone(shared), key, addr: addr as u64, len, access, registered: true })
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

    /// The byte at `offset`. Every call reads memory, so a loop can wait for a peer's write. `None` beyond the end and
    /// after deregistration.
    #[inline]
    pub fn peek(&self, offset: usize) -> Option<u8> {
        // SAFETY: while the region is registered, its bytes are valid for reads by the promise of `register_raw`'s
        // caller.
        self.byte(offset).map(|byte| unsafe { byte.read_volatile() })
    }

    /// Sets the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] beyond the end, after deregistration, or without [`Access::LOCAL_WRITE`].
    pub fn poke(&self, offset: usize, value: u8) -> Result<()> {
        match self.byte(offset).filter(|_| self.access.allows(Access::LOCAL_WRITE)) {
            // SAFETY: with this right, they are valid for writes by the same promise.
            Some(byte) => unsafe {
                byte.write_volatile(value);
                Ok(())
            },
            None => Err(Error::invalid(format!("byte {offset} of the region cannot be written"))),
        }
    }

    /// A copy of up to `len` bytes from `offset`: of those before the end, and of none after deregistration.
    pub fn copy_out(&self, offset: usize, len: usize) -> Vec<u8> {
        let len = if self.registered && !self.shared.is_inherited() {
            len.min(self.len.saturating_sub(offset))
        } else {
            0
        };
        (0..len).filter_map(|i| self.peek(offset + i)).collect()
    }

    fn byte(&self, offset: usize) -> Option<*mut u8> {
        let within = self.registered && offset < self.len && !self.shared.is_inherited();
        within.then(|| ptr::with_exposed_provenance_mut(self.addr as usize + offset))
    }

    /// Ends the registration and drops the owner given at registration. Outstanding sends from the region complete with
    /// LOC_PROT_ERR. A second call does nothing.
    pub fn deregister(&mut self) {
        if std::mem::take(&mut self.registered) {
            // The lock is released before the owner is dropped, as that may run code of the application.
            let owner = self.shared.lock().map(|mut engine| engine.verbs.memory.remove(self.key));
            drop(owner);
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.deregister();
    }
}

/// One registered range.
struct Region {
    key: u32,
    pd: u32,
    access: Access,
    addr: u64,
    len: u64,
    /// Keeps the memory alive while it is registered.
    owner: Option<Box<dyn Any + Send>>,
}

impl Region {
    fn covers(&self, addr: u64, len: u64) -> bool {
        match addr.checked_sub(self.addr) {
            Some(offset) => offset <= self.len && len <= self.len - offset,
            None => false,
        }
    }
}

/// The regions of a context, found by key.
pub(crate) struct MemoryTable {
    /// The low bits of a region's key are the number of its slot. The number of slots is a power of two.
    slots: Vec<Option<Region>>,
    used: usize,
    keys: KeyStream,
}

impl MemoryTable {
    pub fn new() -> Self {
        MemoryTable { slots: Self::empty(64), used: 0, keys: KeyStream::new() }
    }

    fn empty(n: usize) -> Vec<Option<Region>> {
        std::iter::repeat_with(|| None).take(n).collect()
    }

    fn slot(&self, key: u32) -> usize {
        key as usize & (self.slots.len() - 1)
    }

    fn insert(&mut self, mut region: Region) -> Result<u32> {
        if self.used * 2 >= self.slots.len() {
            self.grow();
        }
        loop {
            let key = self.keys.next().ok_or_else(|| Error::invalid("every key has been used once"))?;
            let slot = self.slot(key);
            if self.slots[slot].is_none() {
                region.key = key;
                self.slots[slot] = Some(region);
                self.used += 1;
                return Ok(key);
            }
        }
    }

    /// Doubles the slots. Keys that differ in their low bits still differ with one more bit.
    fn grow(&mut self) {
        let doubled = Self::empty(self.slots.len() * 2);
        for region in std::mem::replace(&mut self.slots, doubled).into_iter().flatten() {
            let slot = self.slot(region.key);
            self.slots[slot] = Some(region);
        }
    }

    /// Removes a region; returns its owner, which the caller drops with no lock held.
    #[must_use]
    pub fn remove(&mut self, key: u32) -> Option<Box<dyn Any + Send>> {
        let slot = self.slot(key);
        if self.slots[slot].as_ref().is_none_or(|r| r.key != key) {
            return None;
        }
        self.used -= 1;
        self.slots[slot].take().and_then(|mut r| r.owner.take())
    }

    /// Removes every region; returns the owners.
    #[must_use]
    pub fn clear(&mut self) -> Vec<Box<dyn Any + Send>> {
        self.used = 0;
        self.slots.iter_mut().filter_map(|slot| slot.take().and_then(|mut r| r.owner.take())).collect()
    }

    #[inline]
    fn find(&self, key: u32) -> Option<&Region> {
        self.slots[self.slot(key)].as_ref().filter(|r| r.key == key)
    }

    /// Whether a send of this protection domain may read `len` bytes at `addr`.
    #[inline]
    pub fn readable(&self, pd: u32, lkey: u32, addr: u64, len: u32) -> bool {
        self.find(lkey).is_some_and(|r| r.pd == pd && r.covers(addr, u64::from(len)))
    }

    /// Writes the payload of a remote write to memory, all of it or nothing.
    #[inline]
    pub fn place(&self, pd: u32, rkey: u32, va: u64, payload: &[u8]) -> std::result::Result<(), Refusal> {
        let region = self.find(rkey).ok_or(Refusal(Cause::RkeyUnknown))?;
        if region.pd != pd {
            return Err(Refusal(Cause::PdMismatch));
        }
        if !region.access.allows(Access::REMOTE_WRITE) {
            return Err(Refusal(Cause::NoRemoteWrite));
        }
        if !region.covers(va, payload.len() as u64) {
            return Err(Refusal(Cause::OutOfBounds));
        }
        if let Some((last, front)) = payload.split_last() {
            let dest = ptr::with_exposed_provenance_mut::<u8>(va as usize);
            // SAFETY: the range lies in a registered region, which is valid for writes until it is deregistered, and
            // that takes the lock we hold. The source is our receive buffer.
            unsafe {
                ptr::copy_nonoverlapping(front.as_ptr(), dest, front.len());
                // The last byte is written last, as applications such as perftest wait for it to change.
                compiler_fence(Ordering::Release);
                dest.add(front.len()).write_volatile(*last);
            }
        }
        Ok(())
    }
}

/// A refused remote write, with the counter of its cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal(pub Cause);

impl From<Refusal> for AccessError {
    fn from(_: Refusal) -> Self {
        AccessError
    }
}

/// Unpredictable keys, each only once: a Feistel network over a counter, with keyed SipHash as its round function.
struct KeyStream {
    counter: Option<u32>,
    secret: RandomState,
}

impl KeyStream {
    /// Four rounds make a strong permutation (Luby, Rackoff 1988). More cost nothing that matters at registration.
    const ROUNDS: u8 = 8;

    fn new() -> Self {
        KeyStream { counter: Some(0), secret: RandomState::new() }
    }

    fn encrypt(&self, value: u32) -> u32 {
        let (mut left, mut right) = ((value >> 16) as u16, value as u16);
        for round in 0..Self::ROUNDS {
            (left, right) = (right, left ^ self.secret.hash_one((round, right)) as u16);
        }
        u32::from(left) << 16 | u32::from(right)
    }

    fn next(&mut self) -> Option<u32> {
        loop {
            let value = self.counter?;
            self.counter = value.checked_add(1);
            match self.encrypt(value) {
                // People and programs take zero for "no key".
                0 => continue,
                key => return Some(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn region(pd: u32, access: Access, buffer: &mut [u8]) -> Region {
        let addr = buffer.as_mut_ptr().expose_provenance() as u64;
        Region { key: 0, pd, access, addr, len: buffer.len() as u64, owner: Some(Box::new(())) }
    }

    const RW: Access = Access(3);

    #[test]
    fn keys_never_repeat() {
        let mut keys = KeyStream::new();
        let drawn: HashSet<_> = (0..200_000).map(|_| keys.next().unwrap()).collect();
        assert_eq!(drawn.len(), 200_000);
    }

    #[test]
    fn two_tables_do_not_give_the_same_keys() {
        let (mut a, mut b) = (KeyStream::new(), KeyStream::new());
        let same = (0..1000).filter(|_| a.next() == b.next()).count();
        assert!(same < 3, "{same} of 1000 keys agree");
    }

    #[test]
    fn every_region_is_found_while_registered_and_never_afterwards() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 8];
        let keys: Vec<_> = (0..1000).map(|_| table.insert(region(1, RW, &mut buffer)).unwrap()).collect();
        let addr = buffer.as_ptr() as u64;
        assert!(keys.iter().all(|&k| table.readable(1, k, addr, 8)));
        for (i, &key) in keys.iter().enumerate() {
            assert!(table.remove(key).is_some());
            assert!(table.remove(key).is_none());
            assert!(keys[i + 1..].iter().all(|&k| table.readable(1, k, addr, 8)));
        }
        for _ in 0..1000 {
            let _ = table.insert(region(1, RW, &mut buffer)).unwrap();
            assert!(keys.iter().all(|&k| table.find(k).is_none()));
        }
    }

    #[test]
    fn a_write_that_does_not_fit_changes_nothing() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 64];
        let middle = &mut buffer[16..48];
        let base = middle.as_ptr() as u64;
        let key = table.insert(region(1, RW, middle)).unwrap();
        let bounds = Err(Refusal(Cause::OutOfBounds));
        assert_eq!(table.place(1, key, base - 1, &[1; 4]), bounds);
        assert_eq!(table.place(1, key, base + 29, &[1; 4]), bounds);
        assert_eq!(table.place(1, key, base + 33, &[]), bounds);
        assert_eq!(table.place(1, key, u64::MAX, &[1; 4]), bounds);
        assert_eq!(table.place(2, key, base, &[1; 4]), Err(Refusal(Cause::PdMismatch)));
        assert_eq!(table.place(1, key ^ 0x8000_0000, base, &[1; 4]), Err(Refusal(Cause::RkeyUnknown)));
        assert_eq!(buffer, [0; 64]);
        assert_eq!(table.place(1, key, base + 28, &[1, 2, 3, 4]), Ok(()));
        assert_eq!(table.place(1, key, base + 32, &[]), Ok(()));
        assert_eq!(buffer[44..48], [1, 2, 3, 4]);
        assert_eq!(buffer[48..], [0; 16]);
    }

    #[test]
    fn a_region_without_the_right_is_not_written() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 8];
        let base = buffer.as_ptr() as u64;
        let key = table.insert(region(1, Access::LOCAL_WRITE, &mut buffer)).unwrap();
        assert_eq!(table.place(1, key, base, &[1]), Err(Refusal(Cause::NoRemoteWrite)));
        assert_eq!(buffer, [0; 8]);
    }
}
