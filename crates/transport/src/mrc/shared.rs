//! State that both roles of a queue pair use: configuration, clock, error, ports, paths and counters.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use openmrc_wire::{Body, Mark, Packet, Probe, Psn, Sack, Timestamp, Write};

use super::config::{QpConfig, Settings};
use super::paths::{
    Condemned, ConditionProbes, EvIndex, EvInput, EvRecord, EvState, FIRST_RTTS, IDLE_RTTS, Paths,
    ReversePaths,
};
use super::stats::{Counters, PeerCounters};
use crate::api::{EvChange, EvEvent, Fatal, Host, PortSet, TrafficClass};
use crate::seq::{Seq, wire};
use crate::time::{Span, Time};

/// Turns that a marked path misses more for each target queueing delay that it is slower than the others \[choice\].
const TURNS_PER_TARGET: u64 = 2;

/// Round-trip times measured by the requestor.
#[derive(Serialize, Deserialize)]
pub(super) struct RttEstimate {
    pub smoothed: Span,
    pub shortest: Span,
}

impl RttEstimate {
    fn new(base_rtt: Span) -> Self {
        RttEstimate { smoothed: base_rtt, shortest: base_rtt }
    }

    /// Adds a sample. Returns its difference from the shortest one.
    pub(super) fn update(&mut self, sample: Span) -> Span {
        self.smoothed = Span((self.smoothed.0 * 7 + sample.0) / 8);
        self.shortest = self.shortest.min(sample);
        sample - self.shortest
    }
}

/// The spdcid and dpdcid that a peer sends.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PeerIds {
    /// None so far.
    Unknown,
    /// Those of this connection, at least once.
    Ours,
    /// Only others so far.
    Other,
}

/// State that requestor and responder share.
#[derive(Serialize, Deserialize)]
pub(super) struct Shared {
    pub config: Settings,
    /// The latest time seen. If the driver's clock steps back, this time stands still.
    pub clock: Time,
    pub error: Option<Fatal>,
    /// Ports that are up at both ends, and those that are up at this end.
    pub ports_up: PortSet,
    own_ports: PortSet,
    pub peer_ids: PeerIds,
    pub paths: Paths,
    pub reverse: ReversePaths,
    pub probes: ConditionProbes,
    pub rtt: RttEstimate,
    pub stats: Counters,
}

impl Shared {
    pub(super) fn new(now: Time, config: &QpConfig) -> Self {
        let paths = Paths::new(config);
        let base_rtt = config.paths.model.base_rtt;
        Shared {
            clock: now,
            error: None,
            ports_up: PortSet::first(PortSet::MAX_PORTS),
            own_ports: PortSet::first(PortSet::MAX_PORTS),
            peer_ids: PeerIds::Unknown,
            reverse: ReversePaths::new(&paths),
            paths,
            probes: ConditionProbes::new(config.seed, base_rtt),
            rtt: RttEstimate::new(base_rtt),
            stats: Counters::default(),
            config: config.into(),
        }
    }

    /// Replaces the paths by new ones in their initial state.
    pub(super) fn set_paths(&mut self, config: &QpConfig) {
        self.paths = Paths::new(config);
        self.reverse = ReversePaths::new(&self.paths);
        self.probes = ConditionProbes::new(config.seed, config.paths.model.base_rtt);
        self.config = config.into();
    }

    /// Moves the queue pair to ERROR.
    pub(super) fn fail(&mut self, why: Fatal, host: &mut dyn Host) {
        self.error = Some(why);
        host.fatal(why);
    }

    pub(super) fn set_ports_up(&mut self, now: Time, own: PortSet, peer: PortSet) {
        let up = own.and(peer);
        self.own_ports = own;
        let came_up = PortSet(up.0 & !self.ports_up.0);
        self.ports_up = up;
        if !came_up.is_empty() {
            self.paths.ports_came_up(came_up);
            self.probes.probe_soon(now, &mut self.paths, came_up);
        }
    }

    /// The ports on which the peer may be asked. If the two ends have no port in common as far as this end knows, what
    /// it knows may be out of date (port status updates can be lost): an answer corrects it.
    pub(super) fn ports_to_ask(&self) -> PortSet {
        if self.ports_up.is_empty() { self.own_ports } else { self.ports_up }
    }

