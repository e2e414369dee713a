//! The record of a run as columns: links, paths, time series, log, captured packets.

use openmrc_fabric::Fabric;
use openmrc_scenario::run::{Change, Effect};
use openmrc_scenario::{Totals, names};
use openmrc_sim::{LogEvent, PlaneNow, Recorder};
use openmrc_transport::PortSet;
use openmrc_workload::Connection;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::rows::{CapturedPacket, LogEntry, PyPlane, PySeries};
use super::{Columns, PySimulation};

/// The kind of a fault in the log, and its probability or share.
fn change_of(change: Change) -> (&'static str, Option<f64>) {
    let value = match change {
        Change::Begins(Effect::Loss(value) | Effect::BitErrors(value) | Effect::Slow(value)) => Some(value),
        Change::Begins(Effect::Mtu(bytes)) => Some(bytes.into()),
        Change::Begins(Effect::Down) | Change::Ends(_) => None,
    };
    (change.name(), value)
}

/// Planes by their numbers.
fn planes(of: PortSet) -> String {
    let planes: Vec<_> = of.iter().map(|plane| plane.to_string()).collect();
    format!("planes {}", planes.join(", "))
}

impl PySimulation {
    fn recorder(&self) -> Option<&Recorder> {
        self.world.recorder()
    }

    fn fabric(&self) -> &Fabric {
        &self.world.config().fabric
    }

    /// The name of a port.
    fn port_name(&self, port: u32) -> String {
        let fabric = self.fabric();
        // The log names few ports, so a search through all links is fast enough.
        let end = (0..fabric.links()).find_map(|number| {
            let direction = self.world.link_ports(number).iter().position(|&p| p == port)?;
            let link = fabric.link(number)?;
            Some(if direction == 0 { fabric.lower_end(link) } else { fabric.upper_end(link) })
        });
        end.map_or_else(|| format!("port {port}"), |end| names::port_name(fabric, end))
    }
}

#[pymethods]
impl PySimulation {
    /// The planes as they are now; none at flow level.
    fn planes(&self) -> Vec<PyPlane> {
        let named = |plane: PlaneNow| PyPlane {
            to_hosts: plane.to_hosts,
            waiting: plane.waiting,
            longest: plane.longest,
            longest_port: (plane.longest > 0).then(|| self.port_name(plane.longest_port)),
        };
        self.world.planes().into_iter().map(named).collect()
    }

