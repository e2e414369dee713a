//! Communicators for Python, below `openmrc.collectives`. An operation owns the exports of its buffers until it has
//! ended. Calls that may wait release the GIL.

use std::time::Duration;

use openmrc_collectives::{
    Algorithm, Call, Communicator, DataType, Error, Lent, Options, ReduceOp, Rendezvous, Shape, Tuning, Work,
};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::nic::context::Context;
use crate::nic::error::refused;
use crate::pinned::{Pinned, Returned};

pyo3::import_exception!(openmrc.errors, AbortedError);
pyo3::import_exception!(openmrc.errors, ArgumentError);
pyo3::import_exception!(openmrc.errors, ClosedError);
pyo3::import_exception!(openmrc.errors, DeadlineError);
pyo3::import_exception!(openmrc.errors, DeviceError);
pyo3::import_exception!(openmrc.errors, MismatchError);
pyo3::import_exception!(openmrc.errors, RankLostError);

/// Adds the classes to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CollectiveRendezvous>()?;
    module.add_class::<CollectiveGroup>()?;
    module.add_class::<CollectiveWork>()?;
    let default = Options::default();
    let defaults = PyDict::new(module.py());
    defaults.set_item("shared_memory", default.shared_memory)?;
    defaults.set_item("path_mtu", default.path_mtu)?;
    defaults.set_item("keepalive_ms", default.keepalive_ms)?;
    defaults.set_item("spin_us", default.spin.as_secs_f64() * 1e6)?;
    module.add("COLLECTIVE_DEFAULTS", defaults)
}

fn exception(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::Invalid(_) => ArgumentError::new_err(text),
        Error::Mismatch { .. } => MismatchError::new_err(text),
        Error::PeerLost { rank, .. } => {
            let raised = RankLostError::new_err(text);
            Python::attach(|py| {
                // An attribute of a new exception; it can always be set.
                let _ = raised.value(py).setattr("rank", rank);
            });
            raised
        }
        Error::Timeout { .. } => DeadlineError::new_err(text),
        Error::Aborted(_) => AbortedError::new_err(text),
        Error::Closed => ClosedError::new_err(text),
        Error::Device { .. } => DeviceError::new_err(text),
    }
}

fn named<T>(what: &str, name: &str, found: Option<T>, all: &[&str]) -> PyResult<T> {
    found.ok_or_else(|| refused(format!("there is no {what} {name:?}: {}", all.join(", "))))
}

fn dtype(name: &str) -> PyResult<DataType> {
    named("element type", name, DataType::from_name(name), &DataType::ALL.map(DataType::name))
}

fn span(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| refused(format!("{seconds} s is no time limit")))
}

/// The first half of a communicator.
#[pyclass(frozen, module = "openmrc._core")]
pub struct CollectiveRendezvous(Mutex<Option<Rendezvous>>);

#[pymethods]
impl CollectiveRendezvous {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one place where Python's options become a struct")]
    fn new(
        py: Python<'_>,
        context: &Context,
        rank: usize,
        ranks: usize,
        host: &str,
        shared_memory: bool,
        path_mtu: u16,
        keepalive_ms: u32,
        spin_us: f64,
        crowded: bool,
        tuning: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = Options {
            shared_memory,
            path_mtu,
            keepalive_ms,
            spin: span(spin_us * 1e-6)?,
            crowded,
            tuning: read_tuning(tuning)?,
        };
        let made = py.detach(|| Rendezvous::new(&context.context, rank, ranks, host, options));
        made.map(|rendezvous| CollectiveRendezvous(Mutex::new(Some(rendezvous)))).map_err(exception)
    }

    /// The card for a peer.
    fn card<'py>(&self, py: Python<'py>, peer: usize) -> PyResult<Bound<'py, PyBytes>> {
        let guard = self.0.lock();
        let rendezvous =
            guard.as_ref().ok_or_else(|| ClosedError::new_err("the ranks are connected already"))?;
        Ok(PyBytes::new(py, rendezvous.card(peer)))
    }

    /// Connects with the peers, whose cards are given by rank.
    fn connect(&self, py: Python<'_>, cards: Vec<Vec<u8>>) -> PyResult<CollectiveGroup> {
        let rendezvous = self.0.lock().take();
        let rendezvous = rendezvous.ok_or_else(|| ClosedError::new_err("the ranks are connected already"))?;
        let connected = py.detach(|| rendezvous.connect(&cards));
        let group = |communicator| CollectiveGroup { communicator, returned: Returned::default() };
        connected.map(group).map_err(exception)
    }
}

