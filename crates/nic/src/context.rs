//! An open device: the parent of every object, the engine's thread, and who may drive the engine when.
//!
//! Normally the engine has a thread of its own that sleeps while there is nothing to do. While any [`Polling`] guard
//! lives that thread stands aside, and those who poll ([`crate::CompletionQueue::poll`], [`Context::progress`]) drive the
//! engine themselves: no hand-over between threads, the way to the lowest latency. If they do not poll for some
//! milliseconds, the thread takes turns for them, so that peers are not left without answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openmrc_transport::mrc::CcProfile;
use openmrc_transport::{PathEntry, PortSet, Span};
use openmrc_wire::Ev;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::cq::CompletionQueue;
use crate::device::DeviceConfig;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, EventQueue, PathEvent};
use crate::impair::ImpairRule;
use crate::pd::ProtectionDomain;
use crate::profile::EvProfileConfig;
use crate::qp::QpShared;
use crate::socket;
use crate::stats::{ContextStats, PathStats};
use crate::sys::{self, Epoll, EventFd};

/// What the engine's epoll set reports: the receiving socket of port p with token p, and these.
pub(crate) const TOKEN_WAKE: u64 = 100;
pub(crate) const TOKEN_LINKS: u64 = 101;
/// A sending socket that has become writable: its index on top.
pub(crate) const TOKEN_TX: u64 = 1000;

/// Events kept for whoever does not ask for them.
const EVENTS_KEPT: usize = 4096;

/// How long pollers may be silent before the engine's thread takes a turn for them ...
const POLLERS_PATIENCE: Duration = Duration::from_millis(1);
/// ... and if they have polled without fail for a while.
const POLLERS_LONGEST_PATIENCE: Duration = Duration::from_millis(32);

/// An open device. Dropping it closes it and everything made on it.
pub struct Context {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What everything made on a device shares.
pub(crate) struct Shared {
    pub config: Arc<DeviceConfig>,
    engine: Mutex<Engine>,
    pub epoll: Epoll,
    pub wake: EventFd,
    pub events: EventQueue<AsyncEvent>,
    pub path_events: EventQueue<PathEvent>,
    pub probes: ProbeWaits,
    submissions: Mutex<Vec<u32>>,
    any_submitted: AtomicBool,
    /// The engine's thread sleeps, or is about to.
    sleeping: AtomicBool,
    stop: AtomicBool,
    closed: AtomicBool,
    pollers: AtomicUsize,
    /// Turns taken by pollers.
    polled_turns: AtomicU64,
    sleeps: AtomicU64,
    standing_aside: Mutex<()>,
    pollers_gone: Condvar,
    next_handle: AtomicU32,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock()
    }

    /// The engine, unless the context is closed.
    pub fn lock_open(&self) -> Result<MutexGuard<'_, Engine>> {
        let engine = self.engine.lock();
        if self.is_closed() { Err(Error::Closed("the context")) } else { Ok(engine) }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    /// A queue pair has newly posted sends.
    pub fn submit(&self, qp: &QpShared) {
        if qp.submitted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.submissions.lock().push(qp.index);
        self.any_submitted.store(true, Ordering::SeqCst);
        self.kick();
    }

    /// Whether any queue pair has newly posted sends.
    #[inline]
    pub fn any_submitted(&self) -> bool {
        self.any_submitted.load(Ordering::Acquire)
    }

    /// Queue pairs with newly posted sends, moved to `into`, which is empty.
    pub fn take_submissions(&self, into: &mut Vec<u32>) {
        // Before taking them: whoever posts from now on announces it again.
        self.any_submitted.store(false, Ordering::SeqCst);
        std::mem::swap(&mut *self.submissions.lock(), into);
    }

