//! UDP, packet and raw sockets and their options. None of them blocks, and none is inherited by child processes.
//!
//! An option that a socket's family does not have is refused by the kernel.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};

use crate::address::SockAddr;
use crate::filter::{self, Instruction};
use crate::{Descriptor, done, owned};

// libc does not have these for every target (linux/udp.h, linux/in6.h, linux/if_packet.h).
pub(crate) const UDP_SEGMENT: i32 = 103;
pub(crate) const UDP_GRO: i32 = 104;
const UDP_NO_CHECK6_RX: i32 = 102;
pub(crate) const IPV6_FLOWINFO: i32 = 11;
const IPV6_FLOWINFO_SEND: i32 = 33;
const IPV6_AUTOFLOWLABEL: i32 = 70;
const IPV6_FREEBIND: i32 = 78;
const PACKET_VNET_HDR: i32 = 15;

/// State of a receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReceiveQueue {
    /// Bytes of kernel memory.
    pub bytes: usize,
    /// Messages dropped because it was full, since the socket was opened, modulo 2^32.
    pub dropped: u32,
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    fd: Descriptor,
    is_v4: bool,
}

impl Socket {
    /// A UDP socket for addresses of the same family as `addr`, not bound yet.
    ///
    /// # Errors
    /// The kernel's: descriptors have run out.
    pub fn udp(addr: IpAddr) -> io::Result<Self> {
        let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let Socket { fd, is_v4 } = Self::open(family, libc::SOCK_DGRAM, 0)?;
        Ok(Socket { fd: fd.beyond_select(), is_v4 })
    }

    /// A packet socket for whole Ethernet frames. It receives nothing until it is bound to an interface.
    ///
    /// # Errors
    /// The kernel's: it needs CAP_NET_RAW.
    pub fn packet() -> io::Result<Self> {
        Self::open(libc::AF_PACKET, libc::SOCK_RAW, 0)
    }

    /// A raw IPv6 socket: the kernel puts an IPv6 header with this "next header" before what is sent. It receives nothing.
    ///
    /// # Errors
    /// The kernel's: it needs CAP_NET_RAW.
    pub fn raw_ipv6(next_header: u8) -> io::Result<Self> {
        let socket = Self::open(libc::AF_INET6, libc::SOCK_RAW, i32::from(next_header))?;
        socket.attach_filter(&[filter::DROP])?;
        Ok(socket)
    }

    /// A UDP socket at an IPv6 address that drops everything it receives. It reserves its port for a packet socket: a
    /// host that decapsulates SRv6 itself (`End.DT6`) would otherwise answer a second copy of each packet with "port
    /// unreachable", and another program could take the port. Port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// The kernel's, as for [`Socket::bind`].
    pub fn reserve_udp(addr: SocketAddr) -> io::Result<Self> {
        let socket = Self::udp(addr.ip())?;
        socket.attach_filter(&[filter::DROP])?;
        socket.use_v6_only()?;
        socket.bind(addr)?;
        Ok(socket)
    }

    /// A netlink socket for interfaces, addresses, routes and neighbours.
    pub(crate) fn netlink_route() -> io::Result<Self> {
        Self::open(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)
    }

    fn open(family: i32, kind: i32, protocol: i32) -> io::Result<Self> {
        let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = owned(unsafe { libc::socket(family, kind, protocol) })?;
        Ok(Socket { fd, is_v4: family == libc::AF_INET })
    }

    /// The descriptor, which the socket keeps.
    #[inline]
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    // --- addresses -------------------------------------------------------------------------------------------------

