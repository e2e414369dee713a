//! A communicator: the ranks of a job, or some of them, and the operations between them (spec: collectives).
//!
//! Whoever waits for an operation drives it, and all others of its communicator: there is no change of threads on the way
//! of a message. A thread of the communicator drives what nobody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openmrc_nic::Context;
use openmrc_sockets::{PollSet, Process};
use parking_lot::{Condvar, Mutex};

use crate::abort::{AbortKind, MAX_RANKS};
use crate::algorithms::{Algorithm, Shape};
use crate::card::Card;
use crate::core::{CHECK_INTERVAL, Core, open};
use crate::error::{Error, Result};
use crate::header::Signature;
use crate::link::{Link, Way};
use crate::local::{Home, LocalLink};
use crate::operation::{Buffers, Operation, Reduction};
use crate::p2p::Incoming;
use crate::program::{Program, Rank, Span};
use crate::record::Record;
use crate::remote::RemoteLink;
use crate::tuning::Tuning;
use crate::types::{DataType, ReduceOp};
use crate::work::WorkState;

/// How long the communicator's thread leaves new operations to whoever may wait for them.
const PATIENCE: Duration = Duration::from_micros(200);

/// How long closing waits for peers to acknowledge what was sent to them.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a communicator is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Exchange messages with ranks of the same host through shared memory.
    pub shared_memory: bool,
    /// Largest path MTU.
    pub path_mtu: u16,
    /// A peer of another host that is silent for this time is probed, milliseconds.
    pub keepalive_ms: u32,
    /// How long a waiting thread looks for messages before it sleeps.
    pub spin: Duration,
    /// Which algorithm for which size.
    pub tuning: Tuning,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            shared_memory: true,
            path_mtu: 4096,
            keepalive_ms: 1000,
            spin: Duration::from_micros(30),
            tuning: Tuning::default(),
        }
    }
}

/// The first half of a communicator: it has cards for its peers, and needs theirs.
pub struct Rendezvous {
    rank: Rank,
    ranks: usize,
    core: Core,
    options: Options,
    /// By rank; `None` for the own.
    remote: Vec<Option<RemoteLink>>,
    cards: Vec<Vec<u8>>,
}

impl Rendezvous {
    /// Prepares rank `rank` of `ranks` on an open device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank or number of ranks out of range; [`Error::Device`] if the device or the machine has
    /// no room.
    pub fn new(
        context: &Context,
        rank: Rank,
        ranks: usize,
        host_name: &str,
        options: Options,
    ) -> Result<Self> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(Error::invalid(format!("a communicator has 1 to {MAX_RANKS} ranks, not {ranks}")));
        }
        if rank >= ranks {
            return Err(Error::invalid(format!("rank {rank} does not exist: there are 0 to {}", ranks - 1)));
        }
        let (pd, cq) = open(context, ranks)?;
        let home = Home::new(ranks)?;
        let mut remote = Vec::with_capacity(ranks);
        let mut cards = Vec::with_capacity(ranks);
        for peer in 0..ranks {
            if peer == rank {
                remote.push(None);
                cards.push(Vec::new());
                continue;
            }
            let link = RemoteLink::new(&pd, &cq, &home, peer)?;
            let ring = |lane| home.base() as u64 + home.layout.ring(lane, peer) as u64;
            let card = Card {
                rank,
                ranks,
                host_name: host_name.into(),
                local: home.card(),
                qp_num: link.qp.qp_num(),
                psn: link.psn(),
                path_mtu: options.path_mtu,
                rkey: link.rkey(),
                rings: [ring(0), ring(1)],
                planes: context.addresses(),
            };
            cards.push(card.encode());
            remote.push(Some(link));
        }
        let core = Core::new(rank, ranks, home, cq, pd);
        Ok(Rendezvous { rank, ranks, core, options, remote, cards })
    }

    /// The card for a peer, which only it must get.
    pub fn card(&self, peer: Rank) -> &[u8] {
        &self.cards[peer]
    }

    /// Connects with all peers; `cards[r]` is what rank r made for this rank.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a card is missing, broken or of another communicator; [`Error::Device`].
    pub fn connect(mut self, cards: &[Vec<u8>]) -> Result<Communicator> {
        if cards.len() != self.ranks {
            return Err(Error::invalid(format!("{} cards for {} ranks", cards.len(), self.ranks)));
        }
        for (peer, bytes) in cards.iter().enumerate().filter(|(peer, _)| *peer != self.rank) {
            let card = Card::decode(bytes)?;
            if card.rank != peer || card.ranks != self.ranks {
                return Err(Error::invalid(format!(
                    "rank {peer} of {} gave a card of rank {} of {}",
                    self.ranks, card.rank, card.ranks
                )));
            }
            let shared = self.options.shared_memory;
            let local =
                shared.then(|| LocalLink::open(&card.local, &self.core.home, self.rank)).and_then(|l| l.ok());
            let way = match (local, self.remote[peer].take()) {
                (Some(local), _) => Way::Local(local),
                (None, Some(mut remote)) => {
                    remote.connect(&card, self.options.keepalive_ms, self.options.path_mtu)?;
                    Way::Remote(Box::new(remote))
                }
                (None, None) => return Err(Error::invalid("two cards of one rank")),
            };
            self.core.add_link(Link::new(&card, way));
        }
        Communicator::start(self.rank, self.ranks, self.core, self.options)
    }
}

