//! RoCEv2 reliable connection: the baseline that MRC is compared with (spec: baselines, "RoCEv2 RC").
//!
//! All packets use one path, in order. The responder accepts only the expected PSN and answers a gap with one NAK. The
//! requestor goes back to the missing packet or, like later NICs, retransmits only that packet while the responder
//! keeps the later ones. DCQCN sets the rate. Only writes are supported.

mod config;
mod dcqcn;
mod responder;

use std::collections::VecDeque;

use openmrc_wire::{Aeth, Body, Packet, Position, Psn, RcWrite};

pub use config::{RcConfig, Recovery};
pub use dcqcn::DcqcnParams;

use crate::api::{
    Fatal, Host, Payload, PortSet, PostError, Readiness, Received, SendDone, SendStatus, TrafficClass,
    Transmit, Transport, WorkRequest,
};
use crate::seq::{expand, wire};
use crate::time::{Span, Time};
use dcqcn::Dcqcn;
use responder::Responder;

/// Counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RcStats {
    /// Data packets sent, retransmissions included.
    pub data_packets: u64,
    /// Of these, retransmissions.
    pub retransmits: u64,
    /// NAKs received.
    pub naks: u64,
    /// CNPs received.
    pub cnps: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}

/// A message posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr: WorkRequest,
    /// Its first packet, counted without wrap.
    first: u64,
    packets: u64,
}

/// One end of a RoCEv2 connection.
pub struct QueuePair {
    config: RcConfig,
    clock: Time,
    error: Option<Fatal>,
    ports_up: PortSet,
    queue: VecDeque<Posted>,
    /// One past the last packet of the messages posted.
    posted_end: u64,
    /// Oldest packet not acknowledged, next to send, one past the highest ever sent.
    unacknowledged: u64,
    next: u64,
    high: u64,
    /// Selective repeat: the packet to retransmit first.
    again: Option<u64>,
    rate: Option<Dcqcn>,
    /// Earliest time of the next packet at the present rate.
    pace_at: Time,
    progress_at: Time,
    retries: u8,
    responder: Responder,
    stats: RcStats,
}

impl QueuePair {
    /// A queue pair in RTS.
    pub fn new(config: RcConfig) -> Self {
        QueuePair {
            clock: Time::ZERO,
            error: None,
            ports_up: PortSet::first(PortSet::MAX_PORTS),
            queue: VecDeque::new(),
            posted_end: 0,
            unacknowledged: 0,
            next: 0,
            high: 0,
            again: None,
            rate: config.dcqcn.map(Dcqcn::new),
            pace_at: Time::ZERO,
            progress_at: Time::ZERO,
            retries: 0,
            responder: Responder::new(&config),
            stats: RcStats::default(),
            config,
        }
    }

    /// Counters.
    pub fn stats(&self) -> RcStats {
        self.stats
    }

    fn has_work(&self) -> bool {
        self.again.is_some()
            || (self.next < self.posted_end
                && self.next < self.unacknowledged + u64::from(self.config.window))
    }

    /// The packet with this number.
    fn packet(&self, seq: u64) -> Option<(Packet, Payload)> {
        let at = self.queue.partition_point(|m| m.first + m.packets <= seq);
        let message = self.queue.get(at)?;
        let (index, mtu) = (seq - message.first, u64::from(self.config.path_mtu));
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
        let mut packet = Packet::new(self.config.remote_qp, wire(seq), body);
        packet.payload_len = (u64::from(message.wr.len) - offset).min(mtu) as u16;
        packet.ack_req =
            position.is_last() || (seq + 1).is_multiple_of(u64::from(self.config.ack_every.max(1)));
        packet.solicited = message.wr.solicited && position.is_last();
        Some((packet, Payload { handle: message.wr.handle, offset: offset as u32 }))
    }

    /// Everything below `seq` has arrived.
    fn acknowledged(&mut self, now: Time, seq: u64, host: &mut dyn Host) {
        if seq <= self.unacknowledged {
            return;
        }
        self.unacknowledged = seq;
        self.next = self.next.max(seq);
        self.again = self.again.filter(|&again| again >= seq);
        self.progress_at = now;
        self.retries = 0;
        while let Some(&done) = self.queue.front().filter(|m| m.first + m.packets <= seq) {
            self.queue.pop_front();
            host.send_done(SendDone { handle: done.wr.handle, status: SendStatus::Success });
        }
    }

    fn on_ack(&mut self, now: Time, psn: Psn, aeth: Aeth, host: &mut dyn Host) {
        let seq = expand(psn, self.unacknowledged);
        if seq > self.high {
            return;
        }
        if aeth.is_ack() {
            if seq < self.high {
                self.acknowledged(now, seq + 1, host);
            }
        } else if aeth.syndrome == Aeth::NAK_PSN_SEQUENCE {
            self.stats.naks += 1;
            self.acknowledged(now, seq, host);
            // An old NAK may ask for a packet that was acknowledged since.
            if seq >= self.unacknowledged && seq < self.high {
                match self.config.recovery {
                    Recovery::GoBackN => self.next = seq,
                    Recovery::SelectiveRepeat => self.again = Some(seq),
                }
            }
        } else {
            self.fail(Fatal::RemoteNak(aeth.syndrome), SendStatus::RemoteAccessErr, host);
        }
    }

