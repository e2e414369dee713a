//! State of each packet in flight: two bits for its progress, one or two bytes for its path; `send_times` and `resends`
//! hold its send time. This is small enough for a NIC to hold the state of every queue pair.

use openmrc_wire::Psn;
use prefetch_index::prefetch_index;
use serde::{Deserialize, Serialize};

use super::resends::Resends;
use super::send_times::{SendTimes, Stamp};
use crate::mrc::paths::{EvIndex, IndexArray};
pub(super) use crate::seq::Seq;
use crate::seq::expand;
use crate::time::Time;

/// State of one packet between the cumulative point and the highest sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flight {
    /// Sent once, not acknowledged.
    Sent,
    /// Arrived.
    Acked,
    /// Taken for lost, to be retransmitted.
    Lost,
    /// Retransmitted, not acknowledged.
    Resent,
}

/// States of 64 packets, two bits each: Sent 00, Acked 10, Lost 01, Resent 11 (`done`, `again`).
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Flights {
    done: u64,
    again: u64,
}

/// Packets that are not known to have arrived, a bit each.
pub(super) struct Outstanding {
    /// Those that were sent once and are not taken for lost.
    pub fresh: u64,
    /// All of them.
    pub unacked: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Window {
    /// Lowest PSN that is not known to have arrived.
    base: Seq,
    /// Next PSN to send for the first time.
    next: Seq,
    mask: u32,
    paths: IndexArray,
    flights: Box<[Flights]>,
    times: SendTimes,
    resends: Resends,
    lost: u16,
    /// Packets that are Sent or Resent.
    packets_in_flight: u16,
    /// No PSN below this is Lost.
    lost_hint: Seq,
}

impl Window {
    /// A window for up to `psns` packets in flight on `paths` paths, beginning at `first`.
    pub fn new(psns: u32, first: Seq, paths: usize) -> Self {
        let capacity = u64::from(psns.next_power_of_two().max(64));
        let words = capacity as usize / 64;
        Window {
            base: first,
            next: first,
            mask: capacity as u32 - 1,
            paths: IndexArray::new(capacity as usize, paths),
            flights: vec![Flights::default(); words].into(),
            times: SendTimes::new(capacity, first),
            resends: Resends::new(capacity),
            lost: 0,
            packets_in_flight: 0,
            lost_hint: first,
        }
    }

    pub fn base(&self) -> Seq {
        self.base
    }

    pub fn next(&self) -> Seq {
        self.next
    }

    pub fn is_empty(&self) -> bool {
        self.base == self.next
    }

    pub fn contains(&self, seq: Seq) -> bool {
        (self.base..self.next).contains(&seq)
    }

    /// Whether feedback may speak of this PSN: it was sent, and at most one window of packets below the present one.
    /// Later than that only packets arrive that the network has kept for long.
    pub fn is_recent(&self, seq: Seq) -> bool {
        seq < self.next && seq + u64::from(self.mask) + 2 >= self.base
    }

    /// Most packets that may be outstanding.
    pub fn capacity(&self) -> u64 {
        u64::from(self.mask) + 1
    }

    /// Whether a packet was sent and is not known to have arrived.
    pub fn is_unacked(&self, seq: Seq) -> bool {
        self.contains(seq) && self.state(seq) != Flight::Acked
    }

    /// Packets in flight: sent, not acknowledged, and not taken for lost.
    pub fn packets_in_flight(&self) -> u16 {
        self.packets_in_flight
    }

    pub fn lost(&self) -> u16 {
        self.lost
    }

    /// The PSN without wrap that is nearest to the window.
    pub fn expand(&self, psn: Psn) -> Seq {
        expand(psn, self.base)
    }

    pub fn state(&self, seq: Seq) -> Flight {
        let (word, bit) = self.place(seq);
        let Flights { done, again } = self.flights[word];
        match (done >> bit & 1, again >> bit & 1) {
            (0, 0) => Flight::Sent,
            (1, 0) => Flight::Acked,
            (0, _) => Flight::Lost,
            _ => Flight::Resent,
        }
    }

    /// Position of a packet in the ring.
    fn slot(&self, seq: Seq) -> usize {
        (seq as u32 & self.mask) as usize
    }

