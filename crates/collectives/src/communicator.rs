//! A communicator: the ranks of a job, or some of them, and the operations between them (docs/spec/collectives.md).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openmrc_schedule::{Rank, Tuning};
use parking_lot::Mutex;

use crate::abort::AbortKind;
use crate::call::Call;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::header::Signature;
use crate::memory::{Lent, OperationMemory};
use crate::operation::{Operation, Reduction};
use crate::p2p::Incoming;
use crate::record::OperationRecord;
use crate::types::DataType;
use crate::work::{Subject, WorkState};

/// How long closing waits for peers to acknowledge what was sent to them.
const FAREWELL: Duration = Duration::from_secs(5);

/// A communicator. Dropping it closes it.
pub struct Communicator {
    rank: Rank,
    ranks: usize,
    driver: Arc<Driver>,
    tuning: Tuning,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An operation under way. Dropping the handle does not end the operation.
#[derive(Clone)]
pub struct Work {
    driver: Arc<Driver>,
    state: Arc<WorkState>,
}

impl Communicator {
    pub(crate) fn start(rank: Rank, ranks: usize, driver: Driver, tuning: Tuning) -> Result<Communicator> {
        let driver = Arc::new(driver);
        let theirs = Arc::clone(&driver);
        let thread = std::thread::Builder::new()
            .name("openmrc-collectives".into())
            .spawn(move || theirs.run())
            .map_err(|e| Error::device("a thread", e))?;
        Ok(Communicator { rank, ranks, driver, tuning, thread: Mutex::new(Some(thread)) })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.ranks
    }

    /// The peers that are reached through shared memory.
    pub fn local_peers(&self) -> Vec<Rank> {
        let core = self.driver.core.lock();
        core.links.iter().flatten().filter(|link| link.is_local()).map(|link| link.peer).collect()
    }

    /// Begins a collective operation, which owns the call's memory until it has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the call cannot be executed; [`Error::Closed`]. That of a communicator that has failed is
    /// the work's.
    pub fn call(&self, call: Call) -> Result<Work> {
        call.check(self.rank, self.ranks)?;
        let Call { shape, dtype, op, factor, input, output, algorithm, timeout } = call;
        let size = dtype.size();
        let algorithm = algorithm.unwrap_or_else(|| self.tuning.choose(&shape, self.ranks, size));
        let program = shape.program(algorithm, self.rank, self.ranks, size);
        let signature = Signature {
            count: shape.common_count() as u64,
            root: shape.root().unwrap_or(0) as u32,
            kind: shape.code(),
            dtype: dtype as u8,
            op: if shape.reduces() { op as u8 } else { 255 },
            algorithm: algorithm as u8,
        };
        let reduction = shape.reduces().then_some(Reduction { dtype, op, ranks: self.ranks as u32 });
        let work = Arc::new(WorkState::new(Subject::Collective(signature), timeout));
        // SAFETY: `check` has compared the lengths with the sizes of the shape, beyond which a program has no spans.
        let mut memory = unsafe { OperationMemory::new(input, output, program.scratch) };
        if let Some(factor) = factor {
            // SAFETY: the input of an operation that reduces has this many elements.
            unsafe { memory.scale_input(shape.sizes(self.rank, self.ranks).0, factor, dtype) };
        }
        let mut core = self.driver.lock()?;
        let state = Arc::clone(&work);
        let number = core.next_call();
        let operation = Operation::new(number, signature, program, reduction, memory, self.ranks, state);
        core.submit(operation);
        drop(core);
        Ok(self.begun(work))
    }

    /// Sends bytes to a rank, which receives them with the same tag.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank that is not another one; [`Error::Closed`].
    pub fn send(&self, to: Rank, tag: u64, data: Lent, dtype: DataType, timeout: Duration) -> Result<Work> {
        self.check_peer(to)?;
        let work = Arc::new(WorkState::new(Subject::Send { bytes: data.len(), to, tag }, timeout));
        self.driver.lock()?.send(to, tag, data, dtype, Arc::clone(&work));
        Ok(self.begun(work))
    }

    /// Receives as many bytes as there is room for from a rank, or from any.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub fn recv(
        &self,
        from: Option<Rank>,
        tag: u64,
        data: Lent,
        dtype: DataType,
        timeout: Duration,
    ) -> Result<Work> {
        from.map_or(Ok(()), |from| self.check_peer(from))?;
        let work = Arc::new(WorkState::new(Subject::Recv { bytes: data.len(), from, tag }, timeout));
        self.driver.lock()?.recv(Incoming { from, tag, data, dtype, work: Arc::clone(&work) });
        Ok(self.begun(work))
    }

