//! Queue pairs with one fault each, to show that the world detects it. A test that cannot fail proves nothing.

use openmrc_transport::Pressure;
use openmrc_transport::mrc::{EvState, QpConfig, QpStats, QueuePair};
use openmrc_transport::{
    AccessError, EvEvent, Fatal, Host, NoReceive, PathEntry, PathId, PortSet, PostError, Readiness, Received,
    RecvDone, SendDone, SendStatus, Time, Transmit, Transport, WorkRequest,
};
use openmrc_wire::{Body, Packet, Psn};

use super::Subject;

/// The fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PlantedFault {
    /// A duplicate is placed again.
    PlacesDuplicates,
    /// The first packet of every message is not placed.
    SkipsPlacement,
    /// One packet is placed four bytes from its address.
    Misplaces,
    /// A send completes as soon as its first packet was sent.
    CompletesEarly,
    /// One send completion is missing.
    ForgetsCompletion,
    /// One send completion comes twice.
    CompletesTwice,
    /// One immediate arrives with another value.
    ChangesImmediate,
    /// An immediate is delivered as soon as its packet arrives.
    DeliversEarly,
    /// SACKs claim one packet more than has arrived.
    ClaimsMore,
    /// Retransmissions are never sent.
    NeverRetransmits,
    /// Retransmissions are not flagged as such.
    HidesRetransmission,
    /// Data goes out on a port that was not offered.
    TakesAnyPort,
    /// The window is ignored: a PSN far ahead is sent.
    SkipsPsns,
    /// Sends on after a fatal error.
    SendsInError,
    /// Paths that the controller has disabled are used.
    IgnoresDenial,
    /// Every feedback packet is sent ten times.
    FloodsFeedback,
    /// A deadline that is never served.
    FreezesDeadline,
}

impl PlantedFault {
    pub const ALL: [PlantedFault; 17] = [
        PlantedFault::PlacesDuplicates,
        PlantedFault::SkipsPlacement,
        PlantedFault::Misplaces,
        PlantedFault::CompletesEarly,
        PlantedFault::ForgetsCompletion,
        PlantedFault::CompletesTwice,
        PlantedFault::ChangesImmediate,
        PlantedFault::DeliversEarly,
        PlantedFault::ClaimsMore,
        PlantedFault::NeverRetransmits,
        PlantedFault::HidesRetransmission,
        PlantedFault::TakesAnyPort,
        PlantedFault::SkipsPsns,
        PlantedFault::SendsInError,
        PlantedFault::IgnoresDenial,
        PlantedFault::FloodsFeedback,
        PlantedFault::FreezesDeadline,
    ];
}

/// A real queue pair with fault number `FAULT` of [`PlantedFault::ALL`].
pub struct Sabotaged<const FAULT: u8> {
    qp: QueuePair,
    /// Handles posted and not completed, oldest first.
    posted: Vec<u64>,
    /// Counts opportunities, so that a fault can occur at one of them.
    occasions: u32,
    /// Destination for packets sent without reason.
    remote_qp: u32,
    route: PathEntry,
    /// The deadline that does not move.
    stuck: Option<Time>,
}

impl<const FAULT: u8> Sabotaged<FAULT> {
    fn has(fault: PlantedFault) -> bool {
        fault as u8 == FAULT
    }

    fn with_faulty_host<'a>(&mut self, host: &'a mut dyn Host) -> (FaultyHost<'a>, &mut QueuePair) {
        self.occasions += 1;
        (
            FaultyHost { fault: PlantedFault::ALL[FAULT as usize], host, occasion: self.occasions },
            &mut self.qp,
        )
    }
}

/// The host that the sabotaged queue pair sees.
struct FaultyHost<'a> {
    fault: PlantedFault,
    host: &'a mut dyn Host,
    occasion: u32,
}

impl Host for FaultyHost<'_> {
    fn write(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        match self.fault {
            PlantedFault::SkipsPlacement if va.is_multiple_of(7) => Ok(()),
            PlantedFault::Misplaces if self.occasion > 20 => self.host.write(rkey, va ^ 4, len),
            _ => self.host.write(rkey, va, len),
        }
    }
    fn transmit(&mut self, mut transmit: Transmit) {
        if let (PlantedFault::ClaimsMore, Body::Sack(sack)) = (self.fault, &mut transmit.packet.body) {
            sack.cack_psn = sack.cack_psn.next();
            transmit.packet.psn = sack.cack_psn;
        }
        if self.fault == PlantedFault::FloodsFeedback {
            (0..9).for_each(|_| self.host.transmit(transmit));
        }
        self.host.transmit(transmit);
    }
    fn send_done(&mut self, done: SendDone) {
        match self.fault {
            PlantedFault::ForgetsCompletion if done.handle >> 16 == 2 => return,
            PlantedFault::CompletesTwice if done.handle >> 16 == 2 => self.host.send_done(done),
            // It has been reported already.
            PlantedFault::CompletesEarly => return,
            _ => {}
        }
        self.host.send_done(done);
    }
    fn recv_done(&mut self, mut done: RecvDone) -> Result<(), NoReceive> {
        match self.fault {
            PlantedFault::ChangesImmediate if done.rqmsn.0 == 2 => done.imm = !done.imm,
            PlantedFault::DeliversEarly => return Ok(()),
            _ => {}
        }
        self.host.recv_done(done)
    }
    fn ev_event(&mut self, event: EvEvent) {
        self.host.ev_event(event);
    }
    fn path_loss(&mut self, path: PathId, port: u8) {
        self.host.path_loss(path, port);
    }
    fn peer_silence(&mut self, silent: bool) {
        self.host.peer_silence(silent);
    }
    fn may_probe_path(&mut self, now: Time) -> bool {
        self.host.may_probe_path(now)
    }
    fn fatal(&mut self, why: Fatal) {
        self.host.fatal(why);
    }
}

