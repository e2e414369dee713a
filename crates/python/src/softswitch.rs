//! `openmrc._core.run_softswitch`: the switch in user space for Python. Converts; decides nothing.

use openmrc_softswitch::{Config, PortConfig, RunError, Thresholds, run};
use openmrc_wire::DscpMap;
use pyo3::prelude::*;

pyo3::import_exception!(openmrc.errors, ArgumentError);
pyo3::import_exception!(openmrc.errors, DeviceError);

/// Adds the soft switch to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_softswitch, module)?)
}

/// A port: interface, own and peer's Ethernet address, rate (bit/s), last hop, ecn_min, ecn_max, trim, control (bytes).
type PortRow = (String, [u8; 6], [u8; 6], Option<u64>, bool, u64, u64, u64, u64);

/// Runs a switch in the current network namespace until `stop`, a descriptor, becomes readable. Calls `ready` when the
/// switch forwards. Returns its counters. `dscp` is no_trim, trimmable, trimmable_retx, trimmed, trimmed_last_hop,
/// control.
#[pyfunction]
#[pyo3(signature = (block, own, routes, ports, *, dscp, udp_port, seed, stop, ready))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
fn run_softswitch(
    py: Python<'_>,
    block: u32,
    own: Vec<u16>,
    routes: Vec<(u16, usize)>,
    ports: Vec<PortRow>,
    dscp: [u8; 6],
    udp_port: u16,
    seed: u64,
    stop: i32,
    ready: Py<PyAny>,
) -> PyResult<Vec<(&'static str, u64)>> {
    let [no_trim, trimmable, trimmable_retx, trimmed, trimmed_last_hop, control] = dscp;
    let ports =
        ports.into_iter().map(|(name, mac, peer, rate_bps, last_hop, ecn_min, ecn_max, trim, control)| {
            PortConfig {
                name,
                mac,
                peer,
                rate_bps,
                last_hop,
                thresholds: Thresholds { ecn_min, ecn_max, trim, control },
            }
        });
    let config = Config {
        block,
        own,
        routes,
        ports: ports.collect(),
        dscp: DscpMap { no_trim, trimmable, trimmable_retx, trimmed, trimmed_last_hop, control },
        udp_port,
        seed,
    };
    let mut called = Ok(());
    let result = py.detach(|| run(&config, stop, || called = Python::attach(|py| ready.call0(py).map(drop))));
    called?;
    match result {
        Ok(counters) => Ok(counters.named().to_vec()),
        Err(RunError::Config(error)) => Err(ArgumentError::new_err(error.to_string())),
        Err(error) => Err(DeviceError::new_err(error.to_string())),
    }
}
