//! Point-to-point messages: matched by communicator, peer and tag, in the order of posting (docs/spec/collectives.md,
//! "Collectives").
//!
//! A message for which no receive is posted stays in the sender and in its slots. If a receive with another tag is
//! posted for the same peer, the message is put aside, so that messages behind it can arrive.

use std::collections::VecDeque;
use std::sync::Arc;

use openmrc_nic::MemoryRegion;
use openmrc_schedule::Rank;

use crate::error::{Error, Result};
use crate::header::{Header, Signature};
use crate::layout::P2P;
use crate::link::Link;
use crate::local::Home;
use crate::memory::Lent;
use crate::types::DataType;
use crate::work::WorkState;

/// Work requests of point-to-point messages have this bit; the rest is a number of the communicator.
pub const P2P_BIT: u64 = 1 << 63;

fn signature(dtype: DataType) -> Signature {
    Signature { count: 0, root: 0, kind: Signature::P2P, dtype: dtype as u8, op: 255, algorithm: 0 }
}

/// A message to send.
pub struct Outgoing {
    pub id: u64,
    pub tag: u64,
    /// Dropped before the memory.
    pub region: Option<MemoryRegion>,
    pub data: Lent,
    pub dtype: DataType,
    pub work: Arc<WorkState>,
    sent: usize,
    outstanding: usize,
}

impl Outgoing {
    pub fn new(id: u64, tag: u64, data: Lent, dtype: DataType, work: Arc<WorkState>) -> Outgoing {
        Outgoing { id, tag, region: None, data, dtype, work, sent: 0, outstanding: 0 }
    }

    /// Ends it. The memory is the caller's again before anybody learns that the work has ended.
    pub fn end(self, result: Result<()>) {
        let Outgoing { work, region, data, .. } = self;
        drop(region);
        drop(data);
        work.complete(result);
    }
}

/// A posted receive.
pub struct Incoming {
    pub from: Option<Rank>,
    pub tag: u64,
    pub data: Lent,
    pub dtype: DataType,
    pub work: Arc<WorkState>,
}

impl Incoming {
    /// As [`Outgoing::end`].
    pub fn end(self, result: Result<()>) {
        let Incoming { work, data, .. } = self;
        drop(data);
        work.complete(result);
    }

    fn fits(&self, peer: Rank, tag: u64) -> bool {
        self.tag == tag && self.from.is_none_or(|from| from == peer)
    }

    /// # Errors
    /// [`Error::Mismatch`] for a message of another length, or of elements of another type (a code).
    fn compare(&self, peer: Rank, total: usize, dtype: u8) -> Result<()> {
        if total == self.data.len() && dtype == self.dtype as u8 {
            return Ok(());
        }
        let theirs = DataType::from_code(dtype).map_or("unknown type", DataType::name);
        Err(Error::Mismatch {
            rank: peer,
            theirs: format!("send of {total} bytes of {theirs} with tag {}", self.tag),
            ours: format!("recv of {} bytes of {}", self.data.len(), self.dtype.name()),
        })
    }

    fn deliver(&self, peer: Rank, data: &[u8], dtype: u8) -> Result<()> {
        self.compare(peer, data.len(), dtype)?;
        // SAFETY: as many bytes were lent.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.data.data(), data.len()) };
        self.work.set_source(peer);
        Ok(())
    }
}

/// A message that was sent or received.
pub struct Ended {
    /// Sent, or received.
    pub is_send: bool,
    pub peer: Rank,
    pub tag: u64,
    pub len: usize,
    /// Through shared memory.
    pub is_local: bool,
    pub work: Arc<WorkState>,
}

/// A message that arrived before its receive.
struct Stored {
    tag: u64,
    total: usize,
    /// Code of the type of its elements.
    dtype: u8,
    data: Vec<u8>,
}

impl Stored {
    /// Appends `len` bytes of a slot, which the peer may change meanwhile: no reference leads there.
    fn append(&mut self, data: *const u8, len: usize) {
        let begin = self.data.len();
        self.data.resize(begin + len, 0);
        // SAFETY: the message lies in its slot until it is taken, and there is room for it.
        unsafe { std::ptr::copy_nonoverlapping(data, self.data[begin..].as_mut_ptr(), len) };
    }
}

/// Where the message that is arriving from a peer goes.
enum Target {
    Receive { receive: Incoming, done: usize },
    Store,
}

#[derive(Default)]
struct Peer {
    sends: VecDeque<Outgoing>,
    /// Sent completely; the NIC still reads them.
    leaving: Vec<Outgoing>,
    /// Where the message whose parts are arriving goes.
    arriving: Option<Target>,
    /// Messages put aside, the newest of which may be arriving.
    stored: VecDeque<Stored>,
}

