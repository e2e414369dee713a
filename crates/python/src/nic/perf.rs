//! The bandwidth and latency loops, run without the GIL, over memory that Python cannot take away from under them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openmrc_nic::perf::{self, BwParams, LatParams, Role, Target};
use openmrc_nic::{self as nic, Access};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::context::Context;
use super::cq::CompletionQueue;
use super::error::OrRaise;
use super::memory::ProtectionDomain;
use super::qp::QueuePair;

/// Registered memory for a measurement; peers may write to it. Deregistered when the last reference goes.
#[pyclass(frozen, module = "openmrc._core")]
pub struct PerfBuffer {
    region: nic::MemoryRegion,
    // Freed after the region is deregistered.
    _memory: nic::Buffer,
}

#[pymethods]
impl PerfBuffer {
    /// `length` bytes in `pd`, all of them touched.
    #[new]
    fn new(py: Python<'_>, pd: &ProtectionDomain, length: usize) -> PyResult<Self> {
        let domain = pd.open()?;
        py.detach(|| {
            let memory = nic::Buffer::zeroed(length);
            // Pages that were never written are all the same page of zeros, which no real data are.
            for start in (0..length).step_by(4096) {
                memory.write(start, &[1]);
            }
            let region = domain.register(&memory, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE))?;
            Ok(PerfBuffer { region, _memory: memory })
        })
        .or_raise()
    }

    #[getter]
    fn addr(&self) -> u64 {
        self.region.addr()
    }

    #[getter]
    fn length(&self) -> usize {
        self.region.len()
    }

    #[getter]
    fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Sets every byte to 0, so that the first ball of a latency run differs from what is there.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| (0..self.region.len()).try_for_each(|i| self.region.poke(i, 0))).or_raise()
    }
}

/// Ends a loop from another thread.
#[pyclass(frozen, module = "openmrc._core")]
pub struct PerfStop(Arc<AtomicBool>);

#[pymethods]
impl PerfStop {
    #[new]
    fn new() -> Self {
        PerfStop(Arc::default())
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// `openmrc_nic::perf::write_bw`; times in seconds. The result's buckets are bytes per bucket of `bucket_ns`.
#[pyfunction]
#[pyo3(signature = (context, qps, cq, source, target, stop, *, size, iterations, duration, depth, post_list,
                    signal_every, inline, polling, bucket))]
#[allow(clippy::too_many_arguments)] // Python sees keywords.
fn write_bw<'py>(
    py: Python<'py>,
    context: &Context,
    qps: Vec<PyRef<'py, QueuePair>>,
    cq: &CompletionQueue,
    source: &PerfBuffer,
    target: (u64, u64, u32),
    stop: &PerfStop,
    size: u32,
    iterations: Option<u64>,
    duration: Option<f64>,
    depth: u32,
    post_list: u32,
    signal_every: u32,
    inline: bool,
    polling: bool,
    bucket: f64,
) -> PyResult<Bound<'py, PyDict>> {
    let params = BwParams {
        size,
        iterations,
        duration: duration.map(seconds),
        depth,
        post_list,
        signal_every,
        inline,
        polling,
        bucket: seconds(bucket),
    };
    let (addr, len, rkey) = target;
    let (context, queue, region) = (&context.context, &cq.queue, &source.region);
    let pairs: Vec<&nic::QueuePair> = qps.iter().map(|qp| &qp.0).collect();
    let result = py
        .detach(|| {
            perf::write_bw(
                context,
                &pairs,
                queue,
                region,
                &Target { addr, len, rkey },
                &params,
                Some(&stop.0),
            )
        })
        .or_raise()?;
    let out = PyDict::new(py);
    out.set_item("bytes", result.bytes)?;
    out.set_item("messages", result.messages)?;
    out.set_item("elapsed_ns", result.elapsed_ns)?;
    out.set_item("start_ns", result.start_ns)?;
    out.set_item("bucket_ns", result.bucket_ns)?;
    out.set_item("buckets", result.buckets)?;
    Ok(out)
}

/// `openmrc_nic::perf::write_lat`: half of each round trip in nanoseconds, for the client; nothing for the server.
#[pyfunction]
#[pyo3(signature = (context, qp, cq, source, inbox, target, stop, *, client, size, iterations, warmup, inline))]
#[allow(clippy::too_many_arguments)] // Python sees keywords.
fn write_lat(
    py: Python<'_>,
    context: &Context,
    qp: &QueuePair,
    cq: &CompletionQueue,
    source: &PerfBuffer,
    inbox: &PerfBuffer,
    target: (u64, u64, u32),
    stop: &PerfStop,
    client: bool,
    size: u32,
    iterations: u64,
    warmup: u64,
    inline: bool,
) -> PyResult<Vec<u64>> {
    let params = LatParams { size, iterations, warmup, inline };
    let role = if client { Role::Client } else { Role::Server };
    let (addr, len, rkey) = target;
    let target = Target { addr, len, rkey };
    let (context, qp, queue) = (&context.context, &qp.0, &cq.queue);
    let (source, inbox) = (&source.region, &inbox.region);
    py.detach(|| perf::write_lat(context, qp, queue, source, inbox, &target, role, &params, Some(&stop.0)))
        .or_raise()
}

/// Adds the loops to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PerfBuffer>()?;
    module.add_class::<PerfStop>()?;
    module.add_function(wrap_pyfunction!(write_bw, module)?)?;
    module.add_function(wrap_pyfunction!(write_lat, module)?)
}
