//! The responder: accepts packets in any order within its window, places them at once, completes messages in order, and
//! decides when to send feedback (docs/spec/transport.md, "Responder"). `feedback` builds it.

mod feedback;
mod stash;

use serde::{Deserialize, Serialize};
use std::num::NonZeroU8;

use openmrc_wire::{Aeth, Mark, NackReason, Packet, Position, Probe, Psn, Timestamp, Write};

use self::stash::{Stash, StashedImm};

use super::cc::nominal;
use super::config::{OutOfWindow, PSNS_PER_MPR, ResponderConfig, ResponderOptions, SackBatching};
use super::shared::Shared;
use crate::api::{Fatal, Host, NoReceive, Pressure, Received, RecvDone, Trim};
use crate::seq::{Seq, expand, first_seq, wire};
use crate::time::{Span, Time};

/// The packet that a SACK answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Trigger {
    psn: Psn,
    ev: openmrc_wire::Ev,
    /// `None` if the packet carries no timestamp, or was trimmed before it.
    timestamp: Option<Timestamp>,
    rtx: bool,
    arrived: Time,
}

impl Trigger {
    /// A data packet that arrives now.
    #[inline]
    fn of(now: Time, received: &Received, write: &Write) -> Trigger {
        let Packet { psn, rtx, .. } = received.packet;
        Trigger { psn, ev: received.ev, timestamp: write.timestamp, rtx, arrived: now }
    }
}

/// The mark for the path of a data packet.
#[inline]
fn mark_of(received: &Received) -> Mark {
    if received.ecn_ce { Mark::SkipOnce } else { Mark::None }
}

/// What a SACK answers.
#[derive(Clone, Copy)]
struct Report {
    trigger: Trigger,
    /// The mark for the path of the trigger.
    mark: Mark,
    /// The id of the answered reliability probe, if the trigger is one.
    probe: Option<u16>,
    /// The peer may have missed the latest ACK.
    repeats_ack: bool,
    /// The SACK was delayed: the timestamp is moved on by the time for which the trigger was held.
    delayed: bool,
}

/// The feedback that a data packet requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Nothing now; the delayed SACK reports it.
    Later,
    /// A SACK now.
    Sack(Mark),
    /// A SACK now, and the latest ACK again: all up to this packet has arrived before.
    SackAndAck(Mark),
    /// A reliability NACK now.
    Nack(NackReason),
    /// A transport NAK; the queue pair goes to ERROR.
    Nak(u8, Fatal),
    /// Nothing at all.
    Nothing,
}

/// ACKs without a SACK in a row, at most: round trips and paths are known from SACKs. With the byte counter of the
/// specification a SACK answers 16 small packets.
const ACKS_ALONE: u8 = 8;
/// The delayed SACK comes so many times sooner where packets are trimmed, maybe the one that asked \[choice\].
const SOONER: u64 = 4;

/// State of 64 PSNs of the window, three bits each.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Arrivals {
    /// The packet has arrived and does not end a message.
    inside: u64,
    /// The packet has arrived and ends a message.
    last: u64,
    /// A message ends here according to the DMA length in its first packet, or because another one begins behind it.
    ends: u64,
}

impl Arrivals {
    fn arrived(self) -> u64 {
        self.inside | self.last
    }

    fn arrive(&mut self, bit: u64, last: bool) {
        if last {
            self.last |= bit;
        } else {
            self.inside |= bit;
        }
    }

    /// The cumulative point moves over a packet.
    fn forget(&mut self, bit: u64) {
        self.inside &= !bit;
        self.last &= !bit;
        self.ends &= !bit;
    }
}

/// Feedback that is still to be sent.
#[derive(Serialize, Deserialize)]
struct PendingFeedback {
    ack_every_bytes: u32,
    ack_delay: Span,
    batching: SackBatching,
    flags: Flags,
    /// When the delayed SACK is due.
    sack_due: Time,
    /// The delayed SACK was due at once and only waits for its batch.
    batched: bool,
    /// The packet that the next SACK answers.
    trigger: Option<Trigger>,
    /// Range of PSNs not yet reported; empty if there are none.
    unreported: (Seq, Seq),
    /// Bytes since the last SACK; each packet counts as [`LEAST_COUNTED`] at least.
    unreported_bytes: u32,
    /// Number of completed messages in the last ACK.
    acked_completed: u32,
    /// A packet asked for an answer before all packets below it were here.
    asked_above_gap: bool,
}

