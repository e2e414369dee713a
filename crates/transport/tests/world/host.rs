//! The [`NodeHost`] of the world's nodes: it checks every call before it actions on it.

use openmrc_transport::mrc::QpConfig;
use openmrc_transport::node::{
    Buffers, MtuProgress, NodeHost, PeerId, ProbeTimeout, QpId, ReceiveQueueEmpty, Route,
};
use openmrc_transport::{
    AccessError, EvChange, EvEvent, Fatal, PortSet, RecvDone, SendDone, Span, Time, TrafficClass, Transmit,
};
use openmrc_wire::{Body, Packet};

use super::driver::End;
use super::ledger::{Flow, Placed, Verdict};
use super::trace::Trace;

/// State of a queue pair that the world keeps itself.
pub struct EndRecord {
    pub config: QpConfig,
    pub node: usize,
    pub peer: usize,
    /// Paths that the controller has disabled.
    pub denied: Vec<bool>,
    /// Paths that the queue pair has reported as condemned.
    pub condemned: Vec<bool>,
    pub ev_events: Vec<(Time, EvEvent)>,
    pub fatal: Option<(Time, Fatal)>,
    /// When it was told that its peer is silent (`true`) or heard again.
    pub silences: Vec<(Time, bool)>,
    /// When a packet came last that its peer had sent, by the local clock.
    pub heard_at: Time,
    /// Receives posted, how long a message waits that finds none, and since when one does, by the local clock.
    pub receives: u64,
    pub receive_wait: Span,
    pub waits_since: Option<Time>,
    /// The proof of its path MTU: begun, and ended.
    pub mtu: Option<Option<MtuProgress>>,
    /// When the proof must have ended, by the local clock.
    pub mtu_ends_by: Time,
    /// When its application destroyed it, by the local clock, for how long it answers, and whether that is over.
    pub retired: Option<(Time, Span)>,
    pub is_gone: bool,
    /// Packets that it has sent after it was destroyed.
    pub answers_after: u64,
    /// Probes sent since a SACK came last.
    pub probes_unanswered: u32,
    /// Probes sent in the class of feedback.
    pub fast_probes: u32,
    pub local_up: PortSet,
    pub peer_up: PortSet,
}

impl EndRecord {
    /// Checks the path and the port of a packet.
    pub fn check_route(&self, transmit: &Transmit) -> Verdict {
        let entries = self.config.paths.profile.entries();
        let Some(entry) = entries.get(transmit.path as usize) else {
            return Err(format!("path {} is not in the profile", transmit.path));
        };
        if (entry.ev, entry.port) != (transmit.ev, transmit.port) {
            return Err(format!(
                "path {} is {entry:?}, not {:?} on {}",
                transmit.path, transmit.ev, transmit.port
            ));
        }
        if self.denied[transmit.path as usize] {
            return Err(format!("path {} is DENIED and used for {:?}", transmit.path, transmit.packet.body));
        }
        // If no port is up the packet is lost, whichever port it names.
        let usable = if self.local_up.and(self.peer_up).is_empty() {
            self.local_up
        } else {
            self.local_up.and(self.peer_up)
        };
        // A peer that does not answer is asked on every port of this end: what is known of its ports may be out of
        // date.
        let asks = matches!(transmit.packet.body, Body::Probe(_))
            && self.local_up.contains(transmit.port)
            && self.probes_unanswered >= 3;
        if !usable.is_empty() && !usable.contains(transmit.port) && !asks {
            return Err(format!("port {} is down and used for {:?}", transmit.port, transmit.packet.body));
        }
        Ok(())
    }
}

/// The context of one call into a node.
pub struct View<'a> {
    /// World time, for the trace.
    pub now: Time,
    /// Time by the node's clock.
    pub local: Time,
    pub ends: &'a mut [End],
    pub flows: &'a mut [Flow],
    /// The data packet being handled, in the form its sender sent it.
    pub in_hand: Option<Transmit>,
    pub feedback: &'a mut Vec<(usize, Transmit)>,
    pub requests: &'a mut Vec<(PeerId, Route, Packet, TrafficClass)>,
    /// Outstanding EV probes.
    pub probes: &'a mut Vec<u16>,
    /// Fill level of the receive buffers.
    pub fill: f64,
    pub trace: &'a mut Trace,
    pub verdict: &'a mut Verdict,
}

impl View<'_> {
    fn record(&mut self, qp: QpId) -> &mut EndRecord {
        &mut self.ends[end_of(qp)].record
    }

    fn judge(&mut self, end: usize, verdict: Verdict) {
        if self.verdict.is_ok()
            && let Err(text) = verdict
        {
            *self.verdict = Err(format!("end {end}: {text}"));
        }
    }
}

/// The end that a queue pair belongs to: nodes know it by that number.
fn end_of(qp: QpId) -> usize {
    qp.context as usize
}

