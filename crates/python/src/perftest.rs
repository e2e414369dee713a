//! The measuring loops of `openmrc_perftest` for `openmrc.perftest`. They run without the GIL, on memory that Python cannot
//! free during a run.

use std::sync::atomic::Ordering;
use std::time::Duration;

use openmrc_nic as nic;
use openmrc_perftest::{self as perftest, BandwidthParams, Control, LatencyParams, Memory, Role, Target};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::nic::context::Context;
use crate::nic::cq::CompletionQueue;
use crate::nic::error::OrRaise;
use crate::nic::pd::ProtectionDomain;
use crate::nic::qp::QueuePair;

/// Registered memory for a measurement, which peers may write. It is deregistered with the last reference.
#[pyclass(frozen, module = "openmrc._core")]
pub struct PerfBuffer(Memory);

#[pymethods]
impl PerfBuffer {
    /// `length` bytes in `pd`.
    #[new]
    fn new(py: Python<'_>, pd: &ProtectionDomain, length: usize) -> PyResult<Self> {
        let domain = pd.open()?;
        py.detach(|| Memory::new(&domain, length)).or_raise().map(PerfBuffer)
    }

    #[getter]
    fn addr(&self) -> u64 {
        self.0.region().addr()
    }

    #[getter]
    fn length(&self) -> usize {
        self.0.region().len()
    }

    #[getter]
    fn rkey(&self) -> u32 {
        self.0.region().rkey()
    }

    /// Sets every byte to 0.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.clear()).or_raise()
    }
}

/// Ends a run from another thread, and tells it how far the run is.
#[pyclass(frozen, module = "openmrc._core")]
pub struct PerfControl(Control);

#[pymethods]
impl PerfControl {
    #[new]
    fn new() -> Self {
        PerfControl(Control::default())
    }

    fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// Payload bytes of completed messages so far; of `write_bw` only.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// Runs [`openmrc_perftest::write_bw`]. Times are in seconds; the result has the fields of
/// [`openmrc_perftest::BandwidthResult`].
#[pyfunction]
#[pyo3(signature = (context, qps, cq, source, target, control, *, size, iterations, duration, depth, post_list,
                    signal_every, inline, polling, bucket))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
fn write_bw<'py>(
    py: Python<'py>,
    context: &Context,
    qps: Vec<PyRef<'py, QueuePair>>,
    cq: &CompletionQueue,
    source: &PerfBuffer,
    target: (u64, u64, u32),
    control: &PerfControl,
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
    let params = BandwidthParams {
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
    let (context, queue, region) = (&context.context, &cq.queue, source.0.region());
    let pairs: Vec<&nic::QueuePair> = qps.iter().map(|qp| &qp.0).collect();
    let result = py
        .detach(|| {
            perftest::write_bw(
                context,
                &pairs,
                queue,
                region,
                &Target { addr, len, rkey },
                &params,
                &control.0,
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
    out.set_item("posted", result.posted)?;
    Ok(out)
}

/// Runs [`openmrc_perftest::write_lat`]: half of each round trip in nanoseconds for the client, an empty list for the server.
#[pyfunction]
#[pyo3(signature = (context, qp, cq, source, inbox, target, control, *, client, size, iterations, warmup, inline))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
fn write_lat(
    py: Python<'_>,
    context: &Context,
    qp: &QueuePair,
    cq: &CompletionQueue,
    source: &PerfBuffer,
    inbox: &PerfBuffer,
    target: (u64, u64, u32),
    control: &PerfControl,
    client: bool,
    size: u32,
    iterations: u64,
    warmup: u64,
    inline: bool,
) -> PyResult<Vec<u64>> {
    let params = LatencyParams { size, iterations, warmup, inline };
    let role = if client { Role::Client } else { Role::Server };
    let (addr, len, rkey) = target;
    let target = Target { addr, len, rkey };
    let (context, qp, queue) = (&context.context, &qp.0, &cq.queue);
    let (source, inbox) = (source.0.region(), inbox.0.region());
    py.detach(|| {
        perftest::write_lat(context, qp, queue, source, inbox, &target, role, &params, &control.0.stop)
    })
    .or_raise()
}

/// Adds the loops to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PerfBuffer>()?;
    module.add_class::<PerfControl>()?;
    module.add_function(wrap_pyfunction!(write_bw, module)?)?;
    module.add_function(wrap_pyfunction!(write_lat, module)?)
}
