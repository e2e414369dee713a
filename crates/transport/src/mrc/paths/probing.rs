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
    use crate::mrc::paths::tests::with_config;
    use crate::mrc::paths::{EvInput, EvRecord};

    #[test]
    fn queue_pairs_and_paths_do_not_probe_at_the_same_time() {
        let wait = Span(1 << 20);
        let draw =
            |now, seed, index| ConditionProbes::new(seed, Span::from_micros(10)).jitter(now, index, wait).0;
        let by_queue_pair = |now| (0..1000).map(|seed| draw(now, seed, 3)).collect::<Vec<_>>();
        let by_path: Vec<_> = (0..1000).map(|index| draw(NOW, 7, index)).collect();
        // At any time, also one that is all ones in binary.
        for mut waits in [by_queue_pair(NOW), by_queue_pair(Time((1 << 41) - 1)), by_path] {
            let mean = waits.iter().sum::<u64>() / 1000;
            assert!(mean.abs_diff(wait.0 * 7 / 8) < wait.0 / 100, "{mean}");
            waits.sort_unstable();
            assert!(waits[0] > wait.0 * 3 / 4 && waits[999] <= wait.0, "{waits:?}");
            waits.dedup();
            assert!(waits.len() > 200, "{} of 256 values", waits.len());
        }
    }

    const RTT: Span = Span::from_micros(10);
    const NOW: Time = Time(1 << 40);

    /// 16 paths on some planes, whose switches drop packets.
    fn dropping(planes: u8) -> Paths {
        with_config(planes, |config| {
            (config.paths.active, config.paths.backup) = (16, 0);
            config.paths.model.trims = false;
        })
    }

    /// Some condemned paths of 16 on two planes, and no probe scheduled yet.
    fn condemned(indices: &[EvIndex]) -> (Paths, ConditionProbes) {
        let mut paths = dropping(2);
        indices.iter().for_each(|&index| _ = paths.condemn(index));
        (paths, ConditionProbes::new(7, RTT))
    }

    #[test]
    fn a_probes_id_names_its_path_and_its_sequence_number_modulo_128() {
        let mut probes = ConditionProbes::new(7, RTT);
        for sequence in (0..128).chain(0..10) {
            assert_eq!(probes.last_sequence(), sequence);
            for index in [0, 1, 255, 256, 511] {
                let id = probes.id(index);
                assert_eq!(u32::from(id), u32::from(sequence) * 512 + u32::from(index));
                assert_eq!(
                    (ConditionProbes::path_of(id), ConditionProbes::sequence_of(id)),
                    (index, sequence)
                );
            }
            probes.next_sequence();
        }
    }

    #[test]
    fn a_probe_is_recent_until_64_have_followed_it() {
        // From both ends of the range of sequence numbers, and of the byte that holds them.
        for start in [0, 1, 63, 64, 100, 127, 128, 200, 255] {
            let mut probes = ConditionProbes::new(7, RTT);
            (0..start).for_each(|_| probes.next_sequence());
            let id = probes.id(5);
            for followed in 0..128 {
                assert_eq!(probes.is_recent(id), followed < 64, "{followed} after {start}");
                probes.next_sequence();
            }
            assert!(probes.is_recent(id), "it looks like the last one again");
        }
    }

    #[test]
    fn each_queue_pair_has_a_seed_of_its_own() {
        let seeds: std::collections::BTreeSet<_> =
            (0..100).map(|seed| ConditionProbes::new(seed, RTT).seed()).collect();
        assert_eq!(seeds.len(), 100);
    }

    #[test]
    fn the_newest_packet_whose_number_tells_the_plane_is_sent_again_as_a_probe() {
        for planes in [1, 2, 3, 8] {
            let mut paths = dropping(planes);
            let planes = Seq::from(planes);
            for start in (0..9).chain((1 << 32) - 4..(1 << 32) + 9) {
                for end in start..start + 2 * planes + 2 {
                    for index in 0..planes as EvIndex {
                        let fits = |seq: &Seq| seq % planes == u64::from(index);
                        let newest = (start..end).rev().find(fits).filter(|_| end - start >= planes);
                        assert_eq!(paths.duplicate_for(index, &(start..end)), newest, "{start}..{end}");
                    }
                }
            }
            // Only the first probe of a row is of full size.
            paths.condemn(0);
            paths.record_mut(0).set_probing(1, 0);
            assert_eq!(paths.duplicate_for(0, &(0..100)), None);
        }
        let trimming = with_config(2, |_| {});
        assert_eq!(trimming.duplicate_for(0, &(0..100)), None, "a loss shows a failure there");
    }

    #[test]
    fn the_answer_to_a_duplicate_belongs_to_a_condemned_path_that_was_probed() {
        let (mut paths, mut probes) = condemned(&[2, 4, 6]);
        for (index, seq) in [(2, 100), (4, 102)] {
            probes.schedule_next(NOW, &mut paths, index, RTT);
            assert_eq!(paths.probed_by_duplicate(paths.ev(index), seq), Some(index));
            assert_eq!(paths.probed_by_duplicate(paths.ev(index), seq + 1), None, "its plane is the other");
        }
        assert_eq!(paths.probed_by_duplicate(paths.ev(6), 100), None, "it was not probed yet");
        paths.mark(8, 9);
        assert_eq!(paths.probed_by_duplicate(paths.ev(8), 100), None, "it is congested, not condemned");
        assert!(paths.restore(2, EvInput::ProbesGood));
        assert_eq!(paths.probed_by_duplicate(paths.ev(2), 100), None, "it works again");
        // Where switches trim no duplicate is a probe.
        let mut paths = with_config(2, |_| {});
        paths.condemn(2);
        probes.schedule_next(NOW, &mut paths, 2, RTT);
        assert_eq!(paths.probed_by_duplicate(paths.ev(2), 100), None);
    }

    /// The due time, which is the first at which the path's probe is due.
    fn due(probes: &mut ConditionProbes, paths: &Paths, index: EvIndex) -> Time {
        let due = probes.due();
        probes.start_round();
        assert!(!probes.is_due(Time(due.0 - 1), paths, index));
        assert_eq!(probes.due(), due);
        probes.start_round();
        assert!(probes.is_due(due, paths, index));
        assert_eq!(probes.due(), Time::NEVER, "a probe that is due is not awaited");
        due
    }

    #[test]
    fn the_first_probe_follows_after_four_round_trips_and_then_the_wait_doubles_up_to_a_second() {
        let (mut paths, mut probes) = condemned(&[3]);
        probes.start_round();
        probes.schedule_first(NOW, &mut paths, 3, RTT);
        let mut now = due(&mut probes, &paths, 3);
        // The unit of a first wait is at most a sixteenth of it.
        let wait = now.since(NOW);
        assert!(wait >= RTT.times(4) && wait <= RTT.times(4) + RTT.over(4), "{wait:?}");
        // The last exponents that a record holds reach a second.
        for doublings in 0..15 {
            let nominal = RTT.times(4 << doublings).min(Span::from_secs(1));
            probes.schedule_next(now, &mut paths, 3, RTT);
            let due = due(&mut probes, &paths, 3);
            // The jitter takes up to a quarter off; the unit is now at most an eighth.
            let wait = due.since(now);
            assert!(wait.0 > nominal.0 * 3 / 4 - nominal.0 / 8, "{wait:?} of {nominal:?}");
            assert!(wait.0 <= nominal.0 + nominal.0 / 8, "{wait:?} of {nominal:?}");
            now = due;
        }
        assert_eq!(paths.record(3).backoff(), EvRecord::MAX_BACKOFF);
    }

    #[test]
    fn the_earliest_probe_of_all_paths_is_awaited() {
        let (mut paths, mut probes) = condemned(&[3, 5]);
        probes.schedule_first(NOW, &mut paths, 3, RTT);
        let first = probes.due();
        probes.schedule_first(NOW + RTT, &mut paths, 5, RTT);
        assert_eq!(probes.due(), first);
        probes.start_round();
        assert!(probes.is_due(first, &paths, 3) && !probes.is_due(first, &paths, 5));
        let second = probes.due();
        assert!(second > first && second <= first + RTT.times(2));
        probes.postpone(first, &mut paths, 3, RTT.times(24));
        assert_eq!(probes.due(), second);
    }

    #[test]
    fn three_answers_in_a_row_restore_a_path_and_one_that_is_missing_begins_the_row_anew() {
        let (mut paths, mut probes) = condemned(&[3]);
        let state = |paths: &Paths| (paths.record(3).successes(), paths.record(3).backoff());
        let answered = |paths: &mut Paths, probes: &mut ConditionProbes| {
            probes.schedule_next(NOW, paths, 3, RTT);
            probes.start_round();
            probes.count_success(NOW, paths, 3)
        };
        assert!(!answered(&mut paths, &mut probes));
        assert_eq!(state(&paths), (1, 0));
        assert!(due(&mut probes, &paths, 3) <= NOW + RTT, "the next one follows at once");
        assert!(!answered(&mut paths, &mut probes));
        assert_eq!(state(&paths), (2, 0));
        // The third one is not answered.
        probes.schedule_next(NOW, &mut paths, 3, RTT);
        assert_eq!(state(&paths), (2, 1));
        probes.schedule_next(NOW, &mut paths, 3, RTT);
        assert_eq!(state(&paths), (0, 2));
        assert!(!probes.count_success(NOW, &mut paths, 3) && !answered(&mut paths, &mut probes));
        // Nor may the peer give the path up in between.
        probes.schedule_next(NOW, &mut paths, 3, RTT);
        assert_eq!(state(&paths), (2, 1));
        ConditionProbes::forget_successes(&mut paths, 3);
        assert_eq!(state(&paths), (0, 1));
        let row = [(); 3].map(|()| answered(&mut paths, &mut probes));
        assert_eq!(row, [false, false, true]);
        assert_eq!(probes.due(), Time::NEVER, "no further probe is needed");
    }

    #[test]
    fn when_ports_come_up_their_condemned_paths_are_probed_at_once() {
        let (mut paths, mut probes) = condemned(&[1, 3, 4]);
        for index in [1, 3, 4] {
            probes.schedule_first(NOW, &mut paths, index, RTT);
            (0..5).for_each(|_| probes.schedule_next(NOW, &mut paths, index, RTT));
        }
        paths.mark(5, 9);
        let turns = paths.record(5).backoff();
        probes.probe_soon(NOW, &mut paths, PortSet::one(1));
        let soon = probes.due();
        assert!(soon > NOW && soon <= NOW + RTT, "{soon:?}");
        probes.start_round();
        assert_eq!([1, 3, 4].map(|index| probes.is_due(soon, &paths, index)), [true, true, false]);
        assert_eq!([1, 3, 4].map(|index| paths.record(index).backoff()), [0, 0, 5]);
        assert_eq!((paths.record(5).backoff(), paths.record(5).probe_due), (turns, 0), "it is in use");
    }
}
