//! The state of the network in virtual time: ports, routes, faults. A packet event goes in, and is forwarded, dropped,
//! or handed out at a host. The fabric knows nothing of queue pairs, messages or packets' contents.
//!
//! ```text
//! layout       numbering of nodes and ports; never changes
//! ports        all output ports, and what both port models share
//! port_model   computed (departures known on arrival) or queued (real queues, PFC)
//! routing      which port a switch chooses
//! impairments  ports that lose packets or are slow
//! ```

mod computed;
mod impairments;
mod layout;
mod port_model;
mod ports;
mod queued;
mod routing;

use std::sync::Arc;

use openmrc_scenario::run::{Change, FaultEvent, NetworkConfig, Target};
use openmrc_transport::PortSet;

use self::impairments::Impairments;
pub(crate) use self::layout::{Layout, SwitchInfo};
use self::port_model::PortModel;
pub(crate) use self::ports::Fate;
use self::ports::{Ports, port_flag};
use self::queued::Queued;
use self::routing::{Failure, Routes};
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::groups::Groups;
use crate::long_queue::LongQueue;
use crate::record::LogEvent;
use crate::stats::Stats;

/// A host's port that lost its carrier or got it back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarrierChange {
    pub host: u32,
    pub port: u8,
    pub up: bool,
}

/// Bytes of a port, and of what is known of it elsewhere, if this share of all ports is used.
pub(crate) fn bytes_per_port(config: &NetworkConfig, used: f64) -> u64 {
    let queues = if Queued::is_needed_by(config) {
        Queued::BYTES_PER_PORT + (used * Queued::FIRST_ROOM as f64) as usize
    } else {
        0
    };
    // The switch that it belongs to.
    (ports::BYTES_PER_PORT + queues + size_of::<u32>()) as u64
}

/// Bytes that a packet takes where it waits in a queue, beside its event.
pub(crate) fn bytes_per_waiting_packet(config: &NetworkConfig) -> u64 {
    // Measured: with real queues their spare room is most of it; else the history of the queues that may mark.
    if Queued::is_needed_by(config) { 40 } else { 8 }
}

/// The network as a partition sees it: the state of its own ports, and routes and faults of all.
pub(crate) struct FabricState {
    pub layout: Arc<Layout>,
    ports: Ports,
    model: PortModel,
    routes: Routes,
    impairments: Impairments,
    faults: Arc<[FaultEvent]>,
    /// Arrivals have to be checked: a port is, or has been, down or lossy, or packets are captured.
    pub checks_arrivals: bool,
}

impl FabricState {
    /// A network at rest that will suffer `faults`.
    pub fn new(
        config: &NetworkConfig,
        layout: &Arc<Layout>,
        groups: &Groups,
        partition: u32,
        faults: &Arc<[FaultEvent]>,
    ) -> Self {
        let ports = Ports::new(config, layout, groups, partition);
        FabricState {
            model: PortModel::new(config, layout, &ports),
            layout: Arc::clone(layout),
            ports,
            routes: Routes::new(config),
            impairments: Impairments::new(config.seed),
            faults: Arc::clone(faults),
            checks_arrivals: false,
        }
    }

    // Packets.

    /// Flags of a packet that arrives at port `event.at`, as the queue before the cable left them.
    #[inline(always)]
    pub fn flags_on_arrival(&mut self, event: &Event, stats: &mut Stats) -> u8 {
        self.model.flags_on_arrival(&mut self.ports, event, stats)
    }

    /// Whether a packet gets over the cable to port `event.at`, which may be down or lossy.
    pub fn survives(&self, event: &Event, stats: &mut Stats) -> bool {
        let from = self.ports[event.at].peer;
        let port = &self.ports[from];
        if port.is_down() {
            stats.totals.fabric.dropped_down += 1;
        } else if port.flags & port_flag::LOSSY != 0 && !self.impairments.survives(event, from) {
            stats.totals.fabric.dropped_lossy += 1;
        } else {
            return true;
        }
        stats.totals.fabric.dropped_bytes += u64::from(event.bytes);
        stats.at_port(from, |count| count.lost += 1);
        false
    }

    /// A queue at the other end of a cable may mark.
    pub fn note(&mut self, queue: &LongQueue, lookahead: u64) {
        self.model.note(&mut self.ports, queue, lookahead);
    }

    /// A switch forwards a packet that came in by its port `event.at`.
    #[inline(always)]
    pub fn forward(
        &mut self,
        switch: &SwitchInfo,
        event: &Event,
        flags: u8,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        let (out, flags) = if flags & flag::UP_FIRST == 0 {
            (self.routes.choose(&self.layout, &self.ports, &self.model, switch, event), flags)
        } else {
            (switch.named_uplink(event.ev), flags & !flag::UP_FIRST)
        };
        self.model.enqueue(&mut self.ports, out, event, flags, clock, stats)
    }

    /// A host sends a packet by its port in `plane`.
    #[inline]
    pub fn send(&mut self, host: u32, plane: u8, event: Event, clock: &mut Clock, stats: &mut Stats) -> Fate {
        let out = self.layout.host_port(host, u32::from(plane));
        self.model.enqueue_at_host(&mut self.ports, out, event, clock, stats)
    }

    /// A transmission at port `out` has ended. Returns the host whose port can take another packet.
    pub fn depart(&mut self, out: u32, clock: &mut Clock, stats: &mut Stats) -> Option<u32> {
        self.model.depart(&mut self.ports, out, clock, stats)
    }

    /// The peer of port `out` has sent XOFF or XON.
    pub fn pause(&mut self, out: u32, xoff: bool, clock: &mut Clock, stats: &mut Stats) {
        self.model.pause(&mut self.ports, out, xoff, clock, stats);
    }

    // What hosts see of their ports.

