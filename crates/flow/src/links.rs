//! The links that flows share, in groups: what the ports of a host carry, and what the uplinks of a block of switches
//! carry up and down. Planes in the same state are one class, whose links are added up.
//!
//! MRC sprays each flow evenly over all paths of a plane, so that the links between one block and the tier above it are
//! full all at once, and count as one.

use openmrc_fabric::Fabric;

use crate::bad_paths::{BadPaths, load_of_plane, load_of_slow_receiver};
use crate::faults::PlaneFaults;

/// A group of links in one direction, in one class of planes.
pub(crate) type LinkId = u32;

/// What a flow uses of a group of links, for each unit of its rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub link: LinkId,
    pub weight: f64,
}

/// A class of planes in the same state.
struct Class {
    planes: u32,
    /// The first of them.
    plane: u32,
    /// By group of links between switches: the paths that are not as they should be. Empty in the healthy class.
    bad: Vec<BadPaths>,
}

/// All groups of links.
pub(crate) struct Links {
    fabric: Fabric,
    /// Bytes a picosecond of a port.
    port_rate: f64,
    /// By class: the healthy planes first, then each other plane.
    classes: Vec<Class>,
    /// By group: what it carries.
    capacity: Vec<f64>,
    /// By group: whether flows can fill it. The uplinks of a T0 whose hosts cannot send more than it carries are never
    /// full.
    can_fill: Vec<bool>,
    /// Groups of a class.
    groups: u32,
    /// By level: the first group of its blocks.
    first_block: [u32; 4],
    /// Paths that a queue pair uses in a plane.
    active: u64,
}

impl Links {
    /// The links of a fabric. A queue pair has `ev_active` paths in rotation.
    pub fn new(fabric: Fabric, port_rate: f64, ev_active: u16) -> Self {
        let mut first_block = [0; 4];
        let mut places = fabric.shape().hosts;
        for level in 0..fabric.top() {
            first_block[usize::from(level)] = 2 * places;
            places += fabric.blocks(level);
        }
        let mut links = Links {
            fabric,
            port_rate,
            classes: Vec::new(),
            capacity: Vec::new(),
            can_fill: Vec::new(),
            groups: 2 * places,
            first_block,
            active: u64::from(ev_active).div_ceil(fabric.shape().planes.into()),
        };
        links.lay_out(&vec![PlaneFaults::default(); fabric.shape().planes as usize]);
        links
    }

    /// The fabric that they are of.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Number of groups in all classes.
    pub fn len(&self) -> usize {
        self.capacity.len()
    }

    /// What a group carries, bytes a picosecond.
    pub fn capacity(&self, link: LinkId) -> f64 {
        self.capacity[link as usize]
    }

    /// The group of the same links in the other direction.
    pub const fn opposite(link: LinkId) -> LinkId {
        link ^ 1
    }

    /// Whether the group is of links that end at a host.
    pub fn ends_at_host(&self, link: LinkId) -> bool {
        let group = link % self.groups;
        group < 2 * self.fabric.shape().hosts && group & 1 == 1
    }

    /// Lays out classes and capacities for the faults of each plane.
    pub fn lay_out(&mut self, faults: &[PlaneFaults]) {
        let healthy = faults.iter().filter(|faults| faults.is_empty()).count() as u32;
        self.classes = vec![Class { planes: healthy, plane: 0, bad: Vec::new() }];
        let hit = (0..).zip(faults).filter(|(_, faults)| !faults.is_empty());
        self.classes.extend(hit.map(|(plane, _)| Class { planes: 1, plane, bad: Vec::new() }));
        self.capacity.clear();
        for class in 0..self.classes.len() {
            self.lay_out_class(class, faults);
        }
        self.can_fill = vec![true; self.capacity.len()];
        for class in 0..self.classes.len() as u32 {
            self.find_what_fills(class);
        }
    }

    fn lay_out_class(&mut self, class: usize, faults: &[PlaneFaults]) {
        let Class { planes, plane, .. } = self.classes[class];
        let rate = f64::from(planes) * self.port_rate;
        let hosts = 2 * self.fabric.shape().hosts as usize;
        let base = self.capacity.len();
        self.capacity.resize(base + hosts, rate);
        for level in 0..self.fabric.top() {
            let groups = 2 * self.fabric.blocks(level) as usize;
            let more = self.capacity.len() + groups;
            self.capacity.resize(more, rate * uplinks_of_block(&self.fabric, level) as f64);
        }
        if class == 0 {
            return;
        }
        let mut bad = vec![BadPaths::default(); self.groups as usize - hosts];
        for (link, state) in faults[plane as usize].links() {
            let place = match link.layer {
                0 => 2 * link.lower,
                layer => {
                    let block = link.lower / switches_of_block(&self.fabric, layer - 1);
                    self.first_block[usize::from(layer) - 1] + 2 * block
                }
            };
            for group in [place, place + 1] {
                let left = &mut self.capacity[base + group as usize];
                *left -= (1.0 - state.carries()) * rate;
                // What is left of rounding is no link.
                if *left < 1e-9 * rate {
                    *left = 0.0;
                }
                if link.layer > 0 {
                    let paths = uplinks_of_block(&self.fabric, link.layer - 1) as f64;
                    bad[group as usize - hosts].add(state, paths);
                }
            }
        }
        self.classes[class].bad = bad;
    }

