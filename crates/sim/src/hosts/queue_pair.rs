//! Queue pairs by number. They are made when their connection opens and dropped when it closes.

use prefetch_index::prefetch_index;

use openmrc_transport::node::Pressure;
use openmrc_transport::{
    Fatal, Host, PortSet, PostError, Readiness, Received, Time, Transmit, Transport, WorkRequest,
};
use openmrc_transport::{mrc, rocev2};

use crate::results::HostTotals;

/// A queue pair of either transport. A match costs less than an indirect call.
pub(super) enum QueuePair {
    Mrc(Box<mrc::QueuePair>),
    Rocev2(Box<rocev2::QueuePair>),
}

macro_rules! each {
    ($self:ident, $qp:ident => $e:expr) => {
        match $self {
            QueuePair::Mrc($qp) => $e,
            QueuePair::Rocev2($qp) => $e,
        }
    };
}

impl Transport for QueuePair {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        each!(self, qp => qp.post_send(now, wr))
    }
    #[inline]
    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut dyn Host) {
        each!(self, qp => qp.handle_packet(now, received, host))
    }
    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        each!(self, qp => qp.handle_timeout(now, host))
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        each!(self, qp => qp.poll_transmit(now, ports))
    }
    #[inline]
    fn poll_timeout(&self) -> Time {
        each!(self, qp => qp.poll_timeout())
    }
    #[inline]
    fn readiness(&self) -> Readiness {
        each!(self, qp => qp.readiness())
    }
    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        each!(self, qp => qp.set_ports_up(now, local, peer))
    }
    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        each!(self, qp => qp.abort(now, why, host))
    }
}

impl QueuePair {
    /// Sets what its responder reports of the receive pressure at its host, if the transport has destination flow
    /// control.
    #[inline]
    pub fn set_receive_pressure(&mut self, pressure: Pressure) {
        if let QueuePair::Mrc(qp) = self {
            qp.set_receive_pressure(pressure);
        }
    }

    /// Whether it waits for answers. Then sending another packet leaves its deadline as it is.
    #[inline]
    pub fn awaits_answers(&self) -> bool {
        matches!(self, QueuePair::Mrc(qp) if qp.is_waiting())
    }

    /// Adds its counters.
    fn add_up(&self, totals: &mut HostTotals) {
        match self {
            QueuePair::Mrc(qp) => {
                let stats = qp.stats();
                totals.retransmits += u64::from(stats.retransmits);
                totals.spurious += u64::from(stats.spurious);
                totals.timeouts += u64::from(stats.timeouts);
                totals.condemned += u64::from(stats.condemned);
            }
            QueuePair::Rocev2(qp) => {
                let stats = qp.stats();
                totals.retransmits += stats.retransmits;
                totals.timeouts += stats.timeouts;
            }
        }
    }
}

/// One end of a connection.
pub(super) struct QpSlot {
    pub qp: Option<QueuePair>,
    pub connection: u32,
    pub host: u32,
    /// The host of its peer.
    pub peer_host: u32,
    /// Time of its pending timer event; [`u64::MAX`] without one.
    pub timer_at: u64,
    /// It is in the ring of its NIC.
    pub in_ring: bool,
}

/// All ends, in pairs: slot `2i` is a requestor, slot `2i + 1` its responder.
#[derive(Default)]
pub(super) struct QueuePairs {
    slots: Vec<QpSlot>,
    free_pairs: Vec<u32>,
}

impl QueuePairs {
    /// The first queue pair number in use: those below are reserved (0x2 is for endpoint requests).
    pub const FIRST_NUMBER: u32 = 16;

    /// The number on the wire.
    #[inline]
    pub fn number(slot: u32) -> u32 {
        slot + Self::FIRST_NUMBER
    }

    /// The slot of a number on the wire.
    #[inline]
    pub fn slot_of(number: u32) -> u32 {
        number.wrapping_sub(Self::FIRST_NUMBER)
    }

    /// Takes a pair of slots for a connection. Returns the requestor's; both are still empty.
    pub fn open(&mut self, connection: u32, src: u32, dst: u32) -> u32 {
        let slot = |host, peer_host| QpSlot {
            qp: None,
            connection,
            host,
            peer_host,
            timer_at: u64::MAX,
            in_ring: false,
        };
        match self.free_pairs.pop() {
            Some(first) => {
                self.slots[first as usize] = slot(src, dst);
                self.slots[first as usize + 1] = slot(dst, src);
                first
            }
            None => {
                self.slots.push(slot(src, dst));
                self.slots.push(slot(dst, src));
                self.slots.len() as u32 - 2
            }
        }
    }

    /// Closes a connection: both ends are dropped, their counters are added up.
    pub fn close(&mut self, first: u32, totals: &mut HostTotals) {
        for slot in &mut self.slots[first as usize..first as usize + 2] {
            if let Some(qp) = slot.qp.take() {
                qp.add_up(totals);
            }
            slot.connection = u32::MAX;
            slot.timer_at = u64::MAX;
        }
        self.free_pairs.push(first);
    }

    #[inline]
    pub fn get(&self, slot: u32) -> Option<&QpSlot> {
        self.slots.get(slot as usize)
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut QpSlot> {
        self.slots.get_mut(slot as usize)
    }

    /// Loads a slot into the cache.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: u32) {
        prefetch_index(&self.slots, slot as usize);
    }

    /// Loads the queue pair of a slot.
    #[inline(always)]
    pub fn prefetch_queue_pair(&self, slot: u32) {
        if let Some(QueuePair::Mrc(qp)) = self.slots.get(slot as usize).and_then(|s| s.qp.as_ref()) {
            qp.prefetch();
        }
    }

    /// Loads the memory that the queue pair of a slot has elsewhere.
    #[inline(always)]
    pub fn prefetch_heap(&self, slot: u32) {
        if let Some(QueuePair::Mrc(qp)) = self.slots.get(slot as usize).and_then(|s| s.qp.as_ref()) {
            qp.prefetch_heap();
        }
    }

    /// Adds the counters of all queue pairs that exist.
    pub fn add_up(&self, totals: &mut HostTotals) {
        for qp in self.slots.iter().filter_map(|s| s.qp.as_ref()) {
            qp.add_up(totals);
        }
    }

    /// Number of slots, empty ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