/// All point-to-point messages of a communicator.
pub struct PointToPoint {
    peers: Vec<Peer>,
    receives: VecDeque<Incoming>,
    /// Messages called to be sent.
    calls: u64,
    /// Collective operations that ranks have announced: rank, number and arguments.
    pub announced: Vec<(Rank, u64, Signature)>,
    /// Messages that have ended and are not in the log yet.
    pub ended: Vec<Ended>,
    /// Bytes sent through shared memory, and over the network.
    pub bytes: [u64; 2],
}

impl PointToPoint {
    pub fn new(ranks: usize) -> PointToPoint {
        PointToPoint {
            peers: (0..ranks).map(|_| Peer::default()).collect(),
            receives: VecDeque::new(),
            calls: 0,
            announced: Vec::new(),
            ended: Vec::new(),
            bytes: [0; 2],
        }
    }

    /// Work request of the next message.
    pub fn next_id(&mut self) -> u64 {
        self.calls += 1;
        P2P_BIT | self.calls
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.receives.is_empty() && self.peers.iter().all(|p| p.sends.is_empty() && p.leaving.is_empty())
    }

    pub fn post_send(&mut self, to: Rank, message: Outgoing) {
        self.peers[to].sends.push_back(message);
    }

    /// Posts a receive; a message that has been put aside may end it at once.
    pub fn post_recv(&mut self, receive: Incoming, links: &[Option<Link>]) {
        for (rank, peer) in self.peers.iter_mut().enumerate() {
            let whole = |stored: &Stored| stored.data.len() == stored.total;
            // The first that fits; if it is still arriving, the receive waits for the rest of it.
            let first = peer.stored.iter().position(|stored| receive.fits(rank, stored.tag));
            if let Some(index) = first.filter(|&index| whole(&peer.stored[index]))
                && let Some(stored) = peer.stored.remove(index)
            {
                let is_local = links[rank].as_ref().is_some_and(Link::is_local);
                let result = receive.deliver(rank, &stored.data, stored.dtype);
                self.end_receive(receive, rank, is_local, result);
                return;
            }
        }
        self.receives.push_back(receive);
    }

    /// Everything that waits.
    pub fn works(&self) -> impl Iterator<Item = (&Arc<WorkState>, Option<Rank>, &'static str)> {
        let sends = self.peers.iter().enumerate().flat_map(|(rank, peer)| {
            peer.sends.iter().chain(&peer.leaving).map(move |m| (&m.work, Some(rank), "room"))
        });
        let arriving = self.peers.iter().enumerate().filter_map(|(rank, peer)| match &peer.arriving {
            Some(Target::Receive { receive, .. }) => Some((&receive.work, Some(rank), "data")),
            _ => None,
        });
        let receives = self.receives.iter().map(|r| (&r.work, r.from, "data"));
        sends.chain(arriving).chain(receives)
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.receives.clear();
        self.peers.iter_mut().for_each(|peer| *peer = Peer::default());
    }

    /// The NIC has completed a send of message `id` to a peer.
    pub fn completed(&mut self, to: Rank, id: u64) {
        let peer = &mut self.peers[to];
        for message in peer.leaving.iter_mut().chain(&mut peer.sends) {
            if message.id == id {
                message.outstanding -= 1;
            }
        }
        for message in peer.leaving.extract_if(.., |message| message.outstanding == 0) {
            end_send(&mut self.ended, message, to, false);
        }
    }

    fn end_receive(&mut self, receive: Incoming, peer: Rank, is_local: bool, result: Result<()>) {
        if result.is_ok() {
            let (tag, len, work) = (receive.tag, receive.data.len(), Arc::clone(&receive.work));
            self.ended.push(Ended { is_send: false, peer, tag, len, is_local, work });
        }
        receive.end(result);
    }

    /// Sends and receives what can be; returns whether anything happened.
    pub fn progress(&mut self, links: &mut [Option<Link>], home: &Home) -> Result<bool> {
        let mut worked = false;
        for link in links.iter_mut().flatten() {
            worked |= self.send(link)?;
            worked |= self.receive(link, home)?;
        }
        Ok(worked)
    }

