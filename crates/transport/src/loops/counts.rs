//! Probes sent and received, by loop and interval. No clock, no sockets.
//!
//! Time is cut into intervals. A probe belongs to the one in which it was sent; it counts as received if it comes back
//! within the grace after the interval's end, and once. Then the interval is closed, and what is missing is lost.
//!
//! A probe that the host's own queue refuses says nothing of the network, unless the port takes none at all.

use std::collections::VecDeque;

/// A port that refuses so many probes of an interval, and takes none, loses what it is given.
const REFUSES_ALL: u32 = 4;

/// Which probe a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Probe {
    /// Number of the loop.
    pub index: u32,
    /// Interval in which it was sent.
    pub interval: u32,
    /// Number among the probes of the interval.
    pub number: u32,
}

impl Probe {
    /// Bytes that it takes after the UDP header: its three numbers, and what proves whose it is.
    pub const LEN: usize = 24;
}

/// Probes of a loop in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Sent.
    pub sent: u32,
    /// Of these, received.
    pub received: u32,
}

/// An interval that is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Closed {
    /// Its number.
    pub interval: u32,
    /// By loop. A loop whose counts are not known has none sent.
    pub counts: Vec<Count>,
}

/// What a prober has done since it started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Probes sent.
    pub sent: u64,
    /// Probes that came back in time.
    pub received: u64,
    /// Probes that came back after their interval was closed.
    pub late: u64,
    /// Probes that came back a second time: copies.
    pub repeated: u64,
    /// Packets to the prober's UDP port that it has not sent: forged, damaged or of an earlier process.
    pub foreign: u64,
    /// Probes that this host could not send because its queues were full. Those of an interval in which a port took
    /// none are sent and lost.
    pub unsent: u64,
    /// Probes sent whose outcome is not known, because this host has dropped received packets.
    pub unknown: u64,
}

/// An interval whose probes may still come back.
struct Open {
    number: u32,
    counts: Vec<Count>,
    /// By loop: probes that this host could not send.
    refused: Vec<u32>,
    /// By loop: what is counted is not what happened.
    unknown: Vec<bool>,
    /// Probes sent, of all loops.
    sent: u32,
    /// A bit for each of them: it has come back.
    seen: Vec<u64>,
}

/// The intervals that are open.
pub struct Intervals {
    /// By loop: the port by which its probes leave.
    ports: Vec<u32>,
    start_ns: u64,
    length_ns: u64,
    grace_ns: u64,
    open: VecDeque<Open>,
    /// Since the start.
    pub totals: Totals,
}

impl Intervals {
    /// None open yet; of each loop its port is given. Intervals begin at multiples of their length: all probers of a
    /// machine close theirs together, so that a fault is reported by all at once.
    pub fn new(ports: &[u32], now_ns: u64, length_ns: u64, grace_ns: u64) -> Self {
        let (open, start_ns) = (VecDeque::new(), now_ns - now_ns % length_ns);
        Intervals { ports: ports.to_vec(), start_ns, length_ns, grace_ns, open, totals: Totals::default() }
    }

    /// The next probe of a loop, which is counted as sent.
    pub fn send(&mut self, now_ns: u64, index: usize) -> Probe {
        let interval = (now_ns.saturating_sub(self.start_ns) / self.length_ns) as u32;
        if self.open.back().is_none_or(|open| open.number < interval) {
            self.open.push_back(Open {
                number: interval,
                counts: vec![Count::default(); self.ports.len()],
                refused: vec![0; self.ports.len()],
                unknown: vec![false; self.ports.len()],
                sent: 0,
                seen: Vec::new(),
            });
        }
        let open = self.open.back_mut().expect("there is one at least");
        let number = open.sent;
        open.sent += 1;
        open.counts[index].sent += 1;
        self.totals.sent += 1;
        if number.is_multiple_of(64) {
            open.seen.push(0);
        }
        Probe { index: index as u32, interval: open.number, number }
    }

    /// A probe that was counted as sent was not, for want of room in this host.
    pub fn unsend(&mut self, probe: Probe) {
        let Some(open) = self.open.iter_mut().find(|open| open.number == probe.interval) else { return };
        open.counts[probe.index as usize].sent -= 1;
        open.refused[probe.index as usize] += 1;
        self.totals.sent -= 1;
        // Its number is used up: nothing that claims it counts.
        open.seen[probe.number as usize / 64] |= 1 << (probe.number % 64);
    }

