//! SRv6 mode's sockets: whole Ethernet frames by a packet socket per port, received and sent in batches.
//!
//! A filter in the kernel lets the socket take only what is ours: UDP over IPv6 in IPv6, to the port's address and UDP port.
//! A host whose kernel decapsulates too (`End.DT6`) would see a second copy of each packet, and answer that nobody
//! listens there. So the port's UDP port is claimed by an ordinary socket as well, one that drops everything unseen: two
//! devices cannot have one address and port, in whatever mode.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use openmrc_wire::{Ev, IcrcSeed, Packet, encap};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::rx::Meta;
use crate::sys;
use crate::tx::RunKey;

/// Frames that are sent in one system call.
const MAX_FRAMES: usize = 64;
/// Frames that are received in one: a run or two of whoever sends in runs, so that ports are still taken in turn.
const RECEIVE_FRAMES: usize = 16;
/// Not in libc for every target (linux/if_packet.h).
const PACKET_VNET_HDR: i32 = 15;
/// `struct virtio_net_hdr`, before each frame that is sent.
const VNET_HEADER: usize = 10;
/// Where it says how much of the frame is to lie in one piece in the kernel.
const VNET_HEADER_LEN: usize = 2;
/// Room for a frame: the longest packet (path MTU 8192), its headers, and whatever pads it.
const ROOM: usize = 9216;

/// The sockets of a port in SRv6 mode.
pub(crate) struct FrameSockets {
    /// Receives.
    pub rx: OwnedFd,
    /// Sends.
    pub tx: OwnedFd,
    /// Keeps the UDP port.
    pub claim: OwnedFd,
}

/// Opens the sockets of a port on the interface with this index.
pub(crate) fn open(addr: SocketAddr, interface: u32, buffer: usize) -> Result<FrameSockets> {
    let IpAddr::V6(ip) = addr.ip() else {
        return Err(Error::invalid(format!("SRv6 mode needs IPv6 addresses, not {}", addr.ip())));
    };
    let claim = claim(addr).map_err(|e| Error::os(format!("UDP port at {addr}"), e))?;
    let open = || -> io::Result<(OwnedFd, OwnedFd)> {
        let rx = packet_socket()?;
        let raw = rx.as_raw_fd();
        attach(raw, &filter(ip, addr.port()))?;
        let size = buffer.min(i32::MAX as usize / 2) as i32;
        sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
            .or_else(|_| sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, size))?;
        sys::set_option(raw, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        sys::set_option(raw, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        bind(raw, interface, libc::ETH_P_IPV6 as u16)?;
        let tx = packet_socket()?;
        sys::set_option(tx.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        // No protocol: nothing is received.
        bind(tx.as_raw_fd(), interface, 0)?;
        Ok((rx, tx))
    };
    let (rx, tx) = open().map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::os(
            "a packet socket for SRv6 mode needs root or CAP_NET_RAW (setcap cap_net_raw+ep, or sudo)",
            e,
        ),
        _ => Error::os(format!("packet socket for {addr}"), e),
    })?;
    Ok(FrameSockets { rx, tx, claim })
}

fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers. Protocol 0: nothing comes before it is bound.
    let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, known to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Binds a packet socket to an interface.
fn bind(fd: RawFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: zeros are valid for plain integers.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface as i32;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), len) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A UDP socket at the address that takes nothing.
fn claim(addr: SocketAddr) -> io::Result<OwnedFd> {
    let fd = sys::udp_socket(addr.ip())?;
    attach(fd.as_raw_fd(), &[statement(libc::BPF_RET | libc::BPF_K, 0)])?;
    sys::set_option(fd.as_raw_fd(), libc::SOL_IPV6, libc::IPV6_V6ONLY, 1)?;
    sys::bind(fd.as_raw_fd(), addr)?;
    Ok(fd)
}

// --- the filter ------------------------------------------------------------------------------------------------

