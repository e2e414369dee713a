//! Receiving a datagram: one system call for a whole run of packets (UDP GRO), into a buffer that is used again and again
//! and stays in the cache. One at a time, so that the ports can be taken in turn; see [`crate::engine`].

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::RawFd;

use crate::sys::SockAddr;

/// The largest datagram that GRO builds.
const ROOM: usize = 1 << 16;
const CONTROL_ROOM: usize = 128;
const UDP_GRO: i32 = 104;
const IPV6_FLOWINFO: i32 = 11;

#[repr(C, align(8))]
struct Control([u8; CONTROL_ROOM]);

/// What the kernel says about a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Source address and port.
    pub source: IpAddr,
    pub source_port: u16,
    /// Low 16 bits of the IPv6 flow label, where asked for.
    pub flow_label: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Length of its packets; the last may be shorter.
    pub segment: usize,
    /// Datagrams the socket has dropped since it was opened, if the kernel says.
    pub dropped: Option<u32>,
    /// When the kernel put it into the queue, nanoseconds of its clock.
    pub arrived_ns: u64,
    /// It did not fit.
    pub truncated: bool,
}

impl Meta {
    /// Takes over what the control messages of a received message say.
    ///
    /// # Safety
    /// Its control buffer is live and as the kernel has filled it.
    #[inline]
    pub unsafe fn read_control(&mut self, message: &libc::msghdr) {
        // SAFETY: the control buffer has `msg_controllen` bytes of messages; the macros stay within them, and each
        // message is read at the size that its kind has.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(message);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::SOL_IP, libc::IP_TOS) => self.traffic_class = *data,
                    (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                        self.traffic_class = data.cast::<i32>().read_unaligned() as u8;
                    }
                    (libc::SOL_IPV6, IPV6_FLOWINFO) => {
                        self.flow_label = u32::from_be(data.cast::<u32>().read_unaligned()) as u16;
                    }
                    (libc::SOL_UDP, UDP_GRO) => {
                        self.segment = data.cast::<i32>().read_unaligned().max(1) as usize;
                    }
                    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                        self.dropped = Some(data.cast::<u32>().read_unaligned());
                    }
                    (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                        let at = data.cast::<libc::timespec>().read_unaligned();
                        self.arrived_ns = at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64;
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(message, control);
            }
        }
    }
}

/// Room for one datagram.
pub(crate) struct RxBuffer {
    bytes: Box<[u8]>,
    control: Control,
}

impl RxBuffer {
    pub fn new() -> Self {
        RxBuffer { bytes: vec![0; ROOM].into_boxed_slice(), control: Control([0; CONTROL_ROOM]) }
    }

    /// Receives the next datagram that waits on `fd`: its bytes and what is known of it.
    ///
    /// # Errors
    /// The kernel's; `WouldBlock` if nothing waits.
    #[inline]
    pub fn receive(&mut self, fd: RawFd) -> io::Result<(&[u8], Meta)> {
        let mut name = SockAddr::zeroed();
        let mut iovec = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: ROOM };
        // SAFETY: zeros are a valid, empty message header.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = SockAddr::LEN as libc::socklen_t;
        message.msg_iov = &raw mut iovec;
        message.msg_iovlen = 1;
        message.msg_control = self.control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_ROOM as _;
        // Not through libc, whose recvmsg is a cancellation point and pays for it at every call.
        // SAFETY: the message points to live buffers of the lengths it gives.
        let len = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, libc::MSG_DONTWAIT) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = &self.bytes[..len as usize];
        let (source, source_port) =
            name.ip_port().ok_or_else(|| io::Error::other("a datagram without a source address"))?;
        let mut meta = Meta {
            source,
            source_port,
            flow_label: 0,
            traffic_class: 0,
            segment: bytes.len().max(1),
            dropped: None,
            arrived_ns: 0,
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        };
        // SAFETY: the kernel has filled in the message.
        unsafe { meta.read_control(&message) };
        Ok((bytes, meta))
    }
}
