//! The responder: accepts packets in any order within its window, places them at once, completes messages in order,
//! and knows what to report (spec: transport, "Responder").

use openmrc_wire::{Aeth, Ev, Mark, Msn, NackReason, Psn, Timestamp, Write};

use super::window::{Seq, wire};
use crate::api::{Fatal, Host, Received, RecvDone, Trim};
use crate::time::Time;

/// The packet a SACK will say it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Trigger {
    pub psn: Psn,
    pub ev: Ev,
    pub timestamp: Timestamp,
    pub arrived: Time,
}

/// What a data packet asks of the feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing at once; the delayed SACK will tell.
    Later,
    /// A SACK now.
    Sack(Mark),
    /// A reliability NACK now.
    Nack(NackReason),
    /// A transport NAK; the queue pair goes to ERROR.
    Nak(u8, Fatal),
    /// Nothing at all.
    Nothing,
}

/// A WriteImm's immediate, waiting for its turn.
#[derive(Clone, Copy, Default)]
struct Stashed {
    imm: u32,
    byte_len: u32,
}

/// What is known of 64 PSNs of the window, a bit each.
#[derive(Clone, Copy, Default)]
struct Arrivals {
    arrived: u64,
    /// Ends a message.
    last: u64,
    /// Carries an immediate.
    immediate: u64,
}

pub(super) struct Responder {
    /// Next PSN of the cumulative point: everything below has arrived.
    expected: Seq,
    /// One past the highest PSN that has arrived.
    high: Seq,
    mask: u64,
    window: u32,
    arrivals: Box<[Arrivals]>,
    /// Immediates by RQMSN; made when the first one comes.
    stash: Box<[Stashed]>,
    max_wimm: u16,
    out_of_order: u32,
    completed: u64,
    next_rqmsn: Msn,
    rcvd_bytes: u64,
    /// PSNs not yet reported: lowest and one past the highest.
    pub(super) dirty: Option<(Seq, Seq)>,
    pub(super) unreported_bytes: u32,
    pub(super) trigger: Option<Trigger>,
    pub(super) last_arrival: Time,
    pub(super) duplicates: u32,
    pub(super) refused: u32,
    pub(super) trimmed: u32,
}

impl Responder {
    pub(super) fn new(first: Seq, window: u32, max_wimm: u16) -> Self {
        let capacity = u64::from(window.next_power_of_two().max(64));
        let words = capacity as usize / 64;
        Responder {
            expected: first,
            high: first,
            mask: capacity - 1,
            window,
            arrivals: vec![Arrivals::default(); words].into(),
            stash: Box::default(),
            max_wimm: max_wimm.max(1),
            out_of_order: 0,
            completed: 0,
            next_rqmsn: Msn(0),
            rcvd_bytes: 0,
            dirty: None,
            unreported_bytes: 0,
            trigger: None,
            last_arrival: Time::ZERO,
            duplicates: 0,
            refused: 0,
            trimmed: 0,
        }
    }

    /// The PSN up to and including which everything has arrived.
    pub(super) fn cack(&self) -> Seq {
        self.expected - 1
    }

    pub(super) fn high(&self) -> Seq {
        self.high
    }

    pub(super) fn out_of_order(&self) -> u32 {
        self.out_of_order
    }

    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// Nominal bytes received, as the wire counts them: units of 256, rounded up, 24 bits.
    pub(super) fn rcvd_units(&self) -> u32 {
        (self.rcvd_bytes.div_ceil(256) & 0xFF_FFFF) as u32
    }

    pub(super) fn expand(&self, psn: Psn) -> Seq {
        self.expected.wrapping_add_signed(i64::from(psn.distance(wire(self.expected))))
    }

    fn place(&self, seq: Seq) -> (usize, u64) {
        let slot = seq & self.mask;
        (slot as usize / 64, 1 << (slot % 64))
    }

    fn has(&self, seq: Seq) -> bool {
        let (word, bit) = self.place(seq);
        seq < self.expected || (seq < self.high && self.arrivals[word].arrived & bit != 0)
    }

    /// 64 PSNs from `from` that have arrived above the cumulative point, as a bitmap.
    pub(super) fn bitmap(&self, from: Seq) -> u64 {
        debug_assert!(from >= self.expected);
        if from >= self.high {
            return 0;
        }
        let slot = from & self.mask;
        let (word, bit) = (slot as usize / 64, slot % 64);
        let low = self.arrivals[word].arrived >> bit;
        let both = if bit == 0 {
            low
        } else {
            low | self.arrivals[(word + 1) % self.arrivals.len()].arrived << (64 - bit)
        };
        // A ring of 64 would show its beginning again above the window's end.
        let inside = (self.high - from).min(64);
        if inside == 64 { both } else { both & ((1 << inside) - 1) }
    }

