//! Protection domains, and memory regions over Python buffers.

use openmrc_nic::{self as nic, Access, QpCap};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::convert::field;
use super::cq::CompletionQueue;
use super::error::{ClosedError, OrRaise, RegistrationError, refused};
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
        let buffer = contiguous(exporter)?;
        let local = process_local_item(buffer.format().to_bytes())
            .or_else(|| process_local_item(&cast_from(exporter)));
        if let Some(what) = local {
            buffer.release(py);
            return Err(RegistrationError::new_err(format!(
                "a {} holds {what}, which mean nothing outside of this process, and a peer that writes them crashes \
                 it: register plain numbers or bytes",
                type_name(exporter)
            )));
        }
        if buffer.readonly() && access != Access::LOCAL_READ {
            return Err(RegistrationError::new_err(format!(
                "a {} is read-only: register it with AccessFlags.NONE as the source of writes, or use a writable buffer",
                type_name(exporter)
            )));
        }
        let (addr, length) = (buffer.buf_ptr().cast::<u8>().expose_provenance(), buffer.len_bytes());
        let region = py.detach(|| {
            let addr = std::ptr::with_exposed_provenance_mut(addr);
            // SAFETY: the buffer is contiguous, and writable if `access` needs it. It stays in place until it is
            // released, which `MemoryRegion` does only after the region is deregistered. Rust has no reference to
            // its bytes.
            unsafe { domain.register_raw(addr, length, access, Box::new(())) }
        });
        match region.or_raise() {
            Ok(region) => Ok(MemoryRegion {
                addr: region.addr(),
                length: region.len(),
                key: region.rkey(),
                access: region.access().bits(),
                registered: Mutex::new(Some(Registered { region, buffer })),
            }),
            Err(error) => {
                buffer.release(py);
                Err(error)
            }
        }
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
        let cap = QpCap {
            max_send_wr: field!(cap, "max_send_wr", "1 to 32768")?,
            max_recv_wr: field!(cap, "max_recv_wr", "0 to 65536")?,
            max_send_sge: field!(cap, "max_send_sge", "1 to 16")?,
            max_inline_data: field!(cap, "max_inline_data", "0 to 4096")?,
        };
        let qp = py.detach(|| domain.create_qp(&send_cq.queue, &recv_cq.queue, cap, sq_sig_all));
        qp.or_raise().map(QueuePair::new)
    }

    fn close(&self) {
        self.domain.lock().take();
    }
}

/// The buffer of `exporter`, which must be C-contiguous.
fn contiguous(exporter: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(exporter).map_err(|error| {
        RegistrationError::new_err(format!(
            "a {} gives no buffer to register ({error}): bytearray, memoryview, mmap, array and NumPy arrays do",
            type_name(exporter)
        ))
    })?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    let (shape, strides) = (buffer.shape().to_vec(), buffer.strides().to_vec());
    buffer.release(exporter.py());
    Err(RegistrationError::new_err(format!(
        "a {} of shape {shape:?} and strides {strides:?} is not C-contiguous: its bytes must lie in one piece",
        type_name(exporter)
    )))
}

/// The format of what a memoryview shows, whatever the view was cast to; empty for anything else.
fn cast_from(exporter: &Bound<'_, PyAny>) -> Vec<u8> {
    let shown = exporter.cast::<PyMemoryView>().ok().and_then(|view| view.getattr("obj").ok());
    let Some(buffer) = shown.and_then(|shown| PyUntypedBuffer::get(&shown).ok()) else { return Vec::new() };
    let format = buffer.format().to_bytes().to_vec();
    buffer.release(exporter.py());
    format
}

/// What the items of a buffer with this format (PEP 3118) are, if their bytes are addresses of this process.
fn process_local_item(format: &[u8]) -> Option<&'static str> {
    let mut rest = format;
    while let [item, following @ ..] = rest {
        rest = following;
        match item {
            b'O' => return Some("references to Python objects"),
            // `Z` before a type of floating point is a complex number.
            b'Z' if matches!(following, [b'f' | b'd' | b'g', ..]) => {}
            b'&' | b'P' | b'X' | b'z' | b'Z' => return Some("addresses"),
            // The name of a field: up to the next colon.
            b':' => {
                let end = following.iter().position(|&byte| byte == b':')?;
                rest = &following[end + 1..];
            }
            _ => {}
        }
    }
    None
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}

/// A registered buffer.
#[pyclass(frozen, module = "openmrc._core")]
pub struct MemoryRegion {
    addr: u64,
    length: usize,
    key: u32,
    access: u8,
    registered: Mutex<Option<Registered>>,
}

/// Dropped in this order: the region is deregistered before the buffer is released.
struct Registered {
    region: nic::MemoryRegion,
    buffer: PyUntypedBuffer,
}

#[pymethods]
impl MemoryRegion {
    #[getter]
    pub(super) fn addr(&self) -> u64 {
        self.addr
    }

    #[getter]
    pub(super) fn length(&self) -> usize {
        self.length
    }

    #[getter]
    pub(super) fn lkey(&self) -> u32 {
        self.key
    }

    #[getter]
    fn rkey(&self) -> u32 {
        self.key
    }

    #[getter]
    fn access(&self) -> u8 {
        self.access
    }

    #[getter]
    pub(super) fn closed(&self) -> bool {
        self.registered.lock().is_none()
    }

    fn close(&self, py: Python<'_>) {
        let registered = self.registered.lock().take();
        if let Some(Registered { region, buffer }) = registered {
            // Dropping deregisters, which waits for the engine's lock.
            py.detach(|| drop(region));
            buffer.release(py);
        }
    }
}
