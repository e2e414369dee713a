//! Paths for feedback (spec: paths, "Reverse EVs"): one per plane that is known to work, because something sent on it was
//! answered; planes take turns. A plane of which nothing is known yet takes its turn too, on another path each time: a new
//! responder knows one path that works, and if that failed, all its feedback would be lost.

use super::ev_state::EvState;
use super::probing::SHARE;
use super::{EvIndex, Paths};
use crate::api::PortSet;
use crate::random::mix;
use crate::time::{Span, Time};

/// A path that was not confirmed within this time is used only where no plane has a fresher one. Probes refresh one
/// plane a round trip, so each of sixteen planes has several chances at data-centre round trips.
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

/// Reverse paths are probed in proportion to the data packets that come in, one probe for [`SHARE`] packets. Where those
/// are few, one probe for 16 packets once a millisecond \[choice\]: a queue pair whose peer sends only some thousand
/// packets a second would otherwise not know for tens of milliseconds that its feedback is lost.
const SHARE_AT_MOST: u32 = 16;
const AT_LATEST: Span = Span::from_millis(1);

pub(in crate::mrc) struct ReversePaths {
    planes: Box<[Reverse]>,
    turn: u8,
    /// Port on which the peer was heard last.
    heard_on: u8,
    /// Whether the last report without a fresh path went there.
    went_there: bool,
    probe: ReverseProbe,
}

/// The last probe of a reverse path.
#[derive(Default)]
struct ReverseProbe {
    /// Its path, while it is unanswered.
    unanswered: Option<EvIndex>,
    /// Time and number of received packets from which the next may be sent.
    due: Time,
    from: u32,
}

/// Confirmation times are kept in units of 2^20 ps.
fn units(time: Time) -> u32 {
    ((time.0 >> 20) as u32).max(DOUBTED + 1)
}

impl ReversePaths {
    pub fn new(paths: &Paths) -> Self {
        let start = |plane| Reverse { index: plane as EvIndex, confirmed: UNKNOWN };
        ReversePaths {
            planes: (0..paths.plane_count()).map(start).collect(),
            turn: 0,
            heard_on: 0,
            went_there: false,
            probe: ReverseProbe::default(),
        }
    }

    /// A packet has come in on this port.
    pub fn heard_on(&mut self, port: u8) {
        self.heard_on = port;
    }

    /// Something sent on this path was answered.
    pub fn confirm(&mut self, now: Time, paths: &Paths, index: EvIndex) {
        self.planes[paths.plane_of(index)] = Reverse { index, confirmed: units(now) };
        if self.probe.unanswered == Some(index) {
            self.probe.unanswered = None;
        }
    }

    /// Where a queue pair receives and does not send, its own data cannot tell which paths work for feedback: a probe a
    /// round trip on a random path can, in proportion to the `received` packets. Returns the path to probe now, if any.
    pub fn path_to_probe(
        &mut self,
        now: Time,
        paths: &Paths,
        received: u32,
        rtt: Span,
        seed: u64,
    ) -> Option<EvIndex> {
        // Modulo 2^32, as packets are counted here.
        let ahead = received.wrapping_sub(self.probe.from) as i32;
        let few = ahead < (SHARE as u32 - SHARE_AT_MOST) as i32;
        if ahead < 0 || now < self.probe.due || few && now < self.probe.due + AT_LATEST {
            return None;
        }
        if let Some(silent) = self.probe.unanswered.take() {
            self.doubt(paths, silent);
        }
        self.probe.due = now + rtt.times(2);
        self.probe.from = received.wrapping_add(SHARE_AT_MOST);
        let index = (mix(now.0 ^ seed) as usize % paths.len()) as EvIndex;
        (paths.state(index) != EvState::Denied).then_some(index)
    }

    /// The path that [`Self::path_to_probe`] gave is being probed.
    pub fn probing(&mut self, index: EvIndex) {
        self.probe.unanswered = Some(index);
    }

    /// This path does not work: the plane's reverse path is not to be trusted until another is confirmed.
    pub fn doubt(&mut self, paths: &Paths, index: EvIndex) {
        let reverse = &mut self.planes[paths.plane_of(index)];
        if reverse.index == index || reverse.confirmed == UNKNOWN {
            reverse.confirmed = DOUBTED;
        }
    }

    /// The path for the next feedback packet: planes in turn, those with a fresh path and those of which nothing is known.
    /// A peer that `asked` for an answer has not heard the others, so its answer takes a fresh path if there is one.
    /// `None` if no port is up.
    pub fn next(&mut self, now: Time, paths: &Paths, up: PortSet, asked: bool) -> Option<EvIndex> {
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
            // Most failures concern both directions: where nothing is known to work, every second report takes the plane
            // on which the peer was heard.
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
    pub fn prefetch(&self) {
        prefetch_index::prefetch_index(&self.planes, 0);
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.planes)
    }
}
