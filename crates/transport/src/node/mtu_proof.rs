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
        let silent = self.progress.silent();
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
        let question = question(&[0, 0], &[]);
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
        let mut sack = reflecting(entropy, 0);
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

    const TICK: u64 = Span::WIRE_TICK.0;

    /// A question about paths that leave by these ports, in ascending order; the entropy value of path `n` is 0xE0 + n.
    fn question(ports: &[u8], denied: &[PathId]) -> MtuQuestion {
        let paths = (0..).zip(ports).map(|(i, &port)| PathEntry { ev: Ev(0xE0 + i), port });
        let profile = Arc::new(EvProfile::new(&paths.collect::<Vec<_>>()).unwrap());
        let denied = denied.to_vec();
        MtuQuestion { dest_qp: 7, psn: PSN, path_mtu: 4096, profile, denied, entropy_bits: 32 }
    }

    /// A SACK that reflects what a packet was sent with.
    fn reflecting(entropy: Ev, timestamp: u16) -> Sack {
        Sack {
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
            cc: CcState { timestamp, ..CcState::default() },
        }
    }

    #[test]
    fn full_packets_take_turns_on_the_even_paths_and_short_ones_on_the_odd_and_both_on_what_is_left() {
        // Of five paths of a port these are switched off: then packets go there in turns, the full one first.
        type Turns = [&'static [(bool, PathId)]; 5];
        let table: [(&[PathId], Turns); 4] = [
            (
                &[],
                [
                    &[(true, 0), (false, 1)],
                    &[(true, 2), (false, 3)],
                    &[(true, 4), (false, 1)],
                    &[(true, 0), (false, 3)],
                    &[(true, 2), (false, 1)],
                ],
            ),
            // What is left keeps its number.
            (
                &[1, 2],
                [
                    &[(true, 0), (false, 3)],
                    &[(true, 4), (false, 3)],
                    &[(true, 0), (false, 3)],
                    &[(true, 4), (false, 3)],
                    &[(true, 0), (false, 3)],
                ],
            ),
            (&[1, 3], [&[(true, 0)], &[(false, 0)], &[(true, 2)], &[(false, 2)], &[(true, 4)]]),
            (&[0, 2, 4], [&[(true, 1)], &[(false, 1)], &[(true, 3)], &[(false, 3)], &[(true, 1)]]),
        ];
        for (denied, turns) in table {
            let question = question(&[0; 5], denied);
            let mut proof = MtuProof::new(Time::ZERO, 0, question.clone());
            for expected in turns {
                let now = proof.due;
                let Step::Send(packets, _) = proof.advance(now, PortSet::one(0), Some(question.clone()))
                else {
                    panic!("a turn is due")
                };
                let sent: Vec<_> = packets.iter().map(|t| (t.packet.payload_len == 4096, t.path)).collect();
                assert_eq!(sent, expected, "without {denied:?}");
            }
        }
    }

    #[test]
    fn time_stamps_of_full_packets_are_odd_and_those_of_short_ones_even() {
        for (ticks, expected) in [(6, [7, 6]), (7, [7, 6]), (8, [9, 8]), (0xFFFF, [0xFFFF, 0xFFFE])] {
            let question = question(&[0, 0], &[]);
            let mut proof = MtuProof::new(Time::ZERO, 0, question);
            let packets = proof.begin_turn(Time(ticks * TICK), PortSet::one(0));
            let sent = packets.iter().map(|transmit| match transmit.packet.body {
                Body::Write(write) => write.timestamp.map(|timestamp| timestamp.ticks),
                _ => None,
            });
            assert_eq!(sent.collect::<Vec<_>>(), expected.map(Some));
        }
    }

    #[test]
    fn an_answer_on_a_path_of_both_sizes_is_to_the_latest_packet_that_its_time_stamp_allows() {
        let packet = |is_full, ticks| Sent { ev: Ev(0xE0), port: 0, is_full, ticks };
        let all = [packet(true, 11), packet(false, 20), packet(true, 31)];
        let sent: Vec<_> = all.iter().collect();
        let which = |sack: &Sack| answered(&sent, sack).iter().map(|sent| sent.ticks).collect::<Vec<_>>();
        // The responder adds the time for which it has held the packet.
        for (reflected, expected) in [(11, 11), (19, 11), (20, 20), (30, 20), (31, 31), (40, 31)] {
            assert_eq!(which(&reflecting(Ev(0xE0), reflected)), [expected], "reflects {reflected}");
        }
        // Without a time stamp it is taken for the last.
        assert_eq!(which(&Sack { cc_type: Sack::CC_TYPE + 1, ..reflecting(Ev(0xE0), 11) }), [31]);
        // Where all are of one size, it does not matter.
        let alike = [sent[0], sent[2]];
        assert_eq!(answered(&alike, &reflecting(Ev(0xE0), 0)).len(), 2);
        assert!(answered(&[], &reflecting(Ev(0xE0), 0)).is_empty());
    }

    #[test]
    fn ports_that_have_answered_only_short_packets_are_narrow_and_those_without_any_answer_silent() {
        let progress = MtuProgress {
            path_mtu: 4096,
            asked: PortSet(0b1111_0000),
            full: PortSet(0b1100_1100),
            short: PortSet(0b1010_1010),
        };
        assert_eq!((progress.silent(), progress.narrow()), (PortSet(0b0001_0000), PortSet(0b0010_0010)));
        assert!(!progress.is_complete());
        assert!(MtuProgress { asked: PortSet(0b1100_0000), ..progress }.is_complete());
    }

    #[test]
    fn turns_last_twice_as_long_each_and_the_one_that_ends_after_a_second_is_the_last() {
        let (question, ports) = (question(&[0, 0], &[]), PortSet::one(0));
        let mut proof = MtuProof::new(Time::ZERO, 0, question.clone());
        let mut begun = Vec::new();
        let millis = |n| Time::ZERO + Span::from_millis(n);
        loop {
            let now = proof.due;
            match proof.advance(now, ports, Some(question.clone())) {
                Step::Send(_, silent) => {
                    // From the second turn on the port is known to be silent.
                    assert_eq!(silent, if begun.is_empty() { PortSet::EMPTY } else { ports });
                    begun.push(now);
                }
                Step::Wait => panic!("it is due"),
                Step::End(progress) => {
                    assert_eq!((progress.silent(), now), (ports, millis(1110)));
                    break;
                }
            }
            // Before its end nothing happens.
            let ends = proof.due;
            let early = Time(ends.0 - 1);
            assert!(matches!(proof.advance(early, ports, Some(question.clone())), Step::Wait));
            assert_eq!(proof.due, ends);
        }
        assert_eq!(begun, [0, 10, 30, 70, 150, 310, 470, 630, 790, 950].map(millis));
        // A driver that comes late: after exactly a second there is one more turn.
        let second = Time::ZERO + PATIENCE;
        for (late, ends) in [(second, false), (second + Span(1), true)] {
            let mut proof = MtuProof::new(Time::ZERO, 0, question.clone());
            proof.advance(Time::ZERO, ports, Some(question.clone()));
            let step = proof.advance(late, ports, Some(question.clone()));
            assert_eq!(matches!(step, Step::End(_)), ends);
        }
    }

    #[test]
    fn a_proof_ends_at_once_when_the_port_that_has_not_answered_goes_down() {
        let (question, slot) = (question(&[0, 0, 1, 1], &[]), 3);
        let mut proofs = MtuProofs::new();
        proofs.begin(Time::ZERO, slot, question.clone());
        let step = proofs.advance(Time::ZERO, slot, PortSet::first(2), Some(question.clone()));
        assert!(matches!(step, Step::Send(packets, _) if packets.len() == 4));
        proofs.on_sack(Time(5), slot, &reflecting(Ev(0xE0), 1));
        assert_eq!(proofs.next(Time(5)), None, "port 1 has not answered");
        proofs.ports_changed(Time(6));
        assert_eq!((proofs.due(), proofs.next(Time(6))), (Time(6), Some(slot)));
        let Step::End(progress) = proofs.advance(Time(6), slot, PortSet::one(0), Some(question)) else {
            panic!("nothing is left to prove")
        };
        assert_eq!((progress.asked, progress.full), (PortSet::one(0), PortSet::one(0)));
        assert_eq!((proofs.due(), proofs.next(Time::NEVER)), (Time::NEVER, None));
    }
}
