//! A run: a network cut into partitions, which run by themselves for a stretch of time, and what is known of all of them
//! between two stretches.

use std::borrow::Cow;
use std::sync::Arc;

use openmrc_scenario::run::{NetworkConfig, TransportConfig};
use openmrc_scenario::{
    Engine, Footprint, LifeTotals, Patterns, Progress, Results, Run, RunError, TaskResults, Totals,
};
use openmrc_transport::Time;
use openmrc_transport::loops::{Closed, Totals as ProbeTotals};
use openmrc_workload::Connection;

use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::clock::Clock;
use crate::division::Division;
use crate::fabric::{FabricState, Layout};
use crate::footprint::footprint;
use crate::groups::Groups;
use crate::hosts::{Endpoints, Hosts, Posts, Probers};
use crate::partition::{Partition, Standing};
use crate::record::{Captured, NetworkShape, PortView, Recorder, Tally};
use crate::skips::Skipper;
use crate::stats::Stats;
use crate::threads::Stretch;

/// A network with its hosts, in virtual time.
pub struct World {
    config: Arc<NetworkConfig>,
    layout: Arc<Layout>,
    groups: Arc<Groups>,
    /// One for each thread.
    partitions: Vec<Partition>,
    recorder: Option<Box<Recorder>>,
    patterns: Patterns,
    /// The run ends here at the latest, picoseconds.
    limit: u64,
    /// It has ended there.
    is_at_limit: bool,
}

impl Engine for World {
    fn footprint(
        network: &NetworkConfig,
        transport: &TransportConfig,
        threads: u32,
    ) -> Result<Footprint, RunError> {
        footprint(network, transport, threads)
    }

    fn new(run: &Run) -> Result<Self, RunError> {
        run.check()?;
        let config = Arc::new(run.network.clone());
        let layout = Arc::new(Layout::new(config.fabric));
        let division = Division::new(&config.fabric, run.threads);
        let groups = Arc::new(layout.node_groups(&config, division));
        let switch = config.switch.unwrap_or_else(|| config.default_switch());
        let endpoints = Arc::new(Endpoints::new(&config, &switch, &run.transport)?);
        // RoCEv2 spreads a connection over several queue pairs.
        let (workload, parts) = match &run.transport {
            TransportConfig::Rocev2(rc) if rc.qps > 1 => {
                let (striped, parts) = run.workload.striped(rc.qps, u32::from(config.path_mtu));
                (Cow::Owned(striped), parts)
            }
            _ => (Cow::Borrowed(&run.workload), Vec::new()),
        };
        let recorder = recorder_for(run, &layout);
        let mut tallies = recorder
            .as_ref()
            .map_or_else(Vec::new, |recorder| recorder.tallies(&run.record, &workload, run.threads));
        let faults: Arc<[_]> = run.faults.as_slice().into();
        let posts = Posts::new(&workload, parts);
        let mut partitions = Vec::new();
        for number in (0..run.threads).rev() {
            // Slots as wide as lookahead permits. Only slow timers lie beyond three round trips.
            let mut clock =
                Clock::new(&groups, number, config.shortest_hop().0, config.base_rtt().times(3).0);
            let mut fabric = FabricState::new(&config, &layout, &groups, number, &faults);
            if fabric.least_shared_buffer() == Some(0) {
                return Err(RunError::Buffer);
            }
            fabric.checks_arrivals = run.record.capture.is_some();
            let own = groups.division.hosts(number);
            let mut hosts = Hosts::new(&config, own.clone(), &endpoints, posts.clone());
            if let Some(probes) = &run.probes {
                let probers = Probers::new(own.clone(), probes, &layout, config.seed);
                probers.schedule(own.clone(), &mut clock);
                hosts.probers = Some(Box::new(probers));
            }
            let stats = Stats {
                totals: Totals::default(),
                life: LifeTotals::default(),
                tally: tallies.pop().map(Box::new),
            };
            partitions.push(Partition::new(&config, &own, (clock, fabric, hosts, stats), run.limit.0));
        }
        partitions.reverse();
        let patterns = Patterns::new(&run.workload);
        Ok(World {
            config,
            layout,
            groups,
            partitions,
            recorder,
            patterns,
            limit: run.limit.0,
            is_at_limit: false,
        })
    }

    /// To the end of the calendar's slot.
    fn advance(&mut self, events: u64) -> bool {
        let (events, messages) = (self.counted().events.saturating_add(events), self.messages() as u64);
        let standing = self.run_stretch(Stretch { events, messages, slots_end: u64::MAX });
        !self.is_at_limit && standing.events >= events && standing.finished < messages
    }

    fn progress(&self) -> Progress {
        let totals = self.counted();
        Progress {
            now: Time(self.end()),
            finished: self.standing().finished as usize,
            messages: self.messages(),
            events: totals.events,
            data_packets: totals.hosts.data_packets,
        }
    }

