//! Hosts: each drives a node of the transport, whose queue pairs take turns at the host's ports. Packets go out and come
//! in, timers run, messages are posted.
//!
//! ```text
//! host          one host: its node, and its pending events
//! endpoints     how nodes and queue pairs are made for a network
//! queue_pair    a queue pair of either transport
//! environment   what a node sees of the simulation
//! sending       from a node to the fabric
//! posts         messages and connections; knows nothing of queue pairs
//! posting       messages are given to queue pairs, and completions come back
//! prefetch      loads what the events to come will need
//! ```

mod endpoints;
mod environment;
mod host;
mod posting;
mod posts;
mod prefetch;
mod queue_pair;
mod sending;

use openmrc_transport::node::ENDPOINT_QP;
use openmrc_transport::{Received, Time, Trim};
use openmrc_wire::Ev;

pub(crate) use self::endpoints::Endpoints;
use self::environment::{Environment, Outbox};
use self::host::SimHost;
pub(crate) use self::posts::Posts;
use self::prefetch::Prefetcher;
use crate::clock::Clock;
use crate::config::{Encapsulation, NetworkConfig};
use crate::event::{Event, Kind, flag};
use crate::fabric::{CarrierChange, FabricState};
use crate::results::HostTotals;
use crate::slab::Slab;
use crate::stats::Stats;
use crate::workload::Connection;

/// Endpoint packets belong to no connection. Their events have this bit and the number of the host that sent them.
const ENDPOINT: u32 = 1 << 31;

/// All hosts.
pub(crate) struct Hosts {
    hosts: Vec<SimHost>,
    endpoints: Endpoints,
    pub posts: Posts,
    /// Contents of the packets in flight.
    pub packets: Slab,
    outbox: Outbox,
    prefetcher: Prefetcher,
    encapsulation: Encapsulation,
}

impl Hosts {
    /// The hosts of a network, with all ports up and nothing posted.
    pub fn new(config: &NetworkConfig, endpoints: Endpoints, posts: Posts) -> Self {
        let hosts = (0..config.fabric.shape().hosts).map(|_| SimHost::new(&endpoints.node)).collect();
        Hosts {
            hosts,
            endpoints,
            posts,
            packets: Slab::default(),
            outbox: Outbox::default(),
            prefetcher: Prefetcher::new(),
            encapsulation: config.encapsulation,
        }
    }

    /// Number of hosts.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Adds the counters of queue pairs that still exist.
    pub fn add_up(&self, totals: &mut HostTotals) {
        for (_, qp) in self.hosts.iter().flat_map(|host| host.node.iter()) {
            qp.add_up(totals);
        }
    }

