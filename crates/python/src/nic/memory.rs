//! Memory regions over Python buffers.

use openmrc_nic::{self as nic, Access};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use super::error::{OrRaise, RegistrationError};
use crate::pinned::{Holds, Pinned, export_of};

/// The buffer of `exporter`, which must be C-contiguous.
fn contiguous(exporter: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = export_of(exporter).map_err(|error| {
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
    holds: Holds,
}

impl MemoryRegion {
    /// Registers an object with the buffer protocol.
    pub(super) fn register(
        py: Python<'_>,
        domain: &nic::ProtectionDomain,
        exporter: &Bound<'_, PyAny>,
        access: Access,
    ) -> PyResult<Self> {
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
        let pinned = Pinned::of_export(exporter, buffer, RegistrationError::new_err)?;
        let (addr, length) = (pinned.data().expose_provenance(), pinned.len());
        let holds = pinned.into_holds();
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
                registered: Mutex::new(Some(Registered { region, holds })),
            }),
            Err(error) => {
                holds.release(py);
                Err(error)
            }
        }
    }
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
        if let Some(Registered { region, holds }) = registered {
            // Dropping deregisters, which waits for the engine's lock.
            py.detach(|| drop(region));
            holds.release(py);
        }
    }
}