impl NodeHost for View<'_> {
    fn write(&mut self, qp: QpId, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let end = end_of(qp);
        self.trace.note(self.now, b'P', [end as u64, va, u64::from(len)], || {
            format!("{end} places {len} at {va:#x}")
        });
        let peer = self.record(qp).peer;
        match self.flows[peer].on_place(self.in_hand.as_ref(), rkey, va, len) {
            Ok(Placed::Done) => Ok(()),
            Ok(Placed::Refused) => Err(AccessError),
            Err(text) => {
                self.judge(end, Err(text));
                Ok(())
            }
        }
    }

    fn feedback(&mut self, qp: QpId, transmit: Transmit) {
        let end = end_of(qp);
        let record = &self.ends[end].record;
        let route = record.check_route(&transmit);
        let meant_for = transmit.packet.dest_qp == record.config.remote_qp;
        let (peer, short) = (record.peer, |qp: u32| qp as u16);
        let proves = record.mtu == Some(None);
        let (own_id, peer_id) = (short(record.config.local_qp), short(record.config.remote_qp));
        self.judge(end, route);
        if !meant_for {
            self.judge(end, Err(format!("feedback for QP {}", transmit.packet.dest_qp)));
        }
        let verdict = match &transmit.packet.body {
            Body::Sack(sack) if (sack.spdcid, sack.dpdcid) != (own_id, peer_id) => {
                Err(format!("SACK from {} to {}", sack.spdcid, sack.dpdcid))
            }
            Body::Sack(sack) if transmit.packet.psn != sack.cack_psn => Err(format!(
                "BTH.PSN of a SACK is {}, not its cack_psn {}",
                transmit.packet.psn, sack.cack_psn
            )),
            Body::Sack(sack) => self.flows[peer].on_sack_sent(sack),
            Body::Ack(aeth) if aeth.is_ack() => self.flows[peer].on_ack_sent(aeth.msn),
            Body::Ack(_) | Body::Nack(_) | Body::Probe(_) => Ok(()),
            Body::Write(_) => self.flows[end].on_duplicate_sent(&transmit.packet, proves),
            other => Err(format!("unexpected feedback: {other:?}")),
        };
        self.judge(end, verdict);
        // One probe at the start passes the queues, in the class of feedback.
        let probes = matches!(transmit.packet.body, Body::Probe(_));
        self.ends[end].record.probes_unanswered += u32::from(probes);
        self.ends[end].record.fast_probes += u32::from(probes && transmit.class == TrafficClass::Control);
        if self.ends[end].record.fast_probes > 1 {
            self.judge(end, Err("a second probe in the class of feedback".into()));
        }
        let fits = match transmit.packet.body {
            // A plane that is taken back is asked for its MTU as well.
            Body::Write(_) if proves && transmit.class == TrafficClass::Data => true,
            Body::Write(_) => transmit.class == TrafficClass::DataNoTrim,
            Body::Probe(_) if transmit.class == TrafficClass::Data => true,
            _ => transmit.class == TrafficClass::Control && transmit.packet.payload_len == 0,
        };
        if !fits || transmit.payload.is_some() {
            let (class, payload) = (transmit.class, transmit.payload);
            self.judge(end, Err(format!("feedback in class {class:?} with payload {payload:?}")));
        }
        let record = self.record(qp);
        let is_gone = record.is_gone;
        record.answers_after += u64::from(record.retired.is_some());
        if is_gone {
            self.judge(end, Err(format!("sends after it is gone: {:?}", transmit.packet)));
        }
        self.feedback.push((end, transmit));
    }

    fn send_done(&mut self, qp: QpId, done: SendDone) {
        let end = end_of(qp);
        self.trace.note(self.now, b'S', [end as u64, done.handle, done.status as u64], || {
            format!("{end} completes send {}: {:?}", done.handle >> 16, done.status)
        });
        let verdict = self.flows[end].on_send_done(&done);
        self.judge(end, verdict);
    }

    fn recv_done(&mut self, qp: QpId, done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        let end = end_of(qp);
        self.trace.note(self.now, b'R', [end as u64, u64::from(done.imm), u64::from(done.byte_len)], || {
            format!("{end} receives {done:?}")
        });
        let local = self.local;
        let record = self.record(qp);
        if record.receives == 0 {
            record.waits_since.get_or_insert(local);
            return Err(ReceiveQueueEmpty);
        }
        (record.receives, record.waits_since) = (record.receives - 1, None);
        let peer = record.peer;
        let verdict = self.flows[peer].on_recv_done(&done);
        self.judge(end, verdict);
        Ok(())
    }

    fn ev_event(&mut self, qp: QpId, event: EvEvent) {
        let (end, now) = (end_of(qp), self.now);
        self.trace.note(now, b'E', [end as u64, u64::from(event.path), event.change as u64], || {
            format!("{end} says path {} is {:?}", event.path, event.change)
        });
        let record = self.record(qp);
        let entry = record.config.paths.profile.entries()[event.path as usize];
        let bad = event.change == EvChange::AssumedBad;
        let twice = std::mem::replace(&mut record.condemned[event.path as usize], bad) == bad;
        record.ev_events.push((now, event));
        if (entry.ev, entry.port) != (event.ev, event.port) {
            self.judge(end, Err(format!("event about path {}, which is {entry:?}: {event:?}", event.path)));
        }
        if twice {
            self.judge(end, Err(format!("path {} changed to {:?} twice", event.path, event.change)));
        }
    }

    fn peer_silence(&mut self, qp: QpId, silent: bool) {
        let (end, now, local) = (end_of(qp), self.now, self.local);
        self.trace.note(now, b'K', [end as u64, u64::from(silent), 0], || {
            format!("{end} says its peer is {}", if silent { "silent" } else { "heard again" })
        });
        let record = self.record(qp);
        let was_silent = record.silences.last().is_some_and(|(_, silent)| *silent);
        record.silences.push((now, silent));
        let requestor = &record.config.requestor;
        // Nothing is told before the silence has lasted and four probes had their time.
        let least = requestor.keepalive.map(|period| period + requestor.timeout.times(4));
        let lasted = local.since(record.heard_at);
        if was_silent == silent {
            self.judge(end, Err(format!("says twice that its peer is silent: {silent}")));
        }
        if silent && least.is_none_or(|least| lasted < least) {
            self.judge(end, Err(format!("calls its peer silent after {lasted:?}, not {least:?}")));
        }
    }

    fn fatal(&mut self, qp: QpId, why: Fatal) {
        let (end, now) = (end_of(qp), self.now);
        self.trace.note(now, b'F', [end as u64, 0, 0], || format!("{end} fails: {why}"));
        let local = self.local;
        let record = self.record(qp);
        let waited = record.waits_since.map(|since| local.since(since));
        let longest = record.receive_wait;
        if why == Fatal::NoReceive && waited.is_none_or(|waited| waited < longest) {
            self.judge(end, Err(format!("refuses a message that has waited {waited:?}, not {longest:?}")));
        }
        if self.record(qp).fatal.replace((now, why)).is_some() {
            self.judge(end, Err(format!("fails a second time: {why}")));
        }
    }

    fn mtu_proven(&mut self, qp: QpId, progress: MtuProgress) {
        let (end, now) = (end_of(qp), self.now);
        let MtuProgress { full, short, .. } = progress;
        self.trace.note(now, b'M', [end as u64, full.0.into(), short.0.into()], || {
            format!("{end} knows its path MTU: {progress:?}")
        });
        let (local, ends_by) = (self.local, self.record(qp).mtu_ends_by);
        if local > ends_by {
            self.judge(end, Err(format!("its proof ends at {local:?}, not by {ends_by:?}: {progress:?}")));
        }
        if self.record(qp).mtu.replace(Some(progress)) != Some(None) {
            self.judge(end, Err(format!("proves what nobody asked: {progress:?}")));
        }
    }

    fn lingered(&mut self, qp: QpId) {
        let (end, now, local) = (end_of(qp), self.now, self.local);
        self.trace.note(now, b'G', [end as u64, 0, 0], || format!("{end} is gone"));
        let record = self.record(qp);
        let was_gone = std::mem::replace(&mut record.is_gone, true);
        let retired = record.retired;
        if was_gone || retired.is_none_or(|(at, linger)| local < at + linger) {
            self.judge(end, Err(format!("is gone at {local:?}: {retired:?}, {was_gone}")));
        }
    }

    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, class: TrafficClass) {
        self.requests.push((peer, route, packet, class));
    }

    fn peer_ports(&mut self, qp: QpId, up: PortSet) {
        self.record(qp).peer_up = up;
    }

    fn probe_done(&mut self, _peer: PeerId, id: u16, _result: Result<Span, ProbeTimeout>) {
        match self.probes.iter().position(|&waiting| waiting == id) {
            Some(place) => {
                self.probes.swap_remove(place);
            }
            None => {
                self.judge(usize::MAX, Err(format!("EV probe {id} is answered, which is not outstanding")))
            }
        }
    }

    fn receive_buffers(&mut self) -> Buffers {
        Buffers { bytes: 1 << 20, queued: 1 << 16, fill: self.fill, packet: 5000 }
    }
}

/// Largest number of feedback packets per received packet (docs/spec/wire.md, "Bad input": no amplification).
pub const MAX_FEEDBACK_PER_PACKET: usize = 6;
/// Largest number of packets per timeout: delayed feedback, and one probe per path.
pub const fn max_feedback_per_timeout(paths: usize) -> usize {
    MAX_FEEDBACK_PER_PACKET + paths
}

/// The time of a node's own clock.
pub fn local(now: Time, epoch: Span) -> Time {
    now + epoch
}
