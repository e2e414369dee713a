//! What the requestor knows of each packet in flight: which path it took, when, and whether it has arrived.
//!
//! Two bits a packet hold its state, one byte its path. First transmissions go out in PSN order, so their send times
//! only ever grow: one stamp for each group of packets bounds them from below (its own) and above (the next group's). Groups
//! are as small as the stamps reach for what is in flight: single packets at first, sixteen where the window is full.
//! Retransmissions are out of order and keep a log with a stamp each. Together this is two and a quarter bytes a packet,
//! which is what lets a NIC hold the state of every queue pair.

use openmrc_wire::Psn;
use prefetch_index::prefetch_index;

use super::paths::EvIndex;
use crate::time::Time;

/// A PSN that does not wrap: its low 24 bits are what goes on the wire.
pub(super) type Seq = u64;

/// Send times are kept in units of 2^17 ps (131 ns), modulo 2^32 (9 minutes).
const STAMP_SHIFT: u32 = 17;
/// Packets that share a stamp where the window is full, as a shift.
const COARSEST: u32 = 4;

/// A coarse send time with modular comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp(u32);

impl Stamp {
    pub(super) const fn at(time: Time) -> Stamp {
        Stamp((time.0 >> STAMP_SHIFT) as u32)
    }

    /// Units from `earlier` to this, negative if it is later.
    pub(super) const fn since(self, earlier: Stamp) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// How many units a span has, rounded up.
    pub(super) const fn units(span: crate::time::Span) -> i32 {
        let units = (span.0 >> STAMP_SHIFT) + 1;
        if units > i32::MAX as u64 / 2 { i32::MAX / 2 } else { units as i32 }
    }

    /// The middle of the unit, as picoseconds before `now`.
    pub(super) const fn age(self, now: Time) -> i64 {
        (Stamp::at(now).since(self) as i64) << STAMP_SHIFT
    }
}

/// State of one packet between the cumulative point and the highest sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flight {
    /// Sent once, not heard of.
    Sent,
    /// Arrived.
    Acked,
    /// Taken for lost, to be sent again.
    Lost,
    /// Sent again, not heard of.
    Resent,
}

/// A retransmission, in six bytes.
#[derive(Clone, Copy)]
struct Resend {
    /// Low bits of the PSN; the window is smaller than they can count.
    seq: u16,
    /// Low and high half of the stamp.
    stamp: [u16; 2],
}

impl Resend {
    const fn stamp(self) -> Stamp {
        Stamp(self.stamp[0] as u32 | (self.stamp[1] as u32) << 16)
    }
}

/// States of 64 packets, two bits each: Sent 00, Acked 10, Lost 01, Resent 11 (`done`, `again`).
#[derive(Clone, Copy, Default)]
struct Flights {
    done: u64,
    again: u64,
}

pub(super) struct Window {
    /// Lowest PSN that is not known to have arrived.
    base: Seq,
    /// Next PSN to send for the first time.
    next: Seq,
    mask: u64,
    paths: Box<[EvIndex]>,
    flights: Box<[Flights]>,
    /// A ring of groups' stamps: one more than fit the window, for a full one that begins within a group ends within another.
    stamps: Box<[u32]>,
    /// Packets that share a stamp now, as a shift.
    group_shift: u32,
    /// Where in the ring the newest group's stamp is.
    newest_place: u32,
    /// Below this no stamp is kept, where the ring has not gone round anyway.
    stamped_from: Seq,
    last_stamp: Stamp,
    lost: u32,
    /// Packets that are Sent or Resent.
    flying: u32,
    /// No PSN below this is Lost.
    lost_hint: Seq,
    resends: Box<[Resend]>,
    resend_head: u32,
    resend_len: u32,
}

impl Window {
    /// A window for up to `psns` packets in flight, beginning at `first`.
    pub(super) fn new(psns: u32, first: Seq) -> Self {
        let capacity = u64::from(psns.next_power_of_two().max(64));
        let words = capacity as usize / 64;
        Window {
            base: first,
            next: first,
            mask: capacity - 1,
            paths: vec![0; capacity as usize].into(),
            flights: vec![Flights::default(); words].into(),
            stamps: vec![0; (capacity >> COARSEST) as usize + 1].into(),
            group_shift: 0,
            newest_place: (capacity >> COARSEST) as u32,
            stamped_from: first,
            last_stamp: Stamp(0),
            lost: 0,
            flying: 0,
            lost_hint: first,
            resends: vec![Resend { seq: 0, stamp: [0; 2] }; (capacity as usize / 16).max(16)].into(),
            resend_head: 0,
            resend_len: 0,
        }
    }

