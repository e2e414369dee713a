//! Packet sockets: whole Ethernet frames of one interface, received and sent in batches.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::queue::Frame;

/// Frames per system call.
pub const BATCH: usize = 64;
const ETH_P_IPV6: u16 = 0x86DD;
const PACKET_VNET_HDR: i32 = 15; // linux/if_packet.h
const VNET_HDR_LEN: usize = 10;
const VNET_NEEDS_CSUM: u8 = 1;
const RECEIVE_BUFFER: i32 = 8 << 20;

/// `struct virtio_net_hdr`: what the sending kernel has left to its interface, which is us.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct VnetHdr {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// A packet socket bound to an interface; takes IPv6 only, and nothing that this host itself sends.
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens one.
    pub fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: a terminated string.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let protocol = ETH_P_IPV6.to_be();
        // SAFETY: no pointers.
        let raw = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
                0, // nothing before it is bound to its interface
            )
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, known to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is valid for its length.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PacketSocket { fd })
    }

    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Fills the frames with what has come, as far as there are frames; returns how many. A frame longer than its buffer is
    /// none of this network and gets length 0.
    pub fn receive(&self, frames: &mut [Frame]) -> io::Result<usize> {
        let mut headers = [VnetHdr::default(); BATCH];
        // SAFETY: all zeros is a valid iovec and a valid mmsghdr.
        let mut iovecs: [[libc::iovec; 2]; BATCH] = unsafe { mem::zeroed() };
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let count = frames.len().min(BATCH);
        for (i, frame) in frames[..count].iter_mut().enumerate() {
            iovecs[i][0] = libc::iovec { iov_base: (&raw mut headers[i]).cast(), iov_len: VNET_HDR_LEN };
            iovecs[i][1] =
                libc::iovec { iov_base: frame.buffer.as_mut_ptr().cast(), iov_len: frame.buffer.len() };
            messages[i].msg_hdr.msg_iov = (&raw mut iovecs[i]).cast();
            messages[i].msg_hdr.msg_iovlen = 2;
        }
        // SAFETY: every message has two buffers, all of which outlive the call.
        let n = unsafe {
            libc::recvmmsg(
                self.fd(),
                messages.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // The interface is down: there is nothing to read until it is up again.
                Some(libc::EAGAIN | libc::ENETDOWN | libc::EINTR) => Ok(0),
                _ => Err(error),
            };
        }
        for (i, frame) in frames[..n as usize].iter_mut().enumerate() {
            let whole = messages[i].msg_hdr.msg_flags & libc::MSG_TRUNC == 0;
            frame.len = if whole { (messages[i].msg_len as usize).saturating_sub(VNET_HDR_LEN) } else { 0 };
            if headers[i].flags & VNET_NEEDS_CSUM != 0 {
                let start = usize::from(headers[i].csum_start);
                finish_checksum(&mut frame.buffer[..frame.len], start, usize::from(headers[i].csum_offset));
            }
        }
        Ok(n as usize)
    }

    /// Sends frames; returns how many the interface has taken.
    pub fn send(&self, frames: &[Frame]) -> usize {
        let mut header = VnetHdr::default();
        // SAFETY: all zeros is a valid iovec and a valid mmsghdr.
        let mut iovecs: [[libc::iovec; 2]; BATCH] = unsafe { mem::zeroed() };
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let count = frames.len().min(BATCH);
        for (i, frame) in frames[..count].iter().enumerate() {
            iovecs[i][0] = libc::iovec { iov_base: (&raw mut header).cast(), iov_len: VNET_HDR_LEN };
            iovecs[i][1] =
                libc::iovec { iov_base: frame.buffer.as_ptr().cast_mut().cast(), iov_len: frame.len };
            messages[i].msg_hdr.msg_iov = (&raw mut iovecs[i]).cast();
            messages[i].msg_hdr.msg_iovlen = 2;
        }
        // SAFETY: every message has two buffers that outlive the call, which only reads them.
        let n = unsafe {
            libc::sendmmsg(self.fd(), messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT as _)
        };
        n.max(0) as usize
    }
}

/// Waits until one of the descriptors is readable, or for so long (nanoseconds; `None`: for ever). Whether descriptor `i` is
/// readable is left in `readable[i]`.
pub fn wait(fds: &[i32], readable: &mut [bool], timeout_ns: Option<u64>) -> io::Result<()> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let timeout_ptr = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array has `len` entries; the timeout outlives the call; no signal mask.
    let n = unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as u64, timeout_ptr, std::ptr::null()) };
    if n < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    for (flag, poll) in readable.iter_mut().zip(&polled) {
        *flag = n > 0 && poll.revents != 0;
    }
    Ok(())
}

/// Lets this thread's sleeps end on time.
pub fn sleep_exactly() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

fn set_option(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is valid for its length.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Does what a network card would: sums up from `start` and puts the result (RFC 1071) at `offset` behind it. The field
/// holds the pseudo-header's part already.
fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) {
    if start + offset + 2 > frame.len() {
        return;
    }
    let mut sum: u64 = frame[start..]
        .chunks(2)
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    // Zero means "no checksum" in UDP; its complement is the same number.
    let checksum = if sum == 0xFFFF { 0xFFFF } else { !(sum as u16) };
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_checksum_makes_the_sum_all_ones() {
        // An odd length, and the seed of the pseudo-header in the field.
        let mut frame = [0xAA, 0xBB, 1, 2, 3, 4, 0x12, 0x34, 9, 8, 7];
        finish_checksum(&mut frame, 2, 4);
        let sum = |bytes: &[u8]| -> u32 {
            let total: u32 = bytes
                .chunks(2)
                .map(|p| u32::from(p[0]) << 8 | u32::from(p.get(1).copied().unwrap_or(0)))
                .sum();
            (total & 0xFFFF) + (total >> 16)
        };
        // The sum with the seed in place of the checksum: 0x0102 + 0x0304 + 0x0908 + 0x0700 and the seed.
        let expected = !(0x0102u32 + 0x0304 + 0x1234 + 0x0908 + 0x0700) & 0xFFFF;
        assert_eq!(u32::from(u16::from_be_bytes([frame[6], frame[7]])), expected);
        assert_eq!(sum(&frame[2..]), 0xFFFF - 0x1234);
        assert_eq!(frame[..2], [0xAA, 0xBB]);
    }

    #[test]
    fn a_checksum_field_outside_the_frame_is_left_alone() {
        let mut frame = [1, 2, 3, 4];
        finish_checksum(&mut frame, 2, 1);
        finish_checksum(&mut frame, 100, 0);
        assert_eq!(frame, [1, 2, 3, 4]);
    }
}
