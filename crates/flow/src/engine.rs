//! The engine: messages begin, leave and arrive; the links are shared out anew whenever one begins or has left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use openmrc_fabric::Fabric;
use openmrc_scenario::run::{Change, Effect, FaultEvent, NetworkConfig, Target, TransportConfig};
use openmrc_scenario::{
    Engine, Footprint, LifeTotals, Patterns, Progress, Results, Run, RunError, SkipTotals, TaskResults,
    Totals,
};
use openmrc_transport::Time;
use openmrc_workload::{Connection, Task};

use crate::faults::{PlaneFaults, links_of};
use crate::links::Links;
use crate::refusal;
use crate::shares::{Departure, Shares};
use crate::tasks::{BYTES_PER_CONNECTION, BYTES_PER_TASK, Tasks};
use crate::timing::Timing;

/// A run at flow level.
pub struct FlowWorld {
    config: NetworkConfig,
    timing: Timing,
    links: Links,
    shares: Shares,
    tasks: Tasks,
    faults: Faults,
    patterns: Patterns,
    events: BinaryHeap<Reverse<Event>>,
    clock: Clock,
    totals: Totals,
}

/// Where the run stands.
struct Clock {
    now: u64,
    /// The latest time at which something has happened, or will because of what has.
    end: u64,
    limit: u64,
    is_at_limit: bool,
    /// The links are not shared out before, and whether there is an event for it.
    share_out_at: u64,
    is_to_share_out: bool,
}

impl Clock {
    fn new(limit: u64) -> Self {
        Clock { now: 0, end: 0, limit, is_at_limit: false, share_out_at: 0, is_to_share_out: false }
    }
}

/// The schedule of faults, and what is broken now.
struct Faults {
    schedule: Vec<FaultEvent>,
    /// By plane.
    planes: Vec<PlaneFaults>,
    /// Links have changed and flows have not found their ways anew.
    is_new: bool,
    /// How often flows have found their ways anew.
    changes: u32,
}

/// Something that happens. Faults come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    time: u64,
    kind: Kind,
    /// A fault, task or flow.
    index: u32,
    /// Of a departure.
    generation: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Fault,
    Left,
    Delivered,
    Due,
    /// The links are to be shared out.
    ShareOut,
}

impl Engine for FlowWorld {
    fn footprint(
        network: &NetworkConfig,
        _transport: &TransportConfig,
        _threads: u32,
    ) -> Result<Footprint, RunError> {
        // Estimated: a flow with its links, and the events of a message. A host has two links, each with a list.
        const PER_FLOW: u64 = 400;
        const PER_LINK: u64 = 60;
        let links = 2 * u64::from(network.fabric.links());
        let shared = 2 * u64::from(network.fabric.shape().hosts) * PER_LINK;
        Ok(Footprint {
            per_port: 8 + shared / links.max(1),
            per_host: 0,
            per_active_host: 0,
            per_message: (size_of::<Task>() + BYTES_PER_TASK + 4 * size_of::<u32>()) as u64,
            per_result: 111,
            per_connection: (size_of::<Connection>() + BYTES_PER_CONNECTION) as u64,
            per_open_connection: PER_FLOW,
            per_packet: 0,
        })
    }

    fn new(run: &Run) -> Result<Self, RunError> {
        run.check()?;
        refusal::check(run)?;
        let config = run.network.clone();
        let timing = Timing::new(&config);
        let links = Links::new(config.fabric, timing.port_rate, ev_active(&run.transport));
        let shares = Shares::new(&links, &timing);
        let tasks = Tasks::new(&run.workload);
        let mut events = BinaryHeap::new();
        for (index, time) in (0..).zip(times_of_faults(&run.faults, &config.fabric, &timing)) {
            events.push(Reverse(Event { time, kind: Kind::Fault, index, generation: 0 }));
        }
        for (time, index) in tasks.due_at_first() {
            events.push(Reverse(Event { time, kind: Kind::Due, index, generation: 0 }));
        }
        let planes = vec![PlaneFaults::default(); config.fabric.shape().planes as usize];
        Ok(FlowWorld {
            timing,
            links,
            shares,
            tasks,
            faults: Faults { schedule: run.faults.clone(), planes, is_new: false, changes: 0 },
            patterns: Patterns::new(&run.workload),
            events,
            clock: Clock::new(run.limit.0),
            totals: Totals::default(),
            config,
        })
    }

