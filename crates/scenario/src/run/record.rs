//! What an engine records, with links by number.

use openmrc_transport::Span;

/// What a run records.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct RecordConfig {
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
}

impl RecordConfig {
    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        self.series.is_none() && !self.events && !self.ports && !self.paths && self.capture.is_none()
    }
}

/// Which time series are recorded.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct SeriesConfig {
    /// Time between two samples. `None` starts with a short interval and doubles it whenever there are
    /// [`SeriesConfig::MOST`] samples.
    pub interval: Option<Span>,
    /// Links, by number in the fabric, whose load and queues are recorded one by one, up and down.
    pub links: Vec<u32>,
}

impl SeriesConfig {
    /// Number of samples at which an interval that was not given doubles.
    pub const MOST: usize = 1024;
}

/// Which packets are captured.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct CaptureConfig {
    /// Links, by number in the fabric. Each direction is captured where it ends.
    pub links: Vec<u32>,
    /// Packets after which the capture ends.
    pub most: u64,
}
