//! The order in which datagrams of several ports are handled: that of their arrival.
//!
//! A process that was not scheduled for a while finds many datagrams on all ports. If it read one port before the
//! other, packets on the second would be overtaken by packets that were sent much later, and their sender would take
//! them for lost. So one datagram of each port is read ahead, and the oldest of them is handled next.

use openmrc_transport::PortSet;

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Read a datagram of this port, and say what came.
    Read(usize),
    /// Handle the datagram that was read from this port.
    Handle(usize),
    /// Ask the system which ports have any.
    Ask,
}

/// Datagrams that were read ahead, one for each port at most.
pub(super) struct ArrivalOrder {
    /// When they arrived, nanoseconds of the system's clock; 0 where there is none.
    heads: [u64; PortSet::MAX_PORTS],
    held: u32,
    /// Ports that may have more, a bit each.
    maybe: u32,
    all: u32,
    /// When the system was asked, by the clock of `heads`.
    asked: u64,
    /// It was asked, and nothing was handled since.
    just_asked: bool,
}

impl ArrivalOrder {
    pub fn new(ports: usize) -> Self {
        ArrivalOrder {
            heads: [0; PortSet::MAX_PORTS],
            held: 0,
            maybe: 0,
            all: (1 << ports) - 1,
            asked: 0,
            just_asked: false,
        }
    }

    /// Whether a datagram was read and not handled.
    #[inline]
    pub fn holds_any(&self) -> bool {
        self.held != 0
    }

    #[inline]
    pub fn next(&self) -> Step {
        let unread = self.maybe & !self.held;
        if unread != 0 {
            return Step::Read(unread.trailing_zeros() as usize);
        }
        let Some(oldest) = self.oldest() else { return Step::Ask };
        // On a port that had nothing when the system was asked, something older than this may have arrived since then.
        let may_be_older = self.maybe != self.all && self.heads[oldest] > self.asked && !self.just_asked;
        if may_be_older { Step::Ask } else { Step::Handle(oldest) }
    }

    /// The port of the oldest datagram that was read and not handled.
    #[inline]
    pub fn oldest(&self) -> Option<usize> {
        let held = PortSet(self.held as u16);
        held.iter().map(usize::from).min_by_key(|&port| self.heads[port])
    }

    /// A datagram that arrived at this time was read from a port; `None`: there was none.
    #[inline]
    pub fn read(&mut self, port: usize, arrived: Option<u64>) {
        match arrived {
            None => self.maybe &= !(1 << port),
            Some(arrived) => {
                self.heads[port] = arrived;
                self.held |= 1 << port;
                self.maybe |= 1 << port;
            }
        }
    }

    /// The datagram of a port is handled.
    #[inline]
    pub fn handled(&mut self, port: usize) {
        self.held &= !(1 << port);
        self.just_asked = false;
    }

    /// The clock of the arrival times shows `now`. Whatever seems to be later is from before the clock was set back, and
    /// would be overtaken until the clock shows that time again.
    #[inline]
    pub fn clock_shows(&mut self, now: u64) {
        self.asked = self.asked.min(now);
        for port in PortSet(self.held as u16).iter().map(usize::from) {
            self.heads[port] = self.heads[port].min(now);
        }
    }