    fn advance(&mut self, events: u64) -> bool {
        let until = self.totals.events.saturating_add(events);
        while self.tasks.finished < self.tasks.len() {
            if self.totals.events >= until {
                return true;
            }
            let Some(&Reverse(Event { time, .. })) = self.events.peek() else { return false };
            if time > self.clock.limit {
                self.clock.is_at_limit = true;
                return false;
            }
            self.clock.now = time;
            self.clock.end = self.clock.end.max(time);
            self.happen_now();
        }
        false
    }

    fn progress(&self) -> Progress {
        Progress {
            now: Time(self.end()),
            finished: self.tasks.finished,
            messages: self.tasks.len(),
            events: self.totals.events,
            data_packets: self.totals.hosts.data_packets,
        }
    }

    fn results(&self) -> Results {
        let TaskResults { messages, steps, nodes } =
            self.patterns.results(self.tasks.fates(self.clock.limit));
        let ports = 2 * self.config.fabric.links() as usize;
        Results {
            end: Time(self.end()),
            messages,
            steps,
            nodes,
            totals: self.totals,
            life: LifeTotals::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            port_bytes: vec![0; ports],
            port_busy_until: vec![Time::ZERO; ports],
            skips: SkipTotals::default(),
        }
    }
}

impl FlowWorld {
    /// The network it runs on.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// The ports of a link, by its number in the fabric: the one that sends up, and the one that sends down.
    pub const fn link_ports(link: u32) -> [u32; 2] {
        [2 * link, 2 * link + 1]
    }

    fn end(&self) -> u64 {
        if self.clock.is_at_limit { self.clock.limit } else { self.clock.end.min(self.clock.limit) }
    }

    /// Everything that happens at this time, and what follows for the shares of flows.
    fn happen_now(&mut self) {
        let now = self.clock.now;
        while let Some(&Reverse(event)) = self.events.peek().filter(|event| event.0.time == now) {
            self.events.pop();
            if event.kind == Kind::Left && self.shares.flow(event.index).generation != event.generation {
                continue;
            }
            self.totals.events += 1;
            match event.kind {
                Kind::Fault => self.break_or_repair(event.index),
                Kind::Due => self.due(event.index),
                Kind::Left => self.left(event.index),
                Kind::Delivered => self.delivered(event.index),
                Kind::ShareOut => self.clock.is_to_share_out = false,
            }
        }
        if std::mem::take(&mut self.faults.is_new) {
            self.meet_changes();
        }
        if self.shares.is_due() {
            self.share_out();
        }
    }

    /// Shares the links out, unless that has just been done: then it is done for several messages together.
    fn share_out(&mut self) {
        let now = self.clock.now;
        let FlowWorld { shares, links, timing, events, clock, .. } = self;
        if now >= clock.share_out_at {
            clock.share_out_at = now + timing.grain();
            shares.share_out(links, timing, now, |Departure { at, flow, generation }| {
                events.push(Reverse(Event { time: at, kind: Kind::Left, index: flow, generation }));
            });
        } else if !std::mem::replace(&mut clock.is_to_share_out, true) {
            let time = clock.share_out_at;
            events.push(Reverse(Event { time, kind: Kind::ShareOut, index: 0, generation: 0 }));
        }
    }

    /// A message is due, or a computation has ended.
    fn due(&mut self, task: u32) {
        if self.tasks.is_computation(task) {
            self.tasks.computed(task, self.clock.now);
            self.release(task);
        } else if self.tasks.post(task, self.clock.now) {
            self.begin(task);
        }
    }

    /// A message begins to leave.
    fn begin(&mut self, task: u32) {
        let (Connection { src, dst }, bytes) = (self.tasks.ends(task), self.tasks.bytes(task));
        let turn = self.config.fabric.turn(src, dst);
        let wire = self.timing.passage(turn, bytes).wire;
        let chance = self.timing.chance(u64::from(task) << 1 | 1);
        let id = self.shares.begin(&self.links, (task, chance), (src, dst), wire, self.clock.now);
        self.totals.hosts.data_bytes += u64::from(bytes);
        if self.tasks.meets_changes(task, self.faults.changes) && self.faults.changes > 0 {
            // Every connection finds out by itself which paths are dead.
            let dead = self.links.dead_share(src, dst);
            let host_rate = self.timing.port_rate * f64::from(self.config.fabric.shape().planes);
            let lost = dead * wire.min(host_rate * self.timing.path_reaction());
            self.lose(id, lost, self.timing.path_reaction());
        }
    }