    /// A data packet of `nominal` bytes. Placement goes through `host`; completed immediates too.
    pub(super) fn on_data(
        &mut self,
        now: Time,
        received: &Received,
        write: &Write,
        nominal: u32,
        trim_nack: bool,
        host: &mut dyn Host,
    ) -> Answer {
        let packet = &received.packet;
        let seq = self.expand(packet.psn);
        self.last_arrival = now;
        let trigger = Trigger {
            psn: packet.psn,
            ev: received.ev,
            timestamp: write.timestamp.unwrap_or_default(),
            arrived: now,
        };
        let mark = if received.ecn_ce { Mark::SkipOnce } else { Mark::None };
        if self.has(seq) {
            self.duplicates = self.duplicates.wrapping_add(1);
            self.trigger = Some(trigger);
            return Answer::Sack(mark);
        }
        if seq >= self.expected + u64::from(self.window) {
            self.refused = self.refused.wrapping_add(1);
            return Answer::Nack(NackReason::PsnOorWindow);
        }
        if let Some(trim) = received.trim {
            self.trimmed = self.trimmed.wrapping_add(1);
            let reason = match trim {
                Trim::Fabric => NackReason::Trimmed,
                Trim::LastHop => NackReason::TrimmedLastHop,
            };
            return if trim_nack { Answer::Nack(reason) } else { Answer::Nothing };
        }
        if let Err(refusal) = self.accept(seq, received, write, host) {
            return refusal;
        }
        self.rcvd_bytes += u64::from(nominal);
        self.unreported_bytes = self.unreported_bytes.saturating_add(nominal);
        self.trigger = Some(trigger);
        self.dirty = match self.dirty {
            Some((low, high)) => Some((low.min(seq), high.max(seq + 1))),
            None => Some((seq, seq + 1)),
        };
        let span_before = self.high.saturating_sub(self.expected);
        self.high = self.high.max(seq + 1);
        self.out_of_order += 1;
        if let Err(refusal) = self.advance(host) {
            return refusal;
        }
        // A gap deserves a SACK of its own once one bitmap no longer spans it, and once it does so again: with
        // spraying nearly every packet opens a gap, and a delayed SACK tells of those just as well.
        let span = self.high.saturating_sub(self.expected);
        let gap = (span > 64) != (span_before > 64);
        if mark != Mark::None || gap || packet.ack_req || packet.rtx {
            Answer::Sack(mark)
        } else {
            Answer::Later
        }
    }

    /// Checks a new packet and places it; on refusal nothing has changed.
    fn accept(
        &mut self,
        seq: Seq,
        received: &Received,
        write: &Write,
        host: &mut dyn Host,
    ) -> Result<(), Answer> {
        let len = u32::from(received.packet.payload_len);
        let invalid = Answer::Nak(Aeth::NAK_INVALID_REQUEST, Fatal::InvalidRequest);
        if len > write.dma_len || (write.imm.is_some() && !write.position.is_last()) {
            return Err(invalid);
        }
        if write.imm.is_some() {
            let ahead = write.rqmsn.distance(self.next_rqmsn);
            if ahead < 0 {
                return Err(invalid);
            }
            if ahead >= i32::from(self.max_wimm) {
                return Err(Answer::Nak(Aeth::NAK_WIMM_LIMIT, Fatal::WimmLimit));
            }
        }
        if len > 0 && host.place(write.rkey, write.va, len).is_err() {
            return Err(Answer::Nak(Aeth::NAK_REMOTE_ACCESS, Fatal::AccessViolation));
        }
        let (word, bit) = self.place(seq);
        self.arrivals[word].arrived |= bit;
        if write.position.is_last() {
            self.arrivals[word].last |= bit;
        }
        if let Some(imm) = write.imm {
            if self.stash.is_empty() {
                self.stash = vec![Stashed::default(); usize::from(self.max_wimm).next_power_of_two()].into();
            }
            let slot = self.stash_slot(write.rqmsn);
            self.arrivals[word].immediate |= bit;
            self.stash[slot] = Stashed { imm, byte_len: write.dma_len };
        }
        Ok(())
    }

    fn stash_slot(&self, rqmsn: Msn) -> usize {
        // The length is a power of two, so a slot does not move when RQMSN wraps; distances from the next one to be
        // delivered stay below it, so slots never collide.
        usize::from(rqmsn.0) & (self.stash.len() - 1)
    }

    /// Moves the cumulative point over everything that has arrived; completes messages and delivers immediates.
    fn advance(&mut self, host: &mut dyn Host) -> Result<(), Answer> {
        while self.expected < self.high {
            let (word, bit) = self.place(self.expected);
            if self.arrivals[word].arrived & bit == 0 {
                break;
            }
            self.arrivals[word].arrived &= !bit;
            self.expected += 1;
            self.out_of_order -= 1;
            if self.arrivals[word].last & bit == 0 {
                continue;
            }
            self.arrivals[word].last &= !bit;
            if self.arrivals[word].immediate & bit != 0 {
                self.arrivals[word].immediate &= !bit;
                let Stashed { imm, byte_len } = self.stash[self.stash_slot(self.next_rqmsn)];
                let done = RecvDone { rqmsn: self.next_rqmsn, imm, byte_len };
                if host.recv_done(done).is_err() {
                    return Err(Answer::Nak(Aeth::NAK_REMOTE_OPERATIONAL, Fatal::NoReceive));
                }
                self.next_rqmsn = self.next_rqmsn.next();
            }
            self.completed += 1;
        }
        Ok(())
    }

    /// Loads the bits of the next packets.
    pub(super) fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.arrivals, self.place(self.expected).0);
    }

    /// Heap bytes, and of those the ones that exist only once immediates are used.
    pub(super) fn heap_bytes(&self) -> (usize, usize) {
        let bitmaps = size_of_val(&*self.arrivals);
        let stash = size_of_val(&*self.stash);
        (bitmaps + stash, stash)
    }
}
