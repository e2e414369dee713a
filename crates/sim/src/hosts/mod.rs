//! Hosts: each drives a node of the transport, whose queue pairs take turns at the host's ports. Packets go out and
//! come in, timers run, messages are posted.
//!
//! ```text
//! by_host       what a partition has for each of its hosts
//! host          one host: its node, its turns to send, and its pending events
//! endpoints     how nodes and queue pairs are made for a network
//! queue_pair    a queue pair of either transport
//! environment   what a node sees of the simulation
//! posts         messages and connections; knows nothing of queue pairs
//! posting       messages are given to queue pairs, and completions come back
//! lives         ends that linger after they were destroyed; receives
//! probing       probes of hosts to themselves
//! receive_buffers  buffers of hosts that are software
//! skipping      messages that arrive without packets
//! prefetch      loads what the events to come will need
//! ```

mod by_host;
mod endpoints;
mod environment;
mod host;
mod lives;
mod posting;
mod posts;
mod prefetch;
mod probing;
mod queue_pair;
mod receive_buffers;
mod skipping;

use std::ops::Range;
use std::sync::Arc;

use openmrc_scenario::HostTotals;
use openmrc_scenario::run::NetworkConfig;
use openmrc_transport::{Received, Time, Trim};
use openmrc_wire::Ev;
use openmrc_workload::Connection;

use self::by_host::ByHost;
pub(crate) use self::endpoints::Endpoints;
use self::environment::{Common, Completions, ENDPOINT, Environment};
use self::host::SimHost;
use self::lives::Lives;
use self::posts::End;
pub(crate) use self::posts::Posts;
use self::prefetch::Prefetcher;
pub(crate) use self::probing::Probers;
use self::receive_buffers::ReceiveBuffers;
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::fabric::{CarrierChange, FabricState};
use crate::skips::{Order, Skipper};
use crate::slab::Slab;
use crate::stats::Stats;

/// Bytes of a host without queue pairs.
pub(crate) const BYTES_PER_HOST: usize = size_of::<SimHost>();
pub(crate) use self::endpoints::queue_pair_bytes;
pub(crate) use self::posts::{BYTES_PER_CONNECTION, BYTES_PER_MESSAGE};

/// The hosts of a partition.
pub(crate) struct Hosts {
    hosts: ByHost<SimHost>,
    pub common: Common,
    prefetcher: Prefetcher,
    /// If hosts probe.
    pub probers: Option<Box<Probers>>,
    /// If messages may arrive without packets.
    pub skipper: Option<Box<dyn Skipper>>,
    /// Its orders. Kept for its memory.
    orders: Vec<Order>,
}

impl Hosts {
    /// These hosts of a network, with all ports up and nothing posted.
    pub fn new(
        config: &NetworkConfig,
        numbers: Range<u32>,
        endpoints: &Arc<Endpoints>,
        posts: Posts,
    ) -> Self {
        let hosts = ByHost::new(numbers.clone(), || SimHost::new(&endpoints.node));
        let ports = config.fabric.shape().planes as usize;
        let full_packet = u32::from(config.path_mtu);
        let buffers = config.software.map_or_else(ByHost::empty, |software| {
            ByHost::new(numbers, || ReceiveBuffers::new(&software, ports, full_packet))
        });
        let lives = Lives::new(endpoints.life, posts.messages_by_connection());
        let common = Common {
            lives,
            buffers,
            endpoints: Arc::clone(endpoints),
            posts,
            packets: Slab::default(),
            completions: Completions::default(),
        };
        Hosts {
            hosts,
            common,
            prefetcher: Prefetcher::new(),
            probers: None,
            skipper: None,
            orders: Vec::new(),
        }
    }

