//! Loss detection from later arrivals (docs/spec/transport.md, "Deciding that a packet is lost", rule 2).
//!
//! Like RACK (RFC 8985), but over all paths: a packet is lost once a packet has arrived that was sent at least a
//! reorder window later. First transmissions are ordered by send time, and so are the logged retransmissions; two
//! cursors that only move forward find every loss in constant time per packet.

use super::Requestor;
use super::send_times::Stamp;
use super::window::Flight;
use crate::api::Host;
use crate::mrc::config::PathModel;
use crate::mrc::paths::EvIndex;
use crate::mrc::shared::Shared;
use crate::seq::Seq;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) struct LossDetector {
    /// Send time of the latest packet known to have arrived.
    newest: Stamp,
    /// First transmissions below this PSN have been checked.
    cursor: Seq,
    window: Span,
    /// Time at which the peer last reported a buffer overflow; zero if never.
    overflow: Stamp,
}

/// An overflow report is discarded after this time, because stamps are modular.
const OVERFLOW_MATTERS: Span = Span::from_secs(60);

impl LossDetector {
    pub fn new(now: Time, first: Seq, model: &PathModel) -> Self {
        LossDetector {
            newest: Stamp::at(now),
            cursor: first,
            window: initial_window(model),
            overflow: Stamp(0),
        }
    }

    pub fn reorder_window(&self) -> Span {
        self.window
    }

    /// Something sent at `stamp` is known to have arrived.
    pub fn has_arrived(&mut self, stamp: Option<Stamp>) {
        if let Some(stamp) = stamp
            && stamp.since(self.newest) > 0
        {
            self.newest = stamp;
        }
    }

    /// The reorder window in units of a stamp.
    fn limit(&self, shared: &Shared) -> i32 {
        Stamp::units(self.window.min(max_reorder_window(shared)))
    }

    /// The peer has reported a buffer overflow.
    pub fn on_overflow_report(&mut self, now: Time) {
        self.overflow = Stamp(Stamp::at(now).0.max(1));
    }

    /// Whether the peer itself may have dropped a packet sent at `sent`: it was sent before the peer's last overflow
    /// report. Later losses are attributed to the network again.
    fn is_explained_by_overflow(&mut self, now: Time, sent: Stamp) -> bool {
        if self.overflow.age(now) > OVERFLOW_MATTERS.0 as i64 {
            self.overflow = Stamp(0);
        }
        self.overflow != Stamp(0) && self.overflow.since(sent) >= 0
    }

    /// A round trip is `spread` longer than the shortest one. Paths can reorder by as much, so the window grows to it at
    /// once; it shrinks back over a few hundred samples. Where the sender selects paths, a queue that still grows delays
    /// the next packet by more than the last one that has arrived: half as much again is allowed for \[choice\].
    pub fn on_rtt_spread(&mut self, spread: Span, model: &PathModel) {
        let spread = if model.ordered { spread + spread.over(2) } else { spread };
        if spread > self.window {
            self.window = spread;
        } else {
            self.window = self.window - (self.window - spread.max(initial_window(model))).over(256);
        }
    }
}

/// The initial reorder window, before reordering was seen.
fn initial_window(model: &PathModel) -> Span {
    let delay = model.target_qdelay;
    if model.ordered { delay } else { model.base_rtt + delay }
}

/// The largest reorder window. A packet can be delayed by any queue on its way, and by one behind a slow link for several
/// times as long as on other paths.
fn max_reorder_window(shared: &Shared) -> Span {
    (shared.rtt.smoothed + shared.config.target_qdelay).times(4)
}

/// What a SACK says of packets that have not arrived.
pub(super) struct Evidence {
    /// A packet that has arrived on this path, on which packets stay in order.
    pub overtaking: Option<(EvIndex, Seq)>,
    /// The packets that the SACK reports: a bit each from a PSN.
    pub bitmap: (Seq, u64),
    /// Those of them that were sent once and not reported before.
    pub arrived_first: u64,
    /// Send time of a packet that is now known to have arrived.
    pub newest: Option<Stamp>,
    /// Whether this is the last SACK of a report, which may take several ([`closes_report`]).
    pub closes_report: bool,
}

