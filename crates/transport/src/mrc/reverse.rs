//! Paths for feedback (spec: paths, "Reverse EVs"): one per plane, known to work because something sent on it was
//! answered, used in turn. Planes of which nothing is known yet take their turns too, on another path each time: a queue pair
//! that has just begun to receive knows of one path that works, and were that to fail, all feedback would.

use super::ev_state::EvState;
use super::paths::{EvIndex, Paths};
use crate::api::PortSet;
use crate::time::{Span, Time};

/// A path that was not confirmed within this time is used only where no plane has a fresher one. Probing refreshes one
/// plane a round trip, so this leaves every plane of sixteen several chances at data-centre round trips.
const STALE_AFTER: Span = Span::from_millis(20);

#[derive(Clone, Copy)]
struct Reverse {
    index: EvIndex,
    /// When it was last confirmed, in units of 2^20 ps (1 us), modulo 2^32; or [`UNKNOWN`], or [`DOUBTED`].
    confirmed: u32,
}

/// Nothing has been heard of this plane's paths.
const UNKNOWN: u32 = 0;
/// Something sent on the plane's path was not answered.
const DOUBTED: u32 = 1;

pub(super) struct ReversePaths {
    planes: Box<[Reverse]>,
    turn: u8,
    /// Port on which the peer was heard last.
    heard_on: u8,
    /// Whether the last report without a fresh path went there.
    went_there: bool,
}

/// Confirmation times are kept in units of 2^20 ps.
fn units(time: Time) -> u32 {
    ((time.0 >> 20) as u32).max(DOUBTED + 1)
}

impl ReversePaths {
    pub(super) fn new(paths: &Paths) -> Self {
        let start = |plane| Reverse { index: plane as EvIndex, confirmed: UNKNOWN };
        ReversePaths {
            planes: (0..paths.plane_count()).map(start).collect(),
            turn: 0,
            heard_on: 0,
            went_there: false,
        }
    }

    /// A packet has come in on this port.
    pub(super) fn heard_on(&mut self, port: u8) {
        self.heard_on = port;
    }

    /// Something sent on this path was answered.
    pub(super) fn confirm(&mut self, now: Time, paths: &Paths, index: EvIndex) {
        self.planes[paths.plane_of(index)] = Reverse { index, confirmed: units(now) };
    }

    /// This path does not work: the plane's reverse path is not to be trusted until another is confirmed.
    pub(super) fn doubt(&mut self, paths: &Paths, index: EvIndex) {
        let reverse = &mut self.planes[paths.plane_of(index)];
        if reverse.index == index || reverse.confirmed == UNKNOWN {
            reverse.confirmed = DOUBTED;
        }
    }

    /// The path for the next feedback packet: planes in turn, those with a fresh path or without any news; who `asked` for an answer
    /// has not heard the others, so it gets one on a fresh path if there is any. `None` if no port is up.
    pub(super) fn next(&mut self, now: Time, paths: &Paths, up: PortSet, asked: bool) -> Option<EvIndex> {
        let count = self.planes.len();
        let mut fallback = None;
        for step in 0..count {
            let plane = (self.turn as usize + step) % count;
            if !up.contains(paths.plane_port(plane)) {
                continue;
            }
            let Reverse { index, confirmed } = self.planes[plane];
            let age = units(now).wrapping_sub(confirmed);
            if paths.state(index) == EvState::Denied && !paths.any_allowed(plane) {
                continue;
            }
            let fresh = confirmed > DOUBTED && age <= units(Time(STALE_AFTER.0));
            if fresh && paths.state(index).usable() {
                self.turn = ((plane + 1) % count) as u8;
                return Some(index);
            }
            if confirmed == UNKNOWN && !asked {
                self.turn = ((plane + 1) % count) as u8;
                return Some(self.another(paths, index));
            }
            // Most failures are in both directions: where nothing is known to work, every second report takes the plane
            // that the peer was heard on.
            let likelier = !self.went_there && paths.plane_port(plane) == self.heard_on;
            if fallback.is_none() || likelier {
                fallback = Some((plane, index));
            }
        }
        let (plane, index) = fallback?;
        self.went_there = !self.went_there;
        if !self.went_there {
            self.turn = ((plane + 1) % count) as u8;
        }
        // Not known to work: the plane's next path may, so that in time all of them are tried.
        Some(self.another(paths, index))
    }

    /// Moves an unconfirmed plane on to its next path that is not known to be broken.
    fn another(&mut self, paths: &Paths, index: EvIndex) -> EvIndex {
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
        self.planes[index as usize % count].index = candidate as EvIndex;
        candidate as EvIndex
    }

    /// Loads the paths.
    pub(super) fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.planes, 0);
    }

    /// Heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.planes)
    }
}
