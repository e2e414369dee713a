//! The EV set of a queue pair: the paths in rotation and in reserve (docs/spec/paths.md).
//!
//! A path is identified by an index 0..n. Its plane is the index modulo the number of planes; its entropy value is
//! computed from the shared profile.
//!
//! | file | subject |
//! |---|---|
//! | `choice`, `selector` | selection of the path of the next packet |
//! | `health`, `ev_state` | path failure and recovery |
//! | `blame` | what a loss says about its path |
//! | `probing` | schedule of the probes of condemned paths |
//! | `reverse` | paths for feedback |

mod blame;
mod choice;
mod ev_state;
mod health;
mod index_array;
mod probing;
mod reverse;
mod selector;

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use openmrc_wire::{Ev, Packet};

pub use ev_state::EvState;
pub(super) use ev_state::{EvInput, EvRecord};
pub(super) use index_array::{EvIndex, IndexArray};
pub(super) use probing::{ConditionProbes, FIRST_RTTS, IDLE_RTTS};
pub(super) use reverse::ReversePaths;
pub use selector::{Choice, CustomSelector, LoadBalancing, PathSelector};

use self::blame::Losses;
use self::selector::Selector;
use super::config::{PathConfig, QpConfig};
use crate::api::{Payload, PortSet, TrafficClass, Transmit};
use crate::profile::{EvProfile, Order, PathEntry, PathId};
use crate::time::Time;

/// Largest number of paths of a queue pair: a full rotation and a full reserve.
const MAX_PATHS: usize = 2 * PathConfig::MOST as usize;

/// When this many paths of a plane are condemned with no acknowledgement on the plane in between, its other paths are
/// condemned too \[choice\]: a dead port must not cost one loss per path.
const PLANE_STREAK: u8 = 4;

/// The division is exact for at most 16 planes and indices below 512: 511 times a rounding error below 16 is below
/// 2^16.
const INVERSE_SHIFT: u32 = 16;

/// By number of planes: 2^[`INVERSE_SHIFT`] over it, rounded up.
static INVERSES: [u32; PortSet::MAX_PORTS + 1] = {
    let mut inverses = [0; PortSet::MAX_PORTS + 1];
    let mut planes = 1;
    while planes < inverses.len() {
        inverses[planes] = (1u32 << INVERSE_SHIFT).div_ceil(planes as u32);
        planes += 1;
    }
    inverses
};

/// An index divided by a number of planes.
#[inline]
fn over(index: EvIndex, planes: usize) -> usize {
    ((u32::from(index) * INVERSES[planes]) >> INVERSE_SHIFT) as usize
}

/// A plane's share of the rotation.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Plane {
    /// Order of its paths.
    order: Order,
    /// Packets sent, and turns of paths out of service, modulo 2^32; the plane with the fewest is next.
    sent: u32,
    /// Next slot of the rotation to check.
    cursor: u16,
    /// Paths in rotation that are GOOD or SKIP.
    usable: u16,
    /// Full turns since the order of the rotation was drawn.
    turns: u16,
    port: u8,
    /// Condemnations since the last acknowledgement on this plane.
    streak: u8,
}

/// Result of condemning a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condemned {
    /// The path was not in use: nothing has changed.
    Unchanged,
    /// Only this path is condemned.
    Path,
    /// This path is condemned, and it completes the streak that condemns its whole plane.
    Plane,
}

