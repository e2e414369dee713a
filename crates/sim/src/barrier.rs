//! A barrier for threads that meet every few microseconds: a thread that waits spins for a moment before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Spins before a waiting thread sleeps: some tens of microseconds, about the time of a small slot.
const SPINS: u32 = 4096;

/// A place where a fixed number of threads wait for each other, time after time.
pub(crate) struct Barrier {
    threads: usize,
    spins: u32,
    arrived: AtomicUsize,
    round: AtomicU64,
    /// A thread has panicked: nobody waits for it.
    is_broken: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// A thread that should have come to the barrier has panicked.
#[derive(Debug)]
pub(crate) struct Broken;

impl Barrier {
    /// A barrier for a number of threads. If the machine has fewer cores, none of them spins.
    pub fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Barrier {
            threads,
            spins: if cores < threads { 0 } else { SPINS },
            arrived: AtomicUsize::new(0),
            round: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Waits until all threads have come.
    pub fn wait(&self) -> Result<(), Broken> {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.open(|| self.round.store(round + 1, Ordering::Release));
        } else if !self.spin(round) {
            let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            while !self.is_over(round) {
                sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if self.is_broken.load(Ordering::Acquire) { Err(Broken) } else { Ok(()) }
    }

    /// This thread will not come any more: the others do not wait for it.
    pub fn give_up(&self) {
        self.open(|| self.is_broken.store(true, Ordering::Release));
    }

    /// Changes what waiting threads look at, and wakes those that sleep. Under the lock, so that none falls asleep after
    /// it has looked.
    fn open(&self, change: impl FnOnce()) {
        let sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        change();
        drop(sleep);
        self.wake.notify_all();
    }

    fn is_over(&self, round: u64) -> bool {
        self.round.load(Ordering::Acquire) != round || self.is_broken.load(Ordering::Acquire)
    }

    /// Spins for a while. Returns whether the round was over meanwhile.
    fn spin(&self, round: u64) -> bool {
        (0..self.spins).any(|_| {
            std::hint::spin_loop();
            self.is_over(round)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_is_a_round_ahead() {
        for spins in [0, SPINS] {
            let barrier = Barrier { spins, ..Barrier::new(3) };
            let rounds: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
            std::thread::scope(|scope| {
                for own in 0..3 {
                    let (barrier, rounds) = (&barrier, &rounds);
                    scope.spawn(move || {
                        for round in 1..=500 {
                            rounds[own].store(round, Ordering::SeqCst);
                            barrier.wait().unwrap();
                            assert!(rounds.iter().all(|r| r.load(Ordering::SeqCst) >= round));
                            barrier.wait().unwrap();
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_given_up() {
        let barrier = Barrier { spins: 0, ..Barrier::new(2) };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| barrier.wait());
            barrier.give_up();
            assert!(waits.join().unwrap().is_err());
        });
        assert!(barrier.wait().is_err());
    }
}
