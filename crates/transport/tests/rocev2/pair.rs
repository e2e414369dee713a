//! Two ends of a RoCEv2 connection in virtual time, and the list that they are held against.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use openmrc_transport::rocev2::{QueuePair, RcConfig, RcStats};
use openmrc_transport::{
    AccessError, Fatal, Host, NoReceive, PortSet, Readiness, Received, RecvDone, SendDone, SendStatus, Span,
    Time, TrafficClass, Transmit, Transport as _, Trim, WorkRequest,
};
use openmrc_wire::{Aeth, Body, Ev, Position};

use crate::world::Dice;

pub const RATE: u64 = 100_000_000_000;
pub const RKEY: u32 = 77;
pub const FIRST_HANDLE: u64 = 100;
pub const PORT: u8 = 2;
pub const EV: Ev = Ev(0xC123);
pub const ALL: PortSet = PortSet::first(PortSet::MAX_PORTS);

pub fn micros(n: u64) -> Time {
    Time(Span::from_micros(n).0)
}

/// What a wire does to packets, each with its probability.
#[derive(Clone, Copy, Default, Debug)]
pub struct Wire {
    pub lost: f64,
    pub repeated: f64,
    pub late: f64,
    pub marked: f64,
    pub trimmed: f64,
    /// From this time on nothing arrives.
    pub dead_from: Option<Time>,
}

/// What one end of the connection has seen.
#[derive(Default)]
pub struct Seen {
    pub writes: Vec<(u32, u64, u32)>,
    pub sends: Vec<SendDone>,
    pub receives: Vec<RecvDone>,
    pub fatal: Vec<Fatal>,
    pub answers: Vec<Transmit>,
    /// The memory refuses this write, counted from zero.
    pub refuses: Option<usize>,
    /// Receives that are posted; `None` for as many as are needed.
    pub posted: Option<usize>,
}

impl Host for Seen {
    fn write(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError> {
        if self.refuses == Some(self.writes.len()) {
            return Err(AccessError);
        }
        self.writes.push((rkey, va, len));
        Ok(())
    }
    fn transmit(&mut self, transmit: Transmit) {
        self.answers.push(transmit);
    }
    fn send_done(&mut self, done: SendDone) {
        self.sends.push(done);
    }
    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive> {
        if self.posted == Some(self.receives.len()) {
            return Err(NoReceive::Refused);
        }
        self.receives.push(done);
        Ok(())
    }
    fn may_probe_path(&mut self, _: Time) -> bool {
        unreachable!("RoCEv2 probes no paths")
    }
    fn fatal(&mut self, why: Fatal) {
        self.fatal.push(why);
    }
}

/// A data packet that was sent, by its number without wrap.
pub struct Sent {
    pub at: Time,
    pub seq: u64,
    pub transmit: Transmit,
}

/// End 0 sends messages to end 1.
pub struct Pair {
    pub config: RcConfig,
    pub wire: Wire,
    pub dice: Dice,
    pub now: Time,
    pub latency: Span,
    pub ends: [QueuePair; 2],
    pub seen: [Seen; 2],
    /// Arrivals: time, number, end.
    pub flying: BinaryHeap<Reverse<(Time, u64, usize)>>,
    pub packets: Vec<Received>,
    pub posted: Vec<WorkRequest>,
    /// Every packet of the messages posted: message, offset, length.
    pub expected: Vec<(WorkRequest, u32, u32)>,
    /// What they write, and how many bytes are written when each message has ended.
    pub writes: Vec<(u32, u64, u32)>,
    pub ends_at: Vec<u64>,
    /// How many writes, sends and receives were held against these lists; bytes of the writes.
    pub judged: [usize; 3],
    pub written: u64,
    pub sent: Vec<Sent>,
    /// One past the highest packet sent.
    pub high: u64,
    /// What the answers that have arrived acknowledge: one past the last packet.
    pub acknowledged: u64,
    pub counted: RcStats,
    /// Times at which congestion was notified.
    pub notified: Vec<Time>,
}

impl Pair {
    pub fn new(config: RcConfig, wire: Wire, seed: u64) -> Pair {
        let peer = RcConfig { local_qp: config.remote_qp, remote_qp: config.local_qp, ..config };
        Pair {
            config,
            wire,
            dice: Dice::new(seed),
            now: Time::ZERO,
            latency: Span::from_micros(2),
            ends: [QueuePair::new(config), QueuePair::new(peer)],
            seen: [Seen::default(), Seen::default()],
            flying: BinaryHeap::new(),
            packets: Vec::new(),
            posted: Vec::new(),
            expected: Vec::new(),
            writes: Vec::new(),
            ends_at: Vec::new(),
            judged: [0; 3],
            written: 0,
            sent: Vec::new(),
            high: 0,
            acknowledged: 0,
            counted: RcStats::default(),
            notified: Vec::new(),
        }
    }

