//! After `fork`: the child process has copies of all objects of its parent, but not the threads that drive them.
//!
//! The child must not use the parent's descriptors: its system calls would act on the parent's sockets and epoll sets,
//! and a socket that it keeps open holds the parent's address. So the child's copies are replaced by `/dev/null` before
//! `fork` returns there.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::owned;

/// How many forks lie between this process and the first.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The kernel's default for the most descriptors of a process (`fs.nr_open`). Descriptors beyond it are not replaced.
const DESCRIPTORS: usize = 1 << 20;

/// The open descriptors of this crate, a bit each. No locks: at a fork, another thread may hold any.
static OPEN: [AtomicU64; DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; DESCRIPTORS / 64];

/// Words of [`OPEN`] that may have a bit.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process(u32);

impl Process {
    /// This process.
    #[inline]
    pub fn current() -> Self {
        Process(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is this process. In the child of a fork, objects of the parent belong to another one.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A descriptor that the child of a fork does not get.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    /// Owns `fd`, which a system call has just created.
    ///
    /// # Safety
    /// Nothing else owns `fd`.
    pub unsafe fn new(fd: RawFd) -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler only makes calls that are allowed after a fork.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        if let Some(word) = OPEN.get(fd as usize / 64) {
            USED.fetch_max(fd as usize / 64 + 1, Ordering::Relaxed);
            word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        Descriptor(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Leaves the low descriptors to the program, whose `select` knows no others, if the limit of descriptors allows it.
    pub fn beyond_select(self) -> Self {
        // SAFETY: no pointers.
        let fd = unsafe { libc::fcntl(self.as_raw_fd(), libc::F_DUPFD_CLOEXEC, libc::FD_SETSIZE as i32) };
        owned(fd).unwrap_or(self)
    }
}

impl AsRawFd for Descriptor {
    #[inline]
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let fd = self.as_raw_fd();
        if let Some(word) = OPEN.get(fd as usize / 64) {
            word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
        }
    }
}

/// Runs in the child before `fork` returns there.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let mut null = -1;
    for (index, word) in OPEN.iter().enumerate().take(USED.load(Ordering::Relaxed)) {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = index as RawFd * 64 + bits.trailing_zeros() as RawFd;
            bits &= bits - 1;
            // SAFETY: both calls are allowed after a fork. `fd` stays open, so that what owns it may close it.
            unsafe {
                if null < 0 {
                    null = open_null();
                    if null < 0 {
                        // The table of descriptors is full: one of them makes room.
                        libc::close(fd);
                        null = open_null();
                    }
                }
                if null != fd {
                    libc::dup3(null, fd, libc::O_CLOEXEC);
                }
            }
        }
    }
    let ours = |fd: RawFd| {
        OPEN.get(fd as usize / 64).is_some_and(|w| w.load(Ordering::Relaxed) >> (fd % 64) & 1 == 1)
    };
    if null >= 0 && !ours(null) {
        // SAFETY: it was opened above, and nothing else uses it.
        unsafe { libc::close(null) };
    }
}

/// # Safety
/// None is needed; the call is allowed after a fork.
unsafe fn open_null() -> RawFd {
    // SAFETY: the path is a string that ends with zero.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}
