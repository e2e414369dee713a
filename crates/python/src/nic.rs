//! The software NIC for Python, below `openmrc.verbs`, `openmrc.controller` and `openmrc.testing`. Converts, checks and
//! releases the GIL; decides nothing.
//!
//! The engine's thread never takes the GIL. A thread that holds the GIL takes a lock of the engine only for operations
//! shorter than a microsecond; for all others it releases the GIL first. A Python buffer is released under the GIL,
//! after its region has been deregistered.

mod attr;
pub(crate) mod context;
mod convert;
pub(crate) mod cq;
mod defaults;
mod device;
mod endpoint;
pub(crate) mod error;
mod events;
mod impair;
mod memory;
pub(crate) mod pd;
mod post;
mod profiles;
pub(crate) mod qp;
mod stats;

use pyo3::prelude::*;

/// Adds the NIC's classes to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<device::Device>()?;
    module.add_class::<context::Context>()?;
    module.add_class::<context::Polling>()?;
    module.add_class::<events::AsyncEventReader>()?;
    module.add_class::<events::EvEventReader>()?;
    module.add_class::<pd::ProtectionDomain>()?;
    module.add_class::<memory::MemoryRegion>()?;
    module.add_class::<cq::CompletionQueue>()?;
    module.add_class::<qp::QueuePair>()?;
    attr::register(module)?;
    device::register(module)?;
    defaults::register(module)?;
    module.add_class::<profiles::Profiles>()?;
    endpoint::register(module)?;
    impair::register(module)
}
