//! Runs: consecutive packets of one path and traffic class to one peer. A run goes to the kernel in one system call,
//! and the kernel cuts it into packets as late as possible (UDP GSO).

use std::io;

use openmrc_sockets::{SendRing, SockAddr};
use openmrc_wire::{Distances, IcrcSeed, MAX_HEADER_LEN, Packet, change_identification, opcode};

use crate::arena::Arena;
use crate::piece::Piece;
use crate::socket::{TxSocket, is_ecn_capable};

/// Most packets of a run: `UDP_MAX_SEGMENTS` before Linux 6.9.
const MAX_SEGMENTS: usize = 64;
/// Most bytes of a run: the largest UDP payload over IPv4.
const MAX_BYTES: usize = 65_507;

/// How many packets of this path MTU fit into a run.
pub fn most_in_run(path_mtu: u16) -> u8 {
    (MAX_BYTES / (usize::from(path_mtu) + MAX_HEADER_LEN)).min(MAX_SEGMENTS) as u8
}

/// Whether an opcode, the first byte of a packet, is that of data: an RDMA write.
#[inline]
pub(crate) fn is_data(opcode: u8) -> bool {
    (opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM).contains(&opcode)
}

/// Over IPv4 whoever cuts a message into packets numbers them from 0 in the header's identification, which the iCRC
/// covers: changes the iCRCs of packets of `segment` bytes each, but the last, from those of identification 0 to those of
/// their places, or back.
pub(crate) fn number_packets(bytes: &mut [u8], segment: usize, distances: &mut Distances) {
    for (place, packet) in bytes.chunks_mut(segment.max(1)).enumerate().skip(1) {
        change_identification(packet, place as u16, distances);
    }
}

/// What all packets of a run have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunKey {
    /// Index of the path.
    pub path: u16,
    /// Traffic class octet.
    pub class: u8,
    /// Index of the peer.
    pub peer: u32,
}

impl RunKey {
    /// Data and probes: they are ECN-capable, what answers them is not.
    pub fn asks_for_feedback(self) -> bool {
        is_ecn_capable(self.class)
    }
}

/// A run that is being gathered.
pub(crate) struct TxRun {
    key: Option<RunKey>,
    arena: Arena,
    packets: usize,
    /// Length of every packet but the last.
    segment: usize,
    bytes: usize,
    /// A shorter packet has ended the run: only the last packet may be shorter.
    ended: bool,
    /// The iCRCs are those of packets that are numbered by their places.
    numbered: bool,
    distances: Distances,
}

impl TxRun {
    pub fn new() -> Self {
        TxRun {
            key: None,
            arena: Arena::new(MAX_SEGMENTS, 0),
            packets: 0,
            segment: 0,
            bytes: 0,
            ended: false,
            numbered: false,
            distances: Distances::default(),
        }
    }

    /// What its packets have in common; `None` if it is empty.
    pub fn key(&self) -> Option<RunKey> {
        self.key
    }

    pub fn packets(&self) -> usize {
        self.packets
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Length of every packet but the last.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Whether a packet of `len` bytes with this key can join.
    #[inline]
    pub fn accepts(&self, key: RunKey, len: usize) -> bool {
        match self.key {
            None => true,
            Some(mine) => {
                mine == key
                    && !self.ended
                    && len <= self.segment
                    && self.packets < MAX_SEGMENTS
                    && self.bytes + len <= MAX_BYTES
                    && self.arena.has_room()
            }
        }
    }

    /// Adds a packet that [`TxRun::accepts`]. `ports` are its UDP source and destination ports. Its payload lies in
    /// `pieces`, which must stay valid until the run is cleared. `cut` says whether the kernel will cut the run into
    /// packets; it is the same for all packets of a run.
    #[inline]
    pub fn push(
        &mut self,
        key: RunKey,
        packet: &Packet,
        pieces: &[Piece],
        seed: &IcrcSeed,
        ports: (u16, u16),
        cut: bool,
    ) {
        debug_assert!(self.accepts(key, packet.wire_len()));
        let len = packet.wire_len();
        if self.packets == 0 {
            self.key = Some(key);
            self.segment = len;
            self.numbered = cut && seed.has_identification();
            self.arena.push(packet, pieces, seed, ports);
        } else if self.numbered {
            self.arena.push(packet, pieces, &seed.identified(self.packets as u16), ports);
        } else {
            self.arena.push(packet, pieces, seed, ports);
        }
        self.ended = len < self.segment;
        self.packets += 1;
        self.bytes += len;
    }

    /// Sends the run. `class` is given if it differs from the socket's own traffic class.
    ///
    /// # Errors
    /// The kernel's. Nothing was sent then.
    #[inline]
    pub fn send(
        &self,
        socket: &TxSocket,
        ring: Option<&mut SendRing>,
        dest: &SockAddr,
        class: Option<u8>,
    ) -> io::Result<()> {
        let segment = if self.packets > 1 { Some(self.segment as u16) } else { None };
        // SAFETY: the iovecs name memory that is valid until the run is cleared.
        unsafe { socket.send(ring, dest, &self.arena.iovecs, class, segment) }
    }

    /// Adds the run to the next call of a ring.
    ///
    /// # Safety
    /// The ring has room, and the run is not changed or cleared before the call.
    #[inline]
    pub unsafe fn queue(&self, ring: &mut SendRing, socket: u32, dest: &SockAddr, class: Option<u8>) {
        let segment = if self.packets > 1 { Some(self.segment as u16) } else { None };
        // SAFETY: the caller's promise; the iovecs name memory that is valid until the run is cleared.
        unsafe { ring.push(socket, dest, &self.arena.iovecs, class, segment) }
    }

    /// Copies the run's bytes to `out`, in one piece, for the slow paths. The iCRCs are those of identification 0.
    pub fn copy_to(&mut self, out: &mut Vec<u8>) {
        out.clear();
        Arena::copy(&self.arena.iovecs, out);
        if self.numbered {
            number_packets(out, self.segment, &mut self.distances);
        }
    }

    /// The opcode of each packet, its first byte.
    pub fn opcodes(&self) -> impl Iterator<Item = u8> + '_ {
        let segment = self.segment.max(1);
        let (mut begin, mut packet) = (0, 0);
        self.arena.iovecs.iter().flat_map(move |iovec| {
            // One iovec may hold several short packets, and a long packet may have several iovecs.
            let (piece, end) = (begin, begin + iovec.iov_len);
            let starts = (packet..end).step_by(segment);
            packet += starts.len() * segment;
            begin = end;
            // SAFETY: every piece is valid until the run is cleared, and `start` lies in this one.
            starts.map(move |start| unsafe { iovec.iov_base.cast::<u8>().add(start - piece).read() })
        })
    }

