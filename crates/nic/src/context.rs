//! An open device, on which all objects are created.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openmrc_sockets::thread;
use openmrc_transport::{PathEntry, PortSet, Span};
use parking_lot::Mutex;

use crate::completion_ring::Notify;
use crate::config::DeviceConfig;
use crate::cq::CompletionQueue;
use crate::driver::{Driver, Polling};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, EventReader, PathEvent};
use crate::impair::ImpairRule;
use crate::pd::ProtectionDomain;
use crate::port::PortStatusUpdate;
use crate::profiles::Profiles;
use crate::profiles::engine::{CcProfileConfig, EvProfileConfig};
use crate::stats::{ContextStats, PathStats};
use crate::sys;

/// Requests to a peer that are sent at once, and the time until the next are: a node answers 10,000 a second of one that
/// it does not know, and 64 at once.
const REQUESTS_AT_ONCE: usize = 32;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(4);

/// An open device. Dropping it closes it and all of its objects.
pub struct Context {
    driver: Arc<Driver>,
    profiles: Arc<Profiles>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Result of one EV probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeResult {
    /// The probed path.
    pub path: PathEntry,
    /// Its round-trip time; `None` if there was no answer in time.
    pub rtt: Option<Duration>,
}

/// State of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortState {
    /// Address and UDP port it receives on.
    pub addr: SocketAddr,
    /// The interface that has the address.
    pub interface: Option<String>,
    /// Switched on by the administrator.
    pub admin_up: bool,
    /// An interface that is up has the address.
    pub link_up: bool,
    /// Size of its socket's receive buffer, in bytes of kernel memory.
    pub receive_buffer: usize,
}

impl PortState {
    /// Packets can leave and arrive.
    pub fn is_up(&self) -> bool {
        self.admin_up && self.link_up
    }
}

impl Context {
    pub(crate) fn open(config: &DeviceConfig) -> Result<Self> {
        let driver = Driver::open(config)?;
        let engine = Arc::clone(&driver);
        let thread = std::thread::Builder::new()
            .name(format!("{}-engine", driver.shared.config.name))
            .spawn(move || {
                thread::use_exact_timers();
                thread::use_short_slices();
                if let Some(cpu) = engine.shared.config.thread.cpu {
                    thread::run_on_cpu(cpu);
                }
                engine.run();
            })
            .map_err(|e| Error::os("engine thread", e))?;
        let profiles = Arc::new(Profiles::new(&driver));
        Ok(Context { driver, profiles, thread: Mutex::new(Some(thread)) })
    }

    /// The device's configuration.
    pub fn config(&self) -> &DeviceConfig {
        &self.driver.shared.config
    }

