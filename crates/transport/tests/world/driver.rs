//! The world: nodes with ports, a heap of events, and a driver that does for nodes what a NIC does.

mod calls;
mod ports;
mod schedule;
mod transit;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use openmrc_transport::node::{MtuProgress, Node, NodeConfig, NodeStats, PeerId, Route, Slot};
use openmrc_transport::{Fatal, PathId, PortSet, Received, Span, Time, TrafficClass, Transmit};
use openmrc_wire::{Body, Packet};

use super::host::{self, EndRecord};
use super::ledger::{Flow, FlowCounters, Verdict};
use super::network::{Network, NetworkCounters};
use super::scenario::{Expect, Scenario, Traffic};
use super::trace::Trace;
use super::{Dice, Subject};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A port has finished sending its packet.
    PortFree { node: usize, port: u8 },
    /// A packet has arrived at the switch before the last hop.
    LastHop { flight: usize },
    /// A packet has arrived at its destination.
    Arrival { flight: usize },
    /// A node's deadline.
    Timer { node: usize, generation: u64 },
    /// An end posts its next message.
    Post { end: usize },
    /// A node resumes after a stall.
    Resume { node: usize },
    /// The next entry of the schedule.
    Action { index: usize },
}

/// Destination of a packet within a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// The queue pair of an end.
    End(usize),
    /// The node itself.
    Endpoint,
}

/// A packet in the network.
#[derive(Clone, Copy)]
struct Flight {
    from: usize,
    to: usize,
    target: Target,
    transmit: Transmit,
    received: Received,
    /// Created by the world and not sent by a node.
    garbage: bool,
    /// Delivered before: the network repeats it later.
    stale: bool,
}

/// A node, and the state that the driver keeps for it.
struct Driven<T> {
    node: Node<T>,
    epoch: Span,
    up: PortSet,
    busy: PortSet,
    /// Per port: feedback and endpoint packets, which are sent before data.
    control: Vec<VecDeque<Flight>>,
    stalled_until: Time,
    /// Packets that arrived during a stall.
    backlog: VecDeque<usize>,
    /// The ends of its queue pairs.
    ends: Vec<usize>,
    armed: Time,
    generation: u64,
    /// Consecutive deadlines served without time passing.
    spins: u32,
    /// Outstanding EV probes.
    probes: Vec<u16>,
}

/// The state that the driver keeps for a queue pair.
pub struct End {
    pub record: EndRecord,
    slot: Slot,
    traffic: Traffic,
    next_post: usize,
    /// Time of the application's next post, if one is scheduled.
    post_at: Time,
    /// Data packets sent, by path.
    pub sent_by_path: Vec<u64>,
    /// Time of the last data packet, by path.
    pub last_sent: Vec<Time>,
    /// Probes sent, by path.
    pub probes_by_path: Vec<u64>,
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub hash: u64,
    pub finished: Time,
    pub flows: Vec<FlowCounters>,
    pub fatal: Vec<Option<Fatal>>,
    /// Peers that were called silent.
    pub silences: u64,
    /// Packets that ends have sent after their applications had destroyed them.
    pub answers_after: u64,
    /// Of each end.
    pub mtu: Vec<Option<MtuProgress>>,
    pub network: NetworkCounters,
    pub nodes: Vec<NodeStats>,
    pub condemned: u64,
    pub returned: u64,
    pub events: u64,
}

/// Packets and completions of a node during one call.
#[derive(Default)]
struct Outbox {
    feedback: Vec<(usize, Transmit)>,
    requests: Vec<(PeerId, Route, Packet, TrafficClass)>,
}

/// After the last completion old packets may still arrive: memory is checked for this time.
const LINGER: Span = Span::from_millis(20);

/// Nodes, network and queue pairs in virtual time.
pub struct World<T> {
    pub now: Time,
    pub scenario: Arc<Scenario>,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    events: u64,
    nodes: Vec<Driven<T>>,
    pub ends: Vec<End>,
    pub flows: Vec<Flow>,
    pub network: Network,
    flights: Vec<Flight>,
    free_flights: Vec<usize>,
    /// Earlier packets that can be repeated.
    history: Vec<Flight>,
    dice: Dice,
    out: Outbox,
    pub trace: Trace,
    verdict: Verdict,
    /// Log of data packets sent: time, end, path. Kept only on request.
    pub log: Option<Vec<(Time, usize, PathId)>>,
}

