//! Times of the first transmissions of the packets in flight.
//!
//! First transmissions are sent in PSN order, so their send times never decrease. Each group of packets has one stamp;
//! the stamp of the group is the lower bound, the stamp of the next group the upper bound. The group size depends on
//! the number of packets in flight: single packets at first, 16 when the window is full.

use crate::seq::Seq;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Send times are kept in units of 2^17 ps (131 ns), modulo 2^32 (9 minutes).
const STAMP_SHIFT: u32 = 17;
/// Size of a group when the window is full, as a shift.
const COARSEST: u8 = 4;

/// A coarse send time with modular comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(in crate::mrc) struct Stamp(pub u32);

impl Stamp {
    pub const fn at(time: Time) -> Stamp {
        Stamp((time.0 >> STAMP_SHIFT) as u32)
    }

    /// Units since `earlier`, negative if it is later.
    pub const fn since(self, earlier: Stamp) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Number of units in a span, rounded up.
    pub const fn units(span: Span) -> i32 {
        let units = (span.0 >> STAMP_SHIFT) + 1;
        if units > i32::MAX as u64 / 2 { i32::MAX / 2 } else { units as i32 }
    }

    /// Picoseconds before `now`.
    pub const fn age(self, now: Time) -> i64 {
        (Stamp::at(now).since(self) as i64) << STAMP_SHIFT
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct SendTimes {
    /// A ring of the stamps of the groups. It has one more than the window needs, because a full window that begins
    /// within a group ends within another.
    stamps: Box<[u32]>,
    /// Present size of a group, as a shift.
    group_shift: u8,
    /// Position of the newest group's stamp in the ring.
    newest_place: u16,
    /// No stamp exists below this PSN, even if the ring has not wrapped.
    stamped_from: Seq,
    last: Stamp,
}

impl SendTimes {
    /// Stamps for a window of `capacity` packets that begins at `first`.
    pub fn new(capacity: u64, first: Seq) -> Self {
        SendTimes {
            stamps: vec![0; (capacity >> COARSEST) as usize + 1].into(),
            group_shift: 0,
            newest_place: (capacity >> COARSEST) as u16,
            stamped_from: first,
            last: Stamp(0),
        }
    }

    /// Packet `next` is being sent; the packets from `base` on are in flight.
    #[inline(always)]
    pub fn sent(&mut self, now: Time, base: Seq, next: Seq) {
        self.last = Stamp::at(now);
        if base == next && self.group_shift > 0 {
            self.group_shift = 0;
            self.stamped_from = next;
        }
        while self.group_shift < COARSEST && self.groups(base, next) > self.stamps.len() as u64 {
            self.coarsen(base, next);
        }
        // With nothing in flight, every packet begins a group.
        if next.trailing_zeros() >= u32::from(self.group_shift) {
            self.newest_place =
                if self.newest_place as usize + 1 == self.stamps.len() { 0 } else { self.newest_place + 1 };
            self.stamps[self.newest_place as usize] = self.last.0;
        }
    }

    /// Number of groups from the base to a PSN.
    fn groups(&self, base: Seq, to: Seq) -> u64 {
        (to >> self.group_shift) - (base >> self.group_shift) + 1
    }

    /// Position of the stamp of a group that is still in the ring.
    fn place_of_group(&self, group: u64, next: Seq) -> usize {
        let back = (((next - 1) >> self.group_shift) - group) as usize;
        let newest = self.newest_place as usize;
        if back <= newest { newest - back } else { newest + self.stamps.len() - back }
    }

    /// Merges pairs of groups. The merged group keeps the first stamp: no packet of the pair was sent earlier.
    #[cold]
    fn coarsen(&mut self, base: Seq, next: Seq) {
        let (first, last) = (base >> self.group_shift, (next - 1) >> self.group_shift);
        let start = self.place_of_group(first, next);
        // Entries are written from the first on and read further ahead: none is overwritten before it was read.
        for (step, pair) in (first / 2..=last / 2).enumerate() {
            let stamp = self.stamps[self.place_of_group((pair * 2).max(first), next)];
            let place = (start + step) % self.stamps.len();
            self.stamps[place] = stamp;
        }
        self.newest_place = ((start as u64 + last / 2 - first / 2) % self.stamps.len() as u64) as u16;
        self.group_shift += 1;
        self.stamped_from = base;
    }

    /// The lower bound of the send time of a packet below `next`.
    #[inline]
    pub fn not_before(&self, seq: Seq, next: Seq) -> Stamp {
        Stamp(self.stamps[self.place_of_group(seq >> self.group_shift, next)])
    }

    /// The upper bound of the send time of a packet below `next`.
    #[inline]
    pub fn not_after(&self, seq: Seq, next: Seq) -> Stamp {
        let next_group = ((seq >> self.group_shift) + 1) << self.group_shift;
        if next_group < next { self.not_before(next_group, next) } else { self.last }
    }

    /// Whether the stamp of a packet that is no longer in flight still exists.
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

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1 << STAMP_SHIFT;

    /// Packet `seq` leaves in the unit with its number: its stamp says which packet it is of.
    fn send(times: &mut SendTimes, base: Seq, seq: Seq) {
        times.sent(Time(seq * UNIT), base, seq);
    }

    #[test]
    fn spans_are_rounded_up_to_units_and_stay_within_what_a_difference_of_stamps_can_say() {
        let longest = i32::MAX / 2;
        for (span, units) in [
            (1, 1),
            (UNIT - 1, 1),
            (UNIT + 1, 2),
            (5 * UNIT + 1, 6),
            ((longest as u64 - 2) * UNIT + 1, longest - 1),
            ((longest as u64 + 5) * UNIT, longest),
            (u64::MAX, longest),
        ] {
            assert_eq!(Stamp::units(Span(span)), units, "{span}");
        }
    }

    #[test]
    fn groups_are_no_larger_than_the_ring_of_stamps_requires() {
        for (capacity, first) in [(64, 0), (128, 3), (128, 16), (1024, 0), (1024, 21)] {
            let mut times = SendTimes::new(capacity, first);
            for last in first..first + capacity {
                send(&mut times, first, last);
                let groups = |shift: u8| (last >> shift) - (first >> shift) + 1;
                let shift = (0..COARSEST).find(|&s| groups(s) <= capacity / 16 + 1).unwrap_or(COARSEST);
                for seq in (first..=last).rev().step_by(7) {
                    let group = seq >> shift << shift;
                    let (from, to) = (group.max(first), (group + (1 << shift)).min(last));
                    let bounds = (times.not_before(seq, last + 1), times.not_after(seq, last + 1));
                    assert_eq!(bounds, (Stamp(from as u32), Stamp(to as u32)), "{seq} of {first}..={last}");
                }
            }
        }
    }

    #[test]
    fn with_nothing_in_flight_stamps_are_those_of_single_packets_again() {
        let mut times = SendTimes::new(1024, 0);
        (0..1024).for_each(|seq| send(&mut times, 0, seq));
        assert_eq!(times.not_before(1023, 1024), Stamp(1008), "groups of 16");
        (1024..1084).for_each(|seq| send(&mut times, 1024, seq));
        for seq in 1024..1084 {
            assert_eq!(times.not_before(seq, 1084), Stamp(seq as u32));
        }
        assert!(!times.remembers(1023, 1084), "its stamp was one of a group");
    }

    #[test]
    fn a_stamp_is_remembered_until_its_place_in_the_ring_is_used_again() {
        // So many packets are in flight, and so the groups have this size.
        for (capacity, first, in_flight, shift) in [(128, 10, 1, 0), (128, 10, 3, 0), (1024, 0, 100, 1)] {
            let places = capacity / 16 + 1;
            let mut times = SendTimes::new(capacity, first);
            for last in first..first + 300 {
                send(&mut times, (last + 1).saturating_sub(in_flight).max(first), last);
                if last - first < in_flight {
                    continue;
                }
                for seq in 0..=last {
                    let is_there = seq >= first && (last >> shift) - (seq >> shift) < places;
                    assert_eq!(times.remembers(seq, last + 1), is_there, "{seq} of {first}..={last}");
                    if is_there {
                        let group = Stamp((seq >> shift << shift) as u32);
                        assert_eq!(times.not_before(seq, last + 1), group, "{seq} of {first}..={last}");
                    }
                }
                assert!(!times.remembers(last + 1, last + 1), "not sent yet");
            }
        }
    }
}
