//! The sockets of a port: one that receives at the port's address, and one that sends per UDP source port. In SRv6 mode
//! packet sockets take their place ([`crate::frames`]).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use openmrc_sockets::{IoVec, SendRing, SockAddr, Socket, send_message};

use crate::error::{Error, Result};
use crate::frames::{self, FrameSockets};

const ECT0: u8 = 0b10;
const ECN_CE: u8 = 0b11;

/// Length of the longest datagram that GRO builds.
pub(crate) const LONGEST_DATAGRAM: usize = 1 << 16;

/// A polling engine turns GRO off after this many messages of one packet in a row ...
const SINGLES_WITHOUT_GRO: u32 = 64;
/// ... and on again after this many without a poll in between that found nothing.
const STREAK_WITH_GRO: u32 = 16;

/// The traffic class octet of a DSCP, with ECT(0) if `ecn_capable`.
pub(crate) const fn traffic_class(dscp: u8, ecn_capable: bool) -> u8 {
    dscp << 2 | if ecn_capable { ECT0 } else { 0 }
}

/// Whether the ECN field of a traffic class octet is any but "not ECN-capable".
pub(crate) const fn is_ecn_capable(traffic_class: u8) -> bool {
    traffic_class & 0b11 != 0
}

/// Whether the ECN field of a traffic class octet is "congestion experienced".
pub(crate) const fn is_marked(traffic_class: u8) -> bool {
    traffic_class & 0b11 == ECN_CE
}

/// The traffic class octet with ECN field "congestion experienced".
pub(crate) const fn marked(traffic_class: u8) -> u8 {
    traffic_class | ECN_CE
}

/// The socket that a port receives on.
pub(crate) struct RxSocket {
    socket: Socket,
    /// Size of its receive buffer, in bytes of kernel memory.
    pub buffer: usize,
    gro: Gro,
    /// SRv6 mode: the socket that sends frames.
    tx: Option<Socket>,
    /// SRv6 mode: reserve the UDP ports for this device.
    _claims: Vec<Socket>,
}

/// Whether the kernel may deliver several packets as one message.
#[derive(Default)]
struct Gro {
    /// It may, by the device's configuration.
    allowed: bool,
    on: bool,
    /// Messages of one packet in a row.
    singles: u32,
    /// Messages since the last poll that found nothing.
    streak: u32,
}

impl RxSocket {
    /// A UDP socket at the address. Over IPv6 the flow label is part of the reflected entropy in every mode of the
    /// peer.
    pub fn open(addr: SocketAddr, buffer: usize, segmentation: bool) -> Result<Self> {
        let open = || -> io::Result<Self> {
            let socket = Socket::udp(addr.ip())?;
            socket.set_receive_buffer(buffer)?;
            socket.report_traffic_class()?;
            if addr.is_ipv6() {
                socket.use_v6_only()?;
                // A peer in SRv6 mode sends no UDP checksum: the iCRC protects the packet.
                socket.accept_zero_checksum()?;
                socket.report_flow_label()?;
            }
            socket.report_drops()?;
            socket.report_arrival_time()?;
            socket.allow_absent_address()?;
            socket.bind(addr)?;
            let mut rx = Self::new(socket, segmentation)?;
            rx.set_gro(true);
            Ok(rx)
        };
        open().map_err(|e| Error::os(format!("receive socket at {addr}"), e))
    }

    /// SRv6 mode: packet sockets on the interface with this index.
    pub fn open_frames(addr: SocketAddr, more: &[u16], interface: u32, buffer: usize) -> Result<Self> {
        let FrameSockets { rx, tx, claims } = frames::open(addr, more, interface, buffer)?;
        let rx = Self::new(rx, false).map_err(|e| Error::os(format!("packet socket for {addr}"), e))?;
        Ok(RxSocket { tx: Some(tx), _claims: claims, ..rx })
    }

    fn new(socket: Socket, segmentation: bool) -> io::Result<Self> {
        let buffer = socket.receive_buffer()?;
        let gro = Gro { allowed: segmentation, ..Gro::default() };
        Ok(RxSocket { socket, buffer, gro, tx: None, _claims: Vec::new() })
    }

    /// Turns GRO on or off, if the device may use it. A kernel without GRO delivers the packets one by one.
    pub fn set_gro(&mut self, on: bool) {
        if self.gro.allowed && self.gro.on != on {
            self.gro.on = self.socket.set_gro(on).is_ok() && on;
        }
        (self.gro.singles, self.gro.streak) = (0, 0);
    }