impl PendingFeedback {
    /// How long the next delayed SACK waits.
    fn delay(&self) -> Span {
        if self.flags.is_trimmed() { self.ack_delay.over(SOONER) } else { self.ack_delay }
    }
}

/// Whether an answer is owed that is sent with the next data, how many ACKs were sent so since the last SACK, and whether
/// packets are trimmed: one byte, as there is one for each queue pair.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Flags(u8);

impl Flags {
    const OWED: u8 = 0x80;
    const TRIMMED: u8 = 0x40;
    const ACKS: u8 = 0x3f;

    fn is_owed(self) -> bool {
        self.0 & Self::OWED != 0
    }

    fn owe(&mut self) {
        self.0 |= Self::OWED;
    }

    /// It is sent; whether it was owed.
    fn take_owed(&mut self) -> bool {
        let was_owed = self.is_owed();
        self.0 &= !Self::OWED;
        was_owed
    }

    fn acks(self) -> u8 {
        self.0 & Self::ACKS
    }

    /// There are [`ACKS_ALONE`] at most.
    fn count_ack(&mut self) {
        self.0 += 1;
    }

    /// A SACK is sent.
    fn reported(&mut self) {
        self.0 &= Self::TRIMMED;
    }

    /// A packet was trimmed, and none that asks has arrived since: the sender may wait for the answer that it asked for.
    fn is_trimmed(self) -> bool {
        self.0 & Self::TRIMMED != 0
    }

    fn set_trimmed(&mut self, on: bool) {
        if on {
            self.0 |= Self::TRIMMED;
        } else {
            self.0 &= !Self::TRIMMED;
        }
    }
}

/// Flow control for the peer.
#[derive(Serialize, Deserialize)]
struct Granted {
    /// Advertised window, units of [`PSNS_PER_MPR`].
    mpr: u8,
    /// Largest window, same units.
    mpr_dest: u8,
    pressure: Pressure,
    /// Reports that still have to tell of the last overflow.
    overflow_reports: u8,
}

/// Reports that tell of an overflow. They take different planes, so a dead plane does not hide it: a sender that is not
/// told would condemn a path for every packet that the overflow has cost \[choice\].
const OVERFLOW_REPORTS: u8 = 2;

/// What a packet adds to the byte counter that triggers SACKs, at least (docs/spec/transport.md, "When it answers").
const LEAST_COUNTED: u32 = 1024;

/// Messages, as they complete in order. Neither MSN nor RQMSN of a packet is looked at: PSNs alone order messages, so
/// it does not matter where a peer's counters start.
#[derive(Serialize, Deserialize)]
struct Messages {
    completed: u32,
    /// Low half of the last PSN, according to its DMA length, of the message that ended beyond the ring of arrivals
    /// when it began. If there is none, that of the last message below the cumulative point.
    far_end: u32,
    stash: Stash,
}

/// What is known of the end of a message: one byte, as there is one for each queue pair.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Ends(u8);

impl Ends {
    const BEGUN: u8 = 1;
    const PER_PACKET: u8 = 2;

    /// The last packet below the cumulative point does not end its message.
    fn is_begun(self) -> bool {
        self.0 & Self::BEGUN != 0
    }

    fn set_begun(&mut self, begun: bool) {
        self.0 = (self.0 & !Self::BEGUN) | (u8::from(begun) * Self::BEGUN);
    }

    /// The peer writes the length of each packet as its DMA length: only a last packet says where a message ends.
    fn are_per_packet(self) -> bool {
        self.0 & Self::PER_PACKET != 0
    }

    fn set_per_packet(&mut self) {
        self.0 |= Self::PER_PACKET;
    }
}

/// Data packets that were not accepted.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Refused {
    pub duplicates: u32,
    pub beyond_window: u32,
    pub trimmed: u32,
}

/// A time in units of 2^20 ps (1 us), modulo 2^32.
fn units(time: Time) -> u32 {
    (time.0 >> 20) as u32
}