    /// The ports on which a peer is asked that has not answered for long: all of this end's, as what is known of the
    /// peer's ports may be out of date.
    pub(super) fn own_ports(&self) -> PortSet {
        self.own_ports
    }

    pub(super) fn advance_clock(&mut self, now: Time) -> Time {
        self.clock = self.clock.max(now);
        self.clock
    }

    /// Whether a control packet carries identifiers that this peer may send: the two of this connection in either
    /// order, since readings of the specification differ, or any others until the peer has sent these once.
    pub(super) fn ids_fit(&mut self, spdcid: u16, dpdcid: u16) -> bool {
        let (local, remote) = (self.config.local_qp as u16, self.config.remote_qp as u16);
        if (spdcid, dpdcid) != (remote, local) {
            PeerCounters::count(&mut self.stats.peer.other_ids);
        }
        let ours = [(remote, local), (local, remote)].contains(&(spdcid, dpdcid));
        if ours {
            self.peer_ids = PeerIds::Ours;
        } else if self.peer_ids == PeerIds::Unknown {
            self.peer_ids = PeerIds::Other;
        }
        ours || self.peer_ids != PeerIds::Ours
    }

    /// Sends feedback on a reverse path, in the control class.
    pub(super) fn send_control(&self, packet: Packet, path: EvIndex, host: &mut dyn Host) {
        host.transmit(self.paths.transmit(packet, path, TrafficClass::Control, None));
    }

    // --- probes ----------------------------------------------------------------------------------------------------

    /// Sends a reliability probe on a path.
    pub(super) fn send_probe(&mut self, now: Time, index: EvIndex, class: TrafficClass, host: &mut dyn Host) {
        self.probes.next_sequence();
        self.transmit_probe(now, index, class, host);
    }

    /// Sends the last probe again, on another path.
    pub(super) fn repeat_probe(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        self.transmit_probe(now, index, TrafficClass::Data, host);
    }

    /// Sends a write of full size that every responder takes for a duplicate: it places nothing, and answers with a SACK.
    fn send_duplicate(&mut self, now: Time, index: EvIndex, psn: Psn, host: &mut dyn Host) {
        let body = Body::Write(Write::duplicate(self.config.path_mtu, now.wire_ticks()));
        let mut packet = Packet::new(self.config.remote_qp, psn, body);
        (packet.payload_len, packet.ack_req) = (self.config.path_mtu, true);
        host.transmit(self.paths.transmit(packet, index, TrafficClass::DataNoTrim, None));
    }

    fn transmit_probe(&mut self, now: Time, index: EvIndex, class: TrafficClass, host: &mut dyn Host) {
        let probe = Probe {
            vendor_info: 0,
            probe_id: self.probes.id(index),
            spdcid: self.config.local_qp as u16,
            dpdcid: self.config.remote_qp as u16,
            timestamp: Timestamp { ticks: now.wire_ticks(), tsr: false },
        };
        self.stats.probes += 1;
        let packet = Packet::new(self.config.remote_qp, Psn::new(0), Body::Probe(probe));
        host.transmit(self.paths.transmit(packet, index, class, None));
    }

    /// Probes the condemned paths that are due, within the node's budget. The packets `arrived` have arrived: where a
    /// path may carry short packets only, the first probe of a row is a duplicate of one of them, of full size.
    pub(super) fn probe_condemned(
        &mut self,
        now: Time,
        is_sending: bool,
        arrived: Range<Seq>,
        host: &mut dyn Host,
    ) {
        if now < self.probes.due() {
            return;
        }
        self.probes.start_round();
        // The budget grows with the data sent, so a queue pair that sends none asks again much later.
        let pause = self.rtt.smoothed.times(if is_sending { FIRST_RTTS } else { IDLE_RTTS });
        let mut is_spent = false;
        for i in 0..self.paths.len() {
            let index = i as EvIndex;
            if self.paths.state(index) != EvState::AssumedBad || !self.probes.is_due(now, &self.paths, index)
            {
                continue;
            }
            if !self.ports_up.contains(self.paths.port(index)) {
                self.probes.postpone(now, &mut self.paths, index, self.rtt.smoothed.times(FIRST_RTTS));
                continue;
            }
            is_spent = is_spent || !host.may_probe_path(now);
            if is_spent {
                self.probes.postpone(now, &mut self.paths, index, pause);
            } else {
                self.probes.schedule_next(now, &mut self.paths, index, self.rtt.smoothed);
                self.stats.path_probes += 1;
                match self.paths.duplicate_for(index, &arrived) {
                    Some(seq) => self.send_duplicate(now, index, wire(seq), host),
                    None => self.send_probe(now, index, TrafficClass::Data, host),
                }
            }
        }
    }

