//! What a run writes down as it goes, for those who ask: time series, a log of events, counters by port and by path, packets of
//! chosen links. A run that asks for nothing has no recorder, and pays for a branch where something rare happens.
//!
//! Time series are taken between the calendar's slots from counters that exist anyway: what a port has sent is what it has accepted
//! less what still waits.

use std::collections::HashMap;

use openmrc_transport::{EvChange, Span, Time};

use crate::capture::Capture;
use crate::event::{Event, flag};
use crate::network::Port;
use crate::results::Totals;
use crate::schedule::{Change, Target};
use crate::world::World;

/// What is to be written down.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Record {
    /// Time series.
    pub series: Option<SeriesConfig>,
    /// Log of faults, of what routing made of them, of paths and queue pairs.
    pub events: bool,
    /// Counters of losses and marks by port.
    pub ports: bool,
    /// Counters by connection and entropy value.
    pub paths: bool,
    /// Packets of chosen links.
    pub capture: Option<CaptureConfig>,
    /// Where the messages of each pattern end, in the order of the workload: goodput is told apart by it.
    pub patterns: Vec<u32>,
}

impl Record {
    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        self.series.is_none() && !self.events && !self.ports && !self.paths && self.capture.is_none()
    }
}

/// Time series.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct SeriesConfig {
    /// Between two samples; left open, it starts small and doubles whenever there are [`SeriesConfig::MOST`] samples.
    pub interval: Option<Span>,
    /// Links, by their numbers in the fabric, whose load and queues are kept one by one: up and down for each.
    pub links: Vec<u32>,
}

impl SeriesConfig {
    /// Samples at which an interval left open doubles.
    pub const MOST: usize = 1024;
}

/// Packets of chosen links.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct CaptureConfig {
    /// Links that are listened to, by their numbers in the fabric: where each direction ends.
    pub links: Vec<u32>,
    /// Packets after which the capture ends.
    pub most: u64,
}

/// Something that happened, for the log.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Happening {
    /// An entry of the schedule of faults.
    Fault(Target, Change),
    /// Routing has withdrawn a port, or uses it again.
    Routing {
        /// The port.
        port: u32,
        /// Withdrawn, or used again.
        withdrawn: bool,
    },
    /// A queue pair has condemned a path, or has it back.
    Path {
        /// The host whose queue pair it is.
        host: u32,
        /// Its peer's host.
        peer: u32,
        /// Entropy value.
        ev: u32,
        /// Plane.
        plane: u8,
        /// Back in use, or condemned.
        good: bool,
    },
    /// A queue pair went to ERROR.
    Failed {
        /// The host whose queue pair it is.
        host: u32,
        /// Its peer's host.
        peer: u32,
    },
}

/// Losses and marks at a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PortCounters {
    /// Payloads cut off.
    pub trimmed: u64,
    /// Packets that its queues had no room for.
    pub dropped: u64,
    /// Packets lost on its cable: down, lossy, bit errors.
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

/// Samples, column by column; counters count from the start.
#[derive(Clone, Default, Debug)]
pub struct Series {
    /// When.
    pub time: Vec<u64>,
    /// All counters.
    pub totals: Vec<Totals>,
    /// Payload bytes placed, by pattern; `patterns` numbers a sample.
    pub placed: Vec<u64>,
    /// Payload bytes placed, by plane; `planes` numbers a sample.
    pub placed_by_plane: Vec<u64>,
    /// By group of ports ([`World::group_of`]): bytes sent, bytes waiting, the longest queue.
    pub groups: Vec<[u64; 3]>,
    /// By link chosen, up and down: bytes sent.
    pub sent: Vec<u64>,
    /// By link chosen, up and down: bytes waiting.
    pub waiting: Vec<u64>,
    /// Numbers a sample in `placed`, `placed_by_plane`, `groups`, `sent` and `waiting`.
    pub widths: [usize; 4],
}

impl Series {
    /// Every other sample goes: counters stay what they are, a queue is the longer of the two.
    fn halve(&mut self) {
        let samples = self.time.len() / 2;
        let [patterns, planes, groups, ports] = self.widths;
        for i in 0..samples {
            let from = 2 * i + 1;
            self.time[i] = self.time[from];
            self.totals[i] = self.totals[from];
            copy_row(&mut self.placed, patterns, from, i);
            copy_row(&mut self.placed_by_plane, planes, from, i);
            copy_row(&mut self.sent, ports, from, i);
            for p in 0..ports {
                self.waiting[i * ports + p] =
                    self.waiting[from * ports + p].max(self.waiting[(from - 1) * ports + p]);
            }
            for g in 0..groups {
                let (early, late) = (self.groups[(from - 1) * groups + g], self.groups[from * groups + g]);
                self.groups[i * groups + g] = [late[0], late[1].max(early[1]), late[2].max(early[2])];
            }
        }
        self.time.truncate(samples);
        self.totals.truncate(samples);
        self.placed.truncate(samples * patterns);
        self.placed_by_plane.truncate(samples * planes);
        self.groups.truncate(samples * groups);
        self.sent.truncate(samples * ports);
        self.waiting.truncate(samples * ports);
    }
}

