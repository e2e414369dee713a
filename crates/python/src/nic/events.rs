//! Readers of a device's events. Each has all events to itself; an event is a dictionary of the fields of its Python
//! class.

use std::os::fd::RawFd;
use std::sync::Arc;

use openmrc_nic::{AsyncEvent, EventReader, PathEvent};
use openmrc_transport::{EvChange, PortSet};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::convert::port_list;
use super::error::OrRaise;

macro_rules! reader {
    ($(#[$doc:meta])* $name:ident($event:ty), $fields:ident) => {
        $(#[$doc])*
        #[pyclass(frozen, module = "openmrc._core")]
        pub struct $name(Arc<EventReader<$event>>);

        impl $name {
            pub(super) fn new(reader: Arc<EventReader<$event>>) -> Self {
                $name(reader)
            }
        }

        #[pymethods]
        impl $name {
            /// A descriptor that is readable while there are unread events.
            fn fd(&self) -> RawFd {
                self.0.fd()
            }

            /// The fields of the oldest unread event.
            fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
                self.0.check_process().or_raise()?;
                self.0.next().map(|event| $fields(py, event)).transpose()
            }

            /// Events that were dropped because too many were unread.
            fn dropped(&self) -> PyResult<u64> {
                self.0.check_process().or_raise()?;
                Ok(self.0.dropped())
            }
        }
    };
}

reader!(
    /// Asynchronous events, as fields of `openmrc.verbs.AsyncEvent`.
    AsyncEventReader(AsyncEvent),
    async_event
);
reader!(
    /// EV events, as fields of `openmrc.verbs.EvEvent`.
    EvEventReader(PathEvent),
    ev_event
);

fn async_event<'py>(py: Python<'py>, event: AsyncEvent) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let kind = match event {
        AsyncEvent::PortUp(port) => {
            fields.set_item("port", port)?;
            "port_active"
        }
        AsyncEvent::PortDown(port) => {
            fields.set_item("port", port)?;
            "port_err"
        }
        AsyncEvent::PeerPorts { qp_num, up } => {
            fields.set_item("qp_num", qp_num)?;
            fields.set_item("ports_up", port_list(PortSet(up)))?;
            "peer_ports"
        }
        AsyncEvent::QpFatal { qp_num, reason } => {
            fields.set_item("qp_num", qp_num)?;
            fields.set_item("reason", reason.to_string())?;
            "qp_fatal"
        }
        AsyncEvent::PeerSilent { qp_num } => {
            fields.set_item("qp_num", qp_num)?;
            "peer_silent"
        }
        AsyncEvent::PeerHeard { qp_num } => {
            fields.set_item("qp_num", qp_num)?;
            "peer_heard"
        }
        AsyncEvent::CqError { cq } => {
            fields.set_item("cq", cq)?;
            "cq_err"
        }
    };
    fields.set_item("type", kind)?;
    Ok(fields)
}

fn ev_event<'py>(py: Python<'py>, event: PathEvent) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("time_ns", event.time_ns)?;
    fields.set_item("qp_num", event.qp_num)?;
    fields.set_item("profile_id", event.profile)?;
    fields.set_item("ev", event.ev.0)?;
    fields.set_item("port", event.port)?;
    fields.set_item(
        "state",
        match event.change {
            EvChange::AssumedBad => "assumed_bad",
            EvChange::Good => "good",
        },
    )?;
    Ok(fields)
}
