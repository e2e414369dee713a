//! Path selectors: MRC's EV states, the algorithms of UET, and custom selectors, behind one dispatch.
//!
//! A selector chooses among the paths of a plane; the plane is chosen before, so that planes carry equal load. Only a
//! custom selector chooses both. Only MRC's EV states take a path out of use.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

use super::index_array::EvIndex;
use crate::api::PortSet;
use crate::random::mix;
use crate::time::Time;

/// Input of a selection.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Time of sending.
    pub now: Time,
    /// Ports that can take a packet now.
    pub free: PortSet,
    /// For a retransmission: the path that lost the packet.
    pub avoid: Option<u16>,
}

/// A custom path selector. A path is identified by its position in the list that the selector was created with.
pub trait PathSelector: Send + Sync {
    /// The path for the next packet, on a port that is free; `None` to wait for feedback.
    fn select(&mut self, choice: &Choice) -> Option<u16>;
    /// A packet sent on this path has arrived.
    fn acked(&mut self, path: u16);
    /// A packet on this path was ECN-marked or trimmed.
    fn congested(&mut self, path: u16);
    /// A packet on this path was lost without a NACK.
    fn lost(&mut self, path: u16);
}

/// Creates a custom selector for each queue pair, from the port of each of its paths and a seed.
#[derive(Clone)]
pub struct CustomSelector(pub Arc<MakeSelector>);

/// The function that creates a selector.
pub type MakeSelector = dyn Fn(&[u8], u64) -> Box<dyn PathSelector> + Send + Sync;

impl fmt::Debug for CustomSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomSelector")
    }
}

/// Load balancing algorithms.
#[derive(Clone, Debug, Default)]
pub enum LoadBalancing {
    /// MRC's EV states: skip marked paths, take broken ones out of use (docs/spec/paths.md).
    #[default]
    EvStates,
    /// A random path.
    Oblivious,
    /// Recycled entropies (Bonato et al., "REPS", 2024): paths whose packets arrived unmarked are used again.
    Reps,
    /// Each path in turn; a path that was marked or trimmed skips one turn.
    EvSkip,
    /// A custom selector.
    Custom(CustomSelector),
}

/// Consecutive packets on one path.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::mrc) struct Burst {
    /// Packets of a full burst.
    pub length: u8,
    /// The path of the current burst, and the number of packets left in it.
    pub current: Option<(EvIndex, u8)>,
}

/// The selector of one queue pair, with its state.
#[derive(Serialize, Deserialize)]
pub(in crate::mrc) enum Selector {
    EvStates(Burst),
    Oblivious(u64),
    Reps(Box<Reps>),
    EvSkip,
    /// Boxed twice, so that the other variants stay small.
    #[serde(skip)]
    Custom(Box<Box<dyn PathSelector>>),
}

impl Selector {
    /// Creates the selector for paths in `planes` planes; `ports` returns the port of each path.
    pub fn new(
        how: &LoadBalancing,
        planes: usize,
        burst: u8,
        seed: u64,
        ports: impl FnOnce() -> Vec<u8>,
    ) -> Self {
        match how {
            LoadBalancing::EvStates => Selector::EvStates(Burst { length: burst.max(1), current: None }),
            LoadBalancing::Oblivious => Selector::Oblivious(seed),
            LoadBalancing::Reps => Selector::Reps(Box::new(Reps::new(planes, seed))),
            LoadBalancing::EvSkip => Selector::EvSkip,
            LoadBalancing::Custom(make) => Selector::Custom(Box::new((make.0)(&ports(), seed))),
        }
    }

    /// Whether it takes paths that lose packets out of use.
    pub fn condemns(&self) -> bool {
        matches!(self, Selector::EvStates(_))
    }

    /// Whether [`Self::acked`] has any effect.
    #[inline]
    pub fn hears_arrivals(&self) -> bool {
        matches!(self, Selector::Reps(_) | Selector::Custom(_))
    }

    /// A packet sent on this path has arrived.
    #[inline]
    pub fn acked(&mut self, plane: usize, index: EvIndex) {
        match self {
            Selector::Reps(reps) => reps.acked(plane, index),
            Selector::Custom(own) => own.acked(index),
            Selector::EvStates(_) | Selector::Oblivious(_) | Selector::EvSkip => {}
        }
    }

    /// A packet on this path was marked or trimmed.
    pub fn congested(&mut self, plane: usize, index: EvIndex) {
        match self {
            Selector::Reps(reps) => reps.congested(plane, index),
            Selector::Custom(own) => own.congested(index),
            Selector::EvStates(_) | Selector::Oblivious(_) | Selector::EvSkip => {}
        }
    }

    /// A packet on this path was lost without a NACK.
    pub fn lost(&mut self, plane: usize, index: EvIndex) {
        match self {
            Selector::Reps(reps) => reps.lost(plane),
            Selector::Custom(own) => own.lost(index),
            Selector::EvStates(_) | Selector::Oblivious(_) | Selector::EvSkip => {}
        }
    }
}

/// Entropy values kept for each plane (Bonato et al.: a circular buffer of 8).
const RING: usize = 8;

/// What REPS remembers of one plane.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Recycled {
    /// Paths that work, the rest [`Recycled::EMPTY`].
    ring: [EvIndex; RING],
    /// Position of the next entry, and number of entries before it that are still unused.
    head: u8,
    valid: u8,
    /// After a loss: number of acknowledgements until new paths are explored again; until then stored paths are reused.
    frozen: u8,
}

