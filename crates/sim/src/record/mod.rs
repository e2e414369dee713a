//! What a run records on request: time series, a log of events, counters by port and by path, packets of chosen links.
//!
//! A run that records nothing has no recorder and pays for a branch where something rare happens.

//!
//! ```text
//! tally    what a partition notes while it runs
//! entries  entries of the log, counters by port and by path
//! series   time series: samples of counters and queues
//! capture  packets of chosen links, as bytes
//! ```

mod capture;
mod entries;
mod series;
mod tally;

use std::collections::HashMap;

use openmrc_scenario::Totals;
use openmrc_scenario::run::RecordConfig;
use openmrc_transport::Time;
use openmrc_workload::Workload;

use crate::checkpoint::{CheckpointError, Reader, Writer};

pub use self::capture::{CaptureBuffer, Captured};
use self::entries::MOST_ENTRIES;
pub use self::entries::{LogEvent, PathCounters, PortCounters};
pub use self::series::Series;
pub(crate) use self::series::{NetworkShape, PortView};
use self::series::{Placed, Sampler};
pub(crate) use self::tally::Tally;

/// What has been recorded.
pub struct Recorder {
    sampler: Sampler,
    /// Samples.
    pub series: Series,
    /// Events and their times.
    pub log: Vec<(Time, LogEvent)>,
    /// Events that the log had no room for.
    pub log_missed: u64,
    /// By port.
    pub ports: Vec<PortCounters>,
    /// By connection and entropy value.
    pub paths: HashMap<(u32, u32), PathCounters>,
    /// Packets.
    pub capture: Option<CaptureBuffer>,
}

impl Recorder {
    /// An empty recorder.
    pub(crate) fn new(record: &RecordConfig, patterns: usize, network: &NetworkShape<'_>) -> Self {
        let ports_of = |links: &[u32]| links.iter().flat_map(|&link| (network.link_ports)(link)).collect();
        let link_ports = record.series.as_ref().map_or_else(Vec::new, |series| ports_of(&series.links));
        let sampler = Sampler::new(record.series.as_ref(), link_ports, network);
        let ports = if record.ports { network.port_groups.len() } else { 0 };
        Recorder {
            series: sampler.empty_series(patterns, network),
            sampler,
            log: Vec::new(),
            log_missed: 0,
            ports: vec![PortCounters::default(); ports],
            paths: HashMap::new(),
            capture: record.capture.as_ref().map(|c| CaptureBuffer::new(ports_of(&c.links), c.most)),
        }
    }

    /// An empty tally for each of `partitions`.
    pub(crate) fn tallies(&self, record: &RecordConfig, workload: &Workload, partitions: u32) -> Vec<Tally> {
        let mut pattern_of = vec![0u16; workload.tasks.len()];
        let mut from = 0;
        for (pattern, &end) in workload.pattern_ends.iter().enumerate() {
            let to = end as usize;
            pattern_of[from..to].fill(pattern.min(usize::from(u16::MAX)) as u16);
            from = to;
        }
        let pattern_of = pattern_of.into();
        let [patterns, planes, ..] = self.series.widths;
        let placed = Placed { by_pattern: vec![0; patterns], by_plane: vec![0; planes] };
        let ears = self.capture.as_ref().map(CaptureBuffer::ears);
        (0..partitions)
            .map(|_| {
                Tally::new(
                    (record.events, record.paths),
                    &pattern_of,
                    &placed,
                    self.ports.len(),
                    ears.clone(),
                )
            })
            .collect()
    }

    /// Writes what has been recorded.
    pub(crate) fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        self.sampler.save(to)?;
        to.put(&self.series)?;
        to.put(&(&self.log, self.log_missed))?;
        to.put(&self.ports)?;
        to.put(&self.paths)
    }

    /// Reads what [`Recorder::save`] has written.
    pub(crate) fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        self.sampler.load(from)?;
        self.series = from.get()?;
        (self.log, self.log_missed) = from.get()?;
        from.replace(&mut self.ports)?;
        self.paths = from.get()?;
        Ok(())
    }

    /// The group that the time series count a port in: by plane, layer of the cable, and direction (up is even).
    pub(crate) fn group_of(&self, port: u32) -> usize {
        self.sampler.group_of(port)
    }

    /// Time of the next sample; [`u64::MAX`] without time series.
    pub(crate) fn next_sample(&self) -> u64 {
        self.sampler.next()
    }

    /// Takes the samples that are due by `time`. Events up to `reached` have been processed.
    pub(crate) fn take_samples<'a>(
        &mut self,
        time: u64,
        reached: u64,
        totals: &Totals,
        tallies: impl Iterator<Item = &'a Tally>,
        ports: &impl PortView,
    ) {
        let Recorder { sampler, series, ports: counters, .. } = self;
        let placed = Placed::sum(series.widths, tallies.map(|tally| &tally.placed));
        sampler.take_due(series, (time, reached), (totals, &placed), ports, |port, bytes| {
            keep_longest(counters, port, bytes);
        });
    }

    /// Takes the packets that were captured since the last call from the tallies, in the order in which they were
    /// handled.
    pub(crate) fn collect_packets<'a>(&mut self, tallies: impl Iterator<Item = &'a mut Tally>) {
        let Some(capture) = &mut self.capture else { return };
        let mut ears: Vec<_> = tallies.filter_map(|tally| tally.ears.as_mut()).collect();
        capture.collect(&mut ears);
    }

    /// Takes a sample of the end of the run, unless there is one.
    pub(crate) fn take_last_sample<'a>(
        &mut self,
        end: u64,
        totals: &Totals,
        tallies: impl Iterator<Item = &'a Tally>,
        ports: &impl PortView,
    ) {
        let Recorder { sampler, series, ports: counters, .. } = self;
        if sampler.is_on() && series.time.last().is_none_or(|&last| last < end) {
            let placed = Placed::sum(series.widths, tallies.map(|tally| &tally.placed));
            sampler.sample(series, end, (totals, &placed), ports, &mut |port, bytes| {
                keep_longest(counters, port, bytes);
            });
        }
    }

    /// Takes log and counters from the tallies. The log is ordered by time and host.
    pub(crate) fn finish<'a>(&mut self, tallies: impl Iterator<Item = &'a mut Tally>) {
        for tally in tallies {
            self.log.append(&mut tally.log);
            self.log_missed += std::mem::take(&mut tally.log_missed);
            for (port, counted) in self.ports.iter_mut().zip(&mut tally.ports) {
                port.add(&std::mem::take(counted));
            }
            // The largest part of a record moves as it is if there is one partition.
            if self.paths.is_empty() {
                self.paths = std::mem::take(&mut tally.paths);
            }
            for (key, counted) in tally.paths.drain() {
                self.paths.entry(key).or_default().add(&counted);
            }
        }
        self.log.sort_by_key(|(time, event)| (*time, event.host()));
        self.log_missed += self.log.len().saturating_sub(MOST_ENTRIES) as u64;
        self.log.truncate(MOST_ENTRIES);
    }
}

fn keep_longest(counters: &mut [PortCounters], port: u32, bytes: u64) {
    if let Some(port) = counters.get_mut(port as usize) {
        port.longest = port.longest.max(bytes);
    }
}
