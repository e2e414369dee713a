//! Queue pairs: states and counters. Attributes are in `attr`, posting is in `post`.

use openmrc_nic::{self as nic, QpState};
use openmrc_transport::PathEntry;
use openmrc_transport::mrc::EvState;
use openmrc_wire::Ev;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::attr::{attribute_fields, attributes};
use super::convert::port_list;
use super::error::{OrRaise, refused};
use super::memory::MemoryRegion;
use super::post::{self, Offsets};
use super::stats;

/// A queue pair.
#[pyclass(frozen, module = "openmrc._core")]
pub struct QueuePair(pub(crate) nic::QueuePair);

impl QueuePair {
    pub(super) fn new(qp: nic::QueuePair) -> Self {
        QueuePair(qp)
    }
}

/// States with ibverbs' numbers, those of `openmrc.verbs.QpState`.
const STATES: [(QpState, i64); 5] =
    [(QpState::Reset, 0), (QpState::Init, 1), (QpState::Rtr, 2), (QpState::Rts, 3), (QpState::Error, 6)];

fn state_number(state: QpState) -> i64 {
    STATES.iter().find(|(s, _)| *s == state).map_or(6, |(_, number)| *number)
}

#[pymethods]
impl QueuePair {
    #[getter]
    fn qp_num(&self) -> u32 {
        self.0.qp_num()
    }

    #[getter]
    fn state(&self) -> i64 {
        state_number(self.0.state())
    }

    #[getter]
    fn cap<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        cap_fields(py, self.0.cap())
    }

    #[getter]
    fn send_outstanding(&self) -> usize {
        self.0.send_outstanding()
    }

    /// Seconds for which the peer has not answered, with keepalive; None while it is heard.
    #[getter]
    fn silent_for(&self) -> Option<f64> {
        self.0.silent_for().map(|silent| silent.as_secs_f64())
    }

    /// Goes to another state. `attr` has the attributes of `openmrc.verbs.QpAttr`.
    fn modify(&self, py: Python<'_>, state: i64, attr: &Bound<'_, PyAny>) -> PyResult<()> {
        let found = STATES.iter().find(|(_, number)| *number == state);
        let &(state, _) = found.ok_or_else(|| refused(format!("{state} is no state of a queue pair")))?;
        let attr = attributes(attr)?;
        py.detach(|| self.0.modify(state, &attr)).or_raise()
    }

    /// State, attributes, capacities, and whether every send is signaled.
    fn query<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = py.detach(|| self.0.query()).or_raise()?;
        let out = PyDict::new(py);
        out.set_item("state", state_number(info.state))?;
        out.set_item("attr", attribute_fields(py, &info.attr)?)?;
        out.set_item("cap", cap_fields(py, info.cap)?)?;
        out.set_item("sq_sig_all", info.sq_sig_all)?;
        Ok(out)
    }

    /// Posts `openmrc.verbs.SendWR`s, all or none.
    fn post_send(&self, py: Python<'_>, requests: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        post::send(py, &self.0, &requests)
    }

    /// Posts `openmrc.verbs.RecvWR`s, all or none.
    fn post_recv(&self, py: Python<'_>, requests: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        post::recv(py, &self.0, &requests)
    }

    /// Posts `count` receives of `wr_id` 0, all or none.
    fn post_recv_many(&self, py: Python<'_>, count: i64) -> PyResult<()> {
        post::recv_many(py, &self.0, count)
    }

    /// Posts many writes, all or none; see `openmrc.verbs.QueuePair.post_writes`.
    #[pyo3(signature = (source, remote, *, length, count, offset, remote_offset, stride, remote_stride, wr_id,
                        signal_every))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn post_writes(
        &self,
        py: Python<'_>,
        source: &MemoryRegion,
        remote: (u64, u64, u32),
        length: Offsets,
        count: Option<i64>,
        offset: Offsets,
        remote_offset: Offsets,
        stride: i64,
        remote_stride: i64,
        wr_id: u64,
        signal_every: Option<i64>,
    ) -> PyResult<usize> {
        let writes = post::Writes {
            source: (source.addr(), source.length() as u64, source.lkey()),
            remote,
            length,
            count,
            offset,
            remote_offset,
            stride,
            remote_stride,
            wr_id,
            signal_every,
        };
        writes.post(py, &self.0)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::queue_pair(py, &py.detach(|| self.0.stats()).or_raise()?)
    }

    /// (port, entropy value, state) of every path.
    fn ev_states(&self, py: Python<'_>) -> PyResult<Vec<(u8, u32, &'static str)>> {
        let states = py.detach(|| self.0.ev_states()).or_raise()?;
        let name = |state| match state {
            EvState::Good => "good",
            EvState::Skip => "skip",
            EvState::AssumedBad => "assumed_bad",
            EvState::Denied => "denied",
        };
        Ok(states.into_iter().map(|(path, state)| (path.port, path.ev.0, name(state))).collect())
    }

    fn set_ev_denied(&self, py: Python<'_>, port: u8, ev: u32, denied: bool) -> PyResult<bool> {
        py.detach(|| self.0.set_ev_denied(PathEntry { ev: Ev(ev), port }, denied)).or_raise()
    }

    fn prove_path_mtu(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.prove_path_mtu()).or_raise()
    }

    fn ports_up(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        py.detach(|| self.0.ports_up()).or_raise().map(port_list)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.destroy());
    }
}

fn cap_fields(py: Python<'_>, cap: nic::QpCap) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("max_send_wr", cap.max_send_wr)?;
    out.set_item("max_recv_wr", cap.max_recv_wr)?;
    out.set_item("max_send_sge", cap.max_send_sge)?;
    out.set_item("max_inline_data", cap.max_inline_data)?;
    Ok(out)
}
