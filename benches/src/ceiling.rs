//! The most datagrams of one size that one sending and one receiving core can move over loopback, or from one network
//! namespace to another, losing none.
//!
//! The sender points a batch of message headers into a large buffer (no copy of its own); the receiver copies each
//! payload out once into a large destination, as any receiver of writes into memory must. A window in shared memory
//! keeps the socket buffer from overflowing. There are no headers, checksums, acknowledgments or state: nothing that
//! carries memory over UDP sockets without segmentation offload goes faster, and what openmrc reaches of it is its score.

use std::hint::spin_loop;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::{Duration, Instant};

use crate::sys::{self, BATCH, Batch, Error};

/// Bytes in the source and in the destination: larger than the caches, as a gradient buffer is.
const MEMORY: usize = 64 << 20;
/// What is asked for as socket buffer; the window shrinks to what is granted.
const SOCKET_BUFFER: i32 = 32 << 20;
/// Time for both processes to reach full speed before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(200);
/// What has not arrived this long after the last was sent has been lost.
const STALL: Duration = Duration::from_secs(1);

/// Where one side has its socket.
pub struct Place {
    /// A network namespace under `/run/netns`; `None`: this process's own.
    pub namespace: Option<String>,
    /// Its address there.
    pub address: IpAddr,
}

impl Place {
    pub fn loopback() -> Self {
        Place { namespace: None, address: Ipv4Addr::LOCALHOST.into() }
    }

    /// A socket stays in the namespace in which it was made, wherever its process goes.
    fn bind(&self) -> Result<UdpSocket, Error> {
        let bind = || UdpSocket::bind((self.address, 0)).map_err(Error::from);
        match &self.namespace {
            None => bind(),
            Some(name) => sys::inside(name, bind),
        }
    }
}

/// Datagrams received, on a cache line of its own.
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
    // The kernel charges a datagram its page-rounded data plus bookkeeping; four times the size and 2 KiB is an upper bound.
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

    /// Sends for `duration`; fails if the receiver has ended.
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

    /// The datagrams that may be sent now: a whole batch as soon as the window has room for it; 0 when `end` came first.
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

    /// Waits for what is under way. A figure with losses in it would be of a sender that waited for nothing.
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

/// The receiving process: copies every payload into the destination until it is killed.
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