fn read_tuning(given: &Bound<'_, PyDict>) -> PyResult<Tuning> {
    let mut tuning = Tuning::default();
    for (key, value) in given {
        let key: String = key.extract()?;
        let field = match key.as_str() {
            "direct" => &mut tuning.direct,
            "halving" => &mut tuning.halving,
            "tree" => &mut tuning.tree,
            "direct_ranks" => &mut tuning.direct_ranks,
            _ => {
                return Err(refused(format!(
                    "there is no {key:?} to tune: direct, halving, tree, direct_ranks"
                )));
            }
        };
        *field = value.extract()?;
    }
    Ok(tuning)
}

/// A record as a tuple; see [`CollectiveGroup::take_records`].
type RecordFields = (u64, &'static str, &'static str, u64, u64, f64, u64, u64, usize, u64, Vec<(usize, u64)>);

/// A communicator.
#[pyclass(frozen, module = "openmrc._core")]
pub struct CollectiveGroup {
    communicator: Communicator,
    /// Buffers of operations that have ended.
    returned: Returned,
}

impl CollectiveGroup {
    /// The memory of an object, which stays in place until the operation that gets it has ended.
    fn lend(&self, object: &Bound<'_, PyAny>) -> PyResult<Lent> {
        let pinned = Pinned::new(object)?;
        let (data, len) = (pinned.data(), pinned.len());
        let owner = Box::new(self.returned.owner(pinned.into_holds()));
        // SAFETY: the owner holds the memory in place. `openmrc.collectives` refuses read-only memory that is written.
        Ok(unsafe { Lent::new(data, len, owner) })
    }

    /// What has begun, and may have ended at once.
    fn begun(&self, py: Python<'_>, begun: Result<Work, Error>) -> PyResult<CollectiveWork> {
        self.returned.release(py);
        let returned = self.returned.clone();
        begun.map(|work| CollectiveWork { work, returned }).map_err(exception)
    }
}

#[pymethods]
impl CollectiveGroup {
    /// Begins an operation. `kind` names it; `counts` are its sizes in elements: one for all, or one per rank; of
    /// all_to_all those sent, then those received. Without an output the input is the output.
    #[expect(clippy::too_many_arguments, reason = "the fields of a call")]
    fn call(
        &self,
        py: Python<'_>,
        kind: &str,
        counts: Vec<usize>,
        root: usize,
        element: &str,
        op: &str,
        factor: Option<f64>,
        input: Option<&Bound<'_, PyAny>>,
        output: Option<&Bound<'_, PyAny>>,
        algorithm: Option<&str>,
        timeout: f64,
    ) -> PyResult<CollectiveWork> {
        let n = self.communicator.size();
        let count = counts.first().copied().unwrap_or(0);
        let shape = match kind {
            "all_reduce" => Shape::AllReduce { count },
            "reduce_scatter" => Shape::ReduceScatter { counts },
            "all_gather" => Shape::AllGather { counts },
            "all_to_all" if counts.len() == 2 * n => {
                Shape::AllToAll { send: counts[..n].to_vec(), recv: counts[n..].to_vec() }
            }
            "all_to_all" => return Err(refused(format!("all_to_all needs one count for each of {n} ranks"))),
            "broadcast" => Shape::Broadcast { root, count },
            "reduce" => Shape::Reduce { root, count },
            "gather" => Shape::Gather { root, count },
            "scatter" => Shape::Scatter { root, count },
            "barrier" => Shape::Barrier,
            _ => return Err(refused(format!("there is no operation {kind:?}"))),
        };
        let algorithm = algorithm
            .map(|name| {
                named("algorithm", name, Algorithm::from_name(name), &Algorithm::ALL.map(Algorithm::name))
            })
            .transpose()?;
        let (dtype, timeout) = (dtype(element)?, span(timeout)?);
        let op = named("reduction", op, ReduceOp::from_name(op), &ReduceOp::ALL.map(ReduceOp::name))?;
        let input = input.map_or_else(|| Ok(Lent::empty()), |input| self.lend(input))?;
        let output = output.map(|output| self.lend(output)).transpose()?;
        let call = Call { shape, dtype, op, factor, input, output, algorithm, timeout };
        self.begun(py, py.detach(|| self.communicator.call(call)))
    }

