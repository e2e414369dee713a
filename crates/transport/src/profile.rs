//! The paths a queue pair may use: a list of entropy values with their ports, shared by every queue pair of a profile.
//!
//! A queue pair does not copy the list. It uses `active + backup` entries, the same number on each port, in an order
//! that is computed from its seed (docs/spec/paths.md, "EV set"), so that a path takes no memory per queue pair here.

use serde::{Deserialize, Serialize};
use std::sync::{Arc, LazyLock};

use openmrc_wire::Ev;

use crate::random::mix;

/// A path's number in its profile.
pub type PathId = u16;

/// One path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathEntry {
    /// Entropy value.
    pub ev: Ev,
    /// Port (plane) it leaves by.
    pub port: u8,
}

/// Why a list of paths is not a valid profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// The list is empty.
    #[error("an EV profile needs at least one path")]
    Empty,
    /// The list is too long for [`PathId`].
    #[error("an EV profile has at most 65535 paths, not {0}")]
    TooMany(usize),
    /// A port number is too large.
    #[error("port {0} is out of range: a device has at most 16")]
    Port(u8),
}

/// The paths of a profile, grouped by port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EvProfile {
    entries: Box<[PathEntry]>,
    /// For each used port: the port and the range of its entries.
    groups: Box<[Group]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    port: u8,
    first: u16,
    count: u16,
    /// Steps that visit every path of the group before any path repeats. The seed of a queue pair selects one.
    steps: [u16; STEPS],
}

/// Number of steps to choose from.
const STEPS: usize = 32;

impl EvProfile {
    /// A profile of these paths. They are grouped by port; [`EvProfile::entries`] lists them in the order of
    /// [`PathId`].
    ///
    /// # Errors
    /// [`ProfileError`] if the list is empty, too long, or names a port above 15.
    pub fn new(paths: &[PathEntry]) -> Result<Self, ProfileError> {
        if paths.is_empty() {
            return Err(ProfileError::Empty);
        }
        if paths.len() > PathId::MAX as usize {
            return Err(ProfileError::TooMany(paths.len()));
        }
        if let Some(bad) = paths.iter().find(|p| p.port as usize >= crate::PortSet::MAX_PORTS) {
            return Err(ProfileError::Port(bad.port));
        }
        let mut entries = paths.to_vec();
        entries.sort_by_key(|p| p.port);
        let mut groups: Vec<Group> = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            match groups.last_mut() {
                Some(group) if group.port == entry.port => group.count += 1,
                _ => groups.push(Group { port: entry.port, first: i as u16, count: 1, steps: [0; STEPS] }),
            }
        }
        for group in &mut groups {
            let count = u32::from(group.count);
            for (i, step) in group.steps.iter_mut().enumerate() {
                *step = coprime_step(mix(i as u64) as u32, count) as u16;
            }
        }
        Ok(EvProfile { entries: entries.into(), groups: groups.into() })
    }

    /// Stands for the profile of a queue pair that was read from a checkpoint, until it has its own again.
    pub(crate) fn none() -> Arc<Self> {
        static NONE: LazyLock<Arc<EvProfile>> =
            LazyLock::new(|| Arc::new(EvProfile { entries: Box::default(), groups: Box::default() }));
        Arc::clone(&NONE)
    }

    /// Every path, by [`PathId`].
    pub fn entries(&self) -> &[PathEntry] {
        &self.entries
    }

    /// Number of ports in use.
    pub fn ports(&self) -> usize {
        self.groups.len()
    }

    /// Smallest number of paths of any port.
    pub fn paths_per_port(&self) -> usize {
        self.groups.iter().map(|g| g.count as usize).min().unwrap_or(0)
    }

    /// One of the paths of a port, chosen by `choice`; `None` if the port has none.
    pub fn path_on(&self, port: u8, choice: u64) -> Option<PathId> {
        let group = self.groups.iter().find(|group| group.port == port)?;
        Some(group.first + (choice % u64::from(group.count)) as u16)
    }

    /// The port of group `group`, 0 .. [`EvProfile::ports`].
    pub(crate) fn group_port(&self, group: usize) -> u8 {
        self.groups[group].port
    }

    /// The order in which the queue pair with this seed uses the paths of a port: an affine permutation selected by the
    /// seed, so that queue pairs do not use the same paths at the same time.
    pub(crate) fn order(&self, seed: u64, group: usize) -> Order {
        let group = &self.groups[group];
        let mixed = mix(seed ^ u64::from(group.port) << 56);
        let start = ((mixed >> 32) as u32 % u32::from(group.count)) as u16;
        Order { start, step: group.steps[mixed as usize % STEPS] }
    }

    /// The path of a group at position `turn` of the order.
    #[inline]
    pub(crate) fn pick(&self, group: usize, order: Order, turn: u32) -> PathId {
        let group = &self.groups[group];
        group.first
            + ((u32::from(order.start) + turn * u32::from(order.step)) % u32::from(group.count)) as u16
    }
}

