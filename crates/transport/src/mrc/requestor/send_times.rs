//! When packets in flight were first sent.
//!
//! First transmissions go out in PSN order, so their send times only ever grow: one stamp for each group of packets bounds
//! them from below (its own) and above (the next group's). Groups are as small as the stamps reach for what is in flight:
//! single packets at first, sixteen where the window is full.

use crate::seq::Seq;
use crate::time::{Span, Time};

/// Send times are kept in units of 2^17 ps (131 ns), modulo 2^32 (9 minutes).
const STAMP_SHIFT: u32 = 17;
/// Packets that share a stamp where the window is full, as a shift.
const COARSEST: u8 = 4;

/// A coarse send time with modular comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::mrc) struct Stamp(pub u32);

impl Stamp {
    pub const fn at(time: Time) -> Stamp {
        Stamp((time.0 >> STAMP_SHIFT) as u32)
    }

    /// Units from `earlier` to this, negative if it is later.
    pub const fn since(self, earlier: Stamp) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// How many units a span has, rounded up.
    pub const fn units(span: Span) -> i32 {
        let units = (span.0 >> STAMP_SHIFT) + 1;
        if units > i32::MAX as u64 / 2 { i32::MAX / 2 } else { units as i32 }
    }

    /// Picoseconds before `now`.
    pub const fn age(self, now: Time) -> i64 {
        (Stamp::at(now).since(self) as i64) << STAMP_SHIFT
    }
}

pub(super) struct SendTimes {
    /// A ring of groups' stamps: one more than fit the window, for a full one that begins within a group ends within another.
    stamps: Box<[u32]>,
    /// Packets that share a stamp now, as a shift.
    group_shift: u8,
    /// Where in the ring the newest group's stamp is.
    newest_place: u16,
    /// Below this no stamp is kept, even where the ring has not gone round.
    stamped_from: Seq,
    last: Stamp,
}

impl SendTimes {
    /// For a window of `capacity` packets that begins at `first`.
    pub fn new(capacity: u64, first: Seq) -> Self {
        SendTimes {
            stamps: vec![0; (capacity >> COARSEST) as usize + 1].into(),
            group_shift: 0,
            newest_place: (capacity >> COARSEST) as u16,
            stamped_from: first,
            last: Stamp(0),
        }
    }

    /// Packet `next` is being sent; those from `base` are in flight.
    #[inline]
    pub fn sent(&mut self, now: Time, base: Seq, next: Seq) {
        self.last = Stamp::at(now);
        if base == next && self.group_shift > 0 {
            self.group_shift = 0;
            self.stamped_from = next;
        }
        while self.group_shift < COARSEST && self.groups(base, next) > self.stamps.len() as u64 {
            self.coarsen(base, next);
        }
        // Where nothing is in flight, every packet begins a group.
        if next.trailing_zeros() >= u32::from(self.group_shift) {
            self.newest_place =
                if self.newest_place as usize + 1 == self.stamps.len() { 0 } else { self.newest_place + 1 };
            self.stamps[self.newest_place as usize] = self.last.0;
        }
    }

    /// Groups from the base to a PSN.
    fn groups(&self, base: Seq, to: Seq) -> u64 {
        (to >> self.group_shift) - (base >> self.group_shift) + 1
    }

    /// Where the stamp of a group is that is still in the ring.
    fn place_of_group(&self, group: u64, next: Seq) -> usize {
        let back = (((next - 1) >> self.group_shift) - group) as usize;
        let newest = self.newest_place as usize;
        if back <= newest { newest - back } else { newest + self.stamps.len() - back }
    }

    /// Makes one group of two. What is kept is the first one's stamp: no packet of both was sent before.
    fn coarsen(&mut self, base: Seq, next: Seq) {
        let (first, last) = (base >> self.group_shift, (next - 1) >> self.group_shift);
        let start = self.place_of_group(first, next);
        // Places are written from the first on and read further ahead: none is overwritten before it was read.
        for (step, pair) in (first / 2..=last / 2).enumerate() {
            let stamp = self.stamps[self.place_of_group((pair * 2).max(first), next)];
            let place = (start + step) % self.stamps.len();
            self.stamps[place] = stamp;
        }
        self.newest_place = ((start as u64 + last / 2 - first / 2) % self.stamps.len() as u64) as u16;
        self.group_shift += 1;
        self.stamped_from = base;
    }

    /// The earliest that a packet below `next` can have been sent.
    #[inline]
    pub fn not_before(&self, seq: Seq, next: Seq) -> Stamp {
        Stamp(self.stamps[self.place_of_group(seq >> self.group_shift, next)])
    }

    /// The latest that a packet below `next` can have been sent.
    #[inline]
    pub fn not_after(&self, seq: Seq, next: Seq) -> Stamp {
        let next_group = ((seq >> self.group_shift) + 1) << self.group_shift;
        if next_group < next { self.not_before(next_group, next) } else { self.last }
    }

    /// Whether the stamp of a packet that is no longer in flight is still there.
    pub fn remembers(&self, seq: Seq, next: Seq) -> bool {
        let groups = || ((next - 1) >> self.group_shift) - (seq >> self.group_shift);
        (self.stamped_from..next).contains(&seq) && groups() < self.stamps.len() as u64
    }

    /// Loads the stamps of the newest packet, and of the oldest in flight, into the cache.
    pub fn prefetch(&self, base: Seq, next: Seq) {
        prefetch_index::prefetch_index(&self.stamps, self.newest_place as usize);
        prefetch_index::prefetch_index(&self.stamps, self.place_of_group(base >> self.group_shift, next));
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.stamps)
    }
}
