//! The state of a run, and its loop: take the next event, let the part of the world that it concerns react.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use openmrc_transport::{SendDone, Time, Transmit};
use openmrc_wire::Packet;

use crate::calendar::Calendar;
use crate::config::NetworkConfig;
use crate::endpoints::Endpoints;
use crate::event::{Event, Kind};
use crate::network::Network;
use crate::nic::Nic;
use crate::post::Posts;
use crate::queue_pair::QueuePairs;
use crate::results::{Results, Totals};
use crate::scenario::{Scenario, ScenarioError};

/// Packets on their way, by the number their events carry.
#[derive(Default)]
pub(crate) struct Slab {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Slab {
    #[inline]
    pub fn put(&mut self, packet: Packet) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.packets[index as usize] = packet;
                index
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    #[inline]
    pub fn take(&mut self, index: u32) -> Packet {
        self.free.push(index);
        self.packets[index as usize]
    }

    pub fn drop_packet(&mut self, index: u32) {
        self.free.push(index);
    }

    pub fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

/// What queue pairs have asked for while one of them was served; kept so that its memory is.
#[derive(Default)]
pub(crate) struct Outbox {
    pub transmits: Vec<Transmit>,
    pub done: Vec<SendDone>,
    pub delivered: Vec<u32>,
    pub failed: bool,
    pub losses: u64,
}

/// How far a run has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Virtual time.
    pub now: Time,
    /// Messages completed, or failed.
    pub finished: usize,
    /// Messages there are.
    pub messages: usize,
    /// Events processed.
    pub events: u64,
}

/// A network with its hosts, in virtual time.
pub struct World {
    pub(crate) config: NetworkConfig,
    pub(crate) now: u64,
    pub(crate) calendar: Calendar,
    pub(crate) net: Network,
    pub(crate) slab: Slab,
    pub(crate) nics: Vec<Nic>,
    pub(crate) qps: QueuePairs,
    pub(crate) endpoints: Endpoints,
    pub(crate) posts: Posts,
    pub(crate) totals: Totals,
    pub(crate) dice: Xoshiro256PlusPlus,
    pub(crate) outbox: Outbox,
    /// Bytes of a full data packet on a cable, and of a trimmed one.
    pub(crate) full_packet_bytes: u64,
    pub(crate) trimmed_bytes: u16,
    limit: u64,
}

impl World {
    /// A world at time zero.
    ///
    /// # Errors
    /// [`ScenarioError`] says what in the scenario cannot be.
    pub fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let config = scenario.network.clone();
        let net = Network::new(&config);
        let hosts = config.fabric.shape().hosts;
        let endpoints = Endpoints::new(&config, &net.switch, &scenario.transport)?;
        let mut world = World {
            now: 0,
            calendar: Calendar::new(slot_shift(&config), 14),
            nics: vec![Nic::default(); hosts as usize],
            slab: Slab::default(),
            qps: QueuePairs::default(),
            endpoints,
            posts: Posts::new(&scenario.workload),
            totals: Totals::default(),
            dice: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            outbox: Outbox::default(),
            full_packet_bytes: u64::from(config.full_packet_bytes()),
            trimmed_bytes: config.trimmed_bytes() as u16,
            limit: scenario.limit.0,
            net,
            config,
        };
        world.schedule_posts();
        Ok(world)
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            now: Time(self.now),
            finished: self.posts.finished,
            messages: self.posts.len(),
            events: self.totals.events,
        }
    }

    /// Goes on for at most `events` events. Says whether there is more to do.
    pub fn run_for(&mut self, events: u64) -> bool {
        for _ in 0..events {
            if self.posts.all_finished() {
                return false;
            }
            let Some(event) = self.calendar.pop() else { return false };
            if event.time > self.limit {
                self.now = self.limit;
                // It stays on its way.
                self.calendar.push(event);
                return false;
            }
            self.now = self.now.max(event.time);
            self.totals.events += 1;
            self.react(event);
        }
        true
    }

    /// Runs to the end: all messages finished, nothing left to happen, or the time limit.
    pub fn run(&mut self) {
        while self.run_for(u64::MAX) {}
    }

    #[inline]
    fn react(&mut self, event: Event) {
        match event.kind {
            Kind::Arrive => self.arrive(event),
            Kind::Wake => self.wake(event.at, event.time),
            Kind::Timer => self.timer(event.at, event.time),
            Kind::Post => self.post_due(event.at),
            Kind::Fault | Kind::Departed => {}
        }
    }

    /// What has come of it. Counters of queue pairs that still exist are added in.
    pub fn results(&self) -> Results {
        let mut totals = self.totals;
        self.qps.add_up(&mut totals);
        Results {
            end: Time(self.now),
            messages: self.posts.results(),
            totals,
            in_flight: self.slab.len() as u64,
            port_bytes: self.net.ports.iter().map(|p| p.bytes).collect(),
        }
    }

    /// The network it runs on.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}

/// Width of a calendar slot, as a power of two of picoseconds: about a hundred events a slot when every host sends.
fn slot_shift(config: &NetworkConfig) -> u32 {
    let shape = config.fabric.shape();
    let hops = u64::from(shape.tiers) * 2 + 3;
    let packet = config.serialization(u64::from(config.full_packet_bytes())).0;
    let per_packet_time = u64::from(shape.hosts) * u64::from(shape.planes) * hops;
    let width = packet * 100 / per_packet_time.max(1);
    width.max(1).ilog2().clamp(6, 18)
}