fn copy_row(rows: &mut [u64], width: usize, from: usize, to: usize) {
    rows.copy_within(from * width..(from + 1) * width, to * width);
}

/// The log holds this many entries; what comes later is counted.
const MOST_ENTRIES: usize = 1 << 20;

/// What has been written down.
pub struct Recorder {
    record: Record,
    /// Ports of the links chosen for the time series.
    chosen: Vec<u32>,
    /// Time of the next sample.
    next: u64,
    interval: u64,
    /// By message: its pattern.
    pattern_of: Vec<u16>,
    placed: Vec<u64>,
    placed_by_plane: Vec<u64>,
    /// Samples.
    pub series: Series,
    /// What happened, and when.
    pub log: Vec<(Time, Happening)>,
    /// Entries that the log had no room for.
    pub log_missed: u64,
    /// By port.
    pub ports: Vec<PortCounters>,
    /// By connection and entropy value.
    pub paths: HashMap<(u32, u32), PathCounters>,
    /// Packets.
    pub capture: Option<Capture>,
}

impl Recorder {
    /// A recorder with empty pages. `parts` says where messages are split (message `i` is `parts[i] .. parts[i + 1]`).
    pub(crate) fn new(record: &Record, messages: usize, parts: &[u32], network: &Shape<'_>) -> Self {
        let patterns = record.patterns.len().max(1);
        let whole = |end: u32| if parts.is_empty() { end } else { parts[end as usize] };
        let mut pattern_of = vec![0u16; messages];
        let mut from = 0;
        for (pattern, &end) in record.patterns.iter().enumerate() {
            let to = whole(end) as usize;
            pattern_of[from..to].fill(pattern.min(usize::from(u16::MAX)) as u16);
            from = to;
        }
        let series = record.series.clone().unwrap_or_default();
        let chosen = (network.ports_of)(&series.links);
        let interval = series.interval.map_or(network.first_interval, |i| i.0.max(1));
        Recorder {
            next: if record.series.is_some() { interval } else { u64::MAX },
            interval,
            pattern_of,
            placed: vec![0; patterns],
            placed_by_plane: vec![0; network.planes],
            series: Series {
                widths: [patterns, network.planes, network.groups, chosen.len()],
                ..Series::default()
            },
            log: Vec::new(),
            log_missed: 0,
            ports: if record.ports { vec![PortCounters::default(); network.ports] } else { Vec::new() },
            paths: HashMap::new(),
            capture: record.capture.as_ref().map(|c| Capture::new((network.ports_of)(&c.links), c.most)),
            chosen,
            record: record.clone(),
        }
    }

    /// Payload of a message is in place.
    pub(crate) fn placed(&mut self, message: u32, plane: u8, bytes: u32) {
        self.placed[usize::from(self.pattern_of[message as usize])] += u64::from(bytes);
        self.placed_by_plane[usize::from(plane)] += u64::from(bytes);
    }

    /// A data packet sets out.
    pub(crate) fn sent(&mut self, event: &Event, plane: u8) {
        if self.record.paths && event.flags & flag::DATA != 0 {
            let path = self.paths.entry((event.connection, event.ev)).or_default();
            path.sent += 1;
            path.plane = plane;
        }
    }