impl Recycled {
    /// No path: more than a queue pair can have.
    const EMPTY: EvIndex = EvIndex::MAX;
    const NEW: Recycled = Recycled { ring: [Self::EMPTY; RING], head: 0, valid: 0, frozen: 0 };

    /// Number of paths in the ring, used or unused. They are the last ones before `head`.
    fn stored(&self) -> u8 {
        self.ring.iter().filter(|&&index| index != Self::EMPTY).count() as u8
    }
}

/// REPS. A loss without a NACK freezes a plane: until as many packets as the ring holds have arrived, only paths known
/// to work are used.
#[derive(Serialize, Deserialize)]
pub(in crate::mrc) struct Reps {
    planes: Box<[Recycled]>,
    random: u64,
}

impl Reps {
    fn new(planes: usize, seed: u64) -> Self {
        Reps { planes: vec![Recycled::NEW; planes].into(), random: seed }
    }

    /// A stored path of this plane; `None` to explore.
    pub fn next(&mut self, plane: usize) -> Option<EvIndex> {
        let recycled = &mut self.planes[plane];
        if recycled.valid > 0 {
            let place = (recycled.head as usize + RING - recycled.valid as usize) % RING;
            recycled.valid -= 1;
            if recycled.valid == 0 && recycled.frozen > 0 {
                recycled.valid = recycled.stored();
            }
            return Some(recycled.ring[place]);
        }
        None
    }

    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random)
    }

    fn acked(&mut self, plane: usize, index: EvIndex) {
        let recycled = &mut self.planes[plane];
        recycled.ring[recycled.head as usize] = index;
        recycled.head = (recycled.head + 1) % RING as u8;
        recycled.valid = (recycled.valid + 1).min(RING as u8);
        recycled.frozen = recycled.frozen.saturating_sub(1);
    }

    /// The path that was stored last was marked after all.
    fn congested(&mut self, plane: usize, index: EvIndex) {
        let recycled = &mut self.planes[plane];
        let last = (recycled.head as usize + RING - 1) % RING;
        if recycled.valid > 0 && recycled.ring[last] == index {
            recycled.ring[last] = Recycled::EMPTY;
            recycled.head = last as u8;
            recycled.valid -= 1;
        }
    }

    fn lost(&mut self, plane: usize) {
        if self.planes[plane].valid > 0 {
            self.planes[plane].frozen = RING as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reps_uses_what_arrived_unmarked_again_oldest_first_and_once() {
        let mut reps = Reps::new(2, 1);
        assert_eq!(reps.next(0), None);
        for index in [3, 5, 7] {
            reps.acked(0, index);
        }
        reps.congested(0, 7);
        assert_eq!([reps.next(0), reps.next(0), reps.next(0), reps.next(1)], [Some(3), Some(5), None, None]);
    }

    #[test]
    fn reps_keeps_to_what_works_after_a_loss() {
        let mut reps = Reps::new(1, 1);
        for index in 0..20 {
            reps.acked(0, index);
        }
        reps.lost(0);
        let used: Vec<_> = (0..24).map(|_| reps.next(0)).collect();
        assert_eq!(used, (0..3).flat_map(|_| 12..20).map(Some).collect::<Vec<_>>());
        // As many have arrived as are kept: paths are explored again.
        (40..48).for_each(|index| reps.acked(0, index));
        let used: Vec<_> = (0..9).map(|_| reps.next(0)).collect();
        assert_eq!(used, (40..48).map(Some).chain([None]).collect::<Vec<_>>());
    }

    #[test]
    fn reps_keeps_to_the_few_paths_known_to_work_if_a_loss_comes_early() {
        let mut reps = Reps::new(2, 1);
        [3, 5, 7].into_iter().for_each(|index| reps.acked(1, index));
        reps.lost(1);
        reps.congested(1, 7);
        assert_eq!([(); 5].map(|()| reps.next(1)), [3, 5, 3, 5, 3].map(Some));
        // The ring is full: path 3 makes way, and then 16 is taken back.
        (10..17).for_each(|index| reps.acked(1, index));
        reps.congested(1, 16);
        let used: Vec<_> = (0..14).map(|_| reps.next(1).unwrap()).collect();
        assert_eq!(used, [5, 10, 11, 12, 13, 14, 15].repeat(2));
        reps.acked(1, 20);
        let used: Vec<_> = (0..9).map(|_| reps.next(1)).collect();
        let all = [5, 10, 11, 12, 13, 14, 15, 20].map(Some);
        assert_eq!((&used[..8], used[8]), (&all[..], None), "eight have arrived since the loss");
    }

    #[test]
    fn reps_takes_back_only_the_path_that_was_stored_last_and_is_unused() {
        let mut reps = Reps::new(1, 1);
        [3, 5].into_iter().for_each(|index| reps.acked(0, index));
        [3, 9].into_iter().for_each(|index| reps.congested(0, index));
        assert_eq!([reps.next(0), reps.next(0), reps.next(0)], [Some(3), Some(5), None]);
        reps.congested(0, 5);
        assert_eq!(reps.next(0), None);
        reps.acked(0, 7);
        assert_eq!([reps.next(0), reps.next(0)], [Some(7), None]);
    }

    #[test]
    fn reps_goes_on_exploring_after_a_loss_if_nothing_is_stored() {
        let mut reps = Reps::new(2, 1);
        reps.acked(1, 4);
        reps.lost(0);
        reps.acked(0, 3);
        assert_eq!([reps.next(0), reps.next(0)], [Some(3), None]);
        assert_eq!([reps.next(1), reps.next(1)], [Some(4), None], "the other plane has lost nothing");
    }
}