    fn results(&self) -> Results {
        let ports = || (0..self.layout.ports() as u32).map(|port| (self.fabric_of(port), port));
        let posts = &self.partitions[0].hosts.common.posts;
        let posts_of =
            |host| &self.partitions[self.groups.division.of_host(host) as usize].hosts.common.posts;
        let TaskResults { messages, steps, nodes } = self.patterns.results(posts.fates(posts_of));
        Results {
            end: Time(self.end()),
            messages,
            steps,
            nodes,
            totals: self.totals(),
            life: self.partitions.iter().map(|p| p.stats.life).fold(LifeTotals::default(), LifeTotals::with),
            in_flight: self.partitions.iter().map(Partition::in_flight).sum(),
            in_flight_bytes: self.partitions.iter().map(Partition::in_flight_bytes).sum(),
            port_bytes: ports().map(|(fabric, port)| fabric.bytes(port)).collect(),
            port_busy_until: ports().map(|(fabric, port)| Time(fabric.busy_until(port))).collect(),
            skips: self.partitions[0]
                .hosts
                .skipper
                .as_ref()
                .map(|skipper| skipper.totals())
                .unwrap_or_default(),
        }
    }
}

impl World {
    /// The world at time zero of a run in one thread, some of whose messages arrive without packets.
    ///
    /// # Errors
    /// [`RunError`] for the first thing in the run that is not possible.
    pub fn with_skipper(run: &Run, skipper: Box<dyn Skipper>) -> Result<Self, RunError> {
        if run.threads != 1 {
            return Err(RunError::Threads(run.threads));
        }
        let mut world = World::new(run)?;
        world.partitions[0].hosts.skipper = Some(skipper);
        Ok(world)
    }

    /// Runs until a time, to the beginning of the next slot of the calendar, whether or not messages are left.
    pub fn run_until(&mut self, time: Time) {
        let slots_end = self.first_slot_from(time.0);
        self.run_stretch(Stretch { events: u64::MAX, messages: u64::MAX, slots_end });
    }

    /// Runs to the end of a stretch, and takes the samples that are due meanwhile.
    fn run_stretch(&mut self, whole: Stretch) -> Standing {
        let end = loop {
            let standing = self.standing();
            let Some(slot) = whole.next_slot(&standing) else { break standing };
            let begin = self.partitions[0].clock.calendar.begin_of(slot);
            self.take_samples(begin.min(self.limit));
            if begin > self.limit {
                self.is_at_limit = true;
                break standing;
            }
            let next_sample = self.recorder.as_ref().map_or(u64::MAX, |recorder| recorder.next_sample());
            let looks =
                self.first_slot_from(next_sample).min(self.first_slot_from(self.limit.saturating_add(1)));
            let stretch = Stretch { slots_end: whole.slots_end.min(looks), ..whole };
            stretch.run(&mut self.partitions, slot);
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.collect_packets(tallies_mut(&mut self.partitions));
        }
        end
    }

    /// The partition of a host.
    fn partition_of_host(&self, host: u32) -> usize {
        self.groups.division.of_host(host) as usize
    }

    /// The intervals of a host's probes that were closed since the last call, oldest first.
    pub fn take_probes(&mut self, host: u32) -> Vec<Closed> {
        let partition = self.partition_of_host(host);
        self.partitions[partition].hosts.probers.as_mut().map_or_else(Vec::new, |probers| probers.take(host))
    }

    /// What a host's prober has counted since the start.
    pub fn probe_totals(&self, host: u32) -> ProbeTotals {
        let probers = self.partitions[self.partition_of_host(host)].hosts.probers.as_ref();
        probers.map_or_else(ProbeTotals::default, |probers| probers.totals(host))
    }

    /// The first slot that does not begin before a time.
    fn first_slot_from(&self, time: u64) -> u64 {
        let calendar = &self.partitions[0].clock.calendar;
        let slot = calendar.slot_of(time);
        if calendar.begin_of(slot) < time { slot + 1 } else { slot }
    }

    /// How far the partitions have come.
    fn standing(&self) -> Standing {
        let start = Standing { next_slot: u64::MAX, ..Standing::default() };
        self.partitions.iter().map(Partition::standing).fold(start, Standing::with)
    }

    /// Latest time reached.
    fn end(&self) -> u64 {
        if self.is_at_limit {
            return self.limit;
        }
        self.partitions.iter().map(|partition| partition.clock.end).max().unwrap_or(0)
    }

    /// Number of messages, parts counted one by one.
    fn messages(&self) -> usize {
        self.partitions[0].hosts.common.posts.len()
    }

    /// The state of a port's partition.
    fn fabric_of(&self, port: u32) -> &FabricState {
        let partition = self.groups.partition_of(self.layout.node_of(port));
        &self.partitions[partition].fabric
    }

    /// All counters but those of queue pairs that still exist.
    fn counted(&self) -> Totals {
        self.partitions.iter().map(|partition| partition.stats.totals).fold(Totals::default(), Totals::with)
    }

    /// All counters, those of queue pairs that still exist included.
    fn totals(&self) -> Totals {
        self.partitions.iter().map(Partition::totals).fold(Totals::default(), Totals::with)
    }

