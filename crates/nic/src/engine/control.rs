//! What the application does to the engine under its lock: making, modifying and ending queue pairs, profiles, ports.

use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openmrc_sockets::{Epoll, Interest, InterfaceAddr, LinkWatch, Netlink, RecvBuffer, interface_of};
use openmrc_transport::endpoint::Endpoint;
use openmrc_transport::mrc::{self, EvState, QpStats};
use openmrc_transport::schedule::ReadyRing;
use openmrc_transport::{Fatal, PathEntry, PortSet, Time, Transport};
use openmrc_wire::{Ev, EvFormat};

use rand::{RngExt as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::connect::{default_cc, span};
use super::next_port::NextPort;
use super::{BufferWatch, Engine, Inbox, Qp, QpHost, QpIo, Timers, qp_host};
use crate::attr::{DEFAULT_PATH_MTU, QpAttr, QpCap, QpInfo};
use crate::cq::CqShared;
use crate::device::DeviceConfig;
use crate::error::{Error, Result};
use crate::events::AsyncEvent;
use crate::frames::{FrameBatch, FrameBuffer};
use crate::impairer::Impairer;
use crate::memory::{Access, MemoryTable};
use crate::nexthop::NextHops;
use crate::path::{TxPath, Via};
use crate::peer::Peers;
use crate::port::Port;
use crate::profile::{EvProfileConfig, Paths, Profiles};
use crate::qp::{QpShared, Wqe};
use crate::qp_state::{QpState, check_transition};
use crate::shared::{Shared, TOKEN_LINKS};
use crate::socket::{LONGEST_DATAGRAM, RxSocket, TxSocket, traffic_class};
use crate::stats::{Causes, ContextStats, PathStats};
use crate::sys;
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
        let mut paths = Vec::new();
        let mut ports = Vec::new();
        let netlink = Netlink::open().map_err(|e| Error::os("netlink socket", e))?;
        let list = netlink.interface_addrs().map_err(|e| Error::os("list of interface addresses", e))?;
        for (index, port) in config.ports.iter().enumerate() {
            let addr = std::net::SocketAddr::new(port.addr, port.udp_port);
            let rx = open_receiver(&config, addr, &list)?;
            epoll
                .add(rx.fd(), Interest::Readable, index as u64)
                .map_err(|e| Error::os("watching a port", e))?;
            let first = paths.len() as u16;
            for i in 0..config.evs_of_port(index) {
                let source_port = port.source_ports.get(i).copied().unwrap_or(0);
                let class = traffic_class(data_class, true);
                let socket = TxSocket::open(port.addr, source_port, config.send_buffer, class)?;
                let ev = match config.ev_format {
                    EvFormat::Udp => u32::from(socket.source_port),
                    _ => u32::from(socket.source_port) << 16,
                };
                let via = Via::Socket { socket: Arc::new(socket), watched: false };
                paths.push(TxPath::new(index as u8, Ev(ev), via));
            }
            let mut port = Port::new(addr, rx, first..paths.len() as u16);
            port.check_link(&list);
            ports.push(port);
        }
        let srv6 = config.is_srv6();
        // Without netlink (a sandbox may forbid it) interfaces are taken to stay as they are.
        let links =
            LinkWatch::open(srv6).ok().filter(|l| epoll.add(l.fd(), Interest::Readable, TOKEN_LINKS).is_ok());
        let next_hops = if srv6 { Some(NextHops::open()?) } else { None };
        let own = match paths.is_empty() {
            true => None,
            false => {
                let entry = |path: &TxPath| PathEntry { ev: path.ev, port: path.port };
                let own = EvProfileConfig {
                    paths: paths.iter().map(entry).collect(),
                    ..EvProfileConfig::default()
                };
                Some(Paths::new(&own, |i| Ok(i as u16))?)
            }
        };
        let cc = default_cc(&config, DEFAULT_PATH_MTU);
        let places = config.max_qps as usize;
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut engine = Engine {
            memory: MemoryTable::new(),
            paths,
            next_hops,
            netlink,
            links,
            peers: Peers::default(),
            ev_profiles: Profiles::new("EV", own),
            cc_profiles: Profiles::new("congestion control", Some(cc)),
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
            batches: if srv6 { ports.iter().map(|_| FrameBatch::new()).collect() } else { Vec::new() },
            inbox: Some(if srv6 {
                Inbox::Frames(Box::new(FrameBuffer::new()))
            } else {
                Inbox::Datagrams(Box::new(RecvBuffer::new(LONGEST_DATAGRAM)))
            }),
            next_port: NextPort::new(ports.len()),
            watching: true,
            eager: false,
            bulk: 0,
            impaired: Vec::new(),
            drawn: Vec::new(),
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

    // --- peers -------------------------------------------------------------------------------------------------

    pub fn add_peer(&mut self, addrs: &[std::net::SocketAddr]) -> Result<u32> {
        let local: Vec<IpAddr> = self.ports.iter().map(|p| p.addr.ip()).collect();
        let paths = if self.config.is_srv6() { Some(self.profile_to(addrs)?.1) } else { None };
        let (peer, new) = self.peers.acquire(addrs, &local)?;
        if let (Some(paths), Some(peer)) = (paths, self.peers.get_mut(peer)) {
            peer.set_paths(paths.iter());
        }
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
        let Ok(list) = self.netlink.interface_addrs() else { return };
        let before = self.ports_up();
        self.ports.iter_mut().for_each(|p| p.check_link(&list));
        self.refresh_next_hops(sys::now());
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
        let stats = |path: &TxPath| PathStats {
            port: path.port,
            ev: path.ev,
            route: path.route(),
            tx_packets: path.packets,
            tx_bytes: path.bytes,
            last_tx_ns: path.last_tx_ns,
        };
        self.paths.iter().map(stats).collect()
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
        self.paths.clear();
        self.next_hops = None;
        self.memory.clear()
    }
}

/// The socket that a port receives on.
fn open_receiver(
    config: &DeviceConfig,
    addr: std::net::SocketAddr,
    list: &[InterfaceAddr],
) -> Result<RxSocket> {
    if !config.is_srv6() {
        return RxSocket::open(addr, config.ev_format, config.receive_buffer, config.segmentation);
    }
    let interface = interface_of(addr.ip(), list)
        .ok_or_else(|| Error::invalid(format!("no interface of this host has the address {}", addr.ip())))?;
    RxSocket::open_frames(addr, interface.index, config.receive_buffer)
}
