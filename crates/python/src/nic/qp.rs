//! Queue pairs: states and attributes. Posting is in `post`.

use openmrc_nic::{self as nic, Access, QpAttr, QpState};
use openmrc_transport::PathEntry;
use openmrc_transport::mrc::{Capabilities, EvState};
use openmrc_wire::Ev;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::convert::{address_pairs, optional, port_list, socket_addresses};
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

fn attributes(from: &Bound<'_, PyAny>) -> PyResult<QpAttr> {
    let access = match optional!(from, "access", "a combination of AccessFlags")? {
        None => None,
        Some(bits) => Some(Access::from_bits(bits).ok_or_else(|| {
            refused(format!("access is {bits}: a combination of LOCAL_WRITE and REMOTE_WRITE is allowed"))
        })?),
    };
    let caps: Option<u8> = optional!(from, "caps", "a combination of Capabilities")?;
    let remote: Option<Vec<(String, u16)>> =
        optional!(from, "remote", "a list of (address, UDP port), one per port of the peer,")?;
    Ok(QpAttr {
        access,
        dest_qp_num: optional!(from, "dest_qp_num", "1 to 16777215")?,
        rq_psn: optional!(from, "rq_psn", "0 to 16777215")?,
        sq_psn: optional!(from, "sq_psn", "0 to 16777215")?,
        remote: remote.map(socket_addresses).transpose()?,
        path_mtu: optional!(from, "path_mtu", "256 to 8192")?,
        mpr: optional!(from, "mpr", "1 to 255")?,
        mpr_dest: optional!(from, "mpr_dest", "1 to 255")?,
        max_wimm: optional!(from, "max_wimm", "1 to 16384")?,
        max_wimm_dest: optional!(from, "max_wimm_dest", "1 to 16384")?,
        timeout: optional!(from, "timeout", "0 to 24")?,
        linear_cnt: optional!(from, "linear_cnt", "0 to 7")?,
        exp_cnt: optional!(from, "exp_cnt", "0 to 25")?,
        keepalive_ms: optional!(from, "keepalive_ms", "0 to 4294967295")?,
        receive_wait_ms: optional!(from, "receive_wait_ms", "0 to 4294967295")?,
        caps: caps.map(|bits| Capabilities {
            trim_nack: bits & 1 != 0,
            dynamic_mpr: bits & 2 != 0,
            service_time: bits & 4 != 0,
            overflow_reports: bits & 8 != 0,
        }),
        dfc: optional!(from, "dfc", "True or False")?,
        ev_profile_id: optional!(from, "ev_profile_id", "0 to 65535")?,
        cc_profile_id: optional!(from, "cc_profile_id", "0 to 65535")?,
        seed: optional!(from, "seed", "0 to 2^64 - 1")?,
    })
}

fn attribute_fields<'py>(py: Python<'py>, attr: &QpAttr) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("access", attr.access.map(Access::bits))?;
    out.set_item("remote", attr.remote.as_deref().map(address_pairs))?;
    let bits = |caps: Capabilities| {
        u8::from(caps.trim_nack)
            | u8::from(caps.dynamic_mpr) << 1
            | u8::from(caps.service_time) << 2
            | u8::from(caps.overflow_reports) << 3
    };
    out.set_item("caps", attr.caps.map(bits))?;
    macro_rules! same {
        ($($name:ident),*) => { $(out.set_item(stringify!($name), attr.$name)?;)* };
    }
    same!(
        dest_qp_num,
        rq_psn,
        sq_psn,
        path_mtu,
        mpr,
        mpr_dest,
        max_wimm,
        max_wimm_dest,
        timeout,
        linear_cnt,
        exp_cnt,
        keepalive_ms,
        receive_wait_ms,
        dfc,
        ev_profile_id,
        cc_profile_id,
        seed
    );
    Ok(out)
}

fn cap_fields(py: Python<'_>, cap: nic::QpCap) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("max_send_wr", cap.max_send_wr)?;
    out.set_item("max_recv_wr", cap.max_recv_wr)?;
    out.set_item("max_send_sge", cap.max_send_sge)?;
    out.set_item("max_inline_data", cap.max_inline_data)?;
    Ok(out)
}
