//! The controller's operations on an open device: EV and congestion control profiles, EV probes, ports. The state of a
//! profile (INIT, OFFLINE, ONLINE) is in `openmrc.controller`; this file has the profiles that are ONLINE.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use openmrc_nic::{CcProfileConfig, EvProfileConfig, PortStatusUpdate, SegmentRoute};
use openmrc_transport::mrc::{CcProfile, NsccParams, PathModel};
use openmrc_transport::{PathEntry, PortSet, Span};
use openmrc_wire::Ev;
use openmrc_wire::expansion::{self, EvField, EvString};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::context::Context;
use super::convert::{duration, optional, socket_addresses};
use super::defaults;
use super::error::{OrRaise, refused};
use crate::wire::Mirror;

/// A path as (port, entropy value).
type Path = (u8, u32);

fn entry((port, ev): Path) -> PathEntry {
    PathEntry { port, ev: Ev(ev) }
}

/// The controller's view of a context.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Controller(Py<Context>);

#[pymethods]
impl Controller {
    #[new]
    fn new(context: Py<Context>) -> Self {
        Controller(context)
    }

    // --- EV profiles -------------------------------------------------------------------------------------------

    /// Creates an EV profile of these paths, (port, entropy value); returns its number. In SRv6 mode each path has a
    /// route, (outer destination, SRH segment), and all paths end at the peer.
    #[pyo3(signature = (paths, *, active, min_active, routes=Vec::new(), peer=Vec::new()))]
    #[allow(clippy::too_many_arguments)]
    fn create_ev_profile(
        &self,
        py: Python<'_>,
        paths: Vec<Path>,
        active: Option<u16>,
        min_active: Option<u16>,
        routes: Vec<(IpAddr, Option<IpAddr>)>,
        peer: Vec<(String, u16)>,
    ) -> PyResult<u16> {
        let route = |(destination, segment): (IpAddr, Option<IpAddr>)| {
            Ok(SegmentRoute { destination: destination.to_core()?, segment: segment.to_core()? })
        };
        let config = EvProfileConfig {
            paths: paths.into_iter().map(entry).collect(),
            routes: routes.into_iter().map(route).collect::<PyResult<_>>()?,
            peer: socket_addresses(peer)?,
            active,
            backup: None,
            min_active,
        };
        let context = &self.0.get().context;
        py.detach(|| context.create_ev_profile(&config)).or_raise()
    }

    fn destroy_ev_profile(&self, py: Python<'_>, id: u16) -> PyResult<()> {
        let context = &self.0.get().context;
        py.detach(|| context.destroy_ev_profile(id)).or_raise()
    }

    /// The paths of an EV profile. Profile 0 has the device's own paths.
    fn ev_profile(&self, py: Python<'_>, id: u16) -> PyResult<Vec<Path>> {
        let context = &self.0.get().context;
        let paths = py.detach(|| context.ev_profile(id)).or_raise()?;
        Ok(paths.iter().map(|path| (path.port, path.ev.0)).collect())
    }

    /// Denies or allows a path in every queue pair of a profile; returns how many use it.
    fn set_ev_denied(&self, py: Python<'_>, profile: u16, path: Path, denied: bool) -> PyResult<usize> {
        let context = &self.0.get().context;
        py.detach(|| context.set_ev_denied(profile, entry(path), denied)).or_raise()
    }

    // --- congestion control profiles ---------------------------------------------------------------------------

    /// Creates a congestion control profile; returns its number. `description` has the attributes of
    /// `openmrc.controller.CcProfileAttr`.
    fn create_cc_profile(&self, py: Python<'_>, description: &Bound<'_, PyAny>) -> PyResult<u16> {
        let profile = cc_profile(description)?;
        let context = &self.0.get().context;
        py.detach(|| context.create_cc_profile(profile)).or_raise()
    }

    fn destroy_cc_profile(&self, py: Python<'_>, id: u16) -> PyResult<()> {
        let context = &self.0.get().context;
        py.detach(|| context.destroy_cc_profile(id)).or_raise()
    }