    /// Place and counters of every link in both directions, up before down.
    fn links<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.results();
        let port_bytes = self.results.as_ref().map_or(&[][..], |results| &results.port_bytes);
        let fabric = self.fabric();
        let ports = || (0..fabric.links()).flat_map(|link| self.world.link_ports(link));
        let links = || (0..fabric.links()).filter_map(|number| fabric.link(number));
        let both = |value: u64| [value, value];
        let mut columns = Columns::new(py);
        columns.add("plane", links().flat_map(|l| both(l.plane.into())))?;
        columns.add("layer", links().flat_map(|l| both(l.layer.into())))?;
        columns.add("lower", links().flat_map(|l| both(l.lower.into())))?;
        columns.add("uplink", links().flat_map(|l| both(l.uplink.into())))?;
        columns.add("down", links().flat_map(|_| [0, 1]))?;
        columns.add("bytes", ports().map(|port| port_bytes[port as usize]))?;
        let counters = self.recorder().map_or(&[][..], |r| &r.ports);
        if !counters.is_empty() {
            let of = |port: u32| counters[port as usize];
            columns.add("marked", ports().map(|port| of(port).marked))?;
            columns.add("trimmed", ports().map(|port| of(port).trimmed))?;
            columns.add("dropped", ports().map(|port| of(port).dropped))?;
            columns.add("lost", ports().map(|port| of(port).lost))?;
            columns.add("longest_queue", ports().map(|port| of(port).longest))?;
        }
        Ok(columns.done())
    }

    /// Names of links by number.
    fn link_names(&self) -> Vec<String> {
        let fabric = self.fabric();
        (0..fabric.links())
            .filter_map(|number| fabric.link(number))
            .map(|link| fabric.link_name(link))
            .collect()
    }

    /// Counters by connection and entropy value.
    fn evs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut rows: Vec<_> = self.recorder().into_iter().flat_map(|r| &r.paths).collect();
        rows.sort_by_key(|(key, _)| **key);
        let ends = |number| self.world.connection(number).unwrap_or(Connection { src: 0, dst: 0 });
        let mut columns = Columns::new(py);
        columns.add("connection", rows.iter().map(|(key, _)| key.0.into()))?;
        columns.add("src", rows.iter().map(|(key, _)| ends(key.0).src.into()))?;
        columns.add("dst", rows.iter().map(|(key, _)| ends(key.0).dst.into()))?;
        columns.add("ev", rows.iter().map(|(key, _)| key.1.into()))?;
        columns.add("plane", rows.iter().map(|(_, p)| p.plane.into()))?;
        columns.add("sent", rows.iter().map(|(_, p)| p.sent))?;
        columns.add("arrived", rows.iter().map(|(_, p)| p.arrived))?;
        columns.add("trimmed", rows.iter().map(|(_, p)| p.trimmed))?;
        columns.add("marked", rows.iter().map(|(_, p)| p.marked))?;
        columns.add("condemned", rows.iter().map(|(_, p)| p.condemned))?;
        Ok(columns.done())
    }

    /// The time series, if one was taken.
    fn series(&self, py: Python<'_>) -> PyResult<Option<PySeries>> {
        let Some(series) = self.recorder().map(|r| &r.series).filter(|s| !s.time.is_empty()) else {
            return Ok(None);
        };
        let mut columns = Columns::new(py);
        columns.add("time_ps", series.time.iter().copied())?;
        for (index, (name, _)) in Totals::default().named().into_iter().enumerate() {
            columns.add(name, series.totals.iter().map(|totals| totals.named()[index].1))?;
        }
        columns.add("placed", series.placed.iter().copied())?;
        columns.add("placed_by_plane", series.placed_by_plane.iter().copied())?;
        columns.add("groups", series.groups.iter().flatten().copied())?;
        columns.add("sent", series.sent.iter().copied())?;
        columns.add("waiting", series.waiting.iter().copied())?;
        let [patterns, planes, groups, _] = series.widths;
        Ok(Some(PySeries { patterns, planes, groups, columns: columns.done().unbind() }))
    }

    /// The log.
    fn log(&self) -> Vec<LogEntry> {
        let fabric = self.fabric();
        let entry = |&(time, what): &(openmrc_transport::Time, LogEvent)| -> LogEntry {
            let any = LogEntry { time_ps: time.0, ..LogEntry::default() };
            match what {
                LogEvent::Fault(target, change) => {
                    let (kind, value) = change_of(change);
                    LogEntry { kind, place: names::target_name(fabric, target), value, ..any }
                }
                LogEvent::Routing { port, withdrawn } => {
                    let kind = if withdrawn { "route-withdrawn" } else { "route-restored" };
                    LogEntry { kind, place: self.port_name(port), ..any }
                }
                LogEvent::Path { host, peer, ev, plane, good } => LogEntry {
                    kind: if good { "ev-good" } else { "ev-bad" },
                    host: Some(host),
                    peer: Some(peer),
                    ev: Some(ev),
                    plane: Some(plane.into()),
                    ..any
                },
                LogEvent::PeerPorts { host, peer, up } => {
                    let place = planes(up);
                    LogEntry { kind: "peer-ports", place, host: Some(host), peer: Some(peer), ..any }
                }
                LogEvent::NarrowPlanes { host, peer, narrow } => {
                    let place = planes(narrow);
                    LogEntry { kind: "mtu-refused", place, host: Some(host), peer: Some(peer), ..any }
                }
                LogEvent::Failed { host, peer } => {
                    LogEntry { kind: "qp-failed", host: Some(host), peer: Some(peer), ..any }
                }
            }
        };
        self.recorder().map_or_else(Vec::new, |recorder| recorder.log.iter().map(entry).collect())
    }

    /// Entries that the log had no room for.
    fn log_missed(&self) -> u64 {
        self.recorder().map_or(0, |recorder| recorder.log_missed)
    }

    /// Packets captured since the last call, `snaplen` bytes of each.
    fn captured(&mut self, py: Python<'_>, snaplen: usize) -> Vec<CapturedPacket> {
        let taken = match self.world.recorder_mut().and_then(|r| r.capture.as_mut()) {
            Some(capture) => capture.take(),
            None => Vec::new(),
        };
        taken
            .iter()
            .map(|packet| {
                let bytes = self.world.frame(packet);
                let kept = &bytes[..bytes.len().min(snaplen)];
                CapturedPacket {
                    time_ps: packet.time.0,
                    port: packet.port,
                    length: bytes.len(),
                    data: PyBytes::new(py, kept).unbind(),
                }
            })
            .collect()
    }

    /// The ports that send up and down a link, by the link's number.
    fn link_ports(&self, link: u32) -> [u32; 2] {
        self.world.link_ports(link)
    }
}
