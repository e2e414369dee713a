//! Assembles packets to be sent: headers, padding and iCRC lie in an arena. Payload stays in the application's memory
//! and gets iovecs of its own, unless it is so short that copying is cheaper than an iovec.

use std::sync::Arc;

use openmrc_sockets::IoVec;
use openmrc_wire::{IcrcSeed, MAX_HEADER_LEN, Packet, icrc};

use crate::piece::Piece;

/// Payloads up to this many bytes are copied behind their headers.
const COPY_LIMIT: usize = 512;
/// Arena bytes per packet: headers, short payload, padding, iCRC.
const PER_PACKET: usize = MAX_HEADER_LEN + COPY_LIMIT + 3 + icrc::LEN;
/// Most pieces of one packet's payload, as a scatter list has at most this many.
pub(crate) const MAX_PIECES: usize = 16;

/// Packets as a list of iovecs.
pub(crate) struct Arena {
    bytes: Box<[u8]>,
    used: usize,
    /// Payload that iovecs name and nobody else keeps.
    staged: Vec<Arc<[u8]>>,
    pub iovecs: Vec<IoVec>,
}

// SAFETY: the raw pointers in `iovecs` are used only between `push` and `clear`, both under the engine's lock, during
// which the memory they point to stays registered.
unsafe impl Send for Arena {}

impl Arena {
    /// Room for this many packets, each with a prefix of at most `prefix` bytes.
    pub fn new(packets: usize, prefix: usize) -> Self {
        Arena {
            bytes: vec![0; packets * (PER_PACKET + prefix)].into_boxed_slice(),
            used: 0,
            staged: Vec::new(),
            iovecs: Vec::with_capacity(packets * (MAX_PIECES + 2)),
        }
    }

    /// Whether one more packet has room, whatever its kind.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.iovecs.len() + MAX_PIECES + 2 <= self.iovecs.capacity()
    }

    /// Begins a packet with a prefix: `write` writes it to the front of its argument and returns its length. The prefix
    /// begins a new iovec.
    #[inline]
    pub fn begin(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let len = write(&mut self.bytes[self.used..]);
        let base = self.bytes[self.used..].as_mut_ptr();
        self.iovecs.push(IoVec { iov_base: base.cast(), iov_len: len });
        self.used += len;
    }

    /// Adds a packet. `ports` are its UDP source and destination ports. Its payload lies in `pieces`, which must stay
    /// valid until the arena is cleared.
    #[inline]
    pub fn push(&mut self, packet: &Packet, pieces: &[Piece], seed: &IcrcSeed, ports: (u16, u16)) {
        let len = packet.wire_len();
        let start = self.used;
        let headers = packet.emit(&mut self.bytes[start..]);
        let pad = packet.pad_len();
        let mut at = start + headers;
        if usize::from(packet.payload_len) <= COPY_LIMIT {
            for piece in pieces {
                piece.copy_to(&mut self.bytes[at..]);
                at += piece.len();
            }
            self.bytes[at..at + pad].fill(0);
            at += pad;
            let crc = seed.of_datagram(ports.0, ports.1, &self.bytes[start..at]);
            self.bytes[at..at + icrc::LEN].copy_from_slice(&crc);
            self.use_up_to(at + icrc::LEN);
        } else {
            let crc = match pieces {
                [payload] => {
                    let headers = &self.bytes[start..at];
                    payload.checksummed(|payload| seed.checksum(ports.0, ports.1, headers, payload))
                }
                _ => {
                    let mut crc = seed.begin(ports.0, ports.1, len);
                    crc.update(&self.bytes[start..at]);
                    pieces.iter().for_each(|piece| piece.checksummed(|bytes| crc.update(bytes)));
                    crc.update(&[0; 3][..pad]);
                    crc.finish()
                }
            };
            self.use_up_to(at);
            for piece in pieces {
                self.iovecs.push(piece.iovec());
                self.staged.extend(piece.staged().cloned());
            }
            self.bytes[at..at + pad].fill(0);
            self.bytes[at + pad..at + pad + icrc::LEN].copy_from_slice(&crc);
            self.use_up_to(at + pad + icrc::LEN);
        }
    }

    /// Appends the arena's bytes up to `end` to the iovecs. They extend the last iovec if it ends where they begin.
    #[inline]
    fn use_up_to(&mut self, end: usize) {
        let piece = &mut self.bytes[self.used..end];
        let base = piece.as_mut_ptr();
        match self.iovecs.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                last.iov_len += piece.len();
            }
            _ => self.iovecs.push(IoVec { iov_base: base.cast(), iov_len: piece.len() }),
        }
        self.used = end;
    }

    /// Appends the bytes of the iovecs to `out`.
    pub fn copy(iovecs: &[IoVec], out: &mut Vec<u8>) {
        for iovec in iovecs {
            let (len, more) = (out.len(), iovec.iov_len);
            out.reserve(more);
            // SAFETY: every piece is valid until the arena is cleared, which the borrow of its iovecs prevents; there is
            // room for it. The application may change it meanwhile, so there is no reference to it.
            unsafe {
                std::ptr::copy_nonoverlapping(iovec.iov_base.cast::<u8>(), out.as_mut_ptr().add(len), more);
                out.set_len(len + more);
            }
        }
    }

    /// Removes every packet.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.iovecs.clear();
        self.staged.clear();
    }
}