    // --- peers and ports ---------------------------------------------------------------------------------------

    /// Makes a node known without a queue pair; returns a handle for `remove_peer`.
    fn add_peer(&self, py: Python<'_>, addresses: Vec<(String, u16)>) -> PyResult<u32> {
        let addresses = socket_addresses(addresses)?;
        let context = &self.0.get().context;
        py.detach(|| context.add_peer(&addresses)).or_raise()
    }

    fn remove_peer(&self, py: Python<'_>, peer: u32) {
        let context = &self.0.get().context;
        py.detach(|| context.remove_peer(peer));
    }

    /// Round-trip times in nanoseconds of paths to a node, in the order of `paths`; None if no answer came.
    fn ev_probe(
        &self,
        py: Python<'_>,
        addresses: Vec<(String, u16)>,
        paths: Vec<Path>,
        timeout: f64,
    ) -> PyResult<Vec<Option<u64>>> {
        let addresses = socket_addresses(addresses)?;
        let paths: Vec<_> = paths.into_iter().map(entry).collect();
        let timeout = duration(timeout, 1.0, "timeout")?;
        let context = &self.0.get().context;
        let results = py.detach(|| context.ev_probe(&addresses, &paths, timeout)).or_raise()?;
        Ok(results.iter().map(|result| result.rtt.map(|rtt| rtt.as_nanos() as u64)).collect())
    }

    /// Sends port status updates, (ports up, port to send on or None), to a node: round-trip times in nanoseconds of the
    /// answers, None if no answer came.
    fn send_port_status(
        &self,
        py: Python<'_>,
        addresses: Vec<(String, u16)>,
        updates: Vec<(Vec<u8>, Option<u8>)>,
        timeout: f64,
    ) -> PyResult<Vec<Option<u64>>> {
        let addresses = socket_addresses(addresses)?;
        let update = |(ports, port): (Vec<u8>, Option<u8>)| PortStatusUpdate {
            up: ports.iter().fold(PortSet::EMPTY, |up, &port| up.with(port)),
            port,
        };
        let updates: Vec<_> = updates.into_iter().map(update).collect();
        let timeout = duration(timeout, 1.0, "timeout")?;
        let context = &self.0.get().context;
        let rtts = py.detach(|| context.send_port_status(&addresses, &updates, timeout)).or_raise()?;
        Ok(rtts.into_iter().map(|rtt| rtt.map(|rtt| rtt.as_nanos() as u64)).collect())
    }

    /// The present state of every port.
    fn port_states<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let context = &self.0.get().context;
        let ports = py.detach(|| context.port_states()).or_raise()?;
        let fields = |port: openmrc_nic::PortState| {
            let out = PyDict::new(py);
            out.set_item("addr", port.addr.ip().to_string())?;
            out.set_item("udp_port", port.addr.port())?;
            out.set_item("interface", port.interface)?;
            out.set_item("admin_up", port.admin_up)?;
            out.set_item("link_up", port.link_up)?;
            out.set_item("receive_buffer", port.receive_buffer)?;
            Ok(out)
        };
        ports.into_iter().map(fields).collect()
    }

    fn set_port_admin(&self, py: Python<'_>, port: usize, up: bool) -> PyResult<()> {
        let context = &self.0.get().context;
        py.detach(|| context.set_port_admin(port, up)).or_raise()
    }
}

