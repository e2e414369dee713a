//! What the application does to the engine under its lock: making, modifying and ending queue pairs, profiles, ports.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_transport::endpoint::Endpoint;
use openmrc_transport::life::{QpState, check_transition};
use openmrc_transport::mrc::{self, EvState, QpStats};
use openmrc_transport::schedule::ReadyRing;
use openmrc_transport::{Fatal, PathEntry, PortSet, Time, Transport};
use openmrc_wire::Ev;

use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::connect::{default_cc, span};
use super::next_port::NextPort;
use super::{BufferWatch, Engine, Qp, QpHost, QpIo, Timers, qp_host};
use crate::attr::{QpAttr, QpCap, QpInfo};
use crate::cq::CqShared;
use crate::device::{DeviceConfig, MAX_PATHS};
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::impair::Impairer;
use crate::memory::{Access, MemoryTable};
use crate::netlink::{self, LinkWatch};
use crate::peer::Peers;
use crate::port::Port;
use crate::profile::{EvProfileConfig, Paths, Profiles};
use crate::qp::{QpShared, Wqe};
use crate::rx::RxBuffer;
use crate::shared::{Shared, TOKEN_LINKS};
use crate::socket::{RxSocket, TxSocket, traffic_class};
use crate::stats::{Causes, ContextStats, PathStats};
use crate::sys::{self, Epoll};
use crate::tx::TxRun;

/// Bits of a queue pair number that are its place; the others are a generation, so that a number is not soon
/// given out again.
const PLACE_BITS: u32 = 14;
const GENERATIONS: u16 = 1 << (24 - PLACE_BITS);

impl Engine {
    /// Opens the device's sockets and watches them.
    pub fn new(config: Arc<DeviceConfig>, epoll: &Epoll) -> Result<Self> {
        let seed = match config.seed {
            Some(seed) => seed,
            None => sys::random_u64().map_err(|e| Error::os("seed", e))?,
        };
        let data_class = config.dscp.code(if config.network_trims {
            openmrc_wire::DscpClass::Trimmable
        } else {
            openmrc_wire::DscpClass::NoTrim
        });
        let mut sockets = Vec::new();
        let mut ports = Vec::new();
        let list = netlink::interface_addrs()?;
        for (index, port) in config.ports.iter().enumerate() {
            let addr = std::net::SocketAddr::new(port.addr, port.udp_port);
            let rx = RxSocket::open(addr, config.receive_buffer, config.segmentation)?;
            epoll.add(rx.fd(), libc::EPOLLIN, index as u64).map_err(|e| Error::os("watching a port", e))?;
            let first = sockets.len() as u16;
            for i in 0..config.evs_of_port(index) {
                let source_port = port.source_ports.get(i).copied().unwrap_or(0);
                let class = traffic_class(data_class, true);
                sockets.push(TxSocket::open(index as u8, port.addr, source_port, config.send_buffer, class)?);
            }
            let mut port = Port::new(addr, rx, first..sockets.len() as u16);
            port.check_link(&list);
            ports.push(port);
        }
        // Without netlink (a sandbox may forbid it) interfaces are taken to stay as they are.
        let links = LinkWatch::open().ok().filter(|l| epoll.add(l.fd(), libc::EPOLLIN, TOKEN_LINKS).is_ok());
        let paths: Vec<_> = sockets.iter().map(|s| PathEntry { ev: s.ev, port: s.port }).collect();
        let own = EvProfileConfig { paths, active: None, backup: None, min_active: None };
        let own = Paths::new(&own, |path| {
            let found = sockets.iter().position(|s| s.ev == path.ev && s.port == path.port);
            found.map(|i| i as u16).ok_or_else(|| Error::invalid("a path without a socket"))
        })?;
        let cc = Arc::new(default_cc(&config, 4096));
        let places = config.max_qps as usize;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut engine = Engine {
            memory: MemoryTable::new(),
            sockets,
            links,
            peers: Peers::default(),
            ev_profiles: Profiles::new("EV", own),
            cc_profiles: Profiles::new("congestion control", cc),
            impairer: Impairer::new(config.dscp),
            causes: Causes::default(),
            iterations: 0,
            qps: Vec::new(),
            generations: (0..places).map(|_| random.random_range(0..GENERATIONS)).collect(),
            free_places: VecDeque::new(),
            endpoint: Endpoint::new(PortSet::first(ports.len()), seed),
            ready: ReadyRing::new(),
            stalled: Vec::new(),
            timers: Timers::default(),
            submitted: Vec::new(),
            taken: VecDeque::new(),
            touched: Vec::new(),
            feedback: Vec::new(),
            overruns: Vec::new(),
            run: TxRun::new(),
            rx: Some(Box::new(RxBuffer::new())),
            next_port: NextPort::new(ports.len()),
            watching: true,
            eager: false,
            bulk: 0,
            impaired: Vec::new(),
            rolled: Vec::new(),
            pressure: BufferWatch::new(),
            segmentation: config.segmentation,
            seed,
            ports,
            config,
        };
        let up = engine.ports_up();
        engine.endpoint.set_local_ports(sys::now(), up, span(engine.config.base_rtt));
        Ok(engine)
    }

