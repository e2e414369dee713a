//! The registered memory of a context, as the engine sees it: found by key, checked for rights and bounds, written to
//! (docs/spec/transport.md, "Responder").
//!
//! A region's key is secret: 32 bits that cannot be guessed and are never used again, even after deregistration. Keys
//! are an encrypted counter; a region takes the first key whose low bits name a free slot, so a lookup is one array
//! access.

use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use openmrc_sockets::memory::try_copy;
use openmrc_transport::AccessError;

use crate::error::{Error, Result};
use crate::piece::Piece;
use crate::stats::Cause;

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

/// One registered range.
pub(crate) struct Region {
    key: u32,
    pd: u32,
    access: Access,
    addr: u64,
    len: u64,
    /// A file is mapped there, which may become shorter: a plain access beyond its end would end the process, so the
    /// kernel copies.
    mapped_file: bool,
    /// Keeps the memory alive while it is registered.
    owner: Option<Box<dyn Any + Send>>,
}

impl Region {
    pub fn new(pd: u32, access: Access, addr: u64, len: u64, owner: Box<dyn Any + Send>) -> Self {
        Region { key: 0, pd, access, addr, len, mapped_file: false, owner: Some(owner) }
    }

    /// The region, of memory to which a file is mapped if `mapped_file`.
    pub fn of_file(self, mapped_file: bool) -> Self {
        Region { mapped_file, ..self }
    }

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

    /// Adds a region; returns its key.
    pub fn insert(&mut self, mut region: Region) -> Result<u32> {
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

    /// Where those bytes lie; `None` if they may not be read, or their file has become shorter. They may be used while
    /// the engine's lock is held: deregistration takes it.
    #[inline]
    pub fn source(&self, pd: u32, lkey: u32, addr: u64, len: u32) -> Option<Piece> {
        let region = self.find(lkey).filter(|r| r.pd == pd && r.covers(addr, u64::from(len)))?;
        let from = ptr::with_exposed_provenance::<u8>(addr as usize);
        if region.mapped_file {
            let mut bytes: Arc<[u8]> = Arc::from(vec![0; len as usize]);
            let to = Arc::get_mut(&mut bytes)?.as_mut_ptr();
            // SAFETY: the range lies in a region, and `bytes` has as many.
            return unsafe { try_copy(from, to, len as usize) }.then(|| Piece::of_copy(bytes));
        }
        // SAFETY: the range lies in a region whose registrant promised that it is readable until it is deregistered.
        Some(unsafe { Piece::of_memory(from, len as usize) })
    }

    /// Writes the payload of a remote write to memory, all of it or nothing; of a file that has become shorter, what is
    /// still there.
    #[inline]
    pub fn write(&self, pd: u32, rkey: u32, va: u64, payload: &[u8]) -> std::result::Result<(), Refusal> {
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
            if region.mapped_file {
                // SAFETY: as below.
                let placed = unsafe { try_copy(payload.as_ptr(), dest, payload.len()) };
                return if placed { Ok(()) } else { Err(Refusal(Cause::OutOfBounds)) };
            }
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
    /// Four rounds make a strong permutation (Luby, Rackoff 1988). The cost of more does not matter at registration.
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
        Region {
            key: 0,
            pd,
            access,
            addr,
            len: buffer.len() as u64,
            mapped_file: false,
            owner: Some(Box::new(())),
        }
    }

    const RW: Access = Access(3);

    #[test]
    fn rights_are_bits() {
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
            assert_eq!(Access::from_bits(a).unwrap().bits(), a);
            assert_eq!(Access(a).with(Access(b)), Access(a | b));
            assert_eq!(Access(a).allows(Access(b)), (0..2).all(|bit| b & 1 << bit == 0 || a & 1 << bit != 0));
        }
        assert!((4..=u8::MAX).all(|bits| Access::from_bits(bits).is_none()));
        let all = Access::LOCAL_READ.with(Access::LOCAL_WRITE).with(Access::REMOTE_WRITE);
        assert_eq!((Access::LOCAL_WRITE.bits(), Access::REMOTE_WRITE.bits(), all.bits()), (1, 2, 3));
    }

    #[test]
    fn a_region_covers_what_neither_begins_before_it_nor_ends_after_it() {
        for (first, n) in (0..6).flat_map(|first| (0..6).map(move |n| (first, n))) {
            let region = Region::new(1, RW, first, n, Box::new(()));
            for (addr, len) in (0..14).flat_map(|addr| (0..14).map(move |len| (addr, len))) {
                let inside = addr >= first && addr + len <= first + n;
                assert_eq!(region.covers(addr, len), inside, "{addr} {len} in {first} {n}");
            }
            assert!(!region.covers(u64::MAX, 1) && !region.covers(first, u64::MAX));
        }
    }

