//! The expected state: every message, packet and byte of one direction of a connection, and the rules that must hold
//! whatever the network does (docs/spec/transport.md, "What must hold").
//!
//! A [`Flow`] checks both ends and trusts neither: the contents of a packet follow from the posted messages alone.

macro_rules! rule {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err(format!($($text)*));
        }
    };
}

mod feedback;

use openmrc_transport::mrc::QpConfig;
use openmrc_transport::{AccessError, RecvDone, SendDone, SendStatus, TrafficClass, Transmit, WorkRequest};
use openmrc_wire::{Body, Position, Psn};

use super::memory::Memory;
use super::scenario::Post;
use super::sizes;

/// The rule that was broken, and how.
pub type Verdict = Result<(), String>;

/// One message.
#[derive(Clone, Copy)]
struct Message {
    len: u32,
    imm: Option<u32>,
    solicited: bool,
    slot: usize,
    taken: usize,
    /// Number of its first packet in the flow, counted from zero without wrapping.
    first: u64,
    packets: u32,
    /// Its number among the messages with immediate.
    ordinal: u64,
    started: bool,
    received: bool,
    /// Its bytes were compared and the application has reclaimed the buffer.
    checked: bool,
}

/// One packet of the flow.
#[derive(Clone, Copy, Default)]
struct PacketState {
    message: u32,
    transmissions: u32,
    last_path: u16,
    /// Delivered to the responder, untrimmed.
    delivered: bool,
    /// Its payload was placed, or it was delivered without payload.
    arrived: bool,
    /// The requestor was told that it has arrived.
    reported: bool,
}

/// Counters of a flow.
#[derive(Clone, Copy, Default, Debug)]
pub struct FlowCounters {
    pub first_sent: u64,
    pub retransmitted: u64,
    pub placed_bytes: u64,
    pub completed: u64,
    pub flushed: u64,
    pub received: u64,
    pub most_transmissions: u32,
    pub sacks: u64,
    pub psn_wrapped: bool,
}

/// One direction of one connection.
pub struct Flow {
    name: String,
    start: Psn,
    mtu: u32,
    max_wimm: u32,
    own_mpr: u64,
    /// Largest window that the responder has advertised.
    told_mpr: Option<u64>,
    remote_qp: u32,
    peer_sends_trim_nacks: bool,
    messages: Vec<Message>,
    packets: Vec<PacketState>,
    /// First number never sent.
    next_new: u64,
    /// First number not yet cumulatively acknowledged, as the requestor knows.
    acknowledged: u64,
    /// The same, from ACKs alone: a SACK completes nothing.
    acked: u64,
    /// First number that has not arrived.
    prefix: u64,
    /// Number of messages that have arrived completely, with all messages before them.
    complete: usize,
    /// Forged feedback has been on its way to the requestor.
    deceived: bool,
    completed: usize,
    /// A send completion was not a success: all later ones must be flushed.
    failed: bool,
    received: usize,
    immediates_posted: u64,
    immediates_received: u64,
    /// Immediates sent whose message has not completed.
    immediates_open: u32,
    last_rcvd: Option<u32>,
    nominal_arrived: u64,
    memory: Memory,
    content_seed: u64,
    pub counters: FlowCounters,
}

impl Flow {
    pub fn new(name: String, requestor: &QpConfig, region: usize, salt: u64) -> Self {
        Flow {
            name,
            start: requestor.requestor.sq_psn,
            mtu: u32::from(requestor.path_mtu),
            max_wimm: u32::from(requestor.requestor.max_wimm),
            own_mpr: u64::from(requestor.requestor.mpr) * 128,
            told_mpr: None,
            remote_qp: requestor.remote_qp,
            peer_sends_trim_nacks: requestor.caps.trim_nack,
            messages: Vec::new(),
            packets: Vec::new(),
            next_new: 0,
            acknowledged: 0,
            acked: 0,
            prefix: 0,
            complete: 0,
            deceived: false,
            completed: 0,
            failed: false,
            received: 0,
            immediates_posted: 0,
            immediates_received: 0,
            immediates_open: 0,
            last_rcvd: None,
            nominal_arrived: 0,
            memory: Memory::new(region, salt | 1 << 40, salt as u32 ^ 0x5EED),
            content_seed: salt,
            counters: FlowCounters::default(),
        }
    }

    pub fn posted(&self) -> usize {
        self.messages.len()
    }

    pub fn completed(&self) -> usize {
        self.completed
    }

    pub fn outstanding(&self) -> usize {
        self.messages.len() - self.completed
    }

    /// First packet number never sent.
    pub fn next_new(&self) -> u64 {
        self.next_new
    }

    pub fn next_psn(&self) -> Psn {
        self.psn(self.next_new)
    }