impl<const FAULT: u8> Transport for Sabotaged<FAULT> {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        self.posted.push(wr.handle);
        self.qp.post_send(now, wr)
    }

    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut impl Host) {
        if let (Body::Write(write), None) = (&received.packet.body, received.trim) {
            let len = u32::from(received.packet.payload_len);
            if Self::has(PlantedFault::PlacesDuplicates) && received.packet.rtx && len > 0 {
                let _ = host.write(write.rkey, write.va, len);
            }
            if let (true, Some(imm)) = (Self::has(PlantedFault::DeliversEarly), write.imm) {
                let _ = host.recv_done(RecvDone {
                    rqmsn: write.rqmsn,
                    imm,
                    byte_len: write.dma_len,
                    solicited: received.packet.solicited,
                });
            }
        }
        let (mut spoiler, qp) = self.with_faulty_host(host);
        qp.handle_packet(now, received, &mut spoiler);
        if Self::has(PlantedFault::CompletesEarly) && !self.posted.is_empty() {
            host.send_done(SendDone { handle: self.posted.remove(0), status: SendStatus::Success });
        }
        if Self::has(PlantedFault::SendsInError) && self.qp.error().is_some() {
            let route = self.route;
            host.transmit(Transmit {
                packet: Packet::new(self.remote_qp, Psn::new(0), received.packet.body),
                ev: route.ev,
                path: 0,
                port: route.port,
                class: openmrc_transport::TrafficClass::Control,
                payload: None,
            });
        }
    }

    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        if Self::has(PlantedFault::FreezesDeadline) && self.occasions > 20 {
            self.stuck.get_or_insert(now);
            return;
        }
        let (mut spoiler, qp) = self.with_faulty_host(host);
        qp.handle_timeout(now, &mut spoiler);
    }

    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        self.occasions += 1;
        let offered = if Self::has(PlantedFault::TakesAnyPort) { PortSet(u16::MAX) } else { ports };
        let mut transmit = self.qp.poll_transmit(now, offered)?;
        if transmit.packet.rtx && Self::has(PlantedFault::NeverRetransmits) {
            return None;
        }
        if Self::has(PlantedFault::HidesRetransmission) {
            transmit.packet.rtx = false;
        }
        if Self::has(PlantedFault::SkipsPsns) && self.occasions > 10 {
            transmit.packet.psn = Psn::new(transmit.packet.psn.get().wrapping_add(3000));
        }
        Some(transmit)
    }

    fn poll_timeout(&self) -> Time {
        self.stuck.unwrap_or_else(|| self.qp.poll_timeout())
    }
    fn readiness(&self) -> Readiness {
        self.qp.readiness()
    }
    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        self.qp.set_ports_up(now, local, peer);
    }
    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        self.qp.abort(now, why, host);
    }
    fn retire(&mut self, now: Time, host: &mut dyn Host) {
        let (mut host, qp) = self.with_faulty_host(host);
        qp.retire(now, &mut host);
    }
    fn is_waiting(&self) -> bool {
        self.qp.is_waiting()
    }
    fn set_advertised_mpr(&mut self, mpr: u8) {
        self.qp.set_advertised_mpr(mpr);
    }
    fn set_receive_pressure(&mut self, pressure: Pressure) {
        self.qp.set_receive_pressure(pressure);
    }
    fn report_early(&mut self, now: Time, host: &mut dyn Host) {
        self.qp.report_early(now, host);
    }
    fn receives_posted(&mut self, now: Time, host: &mut dyn Host) {
        let (mut host, qp) = self.with_faulty_host(host);
        qp.receives_posted(now, &mut host);
    }
}

impl<const FAULT: u8> Subject for Sabotaged<FAULT> {
    fn create(now: Time, config: &QpConfig) -> Self {
        Sabotaged {
            qp: QueuePair::create(now, config),
            posted: Vec::new(),
            occasions: 0,
            remote_qp: config.remote_qp,
            route: config.paths.profile.entries()[0],
            stuck: None,
        }
    }
    fn stats(&self) -> QpStats {
        self.qp.stats()
    }
    fn set_ev_denied(&mut self, path: PathEntry, denied: bool) -> bool {
        Self::has(PlantedFault::IgnoresDenial) || self.qp.set_ev_denied(path, denied)
    }
    fn ev_states(&self) -> Vec<(PathId, EvState)> {
        Subject::ev_states(&self.qp)
    }
    fn error(&self) -> Option<Fatal> {
        self.qp.error()
    }
    fn expected_in_flight(&self) -> i64 {
        self.qp.expected_in_flight()
    }
}
