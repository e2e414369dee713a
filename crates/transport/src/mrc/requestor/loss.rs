//! Deciding that a packet is lost by what arrived after it (spec: transport, "Deciding that a packet is lost", rule 2).
//!
//! As RACK does (RFC 8985), but over the whole spray: a packet is lost once one sent a reorder window later has arrived.
//! First transmissions are in order of send time, and so are the log's retransmissions; so two cursors that only move
//! forwards find every loss, in constant time per packet.

use super::Requestor;
use super::send_times::Stamp;
use crate::api::Host;
use crate::mrc::config::PathModel;
use crate::mrc::paths::EvIndex;
use crate::mrc::shared::Shared;
use crate::seq::Seq;
use crate::time::{Span, Time};

pub(super) struct LossDetector {
    /// Send time of the latest packet known to have arrived.
    newest: Stamp,
    /// First transmissions below have been judged.
    cursor: Seq,
    window: Span,
    /// When the peer last said that its buffers overflow; the zero stamp: never.
    overflow: Stamp,
}

/// What a peer said about its buffers is forgotten after this long: stamps are modular.
const OVERFLOW_MATTERS: Span = Span::from_secs(60);

impl LossDetector {
    pub fn new(now: Time, first: Seq, model: &PathModel) -> Self {
        LossDetector {
            newest: Stamp::at(now),
            cursor: first,
            window: first_window(model),
            overflow: Stamp(0),
        }
    }

    pub fn reorder_window(&self) -> Span {
        self.window
    }

    /// The peer says that its buffers overflow.
    pub fn saw_overflow(&mut self, now: Time) {
        self.overflow = Stamp(Stamp::at(now).0.max(1));
    }

    /// Whether a packet sent at `sent` may have been dropped by the peer itself: it was sent before the peer last said that
    /// its buffers overflow. Losses of what is sent after that are the network's again.
    fn explained(&mut self, now: Time, sent: Stamp) -> bool {
        if self.overflow.age(now) > OVERFLOW_MATTERS.0 as i64 {
            self.overflow = Stamp(0);
        }
        self.overflow != Stamp(0) && self.overflow.since(sent) >= 0
    }

    /// A round trip is longer than the shortest one by `spread`: planes can reorder by as much, so the window grows to it at
    /// once, and forgets it over some hundred samples.
    pub fn saw_spread(&mut self, spread: Span, model: &PathModel) {
        if spread > self.window {
            self.window = spread;
        } else {
            self.window = self.window - (self.window - spread.max(first_window(model))).over(256);
        }
    }
}

/// How much reordering is expected before any has been seen.
fn first_window(model: &PathModel) -> Span {
    let delay = model.target_qdelay;
    if model.ordered { delay } else { model.base_rtt + delay }
}

/// The longest that a packet may lag behind one sent later without being taken for lost. Paths that the sender chooses are
/// as even as feedback keeps them; where switches choose, a packet lags by any queue it meets two hops on, lost or not.
fn most_reordering(shared: &Shared) -> Span {
    let even = shared.rtt.smoothed + shared.config.model.target_qdelay;
    if shared.config.model.ordered { even } else { even.times(4) }
}

impl Requestor {
    /// `newest` is the send time of something that has just turned out to have arrived.
    pub(super) fn detect_losses(
        &mut self,
        shared: &mut Shared,
        now: Time,
        newest: Option<Stamp>,
        host: &mut dyn Host,
    ) {
        if let Some(newest) = newest
            && newest.since(self.loss.newest) > 0
        {
            self.loss.newest = newest;
        }
        let limit = Stamp::units(self.loss.window.min(most_reordering(shared)));
        self.loss.cursor = self.loss.cursor.max(self.window.base());
        while self.loss.cursor < self.window.next() {
            let fresh = self.window.fresh64(self.loss.cursor);
            if fresh == 0 {
                self.loss.cursor = (self.loss.cursor + 64).min(self.window.next());
                continue;
            }
            let seq = self.loss.cursor + u64::from(fresh.trailing_zeros());
            self.loss.cursor = seq;
            if self.loss.newest.since(self.window.sent_not_after(seq)) < limit {
                break;
            }
            self.lose(shared, now, seq, host);
            self.loss.cursor = seq + 1;
        }
        while let Some((seq, stamp)) = self.window.oldest_resend() {
            if self.loss.newest.since(stamp) < limit {
                break;
            }
            self.window.pop_resend();
            self.lose(shared, now, seq, host);
        }
        shared.try_condemned(now, host);
    }

    /// On one path packets stay in order: those sent before `seq` on the same path, which the same SACK could have
    /// reported and did not, are lost.
    pub(super) fn overtaken_on_path(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (index, seq): (EvIndex, Seq),
        (bitmap_base, bitmap): (Seq, u64),
        host: &mut dyn Host,
    ) {
        let mut holes = self.window.fresh64(bitmap_base) & !bitmap;
        while holes != 0 {
            let hole = bitmap_base + u64::from(holes.trailing_zeros());
            holes &= holes - 1;
            if hole >= seq {
                break;
            }
            if self.window.path(hole) == index {
                self.lose(shared, now, hole, host);
            }
        }
    }

    /// The same within a burst: a packet is lost if one behind it, on the same path, is known to have arrived. Every SACK
    /// tells of whole bursts, so this finds a loss at once that otherwise takes the reorder window.
    pub(super) fn overtaken_in_burst(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (bitmap_base, bitmap): (Seq, u64),
        host: &mut dyn Host,
    ) {
        let burst = u32::from(self.limits.burst);
        if burst == 1 || bitmap == 0 {
            return;
        }
        let below_highest = u64::MAX >> bitmap.leading_zeros();
        let mut holes = self.window.fresh64(bitmap_base) & !bitmap & below_highest;
        while holes != 0 {
            let bit = holes.trailing_zeros();
            holes &= holes - 1;
            let hole = bitmap_base + u64::from(bit);
            let index = self.window.path(hole);
            let overtaken = (1..burst.min(64 - bit)).any(|step| {
                bitmap >> (bit + step) & 1 == 1 && self.window.path(hole + u64::from(step)) == index
            });
            if overtaken {
                self.lose(shared, now, hole, host);
            }
        }
    }

    /// A packet is lost without a trace: its path has failed, unless the receiver has said that it drops packets.
    pub(super) fn lose(&mut self, shared: &mut Shared, now: Time, seq: Seq, host: &mut dyn Host) {
        let size = self.size_of(shared, seq);
        let index = self.window.path(seq);
        let sent = self.window.resent_at(seq).unwrap_or_else(|| self.window.sent_not_before(seq));
        self.window.mark_lost(seq);
        shared.stats.lost += 1;
        if self.loss.explained(now, sent) {
            shared.stats.overflowed += 1;
            self.flow.on_overflow(size);
            return;
        }
        self.flow.on_loss(now, size);
        host.path_loss(shared.paths.path(index), shared.paths.port(index));
        shared.condemn(now, index, host);
    }

    /// A packet taken for lost has arrived after all: wait longer next time, and do not hold it against its path.
    pub(super) fn loss_was_spurious(
        &mut self,
        shared: &mut Shared,
        index: Option<EvIndex>,
        host: &mut dyn Host,
    ) {
        shared.stats.spurious += 1;
        self.loss.window = self.loss.window.times(2).min(most_reordering(shared)).max(self.loss.window);
        if let Some(index) = index {
            shared.acquit(index, host);
        }
    }
}