fn cc_profile(from: &Bound<'_, PyAny>) -> PyResult<CcProfileConfig> {
    let micros = |name: &str, value: f64| {
        Ok::<_, PyErr>(Span::from_nanos(duration(value, 1e-6, name)?.as_nanos() as u64))
    };
    let required = |name: &str| refused(format!("a congestion control profile needs {name}"));
    let path_mtu = optional!(from, "path_mtu", "256 to 8192")?.unwrap_or_else(defaults::path_mtu);
    let base_rtt: f64 =
        optional!(from, "base_rtt_us", "a number of microseconds")?.ok_or_else(|| required("base_rtt_us"))?;
    let base_rtt = micros("base_rtt_us", base_rtt)?;
    if base_rtt == Span::ZERO {
        return Err(refused("base_rtt_us must be more than 0"));
    }
    let trimming: bool = from.getattr("trimming")?.extract()?;
    let window: Option<u64> = optional!(from, "window", "1 to 2^64 - 1")?;
    if let Some(window) = window {
        return Ok(CcProfileConfig {
            cc: Arc::new(CcProfile::FixedWindow(window)),
            model: PathModel::new(base_rtt, trimming),
        });
    }
    let rate: u64 = optional!(from, "link_rate_bps", "1 to 2^64 - 1")?
        .filter(|&rate| rate > 0)
        .ok_or_else(|| required("link_rate_bps"))?;
    let mut params = NsccParams::for_network(rate, base_rtt, path_mtu, trimming);
    macro_rules! take {
        ($($name:ident: $allowed:literal),* $(,)?) => {$(
            if let Some(value) = optional!(from, stringify!($name), $allowed)? {
                params.$name = value;
            }
        )*};
    }
    macro_rules! take_micros {
        ($($attribute:literal => $name:ident),* $(,)?) => {$(
            if let Some(value) = optional!(from, $attribute, "a number of microseconds")? {
                params.$name = micros($attribute, value)?;
            }
        )*};
    }
    take! {
        max_wnd: "1 to 2^64 - 1",
        fi: "a number",
        eta: "a number",
        fi_scale: "a number",
        gamma: "a number",
        max_md_jump: "a number",
        qa_gate: "0 to 63",
        disable_qa: "True or False",
        adjust_bytes: "1 to 2^32 - 1",
    }
    take_micros! {
        "target_qdelay_us" => target_qdelay,
        "qa_threshold_us" => qa_threshold,
        "adjust_period_us" => adjust_period,
    }
    if let Some(alpha) = optional!(from, "alpha_per_us", "a number")? {
        let per_us: f64 = alpha;
        // The core counts in picoseconds.
        params.alpha = per_us / 1e6;
    }
    let model = PathModel { target_qdelay: params.target_qdelay, ..PathModel::new(base_rtt, trimming) };
    Ok(CcProfileConfig { cc: Arc::new(CcProfile::Nscc(Arc::new(params))), model })
}

/// A field of an EV profile: width, init, min, max, mask.
type Field = (u32, u32, u32, u32, u32);

fn fields(list: Vec<Field>) -> Vec<EvField> {
    list.into_iter().map(|(width, init, min, max, mask)| EvField { width, init, min, max, mask }).collect()
}

/// An EV expanded through a profile: UDP source port, structured EV, outer destination address, SRH segment. `format`
/// decides which of them are valid. Raises `ArgumentError` if format and profile do not fit.
#[pyfunction]
fn expand_ev(
    format: String,
    widths: Vec<u32>,
    profile: Vec<Field>,
    ev: [u8; 32],
) -> PyResult<(u32, u32, Ipv6Addr, Ipv6Addr)> {
    let out = expansion::expand(format.to_core()?, &widths, &fields(profile), &EvString(ev))
        .map_err(|e| refused(e.to_string()))?;
    Ok((out.udp().0, out.structured().0, out.destination(), out.segment()))
}

/// Raises `ArgumentError` if the profile is not legal for the format, or a field is wider than its place.
#[pyfunction]
fn check_ev_profile(format: String, widths: Vec<u32>, profile: Vec<Field>) -> PyResult<()> {
    expansion::check_fit(format.to_core()?, &widths, &fields(profile)).map_err(|e| refused(e.to_string()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Controller>()?;
    module.add_function(wrap_pyfunction!(expand_ev, module)?)?;
    module.add_function(wrap_pyfunction!(check_ev_profile, module)?)
}
