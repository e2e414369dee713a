//! The link to one peer, through shared memory or over the network.

use std::io;
use std::sync::atomic::Ordering;

use openmrc_schedule::{Rank, SLOT};

use crate::card::Card;
use crate::error::{Error, Result};
use crate::header::{HEADER_LEN, Header, Signature};
use crate::layout::{COLLECTIVE, COPIED_MOST, P2P, SLOTS, STRIDE};
use crate::local::{Home, LocalLink};
use crate::remote::RemoteLink;

/// Why a peer of this host is lost.
pub const ENDED: &str = "its process has ended";

/// How a peer is reached.
pub enum Medium {
    Local(Box<LocalLink>),
    Remote(Box<RemoteLink>),
}

/// A peer.
pub struct Link {
    pub peer: Rank,
    pub host: String,
    pub medium: Medium,
    /// Messages taken here, by lane.
    taken: [u64; 2],
    /// The latest operation that it is known to have called.
    pub reached: u64,
    /// Why nothing more comes from it.
    pub lost: Option<String>,
}

/// A message that has arrived. It stays in its slot until it is taken.
#[derive(Clone, Copy)]
pub struct Arrived {
    pub header: Header,
    pub data: *const u8,
}

impl Link {
    pub fn new(card: &Card, medium: Medium) -> Link {
        Link { peer: card.rank, host: card.host_name.clone(), medium, taken: [0; 2], reached: 0, lost: None }
    }

    /// Whether messages go through shared memory.
    pub fn is_local(&self) -> bool {
        matches!(self.medium, Medium::Local(_))
    }

    /// Most bytes of a message that travels in a slot.
    #[inline]
    pub fn longest(&self) -> usize {
        if self.is_local() { COPIED_MOST } else { SLOT }
    }

    #[inline]
    pub fn can_send(&self, lane: usize) -> bool {
        match &self.medium {
            Medium::Local(link) => link.can_send(lane),
            Medium::Remote(link) => link.can_send(lane),
        }
    }

    /// Whether the peer can read this process's memory.
    pub fn is_reader(&self, home: &Home) -> bool {
        self.is_local() && home.is_readable(self.peer)
    }

    /// Messages that the peer has read from this process's memory since the last call.
    pub fn take_read(&mut self) -> usize {
        match &mut self.medium {
            Medium::Local(link) => link.take_read(),
            Medium::Remote(_) => 0,
        }
    }

    /// Sends a message; returns whether its source is free only later: once a send completes as `wr_id`, or, if the
    /// peer reads it from there, once [`Link::take_read`] counts it.
    ///
    /// # Safety
    /// As [`RemoteLink::send`].
    pub unsafe fn send(
        &mut self,
        lane: usize,
        header: &Header,
        data: *const u8,
        lkey: Option<u32>,
        wr_id: u64,
    ) -> Result<bool> {
        match &mut self.medium {
            Medium::Local(link) => {
                // SAFETY: the caller's promise.
                unsafe { link.send(lane, header, data) };
                Ok(header.source != 0)
            }
            // SAFETY: the caller's promise.
            Medium::Remote(link) => unsafe { link.send(lane, header, data, lkey, wr_id) },
        }
    }

    /// The oldest message that has arrived and is not taken.
    #[inline]
    pub fn arrived(&self, home: &Home, lane: usize) -> Option<Arrived> {
        let written = match &self.medium {
            // SAFETY: the own segment.
            Medium::Local(_) => {
                unsafe { home.layout.written(home.base(), lane, self.peer) }.load(Ordering::Acquire)
            }
            Medium::Remote(link) => link.arrived[lane],
        };
        let taken = self.taken[lane];
        if written == taken {
            return None;
        }
        let slot = (taken % SLOTS as u64) as usize;
        // SAFETY: the slot lies in the own segment and is aligned.
        unsafe {
            let at = home.base().add(home.layout.ring(lane, self.peer) + slot * STRIDE);
            // Once: a peer may change its slot at any time, and what was checked must be what is used.
            let mut header = at.cast::<Header>().read_volatile();
            if lane != COLLECTIVE || !self.is_local() {
                header.source = 0;
            }
            if header.source == 0 {
                // A wrong value affects only the peer that sent it.
                header.len = header.len.min(SLOT as u64);
            }
            Some(Arrived { header, data: at.add(HEADER_LEN) })
        }
    }

    /// Copies the bytes of a message that has arrived, from its slot or from the peer's memory. Returns `false` if the
    /// peer has ended.
    ///
    /// # Errors
    /// The peer's memory cannot be read.
    ///
    /// # Safety
    /// `to` is valid for writes of as many bytes, and the message is not taken.
    pub unsafe fn store(&mut self, message: &Arrived, to: *mut u8) -> Result<bool> {
        let Header { len, source, .. } = message.header;
        match &self.medium {
            Medium::Local(link) if source != 0 => {
                // SAFETY: the caller's promise.
                match unsafe { link.read(source, to, len as usize) } {
                    Ok(()) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.lost.get_or_insert_with(|| ENDED.into());
                        Ok(false)
                    }
                    Err(error) => Err(Error::device(format!("reading memory of rank {}", self.peer), error)),
                }
            }
            _ => {
                // SAFETY: the caller's promise; the bytes are in the slot.
                unsafe { std::ptr::copy_nonoverlapping(message.data, to, len as usize) };
                Ok(true)
            }
        }
    }

    /// Gives the slot of the oldest message back to the peer.
    pub fn take(&mut self, home: &Home, lane: usize) -> Result<()> {
        self.taken[lane] += 1;
        match &mut self.medium {
            Medium::Local(link) => {
                // SAFETY: the own segment.
                let taken = unsafe { home.layout.taken(home.base(), lane, self.peer) };
                taken.store(self.taken[lane], Ordering::Release);
                link.ring();
                Ok(())
            }
            Medium::Remote(link) => link.took(lane, self.taken[lane]),
        }
    }

    /// Tells the peer which operation this rank has called, if there is room for it.
    pub fn announce(&mut self, number: u64, signature: Signature) -> Result<()> {
        if self.lost.is_some() || !self.can_send(P2P) {
            return Ok(());
        }
        let header = Header { operation: number, signature, total: 0, offset: 0, len: 0, source: 0 };
        // SAFETY: no bytes are read.
        unsafe { self.send(P2P, &header, std::ptr::dangling(), None, 0) }.map(|_| ())
    }

    /// Tells the peer that the communicator is aborted; returns whether a send with [`crate::remote::ABORT_ID`] will
    /// complete.
    pub fn abort(&mut self, code: u32) -> bool {
        match &mut self.medium {
            Medium::Local(link) => {
                link.abort(code);
                false
            }
            Medium::Remote(link) => link.abort(code),
        }
    }
}