    /// Wakes the engine's thread if it sleeps.
    pub fn kick(&self) {
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            self.wake.signal();
        }
    }

    /// Takes a turn of the engine if somebody polls; otherwise its thread does.
    #[inline]
    pub fn drive_if_polling(&self) {
        if self.pollers.load(Ordering::Relaxed) > 0 {
            self.drive();
        }
    }

    fn drive(&self) {
        // Whoever holds the lock is taking a turn already, or soon done with something short.
        if let Some(mut engine) = self.engine.try_lock() {
            if !self.is_closed() {
                engine.turn(self, true);
            }
            self.polled_turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The engine's thread.
    fn run(&self) {
        let spin = self.config.spin;
        while !self.stop.load(Ordering::Acquire) {
            if self.pollers.load(Ordering::Acquire) > 0 {
                self.stand_aside();
                continue;
            }
            let mut engine = self.engine.lock();
            let mut idle_since: Option<Instant> = None;
            loop {
                let worked = engine.turn(self, false) || engine.has_work();
                if self.stop.load(Ordering::Acquire) || self.pollers.load(Ordering::Acquire) > 0 {
                    break;
                }
                if worked {
                    idle_since = None;
                } else if spin.is_zero() || idle_since.get_or_insert_with(Instant::now).elapsed() >= spin {
                    break;
                }
                // Whoever waits for the lock gets it now.
                MutexGuard::bump(&mut engine);
            }
            engine.watch_held(self);
            let deadline = engine.next_deadline();
            self.sleeping.store(true, Ordering::SeqCst);
            drop(engine);
            let must_run = self.any_submitted.load(Ordering::SeqCst)
                || self.stop.load(Ordering::SeqCst)
                || self.pollers.load(Ordering::SeqCst) > 0;
            if !must_run {
                let left = deadline.since(sys::now());
                let forever = deadline == openmrc_transport::Time::NEVER;
                if forever || left > Span::ZERO {
                    self.sleeps.fetch_add(1, Ordering::Relaxed);
                    self.epoll.sleep((!forever).then_some(left));
                }
            }
            self.sleeping.store(false, Ordering::SeqCst);
        }
    }

    /// Others poll: only takes a turn where they forget to. While they do poll it looks less and less often, for
    /// each look may take the processor from them.
    fn stand_aside(&self) {
        let mut patience = POLLERS_PATIENCE;
        let mut seen = self.polled_turns.load(Ordering::Relaxed);
        let mut guard = self.standing_aside.lock();
        while self.pollers.load(Ordering::Acquire) > 0 && !self.stop.load(Ordering::Acquire) {
            self.pollers_gone.wait_for(&mut guard, patience);
            let turns = self.polled_turns.load(Ordering::Relaxed);
            if turns != seen {
                seen = turns;
                patience = (patience * 2).min(POLLERS_LONGEST_PATIENCE);
                continue;
            }
            patience = POLLERS_PATIENCE;
            MutexGuard::unlocked(&mut guard, || self.engine.lock().turn(self, false));
        }
    }
}

/// Drives the engine from the threads that poll, as long as it lives. See [`crate::context`].
pub struct Polling(Arc<Shared>);

impl Drop for Polling {
    fn drop(&mut self) {
        let _guard = self.0.standing_aside.lock();
        self.0.pollers.fetch_sub(1, Ordering::AcqRel);
        self.0.pollers_gone.notify_all();
    }
}

/// Answer to one EV probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeResult {
    /// The path asked about.
    pub path: PathEntry,
    /// Its round-trip time; `None` if no answer came in time.
    pub rtt: Option<Duration>,
}

/// A port as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortState {
    /// Address and UDP port it receives on.
    pub addr: SocketAddr,
    /// The interface that has the address.
    pub interface: Option<String>,
    /// Switched on by the administrator.
    pub admin_up: bool,
    /// The address is there and its interface is up.
    pub link_up: bool,
    /// Bytes that its socket can queue, as the kernel counts them.
    pub receive_buffer: usize,
}

