//! One queue pair on a bench: packets go in by hand, and what it does is written down.

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, EvState, PathConfig, PathModel, QpConfig, QueuePair};
use openmrc_transport::{
    AccessError, EvEvent, EvProfile, Fatal, Host, NoReceive, PathEntry, PortSet, Received, RecvDone,
    SendDone, Span, Time, Transmit, Transport, Trim, WorkRequest,
};
use openmrc_wire::{
    Aeth, Body, CcState, Ev, Mark, Msn, Nack, NackReason, Packet, Position, Psn, Sack, Timestamp, Write,
};

pub const QP: u32 = 0x11;
pub const PEER: u32 = 0x22;
/// Entropy value with which the bench's packets arrive.
pub const EV: Ev = Ev(0xE0);
pub const MTU: u16 = 4096;
const START: Time = Time(1 << 40);

/// The host of the queue pair.
#[derive(Default)]
pub struct Log {
    pub sent: Vec<Transmit>,
    pub done: Vec<SendDone>,
    pub received: Vec<RecvDone>,
    pub fatal: Option<Fatal>,
    /// What it was told of the peer's silence.
    pub silences: Vec<bool>,
    pub events: Vec<EvEvent>,
    /// No receive is posted.
    pub no_receive: Option<NoReceive>,
    /// The node's budget for probes of condemned paths is spent; times at which it was asked for it.
    pub budget_is_spent: bool,
    pub probes_asked: Vec<Time>,
}

impl Host for Log {
    fn write(&mut self, _: u32, _: u64, _: u32) -> Result<(), AccessError> {
        Ok(())
    }
    fn transmit(&mut self, transmit: Transmit) {
        self.sent.push(transmit);
    }
    fn send_done(&mut self, done: SendDone) {
        self.done.push(done);
    }
    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive> {
        if let Some(why) = self.no_receive {
            return Err(why);
        }
        self.received.push(done);
        Ok(())
    }
    fn peer_silence(&mut self, silent: bool) {
        self.silences.push(silent);
    }
    fn ev_event(&mut self, event: EvEvent) {
        self.events.push(event);
    }
    fn may_probe_path(&mut self, now: Time) -> bool {
        self.probes_asked.push(now);
        !self.budget_is_spent
    }
    fn fatal(&mut self, why: Fatal) {
        self.fatal = Some(why);
    }
}

pub struct Bench {
    pub qp: QueuePair,
    pub log: Log,
    pub now: Time,
    profile: Arc<EvProfile>,
}

/// Two ports with four paths each; base RTT 10 us; a congestion window that never closes.
pub fn config() -> QpConfig {
    let path = |i: u32| PathEntry { ev: Ev(0xE0 + i), port: (i % 2) as u8 };
    let profile = Arc::new(EvProfile::new(&(0..8).map(path).collect::<Vec<_>>()).unwrap());
    let model = PathModel::new(Span::from_micros(10), true);
    let paths = PathConfig { active: 8, backup: 0, min_active: 0, ..PathConfig::new(profile, model) };
    let mut config = QpConfig::new(QP, PEER, paths, Arc::new(CcProfile::FixedWindow(1 << 30)));
    config.requestor.max_send_wr = 1024;
    config
}

/// The round trip of an idle path, in whole ticks of the wire's timestamps: 100.
pub const RTT: Span = Span::from_nanos(12_800);

/// The same with the base RTT [`RTT`]; where switches trim, the target delay is three quarters of it.
pub fn config_in_ticks(trims: bool) -> QpConfig {
    let mut config = config();
    config.paths.model = PathModel::new(RTT, trims);
    config
}

/// A packet as it arrives on port 0.
pub fn received(packet: Packet) -> Received {
    Received { packet, ev: EV, port: 0, ecn_ce: false, trim: None }
}

/// The same packet, which asks for an answer.
pub fn asking(packet: Packet) -> Packet {
    Packet { ack_req: true, ..packet }
}

