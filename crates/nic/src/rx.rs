//! Receiving in batches: several datagrams per system call, several packets per datagram (UDP GRO), into buffers that
//! are used again and again and stay in the cache.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::sys::SockAddr;

/// Datagrams per system call. A datagram holds a whole run of packets of one path; taking one from a port before turning
/// to the next keeps the order in which they were sent.
const DATAGRAMS: usize = 1;
/// The largest datagram that GRO builds.
const ROOM: usize = 1 << 16;
const CONTROL_ROOM: usize = 128;
const UDP_GRO: i32 = 104;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_ROOM]);

/// What the kernel says about a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Source address and port.
    pub source: IpAddr,
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Length of its packets; the last may be shorter.
    pub segment: usize,
    /// Datagrams the socket has dropped since it was opened, if the kernel says.
    pub dropped: Option<u32>,
    /// It did not fit.
    pub truncated: bool,
}

/// Buffers for one receive call.
pub(crate) struct RxBatch {
    buffer: Box<[u8]>,
    names: Box<[SockAddr; DATAGRAMS]>,
    controls: Box<[Control; DATAGRAMS]>,
    iovecs: Box<[libc::iovec; DATAGRAMS]>,
    headers: Box<[libc::mmsghdr; DATAGRAMS]>,
}

// SAFETY: the raw pointers point into the boxes beside them, which move with them and are not shared.
unsafe impl Send for RxBatch {}

impl RxBatch {
    pub fn new() -> Self {
        let mut batch = RxBatch {
            buffer: vec![0; ROOM * DATAGRAMS].into_boxed_slice(),
            names: Box::new([SockAddr::zeroed(); DATAGRAMS]),
            controls: Box::new([Control([0; CONTROL_ROOM]); DATAGRAMS]),
            iovecs: Box::new([libc::iovec { iov_base: std::ptr::null_mut(), iov_len: ROOM }; DATAGRAMS]),
            // SAFETY: zeros are a valid, empty message header.
            headers: Box::new(unsafe { mem::zeroed() }),
        };
        for i in 0..DATAGRAMS {
            batch.iovecs[i].iov_base = batch.buffer[i * ROOM..].as_mut_ptr().cast();
            let header = &mut batch.headers[i].msg_hdr;
            header.msg_name = (&raw mut batch.names[i]).cast();
            header.msg_iov = &raw mut batch.iovecs[i];
            header.msg_iovlen = 1;
            header.msg_control = batch.controls[i].0.as_mut_ptr().cast();
        }
        batch
    }

    /// Receives what waits on `fd`, up to [`DATAGRAMS`].
    #[inline]
    pub fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        for header in self.headers.iter_mut() {
            header.msg_hdr.msg_namelen = SockAddr::LEN as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_ROOM as _;
        }
        // SAFETY: every header points to live buffers of the lengths it gives.
        let n = unsafe {
            libc::recvmmsg(
                fd,
                self.headers.as_mut_ptr(),
                DATAGRAMS as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if n >= 0 { Ok(n as usize) } else { Err(io::Error::last_os_error()) }
    }

    /// The `i`-th datagram of the last call: its bytes and what is known of it. `None` without a source address.
    #[inline]
    pub fn datagram(&self, i: usize) -> Option<(&[u8], Meta)> {
        let header = &self.headers[i];
        let bytes = &self.buffer[i * ROOM..][..header.msg_len as usize];
        let (source, source_port) = self.names[i].ip_port()?;
        let mut meta = Meta {
            source,
            source_port,
            traffic_class: 0,
            segment: bytes.len(),
            dropped: None,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        };
        // SAFETY: the kernel has filled the control buffer with `msg_controllen` bytes of messages; the macros stay in
        // them, and each message is read at the size that its kind has.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(&header.msg_hdr);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_IP, libc::IP_TOS) => meta.traffic_class = *data,
                    (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                        meta.traffic_class = data.cast::<i32>().read_unaligned() as u8;
                    }
                    (libc::SOL_UDP, UDP_GRO) => {
                        meta.segment = (data.cast::<i32>().read_unaligned().max(1)) as usize;
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        meta.dropped = Some(data.cast::<u32>().read_unaligned());
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(&header.msg_hdr, control);
            }
        }
        Some((bytes, meta))
    }
}
