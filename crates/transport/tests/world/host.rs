//! The [`Host`] that a queue pair of the world sees: every call is judged before it is carried out.

use openmrc_transport::mrc::QpConfig;
use openmrc_transport::{
    AccessError, EvChange, EvEvent, Fatal, Host, NoReceive, PortSet, RecvDone, SendDone, Span, Time,
    TrafficClass, Transmit,
};
use openmrc_wire::Body;

use super::ledger::{Flow, Placed, Verdict};
use super::trace::Trace;

/// What the world knows of a queue pair without asking it.
pub struct Record {
    pub config: QpConfig,
    pub node: usize,
    pub peer: usize,
    /// Paths the controller has switched off.
    pub denied: Vec<bool>,
    /// Paths it has reported as condemned.
    pub condemned: Vec<bool>,
    pub ev_events: Vec<(Time, EvEvent)>,
    pub fatal: Option<(Time, Fatal)>,
    /// Receives posted.
    pub receives: u64,
    pub local_up: PortSet,
    pub peer_up: PortSet,
}

impl Record {
    /// Whether a packet may leave by this path.
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
        // Where no port is up the packet goes nowhere, whichever it names.
        let usable = if self.local_up.and(self.peer_up).is_empty() {
            self.local_up
        } else {
            self.local_up.and(self.peer_up)
        };
        if !usable.is_empty() && !usable.contains(transmit.port) {
            return Err(format!("port {} is down and used for {:?}", transmit.port, transmit.packet.body));
        }
        Ok(())
    }
}

/// One call into a queue pair, seen from outside.
pub struct View<'a> {
    pub end: usize,
    /// World time, for the trace.
    pub now: Time,
    pub record: &'a mut Record,
    pub flows: &'a mut [Flow],
    /// The data packet being handled, as its sender meant it.
    pub in_hand: Option<Transmit>,
    pub out: &'a mut Vec<Transmit>,
    pub trace: &'a mut Trace,
    pub verdict: &'a mut Verdict,
}

impl View<'_> {
    fn judge(&mut self, verdict: Verdict) {
        if self.verdict.is_ok()
            && let Err(text) = verdict
        {
            *self.verdict = Err(format!("end {}: {text}", self.end));
        }
    }
}

impl Host for View<'_> {
    fn place(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        let end = self.end;
        self.trace.note(self.now, b'P', [end as u64, va, u64::from(len)], || {
            format!("{end} places {len} at {va:#x}")
        });
        match self.flows[self.record.peer].on_place(self.in_hand.as_ref(), rkey, va, len) {
            Ok(Placed::Done) => Ok(()),
            Ok(Placed::Refused) => Err(AccessError),
            Err(text) => {
                self.judge(Err(text));
                Ok(())
            }
        }
    }

    fn transmit(&mut self, transmit: Transmit) {
        let route = self.record.check_route(&transmit);
        self.judge(route);
        let meant_for = transmit.packet.dest_qp == self.record.config.remote_qp;
        if !meant_for {
            self.judge(Err(format!("feedback for QP {}", transmit.packet.dest_qp)));
        }
        let (peer, short) = (self.record.peer, |qp: u32| qp as u16);
        let (own_id, peer_id) = (short(self.record.config.local_qp), short(self.record.config.remote_qp));
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
            other => Err(format!("feedback of a strange kind: {other:?}")),
        };
        self.judge(verdict);
        let class = if matches!(transmit.packet.body, Body::Probe(_)) {
            TrafficClass::Data
        } else {
            TrafficClass::Control
        };
        if transmit.class != class || transmit.packet.payload_len != 0 || transmit.payload.is_some() {
            self.judge(Err(format!(
                "feedback in class {:?} with payload {:?}",
                transmit.class, transmit.payload
            )));
        }
        self.out.push(transmit);
    }

    fn send_done(&mut self, done: SendDone) {
        let end = self.end;
        self.trace.note(self.now, b'S', [end as u64, done.handle, done.status as u64], || {
            format!("{end} completes send {}: {:?}", done.handle >> 16, done.status)
        });
        let verdict = self.flows[end].on_send_done(&done);
        self.judge(verdict);
    }

    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive> {
        let end = self.end;
        self.trace.note(self.now, b'R', [end as u64, u64::from(done.imm), u64::from(done.byte_len)], || {
            format!("{end} receives {done:?}")
        });
        if self.record.receives == 0 {
            return Err(NoReceive);
        }
        self.record.receives -= 1;
        let verdict = self.flows[self.record.peer].on_recv_done(&done);
        self.judge(verdict);
        Ok(())
    }

    fn ev_event(&mut self, event: EvEvent) {
        let end = self.end;
        self.trace.note(self.now, b'E', [end as u64, u64::from(event.path), event.change as u64], || {
            format!("{end} says path {} is {:?}", event.path, event.change)
        });
        let entry = self.record.config.paths.profile.entries()[event.path as usize];
        if (entry.ev, entry.port) != (event.ev, event.port) {
            self.judge(Err(format!("event about path {}, which is {entry:?}: {event:?}", event.path)));
        }
        let bad = event.change == EvChange::AssumedBad;
        if self.record.condemned[event.path as usize] == bad {
            self.judge(Err(format!("path {} changed to {:?} twice", event.path, event.change)));
        }
        self.record.condemned[event.path as usize] = bad;
        self.record.ev_events.push((self.now, event));
    }

    fn fatal(&mut self, why: Fatal) {
        let end = self.end;
        self.trace.note(self.now, b'F', [end as u64, 0, 0], || format!("{end} fails: {why}"));
        if self.record.fatal.is_some() {
            self.judge(Err(format!("fails a second time: {why}")));
        }
        self.record.fatal = Some((self.now, why));
    }
}

/// Bounds on what one call may send (spec: wire, bad input: nothing can be amplified).
pub const MOST_FEEDBACK_PER_PACKET: usize = 6;
/// When time passes: what is due, and one probe for every path.
pub const fn most_feedback_per_timeout(paths: usize) -> usize {
    MOST_FEEDBACK_PER_PACKET + paths
}

/// Where the clock of a node stands.
pub fn local(now: Time, epoch: Span) -> Time {
    now + epoch
}