    /// The hosts that a packet comes from and goes to, or the other way round.
    pub fn ends_of(&self, event: &Event) -> Connection {
        match event.connection & ENDPOINT {
            0 => self.posts.ends(event.connection),
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
        self.prefetcher.prefetch(&clock.calendar, &self.packets, &self.hosts, &self.posts);
    }

    /// A host's port can take packets again.
    pub fn wake(&mut self, host: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let wake_at = &mut self.hosts[host as usize].wake_at;
        if *wake_at == clock.now {
            *wake_at = u64::MAX;
            self.serve(host, clock, fabric, stats);
            self.hosts[host as usize].arm_timer(host, clock);
        }
    }

    /// A deadline of a host's node has come.
    pub fn timer(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let host = &mut self.hosts[number as usize];
        if host.timer_at > clock.now {
            return;
        }
        host.timer_at = u64::MAX;
        let now = Time(clock.now);
        let mut environment = Environment {
            now,
            messages: &mut self.posts.messages,
            outbox: &mut self.outbox,
            recorder: stats.recorder.as_deref_mut(),
            plane: 0,
        };
        host.node.handle_timeout(now, &mut environment);
        self.settle(number, clock, fabric, stats);
    }

    /// A packet has reached its host.
    pub fn receive(&mut self, event: Event, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        stats.totals.hosts.arrived_bytes += u64::from(event.bytes);
        let packet = self.packets.take(event.packet);
        let trim = match event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) {
            0 => None,
            flag::TRIMMED => Some(Trim::Fabric),
            _ => Some(Trim::LastHop),
        };
        let mut received = Received {
            packet,
            ev: Ev(event.ev),
            port: (event.at - fabric.layout.host_port(event.dst, 0)) as u8,
            ecn_ce: event.flags & flag::CE != 0,
            trim,
        };
        if trim.is_some() {
            received.packet.payload_len = 0;
        }
        let now = Time(clock.now);
        let place = match received.packet.dest_qp {
            ENDPOINT_QP => None,
            number => match self.responder(event.dst, number, now) {
                Some(place) => Some(place),
                None => {
                    stats.totals.hosts.stray += 1;
                    return;
                }
            },
        };
        stats.totals.hosts.arrived += 1;
        if let Some(recorder) = &mut stats.recorder {
            recorder.arrived(&event);
        }
        let mut environment = Environment {
            now,
            messages: &mut self.posts.messages,
            outbox: &mut self.outbox,
            recorder: stats.recorder.as_deref_mut(),
            plane: received.port,
        };
        let node = &mut self.hosts[event.dst as usize].node;
        match place {
            Some(place) => node.handle(now, place, &received, u32::from(event.bytes), &mut environment),
            None => {
                node.handle_endpoint(now, event.connection & !ENDPOINT, &received, &mut environment);
            }
        }
        self.settle(event.dst, clock, fabric, stats);
    }

    /// A host's port has lost its carrier, or has it back.
    pub fn carrier_changed(&mut self, change: CarrierChange, clock: &mut Clock) {
        let CarrierChange { host: number, port, up } = change;
        let host = &mut self.hosts[number as usize];
        host.carrier = if up { host.carrier.with(port) } else { host.carrier.without(port) };
        // A fault acts before anything else in its slot of the calendar. What the host does then is for its own turn.
        clock.push_at_host(clock.now + clock.lookahead(), Kind::Carrier, number, number);
    }

    /// A host's node learns which ports have a carrier, and tells its peers.
    pub fn carrier(&mut self, number: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let now = Time(clock.now);
        let mut environment = Environment {
            now,
            messages: &mut self.posts.messages,
            outbox: &mut self.outbox,
            recorder: stats.recorder.as_deref_mut(),
            plane: 0,
        };
        let host = &mut self.hosts[number as usize];
        host.node.set_own_ports(now, host.carrier, &mut environment);
        // Its ports may be free again before a wake event that was scheduled when they were not.
        host.wake_at = u64::MAX;
        self.settle(number, clock, fabric, stats);
    }

    /// Does what a node has asked for in the outbox, and lets its queue pairs send.
    fn settle(&mut self, host: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        self.send_outbox(host, clock, fabric, stats);
        self.note_outbox(host, clock.now, stats);
        self.offer(host, clock, fabric, stats);
        if !self.outbox.delivered.is_empty() || !self.outbox.done.is_empty() {
            self.drain_completions(host, clock, fabric, stats);
        }
        self.hosts[host as usize].arm_timer(host, clock);
    }

    /// Counts and logs what has happened to queue pairs.
    #[inline]
    fn note_outbox(&mut self, number: u32, now: u64, stats: &mut Stats) {
        let Outbox { losses, failed, path_events, .. } = &mut self.outbox;
        stats.totals.hosts.losses_seen += std::mem::take(losses);
        stats.totals.hosts.fatal += failed.len() as u64;
        let node = &self.hosts[number as usize].node;
        for (place, event) in path_events.drain(..) {
            if let Some(recorder) = &mut stats.recorder {
                let connection = node.context(place).unwrap_or_default();
                let peer = node.peer(place).unwrap_or_default();
                recorder.path_event(Time(now), connection, (number, peer), event);
            }
        }
        for place in failed.drain(..) {
            let peer = node.peer(place).unwrap_or_default();
            stats.log(now, crate::record::LogEvent::Failed { host: number, peer });
        }
    }
}
