//! Deciding that a packet is lost (spec: transport, "Deciding that a packet is lost", rules 2 to 4). NACKs, rule 1, are
//! the requestor's.
//!
//! As RACK does (RFC 8985), but over the whole spray: a packet is lost once one sent a reorder window later has arrived.
//! First transmissions are in order of send time, and so are the log's retransmissions; so two cursors that only move
//! forwards find every loss, in constant time per packet.

use super::QueuePair;
use super::cc::{CcProfile, Congestion};
use super::ev_state::EvInput;
use super::paths::{Condemned, EvIndex};
use super::window::{Flight, Seq, Stamp};
use crate::api::{EvChange, EvEvent, Fatal, Host, SendStatus};
use crate::time::{Span, Time};

/// `exp_cnt` that means: for ever.
const FOR_EVER: u8 = 25;

pub(super) struct LossDetector {
    /// Send time of the latest packet known to have arrived.
    newest: Stamp,
    /// First transmissions below have been judged.
    cursor: Seq,
    window: Span,
}

impl LossDetector {
    pub(super) fn new(now: Time, first: Seq, window: Span) -> Self {
        LossDetector { newest: Stamp::at(now), cursor: first, window }
    }

    pub(super) fn reorder_window(&self) -> Span {
        self.window
    }

    /// A round trip this much longer than the shortest: planes can reorder by as much, so the window grows to it at once,
    /// and forgets it over some hundred samples, down to `least`.
    pub(super) fn saw_spread(&mut self, spread: Span, least: Span) {
        if spread > self.window {
            self.window = spread;
        } else {
            self.window = self.window - (self.window - spread.max(least)).over(256);
        }
    }
}

impl QueuePair {
    pub(super) fn target_qdelay(&self) -> Span {
        self.config.cc.nscc.target_qdelay
    }

    /// The longest that a packet may lag behind one sent later without being taken for lost. Paths that are chosen here are as even
    /// as feedback keeps them; where switches choose, a packet lags by whatever queue it meets two hops on, lost or not.
    fn most_reordering(&self) -> Span {
        let even = self.srtt + self.target_qdelay();
        if self.config.cc.ordered_paths { even } else { even.times(4) }
    }

    /// How much reordering is expected before any has been seen.
    pub(super) fn first_window(cc: &CcProfile) -> Span {
        let delay = cc.nscc.target_qdelay;
        if cc.ordered_paths { delay } else { cc.nscc.base_rtt + delay }
    }