#[derive(Serialize, Deserialize)]
pub(super) struct Responder {
    /// Lowest PSN that has not arrived.
    expected: Seq,
    /// One past the highest PSN that has arrived.
    high: Seq,
    arrivals: Box<[Arrivals]>,
    out_of_order: u32,
    rcvd_bytes: u64,
    messages: Messages,
    pending: PendingFeedback,
    granted: Granted,
    options: ResponderOptions,
    ends: Ends,
    pub refused: Refused,
    /// From this time on another PSN beyond the window is answered; in [`units`].
    out_of_window_at: u32,
    nak: Option<NonZeroU8>,
    /// The queue pair is destroyed: only what has arrived before is still answered.
    is_retired: bool,
}

impl Responder {
    pub fn new(now: Time, config: &ResponderConfig) -> Self {
        let &ResponderConfig {
            rq_psn,
            mpr_dest,
            max_wimm_dest,
            ack_every_bytes,
            ack_delay,
            batching,
            options,
        } = config;
        let first = first_seq(rq_psn);
        let window = u32::from(mpr_dest) * PSNS_PER_MPR;
        let capacity = u64::from(window.next_power_of_two().max(64));
        Responder {
            expected: first,
            high: first,
            arrivals: vec![Arrivals::default(); capacity as usize / 64].into(),
            out_of_order: 0,
            rcvd_bytes: 0,
            messages: Messages {
                completed: 0,
                far_end: (first - 1) as u32,
                stash: Stash::new(max_wimm_dest),
            },
            pending: PendingFeedback {
                ack_every_bytes,
                ack_delay,
                batching,
                flags: Flags::default(),
                sack_due: Time::NEVER,
                batched: false,
                trigger: None,
                unreported: (first, first),
                unreported_bytes: 0,
                acked_completed: 0,
                asked_above_gap: false,
            },
            granted: Granted { mpr: mpr_dest, mpr_dest, pressure: Pressure::NONE, overflow_reports: 0 },
            options,
            ends: Ends::default(),
            refused: Refused::default(),
            out_of_window_at: units(now),
            nak: None,
            is_retired: false,
        }
    }

    /// The queue pair is destroyed: reports what has not been reported. From now on new data is dropped without an
    /// answer.
    pub fn retire(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        if self.pending.sack_due != Time::NEVER {
            self.report_late(shared, now, host);
        }
        self.is_retired = true;
    }

    /// Changes the advertised window, units of [`PSNS_PER_MPR`], at most `mpr_dest`.
    pub fn set_advertised_mpr(&mut self, mpr: u8) {
        self.granted.mpr = mpr.clamp(1, self.granted.mpr_dest);
    }

    /// Destination flow control for the SACKs from now on. An overflow is told by [`OVERFLOW_REPORTS`] reports at
    /// least.
    #[inline]
    pub fn set_receive_pressure(&mut self, pressure: Pressure) {
        self.granted.pressure = pressure;
        if pressure.is_overflow() {
            self.granted.overflow_reports = OVERFLOW_REPORTS;
        }
    }

    /// When the delayed SACK is due.
    pub fn sack_due(&self) -> Time {
        self.pending.sack_due
    }

    /// Receives were posted: the message that waits for one, and those behind it, complete, and the peer is told. An
    /// error ends the queue pair.
    pub fn receives_posted(
        &mut self,
        shared: &mut Shared,
        now: Time,
        host: &mut dyn Host,
    ) -> Result<(), Fatal> {
        let waited = self.expected;
        if self.is_retired {
            return Ok(());
        }
        if let Err(refusal) = self.advance(shared.config.path_mtu, host) {
            return self.refuse(shared, now, wire(self.expected), refusal, host);
        }
        if self.expected == waited {
            return Ok(());
        }
        self.pending.asked_above_gap &= self.cack() + 1 < self.high;
        // What is still to be reported of paths and arrivals goes out when it is due.
        if let Some(path) = shared.reverse.next(now, &shared.paths, shared.ports_up, false) {
            self.send_ack(shared, path, host);
        }
        Ok(())
    }