/// The number of condemned paths, and the trials of paths when too few are usable.
#[derive(Serialize, Deserialize)]
struct Condemnations {
    count: u16,
    /// If fewer paths in rotation are usable, a condemned path is tried again.
    min_active: u16,
    /// The condemned path that was probed or tried last.
    tried: EvIndex,
    /// The last path returned to the rotation for a trial, and the number of trials since such a path delivered.
    on_trial: EvIndex,
    in_vain: u8,
    /// A path was condemned at any time, or has lost a packet that may have been dropped.
    ever: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Paths {
    #[serde(skip, default = "EvProfile::none")]
    profile: Arc<EvProfile>,
    records: Box<[EvRecord]>,
    /// Indices in rotation: plane p owns slots p * slots .. (p + 1) * slots.
    rotation: IndexArray,
    planes: Box<[Plane]>,
    slots: u16,
    /// Turns after which the order of the rotation is drawn anew; 0: never. And the generator that draws it.
    rotation_turns: u16,
    random: u32,
    condemned: Condemnations,
    /// No other condemned path is tried before this time.
    trial_at: Time,
    /// Only where switches drop packets.
    losses: Option<Box<Losses>>,
    selector: Selector,
    reflection: Reflection,
}

/// How the peer reflects entropy values. Counters stay at their largest value.
#[derive(Serialize, Deserialize)]
struct Reflection {
    /// How many bits are compared.
    bits: u8,
    /// The last value that was found had its halves exchanged.
    is_swapped: bool,
    /// Values found with their halves exchanged, and values that are no path's.
    swapped: u16,
    unknown: u16,
}

impl Paths {
    pub(super) fn new(config: &QpConfig) -> Self {
        let PathConfig { profile, active, backup, min_active, .. } = &config.paths;
        let seed = config.seed;
        let planes = profile.ports();
        // The same number per plane, and at least one.
        let share =
            |paths: u16| usize::from(paths).div_ceil(planes).min(usize::from(PathConfig::MOST) / planes);
        let slots = share(*active).clamp(1, profile.paths_per_port());
        let total = (slots + share(*backup)).min(profile.paths_per_port()).min(MAX_PATHS / planes) * planes;
        let mut rotation = IndexArray::new(planes * slots, total);
        for slot in 0..planes * slots {
            let index = slot % slots * planes + slot / slots;
            rotation.set(slot, index as EvIndex);
        }
        // With bursts, senders that all started with the first plane would fill its buffers while the other planes are
        // idle.
        let first = if config.paths.burst > 1 { crate::random::mix(seed) as usize % planes } else { 0 };
        let turn = |p: usize| if config.paths.burst > 1 { (p + planes - first) % planes } else { 0 };
        let plane = |p: usize| Plane {
            port: profile.group_port(p),
            order: profile.order(seed, p),
            // Planes start at different positions, so that the first packets do not all use one switch.
            cursor: (crate::random::mix(seed.wrapping_add(p as u64)) % slots as u64) as u16,
            usable: slots as u16,
            streak: 0,
            turns: 0,
            sent: turn(p) as u32,
        };
        let ports = || (0..total).map(|i| profile.group_port(i % planes)).collect();
        let has_rotation = matches!(config.paths.load_balancing, LoadBalancing::EvStates);
        Paths {
            profile: Arc::clone(profile),
            records: vec![EvRecord::NEW; total].into_boxed_slice(),
            rotation,
            planes: (0..planes).map(plane).collect(),
            slots: slots as u16,
            rotation_turns: if has_rotation { config.paths.rotation_turns } else { 0 },
            random: crate::random::mix(seed ^ 0x0DE5) as u32,
            condemned: Condemnations {
                count: 0,
                // If the profile has fewer paths than were configured, the minimum is reduced in proportion: a minimum
                // that cannot be reached would return a broken path to the rotation every round trip.
                min_active: (u32::from(*min_active) * (planes * slots) as u32)
                    .div_ceil(u32::from((*active).max(1))) as u16,
                tried: 0,
                on_trial: EvIndex::MAX,
                in_vain: 0,
                ever: false,
            },
            trial_at: Time::ZERO,
            losses: Losses::new(config),
            selector: Selector::new(&config.paths.load_balancing, planes, config.paths.burst, seed, ports),
            reflection: Reflection {
                bits: config.paths.entropy_bits,
                is_swapped: false,
                swapped: 0,
                unknown: 0,
            },
        }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// After a checkpoint was read: the profile that the paths are of.
    pub(super) fn rejoin(&mut self, profile: &Arc<EvProfile>) {
        self.profile = Arc::clone(profile);
    }

    /// The profile that its paths are of.
    pub(super) fn profile(&self) -> &Arc<EvProfile> {
        &self.profile
    }

    /// Bits of the paths' entropy values.
    pub(super) fn entropy_bits(&self) -> u8 {
        self.reflection.bits
    }

    pub(super) fn plane_count(&self) -> usize {
        self.planes.len()
    }

    #[inline]
    pub(super) fn plane_of(&self, index: EvIndex) -> usize {
        index as usize - self.turn_of(index) * self.planes.len()
    }

    /// Position of a path within its plane.
    #[inline]
    fn turn_of(&self, index: EvIndex) -> usize {
        over(index, self.planes.len())
    }

    pub(super) fn port(&self, index: EvIndex) -> u8 {
        self.planes[self.plane_of(index)].port
    }

    pub(super) fn plane_port(&self, plane: usize) -> u8 {
        self.planes[plane].port
    }

    pub(super) fn path(&self, index: EvIndex) -> PathId {
        let turn = self.turn_of(index);
        let plane = index as usize - turn * self.planes.len();
        self.profile.pick(plane, self.planes[plane].order, turn as u32)
    }

    #[inline]
    pub(super) fn ev(&self, index: EvIndex) -> Ev {
        self.profile.entries()[self.path(index) as usize].ev
    }

    /// The transmission of a packet on a path.
    #[inline(always)]
    pub(super) fn transmit(
        &self,
        packet: Packet,
        index: EvIndex,
        class: TrafficClass,
        payload: Option<Payload>,
    ) -> Transmit {
        let path = self.path(index);
        let PathEntry { ev, port } = self.profile.entries()[path as usize];
        Transmit { packet, ev, path, port, class, payload }
    }

    /// The path of a reflected entropy, as it is or with its halves exchanged: readings of MRC differ on their order
    /// (docs/spec/wire.md, "Where the entropy value goes"). The order that was right last time is tried first. `hint`
    /// is the path that the packet took last.
    pub(super) fn find(&mut self, entropy: Ev, hint: Option<EvIndex>) -> Option<EvIndex> {
        let fits = |index: EvIndex, swapped: bool| {
            let value = if swapped { entropy.swapped() } else { entropy };
            self.ev(index).matches(value, self.reflection.bits)
        };
        let by_hint = |swapped| hint.filter(|&index| fits(index, swapped));
        let by_search = |swapped| (0..self.len()).map(|i| i as EvIndex).find(|&index| fits(index, swapped));
        let last = self.reflection.is_swapped;
        let found = by_hint(last)
            .map(|index| (index, last))
            .or_else(|| by_hint(!last).map(|index| (index, !last)))
            .or_else(|| by_search(last).map(|index| (index, last)))
            .or_else(|| by_search(!last).map(|index| (index, !last)));
        let reflection = &mut self.reflection;
        let Some((index, swapped)) = found else {
            reflection.unknown = reflection.unknown.saturating_add(1);
            return None;
        };
        reflection.is_swapped = swapped;
        reflection.swapped = reflection.swapped.saturating_add(swapped.into());
        Some(index)
    }

    /// Whether a path has this reflected entropy, in the order of halves in which the last was found.
    fn is_reflected(&self, index: EvIndex, entropy: Ev) -> bool {
        let value = if self.reflection.is_swapped { entropy.swapped() } else { entropy };
        self.ev(index).matches(value, self.reflection.bits)
    }

    /// Reflected values found with their halves exchanged, and reflected values that are no path's.
    pub(super) fn odd_reflections(&self) -> (u16, u16) {
        (self.reflection.swapped, self.reflection.unknown)
    }

    /// The index of an entropy value on a port.
    pub(super) fn index_of(&self, entry: PathEntry) -> Option<EvIndex> {
        let fits = |&i: &EvIndex| self.profile.entries()[usize::from(self.path(i))] == entry;
        (0..self.len()).map(|i| i as EvIndex).find(fits)
    }

    fn record(&self, index: EvIndex) -> EvRecord {
        self.records[index as usize]
    }

    fn record_mut(&mut self, index: EvIndex) -> &mut EvRecord {
        &mut self.records[index as usize]
    }

    pub(super) fn state(&self, index: EvIndex) -> EvState {
        self.records[index as usize].state()
    }

    /// Whether the last probe of a condemned path was answered.
    pub(super) fn has_succeeded(&self, index: EvIndex) -> bool {
        let record = self.record(index);
        record.successes() > 0
    }

    /// Whether the controller has left any path of a plane enabled.
    pub(super) fn any_allowed(&self, plane: usize) -> bool {
        (plane..self.len()).step_by(self.planes.len()).any(|i| self.state(i as EvIndex) != EvState::Denied)
    }

    /// Whether the rotation has a usable path on one of these ports.
    pub(super) fn any_usable(&self, ports: PortSet) -> bool {
        self.planes.iter().any(|p| p.usable > 0 && ports.contains(p.port))
    }

    pub(super) fn any_condemned(&self) -> bool {
        self.condemned.count > 0
    }

    /// The slots of a plane in the rotation.
    fn slots_of(&self, plane: usize) -> std::ops::Range<usize> {
        let slots = usize::from(self.slots);
        plane * slots..(plane + 1) * slots
    }

    /// A plane's paths in rotation.
    fn rotation_of(&self, plane: usize) -> impl Iterator<Item = EvIndex> + '_ {
        self.slots_of(plane).map(|slot| self.rotation.get(slot))
    }

