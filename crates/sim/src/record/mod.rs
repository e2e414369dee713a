//! What a run records on request: time series, a log of events, counters by port and by path, packets of chosen links.
//!
//! A run that records nothing has no recorder and pays for a branch where something rare happens.

mod capture;
mod series;

use std::collections::HashMap;

use openmrc_transport::{EvChange, EvEvent, PortSet, Time};

pub use self::capture::{Capture, CaptureConfig, Captured};
use self::series::Sampler;
pub(crate) use self::series::{NetworkShape, PortView};
pub use self::series::{Series, SeriesConfig};
use crate::event::{Event, flag};
use crate::results::Totals;
use crate::schedule::{Change, Target};

/// What a run records.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Record {
    /// Time series.
    pub series: Option<SeriesConfig>,
    /// Log of faults, of routing's reactions, of paths and queue pairs.
    pub events: bool,
    /// Counters of losses and marks by port.
    pub ports: bool,
    /// Counters by connection and entropy value.
    pub paths: bool,
    /// Packets of chosen links.
    pub capture: Option<CaptureConfig>,
    /// Where the messages of each pattern end, in the order of the workload. Goodput is recorded by pattern.
    pub patterns: Vec<u32>,
}

impl Record {
    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        self.series.is_none() && !self.events && !self.ports && !self.paths && self.capture.is_none()
    }
}

/// Something that the log tells of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LogEvent {
    /// An entry of the schedule of faults.
    Fault(Target, Change),
    /// Routing has withdrawn a port, or uses it again.
    Routing {
        /// The port.
        port: u32,
        /// Withdrawn, or used again.
        withdrawn: bool,
    },
    /// A queue pair has condemned a path, or uses it again.
    Path {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
        /// Entropy value.
        ev: u32,
        /// Plane.
        plane: u8,
        /// Back in use, or condemned.
        good: bool,
    },
    /// A queue pair has learnt which ports of its peer are up, from the peer's word or from the traffic.
    PeerPorts {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
        /// Ports that are up there.
        up: PortSet,
    },
    /// A queue pair went to ERROR.
    Failed {
        /// The host of the queue pair.
        host: u32,
        /// The host of its peer.
        peer: u32,
    },
}

/// Losses and marks at a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PortCounters {
    /// Packets trimmed.
    pub trimmed: u64,
    /// Packets dropped because a queue was full.
    pub dropped: u64,
    /// Packets lost on the cable behind the port: down, lossy, bit errors.
    pub lost: u64,
    /// Packets marked.
    pub marked: u64,
    /// Longest queue seen when a sample was taken, bytes.
    pub longest: u64,
}

/// Data packets of one connection over one path.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PathCounters {
    /// Sent.
    pub sent: u64,
    /// Arrived whole.
    pub arrived: u64,
    /// Arrived without payload.
    pub trimmed: u64,
    /// Arrived with a mark.
    pub marked: u64,
    /// Times its path was condemned.
    pub condemned: u64,
    /// Plane.
    pub plane: u8,
}

/// Most entries of the log. Later events are only counted.
const MOST_ENTRIES: usize = 1 << 20;

/// What has been recorded.
pub struct Recorder {
    /// Events go to the log.
    log_events: bool,
    /// Packets are counted by path.
    count_paths: bool,
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
    pub capture: Option<Capture>,
}

impl Recorder {
    /// An empty recorder. `parts` says where messages are split: message `i` is `parts[i] .. parts[i + 1]`.
    pub(crate) fn new(record: &Record, messages: usize, parts: &[u32], network: &NetworkShape<'_>) -> Self {
        let part = |end: u32| if parts.is_empty() { end } else { parts[end as usize] };
        let mut pattern_of = vec![0u16; messages];
        let mut from = 0;
        for (pattern, &end) in record.patterns.iter().enumerate() {
            let to = part(end) as usize;
            pattern_of[from..to].fill(pattern.min(usize::from(u16::MAX)) as u16);
            from = to;
        }
        let ports_of = |links: &[u32]| links.iter().flat_map(|&link| (network.link_ports)(link)).collect();
        let link_ports = record.series.as_ref().map_or_else(Vec::new, |series| ports_of(&series.links));
        let patterns = record.patterns.len().max(1);
        let sampler = Sampler::new(record.series.as_ref(), pattern_of, patterns, link_ports, network);
        Recorder {
            log_events: record.events,
            count_paths: record.paths,
            series: sampler.empty_series(network.groups),
            sampler,
            log: Vec::new(),
            log_missed: 0,
            ports: if record.ports {
                vec![PortCounters::default(); network.port_groups.len()]
            } else {
                Vec::new()
            },
            paths: HashMap::new(),
            capture: record.capture.as_ref().map(|c| Capture::new(ports_of(&c.links), c.most)),
        }
    }

