//! A user's own path selector and congestion controller: Python classes behind the transport's traits, one object per
//! queue pair.
//!
//! A run holds the GIL only during these calls. The first exception ends the run: no further call is made, and
//! `Simulation.advance` raises the exception.

use std::sync::{Arc, Mutex};

use openmrc_transport::mrc::{Ack, Choice, Congestion, CustomCc, CustomSelector, PathSelector};
use openmrc_transport::{PortSet, Time};
use pyo3::prelude::*;

pyo3::import_exception!(openmrc.errors, ArgumentError);

/// The first exception raised by a user's class.
#[derive(Clone, Default)]
pub struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    /// Removes and returns the exception.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().ok()?.take()
    }

    fn is_set(&self) -> bool {
        self.0.lock().map_or(true, |failure| failure.is_some())
    }

    fn set(&self, error: PyErr) {
        if let Ok(mut failure) = self.0.lock() {
            failure.get_or_insert(error);
        }
    }

    /// Calls into Python unless an exception is stored; stores the exception if the call raises one.
    fn call<T>(&self, f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        if self.is_set() {
            return None;
        }
        Python::attach(|py| f(py).map_err(|error| self.set(error)).ok())
    }
}

/// An object of a user's class; `None` if its constructor raised.
struct Object(Option<Py<PyAny>>, Failure);

impl Object {
    fn call<T>(&self, f: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        let object = self.0.as_ref()?;
        self.1.call(|py| f(object.bind(py)))
    }
}

/// A user's congestion controller: `class(mtu, rate_bps, base_rtt_ps)`.
pub fn congestion(
    class: Py<PyAny>,
    failure: &Failure,
    mtu: u32,
    rate_bps: u64,
    base_rtt_ps: u64,
) -> CustomCc {
    let failure = failure.clone();
    CustomCc(Arc::new(move || {
        let made = failure.call(|py| class.call1(py, (mtu, rate_bps, base_rtt_ps)));
        let mut controller =
            UserCongestion { object: Object(made, failure.clone()), mtu, window: mtu.into() };
        controller.update(|_| Ok(()));
        Box::new(controller)
    }))
}

struct UserCongestion {
    object: Object,
    mtu: u32,
    window: f64,
}

impl UserCongestion {
    /// Calls the object and reads its window afterwards.
    fn update(&mut self, f: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        let window = self.object.call(|object| {
            f(object)?;
            let window = object.getattr("window")?.extract::<f64>()?;
            if window.is_finite() && window >= 0.0 {
                return Ok(window);
            }
            Err(ArgumentError::new_err(format!("window: {window} is not a number of bytes")))
        });
        if let Some(window) = window {
            self.window = window.max(self.mtu.into());
        }
    }
}

impl Congestion for UserCongestion {
    fn window(&self) -> f64 {
        self.window
    }
    fn set_window(&mut self, bytes: f64) {
        self.update(|object| object.setattr("window", bytes));
    }
    fn on_sack(&mut self, now: Time, ack: &Ack) {
        let arguments = (now.0, ack.newly, ack.rtt.map(|rtt| rtt.0), ack.ecn);
        self.update(|object| object.call_method1("on_sack", arguments).map(drop));
    }
    fn on_trim(&mut self, now: Time, bytes: u32, _in_flight: i64) {
        self.update(|object| object.call_method1("on_trim", (now.0, bytes)).map(drop));
    }
    fn on_loss(&mut self, now: Time, bytes: u32, _in_flight: i64) {
        self.update(|object| object.call_method1("on_loss", (now.0, bytes)).map(drop));
    }
}

/// A user's path selector: `class(ports, seed)`.
pub fn selector(class: Py<PyAny>, failure: &Failure) -> CustomSelector {
    let failure = failure.clone();
    CustomSelector(Arc::new(move |ports: &[u8], seed: u64| {
        let list: Vec<u32> = ports.iter().map(|&port| u32::from(port)).collect();
        let made = failure.call(|py| class.call1(py, (list, seed)));
        Box::new(UserSelector { object: Object(made, failure.clone()), ports: ports.into() })
    }))
}

struct UserSelector {
    object: Object,
    ports: Box<[u8]>,
}

impl UserSelector {
    fn check(&self, path: usize, free: PortSet) -> PyResult<u16> {
        match self.ports.get(path) {
            None => {
                let last = self.ports.len() - 1;
                Err(ArgumentError::new_err(format!("select returned path {path}: there are 0 to {last}")))
            }
            Some(&port) if !free.contains(port) => {
                let text = format!("select returned path {path} on port {port}, which is not free");
                Err(ArgumentError::new_err(text))
            }
            Some(_) => Ok(path as u16),
        }
    }
}

impl PathSelector for UserSelector {
    fn select(&mut self, choice: &Choice) -> Option<u16> {
        let arguments = (choice.now.0, u32::from(choice.free.0), choice.avoid);
        let path = self.object.call(|object| {
            let path: Option<usize> = object.call_method1("select", arguments)?.extract()?;
            path.map(|path| self.check(path, choice.free)).transpose()
        });
        path.flatten()
    }
    fn acked(&mut self, path: u16) {
        self.object.call(|object| object.call_method1("acked", (path,)).map(drop));
    }
    fn congested(&mut self, path: u16) {
        self.object.call(|object| object.call_method1("congested", (path,)).map(drop));
    }
    fn lost(&mut self, path: u16) {
        self.object.call(|object| object.call_method1("lost", (path,)).map(drop));
    }
}
