//! Time series of a run: samples of counters and queues, taken between two slots of the calendar.

use openmrc_scenario::Totals;
use openmrc_scenario::run::SeriesConfig;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{CheckpointError, Reader, Writer};

/// Samples, column by column. Counters count from the start of the run.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct Series {
    /// Time of each sample, picoseconds.
    pub time: Vec<u64>,
    /// All counters.
    pub totals: Vec<Totals>,
    /// Payload bytes placed, by pattern.
    pub placed: Vec<u64>,
    /// Payload bytes placed, by plane.
    pub placed_by_plane: Vec<u64>,
    /// By group of ports ([`World::group_of`](crate::World::group_of)): bytes sent, bytes waiting, the longest queue.
    pub groups: Vec<[u64; 3]>,
    /// By chosen link, up and down: bytes sent.
    pub sent: Vec<u64>,
    /// By chosen link, up and down: bytes waiting.
    pub waiting: Vec<u64>,
    /// Values of one sample in `placed`, in `placed_by_plane`, in `groups`, and in each of `sent` and `waiting`.
    pub widths: [usize; 4],
}

impl Series {
    /// Merges pairs of samples. The later one's counters are kept; of two queue lengths the longer one is.
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

/// What a sample reads of the ports.
pub(crate) trait PortView {
    /// Bytes that a port has sent by `at`, which is now or a little later, since the start of the run.
    fn sent(&self, port: u32, at: u64) -> u64;
    /// Bytes that a port has accepted and not yet sent at `at`.
    fn backlog(&self, port: u32, at: u64) -> u64;
}

/// Payload bytes placed.
#[derive(Clone, Default)]
pub(super) struct Placed {
    pub by_pattern: Vec<u64>,
    pub by_plane: Vec<u64>,
}

impl Placed {
    /// What all partitions have placed. `widths` are those of the series.
    pub fn sum<'a>([patterns, planes, ..]: [usize; 4], parts: impl Iterator<Item = &'a Placed>) -> Self {
        let mut sum = Placed { by_pattern: vec![0; patterns], by_plane: vec![0; planes] };
        for Placed { by_pattern, by_plane } in parts {
            sum.by_pattern.iter_mut().zip(by_pattern).for_each(|(sum, bytes)| *sum += bytes);
            sum.by_plane.iter_mut().zip(by_plane).for_each(|(sum, bytes)| *sum += bytes);
        }
        sum
    }
}

/// What a recorder has to know of the network.
pub(crate) struct NetworkShape<'a> {
    pub planes: usize,
    /// By port: the group that the time series count it in.
    pub port_groups: &'a [u8],
    pub groups: usize,
    /// Time of the first sample if no interval is given.
    pub first_interval: u64,
    /// The two ports of a link.
    pub link_ports: &'a dyn Fn(u32) -> [u32; 2],
}

/// Takes the samples.
pub(super) struct Sampler {
    /// Time of the next sample; [`u64::MAX`] without time series.
    next: u64,
    interval: u64,
    /// The interval was not given, so it may grow.
    grows: bool,
    /// Ports of the links that are recorded one by one.
    link_ports: Vec<u32>,
    /// By port: the group it is counted in.
    group_of_port: Vec<u8>,
}

impl Sampler {
    /// A sampler; without `config` it takes no samples.
    pub fn new(config: Option<&SeriesConfig>, link_ports: Vec<u32>, network: &NetworkShape<'_>) -> Self {
        let given = config.and_then(|c| c.interval);
        let interval = given.map_or(network.first_interval, |i| i.0.max(1));
        Sampler {
            next: if config.is_some() { interval } else { u64::MAX },
            interval,
            grows: given.is_none(),
            link_ports,
            group_of_port: if config.is_some() { network.port_groups.to_vec() } else { Vec::new() },
        }
    }

    /// Writes when the next sample is due.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&(self.next, self.interval))
    }

    /// Reads what [`Sampler::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        (self.next, self.interval) = from.get()?;
        Ok(())
    }

    /// An empty series of the right widths.
    pub fn empty_series(&self, patterns: usize, network: &NetworkShape<'_>) -> Series {
        let widths = [patterns, network.planes, network.groups, self.link_ports.len()];
        Series { widths, ..Series::default() }
    }

    /// The group that a port is counted in; 0 without time series.
    pub fn group_of(&self, port: u32) -> usize {
        self.group_of_port.get(port as usize).map_or(0, |&group| usize::from(group))
    }

    /// Whether there are time series.
    pub fn is_on(&self) -> bool {
        self.next != u64::MAX
    }

    /// Time of the next sample; [`u64::MAX`] without time series.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Takes the samples that are due by `time`, when events up to `reached` have been processed. `longest` is called
    /// with the queue of every port in use.
    pub fn take_due(
        &mut self,
        series: &mut Series,
        (time, reached): (u64, u64),
        counted: (&Totals, &Placed),
        ports: &impl PortView,
        mut longest: impl FnMut(u32, u64),
    ) {
        while self.next <= time {
            let due = self.next;
            // Events of the slot before may lie beyond the time the sample is due.
            self.sample(series, due.max(reached), counted, ports, &mut longest);
            if self.grows && series.time.len() >= SeriesConfig::MOST {
                series.halve();
                self.interval *= 2;
            }
            self.next = due + self.interval;
        }
    }

    /// Takes one sample.
    pub fn sample(
        &self,
        series: &mut Series,
        at: u64,
        (totals, placed): (&Totals, &Placed),
        ports: &impl PortView,
        longest: &mut impl FnMut(u32, u64),
    ) {
        series.time.push(at);
        series.totals.push(*totals);
        series.placed.extend_from_slice(&placed.by_pattern);
        series.placed_by_plane.extend_from_slice(&placed.by_plane);
        let groups = series.groups.len();
        series.groups.resize(groups + series.widths[2], [0; 3]);
        let row = &mut series.groups[groups..];
        for (port, &group) in (0..).zip(&self.group_of_port) {
            let (by_now, waiting) = (ports.sent(port, at), ports.backlog(port, at));
            if by_now + waiting == 0 {
                continue;
            }
            let [sent, all, most] = &mut row[usize::from(group)];
            *sent += by_now;
            *all += waiting;
            *most = (*most).max(waiting);
            longest(port, waiting);
        }
        for &port in &self.link_ports {
            series.sent.push(ports.sent(port, at));
            series.waiting.push(ports.backlog(port, at));
        }
    }
}