    /// Turns that a marked path misses whose round trip took this long: the more, the slower it is than the others. A
    /// path that is much slower would fill its queue again after one turn; where all are equally full, none misses more
    /// than one \[choice\].
    pub(super) fn turns_to_miss(&self, rtt: Span) -> u8 {
        let slower = (rtt - self.rtt.smoothed).0.saturating_mul(TURNS_PER_TARGET);
        let more = slower / self.config.target_qdelay.0.max(1);
        (more + 1).min(EvRecord::MOST_TURNS.into()) as u8
    }

    /// A packet sent on this path was answered. If it was marked, the path misses `turns` turns.
    #[inline]
    pub(super) fn path_answered(
        &mut self,
        now: Time,
        index: EvIndex,
        probe: bool,
        mark: Mark,
        turns: u8,
        host: &mut dyn Host,
    ) {
        self.reverse.confirm(now, &self.paths, index);
        let is_condemned = self.paths.state(index) == EvState::AssumedBad;
        match mark {
            Mark::AlwaysSkip if is_condemned => ConditionProbes::forget_successes(&mut self.paths, index),
            Mark::AlwaysSkip if self.ports_up.contains(self.paths.port(index)) => {
                self.condemn(now, index, host)
            }
            Mark::AlwaysSkip => {}
            Mark::SkipOnce if !probe => self.paths.mark(index, turns),
            Mark::SkipOnce | Mark::None if probe && is_condemned => {
                self.probe_succeeded(now, index, mark, host);
            }
            Mark::SkipOnce | Mark::None => {}
        }
    }

    /// If the queue pair receives and does not send, probes keep its reverse paths fresh.
    pub(super) fn keep_reverse_fresh(&mut self, now: Time, sending: bool, host: &mut dyn Host) {
        if sending {
            return;
        }
        let (received, rtt, seed) =
            (self.stats.data_packets_in as u32, self.rtt.smoothed, self.probes.seed());
        let Some(index) = self.reverse.path_to_probe(now, &self.paths, received, rtt, seed) else { return };
        if self.ports_up.contains(self.paths.port(index)) {
            self.send_probe(now, index, TrafficClass::Data, host);
            self.reverse.probing(index);
        }
    }

    /// A SACK has arrived before the requestor was started: it can only answer a probe, and no PSN shows that it does.
    pub(super) fn on_probe_reply(&mut self, now: Time, sack: &Sack, host: &mut dyn Host) {
        let id = sack.ack_psn_offset as u16;
        let answers = sack.probe_reply && self.stats.probes > 0 && self.probes.is_recent(id);
        let asked = Some(ConditionProbes::path_of(id)).filter(|&i| usize::from(i) < self.paths.len());
        let index = asked.filter(|_| answers).and_then(|asked| self.paths.find(sack.entropy, Some(asked)));
        match index {
            Some(_) if !self.ids_fit(sack.spdcid, sack.dpdcid) => self.stats.invalid += 1,
            Some(index) => self.path_answered(now, index, true, sack.mark, 1, host),
            None => self.stats.invalid += 1,
        }
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.paths.heap_bytes() + self.reverse.heap_bytes()
    }