impl<T: Subject> World<T> {
    pub fn new(scenario: Scenario, verbose: bool) -> Self {
        let mut dice = Dice::new(scenario.seed ^ 0xD1CE);
        let network = Network::new(&scenario, &mut dice);
        let nodes: Vec<Driven<T>> = scenario
            .epochs
            .iter()
            .zip(0u64..)
            .map(|(&epoch, number)| Driven {
                node: Node::new(&Arc::new(NodeConfig { seed: scenario.seed ^ number, ..scenario.node })),
                epoch,
                up: PortSet::first(scenario.ports),
                busy: PortSet::EMPTY,
                control: vec![VecDeque::new(); scenario.ports],
                stalled_until: Time::ZERO,
                backlog: VecDeque::new(),
                ends: Vec::new(),
                armed: Time::NEVER,
                generation: 0,
                spins: 0,
                probes: Vec::new(),
            })
            .collect();
        let mut world = World {
            now: Time::ZERO,
            heap: BinaryHeap::new(),
            pushed: 0,
            events: 0,
            nodes,
            ends: Vec::new(),
            flows: Vec::new(),
            network,
            flights: Vec::new(),
            free_flights: Vec::new(),
            history: Vec::new(),
            dice,
            out: Outbox::default(),
            trace: Trace::new(verbose),
            verdict: Ok(()),
            log: None,
            scenario: Arc::new(scenario),
        };
        for number in 0..world.scenario.pairs.len() {
            world.connect(number);
        }
        for end in 0..world.ends.len() {
            if world.scenario.proves_mtu {
                world.prove_mtu(end);
            }
            world.push(Time::ZERO, Event::Post { end });
        }
        for node in 0..world.nodes.len() {
            world.arm(node);
        }
        for index in 0..world.scenario.actions.len() {
            let time = world.scenario.actions[index].0;
            world.push(time, Event::Action { index });
        }
        world
    }

    /// Creates the two ends of a connection: their nodes assign the numbers.
    fn connect(&mut self, number: usize) {
        let pair = self.scenario.pairs[number].clone();
        let all = PortSet::first(self.scenario.ports);
        let first = self.ends.len();
        let slots = [0, 1].map(|side| {
            let node = &mut self.nodes[pair.nodes[side]].node;
            node.reserve((first + side) as u32).expect("the table has room")
        });
        let numbers = [0, 1].map(|side| self.nodes[pair.nodes[side]].node.number(slots[side]));
        for side in 0..2 {
            let mut config = pair.configs[side].clone();
            (config.local_qp, config.remote_qp) = (numbers[side], numbers[1 - side]);
            let paths = config.paths.profile.entries().len();
            let index = first + side;
            let node = pair.nodes[side];
            let now = self.local(node);
            let flow = Flow::new(format!("flow {index}"), &config, pair.region[side], self.dice.u64());
            self.flows.push(flow);
            let driven = &mut self.nodes[node];
            driven.ends.push(index);
            driven.node.connect(
                now,
                slots[side],
                pair.nodes[1 - side] as PeerId,
                all,
                T::create(now, &config),
            );
            driven.node.set_receive_wait(slots[side], self.scenario.receive_wait);
            self.ends.push(End {
                record: EndRecord {
                    config,
                    node,
                    peer: index ^ 1,
                    denied: vec![false; paths],
                    condemned: vec![false; paths],
                    ev_events: Vec::new(),
                    fatal: None,
                    silences: Vec::new(),
                    heard_at: now,
                    probes_unanswered: 0,
                    fast_probes: 0,
                    receives: self.scenario.receives,
                    receive_wait: self.scenario.receive_wait,
                    waits_since: None,
                    mtu: None,
                    mtu_ends_by: Time::NEVER,
                    retired: None,
                    is_gone: false,
                    answers_after: 0,
                    local_up: all,
                    peer_up: all,
                },
                slot: slots[side],
                traffic: pair.traffic[side].clone(),
                next_post: 0,
                post_at: Time::ZERO,
                sent_by_path: vec![0; paths],
                last_sent: vec![Time::ZERO; paths],
                probes_by_path: vec![0; paths],
            });
        }
    }

    /// The queue pair of an end.
    pub fn qp(&self, end: usize) -> &T {
        let End { record, slot, .. } = &self.ends[end];
        self.nodes[record.node].node.qp(*slot).expect("a connected queue pair")
    }

    /// Counters of a node.
    pub fn node_stats(&self, node: usize) -> NodeStats {
        self.nodes[node].node.stats()
    }

    /// Ports of a peer that are up as far as a node knows.
    pub fn believed_ports(&self, node: usize, peer: usize) -> PortSet {
        self.nodes[node].node.peer_ports(peer as PeerId)
    }

