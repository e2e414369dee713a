//! Where an application that polls expects the next datagram.
//!
//! A sender takes the ports in turn, a run of packets on each. So the next datagram is looked for where the run goes on
//! or, when it is complete, on the port whose last datagram arrived longest ago. Where that is wrong, other ports are
//! looked at now and then.

use openmrc_transport::{PortSet, Time};

/// Wrong guesses from one look at another port to the next, in the middle of a run: most come true where they were
/// made, unless they have been wrong for long.
const MISSES_PER_LOOK_ELSEWHERE: u32 = 8;
const MISSES_WHILE_SURE: u32 = 32;

pub(super) struct NextPort {
    pub port: usize,
    /// Packets received of the current run.
    run: usize,
    /// When the last datagram of each port arrived in its queue, nanoseconds by the kernel's clock.
    arrived: [u64; PortSet::MAX_PORTS],
    count: usize,
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
            arrived: [0; PortSet::MAX_PORTS],
            count,
            elsewhere: 0,
            misses: 0,
            looked: Time::ZERO,
        }
    }

    /// `packets` data packets, the last of which arrived at `arrived`, have been taken from `port`; senders' runs have
    /// `burst`.
    #[inline]
    pub fn received(&mut self, now: Time, port: usize, arrived: u64, packets: usize, burst: usize) {
        if port != self.port {
            self.port = port;
            self.run = 0;
        }
        self.arrived[port] = arrived;
        self.run += packets;
        self.misses = 0;
        self.looked = now;
        if self.run >= burst {
            self.run = 0;
            self.port = (0..self.count).min_by_key(|&p| self.arrived[p]).unwrap_or(0);
        }
    }

    /// A datagram that is no part of a run, feedback say, has been taken from `port`: the run goes on where it was.
    #[inline]
    pub fn received_other(&mut self, port: usize, arrived: u64) {
        self.arrived[port] = arrived;
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

    #[test]
    fn runs_are_expected_on_the_ports_in_turn() {
        const BURST: usize = 8;
        let mut next = NextPort::new(4);
        for run in 0..100 {
            let port = run % 4;
            if run >= 4 {
                assert_eq!(next.port, port, "run {run}");
            }
            for packet in 0..BURST {
                next.received(Time(1), port, (run * BURST + packet + 1) as u64, 1, BURST);
                next.received_other((port + 1) % 4, 0);
            }
        }
    }

    #[test]
    fn after_wrong_guesses_other_ports_are_looked_at() {
        let mut next = NextPort::new(4);
        assert!((0..10).any(|_| next.looks_elsewhere()));
        next.received(Time(1), 0, 1, 1, 8);
        assert_eq!((0..32).filter(|_| next.looks_elsewhere()).count(), 4);
    }
}