/// A whole write of `len` bytes with this PSN.
pub fn write(psn: u32, len: u16) -> Packet {
    let body = Body::Write(Write {
        position: Position::Only,
        rqmsn: Msn(0),
        msn: Msn(psn as u16),
        timestamp: Some(Timestamp { ticks: 1000, tsr: false }),
        va: 0x1000,
        rkey: 7,
        dma_len: len.into(),
        imm: None,
    });
    Packet { payload_len: len, ..Packet::new(QP, Psn::new(psn), body) }
}

/// A SACK of everything up to `cack`, triggered by that packet, that came with the entropy value `ev`.
pub fn sack(cack: u32, ev: Ev) -> Sack {
    Sack {
        mark: Mark::None,
        probe_reply: false,
        ack_psn_offset: 0,
        entropy: ev,
        spdcid: PEER as u16,
        dpdcid: QP as u16,
        cack_psn: Psn::new(cack),
        cc_type: Sack::CC_TYPE,
        cc_flags: 0,
        mpr: 0,
        sack_offset: 1,
        bitmap: 0,
        cc: CcState::default(),
    }
}

pub fn nack(psn: u32, reason: NackReason, ev: Ev) -> Packet {
    let body = Body::Nack(Nack {
        reason,
        vendor_info: 0,
        entropy: ev,
        spdcid: PEER as u16,
        dpdcid: QP as u16,
        nack_psn: Psn::new(psn),
        cc_flags: 0,
        timestamp: 0,
    });
    Packet::new(QP, Psn::new(psn), body)
}

impl Bench {
    pub fn new(config: &QpConfig) -> Self {
        Bench::with(QueuePair::new(START, config).unwrap(), config)
    }

    /// A queue pair that cannot send yet.
    pub fn receiving(config: &QpConfig) -> Self {
        Bench::with(QueuePair::new_responder(START, config).unwrap(), config)
    }

    fn with(mut qp: QueuePair, config: &QpConfig) -> Self {
        let now = START;
        qp.set_ports_up(now, PortSet::first(2), PortSet::first(2));
        Bench { qp, log: Log::default(), now, profile: Arc::clone(&config.paths.profile) }
    }

    /// The last hop trims whatever is sent, so many times: in the end one spaced packet at a time, the last of which
    /// is trimmed as well.
    pub fn trim_on_last_hop(&mut self, mut sent: Vec<Transmit>, times: usize) {
        for _ in 0..times {
            for Transmit { packet, ev, .. } in &sent {
                let refused = nack(packet.psn.get(), NackReason::TrimmedLastHop, *ev);
                self.hear_packet(Packet { rtx: packet.rtx, ..refused });
            }
            assert!(self.send().is_empty(), "it is spaced");
            self.wait(1000);
            sent = self.send();
            assert_eq!(sent.len(), 1);
        }
        let refused = nack(sent[0].packet.psn.get(), NackReason::TrimmedLastHop, sent[0].ev);
        self.hear_packet(Packet { rtx: true, ..refused });
    }

    pub fn wait(&mut self, micros: u64) {
        self.now += Span::from_micros(micros);
    }

    /// Delivers a packet; returns what the queue pair sends in answer.
    pub fn hear(&mut self, received: &Received) -> Vec<Packet> {
        self.qp.handle_packet(self.now, received, &mut self.log);
        self.take()
    }

    pub fn hear_packet(&mut self, packet: Packet) -> Vec<Packet> {
        self.hear(&received(packet))
    }

    pub fn hear_sack(&mut self, sack: Sack) -> Vec<Packet> {
        self.hear_packet(Packet::new(QP, sack.cack_psn, Body::Sack(sack)))
    }

    /// A SACK whose trigger was on its way for [`RTT`].
    pub fn hear_prompt(&mut self, sack: Sack) -> Vec<Packet> {
        let timestamp = Time(self.now.0 - RTT.0).wire_ticks();
        self.hear_sack(Sack { cc: CcState { timestamp, ..sack.cc }, ..sack })
    }

    pub fn hear_aeth(&mut self, syndrome: u8, psn: u32, msn: u32) {
        let aeth = Body::Ack(Aeth { syndrome, msn });
        self.hear_packet(Packet::new(QP, Psn::new(psn), aeth));
    }

