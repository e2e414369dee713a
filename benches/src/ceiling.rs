//! The highest rate of datagrams of one size from one core to another without loss, over loopback or between two
//! network namespaces.
//!
//! One core sends and one core receives. There are no headers, checksums, acknowledgments or state, and a window in
//! shared memory keeps the socket buffer from overflowing, so no protocol over UDP sockets with the same system calls
//! and the same copies is faster.

use std::hint::spin_loop;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use crate::sys::{self, BATCH, Batch, Error};

/// Bytes in the source and in the destination: as many as `openmrc write-bw` has with messages of 1 MiB.
const MEMORY: usize = 1 << 20;
/// Most bytes of a message: the largest UDP payload over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;
/// Most datagrams of a message: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_SEGMENTS: usize = 64;
/// Requested socket buffer. If the kernel grants less, the window is smaller.
const SOCKET_BUFFER: i32 = 32 << 20;
/// Time for both processes to reach full speed before the measurement.
const WARM_UP: Duration = Duration::from_millis(200);
/// A datagram that has not arrived this long after the last one was sent is lost.
const STALL: Duration = Duration::from_secs(1);

/// The place of one socket.
pub struct SocketLocation {
    /// A network namespace under `/run/netns`; `None`: that of this process.
    pub namespace: Option<String>,
    /// Its address.
    pub address: IpAddr,
}

impl SocketLocation {
    pub fn loopback() -> Self {
        SocketLocation { namespace: None, address: Ipv4Addr::LOCALHOST.into() }
    }

    /// A socket stays in the namespace in which it was created.
    fn bind(&self) -> Result<UdpSocket, Error> {
        let bind = || UdpSocket::bind((self.address, 0)).map_err(Error::from);
        match &self.namespace {
            None => bind(),
            Some(name) => sys::inside(name, bind),
        }
    }
}

/// What is sent, and how.
pub struct Load {
    /// Bytes of a datagram.
    pub size: usize,
    /// Datagrams of a message. With more than one the sender's kernel cuts the message into datagrams (UDP_SEGMENT), the
    /// receiver's kernel joins them (UDP_GRO), and a system call carries one message. With one there is no offload, and
    /// a system call carries up to [`BATCH`] messages.
    pub segments: usize,
    pub delivery: Delivery,
}

/// How a payload gets from the kernel to the destination.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// Into a small buffer and from there, as a receiver must that learns the address from the datagram.
    Copy,
    /// The kernel writes straight into the destination.
    Direct,
    /// Not at all: it stays in the small buffer. The limit of the kernel's part alone.
    None,
}

impl Delivery {
    pub fn parse(name: &str) -> Option<Self> {
        [Delivery::Copy, Delivery::Direct, Delivery::None].into_iter().find(|each| each.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Delivery::Copy => "copy",
            Delivery::Direct => "direct",
            Delivery::None => "none",
        }
    }
}

impl Load {
    /// Bytes of a message.
    fn message(&self) -> usize {
        self.size * self.segments
    }

    /// Messages of a system call.
    fn batch(&self) -> usize {
        if self.segments > 1 { 1 } else { BATCH }
    }

    /// # Errors
    /// A datagram or a message is longer than UDP carries.
    pub fn check(&self) -> Result<(), Error> {
        if !(1..=MAX_SEGMENTS).contains(&self.segments) {
            return Err(format!("a message has 1 to {MAX_SEGMENTS} datagrams, not {}", self.segments).into());
        }
        if self.size == 0 || self.message() > MAX_DATAGRAM {
            return Err(format!("a message has 1 to {MAX_DATAGRAM} bytes, not {}", self.message()).into());
        }
        Ok(())
    }
}

/// Number of received datagrams, on a separate cache line.
#[repr(align(128))]
struct Progress {
    received: AtomicU64,
}

/// Measures for `duration` with at most `window` datagrams outstanding; returns the result as JSON.
pub fn run(
    load: &Load,
    duration: Duration,
    window: u64,
    cpus: (usize, usize),
    [from, to]: &[SocketLocation; 2],
) -> Result<String, Error> {
    load.check()?;
    let receiver = to.bind()?;
    let sender = from.bind()?;
    sender.connect(receiver.local_addr()?)?;
    receiver.connect(sender.local_addr()?)?;
    if load.segments > 1 {
        sys::cut_into(&sender, load.size)?;
        sys::join_segments(&receiver)?;
    }
    let granted = sys::set_buffer(&receiver, true, SOCKET_BUFFER)?;
    sys::set_buffer(&sender, false, SOCKET_BUFFER)?;
    // The kernel charges a datagram its page-rounded data plus overhead: at most four times its size plus 2 KiB.
    let window = window.min(granted as u64 / (4 * load.size as u64 + 2048)).max(load.segments as u64);

    let progress: &'static Progress = sys::shared()?;
    let child = sys::fork(cpus.1, || receive(&receiver, load, progress))?;
    sys::pin(cpus.0)?;
    let mut stream = Stream::new(&sender, load, window, progress)?;

    stream.run_for(WARM_UP, &child)?;
    let (start, before) = (Instant::now(), progress.received.load(Acquire));
    stream.run_for(duration, &child)?;
    let (elapsed, datagrams) = (start.elapsed().as_secs_f64(), progress.received.load(Acquire) - before);
    stream.drain()?;

    Ok(format!(
        "{{\"benchmark\": \"udp-ceiling\", \"size_bytes\": {}, \"segments\": {}, \"delivery\": \"{}\", \"gbps\": {:.4}, \
         \"pps\": {:.0}, \"datagrams\": {datagrams}, \"seconds\": {elapsed:.4}, \"window\": {window}, \
         \"cpus\": [{}, {}]}}",
        load.size,
        load.segments,
        load.delivery.name(),
        datagrams as f64 * load.size as f64 * 8.0 / elapsed / 1e9,
        datagrams as f64 / elapsed,
        cpus.0,
        cpus.1,
    ))
}

