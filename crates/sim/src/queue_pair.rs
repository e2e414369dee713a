//! Queue pairs by number: made when their connection opens, gone when it closes.

use prefetch_index::prefetch_index;

use openmrc_transport::mrc::QueuePair;
use openmrc_transport::node::Pressure;
use openmrc_transport::rocev2;
use openmrc_transport::{
    Fatal, Host, PortSet, PostError, Readiness, Received, Time, Transmit, Transport, WorkRequest,
};

use crate::results::HostTotals;

/// The queue pair of one end, of whichever transport. A match costs less than an indirect call.
pub(crate) enum Engine {
    Mrc(Box<QueuePair>),
    Rc(Box<rocev2::QueuePair>),
}

macro_rules! each {
    ($self:ident, $qp:ident => $e:expr) => {
        match $self {
            Engine::Mrc($qp) => $e,
            Engine::Rc($qp) => $e,
        }
    };
}

impl Transport for Engine {
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

impl Engine {
    /// As responder: destination flow control, where the transport has it.
    #[inline]
    pub fn set_receive_pressure(&mut self, pressure: Pressure) {
        if let Engine::Mrc(qp) = self {
            qp.set_receive_pressure(pressure);
        }
    }

    /// Whether sending a packet leaves its deadline where it is: it waits for answers already.
    #[inline]
    pub fn waits(&self) -> bool {
        matches!(self, Engine::Mrc(qp) if qp.is_waiting())
    }

    /// Adds what it has counted.
    fn add_up(&self, totals: &mut HostTotals) {
        match self {
            Engine::Mrc(qp) => {
                let stats = qp.stats();
                totals.retransmits += u64::from(stats.retransmits);
                totals.spurious += u64::from(stats.spurious);
                totals.timeouts += u64::from(stats.timeouts);
                totals.condemned += u64::from(stats.condemned);
            }
            Engine::Rc(qp) => {
                let stats = qp.stats();
                totals.retransmits += stats.retransmits;
                totals.timeouts += stats.timeouts;
            }
        }
    }
}

/// One end of a connection.
pub(crate) struct QpSlot {
    pub engine: Option<Engine>,
    /// Whose.
    pub connection: u32,
    /// The host it is at.
    pub host: u32,
    /// The host its peer is at.
    pub peer_host: u32,
    /// When its pending timer event comes, if it has one.
    pub timer_at: u64,
    /// It waits for its turn at its NIC.
    pub in_ring: bool,
}

/// All ends, in pairs: slot `2i` is a requestor, slot `2i + 1` its responder.
#[derive(Default)]
pub(crate) struct QueuePairs {
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

    /// A pair of slots for a connection; the number of the requestor's. Both are empty as yet.
    pub fn open(&mut self, connection: u32, src: u32, dst: u32) -> u32 {
        let slot = |host, peer_host| QpSlot {
            engine: None,
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

    /// Ends a connection: both ends are dropped, what they counted is kept.
    pub fn close(&mut self, first: u32, totals: &mut HostTotals) {
        for slot in &mut self.slots[first as usize..first as usize + 2] {
            if let Some(engine) = slot.engine.take() {
                engine.add_up(totals);
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

    /// Loads a slot.
    #[inline(always)]
    pub fn prefetch_slot(&self, slot: u32) {
        prefetch_index(&self.slots, slot as usize);
    }

    /// Loads the queue pair in a slot.
    #[inline(always)]
    pub fn prefetch_engine(&self, slot: u32) {
        if let Some(Engine::Mrc(qp)) = self.slots.get(slot as usize).and_then(|s| s.engine.as_ref()) {
            qp.prefetch();
        }
    }

    /// Loads what the queue pair in a slot holds elsewhere.
    #[inline(always)]
    pub fn prefetch_heap(&self, slot: u32) {
        if let Some(Engine::Mrc(qp)) = self.slots.get(slot as usize).and_then(|s| s.engine.as_ref()) {
            qp.prefetch_heap();
        }
    }

    /// Adds what all have counted that exist.
    pub fn add_up(&self, totals: &mut HostTotals) {
        for engine in self.slots.iter().filter_map(|s| s.engine.as_ref()) {
            engine.add_up(totals);
        }
    }

    /// Slots there are, empty ones included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