    fn place(&self, seq: Seq) -> (usize, u32) {
        let slot = self.slot(seq);
        (slot / 64, slot as u32 % 64)
    }

    #[inline(always)]
    fn set(&mut self, seq: Seq, done: bool, again: bool) {
        let (word, bit) = self.place(seq);
        let flights = &mut self.flights[word];
        flights.done = flights.done & !(1 << bit) | u64::from(done) << bit;
        flights.again = flights.again & !(1 << bit) | u64::from(again) << bit;
    }

    /// The path of the last transmission of a packet.
    pub fn path(&self, seq: Seq) -> EvIndex {
        self.paths.get(self.slot(seq))
    }

    /// The path of a packet that is still in the ring, but may no longer be in flight.
    pub fn remembered_path(&self, seq: Seq) -> Option<EvIndex> {
        (seq < self.next && self.next - seq <= self.capacity()).then(|| self.path(seq))
    }

    /// Records the transmission of the next new packet.
    #[inline(always)]
    pub fn sent(&mut self, now: Time, path: EvIndex) -> Seq {
        let seq = self.next;
        self.paths.set(self.slot(seq), path);
        self.set(seq, false, false);
        self.times.sent(now, self.base, seq);
        self.next += 1;
        self.packets_in_flight += 1;
        seq
    }

    /// Lower bound of the time of a first transmission.
    pub fn sent_not_before(&self, seq: Seq) -> Stamp {
        self.times.not_before(seq, self.next)
    }

    /// The same for a packet that may no longer be in flight, if its stamp still exists.
    pub fn remembered_sent(&self, seq: Seq) -> Option<Stamp> {
        (self.contains(seq) || self.times.remembers(seq, self.next)).then(|| self.sent_not_before(seq))
    }

    /// Upper bound of the time of a first transmission.
    pub fn sent_not_after(&self, seq: Seq) -> Stamp {
        self.times.not_after(seq, self.next)
    }

    /// Time of the last retransmission of a packet, if there was one.
    pub fn resent_at(&self, seq: Seq) -> Option<Stamp> {
        self.resends.last_sent(seq)
    }

    /// Whether the log has space for another retransmission.
    pub fn can_resend(&self) -> bool {
        !self.resends.is_full()
    }

    /// The oldest packet that must be retransmitted; the next search begins there.
    pub fn next_lost(&mut self) -> Option<Seq> {
        let oldest = self.oldest_lost()?;
        self.lost_hint = oldest;
        Some(oldest)
    }

