//! A run: the loop takes the next event and hands it to the piece that it concerns.

use std::borrow::Cow;

use openmrc_transport::Time;

use crate::clock::Clock;
use crate::config::NetworkConfig;
use crate::event::{Event, Kind};
use crate::fabric::{FabricState, Fate, Layout, SwitchInfo};
use crate::hosts::{Endpoints, Hosts, Posts};
use crate::record::{Captured, LogEvent, NetworkShape, Recorder};
use crate::results::{Results, Totals};
use crate::scenario::{Scenario, ScenarioError};
use crate::schedule::Fault;
use crate::stats::Stats;
use crate::transport::TransportConfig;
use crate::workload::Connection;

/// How far a run has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Virtual time.
    pub now: Time,
    /// Messages completed or failed.
    pub finished: usize,
    /// All messages.
    pub messages: usize,
    /// Events processed.
    pub events: u64,
    /// Data packets sent.
    pub data_packets: u64,
}

/// A network with its hosts, in virtual time.
pub struct World {
    config: NetworkConfig,
    clock: Clock,
    fabric: FabricState,
    hosts: Hosts,
    stats: Stats,
    /// Events of the last slot after the limit: they stay in flight.
    late: Vec<Event>,
    /// The run ends here at the latest, picoseconds.
    limit: u64,
}

/// How many turns before its own a node's ports are loaded into the cache.
const NODES_AHEAD: usize = 1;