impl Context {
    pub(crate) fn open(config: &DeviceConfig) -> Result<Self> {
        socket::raise_descriptor_limit();
        let config = Arc::new(config.clone());
        let epoll = Epoll::new().map_err(|e| Error::os("epoll", e))?;
        let wake = EventFd::new().map_err(|e| Error::os("wake-up event", e))?;
        epoll.add(wake.fd(), libc::EPOLLIN, TOKEN_WAKE).map_err(|e| Error::os("wake-up event", e))?;
        let engine = Engine::new(Arc::clone(&config), &epoll)?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            epoll,
            wake,
            events: EventQueue::new(EVENTS_KEPT)?,
            path_events: EventQueue::new(EVENTS_KEPT)?,
            probes: ProbeWaits::default(),
            submissions: Mutex::new(Vec::new()),
            any_submitted: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            pollers: AtomicUsize::new(0),
            polled_turns: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            standing_aside: Mutex::new(()),
            pollers_gone: Condvar::new(),
            next_handle: AtomicU32::new(1),
            config,
        });
        let engine = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("{}-engine", shared.config.name))
            .spawn(move || {
                sys::prepare_engine_thread(engine.config.cpu);
                engine.run();
            })
            .map_err(|e| Error::os("engine thread", e))?;
        Ok(Context { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The device's description.
    pub fn config(&self) -> &DeviceConfig {
        &self.shared.config
    }

    /// Where peers reach this device, by port.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.config.ports.iter().map(|p| SocketAddr::new(p.addr, p.udp_port)).collect()
    }

    /// A protection domain.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        drop(self.shared.lock_open()?);
        Ok(ProtectionDomain::new(&self.shared, self.shared.handle()))
    }

    /// A completion queue for up to `cqe` completions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `cqe` is out of range; [`Error::Os`] if descriptors have run out.
    pub fn create_cq(&self, cqe: usize) -> Result<CompletionQueue> {
        drop(self.shared.lock_open()?);
        CompletionQueue::new(&self.shared, self.shared.handle(), cqe)
    }

    // --- driving -----------------------------------------------------------------------------------------------

    /// From now on, until the guard is dropped, whoever polls drives the engine.
    #[must_use]
    pub fn polling(&self) -> Polling {
        self.shared.pollers.fetch_add(1, Ordering::SeqCst);
        self.shared.kick();
        Polling(Arc::clone(&self.shared))
    }

    /// One turn of the engine, if somebody polls.
    #[inline]
    pub fn progress(&self) {
        self.shared.drive_if_polling();
    }

    /// Flushes all outstanding work, stops the engine, closes the sockets and forgets every memory region. Everything
    /// made on this context is closed with it. Doing it twice is harmless.
    pub fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake.signal();
        {
            let _guard = self.shared.standing_aside.lock();
            self.shared.pollers_gone.notify_all();
        }
        // A thread that has panicked has nothing more to say than its message did.
        let _ = thread.join();
        let owners = {
            let mut engine = self.shared.lock();
            self.shared.closed.store(true, Ordering::Release);
            engine.close(&self.shared)
        };
        drop(owners);
    }

    // --- events ------------------------------------------------------------------------------------------------

    /// The oldest asynchronous event that has not been taken.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        self.shared.events.pop()
    }

    /// A descriptor that is readable while there are asynchronous events. It belongs to the context.
    pub fn event_fd(&self) -> RawFd {
        self.shared.events.fd()
    }

    /// The oldest path event that has not been taken.
    pub fn next_path_event(&self) -> Option<PathEvent> {
        self.shared.path_events.pop()
    }

    /// A descriptor that is readable while there are path events. It belongs to the context.
    pub fn path_event_fd(&self) -> RawFd {
        self.shared.path_events.fd()
    }

    /// Path events that did not fit the queue, since the context was opened.
    pub fn path_events_dropped(&self) -> u64 {
        self.shared.path_events.dropped()
    }

    // --- profiles and paths ------------------------------------------------------------------------------------

    /// A new EV profile; its number is for the attribute `ev_profile_id`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is wrong with it; [`Error::Os`] if a source port is taken.
    pub fn create_ev_profile(&self, config: &EvProfileConfig) -> Result<u16> {
        self.shared.lock_open()?.create_ev_profile(config)
    }

    /// Ends an EV profile.
    ///
    /// # Errors
    /// [`Error::Busy`] if a queue pair uses it; [`Error::InvalidArgument`] if it does not exist or is the device's own.
    pub fn destroy_ev_profile(&self, id: u16) -> Result<()> {
        self.shared.lock_open()?.destroy_ev_profile(id)
    }

    /// The paths of an EV profile; profile 0 is the device's own.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it does not exist.
    pub fn ev_profile(&self, id: u16) -> Result<Vec<PathEntry>> {
        Ok(self.shared.lock_open()?.ev_profiles.get(id)?.profile.entries().to_vec())
    }

    /// Switches an entropy value off or on in every queue pair of a profile. Returns how many use it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the profile does not exist.
    pub fn set_ev_denied(&self, profile: u16, ev: Ev, denied: bool) -> Result<usize> {
        let users = self.shared.lock_open()?.set_ev_denied(profile, ev, denied)?;
        self.shared.kick();
        Ok(users)
    }

    /// A new congestion control profile; its number is for the attribute `cc_profile_id`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are too many.
    pub fn create_cc_profile(&self, profile: CcProfile) -> Result<u16> {
        self.shared.lock_open()?.cc_profiles.add(Arc::new(profile))
    }

    /// Ends a congestion control profile. Queue pairs that use it keep it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it does not exist or is the device's own.
    pub fn destroy_cc_profile(&self, id: u16) -> Result<()> {
        self.shared.lock_open()?.cc_profiles.remove(id).map(drop)
    }

    // --- peers and ports ---------------------------------------------------------------------------------------

    /// Makes a node known without a queue pair: its EV probes are answered, and it is told when ports go down. Returns
    /// its handle for [`Context::remove_peer`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the addresses are none that can be reached.
    pub fn add_peer(&self, addrs: &[SocketAddr]) -> Result<u32> {
        let peer = self.shared.lock_open()?.add_peer(addrs)?;
        self.shared.kick();
        Ok(peer)
    }

    /// Forgets a node that [`Context::add_peer`] made known. Queue pairs connected to it keep it.
    pub fn remove_peer(&self, peer: u32) {
        if let Ok(mut engine) = self.shared.lock_open() {
            engine.remove_peer(peer);
        }
    }

    /// Asks a node on each of `paths` whether it is alive there, and waits for the answers (EV probe, spec:
    /// transport, "Probes and port status"). The node must know this one: by a queue pair or [`Context::add_peer`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an address or path is none of this device's.
    pub fn ev_probe(
        &self,
        peer: &[SocketAddr],
        paths: &[PathEntry],
        timeout: Duration,
    ) -> Result<Vec<ProbeResult>> {
        let span = Span::from_nanos(timeout.as_nanos().min(1 << 53) as u64);
        let mut ids = Vec::with_capacity(paths.len());
        let peer = {
            let mut engine = self.shared.lock_open()?;
            let peer = engine.add_peer(peer)?;
            for &path in paths {
                match engine.probe_path(&self.shared, sys::now(), peer, path, span) {
                    Ok(id) => {
                        self.shared.probes.expect(id);
                        ids.push(id);
                    }
                    Err(error) => {
                        ids.iter().for_each(|&id| self.shared.probes.forget(id));
                        engine.remove_peer(peer);
                        return Err(error);
                    }
                }
            }
            peer
        };
        self.shared.kick();
        // Answers that never come are reported by the engine; the deadline here is for an engine that is gone.
        let deadline = Instant::now() + timeout + Duration::from_secs(1);
        let results = ids
            .iter()
            .zip(paths)
            .map(|(&id, &path)| ProbeResult {
                path,
                rtt: self.shared.probes.wait(id, deadline, &self.shared),
            })
            .collect();
        self.remove_peer(peer);
        Ok(results)
    }

    /// Every port as it is now.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn port_states(&self) -> Result<Vec<PortState>> {
        let engine = self.shared.lock_open()?;
        Ok(engine
            .ports
            .iter()
            .map(|p| PortState {
                addr: p.addr,
                interface: p.interface.clone(),
                admin_up: p.admin_up,
                link_up: p.link_up,
                receive_buffer: p.rx.buffer,
            })
            .collect())
    }

    /// Ports that are up.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ports_up(&self) -> Result<PortSet> {
        Ok(self.shared.lock_open()?.ports_up())
    }

    /// Switches a port on or off. A port that is off sends nothing and ignores what comes; peers are told.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such port.
    pub fn set_port_admin(&self, port: usize, up: bool) -> Result<()> {
        self.shared.lock_open()?.set_port_admin(&self.shared, port, up)?;
        self.shared.kick();
        Ok(())
    }

    // --- tests and figures -------------------------------------------------------------------------------------

    /// Replaces the rules by which this device's own packets are harmed on their way out. Their schedules start now;
    /// an empty list ends them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is wrong with a rule.
    pub fn set_impairments(&self, rules: Vec<ImpairRule>, seed: u64) -> Result<()> {
        self.shared.lock_open()?.impairer.set(sys::now(), rules, seed)?;
        self.shared.kick();
        Ok(())
    }

    /// How often each rule has acted, in the order of the rules.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn impairment_hits(&self) -> Result<Vec<u64>> {
        Ok(self.shared.lock_open()?.impairer.hits())
    }

    /// Counters per port and per cause.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<ContextStats> {
        let sleeps = self.shared.sleeps.load(Ordering::Relaxed);
        Ok(ContextStats { sleeps, ..self.shared.lock_open()?.stats() })
    }

    /// Counters per path, those of all EV profiles.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn path_stats(&self) -> Result<Vec<PathStats>> {
        Ok(self.shared.lock_open()?.path_stats())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.close();
    }
}

