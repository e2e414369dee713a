//! `openmrc._core.Prober`: probes of a host to itself for Python. Converts; decides nothing.

use std::net::Ipv6Addr;
use std::time::Duration;

use openmrc_prober::{Config, Error, Loop, Prober, Totals};
use parking_lot::Mutex;
use pyo3::prelude::*;

pyo3::import_exception!(openmrc.errors, ArgumentError);
pyo3::import_exception!(openmrc.errors, DeviceError);
pyo3::import_exception!(openmrc.errors, PrivilegeError);

/// Adds the prober and its greatest rate to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyProber>()?;
    module.add("MAX_PROBE_RATE", openmrc_transport::loops::MAX_RATE)
}

fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::NoLoops | Error::Rate(_) | Error::Interval => ArgumentError::new_err(text),
        Error::Privilege => PrivilegeError::new_err(text),
        Error::Address(_) | Error::System(..) | Error::Gone(_) => DeviceError::new_err(text),
    }
}

fn address(text: &str) -> PyResult<Ipv6Addr> {
    text.parse().map_err(|_| ArgumentError::new_err(format!("{text:?} is not an IPv6 address")))
}

/// What a prober has done, by name.
pub fn named(totals: &Totals) -> Vec<(&'static str, u64)> {
    vec![
        ("sent", totals.sent),
        ("received", totals.received),
        ("late", totals.late),
        ("repeated", totals.repeated),
        ("foreign", totals.foreign),
        ("unsent", totals.unsent),
        ("unknown", totals.unknown),
    ]
}

/// A thread that probes loops: (own address, outer destination address) each. Its sockets belong to the network
/// namespace of the thread that makes it.
#[pyclass(frozen, name = "Prober", module = "openmrc._core")]
struct PyProber(Mutex<Prober>);

#[pymethods]
impl PyProber {
    #[new]
    #[pyo3(signature = (loops, *, rate, traffic_class, interval_ms, grace_ms))]
    fn new(
        py: Python<'_>,
        loops: Vec<(String, String)>,
        rate: u32,
        traffic_class: u8,
        interval_ms: u32,
        grace_ms: u32,
    ) -> PyResult<Self> {
        let loops = loops
            .iter()
            .map(|(own, path)| Ok(Loop { address: address(own)?, path: address(path)? }))
            .collect::<PyResult<_>>()?;
        let config = Config {
            loops,
            rate,
            traffic_class,
            interval: Duration::from_millis(interval_ms.into()),
            grace: Duration::from_millis(grace_ms.into()),
        };
        let prober = py.detach(|| Prober::open(&config)).map_err(raised)?;
        Ok(PyProber(Mutex::new(prober)))
    }

    /// The intervals that were closed since the last call, oldest first: of each loop, probes sent and lost.
    fn take(&self, py: Python<'_>) -> PyResult<Vec<Vec<(u32, u32)>>> {
        let closed = py.detach(|| self.0.lock().take()).map_err(raised)?;
        let rows = closed.into_iter().map(|interval| {
            interval.counts.iter().map(|count| (count.sent, count.sent - count.received)).collect()
        });
        Ok(rows.collect())
    }

    /// What it has done since it was made, by name.
    fn totals(&self, py: Python<'_>) -> Vec<(&'static str, u64)> {
        named(&py.detach(|| self.0.lock().totals()))
    }

    /// Ends the thread and closes the sockets.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.lock().close());
    }
}
