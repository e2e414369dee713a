//! Contents of the packets in flight, by the index that their events carry, written and read at hosts. Data takes half a
//! cache line, anything else a whole one.

use std::vec::Drain;

use prefetch_index::prefetch_index;
use serde::{Deserialize, Serialize};

use openmrc_wire::{Body, Msn, Packet, Position, Psn, Timestamp, Write};

use crate::memory::{RKEY, message_at};

/// A packet in a cache line. Numbers of queue pairs take 24 bits, so the variant lies above them.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[repr(align(64))]
pub(crate) struct Packed {
    variant_and_qp: u32,
    psn: Psn,
    pkey: u16,
    payload_len: u16,
    /// `ack_req`, `rtx`, `solicited` and `migrated`.
    flags: [bool; 4],
    body: Body,
}

const QP_BITS: u32 = 24;

impl From<&Packet> for Packed {
    #[inline(always)]
    fn from(packet: &Packet) -> Self {
        let Packet { dest_qp, psn, pkey, payload_len, ack_req, rtx, solicited, migrated, variant, body } =
            *packet;
        let variant_and_qp = u32::from(variant) << QP_BITS | dest_qp;
        Packed { variant_and_qp, psn, pkey, payload_len, flags: [ack_req, rtx, solicited, migrated], body }
    }
}

impl Packed {
    /// The queue pair that it is for.
    #[inline(always)]
    fn dest_qp(&self) -> u32 {
        self.variant_and_qp & ((1 << QP_BITS) - 1)
    }
}

impl From<&Packed> for Packet {
    #[inline(always)]
    fn from(packed: &Packed) -> Self {
        let Packed { variant_and_qp, psn, pkey, payload_len, flags, body } = *packed;
        let [ack_req, rtx, solicited, migrated] = flags;
        Packet {
            dest_qp: packed.dest_qp(),
            psn,
            pkey,
            payload_len,
            ack_req,
            rtx,
            solicited,
            migrated,
            variant: (variant_and_qp >> QP_BITS) as u8,
            body,
        }
    }
}

/// An MRC data packet in half a cache line, if what it leaves out is as it nearly always is.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[repr(align(32))]
pub(crate) struct PackedWrite {
    va: u64,
    dma_len: u32,
    /// The position lies above the number of the queue pair.
    position_and_qp: u32,
    psn: Psn,
    timestamp: Option<Timestamp>,
    payload_len: u16,
    rqmsn: Msn,
    msn: Msn,
    ack_req: bool,
    rtx: bool,
}

const POSITIONS: [Position; 4] = [Position::First, Position::Middle, Position::Last, Position::Only];

impl PackedWrite {
    /// A packet in half a line; `None` if it does not fit.
    #[inline(always)]
    fn of(packet: &Packet) -> Option<Self> {
        let &Packet { dest_qp, psn, pkey, payload_len, ack_req, rtx, solicited, migrated, variant, ref body } =
            packet;
        let Body::Write(Write { position, rqmsn, msn, timestamp, va, rkey, dma_len, imm: None }) = *body
        else {
            return None;
        };
        if pkey != Packet::DEFAULT_PKEY || rkey != RKEY || variant != 0 || solicited || migrated {
            return None;
        }
        let position_and_qp = (position as u32) << QP_BITS | dest_qp;
        Some(PackedWrite {
            va,
            dma_len,
            position_and_qp,
            psn,
            timestamp,
            payload_len,
            rqmsn,
            msn,
            ack_req,
            rtx,
        })
    }
}

impl From<&PackedWrite> for Packet {
    #[inline(always)]
    fn from(packed: &PackedWrite) -> Self {
        let position = POSITIONS[(packed.position_and_qp >> QP_BITS) as usize % POSITIONS.len()];
        let &PackedWrite { rqmsn, msn, timestamp, va, dma_len, payload_len, ack_req, rtx, .. } = packed;
        let write = Write { position, rqmsn, msn, timestamp, va, rkey: RKEY, dma_len, imm: None };
        let qp = packed.position_and_qp & ((1 << QP_BITS) - 1);
        Packet { payload_len, ack_req, rtx, ..Packet::new(qp, packed.psn, Body::Write(write)) }
    }
}

/// Packets of one size, and the places that are free.
#[derive(Serialize, Deserialize)]
struct Shelf<T> {
    packets: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Shelf { packets: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> Shelf<T> {
    #[inline(always)]
    fn put(&mut self, packet: T) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.packets[place as usize] = packet;
                place
            }
            None => self.put_in_new_place(packet),
        }
    }

    #[cold]
    fn put_in_new_place(&mut self, packet: T) -> u32 {
        self.packets.push(packet);
        self.packets.len() as u32 - 1
    }

    #[inline(always)]
    fn take(&mut self, place: u32) -> T {
        self.free.push(place);
        self.packets[place as usize]
    }

    fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

/// The bit of an index whose packet is among the [`PackedWrite`]s.
const WRITE: u32 = 1 << 31;

/// The packets in flight.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Slab {
    writes: Shelf<PackedWrite>,
    others: Shelf<Packed>,
}

impl Slab {
    /// Bytes of a data packet, and of its place when it is free.
    pub const BYTES_PER_WRITE: usize = size_of::<PackedWrite>() + size_of::<u32>();
    /// The same of any other packet.
    pub const BYTES_PER_PACKET: usize = size_of::<Packed>() + size_of::<u32>();

