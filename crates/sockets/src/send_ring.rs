//! Sending from many sockets that have no descriptors: they are registered files of one io_uring, whose descriptor is
//! the only one. Linux 6.1 and later.
//!
//! Requests are sends that do not block, which the kernel completes before the call returns. So a ring never has a
//! request in flight, and any thread may use it after any other.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::control::{Control, SEND_CONTROL, write_control};
use crate::message::SEND_FLAGS;
use crate::{Descriptor, IoVec, Process, SockAddr, Socket, count, done, owned};

/// Most sends of one system call.
pub const MAX_SENDS: usize = 8;

/// Most sockets of a ring (`IORING_MAX_FIXED_FILES`).
const MAX_FILES: usize = 1 << 15;

// linux/io_uring.h; libc does not have these.
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_COOP_TASKRUN: u32 = 1 << 8;
const FEAT_SINGLE_MMAP: u32 = 1;
const OFF_RINGS: libc::off_t = 0;
const OFF_SQES: libc::off_t = 0x1000_0000;
const ENTER_GETEVENTS: u32 = 1;
const UNREGISTER_FILES: u32 = 3;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_PROBE: u32 = 8;
const REGISTER_FILES2: u32 = 13;
const REGISTER_SPARSE: u32 = 1;
const OP_NOP: u8 = 0;
const OP_SENDMSG: u8 = 9;
const OP_SEND: u8 = 26;
const OP_SENDMSG_ZC: u8 = 48;
const OP_SUPPORTED: u16 = 1;
const SQE_FIXED_FILE: u8 = 1;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

/// `struct io_uring_sqe`, as sends use it.
#[repr(C)]
#[derive(Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    file: i32,
    /// Destination of [`OP_SEND`].
    dest: u64,
    /// The bytes of [`OP_SEND`], the message header of [`OP_SENDMSG`].
    addr: u64,
    len: u32,
    send_flags: u32,
    user_data: u64,
    buf_index: u16,
    personality: u16,
    dest_len: u16,
    reserved: [u16; 9],
}

/// `struct io_uring_cqe`.
#[repr(C)]
struct Cqe {
    user_data: u64,
    result: i32,
    flags: u32,
}

/// `struct io_uring_rsrc_register`.
#[repr(C)]
struct RegisterFiles {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
    tags: u64,
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct UpdateFiles {
    offset: u32,
    reserved: u32,
    fds: u64,
}

/// `struct io_uring_probe`, with the operations up to the last one that is asked for.
#[repr(C)]
struct Probe {
    last_op: u8,
    count: u8,
    reserved: [u16; 7],
    ops: [ProbedOp; OP_SENDMSG_ZC as usize + 1],
}

/// `struct io_uring_probe_op`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProbedOp {
    op: u8,
    reserved: u8,
    flags: u16,
    reserved2: u32,
}

const _: () = assert!(size_of::<Params>() == 120 && size_of::<Sqe>() == 64 && size_of::<Cqe>() == 16);

/// Memory that the kernel shares with this process. A child does not get it: it would keep the sockets open.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(fd: RawFd, len: usize, offset: libc::off_t) -> io::Result<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        let mapping = Mapping { base, len };
        // SAFETY: the range is the mapping.
        done(unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_DONTFORK) })?;
        Ok(mapping)
    }

    /// The address of what lies at `offset`.
    ///
    /// # Safety
    /// There are at least `size_of::<T>()` bytes, aligned for `T`.
    unsafe fn at<T>(&self, offset: u32) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.base.as_ptr().add(offset as usize).cast() }
    }
}

/// What one request points to. The kernel reads it during the call.
struct Request {
    dest: SockAddr,
    control: Control<SEND_CONTROL>,
    message: libc::msghdr,
}

/// What became of the sends of one call: 0, or the error's number.
#[derive(Clone, Copy)]
pub struct SendResults([i32; MAX_SENDS]);

