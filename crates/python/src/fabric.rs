//! `openmrc._core.Fabric`: the arithmetic of crates/fabric for Python. Converts and checks; decides nothing.
//!
//! A switch is (plane, tier, index), a port is a number. Names, addresses and prefixes are made in Rust, because a
//! configuration needs millions of them.

use std::net::Ipv6Addr;

use openmrc_fabric::{
    AddressError, AddressPlan, EvError, EvLayout, Fabric, Link, LinkPrefix, NameError, Node, Path, Ratio,
    Shape, ShapeError, Sizing, Switch, Trace, TraceError, shape,
};
use openmrc_wire::Ev;
use pyo3::prelude::*;

pyo3::import_exception!(openmrc.errors, ArgumentError);

/// Adds the fabric's class, its limits and its default prefixes to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyFabric>()?;
    module.add("MAX_PLANES", shape::MAX_PLANES)?;
    module.add("MAX_TIERS", shape::MAX_TIERS)?;
    module.add("MAX_HOSTS", shape::MAX_HOSTS)?;
    module.add("MAX_RADIX", shape::MAX_RADIX)?;
    module.add("DEFAULT_USID_BLOCK", AddressPlan::DEFAULT_BLOCK)?;
    module.add("DEFAULT_LINK_PREFIX", LinkPrefix::DEFAULT.0)
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    ArgumentError::new_err(error.to_string())
}

macro_rules! refuse {
    ($($error:ty),*) => {$(
        impl From<Refused<$error>> for PyErr {
            fn from(Refused(error): Refused<$error>) -> PyErr {
                refused(error)
            }
        }
    )*};
}

/// An error on its way to Python: `?` turns it into an `ArgumentError`.
struct Refused<E>(E);
refuse!(ShapeError, AddressError, EvError, NameError, TraceError);

/// (plane, tier, index)
type SwitchId = (u32, u8, u32);
/// The uSIDs that a switch owns, and its static routes: uSID, port.
type Table = (Vec<u16>, Vec<(u16, u32)>);
/// One connected port: number, name, peer's name, peer's port, own address, peer's address, link.
type PortRow = (u32, String, String, String, String, String, String);
/// One switch on a path: name, uSID, egress port, egress link.
type Hop = (String, u16, String, String);
/// A path: plane, uplinks, EV, outer destination address, first link, hops.
type PathRow = (u32, Vec<u32>, u32, String, String, Vec<Hop>);
/// The meaning of an address: switches (name, uSID), links, receiver, plane, downlink, whole, uplinks.
type TraceRow = (Vec<(String, u16)>, Vec<String>, Option<u32>, Option<u32>, u32, bool, Vec<Option<u32>>);

/// A fabric with its addressing plan.
#[pyclass(frozen, name = "Fabric", module = "openmrc._core")]
struct PyFabric {
    fabric: Fabric,
    plan: Result<AddressPlan, AddressError>,
    layout: Result<EvLayout, EvError>,
    links: LinkPrefix,
}

impl PyFabric {
    fn from_shape(shape: Shape, block: u32, link_prefix: u32) -> PyResult<Self> {
        let fabric = Fabric::new(shape).map_err(Refused)?;
        Ok(PyFabric {
            fabric,
            plan: AddressPlan::new(&fabric, block),
            layout: EvLayout::new(&fabric),
            links: LinkPrefix(link_prefix),
        })
    }

    fn plan(&self) -> PyResult<AddressPlan> {
        Ok(self.plan.map_err(Refused)?)
    }

    fn layout(&self) -> PyResult<EvLayout> {
        Ok(self.layout.map_err(Refused)?)
    }

    fn switch(&self, (plane, tier, index): SwitchId) -> PyResult<Switch> {
        let switch = Switch { plane, tier, index };
        match self.fabric.has_switch(switch) {
            true => Ok(switch),
            false => Err(refused(NameError::Unknown(switch.to_string()))),
        }
    }