    pub(super) fn base(&self) -> Seq {
        self.base
    }

    pub(super) fn next(&self) -> Seq {
        self.next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.base == self.next
    }

    pub(super) fn contains(&self, seq: Seq) -> bool {
        (self.base..self.next).contains(&seq)
    }

    /// Packets on their way: sent, not heard of, and not taken for lost.
    pub(super) fn flying(&self) -> u32 {
        self.flying
    }

    pub(super) fn lost(&self) -> u32 {
        self.lost
    }

    /// The PSN on the wire to the one nearest the window.
    pub(super) fn expand(&self, psn: Psn) -> Seq {
        self.base.wrapping_add_signed(i64::from(psn.distance(wire(self.base))))
    }

    pub(super) fn state(&self, seq: Seq) -> Flight {
        let (word, bit) = self.place(seq);
        let Flights { done, again } = self.flights[word];
        match (done >> bit & 1, again >> bit & 1) {
            (0, 0) => Flight::Sent,
            (1, 0) => Flight::Acked,
            (0, _) => Flight::Lost,
            _ => Flight::Resent,
        }
    }

    fn place(&self, seq: Seq) -> (usize, u32) {
        let slot = seq & self.mask;
        (slot as usize / 64, slot as u32 % 64)
    }

    fn set(&mut self, seq: Seq, done: bool, again: bool) {
        let (word, bit) = self.place(seq);
        let flights = &mut self.flights[word];
        flights.done = flights.done & !(1 << bit) | u64::from(done) << bit;
        flights.again = flights.again & !(1 << bit) | u64::from(again) << bit;
    }

    /// The path a packet took last.
    pub(super) fn path(&self, seq: Seq) -> EvIndex {
        self.paths[(seq & self.mask) as usize]
    }

    /// The path of a packet that is still in the ring, though perhaps no longer in flight.
    pub(super) fn remembered_path(&self, seq: Seq) -> Option<EvIndex> {
        (seq < self.next && self.next - seq <= self.mask).then(|| self.path(seq))
    }

    /// The next new packet is on its way.
    pub(super) fn sent(&mut self, now: Time, path: EvIndex) -> Seq {
        let seq = self.next;
        self.paths[(seq & self.mask) as usize] = path;
        self.set(seq, false, false);
        self.last_stamp = Stamp::at(now);
        if self.is_empty() && self.group_shift > 0 {
            self.group_shift = 0;
            self.stamped_from = seq;
        }
        while self.group_shift < COARSEST && self.groups_to(seq) > self.stamps.len() as u64 {
            self.coarsen();
        }
        // Where nothing is in flight, every packet begins a group.
        if seq.trailing_zeros() >= self.group_shift {
            self.newest_place =
                if self.newest_place as usize + 1 == self.stamps.len() { 0 } else { self.newest_place + 1 };
            self.stamps[self.newest_place as usize] = self.last_stamp.0;
        }
        self.next += 1;
        self.flying += 1;
        seq
    }

    /// Groups from the base to a PSN.
    fn groups_to(&self, seq: Seq) -> u64 {
        (seq >> self.group_shift) - (self.base >> self.group_shift) + 1
    }

    /// Where the stamp of a group is that is still in the ring.
    fn place_of_group(&self, group: u64) -> usize {
        let back = (((self.next - 1) >> self.group_shift) - group) as usize;
        let newest = self.newest_place as usize;
        if back <= newest { newest - back } else { newest + self.stamps.len() - back }
    }

    /// Makes one group of two. What is kept is the first one's stamp: no packet of both was sent before.
    fn coarsen(&mut self) {
        let (first, last) = (self.base >> self.group_shift, (self.next - 1) >> self.group_shift);
        let start = self.place_of_group(first);
        // Places are written from the first on and read further ahead: none is overwritten before it was read.
        for (step, pair) in (first / 2..=last / 2).enumerate() {
            let stamp = self.stamps[self.place_of_group((pair * 2).max(first))];
            let place = (start + step) % self.stamps.len();
            self.stamps[place] = stamp;
        }
        self.newest_place = ((start as u64 + last / 2 - first / 2) % self.stamps.len() as u64) as u32;
        self.group_shift += 1;
        self.stamped_from = self.base;
    }