    /// Sends the NAK of a refusal.
    fn refuse(
        &mut self,
        shared: &mut Shared,
        now: Time,
        psn: Psn,
        refusal: Answer,
        host: &mut dyn Host,
    ) -> Result<(), Fatal> {
        let Answer::Nak(syndrome, why) = refusal else { return Ok(()) };
        self.nak = NonZeroU8::new(syndrome);
        self.send_nak(shared, now, syndrome, psn, host);
        Err(why)
    }

    /// Handles a data packet. An error ends the queue pair.
    pub fn on_data(
        &mut self,
        shared: &mut Shared,
        now: Time,
        received: &Received,
        write: &Write,
        host: &mut impl Host,
    ) -> Result<(), Fatal> {
        shared.stats.data_packets_in += 1;
        let answer = self.receive(shared, now, received, write, host);
        let has_gap = self.cack() + 1 < self.high;
        // The answer to a packet that asked for one could not acknowledge its message yet: now it can.
        let is_owed = !has_gap && std::mem::take(&mut self.pending.asked_above_gap);
        self.pending.asked_above_gap |= has_gap && received.packet.ack_req && received.trim.is_none();
        if received.packet.ack_req {
            self.pending.flags.set_trimmed(false);
        }
        match answer {
            Answer::Later => {
                if is_owed || self.pending.unreported_bytes > self.pending.ack_every_bytes {
                    self.report(shared, now, Mark::None, host);
                } else if self.pending.sack_due == Time::NEVER {
                    self.pending.sack_due = now + self.pending.delay();
                }
            }
            Answer::Sack(mark) => self.report(shared, now, mark, host),
            Answer::SackAndAck(mark) => {
                if let Some(report) = self.report_on_trigger(mark) {
                    self.send_report(shared, now, Report { repeats_ack: true, ..report }, host);
                }
            }
            Answer::Nack(reason) => {
                self.send_nack(shared, now, received, write, reason, host);
                if received.trim.is_some() {
                    self.pending.flags.set_trimmed(true);
                    if self.pending.sack_due != Time::NEVER {
                        self.pending.sack_due = self.pending.sack_due.min(now + self.pending.delay());
                    }
                }
            }
            Answer::Nak(syndrome, why) => {
                // Without a receive, the message that is next to complete is refused, not this packet.
                let psn = if why == Fatal::NoReceive { wire(self.expected) } else { received.packet.psn };
                return self.refuse(shared, now, psn, Answer::Nak(syndrome, why), host);
            }
            Answer::Nothing => {}
        }
        Ok(())
    }

    /// Handles a reliability probe of the peer.
    pub fn on_probe(
        &mut self,
        shared: &mut Shared,
        now: Time,
        received: &Received,
        probe: &Probe,
        host: &mut dyn Host,
    ) {
        // A probe loses nothing when a switch trims it, but its path is congested.
        let congested = received.ecn_ce || received.trim.is_some();
        let mark = if congested { Mark::SkipOnce } else { Mark::None };
        let trigger = Trigger {
            psn: wire(self.cack()),
            ev: received.ev,
            timestamp: Some(probe.timestamp),
            rtx: false,
            arrived: now,
        };
        let probe = Some(probe.probe_id);
        self.send_report(
            shared,
            now,
            Report { trigger, mark, probe, repeats_ack: true, delayed: false },
            host,
        );
    }

    /// In ERROR after a refusal: the peer may have missed the NAK, so each of its packets is answered with the NAK
    /// again. It refuses that packet: the first one to be refused may have been forged, and the peer ignores a NAK for
    /// what it has not sent.
    pub fn repeat_nak(&mut self, shared: &mut Shared, now: Time, packet: &Packet, host: &mut dyn Host) {
        if let Some(syndrome) = self.nak {
            let psn = if packet.is_data() { packet.psn } else { wire(self.cack()) };
            self.send_nak(shared, now, syndrome.get(), psn, host);
        }
    }

