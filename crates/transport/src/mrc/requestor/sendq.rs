//! The send queue: posted messages that are not completed, and the position of the next new packet. In hardware this is
//! the work queue in host memory.

use openmrc_wire::{Msn, Position};
use serde::{Deserialize, Serialize};

use crate::api::{Payload, PostError, WorkRequest};
use crate::seq::Seq;

/// Longest message, bytes (ibverbs' limit).
pub const MAX_MESSAGE: u32 = 1 << 31;

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Message {
    handle: u64,
    remote_va: u64,
    first: Seq,
    len: u32,
    rkey: u32,
    imm: Option<u32>,
    rqmsn: Msn,
    solicited: bool,
}

/// One packet's part of its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub payload: Payload,
    pub len: u16,
    pub position: Position,
    pub msn: Msn,
    pub rqmsn: Msn,
    pub va: u64,
    pub rkey: u32,
    pub dma_len: u32,
    pub imm: Option<u32>,
    pub solicited: bool,
}

#[derive(Serialize, Deserialize)]
pub struct SendQueue {
    ring: Box<[Message]>,
    /// Numbers of messages, counted from zero: the oldest not completed, the one being sent, one past the newest.
    head: u64,
    cursor: u64,
    tail: u64,
    /// First PSN of the next posted message.
    next_first: Seq,
    next_rqmsn: Msn,
    /// Messages with immediate of which a packet was sent and which are not completed.
    wimm_in_flight: u16,
    path_mtu: u32,
    limit: u32,
}

impl SendQueue {
    pub fn new(depth: usize, path_mtu: u16, first: Seq) -> Self {
        let empty = Message {
            handle: 0,
            remote_va: 0,
            first: 0,
            len: 0,
            rkey: 0,
            imm: None,
            rqmsn: Msn(0),
            solicited: false,
        };
        SendQueue {
            ring: vec![empty; depth.max(1).next_power_of_two()].into(),
            head: 0,
            cursor: 0,
            tail: 0,
            next_first: first,
            next_rqmsn: Msn(0),
            wimm_in_flight: 0,
            path_mtu: u32::from(path_mtu),
            limit: depth.max(1) as u32,
        }
    }

    fn message(&self, number: u64) -> &Message {
        &self.ring[number as usize & (self.ring.len() - 1)]
    }

    fn packets(&self, len: u32) -> u64 {
        u64::from(len.div_ceil(self.path_mtu).max(1))
    }

    pub fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub fn completed(&self) -> u64 {
        self.head
    }

    /// Whether a message that was begun is not completed.
    pub fn is_unfinished(&self, next: Seq) -> bool {
        self.head < self.tail && self.message(self.head).first < next
    }

    /// Number of messages of which every packet was sent at least once.
    pub fn fully_sent(&self) -> u64 {
        self.cursor
    }

    pub fn post(&mut self, wr: WorkRequest) -> Result<(), PostError> {
        if self.len() >= self.limit as usize {
            return Err(PostError::QueueFull(self.len()));
        }
        if wr.len > MAX_MESSAGE {
            return Err(PostError::TooLong(wr.len));
        }
        let slot = self.tail as usize & (self.ring.len() - 1);
        self.ring[slot] = Message {
            handle: wr.handle,
            remote_va: wr.remote_va,
            first: self.next_first,
            len: wr.len,
            rkey: wr.rkey,
            imm: wr.imm,
            // Plain writes have none.
            rqmsn: if wr.imm.is_some() { self.next_rqmsn } else { Msn(0) },
            solicited: wr.solicited,
        };
        if wr.imm.is_some() {
            self.next_rqmsn = self.next_rqmsn.next();
        }
        self.next_first += self.packets(wr.len);
        self.tail += 1;
        Ok(())
    }

    /// Whether there is a new packet to send after `next`, with at most `max_wimm` immediates in flight.
    #[inline(always)]
    pub fn has_new(&self, next: Seq, max_wimm: u16) -> bool {
        if self.cursor == self.tail {
            return false;
        }
        let message = self.message(self.cursor);
        next != message.first || message.imm.is_none() || self.wimm_in_flight < max_wimm
    }

