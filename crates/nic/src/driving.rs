//! Threads that poll without pause drive the engine, without having asked for polling mode
//! ([`crate::config::DeviceConfig::callers_drive`]). This is for programs that were written for hardware: they poll
//! and do not know of an engine. The engine must never be left without a driver: its thread stands by.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Empty polls after which callers drive. A program that polls only now and then does not reach this number in one
/// go.
const EMPTY_POLLS: u32 = 64;
/// The largest such number. It grows each time that the engine's thread had to take over.
const MOST_EMPTY_POLLS: u32 = 1 << 16;

/// How long the engine's thread naps while callers drive, at first ...
const FIRST_NAP: Duration = Duration::from_micros(50);
/// ... and at most, while they drive without a pause: each look takes the processor from another thread ...
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// ... and the same where callers have promised to poll.
const FIRST_GUARDED_NAP: Duration = Duration::from_millis(1);
const LONGEST_GUARDED_NAP: Duration = Duration::from_millis(32);
/// A turn without work takes less than half a microsecond, a packet a few. Callers that do less than one of either in
/// this time are busy with other work.
const SLOWEST_STEP: Duration = Duration::from_micros(5);
/// Consecutive arrivals that callers do not take in time after which they no longer drive.
const LATE_LOOKS: u32 = 3;

/// Counts polls that find nothing while the engine's thread drives. It need not be exact.
#[derive(Default)]
pub(crate) struct EmptyPolls {
    /// Since the engine's thread took over.
    count: AtomicU32,
    /// Polls needed beyond [`EMPTY_POLLS`].
    more_needed: AtomicU32,
}

impl EmptyPolls {
    /// A caller has found nothing. Returns whether callers drive from now on.
    #[inline]
    pub fn are_enough(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(count, Ordering::Relaxed);
        count >= EMPTY_POLLS + self.more_needed.load(Ordering::Relaxed)
    }

    /// The engine's thread drives again. `failed`: callers left work waiting, so more empty polls are needed before
    /// they drive again.
    pub fn start_again(&self, failed: bool) {
        self.count.store(0, Ordering::Relaxed);
        let more = self.more_needed.load(Ordering::Relaxed);
        let next = if failed { (2 * more + EMPTY_POLLS).min(MOST_EMPTY_POLLS) } else { more / 2 };
        self.more_needed.store(next, Ordering::Relaxed);
    }
}

/// How the engine's thread waits while callers drive, and what follows from how they do.
pub(crate) struct Watch {
    guarded: bool,
    /// The next nap, and the next look at callers while nothing arrives.
    pause: Duration,
    wait: Wait,
    late: u32,
}

/// What the engine's thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// It sleeps for this long, whatever arrives: callers take it.
    Nap(Duration),
    /// It sleeps until something arrives, or for this long.
    Arrival(Duration),
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Callers drive.
    Continue,
    /// They have gone on to something else.
    Gone,
    /// They poll, but look too late for what arrives.
    Late,
}

impl Watch {
    /// `guarded`: callers have promised to poll.
    pub fn new(guarded: bool) -> Self {
        let first = Watch::first_nap(guarded);
        Watch { guarded, pause: first, wait: Wait::Nap(first), late: 0 }
    }

    fn first_nap(guarded: bool) -> Duration {
        if guarded { FIRST_GUARDED_NAP } else { FIRST_NAP }
    }

    pub fn set_guarded(&mut self, guarded: bool) {
        if self.guarded != guarded {
            *self = Watch::new(guarded);
        }
    }

    pub fn wait(&self) -> Wait {
        self.wait
    }

    fn longer(&mut self) {
        let longest = if self.guarded { LONGEST_GUARDED_NAP } else { LONGEST_NAP };
        self.pause = (self.pause * 2).min(longest);
    }