    /// Payload of a message has been placed.
    pub(crate) fn placed(&mut self, message: u32, plane: u8, bytes: u32) {
        self.sampler.count_placed(message, plane, bytes);
    }

    /// A packet leaves its host.
    pub(crate) fn sent(&mut self, event: &Event, plane: u8) {
        if self.count_paths && event.flags & flag::DATA != 0 {
            let path = self.paths.entry((event.connection, event.ev)).or_default();
            path.sent += 1;
            path.plane = plane;
        }
    }

    /// A packet has reached its queue pair.
    pub(crate) fn arrived(&mut self, event: &Event) {
        let trimmed = event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) != 0;
        if self.count_paths
            && (trimmed || event.flags & flag::DATA != 0)
            && let Some(path) = self.paths.get_mut(&(event.connection, event.ev))
        {
            path.trimmed += u64::from(trimmed);
            path.arrived += u64::from(!trimmed);
            path.marked += u64::from(event.flags & flag::CE != 0);
        }
    }

    /// A queue pair at `host` has condemned a path of its connection, or uses it again.
    pub(crate) fn path_event(
        &mut self,
        now: Time,
        connection: u32,
        (host, peer): (u32, u32),
        event: EvEvent,
    ) {
        let EvEvent { ev, port, change, .. } = event;
        if self.count_paths
            && change == EvChange::AssumedBad
            && let Some(path) = self.paths.get_mut(&(connection, ev.0))
        {
            path.condemned += 1;
        }
        let good = change == EvChange::Good;
        self.log(now, LogEvent::Path { host, peer, ev: ev.0, plane: port, good });
    }

    /// Adds an entry to the log, if events are recorded.
    pub(crate) fn log(&mut self, now: Time, event: LogEvent) {
        if self.log_events {
            if self.log.len() < MOST_ENTRIES {
                self.log.push((now, event));
            } else {
                self.log_missed += 1;
            }
        }
    }

    /// Counts something at a port, if ports are recorded.
    pub(crate) fn at_port(&mut self, port: u32, count: impl FnOnce(&mut PortCounters)) {
        if let Some(counters) = self.ports.get_mut(port as usize) {
            count(counters);
        }
    }

    /// The group that the time series count a port in: by plane, layer of the cable, and direction (up is even).
    pub(crate) fn group_of(&self, port: u32) -> usize {
        self.sampler.group_of(port)
    }

    /// Whether a sample is due by `time`.
    #[inline]
    pub(crate) fn is_due(&self, time: u64) -> bool {
        self.sampler.is_due(time)
    }

    /// Takes the samples that are due by `time`. Events up to `reached` have been processed.
    pub(crate) fn take_samples(&mut self, time: u64, reached: u64, totals: &Totals, ports: &impl PortView) {
        let Recorder { sampler, series, ports: counters, .. } = self;
        sampler.take_due(series, (time, reached), totals, ports, |port, bytes| {
            keep_longest(counters, port, bytes);
        });
    }

    /// Takes the last sample, and sorts the log: within a slot of the calendar its entries come in no order.
    pub(crate) fn finish(&mut self, end: u64, totals: &Totals, ports: &impl PortView) {
        let Recorder { sampler, series, ports: counters, .. } = self;
        if sampler.is_on() && series.time.last().is_none_or(|&last| last < end) {
            sampler
                .sample(series, end, totals, ports, &mut |port, bytes| keep_longest(counters, port, bytes));
        }
        self.log.sort_by_key(|(time, _)| *time);
    }
}

fn keep_longest(counters: &mut [PortCounters], port: u32, bytes: u64) {
    if let Some(port) = counters.get_mut(port as usize) {
        port.longest = port.longest.max(bytes);
    }
}