    /// After enough successes in a row the last one decides between GOOD and SKIP.
    fn probe_succeeded(&mut self, now: Time, index: EvIndex, mark: Mark, host: &mut dyn Host) {
        if !self.probes.count_success(now, &mut self.paths, index) {
            return;
        }
        let input = if mark == Mark::None { EvInput::ProbesGood } else { EvInput::ProbesMarked };
        if self.paths.restore(index, input) {
            self.report_change(index, EvChange::Good, host);
            self.probe_siblings(now, index);
        }
    }

    /// A path of a plane has recovered. The others may have recovered too, so they are probed before their back-off
    /// ends.
    pub(super) fn probe_siblings(&mut self, now: Time, index: EvIndex) {
        let port = PortSet::one(self.paths.port(index));
        self.probes.probe_soon(now, &mut self.paths, port);
    }

    // --- the condition of paths --------------------------------------------------------------------------------------

    /// A packet was lost on a path without being trimmed; a round trip takes up to `rtt`. Returns whether something has
    /// failed: a drop is congestion.
    pub(super) fn path_lost(&mut self, now: Time, index: EvIndex, rtt: Span, host: &mut dyn Host) -> bool {
        // A port that is known to be down explains the loss; its paths have not failed.
        if !self.ports_up.contains(self.paths.port(index)) {
            return true;
        }
        let blame = self.paths.blame(now, index, self.ports_up, rtt);
        match blame {
            Condemned::Unchanged => {}
            Condemned::Path => self.condemn(now, index, host),
            Condemned::Plane => self.condemn_plane(now, self.paths.plane_of(index), host),
        }
        blame != Condemned::Unchanged || !self.paths.state(index).usable()
    }

    /// Takes a path out of rotation, and its whole plane if too many of its paths were condemned in a row.
    fn condemn(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        match self.paths.condemn(index) {
            Condemned::Unchanged => {}
            Condemned::Path => self.condemned(now, index, host),
            Condemned::Plane => {
                self.condemned(now, index, host);
                self.condemn_plane(now, self.paths.plane_of(index), host);
            }
        }
    }

    fn condemn_plane(&mut self, now: Time, plane: usize, host: &mut dyn Host) {
        for index in self.paths.on_plane(plane) {
            if self.paths.condemn(index) != Condemned::Unchanged {
                self.condemned(now, index, host);
            }
        }
    }

    /// The driver's interface cannot send packets of full size on this port.
    pub(super) fn port_is_narrow(&mut self, now: Time, port: u8, host: &mut dyn Host) {
        let plane = (0..self.paths.plane_count()).find(|&plane| self.paths.plane_port(plane) == port);
        if let Some(plane) = plane.filter(|_| self.ports_up.contains(port)) {
            self.condemn_plane(now, plane, host);
        }
    }

    fn condemned(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        self.stats.condemned += 1;
        self.reverse.doubt(&self.paths, index);
        self.probes.schedule_first(now, &mut self.paths, index, self.rtt.smoothed);
        self.report_change(index, EvChange::AssumedBad, host);
    }

    /// Returns a path to rotation whose "lost" packet has arrived after all.
    pub(super) fn undo_condemnation(&mut self, index: EvIndex, host: &mut dyn Host) {
        if self.paths.restore(index, EvInput::ProbesGood) {
            self.report_change(index, EvChange::Good, host);
        }
    }

    /// When every path is condemned, a path that still delivers becomes good again.
    pub(super) fn last_resort_delivered(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        if !self.paths.any_usable(self.ports_up) && self.paths.restore(index, EvInput::ProbesGood) {
            self.report_change(index, EvChange::Good, host);
            self.probe_siblings(now, index);
        }
    }

    /// When too few paths are usable, a condemned path is tried again.
    pub(super) fn try_condemned(&mut self, now: Time, host: &mut dyn Host) {
        if let Some(index) = self.paths.try_condemned(now, self.ports_up, self.rtt.smoothed) {
            self.report_change(index, EvChange::Good, host);
        }
    }

    fn report_change(&self, index: EvIndex, change: EvChange, host: &mut dyn Host) {
        let (path, port) = (self.paths.path(index), self.paths.port(index));
        host.ev_event(EvEvent { ev: self.paths.ev(index), path, port, change });
    }
}

#[cfg(test)]
mod tests;
