//! Proof of the path MTU: before an application sends anything, a queue pair sends a packet of full size on each port. It
//! is a write whose PSN lies just below the first one, so every responder takes it for a duplicate: it places nothing,
//! and answers with a SACK that reflects the packet's entropy value. ICMP messages prove nothing: anybody can forge them.

use openmrc_wire::{Body, Ev, Packet, Sack, Write};
use serde::{Deserialize, Serialize};

use super::ids::Slot;
use crate::api::{MtuQuestion, PortSet, TrafficClass, Transmit};
use crate::profile::{PathEntry, PathId};
use crate::time::{Span, Time};

/// The time between two turns at first, which doubles, and the longest one \[choice\].
const FIRST_PAUSE: Span = Span::from_millis(10);
const LONGEST_PAUSE: Span = Span::from_millis(160);
/// A turn that ends later is the last \[choice\].
const PATIENCE: Span = Span::from_secs(1);

/// What a proof of the path MTU has shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MtuProgress {
    /// Payload bytes of a packet of full size.
    pub path_mtu: u16,
    /// Ports that must answer: those that are not known to be down.
    pub asked: PortSet,
    /// Ports on which a packet of full size was answered.
    pub full: PortSet,
    /// Ports on which a packet without payload was answered.
    pub short: PortSet,
}

impl MtuProgress {
    /// Ports that have answered nothing.
    pub fn silent(self) -> PortSet {
        PortSet(self.asked.0 & !self.full.0 & !self.short.0)
    }

    /// Ports that have answered short packets only.
    pub fn narrow(self) -> PortSet {
        PortSet(self.short.0 & !self.full.0)
    }

    /// Whether packets of full size were answered on all ports that must answer.
    pub fn is_complete(self) -> bool {
        self.asked.0 & !self.full.0 == 0
    }
}

/// A packet that was sent.
#[derive(Serialize, Deserialize)]
struct Sent {
    ev: Ev,
    port: u8,
    is_full: bool,
    /// Its time stamp, which an answer reflects.
    ticks: u16,
}

/// The proof of one queue pair.
#[derive(Serialize, Deserialize)]
struct MtuProof {
    slot: Slot,
    question: MtuQuestion,
    /// Turns begun. The number of a turn chooses its paths.
    turns: usize,
    sent: Vec<Sent>,
    progress: MtuProgress,
    begun: Time,
    /// When the present turn ends, and how long it lasts.
    turn_ends: Time,
    pause: Span,
    /// When it is looked at again.
    due: Time,
}

impl MtuQuestion {
    /// The paths of a port that may be used, each with its number among all paths of the port.
    fn paths_on(&self, port: u8) -> Vec<(usize, (PathId, PathEntry))> {
        let all = (0..).zip(self.profile.entries().iter().copied()).filter(|(_, entry)| entry.port == port);
        all.enumerate().filter(|(_, (path, _))| !self.denied.contains(path)).collect()
    }
}

/// What happens next in a proof.
pub(super) enum Step {
    /// Nothing before its next deadline.
    Wait,
    /// These packets are sent. On these ports nothing was answered in the turn before: the peer is asked about them.
    Send(Vec<Transmit>, PortSet),
    /// It has ended.
    End(MtuProgress),
}

impl MtuProof {
    fn new(now: Time, slot: Slot, question: MtuQuestion) -> Self {
        MtuProof {
            slot,
            turns: 0,
            sent: Vec::new(),
            progress: MtuProgress { path_mtu: question.path_mtu, ..MtuProgress::default() },
            question,
            begun: now,
            turn_ends: now,
            pause: FIRST_PAUSE,
            due: now,
        }
    }

    /// `usable` are the ports that are up at both ends, as far as is known. Without a `question` the queue pair can send
    /// no more.
    fn advance(&mut self, now: Time, usable: PortSet, question: Option<MtuQuestion>) -> Step {
        let Some(question) = question else { return Step::End(self.progress) };
        self.question = question;
        if self.turns > 0 {
            self.progress.asked = self.progress.asked.and(usable);
            let is_over = now >= self.turn_ends && now.since(self.begun) > PATIENCE;
            if self.progress.is_complete() || is_over {
                return Step::End(self.progress);
            }
        }
        if now < self.turn_ends {
            self.due = self.turn_ends;
            return Step::Wait;
        }
        let silent = if self.turns > 0 { self.progress.silent() } else { PortSet::EMPTY };
        let packets = self.begin_turn(now, usable);
        self.turn_ends = now + self.pause;
        self.pause = self.pause.times(2).min(LONGEST_PAUSE);
        self.due = if self.progress.is_complete() { now } else { self.turn_ends };
        Step::Send(packets, silent)
    }

