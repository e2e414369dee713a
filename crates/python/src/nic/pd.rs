//! Protection domains, which make memory regions and queue pairs.

use openmrc_nic::{self as nic, Access, QpCap};
use parking_lot::Mutex;
use pyo3::prelude::*;

use super::convert::field;
use super::cq::CompletionQueue;
use super::error::{ClosedError, OrRaise, refused};
use super::memory::MemoryRegion;
use super::qp::QueuePair;

/// A protection domain: its queue pairs may use its memory regions.
#[pyclass(frozen, module = "openmrc._core")]
pub struct ProtectionDomain {
    handle: u32,
    domain: Mutex<Option<nic::ProtectionDomain>>,
}

impl ProtectionDomain {
    pub(super) fn new(domain: nic::ProtectionDomain) -> Self {
        ProtectionDomain { handle: domain.handle(), domain: Mutex::new(Some(domain)) }
    }

    pub(crate) fn open(&self) -> PyResult<nic::ProtectionDomain> {
        let domain = self.domain.lock().clone();
        domain.ok_or_else(|| ClosedError::new_err(format!("protection domain {} is closed", self.handle)))
    }
}

#[pymethods]
impl ProtectionDomain {
    #[getter]
    fn handle(&self) -> u32 {
        self.handle
    }

    /// Registers an object with the buffer protocol.
    fn register(&self, py: Python<'_>, exporter: &Bound<'_, PyAny>, access: i64) -> PyResult<MemoryRegion> {
        let domain = self.open()?;
        let access = u8::try_from(access).ok().and_then(Access::from_bits).ok_or_else(|| {
            refused(format!("access is {access}: a combination of LOCAL_WRITE and REMOTE_WRITE is allowed"))
        })?;
        MemoryRegion::register(py, &domain, exporter, access)
    }

    /// A queue pair in RESET; `cap` has the attributes of `openmrc.verbs.QpCap`.
    fn create_qp(
        &self,
        py: Python<'_>,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        cap: &Bound<'_, PyAny>,
        sq_sig_all: bool,
    ) -> PyResult<QueuePair> {
        let domain = self.open()?;
        let most = QpCap::MAX;
        let cap = QpCap {
            max_send_wr: field!(cap, "max_send_wr", &format!("1 to {}", most.max_send_wr))?,
            max_recv_wr: field!(cap, "max_recv_wr", &format!("0 to {}", most.max_recv_wr))?,
            max_send_sge: field!(cap, "max_send_sge", &format!("1 to {}", most.max_send_sge))?,
            max_inline_data: field!(cap, "max_inline_data", &format!("0 to {}", most.max_inline_data))?,
        };
        let qp = py.detach(|| domain.create_qp(&send_cq.queue, &recv_cq.queue, cap, sq_sig_all));
        qp.or_raise().map(QueuePair::new)
    }

    fn close(&self) {
        self.domain.lock().take();
    }
}