    /// The last byte of a message has left.
    fn left(&mut self, id: u32) {
        let flow = self.shares.flow(id);
        let (task, load, ends, not_before) = (flow.task, flow.load, (flow.src, flow.dst), flow.not_before);
        self.shares.end(&self.links, id);
        let turn = self.config.fabric.turn(ends.0, ends.1);
        let bytes = self.tasks.bytes(task);
        let latency = self.timing.passage(turn, bytes).latency;
        let wait = self.timing.wait(turn, bytes, load, u64::from(task) << 1);
        let time = (self.clock.now + latency + wait).max(not_before);
        self.events.push(Reverse(Event { time, kind: Kind::Delivered, index: task, generation: 0 }));
        if let Some(next) = self.tasks.left(task) {
            self.begin(next);
        }
    }

    /// A message is in place.
    fn delivered(&mut self, task: u32) {
        let Connection { src, dst } = self.tasks.ends(task);
        let completed = self.clock.now + self.timing.answer(self.config.fabric.turn(src, dst)).0;
        self.tasks.delivered(task, self.clock.now, completed);
        self.clock.end = self.clock.end.max(completed);
        self.release(task);
    }

    fn release(&mut self, task: u32) {
        let far = self.config.shortest_hop().0;
        let events = &mut self.events;
        self.tasks.release(task, (self.clock.now, far), |time, index| {
            events.push(Reverse(Event { time, kind: Kind::Due, index, generation: 0 }));
        });
    }

    // Faults.

    fn break_or_repair(&mut self, index: u32) {
        let fault = self.faults.schedule[index as usize];
        for link in links_of(&self.config.fabric, &fault) {
            self.faults.planes[link.plane as usize].apply(link, fault.change);
        }
        self.faults.is_new = true;
    }

    /// A flow loses bytes, and sends them again after a reaction. Less than half a packet is none.
    fn lose(&mut self, id: u32, bytes: f64, reaction: f64) {
        if self.timing.is_a_packet(bytes) {
            self.shares.lose(id, bytes, self.clock.now + reaction as u64);
        }
    }

    /// Flows lose what they send on dead paths until they notice, and find their ways anew.
    fn meet_changes(&mut self) {
        let ids: Vec<u32> = self.shares.on_their_way().collect();
        let state = |world: &FlowWorld, id: u32| {
            let flow = world.shares.flow(id);
            let planes = f64::from(world.links.planes_between(flow.src, flow.dst));
            (planes, world.links.dead_share(flow.src, flow.dst))
        };
        let before: Vec<_> = ids.iter().map(|&id| state(self, id)).collect();
        self.links.lay_out(&self.faults.planes);
        self.faults.changes += 1;
        for (&id, (planes, dead)) in ids.iter().zip(before) {
            let now = state(self, id);
            let ports = if planes > 0.0 { ((planes - now.0) / planes).max(0.0) } else { 0.0 };
            let paths = (now.1 - dead).max(0.0);
            for (share, reaction) in
                [(ports, self.timing.port_reaction()), (paths, self.timing.path_reaction())]
            {
                self.lose(id, share * self.shares.sent_in(id, reaction), reaction);
            }
            let task = self.shares.flow(id).task;
            self.tasks.meets_changes(task, self.faults.changes);
        }
        self.shares.find_ways(&self.links, self.clock.now);
    }
}

/// When senders use what was repaired, and when what breaks is broken. Links between switches are found again by probes.
fn times_of_faults(schedule: &[FaultEvent], fabric: &Fabric, timing: &Timing) -> Vec<u64> {
    let mut broken_since = HashMap::new();
    let mut order: Vec<usize> = (0..schedule.len()).collect();
    order.sort_by_key(|&index| schedule[index].at);
    let mut times = vec![0; schedule.len()];
    for index in order {
        let FaultEvent { at, target, change } = schedule[index];
        let ends_at_host = match target {
            Target::Switch(number) => fabric.switch_at(number).is_some_and(|switch| switch.tier == 0),
            of_link => {
                of_link.link().and_then(|number| fabric.link(number)).is_some_and(|link| link.layer == 0)
            }
        };
        times[index] = at.0;
        match change {
            Change::Begins(Effect::Down) => {
                broken_since.insert(target, at);
            }
            Change::Ends(Effect::Down) if !ends_at_host => {
                let since = broken_since.get(&target).copied().unwrap_or(at);
                times[index] += timing.path_return(at.since(since).0);
            }
            _ => {}
        }
    }
    times
}

/// Paths that a queue pair has in rotation.
fn ev_active(transport: &TransportConfig) -> u16 {
    match transport {
        TransportConfig::Mrc(mrc) => mrc.ev_active,
        _ => unreachable!("other transports are refused"),
    }
}