/// An operation to begin.
pub struct Call {
    /// Which one.
    pub shape: Shape,
    /// Type of its elements.
    pub dtype: DataType,
    /// How they are reduced, by those that reduce.
    pub op: ReduceOp,
    /// Factor of every input before it is reduced (premul_sum).
    pub factor: Option<f64>,
    /// First byte of the input.
    pub input: *const u8,
    /// First byte of the output.
    pub output: *mut u8,
    /// Execute it so, instead of by the tuning table.
    pub algorithm: Option<Algorithm>,
    /// Time limit.
    pub timeout: Duration,
}

struct Inner {
    core: Mutex<Core>,
    process: Process,
    /// Who drives has this.
    driver: Mutex<PollSet>,
    /// Guards nothing but the condition.
    changed: Mutex<()>,
    condition: Condvar,
    /// Threads that wait for an operation.
    waiters: AtomicUsize,
    /// The communicator's thread drives, or is about to.
    thread_drives: AtomicBool,
    closed: AtomicBool,
    spin: Duration,
    tuning: Tuning,
}

/// A communicator. Dropping it closes it.
pub struct Communicator {
    rank: Rank,
    ranks: usize,
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An operation under way. Dropping the handle does not end the operation.
#[derive(Clone)]
pub struct Work {
    inner: Arc<Inner>,
    state: Arc<WorkState>,
}

impl Communicator {
    fn start(rank: Rank, ranks: usize, core: Core, options: Options) -> Result<Communicator> {
        let mut fds = vec![core.cq.event_fd(), core.home.doorbell_fd()];
        for link in core.links.iter().flatten() {
            if let Way::Local(local) = &link.way {
                fds.push(local.process.fd());
            }
        }
        let inner = Arc::new(Inner {
            core: Mutex::new(core),
            process: Process::current(),
            driver: Mutex::new(PollSet::new(fds)),
            changed: Mutex::new(()),
            condition: Condvar::new(),
            waiters: AtomicUsize::new(0),
            thread_drives: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spin: options.spin,
            tuning: options.tuning,
        });
        let theirs = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("openmrc-collectives".into())
            .spawn(move || theirs.run())
            .map_err(|e| Error::device("a thread", e))?;
        Ok(Communicator { rank, ranks, inner, thread: Mutex::new(Some(thread)) })
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
        let core = self.inner.core.lock();
        core.links.iter().flatten().filter(|link| link.is_local()).map(|link| link.peer).collect()
    }

