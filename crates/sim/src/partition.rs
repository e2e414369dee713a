//! A part of the network with all that its simulation changes: hosts, ports, packets, calendar, counters. Nothing of it is
//! shared with another partition; what one causes in another goes through [`crate::mailbox`].

use openmrc_scenario::Totals;
use openmrc_scenario::run::{FaultEvent, NetworkConfig};

use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind};
use crate::fabric::{FabricState, Fate, SwitchInfo};
use crate::hosts::Hosts;
use crate::mailbox::Mail;
use crate::record::LogEvent;
use crate::stats::Stats;

/// A partition of the network, in virtual time.
pub(crate) struct Partition {
    pub clock: Clock,
    pub fabric: FabricState,
    pub hosts: Hosts,
    pub stats: Stats,
    /// Node number of the first switch.
    first_switch: u32,
    /// Every partition handles the events that concern all nodes. The first one counts and logs them.
    is_first: bool,
    /// Events of the last slot after the limit: they stay in flight.
    late: Vec<Event>,
    /// The run ends here at the latest, picoseconds.
    limit: u64,
    config: Arc<NetworkConfig>,
}

/// How far a partition has come at the end of a slot.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Standing {
    /// Events processed.
    pub events: u64,
    /// Messages completed or failed.
    pub finished: u64,
    /// The next slot in which something happens because of it; [`u64::MAX`] if nothing does.
    pub next_slot: u64,
    /// It has come to the limit.
    pub is_late: bool,
}

impl Standing {
    /// How far two partitions have come.
    pub fn with(self, other: Standing) -> Standing {
        Standing {
            events: self.events + other.events,
            finished: self.finished + other.finished,
            next_slot: self.next_slot.min(other.next_slot),
            is_late: self.is_late || other.is_late,
        }
    }
}

/// How many turns before its own a node's ports are loaded into the cache.
const NODES_AHEAD: usize = 1;

impl Partition {
    /// A partition at time zero with the messages of its `own` hosts and all faults scheduled.
    pub fn new(
        config: &Arc<NetworkConfig>,
        own: &Range<u32>,
        (mut clock, fabric, hosts, stats): (Clock, FabricState, Hosts, Stats),
        limit: u64,
    ) -> Self {
        fabric.schedule_faults(&mut clock);
        hosts.common.posts.schedule(own, &mut clock);
        Partition {
            first_switch: fabric.layout.hosts(),
            is_first: own.start == 0,
            clock,
            fabric,
            hosts,
            stats,
            late: Vec::new(),
            limit,
            config: Arc::clone(config),
        }
    }

    // Slots and mail.

    /// How far it has come. Mail that has not been taken counts as well.
    pub fn standing(&self) -> Standing {
        let calendar = &self.clock.calendar;
        let sent = self.clock.mail.iter().map(Mail::earliest).min().filter(|&time| time < u64::MAX);
        let sent = sent.map(|time| calendar.slot_of(time));
        Standing {
            events: self.stats.totals.events,
            finished: self.hosts.common.posts.finished() as u64,
            next_slot: calendar.next_slot().into_iter().chain(sent).min().unwrap_or(u64::MAX),
            is_late: !self.late.is_empty(),
        }
    }

