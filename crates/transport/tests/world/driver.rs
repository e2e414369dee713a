//! The world itself: nodes with ports, a heap of events, and a driver that serves queue pairs as a NIC does.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use openmrc_transport::destination::DestinationControl;
use openmrc_transport::mrc::EvState;
use openmrc_transport::schedule::ReadyRing;
use openmrc_transport::{
    EvEvent, Fatal, Host, PathId, PortSet, PostError, Readiness, Received, Span, Time, TrafficClass,
    Transmit, Trim, WorkRequest,
};
use openmrc_wire::Body;

use super::host::{self, MOST_FEEDBACK_PER_PACKET, MOST_FEEDBACK_PER_TIMEOUT, Record, View};
use super::ledger::{Flow, FlowCounters, Verdict};
use super::network::{Network, NetworkCounters};
use super::scenario::{Act, Expect, Post, Scenario, Traffic};
use super::trace::Trace;
use super::{Dice, Subject, hostile, sizes};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A port has sent its packet.
    PortFree { node: usize, port: u8 },
    /// A packet is at the switch before the last hop.
    LastHop { flight: usize },
    /// A packet is at its destination.
    Arrival { flight: usize },
    /// A queue pair's deadline.
    Timer { end: usize, generation: u64 },
    /// Something to send.
    Post { end: usize },
    /// A node goes on after a stall.
    Resume { node: usize },
    /// A peer's change of ports has become known.
    Notice { node: usize, about: usize },
    /// The next entry of the schedule.
    Act { index: usize },
}

/// A packet under way.
#[derive(Clone, Copy)]
struct Flight {
    to: usize,
    transmit: Transmit,
    received: Received,
    /// Made up by the world rather than sent by a queue pair.
    garbage: bool,
}

struct Node {
    epoch: Span,
    ring: ReadyRing,
    /// Ready queue pairs that found no port.
    blocked: Vec<u32>,
    up: PortSet,
    busy: PortSet,
    feedback: Vec<VecDeque<Flight>>,
    stalled_until: Time,
    /// Packets that came during a stall.
    backlog: VecDeque<usize>,
    ends: Vec<usize>,
    destination: Option<DestinationControl>,
}

/// A queue pair and what the driver keeps of it.
pub struct End<T> {
    pub qp: T,
    pub record: Record,
    armed: Time,
    generation: u64,
    /// Deadlines served without time passing.
    spins: u32,
    traffic: Traffic,
    next_post: usize,
    /// When the application posts next, if that has been arranged.
    post_at: Time,
    /// Data packets sent, by path.
    pub sent_by_path: Vec<u64>,
    /// When data was last sent, by path.
    pub last_sent: Vec<Time>,
    /// Probes sent, by path.
    pub probes_by_path: Vec<u64>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub hash: u64,
    pub finished: Time,
    pub flows: Vec<FlowCounters>,
    pub fatal: Vec<Option<Fatal>>,
    pub network: NetworkCounters,
    pub condemned: u64,
    pub returned: u64,
    pub events: u64,
}

/// After the last completion old packets may still come: so long is memory watched.
const LINGER: Span = Span::from_millis(20);

/// Nodes, network and queue pairs in virtual time.
pub struct World<T> {
    pub now: Time,
    pub scenario: Arc<Scenario>,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    events: u64,
    nodes: Vec<Node>,
    pub ends: Vec<End<T>>,
    pub flows: Vec<Flow>,
    pub network: Network,
    flights: Vec<Flight>,
    free_flights: Vec<usize>,
    /// Packets of the past, to come again.
    history: Vec<Flight>,
    dice: Dice,
    out: Vec<Transmit>,
    pub trace: Trace,
    verdict: Verdict,
    /// Data packets sent: when, by which end, over which path. Kept only if asked for.
    pub log: Option<Vec<(Time, usize, PathId)>>,
}

