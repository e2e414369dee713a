//! When condemned paths are probed (docs/spec/paths.md, "Probing condemned paths").
//!
//! The low bits of a probe's id are the index of its path, so that the SACK is matched without a table.

use serde::{Deserialize, Serialize};
use std::ops::Range;

use openmrc_wire::Ev;

use super::ev_state::EvState;
use super::{EvIndex, Paths};
use crate::api::PortSet;
use crate::random::mix;
use crate::seq::Seq;
use crate::time::{Span, Time};

/// The due time of a condemned path's next probe takes one byte. Its unit doubles with the back-off: a wait takes
/// between `WAIT_UNITS` and `2 * WAIT_UNITS`, which leaves half the range of the byte for a timer that is served late.
const WAIT_UNITS: u64 = 16;
const MAX_UNITS: u64 = 100;
/// The first probe of a condemned path is sent after this many RTTs ...
pub(in crate::mrc) const FIRST_RTTS: u64 = 4;
/// ... and no wait between two probes is longer than this.
const LONGEST: Span = Span::from_secs(1);
/// Consecutive answers after which the path is restored \[choice\].
const SUCCESSES: u8 = 3;
/// Without data to send, a probe that the node's budget has refused is tried again after this many RTTs \[choice\].
pub(in crate::mrc) const IDLE_RTTS: u64 = 24;

/// Bits of a probe's id that hold the index of its path: indices are below 512.
const INDEX_BITS: u32 = 9;

/// The schedule of probes of condemned paths.
#[derive(Serialize, Deserialize)]
pub(in crate::mrc) struct ConditionProbes {
    /// Time of the earliest probe of a condemned path.
    due: Time,
    sequence: u8,
    /// Binary logarithm of the unit of a first wait, in picoseconds.
    due_shift: u8,
    seed: u32,
}

/// Duplicates of full size as probes. Their answers have no id of a probe, and entropy values of 16 bits may be equal on
/// several planes, so the PSN tells the plane: modulo the number of planes it is its index.
impl Paths {
    /// Which of the packets that have `arrived` is sent again to probe a path, if its next probe is of full size.
    pub(in crate::mrc) fn duplicate_for(&self, index: EvIndex, arrived: &Range<Seq>) -> Option<Seq> {
        let planes = self.planes.len() as u64;
        if !self.may_drop() || self.has_succeeded(index) || arrived.end - arrived.start < planes {
            return None;
        }
        let newest = arrived.end - 1;
        Some(newest - (newest + planes - self.plane_of(index) as u64) % planes)
    }

    /// The condemned path that a duplicate of packet `seq` has probed, by the entropy value in its answer.
    pub(in crate::mrc) fn probed_by_duplicate(&self, entropy: Ev, seq: Seq) -> Option<EvIndex> {
        if !self.may_drop() || self.condemned.count == 0 {
            return None;
        }
        let plane = (seq % self.planes.len() as u64) as usize;
        let is_awaited = |index| self.state(index) == EvState::AssumedBad && self.record(index).backoff() > 0;
        self.on_plane(plane).find(|&index| is_awaited(index) && self.is_reflected(index, entropy))
    }
}

impl ConditionProbes {
    pub fn new(seed: u64, base_rtt: Span) -> Self {
        ConditionProbes {
            due: Time::NEVER,
            sequence: 0,
            due_shift: (base_rtt.times(FIRST_RTTS).0 / WAIT_UNITS).max(1).ilog2() as u8,
            seed: mix(seed) as u32,
        }
    }

    /// Time of the next probe of a condemned path.
    pub fn due(&self) -> Time {
        self.due
    }

    /// Seed for pseudorandom choices.
    pub fn seed(&self) -> u64 {
        self.seed.into()
    }