    /// The PSN after the last posted message.
    pub fn end(&self) -> Seq {
        self.next_first
    }

    /// Whether every posted message was sent at least once.
    pub fn drained(&self) -> bool {
        self.cursor == self.tail
    }

    /// The packet with this PSN, which must be the next new one.
    #[inline(always)]
    pub fn take_new(&mut self, seq: Seq) -> Part {
        let message = self.message(self.cursor);
        let begins_wimm = seq == message.first && message.imm.is_some();
        let part = self.part(self.cursor, message, seq);
        self.wimm_in_flight += u16::from(begins_wimm);
        if part.position.is_last() {
            self.cursor += 1;
        }
        part
    }

    /// The packet with this PSN, which was sent before.
    pub fn resend(&self, seq: Seq) -> Part {
        // Messages are in PSN order: the last one that begins at or before `seq`.
        let (mut low, mut high) = (self.head, (self.cursor + 1).min(self.tail));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.message(middle).first <= seq {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.part(low, self.message(low), seq)
    }

    /// The packet with this PSN, which belongs to the message `m` with this `number`.
    #[inline(always)]
    fn part(&self, number: u64, m: &Message, seq: Seq) -> Part {
        let index = seq - m.first;
        let offset = (index * u64::from(self.path_mtu)) as u32;
        let left = m.len - offset;
        let len = left.min(self.path_mtu) as u16;
        let (first, last) = (index == 0, left <= self.path_mtu);
        let position = match (first, last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        Part {
            payload: Payload { handle: m.handle, offset },
            len,
            position,
            msn: Msn(number as u16),
            rqmsn: m.rqmsn,
            va: m.remote_va.wrapping_add(u64::from(offset)),
            rkey: m.rkey,
            dma_len: m.len,
            imm: if last { m.imm } else { None },
            solicited: m.solicited && last,
        }
    }

    /// The number of completed messages that this 24-bit count stands for, if that many were sent.
    pub fn expand_completed(&self, msn: u32) -> Option<u64> {
        let ahead = ((msn.wrapping_sub(self.head as u32) << 8) as i32) >> 8;
        let completed = self.head.checked_add_signed(i64::from(ahead))?;
        (self.head..=self.cursor).contains(&completed).then_some(completed)
    }

    /// Whether this many messages were complete when at most `most` fewer were than now.
    pub fn is_recent_count(&self, msn: u32, most: u64) -> bool {
        let behind = u64::from((self.head as u32).wrapping_sub(msn) & 0xFF_FFFF);
        behind <= most.min(self.head)
    }

    /// The PSN after the last packet of message number `completed - 1`.
    pub fn end_of(&self, completed: u64) -> Seq {
        if completed == self.tail { self.next_first } else { self.message(completed).first }
    }

    /// Completes the oldest message; returns its handle.
    pub fn complete_oldest(&mut self) -> Option<u64> {
        if self.head == self.tail {
            return None;
        }
        let message = *self.message(self.head);
        if message.imm.is_some() {
            // A message that is flushed may not have been begun.
            self.wimm_in_flight = self.wimm_in_flight.saturating_sub(1);
        }
        self.head += 1;
        self.cursor = self.cursor.max(self.head);
        Some(message.handle)
    }

    /// Loads the message that is being sent into the cache.
    pub fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.ring, self.cursor as usize & (self.ring.len() - 1));
    }

    /// Bytes per posted work request.
    pub const BYTES_PER_ENTRY: usize = size_of::<Message>();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wr(handle: u64, len: u32, imm: Option<u32>) -> WorkRequest {
        WorkRequest { handle, len, remote_va: 1000, rkey: 1, imm, solicited: false }
    }

