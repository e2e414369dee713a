//! Where packets on their way out are put together: headers, padding and iCRC lie in an arena, payload is gathered from
//! where the application has it, uncopied, unless it is so short that an iovec costs more.

use openmrc_sockets::IoVec;
use openmrc_wire::{IcrcSeed, MAX_HEADER_LEN, Packet, icrc};

/// Payloads up to this many bytes are copied beside their headers.
const COPY_LIMIT: usize = 512;
/// Arena bytes per packet: headers, short payload, padding, iCRC.
const PER_PACKET: usize = MAX_HEADER_LEN + COPY_LIMIT + 3 + icrc::LEN;
/// Most pieces of one payload; a scatter list is cut at packet boundaries.
pub(crate) const MAX_PIECES: usize = 16;

/// Bytes of packets as iovecs.
pub(crate) struct Arena {
    bytes: Box<[u8]>,
    used: usize,
    pub iovecs: Vec<IoVec>,
}

// SAFETY: the raw pointers in `iovecs` are used only between `push` and `clear`, both under the engine's lock, during
// which the memory they point to stays registered.
unsafe impl Send for Arena {}

impl Arena {
    /// Room for so many packets with so many bytes in front of each.
    pub fn new(packets: usize, in_front: usize) -> Self {
        Arena {
            bytes: vec![0; packets * (PER_PACKET + in_front)].into_boxed_slice(),
            used: 0,
            iovecs: Vec::with_capacity(packets * (MAX_PIECES + 2)),
        }
    }

    /// Whether a packet of any kind has room.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.iovecs.len() + MAX_PIECES + 2 <= self.iovecs.capacity()
    }

    /// Begins a packet with bytes in front of it: `write` puts them at the front of what it is given and returns how
    /// many they are. They get an iovec of their own.
    #[inline]
    pub fn begin(&mut self, write: impl FnOnce(&mut [u8]) -> usize) {
        let len = write(&mut self.bytes[self.used..]);
        let base = self.bytes[self.used..].as_mut_ptr();
        self.iovecs.push(IoVec { iov_base: base.cast(), iov_len: len });
        self.used += len;
    }

    /// Adds a packet; `ports` are the UDP ports it goes from and to. Its payload lies in `pieces`, which must stay
    /// valid until the arena is cleared.
    #[inline]
    pub fn push(&mut self, packet: &Packet, pieces: &[&[u8]], seed: &IcrcSeed, ports: (u16, u16)) {
        let len = packet.wire_len();
        let start = self.used;
        let headers = packet.emit(&mut self.bytes[start..]);
        let pad = packet.pad_len();
        let mut at = start + headers;
        if usize::from(packet.payload_len) <= COPY_LIMIT {
            for piece in pieces {
                self.bytes[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            self.bytes[at..at + pad].fill(0);
            at += pad;
            let crc = seed.of_datagram(ports.0, ports.1, &self.bytes[start..at]);
            self.bytes[at..at + icrc::LEN].copy_from_slice(&crc);
            self.use_up_to(at + icrc::LEN);
        } else {
            let crc = match pieces {
                [payload] => seed.checksum(ports.0, ports.1, &self.bytes[start..at], payload),
                _ => {
                    let mut crc = seed.begin(ports.0, ports.1, len);
                    crc.update(&self.bytes[start..at]);
                    pieces.iter().for_each(|piece| crc.update(piece));
                    crc.update(&[0; 3][..pad]);
                    crc.finish()
                }
            };
            self.use_up_to(at);
            for piece in pieces {
                self.iovecs.push(IoVec { iov_base: piece.as_ptr() as *mut _, iov_len: piece.len() });
            }
            self.bytes[at..at + pad].fill(0);
            self.bytes[at + pad..at + pad + icrc::LEN].copy_from_slice(&crc);
            self.use_up_to(at + pad + icrc::LEN);
        }
    }

    /// The arena up to `end` is to be sent: it lengthens the last iovec if that lies just before.
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

    /// Copies what the iovecs hold to the end of `out`.
    pub fn copy(iovecs: &[IoVec], out: &mut Vec<u8>) {
        for iovec in iovecs {
            // SAFETY: every piece is valid until the arena is cleared, which the borrow of its iovecs puts off.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts(iovec.iov_base.cast::<u8>(), iovec.iov_len)
            });
        }
    }

    /// Forgets everything.
    #[inline]
    pub fn clear(&mut self) {
        self.used = 0;
        self.iovecs.clear();
    }
}