impl SendResults {
    /// The result of the send with this place in the call.
    ///
    /// # Errors
    /// The kernel's, as of `sendmsg`. Nothing was sent then.
    #[inline]
    pub fn of(&self, place: usize) -> io::Result<()> {
        match self.0[place] {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// An io_uring that sends from its sockets.
pub struct SendRing {
    fd: Descriptor,
    process: Process,
    rings: Mapping,
    sqes: Mapping,
    sq: SqOffsets,
    cq: CqOffsets,
    sq_mask: u32,
    cq_mask: u32,
    /// Where the next request goes.
    tail: u32,
    requests: Box<[Request; MAX_SENDS]>,
    /// Requests since the last [`SendRing::submit`].
    queued: usize,
    results: [i32; MAX_SENDS],
    /// Sockets that it has.
    files: u32,
    capacity: u32,
}

// SAFETY: the pointers in `requests` are used by `submit` only, whose caller vouches for them; the mappings belong to no
// thread.
unsafe impl Send for SendRing {}

impl SendRing {
    /// A ring with room for this many sockets, or for as many as the process may have descriptors if that is less.
    ///
    /// # Errors
    /// The kernel's: it is too old, or io_uring is forbidden to this process (`kernel.io_uring_disabled`, a seccomp
    /// filter of a container).
    pub fn new(sockets: usize) -> io::Result<Self> {
        let mut params = Params { flags: SETUP_SUBMIT_ALL | SETUP_COOP_TASKRUN, ..Params::default() };
        // SAFETY: the kernel reads and writes the parameters.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, MAX_SENDS as u32, &raw mut params) };
        let fd = owned(fd as RawFd)?.beyond_select();
        if params.features & FEAT_SINGLE_MMAP == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        check_operations(&fd)?;
        let capacity = sockets.min(MAX_FILES).min(crate::thread::descriptor_limit()) as u32;
        let table = RegisterFiles { count: capacity, flags: REGISTER_SPARSE, reserved: 0, data: 0, tags: 0 };
        // SAFETY: the kernel reads the structure, whose length is the last argument.
        unsafe { register(&fd, REGISTER_FILES2, &raw const table, size_of_val(&table)) }?;

        let Params { sq_off: sq, cq_off: cq, sq_entries, cq_entries, .. } = params;
        let sq_end = sq.array as usize + sq_entries as usize * size_of::<u32>();
        let cq_end = cq.cqes as usize + cq_entries as usize * size_of::<Cqe>();
        let rings = Mapping::new(fd.as_raw_fd(), sq_end.max(cq_end), OFF_RINGS)?;
        let sqes = Mapping::new(fd.as_raw_fd(), sq_entries as usize * size_of::<Sqe>(), OFF_SQES)?;
        // SAFETY: the offsets are the kernel's, of fields within the mapping.
        let (sq_mask, cq_mask, tail) = unsafe {
            (0..sq_entries).for_each(|i| rings.at::<u32>(sq.array).add(i as usize).write(i));
            (
                rings.at::<u32>(sq.ring_mask).read(),
                rings.at::<u32>(cq.ring_mask).read(),
                rings.at::<u32>(sq.tail).read(),
            )
        };
        let requests = Box::new(std::array::from_fn(|_| Request {
            dest: SockAddr::zeroed(),
            control: Control::EMPTY,
            // SAFETY: zeros are a valid, empty message header.
            message: unsafe { std::mem::zeroed() },
        }));
        let mut ring = SendRing {
            fd,
            process: Process::current(),
            rings,
            sqes,
            sq,
            cq,
            sq_mask,
            cq_mask,
            tail,
            requests,
            queued: 0,
            results: [0; MAX_SENDS],
            files: 0,
            capacity,
        };
        // A filter may allow the calls above and forbid the one that sends.
        ring.push_sqe(Sqe { opcode: OP_NOP, ..Sqe::default() });
        ring.submit().of(0)?;
        Ok(ring)
    }

    /// Adds a socket; returns its number. It stays open as long as the ring, even if its descriptor is closed.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::QuotaExceeded`] if there is no room.
    pub fn add(&mut self, socket: &Socket) -> io::Result<u32> {
        if !self.has_room() {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let fds = [socket.fd()];
        let update =
            UpdateFiles { offset: self.files, reserved: 0, fds: fds.as_ptr().expose_provenance() as u64 };
        // SAFETY: the structure names one descriptor.
        match unsafe { register(&self.fd, REGISTER_FILES_UPDATE, &raw const update, fds.len()) }? {
            1 => {
                self.files += 1;
                Ok(self.files - 1)
            }
            _ => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }

    /// Whether it can take one more socket.
    pub fn has_room(&self) -> bool {
        self.files < self.capacity
    }

    /// How many more sends fit the next call.
    #[inline]
    pub fn sends_left(&self) -> usize {
        MAX_SENDS - self.queued
    }

    /// Adds a send from a socket to the next call. The arguments are those of [`crate::send_message`].
    ///
    /// # Safety
    /// There is room. The iovecs, and the memory that they name, are where they are until [`SendRing::submit`].
    #[inline]
    pub unsafe fn push(
        &mut self,
        socket: u32,
        dest: &SockAddr,
        iovecs: &[IoVec],
        class: Option<u8>,
        segment: Option<u16>,
    ) {
        let request = &mut self.requests[self.queued];
        request.dest = *dest;
        let mut sqe = Sqe {
            flags: SQE_FIXED_FILE,
            file: socket as i32,
            send_flags: SEND_FLAGS as u32,
            user_data: self.queued as u64,
            ..Sqe::default()
        };
        if let ([only], None, None) = (iovecs, class, segment) {
            sqe.opcode = OP_SEND;
            sqe.addr = only.iov_base.expose_provenance() as u64;
            sqe.len = only.iov_len as u32;
            sqe.dest = (&raw const request.dest).expose_provenance() as u64;
            sqe.dest_len = dest.len() as u16;
        } else {
            let message = &mut request.message;
            message.msg_name = (&raw mut request.dest).cast();
            message.msg_namelen = dest.len();
            message.msg_iov = iovecs.as_ptr().cast_mut();
            message.msg_iovlen = iovecs.len() as _;
            message.msg_control = ptr::null_mut();
            message.msg_controllen = 0;
            if class.is_some() || segment.is_some() {
                write_control(message, &mut request.control, segment, class, dest.is_v4());
            }
            sqe.opcode = OP_SENDMSG;
            sqe.addr = (&raw const *message).expose_provenance() as u64;
            sqe.len = 1;
        }
        self.push_sqe(sqe);
    }

    #[inline]
    fn push_sqe(&mut self, sqe: Sqe) {
        // SAFETY: the index is below the number of entries; the kernel reads them only during `enter`.
        unsafe { self.sqes.at::<Sqe>(0).add((self.tail & self.sq_mask) as usize).write(sqe) };
        self.tail = self.tail.wrapping_add(1);
        self.queued += 1;
    }

    /// Sends what was added, in order; returns what became of each.
    #[inline]
    pub fn submit(&mut self) -> SendResults {
        let mut left = std::mem::take(&mut self.queued) as u32;
        self.results[..left as usize].fill(libc::ECANCELED);
        self.shared(self.sq.tail).store(self.tail, Ordering::Release);
        let mut outstanding = 0;
        while left > 0 {
            match self.enter(left, 0, 0) {
                Ok(taken @ 1..) => {
                    left -= taken as u32;
                    outstanding += taken as u32;
                    outstanding -= self.take_results();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                failed => {
                    // It has not taken these, and the ring forgets them.
                    let error = failed.err().and_then(|error| error.raw_os_error()).unwrap_or(libc::EAGAIN);
                    for back in 1..=left {
                        let index = self.tail.wrapping_sub(back) & self.sq_mask;
                        // SAFETY: an entry that was written by `push`.
                        let request = unsafe { self.sqes.at::<Sqe>(0).add(index as usize).read() }.user_data;
                        self.results[request as usize] = error;
                    }
                    self.tail = self.tail.wrapping_sub(left);
                    self.shared(self.sq.tail).store(self.tail, Ordering::Release);
                    left = 0;
                }
            }
        }
        // A send that does not block is complete by now. Should one not be, what it points to must stay until it is.
        while outstanding > 0 {
            match self.enter(0, outstanding, ENTER_GETEVENTS) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => outstanding -= self.take_results(),
            }
        }
        SendResults(self.results)
    }

    /// Sends one message; see [`crate::send_message`]. Nothing else has been added.
    ///
    /// # Errors
    /// The kernel's. Nothing was sent then.
    ///
    /// # Safety
    /// Every iovec names memory that is valid for reads during the call.
    #[inline]
    pub unsafe fn send(
        &mut self,
        socket: u32,
        dest: &SockAddr,
        iovecs: &[IoVec],
        class: Option<u8>,
        segment: Option<u16>,
    ) -> io::Result<()> {
        debug_assert_eq!(self.queued, 0);
        // SAFETY: the caller's promise; the call ends here.
        unsafe { self.push(socket, dest, iovecs, class, segment) };
        self.submit().of(0)
    }

    /// Takes the results that the kernel has reported; returns how many.
    #[inline]
    fn take_results(&mut self) -> u32 {
        let tail = self.shared(self.cq.tail).load(Ordering::Acquire);
        let first = self.shared(self.cq.head).load(Ordering::Relaxed);
        let mut head = first;
        while head != tail {
            // SAFETY: the kernel has filled this entry, and does not use it again before `head` has passed it.
            let cqe = unsafe { &*self.rings.at::<Cqe>(self.cq.cqes).add((head & self.cq_mask) as usize) };
            if let Some(result) = self.results.get_mut(cqe.user_data as usize) {
                *result = cqe.result.min(0).wrapping_neg();
            }
            head = head.wrapping_add(1);
        }
        self.shared(self.cq.head).store(head, Ordering::Release);
        head.wrapping_sub(first)
    }

    #[inline]
    fn enter(&self, submit: u32, wait: u32, flags: u32) -> io::Result<usize> {
        let (ring, no_mask) = (self.fd.as_raw_fd(), ptr::null::<libc::sigset_t>());
        // SAFETY: the requests and all they point to outlive the call, by the promise of who added them.
        count(unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, submit, wait, flags, no_mask, 0usize) })
    }

    /// An index that both sides read.
    #[inline]
    fn shared(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the offset is the kernel's, of an aligned field within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.rings.at(offset)) }
    }
}

impl Drop for SendRing {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // The child of a fork has neither the ring nor the mappings; other memory may lie there now.
            return;
        }
        // Without this a thread of the kernel would close the sockets, after the call that closes the ring.
        // SAFETY: no arguments.
        let _ = unsafe { register(&self.fd, UNREGISTER_FILES, ptr::null::<u8>(), 0) };
        for mapping in [&self.rings, &self.sqes] {
            // SAFETY: nothing refers to it any more.
            unsafe { libc::munmap(mapping.base.as_ptr().cast(), mapping.len) };
        }
    }
}

/// # Errors
/// The kernel's.
///
/// # Safety
/// `arg` and `len` are what the operation expects.
unsafe fn register<T>(fd: &Descriptor, operation: u32, arg: *const T, len: usize) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    count(unsafe { libc::syscall(libc::SYS_io_uring_register, fd.as_raw_fd(), operation, arg, len as u32) })
}