/// The places for messages in a buffer, one behind the other and from the beginning again.
struct Ring {
    memory: &'static mut [u8],
    offset: usize,
}

impl Ring {
    fn new() -> Result<Self, Error> {
        Ok(Ring { memory: sys::buffer(MEMORY)?, offset: 0 })
    }

    /// The next place for `length` bytes.
    fn next(&mut self, length: usize) -> &mut [u8] {
        if self.offset + length > self.memory.len() {
            self.offset = 0;
        }
        let start = self.offset;
        self.offset += length;
        &mut self.memory[start..self.offset]
    }
}

struct Stream<'a> {
    socket: &'a UdpSocket,
    load: &'a Load,
    batch: Box<Batch>,
    source: Ring,
    /// Most datagrams outstanding.
    window: u64,
    /// Datagrams sent.
    sent: u64,
    progress: &'static Progress,
}

impl<'a> Stream<'a> {
    fn new(
        socket: &'a UdpSocket,
        load: &'a Load,
        window: u64,
        progress: &'static Progress,
    ) -> Result<Self, Error> {
        let source = Ring::new()?;
        source.memory.fill(1);
        Ok(Self { socket, load, batch: Batch::new(), source, window, sent: 0, progress })
    }

    /// Sends for `duration`. Fails if the receiving process has ended.
    fn run_for(&mut self, duration: Duration, child: &sys::Child) -> Result<(), Error> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let messages = self.wait_for_room(end, child)?;
            for index in 0..messages {
                self.batch.set(index, self.source.next(self.load.message()));
            }
            if messages > 0 {
                // SAFETY: the first `messages` messages were just pointed into the source buffer.
                let sent = unsafe { self.batch.send(self.socket, messages) }?;
                self.sent += (sent * self.load.segments) as u64;
            }
        }
        Ok(())
    }

    /// Waits until the window has room for a whole batch and returns its messages; 0 if `end` comes first.
    fn wait_for_room(&self, end: Instant, child: &sys::Child) -> Result<usize, Error> {
        let segments = self.load.segments as u64;
        let messages = (self.load.batch() as u64).min(self.window / segments);
        while self.window - self.outstanding() < messages * segments {
            for _ in 0..64 {
                spin_loop();
            }
            if Instant::now() >= end {
                return if child.has_ended() { Err("the receiving process ended".into()) } else { Ok(0) };
            }
        }
        Ok(messages as usize)
    }

    fn outstanding(&self) -> u64 {
        self.sent - self.progress.received.load(Acquire)
    }

    /// Waits for the outstanding datagrams. A rate with losses would not be a valid ceiling.
    fn drain(&self) -> Result<(), Error> {
        let since = Instant::now();
        while self.outstanding() > 0 {
            if since.elapsed() > STALL {
                return Err(format!(
                    "{} datagrams of {} were lost with {} outstanding; try a smaller --window",
                    self.outstanding(),
                    self.sent,
                    self.window
                )
                .into());
            }
            spin_loop();
        }
        Ok(())
    }
}

/// The receiving process: delivers every payload until it is killed.
fn receive(socket: &UdpSocket, load: &Load, progress: &Progress) -> Result<(), Error> {
    let (length, messages) = (load.message(), load.batch());
    let scratch = sys::buffer(messages * length)?;
    let mut destination = Ring::new()?;
    let mut batch = Batch::new();
    for (index, slot) in scratch.chunks_exact_mut(length).enumerate() {
        batch.set(index, slot);
    }
    let mut received = 0;
    loop {
        if load.delivery == Delivery::Direct {
            (0..messages).for_each(|index| batch.set(index, destination.next(length)));
        }
        // SAFETY: every message points at its own slot of the scratch buffer or at its own place of the destination,
        // which are only read between calls.
        let count = unsafe { batch.receive(socket, messages) }?;
        for index in 0..count {
            let length_received = batch.length(index);
            if load.delivery == Delivery::Copy {
                let slot = &scratch[index * length..][..length_received];
                destination.next(length_received).copy_from_slice(slot);
            }
            received += length_received.div_ceil(load.size) as u64;
        }
        if count > 0 {
            progress.received.store(received, Release);
        }
    }
}
