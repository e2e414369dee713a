//! The sockets of a port: one that receives at the port's address, and one per UDP source port that sends. In SRv6 mode
//! there is one for everything; see [`crate::frames`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use openmrc_wire::EvFormat;

use crate::error::{Error, Result};
use crate::frames::{self, FrameSockets};
use crate::sys;

// Not all of these are in libc for every target.
const UDP_GRO: i32 = 104;
const UDP_NO_CHECK6_RX: i32 = 102;
const IPV6_FLOWINFO: i32 = 11;
const IPV6_FLOWINFO_SEND: i32 = 33;
const ECT0: u8 = 0b10;
const ECN_CE: u8 = 0b11;

/// So many single packets in a row show that a poller need not pay for GRO ...
const SINGLES_WITHOUT_GRO: u32 = 64;
/// ... and so many without a pause that it should.
const STREAK_WITH_GRO: u32 = 16;

/// The traffic class octet that asks for this DSCP; `ecn_capable` adds ECT(0).
pub(crate) const fn traffic_class(dscp: u8, ecn_capable: bool) -> u8 {
    dscp << 2 | if ecn_capable { ECT0 } else { 0 }
}

/// Whether a traffic class octet says "congestion experienced".
pub(crate) const fn is_marked(traffic_class: u8) -> bool {
    traffic_class & 0b11 == ECN_CE
}

/// The octet with its ECN field saying "congestion experienced".
pub(crate) const fn marked(traffic_class: u8) -> u8 {
    traffic_class | ECN_CE
}

/// The socket that a port receives on.
pub(crate) struct RxSocket {
    fd: OwnedFd,
    /// Bytes of memory its queue may take, as the kernel counts.
    pub buffer: usize,
    /// Datagrams may hold several packets, if the kernel can: as configured, and now.
    segmentation: bool,
    gro: bool,
    /// Datagrams of one packet in a row; and how many came without a pause.
    singles: u32,
    streak: u32,
    /// SRv6 mode: what frames are sent by.
    tx: Option<OwnedFd>,
    /// SRv6 mode: keeps the UDP port for this device.
    _claim: Option<OwnedFd>,
}

