//! Probes of a host to itself over its T0s and T1s (docs/operations.md, "Probes"): which loop is probed when, and what has
//! become of the probes. A driver has the clock, in nanoseconds, and the packets.
//!
//! | module | subject |
//! |---|---|
//! | [`counts`] | probes sent and received, by loop and interval |
//! | [`order`] | which loop is probed next |

pub mod counts;
pub mod order;

pub use counts::{Closed, Count, Probe, Totals};

use counts::Intervals;
use order::Order;

/// Most probes a second of a host.
pub const MAX_RATE: u32 = 100_000;
/// How long a driver may sleep through its turns and still send what was due meanwhile.
const CATCHES_UP_NS: u64 = 2_000_000;

/// How a host probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Probes a second, over all loops: 1 to [`MAX_RATE`].
    pub rate: u32,
    /// Length of an interval.
    pub interval_ns: u64,
    /// For how long after an interval its probes may come back.
    pub grace_ns: u64,
}

/// The probes of a host: an even pace, all loops in turn, counts by interval.
pub struct LoopProbes {
    order: Order,
    intervals: Intervals,
    gap_ns: u64,
    due_ns: u64,
}

impl LoopProbes {
    /// The first probe is due now. Of each loop its port is given; there is one loop at least.
    pub fn new(ports: &[u32], pace: &Pace, now_ns: u64) -> Self {
        LoopProbes {
            order: Order::new(ports),
            intervals: Intervals::new(ports, now_ns, pace.interval_ns, pace.grace_ns),
            gap_ns: 1_000_000_000 / u64::from(pace.rate),
            due_ns: now_ns,
        }
    }

    /// The next probe, if one is due. What a stall has kept from being sent is not sent afterwards, in one burst.
    pub fn poll_send(&mut self, now_ns: u64) -> Option<Probe> {
        self.due_ns = self.due_ns.max(now_ns.saturating_sub(self.gap_ns.max(CATCHES_UP_NS)));
        if self.due_ns > now_ns {
            return None;
        }
        self.due_ns += self.gap_ns;
        Some(self.intervals.send(now_ns, self.order.next_loop()))
    }

    /// When the next probe is due.
    pub fn next_send_ns(&self) -> u64 {
        self.due_ns
    }

    /// When the oldest interval is to be closed; `None` if none is open.
    pub fn next_close_ns(&self) -> Option<u64> {
        self.intervals.next_close_ns()
    }

    /// A probe was not sent, for want of room in this host.
    pub fn unsend(&mut self, probe: Probe) {
        self.intervals.unsend(probe);
    }

    /// A probe has come back.
    pub fn receive(&mut self, probe: Probe) {
        self.intervals.receive(probe);
    }

    /// A packet has come that is no probe of this host.
    pub fn receive_foreign(&mut self) {
        self.intervals.totals.foreign += 1;
    }

    /// Received packets of these loops were dropped by this host.
    pub fn forget(&mut self, loops: impl Iterator<Item = usize> + Clone) {
        self.intervals.forget(loops);
    }

    /// Closes the oldest interval, if it is time, and learns from it. What has arrived must have been received before.
    pub fn close(&mut self, now_ns: u64) -> Option<Closed> {
        let closed = self.intervals.close(now_ns)?;
        self.order.learn(&closed.counts);
        Some(closed)
    }

    /// What has been done since the start.
    pub fn totals(&self) -> Totals {
        self.intervals.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { rate: 500, interval_ns: 250_000_000, grace_ns: 500_000_000 };

    fn sent(probes: &mut LoopProbes, now_ns: u64) -> usize {
        std::iter::from_fn(|| probes.poll_send(now_ns)).count()
    }

    #[test]
    fn probes_go_out_at_an_even_pace() {
        let mut probes = LoopProbes::new(&[0, 1, 2], &PACE, 0);
        assert_eq!(sent(&mut probes, 0), 1);
        assert_eq!(probes.next_send_ns(), 2_000_000);
        assert_eq!((sent(&mut probes, 1_999_999), sent(&mut probes, 2_000_000)), (0, 1));
        assert_eq!(probes.totals().sent, 2);
    }

    #[test]
    fn a_stall_is_followed_by_no_burst() {
        let mut probes = LoopProbes::new(&[0, 1, 2], &PACE, 0);
        sent(&mut probes, 0);
        assert_eq!(sent(&mut probes, 1_000_000_000), 2);
        assert_eq!(probes.next_send_ns(), 1_002_000_000);
    }

    #[test]
    fn a_loop_that_has_lost_something_has_half_of_the_probes_from_then_on() {
        let mut probes = LoopProbes::new(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &PACE, 0);
        for step in 0..375 {
            let now = step * 2_000_000;
            while let Some(probe) = probes.poll_send(now) {
                if probe.index != 4 {
                    probes.receive(probe);
                }
            }
        }
        let closed = probes.close(750_000_000).expect("the first interval is over");
        let lost: Vec<_> = closed.counts.iter().map(|count| count.sent - count.received).collect();
        assert_eq!(lost, [0, 0, 0, 0, 13, 0, 0, 0, 0, 0]);
        let next: Vec<_> = (375..379).filter_map(|n| probes.poll_send(n * 2_000_000)).collect();
        assert_eq!(next.iter().filter(|probe| probe.index == 4).count(), 2);
    }

    #[test]
    fn what_could_not_be_sent_and_what_is_foreign_is_told_and_counts_for_nothing() {
        let mut probes = LoopProbes::new(&[0, 1], &PACE, 1_000_000_000);
        assert_eq!(probes.next_close_ns(), None);
        let first = probes.poll_send(1_000_000_000).expect("one is due");
        let second = probes.poll_send(1_002_000_000).expect("one is due");
        assert_eq!(probes.next_close_ns(), Some(1_750_000_000));
        probes.unsend(first);
        probes.receive(second);
        probes.receive_foreign();
        probes.receive_foreign();
        let closed = probes.close(1_750_000_000).expect("the interval is over");
        let Totals { sent, unsent, received, foreign, .. } = probes.totals();
        assert_eq!((sent, unsent, received, foreign), (1, 1, 1, 2));
        assert_eq!(closed.counts.iter().map(|count| count.sent).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn dropped_packets_make_the_open_interval_of_their_loops_unknown() {
        let mut probes = LoopProbes::new(&[0, 1], &PACE, 0);
        assert_eq!(sent(&mut probes, 0) + sent(&mut probes, 2_000_000), 2);
        probes.forget([1].into_iter());
        let closed = probes.close(750_000_000).expect("the interval is over");
        assert_eq!(closed.counts.iter().map(|count| count.sent).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(probes.totals().unknown, 1);
    }
}
