//! Proof of the path MTU: before an application sends anything, a queue pair sends a packet of full size on each port. It
//! is a write whose PSN lies just below the first one, so every responder takes it for a duplicate: it places nothing,
//! and answers with a SACK that reflects the packet's entropy value. ICMP messages prove nothing: anybody can forge them.

use openmrc_transport::node::Place;
use openmrc_transport::{PortSet, Time, TrafficClass};
use openmrc_wire::{Body, Ev, Packet, Psn, Sack, Write};

use super::Engine;
use crate::attr::DEFAULT_PATH_MTU;
use crate::error::{Error, Result};
use crate::piece::Piece;
use crate::shared::Shared;

/// A packet that was sent to see whether it is answered.
struct Sent {
    ev: Ev,
    port: u8,
    full: bool,
}

/// The proof that one queue pair waits for.
pub(super) struct MtuProof {
    place: Place,
    /// PSN of the packets, which is the cumulative point in the answers.
    psn: Psn,
    /// Bits of the paths' entropy values.
    entropy_bits: u8,
    sent: Vec<Sent>,
    pub progress: MtuProgress,
}

/// The ports that have answered.
#[derive(Clone, Copy, Default)]
pub(crate) struct MtuProgress {
    pub path_mtu: u16,
    /// Ports that must answer: those that are not known to be down.
    pub asked: PortSet,
    /// Packets of full size, and packets without payload.
    pub full: PortSet,
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

    pub fn is_complete(self) -> bool {
        self.asked.0 & !self.full.0 == 0
    }
}

impl MtuProof {
    /// A SACK has come for a queue pair.
    pub fn on_sack(&mut self, place: Place, sack: &Sack) {
        if place != self.place || sack.cack_psn != self.psn || sack.probe_reply {
            return;
        }
        for sent in &self.sent {
            if sent.ev.is_reflected_by(sack.entropy, self.entropy_bits) {
                let ports = if sent.full { &mut self.progress.full } else { &mut self.progress.short };
                *ports = ports.with(sent.port);
            }
        }
    }
}

impl Engine {
    /// Begins the proof for a queue pair that has sent nothing yet.
    pub fn begin_mtu_proof(&mut self, place: Place) -> Result<()> {
        let attr = &self.io(place)?.attr;
        let psn = Psn::new(attr.sq_psn.unwrap_or(0)).offset(-1);
        let path_mtu = attr.path_mtu.unwrap_or(DEFAULT_PATH_MTU);
        let progress = MtuProgress { path_mtu, ..MtuProgress::default() };
        self.mtu_proofs.retain(|proof| proof.place != place);
        let entropy_bits = self.config.entropy.bits();
        self.mtu_proofs.push(MtuProof { place, psn, entropy_bits, sent: Vec::new(), progress });
        Ok(())
    }

    /// Sends a packet of full size and one without payload on two paths of each port that has not answered. `turn`
    /// chooses the paths. A port that has not answered anything in the turn before is probably down, and the peer is asked
    /// whether it is.
    pub fn continue_mtu_proof(
        &mut self,
        shared: &Shared,
        now: Time,
        place: Place,
        turn: usize,
    ) -> Result<()> {
        let usable = self.qp_ports(place)?;
        let io = self.verbs.get(place).ok_or(Error::Closed("the queue pair"))?;
        let link = io.link.as_ref().ok_or(Error::Closed("the queue pair"))?;
        let proof = self.mtu_proofs.iter_mut().find(|proof| proof.place == place);
        let proof = proof.ok_or(Error::Closed("the proof"))?;
        proof.sent.clear();
        proof.progress.asked = usable;
        let (peer, silent) = (link.peer, proof.progress.silent());
        let zeros = [0; 1 << 13];
        for port in usable.iter().filter(|&port| !proof.progress.full.contains(port)) {
            let on_port = |(entry, _): &(&openmrc_transport::PathEntry, &u16)| entry.port == port;
            let paths: Vec<_> =
                link.paths.profile.entries().iter().zip(link.paths.numbers.iter()).filter(on_port).collect();
            for (full, place) in [(true, 2 * turn), (false, 2 * turn + 1)] {
                let Some(&(entry, &path)) = paths.get(place % paths.len().max(1)) else { continue };
                // With a single path a full packet and a short one take turns.
                if paths.len() == 1 && full != turn.is_multiple_of(2) {
                    continue;
                }
                let len = if full { proof.progress.path_mtu } else { 0 };
                let body = Body::Write(Write::duplicate(len, now.wire_ticks()));
                let dest = io.attr.dest_qp_num.unwrap_or_default();
                let mut packet = Packet::new(dest, proof.psn, body);
                (packet.payload_len, packet.ack_req) = (len, true);
                proof.sent.push(Sent { ev: entry.ev, port, full });
                // SAFETY: the zeros outlive the flush below.
                let payload = [unsafe { Piece::of_memory(zeros.as_ptr(), usize::from(len)) }];
                self.egress.push(link.peer, path, &packet, TrafficClass::Data, &payload, now);
                self.egress.flush(now);
            }
        }
        if turn > 0 {
            self.question_ports(shared, now, peer, silent);
        }
        self.question_unreachable(shared, now);
        Ok(())
    }

    /// What has been answered so far.
    pub fn mtu_progress(&self, place: Place) -> MtuProgress {
        let proof = self.mtu_proofs.iter().find(|proof| proof.place == place);
        let progress = proof.map(|proof| proof.progress).unwrap_or_default();
        let usable = self.qp_ports(place).unwrap_or(PortSet::EMPTY);
        MtuProgress { asked: progress.asked.and(usable), ..progress }
    }

    pub fn end_mtu_proof(&mut self, place: Place) {
        self.mtu_proofs.retain(|proof| proof.place != place);
    }

    /// The addresses of a queue pair's peer at these ports.
    pub fn peer_addresses(&self, place: Place, ports: PortSet) -> Vec<String> {
        let remote = self.verbs.get(place).and_then(|io| io.attr.remote.as_deref()).unwrap_or_default();
        ports
            .iter()
            .filter_map(|port| remote.get(usize::from(port)))
            .map(|addr| addr.ip().to_string())
            .collect()
    }
}