    /// Sends the delayed SACK now if at least half its delay has passed, or the answer that was to go with the next
    /// data.
    pub fn report_early(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let goes_with_data = self.pending.flags.take_owed();
        if goes_with_data && let Some(plane) = shared.paths.burst_plane() {
            shared.reverse.prefer(plane);
        }
        let has_gap = self.cack() + 1 < self.high;
        if goes_with_data && !has_gap && !self.pending.batched && self.pending.flags.acks() < ACKS_ALONE {
            self.acknowledge_alone(shared, now, host);
        } else if goes_with_data || self.pending.sack_due <= now + self.pending.ack_delay.over(2) {
            self.report_late(shared, now, host);
        }
    }

    /// Sends an ACK without a SACK: it is cumulative too, and takes half the time of both. The delayed SACK repeats it,
    /// as it may be lost.
    fn acknowledge_alone(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        self.pending.flags.count_ack();
        self.pending.sack_due = now + self.pending.ack_delay;
        if let Some(path) = shared.reverse.next(now, &shared.paths, shared.ports_up, false) {
            self.send_aeth(shared, Aeth::ACK, wire(self.cack()), path, host);
        }
    }

    /// Sends the delayed SACK if it is due.
    pub fn handle_timeout(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        if now >= self.pending.sack_due {
            self.report_late(shared, now, host);
        }
    }

    fn report_on_trigger(&self, mark: Mark) -> Option<Report> {
        let report = |trigger| Report { trigger, mark, probe: None, repeats_ack: false, delayed: false };
        self.pending.trigger.map(report)
    }

    /// Sends a SACK for the last packet received.
    fn report(&mut self, shared: &mut Shared, now: Time, mark: Mark, host: &mut dyn Host) {
        if let Some(report) = self.report_on_trigger(mark) {
            self.send_report(shared, now, report, host);
        }
    }

    /// Sends the SACK that has waited.
    fn report_late(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let delayed = !self.pending.batched || self.options.service_time;
        if let Some(report) = self.report_on_trigger(Mark::None) {
            self.send_report(shared, now, Report { delayed, ..report }, host);
        }
    }

    /// The cumulative point: this PSN and all below it have arrived.
    fn cack(&self) -> Seq {
        self.expected - 1
    }

    /// Nominal bytes received in the format of the wire: units of 256, rounded up, 24 bits.
    fn rcvd_units(&self) -> u32 {
        (self.rcvd_bytes.div_ceil(256) & 0xFF_FFFF) as u32
    }

    fn expand(&self, psn: Psn) -> Seq {
        expand(psn, self.expected)
    }

    /// Size of the window, in PSNs.
    #[inline]
    fn window(&self) -> u32 {
        u32::from(self.granted.mpr_dest) * PSNS_PER_MPR
    }

    /// Position of a PSN in the ring, whose size is a power of two: the word and the bit.
    #[inline]
    fn mask(&self) -> u64 {
        self.arrivals.len() as u64 * 64 - 1
    }

    fn locate(&self, seq: Seq) -> (usize, u64) {
        let slot = seq & self.mask();
        (slot as usize / 64, 1 << (slot % 64))
    }

    fn has(&self, seq: Seq) -> bool {
        let (word, bit) = self.locate(seq);
        seq < self.expected || (seq < self.high && self.arrivals[word].arrived() & bit != 0)
    }

    /// The bitmap of the 64 PSNs from `from` on that have arrived above the cumulative point.
    fn bitmap(&self, from: Seq) -> u64 {
        debug_assert!(from >= self.expected);
        if from >= self.high {
            return 0;
        }
        let slot = from & self.mask();
        let (word, bit) = (slot as usize / 64, slot % 64);
        let low = self.arrivals[word].arrived() >> bit;
        let both = if bit == 0 {
            low
        } else {
            low | self.arrivals[(word + 1) % self.arrivals.len()].arrived() << (64 - bit)
        };
        // With a ring of 64 the bits above the end of the window would be those of its beginning.
        let inside = (self.high - from).min(64);
        if inside == 64 { both } else { both & ((1 << inside) - 1) }
    }