    #[test]
    fn messages_are_cut_at_the_path_mtu() {
        let mut q = SendQueue::new(8, 1024, 100);
        q.post(wr(1, 2500, Some(7))).unwrap();
        q.post(wr(2, 0, None)).unwrap();
        let parts: Vec<_> = (100..104).map(|seq| q.take_new(seq)).collect();
        let cuts: Vec<_> = parts.iter().map(|p| (p.position, p.len, p.va, p.imm)).collect();
        assert_eq!(
            cuts,
            [
                (Position::First, 1024, 1000, None),
                (Position::Middle, 1024, 2024, None),
                (Position::Last, 452, 3048, Some(7)),
                (Position::Only, 0, 1000, None),
            ]
        );
        assert!(q.drained());
        for (i, seq) in (100..104).enumerate() {
            assert_eq!(q.resend(seq), parts[i]);
        }
    }

    #[test]
    fn immediates_in_flight_are_limited() {
        let mut q = SendQueue::new(8, 1024, 0);
        for i in 0..3 {
            q.post(wr(i, 10, Some(0))).unwrap();
        }
        assert!(q.has_new(0, 2));
        q.take_new(0);
        q.take_new(1);
        assert!(!q.has_new(2, 2));
        q.complete_oldest();
        assert!(q.has_new(2, 2));
    }

    #[test]
    fn completed_counts_expand_across_the_wrap_and_never_beyond_what_was_sent() {
        let mut q = SendQueue::new(8, 1024, 0);
        q.head = (1 << 24) - 2;
        q.cursor = q.head;
        q.tail = q.head;
        for i in 0..5 {
            q.post(wr(i, 10, None)).unwrap();
        }
        for seq in 0..4 {
            q.take_new(seq);
        }
        assert_eq!(q.expand_completed(0xFF_FFFF), Some((1 << 24) - 1));
        assert_eq!(q.expand_completed(2), Some((1 << 24) + 2));
        assert_eq!(q.expand_completed(3), None);
        assert_eq!(q.expand_completed(0xFF_FFFD), None);
    }

    #[test]
    fn a_full_queue_and_an_endless_message_are_refused() {
        let mut q = SendQueue::new(2, 1024, 0);
        assert_eq!(q.post(wr(0, MAX_MESSAGE + 1, None)), Err(PostError::TooLong(MAX_MESSAGE + 1)));
        q.post(wr(0, 1, None)).unwrap();
        q.post(wr(1, 1, None)).unwrap();
        assert_eq!(q.post(wr(2, 1, None)), Err(PostError::QueueFull(2)));
    }

    #[test]
    fn the_longest_message_is_taken() {
        let mut q = SendQueue::new(2, 1024, 100);
        q.post(wr(0, MAX_MESSAGE, None)).unwrap();
        assert_eq!(q.end(), 100 + u64::from(MAX_MESSAGE) / 1024);
    }

    #[test]
    fn a_message_is_unfinished_from_its_first_packet_until_it_is_completed() {
        let mut q = SendQueue::new(2, 1024, 100);
        assert!(!q.is_unfinished(100), "there is none");
        q.post(wr(0, 3000, None)).unwrap();
        assert!(!q.is_unfinished(100), "nothing was sent");
        assert!(q.is_unfinished(101));
        q.complete_oldest();
        assert!(!q.is_unfinished(103));
    }

    #[test]
    fn the_limit_of_immediates_holds_back_only_the_first_packet_of_another_one() {
        let mut q = SendQueue::new(8, 1024, 0);
        q.post(wr(0, 2000, Some(0))).unwrap();
        q.post(wr(1, 10, None)).unwrap();
        q.post(wr(2, 10, Some(0))).unwrap();
        for (seq, next_may_leave) in [(0, true), (1, true), (2, false)] {
            assert!(q.has_new(seq, 1), "the rest of the first, and the write behind it");
            q.take_new(seq);
            assert_eq!(q.has_new(seq + 1, 1), next_may_leave, "after {seq}");
        }
        q.complete_oldest();
        assert!(q.has_new(3, 1));
        q.complete_oldest();
        assert!(q.has_new(3, 1), "a plain write is none");
    }
}
