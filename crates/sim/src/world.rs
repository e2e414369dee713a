//! The state of a run, and its loop: take the next event, let the part of the world that it concerns react.

use std::borrow::Cow;

use prefetch_index::prefetch_index;

use openmrc_transport::node::DestinationControl;
use openmrc_transport::{SendDone, Time, Transmit};

use crate::clock::Clock;
use crate::config::NetworkConfig;
use crate::endpoints::{Endpoints, TransportConfig};
use crate::event::{Event, Kind};
use crate::fabric::{FabricState, Fate, Layout, SwitchInfo};
use crate::faults::Fault;
use crate::groups::NodeGroups;
use crate::nic::Nic;
use crate::post::Posts;
use crate::queue_pair::QueuePairs;
use crate::record::{Captured, LogEvent, NetworkShape, Recorder};
use crate::results::{MessageResult, Results, Totals};
use crate::scenario::{Scenario, ScenarioError};
use crate::slab::Slab;
use crate::stats::Stats;

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
    pub(crate) clock: Clock,
    pub(crate) fabric: FabricState,
    pub(crate) slab: Slab,
    pub(crate) nics: Vec<Nic>,
    /// By host: how hard it presses its senders; empty where none does.
    pub(crate) controls: Vec<DestinationControl>,
    pub(crate) qps: QueuePairs,
    pub(crate) endpoints: Endpoints,
    pub(crate) posts: Posts,
    /// Where the messages of the scenario are split: the parts of message `i` are `parts[i] .. parts[i + 1]`.
    parts: Vec<u32>,
    pub(crate) stats: Stats,
    pub(crate) outbox: Outbox,
    /// Queue pairs that the events to come are about, by the event's place in its page.
    ahead: [u32; AHEAD],
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
        let layout = Layout::new(config.fabric);
        let groups = layout.node_groups(&config);
        let fabric = FabricState::new(&config, layout, &groups, &scenario.faults);
        if fabric.least_shared_buffer() == Some(0) {
            return Err(ScenarioError::Buffer);
        }
        let hosts = config.fabric.shape().hosts;
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let endpoints = Endpoints::new(&config, &switch, &scenario.transport)?;
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
        let recorder = recorder_for(scenario, &fabric.layout, workload.messages.len(), &parts);
        let mut world = World {
            // Slots as wide as lookahead permits. Only slow timers lie beyond three round trips.
            clock: Clock::new(groups, config.shortest_hop().0, config.base_rtt().times(3).0),
            nics,
            controls,
            ahead: [0; AHEAD],
            slab: Slab::default(),
            qps: QueuePairs::default(),
            endpoints,
            posts: Posts::new(&workload),
            parts,
            stats: Stats { totals: Totals::default(), recorder },
            outbox: Outbox::default(),
            limit: scenario.limit.0,
            fabric,
            config,
        };
        world.fabric.checks_arrivals = scenario.record.capture.is_some();
        world.fabric.schedule_faults(&mut world.clock);
        world.schedule_posts();
        Ok(world)
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            now: Time(self.clock.end),
            finished: self.posts.finished,
            messages: self.posts.len(),
            events: self.stats.totals.events,
            data_packets: self.stats.totals.hosts.data_packets,
        }
    }

    /// Goes on for about `events` events. Says whether there is more to do.
    pub fn run_for(&mut self, events: u64) -> bool {
        let enough = self.stats.totals.events.saturating_add(events);
        while self.stats.totals.events < enough {
            if self.posts.all_finished() {
                return false;
            }
            let Some(event) = self.clock.calendar.take() else {
                let Some(node) = self.next_turn() else { return false };
                self.prefetch_nodes();
                if let Some(switch) = node.checked_sub(self.nics.len() as u32)
                    && self.forwards_at_once()
                {
                    self.forward_all(switch);
                }
                continue;
            };
            if event.time > self.limit {
                self.clock.end = self.limit;
                // It stays on its way.
                self.clock.push(event, NodeGroups::EVERYWHERE);
                return false;
            }
            self.prefetch_events();
            self.clock.advance(event.time);
            self.stats.totals.events += 1;
            self.react(event, self.clock.calendar.node());
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
            if let Some(node) = self.clock.calendar.next_turn() {
                return Some(node);
            }
            self.open_page()?;
        }
    }

    /// Opens the calendar's next page.
    #[inline(never)]
    fn open_page(&mut self) -> Option<()> {
        loop {
            let layout = &self.fabric.layout;
            let hosts = self.nics.len() as u32;
            if let Some(page) = self.clock.calendar.next_page() {
                if page.first_node() >= hosts {
                    self.clock.calendar.open(page, |event| layout.owner(event.at));
                } else {
                    self.clock.calendar.open(page, |event| event.dst);
                }
                return Some(());
            }
            if !self.clock.calendar.turn_page() {
                return None;
            }
            let begin = self.clock.calendar.page_begin();
            if self.stats.recorder.as_ref().is_some_and(|r| r.is_due(begin)) {
                self.take_samples(begin.min(self.limit));
            }
        }
    }

    /// Whether all that comes to a switch in this slot may be dealt with in one go: it gives itself nothing to do, and the end of
    /// the run is not near.
    #[inline(always)]
    fn forwards_at_once(&self) -> bool {
        self.fabric.computes_departures()
            && self.clock.calendar.page_begin().saturating_add(self.clock.lookahead()) <= self.limit
    }

    /// Loads the ports of a node whose turn is to come: such a load waits for nothing and goes on beside the work at hand.
    #[inline(always)]
    fn prefetch_nodes(&self) {
        let Some(node) = self.clock.calendar.node_ahead(NODES_AHEAD) else { return };
        if let Some(number) = node.checked_sub(self.nics.len() as u32) {
            self.fabric.prefetch_switch(number);
        } else {
            prefetch_index(&self.nics, node as usize);
            prefetch_index(&self.controls, node as usize);
            prefetch_index(&self.controls, node as usize + 1);
            self.fabric.prefetch_host(node);
        }
    }

    /// Loads what the events to come at hosts will need, one after the other: a packet names its queue pair, whose slot leads to it.
    #[inline(always)]
    fn prefetch_events(&mut self) {
        let place = self.clock.calendar.place();
        if let Some(event) = self.clock.calendar.event_ahead(PACKETS_AHEAD)
            && event.kind == Kind::Arrive
        {
            self.slab.prefetch(event.packet);
        }
        if let Some(event) = self.clock.calendar.event_ahead(SLOTS_AHEAD) {
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
        if let Some(event) = self.clock.calendar.event_ahead(HEAPS_AHEAD)
            && event.kind == Kind::Arrive
            && let Some(message) = self.slab.message(event.packet)
        {
            prefetch_index(&self.posts.messages, message);
        }
    }

    /// Serves all packets that come to a switch in this slot.
    #[inline(always)]
    fn forward_all(&mut self, number: u32) {
        let switch = *self.fabric.layout.switch(number);
        let turn = self.clock.calendar.take_turn();
        let page = self.clock.calendar.lend_page();
        let events = &page[turn];
        self.stats.totals.events += events.len() as u64;
        if let Some(last) = events.last() {
            self.clock.end = self.clock.end.max(last.time);
        }
        for event in events {
            self.clock.now = event.time;
            self.forward(&switch, event);
        }
        self.clock.calendar.return_page(page);
    }

    /// A packet comes to a switch.
    #[inline(always)]
    fn forward(&mut self, switch: &SwitchInfo, event: &Event) {
        let Some(flags) = self.over_cable(event) else { return };
        let fate = self.fabric.forward(switch, event, flags, &mut self.clock, &mut self.stats);
        if fate == Fate::Dropped {
            self.slab.drop_packet(event.packet);
        }
    }

    /// A packet comes to a node.
    #[inline(always)]
    fn arrive(&mut self, event: Event, node: u32) {
        if let Some(number) = node.checked_sub(self.nics.len() as u32) {
            let switch = *self.fabric.layout.switch(number);
            self.forward(&switch, &event);
        } else if let Some(flags) = self.over_cable(&event) {
            self.receive(Event { flags, ..event });
        }
    }

    /// The flags of a packet that arrives at port `event.at`. `None` if it was lost on the cable.
    #[inline(always)]
    fn over_cable(&mut self, event: &Event) -> Option<u8> {
        if self.fabric.checks_arrivals && !self.check_arrival(event) {
            return None;
        }
        Some(self.fabric.flags_on_arrival(event, &mut self.stats))
    }

    /// Whether a packet gets over the cable to port `event.at`. If packets of that cable are captured, it is kept.
    #[cold]
    fn check_arrival(&mut self, event: &Event) -> bool {
        let survives = self.fabric.survives(event, &mut self.stats);
        if survives {
            self.capture(event);
        } else {
            self.slab.drop_packet(event.packet);
        }
        survives
    }

    /// Keeps a packet that has crossed a cable, if packets of that cable are captured.
    fn capture(&mut self, event: &Event) {
        let Some(capture) = self.stats.recorder.as_mut().and_then(|r| r.capture.as_mut()) else { return };
        let (from, to_host) = self.fabric.sender_to(event.at);
        if capture.wants(from) {
            // The event comes when the node has processed the packet, some time after its last bit.
            let latency = if to_host { self.config.nic_latency } else { self.config.switch_latency };
            let arrived = event.time.saturating_sub(latency.0);
            let packet = self.slab.get(event.packet);
            capture.keep(event, arrived, from, packet, self.posts.ends(event.connection));
        }
    }

    /// An entry of the schedule of faults is due.
    fn fault(&mut self, index: u32) {
        let Fault { target, change, .. } = self.fabric.fault(index);
        self.stats.log(self.clock.now, LogEvent::Fault(target, change));
        for port in self.fabric.ports_of(target) {
            if let Some(carrier) = self.fabric.change_port(port, change, &mut self.clock, &mut self.stats) {
                self.carrier(carrier);
            }
        }
    }

    #[inline(always)]
    fn react(&mut self, event: Event, node: u32) {
        match event.kind {
            Kind::Arrive => self.arrive(event, node),
            Kind::Wake => self.wake(event.at, event.time),
            Kind::Timer => self.timer(event.at, event.time),
            Kind::Post => self.post_due(event.at),
            Kind::Fault => self.fault(event.at),
            Kind::Reroute => self.fabric.reroute(event.at, event.time, &mut self.stats),
            Kind::PortStatus => self.port_status(event.at),
            Kind::Depart => {
                if let Some(host) = self.fabric.depart(event.at, &mut self.clock, &mut self.stats) {
                    self.serve(host);
                }
            }
            Kind::Pause => {
                self.fabric.pause(event.at, event.flags != 0, &mut self.clock, &mut self.stats);
            }
        }
    }

    /// What has come of it. Counters of queue pairs that still exist are added in.
    pub fn results(&self) -> Results {
        let totals = self.totals();
        let (port_bytes, port_busy_until) = self.fabric.port_results();
        Results {
            end: Time(self.clock.end),
            messages: self.whole_messages(),
            totals,
            in_flight: self.slab.len() as u64,
            in_flight_bytes: self.in_flight_bytes(),
            port_bytes,
            port_busy_until: port_busy_until.into_iter().map(Time).collect(),
        }
    }

    /// Bytes of all packets on cables and in queues.
    fn in_flight_bytes(&self) -> u64 {
        let moving = self.clock.calendar.pending().filter(|event| event.kind == Kind::Arrive);
        moving.chain(self.fabric.waiting()).map(|event| u64::from(event.bytes)).sum()
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
        self.fabric.layout.link_ports(link)
    }

    /// The hosts at the ends of a connection; of RoCEv2 with several queue pairs, of one of these.
    pub fn connection(&self, connection: u32) -> crate::workload::Connection {
        self.posts.ends(connection)
    }

    /// All counters, those of queue pairs that still exist included.
    fn totals(&self) -> Totals {
        let mut totals = self.stats.totals;
        self.qps.add_up(&mut totals.hosts);
        totals
    }

    /// Takes the samples that are due by `time`.
    #[cold]
    fn take_samples(&mut self, time: u64) {
        let totals = self.totals();
        let Some(mut recorder) = self.stats.recorder.take() else { return };
        recorder.take_samples(time, self.clock.end, &totals, &self.fabric);
        self.stats.recorder = Some(recorder);
    }

    /// Ends the record where the run stands. To be called before it is read.
    pub fn finish_record(&mut self) {
        let totals = self.totals();
        let Some(mut recorder) = self.stats.recorder.take() else { return };
        recorder.finish(self.clock.end, &totals, &self.fabric);
        self.stats.recorder = Some(recorder);
    }

    /// The record, if the scenario asked for one.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.stats.recorder.as_deref()
    }

    /// The record, to take captured packets out.
    pub fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.stats.recorder.as_deref_mut()
    }

    /// The group that the time series count a port in: by plane, layer of the cable, and direction (up is even).
    /// 0 without time series.
    pub fn group_of(&self, port: u32) -> usize {
        self.recorder().map_or(0, |recorder| recorder.group_of(port))
    }

    /// The bytes of a captured packet, from the Ethernet header to the iCRC.
    pub fn frame(&self, captured: &Captured) -> Vec<u8> {
        captured.frame(&self.config, |end| self.fabric.layout.port_number(end))
    }

    /// The network it runs on.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}

/// The recorder that a scenario asks for.
fn recorder_for(
    scenario: &Scenario,
    layout: &Layout,
    messages: usize,
    parts: &[u32],
) -> Option<Box<Recorder>> {
    if scenario.record.is_nothing() {
        return None;
    }
    // A sample reads every port, so a larger fabric starts with a longer interval.
    let often = (200_000 / layout.ports().max(1)).clamp(1, 16) as u64;
    let shape = NetworkShape {
        planes: layout.planes as usize,
        port_groups: &layout.port_groups(),
        groups: layout.planes as usize * usize::from(layout.fabric.tiers()) * 2,
        first_interval: (scenario.network.base_rtt().0 / often).max(1),
        link_ports: &|link| layout.link_ports(link),
    };
    Some(Box::new(Recorder::new(&scenario.record, messages, parts, &shape)))
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
