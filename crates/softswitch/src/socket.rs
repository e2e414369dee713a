//! The packet socket of a port: whole Ethernet frames of one interface, received and sent in batches.

use std::io;
use std::os::fd::RawFd;

use openmrc_sockets::{IoVec, RecvBatch, SendBatch, Socket, VnetHeader, interface};
use openmrc_wire::link::ETHERTYPE_IPV6;

use crate::checksum::finish_checksum;
use crate::queue::Frame;

/// Frames per system call.
pub const BATCH: usize = 64;
/// Receive buffer of a port, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A packet socket on an interface, with room for a batch of frames. It receives IPv6 only.
pub struct PortSocket {
    socket: Socket,
    headers: Box<[VnetHeader; BATCH]>,
    incoming: RecvBatch,
    iovecs: Vec<[IoVec; 2]>,
    outgoing: SendBatch,
}

impl PortSocket {
    /// Opens a socket on the interface with this name.
    pub fn open(name: &str) -> io::Result<Self> {
        let index = interface::index_of(name)?;
        let socket = Socket::packet()?;
        socket.use_vnet_headers()?;
        socket.force_receive_buffer(RECEIVE_BUFFER)?;
        socket.bind_interface(index, ETHERTYPE_IPV6)?;
        Ok(PortSocket {
            socket,
            headers: Box::new([VnetHeader::default(); BATCH]),
            incoming: RecvBatch::new(BATCH),
            iovecs: Vec::with_capacity(BATCH),
            outgoing: SendBatch::with_capacity(BATCH),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Receives up to [`BATCH`] frames into `frames`; returns how many. A frame that is longer than its buffer does not
    /// belong to this network and gets length 0.
    pub fn receive(&mut self, frames: &mut [Frame]) -> io::Result<usize> {
        let limit = frames.len().min(BATCH);
        for (i, (frame, header)) in frames.iter_mut().zip(self.headers.iter_mut()).enumerate() {
            self.incoming.set_buffers(i, &mut header.0, &mut frame.buffer);
        }
        // SAFETY: every message up to `limit` has the buffers set above, which we borrow exclusively.
        let received = match unsafe { self.incoming.receive(self.socket.fd(), limit) } {
            Ok(received) => received,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => 0,
                // The interface is down. There is nothing to read until it is up again.
                io::ErrorKind::NetworkDown => 0,
                _ => return Err(error),
            },
        };
        for (i, frame) in frames[..received].iter_mut().enumerate() {
            let truncated = self.incoming.is_truncated(i);
            frame.len = if truncated { 0 } else { self.incoming.len(i).saturating_sub(VnetHeader::LEN) };
            if let Some((start, offset)) = self.headers[i].missing_checksum() {
                finish_checksum(&mut frame.buffer[..frame.len], start, offset);
            }
        }
        Ok(received)
    }

    /// Sends up to [`BATCH`] frames; returns how many the interface has taken.
    pub fn send(&mut self, frames: &[Frame]) -> usize {
        // Zeros ask for nothing, and the kernel only reads them.
        let header = VnetHeader::default();
        let iovec = |bytes: &[u8]| IoVec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        self.iovecs.clear();
        self.iovecs.extend(frames.iter().take(BATCH).map(|frame| [iovec(&header.0), iovec(frame.bytes())]));
        self.outgoing.clear();
        self.iovecs.iter().for_each(|iovecs| self.outgoing.push(iovecs));
        // SAFETY: the iovecs name `header` and the frames, which outlive the call.
        unsafe { self.outgoing.send(self.socket.fd()) }.unwrap_or(0)
    }
}
