//! The NIC's defaults and limits for Python: `openmrc._core.QP_DEFAULTS`, `QP_CAP_DEFAULTS`, `DEVICE_LIMITS` and
//! `MAX_ACTIVE_EVS`.
//! Decides nothing: every value comes from the crate that owns it.

use std::sync::Arc;

use openmrc_nic::{QpAttr, QpCap, config, limits};
use openmrc_transport::mrc::{PATH_MTU_RANGE, PSNS_PER_MPR, PathConfig, PathModel, QpConfig, RetrySchedule};
use openmrc_transport::{EvProfile, PathEntry, Span};
use openmrc_wire::Ev;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::attr::attribute_fields;

/// The transport's default paths, with placeholders for the path and its model.
fn path_config() -> PathConfig {
    let path = PathEntry { ev: Ev(1), port: 0 };
    let profile = EvProfile::new(&[path]).unwrap_or_else(|_| unreachable!("one path on port 0 is a profile"));
    PathConfig::new(Arc::new(profile), PathModel::new(Span::from_micros(1), false))
}

/// How long a peer is silent before a queue pair with these attributes fails, seconds; `None` is for ever.
#[pyfunction]
fn retry_seconds(timeout: u8, linear_cnt: u8, exp_cnt: u8) -> Option<f64> {
    let timeout = QpConfig::timeout_from_exponent(timeout);
    RetrySchedule { timeout, linear_cnt, exp_cnt }.lasts().map(Span::as_secs_f64)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let qp = PyDict::new(py);
    for (name, value) in attribute_fields(py, &QpAttr::defaults())? {
        if !value.is_none() {
            qp.set_item(name, value)?;
        }
    }
    qp.set_item("ev_active", path_config().active)?;
    let default = QpCap::default();
    let cap = PyDict::new(py);
    cap.set_item("max_send_wr", default.max_send_wr)?;
    cap.set_item("max_recv_wr", default.max_recv_wr)?;
    cap.set_item("max_send_sge", default.max_send_sge)?;
    cap.set_item("max_inline_data", default.max_inline_data)?;
    let device = PyDict::new(py);
    device.set_item("max_wimm", limits::MAX_WIMM)?;
    device.set_item("min_path_mtu", *PATH_MTU_RANGE.start())?;
    device.set_item("max_path_mtu", *PATH_MTU_RANGE.end())?;
    device.set_item("psns_per_mpr", PSNS_PER_MPR)?;
    device.set_item("max_mpr", limits::MAX_MPR)?;
    device.set_item("mpr_resolution", limits::MPR_RESOLUTION)?;
    device.set_item("max_qp_hints", limits::MAX_QP_HINTS)?;
    device.set_item("max_qps", limits::MAX_QPS)?;
    device.set_item("comp_vectors", limits::COMP_VECTORS)?;
    device.set_item("max_profiles", limits::MAX_PROFILES)?;
    device.set_item("max_cqe", limits::MAX_CQE)?;
    device.set_item("max_paths", config::MAX_PATHS)?;
    device.set_item("max_send_wr", QpCap::MAX.max_send_wr)?;
    device.set_item("max_recv_wr", QpCap::MAX.max_recv_wr)?;
    device.set_item("max_send_sge", QpCap::MAX.max_send_sge)?;
    device.set_item("max_inline_data", QpCap::MAX.max_inline_data)?;
    module.add_function(wrap_pyfunction!(retry_seconds, module)?)?;
    module.add("DEVICE_LIMITS", device)?;
    module.add("QP_DEFAULTS", qp)?;
    module.add("QP_CAP_DEFAULTS", cap)?;
    module.add("MAX_ACTIVE_EVS", PathConfig::MOST)
}
