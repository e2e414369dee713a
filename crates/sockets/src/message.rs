//! One message in one system call.
//!
//! The calls go through `libc::syscall`: libc's own `sendmsg`, `sendto` and `recvmsg` are cancellation points, which
//! costs time at every call.

use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::RawFd;

use crate::address::SockAddr;
use crate::control::{Control, RECV_CONTROL, RecvMeta, SEND_CONTROL, write_control};
use crate::{IoVec, count};

pub(crate) const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// Sends the bytes of `iovecs` to `dest`. With `segment` the kernel cuts them into packets of that length (UDP GSO);
/// `class` is given if it differs from the socket's own traffic class.
///
/// # Errors
/// The kernel's. Nothing was sent then.
///
/// # Safety
/// Every iovec names memory that is valid for reads during the call.
#[inline]
pub unsafe fn send_message(
    fd: RawFd,
    dest: &SockAddr,
    iovecs: &[IoVec],
    class: Option<u8>,
    segment: Option<u16>,
) -> io::Result<()> {
    if let ([only], None, None) = (iovecs, class, segment) {
        // SAFETY: the caller's promise.
        return unsafe { send_plain(fd, dest, only) };
    }
    let mut control = Control::<SEND_CONTROL>::EMPTY;
    // SAFETY: zeros are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = dest as *const SockAddr as *mut _;
    message.msg_namelen = dest.len();
    message.msg_iov = iovecs.as_ptr() as *mut _;
    message.msg_iovlen = iovecs.len() as _;
    if class.is_some() || segment.is_some() {
        write_control(&mut message, &mut control, segment, class, dest.is_v4());
    }
    // SAFETY: the message and all it points to outlive the call, the iovecs' memory by the caller's promise.
    count(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, SEND_FLAGS) }).map(drop)
}

/// For sendto the kernel copies no message header, which saves a tenth of the time of a small packet.
///
/// # Safety
/// The iovec names memory that is valid for reads during the call.
#[inline]
unsafe fn send_plain(fd: RawFd, dest: &SockAddr, iovec: &IoVec) -> io::Result<()> {
    let (base, len) = (iovec.iov_base, iovec.iov_len);
    let dest_ptr = dest as *const SockAddr;
    // SAFETY: the iovec is valid by the caller's promise, and the address for its length.
    count(unsafe { libc::syscall(libc::SYS_sendto, fd, base, len, SEND_FLAGS, dest_ptr, dest.len()) })
        .map(drop)
}

/// As [`send_message`], for contiguous bytes.
///
/// # Errors
/// The kernel's. Nothing was sent then.
pub fn send_bytes(
    fd: RawFd,
    dest: &SockAddr,
    bytes: &[u8],
    class: Option<u8>,
    segment: Option<u16>,
) -> io::Result<()> {
    let iovec = IoVec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: the iovec names `bytes`.
    unsafe { send_message(fd, dest, &[iovec], class, segment) }
}

/// Sends one message without an address, as a packet socket that is bound to its interface does.
///
/// # Errors
/// The kernel's. Nothing was sent then.
pub fn send_slices(fd: RawFd, slices: &[IoSlice<'_>]) -> io::Result<()> {
    // SAFETY: zeros are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    // An `IoSlice` has the layout of `struct iovec`.
    message.msg_iov = slices.as_ptr() as *mut IoVec;
    message.msg_iovlen = slices.len() as _;
    // SAFETY: the message and all it points to outlive the call.
    count(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, SEND_FLAGS) }).map(drop)
}

/// Receives the next queued message of any socket into `room`; returns its length there.
///
/// # Errors
/// The kernel's; `WouldBlock` if none is queued.
#[inline]
pub fn receive_bytes(fd: RawFd, room: &mut [u8]) -> io::Result<usize> {
    let (base, len) = (room.as_mut_ptr(), room.len());
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: `room` has room for `len` bytes, and no address is asked for.
    count(unsafe { libc::syscall(libc::SYS_recvfrom, fd, base, len, libc::MSG_DONTWAIT, none, none) })
}

/// A buffer for one datagram. Callers reuse it, so it stays in the cache.
pub struct RecvBuffer {
    bytes: Box<[u8]>,
    /// Length of what was received last.
    len: usize,
    control: Control<RECV_CONTROL>,
}

