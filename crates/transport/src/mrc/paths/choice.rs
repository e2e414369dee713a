//! Which path the next packet takes (spec: paths, "Choosing the EV of the next packet" and "Planes carry equal load").

use super::{EvIndex, Paths};
use crate::api::PortSet;
use crate::mrc::config::LASTING_BURST;
use crate::mrc::ev_state::{EvInput, EvState};
use crate::mrc::selector::{Choice, Selector};

impl Paths {
    /// The path for the next packet, on one of the `free` ports; `up` are those that could ever take one. A packet that
    /// was lost before avoids the path that lost it, and its plane if there is another.
    ///
    /// `None` means: wait for a port. While any port is up this never says `None` with all of them free.
    pub(in crate::mrc) fn select(
        &mut self,
        free: PortSet,
        up: PortSet,
        avoid: Option<EvIndex>,
    ) -> Option<EvIndex> {
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

    /// There was nothing more to send: a burst that has had [`LASTING_BURST`] packets by then is over.
    #[inline]
    pub(in crate::mrc) fn pause_burst(&mut self) {
        if self.burst.is_some_and(|(_, left)| self.burst_len - left >= LASTING_BURST) {
            self.burst = None;
        }
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
    pub(super) fn next_condemned(&mut self, eligible: impl Fn(u8) -> bool) -> Option<EvIndex> {
        let len = self.len();
        let condemned = |i: &EvIndex| self.state(*i) == EvState::AssumedBad && eligible(self.port(*i));
        let in_turn =
            || (1..=len).map(|step| ((self.tried as usize + step) % len) as EvIndex).filter(condemned);
        let index = in_turn().find(|&i| self.record(i).successes() > 0).or_else(|| in_turn().next())?;
        self.tried = index;
        Some(index)
    }

    /// A path of this plane to send a probe on, whatever is believed of it; `None` if the controller allows none.
    pub(in crate::mrc) fn choose_to_probe(&mut self, plane: usize) -> Option<EvIndex> {
        if self.planes[plane].usable > 0 {
            return Some(self.take_turn(plane, None));
        }
        let port = self.planes[plane].port;
        self.next_condemned(|p| p == port)
    }
}
