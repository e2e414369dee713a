//! Feedback of the responder: SACKs and their bitmaps, NACKs, transport ACKs and NAKs (docs/spec/transport.md, "When it
//! answers"). All packets of one report use the same reverse path: with one path per packet and an even number of
//! planes, the ACK that follows each SACK would use only every second plane.

use openmrc_wire::{Aeth, Body, CcState, Mark, Nack, NackReason, Packet, Psn, Sack, Timestamp, Write};

use super::{Report, Responder};
use crate::api::{Host, Pressure, Received};
use crate::mrc::paths::EvIndex;
use crate::mrc::shared::Shared;
use crate::seq::{Seq, wire};
use crate::time::{Span, Time};

/// PSNs in the bitmap of a SACK.
const BITMAP: u64 = 64;
/// The bitmap for a triggering PSN beyond the first one begins this far below it, to include packets that other planes
/// delivered before.
const BEHIND_TRIGGER: u64 = 55;
/// Largest number of SACKs in answer to one packet; later SACKs report the rest.
const MAX_SACKS: usize = 4;

/// A report that is being sent.
struct Outgoing {
    now: Time,
    /// The path that all its packets take.
    path: EvIndex,
    pressure: Pressure,
}

impl Responder {
    /// Reports the arrivals to the peer.
    pub(super) fn send_report(
        &mut self,
        shared: &mut Shared,
        now: Time,
        report: Report,
        host: &mut dyn Host,
    ) {
        let Report { trigger, probe, .. } = report;
        self.pending.unreported_bytes = 0;
        self.pending.sack_due = Time::NEVER;
        self.pending.batched = false;
        self.pending.flags.reported();
        let asked = probe.is_some();
        let path = if asked {
            let (received, rtt) = (shared.stats.data_packets_in as u32, shared.rtt.smoothed);
            shared.reverse.next_for_answer(now, &shared.paths, shared.ports_up, received, rtt)
        } else {
            shared.reverse.next(now, &shared.paths, shared.ports_up, false)
        };
        let Some(path) = path else { return };
        let out = Outgoing { now, path, pressure: self.pressure_to_tell() };
        let first_gap = self.cack() + 1;
        let seq = self.expand(trigger.psn);
        let main = if asked || seq < first_gap + BITMAP { first_gap } else { seq - BEHIND_TRIGGER };

        // PSNs that arrived since the last SACK and do not fit the bitmap above are reported in further SACKs. The
        // answer to a probe also reports every arrival above the first gap. They go first: the peer decides by the last
        // one, which has the trigger, what is lost. A mark goes with the first, which credits the bytes: they have not
        // passed unmarked.
        let (low, end) = std::mem::take(&mut self.pending.unreported);
        let (mut from, end) = if asked { (first_gap + BITMAP, self.high) } else { (low.max(first_gap), end) };
        let mut last = report;
        for _ in 1..MAX_SACKS {
            if (main..main + BITMAP).contains(&from) {
                from = main + BITMAP;
            }
            if from >= end {
                break;
            }
            if self.bitmap(from) != 0 {
                let mark = if asked { Mark::None } else { std::mem::take(&mut last.mark) };
                self.send_sack(shared, &out, Report { mark, probe: None, ..report }, from, host);
            }
            from += BITMAP;
        }
        self.send_sack(shared, &out, last, main, host);
        if report.repeats_ack || self.pending.acked_completed != self.messages.completed {
            self.send_ack(shared, path, host);
        }
    }

    /// The transport ACK of all that is complete.
    pub(super) fn send_ack(&mut self, shared: &Shared, path: EvIndex, host: &mut dyn Host) {
        self.pending.acked_completed = self.messages.completed;
        self.send_aeth(shared, Aeth::ACK, wire(self.cack()), path, host);
    }

    /// The pressure that the next report tells.
    fn pressure_to_tell(&mut self) -> Pressure {
        if self.granted.overflow_reports == 0 {
            return self.granted.pressure;
        }
        self.granted.overflow_reports -= 1;
        Pressure::OVERFLOW
    }

