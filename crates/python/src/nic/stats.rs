//! Counters as dictionaries. The names are those of the core.

use openmrc_nic::{ContextStats, PathStats, PortStats};
use openmrc_transport::mrc::QpStats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

macro_rules! fields {
    ($py:expr, $from:expr, $($name:ident),* $(,)?) => {{
        let out = PyDict::new($py);
        $(out.set_item(stringify!($name), $from.$name)?;)*
        out
    }};
}

fn port<'py>(py: Python<'py>, stats: &PortStats) -> PyResult<Bound<'py, PyDict>> {
    Ok(fields!(
        py,
        stats,
        tx_packets,
        tx_bytes,
        tx_calls,
        rx_packets,
        rx_bytes,
        rx_datagrams,
        rx_ecn_marked,
        rx_overflow
    ))
}

pub fn path<'py>(py: Python<'py>, stats: &PathStats) -> PyResult<Bound<'py, PyDict>> {
    let out = fields!(py, stats, port, tx_packets, tx_bytes, last_tx_ns);
    out.set_item("ev", stats.ev.0)?;
    if let Some(route) = stats.route {
        out.set_item("address", route.destination.to_string())?;
        out.set_item("segment", route.segment.map(|segment| segment.to_string()))?;
    }
    Ok(out)
}

pub fn context<'py>(py: Python<'py>, stats: &ContextStats) -> PyResult<Bound<'py, PyDict>> {
    let out = fields!(py, stats, iterations, sleeps, send_descriptors);
    let ports = stats.ports.iter().map(|stats| port(py, stats)).collect::<PyResult<Vec<_>>>()?;
    out.set_item("ports", ports)?;
    let causes = PyDict::new(py);
    for (cause, count) in stats.causes.iter() {
        causes.set_item(cause.name(), count)?;
    }
    out.set_item("causes", causes)?;
    let peers = PyDict::new(py);
    for (difference, count) in stats.differences.iter() {
        peers.set_item(difference.counter(), count)?;
    }
    out.set_item("peers", peers)?;
    let node = fields!(
        py,
        stats.node,
        port_updates_sent,
        port_updates_applied,
        ports_contradicted,
        ports_asked,
        requests_answered,
        requests_limited,
        probes_unanswered,
        endpoint_invalid,
        overflows
    );
    out.set_item("node", node)?;
    Ok(out)
}

pub fn queue_pair<'py>(py: Python<'py>, stats: &QpStats) -> PyResult<Bound<'py, PyDict>> {
    let mut stats = *stats;
    // The responder counts in units of 256 bytes, rounded up: by less than that, more may be acknowledged than was sent.
    stats.in_flight = stats.in_flight.max(0);
    let out = fields!(
        py,
        stats,
        duplicates_in,
        refused_in,
        trimmed_in,
        cwnd,
        in_flight,
        srtt_ns,
        reorder_window_ns,
        data_packets,
        data_bytes,
        data_packets_in,
        retransmits,
        lost,
        trimmed,
        spurious,
        timeouts,
        probes,
        path_probes,
        sacks_sent,
        sacks_in,
        nacks_sent,
        condemned,
        invalid,
        peer_swapped_entropy,
        peer_unknown_entropy,
    );
    out.set_item("peer_no_mpr", stats.peer.no_mpr)?;
    out.set_item("peer_bad_timestamps", stats.peer.bad_timestamps)?;
    out.set_item("peer_unknown_syndrome", stats.peer.unknown_syndrome)?;
    out.set_item("peer_other_ids", stats.peer.other_ids)?;
    Ok(out)
}
