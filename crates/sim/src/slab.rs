//! Contents of the packets in flight, by the index that their events carry. Each takes a cache line, written and read
//! at hosts.

use prefetch_index::prefetch_index;
use serde::{Deserialize, Serialize};

use openmrc_wire::{Body, Packet, Psn};

use crate::memory::message_at;

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

/// Packets, and the indices that are free.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Slab {
    packets: Vec<Packed>,
    free: Vec<u32>,
}

impl Slab {
    /// Bytes of a packet, and of its index when it is free.
    pub const BYTES_PER_PACKET: usize = size_of::<Packed>() + size_of::<u32>();

    /// Stores a packet. Returns its index.
    #[inline]
    pub fn put(&mut self, packet: &Packet) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.packets[index as usize] = packet.into();
                index
            }
            None => {
                self.packets.push(packet.into());
                self.packets.len() as u32 - 1
            }
        }
    }

    /// Stores a packet that comes from another slab. Returns its index.
    pub fn put_packed(&mut self, packet: Packed) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.packets[index as usize] = packet;
                index
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    /// Removes a packet that goes to another slab.
    pub fn take_packed(&mut self, index: u32) -> Packed {
        self.free.push(index);
        self.packets[index as usize]
    }

    /// Removes a packet.
    #[inline(always)]
    pub fn take(&mut self, index: u32) -> Packet {
        self.free.push(index);
        self.get(index)
    }

    /// A packet.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Packet {
        (&self.packets[index as usize]).into()
    }

    /// Loads a packet into the cache.
    #[inline(always)]
    pub fn prefetch(&self, index: u32) {
        prefetch_index(&self.packets, index as usize);
    }

    /// The message that an MRC data packet belongs to.
    #[inline]
    pub fn message(&self, index: u32) -> Option<usize> {
        match &self.packets[index as usize].body {
            Body::Write(write) => Some(message_at(write.va) as usize),
            _ => None,
        }
    }

    /// Removes a packet that is lost.
    pub fn drop_packet(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Number of packets in flight.
    pub fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_takes_a_cache_line_and_comes_back_as_it_was() {
        assert_eq!(size_of::<Packed>(), 64);
        let mut slab = Slab::default();
        for bits in 0..16u8 {
            let mut packet = Packet::new(0xFF_FFFF, Psn::new(9), Body::Cnp);
            packet.ack_req = bits & 1 != 0;
            packet.rtx = bits & 2 != 0;
            packet.solicited = bits & 4 != 0;
            packet.migrated = bits & 8 != 0;
            (packet.pkey, packet.payload_len, packet.variant) = (0x1234, 4096, bits);
            let index = slab.put(&packet);
            assert_eq!(slab.take(index), packet);
        }
        assert_eq!(slab.len(), 0);
    }
}
