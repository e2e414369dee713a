//! The two port models behind one type. This is the only place that tells them apart.

use openmrc_scenario::run::NetworkConfig;
use openmrc_transport::PortSet;

use super::computed::Computed;
use super::layout::{Layout, UNCONNECTED};
use super::ports::{Fate, Ports};
use super::queued::Queued;
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::Event;
use crate::long_queue::LongQueue;
use crate::stats::Stats;

/// How packets pass through ports.
pub(crate) enum PortModel {
    /// Departures are computed on arrival.
    Computed(Computed),
    /// Real queues.
    Queued(Queued),
}

impl PortModel {
    /// The computed model, unless the network needs real queues or asks for them.
    pub fn new(config: &NetworkConfig, layout: &Layout, ports: &Ports) -> Self {
        if Queued::is_needed(config, ports) {
            PortModel::Queued(Queued::new(config, layout, ports))
        } else {
            PortModel::Computed(Computed::default())
        }
    }

    /// Writes what queues there are.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        match self {
            PortModel::Computed(model) => to.put(model),
            PortModel::Queued(model) => model.save(to),
        }
    }

    /// Reads what [`PortModel::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        match self {
            PortModel::Computed(model) => *model = from.get()?,
            PortModel::Queued(model) => model.load(from)?,
        }
        Ok(())
    }

    /// Whether a packet's departure is known when it arrives. A switch then never schedules an event for itself.
    #[inline(always)]
    pub fn is_computed(&self) -> bool {
        matches!(self, PortModel::Computed(_))
    }

    /// A packet that came in by port `event.at` of a switch is to leave by port `out` of it. Its flags are now `flags`.
    #[inline(always)]
    pub fn enqueue(
        &mut self,
        ports: &mut Ports,
        out: u32,
        event: &Event,
        flags: u8,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        match self {
            PortModel::Computed(model) => model.enqueue(ports, out, event, flags, clock, stats),
            PortModel::Queued(model) => {
                model.enqueue(ports, out, event.at, Event { flags, ..*event }, clock, stats)
            }
        }
    }

    /// A host sends a packet by its port `out`.
    #[inline]
    pub fn enqueue_at_host(
        &mut self,
        ports: &mut Ports,
        out: u32,
        event: Event,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Fate {
        match self {
            PortModel::Computed(model) => model.enqueue_at_host(ports, out, event, clock, stats),
            PortModel::Queued(model) => model.enqueue(ports, out, UNCONNECTED, event, clock, stats),
        }
    }

    /// A queue at the other end of a cable may mark.
    pub fn note(&mut self, ports: &mut Ports, queue: &LongQueue, lookahead: u64) {
        match self {
            PortModel::Computed(model) => model.note(ports, queue, lookahead),
            PortModel::Queued(_) => {}
        }
    }

    /// Flags of a packet that arrives at port `event.at`. The computed model marks only here.
    #[inline(always)]
    pub fn flags_on_arrival(&mut self, ports: &mut Ports, event: &Event, stats: &mut Stats) -> u8 {
        let port = &ports[event.at];
        if event.time > port.marked_until || event.time <= port.marked_from {
            return event.flags;
        }
        match self {
            PortModel::Computed(model) => model.flags_on_arrival(ports, event, stats),
            PortModel::Queued(_) => event.flags,
        }
    }

    /// A transmission at port `out` has ended. Returns the host whose port can take another packet.
    pub fn depart(
        &mut self,
        ports: &mut Ports,
        out: u32,
        clock: &mut Clock,
        stats: &mut Stats,
    ) -> Option<u32> {
        match self {
            PortModel::Computed(_) => None,
            PortModel::Queued(model) => model.depart(ports, out, clock, stats),
        }
    }

    /// The peer of port `out` has sent XOFF or XON.
    pub fn pause(&mut self, ports: &mut Ports, out: u32, xoff: bool, clock: &mut Clock, stats: &mut Stats) {
        match self {
            PortModel::Computed(_) => {}
            PortModel::Queued(model) => model.pause(ports, out, xoff, clock, stats),
        }
    }

    /// The link at a port goes down or comes up.
    pub fn link_changed(
        &mut self,
        ports: &mut Ports,
        port: u32,
        up: bool,
        clock: &mut Clock,
        stats: &mut Stats,
    ) {
        match self {
            PortModel::Computed(_) => {}
            PortModel::Queued(model) => model.link_changed(ports, port, up, clock, stats),
        }
    }

    /// Ports of a host that can take a packet. `Err` is the time when the first port will be able to, or [`u64::MAX`]
    /// if that is not known.
    #[inline]
    pub fn free_ports(&self, ports: &Ports, host: u32, now: u64) -> Result<PortSet, u64> {
        match self {
            PortModel::Computed(model) => {
                model.free_ports(ports.of_host(host), now, ports.settings.full_packet_bytes)
            }
            PortModel::Queued(model) => model.free_ports(ports, host),
        }
    }

    /// When the first of a host's busy ports will have sent all it has; [`u64::MAX`] if no port is busy, or if ports
    /// report that themselves.
    pub fn next_departure(&self, ports: &Ports, host: u32, now: u64) -> u64 {
        match self {
            PortModel::Computed(model) => model.next_departure(ports.of_host(host), now),
            PortModel::Queued(_) => u64::MAX,
        }
    }

    /// Bytes that a port has sent by `at`, which is now or a little later.
    pub fn sent(&self, ports: &Ports, port: u32, at: u64) -> u64 {
        match self {
            PortModel::Computed(model) => model.sent(&ports[port], at),
            PortModel::Queued(model) => model.sent(&ports[port], port, at),
        }
    }

    /// Bytes that a port has accepted and not yet sent at `at`, which is now or a little later.
    #[inline]
    pub fn backlog(&self, ports: &Ports, port: u32, at: u64) -> u64 {
        match self {
            PortModel::Computed(model) => model.backlog(&ports[port], at),
            PortModel::Queued(model) => model.backlog(&ports[port], port, at),
        }
    }

    /// Packets that wait in queues. The computed model has them in the calendar.
    pub fn waiting(&self) -> impl Iterator<Item = &Event> {
        let queued = match self {
            PortModel::Computed(_) => None,
            PortModel::Queued(model) => Some(model),
        };
        queued.into_iter().flat_map(Queued::waiting)
    }

    /// The least shared buffer of any switch, bytes; `None` without PFC.
    pub fn least_shared_buffer(&self) -> Option<u64> {
        match self {
            PortModel::Computed(_) => None,
            PortModel::Queued(model) => model.least_shared_buffer(),
        }
    }
}