/// # Errors
/// [`io::ErrorKind::Unsupported`] if the kernel cannot send to an address without a message header (before 6.1).
fn check_operations(fd: &Descriptor) -> io::Result<()> {
    let no_op = ProbedOp { op: 0, reserved: 0, flags: 0, reserved2: 0 };
    let mut probe =
        Probe { last_op: 0, count: 0, reserved: [0; 7], ops: [no_op; OP_SENDMSG_ZC as usize + 1] };
    let ops = probe.ops.len();
    // SAFETY: the kernel fills in the structure, which has room for `ops` operations.
    unsafe { register(fd, REGISTER_PROBE, (&raw mut probe).cast_const(), ops) }?;
    let supported = |op: u8| probe.ops[usize::from(op)].flags & OP_SUPPORTED != 0;
    // The kernels that have the last one have the destination of `OP_SEND`, which cannot be asked for.
    match [OP_SENDMSG, OP_SEND, OP_SENDMSG_ZC].into_iter().all(supported) {
        true => Ok(()),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecvBuffer;
    use std::net::SocketAddr;

    fn bound(ip: &str) -> (Socket, SocketAddr) {
        let socket = Socket::udp(ip.parse().unwrap()).unwrap();
        socket.bind(SocketAddr::new(ip.parse().unwrap(), 0)).unwrap();
        let addr = SocketAddr::new(ip.parse().unwrap(), socket.local_port().unwrap());
        (socket, addr)
    }

    fn iovec(bytes: &[u8]) -> IoVec {
        IoVec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
    }

    /// Tests run where io_uring is forbidden, too.
    fn ring(sockets: usize) -> Option<SendRing> {
        SendRing::new(sockets).inspect_err(|error| eprintln!("no io_uring here: {error}")).ok()
    }

    #[test]
    fn a_socket_sends_without_a_descriptor_what_it_would_send_with_one() {
        let Some(mut ring) = ring(4) else { return };
        for ip in ["127.0.0.1", "::1"] {
            let (sender, from) = bound(ip);
            let (receiver, to) = bound(ip);
            receiver.report_traffic_class().unwrap();
            if ip == "::1" {
                sender.send_flow_label().unwrap();
                receiver.report_flow_label().unwrap();
            }
            sender.set_traffic_class(0x20).unwrap();
            let number = ring.add(&sender).unwrap();
            drop(sender);
            let dest = SockAddr::new(to).with_flow_label(0x1234);
            let mut buffer = RecvBuffer::new(256);
            for (class, segment, lengths) in [
                (None, None, &[7][..]),
                (Some(0x41), None, &[7]),
                (None, Some(3), &[3, 3, 1]),
                (Some(0x41), Some(5), &[5, 2]),
            ] {
                // SAFETY: the iovec names static bytes.
                unsafe { ring.send(number, &dest, &[iovec(b"message")], class, segment) }.unwrap();
                for &len in lengths {
                    let meta = buffer.receive(receiver.fd()).unwrap();
                    assert_eq!((meta.source, meta.source_port), (from.ip(), from.port()));
                    assert_eq!((buffer.bytes().len(), meta.traffic_class), (len, class.unwrap_or(0x20)));
                    assert_eq!(meta.flow_label, if ip == "::1" { 0x1234 } else { 0 });
                }
            }
        }
    }

    #[test]
    fn several_sends_of_one_call_leave_in_order_and_each_has_its_result() {
        let Some(mut ring) = ring(2) else { return };
        let (sender, _) = bound("127.0.0.1");
        let (receiver, to) = bound("127.0.0.1");
        let number = ring.add(&sender).unwrap();
        let (dest, long) = (SockAddr::new(to), vec![0; 70_000]);
        let messages: [&[u8]; 4] = [b"one", &long, b"three", b"four"];
        let iovecs = messages.map(|message| [iovec(message)]);
        for round in 0..5 {
            for (place, iovecs) in iovecs.iter().enumerate() {
                // The last one names a socket that the ring does not have.
                let socket = if place == 3 { 1 } else { number };
                // SAFETY: the iovecs and what they name outlive the call.
                unsafe { ring.push(socket, &dest, iovecs, None, None) };
            }
            let sent = ring.submit();
            let results: Vec<_> = (0..4).map(|i| sent.of(i).err().and_then(|e| e.raw_os_error())).collect();
            assert_eq!(results, [None, Some(libc::EMSGSIZE), None, Some(libc::EBADF)], "round {round}");
            let mut buffer = RecvBuffer::new(16);
            for expected in [messages[0], messages[2]] {
                buffer.receive(receiver.fd()).unwrap();
                assert_eq!(buffer.bytes(), expected);
            }
            assert_eq!(ring.sends_left(), MAX_SENDS);
        }
    }

    #[test]
    fn errors_are_those_of_a_send_with_a_descriptor() {
        let Some(mut ring) = ring(8) else { return };
        let (sender, _) = bound("127.0.0.1");
        sender.set_send_buffer(0).unwrap();
        let (plain, _) = bound("127.0.0.1");
        plain.set_send_buffer(0).unwrap();
        let number = ring.add(&sender).unwrap();
        let long = vec![0; 30_000];
        // More than the send buffer; a broadcast address that was not asked for; a family that the socket has not.
        for (to, bytes) in [
            ("127.0.0.1:9", &long[..]),
            ("255.255.255.255:9", b"x"),
            ("[::1]:9", b"x"),
            ("127.0.0.1:0", b"x"),
        ] {
            let dest = SockAddr::new(to.parse().unwrap());
            let fill = |send: &mut dyn FnMut() -> io::Result<()>| {
                (0..100).find_map(|_| send().err()).and_then(|error| error.raw_os_error())
            };
            // SAFETY: the bytes outlive the calls.
            let ours = fill(&mut || unsafe { ring.send(number, &dest, &[iovec(bytes)], None, None) });
            let theirs = fill(&mut || crate::send_bytes(plain.fd(), &dest, bytes, None, None));
            assert_eq!(ours, theirs, "{to}");
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_sockets_and_its_end_closes_the_sockets_at_once() {
        let Some(mut ring) = ring(1) else { return };
        let (first, addr) = bound("127.0.0.1");
        let (second, _) = bound("127.0.0.1");
        assert!(ring.add(&first).is_ok());
        assert!(ring.add(&second).is_err());
        drop(first);
        let again = Socket::udp(addr.ip()).unwrap();
        assert!(again.bind(addr).is_err(), "the ring has it");
        drop(ring);
        again.bind(addr).unwrap();
    }

    #[test]
    fn threads_may_use_a_ring_one_after_the_other_and_end() {
        let Some(mut ring) = ring(1) else { return };
        let (sender, _) = bound("127.0.0.1");
        let (receiver, to) = bound("127.0.0.1");
        let number = ring.add(&sender).unwrap();
        let mut buffer = RecvBuffer::new(16);
        for _ in 0..20 {
            ring = std::thread::spawn(move || {
                // SAFETY: the iovec names static bytes.
                unsafe { ring.send(number, &SockAddr::new(to), &[iovec(b"x")], None, None) }.unwrap();
                ring
            })
            .join()
            .unwrap();
            buffer.receive(receiver.fd()).unwrap();
        }
    }
}
