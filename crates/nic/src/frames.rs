//! SRv6 mode's sockets: each port sends and receives whole Ethernet frames in batches, by packet sockets.
//!
//! A BPF filter accepts only packets of this device: UDP over IPv6 in IPv6, to the port's address and UDP port.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use openmrc_sockets::{IoVec, RecvBatch, RecvMeta, SendBatch, Socket, VnetHeader, filter, send_slices};
use openmrc_wire::{DecodeError, IcrcSeed, Packet, encap};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::piece::Piece;
use crate::tx::RunKey;

/// Frames sent by one system call.
const MAX_FRAMES: usize = 64;
/// Frames received by one system call: one or two runs of a sender, so that the ports are still read in turn.
const RECEIVE_FRAMES: usize = 16;
/// Room for a received frame: the longest packet (path MTU 8192), its headers and padding.
const ROOM: usize = 9216;
/// EtherType of IPv6.
const IPV6: u16 = 0x86DD;

/// The sockets of a port in SRv6 mode.
pub(crate) struct FrameSockets {
    /// Receives.
    pub rx: Socket,
    /// Sends.
    pub tx: Socket,
    /// Reserve the UDP ports.
    pub claims: Vec<Socket>,
}

/// Opens the sockets of a port on the interface with this index. It receives on the UDP port of `addr` and on those of
/// `more`.
pub(crate) fn open(addr: SocketAddr, more: &[u16], interface: u32, buffer: usize) -> Result<FrameSockets> {
    let IpAddr::V6(ip) = addr.ip() else {
        return Err(Error::invalid(format!("SRv6 mode needs IPv6 addresses, not {}", addr.ip())));
    };
    let udp_ports: Vec<u16> = [addr.port()].iter().chain(more).copied().collect();
    let claims = udp_ports.iter().map(|&port| {
        let addr = SocketAddr::new(addr.ip(), port);
        Socket::reserve_udp(addr).map_err(|e| Error::os(format!("UDP port at {addr}"), e))
    });
    let claims = claims.collect::<Result<_>>()?;
    let open = || -> io::Result<(Socket, Socket)> {
        let rx = Socket::packet()?;
        rx.attach_filter(&filter::udp_in_ipv6(ip, &udp_ports))?;
        rx.set_receive_buffer(buffer)?;
        rx.report_drops()?;
        rx.report_arrival_time()?;
        rx.bind_interface(interface, IPV6)?;
        let tx = Socket::packet()?;
        tx.use_vnet_headers()?;
        tx.bind_interface(interface, 0)?;
        Ok((rx, tx))
    };
    let (rx, tx) = open().map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => Error::os(
            "a packet socket for SRv6 mode needs root or CAP_NET_RAW (setcap cap_net_raw+ep, or sudo)",
            e,
        ),
        _ => Error::os(format!("packet socket for {addr}"), e),
    })?;
    Ok(FrameSockets { rx, tx, claims })
}

// --- sending ---------------------------------------------------------------------------------------------------

/// A frame that is ready to be sent.
pub(crate) struct Queued {
    pub key: RunKey,
    /// Bytes from the BTH to the iCRC.
    pub bytes: usize,
    pub opcode: u8,
    /// Bytes before the BTH, the virtio-net header included.
    prefix: usize,
    first_iovec: usize,
}

/// Frames that one port is about to send.
pub(crate) struct FrameBatch {
    arena: Arena,
    frames: Vec<Queued>,
    messages: SendBatch,
}

impl FrameBatch {
    pub fn new() -> Self {
        FrameBatch {
            arena: Arena::new(MAX_FRAMES, VnetHeader::LEN + encap::MAX_LEN),
            frames: Vec::with_capacity(MAX_FRAMES),
            messages: SendBatch::with_capacity(MAX_FRAMES),
        }
    }

    pub fn is_full(&self) -> bool {
        self.frames.len() == MAX_FRAMES || !self.arena.has_room()
    }

    pub fn frames(&self) -> &[Queued] {
        &self.frames
    }

    /// Adds a packet behind the headers of its path. Its payload lies in `pieces`, which must stay valid until the
    /// batch is cleared.
    #[inline]
    pub fn push(
        &mut self,
        key: RunKey,
        headers: &encap::Encapsulation,
        packet: &Packet,
        pieces: &[Piece],
        seed: &IcrcSeed,
        ports: (u16, u16),
    ) {
        let bytes = packet.wire_len();
        let first_iovec = self.arena.iovecs.len();
        self.arena.begin(|room| write_prefix(room, headers, key.class, bytes));
        self.arena.push(packet, pieces, seed, ports);
        let prefix = VnetHeader::LEN + headers.len();
        self.frames.push(Queued { key, bytes, opcode: packet.opcode(), prefix, first_iovec });
    }

