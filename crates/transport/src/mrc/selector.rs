//! Other ways to spread packets over paths than MRC's EV states: what UET's senders do, and a user's own.
//!
//! None of these takes a path out of use: where a path loses packets, the next choice is what it would have been. A plane is
//! chosen before the path, as by MRC, except by a user's own selector, which chooses both.

use std::fmt;
use std::sync::Arc;

use super::paths::EvIndex;
use crate::api::PortSet;
use crate::profile::mix;
use crate::time::Time;

/// What there is to choose from.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Latest time known.
    pub now: Time,
    /// Ports that can take a packet now.
    pub free: PortSet,
    /// A retransmission: the path that lost the packet.
    pub avoid: Option<u8>,
}

/// A user's own choice of paths. A path is its place in the list that the selector was made with.
pub trait PathSelector: Send + Sync {
    /// The path for the next packet, on a port that is free; `None` to wait for feedback.
    fn select(&mut self, choice: &Choice) -> Option<u8>;
    /// A packet sent on this path has arrived.
    fn acked(&mut self, path: u8);
    /// A packet on this path was ECN-marked or trimmed.
    fn congested(&mut self, path: u8);
    /// A packet on this path was lost without a trace.
    fn lost(&mut self, path: u8);
}

/// Makes a user's own selector for each queue pair, given the port of each of its paths and a seed.
#[derive(Clone)]
pub struct CustomSelector(pub Arc<MakeSelector>);

/// How a selector is made.
pub type MakeSelector = dyn Fn(&[u8], u64) -> Box<dyn PathSelector> + Send + Sync;

impl fmt::Debug for CustomSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomSelector")
    }
}

/// How packets are spread over paths.
#[derive(Clone, Debug, Default)]
pub enum LoadBalancing {
    /// MRC's EV states: skip what is marked, leave what is broken (spec: paths).
    #[default]
    EvStates,
    /// Any path, at random.
    Oblivious,
    /// Recycled entropies (Bonato et al., "REPS", 2024): paths whose packets arrived unmarked are used again.
    Reps,
    /// Each path in turn; one that was marked or trimmed misses a turn.
    EvSkip,
    /// A user's own.
    Custom(CustomSelector),
}

/// The state of the choice.
pub(super) enum Selector {
    EvStates,
    Oblivious(u64),
    Reps(Reps),
    EvSkip,
    /// And the latest time known.
    Custom(Box<dyn PathSelector>, Time),
}

impl Selector {
    pub(super) fn new(how: &LoadBalancing, ports: &[u8], planes: usize, seed: u64) -> Self {
        match how {
            LoadBalancing::EvStates => Selector::EvStates,
            LoadBalancing::Oblivious => Selector::Oblivious(seed),
            LoadBalancing::Reps => Selector::Reps(Reps::new(planes, seed)),
            LoadBalancing::EvSkip => Selector::EvSkip,
            LoadBalancing::Custom(make) => Selector::Custom((make.0)(ports, seed), Time::ZERO),
        }
    }
}

/// Entropy values kept for each plane (Bonato et al.: a circular buffer of 8).
const KEPT: usize = 8;

/// What REPS remembers of one plane.
#[derive(Clone, Copy, Default)]
struct Recycled {
    ring: [EvIndex; KEPT],
    /// Where the next goes, and how many before it are still to be used.
    head: u8,
    valid: u8,
    /// A packet was lost: what is kept is used over and over rather than explore, until so many have arrived.
    frozen: u8,
}

/// REPS. Loss without a trace freezes a plane: only paths known to work are used until a ring full of packets has arrived.
pub(super) struct Reps {
    planes: Box<[Recycled]>,
    random: u64,
}

impl Reps {
    fn new(planes: usize, seed: u64) -> Self {
        Reps { planes: vec![Recycled::default(); planes].into(), random: seed }
    }

    /// A kept path of this plane; `None` to explore.
    pub(super) fn next(&mut self, plane: usize) -> Option<EvIndex> {
        let recycled = &mut self.planes[plane];
        if recycled.valid > 0 {
            let place = (recycled.head as usize + KEPT - recycled.valid as usize) % KEPT;
            recycled.valid -= 1;
            if recycled.valid == 0 && recycled.frozen > 0 {
                recycled.valid = KEPT as u8;
            }
            return Some(recycled.ring[place]);
        }
        None
    }

    pub(super) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random)
    }

    pub(super) fn acked(&mut self, plane: usize, index: EvIndex) {
        let recycled = &mut self.planes[plane];
        recycled.ring[recycled.head as usize] = index;
        recycled.head = (recycled.head + 1) % KEPT as u8;
        recycled.valid = (recycled.valid + 1).min(KEPT as u8);
        recycled.frozen = recycled.frozen.saturating_sub(1);
    }

    /// The path that was just kept was marked after all.
    pub(super) fn congested(&mut self, plane: usize, index: EvIndex) {
        let recycled = &mut self.planes[plane];
        let last = (recycled.head as usize + KEPT - 1) % KEPT;
        if recycled.valid > 0 && recycled.ring[last] == index {
            recycled.head = last as u8;
            recycled.valid -= 1;
        }
    }

    pub(super) fn lost(&mut self, plane: usize) {
        if self.planes[plane].valid > 0 {
            self.planes[plane].frozen = KEPT as u8;
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
        assert!(used.iter().all(|i| i.is_some_and(|i| i >= 12)), "{used:?}");
    }
}
