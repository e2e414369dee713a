//! The link to a rank of another host: one queue pair. A message is one RDMA write with immediate into a slot of the
//! peer's ring; the immediate says which lane. Slots that were taken are given back by an empty write with immediate.

use std::cell::Cell;

use openmrc_nic::{
    Access, Buffer, Capabilities, CompletionQueue, MemoryRegion, ProtectionDomain, QpAttr, QpCap, QpState,
    QueuePair, RecvWr, SendData, SendWr, Sge,
};
use openmrc_schedule::Rank;

use crate::card::Card;
use crate::error::{Error, Result};
use crate::header::{HEADER_LEN, Header};
use crate::layout::{LANES, RING, SLOTS, STRIDE};
use crate::local::{Home, random};

/// Messages up to this many bytes are copied when they are sent, so that their source is free at once.
pub const COPIED: usize = 16 << 10;
const BOUNCE: usize = HEADER_LEN + COPIED;

/// Receives that are posted: one for every message with immediate that the peer can have under way.
const RECEIVES: usize = 64;
/// Slots taken before they are given back.
const GIVE_BACK: u64 = SLOTS as u64 / 2;

/// Work request of an abort.
pub const ABORT_ID: u64 = 1 << 62;

/// What an immediate says, in its two highest bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A message was written; its lane.
    Message(usize),
    /// Slots were taken: the count of all, modulo 2^29, of a lane.
    Taken(usize, u32),
    /// The communicator was aborted; a code.
    Abort(u32),
}

const LANE_BIT: u32 = 29;
const COUNT_MASK: u32 = (1 << LANE_BIT) - 1;

impl Notice {
    fn encode(self) -> u32 {
        match self {
            Notice::Message(lane) => (lane as u32) << LANE_BIT,
            Notice::Taken(lane, count) => 1 << 30 | (lane as u32) << LANE_BIT | count & COUNT_MASK,
            Notice::Abort(code) => 2 << 30 | code & COUNT_MASK,
        }
    }

    /// What an immediate says; `None` if nothing.
    pub fn decode(imm: u32) -> Option<Notice> {
        let lane = (imm >> LANE_BIT & 1) as usize;
        match imm >> 30 {
            0 => Some(Notice::Message(lane)),
            1 => Some(Notice::Taken(lane, imm & COUNT_MASK)),
            2 => Some(Notice::Abort(imm & COUNT_MASK)),
            _ => None,
        }
    }
}

/// A queue pair for a peer, and what it is written from.
pub struct RemoteLink {
    pub qp: QueuePair,
    psn: u32,
    /// Own rings for this peer.
    rings: MemoryRegion,
    /// Heads, and messages that are copied: an entry per slot and lane.
    bounce: Buffer,
    bounce_region: MemoryRegion,
    peer_rings: [u64; LANES],
    rkey: u32,
    sent: [u64; LANES],
    /// Messages that the peer has taken.
    taken: [u64; LANES],
    /// Messages that have arrived.
    pub arrived: [u64; LANES],
    /// Messages taken here that the peer knows of.
    told: [u64; LANES],
    /// Writes that the NIC has not completed.
    pub pending: Cell<usize>,
}

impl RemoteLink {
    /// A queue pair in INIT, and the rings into which `peer` writes.
    pub fn new(pd: &ProtectionDomain, cq: &CompletionQueue, home: &Home, peer: Rank) -> Result<RemoteLink> {
        let nic = |e| Error::device("a queue pair", e);
        let cap = QpCap {
            max_send_wr: 8 * (LANES * SLOTS) as u32,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 2,
            max_inline_data: HEADER_LEN as u32,
        };
        let qp = pd.create_qp(cq, cq, cap, true).map_err(nic)?;
        qp.modify(QpState::Init, &QpAttr::default()).map_err(nic)?;
        qp.post_recv(&[RecvWr { wr_id: 0 }; RECEIVES]).map_err(nic)?;
        let rights = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
        let first = home.layout.ring(0, peer);
        let len = LANES * RING;
        // SAFETY: the range lies in the segment, which its owner keeps mapped; only raw pointers access it.
        let rings = unsafe {
            let owner = Box::new(std::sync::Arc::clone(&home.segment));
            pd.register_unmapped(home.base().add(first), len, rights, owner)
        };
        let bounce = Buffer::zeroed(LANES * SLOTS * BOUNCE);
        let [a, b, c, _] = random::<4>()?;
        Ok(RemoteLink {
            qp,
            psn: u32::from_be_bytes([0, a, b, c]),
            rings: rings.map_err(nic)?,
            bounce_region: pd.register(&bounce, Access::LOCAL_READ).map_err(nic)?,
            bounce,
            peer_rings: [0; LANES],
            rkey: 0,
            sent: [0; LANES],
            taken: [0; LANES],
            arrived: [0; LANES],
            told: [0; LANES],
            pending: Cell::new(0),
        })
    }

    pub fn psn(&self) -> u32 {
        self.psn
    }

    pub fn rkey(&self) -> u32 {
        self.rings.rkey()
    }

