//! Completion queues. Python does the waiting, so that Ctrl-C ends it and asyncio can wait too.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openmrc_nic::{self as nic, Completion, Opcode, Status};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use super::error::{OrRaise, refused};

/// A completion queue.
#[pyclass(frozen, module = "openmrc._core")]
pub struct CompletionQueue {
    pub(crate) queue: nic::CompletionQueue,
    pollers: Arc<AtomicUsize>,
    /// Completions that `ready` has taken to find out whether the queue has overrun, not yet returned by `poll`.
    /// Locked only under the GIL, which is not released while the lock is held.
    ahead: Mutex<Option<Completion>>,
}

impl CompletionQueue {
    pub(super) fn new(queue: nic::CompletionQueue, pollers: Arc<AtomicUsize>) -> Self {
        CompletionQueue { queue, pollers, ahead: Mutex::new(None) }
    }
}

#[pymethods]
impl CompletionQueue {
    #[getter]
    fn handle(&self) -> u32 {
        self.queue.handle()
    }

    /// Raises `StateError` if a queue pair uses it.
    fn check_unused(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.queue.check_unused()).or_raise()
    }

    #[getter]
    fn cqe(&self) -> usize {
        self.queue.capacity()
    }

    fn __len__(&self) -> usize {
        self.queue.len() + usize::from(self.ahead.lock().is_some())
    }

    /// Whether `poll` would return a completion or raise because the queue has overrun.
    #[getter]
    fn ready(&self) -> PyResult<bool> {
        self.queue.check_process().or_raise()?;
        if !self.queue.is_empty() {
            return Ok(true);
        }
        let mut ahead = self.ahead.lock();
        let mut taken = Vec::new();
        // Only `poll` reports that an empty queue has overrun.
        if ahead.is_none() && matches!(self.queue.poll_into(1, &mut taken), Ok(0)) {
            return Ok(false);
        }
        *ahead = taken.pop().or(*ahead);
        Ok(true)
    }

    /// Up to `num_entries` completions as `openmrc.verbs.Completion`, oldest first.
    fn poll<'py>(&self, py: Python<'py>, num_entries: i64) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let max = usize::try_from(num_entries)
            .map_err(|_| refused(format!("num_entries is {num_entries}: 0 or more is allowed")))?;
        let mut out = Vec::new();
        if max > 0 {
            out.extend(self.ahead.lock().take());
        }
        let max = max - out.len();
        // Driving the engine takes long enough to release the GIL. Taking completions does not, and a thread that
        // releases the GIL may wait milliseconds to get it back.
        let more = if self.queue.is_empty() && self.pollers.load(Ordering::Relaxed) > 0 {
            py.detach(|| self.queue.poll_into(max, &mut out))
        } else {
            self.queue.poll_into(max, &mut out)
        };
        // The remaining completions are returned before the error that others are lost.
        if out.is_empty() {
            more.or_raise()?;
        }
        let names = Names::get(py)?;
        out.iter().map(|completion| names.completion(py, completion)).collect()
    }

    fn fileno(&self) -> RawFd {
        self.queue.event_fd()
    }

    fn arm(&self, solicited_only: bool) {
        if solicited_only {
            self.queue.arm_solicited();
        } else {
            self.queue.arm();
        }
    }

    fn acknowledge(&self) -> bool {
        self.queue.acknowledge()
    }
}

/// Python's class of completions and the members of its enumerations, looked up once.
struct Names {
    completion: Py<PyType>,
    /// `tuple.__new__`. The constructor of a named tuple is Python code and three times as slow.
    new: Py<PyAny>,
    statuses: [Py<PyAny>; STATUSES.len()],
    opcodes: [Py<PyAny>; OPCODES.len()],
}

const STATUSES: [Status; 8] = [
    Status::Success,
    Status::LocLenErr,
    Status::LocProtErr,
    Status::WrFlushErr,
    Status::RemAccessErr,
    Status::RemOpErr,
    Status::RemInvReqErr,
    Status::RetryExcErr,
];

const OPCODES: [Opcode; 2] = [Opcode::RdmaWrite, Opcode::RecvRdmaWithImm];

impl Names {
    fn get(py: Python<'_>) -> PyResult<&Names> {
        static NAMES: PyOnceLock<Names> = PyOnceLock::new();
        NAMES.get_or_try_init(py, || {
            let work = py.import("openmrc.verbs.work")?;
            let status = |status: Status| Ok(work.getattr("WcStatus")?.getattr(status.name())?.unbind());
            let opcode = |opcode: Opcode| Ok(work.getattr("WcOpcode")?.getattr(opcode.name())?.unbind());
            let statuses = STATUSES.map(status).into_iter().collect::<PyResult<Vec<_>>>()?;
            let opcodes = OPCODES.map(opcode).into_iter().collect::<PyResult<Vec<_>>>()?;
            Ok(Names {
                completion: work.getattr("Completion")?.cast_into::<PyType>()?.unbind(),
                new: py.get_type::<PyTuple>().getattr("__new__")?.unbind(),
                statuses: statuses.try_into().expect("as many as there are"),
                opcodes: opcodes.try_into().expect("as many as there are"),
            })
        })
    }

    fn completion<'py>(&self, py: Python<'py>, completion: &Completion) -> PyResult<Bound<'py, PyAny>> {
        let status = &self.statuses[STATUSES.iter().position(|&s| s == completion.status).unwrap_or(0)];
        let opcode = &self.opcodes[OPCODES.iter().position(|&o| o == completion.opcode).unwrap_or(0)];
        let Completion { wr_id, byte_len, imm_data, qp_num, .. } = *completion;
        let fields = (wr_id, status, opcode, byte_len, imm_data, qp_num);
        self.new.bind(py).call1((&self.completion, fields))
    }
}