impl RxSocket {
    /// A UDP socket at the address. Of a structured EV it takes the flow label as well.
    pub fn open(addr: SocketAddr, format: EvFormat, buffer: usize, segmentation: bool) -> Result<Self> {
        let what = || format!("receive socket at {addr}");
        let fd = sys::udp_socket(addr.ip()).map_err(|e| Error::os(what(), e))?;
        let raw = fd.as_raw_fd();
        let size = buffer.min(i32::MAX as usize / 2) as i32;
        // The privileged way knows no limit.
        sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
            .or_else(|_| sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, size))
            .map_err(|e| Error::os(what(), e))?;
        let class = match addr.ip() {
            IpAddr::V4(_) => sys::set_option(raw, libc::SOL_IP, libc::IP_RECVTOS, 1),
            IpAddr::V6(_) => sys::set_option(raw, libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)
                .and_then(|()| sys::set_option(raw, libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1))
                // A peer in SRv6 mode leaves the checksum to the iCRC.
                .and_then(|()| sys::set_option(raw, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1))
                .and_then(|()| {
                    let wanted = i32::from(format == EvFormat::Structured);
                    sys::set_option(raw, libc::SOL_IPV6, IPV6_FLOWINFO, wanted)
                }),
        };
        class
            .and_then(|()| sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1))
            .and_then(|()| sys::set_option(raw, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1))
            .map_err(|e| Error::os(what(), e))?;
        sys::bind(raw, addr).map_err(|e| Error::os(what(), e))?;
        let mut socket = Self::new(fd, segmentation).map_err(|e| Error::os(what(), e))?;
        socket.set_gro(true);
        Ok(socket)
    }

    /// SRv6 mode: packet sockets on the interface with this index.
    pub fn open_frames(addr: SocketAddr, interface: u32, buffer: usize) -> Result<Self> {
        let FrameSockets { rx, tx, claim } = frames::open(addr, interface, buffer)?;
        let socket = Self::new(rx, false).map_err(|e| Error::os(format!("packet socket for {addr}"), e))?;
        Ok(RxSocket { tx: Some(tx), _claim: Some(claim), ..socket })
    }

    fn new(fd: OwnedFd, segmentation: bool) -> io::Result<Self> {
        let buffer = sys::get_option(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as usize;
        Ok(RxSocket { fd, buffer, segmentation, gro: false, singles: 0, streak: 0, tx: None, _claim: None })
    }

    /// Lets datagrams hold several packets, or not. A kernel that cannot delivers them one by one, which works as well.
    pub fn set_gro(&mut self, on: bool) {
        if self.segmentation && self.gro != on {
            self.gro = sys::set_option(self.fd(), libc::SOL_UDP, UDP_GRO, i32::from(on)).is_ok() && on;
        }
        (self.singles, self.streak) = (0, 0);
    }

    /// While polling: a datagram of so many packets has come, or none (0). GRO is worth its price, an eighth of the way
    /// of a small packet, only where runs come.
    #[inline]
    pub fn adapt_gro(&mut self, packets: usize) {
        match packets {
            0 => self.streak = 0,
            1 if self.gro => {
                self.singles += 1;
                if self.singles == SINGLES_WITHOUT_GRO {
                    self.set_gro(false);
                }
            }
            1 => {
                self.streak += 1;
                if self.streak == STREAK_WITH_GRO {
                    self.set_gro(true);
                }
            }
            _ => self.singles = 0,
        }
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// What frames are sent by in SRv6 mode.
    pub fn tx_fd(&self) -> RawFd {
        self.tx.as_ref().unwrap_or(&self.fd).as_raw_fd()
    }

    /// Bytes of memory that wait in its queue now, as the kernel counts.
    pub fn queued(&self) -> usize {
        const MEMINFO_VARS: usize = 9;
        let mut info = [0u32; MEMINFO_VARS];
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: the array has room for `len` bytes.
        let r = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if r == 0 { info[0] as usize } else { 0 }
    }
}

/// A socket that sends from one UDP source port.
pub(crate) struct TxSocket {
    fd: OwnedFd,
    /// The UDP port it is bound to.
    pub source_port: u16,
    /// Traffic class octet that packets get which do not name one.
    pub default_class: u8,
}

impl TxSocket {
    /// A socket that sends from `addr`; `source_port` 0 lets the kernel choose.
    pub fn open(addr: IpAddr, source_port: u16, buffer: usize, default_class: u8) -> Result<Self> {
        let what = || format!("send socket from {addr} port {source_port}");
        let open = || -> io::Result<(OwnedFd, u16)> {
            let fd = sys::udp_socket(addr)?;
            let raw = fd.as_raw_fd();
            let size = buffer.min(i32::MAX as usize / 2) as i32;
            sys::set_option(raw, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size)
                .or_else(|_| sys::set_option(raw, libc::SOL_SOCKET, libc::SO_SNDBUF, size))?;
            // Nothing is received here; what strangers send may not pile up.
            sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
            match addr {
                IpAddr::V4(_) => {
                    // With it the header has identification 0 and "don't fragment", which the iCRC covers.
                    sys::set_option(raw, libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
                    sys::set_option(raw, libc::SOL_IP, libc::IP_TOS, i32::from(default_class))?;
                }
                IpAddr::V6(_) => {
                    sys::set_option(raw, libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
                    sys::set_option(raw, libc::SOL_IPV6, libc::IPV6_TCLASS, i32::from(default_class))?;
                    // The low half of the entropy value goes into the flow label.
                    sys::set_option(raw, libc::SOL_IPV6, IPV6_FLOWINFO_SEND, 1)?;
                }
            }
            sys::bind(raw, SocketAddr::new(addr, source_port))?;
            let bound = sys::local_port(raw)?;
            Ok((fd, bound))
        };
        let (fd, bound) = open().map_err(|e| Error::os(what(), e))?;
        Ok(TxSocket { fd, source_port: bound, default_class })
    }

    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Lets the process open as many descriptors as its hard limit allows: a device takes one per path.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result and then a valid request.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