    /// The oldest packet that must be retransmitted.
    pub fn oldest_lost(&self) -> Option<Seq> {
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
                    return Some(found);
                }
            }
            seq += u64::from(64 - bit);
        }
        None
    }

    /// Records the retransmission of a lost packet.
    pub fn resent(&mut self, now: Time, seq: Seq, path: EvIndex) {
        self.paths.set(self.slot(seq), path);
        self.set(seq, true, true);
        self.lost -= 1;
        self.packets_in_flight += 1;
        self.resends.push(now, seq);
    }

    /// Marks a packet in flight as lost.
    pub fn mark_lost(&mut self, seq: Seq) {
        self.set(seq, false, true);
        self.lost += 1;
        self.packets_in_flight -= 1;
        self.lost_hint = self.lost_hint.min(seq);
    }

    /// Marks a packet as arrived; returns its state before.
    pub fn mark_acked(&mut self, seq: Seq) -> Flight {
        let was = self.state(seq);
        match was {
            Flight::Lost => self.lost -= 1,
            Flight::Sent | Flight::Resent => self.packets_in_flight -= 1,
            Flight::Acked => {}
        }
        self.set(seq, true, false);
        was
    }

    /// Marks packets that were sent once as arrived, a bit each from `from`.
    pub fn mark_fresh_acked(&mut self, from: Seq, packets: u64) {
        let (word, bit) = self.place(from);
        let words = self.flights.len();
        self.flights[word].done |= packets << bit;
        if bit > 0 {
            self.flights[(word + 1) % words].done |= packets >> (64 - bit);
        }
        self.packets_in_flight -= packets.count_ones() as u16;
    }

    /// Moves the window to `base`: every packet below it was marked as arrived.
    pub fn advance(&mut self, base: Seq) {
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

    /// Of the 64 PSNs from `from`, those in the window that are not known to have arrived.
    #[inline]
    pub fn outstanding64(&self, from: Seq) -> Outstanding {
        let Flights { done, again } = self.flights64(from);
        let inside = self.inside64(from);
        Outstanding { fresh: !done & !again & inside, unacked: !(done & !again) & inside }
    }

    /// Of the 64 PSNs from `from`, those in the window that were sent once and not acknowledged.
    pub fn fresh64(&self, from: Seq) -> u64 {
        let Flights { done, again } = self.flights64(from);
        !done & !again & self.inside64(from)
    }

    fn inside64(&self, from: Seq) -> u64 {
        let low = self.base.saturating_sub(from).min(64) as u32;
        let high = self.next.saturating_sub(from).min(64) as u32;
        let ones = |n: u32| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
        ones(high) & !ones(low)
    }

    /// Drops settled retransmissions from the log, then returns the oldest.
    pub fn oldest_resend(&mut self) -> Option<(Seq, Stamp)> {
        self.forget_settled_resends();
        self.resends.oldest(self.base)
    }

    /// Removes the oldest retransmission from the log.
    pub fn pop_resend(&mut self) {
        self.resends.pop();
    }

    /// Drops the oldest entries of the log while they are settled.
    #[inline]
    pub fn forget_settled_resends(&mut self) {
        while let Some((seq, stamp)) = self.resends.oldest(self.base) {
            // A packet that was retransmitted several times has several entries; only the latest one is valid.
            if self.contains(seq) && self.state(seq) == Flight::Resent && self.resent_at(seq) == Some(stamp) {
                break;
            }
            self.resends.pop();
        }
    }

    /// Loads the state of the next packet to be sent and of the oldest one in flight into the cache.
    pub fn prefetch(&self) {
        let (oldest, next) = (self.place(self.base), self.place(self.next));
        prefetch_index(&self.flights, oldest.0);
        prefetch_index(&self.flights, next.0);
        self.paths.prefetch(oldest.0 * 64);
        self.paths.prefetch(next.0 * 64);
        self.times.prefetch(self.base, self.next);
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        self.paths.heap_bytes()
            + size_of_val(&*self.flights)
            + self.times.heap_bytes()
            + self.resends.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn send_times_are_bounded_by_the_stamps_of_the_groups() {
        for (first, psns) in (0..40).flat_map(|first| [128, 256, 1024].map(|psns| (first, psns))) {
            let mut w = Window::new(psns, first, 256);
            let time = |seq: Seq| Time(1 << 30) + Span::from_nanos(seq * 300);
            // The window is full and moves in steps that are no multiple of a group.
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
    fn the_path_of_a_packet_is_remembered_until_its_slot_is_used_again() {
        let mut w = Window::new(128, 40, 256);
        for path in 0..128 {
            w.sent(Time(1 << 30), path);
        }
        assert_eq!(w.remembered_path(40), Some(0), "the window is full");
        w.advance(42);
        assert_eq!(w.remembered_path(40), Some(0));
        w.sent(Time(1 << 30), 200);
        assert_eq!([40, 41, 168].map(|seq| w.remembered_path(seq)), [None, Some(1), Some(200)]);
        assert_eq!(w.remembered_path(169), None, "not sent yet");
    }

    #[test]
    fn a_window_counts_what_is_lost_and_knows_its_bytes() {
        let mut w = Window::new(128, 0, 256);
        (0..4).for_each(|_| assert!(w.sent(Time(1 << 30), 0) < 4));
        w.mark_lost(1);
        w.mark_lost(2);
        assert_eq!((w.lost, w.packets_in_flight), (2, 2));
        w.mark_acked(1);
        w.mark_acked(3);
        assert_eq!((w.lost, w.packets_in_flight), (1, 1));
        w.resent(Time(1 << 30), 2, 0);
        assert_eq!((w.lost, w.packets_in_flight), (0, 2));
        // Two bits and the number of a path for each packet at least.
        for psns in [128, 1024] {
            let bytes = Window::new(psns, 0, 256).heap_bytes();
            assert!((psns as usize * 5 / 4..psns as usize * 8).contains(&bytes), "{psns}: {bytes}");
        }
    }

    #[test]
    fn no_more_is_sent_again_than_the_log_has_space_for() {
        let mut w = Window::new(64, 0, 256);
        (0..64).for_each(|seq| assert_eq!(w.sent(Time(1 << 30), 0), seq));
        let resend = |w: &mut Window| {
            w.mark_lost(63);
            w.resent(Time(1 << 30), 63, 0);
        };
        let entries = (0..1000).take_while(|_| w.can_resend().then(|| resend(&mut w)).is_some()).count();
        assert!((16..1000).contains(&entries), "{entries}");
        w.pop_resend();
        assert!(w.can_resend());
        resend(&mut w);
        assert!(!w.can_resend());
    }

    #[test]
    fn send_times_are_exact_as_long_as_little_is_in_flight() {
        let mut w = Window::new(1024, 5, 256);
        let time = |seq: u64| Time(1 << 30) + Span::from_micros(seq);
        for round in 0..40 {
            let first = w.next();
            // An odd number, so that rounds begin at any position of a group.
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
        let mut w = Window::new(1024, 0, 256);
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
                let mut w = Window::new(1024, first, 256);
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
        let mut w = Window::new(256, (1 << 24) - 100, 256);
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
        let mut w = Window::new(128, 1000, 256);
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
                let outstanding = w.outstanding64(from);
                assert_eq!(outstanding.unacked >> bit & 1 == 1, unacked, "{from}+{bit}");
                assert_eq!(outstanding.fresh >> bit & 1 == 1, fresh, "{from}+{bit}");
                assert_eq!(w.fresh64(from) >> bit & 1 == 1, fresh, "{from}+{bit}");
            }
        }
    }

    #[test]
    fn marking_a_word_of_packets_is_marking_each_of_them() {
        for from in (1000..1065u64).chain([1100]) {
            for bits in [1, 1 << 63, 0xF0F0_1234_5678_9ABC, u64::MAX] {
                let [mut one_by_one, mut at_once] = [(); 2].map(|()| {
                    let mut w = Window::new(128, 1000, 256);
                    (0..128).for_each(|i| _ = w.sent(Time(i), 0));
                    w.mark_lost(1003);
                    w.mark_acked(1070);
                    w
                });
                let fresh = one_by_one.fresh64(from) & bits;
                for bit in (0..64).filter(|bit| fresh >> bit & 1 == 1) {
                    one_by_one.mark_acked(from + bit);
                }
                at_once.mark_fresh_acked(from, fresh);
                assert_eq!(one_by_one.packets_in_flight(), at_once.packets_in_flight());
                for seq in 1000..1128 {
                    assert_eq!(
                        one_by_one.state(seq),
                        at_once.state(seq),
                        "{seq} after {bits:#x} from {from}"
                    );
                }
            }
        }
    }

    #[test]
    fn only_the_latest_transmission_of_a_packet_counts() {
        let mut w = Window::new(1024, 100, 256);
        for i in 0..10 {
            w.sent(Time(i), 0);
        }
        for round in 1..4u64 {
            for seq in [103, 105] {
                w.mark_lost(seq);
                w.resent(Time(round << 20), seq, round as u16);
            }
        }
        assert_eq!(w.oldest_resend(), Some((103, Stamp::at(Time(3 << 20)))));
    }

    #[test]
    fn settled_retransmissions_leave_the_log() {
        let mut w = Window::new(1024, 65_500, 256);
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

    #[test]
    fn feedback_may_speak_of_what_was_sent_and_of_one_window_before() {
        let mut w = Window::new(128, 1000, 256);
        (0..128).for_each(|_| _ = w.sent(Time(1 << 30), 0));
        w.advance(1100);
        // Cumulative points of a window that ended where the present one begins.
        for (seq, is_recent) in [(970, false), (971, true), (1099, true), (1127, true), (1128, false)] {
            assert_eq!(w.is_recent(seq), is_recent, "{seq}");
        }
    }
}