    /// Begins a collective operation.
    ///
    /// # Safety
    /// `input` and `output` have the sizes of [`Shape::sizes`] for this rank, elements of `dtype`. They stay valid, the input is not
    /// changed and the output not used by anyone else until the work has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the call cannot be executed; [`Error::Closed`]. That of a communicator that has failed is the
    /// work's.
    pub unsafe fn call(&self, call: &Call) -> Result<Work> {
        let Call { shape, dtype, op, .. } = call;
        let size = dtype.size();
        self.check(call)?;
        let algorithm = call.algorithm.unwrap_or_else(|| self.inner.tuning.choose(shape, self.ranks, size));
        let program = if self.ranks == 1 {
            alone(shape, size)
        } else {
            shape.program(algorithm, self.rank, self.ranks, size)
        };
        let signature = Signature {
            count: shape.common_count() as u64,
            root: shape.root().unwrap_or(0) as u32,
            kind: shape.code(),
            dtype: *dtype as u8,
            op: if shape.reduces() { *op as u8 } else { 255 },
            algorithm: algorithm as u8,
        };
        let reduction =
            shape.reduces().then_some(Reduction { dtype: *dtype, op: *op, ranks: self.ranks as u32 });
        let work = Arc::new(WorkState::new(signature.describe(), call.timeout));
        let buffers = Buffers { input: call.input, output: call.output };
        let mut core = self.inner.lock()?;
        core.calls += 1;
        let number = core.calls;
        let state = Arc::clone(&work);
        // SAFETY: the caller's promise.
        let mut operation =
            unsafe { Operation::new(number, signature, program, buffers, reduction, self.ranks, state) };
        if let Some(factor) = call.factor {
            // SAFETY: the input of an operation that reduces has this many elements.
            unsafe { operation.scale_input(shape.sizes(self.rank, self.ranks).0, factor, *dtype) };
        }
        core.submit(operation);
        drop(core);
        Ok(self.inner.begun(work))
    }

    /// Sends `len` bytes to a rank, which receives them with the same tag.
    ///
    /// # Safety
    /// The bytes stay valid and unchanged until the work has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a rank that is not another one; [`Error::Closed`].
    pub unsafe fn send(
        &self,
        to: Rank,
        tag: u64,
        data: *const u8,
        len: usize,
        timeout: Duration,
    ) -> Result<Work> {
        self.check_peer(to)?;
        let work =
            Arc::new(WorkState::new(format!("send of {len} bytes to rank {to} with tag {tag}"), timeout));
        // SAFETY: the caller's promise.
        unsafe { self.inner.lock()?.send(to, tag, data, len, Arc::clone(&work)) };
        Ok(self.inner.begun(work))
    }

