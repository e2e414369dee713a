//! The controller's operations on an open device beside its profiles: paths to a peer, EV probes, ports.

use std::net::{IpAddr, Ipv6Addr};

use openmrc_nic::{EvProfileConfig, PortStatusUpdate, SegmentRoute};
use openmrc_transport::{PathEntry, PortSet};
use openmrc_wire::Ev;
use openmrc_wire::expansion::{self, EvString};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::context::Context;
use super::convert::{duration, socket_addresses};
use super::error::{OrRaise, refused};
use super::profiles::{Field, field_of};
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

    /// The paths of an EV profile. Profile 0 has the device's own paths.
    fn ev_profile(&self, py: Python<'_>, id: u16) -> PyResult<Vec<Path>> {
        let context = &self.0.get().context;
        let paths = py.detach(|| context.ev_profile(id)).or_raise()?;
        Ok(paths.iter().map(|path| (path.port, path.ev.0)).collect())
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

/// An EV expanded through a profile: UDP source port, structured EV, outer destination address, SRH segment. `format`
/// decides which of them are valid. Raises `ArgumentError` if format and profile do not fit.
#[pyfunction]
fn expand_ev(
    format: String,
    widths: Vec<u32>,
    profile: Vec<Field>,
    ev: [u8; 32],
) -> PyResult<(u32, u32, Ipv6Addr, Ipv6Addr)> {
    let fields: Vec<_> = profile.into_iter().map(field_of).collect();
    let out = expansion::expand(format.to_core()?, &widths, &fields, &EvString(ev))
        .map_err(|e| refused(e.to_string()))?;
    Ok((out.udp().0, out.structured().0, out.destination(), out.segment()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Controller>()?;
    module.add_function(wrap_pyfunction!(expand_ev, module)?)
}