    /// Handles the events of a slot, node by node, and seals the mail that they have caused.
    pub fn run_slot(&mut self, slot: u64) {
        self.clock.calendar.turn_to(slot);
        if let Some(tally) = &mut self.stats.tally {
            tally.begin_slot();
        }
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
            let Some(node) = self.next_turn() else { break };
            self.prefetch_nodes();
            if let Some(switch) = node.checked_sub(self.first_switch)
                && self.forwards_at_once()
            {
                self.forward_all(switch);
            }
        }
        for mail in &mut self.clock.mail {
            mail.seal(&mut self.hosts.common.packets);
        }
    }

    /// Takes the mail of another partition.
    pub fn receive_mail(&mut self, mail: &mut Mail) {
        let lookahead = self.clock.lookahead();
        for queue in mail.queues.drain(..) {
            self.fabric.note(&queue, lookahead);
        }
        mail.deliver(&mut self.clock.calendar, &mut self.hosts.common.packets);
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
        if page.first_node() >= self.first_switch {
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
        if let Some(switch) = node.checked_sub(self.first_switch) {
            self.fabric.prefetch_switch(switch);
        } else {
            self.hosts.prefetch_host(node);
            self.fabric.prefetch_host(node);
        }
    }

    // Events.

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
        if fate == Fate::Dropped && event.kind == Kind::Arrive {
            self.hosts.common.packets.drop_packet(event.packet);
        }
    }

    /// Hands an event at `node` to the piece that it concerns.
    #[inline(always)]
    fn handle(&mut self, event: &mut Event, node: u32) {
        let Partition { clock, fabric, hosts, stats, .. } = self;
        match event.kind {
            Kind::Arrive => {
                if let Some(number) = node.checked_sub(self.first_switch) {
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
            Kind::Close => hosts.close_responder(event.at, clock, fabric, stats),
            Kind::Receive => hosts.post_receive(event.at, clock, fabric, stats),
            Kind::Probe => hosts.probe(event.at, clock, fabric, stats),
            Kind::Skipped => hosts.skipped_arrives(event, clock, fabric, stats),
            Kind::Finish => hosts.skipped_completes(event, clock, stats),
            Kind::Resume => hosts.resume(event, clock, fabric, stats),
            Kind::Loop => {
                if let Some(number) = node.checked_sub(self.first_switch) {
                    self.forward_one(number, event);
                } else if self.over_cable(event).is_some() {
                    self.hosts.take_probe(event, &mut self.stats);
                }
            }
            Kind::Carrier => hosts.carrier(event.at, clock, fabric, stats),
            Kind::Fault => self.fault(event.at),
            Kind::Reroute => {
                let logged = fabric.reroute(event.at);
                self.count_for_all(logged);
            }
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
            let Partition { clock, fabric, hosts, stats, .. } = self;
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
        let has_packet = event.kind == Kind::Arrive;
        if !self.fabric.survives(event, &mut self.stats) {
            if has_packet {
                self.hosts.common.packets.drop_packet(event.packet);
            }
            return None;
        }
        let flags = self.fabric.flags_on_arrival(event, &mut self.stats);
        if has_packet {
            self.capture(&Event { flags, ..*event });
        }
        Some(flags)
    }

    /// Keeps a packet that has crossed a cable, if packets of that cable are captured.
    fn capture(&mut self, event: &Event) {
        let Some(tally) = &mut self.stats.tally else { return };
        let (from, to_host) = self.fabric.sender_to(event.at);
        if let Some(capture) = tally.capture_of(from) {
            // The event comes when the node has processed the packet, some time after its last bit.
            let latency = if to_host { self.config.nic_latency } else { self.config.switch_latency };
            let arrived = event.time.saturating_sub(latency.0);
            let packet = self.hosts.common.packets.get(event.packet);
            capture.keep(event, arrived, from, packet, self.hosts.ends_of(event));
        }
    }

    /// An entry of the schedule of faults is due.
    fn fault(&mut self, index: u32) {
        let FaultEvent { target, change, .. } = self.fabric.fault(index);
        self.count_for_all(Some(LogEvent::Fault(target, change)));
        for port in self.fabric.ports_of(target) {
            let changed = self.fabric.change_port(port, change, &mut self.clock, &mut self.stats);
            if let Some(carrier) = changed {
                self.hosts.carrier_changed(carrier, &mut self.clock);
            }
        }
        self.hosts.tell_skipper_of_fault(&mut self.clock);
    }

    /// An event that concerns all nodes has been counted here. It counts and is logged once.
    fn count_for_all(&mut self, logged: Option<LogEvent>) {
        if !self.is_first {
            self.stats.totals.events -= 1;
        } else if let Some(event) = logged {
            self.stats.log(self.clock.now, event);
        }
    }

    // Checkpoints.

    /// Writes all that changes. To be called between two slots: mail has been taken.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        self.clock.save(to)?;
        self.fabric.save(to)?;
        self.hosts.save(to)?;
        self.stats.save(to)?;
        to.put(&self.late)
    }

    /// Reads what [`Partition::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        self.clock.load(from)?;
        self.fabric.load(from)?;
        self.hosts.load(from)?;
        self.stats.load(from)?;
        self.late = from.get()?;
        Ok(())
    }

    // Results.

    /// All counters, those of queue pairs that still exist included.
    pub fn totals(&self) -> Totals {
        let mut totals = self.stats.totals;
        self.hosts.add_up(&mut totals.hosts);
        totals
    }

    /// Packets on cables and in queues.
    fn moving(&self) -> impl Iterator<Item = &Event> {
        let moving = self.clock.calendar.pending().chain(&self.late);
        let moving = moving.filter(|event| matches!(event.kind, Kind::Arrive | Kind::Serve | Kind::Loop));
        moving.chain(self.fabric.waiting())
    }

    /// Number of packets on cables and in queues.
    pub fn in_flight(&self) -> u64 {
        let probes = self.moving().filter(|event| event.kind == Kind::Loop);
        (self.hosts.common.packets.len() + probes.count()) as u64
    }

    /// Bytes of all packets on cables and in queues.
    pub fn in_flight_bytes(&self) -> u64 {
        self.moving().map(|event| u64::from(event.bytes)).sum()
    }
}