    fn fail(&mut self, why: Fatal, first: SendStatus, host: &mut dyn Host) {
        if self.error.is_some() {
            return;
        }
        self.error = Some(why);
        host.fatal(why);
        let mut status = first;
        for message in self.queue.drain(..) {
            host.send_done(SendDone { handle: message.wr.handle, status });
            status = SendStatus::FlushErr;
        }
    }

    fn control(&self, psn: Psn, body: Body) -> Transmit {
        Transmit {
            packet: Packet::new(self.config.remote_qp, psn, body),
            ev: self.config.ev,
            path: 0,
            port: self.config.port,
            class: TrafficClass::Control,
            payload: None,
        }
    }
}

impl Transport for QueuePair {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        self.clock = self.clock.max(now);
        if self.error.is_some() {
            return Err(PostError::InError);
        }
        if self.queue.len() >= self.config.max_send_wr {
            return Err(PostError::QueueFull(self.queue.len()));
        }
        if wr.len > 1 << 31 {
            return Err(PostError::TooLong(wr.len));
        }
        if self.queue.is_empty() {
            self.progress_at = self.clock;
        }
        let packets = u64::from(wr.len).div_ceil(u64::from(self.config.path_mtu)).max(1);
        self.queue.push_back(Posted { wr, first: self.posted_end, packets });
        self.posted_end += packets;
        Ok(())
    }

    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut impl Host) {
        self.clock = self.clock.max(now);
        let packet = &received.packet;
        if self.error.is_some() {
            return;
        }
        match packet.body {
            Body::RcWrite(_) => {
                let answer = self.responder.on_data(now, received, host);
                if answer.cnp {
                    host.transmit(self.control(Psn::new(0), Body::Cnp));
                }
                if let Some((psn, syndrome)) = answer.reply {
                    let msn = self.responder.completed() as u32 & 0xFF_FFFF;
                    host.transmit(self.control(psn, Body::RcAck(Aeth { syndrome, msn })));
                }
                if let Some(why) = answer.fatal {
                    self.fail(why, SendStatus::FlushErr, host);
                }
            }
            Body::RcAck(aeth) => self.on_ack(now, packet.psn, aeth, host),
            Body::Cnp => {
                self.stats.cnps += 1;
                if let Some(rate) = &mut self.rate {
                    rate.on_cnp(now);
                }
            }
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        self.clock = self.clock.max(now);
        if self.error.is_some()
            || self.unacknowledged == self.high
            || now < self.progress_at + self.config.timeout
        {
            return;
        }
        if self.config.retry_count != u8::MAX && self.retries >= self.config.retry_count {
            self.fail(Fatal::RetryExceeded, SendStatus::RetryExceededErr, host);
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.stats.timeouts += 1;
        self.progress_at = now;
        match self.config.recovery {
            Recovery::GoBackN => self.next = self.unacknowledged,
            Recovery::SelectiveRepeat => self.again = Some(self.unacknowledged),
        }
    }

    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        self.clock = self.clock.max(now);
        let port = self.config.port;
        if self.readiness() != Readiness::Ready || !ports.and(self.ports_up).contains(port) {
            return None;
        }
        let seq = self.again.take().unwrap_or(self.next);
        let (packet, payload) = self.packet(seq)?;
        if self.unacknowledged == self.high {
            self.progress_at = self.clock;
        }
        if seq < self.high {
            self.stats.retransmits += 1;
        }
        self.stats.data_packets += 1;
        if seq == self.next {
            self.next += 1;
        }
        self.high = self.high.max(self.next);
        if let Some(rate) = &mut self.rate {
            let bytes = packet.wire_len() as u32;
            rate.on_send(now, bytes);
            self.pace_at = self.clock + Span((f64::from(bytes) * 8e12 / rate.rate()) as u64);
        }
        Some(Transmit {
            packet,
            ev: self.config.ev,
            path: 0,
            port,
            class: TrafficClass::Data,
            payload: Some(payload).filter(|_| packet.payload_len > 0),
        })
    }

    fn poll_timeout(&self) -> Time {
        if self.error.is_some() {
            return Time::NEVER;
        }
        let pace = if self.has_work() && self.pace_at > self.clock { self.pace_at } else { Time::NEVER };
        let retry = match self.unacknowledged < self.high {
            true => self.progress_at + self.config.timeout,
            false => Time::NEVER,
        };
        pace.min(retry)
    }

    fn readiness(&self) -> Readiness {
        if self.error.is_some() || self.queue.is_empty() {
            Readiness::Idle
        } else if self.has_work() {
            if self.pace_at <= self.clock { Readiness::Ready } else { Readiness::Active }
        } else if self.next < self.posted_end {
            Readiness::Active
        } else {
            Readiness::Pending
        }
    }

    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        self.clock = self.clock.max(now);
        self.ports_up = local.and(peer);
    }

    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        self.clock = self.clock.max(now);
        self.fail(why, SendStatus::FlushErr, host);
    }
}
