//! Where an application that polls expects the next datagram.
//!
//! A sender takes the ports in turn, a run of data packets on each. So the next datagram is looked for where the run goes
//! on or, when it is complete, on the port that followed this one the last time. Feedback follows no such order and does
//! not count. Where the guess is wrong, other ports are looked at now and then.

use openmrc_transport::{PortSet, Time};

/// Wrong guesses from one look at another port to the next, in the middle of a run: most come true where they were
/// made, unless they have been wrong for long.
const MISSES_PER_LOOK_ELSEWHERE: u32 = 8;
const MISSES_WHILE_SURE: u32 = 32;

pub(super) struct NextPort {
    pub port: usize,
    /// Packets received of the current run.
    run: usize,
    /// On which port data came after data of each port.
    followed_by: [u8; PortSet::MAX_PORTS],
    /// The port of the last data.
    last: usize,
    /// The other port looked at last, and how often there was nothing where it was expected.
    pub elsewhere: usize,
    misses: u32,
    /// When there was a look last.
    pub looked: Time,
}

impl NextPort {
    /// For this many ports, which at first are taken to be used in order.
    pub fn new(count: usize) -> Self {
        NextPort {
            port: 0,
            run: 0,
            followed_by: std::array::from_fn(|port| if port + 1 < count { port as u8 + 1 } else { 0 }),
            last: 0,
            elsewhere: 0,
            misses: 0,
            looked: Time::ZERO,
        }
    }

    /// `packets` data packets have been taken from `port`; senders' runs have `burst`.
    #[inline]
    pub fn received(&mut self, now: Time, port: usize, packets: usize, burst: usize) {
        if port != self.last {
            self.followed_by[self.last] = port as u8;
            (self.last, self.run) = (port, 0);
        }
        self.port = port;
        self.run += packets;
        self.misses = 0;
        self.looked = now;
        if self.run >= burst {
            self.run = 0;
            self.port = self.followed_by[port].into();
        }
    }

    /// Whether to look at another port too, after nothing was where it was expected. Within a run now and then; between
    /// runs, where the guess is less sure, at once.
    #[inline]
    pub fn looks_elsewhere(&mut self) -> bool {
        self.misses = self.misses.wrapping_add(1);
        let often = self.run == 0 || self.misses > MISSES_WHILE_SURE;
        self.misses.is_multiple_of(if often { 2 } else { MISSES_PER_LOOK_ELSEWHERE })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes runs of data from the ports in this order, again and again; the number of wrong guesses.
    fn wrong_guesses(next: &mut NextPort, order: &[usize], runs: usize) -> usize {
        const BURST: usize = 8;
        let mut wrong = 0;
        for &port in order.iter().cycle().take(runs) {
            wrong += usize::from(next.port != port);
            (0..BURST).for_each(|_| next.received(Time(1), port, 1, BURST));
        }
        wrong
    }

    #[test]
    fn runs_are_expected_on_the_ports_in_turn() {
        assert_eq!(wrong_guesses(&mut NextPort::new(4), &[0, 1, 2, 3], 100), 0);
    }

    #[test]
    fn a_port_that_fails_and_one_that_returns_cost_a_wrong_guess_each() {
        let mut next = NextPort::new(4);
        wrong_guesses(&mut next, &[0, 1, 2, 3], 8);
        assert_eq!(wrong_guesses(&mut next, &[0, 1, 3], 99), 1);
        assert!(wrong_guesses(&mut next, &[0, 1, 2, 3], 100) <= 2);
    }

    #[test]
    fn after_wrong_guesses_other_ports_are_looked_at() {
        let mut next = NextPort::new(4);
        assert!((0..10).any(|_| next.looks_elsewhere()));
        next.received(Time(1), 0, 1, 8);
        assert_eq!((0..32).filter(|_| next.looks_elsewhere()).count(), 4);
    }
}
