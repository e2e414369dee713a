//! Packets that no node of the run would send: repeated old packets, and well-formed packets without meaning.
//!
//! MRC has no authentication, so a forged packet in the middle of the window is indistinguishable from a genuine one if
//! its length is right. Therefore every packet made here is out of range (beyond the window, ahead of what was sent, or
//! about nothing), or has a length that would leave a hole in its message.

use openmrc_transport::{PortSet, Received};
use openmrc_wire::{
    Aeth, Body, CcState, Eeth, EndpointOp, Ev, Mark, Nack, NackReason, Packet, Position, Probe, Psn, Sack,
    Timestamp, Write,
};

use super::Dice;
use super::ledger::Flow;

/// A meaningless packet for the queue pair `dest_qp`; `outgoing` is the flow that it sends, `incoming` the flow that it
/// receives.
pub fn garbage(
    dest_qp: u32,
    from_qp: u32,
    outgoing: &Flow,
    incoming: &Flow,
    ports: PortSet,
    dice: &mut Dice,
) -> Received {
    let far = |dice: &mut Dice| dice.between(1 << 16, (1 << 22) - 1) as i32;
    let (spdcid, dpdcid) = (from_qp as u16, dest_qp as u16);
    let beyond = |flow: &Flow, dice: &mut Dice| flow.next_psn().offset(far(dice));
    let timestamp = Timestamp { ticks: dice.u64() as u16, tsr: dice.chance(0.5) };
    let entropy = Ev(dice.u64() as u32);
    let (psn, body, payload_len) = match dice.below(8) {
        // Data far beyond the responder's window.
        0 => {
            let psn = beyond(incoming, dice);
            let write = Write {
                position: Position::Only,
                rqmsn: openmrc_wire::Msn(dice.u64() as u16),
                msn: openmrc_wire::Msn(dice.u64() as u16),
                timestamp: Some(timestamp),
                va: dice.u64(),
                rkey: incoming.rkey(),
                dma_len: 64,
                imm: dice.chance(0.5).then_some(7),
            };
            (psn, Body::Write(write), 64)
        }
        // Acknowledgement of a packet that was never sent.
        1 | 2 => {
            let cack_psn = beyond(outgoing, dice);
            let sack = Sack {
                mark: dice.pick(&[Mark::None, Mark::SkipOnce, Mark::AlwaysSkip]),
                probe_reply: false,
                ack_psn_offset: dice.u64() as i16,
                entropy,
                spdcid,
                dpdcid,
                cack_psn,
                cc_type: Sack::CC_TYPE,
                cc_flags: 0,
                mpr: dice.u64() as u8,
                sack_offset: dice.below(1000) as i16,
                bitmap: dice.u64(),
                cc: CcState {
                    timestamp: timestamp.ticks,
                    rcvd_bytes: dice.u64() as u32 & 0xFF_FFFF,
                    ..CcState::default()
                },
            };
            (cack_psn, Body::Sack(sack), 0)
        }
        // NACK for a packet that was never sent.
        3 => {
            let nack_psn = beyond(outgoing, dice);
            let reason = dice.pick(&[NackReason::Trimmed, NackReason::PsnOorWindow, NackReason::NoBitmap]);
            let nack = Nack {
                reason,
                vendor_info: 0,
                entropy,
                spdcid,
                dpdcid,
                nack_psn,
                cc_flags: 0,
                timestamp: timestamp.ticks,
            };
            (nack_psn, Body::Nack(nack), 0)
        }
        // Completion of a message that was never posted.
        4 => {
            let msn = (outgoing.posted() as u32).wrapping_add(far(dice) as u32) & 0xFF_FFFF;
            (Psn::new(dice.u64() as u32), Body::Ack(Aeth { syndrome: Aeth::ACK, msn }), 0)
        }
        // A probe: valid, must be answered.
        5 => {
            let probe = Probe { vendor_info: 0, probe_id: dice.u64() as u16, spdcid, dpdcid, timestamp };
            (Psn::new(dice.u64() as u32), Body::Probe(probe), 0)
        }
        // Not for queue pairs.
        6 => (
            Psn::new(dice.u64() as u32),
            Body::EndpointResponse(Eeth { op: EndpointOp::EvProbe, timestamp: timestamp.ticks }),
            0,
        ),
        _ => (Psn::new(dice.u64() as u32), Body::RcAck(Aeth { syndrome: Aeth::NAK_PSN_SEQUENCE, msn: 0 }), 0),
    };
    let mut packet = Packet::new(dest_qp, psn, body);
    packet.payload_len = payload_len;
    packet.ack_req = dice.chance(0.5);
    packet.rtx = dice.chance(0.3);
    let up: Vec<u8> = ports.iter().collect();
    Received { packet, ev: entropy, port: dice.pick(&up), ecn_ce: dice.chance(0.2), trim: None }
}