fn attach(fd: RawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr() as *mut _ };
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program)
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Accepts UDP over IPv6 in IPv6 to this address and UDP port, with or without an SRH of one segment between.
fn filter(addr: Ipv6Addr, udp_port: u16) -> Vec<libc::sock_filter> {
    use libc::{
        BPF_ABS, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_RET, BPF_W,
    };
    const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    /// Of the next header in an IPv6 header, and where the outer one begins.
    const NEXT_HEADER: u32 = 6;
    const OUTER: u32 = 14;
    const BEHIND: u32 = OUTER + 40;
    /// A jump that the end of this function directs to the refusal.
    const REFUSE: u8 = u8::MAX;
    let load = |size, at| statement(BPF_LD | size | BPF_ABS, at);
    let at_inner = |size, at| statement(BPF_LD | size | BPF_IND, at);
    let equal = |k, jt, jf| libc::sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt, jf, k };
    let inner_at = |at| statement(BPF_LDX | BPF_W | BPF_IMM, at);
    let mut program = vec![
        load(BPF_B, PACKET_TYPE),
        equal(0, 0, REFUSE), // PACKET_HOST: to our MAC address
        load(BPF_B, OUTER + NEXT_HEADER),
        inner_at(BEHIND),
        equal(41, 4, 0),
        equal(43, 0, REFUSE),
        load(BPF_H, BEHIND),
        equal(41 << 8 | 2, 0, REFUSE), // what follows the SRH, and its length
        inner_at(BEHIND + 24),
        at_inner(BPF_B, NEXT_HEADER),
        equal(17, 0, REFUSE),
    ];
    for (word, part) in addr.octets().chunks_exact(4).enumerate() {
        program.push(at_inner(BPF_W, 24 + 4 * word as u32));
        program.push(equal(u32::from_be_bytes([part[0], part[1], part[2], part[3]]), 0, REFUSE));
    }
    program.push(at_inner(BPF_H, 42));
    program.push(equal(u32::from(udp_port), 0, REFUSE));
    program.push(statement(BPF_RET | BPF_K, u32::MAX));
    program.push(statement(BPF_RET | BPF_K, 0));
    let last = program.len() - 1;
    for (i, instruction) in program.iter_mut().enumerate() {
        if instruction.jf == REFUSE {
            instruction.jf = (last - i - 1) as u8;
        }
    }
    program
}

// --- sending ---------------------------------------------------------------------------------------------------

/// A frame that is ready to go.
pub(crate) struct Queued {
    pub key: RunKey,
    /// Bytes from the BTH to the iCRC.
    pub bytes: usize,
    /// Its opcode.
    pub opcode: u8,
    /// Bytes in front of the BTH, those that are not sent too.
    prefix: usize,
    first_iovec: usize,
}

/// Frames of one port on their way out.
pub(crate) struct FrameBatch {
    arena: Arena,
    frames: Vec<Queued>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: the raw pointers in `messages` are used in the call that sets them only.
unsafe impl Send for FrameBatch {}

impl FrameBatch {
    pub fn new() -> Self {
        FrameBatch {
            arena: Arena::new(MAX_FRAMES, VNET_HEADER + encap::MAX_LEN),
            frames: Vec::with_capacity(MAX_FRAMES),
            messages: Vec::with_capacity(MAX_FRAMES),
        }
    }

    pub fn is_full(&self) -> bool {
        self.frames.len() == MAX_FRAMES || !self.arena.has_room()
    }

    pub fn frames(&self) -> &[Queued] {
        &self.frames
    }

    /// Adds a packet, in front of which go the headers of its path. Its payload lies in `pieces`, which must stay valid
    /// until the batch is cleared.
    #[inline]
    pub fn push(
        &mut self,
        key: RunKey,
        headers: &encap::Encapsulation,
        packet: &Packet,
        pieces: &[&[u8]],
        seed: &IcrcSeed,
        ports: (u16, u16),
    ) {
        let bytes = packet.wire_len();
        let first_iovec = self.arena.iovecs.len();
        self.arena.begin(|room| in_front(room, headers, key.class, bytes));
        self.arena.push(packet, pieces, seed, ports);
        let prefix = VNET_HEADER + headers.len();
        self.frames.push(Queued { key, bytes, opcode: packet.opcode(), prefix, first_iovec });
    }