    /// Receives `len` bytes from a rank, or from any.
    ///
    /// # Safety
    /// The bytes stay valid and are not used by anyone else until the work has ended.
    ///
    /// # Errors
    /// As [`Communicator::send`].
    pub unsafe fn recv(
        &self,
        from: Option<Rank>,
        tag: u64,
        data: *mut u8,
        len: usize,
        timeout: Duration,
    ) -> Result<Work> {
        from.map_or(Ok(()), |from| self.check_peer(from))?;
        let source = from.map_or("any rank".into(), |from| format!("rank {from}"));
        let work =
            Arc::new(WorkState::new(format!("recv of {len} bytes from {source} with tag {tag}"), timeout));
        self.inner.lock()?.recv(Incoming { from, tag, data, len, work: Arc::clone(&work) });
        Ok(self.inner.begun(work))
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

    fn check(&self, call: &Call) -> Result<()> {
        let Call { shape, dtype, op, .. } = call;
        let counts = match shape {
            Shape::ReduceScatter { counts } | Shape::AllGather { counts } => counts.len(),
            Shape::AllToAll { send, recv } if send.len() == recv.len() => send.len(),
            Shape::AllToAll { .. } => 0,
            _ => self.ranks,
        };
        if counts != self.ranks {
            return Err(Error::invalid(format!(
                "{} needs one count for each of {} ranks",
                shape.name(),
                self.ranks
            )));
        }
        if let Some(root) = shape.root().filter(|&root| root >= self.ranks) {
            return Err(Error::invalid(format!(
                "root {root} does not exist: there are ranks 0 to {}",
                self.ranks - 1
            )));
        }
        if let Shape::AllToAll { send, recv } = shape
            && send[self.rank] != recv[self.rank]
        {
            return Err(Error::invalid(format!(
                "rank {} sends {} elements to itself and receives {}",
                self.rank, send[self.rank], recv[self.rank]
            )));
        }
        if shape.reduces() && !op.fits(*dtype) {
            return Err(Error::invalid(format!("there is no {} of {}", op.name(), dtype.name())));
        }
        if call.factor.is_some() && (!shape.reduces() || *op != ReduceOp::Sum) {
            return Err(Error::invalid("a factor belongs to a sum"));
        }
        if let Some(algorithm) = call.algorithm.filter(|&a| !shape.allows(a, self.ranks)) {
            return Err(Error::invalid(format!(
                "{} of {} ranks cannot be executed by {}",
                shape.name(),
                self.ranks,
                algorithm.name()
            )));
        }
        self.check_overlap(call)
    }

    /// Input and output are separate, or one lies in the other where the operation would put it.
    fn check_overlap(&self, call: &Call) -> Result<()> {
        let (input, output) = call.shape.sizes(self.rank, self.ranks);
        let size = call.dtype.size();
        let (a, b) = (call.input as usize, call.output as usize);
        let (input, output) = (input * size, output * size);
        if a + input <= b || b + output <= a || input == 0 || output == 0 {
            return Ok(());
        }
        let before = |counts: &[usize]| counts[..self.rank].iter().sum::<usize>() * size;
        let in_place = match &call.shape {
            Shape::ReduceScatter { counts } => b == a + before(counts),
            Shape::AllGather { counts } => a == b + before(counts),
            Shape::Gather { count, .. } => a == b + self.rank * count * size,
            Shape::Scatter { count, .. } => b == a + self.rank * count * size,
            Shape::AllToAll { .. } => false,
            _ => a == b,
        };
        if in_place {
            return Ok(());
        }
        Err(Error::invalid(format!("input and output of {} overlap", call.shape.name())))
    }

    /// Why the communicator is of no more use; `None` while it is.
    pub fn error(&self) -> Option<Error> {
        if !self.inner.process.is_current() {
            return Some(Error::Closed);
        }
        let mut core = self.inner.core.lock();
        // Peers may have told something while nothing was under way here.
        core.progress();
        core.error().cloned()
    }

    /// Ranks for which the oldest operation waits, and what for.
    pub fn waits_for(&self) -> Vec<(Rank, &'static str)> {
        self.inner.core.lock().waits_for()
    }

    /// Host of each peer.
    pub fn host(&self, peer: Rank) -> Option<String> {
        self.inner.core.lock().links.get(peer)?.as_ref().map(|link| link.host.clone())
    }

    /// Records of operations that have ended since the last call.
    pub fn take_records(&self) -> Vec<Record> {
        self.inner.core.lock().log.take()
    }

    /// Operations that have ended; bytes sent through shared memory and over the network, with point-to-point messages.
    pub fn totals(&self) -> (u64, u64, u64) {
        let core = self.inner.core.lock();
        let [shared, network] = core.p2p_bytes();
        (core.log.operations, core.log.shared_bytes + shared, core.log.network_bytes + network)
    }

    /// Gives the communicator up: every operation here and at the other ranks ends with an error.
    pub fn abort(&self, reason: &str) {
        if !self.inner.process.is_current() {
            return;
        }
        let mut core = self.inner.core.lock();
        let rank = self.rank;
        core.fail(Error::Aborted(reason.into()), AbortKind::Asked, rank);
        while core.failed.is_none() {
            core.progress();
            std::thread::yield_now();
        }
        drop(core);
        self.inner.notify();
    }

    /// Ends the communicator. Operations under way are given up. A second call does nothing.
    pub fn close(&self) {
        if !self.inner.process.is_current() {
            // The thread is the parent's.
            std::mem::forget(self.thread.try_lock().and_then(|mut thread| thread.take()));
            return;
        }
        let Some(thread) = self.thread.lock().take() else { return };
        if !self.inner.core.lock().is_idle() {
            self.abort("it was closed while operations were under way");
        }
        // The last messages may be on their way: with the queue pairs they would be gone.
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            let mut core = self.inner.core.lock();
            core.progress();
            if core.failed.is_some() || core.is_delivered() {
                break;
            }
            drop(core);
            std::thread::sleep(Duration::from_micros(100));
        }
        self.inner.closed.store(true, Ordering::SeqCst);
        self.inner.wake_driver();
        self.inner.notify();
        // If the thread has panicked, its message has been printed.
        let _ = thread.join();
        let mut core = self.inner.core.lock();
        core.failed.get_or_insert(Error::Closed);
        core.links.iter_mut().for_each(|link| *link = None);
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.close();
    }
}

/// The program of the only rank: its input is the result.
fn alone(shape: &Shape, size: usize) -> Program {
    let mut program = Program::default();
    let (_, output) = shape.sizes(0, 1);
    program.copy(Span::input(0, output * size), Span::output(0, output * size));
    program
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
            self.inner.wait(&self.state, until);
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
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Since when.
    pub fn elapsed(&self) -> Duration {
        self.state.begun.elapsed()
    }
}

impl Inner {
    fn lock(&self) -> Result<parking_lot::MutexGuard<'_, Core>> {
        if !self.process.is_current() {
            return Err(Error::invalid("a communicator cannot be used in the child of a fork"));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(self.core.lock())
    }

