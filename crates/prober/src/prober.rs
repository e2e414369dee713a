//! The thread that probes: sends at an even pace, reads what comes back, closes intervals.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use openmrc_sockets::{
    EventFd, Netlink, SendError, SockAddr, interface_of, monotonic_ns, thread, wait_readable,
};
use openmrc_transport::loops::{Closed, LoopProbes, MAX_RATE, Pace, Probe, Totals};

use crate::packet::Key;
use crate::port::Port;

/// Probes wait in the kernel this long at most before they are read.
const READ_EVERY_NS: u64 = 10_000_000;
/// Shortest sleep: at a higher rate several probes are sent after each.
const SHORTEST_SLEEP_NS: u64 = 1_000_000;
/// Packets read from a port at a time. A flood of forged ones costs no more than that, and makes the port's counts
/// unknown.
const MOST_READS: usize = 512;
/// Closed intervals that are kept for a caller that does not take them.
const MOST_CLOSED: usize = 64;

/// A loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loop {
    /// Address of the port by which probes leave and come back.
    pub address: Ipv6Addr,
    /// Destination of the outer header: the uSIDs of the way and of the port's own downlink.
    pub path: Ipv6Addr,
}

/// What is probed, and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// The loops, by number.
    pub loops: Vec<Loop>,
    /// Probes a second, over all loops.
    pub rate: u32,
    /// Traffic class octet of both IP headers.
    pub traffic_class: u8,
    /// Length of an interval.
    pub interval: Duration,
    /// For how long after an interval its probes may come back.
    pub grace: Duration,
}

/// Why a host cannot probe.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing to probe.
    #[error("loops: there are none; a prober needs at least one")]
    NoLoops,
    /// No such rate.
    #[error("rate: {0} probes a second; it must be 1 to {MAX_RATE}")]
    Rate(u32),
    /// No such interval.
    #[error("interval: it must be at least a millisecond")]
    Interval,
    /// This network namespace is another host's.
    #[error("no interface of this network namespace has the address {0}")]
    Address(Ipv6Addr),
    /// The process may not open raw sockets.
    #[error("probes need root or CAP_NET_RAW (setcap cap_net_raw+ep, or sudo)")]
    Privilege,
    /// Any other reason of the system's.
    #[error("sockets of {0}: {1}")]
    System(Ipv6Addr, io::Error),
    /// The prober has ended by itself.
    #[error("interface {0} does not exist any more")]
    Gone(String),
}

#[derive(Default)]
struct State {
    closed: VecDeque<Closed>,
    totals: Totals,
    /// The interface that is gone.
    gone: Option<String>,
}

struct Shared {
    stop: EventFd,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running prober.
pub struct Prober {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Opens the sockets in the calling thread's network namespace and starts to probe.
    ///
    /// # Errors
    /// [`Error`]: why this host cannot.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let worker = Worker::open(config)?;
        let shared = Arc::clone(&worker.shared);
        let name = "openmrc-prober".to_owned();
        let spawned = std::thread::Builder::new().name(name).spawn(move || worker.run());
        let thread = spawned.map_err(|error| Error::System(config.loops[0].address, error))?;
        Ok(Prober { shared, thread: Some(thread) })
    }

    /// The intervals that were closed since the last call, oldest first, at most 64.
    ///
    /// # Errors
    /// [`Error::Gone`] once an interface is gone, when nothing is left to take.
    pub fn take(&self) -> Result<Vec<Closed>, Error> {
        let mut state = self.shared.state();
        let closed: Vec<_> = state.closed.drain(..).collect();
        match &state.gone {
            Some(interface) if closed.is_empty() => Err(Error::Gone(interface.clone())),
            _ => Ok(closed),
        }
    }

    /// What it has done since it was opened, up to the last closed interval.
    pub fn totals(&self) -> Totals {
        self.shared.state().totals
    }

    /// Ends the thread and closes the sockets.
    pub fn close(&mut self) {
        self.shared.stop.signal();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there would be nothing to do here.
            let _ = thread.join();
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.close();
    }
}

/// A loop as the thread uses it.
struct Way {
    port: usize,
    path: SockAddr,
}

/// What the thread owns.
struct Worker {
    shared: Arc<Shared>,
    ports: Vec<Port>,
    ways: Vec<Way>,
    key: Key,
    probes: LoopProbes,
}

