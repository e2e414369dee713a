//! An open device: the parent of every object.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openmrc_sockets::{error, thread};
use openmrc_transport::{PathEntry, PortSet, Span};
use openmrc_wire::Ev;
use parking_lot::Mutex;

use crate::cq::CompletionQueue;
use crate::device::DeviceConfig;
use crate::error::{Error, Result};
use crate::events::{AsyncEvent, PathEvent};
use crate::impair::ImpairRule;
use crate::pd::ProtectionDomain;
use crate::profile::{CcProfileConfig, EvProfileConfig};
use crate::shared::{Polling, Shared};
use crate::stats::{ContextStats, PathStats};
use crate::sys;

/// An open device. Dropping it closes it and everything made on it.
pub struct Context {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How long a new EV profile waits for the next hops of its other planes once one has answered, and if none has.
const NEXT_HOPS_PATIENCE: Duration = Duration::from_millis(100);
const NEXT_HOPS_LONGEST_PATIENCE: Duration = Duration::from_secs(1);

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
        thread::raise_descriptor_limit();
        let shared = Shared::open(config)?;
        let engine = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("{}-engine", shared.config.name))
            .spawn(move || {
                thread::use_exact_timers();
                if let Some(cpu) = engine.config.cpu {
                    thread::run_on_cpu(cpu);
                }
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
        Polling::new(&self.shared)
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
        self.shared.stop();
        // A thread that has panicked has nothing more to say than its message did.
        let _ = thread.join();
        // No lock is held while these are dropped: their owners may run code of the application.
        drop(self.shared.close());
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

    /// A new EV profile; its number is for the attribute `ev_profile_id`. In SRv6 mode waits for the next hops to answer,
    /// one second at most if none does.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] says what is wrong with it; [`Error::Os`] if a source port is taken, or there is no route
    /// or no neighbour for a path in SRv6 mode.
    pub fn create_ev_profile(&self, config: &EvProfileConfig) -> Result<u16> {
        let profile = self.shared.lock_open()?.create_ev_profile(config)?;
        let started = Instant::now();
        loop {
            let (answered, silent) = {
                let mut engine = self.shared.lock_open()?;
                engine.refresh_next_hops(sys::now());
                engine.next_hops_of(profile)?
            };
            let Some(silent) = silent else { break };
            // A plane without an answer is one that is dead: the others will do.
            if answered > 0 && started.elapsed() >= NEXT_HOPS_PATIENCE {
                break;
            }
            if started.elapsed() >= NEXT_HOPS_LONGEST_PATIENCE {
                self.destroy_ev_profile(profile)?;
                let what = format!("no neighbour answers for {silent}");
                return Err(Error::os(what, error::host_unreachable()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.kick();
        Ok(profile)
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
    pub fn create_cc_profile(&self, profile: CcProfileConfig) -> Result<u16> {
        self.shared.lock_open()?.cc_profiles.add(profile)
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

    /// When each impairment rule acted last, if it has: nanoseconds of [`crate::monotonic_ns`].
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn impairment_last_hits(&self) -> Result<Vec<Option<u64>>> {
        let last = self.shared.lock_open()?.impairer.last_hits();
        Ok(last.into_iter().map(|at| at.map(|at| at.0 / 1000)).collect())
    }

    /// Counters per port and per cause.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<ContextStats> {
        Ok(ContextStats { sleeps: self.shared.sleeps(), ..self.shared.lock_open()?.stats() })
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