    /// Loads the planes and the rotation into the cache.
    pub(super) fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.planes, 0);
        self.rotation.prefetch(0);
        self.rotation.prefetch(64);
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.records)
            + self.rotation.heap_bytes()
            + size_of_val(&*self.planes)
            + self.losses.as_deref().map_or(0, size_of_val)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::{CcProfile, PathModel};
    use crate::time::Span;

    /// Paths of a profile with 64 on each port, with the settings as changed.
    pub(super) fn with_config(planes: u8, change: impl FnOnce(&mut QpConfig)) -> Paths {
        let model = PathModel::new(Span::from_micros(10), true);
        let paths = PathConfig::new(Arc::new(profile(planes)), model);
        let mut config = QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1)));
        config.seed = 7;
        change(&mut config);
        Paths::new(&config)
    }

    fn profile(planes: u8) -> EvProfile {
        let list: Vec<_> = (0..64u32)
            .flat_map(|i| (0..planes).map(move |port| PathEntry { ev: Ev(i << 4 | u32::from(port)), port }))
            .collect();
        EvProfile::new(&list).unwrap()
    }

    fn set(profile: EvProfile, active: u16, backup: u16, min_active: u16, burst: u8) -> Paths {
        with_config(1, |config| {
            config.paths = PathConfig {
                profile: Arc::new(profile),
                active,
                backup,
                min_active,
                burst,
                ..config.paths.clone()
            };
        })
    }

    pub(super) fn paths(planes: u8, active: u16, backup: u16, burst: u8) -> Paths {
        set(profile(planes), active, backup, active / 4, burst)
    }

    #[test]
    fn a_reflected_entropy_is_found_as_sent_and_with_its_halves_exchanged() {
        let list = [0x1111_AAAA, 0x2222_BBBB, 0xAAAA_1111].map(|ev| PathEntry { ev: Ev(ev), port: 0 });
        let mut paths = set(EvProfile::new(&list).unwrap(), 3, 0, 0, 1);
        let index = |paths: &Paths, ev| {
            paths.index_of(PathEntry { ev: Ev(ev), port: 0 }).unwrap_or_else(|| panic!("no path {ev:#x}"))
        };
        let (first, second, third) =
            (index(&paths, 0x1111_AAAA), index(&paths, 0x2222_BBBB), index(&paths, 0xAAAA_1111));
        assert_eq!(paths.find(Ev(0x1111_AAAA), None), Some(first), "as sent before exchanged");
        assert_eq!(paths.odd_reflections(), (0, 0));
        assert_eq!(paths.find(Ev(0x1111_AAAA), Some(third)), Some(third), "the path taken decides");
        // The order is remembered.
        assert_eq!(paths.find(Ev(0x1111_AAAA), None), Some(third));
        assert_eq!(paths.find(Ev(0xBBBB_2222), None), Some(second));
        assert_eq!(paths.odd_reflections(), (3, 0));
        assert_eq!(paths.find(Ev(0x2222_BBBB), None), Some(second));
        assert_eq!(paths.find(Ev(0x3333_CCCC), Some(first)), None);
        assert_eq!(paths.odd_reflections(), (3, 1));
        assert_eq!(paths.find(Ev(0x1111_AAAA), None), Some(first), "unknown values change no order");
    }

    #[test]
    fn of_16_bit_values_only_16_bits_are_compared() {
        let list = [0x1234, 0x5678].map(|ev| PathEntry { ev: Ev(ev), port: 0 });
        let model = PathModel::new(Span::from_micros(10), true);
        let profile = Arc::new(EvProfile::new(&list).unwrap());
        let config = PathConfig { active: 2, backup: 0, entropy_bits: 16, ..PathConfig::new(profile, model) };
        let mut paths = Paths::new(&QpConfig::new(1, 2, config, Arc::new(CcProfile::FixedWindow(1))));
        let second = paths.index_of(list[1]);
        // The sender's host has put a flow label of its own into the packet.
        assert_eq!(paths.find(Ev(0xBEEF_5678), None), second);
        assert_eq!(paths.find(Ev(0x0000_5678), None), second);
        assert_eq!(paths.odd_reflections(), (0, 0));
        assert_eq!(paths.find(Ev(0x5678_BEEF), None), second);
        assert_eq!(paths.odd_reflections(), (1, 0));
    }

    pub(super) fn select(paths: &mut Paths, ports: PortSet) -> Option<EvIndex> {
        paths.select(Time::ZERO, ports, ports, None)
    }

    #[test]
    fn behind_a_checkpoint_the_paths_are_those_of_the_profile_given() {
        let mut paths = paths(2, 16, 16, 1);
        let before: Vec<_> = (0..32).map(|index| (paths.path(index), paths.ev(index))).collect();
        let list: Vec<_> = (0..128).map(|i| PathEntry { ev: Ev(1000 + i), port: (i % 2) as u8 }).collect();
        let other = Arc::new(EvProfile::new(&list).unwrap());
        paths.rejoin(&other);
        assert!(Arc::ptr_eq(paths.profile(), &other));
        for (index, (path, ev)) in (0..).zip(before) {
            assert_eq!((paths.path(index), paths.ev(index)), (path, other.entries()[usize::from(path)].ev));
            assert_ne!(paths.ev(index), ev);
        }
    }

    #[test]
    fn planes_are_divided_by_exactly() {
        for planes in 1..=PortSet::MAX_PORTS {
            for index in 0..MAX_PATHS as EvIndex {
                assert_eq!(over(index, planes), usize::from(index) / planes);
            }
        }
    }

    pub(super) fn sent_per_plane(paths: &mut Paths, ports: PortSet, packets: usize) -> Vec<usize> {
        let mut sent = vec![0; paths.plane_count()];
        for _ in 0..packets {
            let index = select(paths, ports).unwrap();
            sent[paths.plane_of(index)] += 1;
        }
        sent
    }

    #[test]
    fn a_path_that_is_restored_ends_the_streak_of_its_plane() {
        let mut paths = paths(2, 16, 16, 1);
        let of_plane: Vec<_> = paths.on_plane(0).collect();
        let (first, rest) = of_plane[..7].split_first().unwrap();
        assert!(matches!(paths.condemn(*first), Condemned::Path));
        assert!(rest[..2].iter().all(|&index| matches!(paths.condemn(index), Condemned::Path)));
        assert!(paths.restore(*first, EvInput::ProbesGood));
        // Four in a row condemn the plane; the three from before do not count any more.
        assert!(rest[2..5].iter().all(|&index| matches!(paths.condemn(index), Condemned::Path)));
        assert!(matches!(paths.condemn(rest[5]), Condemned::Plane));
    }

    #[test]
    fn every_path_in_rotation_is_used_once_a_turn() {
        let mut paths = paths(8, 128, 128, 1);
        let mut seen = vec![0; paths.len()];
        for _ in 0..128 {
            seen[select(&mut paths, PortSet::first(8)).unwrap() as usize] += 1;
        }
        assert_eq!(seen.iter().filter(|&&n| n == 1).count(), 128);
    }

    /// The order of one plane's paths in each of `turns` turns.
    fn orders(rotation_turns: u16, turns: usize) -> Vec<Vec<EvIndex>> {
        let list: Vec<_> = (0..16).map(|i| PathEntry { ev: Ev(i), port: 0 }).collect();
        let model = PathModel::new(Span::from_micros(10), true);
        let profile = Arc::new(EvProfile::new(&list).unwrap());
        let config = PathConfig { active: 16, backup: 0, rotation_turns, ..PathConfig::new(profile, model) };
        let qp = QpConfig { seed: 7, ..QpConfig::new(1, 2, config, Arc::new(CcProfile::FixedWindow(1))) };
        let mut paths = Paths::new(&qp);
        // The first turn begins anywhere.
        while paths.planes[0].cursor != 0 {
            select(&mut paths, PortSet::first(1));
        }
        let turn = |_| (0..16).map(|_| select(&mut paths, PortSet::first(1)).unwrap()).collect();
        (0..turns).map(turn).collect()
    }

    #[test]
    fn the_rotation_is_shuffled_again_after_the_configured_turns() {
        let fixed = orders(0, 100);
        assert!(fixed.iter().all(|order| *order == fixed[0]));
        let shuffled = orders(4, 100);
        for (turn, order) in shuffled.iter().enumerate() {
            let every: std::collections::BTreeSet<_> = order.iter().collect();
            assert_eq!(every.len(), 16, "turn {turn} uses every path once");
        }
        let changes = shuffled.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 25, "one in four turns");
        assert_eq!(orders(4, 100), shuffled, "a seed decides everything");
    }

    #[test]
    fn a_burst_stays_on_its_path() {
        let mut paths = paths(8, 128, 128, 4);
        let taken: Vec<_> = (0..16).map(|_| select(&mut paths, PortSet::first(8)).unwrap()).collect();
        for run in taken.chunks(4) {
            assert!(run.iter().all(|&i| i == run[0]));
        }
        assert_ne!(taken[0], taken[4]);
    }

    #[test]
    fn congestion_does_not_move_load_between_planes() {
        let mut paths = paths(8, 128, 128, 1);
        let all = PortSet::first(8);
        let mut sent = [0usize; 8];
        for _ in 0..8000 {
            for i in 0..256u32 {
                if paths.plane_of(i as EvIndex) == 3 {
                    paths.mark(i as EvIndex, 1);
                }
            }
            let index = select(&mut paths, all).unwrap();
            sent[paths.plane_of(index)] += 1;
        }
        assert_eq!(sent, [1000; 8]);
    }

    #[test]
    fn a_plane_without_backups_carries_what_its_paths_left_can_carry() {
        let all = PortSet::first(4);
        for burst in [1, 4] {
            let mut paths = paths(4, 32, 0, burst);
            let carries = |paths: &mut Paths, packets, expected: [usize; 4]| {
                let sent = sent_per_plane(paths, all, packets);
                let fits =
                    sent.iter().zip(expected).all(|(sent, n)| sent.abs_diff(n) <= 2 * usize::from(burst));
                assert!(fits, "{sent:?} in bursts of {burst}, not {expected:?}");
            };
            let on_plane: Vec<_> = paths.on_plane(1).collect();
            paths.condemn(on_plane[0]);
            paths.condemn(on_plane[5]);
            carries(&mut paths, 3000, [800, 600, 800, 800]);
            // A probe of a path takes no turn away.
            (0..100).for_each(|_| _ = paths.choose_to_probe(1));
            carries(&mut paths, 3000, [800, 600, 800, 800]);
            for index in [on_plane[0], on_plane[5]] {
                assert!(paths.restore(index, EvInput::ProbesGood));
            }
            carries(&mut paths, 3200, [800; 4]);
        }
    }

    #[test]
    fn losing_a_port_spreads_its_share_and_its_return_takes_no_more_than_a_share() {
        let mut paths = paths(8, 128, 128, 1);
        let all = PortSet::first(8);
        sent_per_plane(&mut paths, all, 800);
        let without = sent_per_plane(&mut paths, all.without(2), 700);
        assert_eq!(without, [100, 100, 0, 100, 100, 100, 100, 100]);
        paths.ports_came_up(PortSet::one(2));
        let with = sent_per_plane(&mut paths, all, 800);
        assert!(with.iter().all(|n| (99..=101).contains(n)), "{with:?}");
    }

    #[test]
    fn a_condemned_path_is_replaced_by_a_backup_of_its_plane() {
        let mut paths = paths(4, 16, 16, 1);
        let all = PortSet::first(4);
        let victim = select(&mut paths, all).unwrap();
        assert_eq!(paths.condemn(victim), Condemned::Path);
        assert_eq!(paths.condemn(victim), Condemned::Unchanged);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..64 {
            seen.insert(select(&mut paths, all).unwrap());
        }
        assert!(!seen.contains(&victim));
        assert_eq!(seen.len(), 16);
        assert_eq!(seen.iter().filter(|&&i| paths.plane_of(i) == paths.plane_of(victim)).count(), 4);
        // Its place is taken, so it returns as a backup.
        assert!(paths.restore(victim, EvInput::ProbesGood));
        assert!(!paths.rotation_of(paths.plane_of(victim)).any(|index| index == victim));
    }

    #[test]
    fn with_every_path_condemned_one_is_tried_all_the_same() {
        let mut paths = paths(2, 4, 0, 1);
        for i in 0..4 {
            paths.condemn(i);
        }
        assert!(select(&mut paths, PortSet::first(2)).is_some());
        assert!(paths.try_condemned(Time(0), PortSet::first(2), Span(10)).is_some());
        assert!(paths.try_condemned(Time(5), PortSet::first(2), Span(10)).is_none());
    }

    #[test]
    fn where_there_are_fewer_paths_than_asked_for_a_condemned_one_still_stays_out() {
        let list: Vec<_> = (0..8).map(|i| PathEntry { ev: Ev(i), port: (i % 2) as u8 }).collect();
        let mut paths = set(EvProfile::new(&list).unwrap(), 128, 128, 32, 1);
        let all = PortSet::first(2);
        for i in 0..6 {
            paths.condemn(i);
            assert!(paths.try_condemned(Time(0), all, Span(10)).is_none(), "a quarter of eight is two");
        }
        paths.condemn(6);
        assert!(paths.try_condemned(Time(0), all, Span(10)).is_some());
    }

    #[test]
    fn one_plane_can_have_all_the_paths_there_are() {
        let mut paths = super::tests::paths(1, 256, 0, 1);
        let one = PortSet::first(1);
        assert!(select(&mut paths, one).is_some());
        let list: Vec<_> = (0..1000).map(|i| PathEntry { ev: Ev(i), port: 0 }).collect();
        let mut paths = set(EvProfile::new(&list).unwrap(), 256, 256, 64, 1);
        let used: std::collections::BTreeSet<_> = (0..300).filter_map(|_| select(&mut paths, one)).collect();
        assert_eq!(used.len(), 256);
        assert_eq!(paths.len(), 512);
    }

    #[test]
    fn with_256_paths_in_rotation_each_of_256_backups_can_take_a_place() {
        let list: Vec<_> = (0..512).map(|i| PathEntry { ev: Ev(i), port: (i % 8) as u8 }).collect();
        let mut paths = set(EvProfile::new(&list).unwrap(), 256, 256, 64, 1);
        let all = PortSet::first(8);
        assert_eq!(paths.len(), 512);
        let first: std::collections::BTreeSet<_> =
            (0..256).map(|_| select(&mut paths, all).unwrap()).collect();
        assert_eq!(first.len(), 256);
        for &index in &first {
            paths.alive(index);
            assert_eq!(paths.condemn(index), Condemned::Path);
        }
        let second: std::collections::BTreeSet<_> =
            (0..256).map(|_| select(&mut paths, all).unwrap()).collect();
        assert_eq!(second.len(), 256);
        assert!(first.is_disjoint(&second));
    }

    #[test]
    fn a_denied_path_is_never_used() {
        let mut paths = paths(2, 8, 8, 1);
        let all = PortSet::first(2);
        for i in 0..15 {
            paths.set_denied(i, true);
        }
        for _ in 0..100 {
            assert_eq!(select(&mut paths, all), Some(15));
        }
        paths.condemn(15);
        assert_eq!(select(&mut paths, all), Some(15), "the last path is tried even if condemned");
        paths.set_denied(15, true);
        assert_eq!(select(&mut paths, all), None);
    }

    #[test]
    fn a_retransmission_avoids_the_path_and_plane_that_lost_it() {
        let mut paths = paths(4, 16, 16, 1);
        let all = PortSet::first(4);
        for _ in 0..200 {
            let lost = select(&mut paths, all).unwrap();
            let again = paths.select(Time::ZERO, all, all, Some(lost)).unwrap();
            assert_ne!(paths.plane_of(lost), paths.plane_of(again));
        }
        let single = PortSet::one(0);
        let again = paths.select(Time::ZERO, single, single, Some(0)).unwrap();
        assert_ne!(again, 0);
        assert_eq!(paths.plane_of(again), 0);
    }

    #[test]
    fn where_every_path_is_marked_a_retransmission_takes_the_next_one_not_the_one_that_was_trimmed() {
        let mut paths = paths(1, 4, 0, 1);
        let one = PortSet::first(1);
        let mut lost = select(&mut paths, one).unwrap();
        let mut taken = [0; 4];
        for _ in 0..400 {
            (0..4).for_each(|index| paths.mark(index, 1));
            let again = paths.select(Time::ZERO, one, one, Some(lost)).unwrap();
            assert_ne!(again, lost);
            taken[usize::from(again)] += 1;
            lost = again;
        }
        assert!(taken.iter().all(|n| (60..=140).contains(n)), "all take part: {taken:?}");
    }
}
