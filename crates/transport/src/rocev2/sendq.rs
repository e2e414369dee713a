//! The requestor's messages and the packets in flight, counted without wrap.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use openmrc_wire::{Body, Packet, Position, RcWrite};

use super::config::{RcConfig, Recovery};
use crate::api::{Payload, WorkRequest};
use crate::seq::wire;

/// A message posted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Posted {
    wr: WorkRequest,
    /// Its first packet.
    first: u64,
    packets: u64,
}

/// Posted messages that are not completed, and how far their packets are.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct SendQueue {
    messages: VecDeque<Posted>,
    /// One past the last packet of the messages posted.
    end: u64,
    /// Oldest packet not acknowledged, next to send, one past the highest ever sent.
    unacknowledged: u64,
    next: u64,
    high: u64,
    /// Selective repeat: the packet to retransmit first.
    again: Option<u64>,
}

impl SendQueue {
    /// Messages that are not completed.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub fn push(&mut self, wr: WorkRequest, path_mtu: u16) {
        let packets = u64::from(wr.len).div_ceil(u64::from(path_mtu)).max(1);
        self.messages.push_back(Posted { wr, first: self.end, packets });
        self.end += packets;
    }

    /// Removes all messages.
    pub fn drain(&mut self) -> impl Iterator<Item = WorkRequest> {
        self.messages.drain(..).map(|message| message.wr)
    }

    /// Whether a packet may be sent, with at most `window` in flight.
    pub fn has_work(&self, window: u32) -> bool {
        self.again.is_some() || (self.has_unsent() && self.next < self.unacknowledged + u64::from(window))
    }

    /// Whether packets were not sent yet, or are to be sent again.
    pub fn has_unsent(&self) -> bool {
        self.next < self.end
    }

    /// Whether packets are in flight.
    pub fn is_outstanding(&self) -> bool {
        self.unacknowledged < self.high
    }

    /// Oldest packet not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.unacknowledged
    }

    /// One past the highest packet ever sent.
    pub fn high(&self) -> u64 {
        self.high
    }

    /// The packet to send now, with its number.
    pub fn take(&mut self, config: &RcConfig) -> Option<(u64, Packet, Payload)> {
        let seq = self.again.take().unwrap_or(self.next);
        let (packet, payload) = self.packet(seq, config)?;
        Some((seq, packet, payload))
    }

    /// This packet is sent; whether it is a retransmission.
    pub fn sent(&mut self, seq: u64) -> bool {
        let again = seq < self.high;
        if seq == self.next {
            self.next += 1;
        }
        self.high = self.high.max(self.next);
        again
    }

    /// Continues with this packet, which was lost.
    pub fn recover(&mut self, seq: u64, recovery: Recovery) {
        match recovery {
            Recovery::GoBackN => self.next = seq,
            Recovery::SelectiveRepeat => self.again = Some(seq),
        }
    }

    /// Everything below `seq` has arrived; `done` gets each message that is complete. Returns whether that is new.
    pub fn acknowledge(&mut self, seq: u64, mut done: impl FnMut(WorkRequest)) -> bool {
        if seq <= self.unacknowledged {
            return false;
        }
        self.unacknowledged = seq;
        self.next = self.next.max(seq);
        self.again = self.again.filter(|&again| again >= seq);
        while let Some(&message) = self.messages.front().filter(|m| m.first + m.packets <= seq) {
            self.messages.pop_front();
            done(message.wr);
        }
        true
    }

    /// The packet with this number.
    fn packet(&self, seq: u64, config: &RcConfig) -> Option<(Packet, Payload)> {
        let at = self.messages.partition_point(|m| m.first + m.packets <= seq);
        let message = self.messages.get(at)?;
        let (index, mtu) = (seq - message.first, u64::from(config.path_mtu));
        let position = match (index == 0, index + 1 == message.packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let offset = index * mtu;
        let body = Body::RcWrite(RcWrite {
            position,
            va: message.wr.remote_va,
            rkey: message.wr.rkey,
            dma_len: message.wr.len,
            imm: message.wr.imm.filter(|_| position.is_last()),
        });
        let mut packet = Packet::new(config.remote_qp, wire(seq), body);
        packet.payload_len = (u64::from(message.wr.len) - offset).min(mtu) as u16;
        // A window that is full waits for an ACK, so each has a packet that asks for one.
        let ack_every = u64::from(config.ack_every.min(config.window).max(1));
        packet.ack_req = position.is_last() || (seq + 1).is_multiple_of(ack_every);
        packet.solicited = message.wr.solicited && position.is_last();
        Some((packet, Payload { handle: message.wr.handle, offset: offset as u32 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_cancels_the_retransmissions_below_it_and_no_other() {
        use Recovery::{GoBackN, SelectiveRepeat};
        let config = RcConfig { path_mtu: 1024, ..RcConfig::new(1, 2, 100_000_000_000) };
        for (recovery, acknowledged, expected) in [
            (SelectiveRepeat, 4, [5, 8]),
            (SelectiveRepeat, 5, [5, 8]),
            (SelectiveRepeat, 6, [8, 9]),
            (SelectiveRepeat, 8, [8, 9]),
            (GoBackN, 4, [5, 6]),
            (GoBackN, 5, [5, 6]),
            (GoBackN, 6, [6, 7]),
            (GoBackN, 8, [8, 9]),
        ] {
            let mut queue = SendQueue::default();
            let wr =
                WorkRequest { handle: 1, len: 10 * 1024, remote_va: 0, rkey: 0, imm: None, solicited: false };
            queue.push(wr, config.path_mtu);
            let next = |queue: &mut SendQueue| {
                let (seq, ..) = queue.take(&config).unwrap();
                assert_eq!(queue.sent(seq), seq < 8, "a retransmission");
                seq
            };
            for seq in 0..8 {
                assert_eq!(queue.take(&config).unwrap().0, seq);
                assert!(!queue.sent(seq));
            }
            queue.recover(5, recovery);
            assert!(queue.acknowledge(acknowledged, |_| ()));
            assert!(!queue.acknowledge(acknowledged, |_| ()), "nothing new");
            assert_eq!([(); 2].map(|()| next(&mut queue)), expected, "{recovery:?} {acknowledged}");
        }
    }
}
