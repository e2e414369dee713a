//! The compiled module `openmrc._core`.

use pyo3::prelude::*;

mod collectives;
mod fabric;
mod nic;
mod perftest;
mod pinned;
mod prober;
mod sim;
mod sim_custom;
mod softswitch;
mod wire;

/// SplitMix64's finaliser: every bit of the input affects every bit of the output.
#[pyfunction]
fn mix(x: u64) -> u64 {
    openmrc_transport::random::mix(x)
}

/// The Rust core of openmrc.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    collectives::register(module)?;
    fabric::register(module)?;
    nic::register(module)?;
    perftest::register(module)?;
    prober::register(module)?;
    sim::register(module)?;
    sim::probed::register(module)?;
    softswitch::register(module)?;
    wire::register(module)?;
    module.add_function(wrap_pyfunction!(mix, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
