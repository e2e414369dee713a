//! The compiled module `openmrc._core`.
use pyo3::prelude::*;

/// The Rust core of openmrc.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