    /// A probe with the prober's key has come back.
    pub fn receive(&mut self, probe: Probe) {
        let Some(open) = self.open.iter_mut().find(|open| open.number == probe.interval) else {
            self.totals.late += 1;
            return;
        };
        let (word, bit) = (probe.number as usize / 64, 1 << (probe.number % 64));
        let Some(seen) = open.seen.get_mut(word).filter(|_| probe.number < open.sent) else { return };
        if *seen & bit != 0 {
            self.totals.repeated += 1;
            return;
        }
        *seen |= bit;
        if let Some(count) = open.counts.get_mut(probe.index as usize) {
            count.received += 1;
            self.totals.received += 1;
        }
    }

    /// Received packets of these loops were dropped: what is open says nothing about them.
    pub fn forget(&mut self, loops: impl Iterator<Item = usize> + Clone) {
        for open in &mut self.open {
            loops.clone().for_each(|index| open.unknown[index] = true);
        }
    }

    /// When the oldest interval is to be closed; `None` if none is open.
    pub fn next_close_ns(&self) -> Option<u64> {
        let open = self.open.front()?;
        Some(self.start_ns + (u64::from(open.number) + 1) * self.length_ns + self.grace_ns)
    }

    /// Closes the oldest interval, if it is time. What has arrived must have been counted before.
    pub fn close(&mut self, now_ns: u64) -> Option<Closed> {
        self.next_close_ns().filter(|&due| due <= now_ns)?;
        let mut open = self.open.pop_front()?;
        self.settle_refused(&mut open);
        for (count, _) in open.counts.iter_mut().zip(&open.unknown).filter(|(_, unknown)| **unknown) {
            self.totals.unknown += u64::from(count.sent);
            *count = Count::default();
        }
        Some(Closed { interval: open.number, counts: open.counts })
    }