    /// Accepts or refuses a data packet. Placement and completed immediates go through `host`.
    #[inline]
    fn receive(
        &mut self,
        shared: &Shared,
        now: Time,
        received: &Received,
        write: &Write,
        host: &mut impl Host,
    ) -> Answer {
        let packet = &received.packet;
        let seq = self.expand(packet.psn);
        let (word, bit) = self.locate(seq);
        let is_new = seq.wrapping_sub(self.expected) < u64::from(self.window())
            && self.arrivals[word].arrived() & bit == 0;
        if !is_new || self.is_retired || received.trim.is_some() {
            return self.receive_unwanted(shared, now, seq, received, write);
        }
        if let Err(refusal) = self.accept(shared.config.path_mtu.into(), seq, received, write, host) {
            return refusal;
        }
        let size = nominal(packet);
        self.rcvd_bytes += u64::from(size);
        self.pending.unreported_bytes = self.pending.unreported_bytes.saturating_add(size.max(LEAST_COUNTED));
        self.pending.trigger = Some(Trigger::of(now, received, write));
        self.pending.unreported = match self.pending.unreported {
            (low, end) if low < end => (low.min(seq), end.max(seq + 1)),
            _ => (seq, seq + 1),
        };
        self.high = self.high.max(seq + 1);
        self.out_of_order += 1;
        let taken = self.messages.stash.taken();
        if let Err(refusal) = self.advance(shared.config.path_mtu, host) {
            return refusal;
        }
        let mark = mark_of(received);
        let owes_ack = shared.config.acks_immediates && self.messages.stash.taken() != taken;
        // A packet out of order, a gap and a filled gap are no reason for a SACK: with spraying nearly every packet
        // opens a gap.
        if mark == Mark::None && !packet.ack_req && !packet.rtx && !owes_ack {
            return Answer::Later;
        }
        // In software a SACK costs as much as a small message, so the one that a message of one packet asks for
        // comes with the delayed SACK [choice].
        let waits = self.pending.batching != SackBatching::None && write.position == Position::Only;
        let asks = packet.ack_req && !waits;
        if packet.ack_req && waits && self.pending.batching == SackBatching::BehindData {
            // What was acknowledged alone must not bring the answer to this packet forward, in front of the data. What is
            // due at once stays so.
            let flags = self.pending.flags;
            if flags.acks() > 0 && !flags.is_owed() && !self.pending.batched {
                self.pending.sack_due = now + self.pending.ack_delay;
            }
            self.pending.flags.owe();
        }
        let at_once = asks || packet.rtx || owes_ack;
        if mark != Mark::None {
            Answer::Sack(mark)
        } else if at_once && self.pending.batching != SackBatching::None {
            self.pending.sack_due = now;
            self.pending.batched = true;
            Answer::Later
        } else if at_once {
            Answer::Sack(mark)
        } else {
            Answer::Later
        }
    }

    /// The answer to a data packet that has arrived before, lies beyond the window, is trimmed, or comes too late.
    #[cold]
    fn receive_unwanted(
        &mut self,
        shared: &Shared,
        now: Time,
        seq: Seq,
        received: &Received,
        write: &Write,
    ) -> Answer {
        let trim = received.trim;
        if seq + u64::from(self.window()) < self.expected {
            // No requestor still waits for an answer to it: it is old, or forged.
            self.refused.beyond_window = self.refused.beyond_window.wrapping_add(1);
            return Answer::Nothing;
        }
        if self.has(seq) {
            self.refused.duplicates = self.refused.duplicates.wrapping_add(1);
            self.pending.trigger = Some(Trigger::of(now, received, write));
            let mark = mark_of(received);
            return if seq < self.expected { Answer::SackAndAck(mark) } else { Answer::Sack(mark) };
        }
        if self.is_retired {
            return Answer::Nothing;
        }
        if seq >= self.expected + u64::from(self.window()) {
            self.refused.beyond_window = self.refused.beyond_window.wrapping_add(1);
            // Nothing protects the header of a trimmed packet.
            let answers = self.options.out_of_window == OutOfWindow::Nack && trim.is_none();
            let at = units(now);
            if !answers || (at.wrapping_sub(self.out_of_window_at) as i32) < 0 {
                return Answer::Nothing;
            }
            self.out_of_window_at = at.wrapping_add(units(Time(shared.rtt.smoothed.0)).max(1));
            return Answer::Nack(NackReason::PsnOorWindow);
        }
        self.refused.trimmed = self.refused.trimmed.wrapping_add(1);
        let reason = match trim {
            Some(Trim::LastHop) => NackReason::TrimmedLastHop,
            _ => NackReason::Trimmed,
        };
        if self.options.trim_nack { Answer::Nack(reason) } else { Answer::Nothing }
    }

