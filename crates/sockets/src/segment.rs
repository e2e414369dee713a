//! Memory that processes of one user share: anonymous files, opened by a peer through `/proc`. They have no name in any
//! file system, so nothing is left of them when the last process that maps them has ended.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};

use crate::{Descriptor, done, owned};

/// Shared memory, mapped. Its bytes may change at any time.
pub struct Segment {
    fd: Descriptor,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain bytes that belong to no thread; all access is through raw pointers.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// The file never becomes shorter: a process that maps it is not ended by a signal.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Segment {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// The kernel's: descriptors or memory have run out.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let name = CString::new(name)?;
        // SAFETY: the name is a string that outlives the call.
        let fd =
            owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) })?;
        // SAFETY: no pointers.
        done(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) })?;
        // SAFETY: no pointers.
        done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        Self::map(fd, len)
    }

    /// The segment that process `pid` has created with descriptor `fd`, which must have `len` bytes.
    ///
    /// The process may have ended and its number may be another's: check something in the segment that only the right
    /// one has.
    ///
    /// # Errors
    /// The kernel's: there is no such process or descriptor, or it may not be opened; [`io::ErrorKind::InvalidData`] if it
    /// is no segment of this length.
    pub fn open(pid: u32, fd: RawFd, len: usize) -> io::Result<Self> {
        let path = CString::new(format!("/proc/{pid}/fd/{fd}"))?;
        // What it names may be anything, such as a pipe without a writer: never block.
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path is a string that outlives the call.
        let fd = owned(unsafe { libc::open(path.as_ptr(), flags) })?;
        // SAFETY: no pointers.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // SAFETY: no pointers.
        let end = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
        if seals != SEALS || end != len as libc::off_t {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a shared memory segment"));
        }
        Self::map(fd, len)
    }

    fn map(fd: Descriptor, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let ptr = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ptr = NonNull::new(ptr.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        Ok(Segment { fd, ptr, len })
    }

    /// Its first byte, aligned to a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The descriptor, for [`Segment::open`] in another process.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which nothing refers any more.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// Copies memory of another process, which the kernel permits where it permits to trace that process.
///
/// The process may have ended and its number may be another's: look at a [`ProcessWatch`] afterwards.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if the process has ended; the kernel's: it may not be read, or has nothing at these
/// addresses.
///
/// # Safety
/// `to` is valid for writes of `len` bytes.
pub unsafe fn read_process(pid: u32, address: u64, to: *mut u8, len: usize) -> io::Result<()> {
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address as usize), iov_len: len };
    // SAFETY: the kernel writes at most `len` bytes to `to`, which the caller promises; it checks the other address.
    let read =
        unsafe { libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    match read {
        -1 => {
            let error = io::Error::last_os_error();
            let ended = error.raw_os_error() == Some(libc::ESRCH);
            Err(if ended { io::Error::from(io::ErrorKind::NotFound) } else { error })
        }
        read if read as usize == len => Ok(()),
        // It ends where the process has no memory.
        _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

/// Tells when another process has ended (pidfd).
pub struct ProcessWatch(Descriptor);

impl ProcessWatch {
    /// Watches a process.
    ///
    /// # Errors
    /// The kernel's: there is no such process, descriptors have run out, or the kernel is older than 5.3.
    pub fn new(pid: u32) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        owned(fd as RawFd).map(ProcessWatch)
    }

    /// Readable once the process has ended.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::PollSet;
    use std::time::Duration;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let mine = Segment::create("test", 8192).unwrap();
        let theirs = Segment::open(std::process::id(), mine.fd(), 8192).unwrap();
        // SAFETY: both mappings have 8192 bytes.
        unsafe {
            mine.as_ptr().add(8191).write_volatile(7);
            assert_eq!(theirs.as_ptr().add(8191).read_volatile(), 7);
        }
    }

    #[test]
    fn what_is_no_segment_of_this_length_is_refused() {
        let mine = Segment::create("test", 4096).unwrap();
        let pid = std::process::id();
        assert!(Segment::open(pid, mine.fd(), 8192).is_err());
        assert!(Segment::open(pid, 0, 4096).is_err());
        let event = crate::EventFd::new().unwrap();
        assert!(Segment::open(pid, event.fd(), 4096).is_err());
        assert!(Segment::open(u32::MAX / 2, 3, 4096).is_err());
    }

    #[test]
    fn the_end_of_a_process_is_told() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let watch = ProcessWatch::new(child.id()).unwrap();
        let mut set = PollSet::new([watch.fd()]);
        set.wait(Some(Duration::ZERO)).unwrap();
        assert!(!set.is_readable(0));
        child.kill().unwrap();
        set.wait(Some(Duration::from_secs(10))).unwrap();
        assert!(set.is_readable(0));
        child.wait().unwrap();
    }
}