    /// What was refused is sent and lost where a port took none: a queue that drains takes some.
    fn settle_refused(&mut self, open: &mut Open) {
        let takes_none = |port: u32| {
            let loops = (0..self.ports.len()).filter(|&index| self.ports[index] == port);
            let (mut sent, mut refused) = (0, 0);
            loops.for_each(|index| {
                (sent, refused) = (sent + open.counts[index].sent, refused + open.refused[index])
            });
            sent == 0 && refused >= REFUSES_ALL
        };
        let lost: Vec<bool> = self.ports.iter().map(|&port| takes_none(port)).collect();
        for ((count, &refused), lost) in open.counts.iter_mut().zip(&open.refused).zip(lost) {
            if lost {
                count.sent = refused;
                self.totals.sent += u64::from(refused);
            } else {
                self.totals.unsent += u64::from(refused);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: u64 = 100;
    const GRACE: u64 = 50;

    fn intervals(loops: usize) -> Intervals {
        Intervals::new(&vec![0; loops], 1_000, LENGTH, GRACE)
    }

    fn pairs(closed: &Closed) -> Vec<(u32, u32)> {
        closed.counts.iter().map(|count| (count.sent, count.received)).collect()
    }

    #[test]
    fn a_probe_counts_for_the_interval_in_which_it_was_sent() {
        let mut intervals = intervals(2);
        let first = intervals.send(1_099, 0);
        let second = intervals.send(1_100, 1);
        assert_eq!((first.interval, second.interval), (0, 1));
        intervals.receive(first);
        assert_eq!(intervals.close(1_149), None);
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(1, 1), (0, 0)]);
        intervals.receive(second);
        assert_eq!(pairs(&intervals.close(1_250).unwrap()), [(0, 0), (1, 1)]);
        assert_eq!(intervals.close(9_999), None);
    }

    #[test]
    fn intervals_of_all_probers_end_together() {
        let mut late = Intervals::new(&[0], 1_070, LENGTH, GRACE);
        late.send(1_080, 0);
        assert_eq!(late.next_close_ns(), Some(1_150));
    }

    #[test]
    fn what_comes_after_the_grace_is_late_and_not_counted() {
        let mut intervals = intervals(1);
        let probe = intervals.send(1_000, 0);
        let closed = intervals.close(1_150).unwrap();
        intervals.receive(probe);
        assert_eq!(pairs(&closed), [(1, 0)]);
        assert_eq!((intervals.totals.late, intervals.totals.received), (1, 0));
    }

    #[test]
    fn a_copy_does_not_stand_for_a_lost_probe() {
        let mut intervals = intervals(1);
        let probe = intervals.send(1_000, 0);
        let _lost = intervals.send(1_001, 0);
        intervals.receive(probe);
        intervals.receive(probe);
        assert_eq!(intervals.totals.repeated, 1);
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(2, 1)]);
    }

    #[test]
    fn numbers_that_were_not_sent_are_not_counted() {
        let mut intervals = intervals(1);
        let probe = intervals.send(1_000, 0);
        for number in [1, 63, 64, u32::MAX] {
            intervals.receive(Probe { number, ..probe });
        }
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(1, 0)]);
    }

    #[test]
    fn a_probe_that_this_host_could_not_send_is_not_lost() {
        let mut intervals = intervals(1);
        let probe = intervals.send(1_000, 0);
        intervals.unsend(probe);
        intervals.receive(probe);
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(0, 0)]);
        assert_eq!((intervals.totals.sent, intervals.totals.unsent), (0, 1));
    }

    /// What two ports of two loops each have counted, of probes that are refused by the first: the given ones.
    fn refusing(sent: u32, refused: impl Fn(u32) -> bool) -> (Vec<(u32, u32)>, Totals) {
        let mut intervals = Intervals::new(&[0, 0, 1, 1], 1_000, LENGTH, GRACE);
        for number in 0..sent {
            for index in 0..4 {
                let probe = intervals.send(1_000, index);
                if index < 2 && refused(2 * number + index as u32) {
                    intervals.unsend(probe);
                } else {
                    intervals.receive(probe);
                }
            }
        }
        (pairs(&intervals.close(1_150).unwrap()), intervals.totals)
    }

    #[test]
    fn a_port_that_takes_no_probe_of_an_interval_loses_them() {
        let (counts, totals) = refusing(5, |_| true);
        assert_eq!(counts, [(5, 0), (5, 0), (5, 5), (5, 5)]);
        assert_eq!((totals.sent, totals.received, totals.unsent), (20, 10, 0));
        // One that takes some has a full queue.
        let (counts, totals) = refusing(5, |number| number != 6);
        assert_eq!(counts, [(1, 1), (0, 0), (5, 5), (5, 5)]);
        assert_eq!((totals.sent, totals.received, totals.unsent), (11, 11, 9));
        // Of three probes little can be said; of four it can.
        assert_eq!(refusing(1, |_| true).0, [(0, 0), (0, 0), (1, 1), (1, 1)]);
        assert_eq!(refusing(2, |_| true).0, [(2, 0), (2, 0), (2, 2), (2, 2)]);
    }

    #[test]
    fn of_many_probes_the_one_that_was_not_sent_is_the_one_that_does_not_count() {
        let mut intervals = intervals(1);
        let probes: Vec<_> = (0..200).map(|_| intervals.send(1_000, 0)).collect();
        intervals.unsend(probes[137]);
        intervals.receive(probes[137]);
        assert_eq!((intervals.totals.received, intervals.totals.repeated), (0, 1));
        probes.iter().for_each(|&probe| intervals.receive(probe));
        assert_eq!((intervals.totals.received, intervals.totals.repeated), (199, 2));
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(199, 199)]);
        assert_eq!((intervals.totals.sent, intervals.totals.unsent), (199, 1));
    }

    #[test]
    fn dropped_packets_make_open_intervals_unknown_and_no_later_one() {
        let mut intervals = intervals(2);
        intervals.send(1_000, 0);
        intervals.send(1_000, 1);
        intervals.forget([0].into_iter());
        assert_eq!(pairs(&intervals.close(1_150).unwrap()), [(0, 0), (1, 0)]);
        assert_eq!(intervals.totals.unknown, 1);
        intervals.send(1_200, 0);
        assert_eq!(pairs(&intervals.close(1_350).unwrap()), [(1, 0), (0, 0)]);
    }

    #[test]
    fn a_stall_skips_intervals_and_loses_nothing() {
        let mut intervals = intervals(1);
        let before = intervals.send(1_000, 0);
        let after = intervals.send(8_000, 0);
        assert_eq!(after.interval, 70);
        // The thread reads what has arrived before it closes anything.
        intervals.receive(before);
        assert_eq!(pairs(&intervals.close(8_000).unwrap()), [(1, 1)]);
        assert_eq!(intervals.close(8_000), None);
    }

    proptest! {
        #[test]
        fn every_probe_is_counted_once(
            sent in prop::collection::vec((0usize..3, 0u64..40, 0u8..4), 0..300),
        ) {
            let mut intervals = intervals(3);
            let mut now = 1_000;
            let (mut expected, mut found) = ([(0, 0); 3], [(0, 0); 3]);
            let mut add = |closed: Closed| {
                for (sum, count) in found.iter_mut().zip(closed.counts) {
                    *sum = (sum.0 + count.sent, sum.1 + count.received);
                }
            };
            for (index, pause, copies) in sent {
                now += pause;
                let probe = intervals.send(now, index);
                expected[index].0 += 1;
                expected[index].1 += u32::from(copies > 0);
                (0..copies).for_each(|_| intervals.receive(probe));
                while let Some(closed) = intervals.close(now) {
                    add(closed);
                }
            }
            while let Some(closed) = intervals.close(u64::MAX) {
                add(closed);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
