//! Selects the path of the next packet (docs/spec/paths.md, "Choosing the EV of the next packet" and "Planes carry
//! equal load").

use super::ev_state::EvState;
use super::selector::{Burst, Choice, Selector};
use super::{EvIndex, Paths, Plane};
use crate::api::PortSet;
use crate::mrc::config::LASTING_BURST;
use crate::time::Time;

impl Paths {
    /// The path for the next packet, on one of the `free` ports. `up` are the ports that are up at both ends. A
    /// retransmission avoids the path that lost the packet, and its plane if there is another.
    ///
    /// `None` means that the packet must wait for a port. If any port is up and all ports are free, the result is never
    /// `None`.
    #[inline(never)]
    pub(in crate::mrc) fn select(
        &mut self,
        now: Time,
        free: PortSet,
        up: PortSet,
        avoid: Option<EvIndex>,
    ) -> Option<EvIndex> {
        self.select_avoiding(now, free, up, avoid)
    }

    /// The same for a packet that was never sent. Inlined: nearly all packets are sent once.
    #[inline(always)]
    pub(in crate::mrc) fn select_first(&mut self, now: Time, free: PortSet, up: PortSet) -> Option<EvIndex> {
        self.select_avoiding(now, free, up, None)
    }

    #[inline(always)]
    fn select_avoiding(
        &mut self,
        now: Time,
        free: PortSet,
        up: PortSet,
        avoid: Option<EvIndex>,
    ) -> Option<EvIndex> {
        let free = free.and(up);
        let index = match &self.selector {
            Selector::EvStates(burst) => self.select_by_state(*burst, free, up, avoid),
            _ => self.select_otherwise(now, free, avoid),
        }?;
        let plane = self.plane_of(index);
        self.planes[plane].sent = self.planes[plane].sent.wrapping_add(1);
        Some(index)
    }

    /// The path by a rule other than MRC's.
    #[inline(never)]
    fn select_otherwise(&mut self, now: Time, free: PortSet, avoid: Option<EvIndex>) -> Option<EvIndex> {
        match &mut self.selector {
            Selector::Custom(own) => own.select(&Choice { now, free, avoid }),
            _ => self.select_in_plane(free, avoid),
        }
    }

    /// MRC's rule: the path of the current burst, otherwise the next GOOD path of the plane that has sent least.
    #[inline(always)]
    fn select_by_state(
        &mut self,
        Burst { length, current }: Burst,
        free: PortSet,
        up: PortSet,
        avoid: Option<EvIndex>,
    ) -> Option<EvIndex> {
        if avoid.is_none()
            && let Some((index, left)) = current
            && left > 0
            && free.contains(self.port(index))
            && self.state(index) == EvState::Good
        {
            self.set_burst(Some((index, left - 1)));
            return Some(index);
        }
        if let Some(plane) = self.next_plane(free, avoid) {
            let (index, passed) = self.take_turn(plane, avoid);
            self.count_out_of_service(plane, passed * u32::from(length));
            if avoid.is_none() {
                self.set_burst(Some((index, length - 1)));
            }
            return Some(index);
        }
        self.last_resort(free, up)
    }

    /// If every path is condemned, one of them is used, so that the queue pair never deadlocks.
    #[cold]
    fn last_resort(&mut self, free: PortSet, up: PortSet) -> Option<EvIndex> {
        if self.any_usable(up) {
            return None;
        }
        self.next_condemned(|port| free.contains(port))
    }

    fn set_burst(&mut self, burst: Option<(EvIndex, u8)>) {
        if let Selector::EvStates(Burst { current, .. }) = &mut self.selector {
            *current = burst;
        }
    }

    /// The plane of the last data, unless their burst is over.
    pub(in crate::mrc) fn burst_plane(&self) -> Option<usize> {
        match &self.selector {
            Selector::EvStates(Burst { current, .. }) => current.map(|(index, _)| self.plane_of(index)),
            _ => None,
        }
    }

    /// UET's rules: select a plane, then a path of it.
    fn select_in_plane(&mut self, free: PortSet, avoid: Option<EvIndex>) -> Option<EvIndex> {
        let plane = self.next_plane(free, avoid)?;
        let (count, slots) = (self.planes.len(), u64::from(self.slots));
        let any = |random: u64| ((random % slots) as usize * count + plane) as EvIndex;
        Some(match &mut self.selector {
            Selector::Oblivious(seed) => {
                *seed = seed.wrapping_add(1);
                any(crate::random::mix(*seed))
            }
            Selector::Reps(reps) => match reps.next(plane) {
                Some(index) => index,
                None => any(reps.random()),
            },
            Selector::EvStates(_) | Selector::EvSkip | Selector::Custom(_) => {
                let (index, passed) = self.take_turn(plane, avoid);
                self.count_out_of_service(plane, passed);
                index
            }
        })
    }

    /// Ends a burst of at least [`LASTING_BURST`] packets, because there is no more data to send.
    #[inline]
    pub(in crate::mrc) fn pause_burst(&mut self) {
        if let Selector::EvStates(Burst { length, current }) = &mut self.selector
            && current.is_some_and(|(_, left)| *length - left >= LASTING_BURST)
        {
            *current = None;
        }
    }

    /// The plane for the next packet. It differs from the plane of the path to avoid, if there is another.
    #[inline(always)]
    fn next_plane(&self, free: PortSet, avoid: Option<EvIndex>) -> Option<usize> {
        let Some(avoid) = avoid else { return self.least_sent(free, None) };
        self.least_sent(free, Some(self.plane_of(avoid))).or_else(|| self.least_sent(free, None))
    }