    /// Sends the frames from number `from` on; returns how many the kernel took, at least one.
    ///
    /// # Errors
    /// The kernel's, for the first of them.
    pub fn send(&mut self, fd: RawFd, from: usize) -> io::Result<usize> {
        self.messages.clear();
        for i in from..self.frames.len() {
            let iovecs = Self::iovecs_of(&self.arena, &self.frames, i);
            self.messages.push(iovecs);
        }
        // SAFETY: the messages have iovecs of the arena, and those name memory that is valid until the batch is
        // cleared.
        unsafe { self.messages.send(fd) }
    }

    /// The bytes of a frame from the BTH on, in one piece.
    pub fn datagram(&self, index: usize) -> Vec<u8> {
        let frame = &self.frames[index];
        let mut whole = Vec::with_capacity(frame.prefix + frame.bytes);
        Arena::copy(Self::iovecs_of(&self.arena, &self.frames, index), &mut whole);
        whole.split_off(frame.prefix)
    }

    fn iovecs_of<'a>(arena: &'a Arena, frames: &[Queued], index: usize) -> &'a [IoVec] {
        let end = frames.get(index + 1).map_or(arena.iovecs.len(), |next| next.first_iovec);
        &arena.iovecs[frames[index].first_iovec..end]
    }

    #[inline]
    pub fn clear(&mut self) {
        self.arena.clear();
        self.frames.clear();
    }
}

/// Writes the virtio-net header and all headers before a datagram of this length; returns how many bytes they are.
///
/// The virtio-net header asks for the whole frame in one piece of kernel memory. By default a packet socket puts frames
/// of a page and more into separate pages, which costs time at every hop.
#[inline]
fn write_prefix(room: &mut [u8], headers: &encap::Encapsulation, class: u8, datagram: usize) -> usize {
    let (vnet, room) = room.split_at_mut(VnetHeader::LEN);
    vnet.copy_from_slice(&VnetHeader::linear((headers.len() + datagram) as u16).0);
    VnetHeader::LEN + headers.write(room, class, datagram)
}

/// Sends one frame whose datagram lies in one piece.
pub(crate) fn send_one(
    fd: RawFd,
    headers: &encap::Encapsulation,
    class: u8,
    datagram: &[u8],
) -> io::Result<()> {
    let mut prefix = [0; VnetHeader::LEN + encap::MAX_LEN];
    let len = write_prefix(&mut prefix, headers, class, datagram.len());
    send_slices(fd, &[IoSlice::new(&prefix[..len]), IoSlice::new(datagram)])
}

// --- receiving -------------------------------------------------------------------------------------------------

/// Room for a batch of received frames, used again and again.
pub(crate) struct FrameBuffer {
    bytes: Box<[u8]>,
    batch: RecvBatch,
}

impl FrameBuffer {
    pub fn new() -> Self {
        let mut bytes = vec![0; RECEIVE_FRAMES * ROOM].into_boxed_slice();
        let mut batch = RecvBatch::new(RECEIVE_FRAMES);
        for (index, room) in bytes.chunks_exact_mut(ROOM).enumerate() {
            batch.set_buffer(index, room);
        }
        FrameBuffer { bytes, batch }
    }

    /// Receives what waits on `fd`, at most one batch; returns how many frames.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if nothing waits.
    #[inline]
    pub fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        // SAFETY: every message has its part of `bytes`, which we borrow exclusively and which never moves.
        unsafe { self.batch.receive(fd, RECEIVE_FRAMES) }
    }

    /// When the first frame arrived, nanoseconds by the system's clock.
    pub fn arrived_ns(&self) -> u64 {
        let mut meta = RecvMeta::new(0);
        self.batch.read_control(0, &mut meta);
        meta.arrived_ns
    }

    /// A received frame from the BTH on, with its metadata. `trimmed` says whether a DSCP is one of a trimmed packet.
    ///
    /// # Errors
    /// Why it is refused: the filter would not have accepted it, or its path does not end here. `Ok(None)` if a switch
    /// has marked a packet that is not ECN-capable: it must be dropped (RFC 6040).
    #[inline]
    pub fn frame(
        &self,
        index: usize,
        trimmed: impl Fn(u8) -> bool,
    ) -> Result<Option<(&[u8], RecvMeta)>, DecodeError> {
        let start = index * ROOM;
        let frame = &self.bytes[start..start + self.batch.len(index).min(ROOM)];
        // Switches trim and mark the outer header.
        let seen = encap::decapsulate(frame)?;
        let Some(ecn) = seen.ecn else { return Ok(None) };
        let short = seen.short && !trimmed(seen.dscp);
        let mut meta = RecvMeta {
            source: IpAddr::V6(seen.source),
            source_port: seen.entropy.sport,
            dest_port: seen.dest_port,
            flow_label: seen.entropy.flow_label as u16,
            traffic_class: seen.dscp << 2 | ecn.bits(),
            truncated: short || self.batch.is_truncated(index),
            ..RecvMeta::new(seen.payload.len())
        };
        self.batch.read_control(index, &mut meta);
        Ok(Some((seen.payload, meta)))
    }
}