    /// Checks a new packet and places it. If it is refused, nothing has changed.
    #[inline]
    fn accept(
        &mut self,
        path_mtu: u32,
        seq: Seq,
        received: &Received,
        write: &Write,
        host: &mut impl Host,
    ) -> Result<(), Answer> {
        let len = u32::from(received.packet.payload_len);
        let invalid = Answer::Nak(Aeth::NAK_INVALID_REQUEST, Fatal::InvalidRequest);
        if !has_right_length(write, len, path_mtu) || (write.imm.is_some() && !write.position.is_last()) {
            return Err(invalid);
        }
        if write.imm.is_some() && self.messages.stash.is_full() {
            return Err(Answer::Nak(self.options.wimm_nak_syndrome, Fatal::WimmLimit));
        }
        if len > 0 && host.write(write.rkey, write.va, len).is_err() {
            return Err(Answer::Nak(Aeth::NAK_REMOTE_ACCESS, Fatal::AccessViolation));
        }
        if matches!(write.position, Position::First | Position::Only) {
            let packets = write.dma_len.div_ceil(path_mtu).max(1);
            if write.position == Position::First && write.dma_len == path_mtu {
                self.ends.set_per_packet();
            }
            if !self.expect_begin(seq)
                || !self.ends.are_per_packet() && !self.expect_end(seq + u64::from(packets) - 1)
            {
                return Err(invalid);
            }
        }
        let (word, bit) = self.locate(seq);
        self.arrivals[word].arrive(bit, write.position.is_last());
        if let Some(imm) = write.imm {
            self.messages.stash.insert(StashedImm {
                seq,
                imm,
                dma_len: write.dma_len,
                solicited: received.packet.solicited,
            });
        }
        Ok(())
    }

    /// A message begins at this PSN, so another one must end before it. `false`: it does not.
    fn expect_begin(&mut self, begin: Seq) -> bool {
        if begin == self.expected {
            return !self.ends.is_begun();
        }
        let (word, bit) = self.locate(begin - 1);
        self.arrivals[word].ends |= bit;
        true
    }

    /// A message must end at this PSN. `false`: another message, which is not complete, ends even later.
    fn expect_end(&mut self, end: Seq) -> bool {
        let earlier = self.far_end();
        if let Some(earlier) = earlier.filter(|&earlier| earlier - self.expected <= self.mask()) {
            let (word, bit) = self.locate(earlier);
            self.arrivals[word].ends |= bit;
        }
        if end - self.expected <= self.mask() {
            let (word, bit) = self.locate(end);
            self.arrivals[word].ends |= bit;
            return true;
        }
        self.messages.far_end = end as u32;
        earlier.is_none_or(|earlier| earlier - self.expected <= self.mask())
    }

    /// Length of the message that ends at the cumulative point, from the DMA length of its last packet.
    fn message_len(&self, dma_len: u32, path_mtu: u32) -> u32 {
        if !self.ends.are_per_packet() || dma_len == 0 {
            return dma_len;
        }
        let before = (self.expected as u32).wrapping_sub(self.messages.far_end).wrapping_sub(1);
        before.wrapping_mul(path_mtu).wrapping_add((dma_len - 1) % path_mtu + 1)
    }

    /// The last PSN of a message that ended beyond the ring when it began.
    fn far_end(&self) -> Option<Seq> {
        let ahead = self.messages.far_end.wrapping_sub(self.expected as u32) as i32;
        u64::try_from(ahead).ok().map(|ahead| self.expected + ahead)
    }

    /// Moves the cumulative point over all that has arrived; completes messages and delivers immediates.
    ///
    /// It stops below a message with immediate that waits for a receive: neither it nor what follows is complete then.
    #[inline]
    fn advance(&mut self, path_mtu: u16, host: &mut (impl Host + ?Sized)) -> Result<(), Answer> {
        while self.pass_inside() {
            if !self.pass_end(path_mtu, host)? {
                break;
            }
        }
        Ok(())
    }

