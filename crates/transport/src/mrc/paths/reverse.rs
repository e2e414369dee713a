//! Paths for feedback (docs/spec/paths.md, "Reverse EVs"): one per plane, known to work because a packet sent on it was
//! answered. Planes take turns. A plane whose paths are still unknown takes its turn too, with another path each time:
//! a new responder knows only one working path, and if that failed, all its feedback would be lost.

use super::ev_state::EvState;
use super::{EvIndex, Paths};
use crate::api::PortSet;
use crate::random::mix;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// A path that was not confirmed within this time is used only if no plane has a fresher one. Probes refresh one plane
/// per round trip, so with data-centre round trips each of 16 planes is probed several times within this time.
const STALE_AFTER: Span = Span::from_millis(20);

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Reverse {
    index: EvIndex,
    /// Low and high half of the time of the last confirmation, in units of 2^20 ps (1 us), modulo 2^32; or
    /// [`UNKNOWN`], or [`DOUBTED`].
    halves: [u16; 2],
}

impl Reverse {
    fn new(index: EvIndex, confirmed: u32) -> Self {
        Reverse { index, halves: [confirmed as u16, (confirmed >> 16) as u16] }
    }

    fn confirmed(self) -> u32 {
        u32::from(self.halves[0]) | u32::from(self.halves[1]) << 16
    }

    /// Whether a packet sent on it was answered a short time ago.
    fn is_fresh(self, now: Time) -> bool {
        let confirmed = self.confirmed();
        confirmed > DOUBTED && units(now).wrapping_sub(confirmed) <= units(Time(STALE_AFTER.0))
    }
}

/// No path of this plane was confirmed or doubted yet.
const UNKNOWN: u32 = 0;
/// A packet sent on the plane's path was not answered.
const DOUBTED: u32 = 1;

/// Reverse paths are probed in proportion to the data packets received: one probe per this number of them.
const SHARE: u32 = 100;
/// At low packet rates it is one probe per 16 packets, at most once per millisecond \[choice\]: otherwise a queue pair
/// whose peer sends only a few thousand packets per second would not notice for tens of milliseconds that its feedback
/// is lost.
const SHARE_AT_MOST: u32 = 16;
const AT_LATEST: Span = Span::from_millis(1);

/// No path: more than a queue pair can have.
const NONE: EvIndex = EvIndex::MAX;
/// In [`ReversePaths::heard_on`]: the last report without a fresh path was sent on that port.
const USED: u8 = 1 << 7;

#[derive(Serialize, Deserialize)]
pub(in crate::mrc) struct ReversePaths {
    planes: Box<[Reverse]>,
    /// The next probe of a reverse path may be sent from this time and this number of received packets on.
    due: Time,
    from: u32,
    answer: Answer,
    /// The path of the latest probe of a reverse path, until it is answered.
    unanswered: EvIndex,
    /// The plane whose turn it is, modulo the number of planes.
    turn: u8,
    /// Port on which the last packet of the peer arrived, and [`USED`].
    heard_on: u8,
}

/// The last answer to a probe of the peer.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Answer {
    /// When it was sent, in units of 2^20 ps modulo 2^32; 0 if there was none.
    at: u32,
    /// Data packets received by then, modulo 2^16.
    received: u16,
    path: EvIndex,
}

/// Confirmation times are kept in units of 2^20 ps.
fn units(time: Time) -> u32 {
    ((time.0 >> 20) as u32).max(DOUBTED + 1)
}

impl ReversePaths {
    pub fn new(paths: &Paths) -> Self {
        let start = |plane| Reverse::new(plane as EvIndex, UNKNOWN);
        ReversePaths {
            planes: (0..paths.plane_count()).map(start).collect(),
            due: Time::ZERO,
            from: 0,
            answer: Answer::default(),
            unanswered: NONE,
            turn: 0,
            heard_on: 0,
        }
    }

    /// A packet has arrived on this port.
    pub fn heard_on(&mut self, port: u8) {
        self.heard_on = self.heard_on & USED | port & !USED;
    }

    /// The next report is better sent in this plane: the peer looks there for what comes next.
    pub fn prefer(&mut self, plane: usize) {
        self.turn = plane as u8;
    }

    /// A packet sent on this path was answered.
    pub fn confirm(&mut self, now: Time, paths: &Paths, index: EvIndex) {
        self.planes[paths.plane_of(index)] = Reverse::new(index, units(now));
        if self.unanswered == index {
            self.unanswered = NONE;
        }
    }

