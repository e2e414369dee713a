//! System calls that the NIC, the soft switch and the collectives share. Linux only.
//!
//! Every descriptor has one owner, every failed call is an [`std::io::Error`], and nothing here knows MRC.
//!
//! | module | subject |
//! |---|---|
//! | [`address`], [`socket`] | socket addresses; UDP, packet and raw sockets and their options |
//! | [`message`], [`batch`], [`control`] | one message, many messages in one call, control messages |
//! | [`send_ring`] | sending from sockets that have no descriptors (io_uring) |
//! | [`packet`], [`filter`] | for packet sockets: virtio-net headers, classic BPF |
//! | [`wait`], [`clock`], [`thread`] | epoll, eventfd and poll; clocks; timer slack, CPU affinity, limits |
//! | [`netlink`], [`interface`] | addresses, routes, neighbours and link changes; MTU, MAC address and index |
//! | [`error`] | what a failed send means |
//! | [`segment`] | memory shared between processes; the end of a process |
//! | [`fork`], [`memory`] | what a child process has of its parent; whether memory can be read |

pub mod address;
pub mod batch;
pub mod clock;
pub mod control;
pub mod error;
pub mod filter;
pub mod fork;
pub mod interface;
pub mod memory;
pub mod message;
pub mod netlink;
pub mod packet;
pub mod segment;
pub mod send_ring;
pub mod socket;
pub mod thread;
pub mod wait;

use std::io;
use std::os::fd::RawFd;

pub use address::SockAddr;
pub use batch::{RecvBatch, SendBatch};
pub use clock::{monotonic_ns, realtime_ns};
pub use control::RecvMeta;
pub use error::SendError;
pub(crate) use fork::Descriptor;
pub use fork::Process;
pub use interface::{InterfaceAddr, interface_of};
/// One piece of a message (`struct iovec`).
pub use libc::iovec as IoVec;
pub use message::{RecvBuffer, receive_bytes, send_bytes, send_message, send_slices};
pub use netlink::{LinkWatch, Netlink};
pub use packet::VnetHeader;
pub use segment::{ProcessWatch, Segment, read_process};
pub use send_ring::{SendResults, SendRing};
pub use socket::Socket;
pub use wait::{Epoll, EventFd, Interest, PollSet, wait_readable};

/// The descriptor that a system call has just created.
fn owned(fd: RawFd) -> io::Result<Descriptor> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that returned `fd` has just created it, so nothing else owns it.
    Ok(unsafe { Descriptor::new(fd) })
}

/// The result of a system call that returns 0 on success.
fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of a system call that returns a count, or -1.
#[inline]
fn count(result: libc::c_long) -> io::Result<usize> {
    if result >= 0 { Ok(result as usize) } else { Err(io::Error::last_os_error()) }
}