impl World {
    /// A world at time zero.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first thing in the scenario that cannot be.
    pub fn new(scenario: &Scenario) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let config = scenario.network.clone();
        let layout = Layout::new(config.fabric);
        let groups = layout.node_groups(&config);
        let mut fabric = FabricState::new(&config, layout, &groups, &scenario.faults);
        if fabric.least_shared_buffer() == Some(0) {
            return Err(ScenarioError::Buffer);
        }
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let endpoints = Endpoints::new(&config, &switch, &scenario.transport)?;
        // RoCEv2 spreads a connection over several queue pairs.
        let (workload, parts) = match &scenario.transport {
            TransportConfig::Rocev2(rc) if rc.qps > 1 => {
                let (striped, parts) = scenario.workload.striped(rc.qps, u32::from(config.path_mtu));
                (Cow::Owned(striped), parts)
            }
            _ => (Cow::Borrowed(&scenario.workload), Vec::new()),
        };
        let recorder = recorder_for(scenario, &fabric.layout, workload.messages.len(), &parts);
        // Slots as wide as lookahead permits. Only slow timers lie beyond three round trips.
        let mut clock = Clock::new(groups, config.shortest_hop().0, config.base_rtt().times(3).0);
        fabric.checks_arrivals = scenario.record.capture.is_some();
        fabric.schedule_faults(&mut clock);
        let posts = Posts::new(&workload, parts);
        posts.schedule(&mut clock);
        Ok(World {
            clock,
            fabric,
            hosts: Hosts::new(&config, endpoints, posts),
            stats: Stats { totals: Totals::default(), recorder },
            late: Vec::new(),
            limit: scenario.limit.0,
            config,
        })
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress {
            now: Time(self.clock.end),
            finished: self.hosts.common.posts.finished(),
            messages: self.hosts.common.posts.len(),
            events: self.stats.totals.events,
            data_packets: self.stats.totals.hosts.data_packets,
        }
    }

    /// Runs for `events` events, and on to the end of the calendar's slot. Returns whether there is more to do.
    pub fn run_for(&mut self, events: u64) -> bool {
        let enough = self.stats.totals.events.saturating_add(events);
        while self.stats.totals.events < enough {
            if self.hosts.common.posts.all_finished() || !self.next_slot() {
                return false;
            }
            self.run_slot();
        }
        true
    }

    /// Goes on to the next slot of the calendar; `false` if there is none or if it begins after the limit.
    fn next_slot(&mut self) -> bool {
        if !self.late.is_empty() {
            return false;
        }
        let Some(slot) = self.clock.calendar.next_slot() else { return false };
        let begin = self.clock.calendar.begin_of(slot);
        if self.stats.recorder.as_ref().is_some_and(|r| r.is_due(begin)) {
            self.take_samples(begin.min(self.limit));
        }
        if begin > self.limit {
            self.clock.end = self.limit;
            return false;
        }
        self.clock.calendar.turn_to(slot);
        true
    }

    /// Handles the events of a slot, node by node.
    fn run_slot(&mut self) {
        let mut event = Event::plain(0, Kind::Wake, 0, 0);
        loop {
            while self.clock.calendar.take(&mut event) {
                if event.time > self.limit {
                    self.clock.end = self.limit;
                    self.late.push(event);
                    continue;
                }
                self.hosts.prefetch_events(&self.clock);
                self.clock.advance(event.time);
                self.stats.totals.events += 1;
                self.handle(&mut event, self.clock.calendar.node());
            }
            let Some(node) = self.next_turn() else { return };
            self.prefetch_nodes();
            if let Some(switch) = node.checked_sub(self.hosts.len())
                && self.forwards_at_once()
            {
                self.forward_all(switch);
            }
        }
    }

    /// Runs to the end: all messages finished, no event left, or the time limit.
    pub fn run(&mut self) {
        while self.run_for(u64::MAX) {}
    }

    /// The next node that has events in this slot.
    #[inline(always)]
    fn next_turn(&mut self) -> Option<u32> {
        loop {
            if let Some(node) = self.clock.calendar.next_turn() {
                return Some(node);
            }
            self.open_page()?;
        }
    }

    /// Opens the next page of the slot.
    #[inline(never)]
    fn open_page(&mut self) -> Option<()> {
        let layout = &self.fabric.layout;
        let page = self.clock.calendar.next_page()?;
        if page.first_node() >= self.hosts.len() {
            self.clock.calendar.open(page, |event| layout.owner(event.at));
        } else {
            self.clock.calendar.open(page, |event| event.dst);
        }
        Some(())
    }

    /// Whether all packets of a switch in this slot may be forwarded in one loop: the switch schedules nothing for
    /// itself, and the limit is beyond the slot.
    #[inline(always)]
    fn forwards_at_once(&self) -> bool {
        self.fabric.computes_departures()
            && self.clock.calendar.page_begin().saturating_add(self.clock.lookahead()) <= self.limit
    }

    /// Loads the ports of a node whose turn is to come. The loads run beside the work on this node.
    #[inline(always)]
    fn prefetch_nodes(&self) {
        let Some(node) = self.clock.calendar.node_ahead(NODES_AHEAD) else { return };
        if let Some(switch) = node.checked_sub(self.hosts.len()) {
            self.fabric.prefetch_switch(switch);
        } else {
            self.hosts.prefetch_host(node);
            self.fabric.prefetch_host(node);
        }
    }

    /// Forwards all packets that come to a switch in this slot.
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

    /// Forwards a packet that comes to a switch whose packets are not forwarded all at once.
    #[inline(never)]
    fn forward_one(&mut self, number: u32, event: &Event) {
        let switch = *self.fabric.layout.switch(number);
        self.forward(&switch, event);
    }

    /// A packet comes to a switch.
    #[inline(always)]
    fn forward(&mut self, switch: &SwitchInfo, event: &Event) {
        let Some(flags) = self.over_cable(event) else { return };
        let fate = self.fabric.forward(switch, event, flags, &mut self.clock, &mut self.stats);
        if fate == Fate::Dropped {
            self.hosts.common.packets.drop_packet(event.packet);
        }
    }

    /// Hands an event at `node` to the piece that it concerns.
    #[inline(always)]
    fn handle(&mut self, event: &mut Event, node: u32) {
        let World { clock, fabric, hosts, stats, .. } = self;
        match event.kind {
            Kind::Arrive => {
                if let Some(number) = node.checked_sub(hosts.len()) {
                    self.forward_one(number, event);
                } else {
                    self.receive(event);
                }
            }
            Kind::Serve => hosts.take_waiting(event, clock, fabric, stats),
            Kind::Wake => hosts.wake(event.at, clock, fabric, stats),
            Kind::Timer => hosts.timer(event.at, clock, fabric, stats),
            Kind::Post => hosts.post_due(event.at, clock, fabric, stats),
            Kind::Release => hosts.release(event.at, clock),
            Kind::Close => hosts.close_responder(event.at, &mut stats.totals.hosts),
            Kind::Carrier => hosts.carrier(event.at, clock, fabric, stats),
            Kind::Fault => self.fault(event.at),
            Kind::Reroute => fabric.reroute(event.at, clock.now, stats),
            Kind::Depart => {
                if let Some(host) = fabric.depart(event.at, clock, stats) {
                    hosts.serve(host, clock, fabric, stats);
                }
            }
            Kind::Pause => fabric.pause(event.at, event.flags != 0, clock, stats),
        }
    }

    /// A packet comes to its host.
    #[inline(always)]
    fn receive(&mut self, event: &mut Event) {
        if let Some(flags) = self.over_cable(event) {
            event.flags = flags;
            let World { clock, fabric, hosts, stats, .. } = self;
            hosts.arrive(event, clock, fabric, stats);
        }
    }

    /// The flags of a packet that arrives at port `event.at`. `None` if it was lost on the cable.
    #[inline(always)]
    fn over_cable(&mut self, event: &Event) -> Option<u8> {
        if self.fabric.checks_arrivals {
            return self.checked_over_cable(event);
        }
        Some(self.fabric.flags_on_arrival(event, &mut self.stats))
    }

    /// The same where packets may be lost. If packets of that cable are captured, it is kept.
    #[cold]
    fn checked_over_cable(&mut self, event: &Event) -> Option<u8> {
        if !self.fabric.survives(event, &mut self.stats) {
            self.hosts.common.packets.drop_packet(event.packet);
            return None;
        }
        let flags = self.fabric.flags_on_arrival(event, &mut self.stats);
        self.capture(&Event { flags, ..*event });
        Some(flags)
    }

    /// Keeps a packet that has crossed a cable, if packets of that cable are captured.
    fn capture(&mut self, event: &Event) {
        let Some(capture) = self.stats.recorder.as_mut().and_then(|r| r.capture.as_mut()) else { return };
        let (from, to_host) = self.fabric.sender_to(event.at);
        if capture.wants(from) {
            // The event comes when the node has processed the packet, some time after its last bit.
            let latency = if to_host { self.config.nic_latency } else { self.config.switch_latency };
            let arrived = event.time.saturating_sub(latency.0);
            let packet = self.hosts.common.packets.get(event.packet);
            capture.keep(event, arrived, from, packet, self.hosts.ends_of(event));
        }
    }

    /// An entry of the schedule of faults is due.
    fn fault(&mut self, index: u32) {
        let Fault { target, change, .. } = self.fabric.fault(index);
        self.stats.log(self.clock.now, LogEvent::Fault(target, change));
        for port in self.fabric.ports_of(target) {
            let changed = self.fabric.change_port(port, change, &mut self.clock, &mut self.stats);
            if let Some(carrier) = changed {
                self.hosts.carrier_changed(carrier, &mut self.clock);
            }
        }
    }

    /// The results so far.
    pub fn results(&self) -> Results {
        let (port_bytes, port_busy_until) = self.fabric.port_results();
        Results {
            end: Time(self.clock.end),
            messages: self.hosts.common.posts.results(),
            totals: self.totals(),
            in_flight: self.hosts.common.packets.len() as u64,
            in_flight_bytes: self.in_flight_bytes(),
            port_bytes,
            port_busy_until: port_busy_until.into_iter().map(Time).collect(),
        }
    }

    /// Bytes of all packets on cables and in queues.
    fn in_flight_bytes(&self) -> u64 {
        let moving = self.clock.calendar.pending().chain(&self.late);
        let moving = moving.filter(|event| matches!(event.kind, Kind::Arrive | Kind::Serve));
        moving.chain(self.fabric.waiting()).map(|event| u64::from(event.bytes)).sum()
    }

    /// All counters, those of queue pairs that still exist included.
    fn totals(&self) -> Totals {
        let mut totals = self.stats.totals;
        self.hosts.add_up(&mut totals.hosts);
        totals
    }

    /// Takes the samples that are due by `time`.
    #[cold]
    fn take_samples(&mut self, time: u64) {
        let totals = self.totals();
        if let Some(recorder) = &mut self.stats.recorder {
            recorder.take_samples(time, self.clock.end, &totals, &self.fabric);
        }
    }

    /// Ends the record where the run stands. To be called before it is read.
    pub fn finish_record(&mut self) {
        let totals = self.totals();
        if let Some(recorder) = &mut self.stats.recorder {
            recorder.finish(self.clock.end, &totals, &self.fabric);
        }
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

    /// The ports of a link, by its number in the fabric: the one that sends up, and the one that sends down.
    pub fn link_ports(&self, link: u32) -> [u32; 2] {
        self.fabric.layout.link_ports(link)
    }

    /// The hosts at the ends of a connection. With several RoCEv2 queue pairs a connection, each counts as one.
    pub fn connection(&self, connection: u32) -> Connection {
        self.hosts.common.posts.ends(connection)
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