/// What an attacker on the path makes of a data packet or of one near it: a packet that is shorter than its place in the
/// message demands, empty, or the end of a message that is not over.
pub fn hole(seen: &Received, write: &Write, path_mtu: u16, dice: &mut Dice) -> Received {
    let mut forged = *seen;
    let short = |dice: &mut Dice| dice.pick(&[0, 1, path_mtu / 2, path_mtu - 1]);
    let (position, dma_len, len) = match dice.below(4) {
        0 => (Position::First, u32::from(path_mtu) * 2, short(dice)),
        1 => (Position::Middle, write.dma_len.max(path_mtu.into()), short(dice)),
        2 => (Position::Last, u32::from(path_mtu) * 3, short(dice)),
        _ => (Position::Only, u32::from(path_mtu), short(dice)),
    };
    forged.packet.body = Body::Write(Write { position, dma_len, imm: None, ..*write });
    forged.packet.payload_len = len;
    forged.packet.psn = seen.packet.psn.offset(dice.below(3) as i32);
    forged.trim = None;
    forged
}

/// What an attacker on the path makes of a SACK: feedback about packets in flight that have not arrived, or have. It never
/// says that a message is complete which is not: nothing in a genuine ACK tells it from such a one. `complete` of the
/// requestor's messages are.
pub fn feedback(seen: &Received, sack: &Sack, complete: usize, dice: &mut Dice) -> Received {
    let near = |dice: &mut Dice| dice.below(80) as i32 - 16;
    let mut forged = Sack { cc: CcState { timestamp: dice.u64() as u16, ..sack.cc }, ..*sack };
    let (psn, body) = match dice.below(16) {
        // Packets that are on their way have arrived, or their successors.
        0..=3 => {
            forged.cack_psn = sack.cack_psn.offset(near(dice));
            (forged.cack_psn, Body::Sack(forged))
        }
        4..=7 => {
            forged.bitmap |= dice.u64() & dice.u64();
            forged.sack_offset = sack.sack_offset.saturating_add(near(dice) as i16);
            (seen.packet.psn, Body::Sack(forged))
        }
        // Signals: of the path, the window, the rate.
        8..=10 => {
            forged.mark = dice.pick(&[Mark::None, Mark::SkipOnce, Mark::AlwaysSkip]);
            forged.entropy = if dice.chance(0.5) { sack.entropy } else { Ev(dice.u64() as u32) };
            forged.mpr = dice.u64() as u8;
            forged.cc.rcvd_bytes = dice.u64() as u32 & 0xFF_FFFF;
            forged.cc.rcv_cwnd_pen = dice.u64() as u8 & 0x7F;
            (seen.packet.psn, Body::Sack(forged))
        }
        11..=13 => {
            let reasons = [
                NackReason::Trimmed,
                NackReason::TrimmedLastHop,
                NackReason::PsnOorWindow,
                NackReason::NoBitmap,
            ];
            let nack = Nack {
                reason: dice.pick(&reasons),
                vendor_info: 0,
                entropy: sack.entropy,
                spdcid: sack.spdcid,
                dpdcid: sack.dpdcid,
                nack_psn: sack.cack_psn.offset(near(dice)),
                cc_flags: 0,
                timestamp: dice.u64() as u16,
            };
            (nack.nack_psn, Body::Nack(nack))
        }
        14 => {
            let msn = complete.saturating_sub(dice.below(4) as usize) as u32 & 0xFF_FFFF;
            (sack.cack_psn.offset(near(dice)), Body::Ack(Aeth { syndrome: Aeth::ACK, msn }))
        }
        _ => {
            let syndrome = dice.pick(&[Aeth::NAK_INVALID_REQUEST, Aeth::NAK_REMOTE_ACCESS]);
            let msn = complete as u32 & 0xFF_FFFF;
            (sack.cack_psn.offset(near(dice)), Body::Ack(Aeth { syndrome, msn }))
        }
    };
    let packet = Packet { psn, body, ..seen.packet };
    Received { packet, trim: None, ..*seen }
}

/// A trimmed packet has no iCRC: a flipped bit in its headers is not detected.
pub fn garble(received: &mut Received, dice: &mut Dice) {
    match (&mut received.packet.body, dice.below(4)) {
        (_, 0) => received.packet.psn = Psn::new(received.packet.psn.get() ^ 1 << dice.below(24)),
        (_, 1) => received.ev = Ev(received.ev.0 ^ 1 << dice.below(32)),
        (Body::Write(write), 2) => write.va ^= 1 << dice.below(64),
        (Body::Write(write), _) => {
            write.timestamp =
                write.timestamp.map(|t| Timestamp { ticks: t.ticks ^ 1 << dice.below(16), ..t });
        }
        _ => {}
    }
}