    fn path_row(&self, path: &Path) -> PyResult<PathRow> {
        let (fabric, plan, layout) = (&self.fabric, self.plan()?, self.layout()?);
        let hops = path
            .steps(fabric)
            .map(|step| {
                let usid = plan.usid(fabric, step.switch, step.alias);
                let port = fabric.port_name(step.switch, step.port);
                (step.switch.to_string(), usid, port, fabric.link_name(step.link))
            })
            .collect();
        let turn = usize::from(fabric.turn(path.src, path.dst));
        let first = Link { plane: path.plane, layer: 0, lower: path.src, uplink: 0 };
        let address = plan.address(fabric, path).to_ipv6().to_string();
        let uplinks = path.uplinks[..turn].to_vec();
        Ok((path.plane, uplinks, path.ev(&layout).0, address, fabric.link_name(first), hops))
    }
}

fn parse_address(text: &str) -> PyResult<Ipv6Addr> {
    text.parse().map_err(|_| refused(format!("{text:?} is not an IPv6 address")))
}

#[pymethods]
impl PyFabric {
    /// The smallest fabric for these numbers. `oversubscription` is (down, up) for tier 0, 1 and 2; `block` and
    /// `link_prefix` are the 32 bits of a /32.
    #[staticmethod]
    #[pyo3(signature = (hosts, planes, tiers, radix, *, oversubscription, hosts_per_t0=None, uplinks_per_t0=None,
                        t0s_per_pod=None, parallel=None, block, link_prefix))]
    #[allow(clippy::too_many_arguments)] // They are keywords in Python.
    fn smallest(
        hosts: u32,
        planes: u32,
        tiers: u8,
        radix: u32,
        oversubscription: [(u32, u32); 3],
        hosts_per_t0: Option<u32>,
        uplinks_per_t0: Option<u32>,
        t0s_per_pod: Option<u32>,
        parallel: Option<u32>,
        block: u32,
        link_prefix: u32,
    ) -> PyResult<Self> {
        let oversubscription = oversubscription.map(|(down, up)| Ratio { down, up });
        let sizing = Sizing {
            hosts,
            planes,
            tiers,
            radix,
            oversubscription,
            hosts_per_t0,
            uplinks_per_t0,
            t0s_per_pod,
            parallel,
        };
        Self::from_shape(sizing.smallest().map_err(Refused)?, block, link_prefix)
    }

    /// Number of hosts of the largest fabric with this number of tiers.
    #[staticmethod]
    fn capacity(tiers: u8, radix: u32, oversubscription: [(u32, u32); 3]) -> PyResult<u64> {
        let oversubscription = oversubscription.map(|(down, up)| Ratio { down, up });
        let sizing = Sizing { oversubscription, ..Sizing::new(1, 1, tiers, radix) };
        sizing.smallest().map_err(Refused)?;
        Ok(sizing.capacity().map_err(Refused)?)
    }

    #[getter]
    fn hosts(&self) -> u32 {
        self.fabric.shape().hosts
    }

    #[getter]
    fn planes(&self) -> u32 {
        self.fabric.shape().planes
    }

    #[getter]
    fn tiers(&self) -> u8 {
        self.fabric.tiers()
    }

    #[getter]
    fn radix(&self) -> u32 {
        self.fabric.shape().radix
    }

    #[getter]
    fn hosts_per_t0(&self) -> u32 {
        self.fabric.shape().hosts_per_t0
    }

    /// Links from one block to one top switch.
    #[getter]
    fn parallel(&self) -> u32 {
        self.fabric.shape().parallel
    }

    /// Number of hosts if the top switches use all their ports.
    #[getter]
    fn most_hosts(&self) -> u64 {
        self.fabric.shape().most_hosts()
    }

    /// T0s in a pod and pods in a zone; 0 if the fabric has none.
    #[getter]
    fn group(&self) -> [u32; 2] {
        self.fabric.shape().group
    }

    /// Switches of one plane, per tier.
    #[getter]
    fn switches_per_tier(&self) -> Vec<u32> {
        self.fabric.counts().switches[..usize::from(self.fabric.tiers())].to_vec()
    }

    /// Links of one plane, per layer; layer 0 connects the hosts.
    #[getter]
    fn links_per_layer(&self) -> Vec<u32> {
        self.fabric.counts().links[..usize::from(self.fabric.tiers())].to_vec()
    }

    /// Blocks of one plane, per level: T0s, pods, zones. The top level has one.
    #[getter]
    fn blocks(&self) -> Vec<u32> {
        (0..self.fabric.tiers()).map(|level| self.fabric.blocks(level)).collect()
    }

    /// Downlinks of a switch of this tier, connected or not.
    fn downlinks(&self, tier: u8) -> PyResult<u32> {
        if tier < self.fabric.tiers() {
            Ok(self.fabric.downlinks(tier))
        } else {
            Err(refused("no such tier"))
        }
    }

    /// Uplinks of a switch of this tier.
    fn uplinks(&self, tier: u8) -> u32 {
        self.fabric.uplinks(tier)
    }

    /// Widths of the fields of an EV: plane, T0 uplink, T1 uplink, T2 uplink.
    #[getter]
    fn ev_widths(&self) -> PyResult<[u32; 4]> {
        Ok(self.layout()?.widths)
    }

    /// Raises `ArgumentError` if the fabric has no addressing plan or no EV layout.
    fn check_addresses(&self) -> PyResult<()> {
        self.plan()?;
        self.layout().map(drop)
    }

    /// The number of a host or the (plane, tier, index) of a switch.
    fn node(&self, name: &str) -> PyResult<(Option<u32>, Option<SwitchId>)> {
        Ok(match self.fabric.node_named(name).map_err(Refused)? {
            Node::Host(host) => (Some(host), None),
            Node::Switch(Switch { plane, tier, index }) => (None, Some((plane, tier, index))),
        })
    }

    /// The connected ports of a switch, downlinks first.
    fn ports(&self, switch: SwitchId) -> PyResult<Vec<PortRow>> {
        let (fabric, switch) = (&self.fabric, self.switch(switch)?);
        let down = fabric.downlinks(switch.tier);
        let rows = (0..down + fabric.uplinks(switch.tier)).filter_map(|port| {
            let link = fabric.link_at(switch, port)?;
            let peer = fabric.peer(switch, port)?;
            let upper = port < down;
            let peer_port = match peer.node {
                Node::Host(_) => format!("p{}", peer.port),
                Node::Switch(other) => fabric.port_name(other, peer.port),
            };
            let address = |upper| self.links.end(link, upper).to_string();
            let (own, other) = (address(upper), address(!upper));
            let name = fabric.port_name(switch, port);
            Some((port, name, peer.node.to_string(), peer_port, own, other, fabric.link_name(link)))
        });
        Ok(rows.collect())
    }

    /// The uSIDs a switch owns, and its static routes as (uSID, port).
    fn table(&self, switch: SwitchId) -> PyResult<Table> {
        let (fabric, plan, switch) = (&self.fabric, self.plan()?, self.switch(switch)?);
        let entries = plan.entries(fabric, switch).map(|e| (e.usid, e.port)).collect();
        Ok((plan.own(fabric, switch).collect(), entries))
    }

    /// The name of the switch or downlink with this uSID; `None` if no one has it.
    fn usid_name(&self, usid: u16) -> PyResult<Option<String>> {
        let plan = self.plan()?;
        let downlink = AddressPlan::downlink(&self.fabric, usid).map(|d| format!("down{d}"));
        Ok(plan.owner(&self.fabric, usid).map(|(switch, _)| switch.to_string()).or(downlink))
    }

    /// Number of paths from one host to another, over all planes.
    fn path_count(&self, src: u32, dst: u32) -> PyResult<u64> {
        Path::nth(&self.fabric, src, dst, 0).map_err(Refused)?;
        Ok(self.fabric.path_count(src, dst))
    }

    /// The path of an EV.
    fn path_of_ev(&self, src: u32, dst: u32, ev: u32) -> PyResult<PathRow> {
        let path = Path::from_ev(&self.fabric, &self.layout()?, src, dst, Ev(ev)).map_err(Refused)?;
        self.path_row(&path)
    }

    /// The path with these uplinks: one for each tier below the one where it turns down.
    fn path_by(&self, src: u32, dst: u32, plane: u32, uplinks: Vec<u32>) -> PyResult<PathRow> {
        let count = self.path_count(src, dst)? / u64::from(self.fabric.shape().planes);
        let mut n = u64::from(plane);
        let mut below = 1;
        for (tier, &uplink) in uplinks.iter().enumerate() {
            let choices = self.fabric.uplinks(tier as u8);
            if uplink >= choices {
                return Err(refused(format!("uplink {uplink} of a T{tier}: there are {choices}")));
            }
            n = n * u64::from(choices) + u64::from(uplink);
            below *= u64::from(choices);
        }
        let path = Path::nth(&self.fabric, src, dst, n).map_err(Refused)?;
        match path.filter(|_| below == count && plane < self.fabric.shape().planes) {
            Some(path) => self.path_row(&path),
            None => Err(refused(format!(
                "no path of h{src} to h{dst} takes plane {plane} and uplinks {uplinks:?}"
            ))),
        }
    }

    /// The `n`-th path from one host to another; `None` after the last.
    fn path_at(&self, src: u32, dst: u32, n: u64) -> PyResult<Option<PathRow>> {
        let path = Path::nth(&self.fabric, src, dst, n).map_err(Refused)?;
        path.map(|path| self.path_row(&path)).transpose()
    }

    /// (EV, plane, outer destination address) of the paths with these numbers.
    fn ev_rows(&self, src: u32, dst: u32, numbers: Vec<u64>) -> PyResult<Vec<(u32, u32, String)>> {
        let (plan, layout) = (self.plan()?, self.layout()?);
        let rows = numbers.into_iter().map(|n| {
            let path = Path::nth(&self.fabric, src, dst, n).map_err(Refused)?;
            let path = path.ok_or_else(|| refused(format!("h{src} to h{dst} has no path {n}")))?;
            Ok((path.ev(&layout).0, path.plane, plan.address(&self.fabric, &path).to_ipv6().to_string()))
        });
        rows.collect()
    }

    /// The outer destination address of a loop from a host to its T0 and back, or over an uplink of the T0 and back;
    /// `None` if there is no such host, plane or uplink.
    #[pyo3(signature = (host, plane, uplink=None))]
    fn loop_address(&self, host: u32, plane: u32, uplink: Option<u32>) -> PyResult<Option<String>> {
        let address = self.plan()?.loop_address(&self.fabric, host, plane, uplink);
        Ok(address.map(|address| address.to_ipv6().to_string()))
    }

    /// The meaning of an outer destination address.
    fn trace(&self, address: &str) -> PyResult<TraceRow> {
        let address = parse_address(address)?;
        let (fabric, plan) = (&self.fabric, self.plan()?);
        let trace = Trace::new(fabric, &plan, address).map_err(Refused)?;
        let list = openmrc_wire::usid::UsidAddress::parse(address).map_err(refused)?;
        let switches = trace.switches().zip(list.iter()).map(|(s, usid)| (s.to_string(), usid)).collect();
        let links = trace.links().map(|link| fabric.link_name(link)).collect();
        let uplinks = trace.uplinks.to_vec();
        Ok((switches, links, trace.host, trace.plane(), trace.downlink, trace.whole, uplinks))
    }
}
