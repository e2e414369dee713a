//! Control messages: what the kernel reports about a received message, and what a sender asks for one message.

use std::net::{IpAddr, Ipv6Addr};

use crate::clock::from_timespec;
use crate::socket::{IPV6_FLOWINFO, UDP_GRO, UDP_SEGMENT};

/// Room for everything that [`RecvMeta`] reports.
pub(crate) const RECV_CONTROL: usize = 128;
/// Room for everything that [`write_control`] asks for.
pub(crate) const SEND_CONTROL: usize = 64;

/// Bytes for the control messages of one message, aligned as the kernel aligns them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control<const N: usize>(pub [u8; N]);

impl<const N: usize> Control<N> {
    pub const EMPTY: Self = Control([0; N]);
}

/// What the kernel reports about a received message. What a socket was not asked to report keeps its initial value.
#[derive(Clone, Copy, Debug)]
pub struct RecvMeta {
    /// Source address.
    pub source: IpAddr,
    /// Source UDP port.
    pub source_port: u16,
    /// Destination UDP port; 0 if the kernel did not report it, as it is the socket's own.
    pub dest_port: u16,
    /// Low 16 bits of the IPv6 flow label.
    pub flow_label: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// Length of each packet in the message; the last may be shorter.
    pub segment: usize,
    /// Messages that the socket has dropped since it was opened.
    pub dropped: Option<u32>,
    /// When the message arrived, nanoseconds of `CLOCK_REALTIME`.
    pub arrived_ns: u64,
    /// The message did not fit its buffer.
    pub truncated: bool,
}

impl RecvMeta {
    /// The report about one packet of `len` bytes with everything else unknown.
    pub const fn new(len: usize) -> Self {
        RecvMeta {
            source: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            source_port: 0,
            dest_port: 0,
            flow_label: 0,
            traffic_class: 0,
            segment: if len == 0 { 1 } else { len },
            dropped: None,
            arrived_ns: 0,
            truncated: false,
        }
    }

    /// Copies what the control messages of a received message report into `self`.
    ///
    /// # Safety
    /// The control buffer is live and as the kernel has filled it.
    #[inline]
    pub(crate) unsafe fn read_control(&mut self, message: &libc::msghdr) {
        // SAFETY: the control buffer has `msg_controllen` bytes of messages; the macros stay within them, and each
        // value is read with the size that its type has.
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
                        self.arrived_ns = from_timespec(data.cast::<libc::timespec>().read_unaligned());
                    }
                    _ => {}
                }
                control = libc::CMSG_NXTHDR(message, control);
            }
        }
    }
}

/// Asks the kernel to cut `message` into packets of `segment` bytes (UDP GSO) and to use a traffic class other than the
/// socket's. `control` becomes the control buffer of `message`.
#[inline]
pub(crate) fn write_control(
    message: &mut libc::msghdr,
    control: &mut Control<SEND_CONTROL>,
    segment: Option<u16>,
    class: Option<u8>,
    is_v4: bool,
) {
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = SEND_CONTROL as _;
    let mut used = 0;
    // SAFETY: the buffer holds both messages; the macros walk within it, and each value is written at its own size.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        if let Some(segment) = segment {
            (*header).cmsg_level = libc::SOL_UDP;
            (*header).cmsg_type = UDP_SEGMENT;
            (*header).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
            used += libc::CMSG_SPACE(2) as usize;
            header = libc::CMSG_NXTHDR(message, header);
        }
        if let Some(class) = class {
            (*header).cmsg_level = if is_v4 { libc::SOL_IP } else { libc::SOL_IPV6 };
            (*header).cmsg_type = if is_v4 { libc::IP_TOS } else { libc::IPV6_TCLASS };
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(i32::from(class));
            used += libc::CMSG_SPACE(4) as usize;
        }
    }
    message.msg_controllen = used as _;
}