    /// The turns of paths that are out of service count as packets: a plane that has no backup for them carries less,
    /// in proportion to the paths that it has left (docs/spec/paths.md, "Planes carry equal load").
    #[inline]
    fn count_out_of_service(&mut self, plane: usize, turns: u32) {
        self.planes[plane].sent = self.planes[plane].sent.wrapping_add(turns);
    }

    /// The plane that has sent least among those with a usable path on a free port: planes carry equal load.
    #[inline(always)]
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

    /// Searches the plane's rotation from its cursor for the first GOOD path. The first SKIP path on the way misses a
    /// turn. If there is no GOOD path, the first SKIP path is used that is not to be avoided, and
    /// the rotation goes on behind it. Also returns how many paths out of service were passed.
    #[inline(always)]
    fn take_turn(&mut self, plane: usize, avoid: Option<EvIndex>) -> (EvIndex, u32) {
        let first_slot = self.slots_of(plane).start;
        let Plane { turns, cursor, .. } = self.planes[plane];
        if self.rotation_turns > 0 && turns >= self.rotation_turns && cursor == 0 {
            self.shuffle_rotation(plane);
        }
        let index = self.next_in_rotation(plane, first_slot);
        if self.state(index) == EvState::Good && avoid != Some(index) {
            return (index, 0);
        }
        self.search_rotation(plane, index, avoid)
    }

    /// The path at a plane's cursor, which moves on.
    #[inline(always)]
    fn next_in_rotation(&mut self, plane: usize, first_slot: usize) -> EvIndex {
        let slots = self.slots;
        let Plane { cursor, turns, .. } = &mut self.planes[plane];
        let index = self.rotation.get(first_slot + usize::from(*cursor));
        *cursor += 1;
        if *cursor == slots {
            *cursor = 0;
            *turns = turns.saturating_add(1);
        }
        index
    }

    /// The rest of [`Self::take_turn`] where `index`, the first path, cannot simply be used.
    #[inline(never)]
    fn search_rotation(
        &mut self,
        plane: usize,
        mut index: EvIndex,
        avoid: Option<EvIndex>,
    ) -> (EvIndex, u32) {
        let first_slot = self.slots_of(plane).start;
        let mut restored = false;
        let (mut skipped, mut avoided) = (None, None);
        let mut out_of_service = 0;
        let mut left = self.slots;
        loop {
            let state = self.state(index);
            match state {
                EvState::AssumedBad | EvState::Denied => out_of_service += 1,
                _ if avoid == Some(index) => avoided = Some(index),
                EvState::Good => return (index, out_of_service),
                EvState::Skip => {
                    skipped.get_or_insert((index, self.planes[plane].cursor));
                }
            }
            if state == EvState::Skip && !restored {
                self.records[index as usize].pass_turn();
                restored = true;
            }
            left -= 1;
            if left == 0 {
                break;
            }
            index = self.next_in_rotation(plane, first_slot);
        }
        let Some((index, behind)) = skipped else {
            // The plane was selected because it has a usable path.
            return (avoided.unwrap_or_else(|| self.rotation.get(first_slot)), out_of_service);
        };
        self.records[index as usize].pass_turn();
        self.planes[plane].cursor = behind;
        (index, out_of_service)
    }

    /// Draws the order of a plane's rotation anew, by the generator of this queue pair: a fixed order falls into step
    /// with other queue pairs.
    #[cold]
    fn shuffle_rotation(&mut self, plane: usize) {
        self.planes[plane].turns = 0;
        let first_slot = self.slots_of(plane).start;
        for last in (1..usize::from(self.slots)).rev() {
            self.random = self.random.wrapping_add(1);
            let other = (crate::random::mix(self.random.into()) % (last as u64 + 1)) as usize;
            let (a, b) = (self.rotation.get(first_slot + last), self.rotation.get(first_slot + other));
            self.rotation.set(first_slot + last, b);
            self.rotation.set(first_slot + other, a);
        }
    }

    /// The condemned path to try next: preferably one whose last probe was answered, otherwise each in turn.
    pub(super) fn next_condemned(&mut self, eligible: impl Fn(u8) -> bool) -> Option<EvIndex> {
        let len = self.len();
        let condemned = |i: &EvIndex| self.state(*i) == EvState::AssumedBad && eligible(self.port(*i));
        let in_turn = || {
            (1..=len).map(|step| ((self.condemned.tried as usize + step) % len) as EvIndex).filter(condemned)
        };
        let index = in_turn().find(|&i| self.record(i).successes() > 0).or_else(|| in_turn().next())?;
        self.condemned.tried = index;
        Some(index)
    }

    /// A path of this plane for a probe, whatever its state; `None` if the controller has disabled all of them.
    pub(in crate::mrc) fn choose_to_probe(&mut self, plane: usize) -> Option<EvIndex> {
        if self.planes[plane].usable > 0 {
            return Some(self.take_turn(plane, None).0);
        }
        self.condemned_to_probe(plane)
    }

    /// The next condemned path of a plane, if it has one.
    pub(in crate::mrc) fn condemned_to_probe(&mut self, plane: usize) -> Option<EvIndex> {
        let port = self.planes[plane].port;
        self.next_condemned(|p| p == port)
    }
}

#[cfg(test)]
mod tests;