impl Worker {
    fn open(config: &Config) -> Result<Self, Error> {
        let Some(first) = config.loops.first().map(|each| each.address) else { return Err(Error::NoLoops) };
        if !(1..=MAX_RATE).contains(&config.rate) {
            return Err(Error::Rate(config.rate));
        }
        if config.interval < Duration::from_millis(1) {
            return Err(Error::Interval);
        }
        let interfaces = Netlink::open().and_then(|netlink| netlink.interface_addrs());
        let interfaces = interfaces.map_err(|error| Error::System(first, error))?;
        let (mut addresses, mut ports, mut ways) = (Vec::new(), Vec::new(), Vec::new());
        for each in &config.loops {
            let port = match addresses.iter().position(|&address| address == each.address) {
                Some(port) => port,
                None => {
                    let interface = interface_of(IpAddr::V6(each.address), &interfaces);
                    let interface = interface.ok_or(Error::Address(each.address))?;
                    let opened = Port::open(each.address, interface, config.traffic_class);
                    ports.push(opened.map_err(|error| match error.kind() {
                        io::ErrorKind::PermissionDenied => Error::Privilege,
                        _ => Error::System(each.address, error),
                    })?);
                    addresses.push(each.address);
                    ports.len() - 1
                }
            };
            ways.push(Way { port, path: SockAddr::new(SocketAddr::new(IpAddr::V6(each.path), 0)) });
        }
        let stop = EventFd::new().map_err(|error| Error::System(first, error))?;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let pace = Pace {
            rate: config.rate,
            interval_ns: nanoseconds(config.interval),
            grace_ns: nanoseconds(config.grace),
        };
        let ports_of: Vec<u32> = ways.iter().map(|way| way.port as u32).collect();
        Ok(Worker {
            shared: Arc::new(Shared { stop, state: Mutex::new(State::default()) }),
            probes: LoopProbes::new(&ports_of, &pace, monotonic_ns()),
            ports,
            ways,
            key: Key::default(),
        })
    }

    fn run(mut self) {
        thread::use_exact_timers();
        let mut next_read = monotonic_ns();
        while !self.shared.stop.clear() {
            let now = monotonic_ns();
            while let Some(probe) = self.probes.poll_send(now) {
                self.send(probe);
            }
            let close = self.probes.next_close_ns().unwrap_or(u64::MAX);
            if next_read <= now || close <= now {
                let emptied = self.read();
                next_read = now + READ_EVERY_NS;
                if close <= now && !self.close(now, &emptied) {
                    return;
                }
            }
            let wake = self.probes.next_send_ns().min(close.max(now)).max(now + SHORTEST_SLEEP_NS);
            wait_readable(self.shared.stop.fd(), Duration::from_nanos(wake - now));
        }
    }

    fn send(&mut self, probe: Probe) {
        let way = &self.ways[probe.index as usize];
        match self.ports[way.port].send(&way.path, &self.key.emit(probe)) {
            // A port that is down or has no route loses what it should send: nothing can use it.
            Ok(()) | Err(SendError::Unreachable) => {}
            Err(_) => self.probes.unsend(probe),
        }
    }

    /// Reads all ports; whether each was read until nothing was left.
    fn read(&mut self) -> Vec<bool> {
        let (key, probes) = (&self.key, &mut self.probes);
        let read = self.ports.iter_mut().map(|port| {
            port.receive(MOST_READS, |bytes| match key.parse(bytes) {
                Some(probe) => probes.receive(probe),
                None => probes.receive_foreign(),
            })
        });
        read.collect()
    }

    /// Closes the intervals that are due, after a read. False: an interface is gone.
    fn close(&mut self, now: u64, emptied: &[bool]) -> bool {
        for (number, port) in self.ports.iter_mut().enumerate() {
            if port.has_dropped() | !emptied[number] {
                let ways = self.ways.iter().enumerate();
                self.probes.forget(ways.filter(|(_, way)| way.port == number).map(|(index, _)| index));
            }
        }
        let gone = self.ports.iter().find(|port| !port.exists()).map(|port| port.interface().to_owned());
        let closed: Vec<_> = std::iter::from_fn(|| self.probes.close(now)).collect();
        let mut state = self.shared.state();
        state.totals = self.probes.totals();
        if gone.is_none() {
            state.closed.extend(closed);
            let surplus = state.closed.len().saturating_sub(MOST_CLOSED);
            state.closed.drain(..surplus);
        }
        state.gone = gone;
        state.gone.is_none()
    }
}