    /// Rule 2. `newest` is the send time of something that has just turned out to have arrived.
    pub(super) fn detect_losses(&mut self, now: Time, newest: Option<Stamp>, host: &mut dyn Host) {
        if let Some(newest) = newest
            && newest.since(self.loss.newest) > 0
        {
            self.loss.newest = newest;
        }
        let limit = Stamp::units(self.loss.window.min(self.most_reordering()));
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
            self.lose(now, seq, host);
            self.loss.cursor = seq + 1;
        }
        while let Some((seq, stamp)) = self.window.oldest_resend() {
            if self.loss.newest.since(stamp) < limit {
                break;
            }
            self.window.pop_resend();
            self.lose(now, seq, host);
        }
        self.try_condemned(now, host);
    }

    /// On one path packets stay in order: those sent before `seq` on the same path, which the same SACK could have
    /// reported and did not, are lost.
    pub(super) fn overtaken_on_path(
        &mut self,
        now: Time,
        index: EvIndex,
        seq: Seq,
        bitmap_base: Seq,
        bitmap: u64,
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
                self.lose(now, hole, host);
            }
        }
    }

    /// The same within a burst: a packet is lost if one behind it, on the same path, is known to have arrived. Every SACK
    /// tells of whole bursts, so this finds a loss at once where the last resort would be the reorder window.
    pub(super) fn overtaken_in_burst(
        &mut self,
        now: Time,
        bitmap_base: Seq,
        bitmap: u64,
        host: &mut dyn Host,
    ) {
        let burst = u32::from(self.config.ev_burst);
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
                self.lose(now, hole, host);
            }
        }
    }

    /// A packet is lost without a trace: its path has failed.
    fn lose(&mut self, now: Time, seq: Seq, host: &mut dyn Host) {
        let size = self.size_of(seq);
        let index = self.window.path(seq);
        self.window.mark_lost(seq);
        self.cc.on_loss(now, size);
        self.stats.lost += 1;
        host.path_loss(self.paths.path(index), self.paths.port(index));
        self.condemn(now, index, host);
    }

    /// Takes a path out of rotation, and the whole plane with it where too many of its paths have gone in a row.
    pub(super) fn condemn(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        // A port that is known to be down explains the loss; its paths are not to blame.
        if !self.ports_up.contains(self.paths.port(index)) {
            return;
        }
        match self.paths.condemn(index) {
            Condemned::Unchanged => {}
            Condemned::Path => self.condemned(now, index, host),
            Condemned::Plane => {
                self.condemned(now, index, host);
                for other in self.paths.on_plane(self.paths.plane_of(index)) {
                    if self.paths.condemn(other) != Condemned::Unchanged {
                        self.condemned(now, other, host);
                    }
                }
            }
        }
    }

    fn condemned(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        self.stats.condemned += 1;
        self.reverse.doubt(&self.paths, index);
        self.schedule_probing(now, index);
        self.tell(index, EvChange::AssumedBad, host);
    }

    pub(super) fn tell(&self, index: EvIndex, change: EvChange, host: &mut dyn Host) {
        let (path, port) = (self.paths.path(index), self.paths.port(index));
        host.ev_event(EvEvent { ev: self.paths.ev(index), path, port, change });
    }

    /// A packet taken for lost has arrived after all: wait longer next time, and do not hold it against its path.
    pub(super) fn loss_was_spurious(&mut self, index: Option<EvIndex>, host: &mut dyn Host) {
        self.stats.spurious += 1;
        self.loss.window = self.loss.window.times(2).min(self.most_reordering()).max(self.loss.window);
        if let Some(index) = index
            && self.paths.restore(index, EvInput::ProbesGood)
        {
            self.tell(index, EvChange::Good, host);
        }
    }

    /// With every path condemned, one that delivers all the same is good again.
    pub(super) fn last_resort_worked(&mut self, now: Time, index: EvIndex, host: &mut dyn Host) {
        if !self.paths.any_usable(self.ports_up) && self.paths.restore(index, EvInput::ProbesGood) {
            self.tell(index, EvChange::Good, host);
            self.probe_siblings(now, index);
        }
    }

    fn try_condemned(&mut self, now: Time, host: &mut dyn Host) {
        if let Some(index) = self.paths.try_condemned(now, self.ports_up, self.srtt) {
            self.tell(index, EvChange::Good, host);
        }
    }

    /// When rule 4 fires: a fixed interval at first, then doubling ones.
    pub(super) fn timeout_due(&self) -> Time {
        let doublings = self.retries.saturating_sub(self.config.linear_cnt.saturating_sub(1));
        // The attribute is a floor: on a path that has become slower than it, four round trips are.
        let interval = self.config.timeout.max(self.srtt.times(4));
        self.progress_at + interval.times(1 << doublings.min(40))
    }

    /// Rule 4: nothing has moved for the whole timeout. Everything in flight is lost; when retries are exhausted, so is the
    /// connection.
    pub(super) fn check_timeout(&mut self, now: Time, host: &mut dyn Host) {
        if self.is_quiet() || now < self.timeout_due() {
            return;
        }
        let limit = u16::from(self.config.linear_cnt) + u16::from(self.config.exp_cnt);
        if self.config.exp_cnt < FOR_EVER && u16::from(self.retries) >= limit {
            self.fail(Fatal::RetryExceeded, SendStatus::RetryExceededErr, host);
            return;
        }
        self.retries = self.retries.saturating_add(1);
        self.progress_at = now;
        self.stats.timeouts += 1;
        for seq in self.window.base()..self.window.next() {
            if matches!(self.window.state(seq), Flight::Sent | Flight::Resent) {
                self.lose(now, seq, host);
            }
        }
        self.try_condemned(now, host);
    }
}
