//! The link to a rank of the same host: its segment, mapped here, and its doorbell.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use openmrc_schedule::Rank;
use openmrc_sockets::{PollSet, ProcessWatch, Segment, read_process};

use crate::card::LocalCard;
use crate::error::{Error, Result};
use crate::header::{HEADER_LEN, Header};
use crate::layout::{COLLECTIVE, Layout, NONCE, SLOTS, STRIDE};

/// A rank's own segment and doorbell.
pub struct Home {
    pub segment: Arc<Segment>,
    pub layout: Layout,
    nonce: [u8; NONCE],
    doorbell: UnixDatagram,
    name: String,
}

impl Home {
    /// Makes the segment of a rank among `ranks`.
    pub fn new(ranks: usize) -> Result<Home> {
        let layout = Layout::new(ranks);
        let segment = Segment::create("openmrc-collectives", layout.len())
            .map_err(|e| Error::device("memory for messages", e))?;
        let nonce: [u8; NONCE] = random()?;
        // SAFETY: the segment is longer, and nobody else has it yet.
        unsafe { segment.as_ptr().cast::<[u8; NONCE]>().write(nonce) };
        let tag: [u8; 8] = random()?;
        let name = format!("openmrc-collectives-{}-{:016x}", std::process::id(), u64::from_ne_bytes(tag));
        let doorbell = SocketAddr::from_abstract_name(&name)
            .and_then(|address| UnixDatagram::bind_addr(&address))
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(|e| Error::device("doorbell", e))?;
        Ok(Home { segment: Arc::new(segment), layout, nonce, doorbell, name })
    }

    pub fn card(&self) -> LocalCard {
        LocalCard {
            host: host_key(),
            pid: std::process::id(),
            fd: self.segment.fd(),
            nonce: self.nonce,
            base: self.base().expose_provenance() as u64,
            doorbell: self.name.clone(),
        }
    }

    pub fn base(&self) -> *mut u8 {
        self.segment.as_ptr()
    }

    /// Readable when a peer has rung.
    pub fn doorbell_fd(&self) -> RawFd {
        self.doorbell.as_raw_fd()
    }

    /// From now on peers ring the doorbell.
    pub fn set_sleeping(&self, sleeping: bool) {
        // SAFETY: the own segment.
        unsafe { Layout::sleeping(self.base()) }.store(u32::from(sleeping), Ordering::SeqCst);
        // What a peer has written before it looked at this is seen from now on.
        fence(Ordering::SeqCst);
    }

    /// Rings the own doorbell, which wakes a thread of this rank.
    pub fn ring_own(&self) {
        // It fails only if it has been rung often already.
        let _ = SocketAddr::from_abstract_name(&self.name)
            .and_then(|address| self.doorbell.send_to_addr(&[1], &address));
    }

    /// Takes what was rung.
    pub fn clear_doorbell(&self) {
        let mut byte = [0; 1];
        while self.doorbell.recv(&mut byte).is_ok() {}
    }

    /// Whether a peer of this host can read this process's memory.
    pub fn is_readable(&self, peer: Rank) -> bool {
        // SAFETY: the own segment.
        unsafe { self.layout.readable(self.base(), peer) }.load(Ordering::Acquire) != 0
    }

    /// Code of an abort that a peer of this host has told, or 0.
    pub fn aborted(&self) -> u32 {
        // SAFETY: the own segment.
        unsafe { Layout::aborted(self.base()) }.load(Ordering::Relaxed)
    }
}

/// Which machine this is, and which network namespace: two processes with the same may share memory instead of the
/// network. Hosts of a lab are namespaces of one machine, and count as different.
pub fn host_key() -> [u8; 16] {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let mut key = [0u8; 16];
    let text = format!("{boot}{}", Path::display(&network));
    // A plain mixture: it separates hosts, it keeps no secret.
    for (i, byte) in text.bytes().enumerate() {
        let at = i % 16;
        key[at] = key[at].rotate_left(3) ^ byte;
    }
    key
}

/// Random bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| Error::device("random numbers", e))?;
    Ok(bytes)
}

/// A peer whose segment is mapped here.
pub struct LocalLink {
    segment: Segment,
    layout: Layout,
    /// This rank: which rings of the peer are its own.
    rank: Rank,
    doorbell: UnixDatagram,
    address: SocketAddr,
    pub process: ProcessWatch,
    pid: u32,
    sent: [u64; 2],
    /// Messages of collective operations that the peer reads from this process's memory, by their number, until it has
    /// taken them.
    read: VecDeque<u64>,
}