    fn begun(&self, state: Arc<WorkState>) -> Work {
        self.driver.begun(&state);
        Work { driver: Arc::clone(&self.driver), state }
    }

    fn check_peer(&self, peer: Rank) -> Result<()> {
        if peer >= self.ranks || peer == self.rank {
            return Err(Error::invalid(format!(
                "rank {} of {} cannot exchange messages with rank {peer}",
                self.rank, self.ranks
            )));
        }
        Ok(())
    }

    /// Why the communicator has failed; `None` while it works.
    pub fn error(&self) -> Option<Error> {
        if !self.driver.process.is_current() {
            return Some(Error::Closed);
        }
        let mut core = self.driver.core.lock();
        // Peers may have told something while nothing was under way here.
        core.progress();
        core.error().cloned()
    }

    /// The ranks for which the oldest operation waits, each with what is missing.
    pub fn waits_for(&self) -> Vec<(Rank, &'static str)> {
        self.driver.core.lock().waits_for()
    }

    /// The ranks that have not called the oldest operation; empty as long as that is not known.
    pub fn not_called(&self) -> Vec<Rank> {
        self.driver.core.lock().not_called()
    }

    /// A peer of another host, or that is reached like one, has ended: operations that need it end with an error.
    pub fn peer_ended(&self, peer: Rank, reason: &str) {
        if !self.driver.process.is_current() {
            return;
        }
        let mut core = self.driver.core.lock();
        core.peer_ended(peer, reason);
        core.check(Instant::now());
        drop(core);
        self.driver.wake_driver();
        self.driver.notify();
    }

    /// Host of each peer.
    pub fn host(&self, peer: Rank) -> Option<String> {
        self.driver.core.lock().links.get(peer)?.as_ref().map(|link| link.host.clone())
    }

    /// Whether the records of operations that begin from now on list the messages that they sent.
    pub fn record_messages(&self, on: bool) {
        self.driver.core.lock().log.with_messages = on;
    }

    /// Records of operations that have ended since the last call.
    pub fn take_records(&self) -> Vec<OperationRecord> {
        self.driver.core.lock().log.take()
    }

    /// Operations that have ended; bytes sent through shared memory and over the network, with point-to-point messages.
    pub fn totals(&self) -> (u64, u64, u64) {
        let core = self.driver.core.lock();
        let [shared, network] = core.p2p_bytes();
        (core.log.operations, core.log.shared_bytes + shared, core.log.network_bytes + network)
    }

    /// Aborts the communicator: every operation here and at the other ranks ends with an error.
    pub fn abort(&self, reason: &str) {
        if !self.driver.process.is_current() {
            return;
        }
        let mut core = self.driver.core.lock();
        let rank = self.rank;
        core.fail(Error::Aborted(reason.into()), AbortKind::Asked, rank);
        while !core.has_failed() {
            core.progress();
            std::thread::yield_now();
        }
        drop(core);
        self.driver.notify();
    }

    /// Ends the communicator. Operations under way are given up. A second call does nothing.
    pub fn close(&self) {
        if !self.driver.process.is_current() {
            // The thread is the parent's.
            std::mem::forget(self.thread.try_lock().and_then(|mut thread| thread.take()));
            return;
        }
        let Some(thread) = self.thread.lock().take() else { return };
        if !self.driver.core.lock().is_idle() {
            self.abort("it was closed while operations were under way");
        }
        // The last messages may still be in flight. Closing the queue pairs would lose them.
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            let mut core = self.driver.core.lock();
            core.progress();
            if core.has_failed() || core.is_delivered() {
                break;
            }
            drop(core);
            std::thread::sleep(Duration::from_micros(100));
        }
        self.driver.end();
        // If the thread has panicked, its message has been printed.
        let _ = thread.join();
        self.driver.core.lock().close();
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.close();
    }
}

impl Work {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// Waits until it has ended or the time is over; returns whether it has ended. Its error is [`Work::result`].
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        if !self.state.is_done() {
            let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            self.driver.wait(&self.state, until);
        }
        self.state.is_done()
    }

    /// How it has ended; `None` while it has not.
    pub fn result(&self) -> Option<Result<()>> {
        self.is_done().then(|| self.state.result())
    }

    /// Who sent what was received.
    pub fn source(&self) -> Option<Rank> {
        self.state.source()
    }

    /// A descriptor that is readable once it has ended. The work keeps it.
    ///
    /// # Errors
    /// [`Error::Device`] if descriptors have run out.
    pub fn fd(&self) -> Result<std::os::fd::RawFd> {
        self.state.fd()
    }

    /// What it is, in words.
    pub fn name(&self) -> String {
        self.state.subject.describe()
    }

    /// Since when.
    pub fn elapsed(&self) -> Duration {
        self.state.begun.elapsed()
    }
}
