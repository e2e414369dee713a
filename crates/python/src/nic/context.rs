//! An open device.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use openmrc_nic::{self as nic, AsyncEvent};
use openmrc_transport::{EvChange, PortSet};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::convert::port_list;
use super::cq::CompletionQueue;
use super::error::{OrRaise, refused};
use super::pd::ProtectionDomain;
use super::stats;

/// An open device.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Context {
    pub(crate) context: nic::Context,
    closed: AtomicBool,
    /// Number of open [`Polling`] objects of this context.
    pollers: Arc<AtomicUsize>,
}

impl Context {
    pub(super) fn new(context: nic::Context) -> Self {
        Context { context, closed: AtomicBool::new(false), pollers: Arc::default() }
    }
}

#[pymethods]
impl Context {
    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.context.is_closed()
    }

    /// Size of the receive buffers of all ports together, bytes.
    #[getter]
    fn receive_buffer(&self, py: Python<'_>) -> PyResult<usize> {
        let ports = py.detach(|| self.context.port_states()).or_raise()?;
        Ok(ports.iter().map(|port| port.receive_buffer).sum())
    }

    fn alloc_pd(&self, py: Python<'_>) -> PyResult<ProtectionDomain> {
        py.detach(|| self.context.alloc_pd()).or_raise().map(ProtectionDomain::new)
    }

    fn create_cq(&self, py: Python<'_>, cqe: i64) -> PyResult<CompletionQueue> {
        let capacity = usize::try_from(cqe).map_err(|_| {
            refused(format!("a completion queue holds 1 to {} completions, not {cqe}", nic::limits::MAX_CQE))
        })?;
        let queue = py.detach(|| self.context.create_cq(capacity)).or_raise()?;
        Ok(CompletionQueue::new(queue, Arc::clone(&self.pollers)))
    }

    /// Until the guard is closed, threads that poll drive the engine.
    fn polling(&self, py: Python<'_>) -> Polling {
        self.pollers.fetch_add(1, Ordering::AcqRel);
        let guard = py.detach(|| self.context.polling());
        Polling { guard: Mutex::new(Some(guard)), pollers: Arc::clone(&self.pollers) }
    }

    /// One turn of the engine, if a [`Polling`] is open.
    fn progress(&self, py: Python<'_>) {
        py.detach(|| self.context.progress());
    }

    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        py.detach(|| self.context.close());
    }

    // --- events ------------------------------------------------------------------------------------------------

    fn async_event_fd(&self) -> RawFd {
        self.context.event_fd()
    }

    /// The oldest asynchronous event, as fields of `openmrc.verbs.AsyncEvent`.
    fn next_async_event<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.context.check_process().or_raise()?;
        let Some(event) = self.context.next_event() else { return Ok(None) };
        let fields = PyDict::new(py);
        let kind = match event {
            AsyncEvent::PortUp(port) => {
                fields.set_item("port", port)?;
                "port_active"
            }
            AsyncEvent::PortDown(port) => {
                fields.set_item("port", port)?;
                "port_err"
            }
            AsyncEvent::PeerPorts { qp_num, up } => {
                fields.set_item("qp_num", qp_num)?;
                fields.set_item("ports_up", port_list(PortSet(up)))?;
                "peer_ports"
            }
            AsyncEvent::QpFatal { qp_num, reason } => {
                fields.set_item("qp_num", qp_num)?;
                fields.set_item("reason", reason.to_string())?;
                "qp_fatal"
            }
            AsyncEvent::PeerSilent { qp_num } => {
                fields.set_item("qp_num", qp_num)?;
                "peer_silent"
            }
            AsyncEvent::PeerHeard { qp_num } => {
                fields.set_item("qp_num", qp_num)?;
                "peer_heard"
            }
            AsyncEvent::CqError { cq } => {
                fields.set_item("cq", cq)?;
                "cq_err"
            }
        };
        fields.set_item("type", kind)?;
        Ok(Some(fields))
    }

    fn ev_event_fd(&self) -> RawFd {
        self.context.path_event_fd()
    }

    /// The oldest EV event, as fields of `openmrc.verbs.EvEvent`.
    fn next_ev_event<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.context.check_process().or_raise()?;
        let Some(event) = self.context.next_path_event() else { return Ok(None) };
        let fields = PyDict::new(py);
        fields.set_item("time_ns", event.time_ns)?;
        fields.set_item("qp_num", event.qp_num)?;
        fields.set_item("profile_id", event.profile)?;
        fields.set_item("ev", event.ev.0)?;
        fields.set_item("port", event.port)?;
        fields.set_item(
            "state",
            match event.change {
                EvChange::AssumedBad => "assumed_bad",
                EvChange::Good => "good",
            },
        )?;
        Ok(Some(fields))
    }

    fn ev_events_dropped(&self) -> PyResult<u64> {
        self.context.check_process().or_raise()?;
        Ok(self.context.path_events_dropped())
    }

    // --- counters ----------------------------------------------------------------------------------------------

    fn ports_up(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        py.detach(|| self.context.ports_up()).or_raise().map(port_list)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::context(py, &py.detach(|| self.context.stats()).or_raise()?)
    }

    fn path_stats<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let paths = py.detach(|| self.context.path_stats()).or_raise()?;
        paths.iter().map(|path| stats::path(py, path)).collect()
    }
}

/// While it is open, threads that poll drive the engine.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Polling {
    guard: Mutex<Option<nic::Polling>>,
    pollers: Arc<AtomicUsize>,
}

#[pymethods]
impl Polling {
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.release());
    }
}

impl Polling {
    fn release(&self) {
        if self.guard.lock().take().is_some() {
            self.pollers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.release();
    }
}
