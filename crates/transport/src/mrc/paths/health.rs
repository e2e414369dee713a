//! Path failure and recovery: which paths leave the rotation, and which replace them.

use super::ev_state::{EvInput, EvState};
use super::{Condemned, EvIndex, MAX_PATHS, PLANE_STREAK, Paths};
use crate::api::PortSet;
use crate::time::{Span, Time};

/// Longest interval between trials of condemned paths, and the number of doublings that certainly reach it: round trips
/// are longer than a microsecond.
const LONGEST_TRIAL: Span = Span::from_secs(1);
const MAX_DOUBLINGS: u8 = 20;

impl Paths {
    /// A switch marked or trimmed a packet on this path: it misses `turns` turns, or one where UET's rules select.
    pub(in crate::mrc) fn mark(&mut self, index: EvIndex, turns: u8) {
        let turns = if self.selector.condemns() { turns } else { 1 };
        self.records[index as usize].skip(turns);
        let plane = self.plane_of(index);
        self.selector.congested(plane, index);
    }

    /// Whether [`Self::alive`] has any effect: on the selector, or on what is known of paths that were condemned.
    #[inline]
    pub(in crate::mrc) fn hears_arrivals(&self) -> bool {
        self.condemned.ever || self.selector.hears_arrivals()
    }

    /// A packet sent on this path has arrived.
    pub(in crate::mrc) fn alive(&mut self, index: EvIndex) {
        let plane = self.plane_of(index);
        self.planes[plane].streak = 0;
        self.forgive(index);
        if index == self.condemned.on_trial {
            self.condemned.in_vain = 0;
        }
        self.selector.acked(plane, index);
    }

    /// An untrimmed loss on this path: it leaves the rotation, and a backup of the same plane replaces it.
    pub(in crate::mrc) fn condemn(&mut self, index: EvIndex) -> Condemned {
        let plane = self.plane_of(index);
        self.selector.lost(plane, index);
        if !self.selector.condemns() || !self.state(index).usable() {
            return Condemned::Unchanged;
        }
        self.take_out(index, EvInput::Lost);
        self.condemned.count += 1;
        self.condemned.ever = true;
        self.planes[plane].streak = self.planes[plane].streak.saturating_add(1);
        // With a single plane the streak is ignored: there is no other plane to use.
        if !self.may_drop() && self.planes[plane].streak >= PLANE_STREAK && self.planes.len() > 1 {
            Condemned::Plane
        } else {
            Condemned::Path
        }
    }

    /// Indices of a plane, in rotation or not.
    pub(in crate::mrc) fn on_plane(&self, plane: usize) -> impl Iterator<Item = EvIndex> + use<> {
        (plane..self.len()).step_by(self.planes.len()).map(|i| i as EvIndex)
    }

    fn take_out(&mut self, index: EvIndex, why: EvInput) {
        let was_usable = self.state(index).usable();
        self.records[index as usize].apply(why);
        let plane = self.plane_of(index);
        if !was_usable || !self.rotation_of(plane).any(|rotating| rotating == index) {
            return;
        }
        self.planes[plane].usable -= 1;
        let mut rotates = [false; MAX_PATHS];
        self.rotation_of(plane).for_each(|rotating| rotates[usize::from(rotating)] = true);
        let reserve = self.on_plane(plane).find(|&i| !rotates[usize::from(i)] && self.state(i).usable());
        if let Some(reserve) = reserve {
            self.swap_in(plane, index, reserve);
        }
    }

    /// Replaces `old` by `new` in the rotation.
    fn swap_in(&mut self, plane: usize, old: EvIndex, new: EvIndex) {
        if let Some(slot) = self.slots_of(plane).find(|&slot| self.rotation.get(slot) == old) {
            self.rotation.set(slot, new);
            self.planes[plane].usable += 1;
        }
    }

    /// Called when probes have succeeded, when data sent as a last resort has arrived, or when the controller enables
    /// the path again. The path returns to the rotation, or to the backup set if its place is taken. Returns whether
    /// anything has changed.
    pub(in crate::mrc) fn restore(&mut self, index: EvIndex, why: EvInput) -> bool {
        let before = self.state(index);
        if before.usable() {
            return false;
        }
        self.records[index as usize].apply(why);
        if !self.state(index).usable() {
            return false;
        }
        self.records[index as usize].set_probing(0, 0);
        self.records[index as usize].forget_losses();
        if before == EvState::AssumedBad {
            self.condemned.count -= 1;
        }
        let plane = self.plane_of(index);
        self.planes[plane].streak = 0;
        if self.planes[plane].usable == 0 {
            self.rejoin_plane(plane);
        }
        if self.rotation_of(plane).any(|rotating| rotating == index) {
            self.planes[plane].usable += 1;
        } else {
            let broken = self.rotation_of(plane).find(|&i| !self.state(i).usable());
            if let Some(broken) = broken {
                self.swap_in(plane, broken, index);
            }
        }
        true
    }

    /// A plane that was unavailable does not make up for the packets it missed, nor is it preferred: it may still be
    /// broken.
    fn rejoin_plane(&mut self, plane: usize) {
        let others = self.planes.iter().enumerate().filter(|&(p, other)| p != plane && other.usable > 0);
        let base = self.planes[plane].sent;
        if let Some(ahead) = others.map(|(_, other)| other.sent.wrapping_sub(base) as i32).max() {
            self.planes[plane].sent = base.wrapping_add(ahead.max(0) as u32 + 1);
        }
    }

    /// Ports have come up: their planes take their share again.
    pub(in crate::mrc) fn ports_came_up(&mut self, ports: PortSet) {
        for plane in 0..self.planes.len() {
            if ports.contains(self.planes[plane].port) {
                self.planes[plane].streak = 0;
                self.rejoin_plane(plane);
            }
        }
    }

    /// When fewer than `min_active` paths are usable, one condemned path is tried again \[choice\]; it is used until it
    /// loses a packet. Returns the path. The next trial is a round trip later. As long as other paths are usable, every
    /// trial in vain doubles that interval: where whole planes are dead, data would otherwise be lost in every round
    /// trip.
    pub(in crate::mrc) fn try_condemned(&mut self, now: Time, up: PortSet, rtt: Span) -> Option<EvIndex> {
        if self.condemned.count == 0 || now < self.trial_at {
            return None;
        }
        let usable: u16 = self.planes.iter().filter(|p| up.contains(p.port)).map(|p| p.usable).sum();
        if usable >= self.condemned.min_active {
            return None;
        }
        let interval =
            if usable == 0 { rtt } else { rtt.times(1 << self.condemned.in_vain).min(LONGEST_TRIAL) };
        self.trial_at = now + interval;
        let index = self.next_condemned(|port| up.contains(port))?;
        // Counted as in vain until it delivers.
        self.condemned.in_vain = (self.condemned.in_vain + 1).min(MAX_DOUBLINGS);
        self.condemned.on_trial = index;
        self.restore(index, EvInput::ProbesGood).then_some(index)
    }

    /// The controller disables or enables a path.
    pub(in crate::mrc) fn set_denied(&mut self, index: EvIndex, denied: bool) {
        if !denied {
            self.restore_denied(index);
        } else if self.state(index) != EvState::Denied {
            if self.state(index) == EvState::AssumedBad {
                self.condemned.count -= 1;
            }
            self.take_out(index, EvInput::Deny);
        }
    }

    fn restore_denied(&mut self, index: EvIndex) {
        if self.state(index) == EvState::Denied {
            self.restore(index, EvInput::Allow);
        }
    }
}

#[cfg(test)]
mod tests;
