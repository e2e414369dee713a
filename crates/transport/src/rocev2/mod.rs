//! RoCEv2 reliable connection: the baseline that MRC is compared with (docs/spec/baselines.md, "RoCEv2 RC").
//!
//! All packets use one path, in order. The responder accepts only the expected PSN and answers a gap with one NAK. The
//! requestor goes back to the missing packet or, like later NICs, retransmits only that packet while the responder
//! keeps the later ones. DCQCN sets the rate. Only writes are supported.

mod config;
mod dcqcn;
mod responder;
mod sendq;

use openmrc_wire::{Aeth, Body, Packet, Psn};
use serde::{Deserialize, Serialize};

pub use config::{RcConfig, Recovery};
pub use dcqcn::DcqcnParams;

use crate::api::{
    Fatal, Host, PortSet, PostError, Readiness, Received, SendDone, SendStatus, TrafficClass, Transmit,
    Transport, WorkRequest,
};
use crate::seq::expand;
use crate::time::{Span, Time};
use dcqcn::Dcqcn;
use responder::Responder;
use sendq::SendQueue;

/// Counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
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

/// One end of a RoCEv2 connection.
#[derive(Serialize, Deserialize)]
pub struct QueuePair {
    config: RcConfig,
    clock: Time,
    error: Option<Fatal>,
    ports_up: PortSet,
    send: SendQueue,
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
            send: SendQueue::default(),
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
        self.send.has_work(self.config.window)
    }

    /// Everything below `seq` has arrived.
    fn acknowledged(&mut self, now: Time, seq: u64, host: &mut dyn Host) {
        let success = |wr: WorkRequest| SendDone { handle: wr.handle, status: SendStatus::Success };
        if self.send.acknowledge(seq, |wr| host.send_done(success(wr))) {
            self.progress_at = now;
            self.retries = 0;
        }
    }

    fn on_ack(&mut self, now: Time, psn: Psn, aeth: Aeth, host: &mut dyn Host) {
        let seq = expand(psn, self.send.unacknowledged());
        if seq > self.send.high() {
            return;
        }
        if aeth.is_ack() {
            if seq < self.send.high() {
                self.acknowledged(now, seq + 1, host);
            }
        } else if aeth.syndrome == Aeth::NAK_PSN_SEQUENCE {
            self.stats.naks += 1;
            self.acknowledged(now, seq, host);
            // An old NAK may ask for a packet that was acknowledged since.
            if seq >= self.send.unacknowledged() && seq < self.send.high() {
                self.send.recover(seq, self.config.recovery);
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
        for wr in self.send.drain() {
            host.send_done(SendDone { handle: wr.handle, status });
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
        if self.send.len() >= self.config.max_send_wr {
            return Err(PostError::QueueFull(self.send.len()));
        }
        if wr.len > 1 << 31 {
            return Err(PostError::TooLong(wr.len));
        }
        if self.send.is_empty() {
            self.progress_at = self.clock;
        }
        self.send.push(wr, self.config.path_mtu);
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
        if self.error.is_some() || !self.send.is_outstanding() || now < self.progress_at + self.config.timeout
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
        self.send.recover(self.send.unacknowledged(), self.config.recovery);
    }

    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        self.clock = self.clock.max(now);
        let port = self.config.port;
        if self.readiness() != Readiness::Ready || !ports.and(self.ports_up).contains(port) {
            return None;
        }
        let (seq, packet, payload) = self.send.take(&self.config)?;
        if !self.send.is_outstanding() {
            self.progress_at = self.clock;
        }
        self.stats.retransmits += u64::from(self.send.sent(seq));
        self.stats.data_packets += 1;
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
        let retry = match self.send.is_outstanding() {
            true => self.progress_at + self.config.timeout,
            false => Time::NEVER,
        };
        pace.min(retry)
    }

    fn readiness(&self) -> Readiness {
        if self.error.is_some() || self.send.is_empty() {
            Readiness::Idle
        } else if self.has_work() {
            if self.pace_at <= self.clock { Readiness::Ready } else { Readiness::Active }
        } else if self.send.has_unsent() {
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

    fn retire(&mut self, now: Time, _host: &mut dyn Host) {
        self.clock = self.clock.max(now);
        self.send = SendQueue::default();
    }
}
