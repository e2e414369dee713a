//! What a partition notes while it runs, if the scenario asks for it. [`Recorder`](super::Recorder) adds the tallies up.

use std::collections::HashMap;
use std::sync::Arc;

use openmrc_transport::{EvChange, EvEvent, Time};

use super::capture::Ears;
use super::entries::{LogEvent, MOST_ENTRIES, PathCounters, PortCounters};
use super::series::Placed;
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::event::{Event, flag};

/// What one partition has noted.
pub(crate) struct Tally {
    /// Events go to the log.
    log_events: bool,
    /// The log takes the events of this slot.
    log_is_open: bool,
    /// Packets are counted by path.
    count_paths: bool,
    /// By message: its pattern.
    pattern_of: Arc<[u16]>,
    pub(super) placed: Placed,
    pub(super) log: Vec<(Time, LogEvent)>,
    pub(super) log_missed: u64,
    /// By port.
    pub(super) ports: Vec<PortCounters>,
    /// By connection and entropy value: of what the partition's hosts send, and of what they receive.
    pub(super) paths: HashMap<(u32, u32), PathCounters>,
    /// What it hears of the packets that are captured.
    pub(super) ears: Option<Ears>,
}

impl Tally {
    pub(super) fn new(
        (log_events, count_paths): (bool, bool),
        pattern_of: &Arc<[u16]>,
        placed: &Placed,
        ports: usize,
        ears: Option<Ears>,
    ) -> Self {
        Tally {
            log_events,
            log_is_open: true,
            count_paths,
            pattern_of: Arc::clone(pattern_of),
            placed: placed.clone(),
            log: Vec::new(),
            log_missed: 0,
            ports: vec![PortCounters::default(); ports],
            paths: HashMap::new(),
            ears,
        }
    }

    /// Writes what it has noted.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        if self.ears.is_some() {
            return Err(CheckpointError::Unsupported("a capture of packets"));
        }
        to.put(&self.placed.by_pattern)?;
        to.put(&self.placed.by_plane)?;
        to.put(&(&self.log, self.log_missed))?;
        to.put(&self.ports)?;
        to.put(&self.paths)
    }

    /// Reads what [`Tally::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        from.replace(&mut self.placed.by_pattern)?;
        from.replace(&mut self.placed.by_plane)?;
        (self.log, self.log_missed) = from.get()?;
        from.replace(&mut self.ports)?;
        self.paths = from.get()?;
        Ok(())
    }

    /// A slot of the calendar begins. Log and capture are closed between slots only: within a slot their entries come
    /// in no order, so the last one of a full log is not known before the slot ends.
    pub fn begin_slot(&mut self) {
        self.log_is_open = self.log.len() < MOST_ENTRIES;
        if let Some(ears) = &mut self.ears {
            ears.begin_slot();
        }
    }

    /// Payload of a message has been placed.
    pub fn placed(&mut self, message: u32, plane: u8, bytes: u32) {
        self.placed.by_pattern[usize::from(self.pattern_of[message as usize])] += u64::from(bytes);
        self.placed.by_plane[usize::from(plane)] += u64::from(bytes);
    }

    /// A packet leaves its host.
    pub fn sent(&mut self, event: &Event, plane: u8) {
        if self.count_paths && event.flags & flag::DATA != 0 {
            let path = self.paths.entry((event.connection, event.ev)).or_default();
            path.sent += 1;
            path.plane = plane;
        }
    }

    /// A packet has reached its queue pair.
    pub fn arrived(&mut self, event: &Event) {
        let trimmed = event.flags & (flag::TRIMMED | flag::TRIMMED_LAST_HOP) != 0;
        if self.count_paths && (trimmed || event.flags & flag::DATA != 0) {
            let path = self.paths.entry((event.connection, event.ev)).or_default();
            path.trimmed += u64::from(trimmed);
            path.arrived += u64::from(!trimmed);
            path.marked += u64::from(event.flags & flag::CE != 0);
        }
    }

    /// A queue pair at `host` has condemned a path of its connection, or uses it again.
    pub fn path_event(&mut self, now: Time, connection: u32, (host, peer): (u32, u32), event: EvEvent) {
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
    pub fn log(&mut self, now: Time, event: LogEvent) {
        if self.log_events {
            if self.log_is_open {
                self.log.push((now, event));
            } else {
                self.log_missed += 1;
            }
        }
    }

    /// Counts something at a port, if ports are recorded.
    pub fn at_port(&mut self, port: u32, count: impl FnOnce(&mut PortCounters)) {
        if let Some(counters) = self.ports.get_mut(port as usize) {
            count(counters);
        }
    }

    /// Where the packets go that cross the cable of `port`, if they are captured.
    pub fn capture_of(&mut self, port: u32) -> Option<&mut Ears> {
        self.ears.as_mut().filter(|ears| ears.want(port))
    }
}