    /// Writes all that changes.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        if self.probers.is_some() {
            return Err(CheckpointError::Unsupported("what hosts probe"));
        }
        let Common { lives, buffers, endpoints: _, posts, packets, completions } = &self.common;
        self.hosts.iter().try_for_each(|host| to.put(host))?;
        buffers.iter().try_for_each(|buffer| to.put(buffer))?;
        lives.save(to)?;
        posts.save(to)?;
        to.put(packets)?;
        to.put(completions)
    }

    /// Reads what [`Hosts::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        let Common { lives, buffers, endpoints, posts, packets, completions } = &mut self.common;
        for (number, host) in self.hosts.iter_mut() {
            *host = from.get()?;
            host.node.rejoin(&endpoints.node, |peer, qp| endpoints.rejoin((number, peer), qp));
        }
        for (_, buffer) in buffers.iter_mut() {
            *buffer = from.get()?;
        }
        lives.load(from)?;
        posts.load(from)?;
        *packets = from.get()?;
        *completions = from.get()?;
        Ok(())
    }

    /// Adds the counters of queue pairs that still exist.
    pub fn add_up(&self, totals: &mut HostTotals) {
        for node in self.hosts.iter().map(|host| &host.node) {
            // The counters of queue pairs that linger were added up when they were destroyed.
            let lingers = |slot| node.context(slot).is_some_and(|end| self.common.lives.lingers(End(end)));
            node.iter().filter(|&(slot, _)| !lingers(slot)).for_each(|(_, qp)| qp.add_up(totals));
        }
    }

    /// The hosts that a packet comes from and goes to, or the other way round.
    pub fn ends_of(&self, event: &Event) -> Connection {
        match event.connection & ENDPOINT {
            0 => self.common.posts.ends(event.connection),
            _ => Connection { src: event.connection & !ENDPOINT, dst: event.dst },
        }
    }

    /// Loads a host's state into the cache.
    #[inline(always)]
    pub fn prefetch_host(&self, host: u32) {
        SimHost::prefetch(&self.hosts, host);
    }

    /// Loads what the events after the current one will need.
    #[inline(always)]
    pub fn prefetch_events(&mut self, clock: &Clock) {
        self.prefetcher.prefetch(&clock.calendar, &self.common.packets, &self.hosts, &self.common.posts);
    }

    /// A host, and everything around its node.
    #[inline(always)]
    fn at<'a>(
        &'a mut self,
        number: u32,
        plane: u8,
        clock: &'a mut Clock,
        fabric: &'a mut FabricState,
        stats: &'a mut Stats,
    ) -> (&'a mut SimHost, Environment<'a>) {
        let environment = Environment { host: number, plane, common: &mut self.common, clock, fabric, stats };
        (&mut self.hosts[number], environment)
    }

    /// A host's port can take packets again.
    pub fn wake(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        if self.hosts[number].wake_at == clock.now {
            self.hosts[number].wake_at = u64::MAX;
            self.serve(number, clock, fabric, stats);
        }
    }

    /// Lets a host's queue pairs send.
    pub fn serve(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        host.serve(&mut environment);
        host.arm_timer(number, environment.clock);
    }

    /// A deadline of a host's node has come.
    pub fn timer(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        let now = environment.now();
        if host.timer_at > now.0 {
            return;
        }
        host.timer_fired();
        host.node.handle_timeout(now, &mut environment);
        host.offer(&mut environment);
        self.settle(number, clock, fabric, stats);
    }

    /// A packet has reached its host: hardware handles it at once, software when it comes to it.
    #[inline(always)]
    pub fn arrive(&mut self, event: &Event, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        if self.common.buffers.is_empty() {
            self.receive(event, clock, fabric, stats);
        } else {
            self.wait(event, clock, fabric, stats);
        }
    }

    /// A packet waits in a receive buffer, if it fits.
    #[cold]
    fn wait(&mut self, event: &Event, clock: &mut Clock, fabric: &FabricState, stats: &mut Stats) {
        let port = (event.at - fabric.layout.host_port(event.dst, 0)) as u8;
        let placed = self.common.buffers[event.dst].put(clock.now, port, u32::from(event.bytes));
        let Some((time, after_gap)) = placed else {
            stats.totals.hosts.overflowed += 1;
            stats.totals.fabric.dropped_bytes += u64::from(event.bytes);
            self.common.packets.drop_packet(event.packet);
            return;
        };
        let flags = event.flags | if after_gap { flag::AFTER_GAP } else { 0 };
        clock.push_to_host(Event { time, flags, kind: Kind::Serve, ..*event });
    }

    /// A host of software comes to a packet in a receive buffer.
    pub fn take_waiting(
        &mut self,
        event: &mut Event,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let port = (event.at - fabric.layout.host_port(event.dst, 0)) as u8;
        let after_gap = event.flags & flag::AFTER_GAP != 0;
        if self.common.buffers[event.dst].take(port, u32::from(event.bytes), after_gap) {
            let (host, mut environment) = self.at(event.dst, port, clock, fabric, stats);
            let now = environment.now();
            host.node.overflowed(now, &mut environment);
        }
        event.flags &= !flag::AFTER_GAP;
        self.receive(event, clock, fabric, stats);
    }

    /// A host has a packet in hand.
    pub fn receive(&mut self, event: &Event, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        stats.totals.hosts.arrived_bytes += u64::from(event.bytes);
        let mut received = Received {
            packet: self.common.packets.take(event.packet),
            ev: Ev(event.ev),
            port: (event.at - fabric.layout.host_port(event.dst, 0)) as u8,
            ecn_ce: event.flags & flag::CE != 0,
            trim: None,
        };
        match event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) {
            0 => {}
            trimmed => {
                let in_fabric = trimmed == flag::TRIMMED;
                received.trim = Some(if in_fabric { Trim::Fabric } else { Trim::LastHop });
                received.packet.payload_len = 0;
            }
        }
        if event.connection & ENDPOINT != 0 {
            return self.receive_at_node(event, &received, clock, fabric, stats);
        }
        let (now, end) = (Time(clock.now), End::of(event));
        let Some(slot) = self.common.posts.slot(end).or_else(|| self.make_responder(end, now)) else {
            stats.totals.hosts.stray += 1;
            return;
        };
        stats.arrived(event);
        let (host, mut environment) = self.at(event.dst, received.port, clock, fabric, stats);
        host.node.handle(now, slot, &received, u32::from(event.bytes), &mut environment);
        host.offer(&mut environment);
        self.settle(event.dst, clock, fabric, stats);
    }

    /// An endpoint packet has reached its host.
    #[cold]
    fn receive_at_node(
        &mut self,
        event: &Event,
        received: &Received,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        stats.arrived(event);
        let (host, mut environment) = self.at(event.dst, received.port, clock, fabric, stats);
        let (now, peer) = (environment.now(), event.connection & !ENDPOINT);
        host.node.handle_endpoint(now, peer, received, &mut environment);
        host.offer(&mut environment);
        self.settle(event.dst, clock, fabric, stats);
    }

    /// A host's prober has its turn.
    #[cold]
    pub fn probe(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        if let Some(probers) = &mut self.probers {
            probers.turn(number, clock, fabric, stats);
        }
    }

    /// A probe has come back to its host.
    #[cold]
    pub fn take_probe(&mut self, event: &Event, stats: &mut Stats) {
        if let Some(probers) = &mut self.probers {
            probers.receive(event, stats);
        }
    }

    /// A message that message `index` waits for has arrived at another host.
    pub fn release(&mut self, index: u32, clock: &mut Clock) {
        self.common.posts.released(index, clock);
    }

    /// A host's port has lost its carrier, or has it back. The host may be another partition's.
    pub fn carrier_changed(&mut self, change: CarrierChange, clock: &mut Clock) {
        let CarrierChange { host: number, port, up } = change;
        let Some(host) = self.hosts.get_mut(number) else { return };
        host.carrier = if up { host.carrier.with(port) } else { host.carrier.without(port) };
        // A fault acts before anything else in its slot of the calendar. What the host does then is for its own turn.
        clock.push_at_host(clock.now + clock.lookahead(), Kind::Carrier, number, number);
    }

    /// A host's node learns which ports have a carrier, and tells its peers.
    pub fn carrier(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let (host, mut environment) = self.at(number, 0, clock, fabric, stats);
        let now = environment.now();
        host.node.set_own_ports(now, host.carrier, &mut environment);
        // Its ports may be free before the time for which a wake event was scheduled.
        host.wake_at = u64::MAX;
        host.serve(&mut environment);
        self.settle(number, clock, fabric, stats);
    }

    /// Does what follows from completions of a host, and schedules its next deadline.
    #[inline(always)]
    fn settle(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        if !self.common.completions.is_empty() {
            self.drain_completions(number, clock, fabric, stats);
        }
        self.hosts[number].arm_timer(number, clock);
    }
}
