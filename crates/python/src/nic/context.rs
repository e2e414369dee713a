//! An open device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use openmrc_nic as nic;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::convert::port_list;
use super::cq::CompletionQueue;
use super::error::{OrRaise, refused};
use super::events::{AsyncEventReader, EvEventReader};
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

    /// Asynchronous events since the device was opened.
    fn async_events(&self) -> AsyncEventReader {
        AsyncEventReader::new(Arc::clone(self.context.events()))
    }

    /// A further reader of asynchronous events, from now on.
    fn subscribe_async_events(&self) -> PyResult<AsyncEventReader> {
        self.context.subscribe_events().or_raise().map(AsyncEventReader::new)
    }

    /// EV events since the device was opened.
    fn ev_events(&self) -> EvEventReader {
        EvEventReader::new(Arc::clone(self.context.path_events()))
    }

    /// A further reader of EV events, from now on.
    fn subscribe_ev_events(&self) -> PyResult<EvEventReader> {
        self.context.subscribe_path_events().or_raise().map(EvEventReader::new)
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
