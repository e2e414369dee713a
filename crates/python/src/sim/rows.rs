//! What a simulation returns row by row, with named fields.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// Adds the classes to `openmrc._core`.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyProgress>()?;
    module.add_class::<PyPlane>()?;
    module.add_class::<PyStep>()?;
    module.add_class::<LogEntry>()?;
    module.add_class::<PySeries>()?;
    module.add_class::<CapturedPacket>()
}

/// How far a run has come.
#[pyclass(name = "SimulationProgress", frozen, get_all, module = "openmrc._core")]
pub(super) struct PyProgress {
    pub(super) now_ps: u64,
    pub(super) finished: usize,
    pub(super) messages: usize,
    pub(super) events: u64,
    pub(super) data_packets: u64,
}

/// What a plane carries now.
#[pyclass(name = "SimulationPlane", frozen, get_all, module = "openmrc._core")]
pub(super) struct PyPlane {
    /// Bytes that have been sent or queued to hosts since the start of the run, headers included.
    pub(super) to_hosts: u64,
    /// Bytes that wait in switches.
    pub(super) waiting: u64,
    /// Bytes in the longest queue of a switch.
    pub(super) longest: u64,
    /// The port with that queue.
    pub(super) longest_port: Option<String>,
}

/// The end of a step of a job.
#[pyclass(name = "SimulationStep", frozen, get_all, module = "openmrc._core")]
pub(super) struct PyStep {
    pub(super) pattern: u32,
    pub(super) step: u32,
    /// `None` if a rank did not reach it.
    pub(super) end_ps: Option<u64>,
}

/// One entry of the log.
#[pyclass(name = "SimulationLogEntry", frozen, get_all, module = "openmrc._core")]
#[derive(Default)]
pub(super) struct LogEntry {
    pub(super) time_ps: u64,
    pub(super) kind: &'static str,
    /// A link, switch or port; of ports of a peer the planes that are up.
    pub(super) place: String,
    pub(super) host: Option<u32>,
    pub(super) peer: Option<u32>,
    pub(super) ev: Option<u32>,
    pub(super) plane: Option<u32>,
    /// Probability or share of a fault.
    pub(super) value: Option<f64>,
}

/// The time series.
#[pyclass(name = "SimulationSeries", frozen, get_all, module = "openmrc._core")]
pub(super) struct PySeries {
    /// Values of one sample in the column `placed`.
    pub(super) patterns: usize,
    /// The same in `placed_by_plane`.
    pub(super) planes: usize,
    /// The same in `groups`, three numbers each: sent, waiting, longest queue.
    pub(super) groups: usize,
    pub(super) columns: Py<PyDict>,
}

/// A captured packet.
#[pyclass(name = "SimulationPacket", frozen, get_all, module = "openmrc._core")]
pub(super) struct CapturedPacket {
    pub(super) time_ps: u64,
    /// The port at the cable's other end.
    pub(super) port: u32,
    /// Length on the wire.
    pub(super) length: usize,
    /// The first bytes of it.
    pub(super) data: Py<PyBytes>,
}