    pub fn post(&mut self, len: u32, imm: Option<u32>) {
        let handle = FIRST_HANDLE + self.posted.len() as u64;
        let wr = WorkRequest {
            handle,
            len,
            remote_va: handle << 32,
            rkey: RKEY,
            imm,
            solicited: handle.is_multiple_of(2),
        };
        self.ends[0].post_send(self.now, wr).unwrap();
        self.posted.push(wr);
        self.ends_at.push(self.ends_at.last().unwrap_or(&0) + u64::from(len));
        let mtu = u32::from(self.config.path_mtu);
        for offset in (0..len.max(1)).step_by(mtu as usize) {
            let bytes = (len - offset).min(mtu);
            self.expected.push((wr, offset, bytes));
            if bytes > 0 {
                self.writes.push((RKEY, wr.remote_va + u64::from(offset), bytes));
            }
        }
    }

    pub fn fly(&mut self, to: usize, transmit: &Transmit) {
        let mut packet = transmit.packet;
        // On the wire only a first packet says where, and only a last one carries an immediate.
        if let Body::RcWrite(write) = &mut packet.body
            && !write.position.is_first()
        {
            (write.va, write.rkey, write.dma_len) = (0, 0, 0);
        }
        assert_eq!(packet.dest_qp, if to == 1 { self.config.remote_qp } else { self.config.local_qp });
        assert_eq!((transmit.ev, transmit.port, transmit.path), (EV, PORT, 0));
        if self.wire.dead_from.is_some_and(|from| self.now >= from) || self.dice.chance(self.wire.lost) {
            return;
        }
        let is_data = transmit.class == TrafficClass::Data;
        let mut received = Received { packet, ev: EV, port: PORT, ecn_ce: false, trim: None };
        received.ecn_ce = is_data && self.dice.chance(self.wire.marked);
        if is_data && self.dice.chance(self.wire.trimmed) {
            received.packet.payload_len = 0;
            received.trim = Some(Trim::Fabric);
        }
        for _ in 0..1 + u64::from(self.dice.chance(self.wire.repeated)) {
            let mut at = self.now + self.latency;
            if self.dice.chance(self.wire.late) {
                at += self.dice.span(Span::from_micros(20));
            }
            self.flying.push(Reverse((at, self.packets.len() as u64, to)));
            self.packets.push(received);
        }
    }

    pub fn arrives(&mut self, to: usize, received: &Received) {
        let expected = self.acknowledged;
        match received.packet.body {
            Body::RcAck(aeth) if aeth.is_ack() || aeth.syndrome == Aeth::NAK_PSN_SEQUENCE => {
                let is_nak = !aeth.is_ack();
                self.counted.naks += u64::from(is_nak && self.seen[to].fatal.is_empty());
                // Nothing was sent for the PSN before the first.
                if received.packet.psn.get() != 0xFF_FFFF {
                    let past = u64::from(received.packet.psn.get()) + u64::from(!is_nak);
                    self.acknowledged = expected.max(past);
                }
            }
            Body::Cnp => self.counted.cnps += u64::from(self.seen[to].fatal.is_empty()),
            _ => {}
        }
        self.ends[to].handle_packet(self.now, received, &mut self.seen[to]);
        for answer in std::mem::take(&mut self.seen[to].answers) {
            assert_eq!(
                (answer.class, answer.payload, answer.packet.payload_len),
                (TrafficClass::Control, None, 0)
            );
            match answer.packet.body {
                Body::Cnp => self.notified.push(self.now),
                Body::RcAck(aeth) => {
                    let msn = self.seen[to].receives.len() as u32;
                    assert!(aeth.msn >= msn, "{aeth:?} after {msn} messages with immediate");
                }
                other => panic!("{other:?}"),
            }
            self.fly(1 - to, &answer);
        }
    }

