//! Probes of hosts to themselves. [`LoopProbes`] decides what is sent when and what counts as lost, as in the agents'
//! probers; here its probes are packets of the control class.

use std::collections::VecDeque;
use std::ops::Range;

use openmrc_scenario::run::{Encapsulation, ProbeConfig, ProbeLoop, Stall};
use openmrc_transport::loops::{Closed, LoopProbes, Pace, Probe, Totals};
use openmrc_transport::random::mix;

use super::by_host::ByHost;
use crate::clock::Clock;
use crate::event::{Event, Kind, flag};
use crate::fabric::{FabricState, Fate, Layout};
use crate::stats::Stats;

const PICOS_PER_NANO: u64 = 1_000;

/// Bytes of a probe on a cable.
const BYTES: u16 = Encapsulation::Srv6.wire_bytes(Probe::LEN as u32) as u16;

/// How a probe of a loop leaves its host.
struct Way {
    plane: u8,
    ev: u32,
    flags: u8,
}

/// The prober of a host.
struct Prober {
    probes: LoopProbes,
    ways: Vec<Way>,
    /// What its clock shows at the beginning, nanoseconds. Intervals of different hosts do not begin together, nor do their
    /// probes.
    clock_ns: u64,
    stalls: VecDeque<Stall>,
    closed: Vec<Closed>,
}

impl Prober {
    fn new(host: u32, loops: &[ProbeLoop], config: &ProbeConfig, layout: &Layout, seed: u64) -> Option<Self> {
        if loops.is_empty() {
            return None;
        }
        let way = |&ProbeLoop { plane, uplink }: &ProbeLoop| {
            let t0 = layout.switch_of(layout.t0_port(host, plane));
            let up = if uplink.is_some() { flag::UP_FIRST } else { 0 };
            let ev = uplink.map_or(0, |uplink| t0.ev_of_uplink(uplink));
            Way { plane: plane as u8, ev, flags: flag::CONTROL | up }
        };
        let pace = Pace {
            rate: config.rate,
            interval_ns: config.interval.as_nanos(),
            grace_ns: config.grace.as_nanos(),
        };
        let clock_ns = mix(seed ^ u64::from(host)) % pace.interval_ns;
        let phase_ns = mix(!seed ^ u64::from(host)) % (1_000_000_000 / u64::from(pace.rate));
        let planes: Vec<u32> = loops.iter().map(|each| each.plane).collect();
        Some(Prober {
            probes: LoopProbes::new(&planes, &pace, clock_ns + phase_ns),
            ways: loops.iter().map(way).collect(),
            clock_ns,
            stalls: config.stalls.iter().filter(|stall| stall.host == host).copied().collect(),
            closed: Vec::new(),
        })
    }

    /// What its clock shows.
    fn clock(&self, now: u64) -> u64 {
        now / PICOS_PER_NANO + self.clock_ns
    }

    /// When its clock will show this.
    fn time_of(&self, ns: u64) -> u64 {
        (ns - self.clock_ns) * PICOS_PER_NANO
    }

    /// Until when it is scheduled away, if it is now.
    fn stalled_until(&mut self, now: u64) -> Option<u64> {
        while self.stalls.front().is_some_and(|stall| stall.until.0 <= now) {
            self.stalls.pop_front();
        }
        self.stalls.front().filter(|stall| stall.from.0 <= now).map(|stall| stall.until.0)
    }
}

/// The probers of a partition's hosts.
pub(crate) struct Probers(ByHost<Option<Prober>>);

impl Probers {
    /// Probers of these hosts, at rest.
    pub fn new(hosts: Range<u32>, config: &ProbeConfig, layout: &Layout, seed: u64) -> Self {
        Probers(ByHost::by_number(hosts, |host| {
            let loops = config.loops.get(host as usize).map_or(&[][..], Vec::as_slice);
            Prober::new(host, loops, config, layout, seed)
        }))
    }

    /// Schedules the first turns of these hosts.
    pub fn schedule(&self, hosts: Range<u32>, clock: &mut Clock) {
        for host in hosts {
            if let Some(Some(prober)) = self.0.get(host) {
                let first = prober.time_of(prober.probes.next_send_ns());
                clock.push_at_host(first, Kind::Probe, host, host);
            }
        }
    }

    /// A host sends what is due, and closes intervals that are over.
    pub fn turn(&mut self, host: u32, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let Some(Some(prober)) = self.0.get_mut(host) else { return };
        if let Some(until) = prober.stalled_until(clock.now) {
            clock.push_at_host(until, Kind::Probe, host, host);
            return;
        }
        let now_ns = prober.clock(clock.now);
        while let Some(probe) = prober.probes.poll_send(now_ns) {
            let Way { plane, ev, flags } = prober.ways[probe.index as usize];
            stats.totals.hosts.control_packets += 1;
            stats.totals.hosts.launched_bytes += u64::from(BYTES);
            let event = Event {
                time: clock.now,
                at: 0,
                packet: probe.index << 16 | probe.number,
                dst: host,
                ev,
                connection: probe.interval,
                bytes: BYTES,
                flags,
                kind: Kind::Loop,
            };
            match fabric.send(host, plane, event, clock, stats) {
                // A port that is down loses what it should send: nothing can use it.
                Fate::Forwarded | Fate::Dropped => {}
            }
        }
        while let Some(closed) = prober.probes.close(now_ns) {
            prober.closed.push(closed);
        }
        let next = prober.probes.next_close_ns().unwrap_or(u64::MAX).min(prober.probes.next_send_ns());
        clock.push_at_host(prober.time_of(next), Kind::Probe, host, host);
    }

    /// A probe has come back to its host.
    pub fn receive(&mut self, event: &Event, stats: &mut Stats) {
        stats.totals.hosts.arrived += 1;
        stats.totals.hosts.arrived_bytes += u64::from(event.bytes);
        if let Some(Some(prober)) = self.0.get_mut(event.dst) {
            let (index, number) = (event.packet >> 16, event.packet & 0xFFFF);
            prober.probes.receive(Probe { index, interval: event.connection, number });
        }
    }

    /// The intervals of a host that were closed since the last call, oldest first.
    pub fn take(&mut self, host: u32) -> Vec<Closed> {
        match self.0.get_mut(host) {
            Some(Some(prober)) => std::mem::take(&mut prober.closed),
            _ => Vec::new(),
        }
    }

    /// What a host has counted.
    pub fn totals(&self, host: u32) -> Totals {
        match self.0.get(host) {
            Some(Some(prober)) => prober.probes.totals(),
            _ => Totals::default(),
        }
    }
}