impl<T: Subject> World<T> {
    pub fn new(scenario: Scenario, verbose: bool) -> Self {
        let mut dice = Dice::new(scenario.seed ^ 0xD1CE);
        let network = Network::new(&scenario, &mut dice);
        let mut nodes: Vec<Node> = scenario
            .epochs
            .iter()
            .map(|&epoch| Node {
                epoch,
                ring: ReadyRing::default(),
                blocked: Vec::new(),
                up: PortSet::first(scenario.ports),
                busy: PortSet::EMPTY,
                feedback: vec![VecDeque::new(); scenario.ports],
                stalled_until: Time::ZERO,
                backlog: VecDeque::new(),
                ends: Vec::new(),
                destination: scenario.destination_control.then(|| {
                    DestinationControl::new(scenario.rate * scenario.ports as u64, scenario.base_rtt(4096))
                }),
            })
            .collect();
        let (mut ends, mut flows) = (Vec::new(), Vec::new());
        for pair in &scenario.pairs {
            for side in 0..2 {
                let index = ends.len();
                let (node, config) = (pair.nodes[side], pair.configs[side].clone());
                nodes[node].ends.push(index);
                let now = host::local(Time::ZERO, nodes[node].epoch);
                let paths = config.paths.entries().len();
                flows.push(Flow::new(format!("flow {index}"), &config, pair.region[side], dice.u64()));
                ends.push(End {
                    qp: T::create(now, &config),
                    record: Record {
                        config,
                        node,
                        peer: index ^ 1,
                        denied: vec![false; paths],
                        condemned: vec![false; paths],
                        ev_events: Vec::new(),
                        fatal: None,
                        receives: u64::MAX,
                        local_up: PortSet::first(scenario.ports),
                        peer_up: PortSet::first(scenario.ports),
                    },
                    armed: Time::NEVER,
                    generation: 0,
                    spins: 0,
                    traffic: pair.traffic[side].clone(),
                    next_post: 0,
                    post_at: Time::ZERO,
                    sent_by_path: vec![0; paths],
                    last_sent: vec![Time::ZERO; paths],
                    probes_by_path: vec![0; paths],
                });
            }
        }
        let mut world = World {
            now: Time::ZERO,
            heap: BinaryHeap::new(),
            pushed: 0,
            events: 0,
            nodes,
            ends,
            flows,
            network,
            flights: Vec::new(),
            free_flights: Vec::new(),
            history: Vec::new(),
            dice,
            out: Vec::new(),
            trace: Trace::new(verbose),
            verdict: Ok(()),
            log: None,
            scenario: Arc::new(scenario),
        };
        for end in 0..world.ends.len() {
            let ports = PortSet::first(world.scenario.ports);
            let now = world.local_of(end);
            world.ends[end].qp.set_ports_up(now, ports, ports);
            world.refresh(end);
            world.push(Time::ZERO, Event::Post { end });
        }
        for index in 0..world.scenario.acts.len() {
            let time = world.scenario.acts[index].0;
            world.push(time, Event::Act { index });
        }
        world
    }