    /// Stores a packet. Returns its index.
    #[inline(always)]
    pub fn put(&mut self, packet: &Packet) -> u32 {
        match PackedWrite::of(packet) {
            Some(write) => self.writes.put(write) | WRITE,
            None => self.others.put(packet.into()),
        }
    }

    /// Removes a packet.
    #[inline(always)]
    pub fn take(&mut self, index: u32) -> Packet {
        match index & WRITE {
            0 => (&self.others.take(index)).into(),
            _ => (&self.writes.take(index ^ WRITE)).into(),
        }
    }

    /// A packet.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Packet {
        match index & WRITE {
            0 => (&self.others.packets[index as usize]).into(),
            _ => (&self.writes.packets[(index ^ WRITE) as usize]).into(),
        }
    }

    /// Loads a packet into the cache.
    #[inline(always)]
    pub fn prefetch(&self, index: u32) {
        match index & WRITE {
            0 => prefetch_index(&self.others.packets, index as usize),
            _ => prefetch_index(&self.writes.packets, (index ^ WRITE) as usize),
        }
    }

    /// The message that an MRC data packet without immediate belongs to.
    #[inline]
    pub fn message(&self, index: u32) -> Option<usize> {
        let write = (index & WRITE != 0).then(|| &self.writes.packets[(index ^ WRITE) as usize]);
        write.map(|write| message_at(write.va) as usize)
    }

    /// Removes a packet that is lost.
    pub fn drop_packet(&mut self, index: u32) {
        match index & WRITE {
            0 => self.others.free.push(index),
            _ => self.writes.free.push(index ^ WRITE),
        }
    }

    /// Number of packets in flight.
    pub fn len(&self) -> usize {
        self.writes.len() + self.others.len()
    }
}

/// Packets on their way from one slab to another, in the order in which they are taken out again.
#[derive(Default)]
pub(crate) struct Parcels {
    writes: Vec<PackedWrite>,
    others: Vec<Packed>,
}

impl Parcels {
    /// Takes a packet out of its slab.
    pub fn pack(&mut self, slab: &mut Slab, index: u32) {
        match index & WRITE {
            0 => self.others.push(slab.others.take(index)),
            _ => self.writes.push(slab.writes.take(index ^ WRITE)),
        }
    }

    /// Hands them over; none is left.
    pub fn unpack(&mut self) -> Unpacking<'_> {
        Unpacking { writes: self.writes.drain(..), others: self.others.drain(..) }
    }
}

/// [`Parcels`] being handed over.
pub(crate) struct Unpacking<'a> {
    writes: Drain<'a, PackedWrite>,
    others: Drain<'a, Packed>,
}

impl Unpacking<'_> {
    /// Stores the next packet, of which the first slab had this index. Returns its index here; `None` if none was packed.
    pub fn put(&mut self, slab: &mut Slab, index: u32) -> Option<u32> {
        match index & WRITE {
            0 => self.others.next().map(|packet| slab.others.put(packet)),
            _ => self.writes.next().map(|packet| slab.writes.put(packet) | WRITE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back(packet: Packet, is_half: bool) {
        let mut slab = Slab::default();
        slab.put(&Packet::new(1, Psn::new(1), Body::Cnp));
        let index = slab.put(&packet);
        assert_eq!((index & WRITE != 0, slab.len()), (is_half, 2));
        assert_eq!(slab.get(index), packet);

        let (mut there, mut parcels) = (Slab::default(), Parcels::default());
        parcels.pack(&mut slab, index);
        let index = parcels.unpack().put(&mut there, index).unwrap();
        assert_eq!((slab.len(), there.len()), (1, 1));
        assert_eq!(there.take(index), packet);
        assert_eq!(there.len(), 0);
        let again = there.put(&packet);
        assert_eq!(again, index);
        there.drop_packet(again);
        assert_eq!(there.len(), 0);
    }

    fn with_bits(body: Body, bits: u8) -> Packet {
        let mut packet = Packet::new(0xFF_FFFF, Psn::new(0xFF_FF0F), body);
        packet.ack_req = bits & 1 != 0;
        packet.rtx = bits & 2 != 0;
        packet.solicited = bits & 4 != 0;
        packet.migrated = bits & 8 != 0;
        (packet.payload_len, packet.variant) = (4096, bits >> 4);
        packet
    }

    #[test]
    fn packets_come_back_as_they_were() {
        assert_eq!((size_of::<Packed>(), size_of::<PackedWrite>()), (64, 32));
        let timestamps = [None, Some(Timestamp::default()), Some(Timestamp { ticks: 0xFFFF, tsr: true })];
        for bits in 0..32 {
            comes_back(Packet { pkey: 0x1234, ..with_bits(Body::Cnp, bits) }, false);
            for position in POSITIONS {
                for timestamp in timestamps {
                    let write = Write {
                        position,
                        rqmsn: Msn(0xFFFE),
                        msn: Msn(0xFFFD),
                        timestamp,
                        va: u64::MAX - 2,
                        rkey: RKEY,
                        dma_len: u32::MAX - 4,
                        imm: None,
                    };
                    comes_back(with_bits(Body::Write(write), bits), bits < 4);
                    comes_back(Packet { pkey: 1, ..with_bits(Body::Write(write), bits) }, false);
                    for other in [Write { imm: Some(7), ..write }, Write { rkey: 2, ..write }] {
                        comes_back(with_bits(Body::Write(other), bits), false);
                    }
                }
            }
        }
    }
}