    /// Takes the samples that are due by `time`.
    fn take_samples(&mut self, time: u64) {
        let Some(mut recorder) = self.recorder.take_if(|recorder| recorder.next_sample() <= time) else {
            return;
        };
        recorder.take_samples(time, self.end(), &self.totals(), tallies(&self.partitions), self);
        self.recorder = Some(recorder);
    }

    /// Ends the record where the run stands. To be called before it is read.
    pub fn finish_record(&mut self) {
        let Some(mut recorder) = self.recorder.take() else { return };
        let (end, totals) = (self.end(), self.totals());
        recorder.take_last_sample(end, &totals, tallies(&self.partitions), self);
        recorder.finish(tallies_mut(&mut self.partitions));
        self.recorder = Some(recorder);
    }

    /// The record, if the scenario asked for one.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// The record, to take captured packets out.
    pub fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }

    /// The group that the time series count a port in: by plane, layer of the cable, and direction (up is even).
    /// 0 without time series.
    pub fn group_of(&self, port: u32) -> usize {
        self.recorder().map_or(0, |recorder| recorder.group_of(port))
    }

    /// The bytes of a captured packet, from the Ethernet header to the iCRC.
    pub fn frame(&self, captured: &Captured) -> Vec<u8> {
        captured.frame(&self.config, |end| self.layout.port_number(end))
    }

    /// The ports of a link, by its number in the fabric: the one that sends up, and the one that sends down.
    pub fn link_ports(&self, link: u32) -> [u32; 2] {
        self.layout.link_ports(link)
    }

    /// The hosts at the ends of a connection. With several RoCEv2 queue pairs a connection, each counts as one.
    pub fn connection(&self, connection: u32) -> Connection {
        self.partitions[0].hosts.common.posts.ends(connection)
    }

    /// The planes as they are now, for those who watch a run. It reads every port.
    pub fn planes(&self) -> Vec<PlaneNow> {
        let (now, hosts) = (self.end(), self.layout.hosts());
        let mut planes = vec![PlaneNow::default(); self.layout.planes as usize];
        for port in self.layout.host_ports..self.layout.ports() as u32 {
            let Some(switch) = self.layout.fabric.switch_at(self.layout.owner(port) - hosts) else {
                continue;
            };
            let (plane, fabric) = (&mut planes[switch.plane as usize], self.fabric_of(port));
            let backlog = fabric.backlog(port, now);
            plane.waiting += backlog;
            if backlog > plane.longest {
                (plane.longest, plane.longest_port) = (backlog, port);
            }
            if fabric.is_last_hop(port) {
                plane.to_hosts += fabric.bytes(port);
            }
        }
        planes
    }

    /// Threads that simulate it.
    pub(crate) fn threads(&self) -> u32 {
        self.partitions.len() as u32
    }

    /// Writes all that changes in a run.
    pub(crate) fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&self.is_at_limit)?;
        self.recorder.as_ref().map_or(Ok(()), |recorder| recorder.save(to))?;
        self.partitions.iter().try_for_each(|partition| partition.save(to))
    }

    /// Reads what [`World::save`] has written for the same run.
    pub(crate) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        self.is_at_limit = from.get()?;
        self.recorder.as_mut().map_or(Ok(()), |recorder| recorder.load(from))?;
        self.partitions.iter_mut().try_for_each(|partition| partition.load(from))
    }

    /// The network it runs on.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }
}

/// What a plane carries now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlaneNow {
    /// Bytes that the last switches have sent or queued to hosts since the start of the run, headers included.
    pub to_hosts: u64,
    /// Bytes that wait in switches.
    pub waiting: u64,
    /// Bytes in the longest queue of a switch.
    pub longest: u64,
    /// The port with that queue, if there is one.
    pub longest_port: u32,
}

impl PortView for World {
    fn sent(&self, port: u32, at: u64) -> u64 {
        self.fabric_of(port).sent(port, at)
    }

    fn backlog(&self, port: u32, at: u64) -> u64 {
        self.fabric_of(port).backlog(port, at)
    }
}

fn tallies(partitions: &[Partition]) -> impl Iterator<Item = &Tally> {
    partitions.iter().filter_map(|partition| partition.stats.tally.as_deref())
}

fn tallies_mut(partitions: &mut [Partition]) -> impl Iterator<Item = &mut Tally> {
    partitions.iter_mut().filter_map(|partition| partition.stats.tally.as_deref_mut())
}

/// The recorder that a run asks for.
fn recorder_for(run: &Run, layout: &Layout) -> Option<Box<Recorder>> {
    if run.record.is_nothing() {
        return None;
    }
    // A sample reads every port, so a larger fabric starts with a longer interval.
    let often = (200_000 / layout.ports().max(1)).clamp(1, 16) as u64;
    let shape = NetworkShape {
        planes: layout.planes as usize,
        port_groups: &layout.port_groups(),
        groups: layout.planes as usize * usize::from(layout.fabric.tiers()) * 2,
        first_interval: (run.network.base_rtt().0 / often).max(1),
        link_ports: &|link| layout.link_ports(link),
    };
    Some(Box::new(Recorder::new(&run.record, run.workload.pattern_ends.len().max(1), &shape)))
}