    /// Sends what may be sent, and holds each packet against the list.
    pub fn transmits(&mut self) {
        while let Some(transmit) = self.ends[0].poll_transmit(self.now, ALL) {
            let seq = u64::from(transmit.packet.psn.get());
            let (wr, offset, len) = self.expected[seq as usize];
            let Body::RcWrite(write) = transmit.packet.body else { panic!("{transmit:?}") };
            let (first, last) = (offset == 0, offset + len == wr.len);
            assert_eq!((write.position.is_first(), write.position.is_last()), (first, last));
            assert_eq!(write.position == Position::Only, first && last);
            assert_eq!((write.va, write.rkey, write.dma_len), (wr.remote_va, RKEY, wr.len));
            assert_eq!(write.imm, wr.imm.filter(|_| last));
            assert_eq!(u32::from(transmit.packet.payload_len), len);
            let payload = transmit.payload.map(|payload| (payload.handle, payload.offset));
            assert_eq!(payload, (len > 0).then_some((wr.handle, offset)));
            let every = u64::from(self.config.ack_every.min(self.config.window));
            assert_eq!(transmit.packet.ack_req, last || (seq + 1).is_multiple_of(every));
            assert_eq!(transmit.packet.solicited, wr.solicited && last);
            assert_eq!(transmit.class, TrafficClass::Data);
            let high = self.high;
            assert!(seq <= high, "{seq} is sent before {high}");
            assert!(seq < self.acknowledged + u64::from(self.config.window), "{seq} is beyond the window");
            assert!(seq >= self.acknowledged, "{seq} was acknowledged");
            self.counted.data_packets += 1;
            self.counted.retransmits += u64::from(seq < high);
            if let (Some(dcqcn), Some(before)) = (self.config.dcqcn, self.sent.last()) {
                let least = before.transmit.packet.wire_len() as f64 * 8e12 / dcqcn.line_rate_bps as f64;
                assert!(self.now.since(before.at).0 as f64 >= least - 1.0, "faster than the line");
            }
            self.high = high.max(seq + 1);
            self.sent.push(Sent { at: self.now, seq, transmit });
            self.fly(1, &transmit);
        }
        assert_eq!(self.ends[1].poll_transmit(self.now, ALL), None);
    }

    /// Until nothing is left to do. Nobody asks an end for packets but when its own timer says so, or after an arrival.
    pub fn run(&mut self) {
        for _ in 0..2_000_000 {
            self.transmits();
            let arrival = self.flying.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at);
            let timers = [0, 1].map(|end| self.ends[end].poll_timeout());
            let next = arrival.min(timers[0]).min(timers[1]);
            if next == Time::NEVER {
                return;
            }
            self.now = self.now.max(next);
            if let Some(&Reverse((at, number, to))) = self.flying.peek()
                && at <= self.now
            {
                self.flying.pop();
                let received = self.packets[number as usize];
                self.arrives(to, &received);
            }
            for end in [0, 1] {
                if timers[end] <= self.now {
                    self.ends[end].handle_timeout(self.now, &mut self.seen[end]);
                }
            }
            self.judge();
        }
        panic!("no end after {} us", self.now.0 / 1_000_000);
    }

    /// What must hold at every moment, for what was written and reported since the last one.
    pub fn judge(&mut self) {
        let (sender, receiver) = (&self.seen[0], &self.seen[1]);
        let lengths = [receiver.writes.len(), sender.sends.len(), receiver.receives.len()];
        let [writes, sends, receives] = std::mem::replace(&mut self.judged, lengths);
        assert_eq!(receiver.writes[writes..], self.writes[writes..lengths[0]]);
        let written: u64 = receiver.writes[writes..].iter().map(|(.., len)| u64::from(*len)).sum();
        self.written += written;
        let bytes_until = |wr: &WorkRequest| self.ends_at[(wr.handle - FIRST_HANDLE) as usize];
        for (done, wr) in sender.sends.iter().zip(&self.posted).skip(sends) {
            assert_eq!(done.handle, wr.handle);
            let success = done.status == SendStatus::Success;
            assert!(!success || bytes_until(wr) <= self.written, "{done:?} after {} bytes", self.written);
        }
        let with_immediate = self.posted.iter().filter(|wr| wr.imm.is_some()).enumerate();
        for (done, (number, wr)) in receiver.receives.iter().zip(with_immediate).skip(receives) {
            assert_eq!((done.rqmsn.0, Some(done.imm), done.byte_len), (number as u16, wr.imm, wr.len));
            assert!(bytes_until(wr) <= self.written, "{done:?} after {} bytes", self.written);
        }
        assert!(receiver.sends.is_empty() && sender.receives.is_empty() && sender.writes.is_empty());
    }

    /// Everything was delivered and reported.
    pub fn judge_end(&self) {
        assert_eq!((&self.seen[0].fatal, &self.seen[1].fatal), (&vec![], &vec![]));
        let success = |done: &SendDone| done.status == SendStatus::Success;
        assert!(self.seen[0].sends.len() == self.posted.len() && self.seen[0].sends.iter().all(success));
        let immediates = self.posted.iter().filter(|wr| wr.imm.is_some()).count();
        assert_eq!(self.seen[1].receives.len(), immediates);
        let stats = self.ends[0].stats();
        assert_eq!(stats, RcStats { timeouts: stats.timeouts, ..self.counted });
        assert_eq!(self.ends[0].readiness(), Readiness::Idle);
        let interval = self.config.dcqcn.map_or(Span(u64::MAX), |dcqcn| dcqcn.cnp_interval);
        assert!(self.notified.windows(2).all(|pair| pair[1].since(pair[0]) >= interval));
    }
}