    fn send_sack(
        &mut self,
        shared: &mut Shared,
        out: &Outgoing,
        report: Report,
        base: Seq,
        host: &mut dyn Host,
    ) {
        let Report { trigger, mark, probe, delayed, .. } = report;
        let cack = wire(self.cack());
        let ack_psn_offset = match probe {
            Some(id) => id as i16,
            // A duplicate can be further back than 16 bits can express; then the offset is that of the cumulative
            // point.
            None => i16::try_from(trigger.psn.distance(cack)).unwrap_or(0),
        };
        let sack = Sack {
            mark,
            probe_reply: probe.is_some(),
            ack_psn_offset,
            entropy: trigger.ev,
            spdcid: shared.config.local_qp as u16,
            dpdcid: shared.config.remote_qp as u16,
            cack_psn: cack,
            cc_type: Sack::CC_TYPE,
            cc_flags: 0,
            mpr: if shared.config.caps.dynamic_mpr { self.granted.mpr } else { 0 },
            sack_offset: (base - self.cack()) as i16,
            bitmap: self.bitmap(base),
            cc: CcState {
                timestamp: reflect(
                    trigger.timestamp,
                    if delayed { out.now.since(trigger.arrived) } else { Span::ZERO },
                ),
                ooo_count: self.out_of_order.min(0x7FFF) as u16,
                restore_cwnd: out.pressure.restore,
                rcv_cwnd_pen: out.pressure.penalty.min(127),
                rcvd_bytes: self.rcvd_units(),
            },
        };
        shared.stats.sacks_sent += 1;
        let rtx = trigger.rtx;
        let packet = Packet { rtx, ..Packet::new(shared.config.remote_qp, cack, Body::Sack(sack)) };
        shared.send_control(packet, out.path, host);
    }

    /// A transport NAK.
    pub(super) fn send_nak(
        &self,
        shared: &mut Shared,
        now: Time,
        syndrome: u8,
        psn: Psn,
        host: &mut dyn Host,
    ) {
        if let Some(path) = shared.reverse.next(now, &shared.paths, shared.ports_up, false) {
            self.send_aeth(shared, syndrome, psn, path, host);
        }
    }

    pub(super) fn send_aeth(
        &self,
        shared: &Shared,
        syndrome: u8,
        psn: Psn,
        path: EvIndex,
        host: &mut dyn Host,
    ) {
        let aeth = Aeth { syndrome, msn: self.messages.completed & 0xFF_FFFF };
        shared.send_control(Packet::new(shared.config.remote_qp, psn, Body::Ack(aeth)), path, host);
    }

    /// A reliability NACK for a data packet.
    pub(super) fn send_nack(
        &self,
        shared: &mut Shared,
        now: Time,
        received: &Received,
        write: &Write,
        reason: NackReason,
        host: &mut dyn Host,
    ) {
        let Packet { psn, rtx, .. } = received.packet;
        let nack = Nack {
            reason,
            vendor_info: 0,
            entropy: received.ev,
            spdcid: shared.config.local_qp as u16,
            dpdcid: shared.config.remote_qp as u16,
            nack_psn: psn,
            cc_flags: 0,
            timestamp: write.timestamp.unwrap_or_default().ticks,
        };
        shared.stats.nacks_sent += 1;
        if let Some(path) = shared.reverse.next(now, &shared.paths, shared.ports_up, false) {
            let packet = Packet { rtx, ..Packet::new(shared.config.remote_qp, psn, Body::Nack(nack)) };
            shared.send_control(packet, path, host);
        }
    }
}

/// The timestamp to reflect, moved on by the time for which the responder held the packet, so that a delayed SACK does
/// not look like queueing delay. Only timestamps in the unit of the specification can be moved on; 0 stands for none.
fn reflect(timestamp: Option<Timestamp>, held: Span) -> u16 {
    let Some(timestamp) = timestamp else { return 0 };
    if timestamp.tsr {
        return timestamp.ticks;
    }
    timestamp.ticks.wrapping_add((held.0 / Span::WIRE_TICK.0) as u16)
}