    // --- queue pairs -------------------------------------------------------------------------------------------

    /// A queue pair in RESET.
    pub fn create_qp(
        &mut self,
        pd: u32,
        send_cq: Arc<CqShared>,
        recv_cq: Arc<CqShared>,
        cap: QpCap,
        sq_sig_all: bool,
    ) -> Result<Arc<QpShared>> {
        // Fresh places first: the longer a number stays unused, the better.
        let place = if self.qps.len() < self.config.max_qps as usize {
            self.qps.push(None);
            self.qps.len() as u32 - 1
        } else {
            self.free_places.pop_front().ok_or_else(|| {
                Error::invalid(format!(
                    "the device has {} queue pairs, which is all it can",
                    self.config.max_qps
                ))
            })?
        };
        let generation = &mut self.generations[place as usize];
        // Generation 0 is never used, so numbers 0 to 2, which mean other things, are never given out.
        *generation = *generation % (GENERATIONS - 1) + 1;
        let num = u32::from(*generation) << PLACE_BITS | place;
        let shared = Arc::new(QpShared::new(num, place, cap, sq_sig_all, send_cq, recv_cq));
        let ring = (cap.max_send_wr as usize).next_power_of_two();
        self.qps[place as usize] = Some(Box::new(Qp {
            transport: None,
            io: QpIo {
                shared: Arc::clone(&shared),
                pd,
                attr: QpAttr::default(),
                access: Access::REMOTE_WRITE,
                peer: None,
                paths: None,
                ev_profile: 0,
                sends: std::iter::repeat_with(Wqe::default).take(ring).collect(),
                next_send: 0,
                oldest_send: 0,
                failed: None,
                scheduled: Time::NEVER,
                touched: false,
                receiving: false,
                flushed: false,
            },
        }));
        Ok(shared)
    }

    /// The place of the queue pair with this number.
    #[inline]
    pub(super) fn place_of(&self, num: u32) -> Option<usize> {
        let place = (num & ((1 << PLACE_BITS) - 1)) as usize;
        let qp = self.qps.get(place)?.as_ref()?;
        (qp.io.shared.num == num).then_some(place)
    }

    pub(super) fn qp(&self, index: u32) -> Result<&Qp> {
        self.qps.get(index as usize).and_then(Option::as_deref).ok_or(Error::Closed("the queue pair"))
    }

    fn io_mut(&mut self, index: u32) -> Result<&mut QpIo> {
        let qp = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        qp.map(|qp| &mut qp.io).ok_or(Error::Closed("the queue pair"))
    }

    pub fn modify_qp(&mut self, shared: &Shared, index: u32, to: QpState, attr: &QpAttr) -> Result<()> {
        let now = sys::now();
        let io = &self.qp(index)?.io;
        let from = io.shared.state();
        check_transition(from, to, attr.mask())?;
        let mut merged = io.attr.clone();
        merged.update(attr);
        match to {
            QpState::Init => {}
            QpState::Rtr => self.connect_qp(now, index, &merged)?,
            QpState::Rts => self.start_qp(now, index, &merged)?,
            QpState::Error => return self.abort_qp(shared, now, index),
            QpState::Reset => {
                self.reset_qp(now, index);
                return Ok(());
            }
        }
        let io = self.io_mut(index)?;
        io.access = merged.access.unwrap_or(Access::REMOTE_WRITE);
        io.attr = merged;
        io.shared.set_state(to);
        self.touch(index);
        self.settle(shared, now);
        Ok(())
    }

    fn abort_qp(&mut self, shared: &Shared, now: Time, index: u32) -> Result<()> {
        let Some(Qp { transport, io }) = self.qps[index as usize].as_deref_mut() else {
            return Err(Error::Closed("the queue pair"));
        };
        io.shared.set_state(QpState::Error);
        let mut host = qp_host!(self, io, shared, now, &[]);
        if let Some(transport) = transport {
            transport.abort(now, Fatal::Local, &mut host);
        }
        host.flush_queues();
        self.fail_overrun_queues(shared, now);
        Ok(())
    }

