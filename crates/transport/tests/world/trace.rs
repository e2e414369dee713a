//! The events of a run, as a hash and, for a single seed, as text.

use core::fmt;

use openmrc_transport::Time;

/// A running hash of all events.
pub struct Trace {
    hash: u64,
    verbose: bool,
}

impl Trace {
    pub fn new(verbose: bool) -> Self {
        Trace { hash: 0xCBF2_9CE4_8422_2325, verbose }
    }

    /// Two runs with the same hash did the same things in the same order.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Records an event of kind `what` at `now`; `facts` are its parameters.
    pub fn note(&mut self, now: Time, what: u8, facts: [u64; 3], text: impl FnOnce() -> String) {
        for word in [now.0 ^ u64::from(what) << 56, facts[0], facts[1], facts[2]] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(29);
        }
        if self.verbose {
            eprintln!("{:>14.3} us  {}", now.0 as f64 / 1e6, text());
        }
    }

    /// Text only.
    pub fn say(&self, now: Time, text: fmt::Arguments<'_>) {
        if self.verbose {
            eprintln!("{:>14.3} us  {text}", now.0 as f64 / 1e6);
        }
    }
}
