//! The state of a run, and its loop: take the next event, let the part of the world that it concerns react.

use std::borrow::Cow;

use prefetch_index::prefetch_index;

use openmrc_transport::node::DestinationControl;
use openmrc_transport::{SendDone, Time, Transmit};

use crate::calendar::Calendar;
use crate::config::NetworkConfig;
use crate::endpoints::Endpoints;
use crate::event::{Event, Kind};
use crate::faults::Faults;
use crate::network::Network;
use crate::nic::Nic;
use crate::post::Posts;
use crate::queue_pair::QueuePairs;
use crate::queued::Queues;
use crate::record::{Recorder, Shape};
use crate::results::{MessageResult, Results, Totals};
use crate::scenario::{Scenario, ScenarioError};
use crate::slab::Slab;
use crate::transport::TransportConfig;

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
    /// Data packets sent.
    pub data_packets: u64,
}

/// A network with its hosts, in virtual time.
pub struct World {
    pub(crate) config: NetworkConfig,
    pub(crate) now: u64,
    pub(crate) calendar: Calendar,
    pub(crate) net: Network,
    /// Real queues, where departures are not known at arrival.
    pub(crate) queues: Option<Box<Queues>>,
    pub(crate) slab: Slab,
    pub(crate) nics: Vec<Nic>,
    /// By host: how hard it presses its senders; empty where none does.
    pub(crate) controls: Vec<DestinationControl>,
    pub(crate) qps: QueuePairs,
    pub(crate) endpoints: Endpoints,
    pub(crate) posts: Posts,
    pub(crate) faults: Faults,
    /// Where the messages of the scenario are split: the parts of message `i` are `parts[i] .. parts[i + 1]`.
    parts: Vec<u32>,
    pub(crate) totals: Totals,
    /// What is written down, for runs that ask.
    pub(crate) recorder: Option<Box<Recorder>>,
    /// By port: which group of ports the time series counts it in; empty without one.
    pub(crate) group_of_port: Vec<u8>,
    pub(crate) outbox: Outbox,
    /// Queue pairs that the events to come are about, by the event's place in its page.
    ahead: [u32; AHEAD],
    /// Virtual time reached.
    pub(crate) end: u64,
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
        let planes = config.fabric.shape().planes;
        let rate = config.port_rate_bps * u64::from(planes);
        let nics = vec![Nic::new(planes); hosts as usize];
        let control = DestinationControl::new(rate, config.base_rtt());
        let controls = vec![control; if endpoints.destination_control { hosts as usize } else { 0 }];
        // RoCEv2 spreads by having several queue pairs a connection.
        let (workload, parts) = match &scenario.transport {
            TransportConfig::Rocev2(rc) if rc.qps > 1 => {
                let (striped, parts) = scenario.workload.striped(rc.qps, u32::from(config.path_mtu));
                (Cow::Owned(striped), parts)
            }
            _ => (Cow::Borrowed(&scenario.workload), Vec::new()),
        };
        let (recorder, group_of_port) = recorder_for(scenario, &net, workload.messages.len(), &parts);
        let mut world = World {
            now: 0,
            calendar: calendar_for(&config, &net),
            nics,
            controls,
            ahead: [0; AHEAD],
            queues: Queues::new(&config, &net),
            slab: Slab::default(),
            qps: QueuePairs::default(),
            endpoints,
            posts: Posts::new(&workload),
            parts,
            faults: Faults::new(&scenario.faults),
            totals: Totals::default(),
            recorder,
            group_of_port,
            outbox: Outbox::default(),
            end: 0,
            full_packet_bytes: u64::from(config.full_packet_bytes()),
            trimmed_bytes: config.trimmed_bytes() as u16,
            limit: scenario.limit.0,
            net,
            config,
        };
        // Whoever listens to cables has to be asked where packets arrive.
        world.net.impaired |= scenario.record.capture.is_some();
        if world.queues.as_ref().and_then(|q| q.least_shared()) == Some(0) {
            return Err(ScenarioError::Buffer);
        }
        world.schedule_faults();
        world.schedule_posts();
        Ok(world)
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            now: Time(self.end),
            finished: self.posts.finished,
            messages: self.posts.len(),
            events: self.totals.events,
            data_packets: self.totals.data_packets,
        }
    }

    /// Goes on for about `events` events. Says whether there is more to do.
    pub fn run_for(&mut self, events: u64) -> bool {
        let enough = self.totals.events.saturating_add(events);
        while self.totals.events < enough {
            if self.posts.all_finished() {
                return false;
            }
            let Some(event) = self.calendar.take() else {
                let Some(node) = self.next_turn() else { return false };
                self.prefetch_nodes();
                if let Some(switch) = node.checked_sub(self.nics.len() as u32)
                    && self.forwards_at_once()
                {
                    self.forward(switch);
                }
                continue;
            };
            if event.time > self.limit {
                self.end = self.limit;
                // It stays on its way.
                self.calendar.push(event, Network::EVERYWHERE);
                return false;
            }
            self.prefetch_events();
            self.now = event.time;
            self.end = self.end.max(event.time);
            self.totals.events += 1;
            self.react(event, self.calendar.node());
        }
        true
    }

    /// Runs to the end: all messages finished, nothing left to happen, or the time limit.
    pub fn run(&mut self) {
        while self.run_for(u64::MAX) {}
    }

    /// The next node that has something to do, in the order of the calendar.
    #[inline(always)]
    fn next_turn(&mut self) -> Option<u32> {
        loop {
            if let Some(node) = self.calendar.next_turn() {
                return Some(node);
            }
            self.open_page()?;
        }
    }

    /// Opens the calendar's next page.
    #[inline(never)]
    fn open_page(&mut self) -> Option<()> {
        loop {
            let net = &self.net;
            let hosts = self.nics.len() as u32;
            if let Some(page) = self.calendar.next_page() {
                if page.first_node() >= hosts {
                    self.calendar.open(page, |event| net.owner(event.at));
                } else {
                    self.calendar.open(page, |event| match event.kind {
                        // Before everything else that happens in the slot.
                        Kind::Fault => 0,
                        _ => event.dst,
                    });
                }
                return Some(());
            }
            if !self.calendar.turn_page() {
                return None;
            }
            if self.recorder.as_ref().is_some_and(|r| r.is_due(self.calendar.page_begin())) {
                self.take_samples(self.calendar.page_begin().min(self.limit));
            }
        }
    }

    /// Whether all that comes to a switch in this slot may be dealt with in one go: it gives itself nothing to do, and the end of
    /// the run is not near.
    #[inline(always)]
    fn forwards_at_once(&self) -> bool {
        self.queues.is_none()
            && self.calendar.page_begin().saturating_add(self.calendar.lookahead()) <= self.limit
    }

    /// Loads the ports of a node whose turn is to come: such a load waits for nothing and goes on beside the work at hand.
    #[inline(always)]
    fn prefetch_nodes(&self) {
        let Some(node) = self.calendar.node_ahead(NODES_AHEAD) else { return };
        if let Some(number) = node.checked_sub(self.nics.len() as u32) {
            let info = &self.net.switches[number as usize];
            self.net.prefetch_ports(info.first_port, u32::from(info.downlinks + info.uplinks));
        } else {
            prefetch_index(&self.nics, node as usize);
            prefetch_index(&self.controls, node as usize);
            prefetch_index(&self.controls, node as usize + 1);
            self.net.prefetch_ports(self.net.host_port(node, 0), self.net.planes);
        }
    }

    /// Loads what the events to come at hosts will need, one after the other: a packet names its queue pair, whose slot leads to it.
    #[inline(always)]
    fn prefetch_events(&mut self) {
        let place = self.calendar.place();
        if let Some(event) = self.calendar.event_ahead(PACKETS_AHEAD)
            && event.kind == Kind::Arrive
        {
            self.slab.prefetch(event.packet);
        }
        if let Some(event) = self.calendar.event_ahead(SLOTS_AHEAD) {
            let slot = match event.kind {
                Kind::Arrive => QueuePairs::slot_of(self.slab.dest_qp(event.packet)),
                Kind::Wake => event.packet,
                _ => event.at,
            };
            // Of the events of a node most are about the same one or two.
            let before = [1, 2].map(|n| self.ahead[(place + SLOTS_AHEAD - n) % AHEAD]);
            self.ahead[(place + SLOTS_AHEAD) % AHEAD] = if before.contains(&slot) { NOBODY } else { slot };
            self.qps.prefetch_slot(slot);
        }
        self.qps.prefetch_engine(self.ahead[(place + QPS_AHEAD) % AHEAD]);
        self.qps.prefetch_heap(self.ahead[(place + HEAPS_AHEAD) % AHEAD]);
        if let Some(event) = self.calendar.event_ahead(HEAPS_AHEAD)
            && event.kind == Kind::Arrive
            && let Some(message) = self.slab.message(event.packet)
        {
            prefetch_index(&self.posts.messages, message);
        }
    }

    /// Puts an event on its way that happens at the far end of port `out`.
    #[inline(always)]
    pub(crate) fn cross(&mut self, out: u32, mut event: Event) {
        let port = &self.net.ports[out as usize];
        event.at = port.peer;
        self.calendar.push(event, port.peer_group);
    }

    /// Something, `at`, is to happen at a host.
    #[inline]
    pub(crate) fn at_host(&mut self, time: u64, kind: Kind, at: u32, host: u32) {
        self.calendar.push(Event::plain(time, kind, at, host), self.net.host_group(host));
    }

    #[inline(always)]
    fn react(&mut self, event: Event, node: u32) {
        match event.kind {
            Kind::Arrive => self.arrive(event, node),
            Kind::Wake => self.wake(event.at, event.time),
            Kind::Timer => self.timer(event.at, event.time),
            Kind::Post => self.post_due(event.at),
            Kind::Fault => {
                if !self.reaction(event.at) {
                    self.fault(event.at);
                }
            }
            Kind::PortStatus => self.port_status(event.at),
            Kind::Depart => self.depart(event.at),
            Kind::Pause => self.pause(event.at, event.flags != 0),
        }
    }

    /// What has come of it. Counters of queue pairs that still exist are added in.
    pub fn results(&self) -> Results {
        let mut totals = self.totals;
        self.qps.add_up(&mut totals);
        Results {
            end: Time(self.end),
            messages: self.whole_messages(),
            totals,
            in_flight: self.slab.len() as u64,
            in_flight_bytes: self.in_flight_bytes(),
            port_bytes: self.net.ports.iter().map(|p| p.bytes).collect(),
            port_busy_until: self.net.ports.iter().map(|p| Time(p.data_free)).collect(),
        }
    }

    /// Bytes of all packets on cables and in queues.
    fn in_flight_bytes(&self) -> u64 {
        let moving = self.calendar.pending().filter(|event| event.kind == Kind::Arrive);
        let waiting = self.queues.iter().flat_map(|queues| queues.waiting());
        moving.chain(waiting).map(|event| u64::from(event.bytes)).sum()
    }

    /// By message of the scenario: one that was split is there when its last part is.
    fn whole_messages(&self) -> Vec<MessageResult> {
        let results = self.posts.results();
        if self.parts.is_empty() {
            return results;
        }
        let whole = |ends: &[u32]| {
            let parts = &results[ends[0] as usize..ends[1] as usize];
            let latest =
                |time: fn(&MessageResult) -> Time| parts.iter().map(time).max().unwrap_or(Time::NEVER);
            MessageResult {
                posted: parts.iter().map(|p| p.posted).min().unwrap_or(Time::NEVER),
                delivered: latest(|p| p.delivered),
                completed: latest(|p| p.completed),
                failed: parts.iter().any(|p| p.failed),
            }
        };
        self.parts.windows(2).map(whole).collect()
    }

    /// The ports of a link, by its number in the fabric: the one that sends up, and the one that sends down.
    pub fn link_ports(&self, link: u32) -> [u32; 2] {
        self.net.link_ports(link)
    }

    /// The hosts at the ends of a connection; of RoCEv2 with several queue pairs, of one of these.
    pub fn connection(&self, connection: u32) -> crate::workload::Connection {
        self.posts.ends(connection)
    }

    /// Virtual time reached, picoseconds.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The network it runs on.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}