    /// Runs to the end of the scenario.
    ///
    /// The first rule that was broken.
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

    /// Runs until `time`, even if messages are unfinished.
    ///
    /// # Panics
    /// If a rule is broken.
    pub fn run_until(&mut self, time: Time) {
        while self.heap.peek().is_some_and(|Reverse((next, ..))| *next <= time) {
            self.step().unwrap_or_else(|text| panic!("{text}"));
        }
        self.now = time;
    }

    /// Whether no event is left.
    pub fn is_silent(&self) -> bool {
        self.heap.iter().all(|Reverse((_, _, event))| match event {
            Event::Timer { node, generation } => *generation != self.nodes[*node].generation,
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
            silences: self.ends.iter().flat_map(|e| &e.record.silences).filter(|(_, silent)| *silent).count()
                as u64,
            mtu: self.ends.iter().map(|end| end.record.mtu.flatten()).collect(),
            answers_after: self.ends.iter().map(|end| end.record.answers_after).sum(),
            network: self.network.counters,
            nodes: self.nodes.iter().map(|driven| driven.node.stats()).collect(),
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

    /// Describes the state of an end.
    pub fn state(&self, index: usize) -> String {
        if self.ends[index].record.is_gone {
            return format!("    end {index}: gone");
        }
        let (end, flow, qp) = (&self.ends[index], &self.flows[index], self.qp(index));
        let left = i128::from(qp.poll_timeout().0) - i128::from(self.local_of(index).0);
        let timer = if qp.poll_timeout() == Time::NEVER {
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
            qp.readiness(),
            end.record.local_up,
            end.record.peer_up,
            qp.stats(),
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
        let is_proving = state.record.mtu == Some(None);
        self.flows[end].outstanding() == 0 && !is_proving && (posted_all || state.record.fatal.is_some())
    }

    /// Whether an end knows that all messages of both directions are done.
    fn knows_all_done(&self, end: usize) -> bool {
        let peer = self.ends[end].record.peer;
        let of_peer = match &self.ends[peer].traffic {
            Traffic::List(posts) => {
                let immediates = posts.iter().filter(|post| post.imm.is_some()).count() as u64;
                self.flows[peer].complete() == posts.len() && self.flows[peer].counters.received == immediates
            }
            Traffic::Endless { .. } => false,
        };
        of_peer && self.is_finished(end) && self.ends[end].record.fatal.is_none()
    }

    fn push(&mut self, time: Time, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse((time.max(self.now), self.pushed, event)));
    }

    /// The time of a node's own clock.
    fn local(&self, node: usize) -> Time {
        host::local(self.now, self.nodes[node].epoch)
    }

    fn local_of(&self, end: usize) -> Time {
        self.local(self.ends[end].record.node)
    }

    fn step(&mut self) -> Verdict {
        let Some(Reverse((time, _, event))) = self.heap.pop() else { return Ok(()) };
        self.now = time;
        self.events += 1;
        if self.events > self.scenario.max_events {
            return Err(format!("{} events and no end: {}", self.events, self.unfinished()));
        }
        match event {
            Event::PortFree { node, port } => {
                self.nodes[node].busy = self.nodes[node].busy.without(port);
                self.service(node);
            }
            Event::LastHop { flight } => self.at_last_hop(flight),
            Event::Arrival { flight } => self.at_node(flight),
            Event::Timer { node, generation } => self.at_deadline(node, generation),
            Event::Post { end } => {
                self.pump(end);
                self.service(self.ends[end].record.node);
            }
            Event::Resume { node } => self.resume(node),
            Event::Action { index } => {
                let act = self.scenario.actions[index].1.clone();
                self.trace.say(self.now, format_args!("{act:?}"));
                self.act(act);
            }
        }
        std::mem::replace(&mut self.verdict, Ok(()))
            .map_err(|text| format!("at {:.3} us: {text}", self.now.0 as f64 / 1e6))
    }

    fn break_rule(&mut self, who: impl std::fmt::Display, text: String) {
        if self.verdict.is_ok() {
            self.verdict = Err(format!("{who}: {text}"));
        }
    }

    fn break_rule_of(&mut self, end: usize, text: String) {
        self.break_rule(format_args!("end {end}"), text);
    }
}

fn flight(from: usize, to: usize, target: Target, transmit: Transmit) -> Flight {
    let received =
        Received { packet: transmit.packet, ev: transmit.ev, port: transmit.port, ecn_ce: false, trim: None };
    Flight { from, to, target, transmit, received, garbage: false, stale: false }
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
