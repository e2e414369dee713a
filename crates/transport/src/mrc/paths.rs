//! The EV set of a queue pair: which paths are in rotation, which in reserve, and which one the next packet takes
//! (spec: paths). A path is an index 0..n here; its plane is the index modulo the number of planes, its entropy value
//! comes out of the shared profile by arithmetic.

use std::sync::Arc;

use openmrc_wire::{Ev, Packet};

use super::ev_state::{EvInput, EvRecord, EvState};
use super::selector::{Choice, LoadBalancing, Selector};
use crate::api::{Payload, PortSet, TrafficClass, Transmit};
use crate::profile::{EvProfile, Order, PathEntry, PathId};
use crate::time::Time;

/// A path's index in its queue pair.
pub(super) type EvIndex = u8;

/// So many paths of a plane condemned in a row, with nothing acknowledged on that plane in between, condemn the
/// plane's others as well \[choice\]: a dead port must not cost one loss per path.
const PLANE_STREAK: u8 = 4;

/// With at most 16 planes and indices below 256 this is exact: 255 times a rounding error below 16 stays below 2^12.
const INVERSE_SHIFT: u32 = 12;

fn inverse_of(planes: usize) -> u16 {
    (1u16 << INVERSE_SHIFT).div_ceil(planes as u16)
}

/// An index over the number of planes that `inverse` belongs to.
#[inline]
fn over(index: EvIndex, inverse: u16) -> usize {
    (usize::from(index) * usize::from(inverse)) >> INVERSE_SHIFT
}

/// What a plane's share of the rotation looks like.
#[derive(Clone, Copy)]
struct Plane {
    port: u8,
    /// In which order its paths take their turns.
    order: Order,
    /// Next slot of the rotation to look at.
    cursor: u8,
    /// Paths in rotation that are GOOD or SKIP.
    usable: u8,
    /// Condemnations since the last acknowledgement on this plane.
    streak: u8,
    /// Packets sent, modulo 2^32; the plane that has sent least goes next.
    sent: u32,
}

/// What became of a condemned path's plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Condemned {
    /// It was not in use: nothing has changed.
    Unchanged,
    /// This path alone.
    Path,
    /// This path, and by it the streak that condemns its whole plane.
    Plane,
}

pub(super) struct Paths {
    profile: Arc<EvProfile>,
    records: Box<[EvRecord]>,
    /// When a condemned path is to be probed next, in [`super::probes`]' units; unused otherwise.
    pub(super) probe_due: Box<[u8]>,
    /// Indices in rotation: plane p owns slots p * slots .. (p + 1) * slots.
    rotation: Box<[EvIndex]>,
    in_rotation: Box<[u64]>,
    planes: Box<[Plane]>,
    /// 2^[`INVERSE_SHIFT`] over the number of planes, rounded up.
    inverse: u16,
    slots: u8,
    min_active: u16,
    condemned: u16,
    /// The path of the current burst, and how many more packets may take it.
    burst: Option<(EvIndex, u8)>,
    burst_len: u8,
    /// The condemned path tried last, and the time before which no other is.
    tried: EvIndex,
    trial_at: Time,
    /// Boxed unless it is the usual one, which needs no state of its own.
    selector: Option<Box<Selector>>,
}

impl Paths {
    pub(super) fn new(
        profile: &Arc<EvProfile>,
        seed: u64,
        active: u16,
        backup: u16,
        min_active: u16,
        burst_len: u8,
    ) -> Self {
        let planes = profile.ports();
        // Equally many per plane, at least one, and not more than the index can name.
        let most = (256 / planes).min(profile.paths_per_port()).min(usize::from(u8::MAX));
        let slots = (active as usize).div_ceil(planes).clamp(1, most);
        let total = (slots + (backup as usize).div_ceil(planes)).min(most) * planes;
        let rotation: Box<[EvIndex]> =
            (0..planes * slots).map(|slot| (slot % slots * planes + slot / slots) as EvIndex).collect();
        let mut in_rotation = vec![0u64; total.div_ceil(64)].into_boxed_slice();
        for &index in &rotation {
            in_rotation[index as usize / 64] |= 1 << (index % 64);
        }
        let plane = |p: usize| Plane {
            port: profile.group_port(p),
            order: profile.order(seed, p),
            // Planes start at different places, so that the first packets do not all go to one switch.
            cursor: (crate::profile::mix(seed.wrapping_add(p as u64)) % slots as u64) as u8,
            usable: slots as u8,
            streak: 0,
            sent: 0,
        };
        Paths {
            profile: Arc::clone(profile),
            records: vec![EvRecord::NEW; total].into_boxed_slice(),
            probe_due: vec![0; total].into_boxed_slice(),
            rotation,
            in_rotation,
            planes: (0..planes).map(plane).collect(),
            inverse: inverse_of(planes),
            slots: slots as u8,
            // Where the profile has fewer paths than were asked for, the same share of them: a minimum that is never reached
            // would take a broken path back into rotation every round trip.
            min_active: (u32::from(min_active) * (planes * slots) as u32).div_ceil(u32::from(active.max(1)))
                as u16,
            condemned: 0,
            burst: None,
            burst_len: burst_len.max(1),
            tried: 0,
            trial_at: Time::ZERO,
            selector: None,
        }
    }