    /// The earliest a first transmission can have been sent.
    pub(super) fn sent_not_before(&self, seq: Seq) -> Stamp {
        Stamp(self.stamps[self.place_of_group(seq >> self.group_shift)])
    }

    /// The same for a packet that may no longer be in flight, as long as its stamp is still there.
    pub(super) fn remembered_sent(&self, seq: Seq) -> Option<Stamp> {
        let reaches = |seq: Seq| {
            let groups = ((self.next - 1) >> self.group_shift) - (seq >> self.group_shift);
            groups < self.stamps.len() as u64
        };
        (self.contains(seq) || (self.stamped_from..self.next).contains(&seq) && reaches(seq))
            .then(|| self.sent_not_before(seq))
    }

    /// The latest a first transmission can have been sent.
    pub(super) fn sent_not_after(&self, seq: Seq) -> Stamp {
        let next_group = ((seq >> self.group_shift) + 1) << self.group_shift;
        if next_group < self.next { self.sent_not_before(next_group) } else { self.last_stamp }
    }

    /// When a packet was sent last, if it is on its second or later transmission.
    pub(super) fn resent_at(&self, seq: Seq) -> Option<Stamp> {
        (0..self.resend_len).rev().map(|i| self.resend(i)).find(|r| r.seq == seq as u16).map(Resend::stamp)
    }

    fn resend(&self, i: u32) -> Resend {
        self.resends[(self.resend_head + i) as usize % self.resends.len()]
    }

    /// Whether another retransmission can be kept track of.
    pub(super) fn can_resend(&self) -> bool {
        (self.resend_len as usize) < self.resends.len()
    }

    /// The oldest packet that has to be sent again.
    pub(super) fn next_lost(&mut self) -> Option<Seq> {
        if self.lost == 0 {
            return None;
        }
        let mut seq = self.lost_hint.max(self.base);
        while seq < self.next {
            let (word, bit) = self.place(seq);
            let Flights { done, again } = self.flights[word];
            let lost = (!done & again) >> bit;
            if lost != 0 {
                let found = seq + u64::from(lost.trailing_zeros());
                if found < self.next {
                    self.lost_hint = found;
                    return Some(found);
                }
            }
            seq += u64::from(64 - bit);
        }
        None
    }

    /// A lost packet is on its way again.
    pub(super) fn resent(&mut self, now: Time, seq: Seq, path: EvIndex) {
        self.paths[(seq & self.mask) as usize] = path;
        self.set(seq, true, true);
        self.lost -= 1;
        self.flying += 1;
        let Stamp(stamp) = Stamp::at(now);
        let tail = (self.resend_head + self.resend_len) as usize % self.resends.len();
        self.resends[tail] = Resend { seq: seq as u16, stamp: [stamp as u16, (stamp >> 16) as u16] };
        self.resend_len += 1;
    }

    /// A packet in flight is taken for lost.
    pub(super) fn mark_lost(&mut self, seq: Seq) {
        self.set(seq, false, true);
        self.lost += 1;
        self.flying -= 1;
        self.lost_hint = self.lost_hint.min(seq);
    }

    /// A packet has arrived; gives its state until now.
    pub(super) fn mark_acked(&mut self, seq: Seq) -> Flight {
        let was = self.state(seq);
        match was {
            Flight::Lost => self.lost -= 1,
            Flight::Sent | Flight::Resent => self.flying -= 1,
            Flight::Acked => {}
        }
        self.set(seq, true, false);
        was
    }

    /// Everything below `base` has been marked as arrived and may be forgotten.
    pub(super) fn advance(&mut self, base: Seq) {
        self.base = base;
        self.lost_hint = self.lost_hint.max(base);
    }

    /// States of the 64 PSNs from `from`.
    fn flights64(&self, from: Seq) -> Flights {
        let (word, bit) = self.place(from);
        let low = self.flights[word];
        if bit == 0 {
            return low;
        }
        let high = self.flights[(word + 1) % self.flights.len()];
        let join = |low: u64, high: u64| low >> bit | high << (64 - bit);
        Flights { done: join(low.done, high.done), again: join(low.again, high.again) }
    }

    /// Of the 64 PSNs from `from`, those that are in the window and not yet known to have arrived.
    pub(super) fn unacked64(&self, from: Seq) -> u64 {
        let Flights { done, again } = self.flights64(from);
        !(done & !again) & self.inside64(from)
    }