impl RecvBuffer {
    /// A buffer for a datagram of at most `len` bytes.
    pub fn new(len: usize) -> Self {
        RecvBuffer { bytes: vec![0; len].into_boxed_slice(), len: 0, control: Control::EMPTY }
    }

    /// The datagram that was received last.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Receives the next queued datagram; returns what the kernel reports about it.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if none is queued.
    #[inline]
    pub fn receive(&mut self, fd: RawFd) -> io::Result<RecvMeta> {
        let mut name = SockAddr::zeroed();
        let mut iovec = IoVec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: self.bytes.len() };
        // SAFETY: zeros are a valid, empty message header.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = SockAddr::LEN as libc::socklen_t;
        message.msg_iov = &raw mut iovec;
        message.msg_iovlen = 1;
        message.msg_control = self.control.0.as_mut_ptr().cast();
        message.msg_controllen = RECV_CONTROL as _;
        // SAFETY: the message points to live buffers of the lengths it gives.
        let len =
            count(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT) })?;
        let (source, source_port) =
            name.ip_port().ok_or_else(|| io::Error::other("a datagram without a source address"))?;
        let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
        let mut meta = RecvMeta { source, source_port, truncated, ..RecvMeta::new(len) };
        // SAFETY: the kernel has filled in the message.
        unsafe { meta.read_control(&message) };
        self.len = len;
        Ok(meta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Socket;
    use std::net::SocketAddr;

    fn pair(ip: &str) -> (Socket, Socket, SocketAddr) {
        let ip = ip.parse().unwrap();
        let (a, b) = (Socket::udp(ip).unwrap(), Socket::udp(ip).unwrap());
        for socket in [&a, &b] {
            socket.bind(SocketAddr::new(ip, 0)).unwrap();
        }
        b.report_traffic_class().unwrap();
        b.report_arrival_time().unwrap();
        let to = SocketAddr::new(ip, b.local_port().unwrap());
        (a, b, to)
    }

    #[test]
    fn a_datagram_arrives_with_its_source_class_and_time() {
        for ip in ["127.0.0.1", "::1"] {
            let (a, b, to) = pair(ip);
            a.set_traffic_class(0x20).unwrap();
            let mut buffer = RecvBuffer::new(64);
            for (class, expected) in [(None, 0x20), (Some(0x41), 0x41)] {
                send_bytes(a.fd(), &SockAddr::new(to), b"abc", class, None).unwrap();
                let meta = buffer.receive(b.fd()).unwrap();
                assert_eq!(buffer.bytes(), b"abc");
                assert_eq!((meta.source, meta.source_port), (to.ip(), a.local_port().unwrap()));
                assert_eq!((meta.traffic_class, meta.segment, meta.truncated), (expected, 3, false));
                assert!(meta.arrived_ns > 0);
            }
            assert_eq!(buffer.receive(b.fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn the_flow_label_of_the_destination_arrives() {
        let (a, b, to) = pair("::1");
        a.send_flow_label().unwrap();
        b.report_flow_label().unwrap();
        send_bytes(a.fd(), &SockAddr::new(to).with_flow_label(0x1234), b"x", None, None).unwrap();
        let mut buffer = RecvBuffer::new(64);
        assert_eq!(buffer.receive(b.fd()).unwrap().flow_label, 0x1234);
        send_bytes(a.fd(), &SockAddr::new(to), b"y", None, None).unwrap();
        assert_eq!(buffer.receive(b.fd()).unwrap().flow_label, 0, "the kernel adds no label of its own");
    }

    #[test]
    fn one_message_is_cut_into_packets() {
        let (a, b, to) = pair("127.0.0.1");
        send_bytes(a.fd(), &SockAddr::new(to), &[7; 250], Some(4), Some(100)).unwrap();
        let mut buffer = RecvBuffer::new(128);
        let lengths = [(); 3].map(|()| buffer.receive(b.fd()).map(|_| buffer.bytes().len()).unwrap());
        assert_eq!(lengths, [100, 100, 50]);
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_is_reported() {
        let (a, b, to) = pair("127.0.0.1");
        send_bytes(a.fd(), &SockAddr::new(to), &[7; 100], None, None).unwrap();
        let mut buffer = RecvBuffer::new(10);
        let meta = buffer.receive(b.fd()).unwrap();
        let bytes = buffer.bytes();
        assert_eq!((bytes.len(), meta.truncated), (10, true));
    }
}
