//! System calls of the benchmarks: processes pinned to cores, shared memory, batches of datagrams.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr;

/// The error of a benchmark, as one line of text.
pub type Error = Box<dyn std::error::Error>;

/// Datagrams per `sendmmsg` / `recvmmsg`.
pub const BATCH: usize = 64;

fn last_error(what: &str) -> Error {
    format!("{what}: {}", io::Error::last_os_error()).into()
}

/// The two cores to run on: the given ones, or the first two that this process may use.
pub fn two_cpus(wanted: Option<(usize, usize)>) -> Result<(usize, usize), Error> {
    if let Some(cpus) = wanted {
        return Ok(cpus);
    }
    // SAFETY: an all-zero cpu_set_t is the empty set, and the call writes at most its size into it.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(last_error("sched_getaffinity"));
        }
        set
    };
    // SAFETY: the index stays below the number of bits in the set.
    let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &allowed) });
    match (usable.next(), usable.next()) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err("two CPUs are needed: the sender and the receiver each poll on one".into()),
    }
}

/// Keeps the calling thread on one core.
pub fn pin(cpu: usize) -> Result<(), Error> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(format!("there is no CPU {cpu}").into());
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; the index was checked; the call only reads the set.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(last_error(&format!("cannot run on CPU {cpu}"))) }
}

/// Runs `run` in a network namespace, by its name under `/run/netns`.
pub fn inside<T>(name: &str, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let own = File::open("/proc/thread-self/ns/net")?;
    let wanted = File::open(format!("/run/netns/{name}")).map_err(|e| format!("namespace {name}: {e}"))?;
    let enter = |space: &File| {
        // SAFETY: no pointers; the descriptor is open.
        let result = unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) };
        if result == 0 { Ok(()) } else { Err(last_error(&format!("entering namespace {name}"))) }
    };
    enter(&wanted)?;
    let result = run();
    enter(&own)?;
    result
}

/// Zeroed memory that both processes share after [`fork`]. It is never unmapped.
pub fn shared<T: Sync>() -> Result<&'static T, Error> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    Ok(map(size_of::<T>(), flags)?.cast::<T>()).map(|pointer| {
        // SAFETY: the mapping is page-aligned, large enough, lives until exit, and zero bytes are a valid value of the
        // structs of atomics this is used for.
        unsafe { &*pointer }
    })
}

/// A private buffer of `length` zero bytes whose pages are already mapped, so that the measurement has no page faults.
pub fn buffer(length: usize) -> Result<&'static mut [u8], Error> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let pointer = map(length, flags)?.cast::<u8>();
    // SAFETY: a fresh mapping of this length that nothing else refers to and that is never unmapped.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, length) })
}

fn map(length: usize, flags: libc::c_int) -> Result<*mut libc::c_void, Error> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
    let pointer =
        unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if pointer == libc::MAP_FAILED { Err(last_error("mmap")) } else { Ok(pointer) }
}

/// A child process, killed and reaped on drop.
pub struct Child(libc::pid_t);

/// Runs `body` in a child process on `cpu` and returns its handle to the parent.
pub fn fork(cpu: usize, body: impl FnOnce() -> Result<(), Error>) -> Result<Child, Error> {
    // SAFETY: the process has one thread, so the child may call anything.
    match unsafe { libc::fork() } {
        -1 => Err(last_error("fork")),
        0 => {
            // SAFETY: no pointers. The child gets SIGKILL when the parent ends, so that it does not poll for ever.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let code = match pin(cpu).and_then(|()| body()) {
                Ok(()) => 0,
                Err(error) => {
                    eprintln!("error: {error}");
                    1
                }
            };
            // SAFETY: ends the process without running the parent's destructors a second time.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(Child(pid)),
    }
}