    /// Runs to the end of the scenario.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn run(&mut self) -> Result<Outcome, String> {
        let mut over_at = None;
        loop {
            if over_at.is_none() && self.all_finished() {
                over_at = Some(self.now);
            }
            let Some(next) = self.heap.peek().map(|Reverse((time, ..))| *time) else { break };
            if over_at.is_some_and(|over| next > over + LINGER) {
                break;
            }
            if over_at.is_none() && next > self.scenario.deadline {
                return Err(self.unfinished());
            }
            self.step()?;
        }
        let Some(finished) = over_at else { return Err(self.unfinished()) };
        for end in 0..self.ends.len() {
            let failed = self.ends[end].record.fatal.is_some();
            let peer_failed = self.ends[end ^ 1].record.fatal.is_some();
            let must = self.scenario.expect == Expect::Completes || !(failed || peer_failed);
            self.flows[end].at_end(must).map_err(|text| format!("at the end: {text}"))?;
        }
        Ok(self.outcome(finished))
    }

    /// Runs until `time`, whatever is or is not finished by then.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn run_until(&mut self, time: Time) {
        while self.heap.peek().is_some_and(|Reverse((next, ..))| *next <= time) {
            self.step().unwrap_or_else(|text| panic!("{text}"));
        }
        self.now = time;
    }

    /// Whether nothing is left to happen.
    pub fn is_silent(&self) -> bool {
        self.heap.iter().all(|Reverse((_, _, event))| match event {
            Event::Timer { end, generation } => *generation != self.ends[*end].generation,
            _ => false,
        })
    }

    pub fn outcome(&self, finished: Time) -> Outcome {
        let events = self.ends.iter().flat_map(|e| &e.record.ev_events);
        let condemned =
            events.clone().filter(|(_, e)| e.change == openmrc_transport::EvChange::AssumedBad).count()
                as u64;
        Outcome {
            hash: self.trace.hash(),
            finished,
            flows: self.flows.iter().map(|f| f.counters).collect(),
            fatal: self.ends.iter().map(|e| e.record.fatal.map(|(_, why)| why)).collect(),
            network: self.network.counters,
            condemned,
            returned: events.count() as u64 - condemned,
            events: self.events,
        }
    }

    fn unfinished(&self) -> String {
        let ends: Vec<String> =
            (0..self.ends.len()).filter(|&end| !self.is_finished(end)).map(|e| self.state(e)).collect();
        format!("not finished at {:.3} ms:\n{}", self.now.0 as f64 / 1e9, ends.join("\n"))
    }

    /// Where an end stands, for a person to read.
    pub fn state(&self, index: usize) -> String {
        let (end, flow) = (&self.ends[index], &self.flows[index]);
        let left = i128::from(end.qp.poll_timeout().0) - i128::from(self.local_of(index).0);
        let timer = if end.qp.poll_timeout() == Time::NEVER {
            "never".into()
        } else {
            format!("{} us", left / 1_000_000)
        };
        let (node, peer) = (end.record.node, self.ends[end.record.peer].record.node);
        format!(
            "    end {index} (node {node} to {peer}): {} of {} done, {} posts to come, {:?}, timer {timer}, ports {:?} {:?}, {:?}",
            flow.completed(),
            flow.posted(),
            match &end.traffic {
                Traffic::List(posts) => posts.len() - end.next_post,
                Traffic::Endless { .. } => usize::MAX,
            },
            end.qp.readiness(),
            end.record.local_up,
            end.record.peer_up,
            end.qp.stats(),
        )
    }

    fn all_finished(&self) -> bool {
        (0..self.ends.len()).all(|end| self.is_finished(end))
    }

    fn is_finished(&self, end: usize) -> bool {
        let state = &self.ends[end];
        let posted_all = match &state.traffic {
            Traffic::List(posts) => state.next_post == posts.len(),
            Traffic::Endless { .. } => false,
        };
        self.flows[end].outstanding() == 0 && (posted_all || state.record.fatal.is_some())
    }

    fn push(&mut self, time: Time, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse((time.max(self.now), self.pushed, event)));
    }

    fn local_of(&self, end: usize) -> Time {
        host::local(self.now, self.nodes[self.ends[end].record.node].epoch)
    }

    fn step(&mut self) -> Verdict {
        let Some(Reverse((time, _, event))) = self.heap.pop() else { return Ok(()) };
        self.now = time;
        self.events += 1;
        if self.events > self.scenario.most_events {
            return Err(format!("{} events and no end: {}", self.events, self.unfinished()));
        }
        match event {
            Event::PortFree { node, port } => {
                self.nodes[node].busy = self.nodes[node].busy.without(port);
                self.unblock(node);
                self.service(node);
            }
            Event::LastHop { flight } => self.at_last_hop(flight),
            Event::Arrival { flight } => self.at_node(flight),
            Event::Timer { end, generation } => self.at_deadline(end, generation),
            Event::Post { end } => {
                self.pump(end);
                self.service(self.ends[end].record.node);
            }
            Event::Resume { node } => self.resume(node),
            Event::Notice { node, about } => self.notice(node, about),
            Event::Act { index } => {
                let act = self.scenario.acts[index].1.clone();
                self.trace.say(self.now, format_args!("{act:?}"));
                self.act(act);
            }
        }
        std::mem::replace(&mut self.verdict, Ok(()))
            .map_err(|text| format!("at {:.3} us: {text}", self.now.0 as f64 / 1e6))
    }

    fn break_rule(&mut self, end: usize, text: String) {
        if self.verdict.is_ok() {
            self.verdict = Err(format!("end {end}: {text}"));
        }
    }

    // ---- queue pairs ----

    /// Calls a queue pair, then does what it asked for.
    fn call(
        &mut self,
        end: usize,
        in_hand: Option<Transmit>,
        most: usize,
        f: impl FnOnce(&mut T, Time, &mut dyn Host),
    ) {
        let now = self.local_of(end);
        let was_dead = self.ends[end].record.fatal.is_some();
        let mut out = std::mem::take(&mut self.out);
        let (records, flows) = (&mut self.ends[end], &mut self.flows);
        let mut view = View {
            end,
            now: self.now,
            record: &mut records.record,
            flows,
            in_hand,
            out: &mut out,
            trace: &mut self.trace,
            verdict: &mut self.verdict,
        };
        f(&mut records.qp, now, &mut view);
        if out.len() > most {
            self.break_rule(end, format!("sends {} packets at once: {out:?}", out.len()));
        }
        let naks = |t: &Transmit| matches!(&t.packet.body, Body::Ack(aeth) if !aeth.is_ack());
        if was_dead && (out.len() > 1 || !out.iter().all(naks)) {
            self.break_rule(end, format!("sends in ERROR: {out:?}"));
        }
        for transmit in out.drain(..) {
            self.queue_feedback(end, transmit);
        }
        self.out = out;
        if self.ends[end].record.fatal.is_some() {
            if self.flows[end].outstanding() > 0 {
                self.break_rule(
                    end,
                    format!("in ERROR with {} sends not flushed", self.flows[end].outstanding()),
                );
            }
            if self.ends[end].qp.error() != self.ends[end].record.fatal.map(|(_, why)| why) {
                self.break_rule(end, "reported a fatal error and is not in ERROR".into());
            }
        }
        self.pump(end);
        self.refresh(end);
    }

    /// Looks at what a queue pair wants now.
    fn refresh(&mut self, end: usize) {
        let node = self.ends[end].record.node;
        let state = &mut self.ends[end];
        if state.qp.readiness() == Readiness::Ready {
            self.nodes[node].ring.push(end as u32);
        }
        let deadline = state.qp.poll_timeout();
        if deadline != state.armed {
            state.armed = deadline;
            self.arm(end);
        }
    }

    fn arm(&mut self, end: usize) {
        self.ends[end].generation += 1;
        let deadline = self.ends[end].armed;
        if deadline == Time::NEVER {
            return;
        }
        let epoch = self.nodes[self.ends[end].record.node].epoch;
        let late = self.dice.span(self.scenario.timer_slack);
        let generation = self.ends[end].generation;
        self.push(Time(deadline.0.saturating_sub(epoch.0)) + late, Event::Timer { end, generation });
    }

    fn at_deadline(&mut self, end: usize, generation: u64) {
        let node = self.ends[end].record.node;
        // A stalled node looks at its timers when it goes on.
        if self.ends[end].generation != generation || self.now < self.nodes[node].stalled_until {
            return;
        }
        self.ends[end].armed = Time::NEVER;
        self.trace.note(self.now, b'T', [end as u64, 0, 0], || format!("{end} timer"));
        self.call(end, None, MOST_FEEDBACK_PER_TIMEOUT, |qp, now, host| qp.handle_timeout(now, host));
        let local = self.local_of(end);
        if self.ends[end].armed <= local {
            self.ends[end].spins += 1;
            if self.ends[end].spins > 100 {
                self.break_rule(end, "its deadline does not move".into());
            }
        } else {
            self.ends[end].spins = 0;
        }
        self.service(node);
    }

    /// The application posts what it may.
    fn pump(&mut self, end: usize) {
        loop {
            if self.ends[end].record.fatal.is_some()
                || self.now < self.nodes[self.ends[end].record.node].stalled_until
            {
                return;
            }
            let post = match &self.ends[end].traffic {
                Traffic::List(posts) => match posts.get(self.ends[end].next_post) {
                    Some(post) => *post,
                    None => return,
                },
                Traffic::Endless { len, imm } => Post {
                    len: *len,
                    imm: imm.then_some(self.ends[end].next_post as u32),
                    not_before: Time::ZERO,
                },
            };
            if post.not_before > self.now {
                if self.ends[end].post_at != post.not_before {
                    self.ends[end].post_at = post.not_before;
                    self.push(post.not_before, Event::Post { end });
                }
                return;
            }
            let now = self.local_of(end);
            let full = self.flows[end].outstanding() == self.ends[end].record.config.max_send_wr;
            if full {
                if self.dice.chance(0.1) {
                    let wr =
                        WorkRequest { handle: 0, len: 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
                    let answer = self.ends[end].qp.post_send(now, wr);
                    if !matches!(answer, Err(PostError::QueueFull(_))) {
                        self.break_rule(end, format!("took a work request too many: {answer:?}"));
                    }
                }
                return;
            }
            let solicited = post.imm.is_some_and(|imm| imm % 3 == 0);
            let wr = match self.flows[end].prepare(&post, solicited) {
                Ok(Some(wr)) => wr,
                Ok(None) => return,
                Err(text) => return self.break_rule(end, text),
            };
            if let Err(error) = self.ends[end].qp.post_send(now, wr) {
                return self.break_rule(end, format!("refused a work request: {error}"));
            }
            self.trace.note(self.now, b'W', [end as u64, wr.handle, u64::from(wr.len)], || {
                format!("{end} posts {}: {} bytes, imm {:?}", wr.handle >> 16, wr.len, wr.imm)
            });
            self.ends[end].next_post += 1;
            self.refresh(end);
        }
    }

    // ---- ports ----

    fn queue_feedback(&mut self, end: usize, transmit: Transmit) {
        let record = &self.ends[end].record;
        let node = &mut self.nodes[record.node];
        if matches!(transmit.packet.body, Body::Probe(_)) {
            self.ends[end].probes_by_path[transmit.path as usize] += 1;
        }
        let record = &self.ends[end].record;
        if node.up.contains(transmit.port) {
            node.feedback[transmit.port as usize].push_back(flight(record.peer, transmit));
        }
    }

    fn unblock(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        for end in node.blocked.drain(..) {
            node.ring.push(end);
        }
    }

    /// Feedback first, then one packet of each ready queue pair in turn, as long as there is a free port.
    fn service(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        loop {
            for port in self.free_ports(node).iter() {
                if let Some(flight) = self.nodes[node].feedback[port as usize].pop_front() {
                    self.send(node, flight);
                }
            }
            let free = self.free_ports(node);
            if free.is_empty() {
                return;
            }
            let Some(end) = self.nodes[node].ring.pop() else { return };
            self.serve(node, end as usize, free);
        }
    }

    fn free_ports(&self, node: usize) -> PortSet {
        let node = &self.nodes[node];
        PortSet(node.up.0 & !node.busy.0)
    }

    fn serve(&mut self, node: usize, end: usize, free: PortSet) {
        let now = self.local_of(end);
        let Some(transmit) = self.ends[end].qp.poll_transmit(now, free) else {
            if self.ends[end].qp.readiness() == Readiness::Ready {
                self.nodes[node].blocked.push(end as u32);
            }
            let deadline = self.ends[end].qp.poll_timeout();
            if deadline != self.ends[end].armed {
                self.ends[end].armed = deadline;
                self.arm(end);
            }
            return;
        };
        let state = &mut self.ends[end];
        let mut verdict = state.record.check_route(&transmit);
        if !free.contains(transmit.port) {
            verdict = Err(format!("sends on port {}, which was not offered", transmit.port));
        }
        if state.record.fatal.is_some() {
            verdict = Err("sends data in ERROR".into());
        }
        match &transmit.packet.body {
            Body::Write(_) => {
                if transmit.packet.rtx
                    && self.flows[end].last_path(transmit.packet.psn) == Some(transmit.path)
                {
                    verdict = verdict.and_then(|()| no_other_path(&state.qp, &state.record, free));
                }
                state.sent_by_path[transmit.path as usize] += 1;
                state.last_sent[transmit.path as usize] = self.now;
                if let Some(log) = &mut self.log {
                    log.push((self.now, end, transmit.path));
                }
                verdict = verdict.and_then(|()| self.flows[end].on_transmit(&transmit));
            }
            Body::Probe(_) => state.probes_by_path[transmit.path as usize] += 1,
            other => verdict = Err(format!("polled a strange packet: {other:?}")),
        }
        if let Err(text) = verdict {
            self.break_rule(end, text);
        }
        self.refresh(end);
        let peer = self.ends[end].record.peer;
        self.send(node, flight(peer, transmit));
    }

    /// Puts a packet on its port.
    fn send(&mut self, node: usize, flight: Flight) {
        let transmit = flight.transmit;
        let (from, to) = (node, self.ends[flight.to].record.node);
        self.trace.note(
            self.now,
            b'X',
            [flight.to as u64, u64::from(transmit.packet.psn.get()), u64::from(transmit.path)],
            || format!("-> {} path {} {}", flight.to, transmit.path, describe(&transmit)),
        );
        let gone = self.now + self.network.serialization(&transmit.packet);
        self.nodes[node].busy = self.nodes[node].busy.with(transmit.port);
        self.push(gone, Event::PortFree { node, port: transmit.port });
        let at = self.network.crosses_by(gone, (from, to, transmit.path), transmit.class, &mut self.dice);
        let flight = self.keep(flight);
        self.push(at, Event::LastHop { flight });
    }

    // ---- the way ----

    fn keep(&mut self, flight: Flight) -> usize {
        if let Some(index) = self.free_flights.pop() {
            self.flights[index] = flight;
            return index;
        }
        self.flights.push(flight);
        self.flights.len() - 1
    }

    fn at_last_hop(&mut self, index: usize) {
        let flight = self.flights[index];
        let transmit = flight.transmit;
        let to = self.ends[flight.to].record.node;
        let from = self.ends[flight.to ^ 1].record.node;
        let way = (from, to, transmit.path);
        let fate =
            self.network.fate(self.now, way, transmit.port, transmit.class, &transmit.packet, &mut self.dice);
        let Some(fate) = fate else {
            self.trace
                .say(self.now, format_args!("   lost on path {}: {}", transmit.path, describe(&transmit)));
            self.free_flights.push(index);
            return;
        };
        let weather = self.network.weather;
        let received = &mut self.flights[index].received;
        received.ecn_ce = fate.marked;
        received.trim = fate.trim;
        if fate.trim.is_some() {
            received.packet.payload_len = 0;
            if self.dice.chance(weather.garble_trimmed) {
                self.network.counters.garbled += 1;
                hostile::garble(received, &mut self.dice);
            }
        }
        let flight = self.flights[index];
        if let Some(later) = fate.copy {
            let copy = self.keep(flight);
            self.push(fate.arrives + later, Event::Arrival { flight: copy });
        }
        self.disturb(flight, fate.arrives);
        self.push(fate.arrives, Event::Arrival { flight: index });
    }

    /// Old packets come again and senseless ones appear.
    fn disturb(&mut self, flight: Flight, at: Time) {
        let weather = self.network.weather;
        if weather.stale > 0.0 {
            if self.history.len() < 32 {
                self.history.push(flight);
            } else if self.dice.chance(0.1) {
                let slot = self.dice.below(32) as usize;
                self.history[slot] = flight;
            }
            if self.dice.chance(weather.stale) {
                let slot = self.dice.below(self.history.len() as u64) as usize;
                let again = self.keep(self.history[slot]);
                self.network.counters.stale += 1;
                self.push(at, Event::Arrival { flight: again });
            }
        }
        if self.dice.chance(weather.garbage) {
            let (to, from) = (flight.to, flight.to ^ 1);
            let ports = PortSet::first(self.scenario.ports);
            let (dest, source) =
                (self.ends[to].record.config.local_qp, self.ends[from].record.config.local_qp);
            let received =
                hostile::garbage(dest, source, &self.flows[to], &self.flows[from], ports, &mut self.dice);
            self.network.counters.garbage += 1;
            let made_up = self.keep(Flight { received, garbage: true, ..flight });
            self.push(at, Event::Arrival { flight: made_up });
        }
    }

    fn at_node(&mut self, index: usize) {
        let flight = self.flights[index];
        let node = self.ends[flight.to].record.node;
        if self.now < self.nodes[node].stalled_until {
            self.nodes[node].backlog.push_back(index);
            return;
        }
        self.free_flights.push(index);
        if !self.nodes[node].up.contains(flight.received.port) {
            self.network.count_loss(flight.transmit.class == TrafficClass::Control);
            return;
        }
        self.hand_in(&flight);
        self.press_senders(node, &flight);
        if self.dice.chance(self.scenario.idle_timeouts) {
            self.call(flight.to, None, MOST_FEEDBACK_PER_TIMEOUT, |qp, now, host| {
                qp.handle_timeout(now, host)
            });
        }
        self.service(node);
    }

    /// The receiving node looks at what comes in and tells all its senders how hard they are pressed.
    fn press_senders(&mut self, node: usize, flight: &Flight) {
        let now = self.local_of(flight.to);
        if !matches!(flight.transmit.packet.body, Body::Write(_)) || flight.garbage {
            return;
        }
        let Some(destination) = &mut self.nodes[node].destination else { return };
        let bytes = sizes::on_wire(&flight.transmit.packet);
        let refused = flight.received.trim == Some(Trim::LastHop);
        if let Some(pressure) = destination.on_packet(now, bytes, refused) {
            for &end in &self.nodes[node].ends {
                self.ends[end].qp.set_receive_pressure(pressure);
            }
        }
    }

    fn hand_in(&mut self, flight: &Flight) {
        let (end, received) = (flight.to, &flight.received);
        self.trace.note(
            self.now,
            b'A',
            [end as u64, u64::from(received.packet.psn.get()), u64::from(received.ecn_ce)],
            || {
                let what = if flight.garbage { " GARBAGE" } else { "" };
                let marks = format!("{}{:?}", if received.ecn_ce { "CE " } else { "" }, received.trim);
                format!("<- {end} port {} {marks}{what} {:?}", received.port, received.packet)
            },
        );
        let mut in_hand = None;
        if !flight.garbage {
            match &received.packet.body {
                Body::Write(_) if received.trim.is_none() => {
                    in_hand = Some(flight.transmit);
                    self.flows[end ^ 1].on_delivery(received.packet.psn);
                }
                Body::Sack(sack) => self.flows[end].on_sack_heard(sack),
                Body::Ack(aeth) => self.flows[end].on_ack_heard(aeth.msn),
                _ => {}
            }
        }
        self.call(end, in_hand, MOST_FEEDBACK_PER_PACKET, |qp, now, host| {
            qp.handle_packet(now, received, host)
        });
    }

    // ---- the schedule ----

    fn act(&mut self, act: Act) {
        match act {
            Act::Weather(weather) => self.network.weather = weather,
            Act::Path { from, to, path, health } => self.network.set_path(from, to, path, health),
            Act::Plane { port, health } => self.network.set_plane(port, health),
            Act::Direction { from, to, health } => self.network.set_direction(from, to, health),
            Act::Port { node, port, up, notice } => self.change_port(node, port, up, notice),
            Act::Stall { node, length } => {
                let until = self.now + length;
                if until > self.nodes[node].stalled_until {
                    self.nodes[node].stalled_until = until;
                    self.push(until, Event::Resume { node });
                }
            }
            Act::Jump { node, length } => {
                self.nodes[node].epoch = self.nodes[node].epoch + length;
                for end in self.nodes[node].ends.clone() {
                    self.arm(end);
                }
            }
            Act::Deny { end, path, denied } => {
                let ev = self.ends[end].record.config.paths.entries()[path as usize].ev;
                let known = self.ends[end].qp.set_ev_denied(ev, denied);
                if known {
                    let record = &mut self.ends[end].record;
                    record.denied[path as usize] = denied;
                    // A controller that switches a path off or on knows what it did: no event tells of it.
                    record.condemned[path as usize] = false;
                }
                self.refresh(end);
                self.service(self.ends[end].record.node);
            }
            Act::Pressure { end, penalty } => self.ends[end].qp.set_receive_pressure(penalty.into()),
            Act::AdvertiseMpr { end, mpr } => self.ends[end].qp.set_advertised_mpr(mpr),
        }
    }

    fn change_port(&mut self, node: usize, port: u8, up: bool, notice: Span) {
        let state = &mut self.nodes[node];
        state.up = if up { state.up.with(port) } else { state.up.without(port) };
        if !up {
            let lost = state.feedback[port as usize].drain(..).count();
            (0..lost).for_each(|_| self.network.count_loss(true));
        }
        for end in self.nodes[node].ends.clone() {
            self.ends[end].record.local_up = self.nodes[node].up;
            self.tell_ports(end);
            let about = node;
            let peer_node = self.ends[end ^ 1].record.node;
            self.push(self.now + notice, Event::Notice { node: peer_node, about });
        }
        self.unblock(node);
        self.service(node);
    }

    fn notice(&mut self, node: usize, about: usize) {
        for end in self.nodes[node].ends.clone() {
            if self.ends[end ^ 1].record.node == about {
                self.ends[end].record.peer_up = self.nodes[about].up;
                self.tell_ports(end);
            }
        }
        self.unblock(node);
        self.service(node);
    }

    fn tell_ports(&mut self, end: usize) {
        let now = self.local_of(end);
        let (local, peer) = (self.ends[end].record.local_up, self.ends[end].record.peer_up);
        self.ends[end].qp.set_ports_up(now, local, peer);
        self.refresh(end);
    }

    fn resume(&mut self, node: usize) {
        if self.now < self.nodes[node].stalled_until {
            return;
        }
        while let Some(index) = self.nodes[node].backlog.pop_front() {
            self.at_node(index);
        }
        for end in self.nodes[node].ends.clone() {
            self.arm(end);
            self.pump(end);
        }
        self.unblock(node);
        self.service(node);
    }

    // ---- for tests that steer by hand ----

    /// Does something now that is not in the schedule.
    pub fn do_now(&mut self, act: Act) {
        self.act(act);
    }

    /// Lets a local user end a queue pair.
    pub fn abort(&mut self, end: usize) {
        self.call(end, None, 0, |qp, now, host| qp.abort(now, Fatal::Local, host));
    }

    /// Data packets sent per port by one end.
    pub fn sent_by_port(&self, end: usize) -> Vec<u64> {
        let mut sent = vec![0; self.scenario.ports];
        for (entry, count) in self.scenario.profile.entries().iter().zip(&self.ends[end].sent_by_path) {
            sent[entry.port as usize] += count;
        }
        sent
    }

    pub fn ev_events(&self, end: usize) -> &[(Time, EvEvent)] {
        &self.ends[end].record.ev_events
    }
}

