//! One port of the device: its receiving socket, whether it may be used, and runs that wait because the kernel would
//! not take them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use openmrc_sockets::{InterfaceAddr, interface_of};
use openmrc_transport::{PortSet, Span, Time};

use crate::socket::RxSocket;
use crate::stats::PortStats;
use crate::tx::RunKey;

/// Time without a packet accepted by the interface after which held packets are dropped. A queue of 1000 packets of 4
/// KiB drains faster at 10 Gb/s; a plane that is stuck must not hold packets for ever.
const PATIENCE: Span = Span::from_millis(5);

/// The first and the longest wait for room in a full socket that cannot be watched.
const SHORTEST_WAIT: Span = Span::from_micros(100);
const LONGEST_WAIT: Span = Span::from_millis(10);

/// A port status update that a controller asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortStatusUpdate {
    /// Ports that are told to be up.
    pub up: PortSet,
    /// The port on which it is sent; `None`: any.
    pub port: Option<u8>,
}

/// A run that the kernel would not take, as bytes.
pub(crate) struct HeldRun {
    pub key: RunKey,
    /// Length of every packet but the last.
    pub segment: usize,
    pub bytes: Vec<u8>,
}

impl HeldRun {
    /// How many packets it has.
    pub fn packets(&self) -> u64 {
        self.bytes.len().div_ceil(self.segment.max(1)) as u64
    }
}

/// A port.
pub(crate) struct Port {
    pub addr: SocketAddr,
    pub rx: RxSocket,
    /// UDP mode: further UDP ports on which it receives.
    pub more: Vec<(u16, RxSocket)>,
    /// Paths of the device's own profile, for packets that may take any path; none in SRv6 mode, where a path ends at
    /// one node.
    own_paths: Range<u16>,
    next_path: u16,
    /// Switched on by the administrator.
    pub admin_up: bool,
    /// Its address is there, on an interface that is up.
    pub link_up: bool,
    pub interface: Option<String>,
    /// The interface's number in its network namespace.
    pub interface_index: u32,
    /// Waiting for the kernel to take more, in order.
    pub held: VecDeque<HeldRun>,
    /// When to try again without being told.
    pub retry_at: Time,
    /// Since when a socket that cannot be watched has been full.
    full_since: Option<Time>,
    /// Since when the interface has taken nothing for want of buffers (ENOBUFS).
    refusing_since: Option<Time>,
    pub stats: PortStats,
    /// The socket's own count of drops when last seen.
    dropped: u32,
    /// Bytes in the receive buffer when last seen, and the most since the node asked.
    pub queued: usize,
    peak_queued: usize,
}

impl Port {
    pub fn new(addr: SocketAddr, rx: RxSocket, own_paths: Range<u16>) -> Self {
        Port {
            addr,
            rx,
            more: Vec::new(),
            next_path: own_paths.start,
            own_paths,
            admin_up: true,
            link_up: true,
            interface: None,
            interface_index: 0,
            held: VecDeque::new(),
            retry_at: Time::NEVER,
            full_since: None,
            refusing_since: None,
            stats: PortStats::default(),
            dropped: 0,
            queued: 0,
            peak_queued: 0,
        }
    }

    /// Whether it sends and receives.
    pub fn is_up(&self) -> bool {
        self.admin_up && self.link_up
    }

    /// Whether it can take a packet now.
    pub fn is_free(&self) -> bool {
        self.is_up() && self.held.is_empty()
    }

    /// The kernel would not take a packet. `no_buffers`: its interface has no room, and no event tells when it has.
    pub fn pause(&mut self, now: Time, until: Time, no_buffers: bool) {
        self.retry_at = until;
        if no_buffers {
            self.refusing_since.get_or_insert(now);
        }
    }

    /// The send buffer of a socket is full, and no event tells when it has room: it is tried again, each time after as
    /// long as it has been full. The buffer holds many runs, so it does not become empty in that time.
    pub fn wait_for_room(&mut self, now: Time) {
        let since = *self.full_since.get_or_insert(now);
        self.retry_at = now + now.since(since).max(SHORTEST_WAIT).min(LONGEST_WAIT);
    }

    /// The kernel has taken a packet, or the port is down: a later refusal is a new one.
    #[inline]
    pub fn end_refusal(&mut self) {
        (self.refusing_since, self.full_since) = (None, None);
    }

    /// Whether the interface has taken nothing for longer than a full queue needs to drain.
    pub fn has_refused_too_long(&self, now: Time) -> bool {
        self.refusing_since.is_some_and(|since| now.since(since) > PATIENCE)
    }

    /// Looks where its address is now.
    pub fn check_link(&mut self, list: &[InterfaceAddr]) {
        let found = interface_of(self.addr.ip(), list);
        self.link_up = found.is_some_and(|i| i.running);
        if let Some(interface) = found {
            self.interface = Some(interface.name.clone());
            self.interface_index = interface.index;
        }
    }

    /// The socket has dropped this many packets since it was opened; returns how many of them are new.
    pub fn count_dropped(&mut self, dropped: u32) -> u64 {
        // A message reports the count at its arrival, which may be older than the known one.
        let new = dropped.wrapping_sub(self.dropped) as i32;
        if new <= 0 {
            return 0;
        }
        self.dropped = dropped;
        self.stats.rx_overflow += new as u64;
        new as u64
    }

    /// Reads the state of the receive buffer; returns how many packets the socket has dropped since the last time.
    pub fn sample_buffer(&mut self) -> u64 {
        let queue = self.rx.socket().receive_queue();
        self.queued = queue.bytes;
        self.peak_queued = self.peak_queued.max(queue.bytes);
        self.count_dropped(queue.dropped)
    }

    /// The largest share of the receive buffer seen in use since the last call, 0 to 1.
    pub fn take_peak_fill(&mut self) -> f64 {
        std::mem::take(&mut self.peak_queued) as f64 / self.rx.buffer.max(1) as f64
    }

    /// A path for what may go on any of the device's own: each in turn.
    pub fn any_path(&mut self) -> Option<u16> {
        let path = self.next_path;
        self.next_path = if path + 1 < self.own_paths.end { path + 1 } else { self.own_paths.start };
        self.own_paths.contains(&path).then_some(path)
    }
}