/// Whether a SACK is the last of its report: its bitmap has the packet that triggered it, or follows the cumulative
/// point where that packet is below it. SACKs that report further arrivals go before this one and name the same
/// trigger, which may have been sent long after what the next of them reports.
pub(super) fn closes_report(cack: Seq, bitmap_base: Seq, trigger: Option<Seq>) -> bool {
    match trigger {
        Some(seq) if seq > cack => (bitmap_base..bitmap_base + u64::from(u64::BITS)).contains(&seq),
        _ => bitmap_base <= cack + 1,
    }
}

impl Requestor {
    /// Finds everything that a SACK shows to be lost.
    pub(super) fn detect_all(
        &mut self,
        shared: &mut Shared,
        now: Time,
        evidence: &Evidence,
        host: &mut dyn Host,
    ) {
        if let Some(overtaking) = evidence.overtaking {
            self.detect_losses_on_path(shared, now, overtaking, evidence.bitmap, host);
        }
        self.detect_losses_in_burst(shared, now, evidence.bitmap.0, evidence.arrived_first, host);
        self.loss.has_arrived(evidence.newest);
        if evidence.closes_report {
            self.detect_losses(shared, now, host);
        } else {
            self.detect_losses_in_bitmap(shared, now, evidence.bitmap, host);
        }
    }