    /// Address of each port, for peers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.driver.shared.config.ports.iter().map(|p| SocketAddr::new(p.addr, p.udp_port)).collect()
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        drop(self.driver.lock_open()?);
        Ok(ProtectionDomain::new(&self.driver, self.driver.shared.handle()))
    }

    /// Creates a completion queue for up to `cqe` completions.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if `cqe` is out of range; [`Error::Os`] if no descriptor is left.
    pub fn create_cq(&self, cqe: usize) -> Result<CompletionQueue> {
        drop(self.driver.lock_open()?);
        CompletionQueue::new(&self.driver, self.driver.shared.handle(), cqe, None)
    }

    /// As [`Context::create_cq`]. Notifications go to `notify`, and the queue's descriptor never becomes readable.
    ///
    /// # Errors
    /// As [`Context::create_cq`].
    pub fn create_notifying_cq(&self, cqe: usize, notify: Notify) -> Result<CompletionQueue> {
        drop(self.driver.lock_open()?);
        CompletionQueue::new(&self.driver, self.driver.shared.handle(), cqe, Some(notify))
    }

    // --- driving -----------------------------------------------------------------------------------------------

    /// Polling mode: until the guard is dropped, the threads that poll drive the engine.
    #[must_use]
    pub fn polling(&self) -> Polling {
        Polling::new(&self.driver)
    }

    /// Runs one turn of the engine in polling mode. Otherwise it does nothing.
    #[inline]
    pub fn progress(&self) {
        self.driver.drive_if_polling();
    }

    /// Flushes all outstanding work, stops the engine, closes the sockets and deregisters all memory. All objects of
    /// the context are closed too. A second call does nothing.
    ///
    /// In the child of a fork it is closed from the start, and this call does nothing.
    pub fn close(&self) {
        if self.driver.shared.is_inherited() {
            // There is no such thread to be detached.
            std::mem::forget(self.thread.try_lock().and_then(|mut thread| thread.take()));
            return;
        }
        let Some(thread) = self.thread.lock().take() else { return };
        self.driver.stop();
        // If the thread has panicked, its message has been printed.
        let _ = thread.join();
        // The owners of memory are dropped with no lock held, as that may run code of the application.
        drop(self.driver.close());
    }

    // --- events ------------------------------------------------------------------------------------------------

    /// Whether it is closed. In the child of a fork it is.
    pub fn is_closed(&self) -> bool {
        self.driver.shared.is_closed()
    }

    /// Whether this process is the one that opened the device.
    ///
    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork.
    pub fn check_process(&self) -> Result<()> {
        self.driver.shared.check_process()
    }

    /// From now on asynchronous events go to `sink` instead of [`Context::events`]. It is called with locks of the
    /// device held, so it must not call the device. Only the first sink counts.
    pub fn give_events_to(&self, sink: Box<dyn Fn(AsyncEvent) + Send + Sync>) {
        self.driver.shared.events.give_to(sink);
    }

    /// The same for path events.
    pub fn give_path_events_to(&self, sink: Box<dyn Fn(PathEvent) + Send + Sync>) {
        self.driver.shared.path_events.give_to(sink);
    }

    /// Asynchronous events since the device was opened.
    pub fn events(&self) -> &Arc<EventReader<AsyncEvent>> {
        self.driver.shared.events.first()
    }

    /// A further reader of asynchronous events, from now on. It takes none from the others.
    ///
    /// # Errors
    /// [`Error::OtherProcess`] in the child of a fork; [`Error::Os`] if descriptors have run out.
    pub fn subscribe_events(&self) -> Result<Arc<EventReader<AsyncEvent>>> {
        self.check_process()?;
        self.driver.shared.events.subscribe()
    }

    /// Path events since the device was opened.
    pub fn path_events(&self) -> &Arc<EventReader<PathEvent>> {
        self.driver.shared.path_events.first()
    }

    /// A further reader of path events, as [`Context::subscribe_events`].
    ///
    /// # Errors
    /// As [`Context::subscribe_events`].
    pub fn subscribe_path_events(&self) -> Result<Arc<EventReader<PathEvent>>> {
        self.check_process()?;
        self.driver.shared.path_events.subscribe()
    }

    // --- profiles and paths ------------------------------------------------------------------------------------

    /// The controller's profiles, by the ids that it picks.
    pub fn profiles(&self) -> &Arc<Profiles> {
        &self.profiles
    }

    /// Creates an EV profile of the engine; its number is the value of the attribute `ev_profile_id`. In SRv6 mode it
    /// waits for the next hops to answer, at most one second.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the profile is not valid; [`Error::Os`] if a source port is in use, or in SRv6
    /// mode if a path has no route or no next hop answers.
    pub fn create_ev_profile(&self, config: &EvProfileConfig) -> Result<u16> {
        self.driver.create_ev_profile(config)
    }

    /// Destroys an EV profile.
    ///
    /// # Errors
    /// [`Error::Busy`] if a queue pair uses it; [`Error::InvalidArgument`] if it does not exist or is the default
    /// profile.
    pub fn destroy_ev_profile(&self, id: u16) -> Result<()> {
        self.driver.destroy_ev_profile(id)
    }

    /// The paths of an EV profile. Profile 0 is the device's default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it does not exist.
    pub fn ev_profile(&self, id: u16) -> Result<Vec<PathEntry>> {
        Ok(self.driver.lock_open()?.profiles.ev.get(id)?.profile.entries().to_vec())
    }

    /// Denies or allows a path in every queue pair of a profile, and in those that are connected later; returns how
    /// many use it now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the profile does not exist.
    pub fn set_ev_denied(&self, profile: u16, path: PathEntry, denied: bool) -> Result<usize> {
        self.driver.set_ev_denied(profile, path, denied)
    }

    /// Creates a congestion control profile of the engine; its number is the value of the attribute `cc_profile_id`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are too many.
    pub fn create_cc_profile(&self, profile: CcProfileConfig) -> Result<u16> {
        self.driver.lock_open()?.profiles.cc.add(profile)
    }

    /// Destroys a congestion control profile.
    ///
    /// # Errors
    /// [`Error::Busy`] if a queue pair uses it; [`Error::InvalidArgument`] if it does not exist or is the default
    /// profile.
    pub fn destroy_cc_profile(&self, id: u16) -> Result<()> {
        self.driver.lock_open()?.destroy_cc_profile(id)
    }

    // --- peers and ports ---------------------------------------------------------------------------------------

    /// Adds a peer without a queue pair: this node answers its EV probes and reports port status to it. Returns a
    /// handle for [`Context::remove_peer`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if an address cannot be reached.
    pub fn add_peer(&self, addrs: &[SocketAddr]) -> Result<u32> {
        let peer = self.driver.lock_open()?.add_peer(addrs)?;
        self.driver.shared.kick();
        Ok(peer)
    }

    /// Removes a peer that [`Context::add_peer`] added. Queue pairs connected to it keep it.
    pub fn remove_peer(&self, peer: u32) {
        if let Ok(mut engine) = self.driver.lock_open() {
            engine.remove_peer(peer);
        }
    }

    /// Sends an EV probe to a peer on each of `paths` and waits for the answers (docs/spec/transport.md, "Probes and
    /// port status"). The peer must know this node, by a queue pair or by [`Context::add_peer`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the device has no such path, or an address cannot be reached.
    pub fn ev_probe(
        &self,
        peer: &[SocketAddr],
        paths: &[PathEntry],
        timeout: Duration,
    ) -> Result<Vec<ProbeResult>> {
        let rtts = self.ask(peer, paths, timeout, |engine, peer, &path, timeout| {
            engine.probe_path(&self.driver.shared, sys::now(), peer, path, timeout)
        })?;
        Ok(paths.iter().zip(rtts).map(|(&path, rtt)| ProbeResult { path, rtt }).collect())
    }

    /// Sends port status updates to a peer and waits for the answers: their round-trip times, `None` where none came in
    /// time. It is sent once. What this node reports by itself when a port changes is repeated until it is answered.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the device has no such port, it is down, or an address cannot be reached.
    pub fn send_port_status(
        &self,
        peer: &[SocketAddr],
        updates: &[PortStatusUpdate],
        timeout: Duration,
    ) -> Result<Vec<Option<Duration>>> {
        self.ask(peer, updates, timeout, |engine, peer, &update, timeout| {
            engine.send_port_status(&self.driver.shared, sys::now(), peer, update, timeout)
        })
    }

    /// Sends a request for each of `questions` by `send`, which gives its id, and waits for the answers.
    fn ask<Q>(
        &self,
        peer: &[SocketAddr],
        questions: &[Q],
        timeout: Duration,
        send: impl Fn(&mut Engine, u32, &Q, Span) -> Result<u16>,
    ) -> Result<Vec<Option<Duration>>> {
        let span = Span::from_nanos(timeout.as_nanos().min(1 << 53) as u64);
        let mut ids = Vec::with_capacity(questions.len());
        let peer = self.driver.lock_open()?.add_peer(peer)?;
        for (number, together) in questions.chunks(REQUESTS_AT_ONCE).enumerate() {
            if number > 0 {
                std::thread::sleep(BETWEEN_REQUESTS);
            }
            if let Err(error) = self.ask_together(peer, together, span, &send, &mut ids) {
                ids.iter().for_each(|&id| self.driver.shared.probes.forget(id));
                self.remove_peer(peer);
                return Err(error);
            }
        }
        // The engine reports requests without an answer. This deadline is for the case that the engine has ended.
        let deadline = Instant::now() + timeout + Duration::from_secs(1);
        let rtts = ids.iter().map(|&id| self.driver.wait_for_answer(id, deadline)).collect();
        self.remove_peer(peer);
        Ok(rtts)
    }

    /// Sends a request for each of these questions at once.
    fn ask_together<Q>(
        &self,
        peer: u32,
        questions: &[Q],
        timeout: Span,
        send: &impl Fn(&mut Engine, u32, &Q, Span) -> Result<u16>,
        ids: &mut Vec<u16>,
    ) -> Result<()> {
        let mut engine = self.driver.lock_open()?;
        for question in questions {
            let id = send(&mut engine, peer, question, timeout)?;
            self.driver.shared.probes.expect(id);
            ids.push(id);
        }
        drop(engine);
        self.driver.shared.kick();
        Ok(())
    }

    /// State of every port.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn port_states(&self) -> Result<Vec<PortState>> {
        let engine = self.driver.lock_open()?;
        Ok(engine
            .egress
            .net
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

    /// The most payload bytes per packet that fit the interface of every port with all headers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn largest_path_mtu(&self) -> Result<usize> {
        Ok(self.driver.lock_open()?.largest_path_mtu())
    }

    /// Ports that are up.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn ports_up(&self) -> Result<PortSet> {
        Ok(self.driver.lock_open()?.egress.net.ports_up())
    }

    /// Switches a port on or off. A port that is off sends nothing and ignores received packets. Peers are informed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such port.
    pub fn set_port_admin(&self, port: usize, up: bool) -> Result<()> {
        self.driver.lock_open()?.set_port_admin(&self.driver.shared, port, up)?;
        self.driver.shared.kick();
        Ok(())
    }

    // --- impairments and counters ------------------------------------------------------------------------------

    /// Replaces the impairment rules for packets that this device sends. Their schedules start now; an empty list ends
    /// all impairments.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a rule is not valid.
    pub fn set_impairments(&self, rules: Vec<ImpairRule>, seed: u64) -> Result<()> {
        self.driver.lock_open()?.egress.net.impairer.set(sys::now(), rules, seed)?;
        self.driver.shared.kick();
        Ok(())
    }

    /// How often each rule has acted, in the order of the rules.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn impairment_hits(&self) -> Result<Vec<u64>> {
        Ok(self.driver.lock_open()?.egress.net.impairer.hits())
    }

    /// When each rule acted last, nanoseconds of [`crate::monotonic_ns`]; `None` if it has not.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn impairment_last_hits(&self) -> Result<Vec<Option<u64>>> {
        let last = self.driver.lock_open()?.egress.net.impairer.last_hits();
        Ok(last.into_iter().map(|at| at.map(|at| at.0 / 1000)).collect())
    }

    /// Counters per port and per cause.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<ContextStats> {
        Ok(ContextStats { sleeps: self.driver.sleeps(), ..self.driver.lock_open()?.stats() })
    }

    /// Counters of every path of all EV profiles.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn path_stats(&self) -> Result<Vec<PathStats>> {
        Ok(self.driver.lock_open()?.path_stats())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.close();
    }
}