    /// Of the 64 PSNs from `from`, those that are in the window, sent once and not heard of.
    pub(super) fn fresh64(&self, from: Seq) -> u64 {
        let Flights { done, again } = self.flights64(from);
        !done & !again & self.inside64(from)
    }

    fn inside64(&self, from: Seq) -> u64 {
        let low = self.base.saturating_sub(from).min(64) as u32;
        let high = self.next.saturating_sub(from).min(64) as u32;
        let ones = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        ones(high) & !ones(low)
    }

    /// Retransmissions in the order in which they were sent: drops the settled ones, then gives the oldest.
    pub(super) fn oldest_resend(&mut self) -> Option<(Seq, Stamp)> {
        self.forget_settled_resends();
        (self.resend_len > 0).then(|| {
            let resend = self.resend(0);
            (self.widen(resend.seq), resend.stamp())
        })
    }

    /// The oldest retransmission is settled.
    pub(super) fn pop_resend(&mut self) {
        self.resend_head = (self.resend_head + 1) % self.resends.len() as u32;
        self.resend_len -= 1;
    }

    /// Drops the log's oldest entries as far as they are settled.
    pub(super) fn forget_settled_resends(&mut self) {
        while self.resend_len > 0 {
            let oldest = self.resend(0);
            let seq = self.widen(oldest.seq);
            // A packet sent again and again has an entry for each time; only the latest is about what flies now.
            if self.contains(seq)
                && self.state(seq) == Flight::Resent
                && self.resent_at(seq) == Some(oldest.stamp())
            {
                break;
            }
            self.pop_resend();
        }
    }

    fn widen(&self, low: u16) -> Seq {
        self.base.wrapping_add_signed(i64::from(low.wrapping_sub(self.base as u16) as i16))
    }

    /// Loads what the next packet to be sent, and the next news of the oldest, will need.
    pub(super) fn prefetch(&self) {
        let (oldest, next) = (self.place(self.base), self.place(self.next));
        prefetch_index(&self.flights, oldest.0);
        prefetch_index(&self.flights, next.0);
        prefetch_index(&self.paths, oldest.0 * 64);
        prefetch_index(&self.paths, next.0 * 64);
        prefetch_index(&self.stamps, self.newest_place as usize);
        prefetch_index(&self.stamps, self.place_of_group(self.base >> self.group_shift));
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.paths)
            + size_of_val(&*self.flights)
            + size_of_val(&*self.stamps)
            + size_of_val(&*self.resends)
    }
}