    /// Finds the groups of a class that hosts cannot fill.
    fn find_what_fills(&mut self, class: u32) {
        let base = (class * self.groups) as usize;
        for level in 0..self.fabric.top() {
            let blocks = self.fabric.blocks(level);
            for direction in 0..2 {
                let mut of_hosts = vec![0.0; blocks as usize];
                for host in 0..self.fabric.shape().hosts {
                    of_hosts[self.fabric.block_of(level, host) as usize] +=
                        self.capacity[base + 2 * host as usize + direction];
                }
                for (block, of_hosts) in of_hosts.iter().enumerate() {
                    let group = base + self.first_block[usize::from(level)] as usize + 2 * block + direction;
                    self.can_fill[group] = *of_hosts > self.capacity[group] * (1.0 + 1e-9);
                }
            }
        }
    }

    /// The groups between two hosts in a class: up, then down.
    fn path(&self, class: u32, src: u32, dst: u32) -> impl Iterator<Item = LinkId> + '_ {
        let base = class * self.groups;
        let of_host = [base + 2 * src, base + 2 * dst + 1];
        let of_blocks = (0..self.fabric.turn(src, dst)).flat_map(move |level| {
            let first = base + self.first_block[usize::from(level)];
            [(src, 0), (dst, 1)]
                .map(|(host, direction)| first + 2 * self.fabric.block_of(level, host) + direction)
        });
        of_host.into_iter().chain(of_blocks)
    }

    /// What a flow from one host to another uses of each group that can be full: nothing if no plane connects them.
    /// Planes carry equal load, less where paths are bad, or where a host's port is slow. `luck` is the load of
    /// its uplinks, and a number of the normal distribution.
    pub fn uses(&self, (src, dst): (u32, u32), luck: (f64, f64), uses: &mut Vec<Use>) {
        uses.clear();
        let mut shares = [0.0; 17];
        for (class, share) in (0..).zip(&mut shares[..self.classes.len()]) {
            *share = self.load(class, (src, dst), luck);
        }
        let all: f64 = shares.iter().sum();
        for (class, share) in (0..).zip(shares).filter(|(_, share)| *share > 0.0) {
            let weight = share / all;
            let full = self.path(class, src, dst).filter(|&link| self.can_fill[link as usize]);
            uses.extend(full.map(|link| Use { link, weight }));
        }
    }

    /// The load that a flow puts on a class, in healthy planes.
    fn load(&self, number: u32, (src, dst): (u32, u32), (load, chance): (f64, f64)) -> f64 {
        if !self.connects(number, src, dst) {
            return 0.0;
        }
        let class = &self.classes[number as usize];
        let planes = f64::from(class.planes);
        if class.bad.is_empty() {
            return planes;
        }
        let base = number * self.groups;
        let share = |group: u32| self.capacity(base + group) / self.port_rate;
        let (sender, receiver) = (share(2 * src), load_of_slow_receiver(share(2 * dst + 1)));
        let paths = match self.fabric.turn(src, dst) {
            0 => 1,
            turn => uplinks_of_block(&self.fabric, turn - 1),
        };
        // Paths in reserve take the place of dead ones.
        let has_reserve = paths > self.active;
        let taken = self.bad_paths(number, src, dst).map(|bad| bad.taken(has_reserve, load, chance));
        sender * receiver * load_of_plane(1.0 - taken.fold(0.0, f64::max))
    }

    /// Whether a class has planes, and they connect two hosts.
    fn connects(&self, class: u32, src: u32, dst: u32) -> bool {
        let planes = self.classes[class as usize].planes;
        planes > 0 && self.path(class, src, dst).all(|link| self.capacity(link) > 0.0)
    }

    /// The bad paths of each group between two hosts.
    fn bad_paths(&self, class: u32, src: u32, dst: u32) -> impl Iterator<Item = BadPaths> + '_ {
        let first = 2 * self.fabric.shape().hosts;
        let groups = self.path(class, src, dst).map(move |link| link % self.groups);
        let between_switches = groups.filter(move |&group| group >= first);
        between_switches.map(move |group| self.classes[class as usize].bad[(group - first) as usize])
    }

    /// The share of a flow's paths that are dead, in planes that connect the hosts.
    pub fn dead_share(&self, src: u32, dst: u32) -> f64 {
        let hit = (1..self.classes.len() as u32).filter(|&class| self.connects(class, src, dst));
        let dead = hit.map(|class| self.bad_paths(class, src, dst).map(|bad| bad.dead()).fold(0.0, f64::max));
        dead.sum::<f64>() / f64::from(self.fabric.shape().planes)
    }

    /// The planes that connect two hosts.
    pub fn planes_between(&self, src: u32, dst: u32) -> u32 {
        let classes = (0..).zip(&self.classes);
        let connected = classes.filter(|&(class, _)| self.connects(class, src, dst));
        connected.map(|(_, of)| of.planes).sum()
    }
}

/// Links from a block of this level to the tier above.
pub(crate) fn uplinks_of_block(fabric: &Fabric, level: u8) -> u64 {
    fabric.shape().uplinks[..=usize::from(level)].iter().map(|&up| u64::from(up)).product()
}

/// Switches of this tier in one block of its level, below the top.
fn switches_of_block(fabric: &Fabric, level: u8) -> u32 {
    fabric.shape().uplinks[..usize::from(level)].iter().product()
}
