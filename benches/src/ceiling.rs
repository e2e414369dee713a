//! The highest rate of datagrams of one size from one core to another without loss, over loopback or between two
//! network namespaces.
//!
//! The sender's message headers point into a large buffer, so it copies nothing itself. The receiver copies each
//! payload once into a large destination, as any receiver of memory writes must. A window in shared memory keeps the
//! socket buffer from overflowing. There are no headers, checksums, acknowledgments or state, so no protocol over UDP
//! sockets without segmentation offload is faster.

use std::hint::spin_loop;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use crate::sys::{self, BATCH, Batch, Error};

/// Bytes in the source and in the destination: larger than the caches, as gradient buffers are.
const MEMORY: usize = 64 << 20;
/// Requested socket buffer. If the kernel grants less, the window is smaller.
const SOCKET_BUFFER: i32 = 32 << 20;
/// Time for both processes to reach full speed before the measurement.
const WARM_UP: Duration = Duration::from_millis(200);
/// A datagram that has not arrived this long after the last one was sent is lost.
const STALL: Duration = Duration::from_secs(1);

/// The place of one socket.
pub struct Place {
    /// A network namespace under `/run/netns`; `None`: that of this process.
    pub namespace: Option<String>,
    /// Its address.
    pub address: IpAddr,
}

impl Place {
    pub fn loopback() -> Self {
        Place { namespace: None, address: Ipv4Addr::LOCALHOST.into() }
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

/// Number of received datagrams, on a separate cache line.
#[repr(align(128))]
struct Progress {
    received: AtomicU64,
}

/// Measures for `duration` with at most `window` datagrams of `size` bytes outstanding; returns the result as JSON.
pub fn run(
    size: usize,
    duration: Duration,
    window: u64,
    cpus: (usize, usize),
    [from, to]: &[Place; 2],
) -> Result<String, Error> {
    let receiver = to.bind()?;
    let sender = from.bind()?;
    sender.connect(receiver.local_addr()?)?;
    receiver.connect(sender.local_addr()?)?;
    let granted = sys::set_buffer(&receiver, true, SOCKET_BUFFER)?;
    sys::set_buffer(&sender, false, SOCKET_BUFFER)?;
    // The kernel charges a datagram its page-rounded data plus overhead: at most four times its size plus 2 KiB.
    let window = window.min(granted as u64 / (4 * size as u64 + 2048)).max(1);

    let progress: &'static Progress = sys::shared()?;
    let child = sys::fork(cpus.1, || receive(&receiver, size, progress))?;
    sys::pin(cpus.0)?;
    let mut stream = Stream::new(&sender, size, window, progress)?;

    stream.run_for(WARM_UP, &child)?;
    let (start, before) = (Instant::now(), progress.received.load(Acquire));
    stream.run_for(duration, &child)?;
    let (elapsed, datagrams) = (start.elapsed().as_secs_f64(), progress.received.load(Acquire) - before);
    stream.drain()?;

    Ok(format!(
        "{{\"benchmark\": \"udp-ceiling\", \"size_bytes\": {size}, \"gbps\": {:.4}, \"pps\": {:.0}, \
         \"datagrams\": {datagrams}, \"seconds\": {elapsed:.4}, \"window\": {window}, \"cpus\": [{}, {}]}}",
        datagrams as f64 * size as f64 * 8.0 / elapsed / 1e9,
        datagrams as f64 / elapsed,
        cpus.0,
        cpus.1,
    ))
}

struct Stream<'a> {
    socket: &'a UdpSocket,
    batch: Box<Batch>,
    source: &'static mut [u8],
    offset: usize,
    size: usize,
    window: u64,
    sent: u64,
    progress: &'static Progress,
}

impl<'a> Stream<'a> {
    fn new(
        socket: &'a UdpSocket,
        size: usize,
        window: u64,
        progress: &'static Progress,
    ) -> Result<Self, Error> {
        let source = sys::buffer(MEMORY)?;
        source.fill(1);
        Ok(Self { socket, batch: Batch::new(), source, offset: 0, size, window, sent: 0, progress })
    }

    /// Sends for `duration`. Fails if the receiving process has ended.
    fn run_for(&mut self, duration: Duration, child: &sys::Child) -> Result<(), Error> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            let room = self.wait_for_room(end, child)?;
            if room == 0 {
                continue;
            }
            for index in 0..room {
                if self.offset + self.size > self.source.len() {
                    self.offset = 0;
                }
                self.batch.set(index, self.source[self.offset..].as_mut_ptr(), self.size);
                self.offset += self.size;
            }
            // SAFETY: the first `room` messages were just pointed into the source buffer.
            self.sent += unsafe { self.batch.send(self.socket, room) }? as u64;
        }
        Ok(())
    }

    /// Waits until the window has room for a whole batch and returns its size; 0 if `end` comes first.
    fn wait_for_room(&self, end: Instant, child: &sys::Child) -> Result<usize, Error> {
        let wanted = (BATCH as u64).min(self.window);
        while self.window - self.outstanding() < wanted {
            for _ in 0..64 {
                spin_loop();
            }
            if Instant::now() >= end {
                return if child.has_ended() { Err("the receiving process ended".into()) } else { Ok(0) };
            }
        }
        Ok(wanted as usize)
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

/// The receiving process: copies every payload to the destination until it is killed.
fn receive(socket: &UdpSocket, size: usize, progress: &Progress) -> Result<(), Error> {
    let scratch = sys::buffer(BATCH * size)?;
    let memory = sys::buffer(MEMORY)?;
    let mut batch = Batch::new();
    for (index, slot) in scratch.chunks_exact_mut(size).enumerate() {
        batch.set(index, slot.as_mut_ptr(), size);
    }
    let (mut offset, mut received) = (0, 0);
    loop {
        // SAFETY: every message points at its own slot of the scratch buffer, which is only read between calls.
        let count = unsafe { batch.receive(socket) }?;
        for index in 0..count {
            if offset + size > memory.len() {
                offset = 0;
            }
            let length = batch.length(index);
            memory[offset..offset + length].copy_from_slice(&scratch[index * size..][..length]);
            offset += length;
        }
        if count > 0 {
            received += count as u64;
            progress.received.store(received, Release);
        }
    }
}