/// A PSN as it goes on the wire.
pub(super) const fn wire(seq: Seq) -> Psn {
    Psn::new(seq as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn send_times_are_bounded_by_the_stamps_of_the_groups() {
        for (first, psns) in (0..40).flat_map(|first| [128, 256, 1024].map(|psns| (first, psns))) {
            let mut w = Window::new(psns, first);
            let time = |seq: Seq| Time(1 << 30) + Span::from_nanos(seq * 300);
            // Full, and moved on in steps that do not respect groups.
            for step in [0, 1, 7, 16, 40, 3, 500, 999] {
                w.advance((w.base() + step).min(w.next()));
                while w.next() - w.base() < u64::from(psns) {
                    w.sent(time(w.next()), 0);
                }
                for seq in w.base()..w.next() {
                    let stamp = Stamp::at(time(seq));
                    assert!(stamp.since(w.sent_not_before(seq)) >= 0, "{seq} of {}..{}", w.base(), w.next());
                    assert!(stamp.since(w.sent_not_before(seq)) <= Stamp::units(Span::from_nanos(16 * 300)));
                    assert!(w.sent_not_after(seq).since(stamp) >= 0, "{seq} of {}..{}", w.base(), w.next());
                }
            }
        }
    }

    #[test]
    fn send_times_are_exact_as_long_as_little_is_in_flight() {
        let mut w = Window::new(1024, 5);
        let time = |seq: u64| Time(1 << 30) + Span::from_micros(seq);
        for round in 0..40 {
            let first = w.next();
            // An odd number, so that rounds begin anywhere in a group.
            for seq in first..first + 63 {
                w.sent(time(seq), 0);
            }
            for seq in first..first + 62 {
                assert_eq!(w.sent_not_before(seq), Stamp::at(time(seq)), "round {round}");
                assert_eq!(w.sent_not_after(seq), Stamp::at(time(seq + 1)), "round {round}");
            }
            w.advance(w.next());
        }
    }

    #[test]
    fn stamps_are_remembered_as_long_as_they_are_there() {
        let mut w = Window::new(1024, 0);
        let time = |seq: u64| Time(1 << 30) + Span::from_micros(seq);
        for seq in 0..3000 {
            if seq % 500 == 0 {
                w.advance(w.next());
            }
            w.sent(time(seq), 0);
            for old in 0..=seq {
                if let Some(stamp) = w.remembered_sent(old) {
                    let late = Stamp::at(time(old)).since(stamp);
                    assert!((0..=Stamp::units(Span::from_micros(15))).contains(&late), "{old} of {seq}");
                }
            }
            assert!(w.remembered_sent(seq).is_some());
        }
    }

    #[test]
    fn bounds_hold_while_the_window_fills_and_moves_on() {
        let time = |seq: u64| Time(1 << 30) + Span::from_micros(seq);
        for first in [0, 5, 15, 16, 1023] {
            for behind in [1, 60, 64, 65, 127, 200, 500, 1000] {
                let mut w = Window::new(1024, first);
                for seq in first..first + 3000 {
                    w.sent(time(seq), 0);
                    for seq in w.base()..w.next() {
                        assert!(Stamp::at(time(seq)).since(w.sent_not_before(seq)) >= 0, "{seq}");
                        assert!(w.sent_not_after(seq).since(Stamp::at(time(seq))) >= 0, "{seq}");
                    }
                    w.advance((seq + 1).saturating_sub(behind).max(w.base()));
                }
            }
        }
    }

    #[test]
    fn lost_packets_come_back_oldest_first_and_once() {
        let mut w = Window::new(256, (1 << 24) - 100);
        let first = w.next();
        for i in 0..250 {
            w.sent(Time(i), 0);
        }
        for offset in [200u64, 3, 130, 64, 63] {
            w.mark_lost(first + offset);
        }
        let mut order = vec![];
        while let Some(seq) = w.next_lost() {
            if !w.can_resend() {
                break;
            }
            w.resent(Time(1000), seq, 1);
            order.push(seq - first);
        }
        assert_eq!(order, [3, 63, 64, 130, 200]);
        assert_eq!(w.lost(), 0);
    }

    #[test]
    fn words_of_the_window_agree_with_single_packets() {
        let mut w = Window::new(128, 1000);
        for i in 0..128 {
            w.sent(Time(i), 0);
        }
        for offset in (0..128u64).step_by(3) {
            w.mark_acked(1000 + offset);
        }
        for offset in (1..128u64).step_by(9) {
            w.mark_lost(1000 + offset);
        }
        for from in 960..1140u64 {
            for bit in 0..64 {
                let seq = from + bit;
                let (unacked, fresh) = match w.contains(seq) {
                    true => (w.state(seq) != Flight::Acked, w.state(seq) == Flight::Sent),
                    false => (false, false),
                };
                assert_eq!(w.unacked64(from) >> bit & 1 == 1, unacked, "{from}+{bit}");
                assert_eq!(w.fresh64(from) >> bit & 1 == 1, fresh, "{from}+{bit}");
            }
        }
    }

    #[test]
    fn only_the_latest_transmission_of_a_packet_counts() {
        let mut w = Window::new(1024, 100);
        for i in 0..10 {
            w.sent(Time(i), 0);
        }
        for round in 1..4u64 {
            for seq in [103, 105] {
                w.mark_lost(seq);
                w.resent(Time(round << 20), seq, round as u8);
            }
        }
        assert_eq!(w.oldest_resend(), Some((103, Stamp::at(Time(3 << 20)))));
    }

    #[test]
    fn settled_retransmissions_leave_the_log() {
        let mut w = Window::new(1024, 65_500);
        for i in 0..100 {
            w.sent(Time(i), 0);
        }
        for seq in 65_500..65_560 {
            w.mark_lost(seq);
            w.next_lost();
            w.resent(Time(1 << 20), seq, 3);
        }
        assert_eq!(w.oldest_resend().unwrap().0, 65_500);
        for seq in 65_500..65_550 {
            w.mark_acked(seq);
        }
        w.advance(65_550);
        assert_eq!(w.oldest_resend().unwrap().0, 65_550);
        assert_eq!(w.resent_at(65_555), Some(Stamp::at(Time(1 << 20))));
        assert_eq!(w.resent_at(65_599), None);
    }
}