    /// Spreads packets in another way than by EV states.
    pub(super) fn balance(&mut self, how: &LoadBalancing, seed: u64) {
        if !matches!(how, LoadBalancing::EvStates) {
            let ports: Vec<u8> = (0..self.len()).map(|i| self.port(i as EvIndex)).collect();
            let selector = Selector::new(how, &ports, self.planes.len(), seed);
            self.selector = Some(Box::new(selector));
        }
    }

    /// Tells the time, for a user's own selector.
    #[inline]
    pub(super) fn at(&mut self, time: Time) {
        if let Some(Selector::Custom(_, now)) = self.selector.as_deref_mut() {
            *now = time;
        }
    }

    /// A path by another rule than the EV states'. A retransmission avoids its path and plane as by those.
    fn select_otherwise(
        &mut self,
        selector: &mut Selector,
        free: PortSet,
        avoid: Option<EvIndex>,
    ) -> Option<EvIndex> {
        if let Selector::Custom(own, now) = selector {
            return own.select(&Choice { now: *now, free, avoid });
        }
        let avoid_plane = avoid.map(|index| self.plane_of(index));
        let plane = self.least_sent(free, avoid_plane).or_else(|| self.least_sent(free, None))?;
        let (count, slots) = (self.planes.len(), u64::from(self.slots));
        let any = |random: u64| (random % slots) as usize * count + plane;
        Some(match selector {
            Selector::Oblivious(seed) => {
                *seed = seed.wrapping_add(1);
                any(crate::profile::mix(*seed)) as EvIndex
            }
            Selector::Reps(reps) => match reps.next(plane) {
                Some(index) => index,
                None => any(reps.random()) as EvIndex,
            },
            _ => self.take_turn(plane, avoid),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn plane_count(&self) -> usize {
        self.planes.len()
    }

    #[inline]
    pub(super) fn plane_of(&self, index: EvIndex) -> usize {
        index as usize - self.turn_of(index) * self.planes.len()
    }

    /// A path's number among those of its plane.
    #[inline]
    fn turn_of(&self, index: EvIndex) -> usize {
        over(index, self.inverse)
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

    pub(super) fn ev(&self, index: EvIndex) -> Ev {
        self.profile.entries()[self.path(index) as usize].ev
    }

    /// A packet on its way along a path.
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

    /// The index of an entropy value, where `hint` is the likeliest.
    pub(super) fn find(&self, ev: Ev, hint: Option<EvIndex>) -> Option<EvIndex> {
        match hint {
            Some(index) if self.ev(index) == ev => Some(index),
            _ => (0..self.len()).map(|i| i as EvIndex).find(|&i| self.ev(i) == ev),
        }
    }

    pub(super) fn record(&self, index: EvIndex) -> EvRecord {
        self.records[index as usize]
    }

    pub(super) fn record_mut(&mut self, index: EvIndex) -> &mut EvRecord {
        &mut self.records[index as usize]
    }

    pub(super) fn state(&self, index: EvIndex) -> EvState {
        self.records[index as usize].state()
    }

    /// Whether the controller leaves a plane any path.
    pub(super) fn any_allowed(&self, plane: usize) -> bool {
        (plane..self.len()).step_by(self.planes.len()).any(|i| self.state(i as EvIndex) != EvState::Denied)
    }

    /// Whether data can be sent in the course of rotation on one of these ports.
    pub(super) fn any_usable(&self, ports: PortSet) -> bool {
        self.planes.iter().any(|p| p.usable > 0 && ports.contains(p.port))
    }

    pub(super) fn any_condemned(&self) -> bool {
        self.condemned > 0
    }

    fn rotates(&self, index: EvIndex) -> bool {
        self.in_rotation[index as usize / 64] >> (index % 64) & 1 == 1
    }

    fn set_rotates(&mut self, index: EvIndex, on: bool) {
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        if on {
            self.in_rotation[word] |= bit;
        } else {
            self.in_rotation[word] &= !bit;
        }
    }

    /// The path for the next packet, on one of the `free` ports; `up` are those that could ever take one. A packet that
    /// was lost before avoids the path that lost it, and its plane if there is another.
    ///
    /// `None` means: wait for a port. While any port is up this never says `None` with all of them free.
    pub(super) fn select(&mut self, free: PortSet, up: PortSet, avoid: Option<EvIndex>) -> Option<EvIndex> {
        let free = free.and(up);
        if let Some(mut selector) = self.selector.take() {
            let index = self.select_otherwise(&mut selector, free, avoid);
            self.selector = Some(selector);
            return index.map(|index| self.count_sent(index));
        }
        if avoid.is_none()
            && let Some((index, left)) = self.burst
            && left > 0
            && free.contains(self.port(index))
            && self.state(index) == EvState::Good
        {
            self.burst = Some((index, left - 1));
            return Some(self.count_sent(index));
        }
        let avoid_plane = avoid.map(|index| self.plane_of(index));
        let plane = self.least_sent(free, avoid_plane).or_else(|| self.least_sent(free, None));
        if let Some(plane) = plane {
            let index = self.take_turn(plane, avoid);
            if avoid.is_none() {
                self.burst = Some((index, self.burst_len - 1));
            }
            return Some(self.count_sent(index));
        }
        if self.any_usable(up) {
            return None;
        }
        // Every path is condemned: try one all the same, so as never to deadlock.
        self.next_condemned(|port| free.contains(port)).map(|index| self.count_sent(index))
    }

    /// There was nothing to send: what comes later begins a burst of its own.
    #[inline]
    pub(super) fn end_burst(&mut self) {
        self.burst = None;
    }

    fn count_sent(&mut self, index: EvIndex) -> EvIndex {
        let plane = self.plane_of(index);
        self.planes[plane].sent = self.planes[plane].sent.wrapping_add(1);
        index
    }

    /// The plane with a usable path on a free port that has sent least: planes carry equal load.
    fn least_sent(&self, free: PortSet, avoid: Option<usize>) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (p, plane) in self.planes.iter().enumerate() {
            if plane.usable == 0 || !free.contains(plane.port) || avoid == Some(p) {
                continue;
            }
            if best.is_none_or(|b| (plane.sent.wrapping_sub(self.planes[b].sent) as i32) < 0) {
                best = Some(p);
            }
        }
        best
    }

    /// Walks the plane's rotation from its cursor to the first GOOD path. The first SKIP path on the way is restored
    /// but passed over; it serves if the full turn finds no other.
    fn take_turn(&mut self, plane: usize, avoid: Option<EvIndex>) -> EvIndex {
        let slots = self.slots;
        let first_slot = plane * slots as usize;
        let mut restored = None;
        let mut fallback = None;
        for _ in 0..slots {
            let cursor = self.planes[plane].cursor;
            let index = self.rotation[first_slot + cursor as usize];
            self.planes[plane].cursor = if cursor + 1 == slots { 0 } else { cursor + 1 };
            match self.state(index) {
                EvState::Good if avoid == Some(index) => fallback = Some(index),
                EvState::Good => return index,
                EvState::Skip if restored.is_none() => {
                    self.records[index as usize].apply(EvInput::TurnPassed);
                    restored = Some(index);
                }
                EvState::Skip | EvState::AssumedBad | EvState::Denied => {}
            }
        }
        // A usable path exists, or the plane would not have been chosen; so one of these is set.
        restored.or(fallback).unwrap_or(self.rotation[first_slot])
    }

    /// The condemned path to try next: one whose last probe was answered if there is one, otherwise each in turn.
    fn next_condemned(&mut self, eligible: impl Fn(u8) -> bool) -> Option<EvIndex> {
        let len = self.len();
        let condemned = |i: &EvIndex| self.state(*i) == EvState::AssumedBad && eligible(self.port(*i));
        let in_turn =
            || (1..=len).map(|step| ((self.tried as usize + step) % len) as EvIndex).filter(condemned);
        let index = in_turn().find(|&i| self.record(i).successes() > 0).or_else(|| in_turn().next())?;
        self.tried = index;
        Some(index)
    }

    /// A path of this plane to send a probe on, whatever is believed of it; `None` if the controller allows none.
    pub(super) fn choose_to_probe(&mut self, plane: usize) -> Option<EvIndex> {
        if self.planes[plane].usable > 0 {
            return Some(self.take_turn(plane, None));
        }
        let port = self.planes[plane].port;
        self.next_condemned(|p| p == port)
    }

    /// A switch marked or trimmed a packet on this path: it misses one turn.
    pub(super) fn mark(&mut self, index: EvIndex) {
        self.records[index as usize].apply(EvInput::Marked);
        let plane = self.plane_of(index);
        match self.selector.as_deref_mut() {
            Some(Selector::Reps(reps)) => reps.congested(plane, index),
            Some(Selector::Custom(own, _)) => own.congested(index),
            _ => {}
        }
    }

    /// Something sent on this path has arrived.
    pub(super) fn alive(&mut self, index: EvIndex) {
        let plane = self.plane_of(index);
        self.planes[plane].streak = 0;
        match self.selector.as_deref_mut() {
            Some(Selector::Reps(reps)) => reps.acked(plane, index),
            Some(Selector::Custom(own, _)) => own.acked(index),
            _ => {}
        }
    }

    /// An untrimmed loss on this path: out of rotation, and a backup of the same plane takes its place.
    pub(super) fn condemn(&mut self, index: EvIndex) -> Condemned {
        let plane = self.plane_of(index);
        match self.selector.as_deref_mut() {
            None => {}
            other => {
                match other {
                    Some(Selector::Reps(reps)) => reps.lost(plane),
                    Some(Selector::Custom(own, _)) => own.lost(index),
                    _ => {}
                }
                return Condemned::Unchanged;
            }
        }
        if !self.state(index).usable() {
            return Condemned::Unchanged;
        }
        self.take_out(index, EvInput::Lost);
        self.condemned += 1;
        let plane = self.plane_of(index);
        self.planes[plane].streak = self.planes[plane].streak.saturating_add(1);
        // With one plane there is nowhere else to go, so the streak says nothing worth acting on.
        if self.planes[plane].streak >= PLANE_STREAK && self.planes.len() > 1 {
            Condemned::Plane
        } else {
            Condemned::Path
        }
    }

    /// Indices of a plane, in rotation or not.
    pub(super) fn on_plane(&self, plane: usize) -> impl Iterator<Item = EvIndex> + use<> {
        (plane..self.len()).step_by(self.planes.len()).map(|i| i as EvIndex)
    }

    fn take_out(&mut self, index: EvIndex, why: EvInput) {
        let was_usable = self.state(index).usable();
        self.records[index as usize].apply(why);
        if !self.rotates(index) || !was_usable {
            return;
        }
        let plane = self.plane_of(index);
        self.planes[plane].usable -= 1;
        let reserve = (plane..self.len())
            .step_by(self.planes.len())
            .map(|i| i as EvIndex)
            .find(|&i| !self.rotates(i) && self.state(i).usable());
        if let Some(reserve) = reserve {
            self.swap_in(plane, index, reserve);
        }
    }

    /// Puts `new` where `old` rotates.
    fn swap_in(&mut self, plane: usize, old: EvIndex, new: EvIndex) {
        let first_slot = plane * self.slots as usize;
        let slots = &mut self.rotation[first_slot..first_slot + self.slots as usize];
        if let Some(slot) = slots.iter_mut().find(|slot| **slot == old) {
            *slot = new;
            self.set_rotates(old, false);
            self.set_rotates(new, true);
            self.planes[plane].usable += 1;
        }
    }

    /// Probes have succeeded, or data sent on it as a last resort has arrived, or the controller allows it again: back
    /// into rotation, or into the backup set where its place has been filled. Says whether anything changed.
    pub(super) fn restore(&mut self, index: EvIndex, why: EvInput) -> bool {
        let before = self.state(index);
        if before.usable() {
            return false;
        }
        self.records[index as usize].apply(why);
        if !self.state(index).usable() {
            return false;
        }
        self.records[index as usize].set_probing(0, 0);
        if before == EvState::AssumedBad {
            self.condemned -= 1;
        }
        let plane = self.plane_of(index);
        self.planes[plane].streak = 0;
        if self.planes[plane].usable == 0 {
            self.catch_up(plane);
        }
        if self.rotates(index) {
            self.planes[plane].usable += 1;
        } else {
            let first_slot = plane * self.slots as usize;
            let slots = &self.rotation[first_slot..first_slot + self.slots as usize];
            if let Some(&broken) = slots.iter().find(|&&i| !self.state(i).usable()) {
                self.swap_in(plane, broken, index);
            }
        }
        true
    }

    /// A plane that was away does not make up for what it missed, nor does it go first: it may still be broken.
    fn catch_up(&mut self, plane: usize) {
        let others = self.planes.iter().enumerate().filter(|&(p, other)| p != plane && other.usable > 0);
        let base = self.planes[plane].sent;
        if let Some(ahead) = others.map(|(_, other)| other.sent.wrapping_sub(base) as i32).max() {
            self.planes[plane].sent = base.wrapping_add(ahead.max(0) as u32 + 1);
        }
    }

    /// Ports have come up: their planes take their share from now on.
    pub(super) fn ports_came_up(&mut self, ports: PortSet) {
        for plane in 0..self.planes.len() {
            if ports.contains(self.planes[plane].port) {
                self.planes[plane].streak = 0;
                self.catch_up(plane);
            }
        }
    }

    /// Below the minimum of usable paths a condemned one is tried again, one per round trip \[choice\]; it serves until it
    /// loses a packet. Returns the path taken back.
    pub(super) fn try_condemned(
        &mut self,
        now: Time,
        up: PortSet,
        rtt: crate::time::Span,
    ) -> Option<EvIndex> {
        if self.condemned == 0 || now < self.trial_at {
            return None;
        }
        let usable: u16 =
            self.planes.iter().filter(|p| up.contains(p.port)).map(|p| u16::from(p.usable)).sum();
        if usable >= self.min_active {
            return None;
        }
        self.trial_at = now + rtt;
        let index = self.next_condemned(|port| up.contains(port))?;
        self.restore(index, EvInput::ProbesGood).then_some(index)
    }

    /// The controller switches a path off, or on again.
    pub(super) fn set_denied(&mut self, index: EvIndex, denied: bool) {
        if !denied {
            self.restore_denied(index);
        } else if self.state(index) != EvState::Denied {
            if self.state(index) == EvState::AssumedBad {
                self.condemned -= 1;
            }
            self.take_out(index, EvInput::Deny);
        }
    }

    fn restore_denied(&mut self, index: EvIndex) {
        if self.state(index) == EvState::Denied {
            self.restore(index, EvInput::Allow);
        }
    }

    /// Loads the planes.
    pub(super) fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.planes, 0);
        prefetch_index::prefetch_index(&self.rotation, 0);
        prefetch_index::prefetch_index(&self.rotation, 64);
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.records.len()
            + self.probe_due.len()
            + self.rotation.len()
            + size_of_val(&*self.in_rotation)
            + size_of_val(&*self.planes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn paths(planes: u8, active: u16, backup: u16, burst: u8) -> Paths {
        let list: Vec<_> = (0..64u32)
            .flat_map(|i| (0..planes).map(move |port| PathEntry { ev: Ev(i << 4 | u32::from(port)), port }))
            .collect();
        Paths::new(&Arc::new(EvProfile::new(&list).unwrap()), 7, active, backup, active / 4, burst)
    }

    #[test]
    fn planes_are_divided_by_exactly() {
        for planes in 1..=PortSet::MAX_PORTS {
            for index in 0..=EvIndex::MAX {
                assert_eq!(over(index, inverse_of(planes)), usize::from(index) / planes);
            }
        }
    }

    fn sent_per_plane(paths: &mut Paths, ports: PortSet, packets: usize) -> Vec<usize> {
        let mut sent = vec![0; paths.plane_count()];
        for _ in 0..packets {
            let index = paths.select(ports, ports, None).unwrap();
            sent[paths.plane_of(index)] += 1;
        }
        sent
    }

    #[test]
    fn every_path_in_rotation_is_used_once_a_turn() {
        let mut paths = paths(8, 128, 128, 1);
        let mut seen = vec![0; paths.len()];
        for _ in 0..128 {
            seen[paths.select(PortSet::first(8), PortSet::first(8), None).unwrap() as usize] += 1;
        }
        assert_eq!(seen.iter().filter(|&&n| n == 1).count(), 128);
    }

    #[test]
    fn a_burst_stays_on_its_path() {
        let mut paths = paths(8, 128, 128, 4);
        let taken: Vec<_> =
            (0..16).map(|_| paths.select(PortSet::first(8), PortSet::first(8), None).unwrap()).collect();
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
                if paths.plane_of(i as u8) == 3 {
                    paths.mark(i as u8);
                }
            }
            let index = paths.select(all, all, None).unwrap();
            sent[paths.plane_of(index)] += 1;
        }
        assert_eq!(sent, [1000; 8]);
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
        let victim = paths.select(all, all, None).unwrap();
        assert_eq!(paths.condemn(victim), Condemned::Path);
        assert_eq!(paths.condemn(victim), Condemned::Unchanged);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..64 {
            seen.insert(paths.select(all, all, None).unwrap());
        }
        assert!(!seen.contains(&victim));
        assert_eq!(seen.len(), 16);
        assert_eq!(seen.iter().filter(|&&i| paths.plane_of(i) == paths.plane_of(victim)).count(), 4);
        // Its place has been filled, so it comes back as a backup.
        assert!(paths.restore(victim, EvInput::ProbesGood));
        assert!(!paths.rotates(victim));
    }

    #[test]
    fn with_every_path_condemned_one_is_tried_all_the_same() {
        let mut paths = paths(2, 4, 0, 1);
        for i in 0..4 {
            paths.condemn(i);
        }
        assert!(paths.select(PortSet::first(2), PortSet::first(2), None).is_some());
        assert!(paths.try_condemned(Time(0), PortSet::first(2), Span(10)).is_some());
        assert!(paths.try_condemned(Time(5), PortSet::first(2), Span(10)).is_none());
    }

    #[test]
    fn where_there_are_fewer_paths_than_asked_for_a_condemned_one_still_stays_out() {
        let list: Vec<_> = (0..8).map(|i| PathEntry { ev: Ev(i), port: (i % 2) as u8 }).collect();
        let mut paths = Paths::new(&Arc::new(EvProfile::new(&list).unwrap()), 7, 128, 128, 32, 1);
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
        assert!(paths.select(one, one, None).is_some());
        let list: Vec<_> = (0..1000).map(|i| PathEntry { ev: Ev(i), port: 0 }).collect();
        let mut paths = Paths::new(&Arc::new(EvProfile::new(&list).unwrap()), 7, 256, 256, 64, 1);
        let used: std::collections::BTreeSet<_> =
            (0..300).filter_map(|_| paths.select(one, one, None)).collect();
        assert_eq!(used.len(), 255);
    }

    #[test]
    fn a_denied_path_is_never_used() {
        let mut paths = paths(2, 8, 8, 1);
        let all = PortSet::first(2);
        for i in 0..15 {
            paths.set_denied(i, true);
        }
        for _ in 0..100 {
            assert_eq!(paths.select(all, all, None), Some(15));
        }
        paths.condemn(15);
        assert_eq!(paths.select(all, all, None), Some(15), "the last path is tried even if condemned");
        paths.set_denied(15, true);
        assert_eq!(paths.select(all, all, None), None);
    }

    #[test]
    fn a_retransmission_avoids_the_path_and_plane_that_lost_it() {
        let mut paths = paths(4, 16, 16, 1);
        let all = PortSet::first(4);
        for _ in 0..200 {
            let lost = paths.select(all, all, None).unwrap();
            let again = paths.select(all, all, Some(lost)).unwrap();
            assert_ne!(paths.plane_of(lost), paths.plane_of(again));
        }
        let single = PortSet::one(0);
        let again = paths.select(single, single, Some(0)).unwrap();
        assert_ne!(again, 0);
        assert_eq!(paths.plane_of(again), 0);
    }
}