    pub fn timers(&mut self) -> Vec<Packet> {
        self.qp.handle_timeout(self.now, &mut self.log);
        self.take()
    }

    /// Does what is due; returns the probes that it sends.
    pub fn questions(&mut self) -> Vec<Transmit> {
        self.log.sent.clear();
        self.qp.handle_timeout(self.now, &mut self.log);
        self.log.sent.drain(..).filter(|transmit| matches!(transmit.packet.body, Body::Probe(_))).collect()
    }

    /// Data were just sent.
    pub fn behind_data(&mut self) -> Vec<Packet> {
        self.qp.report_early(self.now, &mut self.log);
        self.take()
    }

    /// What it has sent, without the probes by which it looks for paths.
    pub fn take(&mut self) -> Vec<Packet> {
        let packets = self.log.sent.drain(..).map(|transmit| transmit.packet);
        packets.filter(|packet| !matches!(packet.body, Body::Probe(_))).collect()
    }

    /// Posts a write of this length.
    pub fn post(&mut self, handle: u64, len: u32, imm: Option<u32>) {
        let wr = WorkRequest { handle, len, remote_va: 0x1000, rkey: 7, imm, solicited: false };
        self.qp.post_send(self.now, wr).unwrap();
    }

    /// Everything that it may send now.
    pub fn send(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.qp.poll_transmit(self.now, PortSet::first(2))).collect()
    }

    /// Posts and sends `packets` full packets, one message each.
    pub fn send_packets(&mut self, packets: u64) -> Vec<Transmit> {
        (0..packets).for_each(|handle| self.post(handle, MTU.into(), None));
        self.send()
    }

    /// State of the path with this entropy value.
    pub fn state(&self, ev: Ev) -> EvState {
        let has_it = |id: u16| self.profile.entries()[usize::from(id)].ev == ev;
        self.qp.ev_states().find(|(id, _)| has_it(*id)).unwrap().1
    }
}

/// The PSNs of packets.
pub fn psns(sent: &[Transmit]) -> Vec<u32> {
    sent.iter().map(|t| t.packet.psn.get()).collect()
}

/// The SACKs among packets.
pub fn sacks(packets: &[Packet]) -> Vec<Sack> {
    let sack = |packet: &Packet| match packet.body {
        Body::Sack(sack) => Some(sack),
        _ => None,
    };
    packets.iter().filter_map(sack).collect()
}

/// The packets that the SACKs among packets name, in their order.
pub fn named(packets: &[Packet]) -> Vec<u32> {
    let bits = |sack: Sack| {
        let base = sack.cack_psn.get().wrapping_add_signed(sack.sack_offset.into());
        (0..64).filter(move |bit| sack.bitmap >> bit & 1 != 0).map(move |bit| (base + bit) & 0xFF_FFFF)
    };
    sacks(packets).into_iter().flat_map(bits).collect()
}

/// The SACK among packets that answer one; there must be exactly one.
pub fn the_sack(packets: &[Packet]) -> (Packet, Sack) {
    let sacks: Vec<_> = packets
        .iter()
        .filter_map(|packet| match packet.body {
            Body::Sack(sack) => Some((*packet, sack)),
            _ => None,
        })
        .collect();
    assert_eq!(sacks.len(), 1, "{packets:?}");
    sacks[0]
}

/// The reasons of the NACKs among packets.
pub fn reasons(packets: &[Packet]) -> Vec<NackReason> {
    packets
        .iter()
        .filter_map(|packet| match packet.body {
            Body::Nack(nack) => Some(nack.reason),
            _ => None,
        })
        .collect()
}

/// The AETHs among packets.
pub fn aeths(packets: &[Packet]) -> Vec<(u8, u32)> {
    packets
        .iter()
        .filter_map(|packet| match packet.body {
            Body::Ack(aeth) => Some((aeth.syndrome, packet.psn.get())),
            _ => None,
        })
        .collect()
}

pub fn is_trimmed(packet: Packet, trim: Trim) -> Received {
    Received { trim: Some(trim), packet: Packet { payload_len: 0, ..packet }, ..received(packet) }
}
