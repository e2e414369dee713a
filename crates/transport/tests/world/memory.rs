//! Responder memory, byte by byte: a registered region between two guards. Every message has a slot of its own until it
//! is complete and the application reclaims the buffer.

use std::sync::LazyLock;

use openmrc_transport::AccessError;

use super::Dice;

/// The content of a message is a part of one long random text. The length of the text is prime, so that a piece of a
/// message at a wrong place never matches by chance.
const TEXT: usize = 65_521;
const MAX_PIECE: usize = 8192;
static TEXT_BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dice = Dice::new(0x7E87);
    let once: Vec<u8> = (0..TEXT).map(|_| dice.u64() as u8).collect();
    once.iter().copied().cycle().take(TEXT + MAX_PIECE).collect()
});

/// Byte that the application writes to reclaimed memory.
const POISON: u8 = 0xA5;
/// Unregistered bytes before and after the region.
const GUARD: usize = 256;

/// A piece of a message: `len` bytes from `offset` on, of the message with content `seed`.
fn piece(seed: u64, offset: u32, len: usize) -> &'static [u8] {
    let start = (seed % TEXT as u64 + u64::from(offset)) as usize % TEXT;
    &TEXT_BYTES[start..start + len]
}

/// The responder's memory for one direction of one connection.
pub struct Memory {
    bytes: Vec<u8>,
    base: u64,
    rkey: u32,
    size: usize,
    /// Slots are allocated from a ring: the next slot starts here ...
    head: usize,
    /// ... and this number of bytes before it are in use, oldest first.
    used: usize,
}

impl Memory {
    pub fn new(size: usize, base: u64, rkey: u32) -> Self {
        Memory { bytes: vec![POISON; size + 2 * GUARD], base, rkey, size, head: 0, used: 0 }
    }

    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The key becomes invalid.
    pub fn revoke(&mut self) {
        self.rkey = !self.rkey;
    }

    pub fn address(&self, slot: usize) -> u64 {
        self.base.wrapping_add(slot as u64)
    }

    /// A slot for a message of `len` bytes, and the bytes of the ring it takes; `None` if no slot is free.
    pub fn allocate(&mut self, len: usize) -> Option<(usize, usize)> {
        assert!(len <= self.size, "a message of {len} bytes never fits a region of {}", self.size);
        if self.used == 0 {
            self.head = 0;
        }
        let (slot, taken) =
            if self.head + len <= self.size { (self.head, len) } else { (0, self.size - self.head + len) };
        if self.used + taken > self.size {
            return None;
        }
        self.used += taken;
        self.head = (slot + len) % self.size.max(1);
        Some((slot, taken))
    }

    /// Frees the oldest slot, which took `taken` bytes.
    pub fn release(&mut self, taken: usize) {
        self.used -= taken;
    }

    /// Places a payload like a NIC: checks the key and the bounds, then copies.
    pub fn write(&mut self, rkey: u32, va: u64, seed: u64, offset: u32, len: u32) -> Result<(), AccessError> {
        let start = va.wrapping_sub(self.base);
        if rkey != self.rkey || start.checked_add(u64::from(len)).is_none_or(|end| end > self.size as u64) {
            return Err(AccessError);
        }
        let at = GUARD + start as usize;
        self.bytes[at..at + len as usize].copy_from_slice(piece(seed, offset, len as usize));
        Ok(())
    }

    /// Whether the `len` bytes at `slot` are the content `seed`.
    pub fn is_written(&self, slot: usize, seed: u64, len: u32) -> bool {
        let area = &self.bytes[GUARD + slot..GUARD + slot + len as usize];
        area.chunks(MAX_PIECE)
            .enumerate()
            .all(|(i, chunk)| chunk == piece(seed, (i * MAX_PIECE) as u32, chunk.len()))
    }

    /// Whether the `len` bytes at `slot` are unchanged since the application reclaimed them.
    pub fn is_untouched(&self, slot: usize, len: u32) -> bool {
        self.bytes[GUARD + slot..GUARD + slot + len as usize].iter().all(|&b| b == POISON)
    }

    /// The application reclaims `len` bytes at `slot` and overwrites them.
    pub fn reclaim(&mut self, slot: usize, len: u32) {
        self.bytes[GUARD + slot..GUARD + slot + len as usize].fill(POISON);
    }

    /// Whether both guards are unchanged.
    pub fn guards_hold(&self) -> bool {
        let (front, rest) = self.bytes.split_at(GUARD);
        front.iter().chain(&rest[self.size..]).all(|&b| b == POISON)
    }

    /// Whether the whole region holds only what the application wrote.
    pub fn is_clean(&self) -> bool {
        self.guards_hold() && self.is_untouched(0, self.size as u32)
    }
}