    /// Begins to send the bytes of `data` to a rank.
    fn send(
        &self,
        py: Python<'_>,
        to: usize,
        tag: u64,
        element: &str,
        data: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<CollectiveWork> {
        let (data, dtype, timeout) = (self.lend(data)?, dtype(element)?, span(timeout)?);
        self.begun(py, py.detach(|| self.communicator.send(to, tag, data, dtype, timeout)))
    }

    /// Begins to receive as many bytes as `data` has from a rank, or from any.
    fn recv(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: u64,
        element: &str,
        data: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<CollectiveWork> {
        let (data, dtype, timeout) = (self.lend(data)?, dtype(element)?, span(timeout)?);
        self.begun(py, py.detach(|| self.communicator.recv(source, tag, data, dtype, timeout)))
    }

    fn local_peers(&self, py: Python<'_>) -> Vec<usize> {
        py.detach(|| self.communicator.local_peers())
    }

    fn host(&self, py: Python<'_>, peer: usize) -> Option<String> {
        py.detach(|| self.communicator.host(peer))
    }

    /// The ranks for which the oldest operation waits, each with what is missing.
    fn waits_for(&self, py: Python<'_>) -> Vec<(usize, &'static str)> {
        py.detach(|| self.communicator.waits_for())
    }

    /// The ranks that have not called the oldest operation; empty as long as that is not known.
    fn not_called(&self, py: Python<'_>) -> Vec<usize> {
        py.detach(|| self.communicator.not_called())
    }

    /// A peer on another host has ended.
    fn peer_ended(&self, py: Python<'_>, peer: usize, reason: &str) {
        py.detach(|| self.communicator.peer_ended(peer, reason));
        self.returned.release(py);
    }

    /// Raises the error of a communicator that has failed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.communicator.error()).map_or(Ok(()), |error| Err(exception(error)))
    }

    /// Operations that have ended, bytes through shared memory, bytes over the network.
    fn totals(&self, py: Python<'_>) -> (u64, u64, u64) {
        py.detach(|| self.communicator.totals())
    }

    /// Records since the last call: number, name, algorithm, bytes, end in ns, duration in s, shared bytes, network bytes,
    /// root or peer, tag, messages.
    fn take_records(&self, py: Python<'_>) -> Vec<RecordFields> {
        let records = py.detach(|| self.communicator.take_records());
        let fields = |r: openmrc_collectives::OperationRecord| {
            let duration = r.duration.as_secs_f64();
            (
                r.number,
                r.name,
                r.algorithm,
                r.bytes,
                r.end_ns,
                duration,
                r.shared_bytes,
                r.network_bytes,
                r.peer,
                r.tag,
                r.messages,
            )
        };
        records.into_iter().map(fields).collect()
    }

    fn record_messages(&self, py: Python<'_>, on: bool) {
        py.detach(|| self.communicator.record_messages(on));
    }

    fn abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.communicator.abort(reason));
        self.returned.release(py);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.communicator.close());
        self.returned.release(py);
    }
}

/// An operation under way.
#[pyclass(frozen, module = "openmrc._core")]
pub struct CollectiveWork {
    work: Work,
    returned: Returned,
}

impl CollectiveWork {
    /// Whether it has ended; if so, its buffers are released.
    fn released(&self, py: Python<'_>, ended: bool) -> bool {
        if ended {
            self.returned.release(py);
        }
        ended
    }
}

#[pymethods]
impl CollectiveWork {
    #[getter]
    fn name(&self) -> String {
        self.work.name()
    }

    #[getter]
    fn done(&self, py: Python<'_>) -> bool {
        self.released(py, self.work.is_done())
    }

    #[getter]
    fn source(&self) -> Option<usize> {
        self.work.source()
    }

    /// Seconds since the call.
    #[getter]
    fn elapsed(&self) -> f64 {
        self.work.elapsed().as_secs_f64()
    }

    /// A descriptor that is readable once it has ended. The work keeps it.
    fn fd(&self) -> PyResult<i32> {
        self.work.fd().map_err(exception)
    }

    /// Waits for at most `seconds`; whether it has ended.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let timeout = span(seconds)?;
        let ended = py.detach(|| self.work.wait(Some(timeout)));
        Ok(self.released(py, ended))
    }

    /// Raises the error with which it has ended, if any.
    fn check(&self) -> PyResult<()> {
        self.work.result().unwrap_or(Ok(())).map_err(exception)
    }
}
