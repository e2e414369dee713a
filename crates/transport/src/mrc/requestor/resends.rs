//! The log of retransmissions. They are not in PSN order, so each entry has its own send time.

use super::send_times::Stamp;
use crate::seq::Seq;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A retransmission, in six bytes.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Resend {
    /// Low bits of the PSN; the window is smaller than their range.
    seq: u16,
    /// Low and high half of the stamp.
    stamp: [u16; 2],
}

impl Resend {
    const fn stamp(self) -> Stamp {
        Stamp(self.stamp[0] as u32 | (self.stamp[1] as u32) << 16)
    }
}

/// Retransmissions in send order; a ring.
#[derive(Serialize, Deserialize)]
pub(super) struct Resends {
    ring: Box<[Resend]>,
    head: u32,
    len: u32,
}

impl Resends {
    /// A log for a window of `capacity` packets.
    pub fn new(capacity: u64) -> Self {
        let ring = vec![Resend { seq: 0, stamp: [0; 2] }; (capacity as usize / 16).max(16)].into();
        Resends { ring, head: 0, len: 0 }
    }

    pub fn is_full(&self) -> bool {
        self.len as usize == self.ring.len()
    }

    pub fn push(&mut self, now: Time, seq: Seq) {
        let Stamp(stamp) = Stamp::at(now);
        let tail = (self.head + self.len) as usize % self.ring.len();
        self.ring[tail] = Resend { seq: seq as u16, stamp: [stamp as u16, (stamp >> 16) as u16] };
        self.len += 1;
    }

    /// The oldest entry: the packet nearest to `base` with these low bits, and its send time.
    pub fn oldest(&self, base: Seq) -> Option<(Seq, Stamp)> {
        (self.len > 0).then(|| {
            let Resend { seq, .. } = self.get(0);
            let wide = base.wrapping_add_signed(i64::from(seq.wrapping_sub(base as u16) as i16));
            (wide, self.get(0).stamp())
        })
    }

    pub fn pop(&mut self) {
        self.head = (self.head + 1) % self.ring.len() as u32;
        self.len -= 1;
    }

    /// Time of the last retransmission of a packet, if there was one.
    pub fn last_sent(&self, seq: Seq) -> Option<Stamp> {
        (0..self.len).rev().map(|i| self.get(i)).find(|r| r.seq == seq as u16).map(Resend::stamp)
    }

    fn get(&self, i: u32) -> Resend {
        self.ring[(self.head + i) as usize % self.ring.len()]
    }

    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ring)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;
    use std::collections::VecDeque;

    #[test]
    fn the_log_is_a_ring_in_the_order_of_sending() {
        let base = (5 << 16) - 40;
        let mut log = Resends::new(256);
        let mut kept = VecDeque::new();
        for step in 0..400u64 {
            // Stamps that take more than 16 bits, and packets on both sides of a wrap of the kept bits.
            let (now, seq) = (Time(1 << 40) + Span::from_secs(step), base + step * 37 % 90);
            log.push(now, seq);
            kept.push_back((seq, Stamp::at(now)));
            assert_eq!(log.is_full(), kept.len() == 16);
            let latest = |seq| kept.iter().rev().find(|entry| entry.0 == seq).map(|entry| entry.1);
            for seq in base..base + 90 {
                assert_eq!(log.last_sent(seq), latest(seq), "{seq} in step {step}");
            }
            while kept.len() as u64 > step % 16 {
                assert_eq!(log.oldest(base), kept.pop_front());
                log.pop();
                assert!((log.head as usize) < log.ring.len());
            }
            assert_eq!(log.oldest(base), kept.front().copied());
        }
    }
}
