//! Waiting for descriptors: epoll, poll, and event counters that make a descriptor readable.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::clock::to_timespec;
use crate::{Descriptor, done, owned};

/// An event counter (eventfd) that does not block.
#[derive(Debug)]
pub struct EventFd(Descriptor);

impl EventFd {
    /// A counter at zero, which is not readable.
    ///
    /// # Errors
    /// The kernel's: descriptors have run out.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }).map(EventFd)
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes from a live array. It fails only if the counter is full, hence readable already.
        unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable; returns whether it was readable.
    pub fn clear(&self) -> bool {
        let mut count = [0u8; 8];
        // SAFETY: reads eight bytes into a live array.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) == 8 }
    }

    /// The descriptor, which the counter keeps.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What to wait for on a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Until it can be read.
    Readable,
    /// Until it can be written.
    Writable,
}

/// A set of descriptors to wait on (epoll).
#[derive(Debug)]
pub struct Epoll(Descriptor);

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// The kernel's: descriptors have run out.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Epoll)
    }

    /// The descriptor of the set, readable while one of the set's descriptors is ready.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Watches `fd`; its events carry `token`.
    ///
    /// # Errors
    /// The kernel's: the set has the descriptor already.
    pub fn add(&self, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        let events = match interest {
            Interest::Readable => libc::EPOLLIN,
            Interest::Writable => libc::EPOLLOUT,
        };
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Stops watching `fd`.
    ///
    /// # Errors
    /// The kernel's: the set does not have the descriptor.
    pub fn remove(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
    }

    fn control(&self, op: i32, fd: RawFd, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `event` outlives the call, which copies it.
        done(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &mut event) })
    }

    /// The ready descriptors, without waiting. The field `u64` of an event is the token.
    #[inline]
    pub fn ready<'e>(&self, events: &'e mut [MaybeUninit<libc::epoll_event>]) -> &'e [libc::epoll_event] {
        // Not through libc's epoll_wait: it is a cancellation point, which costs time at every call.
        // SAFETY: the kernel writes at most `events.len()` entries; there is no signal mask.
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
        // SAFETY: the kernel has filled these entries; `MaybeUninit` has the layout of what it holds.
        unsafe { &*(filled as *const [_] as *const [libc::epoll_event]) }
    }

    /// Sleeps until something is ready or `timeout` has passed; `None` means no time-out.
    pub fn sleep(&self, timeout: Option<Duration>) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let timespec = timeout.map(to_timespec);
        let timespec_ptr = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: there is room for one event; the time-out outlives the call; there is no signal mask.
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
        // Kernels before 5.11 lack epoll_pwait2.
        if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            let ms = timeout.map_or(-1, |t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32);
            // SAFETY: there is room for one event.
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, ms) };
        }
    }
}

/// A fixed list of descriptors, waited on until one is readable (poll).
pub struct PollSet(Vec<libc::pollfd>);

impl PollSet {
    /// The descriptors, which must stay open while the set is used.
    pub fn new(fds: impl IntoIterator<Item = RawFd>) -> Self {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        PollSet(fds.into_iter().map(entry).collect())
    }

    /// Number of descriptors.
    #[expect(clippy::len_without_is_empty)] // A set without descriptors is of no use.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Waits until one is readable or `timeout` has passed; `None` means no time-out. A signal ends the wait too.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.iter_mut().for_each(|entry| entry.revents = 0);
        match poll(&mut self.0, timeout) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the descriptor with this index was readable, or had failed, when [`PollSet::wait`] returned.
    pub fn is_readable(&self, index: usize) -> bool {
        self.0[index].revents != 0
    }

    /// Whether any descriptor from this index on was.
    pub fn any_readable_from(&self, index: usize) -> bool {
        self.0[index..].iter().any(|entry| entry.revents != 0)
    }
}

/// Waits until `fd` is readable or `timeout` has passed. A signal ends the wait too.
pub fn wait_readable(fd: RawFd, timeout: Duration) {
    let mut entry = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // The caller checks whether there is something to read.
    let _ = poll(&mut entry, Some(timeout));
}

fn poll(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timespec = timeout.map(to_timespec);
    let timespec_ptr = timespec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let len = entries.len() as libc::nfds_t;
    // SAFETY: the array has `len` entries; the time-out outlives the call; there is no signal mask.
    let n = unsafe { libc::ppoll(entries.as_mut_ptr(), len, timespec_ptr, std::ptr::null()) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_counter_is_readable_between_signal_and_clear() {
        let event = EventFd::new().unwrap();
        assert!(!event.clear());
        event.signal();
        event.signal();
        assert!(event.clear());
        assert!(!event.clear());
    }

    #[test]
    fn a_poll_set_says_which_descriptor_is_readable() {
        let (a, b) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let mut set = PollSet::new([a.fd(), b.fd()]);
        b.signal();
        set.wait(None).unwrap();
        assert_eq!([set.is_readable(0), set.is_readable(1)], [false, true]);
        b.clear();
        set.wait(Some(Duration::ZERO)).unwrap();
        assert_eq!([set.is_readable(0), set.is_readable(1)], [false, false]);
    }
}