    #[test]
    fn slots_are_doubled_when_half_of_them_are_in_use_and_not_before() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 8];
        for _ in 0..1000 {
            let key = table.insert(region(1, RW, &mut buffer)).unwrap();
            assert!(table.remove(key).is_some() && table.remove(key).is_none());
        }
        assert_eq!(table.slots.len(), 64);
        for used in 1..=600usize {
            table.insert(region(1, RW, &mut buffer)).unwrap();
            assert_eq!(table.slots.len(), (2 * used).next_power_of_two().max(64));
        }
        assert_eq!(table.clear().len(), 600);
        assert!(table.slots.iter().all(Option::is_none));
    }

    /// The number whose key is zero: the rounds backwards.
    fn number_of_zero(keys: &KeyStream) -> u32 {
        let (mut left, mut right) = (0u16, 0u16);
        for round in (0..KeyStream::ROUNDS).rev() {
            (left, right) = (right ^ keys.secret.hash_one((round, left)) as u16, left);
        }
        u32::from(left) << 16 | u32::from(right)
    }

    #[test]
    fn zero_is_no_key() {
        let mut keys = KeyStream::new();
        let number = number_of_zero(&keys);
        assert_eq!(keys.encrypt(number), 0);
        keys.counter = Some(number);
        let next = number.checked_add(1).map(|number| keys.encrypt(number));
        assert_eq!(keys.next(), next);
    }

    #[test]
    fn after_the_last_key_there_is_none() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 8];
        table.keys.counter = Some(u32::MAX);
        while table.keys.encrypt(u32::MAX) == 0 {
            table.keys.secret = RandomState::new();
        }
        assert!(table.insert(region(1, RW, &mut buffer)).is_ok());
        assert!(table.insert(region(1, RW, &mut buffer)).is_err());
    }

    /// Two pages of a file that is one page long. They are never unmapped.
    fn half_a_file() -> *mut u8 {
        // SAFETY: a new file and a new mapping, of which only the kernel reads and writes the second page.
        unsafe {
            let file = libc::memfd_create(c"memory".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, 4096), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let at = libc::mmap(ptr::null_mut(), 8192, access, libc::MAP_SHARED, file, 0);
            assert_ne!(at, libc::MAP_FAILED);
            at.cast()
        }
    }

    #[test]
    fn beyond_the_end_of_a_mapped_file_nothing_is_sent_and_writes_are_refused() {
        let mut table = MemoryTable::new();
        let base = half_a_file().expose_provenance() as u64;
        let file = Region::new(1, RW, base, 8192, Box::new(())).of_file(true);
        let key = table.insert(file).unwrap();
        assert_eq!(table.write(1, key, base + 4093, &[7, 8, 9]), Ok(()));
        assert_eq!(table.write(1, key, base + 4096, &[1]), Err(Refusal(Cause::OutOfBounds)));
        let mut found = [0; 3];
        let piece = table.source(1, key, base + 4093, 3).unwrap();
        assert!(piece.staged().is_some());
        piece.copy_to(&mut found);
        assert_eq!(found, [7, 8, 9]);
        assert!(table.source(1, key, base + 4093, 4).is_none());
        assert!(!Region::new(1, RW, base, 8192, Box::new(())).of_file(false).mapped_file);
    }

    #[test]
    fn what_is_sent_lies_where_it_is_registered() {
        let mut table = MemoryTable::new();
        let mut buffer = [1, 2, 3, 4, 5];
        let base = buffer.as_ptr() as u64;
        let key = table.insert(region(1, RW, &mut buffer)).unwrap();
        let piece = table.source(1, key, base + 1, 3).unwrap();
        assert!(piece.staged().is_none());
        assert_eq!((piece.iovec().iov_base as u64, piece.iovec().iov_len), (base + 1, 3));
    }

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
        assert_eq!(table.write(1, key, base - 1, &[1; 4]), bounds);
        assert_eq!(table.write(1, key, base + 29, &[1; 4]), bounds);
        assert_eq!(table.write(1, key, base + 33, &[]), bounds);
        assert_eq!(table.write(1, key, u64::MAX, &[1; 4]), bounds);
        assert_eq!(table.write(2, key, base, &[1; 4]), Err(Refusal(Cause::PdMismatch)));
        assert_eq!(table.write(1, key ^ 0x8000_0000, base, &[1; 4]), Err(Refusal(Cause::RkeyUnknown)));
        assert_eq!(buffer, [0; 64]);
        assert_eq!(table.write(1, key, base + 28, &[1, 2, 3, 4]), Ok(()));
        assert_eq!(table.write(1, key, base + 32, &[]), Ok(()));
        assert_eq!(buffer[44..48], [1, 2, 3, 4]);
        assert_eq!(buffer[48..], [0; 16]);
    }

    #[test]
    fn a_send_reads_regions_of_its_own_protection_domain_only() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 64];
        let base = buffer.as_ptr() as u64;
        let key = table.insert(region(1, RW, &mut buffer)).unwrap();
        assert!(table.readable(1, key, base, 64));
        assert!(!table.readable(2, key, base, 64));
        assert!(!table.readable(1, key ^ 1, base, 64));
        assert!(!table.readable(1, key, base, 65) && !table.readable(1, key, base - 1, 1));
        assert!(table.source(1, key, base, 64).is_some());
        assert!(table.source(2, key, base, 64).is_none());
        assert!(table.source(1, key ^ 1, base, 64).is_none());
        assert!(table.source(1, key, base, 65).is_none() && table.source(1, key, base - 1, 1).is_none());
    }

    #[test]
    fn a_region_without_the_right_is_not_written() {
        let mut table = MemoryTable::new();
        let mut buffer = [0u8; 8];
        let base = buffer.as_ptr() as u64;
        let key = table.insert(region(1, Access::LOCAL_WRITE, &mut buffer)).unwrap();
        assert_eq!(table.write(1, key, base, &[1]), Err(Refusal(Cause::NoRemoteWrite)));
        assert_eq!(buffer, [0; 8]);
    }
}