    /// A packet of full size and one without payload, on two paths of each port that has not answered.
    fn begin_turn(&mut self, now: Time, usable: PortSet) -> Vec<Transmit> {
        let turn = self.turns;
        self.turns += 1;
        self.progress.asked = PortSet::EMPTY;
        let mut packets = Vec::new();
        for port in usable.iter() {
            let paths = self.question.paths_on(port);
            if paths.is_empty() {
                continue;
            }
            self.progress.asked = self.progress.asked.with(port);
            if self.progress.full.contains(port) {
                continue;
            }
            // Late answers must not be mistaken: of the paths of a port, those with even numbers carry packets of full
            // size only, and the others short ones only.
            let of_class = |odd| paths.iter().filter(move |path| path.0 % 2 == odd).map(|path| path.1);
            let (wide, short): (Vec<_>, Vec<_>) = (of_class(0).collect(), of_class(1).collect());
            let choice = if wide.is_empty() || short.is_empty() {
                // A full packet and a short one take turns on a path, and their time stamps tell them apart.
                let all = [wide, short].concat();
                vec![(turn.is_multiple_of(2), all[turn / 2 % all.len()])]
            } else {
                vec![(true, wide[turn % wide.len()]), (false, short[turn % short.len()])]
            };
            for (is_full, (path, entry)) in choice {
                let len = if is_full { self.progress.path_mtu } else { 0 };
                // Those of full packets are odd, so that no two of different size are equal.
                let ticks = now.wire_ticks() & !1 | u16::from(is_full);
                let body = Body::Write(Write::duplicate(len, ticks));
                let mut packet = Packet::new(self.question.dest_qp, self.question.psn, body);
                (packet.payload_len, packet.ack_req) = (len, true);
                self.sent.push(Sent { ev: entry.ev, port, is_full, ticks });
                let class = TrafficClass::Data;
                packets.push(Transmit { packet, ev: entry.ev, path, port, class, payload: None });
            }
        }
        packets
    }

    fn on_sack(&mut self, now: Time, sack: &Sack) {
        if sack.cack_psn != self.question.psn || sack.probe_reply {
            return;
        }
        // Readings differ on the order of the halves. An answer as the specification has it is taken for nothing else.
        let bits = self.question.entropy_bits;
        let is_exact = self.sent.iter().any(|sent| sent.ev.matches(sack.entropy, bits));
        let entropy = if is_exact { sack.entropy } else { sack.entropy.swapped() };
        let sent: Vec<&Sent> = self.sent.iter().filter(|sent| sent.ev.matches(entropy, bits)).collect();
        let progress = &mut self.progress;
        for sent in answered(&sent, sack) {
            let ports = if sent.is_full { &mut progress.full } else { &mut progress.short };
            *ports = ports.with(sent.port);
        }
        if self.progress.is_complete() {
            self.due = now;
        }
    }
}

/// Which of these packets of one entropy value a SACK answers: any, or where some of them are full and some are short the
/// one whose time stamp it reflects. The responder adds the time for which it has held the packet.
fn answered<'a, 's>(sent: &'a [&'s Sent], sack: &Sack) -> &'a [&'s Sent] {
    if sent.windows(2).all(|two| two[0].is_full == two[1].is_full) {
        return sent;
    }
    let latest = sent.len() - 1;
    let held = |&at: &usize| sack.cc.timestamp.wrapping_sub(sent[at].ticks);
    let is_reflected = sack.cc_type == Sack::CC_TYPE;
    let at = (0..sent.len()).min_by_key(held).filter(|_| is_reflected).unwrap_or(latest);
    &sent[at..=at]
}

/// The proofs of a node.
#[derive(Serialize, Deserialize)]
pub(super) struct MtuProofs {
    /// When the first of them is to be looked at.
    due: Time,
    proofs: Vec<MtuProof>,
}

impl MtuProofs {
    pub fn new() -> Self {
        MtuProofs { due: Time::NEVER, proofs: Vec::new() }
    }