    /// Something was begun: if it has not ended at once, the thread must know.
    fn begun(self: &Arc<Self>, state: Arc<WorkState>) -> Work {
        if !state.is_done() && self.waiters.load(Ordering::SeqCst) == 0 {
            self.notify();
        }
        Work { inner: Arc::clone(self), state }
    }

    /// Wakes all threads that wait for the condition.
    fn notify(&self) {
        let _guard = self.changed.lock();
        self.condition.notify_all();
    }

    /// Lets whoever drives look up.
    fn wake_driver(&self) {
        self.core.lock().home.ring_own();
    }

    fn wait(&self, state: &WorkState, until: Option<Instant>) {
        if !self.process.is_current() {
            return;
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        if self.thread_drives.load(Ordering::SeqCst) {
            self.wake_driver();
        }
        let over = || state.is_done() || until.is_some_and(|until| Instant::now() >= until);
        while !over() {
            if let Some(mut driver) = self.driver.try_lock() {
                self.drive(&mut driver, &over, until);
                continue;
            }
            let mut guard = self.changed.lock();
            if !over() {
                // Whoever drives may leave at any time; that it is told is an accelerator only.
                self.condition.wait_for(&mut guard, Duration::from_millis(1));
            }
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        self.notify();
    }

    /// Drives the communicator until `over`.
    fn drive(&self, sleep: &mut PollSet, over: &dyn Fn() -> bool, until: Option<Instant>) {
        let mut idle: Option<Instant> = None;
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        while !over() {
            let mut core = self.core.lock();
            let worked = core.progress();
            if worked {
                drop(core);
                if self.waiters.load(Ordering::Relaxed) > 1 {
                    self.notify();
                }
                idle = None;
                continue;
            }
            let now = Instant::now();
            if now >= next_check {
                core.check(now);
                next_check = now + CHECK_INTERVAL;
                continue;
            }
            if now.duration_since(*idle.get_or_insert(now)) < self.spin {
                drop(core);
                std::hint::spin_loop();
                continue;
            }
            core.home.set_sleeping(true);
            core.cq.arm();
            if core.progress() {
                core.home.set_sleeping(false);
                core.cq.acknowledge();
                idle = None;
                continue;
            }
            let wake = [core.next_deadline(), until].into_iter().flatten().fold(next_check, Instant::min);
            drop(core);
            // It fails only if the arguments are wrong.
            let _ = sleep.wait(Some(wake.saturating_duration_since(now)));
            let mut core = self.core.lock();
            core.home.set_sleeping(false);
            core.cq.acknowledge();
            core.home.clear_doorbell();
            // Behind the first two are the processes of peers.
            if sleep.any_readable_from(2) || Instant::now() >= wake {
                core.check(Instant::now());
                next_check = Instant::now() + CHECK_INTERVAL;
            }
            idle = None;
        }
    }

    /// The communicator's thread: drives what nobody waits for.
    fn run(&self) {
        while !self.closed.load(Ordering::Acquire) {
            {
                let mut guard = self.changed.lock();
                let nothing = || self.core.lock().is_idle() || self.waiters.load(Ordering::SeqCst) > 0;
                if nothing() {
                    self.condition.wait_for(&mut guard, CHECK_INTERVAL);
                    continue;
                }
                // Most who begin something wait for it soon.
                self.condition.wait_for(&mut guard, PATIENCE);
                if nothing() {
                    continue;
                }
            }
            self.thread_drives.store(true, Ordering::SeqCst);
            if let Some(mut driver) = self.driver.try_lock() {
                let over = || {
                    self.closed.load(Ordering::Acquire)
                        || self.waiters.load(Ordering::SeqCst) > 0
                        || self.core.lock().is_idle()
                };
                self.drive(&mut driver, &over, None);
            }
            self.thread_drives.store(false, Ordering::SeqCst);
            self.notify();
        }
    }
}
