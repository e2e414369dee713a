//! Where the next datagram is expected.
//!
//! A sender takes the ports in turn, a run of packets on each. So the next datagram is looked for where the run goes on
//! or, when it is complete, on the port whose last datagram arrived longest ago; only if nothing is there is the system
//! asked which ports have any. This keeps packets in the order in which they arrived, also when much waits everywhere
//! because this process has not run for a while. Taking the ports in turn would not: what is behind on one of them would
//! stay behind, and its sender take it for lost.

use openmrc_transport::{PortSet, Time};

/// Wrong guesses of a poller from one look at another port to the next, in the middle of a run: most come true where
/// they were made, unless they have been wrong for long.
const MISSES_PER_LOOK_ELSEWHERE: u32 = 8;
const MISSES_WHILE_SURE: u32 = 32;

pub(super) struct NextPort {
    pub port: usize,
    /// Packets of the run at hand.
    run: usize,
    /// When the last datagram of each port arrived in its queue, nanoseconds by the kernel's clock.
    arrived: [u64; PortSet::MAX_PORTS],
    count: usize,
    /// Ports that may have something, a bit each: those the system named, until nothing was there.
    ready: u32,
    /// When the system was asked, by the clock of `arrived`.
    asked: u64,
    /// Polling: the other port looked at last, and how often there was nothing where it was expected.
    pub elsewhere: usize,
    misses: u32,
    /// Polling: when there was a look last.
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
            ready: u32::MAX,
            asked: 0,
            elsewhere: 0,
            misses: 0,
            looked: Time::ZERO,
        }
    }

    /// Whether to look there without asking the system. Where nothing was when it was asked, something may be by now:
    /// what arrived later comes after that.
    pub fn expected(&self) -> bool {
        let all = (1 << self.count) - 1;
        self.ready >> self.port & 1 == 1
            && (self.ready & all == all || self.run > 0 || self.arrived[self.port] <= self.asked)
    }

    /// What the system said at `asked`: `ready` has a bit for each port on which something waits; `false` if there is none.
    pub fn look(&mut self, asked: u64, ready: u32) -> bool {
        self.asked = asked;
        self.ready = ready;
        if ready >> self.port & 1 == 0 || self.run == 0 {
            self.rotate();
        }
        ready != 0
    }

    /// `packets` data packets, the last of which arrived at `arrived`, have been taken from `port`; senders' runs have
    /// `burst`.
    pub fn received(&mut self, now: Time, port: usize, arrived: u64, packets: usize, burst: usize) {
        if port != self.port {
            self.port = port;
            self.run = 0;
        }
        self.ready |= 1 << port;
        self.arrived[port] = arrived;
        self.run += packets;
        self.misses = 0;
        self.looked = now;
        if self.run >= burst {
            self.rotate();
        }
    }

    /// A datagram that is no part of a run, feedback say, has been taken from `port`: the run goes on where it was.
    pub fn received_other(&mut self, port: usize, arrived: u64) {
        self.ready |= 1 << port;
        self.arrived[port] = arrived;
    }

    /// Nothing was on `port`.
    pub fn missed(&mut self, port: usize) {
        self.ready &= !(1 << port);
    }

    /// To the port whose last datagram arrived longest ago, of those that may have something if any may.
    fn rotate(&mut self) {
        self.run = 0;
        let oldest =
            |may: u32| (0..self.count).filter(|&p| may >> p & 1 == 1).min_by_key(|&p| self.arrived[p]);
        self.port = oldest(self.ready).or_else(|| oldest(u32::MAX)).unwrap_or(0);
    }

    /// Polling: whether to look at another port too, after nothing was where it was expected. Within a run now and
    /// then; between runs, where the guess is less sure, at once.
    pub fn looks_elsewhere(&mut self) -> bool {
        self.misses = self.misses.wrapping_add(1);
        let often = self.run == 0 || self.misses > MISSES_WHILE_SURE;
        self.misses.is_multiple_of(if often { 2 } else { MISSES_PER_LOOK_ELSEWHERE })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::{RngExt as _, SeedableRng as _};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    const BURST: usize = 8;

    /// Ports with queues, a sender that takes them in turns of runs, and a receiver that reads with pauses.
    struct World {
        queues: Vec<VecDeque<u64>>,
        next: NextPort,
        clock: u64,
        asked: u64,
        order: Vec<u64>,
    }

    impl World {
        fn new(ports: usize) -> Self {
            let queues = vec![VecDeque::new(); ports];
            World { queues, next: NextPort::new(ports), clock: 1, asked: 0, order: vec![] }
        }

        fn send(&mut self, port: usize, packets: usize) {
            for _ in 0..packets {
                self.clock += 1;
                self.queues[port].push_back(self.clock);
            }
        }

        fn take(&mut self, port: usize) -> bool {
            let Some(arrived) = self.queues[port].pop_front() else {
                self.next.missed(port);
                return false;
            };
            self.order.push(arrived);
            self.next.received(Time(0), port, arrived, 1, BURST);
            true
        }

        /// Reads one datagram as the engine does; whether there was one.
        fn read(&mut self) -> bool {
            if self.next.expected() && self.take(self.next.port) {
                return true;
            }
            self.asked += 1;
            let ready =
                self.queues.iter().enumerate().fold(0, |set, (p, q)| set | u32::from(!q.is_empty()) << p);
            self.next.look(self.clock, ready) && self.take(self.next.port)
        }
    }

    /// How many packets that arrived later were read before the packet for which they are most. Packets have arrived at
    /// 2, 3, ... and all have been read.
    fn most_overtaken(order: &[u64]) -> usize {
        let mut read = vec![false; order.len() + 2];
        let mut unread_from = 2;
        let mut most = 0;
        for (i, &at) in order.iter().enumerate() {
            read[at as usize] = true;
            while read.get(unread_from) == Some(&true) {
                unread_from += 1;
            }
            // Those read before it are the older ones that are no longer unread, and those that arrived later.
            let unread = (unread_from..at as usize).filter(|&older| !read[older]).count();
            let older_read = at as usize - 2 - unread;
            most = most.max(i - older_read);
        }
        most
    }

    #[test]
    fn packets_are_read_as_they_arrived_but_for_a_run_of_each_port() {
        for seed in 0..200 {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            let ports = rng.random_range(1..=16);
            let mut world = World::new(ports);
            for _ in 0..20 {
                let silent = rng.random_range(0..=ports);
                let mut order: Vec<usize> = (0..ports).filter(|&p| p != silent).collect();
                for _ in 0..rng.random_range(0..10) {
                    if rng.random_bool(0.1) && order.len() > 1 {
                        let i = rng.random_range(1..order.len());
                        order.swap(0, i);
                    }
                    for &port in &order {
                        let whole = rng.random_bool(0.9);
                        world.send(port, if whole { BURST } else { rng.random_range(1..BURST) });
                    }
                }
                for _ in 0..rng.random_range(0..500) {
                    if !world.read() {
                        break;
                    }
                }
            }
            while world.read() {}
            assert!(world.queues.iter().all(VecDeque::is_empty), "seed {seed}");
            let most = most_overtaken(&world.order);
            assert!(most <= BURST * ports, "seed {seed}: {most} of {ports} ports");
        }
    }

    #[test]
    fn where_all_ports_have_much_nobody_asks_the_system() {
        let mut world = World::new(8);
        for run in 0..800 {
            world.send(run % 8, BURST);
        }
        while world.order.len() < 6000 {
            assert!(world.read());
        }
        assert!(world.order.is_sorted());
        assert!(world.asked <= 1, "{}", world.asked);
    }
}