    /// Moves the cumulative point over packets that end no message. Returns whether it stands below one that does.
    #[inline]
    fn pass_inside(&mut self) -> bool {
        loop {
            let slot = self.expected & self.mask();
            let (word, shift) = (slot as usize / 64, slot % 64);
            let arrivals = &mut self.arrivals[word];
            let arrived = arrivals.arrived() >> shift;
            let ends = (arrivals.last | arrivals.ends) >> shift;
            // No bit is set beyond the word, so the run ends there too.
            let mut run = (arrived & !ends).trailing_ones();
            let far_end = self.messages.far_end.wrapping_sub(self.expected as u32);
            if far_end as i32 >= 0 {
                run = run.min(far_end);
            }
            if run > 0 {
                arrivals.forget(u64::MAX >> (64 - run) << shift);
                self.expected += u64::from(run);
                self.out_of_order -= run;
                self.ends.set_begun(true);
            }
            if u64::from(run) + shift < 64 {
                return arrived >> run & 1 != 0;
            }
        }
    }

    /// Moves the cumulative point over the next packet, which has arrived and ends a message. Returns whether it did.
    #[inline(never)]
    fn pass_end(&mut self, path_mtu: u16, host: &mut (impl Host + ?Sized)) -> Result<bool, Answer> {
        let (word, bit) = self.locate(self.expected);
        let state = self.arrivals[word];
        let is_last = state.last & bit != 0;
        let is_end = state.ends & bit != 0 || self.messages.far_end == self.expected as u32;
        if is_last != is_end && !(is_last && self.ends.are_per_packet()) {
            // Packets are missing in the message, or there are too many: its bytes are not those of its DMA length.
            return Err(Answer::Nak(Aeth::NAK_INVALID_REQUEST, Fatal::InvalidRequest));
        }
        let immediate = self.messages.stash.oldest(self.expected);
        if let Some(StashedImm { imm, dma_len, solicited, .. }) = immediate {
            let byte_len = self.message_len(dma_len, path_mtu.into());
            let rqmsn = self.messages.stash.taken();
            match host.recv_done(RecvDone { rqmsn, imm, byte_len, solicited }) {
                Ok(()) => self.messages.stash.take_oldest(),
                Err(NoReceive::Waits) => return Ok(false),
                Err(NoReceive::Refused) => {
                    return Err(Answer::Nak(Aeth::NAK_REMOTE_OPERATIONAL, Fatal::NoReceive));
                }
            }
        }
        self.arrivals[word].forget(bit);
        self.expected += 1;
        self.out_of_order -= 1;
        self.ends.set_begun(false);
        if self.far_end().is_none() {
            // It must not come ahead of the cumulative point again when PSNs wrap.
            self.messages.far_end = (self.expected - 1) as u32;
        }
        self.messages.completed = self.messages.completed.wrapping_add(1);
        Ok(true)
    }

    /// Loads the bits of the next packets into the cache.
    pub fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.arrivals, self.locate(self.expected).0);
    }

    /// Any field of type [`Time`]: the address from which the cache lines of the responder are loaded.
    pub fn prefetch_anchor(&self) -> &Time {
        &self.pending.sack_due
    }

    /// Heap bytes, and the part of them that is allocated only when immediates are used.
    pub fn heap_bytes(&self) -> (usize, usize) {
        let bitmaps = size_of_val(&*self.arrivals);
        let stash = self.messages.stash.heap_bytes();
        (bitmaps + stash, stash)
    }
}

/// Whether a packet has the length that its place in the message and its DMA length demand: a shorter one would leave a
/// hole in the message. The DMA length is that of the message, or, as readings differ, that of the packet.
fn has_right_length(write: &Write, len: u32, path_mtu: u32) -> bool {
    let dma = write.dma_len;
    let is_first = write.position.is_first();
    if !write.position.is_last() {
        return len == path_mtu && dma >= path_mtu;
    }
    if is_first {
        return len == dma && dma <= path_mtu;
    }
    len > 0 && len <= path_mtu && len <= dma && (len == dma || len == (dma - 1) % path_mtu + 1)
}

#[cfg(test)]
mod tests;