/// The recorder that a scenario asks for, and the groups of ports that it counts in.
fn recorder_for(
    scenario: &Scenario,
    net: &Network,
    messages: usize,
    parts: &[u32],
) -> (Option<Box<Recorder>>, Vec<u8>) {
    if scenario.record.is_nothing() {
        return (None, Vec::new());
    }
    let planes = net.planes as usize;
    let layers = usize::from(net.fabric.tiers());
    // A sample looks at every port: the larger the fabric, the fewer to begin with.
    let often = (200_000 / net.ports.len().max(1)).clamp(1, 16) as u64;
    let shape = Shape {
        ports: net.ports.len(),
        planes,
        groups: planes * layers * 2,
        ports_of: &|links| links.iter().flat_map(|&link| net.link_ports(link)).collect(),
        first_interval: (scenario.network.base_rtt().0 / often).max(1),
    };
    let groups = if scenario.record.series.is_some() { net.port_groups() } else { Vec::new() };
    (Some(Box::new(Recorder::new(&scenario.record, messages, parts, &shape))), groups)
}

/// More events than anything is loaded ahead, a power of two.
const AHEAD: usize = 32;
/// Not a queue pair: it has been loaded already.
const NOBODY: u32 = u32::MAX;
/// How many turns before its own a node's ports are loaded.
const NODES_AHEAD: usize = 1;
/// How many events before its turn a packet is loaded that comes to a host, then its place among the queue pairs, which
/// the packet names, then the queue pair, to which that place leads, and then what it holds elsewhere.
const PACKETS_AHEAD: usize = 20;
const SLOTS_AHEAD: usize = 14;
const QPS_AHEAD: usize = 8;
const HEAPS_AHEAD: usize = 4;

/// A calendar for this network: slots as wide as the shortest way between two nodes lets them be, reaching over three round trips,
/// so that only slow timers lie beyond its end.
fn calendar_for(config: &NetworkConfig, net: &Network) -> Calendar {
    Calendar::new(net.groups.clone(), config.shortest_hop().0, config.base_rtt().times(3).0)
}