    /// In ERROR: what has been posted since is flushed.
    pub fn flush_queues(&mut self, shared: &Shared, index: u32) {
        let now = sys::now();
        if let Some(Qp { io, .. }) = self.qps[index as usize].as_deref_mut() {
            qp_host!(self, io, shared, now, &[]).flush_queues();
        }
        self.fail_overrun_queues(shared, now);
    }

    /// Back to RESET: everything outstanding is forgotten, without completions.
    fn reset_qp(&mut self, _now: Time, index: u32) {
        let Some(Qp { transport, io }) = self.qps[index as usize].as_deref_mut() else { return };
        *transport = None;
        io.shared.set_state(QpState::Reset);
        io.attr = QpAttr::default();
        io.paths = None;
        io.failed = None;
        io.sends.iter_mut().for_each(|w| *w = Wqe::default());
        (io.next_send, io.oldest_send) = (0, 0);
        io.scheduled = Time::NEVER;
        io.shared.pending.lock().clear();
        io.shared.receives.lock().clear();
        io.shared.send_outstanding.store(0, Ordering::Release);
        for cq in [&io.shared.send_cq, &io.shared.recv_cq] {
            cq.forget(io.shared.num);
        }
        if let Some(peer) = io.peer.take() {
            self.release_peer(peer);
        }
    }

    fn release_peer(&mut self, peer: u32) {
        if self.peers.release(peer) {
            self.endpoint.remove_peer(peer);
        }
    }

    pub fn destroy_qp(&mut self, index: u32) {
        self.reset_qp(sys::now(), index);
        if self.qps.get_mut(index as usize).and_then(Option::take).is_some() {
            self.free_places.push_back(index);
        }
    }

    pub fn query_qp(&self, index: u32) -> Result<QpInfo> {
        let io = &self.qp(index)?.io;
        Ok(QpInfo {
            state: io.shared.state(),
            attr: io.attr.clone(),
            cap: io.shared.cap,
            sq_sig_all: io.shared.sq_sig_all,
        })
    }

    pub fn qp_stats(&self, index: u32) -> Result<QpStats> {
        Ok(self.qp(index)?.transport.as_ref().map(mrc::QueuePair::stats).unwrap_or_default())
    }

    pub fn qp_ev_states(&self, index: u32) -> Result<Vec<(PathEntry, EvState)>> {
        let qp = self.qp(index)?;
        let Some((transport, paths)) = qp.transport.as_ref().zip(qp.io.paths.as_ref()) else {
            return Ok(Vec::new());
        };
        let entries = paths.profile.entries();
        Ok(transport.ev_states().map(|(path, state)| (entries[usize::from(path)], state)).collect())
    }

    pub fn qp_ports(&self, index: u32) -> Result<PortSet> {
        let peer = self.qp(index)?.io.peer.and_then(|p| self.peers.get(p));
        Ok(self.ports_up().and(peer.map_or(PortSet::EMPTY, |p| p.up)))
    }

    /// Completion queues that have overrun take their queue pairs with them.
    pub(super) fn fail_overrun_queues(&mut self, shared: &Shared, now: Time) {
        while let Some(cq) = self.overruns.pop() {
            shared.events.push(AsyncEvent::CqError { cq });
            for index in 0..self.qps.len() {
                let Some(Qp { transport, io }) = self.qps[index].as_deref_mut() else { continue };
                if io.shared.send_cq.id != cq && io.shared.recv_cq.id != cq {
                    continue;
                }
                if io.shared.state() != QpState::Error {
                    let reason = Fatal::Local;
                    shared.events.push(AsyncEvent::QpFatal { qp_num: io.shared.num, reason });
                    io.shared.set_state(QpState::Error);
                    let mut host = qp_host!(self, io, shared, now, &[]);
                    if let Some(transport) = transport {
                        transport.abort(now, reason, &mut host);
                    }
                    host.flush_queues();
                }
            }
        }
    }

    // --- profiles and paths ------------------------------------------------------------------------------------

    /// The socket of a path.
    pub(super) fn socket_of(&self, path: PathEntry) -> Option<u16> {
        self.sockets.iter().position(|s| s.ev == path.ev && s.port == path.port).map(|i| i as u16)
    }

    /// A new EV profile. Sockets for paths that nobody has used yet are opened.
    pub fn create_ev_profile(&mut self, config: &EvProfileConfig) -> Result<u16> {
        let paths = Paths::new(config, |path| self.open_path(path))?;
        self.ev_profiles.add(paths)
    }

