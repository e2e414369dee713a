//! Proof of the path MTU: before an application sends anything, a queue pair sends a packet of full size on each port. It
//! is a write whose PSN lies just below the first one, so every responder takes it for a duplicate: it places nothing,
//! and answers with a SACK that reflects the packet's entropy value. ICMP messages prove nothing: anybody can forge them.

use openmrc_wire::{Body, Ev, Packet, Sack, Write};

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
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
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
struct Sent {
    ev: Ev,
    port: u8,
    is_full: bool,
}

/// The proof of one queue pair.
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

    /// `usable` are the ports that are up at both ends, as far as is known.
    fn advance(&mut self, now: Time, usable: PortSet) -> Step {
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
        self.progress.asked = usable;
        let mut packets = Vec::new();
        for port in usable.iter().filter(|&port| !self.progress.full.contains(port)) {
            let paths: Vec<(PathId, PathEntry)> = (0..)
                .zip(self.question.profile.entries().iter().copied())
                .filter(|(_, e)| e.port == port)
                .collect();
            // Late answers must not be mistaken: of the paths of a port, those with even numbers carry packets of full
            // size only, and the others short ones only.
            let (wide, short) = (paths.len().div_ceil(2).max(1), (paths.len() / 2).max(1));
            let choice = match paths.len() {
                // With a single path a full packet and a short one take turns.
                1 => vec![(turn.is_multiple_of(2), 0)],
                _ => vec![(true, 2 * (turn % wide)), (false, 2 * (turn % short) + 1)],
            };
            for (is_full, at) in choice {
                let Some(&(path, entry)) = paths.get(at) else { continue };
                let len = if is_full { self.progress.path_mtu } else { 0 };
                let body = Body::Write(Write::duplicate(len, now.wire_ticks()));
                let mut packet = Packet::new(self.question.dest_qp, self.question.psn, body);
                (packet.payload_len, packet.ack_req) = (len, true);
                self.sent.push(Sent { ev: entry.ev, port, is_full });
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
        for sent in self.sent.iter().filter(|sent| sent.ev.matches(entropy, bits)) {
            let progress = &mut self.progress;
            let ports = if sent.is_full { &mut progress.full } else { &mut progress.short };
            *ports = ports.with(sent.port);
        }
        if self.progress.is_complete() {
            self.due = now;
        }
    }
}

/// The proofs of a node.
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

    /// Goes on with the proof of a queue pair, whose ports `usable` are up. A proof that ends is forgotten.
    pub fn advance(&mut self, now: Time, slot: Slot, usable: PortSet) -> Step {
        let Some(proof) = self.proofs.iter_mut().find(|proof| proof.slot == slot) else {
            return Step::Wait;
        };
        let step = proof.advance(now, usable);
        match step {
            Step::End(_) => self.forget(slot),
            Step::Wait | Step::Send(..) => self.find_due(),
        }
        step
    }
}
