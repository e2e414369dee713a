//! The operating system in small pieces: clock, event counters, epoll, socket addresses and options. Everything here
//! owns its file descriptor and gives errors instead of return codes.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use openmrc_transport::{Span, Time};

/// Now, by `CLOCK_MONOTONIC`: the origin of every time in this crate, comparable between processes of a machine.
#[inline]
pub(crate) fn now() -> Time {
    Time(monotonic_ns() * 1000)
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of `CLOCK_REALTIME`, which the kernel stamps datagrams with.
#[inline]
pub(crate) fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result; these clocks always exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call that returned `fd` has just created it and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An event counter (eventfd) that does not block.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers involved.
        owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }).map(EventFd)
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes from a live array. A full counter is readable already, so failure is no loss.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it unreadable; whether it was readable.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: reads eight bytes into a live array.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) == 8 }
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A set of descriptors to wait on.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers involved.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// Watches `fd` for `events`; they are reported with `token`.
    pub fn add(&self, fd: RawFd, events: i32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Stops watching `fd`.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: i32, fd: RawFd, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` outlives the call, which copies it.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What is ready now, without waiting.
    #[inline]
    pub fn ready<'e>(&self, events: &'e mut [MaybeUninit<libc::epoll_event>]) -> &'e [libc::epoll_event] {
        // Not through libc, whose epoll_wait is a cancellation point and pays for it at every call.
        // SAFETY: the kernel writes at most `events.len()` entries; no signal mask is given.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait,
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as i32,
                0,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        let filled = &events[..n.max(0) as usize];
        // SAFETY: the kernel has filled so many entries; `MaybeUninit` has the layout of what it holds.
        unsafe { &*(filled as *const [_] as *const [libc::epoll_event]) }
    }

    /// Sleeps until something is ready or `timeout` has passed; `None` waits for ever.
    pub fn sleep(&self, timeout: Option<Span>) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let timespec = timeout.map(|t| {
            let ns = t.as_nanos();
            libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let timespec_ptr = timespec.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
        // SAFETY: one event fits; the timeout, if any, outlives the call. Kernels before 5.11 lack the call.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                &mut event,
                1,
                timespec_ptr,
                std::ptr::null::<libc::sigset_t>(),
                0,
            )
        };
        if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            let ms = timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u64) as i32);
            // SAFETY: one event fits.
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, ms) };
        }
    }
}

/// Sets an option whose value is a plain integer.
pub(crate) fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> io::Result<()> {
    // SAFETY: `value` is plain data of the size given.
    let r = unsafe {
        libc::setsockopt(fd, level, name, (&raw const value).cast(), mem::size_of::<T>() as libc::socklen_t)
    };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option whose value is an integer.
pub(crate) fn get_option(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes.
    let r = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    if r == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A non-blocking UDP socket for addresses of the same family as `addr`.
pub(crate) fn udp_socket(addr: IpAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers involved.
    owned(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) })
}

/// A netlink socket that does not block.
pub(crate) fn netlink_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers involved.
    owned(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })
}

/// A socket address as the kernel takes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union SockAddr {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// Room for any address that a UDP socket can name.
    pub const LEN: usize = mem::size_of::<SockAddr>();

    pub fn zeroed() -> Self {
        // SAFETY: every member is plain integers, for which zeros are valid.
        unsafe { mem::zeroed() }
    }

    /// As the kernel wants it.
    pub fn new(addr: SocketAddr) -> Self {
        let mut s = Self::zeroed();
        match addr {
            SocketAddr::V4(a) => {
                s.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(a) => {
                s.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
            }
        }
        s
    }

    /// The same address with the low 16 bits of an entropy value in the IPv6 flow label; IPv4 has none.
    #[inline]
    pub fn with_flow_label(mut self, ev: u32) -> Self {
        if !self.is_v4() {
            self.v6.sin6_flowinfo = (ev & 0xFFFF).to_be();
        }
        self
    }

    /// Whether it is an IPv4 address.
    pub fn is_v4(&self) -> bool {
        // SAFETY: the family is the first field of every member and always initialised.
        unsafe { self.family == libc::AF_INET as libc::sa_family_t }
    }

    /// Length of the member in use.
    pub fn len(&self) -> libc::socklen_t {
        if self.is_v4() {
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        } else {
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }

    /// Address and port; `None` for a family that is neither IPv4 nor IPv6.
    #[inline]
    pub fn ip_port(&self) -> Option<(IpAddr, u16)> {
        // SAFETY: the family says which member was written; both are plain integers.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => Some((
                    IpAddr::V4(Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes())),
                    u16::from_be(self.v4.sin_port),
                )),
                libc::AF_INET6 => Some((
                    IpAddr::V6(Ipv6Addr::from(self.v6.sin6_addr.s6_addr)),
                    u16::from_be(self.v6.sin6_port),
                )),
                _ => None,
            }
        }
    }
}

/// Binds `fd` to an address.
pub(crate) fn bind(fd: RawFd, addr: SocketAddr) -> io::Result<()> {
    let sockaddr = SockAddr::new(addr);
    // SAFETY: `sockaddr` is valid for its own length.
    let r = unsafe { libc::bind(fd, (&raw const sockaddr).cast(), sockaddr.len()) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The UDP port that `fd` is bound to.
pub(crate) fn local_port(fd: RawFd) -> io::Result<u16> {
    let mut sockaddr = SockAddr::zeroed();
    let mut len = SockAddr::LEN as libc::socklen_t;
    // SAFETY: `sockaddr` has room for `len` bytes.
    let r = unsafe { libc::getsockname(fd, (&raw mut sockaddr).cast(), &mut len) };
    match (r, sockaddr.ip_port()) {
        (0, Some((_, port))) => Ok(port),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets a thread's sleeps end on time, and binds it to a processor if one is given. Both are improvements: where
/// the system forbids them, it runs all the same.
pub(crate) fn prepare_engine_thread(cpu: Option<usize>) {
    // SAFETY: the first call has no pointers; the set of the second is valid and of its size.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        if let Some(cpu) = cpu.filter(|&cpu| cpu < libc::CPU_SETSIZE as usize) {
            let mut set: libc::cpu_set_t = mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
    }
}

/// Random bits from the operating system's generator.
pub(crate) fn random_u64() -> io::Result<u64> {
    getrandom::u64().map_err(|e| io::Error::other(format!("no randomness: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_survive_the_kernel_s_format() {
        for text in ["127.1.2.3:4791", "[fd00::2:9]:65535", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SockAddr::new(addr).ip_port(), Some((addr.ip(), addr.port())));
        }
    }

    #[test]
    fn an_event_counter_is_readable_between_signal_and_clear() {
        let event = EventFd::new().unwrap();
        assert!(!event.clear());
        event.signal();
        event.signal();
        assert!(event.clear());
        assert!(!event.clear());
    }
}
