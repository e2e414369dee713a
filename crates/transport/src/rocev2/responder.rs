//! The responder of a RoCEv2 connection: accepts packets in PSN order, answers gaps with a NAK and ECN marks with a
//! CNP.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use openmrc_wire::{Aeth, Body, Psn, RcWrite};

use super::config::{RcConfig, Recovery};
use crate::api::{Fatal, Host, Received, RecvDone};
use crate::seq::{expand, wire};
use crate::time::{Span, Time};

/// The feedback that a data packet requires.
#[derive(Default)]
pub(super) struct Answer {
    /// A congestion notification.
    pub cnp: bool,
    /// An ACK or NAK: PSN and syndrome.
    pub reply: Option<(Psn, u8)>,
    /// The connection ends.
    pub fatal: Option<Fatal>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Responder {
    expected: u64,
    /// The gap at `expected` has been reported.
    nak_sent: bool,
    /// Selective repeat: packets that arrived early.
    early: BTreeMap<u64, (RcWrite, u16)>,
    keeps_early: bool,
    /// Largest distance of an early packet from the expected one.
    window: u64,
    /// Address of the next byte of the message. As on the wire, only the first packet carries it.
    va: u64,
    rkey: u32,
    dma_len: u32,
    completed: u64,
    immediates: u16,
    cnp_at: Option<Time>,
    cnp_interval: Span,
}

impl Responder {
    pub fn new(config: &RcConfig) -> Self {
        Responder {
            expected: 0,
            nak_sent: false,
            early: BTreeMap::new(),
            keeps_early: config.recovery == Recovery::SelectiveRepeat,
            window: u64::from(config.window),
            va: 0,
            rkey: 0,
            dma_len: 0,
            completed: 0,
            immediates: 0,
            cnp_at: None,
            cnp_interval: config.dcqcn.map_or(Span(u64::MAX), |d| d.cnp_interval),
        }
    }

    /// Messages completed.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    pub fn on_data(&mut self, now: Time, received: &Received, host: &mut dyn Host) -> Answer {
        let packet = &received.packet;
        let Body::RcWrite(write) = packet.body else { return Answer::default() };
        let mut answer = Answer { cnp: received.ecn_ce && self.may_notify(now), ..Answer::default() };
        // RoCEv2 has no trimming: a packet without its payload is lost, but the loss is noticed at once.
        let seq = expand(packet.psn, self.expected);
        if seq < self.expected {
            answer.reply = Some((wire(self.expected.wrapping_sub(1)), Aeth::ACK));
            return answer;
        }
        if seq > self.expected || received.trim.is_some() {
            if self.keeps_early && received.trim.is_none() && seq < self.expected + self.window {
                self.early.insert(seq, (write, packet.payload_len));
            }
            if !self.nak_sent {
                self.nak_sent = true;
                answer.reply = Some((wire(self.expected), Aeth::NAK_PSN_SEQUENCE));
            }
            return answer;
        }
        let before = self.completed;
        let mut taken = self.take(&write, packet.payload_len, host);
        while let (Ok(()), Some((write, len))) = (taken, self.early.remove(&self.expected)) {
            taken = self.take(&write, len, host);
        }
        match taken {
            Err((syndrome, why)) => {
                answer.reply = Some((wire(self.expected), syndrome));
                answer.fatal = Some(why);
            }
            Ok(()) => {
                // One gap is filled; the next one must be reported.
                self.nak_sent = !self.early.is_empty();
                if self.nak_sent {
                    answer.reply = Some((wire(self.expected), Aeth::NAK_PSN_SEQUENCE));
                } else if packet.ack_req || self.completed > before {
                    answer.reply = Some((wire(self.expected - 1), Aeth::ACK));
                }
            }
        }
        answer
    }

    /// The next packet in order.
    fn take(&mut self, write: &RcWrite, len: u16, host: &mut dyn Host) -> Result<(), (u8, Fatal)> {
        if write.position.is_first() {
            (self.va, self.rkey, self.dma_len) = (write.va, write.rkey, write.dma_len);
        }
        if len > 0 {
            host.write(self.rkey, self.va, u32::from(len))
                .map_err(|_| (Aeth::NAK_REMOTE_ACCESS, Fatal::AccessViolation))?;
            self.va += u64::from(len);
        }
        self.expected += 1;
        if write.position.is_last() {
            self.completed += 1;
            if let Some(imm) = write.imm {
                let rqmsn = openmrc_wire::Msn(self.immediates);
                let done = RecvDone { rqmsn, imm, byte_len: self.dma_len, solicited: false };
                self.immediates = self.immediates.wrapping_add(1);
                host.recv_done(done).map_err(|_| (Aeth::NAK_REMOTE_OPERATIONAL, Fatal::NoReceive))?;
            }
        }
        Ok(())
    }