    fn send(&mut self, link: &mut Link) -> Result<bool> {
        let peer = &mut self.peers[link.peer];
        let mut worked = false;
        while let Some(message) = peer.sends.front_mut() {
            if link.lost.is_some() || !link.can_send(P2P) {
                break;
            }
            let total = message.data.len();
            let len = (total - message.sent).min(link.longest());
            let header = Header {
                operation: message.tag,
                signature: signature(message.dtype),
                total: total as u64,
                offset: message.sent as u64,
                len: len as u64,
                source: 0,
            };
            let lkey = message.region.as_ref().map(MemoryRegion::lkey);
            // SAFETY: the bytes were lent until the work has ended.
            let held = unsafe {
                let data = message.data.data().add(message.sent);
                link.send(P2P, &header, data, lkey, message.id)?
            };
            message.outstanding += usize::from(held);
            message.sent += len;
            self.bytes[usize::from(!link.is_local())] += len as u64;
            worked = true;
            if message.sent == total
                && let Some(message) = peer.sends.pop_front()
            {
                if message.outstanding == 0 {
                    end_send(&mut self.ended, message, link.peer, link.is_local());
                } else {
                    peer.leaving.push(message);
                }
            }
        }
        Ok(worked)
    }

    fn receive(&mut self, link: &mut Link, home: &Home) -> Result<bool> {
        let rank = link.peer;
        let mut worked = false;
        while let Some(message) = link.arrived(home, P2P) {
            let Header { operation: tag, signature, total, offset, len, .. } = message.header;
            if signature.kind != Signature::P2P {
                link.take(home, P2P)?;
                self.announced.push((rank, tag, signature));
                worked = true;
                continue;
            }
            let (total, len) = (total as usize, len as usize);
            if offset == 0 && self.peers[rank].arriving.is_none() {
                let Some(target) = self.target(rank, tag, total, signature.dtype) else { break };
                self.peers[rank].arriving = Some(target);
            }
            let peer = &mut self.peers[rank];
            let ended = match &mut peer.arriving {
                Some(Target::Receive { receive, done }) => {
                    if receive.compare(rank, total, signature.dtype).is_ok() && *done + len <= total {
                        // SAFETY: `total` bytes were lent; the message lies in its slot until it is taken.
                        unsafe {
                            let to = receive.data.data().add(*done);
                            std::ptr::copy_nonoverlapping(message.data, to, len);
                        }
                    }
                    *done += len;
                    *done >= total
                }
                Some(Target::Store) => match peer.stored.back_mut() {
                    Some(stored) => {
                        stored.append(message.data, len);
                        stored.data.len() >= stored.total
                    }
                    None => true,
                },
                None => {
                    return Err(Error::device("a message", format!("rank {rank} began one in the middle")));
                }
            };
            link.take(home, P2P)?;
            worked = true;
            if ended {
                match peer.arriving.take() {
                    Some(Target::Receive { receive, .. }) => {
                        receive.work.set_source(rank);
                        let fits = receive.compare(rank, total, signature.dtype);
                        self.end_receive(receive, rank, link.is_local(), fits);
                    }
                    _ => self.deliver_stored(rank, link.is_local()),
                }
            }
        }
        Ok(worked)
    }

    /// Where a new message goes; `None`: it stays where it is.
    fn target(&mut self, rank: Rank, tag: u64, total: usize, dtype: u8) -> Option<Target> {
        // A message with the same tag that was put aside comes before this one.
        let behind = self.peers[rank].stored.iter().any(|stored| stored.tag == tag);
        let index = self.receives.iter().position(|receive| receive.fits(rank, tag)).filter(|_| !behind);
        if let Some(receive) = index.and_then(|index| self.receives.remove(index)) {
            return Some(Target::Receive { receive, done: 0 });
        }
        let awaited = self.receives.iter().any(|receive| receive.from.is_none_or(|from| from == rank));
        if !awaited {
            return None;
        }
        self.peers[rank].stored.push_back(Stored { tag, total, dtype, data: Vec::new() });
        Some(Target::Store)
    }

    /// A message that was put aside is complete: a receive may have been posted for it meanwhile.
    fn deliver_stored(&mut self, rank: Rank, is_local: bool) {
        let stored = &mut self.peers[rank].stored;
        let Some(index) = self
            .receives
            .iter()
            .position(|receive| stored.iter().any(|s| s.data.len() == s.total && receive.fits(rank, s.tag)))
        else {
            return;
        };
        if let Some(receive) = self.receives.remove(index) {
            let fitting = stored.iter().position(|s| receive.fits(rank, s.tag));
            if let Some(message) = fitting.and_then(|i| stored.remove(i)) {
                let result = receive.deliver(rank, &message.data, message.dtype);
                self.end_receive(receive, rank, is_local, result);
            }
        }
    }
}

fn end_send(ended: &mut Vec<Ended>, message: Outgoing, peer: Rank, is_local: bool) {
    let (tag, len, work) = (message.tag, message.data.len(), Arc::clone(&message.work));
    ended.push(Ended { is_send: true, peer, tag, len, is_local, work });
    message.end(Ok(()));
}
