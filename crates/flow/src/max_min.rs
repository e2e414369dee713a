//! Max-min fair shares: no flow can have more without taking from one that has no more than it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A set of links and of flows over them. A flow uses each of its links in a fixed proportion to its rate.
#[derive(Default)]
pub struct MaxMin {
    links: Vec<Link>,
    /// Where the uses of each flow begin; one entry more than flows.
    first: Vec<u32>,
    uses: Vec<Use>,
    rates: Vec<f64>,
    /// By link: where its flows begin in `flows_of`.
    first_of: Vec<u32>,
    flows_of: Vec<u32>,
    queue: BinaryHeap<Reverse<(Level, u32)>>,
}

#[derive(Clone, Copy)]
struct Link {
    /// What the flows without a rate may still use.
    left: f64,
    /// The weights of these flows.
    weight: f64,
}

/// A flow's use of a link, for each unit of its rate.
#[derive(Clone, Copy)]
struct Use {
    link: u32,
    weight: f64,
}

/// The rate at which a link would be full.
#[derive(Clone, Copy, PartialEq)]
struct Level(f64);

impl Eq for Level {}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Level {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A flow without a rate.
const UNKNOWN: f64 = -1.0;

impl MaxMin {
    /// Forgets links and flows.
    pub fn clear(&mut self) {
        self.links.clear();
        self.first.clear();
        self.uses.clear();
    }

    /// Adds a link of this capacity; its number.
    pub fn link(&mut self, capacity: f64) -> u32 {
        self.links.push(Link { left: capacity.max(0.0), weight: 0.0 });
        self.links.len() as u32 - 1
    }

    /// Adds a flow without links; its number. [`MaxMin::uses`] adds its links.
    pub fn flow(&mut self) -> u32 {
        self.first.push(self.uses.len() as u32);
        self.first.len() as u32 - 1
    }

    /// The last flow uses `weight` of a link for each unit of its rate. Every flow uses at least one link.
    pub fn uses(&mut self, link: u32, weight: f64) {
        self.uses.push(Use { link, weight });
        self.links[link as usize].weight += weight;
    }

    /// The rate of every flow.
    pub fn solve(&mut self) -> &[f64] {
        let flows = self.first.len();
        self.first.push(self.uses.len() as u32);
        self.index_flows();
        self.rates.clear();
        self.rates.resize(flows, UNKNOWN);
        self.queue.clear();
        let levels = self.links.iter().zip(0..).filter(|(link, _)| link.weight > 0.0);
        self.queue.extend(levels.map(|(link, number)| Reverse((Level(link.left / link.weight), number))));
        let mut left = flows;
        while left > 0 {
            let Some(Reverse((level, number))) = self.queue.pop() else { break };
            let Some(now) = self.level_of(number) else { continue };
            // Rates that were given since have left more to the others.
            if now.0 > level.0 * (1.0 + 1e-12) {
                self.queue.push(Reverse((now, number)));
                continue;
            }
            left -= self.fill(number, now.0);
        }
        self.first.pop();
        &self.rates
    }

    /// Gives all flows of a full link their rate. Returns how many they are.
    fn fill(&mut self, number: u32, rate: f64) -> usize {
        let mut given = 0;
        for at in self.first_of[number as usize]..self.first_of[number as usize + 1] {
            let flow = self.flows_of[at as usize] as usize;
            if self.rates[flow] != UNKNOWN {
                continue;
            }
            self.rates[flow] = rate;
            given += 1;
            for i in self.first[flow]..self.first[flow + 1] {
                let Use { link, weight } = self.uses[i as usize];
                let link = &mut self.links[link as usize];
                link.left = (link.left - weight * rate).max(0.0);
                link.weight -= weight;
            }
        }
        // What rounding leaves would be a level of its own.
        self.links[number as usize].weight = 0.0;
        given
    }

    fn level_of(&self, number: u32) -> Option<Level> {
        let link = self.links[number as usize];
        (link.weight > 1e-12).then(|| Level(link.left / link.weight))
    }

