//! Threads that poll without pause drive the engine, without having asked for polling mode
//! ([`crate::config::ThreadConfig::callers_drive`]). This is for programs that were written for hardware: they poll
//! and do not know of an engine. The engine must never be left without a driver: its thread checks after each nap.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Empty polls after which callers drive. A program that polls only now and then does not reach this number in one
/// go.
const EMPTY_POLLS: u32 = 64;
/// The largest such number. It grows each time that the engine's thread had to take over.
const MOST_EMPTY_POLLS: u32 = 1 << 16;

/// How long the engine's thread sleeps while callers drive, at first ...
pub(crate) const FIRST_NAP: Duration = Duration::from_micros(50);
/// ... and at most, while they drive without a pause: each check takes the processor from another thread.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(1);
/// A turn without work takes less than half a microsecond, a packet a few. Callers that do less than one of either in
/// this time are busy with other work.
const SLOWEST_STEP: Duration = Duration::from_micros(5);
/// Consecutive naps with something waiting at their end after which callers no longer drive.
const LATE_LOOKS: u32 = 3;

/// State shared by callers and the engine's thread.
#[derive(Default)]
pub(crate) struct Driving {
    active: AtomicBool,
    /// Empty polls since the engine's thread took over. It need not be exact.
    empty: AtomicU32,
    /// Empty polls needed beyond [`EMPTY_POLLS`].
    more_needed: AtomicU32,
}

impl Driving {
    /// Whether callers drive.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// A caller has found nothing. Returns whether callers begin to drive with this poll.
    #[inline]
    pub fn count_empty_poll(&self) -> bool {
        let empty = self.empty.load(Ordering::Relaxed) + 1;
        self.empty.store(empty, Ordering::Relaxed);
        let needed = EMPTY_POLLS + self.more_needed.load(Ordering::Relaxed);
        empty >= needed && !self.active.swap(true, Ordering::SeqCst)
    }

    /// The engine's thread drives again; returns whether callers did before. `failed`: they left work waiting, so
    /// more empty polls are needed before they drive again.
    pub fn end(&self, failed: bool) -> bool {
        self.empty.store(0, Ordering::Relaxed);
        let more = self.more_needed.load(Ordering::Relaxed);
        let next = if failed { (2 * more + EMPTY_POLLS).min(MOST_EMPTY_POLLS) } else { more / 2 };
        self.more_needed.store(next, Ordering::Relaxed);
        self.active.swap(false, Ordering::SeqCst)
    }
}

/// Judges, nap by nap, whether callers drive the engine well enough.
pub(crate) struct Watch {
    pub nap: Duration,
    late: u32,
}

/// What follows from a nap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// They do.
    Continue,
    /// They have gone on to something else.
    Gone,
    /// They poll, but look too late for what arrives.
    Late,
}

impl Watch {
    pub fn new() -> Self {
        Watch { nap: FIRST_NAP, late: 0 }
    }

    /// `work`: turns taken and packets handled by callers during a nap. `waited`: something waited at its end.
    pub fn judge(&mut self, work: u64, waited: bool) -> Verdict {
        if u128::from(work) * SLOWEST_STEP.as_nanos() < self.nap.as_nanos() {
            return Verdict::Gone;
        }
        self.late = if waited { self.late + 1 } else { 0 };
        self.nap = if waited { FIRST_NAP } else { (self.nap * 2).min(LONGEST_NAP) };
        if self.late >= LATE_LOOKS { Verdict::Late } else { Verdict::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_driving(driving: &Driving) -> u32 {
        (1..).find(|_| driving.count_empty_poll()).unwrap()
    }

    #[test]
    fn callers_drive_after_polling_in_vain_and_later_where_they_left_work() {
        let driving = Driving::default();
        assert_eq!(polls_until_driving(&driving), EMPTY_POLLS);
        assert!(driving.is_active() && !driving.count_empty_poll());
        assert!(driving.end(true) && !driving.is_active());
        assert_eq!(polls_until_driving(&driving), 2 * EMPTY_POLLS);
        (0..30).for_each(|_| _ = driving.end(true));
        assert_eq!(polls_until_driving(&driving), EMPTY_POLLS + MOST_EMPTY_POLLS);
        (0..30).for_each(|_| _ = driving.end(false));
        assert_eq!(polls_until_driving(&driving), EMPTY_POLLS);
    }

    #[test]
    fn dense_polling_lengthens_the_naps_and_rare_polling_ends_the_driving() {
        let mut watch = Watch::new();
        assert_eq!(watch.judge(9, false), Verdict::Gone);
        for _ in 0..10 {
            assert_eq!(watch.judge(1000, false), Verdict::Continue);
        }
        assert_eq!(watch.nap, LONGEST_NAP);
        assert_eq!(watch.judge(199, false), Verdict::Gone);
    }

    #[test]
    fn work_that_waits_at_the_end_of_several_naps_ends_the_driving() {
        let mut watch = Watch::new();
        assert_eq!(watch.judge(1000, true), Verdict::Continue);
        assert_eq!(watch.judge(1000, false), Verdict::Continue);
        assert_eq!(watch.judge(1000, true), Verdict::Continue);
        assert_eq!(watch.judge(1000, true), Verdict::Continue);
        assert_eq!(watch.nap, FIRST_NAP);
        assert_eq!(watch.judge(1000, true), Verdict::Late);
    }
}