    /// Messages of which the responder has every byte, with all before them.
    pub fn complete(&self) -> usize {
        self.complete
    }

    /// From now on the requestor may have heard of arrivals that did not happen, so that what it may send is not known.
    pub fn deceive(&mut self) {
        self.deceived = true;
    }

    pub fn rkey(&self) -> u32 {
        self.memory.rkey()
    }

    /// The application deregisters the whole region.
    pub fn revoke(&mut self) {
        self.memory.revoke();
    }

    fn psn(&self, number: u64) -> Psn {
        self.start.offset((number & 0xFF_FFFF) as i32)
    }

    /// The unwrapped number of a PSN, nearest to the newest one sent; `None` if it lies before the beginning.
    fn number(&self, psn: Psn) -> Option<u64> {
        self.next_new.checked_add_signed(i64::from(psn.distance(self.psn(self.next_new))))
    }

    fn content_seed(&self, message: usize) -> u64 {
        (self.content_seed ^ message as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8
    }

    /// The application prepares a message; `None` if no buffer is free.
    pub fn prepare(&mut self, post: &Post, solicited: bool) -> Result<Option<WorkRequest>, String> {
        let Some((slot, taken)) = self.memory.allocate(post.len as usize) else { return Ok(None) };
        rule!(self.memory.is_untouched(slot, post.len), "{}: a reclaimed buffer was written to", self.name);
        let index = self.messages.len();
        let packets = post.len.div_ceil(self.mtu).max(1);
        self.messages.push(Message {
            len: post.len,
            imm: post.imm,
            solicited,
            slot,
            taken,
            first: self.packets.len() as u64,
            packets,
            ordinal: self.immediates_posted,
            started: false,
            received: false,
            checked: false,
        });
        self.immediates_posted += u64::from(post.imm.is_some());
        self.packets
            .extend((0..packets).map(|_| PacketState { message: index as u32, ..PacketState::default() }));
        Ok(Some(WorkRequest {
            handle: self.handle(index),
            len: post.len,
            remote_va: self.memory.address(slot),
            // The key of a zero-length write is not checked.
            rkey: if post.len == 0 { 0 } else { self.memory.rkey() },
            imm: post.imm,
            solicited,
        }))
    }

    fn handle(&self, message: usize) -> u64 {
        (message as u64) << 16 | self.content_seed & 0xFFFF
    }

    /// The requestor sends a data packet.
    pub fn on_transmit(&mut self, transmit: &Transmit) -> Verdict {
        let name = &self.name;
        let packet = &transmit.packet;
        let Body::Write(write) = &packet.body else { return Err(format!("{name}: not a data packet")) };
        rule!(packet.dest_qp == self.remote_qp, "{name}: sent to QP {}", packet.dest_qp);
        let number = self.number(packet.psn).filter(|&n| n < self.packets.len() as u64);
        let Some(number) = number else { return Err(format!("{name}: PSN {} names no packet", packet.psn)) };
        let first_time = number == self.next_new;
        rule!(number <= self.next_new, "{name}: PSN {} skips {}", packet.psn, number - self.next_new);

        // Contents of the packet.
        let state = self.packets[number as usize];
        let message_index = state.message as usize;
        let m = self.messages[message_index];
        let within = (number - m.first) as u32;
        let offset = within * self.mtu;
        let len = (m.len - offset.min(m.len)).min(self.mtu);
        let last = within + 1 == m.packets;
        let position = match (within == 0, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        rule!(
            write.position == position,
            "{name}: packet {number} says {:?}, is {position:?}",
            write.position
        );
        rule!(
            write.msn.0 == message_index as u16,
            "{name}: message {message_index} says MSN {}",
            write.msn.0
        );
        rule!(
            write.imm == if last { m.imm } else { None },
            "{name}: packet {number} has immediate {:?}",
            write.imm
        );
        if write.imm.is_some() {
            rule!(
                write.rqmsn.0 == m.ordinal as u16,
                "{name}: immediate {} says RQMSN {}",
                m.ordinal,
                write.rqmsn.0
            );
            rule!(packet.solicited == m.solicited, "{name}: message {message_index} has the wrong SE bit");
        }
        rule!(
            u32::from(packet.payload_len) == len,
            "{name}: packet {number} has {} bytes, not {len}",
            packet.payload_len
        );
        rule!(write.dma_len == m.len, "{name}: DMA length {}, not {}", write.dma_len, m.len);
        rule!(
            write.va == self.memory.address(m.slot).wrapping_add(u64::from(offset)),
            "{name}: packet {number} goes to the wrong address"
        );
        match transmit.payload {
            Some(payload) => rule!(
                payload.handle == self.handle(message_index) && payload.offset == offset,
                "{name}: packet {number} takes its bytes from {payload:?}"
            ),
            None => rule!(len == 0, "{name}: packet {number} has no payload to send"),
        }

        // Whether it may be sent now.
        let window = self.told_mpr.map_or(self.own_mpr, |told| told.min(self.own_mpr));
        rule!(
            !first_time || self.deceived || number < self.acknowledged + window,
            "{name}: packet {number} is beyond the window: {} + {window}",
            self.acknowledged
        );
        let class = match (self.peer_sends_trim_nacks, packet.rtx) {
            (false, _) => TrafficClass::DataNoTrim,
            (true, true) => TrafficClass::DataRetransmit,
            (true, false) => TrafficClass::Data,
        };
        rule!(
            packet.rtx != first_time && transmit.class == class,
            "{name}: packet {number}, transmission {}, has RTX {} and class {:?}",
            state.transmissions + 1,
            packet.rtx,
            transmit.class
        );
        let again = state.reported && !self.deceived;
        rule!(!again, "{name}: packet {number} is sent again after it was reported to have arrived");
        rule!(!self.failed, "{name}: packet {number} is sent after the queue pair failed");

        let state = &mut self.packets[number as usize];
        state.transmissions += 1;
        state.last_path = transmit.path;
        self.counters.most_transmissions = self.counters.most_transmissions.max(state.transmissions);
        if first_time {
            self.next_new += 1;
            self.counters.first_sent += 1;
            self.counters.psn_wrapped |= self.psn(self.next_new) == Psn::new(0);
            self.messages[message_index].started = true;
            if write.imm.is_some() {
                self.immediates_open += 1;
                rule!(
                    self.immediates_open <= self.max_wimm,
                    "{}: {} immediates in flight, allowed are {}",
                    self.name,
                    self.immediates_open,
                    self.max_wimm
                );
            }
        } else {
            self.counters.retransmitted += 1;
        }
        Ok(())
    }

    /// An untrimmed data packet of this flow is about to be delivered to the responder.
    pub fn on_delivery(&mut self, psn: Psn) {
        let Some(number) = self.number(psn).filter(|&n| n < self.packets.len() as u64) else { return };
        let empty = self.messages[self.packets[number as usize].message as usize].len == 0;
        let state = &mut self.packets[number as usize];
        state.delivered = true;
        if empty {
            state.arrived = true;
            self.advance();
        }
    }

    /// The responder places the packet being handled.
    pub fn on_place(
        &mut self,
        in_hand: Option<&Transmit>,
        rkey: u32,
        va: u64,
        len: u32,
    ) -> Result<Placed, String> {
        let name = &self.name;
        let Some(transmit) = in_hand else {
            return Err(format!("{name}: placement without a data packet in hand"));
        };
        let Body::Write(write) = &transmit.packet.body else {
            return Err(format!("{name}: placement of a packet that is not data"));
        };
        rule!(
            (rkey, va, len) == (write.rkey, write.va, u32::from(transmit.packet.payload_len)),
            "{name}: placement of {len} bytes at {va:#x}, which is not what the packet says"
        );
        let Some(number) = self.number(transmit.packet.psn).filter(|&n| n < self.next_new) else {
            return Err(format!("{name}: placement of PSN {}, which was never sent", transmit.packet.psn));
        };
        let state = &mut self.packets[number as usize];
        rule!(state.delivered, "{name}: packet {number} is placed before it came");
        rule!(!state.arrived, "{name}: packet {number} is placed a second time");
        let message = state.message as usize;
        // A probe of full size has no payload: it is the duplicate of a packet that the requestor takes for arrived.
        let is_probe = transmit.payload.is_none() && len > 0;
        let (handle, offset) = transmit.payload.map_or((0, 0), |p| (p.handle, p.offset));
        debug_assert!(is_probe || len == 0 || handle >> 16 == message as u64);
        rule!(
            !self.messages[message].checked,
            "{name}: packet {number} is placed after its message completed"
        );
        match self.memory.write(rkey, va, self.content_seed(message), offset, len) {
            Ok(()) => {
                rule!(!is_probe, "{name}: the probe of full size {number} is placed");
                self.packets[number as usize].arrived = true;
                self.counters.placed_bytes += u64::from(len);
                self.nominal_arrived += u64::from(sizes::nominal(&transmit.packet));
                self.advance();
                Ok(Placed::Done)
            }
            Err(AccessError) => Ok(Placed::Refused),
        }
    }

    fn advance(&mut self) {
        while self.packets.get(self.prefix as usize).is_some_and(|p| p.arrived) {
            self.prefix += 1;
        }
        while self.messages.get(self.complete).is_some_and(|m| m.first + u64::from(m.packets) <= self.prefix)
        {
            self.complete += 1;
        }
    }

    /// Compares the bytes of every complete message up to `message`, and lets the application reuse the buffers.
    fn check_bytes(&mut self, message: usize) -> Verdict {
        for index in (0..=message).rev() {
            let m = self.messages[index];
            if m.checked {
                break;
            }
            rule!(
                self.memory.is_written(m.slot, self.content_seed(index), m.len),
                "{}: message {index} is complete, its bytes are not what was sent",
                self.name
            );
            self.memory.reclaim(m.slot, m.len);
            self.messages[index].checked = true;
        }
        Ok(())
    }

    /// The responder reports an immediate.
    pub fn on_recv_done(&mut self, done: &RecvDone) -> Verdict {
        let expected = (self.received..self.messages.len()).find(|&i| self.messages[i].imm.is_some());
        let name = &self.name;
        let Some(index) = expected else {
            return Err(format!("{name}: an immediate that was not sent: {done:?}"));
        };
        let m = self.messages[index];
        rule!(
            done.imm == m.imm.unwrap_or(0) && done.byte_len == m.len && done.rqmsn.0 == m.ordinal as u16,
            "{name}: immediate {} of message {index} ({:?}, {} bytes) is reported as {done:?}",
            m.ordinal,
            m.imm,
            m.len
        );
        rule!(
            self.complete > index,
            "{name}: immediate of message {index} overtakes a write: {} messages are complete",
            self.complete
        );
        self.messages[index].received = true;
        self.received = index + 1;
        self.immediates_received += 1;
        self.counters.received += 1;
        self.check_bytes(index)
    }

    /// The requestor reports the end of a message.
    pub fn on_send_done(&mut self, done: &SendDone) -> Verdict {
        let name = &self.name;
        let index = self.completed;
        rule!(index < self.messages.len(), "{name}: a completion too many: {done:?}");
        rule!(
            done.handle == self.handle(index),
            "{name}: completion of message {} ({:?}) where {index} is next",
            done.handle >> 16,
            done.status
        );
        let m = self.messages[index];
        self.completed += 1;
        if m.imm.is_some() && self.packets[m.first as usize + m.packets as usize - 1].transmissions > 0 {
            self.immediates_open -= 1;
        }
        if done.status == SendStatus::Success {
            rule!(!self.failed, "{name}: message {index} succeeds after an earlier one failed");
            rule!(
                self.complete > index,
                "{name}: message {index} completes before the responder has all of it"
            );
            rule!(
                self.deceived || self.acked >= m.first + u64::from(m.packets),
                "{name}: message {index} completes before an ACK of it has arrived"
            );
            rule!(
                m.imm.is_none() || m.received,
                "{name}: message {index} completes before its immediate is delivered"
            );
            self.counters.completed += 1;
            self.check_bytes(index)?;
            self.memory.release(m.taken);
        } else {
            rule!(
                !self.failed || done.status == SendStatus::FlushErr,
                "{name}: message {index} ends with {:?} after an earlier one failed",
                done.status
            );
            self.failed = true;
            self.counters.flushed += 1;
        }
        Ok(())
    }

    /// The path of the last transmission of `psn`.
    pub fn last_path(&self, psn: Psn) -> Option<u16> {
        let state = self.packets.get(self.number(psn)? as usize)?;
        (state.transmissions > 0).then_some(state.last_path)
    }

    /// The expected value of `rcvd_bytes` in SACKs: nominal sizes of all non-empty packets that arrived.
    pub fn nominal_arrived(&self) -> u64 {
        self.nominal_arrived
    }

    pub fn last_rcvd(&self) -> Option<u32> {
        self.last_rcvd
    }

    /// Final checks after the run.
    pub fn at_end(&self, all_must_complete: bool) -> Verdict {
        let name = &self.name;
        rule!(self.completed == self.messages.len(), "{name}: {} sends never completed", self.outstanding());
        rule!(self.memory.guards_hold(), "{name}: memory outside the registered region was written to");
        if all_must_complete {
            rule!(!self.failed, "{name}: sends failed");
            rule!(
                self.immediates_received == self.immediates_posted,
                "{name}: {} immediates sent, {} delivered",
                self.immediates_posted,
                self.immediates_received
            );
            rule!(self.memory.is_clean(), "{name}: memory was written to after the last completion");
        } else {
            for m in self.messages.iter().filter(|m| m.checked) {
                let reused = self.messages.iter().any(|other| {
                    !other.checked
                        && other.slot < m.slot + m.len as usize
                        && m.slot < other.slot + other.len as usize
                });
                rule!(
                    reused || self.memory.is_untouched(m.slot, m.len),
                    "{name}: a reclaimed buffer was written to"
                );
            }
        }
        Ok(())
    }
}

/// Result of a placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    Done,
    Refused,
}
