//! Layout of the memory that a rank shares with the others: a head, two counters per peer and lane, and a ring of
//! slots per peer and lane, into which the peer writes.

use std::sync::atomic::{AtomicU32, AtomicU64};

use openmrc_schedule::{Rank, SLOT};

use crate::header::HEADER_LEN;

/// Messages of collective operations and point-to-point messages have rings of their own: one does not wait for the
/// other.
pub const LANES: usize = 2;
/// The lane of collective operations.
pub const COLLECTIVE: usize = 0;
/// The lane of point-to-point messages.
pub const P2P: usize = 1;

/// Slots of a ring.
pub const SLOTS: usize = 8;
/// Most bytes of a message that is copied into a slot through shared memory: the slots in use stay in the second
/// level of cache of both ends. Over the network each message has a fixed cost, so it fills its slot.
pub const COPIED_MOST: usize = 128 << 10;
/// Distance of slots.
pub const STRIDE: usize = HEADER_LEN + SLOT;
/// Bytes of a ring.
pub const RING: usize = SLOTS * STRIDE;

/// From this size on, a message to a rank of the same host that is stored without a reduction stays in the sender's
/// memory: the receiver reads it there, which saves one of two copies.
pub const READ_LEAST: usize = 64 << 10;
/// Largest size of such a message. A longer one would delay ranks behind the receiver.
pub const READ_MOST: usize = 1 << 20;

/// Bytes of the secret at the beginning, by which a mapping is recognised.
pub const NONCE: usize = 16;
const SLEEPING: usize = 64;
const ABORTED: usize = 128;
const LINES: usize = 4096;
const LINE: usize = 64;

/// A segment of one rank among `ranks`.
#[derive(Clone, Copy)]
pub struct Layout {
    ranks: usize,
}

impl Layout {
    pub const fn new(ranks: usize) -> Layout {
        Layout { ranks }
    }

    const fn rings(self) -> usize {
        (LINES + LANES * self.ranks * 2 * LINE).next_multiple_of(4096)
    }

    /// Bytes of the segment.
    pub const fn len(self) -> usize {
        self.rings() + LANES * self.ranks * RING
    }

    /// First byte of the ring into which `peer` writes.
    pub const fn ring(self, lane: usize, peer: Rank) -> usize {
        self.rings() + (peer * LANES + lane) * RING
    }

    const fn line(self, lane: usize, peer: Rank, which: usize) -> usize {
        LINES + ((lane * self.ranks + peer) * 2 + which) * LINE
    }

    /// Messages that `peer` has written.
    ///
    /// # Safety
    /// `base` is the first byte of a mapped segment of this layout that outlives the result.
    pub unsafe fn written<'a>(self, base: *mut u8, lane: usize, peer: Rank) -> &'a AtomicU64 {
        // SAFETY: in the segment and aligned; only ever accessed atomically.
        unsafe { AtomicU64::from_ptr(base.add(self.line(lane, peer, 0)).cast()) }
    }

    /// Whether `peer` can read the memory of this segment's owner.
    ///
    /// # Safety
    /// As [`Layout::written`].
    pub unsafe fn readable<'a>(self, base: *mut u8, peer: Rank) -> &'a AtomicU32 {
        // SAFETY: behind the counter of written messages, in its line.
        unsafe { AtomicU32::from_ptr(base.add(self.line(COLLECTIVE, peer, 0) + 8).cast()) }
    }

    /// Messages of `peer` that this segment's owner has taken.
    ///
    /// # Safety
    /// As [`Layout::written`].
    pub unsafe fn taken<'a>(self, base: *mut u8, lane: usize, peer: Rank) -> &'a AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(base.add(self.line(lane, peer, 1)).cast()) }
    }

    /// Whether the owner sleeps and wants its doorbell rung.
    ///
    /// # Safety
    /// As [`Layout::written`].
    pub unsafe fn sleeping<'a>(base: *mut u8) -> &'a AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(base.add(SLEEPING).cast()) }
    }

    /// Code of an abort that a peer has told, or 0.
    ///
    /// # Safety
    /// As [`Layout::written`].
    pub unsafe fn aborted<'a>(base: *mut u8) -> &'a AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(base.add(ABORTED).cast()) }
    }
}
