//! Memory of Python objects that stays in place while the core uses it: the object's export is held, and with it
//! whatever else keeps NumPy and torch from moving the memory.
//!
//! The core may let go of memory on a thread without the GIL, which may not release an export: it gives it back to
//! [`Returned`], and the next thread that holds the GIL releases it.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PyWeakrefReference};

pyo3::import_exception!(openmrc.errors, ArgumentError);

/// The bytes of an object, in one piece, and what holds them in place.
pub struct Pinned {
    data: *mut u8,
    len: usize,
    holds: Holds,
}

/// What is released, with the GIL, once the memory is no longer used.
pub struct Holds {
    export: Option<PyUntypedBuffer>,
    /// Weak references to NumPy arrays, and storages of tensors.
    objects: Vec<Py<PyAny>>,
}

impl Pinned {
    /// The memory of an object with the buffer protocol, which is C-contiguous, or of a contiguous tensor.
    ///
    /// # Errors
    /// [`ArgumentError`] for anything else.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Pinned> {
        if TENSOR.is_class_of(object) {
            return Self::of_tensor(object);
        }
        let export = export_of(object)?;
        if export.is_c_contiguous() {
            return Self::of_export(object, export, ArgumentError::new_err);
        }
        export.release(object.py());
        Err(ArgumentError::new_err(format!("a {} is not C-contiguous", object.get_type().name()?)))
    }

    /// The memory of an export of an object. `refused` makes the error for memory that nothing keeps in place.
    pub fn of_export(
        object: &Bound<'_, PyAny>,
        export: PyUntypedBuffer,
        refused: fn(String) -> PyErr,
    ) -> PyResult<Pinned> {
        let (data, len) = (export.buf_ptr().cast(), export.len_bytes());
        let mut holds = Holds { export: Some(export), objects: Vec::new() };
        match holds.keep_owners(object, refused) {
            Ok(()) => Ok(Pinned { data, len, holds }),
            Err(error) => {
                holds.release(object.py());
                Err(error)
            }
        }
    }

    /// `set_` and the end of the tensor leave the storage as it is, which is held. A storage may be smaller than its
    /// tensors say: `resize_` of a storage does not tell them.
    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Pinned> {
        let py = tensor.py();
        let number = |object: &Bound<'_, PyAny>, name| object.call_method0(name)?.extract::<usize>();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let data = number(tensor, intern!(py, "data_ptr"))?;
        let len: usize = tensor.getattr(intern!(py, "nbytes"))?.extract()?;
        let (base, held) =
            (number(&storage, intern!(py, "data_ptr"))?, number(&storage, intern!(py, "nbytes"))?);
        if len > 0 && (data < base || data - base > held || held - (data - base) < len) {
            return Err(ArgumentError::new_err(format!(
                "a tensor of {len} bytes has a storage of {held} bytes: the storage was resized"
            )));
        }
        let data = std::ptr::with_exposed_provenance_mut(data);
        Ok(Pinned { data, len, holds: Holds { export: None, objects: vec![storage.unbind()] } })
    }

    /// The first byte.
    pub fn data(&self) -> *mut u8 {
        self.data
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What holds the memory in place.
    pub fn into_holds(self) -> Holds {
        self.holds
    }
}

/// The export of an object. Objects of ctypes export no strides, which PyO3 does not take; a memoryview adds them.
pub fn export_of(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object).or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any()))
}

impl Holds {
    /// NumPy does not look at exports when an array is resized without `refcheck`, only at weak references. An array
    /// over a tensor's memory does not keep the memory from `set_` of the tensor; its storage does. `ctypes.resize`
    /// looks at nothing.
    fn keep_owners(&mut self, object: &Bound<'_, PyAny>, refused: fn(String) -> PyErr) -> PyResult<()> {
        let py = object.py();
        let mut owner = object.clone();
        while !owner.is_none() {
            owner = if ARRAY.is_class_of(&owner) {
                self.objects.push(PyWeakrefReference::new(&owner)?.into_any().unbind());
                owner.getattr(intern!(py, "base"))?
            } else if owner.is_exact_instance_of::<PyMemoryView>() {
                owner.getattr(intern!(py, "obj"))?
            } else if TENSOR.is_class_of(&owner) {
                self.objects.push(owner.call_method0(intern!(py, "untyped_storage"))?.unbind());
                return Ok(());
            } else if let Some(owns) = owner.getattr_opt(intern!(py, "_b_needsfree_"))? {
                if owns.is_truthy()? {
                    return Err(refused(format!(
                        "a {} of ctypes that owns its memory can be resized while it is in use: take a bytearray, of \
                         which from_buffer() makes a ctypes object",
                        owner.get_type().name()?
                    )));
                }
                owner.getattr(intern!(py, "_b_base_"))?
            } else {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Releases the memory.
    pub fn release(self, py: Python<'_>) {
        if let Some(export) = self.export {
            export.release(py);
        }
        self.objects.into_iter().for_each(|object| object.drop_ref(py));
    }
}

/// A class of a module that may not be there.
struct Class {
    module: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<PyAny>>,
}

static ARRAY: Class = Class { module: "numpy", name: "ndarray", found: PyOnceLock::new() };
static TENSOR: Class = Class { module: "torch", name: "Tensor", found: PyOnceLock::new() };

impl Class {
    /// Whether an object is an instance. It is none where nobody has imported the module.
    fn is_class_of(&self, object: &Bound<'_, PyAny>) -> bool {
        let py = object.py();
        let known = || self.found.get(py).map(|class| class.bind(py).clone());
        known().or_else(|| self.find(py)).is_some_and(|class| object.is_instance(&class).unwrap_or(false))
    }

    /// Called for every operation as long as the module is not imported.
    fn find<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        let modules = MODULES.get_or_try_init(py, || {
            let modules = py.import("sys")?.getattr("modules")?;
            PyResult::Ok(modules.cast_into::<PyDict>()?.unbind())
        });
        let class = modules.ok()?.bind(py).get_item(self.module).ok()??.getattr(self.name).ok()?;
        // Another thread may have been first.
        let _ = self.found.set(py, class.clone().unbind());
        Some(class)
    }
}

/// Memory that the core no longer uses, until a thread with the GIL releases it.
#[derive(Clone, Default)]
pub struct Returned(Arc<Mutex<Vec<Holds>>>);

/// The owner that the core gets: it gives the memory back when it is dropped.
pub struct Owner {
    holds: Option<Holds>,
    returned: Returned,
}

impl Returned {
    /// What the core keeps for as long as it uses the memory.
    pub fn owner(&self, holds: Holds) -> Owner {
        Owner { holds: Some(holds), returned: self.clone() }
    }

    /// Releases what was given back. It may run code of Python.
    pub fn release(&self, py: Python<'_>) {
        let returned = std::mem::take(&mut *self.0.lock());
        returned.into_iter().for_each(|holds| holds.release(py));
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.returned.0.lock().extend(self.holds.take());
    }
}