impl LocalLink {
    /// Maps the segment of a peer. An error says why the network must be used instead.
    pub fn open(card: &LocalCard, home: &Home, rank: Rank) -> io::Result<LocalLink> {
        let other = |what: &str| io::Error::other(what.to_string());
        if card.host != host_key() {
            return Err(other("the peer is another host"));
        }
        let segment = Segment::open(card.pid, card.fd, home.layout.len())?;
        // SAFETY: the segment is longer; the owner wrote it before anyone knew the segment.
        let nonce = unsafe { segment.as_ptr().cast::<[u8; NONCE]>().read() };
        if nonce != card.nonce {
            return Err(other("the segment is another one"));
        }
        let doorbell = UnixDatagram::unbound()?;
        doorbell.set_nonblocking(true)?;
        let link = LocalLink {
            process: ProcessWatch::new(card.pid)?,
            address: SocketAddr::from_abstract_name(&card.doorbell)?,
            pid: card.pid,
            layout: home.layout,
            segment,
            rank,
            doorbell,
            sent: [0; 2],
            read: VecDeque::new(),
        };
        let mut seen = [0; NONCE];
        // SAFETY: it has this length.
        if unsafe { link.read(card.base, seen.as_mut_ptr(), NONCE) }.is_ok() && seen == card.nonce {
            // SAFETY: the peer's segment has this layout.
            unsafe { link.layout.readable(link.segment.as_ptr(), rank) }.store(1, Ordering::Release);
        }
        Ok(link)
    }

    /// Copies memory of the peer.
    ///
    /// # Errors
    /// As [`read_process`].
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes.
    pub unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { read_process(self.pid, address, to, len) }?;
        // Another process may have got the number of one that has ended.
        if self.has_ended() { Err(io::Error::from(io::ErrorKind::NotFound)) } else { Ok(()) }
    }

    /// Messages that the peer has read from this process's memory since the last call.
    pub fn take_read(&mut self) -> usize {
        if self.read.is_empty() {
            return 0;
        }
        // SAFETY: the peer's segment has this layout.
        let taken = unsafe { self.layout.taken(self.segment.as_ptr(), COLLECTIVE, self.rank) };
        let taken = taken.load(Ordering::Acquire);
        let count = self.read.iter().take_while(|&&number| number <= taken).count();
        self.read.drain(..count);
        count
    }

    /// Whether the peer reads from this process's memory.
    pub fn is_read(&self) -> bool {
        !self.read.is_empty()
    }

    /// Whether the peer's ring has room for a message.
    #[inline]
    pub fn can_send(&self, lane: usize) -> bool {
        // SAFETY: the peer's segment has this layout.
        let taken = unsafe { self.layout.taken(self.segment.as_ptr(), lane, self.rank) };
        self.sent[lane].wrapping_sub(taken.load(Ordering::Acquire)) < SLOTS as u64
    }

    /// Copies a message into the peer's ring, which has room; of one with a source the head only.
    ///
    /// # Safety
    /// `data` is valid for reads of `header.len` bytes, at most a slot.
    pub unsafe fn send(&mut self, lane: usize, header: &Header, data: *const u8) {
        let copied = if header.source == 0 { header.len as usize } else { 0 };
        let slot = (self.sent[lane] % SLOTS as u64) as usize;
        let base = self.segment.as_ptr();
        // SAFETY: the slot lies in the segment, and the peer does not read it before `written` says so.
        unsafe {
            let at = base.add(self.layout.ring(lane, self.rank) + slot * STRIDE);
            at.cast::<Header>().write_volatile(*header);
            std::ptr::copy_nonoverlapping(data, at.add(HEADER_LEN), copied);
        }
        self.sent[lane] += 1;
        if header.source != 0 {
            self.read.push_back(self.sent[lane]);
        }
        // SAFETY: the peer's segment has this layout.
        let written = unsafe { self.layout.written(base, lane, self.rank) };
        written.store(self.sent[lane], Ordering::Release);
        self.ring();
    }

    /// Wakes the peer if it sleeps.
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        // SAFETY: the peer's segment has this layout.
        let sleeping = unsafe { Layout::sleeping(self.segment.as_ptr()) };
        if sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::SeqCst) != 0 {
            // It fails if the peer has gone, or was rung so often that it wakes anyway.
            let _ = self.doorbell.send_to_addr(&[1], &self.address);
        }
    }

    /// Tells the peer that the communicator is aborted.
    pub fn abort(&self, code: u32) {
        // SAFETY: the peer's segment has this layout.
        unsafe { Layout::aborted(self.segment.as_ptr()) }.store(code, Ordering::SeqCst);
        let _ = self.doorbell.send_to_addr(&[1], &self.address);
    }
}

impl LocalLink {
    /// Whether the peer's process has ended.
    pub fn has_ended(&self) -> bool {
        let mut set = PollSet::new([self.process.fd()]);
        set.wait(Some(Duration::ZERO)).is_ok() && set.is_readable(0)
    }
}