    /// Sends the frames from number `from` on; how many the kernel took, at least one.
    ///
    /// # Errors
    /// The kernel's, for the first of them.
    pub fn send(&mut self, fd: RawFd, from: usize) -> io::Result<usize> {
        self.messages.clear();
        for i in from..self.frames.len() {
            let iovecs = self.iovecs_of(i);
            // SAFETY: zeros are a valid, empty message header.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = iovecs.as_ptr() as *mut _;
            message.msg_hdr.msg_iovlen = iovecs.len() as _;
            self.messages.push(message);
        }
        // SAFETY: the messages point to iovecs of the arena, and those to memory that is valid until the batch is cleared.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::syscall(libc::SYS_sendmmsg, fd, self.messages.as_mut_ptr(), self.messages.len(), flags)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// A frame's bytes from the BTH on, in one piece.
    pub fn datagram(&self, index: usize) -> Vec<u8> {
        let frame = &self.frames[index];
        let mut whole = Vec::with_capacity(frame.prefix + frame.bytes);
        Arena::copy(self.iovecs_of(index), &mut whole);
        whole.split_off(frame.prefix)
    }

    fn iovecs_of(&self, index: usize) -> &[libc::iovec] {
        let end = self.frames.get(index + 1).map_or(self.arena.iovecs.len(), |next| next.first_iovec);
        &self.arena.iovecs[self.frames[index].first_iovec..end]
    }

    #[inline]
    pub fn clear(&mut self) {
        self.arena.clear();
        self.frames.clear();
    }
}

/// Writes what stands before a datagram of so many bytes, and returns its length.
///
/// All of a frame is to lie in one piece: by itself a packet socket would put frames of a page and more into pages of
/// their own, which costs the kernel, at every hop, more than what a socket of UDP sends.
#[inline]
fn in_front(room: &mut [u8], headers: &encap::Encapsulation, class: u8, datagram: usize) -> usize {
    let (vnet, room) = room.split_at_mut(VNET_HEADER);
    vnet.fill(0);
    let frame = (headers.len() + datagram) as u16;
    vnet[VNET_HEADER_LEN..VNET_HEADER_LEN + 2].copy_from_slice(&frame.to_ne_bytes());
    VNET_HEADER + headers.write(room, class, datagram)
}

/// Sends one frame from bytes that lie in one piece.
pub(crate) fn send_one(
    fd: RawFd,
    headers: &encap::Encapsulation,
    class: u8,
    datagram: &[u8],
) -> io::Result<()> {
    let mut prefix = [0; VNET_HEADER + encap::MAX_LEN];
    let len = in_front(&mut prefix, headers, class, datagram.len());
    let iovecs = [
        libc::iovec { iov_base: prefix.as_mut_ptr().cast(), iov_len: len },
        libc::iovec { iov_base: datagram.as_ptr() as *mut _, iov_len: datagram.len() },
    ];
    // SAFETY: zeros are a valid, empty message header; the message and all it points to outlive the call.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = iovecs.as_ptr() as *mut _;
        message.msg_iovlen = iovecs.len() as _;
        libc::sendmsg(fd, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

// --- receiving -------------------------------------------------------------------------------------------------

/// Bytes for when a frame arrived, and the kernel's count of those that it had to drop.
const CONTROL_ROOM: usize = 64;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_ROOM]);

/// Room for a batch of frames, used again and again.
pub(crate) struct FrameBuffer {
    bytes: Box<[u8]>,
    controls: Box<[Control; RECEIVE_FRAMES]>,
    iovecs: Box<[libc::iovec; RECEIVE_FRAMES]>,
    messages: Box<[libc::mmsghdr; RECEIVE_FRAMES]>,
}

// SAFETY: the raw pointers point into the boxes beside them, which move with them and stay where they are.
unsafe impl Send for FrameBuffer {}

impl FrameBuffer {
    pub fn new() -> Self {
        let mut bytes = vec![0; RECEIVE_FRAMES * ROOM].into_boxed_slice();
        let mut controls = Box::new([Control([0; CONTROL_ROOM]); RECEIVE_FRAMES]);
        let mut rooms = bytes.chunks_exact_mut(ROOM);
        let mut iovecs: Box<[libc::iovec; RECEIVE_FRAMES]> = Box::new(std::array::from_fn(|_| {
            let room = rooms.next().unwrap_or_default();
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }
        }));
        let messages = Box::new(std::array::from_fn(|i| {
            // SAFETY: zeros are a valid, empty message header.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = &raw mut iovecs[i];
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = controls[i].0.as_mut_ptr().cast();
            message
        }));
        FrameBuffer { bytes, controls, iovecs, messages }
    }

    /// Receives what waits on `fd`, up to a batch; how many frames.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if nothing waits.
    #[inline]
    pub fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        debug_assert_eq!(self.iovecs.len(), self.controls.len());
        for message in self.messages.iter_mut() {
            message.msg_hdr.msg_controllen = CONTROL_ROOM as _;
        }
        // SAFETY: each message points to room of the length it gives, which outlives the call; no timeout.
        let count = unsafe {
            libc::syscall(
                libc::SYS_recvmmsg,
                fd,
                self.messages.as_mut_ptr(),
                RECEIVE_FRAMES,
                libc::MSG_DONTWAIT,
                std::ptr::null::<libc::timespec>(),
            )
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }

    /// A frame of those received: from the BTH on, and what is known of it. `None` if it is none that the filter lets
    /// pass. `trimmed` says whether a DSCP is one of a trimmed packet.
    #[inline]
    pub fn frame(&self, index: usize, trimmed: impl Fn(u8) -> bool) -> Option<(&[u8], Meta)> {
        let message = &self.messages[index];
        let start = index * ROOM;
        let frame = &self.bytes[start..start + (message.msg_len as usize).min(ROOM)];
        let seen = encap::decapsulate(frame)?;
        // A switch that trims rewrites the outer code point; whether the inner one too is up to it. One that marks may
        // mark either.
        let class = if trimmed(seen.outer_class >> 2) { seen.outer_class } else { seen.inner_class };
        let marked = [seen.outer_class, seen.inner_class].into_iter().any(crate::socket::is_marked);
        let short = seen.short && !trimmed(class >> 2);
        let Ev(ev) = seen.ev;
        let mut meta = Meta {
            source: IpAddr::V6(seen.source),
            source_port: seen.source_port,
            flow_label: ev as u16,
            traffic_class: if marked { crate::socket::marked(class) } else { class },
            segment: seen.payload.len().max(1),
            arrived_ns: 0,
            dropped: None,
            truncated: short || message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        // SAFETY: the kernel has filled in the message; its control buffer is one of ours.
        unsafe { meta.read_control(&message.msg_hdr) };
        Some((seen.payload, meta))
    }
}