    /// Tells a polling engine's socket how many packets the last message had, 0 if there was no message. GRO adds an
    /// eighth to the receive time of a small packet, so it is on only while runs of packets arrive.
    #[inline]
    pub fn adapt_gro(&mut self, packets: usize) {
        match packets {
            0 => self.gro.streak = 0,
            1 if self.gro.on => {
                self.gro.singles += 1;
                if self.gro.singles == SINGLES_WITHOUT_GRO {
                    self.set_gro(false);
                }
            }
            1 => {
                self.gro.streak += 1;
                if self.gro.streak == STREAK_WITH_GRO {
                    self.set_gro(true);
                }
            }
            _ => self.gro.singles = 0,
        }
    }

    /// The socket that receives.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    #[inline]
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// SRv6 mode: the descriptor that sends frames.
    pub fn tx_fd(&self) -> RawFd {
        self.tx.as_ref().unwrap_or(&self.socket).fd()
    }
}

/// For how long a source port may be in use by a device that has ended: when a process ends, the kernel closes the sockets
/// of its ring behind it, within a quarter of a second.
const PORT_PATIENCE: Duration = Duration::from_millis(500);

/// Binds a send socket. One for a certain port waits for a device that has just ended.
fn bind(socket: &Socket, addr: SocketAddr) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match socket.bind(addr) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse
                    && addr.port() != 0
                    && begin.elapsed() < PORT_PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// A socket that sends from one UDP source port.
pub(crate) struct TxSocket {
    handle: TxHandle,
    /// The UDP port it is bound to.
    pub source_port: u16,
    /// Traffic class octet of packets that do not name one.
    pub default_class: u8,
}

/// How the kernel is told which socket sends.
enum TxHandle {
    /// By its descriptor.
    Descriptor(Socket),
    /// By its number in the device's ring.
    Ring(u32),
}

impl TxSocket {
    /// A socket that sends from `addr`; `source_port` 0 lets the kernel choose. `ring` takes it, if it has room.
    pub fn open(
        addr: IpAddr,
        source_port: u16,
        buffer: usize,
        default_class: u8,
        ring: Option<&mut SendRing>,
    ) -> Result<Self> {
        let open = || -> io::Result<Self> {
            let socket = Socket::udp(addr)?;
            socket.set_send_buffer(buffer)?;
            // It never receives, so packets that others send must not pile up.
            socket.set_receive_buffer(0)?;
            // The iCRC covers the IPv4 identification and "don't fragment", so both must be known.
            socket.never_fragment()?;
            socket.set_traffic_class(default_class)?;
            if addr.is_ipv6() {
                // The high half of the entropy goes into the flow label.
                socket.send_flow_label()?;
            }
            socket.allow_absent_address()?;
            bind(&socket, SocketAddr::new(addr, source_port))?;
            let source_port = socket.local_port()?;
            let handle = match ring.and_then(|ring| ring.add(&socket).ok()) {
                Some(number) => TxHandle::Ring(number),
                None => TxHandle::Descriptor(socket),
            };
            Ok(TxSocket { handle, source_port, default_class })
        };
        open().map_err(|e| Error::os(format!("send socket from {addr} port {source_port}"), e))
    }

    /// Its number in the device's ring, if that has it.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        match self.handle {
            TxHandle::Ring(number) => Some(number),
            TxHandle::Descriptor(_) => None,
        }
    }

    /// Its descriptor, if it has one.
    #[inline]
    pub fn fd(&self) -> Option<RawFd> {
        match &self.handle {
            TxHandle::Descriptor(socket) => Some(socket.fd()),
            TxHandle::Ring(_) => None,
        }
    }

    /// Sends the bytes of `iovecs`; see [`send_message`].
    ///
    /// # Errors
    /// The kernel's. Nothing was sent then.
    ///
    /// # Safety
    /// Every iovec names memory that is valid for reads during the call. `ring` is the one that has the socket.
    #[inline]
    pub unsafe fn send(
        &self,
        ring: Option<&mut SendRing>,
        dest: &SockAddr,
        iovecs: &[IoVec],
        class: Option<u8>,
        segment: Option<u16>,
    ) -> io::Result<()> {
        match (&self.handle, ring) {
            // SAFETY: the caller's promise.
            (TxHandle::Descriptor(socket), _) => unsafe {
                send_message(socket.fd(), dest, iovecs, class, segment)
            },
            // SAFETY: the caller's promise.
            (&TxHandle::Ring(number), Some(ring)) => unsafe {
                ring.send(number, dest, iovecs, class, segment)
            },
            // The device is closed.
            (TxHandle::Ring(_), None) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