    /// Binds a UDP socket to an address; port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// The kernel's: the address is not local, unless [`Socket::allow_absent_address`] was called, or the port is in use.
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let addr = SockAddr::new(addr);
        // SAFETY: `addr` is valid for its own length.
        done(unsafe { libc::bind(self.fd(), (&raw const addr).cast(), addr.len()) })
    }

    /// Lets a UDP socket be bound to an address that this host does not have yet. It sends nothing before it has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_absent_address(&self) -> io::Result<()> {
        match self.is_v4 {
            true => self.set(libc::SOL_IP, libc::IP_FREEBIND, 1),
            false => self.set(libc::SOL_IPV6, IPV6_FREEBIND, 1),
        }
    }

    /// Binds a packet socket to an interface. It receives frames of this EtherType; with 0 it only sends.
    ///
    /// # Errors
    /// The kernel's: no interface has this index.
    pub fn bind_interface(&self, index: u32, ethertype: u16) -> io::Result<()> {
        // SAFETY: zeros are valid for plain integers.
        let mut addr: libc::sockaddr_ll = unsafe { mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as u16;
        addr.sll_protocol = ethertype.to_be();
        addr.sll_ifindex = index as i32;
        let len = size_of_val(&addr) as libc::socklen_t;
        // SAFETY: `addr` is valid for its length.
        done(unsafe { libc::bind(self.fd(), (&raw const addr).cast(), len) })
    }

    /// The UDP port that the socket is bound to.
    ///
    /// # Errors
    /// The kernel's.
    pub fn local_port(&self) -> io::Result<u16> {
        let mut addr = SockAddr::zeroed();
        let mut len = SockAddr::LEN as libc::socklen_t;
        // SAFETY: `addr` has room for `len` bytes.
        let r = unsafe { libc::getsockname(self.fd(), (&raw mut addr).cast(), &mut len) };
        match (r, addr.ip_port()) {
            (0, Some((_, port))) => Ok(port),
            _ => Err(io::Error::last_os_error()),
        }
    }

    // --- buffers ---------------------------------------------------------------------------------------------------

    /// Sets the receive buffer. Without CAP_NET_ADMIN the kernel limits it to `net.core.rmem_max`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.force_receive_buffer(bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, buffer_size(bytes)))
    }

    /// Sets the receive buffer whatever the system's limit is.
    ///
    /// # Errors
    /// The kernel's: it needs CAP_NET_ADMIN.
    pub fn force_receive_buffer(&self, bytes: usize) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, buffer_size(bytes))
    }

    /// Sets the send buffer. Without CAP_NET_ADMIN the kernel limits it to `net.core.wmem_max`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        let size = buffer_size(bytes);
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, size))
    }

    /// The receive buffer, in bytes of kernel memory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        let mut value = 0i32;
        let mut len = size_of::<i32>() as libc::socklen_t;
        let place = (&raw mut value).cast();
        // SAFETY: `value` has room for `len` bytes.
        done(unsafe { libc::getsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, place, &mut len) })?;
        Ok(value.max(0) as usize)
    }

    /// What its receive queue takes now, and has dropped; nothing if the kernel does not say.
    pub fn receive_queue(&self) -> ReceiveQueue {
        const MEMINFO_VARS: usize = 9;
        const RMEM_ALLOC: usize = 0;
        const DROPS: usize = 8;
        let mut info = [0u32; MEMINFO_VARS];
        let mut len = size_of_val(&info) as libc::socklen_t;
        let place = info.as_mut_ptr().cast();
        // SAFETY: the array has room for `len` bytes.
        let r = unsafe { libc::getsockopt(self.fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, place, &mut len) };
        if r != 0 {
            return ReceiveQueue::default();
        }
        ReceiveQueue { bytes: info[RMEM_ALLOC] as usize, dropped: info[DROPS] }
    }

    // --- what received messages report -----------------------------------------------------------------------------

    /// Reports how many messages the socket has dropped ([`crate::RecvMeta::dropped`]).
    ///
    /// # Errors
    /// The kernel's.
    pub fn report_drops(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
    }

    /// Reports when each message arrived ([`crate::RecvMeta::arrived_ns`]).
    ///
    /// # Errors
    /// The kernel's.
    pub fn report_arrival_time(&self) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
    }

    /// Reports the IPv4 TOS or IPv6 traffic class ([`crate::RecvMeta::traffic_class`]).
    ///
    /// # Errors
    /// The kernel's.
    pub fn report_traffic_class(&self) -> io::Result<()> {
        match self.is_v4 {
            true => self.set(libc::SOL_IP, libc::IP_RECVTOS, 1),
            false => self.set(libc::SOL_IPV6, libc::IPV6_RECVTCLASS, 1),
        }
    }

    /// Reports the IPv6 flow label ([`crate::RecvMeta::flow_label`]).
    ///
    /// # Errors
    /// The kernel's.
    pub fn report_flow_label(&self) -> io::Result<()> {
        self.set(libc::SOL_IPV6, IPV6_FLOWINFO, 1)
    }

    // --- what is received ------------------------------------------------------------------------------------------

    /// Lets the kernel deliver several packets of a flow as one message (UDP GRO), or not.
    ///
    /// # Errors
    /// The kernel's: it does not have GRO.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        self.set(libc::SOL_UDP, UDP_GRO, i32::from(on))
    }

    /// Keeps IPv4 out of an IPv6 socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn use_v6_only(&self) -> io::Result<()> {
        self.set(libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)
    }

    /// Accepts IPv6 datagrams without a UDP checksum.
    ///
    /// # Errors
    /// The kernel's.
    pub fn accept_zero_checksum(&self) -> io::Result<()> {
        self.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)
    }

    /// Receives only packets that a classic BPF program accepts.
    ///
    /// # Errors
    /// The kernel's: the program is not valid.
    pub fn attach_filter(&self, program: &[Instruction]) -> io::Result<()> {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr() as *mut _ };
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
    }

    /// Puts a [`crate::VnetHeader`] before every frame that a packet socket receives and expects one before every frame
    /// that it sends.
    ///
    /// # Errors
    /// The kernel's.
    pub fn use_vnet_headers(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, PACKET_VNET_HDR, 1)
    }

    // --- how it sends ----------------------------------------------------------------------------------------------

    /// IPv4 TOS or IPv6 traffic class of packets that do not name one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        match self.is_v4 {
            true => self.set(libc::SOL_IP, libc::IP_TOS, i32::from(class)),
            false => self.set(libc::SOL_IPV6, libc::IPV6_TCLASS, i32::from(class)),
        }
    }

    /// Never fragments: packets longer than the interface's MTU are refused. IPv4 headers get "don't fragment" and
    /// identification 0. ICMP messages that report a smaller MTU on the way change nothing: anybody can forge them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn never_fragment(&self) -> io::Result<()> {
        match self.is_v4 {
            true => self.set(libc::SOL_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE),
            false => self.set(libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE),
        }
    }

    /// Takes the IPv6 flow label from the destination address ([`SockAddr::with_flow_label`]). A label of 0 is sent as 0:
    /// by default the kernel replaces it by one of its own.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send_flow_label(&self) -> io::Result<()> {
        self.set(libc::SOL_IPV6, IPV6_AUTOFLOWLABEL, 0)?;
        self.set(libc::SOL_IPV6, IPV6_FLOWINFO_SEND, 1)
    }

    /// Sends IPv6 unicast packets by the interface with this index.
    ///
    /// # Errors
    /// The kernel's: no interface has this index.
    pub fn send_by_interface(&self, index: u32) -> io::Result<()> {
        self.set(libc::SOL_IPV6, libc::IPV6_UNICAST_IF, index.to_be())
    }

    fn set<T: Copy>(&self, level: i32, name: i32, value: T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is plain data of the length given, and so is what the one that holds a pointer points to.
        done(unsafe { libc::setsockopt(self.fd(), level, name, (&raw const value).cast(), len) })
    }
}

/// The kernel doubles what it is given, and takes an `int`.
fn buffer_size(bytes: usize) -> i32 {
    bytes.min(i32::MAX as usize / 2) as i32
}
