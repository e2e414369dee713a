//! The record of a run as columns: links, paths, time series, log, captured packets.

use openmrc_fabric::Fabric;
use openmrc_scenario::run::Change;
use openmrc_scenario::{Engine, Totals, names};
use openmrc_sim::{LogEvent, Recorder};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::{Columns, PySimulation};

/// One log entry: time, kind, place, host, peer, entropy value, plane, value of the change.
type LogRow = (u64, &'static str, String, Option<u32>, Option<u32>, Option<u32>, Option<u32>, Option<f64>);

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
    /// Place and counters of every link in both directions, up before down.
    fn links<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (fabric, results) = (self.fabric(), self.world.results());
        let ports = || (0..fabric.links()).flat_map(|link| self.world.link_ports(link));
        let links = || (0..fabric.links()).filter_map(|number| fabric.link(number));
        let both = |value: u64| [value, value];
        let mut columns = Columns::new(py);
        columns.add("plane", links().flat_map(|l| both(l.plane.into())))?;
        columns.add("layer", links().flat_map(|l| both(l.layer.into())))?;
        columns.add("lower", links().flat_map(|l| both(l.lower.into())))?;
        columns.add("uplink", links().flat_map(|l| both(l.uplink.into())))?;
        columns.add("down", links().flat_map(|_| [0, 1]))?;
        columns.add("bytes", ports().map(|port| results.port_bytes[port as usize]))?;
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
        let ends = |connection| self.world.connection(connection);
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

    /// The time series: the number of values per sample in `placed`, `placed_by_plane`, `groups` and `sent`, then the
    /// columns. A group has three values: sent, waiting, longest. `waiting` is as wide as `sent`.
    fn series<'py>(&self, py: Python<'py>) -> PyResult<Option<([usize; 4], Bound<'py, PyDict>)>> {
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
        Ok(Some((series.widths, columns.done())))
    }

    /// The log, and the number of entries that did not fit.
    fn log(&self) -> (Vec<LogRow>, u64) {
        let Some(recorder) = self.recorder() else { return (Vec::new(), 0) };
        let fabric = self.fabric();
        let row = |&(time, what): &(openmrc_transport::Time, LogEvent)| -> LogRow {
            match what {
                LogEvent::Fault(target, change) => {
                    let name = names::target_name(fabric, target);
                    let (kind, value) = match change {
                        Change::Down => ("down", None),
                        Change::Up => ("up", None),
                        Change::Loss(p) => ("loss", Some(p)),
                        Change::BitErrors(p) => ("bit-errors", Some(p)),
                        Change::Slow(share) => ("slow", Some(share)),
                    };
                    (time.0, kind, name, None, None, None, None, value)
                }
                LogEvent::Routing { port, withdrawn } => {
                    let kind = if withdrawn { "route-withdrawn" } else { "route-restored" };
                    (time.0, kind, self.port_name(port), None, None, None, None, None)
                }
                LogEvent::Path { host, peer, ev, plane, good } => {
                    let kind = if good { "ev-good" } else { "ev-bad" };
                    let (host, peer) = (Some(host), Some(peer));
                    (time.0, kind, String::new(), host, peer, Some(ev), Some(plane.into()), None)
                }
                LogEvent::PeerPorts { host, peer, up } => {
                    let planes: Vec<_> = up.iter().map(|plane| plane.to_string()).collect();
                    let planes = format!("planes {}", planes.join(", "));
                    (time.0, "peer-ports", planes, Some(host), Some(peer), None, None, None)
                }
                LogEvent::Failed { host, peer } => {
                    (time.0, "qp-failed", String::new(), Some(host), Some(peer), None, None, None)
                }
            }
        };
        (recorder.log.iter().map(row).collect(), recorder.log_missed)
    }

    /// Packets captured since the last call: time in picoseconds, port, length on the wire, and the first `snaplen`
    /// bytes.
    fn captured<'py>(
        &mut self,
        py: Python<'py>,
        snaplen: usize,
    ) -> Vec<(u64, u32, usize, Bound<'py, PyBytes>)> {
        let taken = match self.world.recorder_mut().and_then(|r| r.capture.as_mut()) {
            Some(capture) => capture.take(),
            None => Vec::new(),
        };
        taken
            .iter()
            .map(|packet| {
                let bytes = self.world.frame(packet);
                let kept = &bytes[..bytes.len().min(snaplen)];
                (packet.time.0, packet.port, bytes.len(), PyBytes::new(py, kept))
            })
            .collect()
    }

    /// The ports that send up and down a link, by the link's number.
    fn link_ports(&self, link: u32) -> [u32; 2] {
        self.world.link_ports(link)
    }
}