/// The order in which a queue pair uses the paths of one port: the first path, and the step to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    start: u16,
    step: u16,
}

/// A step that visits all of `0..count`: the first number at or after `wish` that shares no divisor with it.
fn coprime_step(wish: u32, count: u32) -> u32 {
    let mut step = wish % count;
    while gcd(step, count) != 1 {
        step += 1;
    }
    step
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(ports: u8, per_port: u32) -> EvProfile {
        let paths: Vec<_> = (0..per_port)
            .flat_map(|i| (0..ports).map(move |port| PathEntry { ev: Ev(i * 100 + u32::from(port)), port }))
            .collect();
        EvProfile::new(&paths).unwrap()
    }

    #[test]
    fn picks_are_distinct_and_spread_equally_over_ports() {
        for seed in 0..500 {
            for (ports, per_port) in [(8u8, 32u32), (4, 7), (1, 200), (16, 16)] {
                let profile = profile(ports, per_port);
                let count = (u32::from(ports) * per_port).min(256) as u16;
                let orders: Vec<_> = (0..ports).map(|group| profile.order(seed, group.into())).collect();
                let turn = |i: u16| (usize::from(i) % orders.len(), u32::from(i) / u32::from(ports));
                let pick = |i| profile.pick(turn(i).0, orders[turn(i).0], turn(i).1);
                let mut seen: Vec<_> = (0..count).map(pick).collect();
                for (i, &path) in seen.iter().enumerate() {
                    assert_eq!(usize::from(profile.entries()[path as usize].port), i % ports as usize);
                }
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), count as usize, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_paths_of_a_port_are_visited_in_equal_steps() {
        for (seed, count) in (0..40).flat_map(|seed| [(seed, 1), (seed, 7), (seed, 32), (seed, 200)]) {
            let profile = profile(3, count);
            let order = profile.order(seed, 1);
            assert!(u32::from(order.start) < count);
            let mut at = u32::from(order.start);
            for turn in 0..2 * count + 1 {
                assert_eq!(u32::from(profile.pick(1, order, turn)), count + at, "turn {turn} of {count}");
                at = (at + u32::from(order.step)) % count;
            }
        }
    }

    #[test]
    fn the_first_path_and_the_step_differ_between_queue_pairs_and_between_ports() {
        let profile = profile(16, 32);
        let distinct = |mut of: Vec<u32>| {
            of.sort_unstable();
            of.dedup();
            of.len()
        };
        let orders: Vec<Order> = (0..500).map(|seed| profile.order(seed, 0)).collect();
        assert_eq!(distinct(orders.iter().map(|order| order.start.into()).collect()), 32);
        // There are 16 steps that share no divisor with 32; not all are kept.
        assert!(distinct(orders.iter().map(|order| order.step.into()).collect()) > 8);
        for seed in [0, 1, 0xF << 56, u64::MAX] {
            let orders = (0..16).map(|group| profile.order(seed, group));
            let of_ports = orders.map(|order| u32::from(order.start) << 16 | u32::from(order.step)).collect();
            assert!(distinct(of_ports) >= 14, "seed {seed:#x}");
        }
    }

    #[test]
    fn a_step_is_the_first_number_from_the_wish_on_without_a_common_divisor() {
        for (wish, count, step) in [
            (0, 1, 0),
            (9, 1, 0),
            (0, 5, 1),
            (3, 5, 3),
            (3, 9, 4),
            (6, 9, 7),
            (7, 9, 7),
            (16, 9, 7),
            (2, 30, 7),
        ] {
            assert_eq!(coprime_step(wish, count), step, "{wish} of {count}");
        }
    }

    #[test]
    fn each_path_of_a_port_is_chosen_by_every_so_manieth_number() {
        let path = |port: u8, ev: u32| PathEntry { ev: Ev(ev), port };
        let mut paths: Vec<_> = (0..3).map(|ev| path(1, ev)).collect();
        paths.extend((0..5).map(|ev| path(4, ev)));
        let profile = EvProfile::new(&paths).unwrap();
        for (port, count) in [(1, 3), (4, 5)] {
            for from in [0, 1, 1 << 40, u64::MAX - 10] {
                let chosen = |choice: u64| profile.path_on(port, choice).unwrap();
                let mut seen: Vec<_> = (0..count).map(|i| chosen(from + i)).collect();
                assert!(seen.iter().all(|&path| profile.entries()[usize::from(path)].port == port));
                assert_eq!(chosen(from + count), seen[0]);
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len() as u64, count);
            }
        }
        assert_eq!([0, 2, 5].map(|port| profile.path_on(port, 0)), [None; 3]);
    }

    #[test]
    fn an_empty_or_impossible_profile_is_refused() {
        assert_eq!(EvProfile::new(&[]), Err(ProfileError::Empty));
        assert_eq!(EvProfile::new(&[PathEntry { ev: Ev(1), port: 16 }]), Err(ProfileError::Port(16)));
    }
}