    /// The wait was as long as it could be. `work`: turns taken and packets handled by callers in that time.
    pub fn timed_out(&mut self, work: u64) -> Verdict {
        let (Wait::Nap(waited) | Wait::Arrival(waited)) = self.wait;
        let dense = u128::from(work) * SLOWEST_STEP.as_nanos() >= waited.as_nanos();
        if !dense {
            self.pause = Watch::first_nap(self.guarded);
        } else {
            self.longer();
        }
        self.wait = Wait::Arrival(self.pause);
        if dense { Verdict::Continue } else { Verdict::Gone }
    }

    /// A nap was ended by callers: nothing has arrived for long.
    pub fn woken(&mut self) -> Verdict {
        self.wait = Wait::Arrival(self.pause);
        Verdict::Continue
    }

    /// The next wait ends when something is due.
    pub fn wait_at_most(&mut self, due: Duration) {
        self.wait = Wait::Arrival(self.pause.min(due));
    }

    /// Callers take what has arrived: they may have the processor for a while.
    pub fn answered(&mut self) -> Verdict {
        self.late = 0;
        self.wait = Wait::Nap(self.pause);
        self.longer();
        Verdict::Continue
    }

    /// The engine's thread took what had arrived. A short nap shows whether callers still poll. `preempted`: the thread
    /// had taken the processor from them, so that they could not take it.
    pub fn served(&mut self, preempted: bool) -> Verdict {
        self.pause = FIRST_NAP;
        self.wait = Wait::Nap(FIRST_NAP);
        self.late += u32::from(!preempted);
        if self.late >= LATE_LOOKS { Verdict::Late } else { Verdict::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_enough(polls: &EmptyPolls) -> u32 {
        (1..).find(|_| polls.are_enough()).unwrap()
    }

    #[test]
    fn callers_drive_after_polling_in_vain_and_later_where_they_left_work() {
        let polls = EmptyPolls::default();
        assert_eq!(polls_until_enough(&polls), EMPTY_POLLS);
        polls.start_again(true);
        assert_eq!(polls_until_enough(&polls), 2 * EMPTY_POLLS);
        (0..30).for_each(|_| polls.start_again(true));
        assert_eq!(polls_until_enough(&polls), EMPTY_POLLS + MOST_EMPTY_POLLS);
        (0..30).for_each(|_| polls.start_again(false));
        assert_eq!(polls_until_enough(&polls), EMPTY_POLLS);
    }

    #[test]
    fn while_nothing_arrives_the_thread_waits_for_it_and_rare_polling_ends_the_driving() {
        let mut watch = Watch::new(false);
        assert_eq!(watch.wait(), Wait::Nap(FIRST_NAP));
        for _ in 0..10 {
            assert_eq!(watch.timed_out(1000), Verdict::Continue);
            assert!(matches!(watch.wait(), Wait::Arrival(_)));
        }
        assert_eq!(watch.wait(), Wait::Arrival(LONGEST_NAP));
        assert_eq!(watch.timed_out(199), Verdict::Gone);
    }

    #[test]
    fn callers_that_take_what_arrives_lengthen_the_naps() {
        let mut watch = Watch::new(false);
        (0..10).for_each(|_| _ = watch.answered());
        assert_eq!(watch.wait(), Wait::Nap(LONGEST_NAP));
        // They stop: the end of the nap shows it, and until then they may end it themselves.
        assert_eq!(watch.woken(), Verdict::Continue);
        assert_eq!(watch.wait(), Wait::Arrival(LONGEST_NAP));
        assert_eq!(watch.timed_out(0), Verdict::Gone);
    }

    #[test]
    fn what_the_thread_takes_several_times_in_a_row_ends_the_driving_unless_it_had_preempted_callers() {
        let mut watch = Watch::new(false);
        for _ in 0..10 {
            assert_eq!(watch.served(true), Verdict::Continue);
        }
        assert_eq!(watch.wait(), Wait::Nap(FIRST_NAP));
        assert_eq!([(); 2].map(|()| watch.served(false)), [Verdict::Continue; 2]);
        watch.answered();
        assert_eq!([(); 2].map(|()| watch.served(false)), [Verdict::Continue; 2]);
        assert_eq!(watch.served(false), Verdict::Late);
    }
}