    /// The system was asked at `asked`: these ports have datagrams, a bit each.
    pub fn ready(&mut self, asked: u64, ports: u32) {
        self.clock_shows(asked);
        self.asked = asked;
        self.maybe |= ports & self.all;
        self.just_asked = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// Ports with queues of arrival times, and what became of them.
    struct World {
        queues: Vec<VecDeque<u64>>,
        heads: Vec<Option<u64>>,
        order: ArrivalOrder,
        clock: u64,
        handled: Vec<u64>,
        asked: usize,
        failed_reads: usize,
    }

    impl World {
        fn new(ports: usize) -> Self {
            World {
                queues: vec![VecDeque::new(); ports],
                heads: vec![None; ports],
                order: ArrivalOrder::new(ports),
                clock: 1,
                handled: Vec::new(),
                asked: 0,
                failed_reads: 0,
            }
        }

        fn arrive(&mut self, port: usize) {
            self.clock += 1;
            self.queues[port].push_back(self.clock);
        }

        /// Handles one datagram; whether there was any.
        fn handle(&mut self) -> bool {
            for _ in 0..100 {
                self.clock += 1;
                match self.order.next() {
                    Step::Read(port) => {
                        assert!(self.heads[port].is_none(), "read before it was handled");
                        self.heads[port] = self.queues[port].pop_front();
                        self.failed_reads += usize::from(self.heads[port].is_none());
                        self.order.read(port, self.heads[port]);
                    }
                    Step::Handle(port) => {
                        self.handled.push(self.heads[port].take().expect("handled without being read"));
                        self.order.handled(port);
                        return true;
                    }
                    Step::Ask => {
                        self.asked += 1;
                        let ready = (0..self.queues.len()).filter(|&p| !self.queues[p].is_empty());
                        let ready = ready.fold(0, |set, port| set | 1 << port);
                        self.order.ready(self.clock, ready);
                        if ready == 0 && !self.order.holds_any() {
                            return false;
                        }
                    }
                }
            }
            panic!("nothing handled in 100 steps");
        }
    }

    #[test]
    fn datagrams_are_handled_as_they_arrived() {
        for seed in 0..300 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let ports = rng.random_range(1..=16);
            let mut world = World::new(ports);
            for _ in 0..200 {
                for _ in 0..rng.random_range(0..30) {
                    world.arrive(rng.random_range(0..ports));
                }
                for _ in 0..rng.random_range(0..40) {
                    world.handle();
                }
            }
            while world.handle() {}
            assert!(world.queues.iter().all(VecDeque::is_empty), "seed {seed}");
            assert!(world.handled.is_sorted(), "seed {seed}");
        }
    }

    #[test]
    fn where_all_ports_have_much_nobody_asks_the_system() {
        let mut world = World::new(8);
        (0..8000).for_each(|i| world.arrive(i % 8));
        (0..7000).for_each(|_| assert!(world.handle()));
        assert_eq!((world.asked, world.failed_reads), (1, 0));
    }

    /// Datagrams of port 0 that are handled, of `turns` turns as the engine takes them, until the only one of port 1 is.
    fn handled_before_the_other_port(world: &mut World, turns: usize) -> Option<usize> {
        let mut before = 0;
        for _ in 0..turns {
            for _ in 0..32 {
                world.arrive(0);
                let waiting = world.queues[1].len() + usize::from(world.heads[1].is_some());
                assert!(world.handle());
                if world.queues[1].len() + usize::from(world.heads[1].is_some()) < waiting {
                    return Some(before);
                }
                before += 1;
            }
            world.order.clock_shows(world.clock);
        }
        None
    }

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn a_datagram_that_waits_while_the_clock_is_set_back_does_not_wait_for_the_clock() {
        let mut world = World::new(2);
        world.clock = 2 * HOUR;
        (0..100).for_each(|_| world.arrive(0));
        world.arrive(1);
        assert!(world.handle());
        // It was read ahead, then the clock is set back.
        assert!(world.heads[1].is_some());
        world.clock -= HOUR;
        (0..100).for_each(|_| world.arrive(0));
        assert!(handled_before_the_other_port(&mut world, 20).is_some());
    }

    #[test]
    fn a_port_that_had_nothing_is_asked_again_though_the_clock_was_set_back() {
        let mut world = World::new(2);
        world.clock = 2 * HOUR;
        (0..100).for_each(|_| world.arrive(0));
        assert!(world.handle());
        world.clock -= HOUR;
        (0..100).for_each(|_| world.arrive(0));
        world.arrive(1);
        assert!(handled_before_the_other_port(&mut world, 20).is_some());
    }

    #[test]
    fn a_clock_that_is_set_back_stops_nothing() {
        let mut world = World::new(3);
        for round in 0..1000 {
            world.arrive(round % 3);
            if round % 10 == 9 {
                world.clock = 5;
            }
            assert!(world.handle(), "round {round}");
        }
        assert_eq!(world.handled.len(), 1000);
    }
}