    /// Ports of a host that can take a packet. `Err` is the time when the first port will be able to, or [`u64::MAX`]
    /// if that is not known: then an event comes.
    #[inline]
    pub fn free_ports(&self, host: u32, now: u64) -> Result<PortSet, u64> {
        self.model.free_ports(&self.ports, host, now)
    }

    /// When the first of a host's busy ports will have sent all it has; [`u64::MAX`] if no port is busy, or if an event
    /// comes then.
    pub fn next_departure(&self, host: u32, now: u64) -> u64 {
        self.model.next_departure(&self.ports, host, now)
    }

    // Faults.

    /// Schedules all faults.
    pub fn schedule_faults(&self, clock: &mut Clock) {
        for (index, fault) in (0..).zip(&*self.faults) {
            clock.push_everywhere(fault.at.0, Kind::Fault, index);
        }
    }

    /// An entry of the schedule of faults.
    pub fn fault(&self, index: u32) -> FaultEvent {
        self.faults[index as usize]
    }

    /// The ports that a fault changes.
    pub fn ports_of(&self, target: Target) -> Vec<u32> {
        let fabric = &self.layout.fabric;
        let links: Vec<u32> = match target {
            Target::Link(number) => vec![number],
            Target::Upward(number) => return vec![self.layout.link_ports(number)[0]],
            Target::Downward(number) => return vec![self.layout.link_ports(number)[1]],
            Target::Switch(number) => fabric.switch_at(number).map_or_else(Vec::new, |switch| {
                let ports = fabric.downlinks(switch.tier) + fabric.uplinks(switch.tier);
                let links = (0..ports).filter_map(|port| fabric.link_at(switch, port));
                links.map(|link| fabric.link_number(link)).collect()
            }),
        };
        links.into_iter().flat_map(|link| self.layout.link_ports(link)).collect()
    }

    /// Changes a port. Returns the change of carrier if the port is a host's.
    pub fn change_port(
        &mut self,
        number: u32,
        change: Change,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Option<CarrierChange> {
        self.checks_arrivals = true;
        let port = &mut self.ports[number];
        let was_down = port.is_down();
        let was_dead = self.impairments.loses_everything(number);
        self.impairments.apply(port, number, change);
        let dead = self.impairments.loses_everything(number);
        if dead != was_dead && self.ports.host_of(number).is_none() {
            self.routes.schedule_reaction(number, Failure::Silent, dead, clock);
        }
        let port = &self.ports[number];
        let down = port.is_down();
        if down == was_down {
            return None;
        }
        self.model.link_changed(&mut self.ports, number, !down, clock, stats);
        match self.ports.host_of(number) {
            Some(host) => {
                let port = (number - self.layout.host_port(host, 0)) as u8;
                Some(CarrierChange { host, port, up: !down })
            }
            None => {
                self.routes.schedule_reaction(number, Failure::Carrier, down, clock);
                None
            }
        }
    }

    /// A reaction of routing is due. Returns what the log is to say of it.
    pub fn reroute(&mut self, index: u32) -> Option<LogEvent> {
        self.routes.react(index)
    }

    // Checkpoints.

    /// Writes all that changes.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&self.ports.list)?;
        self.model.save(to)?;
        self.routes.save(to)?;
        to.put(&self.impairments)?;
        to.put(&self.checks_arrivals)
    }

    /// Reads what [`FabricState::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        from.replace(&mut self.ports.list)?;
        self.model.load(from)?;
        self.routes.load(from)?;
        self.impairments = from.get()?;
        self.checks_arrivals = from.get()?;
        Ok(())
    }

    // For the loop of the world.

    /// Whether a packet's departure is known when it arrives. A switch then never schedules an event for itself.
    #[inline(always)]
    pub fn computes_departures(&self) -> bool {
        self.model.is_computed()
    }

    /// Loads the ports of a switch into the cache.
    #[inline(always)]
    pub fn prefetch_switch(&self, number: u32) {
        let switch = self.layout.switch(number);
        self.ports.prefetch(switch.first_port, switch.ports());
    }

    /// Loads the ports of a host into the cache.
    #[inline(always)]
    pub fn prefetch_host(&self, host: u32) {
        self.ports.prefetch(self.layout.host_port(host, 0), self.layout.planes);
    }

    // For results and records.

    /// The port that sends over the cable which ends at port `at`, and whether the cable leads to a host.
    pub fn sender_to(&self, at: u32) -> (u32, bool) {
        let from = self.ports[at].peer;
        (from, self.ports[from].is_last_hop())
    }

    /// Packets that wait in queues and are not in the calendar.
    pub fn waiting(&self) -> impl Iterator<Item = &Event> {
        self.model.waiting()
    }

    /// The least shared buffer of any switch, bytes; `None` without PFC.
    pub fn least_shared_buffer(&self) -> Option<u64> {
        self.model.least_shared_buffer()
    }

    /// Whether a port leads to a host.
    pub fn is_last_hop(&self, port: u32) -> bool {
        self.ports[port].is_last_hop()
    }

    /// When a port will have sent what it has accepted.
    pub fn busy_until(&self, port: u32) -> u64 {
        self.ports[port].data_free
    }

    /// Bytes that a port has counted since the start of the run: all that it has sent once the run has ended.
    pub fn bytes(&self, port: u32) -> u64 {
        self.ports[port].bytes
    }

    /// Bytes that a port has sent by `at`, which is now or a little later, since the start of the run.
    pub fn sent(&self, port: u32, at: u64) -> u64 {
        self.model.sent(&self.ports, port, at)
    }

    /// Bytes that a port has accepted and not yet sent at `at`, which is now or a little later.
    pub fn backlog(&self, port: u32, at: u64) -> u64 {
        self.model.backlog(&self.ports, port, at)
    }
}