    /// Finds everything sent more than a reorder window before something that has arrived.
    pub(super) fn detect_losses(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let limit = self.loss.limit(shared);
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
            // It is not fresh any more: the search goes on behind it.
            self.lose(shared, now, seq, host);
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

    /// The same of what a SACK reports that is not the last of its report: a later one may report the others.
    fn detect_losses_in_bitmap(
        &mut self,
        shared: &mut Shared,
        now: Time,
        (base, bitmap): (Seq, u64),
        host: &mut dyn Host,
    ) {
        let limit = self.loss.limit(shared);
        let mut holes = self.window.fresh64(base) & !bitmap;
        while holes != 0 {
            let hole = base + u64::from(holes.trailing_zeros());
            holes &= holes - 1;
            if self.loss.newest.since(self.window.sent_not_after(hole)) < limit {
                break;
            }
            self.lose(shared, now, hole, host);
        }
    }

    /// Packets stay in order on one path: a packet sent before `seq` on the same path is lost if this SACK could have
    /// reported it and did not.
    fn detect_losses_on_path(
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

    /// The same within a burst: a packet is lost if a later packet on the same path is known to have arrived. Every
    /// SACK covers whole bursts, so this finds such a loss at once instead of after the reorder window. `arrived` are
    /// the first transmissions that this SACK reports, a bit each from `base`: a retransmission proves nothing, as
    /// switches may queue it apart.
    fn detect_losses_in_burst(
        &mut self,
        shared: &mut Shared,
        now: Time,
        base: Seq,
        arrived: u64,
        host: &mut dyn Host,
    ) {
        let burst = u32::from(self.limits.burst);
        if burst == 1 || arrived == 0 {
            return;
        }
        let below_highest = u64::MAX >> arrived.leading_zeros();
        let mut holes = self.window.fresh64(base) & below_highest;
        while holes != 0 {
            let bit = holes.trailing_zeros();
            holes &= holes - 1;
            let hole = base + u64::from(bit);
            let index = self.window.path(hole);
            let overtaken = (1..burst.min(64 - bit)).any(|step| {
                arrived >> (bit + step) & 1 == 1 && self.window.path(hole + u64::from(step)) == index
            });
            if overtaken {
                self.lose(shared, now, hole, host);
            }
        }
    }

    /// A packet is lost without a NACK: its path has failed, unless the receiver has reported that it drops packets, or
    /// the network drops them.
    pub(super) fn lose(&mut self, shared: &mut Shared, now: Time, seq: Seq, host: &mut dyn Host) {
        let sent = self.window.resent_at(seq).unwrap_or_else(|| self.window.sent_not_before(seq));
        let explained = self.loss.is_explained_by_overflow(now, sent);
        self.lose_for(shared, now, seq, explained, host);
    }

    /// The oldest packet in flight is taken for lost because nothing has moved for long. A receiver that presses its
    /// senders is slow: that the packet waits there, or was dropped there, is likelier than that its path has failed
    /// \[choice\]. A foreign receiver may press for other reasons, and hides no dead path by it.
    pub(super) fn lose_oldest(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let in_flight = |seq: &Seq| matches!(self.window.state(*seq), Flight::Sent | Flight::Resent);
        let Some(oldest) = (self.window.base()..self.window.next()).find(in_flight) else { return };
        if shared.config.caps.overflow_reports && self.flow.is_pressed() {
            self.lose_for(shared, now, oldest, true, host);
        } else {
            self.lose(shared, now, oldest, host);
        }
    }

    fn lose_for(
        &mut self,
        shared: &mut Shared,
        now: Time,
        seq: Seq,
        receiver_is_full: bool,
        host: &mut dyn Host,
    ) {
        let size = self.size_of(shared, seq);
        let index = self.window.path(seq);
        self.window.mark_lost(seq);
        shared.stats.lost += 1;
        if receiver_is_full {
            shared.stats.overflowed += 1;
            self.flow.on_overflow(size);
            return;
        }
        host.path_loss(shared.paths.path(index), shared.paths.port(index));
        // The window has grown to the longest round trip.
        let rtt = shared.rtt.smoothed.max(shared.rtt.shortest + self.loss.window);
        if shared.path_lost(now, index, rtt, host) {
            self.flow.on_loss(now, size);
        } else {
            self.flow.on_drop(now, size);
        }
    }

    /// A packet taken for lost has arrived after all: the reorder window grows, and its path is restored.
    pub(super) fn loss_was_spurious(
        &mut self,
        shared: &mut Shared,
        index: Option<EvIndex>,
        host: &mut dyn Host,
    ) {
        shared.stats.spurious += 1;
        self.loss.window = self.loss.window.times(2).min(max_reorder_window(shared)).max(self.loss.window);
        if let Some(index) = index {
            shared.undo_condemnation(index, host);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_report_explains_what_was_sent_before_it_for_a_minute() {
        let second = |n| Time(Span::from_secs(n).0);
        let model = PathModel::new(Span::from_micros(10), true);
        let mut losses = LossDetector::new(second(100), 0, &model);
        let explains = |losses: &mut LossDetector, now, sent| {
            losses.is_explained_by_overflow(second(now), Stamp::at(second(sent)))
        };
        assert!(!explains(&mut losses, 101, 100), "none was reported");
        losses.on_overflow_report(second(110));
        assert!(explains(&mut losses, 111, 109) && explains(&mut losses, 111, 110));
        assert!(!explains(&mut losses, 112, 111), "the network lost what was sent after it");
        assert!(explains(&mut losses, 169, 109));
        assert!(!explains(&mut losses, 171, 109));
        // It is forgotten, and does not come back when the stamps have gone round.
        assert!(!explains(&mut losses, 120, 109));
    }

    #[test]
    fn the_reorder_window_grows_at_once_and_shrinks_slowly_to_what_it_was() {
        let micros = Span::from_micros;
        for ordered in [true, false] {
            let model = PathModel { ordered, ..PathModel::new(micros(10), true) };
            let first = initial_window(&model);
            assert_eq!(first, model.target_qdelay + if ordered { Span::ZERO } else { micros(10) });
            let mut losses = LossDetector::new(Time(1 << 40), 0, &model);
            losses.on_rtt_spread(Span::ZERO, &model);
            assert_eq!(losses.window, first, "never below its beginning");
            losses.on_rtt_spread(micros(400), &model);
            let grown = micros(if ordered { 600 } else { 400 });
            assert_eq!(losses.window, grown);
            losses.on_rtt_spread(Span::ZERO, &model);
            assert_eq!(losses.window, grown - (grown - first).over(256));
            (0..256).for_each(|_| losses.on_rtt_spread(Span::ZERO, &model));
            assert!(losses.window < first + (grown - first).over(2) && losses.window > first);
        }
    }

    #[test]
    fn the_last_sack_of_a_report_has_its_trigger_or_follows_the_cumulative_point() {
        for (bitmap_base, trigger, closes) in [
            // The trigger is below the cumulative point, 10, or that of a probe.
            (11, Some(10), true),
            (12, Some(10), false),
            (11, Some(3), true),
            (75, Some(3), false),
            (5, Some(3), true),
            (11, None, true),
            (12, None, false),
            // It is above.
            (11, Some(11), true),
            (12, Some(11), false),
            (11, Some(74), true),
            (11, Some(75), false),
            (75, Some(75), true),
            (76, Some(75), false),
            (12, Some(75), true),
        ] {
            assert_eq!(closes_report(10, bitmap_base, trigger), closes, "{bitmap_base}, {trigger:?}");
        }
    }
}
