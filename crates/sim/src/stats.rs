//! What is counted and recorded during a run.

use openmrc_scenario::{LifeTotals, Totals};
use openmrc_transport::Time;

use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::event::Event;
use crate::record::{LogEvent, PortCounters, Tally};

/// The counters of a partition, and what it records if the scenario asks for that.
pub(crate) struct Stats {
    pub totals: Totals,
    pub life: LifeTotals,
    pub tally: Option<Box<Tally>>,
}

impl Stats {
    /// Writes the counters and what is recorded.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&(&self.totals, &self.life))?;
        self.tally.as_ref().map_or(Ok(()), |tally| tally.save(to))
    }

    /// Reads what [`Stats::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        (self.totals, self.life) = from.get()?;
        self.tally.as_mut().map_or(Ok(()), |tally| tally.load(from))
    }

    /// Counts something at a port, if ports are recorded.
    #[inline]
    pub fn at_port(&mut self, port: u32, count: impl FnOnce(&mut PortCounters)) {
        if let Some(tally) = &mut self.tally {
            tally.at_port(port, count);
        }
    }

    /// A host takes a packet.
    #[inline]
    pub fn arrived(&mut self, event: &Event) {
        self.totals.hosts.arrived += 1;
        if let Some(tally) = &mut self.tally {
            tally.arrived(event);
        }
    }

    /// Adds an entry to the log, if there is one.
    pub fn log(&mut self, now: u64, event: LogEvent) {
        if let Some(tally) = &mut self.tally {
            tally.log(Time(now), event);
        }
    }
}