impl Child {
    /// Whether the process has ended, which during a benchmark means that it has failed.
    pub fn has_ended(&self) -> bool {
        let mut info: libc::siginfo_t = {
            // SAFETY: siginfo_t is plain data; all zero means "nothing reported".
            unsafe { std::mem::zeroed() }
        };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: only writes into `info`.
        let result = unsafe { libc::waitid(libc::P_PID, self.0 as libc::id_t, &mut info, flags) };
        // SAFETY: waitid filled in the fields for a child, or left them zero.
        result != 0 || unsafe { info.si_pid() } != 0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child has not been reaped yet, so the number is still its own.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

/// Sets a socket's buffer, beyond the system's limit if permitted; returns the bytes that the kernel granted.
pub fn set_buffer(socket: &UdpSocket, receive: bool, bytes: i32) -> Result<usize, Error> {
    let (option, forced) = if receive {
        (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE)
    } else {
        (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE)
    };
    let length = size_of::<i32>() as libc::socklen_t;
    let mut granted = 0i32;
    let mut granted_length = length;
    // SAFETY: every pointer is to an i32 of the length given.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        if libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, forced, value, length) != 0 {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, length);
        }
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut granted).cast(),
            &mut granted_length,
        )
    };
    if result == 0 { Ok(granted as usize) } else { Err(last_error("SO_RCVBUF or SO_SNDBUF")) }
}

/// Lets the kernel cut each message that the socket sends into datagrams of `size` bytes (UDP segmentation offload).
pub fn cut_into(socket: &UdpSocket, size: usize) -> Result<(), Error> {
    set_udp(socket, libc::UDP_SEGMENT, size as i32, "UDP_SEGMENT")
}

/// Lets the kernel deliver consecutive datagrams of one sender as one message (UDP receive offload).
pub fn join_segments(socket: &UdpSocket) -> Result<(), Error> {
    set_udp(socket, libc::UDP_GRO, 1, "UDP_GRO")
}

fn set_udp(socket: &UdpSocket, option: libc::c_int, value: i32, name: &str) -> Result<(), Error> {
    let length = size_of::<i32>() as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: the pointer is to an i32 of the length given.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, pointer, length) };
    if result == 0 { Ok(()) } else { Err(last_error(name)) }
}

/// [`BATCH`] message headers with one segment each, for `sendmmsg` and `recvmmsg` on a connected socket.
pub struct Batch {
    segments: [libc::iovec; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

impl Batch {
    /// Headers without buffers. Boxed, because the messages point to the segments.
    pub fn new() -> Box<Self> {
        // SAFETY: both are C structs for which all zero is "empty".
        let mut batch: Box<Self> = Box::new(unsafe { std::mem::zeroed() });
        for index in 0..BATCH {
            batch.messages[index].msg_hdr.msg_iov = &raw mut batch.segments[index];
            batch.messages[index].msg_hdr.msg_iovlen = 1;
        }
        batch
    }

    /// Points message `index` at `bytes`.
    pub fn set(&mut self, index: usize, bytes: &mut [u8]) {
        self.segments[index] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    }

    /// Length of received message `index`.
    pub fn length(&self, index: usize) -> usize {
        self.messages[index].msg_len as usize
    }

    /// Sends the first `count` messages; returns how many the kernel took.
    ///
    /// # Safety
    /// The first `count` messages must point at readable memory.
    pub unsafe fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<usize> {
        // SAFETY: the headers are valid, and the caller vouches for the memory they point at.
        let n = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), self.messages.as_mut_ptr(), count as libc::c_uint, 0)
        };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
    }

    /// Receives up to `limit` messages, at most [`BATCH`], without waiting; 0 when there is none.
    ///
    /// # Safety
    /// The first `limit` messages must point at writable memory that nothing else refers to.
    pub unsafe fn receive(&mut self, socket: &UdpSocket, limit: usize) -> io::Result<usize> {
        // SAFETY: the headers are valid, and the caller vouches for the memory they point at.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                limit.min(BATCH) as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if n >= 0 {
            return Ok(n as usize);
        }
        match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            error => Err(error),
        }
    }
}