    fn index_flows(&mut self) {
        self.first_of.clear();
        self.first_of.resize(self.links.len() + 1, 0);
        for used in &self.uses {
            self.first_of[used.link as usize + 1] += 1;
        }
        for link in 0..self.links.len() {
            self.first_of[link + 1] += self.first_of[link];
        }
        self.flows_of.clear();
        self.flows_of.resize(self.uses.len(), 0);
        // Filled from the end of each link's range; `first_of` is then where it began.
        for flow in (0..self.first.len() - 1).rev() {
            for i in self.first[flow]..self.first[flow + 1] {
                let end = &mut self.first_of[self.uses[i as usize].link as usize + 1];
                *end -= 1;
                self.flows_of[*end as usize] = flow as u32;
            }
        }
        // Each entry now holds the begin of the link before it.
        self.first_of.remove(0);
        self.first_of.push(self.uses.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn solved(links: &[f64], flows: &[Vec<(u32, f64)>]) -> Vec<f64> {
        let mut max_min = MaxMin::default();
        for &capacity in links {
            max_min.link(capacity);
        }
        for uses in flows {
            max_min.flow();
            for &(link, weight) in uses {
                max_min.uses(link, weight);
            }
        }
        max_min.solve().to_vec()
    }

    #[test]
    fn flows_share_a_link_and_what_one_cannot_use_goes_to_the_others() {
        assert_eq!(solved(&[12.0], &[vec![(0, 1.0)], vec![(0, 1.0)], vec![(0, 1.0)]]), [4.0; 3]);
        // The first flow is held to 1 by a link of its own.
        let flows = [vec![(0, 1.0), (1, 1.0)], vec![(0, 1.0)], vec![(0, 1.0)]];
        assert_eq!(solved(&[12.0, 1.0], &flows), [1.0, 5.5, 5.5]);
        assert_eq!(solved(&[0.0], &[vec![(0, 1.0)]]), [0.0]);
        assert_eq!(solved(&[10.0], &[vec![(0, 0.25)]]), [40.0], "a quarter of it passes here");
    }

    #[test]
    fn a_solver_that_is_used_again_knows_nothing_of_the_last_time() {
        let mut max_min = MaxMin::default();
        for capacity in [1.0, 2.0, 3.0] {
            max_min.clear();
            let link = max_min.link(capacity);
            max_min.flow();
            max_min.uses(link, 1.0);
            assert_eq!(max_min.solve(), [capacity]);
        }
    }

    prop_compose! {
        fn problem()(links in 1usize..12, flows in 1usize..40)(
            capacities in prop::collection::vec(prop_oneof![Just(0.0), 1.0..100.0], links),
            flows in prop::collection::vec(
                prop::collection::btree_map(0..links as u32, 0.05f64..1.0, 1..=links.min(6)), flows),
        ) -> (Vec<f64>, Vec<Vec<(u32, f64)>>) {
            (capacities, flows.into_iter().map(|uses| uses.into_iter().collect()).collect())
        }
    }

    proptest! {
        #[test]
        fn no_link_is_over_capacity_and_every_flow_has_a_full_link_where_none_has_more(
            (links, flows) in problem()
        ) {
            let rates = solved(&links, &flows);
            let load = |link: u32| -> f64 {
                let uses = flows.iter().zip(&rates).flat_map(|(uses, rate)| uses.iter().map(move |u| (u, rate)));
                uses.filter(|((at, _), _)| *at == link).map(|((_, weight), rate)| weight * rate).sum()
            };
            for (link, capacity) in (0..).zip(&links) {
                prop_assert!(load(link) <= capacity * (1.0 + 1e-9) + 1e-9, "link {}", link);
            }
            for (flow, uses) in flows.iter().enumerate() {
                let is_bottleneck = |link: u32| {
                    let others = flows.iter().zip(&rates).filter(|(uses, _)| uses.iter().any(|u| u.0 == link));
                    let most = others.map(|(_, rate)| *rate).fold(0.0, f64::max);
                    load(link) >= links[link as usize] * (1.0 - 1e-6) - 1e-9
                        && rates[flow] >= most * (1.0 - 1e-6) - 1e-9
                };
                prop_assert!(uses.iter().any(|u| is_bottleneck(u.0)), "flow {}: {:?}", flow, rates);
            }
        }
    }
}