    pub fn next_sequence(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// The id of a probe on this path.
    pub fn id(&self, index: EvIndex) -> u16 {
        u16::from(self.sequence) << INDEX_BITS | index
    }

    /// The path that a probe's id names.
    pub fn path_of(id: u16) -> EvIndex {
        id & ((1 << INDEX_BITS) - 1)
    }

    /// The sequence number in a probe's id.
    pub fn sequence_of(id: u16) -> u8 {
        (id >> INDEX_BITS) as u8
    }

    /// The sequence number in the id of the last probe.
    pub fn last_sequence(&self) -> u8 {
        Self::sequence_of(self.id(0))
    }

    /// Whether the probe with this id is one of the latest half of those that can be told apart.
    pub fn is_recent(&self, id: u16) -> bool {
        let bits = u16::BITS - INDEX_BITS;
        let behind = self.last_sequence().wrapping_sub(Self::sequence_of(id)) & ((1 << bits) - 1);
        behind < 1 << (bits - 1)
    }

    /// Resets the earliest due time, which [`Self::is_due`] computes again for every condemned path.
    pub fn start_round(&mut self) {
        self.due = Time::NEVER;
    }

    /// Whether the probe of a condemned path is due. If it is not, its time is included in [`Self::due`].
    pub fn is_due(&mut self, now: Time, paths: &Paths, index: EvIndex) -> bool {
        let shift = self.shift(paths, index);
        let remaining = paths.record(index).probe_due.wrapping_sub((now.0 >> shift) as u8) as i8;
        if remaining > 0 {
            let due = (now.0 >> shift) + remaining as u64;
            self.due = self.due.min(Time(due << shift));
        }
        remaining <= 0
    }

    /// Schedules the first probe of a newly condemned path, after four RTTs.
    pub fn schedule_first(&mut self, now: Time, paths: &mut Paths, index: EvIndex, rtt: Span) {
        paths.record_mut(index).set_probing(0, 0);
        self.postpone(now, paths, index, rtt.times(FIRST_RTTS));
    }

    /// The probe cannot be sent now; it is scheduled again after `pause`.
    pub fn postpone(&mut self, now: Time, paths: &mut Paths, index: EvIndex, pause: Span) {
        self.set_due(now, paths, index, pause);
    }

    /// A probe is being sent. If it is not answered, the next one is sent after twice the wait.
    pub fn schedule_next(&mut self, now: Time, paths: &mut Paths, index: EvIndex, rtt: Span) {
        let record = paths.record(index);
        // A back-off that was not reset means that the last probe was not answered.
        let successes = if record.backoff() > 0 { 0 } else { record.successes() };
        paths.record_mut(index).set_probing(successes, record.backoff() + 1);
        let wait = rtt.times(FIRST_RTTS << record.backoff()).min(LONGEST);
        self.set_due(now, paths, index, self.jitter(now, index, wait));
    }

    /// The peer gives the path up: successes are counted from zero again.
    pub fn forget_successes(paths: &mut Paths, index: EvIndex) {
        let record = paths.record_mut(index);
        record.set_probing(0, record.backoff());
    }

    /// A probe was answered. Returns whether enough consecutive probes were answered.
    pub fn count_success(&mut self, now: Time, paths: &mut Paths, index: EvIndex) -> bool {
        let successes = paths.record(index).successes() + 1;
        if successes < SUCCESSES {
            paths.record_mut(index).set_probing(successes, 0);
            self.set_due(now, paths, index, Span::ZERO);
        }
        successes >= SUCCESSES
    }

    /// Schedules probes of the condemned paths on these ports for now.
    pub fn probe_soon(&mut self, now: Time, paths: &mut Paths, ports: PortSet) {
        for i in 0..paths.len() {
            let index = i as EvIndex;
            if paths.state(index) == EvState::AssumedBad && ports.contains(paths.port(index)) {
                let successes = paths.record(index).successes();
                paths.record_mut(index).set_probing(successes, 0);
                self.set_due(now, paths, index, Span::ZERO);
            }
        }
    }

    /// The unit of a path's due time, as a shift.
    fn shift(&self, paths: &Paths, index: EvIndex) -> u32 {
        u32::from(self.due_shift) + u32::from(paths.record(index).backoff())
    }

    /// Sets the time of a path's next probe. The back-off must be set before.
    fn set_due(&mut self, now: Time, paths: &mut Paths, index: EvIndex, wait: Span) {
        let shift = self.shift(paths, index);
        // Rounded up, so that the probe is due when the timer fires.
        let due = (now.0 >> shift) + (wait.0 >> shift).min(MAX_UNITS) + 1;
        paths.record_mut(index).probe_due = due as u8;
        self.due = self.due.min(Time(due << shift));
    }

    /// Between three quarters of `wait` and all of it, so that queue pairs do not probe at the same time.
    fn jitter(&self, now: Time, index: EvIndex, wait: Span) -> Span {
        let random = mix(now.0 ^ u64::from(self.seed) << 8 ^ u64::from(index)) % 256;
        Span(wait.0 - wait.0 / 1024 * random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_and_paths_do_not_probe_at_the_same_time() {
        let wait = Span(1 << 20);
        let draw = |seed, index| {
            ConditionProbes::new(seed, Span::from_micros(10)).jitter(Time(1 << 40), index, wait).0
        };
        let by_queue_pair: Vec<_> = (0..1000).map(|seed| draw(seed, 3)).collect();
        let by_path: Vec<_> = (0..1000).map(|index| draw(7, index)).collect();
        for mut waits in [by_queue_pair, by_path] {
            let mean = waits.iter().sum::<u64>() / 1000;
            assert!(mean.abs_diff(wait.0 * 7 / 8) < wait.0 / 100, "{mean}");
            waits.sort_unstable();
            assert!(waits[0] > wait.0 * 3 / 4 && waits[999] <= wait.0, "{waits:?}");
            waits.dedup();
            assert!(waits.len() > 200, "{} of 256 values", waits.len());
        }
    }
}