    /// A queue pair that receives and does not send cannot learn from its own data which paths work for feedback. It
    /// sends a probe per round trip on a random path, in proportion to the `received` packets. Returns the path to
    /// probe now, if any.
    pub fn path_to_probe(
        &mut self,
        now: Time,
        paths: &Paths,
        received: u32,
        rtt: Span,
        seed: u64,
    ) -> Option<EvIndex> {
        // Modulo 2^32, like the packet counter.
        let ahead = received.wrapping_sub(self.from) as i32;
        let few = ahead < (SHARE - SHARE_AT_MOST) as i32;
        let is_due = if self.is_blind(now) {
            // Feedback is lost by chance until a path answers, so every packet is worth a probe \[choice\].
            ahead > -(SHARE_AT_MOST as i32) && now >= self.due
        } else {
            ahead >= 0 && now >= self.due && !(few && now < self.due + AT_LATEST)
        };
        if !is_due {
            return None;
        }
        if self.unanswered != NONE {
            let silent = std::mem::replace(&mut self.unanswered, NONE);
            self.doubt(paths, silent);
        }
        self.due = now + rtt.times(2);
        self.from = received.wrapping_add(SHARE_AT_MOST);
        let index = (mix(now.0 ^ seed) as usize % paths.len()) as EvIndex;
        (paths.state(index) != EvState::Denied).then_some(index)
    }

    /// Whether every plane once had a path for feedback, and none is known to work any more.
    fn is_blind(&self, now: Time) -> bool {
        !self.planes.iter().any(|reverse| reverse.confirmed() == UNKNOWN || reverse.is_fresh(now))
    }

    /// The path for the answer to a probe by which the peer asks what has arrived, when this many data packets have. If it
    /// asked before, was answered and has sent nothing since, then the answer was lost, and so is what else is sent on
    /// its path \[choice\]. A probe that goes out on several planes at once is one question.
    pub fn next_for_answer(
        &mut self,
        now: Time,
        paths: &Paths,
        up: PortSet,
        received: u32,
        rtt: Span,
    ) -> Option<EvIndex> {
        let Answer { at, received: then, path } = self.answer;
        // Modulo 2^32 both, like the times of confirmations.
        let age = units(now).wrapping_sub(at);
        if at != 0 && then == received as u16 && age >= units(Time(rtt.0)) {
            self.doubt(paths, path);
        }
        let path = self.next(now, paths, up, true)?;
        self.answer = Answer { at: units(now), received: received as u16, path };
        Some(path)
    }

    /// A probe is being sent on the path that [`Self::path_to_probe`] returned.
    pub fn probing(&mut self, index: EvIndex) {
        self.unanswered = index;
    }

    /// This path does not work: the plane's reverse path is not used until another path is confirmed.
    pub fn doubt(&mut self, paths: &Paths, index: EvIndex) {
        let reverse = &mut self.planes[paths.plane_of(index)];
        if reverse.index == index || reverse.confirmed() == UNKNOWN {
            *reverse = Reverse::new(reverse.index, DOUBTED);
        }
    }

    /// The path for the next feedback packet. Planes with a fresh path and planes with unknown paths take turns. If the
    /// peer `asked` with a probe, it has missed earlier feedback, so the answer uses a fresh path if there is one.
    /// `None` if no port is up.
    pub fn next(&mut self, now: Time, paths: &Paths, up: PortSet, asked: bool) -> Option<EvIndex> {
        let count = self.planes.len();
        let mut fallback = None;
        for step in 0..count {
            let plane = (self.turn as usize + step) % count;
            if !up.contains(paths.plane_port(plane)) {
                continue;
            }
            let Reverse { index, .. } = self.planes[plane];
            let confirmed = self.planes[plane].confirmed();
            if paths.state(index) == EvState::Denied && !paths.any_allowed(plane) {
                continue;
            }
            if self.planes[plane].is_fresh(now) && paths.state(index).usable() {
                self.turn = (plane + 1) as u8;
                return Some(index);
            }
            if confirmed == UNKNOWN && !asked {
                self.turn = (plane + 1) as u8;
                return Some(self.next_candidate(paths, index));
            }
            // Most failures affect both directions. If no path is known to work, every second report uses the plane on
            // which the last packet of the peer arrived.
            // With `USED` it is the number of no port.
            let likelier = self.heard_on == paths.plane_port(plane);
            if fallback.is_none() || likelier {
                fallback = Some((plane, index));
            }
        }
        let (plane, index) = fallback?;
        self.heard_on ^= USED;
        if self.heard_on & USED == 0 {
            self.turn = (plane + 1) as u8;
        }
        // This path is not known to work. The plane moves on to its next path, so that all of them are tried in time.
        Some(self.next_candidate(paths, index))
    }

    /// Moves an unconfirmed plane to its next path that is not condemned.
    fn next_candidate(&mut self, paths: &Paths, index: EvIndex) -> EvIndex {
        let (count, len) = (self.planes.len(), paths.len());
        let mut candidate = index as usize;
        let mut condemned = None;
        for _ in 0..len / count {
            candidate = (candidate + count) % len;
            match paths.state(candidate as EvIndex) {
                EvState::Good | EvState::Skip => break,
                EvState::AssumedBad => condemned = condemned.or(Some(candidate)),
                EvState::Denied => {}
            }
        }
        if !paths.state(candidate as EvIndex).usable() {
            candidate = condemned.unwrap_or(candidate);
        }
        let reverse = &mut self.planes[index as usize % count];
        // What was known of the plane was its path before this one.
        *reverse = Reverse::new(candidate as EvIndex, reverse.confirmed().min(DOUBTED));
        candidate as EvIndex
    }

    /// Loads the paths into the cache.
    pub fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.planes, 0);
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.planes)
    }
}

#[cfg(test)]
mod tests;
