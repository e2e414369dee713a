//! Responder memory, byte by byte: a registered region between two guards, in which every message has a place of
//! its own until it is complete and the application takes the buffer back.

use std::sync::LazyLock;

use openmrc_transport::AccessError;

use super::Dice;

/// Messages are windows into one long random text. Its length is prime, so that a piece of a message that lands
/// in the wrong place never happens to be right.
const TEXT: usize = 65_521;
const LONGEST_PIECE: usize = 8192;
static TEXT_BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dice = Dice::new(0x7E87);
    let once: Vec<u8> = (0..TEXT).map(|_| dice.u64() as u8).collect();
    once.iter().copied().cycle().take(TEXT + LONGEST_PIECE).collect()
});

/// What the application leaves in memory it has taken back.
const POISON: u8 = 0xA5;
/// Unregistered bytes before and after the region.
const GUARD: usize = 256;

/// A piece of a message: `len` bytes from `offset`, of the message written with `pen`.
fn piece(pen: u64, offset: u32, len: usize) -> &'static [u8] {
    let start = (pen % TEXT as u64 + u64::from(offset)) as usize % TEXT;
    &TEXT_BYTES[start..start + len]
}

/// The responder's memory for one direction of one connection.
pub struct Memory {
    bytes: Vec<u8>,
    base: u64,
    rkey: u32,
    size: usize,
    /// Slots are handed out in a circle: the next goes here ...
    head: usize,
    /// ... and these bytes before it are in use, oldest first.
    used: usize,
}

impl Memory {
    pub fn new(size: usize, base: u64, rkey: u32) -> Self {
        Memory { bytes: vec![POISON; size + 2 * GUARD], base, rkey, size, head: 0, used: 0 }
    }

    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The key is no longer good for anything.
    pub fn revoke(&mut self) {
        self.rkey = !self.rkey;
    }

    pub fn address(&self, slot: usize) -> u64 {
        self.base.wrapping_add(slot as u64)
    }

    /// A place for a message of `len` bytes, and how much of the circle it takes; `None` if there is none now.
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

    /// The oldest place, which took `taken`, is free again.
    pub fn release(&mut self, taken: usize) {
        self.used -= taken;
    }

    /// What a NIC does with a payload: check the key and the bounds, copy.
    pub fn place(&mut self, rkey: u32, va: u64, pen: u64, offset: u32, len: u32) -> Result<(), AccessError> {
        let start = va.wrapping_sub(self.base);
        if rkey != self.rkey || start.checked_add(u64::from(len)).is_none_or(|end| end > self.size as u64) {
            return Err(AccessError);
        }
        let at = GUARD + start as usize;
        self.bytes[at..at + len as usize].copy_from_slice(piece(pen, offset, len as usize));
        Ok(())
    }

    /// Whether `len` bytes at `slot` are what `pen` wrote.
    pub fn is_written(&self, slot: usize, pen: u64, len: u32) -> bool {
        let area = &self.bytes[GUARD + slot..GUARD + slot + len as usize];
        area.chunks(LONGEST_PIECE)
            .enumerate()
            .all(|(i, chunk)| chunk == piece(pen, (i * LONGEST_PIECE) as u32, chunk.len()))
    }

    /// Whether nobody has touched `len` bytes at `slot` since the application took them back.
    pub fn is_untouched(&self, slot: usize, len: u32) -> bool {
        self.bytes[GUARD + slot..GUARD + slot + len as usize].iter().all(|&b| b == POISON)
    }

    /// The application takes `len` bytes at `slot` back and uses them for something else.
    pub fn take_back(&mut self, slot: usize, len: u32) {
        self.bytes[GUARD + slot..GUARD + slot + len as usize].fill(POISON);
    }

    /// Whether both guards are as they were.
    pub fn guards_hold(&self) -> bool {
        let (front, rest) = self.bytes.split_at(GUARD);
        front.iter().chain(&rest[self.size..]).all(|&b| b == POISON)
    }

    /// Whether nothing in the region is anything but what the application left there.
    pub fn is_clean(&self) -> bool {
        self.guards_hold() && self.is_untouched(0, self.size as u32)
    }
}