    /// Begins the proof of a queue pair, in place of one that has not ended.
    pub fn begin(&mut self, now: Time, slot: Slot, question: MtuQuestion) {
        self.forget(slot);
        self.proofs.push(MtuProof::new(now, slot, question));
        self.find_due();
    }

    /// A queue pair is removed.
    pub fn forget(&mut self, slot: Slot) {
        if !self.proofs.is_empty() {
            self.proofs.retain(|proof| proof.slot != slot);
            self.find_due();
        }
    }

    fn find_due(&mut self) {
        self.due = self.proofs.iter().map(|proof| proof.due).min().unwrap_or(Time::NEVER);
    }

    /// A SACK has come for a queue pair.
    #[inline]
    pub fn on_sack(&mut self, now: Time, slot: Slot, sack: &Sack) {
        if !self.proofs.is_empty() {
            self.take_answer(now, slot, sack);
        }
    }

    #[cold]
    fn take_answer(&mut self, now: Time, slot: Slot, sack: &Sack) {
        self.proofs.iter_mut().filter(|proof| proof.slot == slot).for_each(|proof| proof.on_sack(now, sack));
        self.find_due();
    }

    /// Ports have come up or gone down: proofs may be complete.
    pub fn ports_changed(&mut self, now: Time) {
        self.proofs.iter_mut().for_each(|proof| proof.due = now);
        self.find_due();
    }

    /// When [`Self::next`] has something.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// A queue pair whose proof is due.
    pub fn next(&self, now: Time) -> Option<Slot> {
        self.proofs.iter().find(|proof| proof.due <= now).map(|proof| proof.slot)
    }

    /// Goes on with the proof of a queue pair, whose ports `usable` are up and which now asks this. A proof that ends is
    /// forgotten.
    pub fn advance(&mut self, now: Time, slot: Slot, usable: PortSet, question: Option<MtuQuestion>) -> Step {
        let Some(proof) = self.proofs.iter_mut().find(|proof| proof.slot == slot) else {
            return Step::Wait;
        };
        let step = proof.advance(now, usable, question);
        match step {
            Step::End(_) => self.forget(slot),
            Step::Wait | Step::Send(..) => self.find_due(),
        }
        step
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openmrc_wire::{CcState, Mark, Psn};

    use super::*;
    use crate::profile::EvProfile;

    const PSN: Psn = Psn::new(99);

    /// A proof on one port with two paths, and the entropy value of the packet of full size that it has sent.
    fn begun() -> (MtuProof, Ev) {
        let path = |ev| PathEntry { ev: Ev(ev), port: 0 };
        let profile = Arc::new(EvProfile::new(&[path(0xE0), path(0xE1)]).unwrap());
        let (denied, entropy_bits) = (Vec::new(), 32);
        let question = MtuQuestion { dest_qp: 7, psn: PSN, path_mtu: 4096, profile, denied, entropy_bits };
        let mut proof = MtuProof::new(Time::ZERO, 0, question.clone());
        let Step::Send(sent, _) = proof.advance(Time::ZERO, PortSet::first(1), Some(question)) else {
            panic!("it sends at once")
        };
        let full = sent.iter().find(|transmit| transmit.packet.payload_len == 4096).unwrap();
        (proof, full.ev)
    }

    /// The SACK that answers the packet of full size, changed: whether it counts as an answer.
    fn counts(change: impl FnOnce(&mut Sack)) -> bool {
        let (mut proof, entropy) = begun();
        let mut sack = Sack {
            mark: Mark::None,
            probe_reply: false,
            ack_psn_offset: 0,
            entropy,
            spdcid: 0,
            dpdcid: 0,
            cack_psn: PSN,
            cc_type: Sack::CC_TYPE,
            cc_flags: 0,
            mpr: 0,
            sack_offset: 1,
            bitmap: 0,
            cc: CcState::default(),
        };
        change(&mut sack);
        proof.on_sack(Time(1), &sack);
        proof.progress.is_complete()
    }

    #[test]
    fn only_a_sack_of_what_lies_below_the_first_packet_is_an_answer() {
        assert!(counts(|_| ()));
        assert!(counts(|sack| sack.entropy = sack.entropy.swapped()));
        // Once data has arrived, other packets may have caused it.
        assert!(!counts(|sack| sack.cack_psn = PSN.offset(1)));
        assert!(!counts(|sack| sack.probe_reply = true));
        assert!(!counts(|sack| sack.entropy = Ev(0xE2)));
    }
}