    fn may_notify(&mut self, now: Time) -> bool {
        if self.cnp_interval == Span(u64::MAX)
            || self.cnp_at.is_some_and(|at| now.since(at) < self.cnp_interval)
        {
            return false;
        }
        self.cnp_at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use openmrc_wire::{Ev, Packet, Position};

    use super::*;
    use crate::Trim;
    use crate::nobody::Nobody;

    fn marked(psn: u32, ecn_ce: bool) -> Received {
        let write = RcWrite { position: Position::Only, va: 0, rkey: 0, dma_len: 64, imm: None };
        let packet = Packet { payload_len: 64, ..Packet::new(1, wire(psn.into()), Body::RcWrite(write)) };
        Received { packet, ev: Ev(0), port: 0, ecn_ce, trim: None }
    }

    #[test]
    fn marks_are_notified_at_most_once_in_fifty_microseconds() {
        let mut responder = Responder::new(&RcConfig::new(1, 2, 100_000_000_000));
        let mut notified = Vec::new();
        for micros in 0..200 {
            let at = Time(Span::from_micros(1000 + micros).0);
            let answer = responder.on_data(at, &marked(micros as u32, micros != 0), &mut Nobody);
            if answer.cnp {
                notified.push(micros);
            }
        }
        assert_eq!(notified, [1, 51, 101, 151]);
    }

    #[test]
    fn without_congestion_control_no_mark_is_notified() {
        let config = RcConfig { dcqcn: None, ..RcConfig::new(1, 2, 100_000_000_000) };
        let mut responder = Responder::new(&config);
        assert!(!responder.on_data(Time(1 << 40), &marked(0, true), &mut Nobody).cnp);
    }

    #[test]
    fn only_selective_repeat_keeps_early_packets_and_only_whole_ones_within_the_window() {
        use Recovery::{GoBackN, SelectiveRepeat};
        for (recovery, early, trim, kept) in [
            (SelectiveRepeat, 1, None, true),
            (SelectiveRepeat, 3, None, true),
            (SelectiveRepeat, 4, None, false),
            (SelectiveRepeat, 1, Some(Trim::Fabric), false),
            (GoBackN, 1, None, false),
            (GoBackN, 1, Some(Trim::Fabric), false),
        ] {
            let config = RcConfig { recovery, window: 4, ..RcConfig::new(1, 2, 100_000_000_000) };
            let mut responder = Responder::new(&config);
            let answer =
                responder.on_data(Time::ZERO, &Received { trim, ..marked(early, false) }, &mut Nobody);
            assert_eq!(answer.reply, Some((wire(0), Aeth::NAK_PSN_SEQUENCE)));
            for psn in 0..early {
                responder.on_data(Time::ZERO, &marked(psn, false), &mut Nobody);
            }
            let expected = u64::from(early) + u64::from(kept);
            assert_eq!(responder.completed(), expected, "{recovery:?} {early} {trim:?}");
        }
    }

    #[test]
    fn a_packet_is_acknowledged_if_it_asks_or_ends_a_message_or_has_come_before() {
        let mut responder = Responder::new(&RcConfig::new(1, 2, 100_000_000_000));
        for (psn, position, ack_req, reply) in [
            (0, Position::First, false, None),
            (1, Position::Middle, true, Some((wire(1), Aeth::ACK))),
            (2, Position::Middle, false, None),
            (3, Position::Last, false, Some((wire(3), Aeth::ACK))),
            (4, Position::First, false, None),
            (2, Position::Middle, false, Some((wire(4), Aeth::ACK))),
        ] {
            let mut received = marked(psn, false);
            received.packet.ack_req = ack_req;
            let Body::RcWrite(write) = &mut received.packet.body else { unreachable!() };
            write.position = position;
            let answer = responder.on_data(Time::ZERO, &received, &mut Nobody);
            assert_eq!(answer.reply, reply, "{psn} {position:?}");
        }
        assert_eq!(responder.completed(), 1);
    }
}