    /// Connects with the peer's queue pair.
    pub fn connect(&mut self, card: &Card, keepalive_ms: u32, path_mtu: u16) -> Result<()> {
        let nic = |e| Error::device(format!("connecting with rank {}", card.rank), e);
        let rtr = QpAttr {
            dest_qp_num: Some(card.qp_num),
            rq_psn: Some(card.psn),
            remote: Some(card.planes.clone()),
            path_mtu: Some(path_mtu.min(card.path_mtu)),
            caps: Some(Capabilities::OWN),
            ..QpAttr::default()
        };
        self.qp.modify(QpState::Rtr, &rtr).map_err(nic)?;
        let rts = QpAttr { sq_psn: Some(self.psn), keepalive_ms: Some(keepalive_ms), ..QpAttr::default() };
        self.qp.modify(QpState::Rts, &rts).map_err(nic)?;
        self.peer_rings = card.rings;
        self.rkey = card.rkey;
        Ok(())
    }

    #[inline]
    pub fn can_send(&self, lane: usize) -> bool {
        self.sent[lane].wrapping_sub(self.taken[lane]) < SLOTS as u64
    }

    /// Writes a message into the peer's ring, which has room. Returns whether the source is free only when the send
    /// completes, as `wr_id`.
    ///
    /// # Safety
    /// `data` is valid for reads of `header.len` bytes, at most a slot. It lies in the region of `lkey` if it is longer than
    /// [`COPIED`], and stays valid and unchanged until the send completes.
    pub unsafe fn send(
        &mut self,
        lane: usize,
        header: &Header,
        data: *const u8,
        lkey: Option<u32>,
        wr_id: u64,
    ) -> Result<bool> {
        let slot = (self.sent[lane] % SLOTS as u64) as usize;
        let len = header.len as usize;
        let at = (lane * SLOTS + slot) * BOUNCE;
        // The peer has taken the message of this entry, so the NIC no longer needs it. If it sends a packet of it
        // again, the peer drops the packet. SAFETY: the entry lies in the buffer.
        unsafe { self.bounce.as_ptr().add(at).cast::<Header>().write_unaligned(*header) };
        let head = self.bounce_region.addr() + at as u64;
        let copied = len <= COPIED;
        let key = self.bounce_region.lkey();
        let sges = if copied {
            // SAFETY: the caller's promise; the entry has room.
            unsafe { std::ptr::copy_nonoverlapping(data, self.bounce.as_ptr().add(at + HEADER_LEN), len) };
            [Sge { addr: head, len: (HEADER_LEN + len) as u32, lkey: key }, Sge::default()]
        } else {
            let lkey = lkey.ok_or_else(|| Error::device("a message", "its memory is not registered"))?;
            let data = Sge { addr: data.expose_provenance() as u64, len: len as u32, lkey };
            [Sge { addr: head, len: HEADER_LEN as u32, lkey: key }, data]
        };
        let used = if copied { &sges[..1] } else { &sges[..] };
        let remote_addr = self.peer_rings[lane] + (slot * STRIDE) as u64;
        self.post(Notice::Message(lane), SendData::Sges(used), remote_addr, if copied { 0 } else { wr_id })?;
        self.sent[lane] += 1;
        Ok(!copied)
    }

    /// `count` messages of a lane have been taken in all. The peer is notified, but not of each one.
    pub fn took(&mut self, lane: usize, count: u64) -> Result<()> {
        if count - self.told[lane] < GIVE_BACK {
            return Ok(());
        }
        self.told[lane] = count;
        self.post(Notice::Taken(lane, count as u32), SendData::Inline(&[]), self.peer_rings[lane], 0)
    }

    /// Tells the peer that the communicator is aborted; returns whether that could be posted.
    pub fn abort(&mut self, code: u32) -> bool {
        self.post(Notice::Abort(code), SendData::Inline(&[]), self.peer_rings[0], ABORT_ID).is_ok()
    }

    /// Ends everything under way: the NIC no longer reads memory of this link.
    pub fn stop(&self) {
        // It fails only where the queue pair or the device has ended already.
        let _ = self.qp.modify(QpState::Error, &QpAttr::default());
    }

    fn post(&self, notice: Notice, data: SendData<'_>, remote_addr: u64, wr_id: u64) -> Result<()> {
        let request = SendWr {
            wr_id,
            data,
            remote_addr,
            rkey: self.rkey,
            imm: Some(notice.encode()),
            signaled: true,
            solicited: false,
        };
        self.qp.post_send(&[request]).map_err(|e| Error::device("a message", e))?;
        self.pending.set(self.pending.get() + 1);
        Ok(())
    }

    /// The peer has written with an immediate.
    pub fn notice(&mut self, notice: Notice) -> Result<()> {
        match notice {
            Notice::Message(lane) => self.arrived[lane] += 1,
            Notice::Taken(lane, count) => {
                let more = count.wrapping_sub(self.taken[lane] as u32) & COUNT_MASK;
                let open = self.sent[lane] - self.taken[lane];
                if u64::from(more) > open {
                    return Err(Error::device("a message", "the peer took more messages than were sent"));
                }
                self.taken[lane] += u64::from(more);
            }
            Notice::Abort(_) => {}
        }
        self.qp.post_recv(&[RecvWr { wr_id: 0 }]).map_err(|e| Error::device("a receive", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_survives_its_immediate() {
        for notice in [
            Notice::Message(0),
            Notice::Message(1),
            Notice::Taken(0, 0),
            Notice::Taken(1, COUNT_MASK),
            Notice::Abort(77),
        ] {
            assert_eq!(Notice::decode(notice.encode()), Some(notice));
        }
        assert_eq!(Notice::decode(u32::MAX), None);
    }
}