    /// A packet has reached its queue pair.
    pub(crate) fn arrived(&mut self, event: &Event) {
        let trimmed = event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) != 0;
        if self.record.paths
            && (trimmed || event.flags & flag::DATA != 0)
            && let Some(path) = self.paths.get_mut(&(event.connection, event.ev))
        {
            path.trimmed += u64::from(trimmed);
            path.arrived += u64::from(!trimmed);
            path.marked += u64::from(event.flags & flag::CE != 0);
        }
    }

    /// A path of a connection was condemned or came back.
    pub(crate) fn path(&mut self, now: Time, connection: u32, (host, peer): (u32, u32), event: EvEventOf) {
        if self.record.paths
            && event.change == EvChange::AssumedBad
            && let Some(path) = self.paths.get_mut(&(connection, event.ev))
        {
            path.condemned += 1;
        }
        let good = event.change == EvChange::Good;
        self.log(now, Happening::Path { host, peer, ev: event.ev, plane: event.plane, good });
    }

    /// Something happened.
    pub(crate) fn log(&mut self, now: Time, what: Happening) {
        if self.record.events {
            if self.log.len() < MOST_ENTRIES {
                self.log.push((now, what));
            } else {
                self.log_missed += 1;
            }
        }
    }

    /// Counts something at a port.
    pub(crate) fn at_port(&mut self, port: u32, count: impl FnOnce(&mut PortCounters)) {
        if let Some(counters) = self.ports.get_mut(port as usize) {
            count(counters);
        }
    }

    /// Whether a sample is due before `time`.
    #[inline]
    pub(crate) fn is_due(&self, time: u64) -> bool {
        self.next <= time
    }
}

/// What an EV event says, as far as it is kept.
pub(crate) struct EvEventOf {
    pub ev: u32,
    pub plane: u8,
    pub change: EvChange,
}

/// What a recorder has to know of the network.
pub(crate) struct Shape<'a> {
    pub ports: usize,
    pub planes: usize,
    pub groups: usize,
    pub first_interval: u64,
    /// The two ports of each of these links.
    pub ports_of: &'a dyn Fn(&[u32]) -> Vec<u32>,
}

impl World {
    /// Ports are told apart by plane, layer of their cable, and direction: up is even.
    pub fn group_of(&self, port: u32) -> usize {
        usize::from(self.group_of_port[port as usize])
    }

    /// Takes the samples that are due before `time`.
    #[cold]
    pub(crate) fn take_samples(&mut self, time: u64) {
        let Some(mut recorder) = self.recorder.take() else { return };
        while recorder.next <= time {
            let at = recorder.next;
            // A sample falls between two slots: what has happened by then is all there is to see.
            self.sample(&mut recorder, at.max(self.end()));
            let config = recorder.record.series.as_ref();
            if config.is_some_and(|s| s.interval.is_none())
                && recorder.series.time.len() >= SeriesConfig::MOST
            {
                recorder.series.halve();
                recorder.interval *= 2;
            }
            recorder.next = at + recorder.interval;
        }
        self.recorder = Some(recorder);
    }

    /// The last sample, where the run stands; and the log in order of time, which it is not within a slot of the calendar.
    pub fn finish_record(&mut self) {
        let end = self.end();
        let Some(mut recorder) = self.recorder.take() else { return };
        if recorder.record.series.is_some() && recorder.series.time.last().is_none_or(|&last| last < end) {
            self.sample(&mut recorder, end);
        }
        recorder.log.sort_by_key(|(time, _)| *time);
        self.recorder = Some(recorder);
    }

    fn sample(&self, recorder: &mut Recorder, at: u64) {
        let mut totals = self.totals;
        self.qps.add_up(&mut totals);
        let series = &mut recorder.series;
        series.time.push(at);
        series.totals.push(totals);
        series.placed.extend_from_slice(&recorder.placed);
        series.placed_by_plane.extend_from_slice(&recorder.placed_by_plane);
        let groups = series.groups.len();
        series.groups.resize(groups + series.widths[2], [0; 3]);
        let row = &mut series.groups[groups..];
        for (number, port) in self.net.ports.iter().enumerate() {
            if port.bytes == 0 {
                continue;
            }
            let waiting = self.backlog(number as u32, at);
            let [sent, all, longest] = &mut row[usize::from(self.group_of_port[number])];
            *sent += port.bytes.saturating_sub(waiting);
            *all += waiting;
            *longest = (*longest).max(waiting);
            if let Some(counters) = recorder.ports.get_mut(number) {
                counters.longest = counters.longest.max(waiting);
            }
        }
        for &port in &recorder.chosen {
            let waiting = self.backlog(port, at);
            series.sent.push(self.net.ports[port as usize].bytes.saturating_sub(waiting));
            series.waiting.push(waiting);
        }
    }

    /// Bytes that a port has accepted and not yet sent at `at`, which is now or a little later.
    pub(crate) fn backlog(&self, port: u32, at: u64) -> u64 {
        let Port { data_free, picos_per_byte, .. } = self.net.ports[port as usize];
        let per_byte = u64::from(picos_per_byte.max(1));
        match &self.queues {
            Some(queues) => queues.backlog(port, at, per_byte),
            None => data_free.saturating_sub(at) / per_byte,
        }
    }

    /// What has been written down, if anything was to be.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// What has been written down, to take packets out.
    pub fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut()
    }
}