    /// Removes every packet.
    #[inline]
    pub fn clear(&mut self) {
        self.key = None;
        self.arena.clear();
        self.packets = 0;
        self.segment = 0;
        self.bytes = 0;
        self.ended = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_wire::{Body, Msn, Position, Psn, Write};
    use std::net::{IpAddr, Ipv4Addr};

    fn packet(len: u16) -> Packet {
        let body = Body::Write(Write {
            position: Position::Only,
            rqmsn: Msn(0),
            msn: Msn(1),
            timestamp: None,
            va: 0,
            rkey: 0,
            dma_len: u32::from(len),
            imm: None,
        });
        Packet { payload_len: len, ..Packet::new(0x123456, Psn::new(7), body) }
    }

    fn piece(bytes: &[u8]) -> Piece {
        // SAFETY: tests keep their data until the run is cleared.
        unsafe { Piece::of_memory(bytes.as_ptr(), bytes.len()) }
    }

    const KEY: RunKey = RunKey { path: 3, class: 2, peer: 1 };

    /// Whatever the length and the pieces of a payload, the bytes are those of the packets and the iCRCs are right.
    #[test]
    fn a_run_is_the_concatenation_of_its_packets() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let seed = IcrcSeed::between(local, local).unwrap();
        let data: Vec<u8> = (0..9000u32).map(|i| (i * 31) as u8).collect();
        for len in [0usize, 1, 3, 64, 511, 512, 513, 1000, 4096] {
            for cut in [0, 1, len / 2, len] {
                let mut run = TxRun::new();
                let (a, b) = data[..len].split_at(cut.min(len));
                for _ in 0..3 {
                    assert!(run.accepts(KEY, packet(len as u16).wire_len()));
                    run.push(
                        KEY,
                        &packet(len as u16),
                        &[piece(a), piece(b)],
                        &seed,
                        (5000, 4791),
                        cut % 2 == 0,
                    );
                }
                let mut alone = [0; MAX_HEADER_LEN];
                packet(len as u16).emit(&mut alone);
                let opcode = alone[0];
                assert_eq!(run.opcodes().collect::<Vec<_>>(), [opcode; 3], "{len} bytes, cut at {cut}");
                let mut bytes = Vec::new();
                run.copy_to(&mut bytes);
                assert_eq!(bytes.len(), run.bytes());
                let mut packets = 0;
                let mut numbered = bytes.clone();
                number_packets(&mut numbered, run.segment(), &mut Distances::default());
                for (place, one) in numbered.chunks(run.segment()).enumerate() {
                    assert!(seed.identified(place as u16).verify(5000, 4791, one));
                }
                for one in bytes.chunks(run.segment()) {
                    assert!(seed.verify(5000, 4791, one), "length {len} cut at {cut}");
                    assert_eq!(Packet::parse(one).unwrap().1, &data[..len]);
                    packets += 1;
                }
                assert_eq!(packets, 3);
            }
        }
    }

    #[test]
    fn a_shorter_packet_ends_a_run_and_a_longer_one_or_another_path_starts_a_new_one() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let seed = IcrcSeed::between(local, local).unwrap();
        let mut run = TxRun::new();
        run.push(KEY, &packet(8), &[piece(&[0; 8])], &seed, (1, 2), true);
        assert!(!run.accepts(KEY, packet(12).wire_len()));
        assert!(!run.accepts(RunKey { path: 4, ..KEY }, packet(8).wire_len()));
        assert!(run.accepts(KEY, packet(4).wire_len()));
        run.push(KEY, &packet(4), &[piece(&[0; 4])], &seed, (1, 2), true);
        assert!(!run.accepts(KEY, packet(4).wire_len()));
        run.clear();
        assert!(run.accepts(KEY, packet(12).wire_len()));
    }
}