/// EV probes that somebody waits for.
#[derive(Default)]
pub(crate) struct ProbeWaits {
    /// By request id; the answer once it is there, which may be that none came.
    waiting: Mutex<HashMap<u16, Option<Option<Span>>>>,
    answered: Condvar,
}

impl ProbeWaits {
    fn expect(&self, id: u16) {
        self.waiting.lock().insert(id, None);
    }

    fn forget(&self, id: u16) {
        self.waiting.lock().remove(&id);
    }

    /// The answer has come, or will not.
    pub fn done(&self, id: u16, rtt: Option<Span>) {
        if let Some(slot) = self.waiting.lock().get_mut(&id) {
            *slot = Some(rtt);
            self.answered.notify_all();
        }
    }

    fn wait(&self, id: u16, deadline: Instant, shared: &Shared) -> Option<Duration> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if let Some(Some(rtt)) = waiting.get(&id).copied() {
                    waiting.remove(&id);
                    return rtt.map(|rtt| Duration::from_nanos(rtt.as_nanos()));
                }
                if Instant::now() >= deadline || shared.is_closed() {
                    waiting.remove(&id);
                    return None;
                }
                if shared.pollers.load(Ordering::Relaxed) == 0 {
                    self.answered.wait_for(&mut waiting, POLLERS_PATIENCE);
                    continue;
                }
            }
            shared.drive();
        }
    }
}