/// A retransmission takes another path than the one that lost the packet (spec: transport, requestor), if there is one
/// in rotation and good. Which ones rotate is known only where none is in reserve.
fn no_other_path<T: Subject>(qp: &T, record: &Record, free: PortSet) -> Verdict {
    let ports = free.and(record.local_up).and(record.peer_up);
    let entries = record.config.paths.entries();
    let good = |(path, state): &(PathId, EvState)| {
        *state == EvState::Good && ports.contains(entries[*path as usize].port)
    };
    let others = qp.ev_states().iter().filter(|s| good(s)).count();
    if record.config.ev_backup == 0 && others > 1 {
        return Err(format!("retransmits on the path that lost the packet; {others} are good"));
    }
    Ok(())
}

fn flight(to: usize, transmit: Transmit) -> Flight {
    let received =
        Received { packet: transmit.packet, ev: transmit.ev, port: transmit.port, ecn_ce: false, trim: None };
    Flight { to, transmit, received, garbage: false }
}

fn describe(transmit: &Transmit) -> String {
    let p = &transmit.packet;
    match &p.body {
        Body::Write(w) => format!(
            "DATA psn {} msn {} {:?}{}{}{}",
            p.psn,
            w.msn.0,
            w.position,
            if p.rtx { " RTX" } else { "" },
            if p.ack_req { " A" } else { "" },
            if w.imm.is_some() { " imm" } else { "" }
        ),
        Body::Sack(s) => format!(
            "SACK cack {} offset {} bitmap {:#x} ev {:#x} {:?}{} mpr {} rcvd {}",
            s.cack_psn,
            s.sack_offset,
            s.bitmap,
            s.entropy.0,
            s.mark,
            if s.probe_reply { " pr" } else { "" },
            s.mpr,
            s.cc.rcvd_bytes
        ),
        other => format!("{other:?}"),
    }
}