    fn open_path(&mut self, path: PathEntry) -> Result<u16> {
        if let Some(socket) = self.socket_of(path) {
            return Ok(socket);
        }
        let port = self.ports.get(usize::from(path.port)).ok_or_else(|| {
            Error::invalid(format!("port {} does not exist: the device has {}", path.port, self.ports.len()))
        })?;
        let source_port = u16::try_from(path.ev.0)
            .ok()
            .filter(|&p| p != 0)
            .ok_or_else(|| Error::invalid(format!("EV {} is no UDP source port: 1 to 65535", path.ev.0)))?;
        if self.sockets.len() >= MAX_PATHS {
            return Err(Error::invalid(format!("a device has at most {MAX_PATHS} entropy values")));
        }
        let class = self.sockets[0].default_class;
        let addr = port.addr.ip();
        self.sockets.push(TxSocket::open(path.port, addr, source_port, self.config.send_buffer, class)?);
        Ok(self.sockets.len() as u16 - 1)
    }

    /// Ends an EV profile that no queue pair uses.
    pub fn destroy_ev_profile(&mut self, id: u16) -> Result<()> {
        if let Some(qp) = self.qps.iter().flatten().find(|q| q.transport.is_some() && q.io.ev_profile == id) {
            let num = qp.io.shared.num;
            return Err(Error::Busy(format!("EV profile {id} is used by queue pair 0x{num:06x}")));
        }
        self.ev_profiles.remove(id).map(drop)
    }

    /// Switches an entropy value off or on in every queue pair of a profile; how many use it.
    pub fn set_ev_denied(&mut self, profile: u16, ev: Ev, denied: bool) -> Result<usize> {
        self.ev_profiles.get(profile)?;
        let mut users = 0;
        for index in 0..self.qps.len() {
            let Some(Qp { transport: Some(transport), io }) = self.qps[index].as_deref_mut() else {
                continue;
            };
            if io.ev_profile == profile && transport.set_ev_denied(ev, denied) {
                users += 1;
                self.touch(index as u32);
            }
        }
        Ok(users)
    }

    // --- peers -------------------------------------------------------------------------------------------------

    pub fn add_peer(&mut self, addrs: &[std::net::SocketAddr]) -> Result<u32> {
        let local: Vec<IpAddr> = self.ports.iter().map(|p| p.addr.ip()).collect();
        let (peer, new) = self.peers.acquire(addrs, &local)?;
        if new {
            self.endpoint.add_peer(sys::now(), peer);
        }
        Ok(peer)
    }

    pub fn remove_peer(&mut self, peer: u32) {
        if self.peers.get(peer).is_some() {
            self.release_peer(peer);
        }
    }

    // --- ports -------------------------------------------------------------------------------------------------

    /// Switches a port on or off.
    pub fn set_port_admin(&mut self, shared: &Shared, port: usize, up: bool) -> Result<()> {
        let before = self.ports_up();
        let count = self.ports.len();
        let port = self
            .ports
            .get_mut(port)
            .ok_or_else(|| Error::invalid(format!("port {port} does not exist: the device has {count}")))?;
        port.admin_up = up;
        self.local_ports_changed(shared, sys::now(), before);
        Ok(())
    }

    /// Interfaces or addresses have changed.
    pub(super) fn links_changed(&mut self, shared: &Shared) {
        if let Some(links) = &self.links {
            links.drain();
        }
        let Ok(list) = netlink::interface_addrs() else { return };
        let before = self.ports_up();
        self.ports.iter_mut().for_each(|p| p.check_link(&list));
        self.local_ports_changed(shared, sys::now(), before);
    }

    // --- the whole ---------------------------------------------------------------------------------------------

    pub fn stats(&self) -> ContextStats {
        ContextStats {
            ports: self.ports.iter().map(|p| p.stats).collect(),
            causes: self.causes.clone(),
            iterations: self.iterations,
            sleeps: 0,
        }
    }

    pub fn path_stats(&self) -> Vec<PathStats> {
        let stats = |s: &TxSocket| PathStats {
            port: s.port,
            ev: s.ev,
            tx_packets: s.packets,
            tx_bytes: s.bytes,
            last_tx_ns: s.last_tx_ns,
        };
        self.sockets.iter().map(stats).collect()
    }

    /// Ends everything: outstanding work is flushed, sockets are closed, regions forgotten. The owners of the regions
    /// are returned, to be dropped without locks held.
    #[must_use]
    pub fn close(&mut self, shared: &Shared) -> Vec<Box<dyn Any + Send>> {
        let now = sys::now();
        for index in 0..self.qps.len() as u32 {
            // A place may be empty; there is nothing to flush then.
            let _ = self.abort_qp(shared, now, index);
        }
        self.qps.iter_mut().for_each(|qp| *qp = None);
        self.ready = ReadyRing::new();
        self.stalled.clear();
        self.touched.clear();
        self.links = None;
        self.ports.clear();
        self.sockets.clear();
        self.memory.clear()
    }
}
