//! What the responder sends back: SACKs with their bitmap windows, NACKs, transport ACKs and NAKs, and when
//! (spec: transport, "When it answers").

use openmrc_wire::{Aeth, Body, CcState, Mark, Nack, NackReason, Packet, Psn, Sack, Timestamp};

use super::QueuePair;
use super::paths::EvIndex;
use super::responder::Trigger;
use super::window::{Seq, wire};
use crate::api::{Host, TrafficClass};
use crate::time::{Span, Time};

/// PSNs one SACK describes.
const BITMAP: u64 = 64;
/// The window around a triggering PSN beyond the first gap begins so far below it, leaving room for what other planes
/// delivered ahead of it.
const BEHIND_TRIGGER: u64 = 55;
/// At most so many SACKs answer one packet; what they do not tell, later ones will.
const MAX_SACKS: usize = 4;

/// What a SACK answers.
#[derive(Clone, Copy)]
pub(super) struct Report {
    pub trigger: Trigger,
    /// What is said about the trigger's path.
    pub mark: Mark,
    /// The id of the reliability probe answered, if it is one.
    pub probe: Option<u16>,
}

impl QueuePair {
    /// Tells the peer what has arrived.
    pub(super) fn send_report(&mut self, now: Time, report: Report, host: &mut dyn Host) {
        let Report { trigger, probe, .. } = report;
        self.responder.unreported_bytes = 0;
        self.sack_due = Time::NEVER;
        let asked = probe.is_some();
        let Some(back) = self.reverse.next(now, &self.paths, self.ports_up, asked) else { return };
        let first_gap = self.responder.cack() + 1;
        let high = self.responder.high();
        let seq = self.responder.expand(trigger.psn);
        let main = if probe.is_some() || seq < first_gap + BITMAP { first_gap } else { seq - BEHIND_TRIGGER };
        self.send_sack(now, report, main, back, host);

        // PSNs that arrived since the last SACK and do not fit the window above get windows of their own; so does, in
        // answer to a probe, all that lies above the first gap.
        let unreported = self.responder.dirty.take().map(|(low, end)| (low.max(first_gap), end));
        let (mut from, end) = match (probe, unreported) {
            (Some(_), _) => (first_gap + BITMAP, high),
            (None, Some(range)) => range,
            (None, None) => (high, high),
        };
        let more = Report { mark: Mark::None, probe: None, ..report };
        for _ in 1..MAX_SACKS {
            if (main..main + BITMAP).contains(&from) {
                from = main + BITMAP;
            }
            if from >= end {
                break;
            }
            if self.responder.bitmap(from) != 0 {
                self.send_sack(now, more, from, back, host);
            }
            from += BITMAP;
        }
        // A probe asks for the latest ACK as well, whether or not it was sent before.
        if probe.is_some() || self.acked_completed != self.responder.completed() {
            self.acked_completed = self.responder.completed();
            self.send_aeth(Aeth::ACK, back, host);
        }
    }

    fn send_sack(&mut self, now: Time, report: Report, base: Seq, back: EvIndex, host: &mut dyn Host) {
        let Report { trigger, mark, probe } = report;
        let cack = wire(self.responder.cack());
        let ack_psn_offset = match probe {
            Some(id) => id as i16,
            // A duplicate can lie further back than 16 bits reach; then the offset says "the cumulative point".
            None => i16::try_from(trigger.psn.distance(cack)).unwrap_or(0),
        };
        let sack = Sack {
            mark,
            probe_reply: probe.is_some(),
            ack_psn_offset,
            entropy: trigger.ev,
            spdcid: self.config.local_qp as u16,
            dpdcid: self.config.remote_qp as u16,
            cack_psn: cack,
            cc_flags: 0,
            mpr: self.advertised_mpr,
            sack_offset: (base - self.responder.cack()) as i16,
            bitmap: self.responder.bitmap(base),
            cc: CcState {
                timestamp: self.reflect(trigger.timestamp, now.since(trigger.arrived)),
                ooo_count: self.responder.out_of_order().min(0x7FFF) as u16,
                restore_cwnd: self.receive_pressure.restore,
                rcv_cwnd_pen: self.receive_pressure.penalty,
                rcvd_bytes: self.responder.rcvd_units(),
            },
        };
        self.stats.sacks_sent += 1;
        self.send_control(Packet::new(self.config.remote_qp, cack, Body::Sack(sack)), back, host);
    }

    /// A timestamp as it goes back: untouched, or - where its owner asked for it and both ends can - moved on by the time
    /// it waited here, so that a delayed SACK does not look like a queue.
    fn reflect(&self, timestamp: Timestamp, held: Span) -> u16 {
        if timestamp.service_time && self.config.caps.service_time {
            timestamp.ticks.wrapping_add((held.0 / Span::WIRE_TICK.0) as u16)
        } else {
            timestamp.ticks
        }
    }

    /// A transport NAK.
    pub(super) fn send_nak(&mut self, now: Time, syndrome: u8, host: &mut dyn Host) {
        if let Some(back) = self.reverse.next(now, &self.paths, self.ports_up, false) {
            self.send_aeth(syndrome, back, host);
        }
    }

    fn send_aeth(&mut self, syndrome: u8, back: EvIndex, host: &mut dyn Host) {
        let aeth = Aeth { syndrome, msn: self.responder.completed() as u32 & 0xFF_FFFF };
        let psn = wire(self.responder.cack());
        self.send_control(Packet::new(self.config.remote_qp, psn, Body::Ack(aeth)), back, host);
    }

    /// A reliability NACK.
    pub(super) fn send_nack(
        &mut self,
        now: Time,
        psn: Psn,
        ev: openmrc_wire::Ev,
        timestamp: Timestamp,
        reason: NackReason,
        host: &mut dyn Host,
    ) {
        let nack = Nack {
            reason,
            vendor_info: 0,
            entropy: ev,
            spdcid: self.config.local_qp as u16,
            dpdcid: self.config.remote_qp as u16,
            nack_psn: psn,
            cc_flags: 0,
            timestamp: timestamp.ticks,
        };
        self.stats.nacks_sent += 1;
        if let Some(back) = self.reverse.next(now, &self.paths, self.ports_up, false) {
            self.send_control(Packet::new(self.config.remote_qp, psn, Body::Nack(nack)), back, host);
        }
    }

    /// Feedback takes a reverse path, in the control class; all the packets of one report the same one. Planes take turns
    /// from report to report: were it from packet to packet, the ACK behind each SACK would meet the same half of an even
    /// number of planes for ever.
    fn send_control(&self, packet: Packet, back: EvIndex, host: &mut dyn Host) {
        host.transmit(self.paths.transmit(packet, back, TrafficClass::Control, None));
    }
}
