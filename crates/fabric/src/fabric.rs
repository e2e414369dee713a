//! Switches, ports and links by number: the other end of a link, and the next hop of a packet.
//!
//! The ports of a switch are the downlinks (towards hosts), then the uplinks. A switch of T1 or above has `parallel`
//! downlinks to each block below it, with consecutive numbers. The links of layer 0 connect hosts to T0s; those of
//! layer t > 0 connect tier t-1 to tier t. A link is identified by its lower end.

use crate::shape::{Shape, ShapeError};

/// A switch of a fabric. The order is that of [`Fabric::switch_number`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Switch {
    /// Plane.
    pub plane: u32,
    /// Tier. Hosts are connected to tier 0.
    pub tier: u8,
    /// Number within its plane and tier.
    pub index: u32,
}

/// A host or a switch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// A host. Its port number is the plane.
    Host(u32),
    /// A switch.
    Switch(Switch),
}

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct End {
    /// The node with the port.
    pub node: Node,
    /// Number of the port.
    pub port: u32,
}

/// A link, identified by its lower end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Link {
    /// Plane.
    pub plane: u32,
    /// 0: host to T0; t: tier t-1 to tier t.
    pub layer: u8,
    /// Host, or index of the switch of tier `layer - 1`.
    pub lower: u32,
    /// Uplink of that switch; 0 for a host.
    pub uplink: u32,
}

/// The ports by which a switch may send a packet to a host: `count` equivalent ports from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// The host is below the switch: the links to its block.
    Down {
        /// First port.
        first: u32,
        /// Number of ports.
        count: u32,
    },
    /// The host is not below the switch: any uplink.
    Up {
        /// First port.
        first: u32,
        /// Number of ports.
        count: u32,
    },
}

/// Switches and links of one plane, by tier and layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Switches of each tier.
    pub switches: [u32; 4],
    /// Links of each layer.
    pub links: [u32; 4],
}

/// A fabric: a valid [`Shape`] and the counts that follow from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fabric {
    shape: Shape,
    blocks: [u32; 4],
    width: [u32; 4],
    /// Switches of one plane in the tiers below tier t; the last entry is the total.
    first_switch: [u32; 5],
    /// Links of one plane in the layers below layer t; the last entry is the total.
    first_link: [u32; 5],
}

impl Fabric {
    /// The fabric of this shape.
    ///
    /// # Errors
    /// [`ShapeError`] if the shape is not valid.
    pub fn new(shape: Shape) -> Result<Self, ShapeError> {
        shape.check()?;
        let (blocks, width) = (shape.blocks(), shape.width());
        let mut fabric = Fabric { shape, blocks, width, first_switch: [0; 5], first_link: [0; 5] };
        for t in 0..4 {
            let switches = if t < shape.tiers as usize { blocks[t] * width[t] } else { 0 };
            fabric.first_switch[t + 1] = fabric.first_switch[t] + switches;
            let links = match t {
                0 => shape.hosts,
                _ if t < shape.tiers as usize => blocks[t - 1] * width[t - 1] * shape.uplinks[t - 1],
                _ => 0,
            };
            fabric.first_link[t + 1] = fabric.first_link[t] + links;
        }
        Ok(fabric)
    }

    /// Its shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of tiers.
    pub const fn tiers(&self) -> u8 {
        self.shape.tiers
    }

    /// The highest tier.
    pub const fn top(&self) -> u8 {
        self.shape.tiers - 1
    }

    /// Switches and links of one plane.
    pub fn counts(&self) -> Counts {
        let difference = |first: &[u32; 5]| core::array::from_fn(|t| first[t + 1] - first[t]);
        Counts { switches: difference(&self.first_switch), links: difference(&self.first_link) }
    }

    /// Switches of all planes.
    pub const fn switches(&self) -> u32 {
        self.first_switch[4] * self.shape.planes
    }

    /// Links of all planes.
    pub const fn links(&self) -> u32 {
        self.first_link[4] * self.shape.planes
    }

    /// Switches of one plane in a tier.
    pub const fn tier_size(&self, tier: u8) -> u32 {
        self.first_switch[tier as usize + 1] - self.first_switch[tier as usize]
    }

    /// Blocks of a level in a plane: T0s in level 0, pods in level 1.
    pub const fn blocks(&self, level: u8) -> u32 {
        self.blocks[level as usize]
    }

    /// Links from one block of the level below `tier` to one switch of `tier`.
    pub const fn parallel_below(&self, tier: u8) -> u32 {
        if tier + 1 == self.shape.tiers { self.shape.parallel } else { 1 }
    }

    /// Links from one switch below the top tier to one top switch; 1 in other tiers. Each has its own uSID.
    pub fn lanes(&self, tier: u8) -> u32 {
        if self.top() > 0 && tier + 2 >= self.shape.tiers {
            self.shape.parallel.min(self.shape.uplinks[self.top() as usize - 1])
        } else {
            1
        }
    }

    // --- switches -----------------------------------------------------------------------------------------------

    /// The number of a switch, ordered by plane, tier and index.
    pub const fn switch_number(&self, switch: Switch) -> u32 {
        switch.plane * self.first_switch[4] + self.first_switch[switch.tier as usize] + switch.index
    }

    /// The switch with this number.
    pub fn switch_at(&self, number: u32) -> Option<Switch> {
        let (plane, rest) = (number / self.first_switch[4], number % self.first_switch[4]);
        let tier = (0..self.tiers()).rev().find(|&t| self.first_switch[t as usize] <= rest)?;
        let switch = Switch { plane, tier, index: rest - self.first_switch[tier as usize] };
        self.has_switch(switch).then_some(switch)
    }

    /// Whether the switch exists.
    pub const fn has_switch(&self, switch: Switch) -> bool {
        switch.plane < self.shape.planes
            && switch.tier < self.shape.tiers
            && switch.index < self.tier_size(switch.tier)
    }

    /// Every switch, in the order of numbers.
    pub fn all_switches(&self) -> impl Iterator<Item = Switch> + '_ {
        (0..self.switches()).filter_map(|n| self.switch_at(n))
    }

    /// The T0 of a host in a plane.
    pub const fn t0_of(&self, plane: u32, host: u32) -> Switch {
        Switch { plane, tier: 0, index: host / self.shape.hosts_per_t0 }
    }

    /// The downlink of its T0s to which a host is connected.
    pub const fn downlink_of(&self, host: u32) -> u32 {
        host % self.shape.hosts_per_t0
    }

    /// The block of `level` that contains a host.
    pub fn block_of(&self, level: u8, host: u32) -> u32 {
        let mut block = host / self.shape.hosts_per_t0;
        for l in 0..level {
            block = self.parent(l, block).0;
        }
        block
    }

    /// The block that contains a block of `level`, and the index in it.
    fn parent(&self, level: u8, block: u32) -> (u32, u32) {
        if level + 1 >= self.top() {
            (0, block)
        } else {
            let group = self.shape.group[level as usize];
            (block / group, block % group)
        }
    }

    /// Blocks below a block of level `tier`, including places without a block.
    fn children(&self, tier: u8) -> u32 {
        if tier == self.top() { self.blocks[tier as usize - 1] } else { self.shape.group[tier as usize - 1] }
    }

    // --- ports --------------------------------------------------------------------------------------------------

    /// Downlinks of a switch of this tier, connected or not.
    pub fn downlinks(&self, tier: u8) -> u32 {
        if tier == 0 { self.shape.hosts_per_t0 } else { self.children(tier) * self.parallel_below(tier) }
    }

    /// Uplinks of a switch of this tier.
    pub const fn uplinks(&self, tier: u8) -> u32 {
        if tier + 1 < self.shape.tiers { self.shape.uplinks[tier as usize] } else { 0 }
    }

    /// The link on a port of a switch; `None` if nothing is connected (a place without host, T0 or pod).
    pub fn link_at(&self, switch: Switch, port: u32) -> Option<Link> {
        let Switch { plane, tier, index } = switch;
        let down = self.downlinks(tier);
        if port >= down {
            let uplink = port - down;
            return (uplink < self.uplinks(tier)).then_some(Link {
                plane,
                layer: tier + 1,
                lower: index,
                uplink,
            });
        }
        if tier == 0 {
            let host = index * self.shape.hosts_per_t0 + port;
            return (host < self.shape.hosts).then_some(Link { plane, layer: 0, lower: host, uplink: 0 });
        }
        let below = tier - 1;
        let (width, parallel) = (self.width[tier as usize], self.parallel_below(tier));
        let (above_block, place) = (index / width, index % width);
        let block = above_block * self.children(tier) + port / parallel;
        if block >= self.blocks[below as usize] {
            return None;
        }
        let uplink_of_block = place * parallel + port % parallel;
        let uplinks = self.shape.uplinks[below as usize];
        let lower = block * self.width[below as usize] + uplink_of_block / uplinks;
        Some(Link { plane, layer: tier, lower, uplink: uplink_of_block % uplinks })
    }

    /// The other end of the link on a port.
    pub fn peer(&self, switch: Switch, port: u32) -> Option<End> {
        let link = self.link_at(switch, port)?;
        Some(if port < self.downlinks(switch.tier) { self.lower_end(link) } else { self.upper_end(link) })
    }

    /// The other end of a host's link in a plane.
    pub const fn host_peer(&self, host: u32, plane: u32) -> End {
        End { node: Node::Switch(self.t0_of(plane, host)), port: self.downlink_of(host) }
    }

    // --- links --------------------------------------------------------------------------------------------------

    /// The number of a link, ordered by plane and layer.
    pub fn link_number(&self, link: Link) -> u32 {
        let uplinks = if link.layer == 0 { 1 } else { self.shape.uplinks[link.layer as usize - 1] };
        link.plane * self.first_link[4]
            + self.first_link[link.layer as usize]
            + link.lower * uplinks
            + link.uplink
    }

    /// The link with this number.
    pub fn link(&self, number: u32) -> Option<Link> {
        if number >= self.links() {
            return None;
        }
        let (plane, rest) = (number / self.first_link[4], number % self.first_link[4]);
        let layer = (0..self.tiers()).rev().find(|&t| self.first_link[t as usize] <= rest)?;
        let rest = rest - self.first_link[layer as usize];
        let uplinks = if layer == 0 { 1 } else { self.shape.uplinks[layer as usize - 1] };
        Some(Link { plane, layer, lower: rest / uplinks, uplink: rest % uplinks })
    }

    /// Whether the link exists.
    pub fn has_link(&self, link: Link) -> bool {
        link.plane < self.shape.planes
            && match link.layer {
                0 => link.lower < self.shape.hosts && link.uplink == 0,
                // A tier without uplinks may be none.
                layer => link.uplink < self.uplinks(layer - 1) && link.lower < self.tier_size(layer - 1),
            }
    }

    /// The end of a link towards the hosts.
    pub fn lower_end(&self, link: Link) -> End {
        match link.layer {
            0 => End { node: Node::Host(link.lower), port: link.plane },
            layer => {
                let tier = layer - 1;
                let switch = Switch { plane: link.plane, tier, index: link.lower };
                End { node: Node::Switch(switch), port: self.downlinks(tier) + link.uplink }
            }
        }
    }

    /// The end of a link away from the hosts.
    pub fn upper_end(&self, link: Link) -> End {
        if link.layer == 0 {
            return self.host_peer(link.lower, link.plane);
        }
        let (tier, below) = (link.layer, link.layer - 1);
        let width_below = self.width[below as usize];
        let (block, place_below) = (link.lower / width_below, link.lower % width_below);
        let uplink_of_block = place_below * self.shape.uplinks[below as usize] + link.uplink;
        let (above_block, child) = self.parent(below, block);
        let parallel = self.parallel_below(tier);
        let index = above_block * self.width[tier as usize] + uplink_of_block / parallel;
        let port = child * parallel + uplink_of_block % parallel;
        End { node: Node::Switch(Switch { plane: link.plane, tier, index }), port }
    }

    /// The switch that an uplink leads to.
    pub(crate) fn above(&self, switch: Switch, uplink: u32) -> Switch {
        let link = Link { plane: switch.plane, layer: switch.tier + 1, lower: switch.index, uplink };
        match self.upper_end(link).node {
            Node::Switch(above) => above,
            Node::Host(_) => unreachable!("the upper end of a link is a switch"),
        }
    }

    // --- routing ------------------------------------------------------------------------------------------------

    /// The ports by which a switch may forward a packet to `host`, from which ECMP chooses.
    pub fn route(&self, switch: Switch, host: u32) -> Route {
        let Switch { tier, index, .. } = switch;
        let up = Route::Up { first: self.downlinks(tier), count: self.uplinks(tier) };
        if tier == 0 {
            let here = index == host / self.shape.hosts_per_t0;
            return if here { Route::Down { first: self.downlink_of(host), count: 1 } } else { up };
        }
        let (block, child) = self.parent(tier - 1, self.block_of(tier - 1, host));
        if block != index / self.width[tier as usize] {
            return up;
        }
        let parallel = self.parallel_below(tier);
        Route::Down { first: child * parallel, count: parallel }
    }

    /// The lowest tier of which one block contains both hosts: 0 if they have the same T0.
    pub fn turn(&self, a: u32, b: u32) -> u8 {
        let (mut x, mut y, mut level) = (a / self.shape.hosts_per_t0, b / self.shape.hosts_per_t0, 0);
        while x != y {
            (x, y) = (self.parent(level, x).0, self.parent(level, y).0);
            level += 1;
        }
        level
    }

    /// Number of paths from one host to another, over all planes. Four tiers have more than 2^32.
    pub fn path_count(&self, a: u32, b: u32) -> u64 {
        let turn = self.turn(a, b) as usize;
        self.shape.uplinks[..turn].iter().map(|&u| u64::from(u)).product::<u64>()
            * u64::from(self.shape.planes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::shape::{Ratio, Sizing};
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Fabrics of every kind that are small enough to visit every link.
    pub(crate) fn any_fabric() -> impl Strategy<Value = Fabric> {
        let sizing = (1u32..60, 1u32..4, 1u8..=4, 2u32..17, 1u32..4, 1u32..3, 1u32..4);
        let fixed =
            (proptest::option::of(1u32..9), proptest::option::of(1u32..6), proptest::option::of(1u32..4));
        (sizing, fixed)
            .prop_filter_map(
                "no such fabric",
                |((hosts, planes, tiers, radix, down, up, down1), (d, g, parallel))| {
                    let mut sizing = Sizing::new(hosts, planes, tiers, radix);
                    sizing.oversubscription =
                        [Ratio { down, up }, Ratio { down: down1, up: 1 }, Ratio::NON_BLOCKING];
                    sizing.hosts_per_t0 = d;
                    sizing.t0s_per_pod = g;
                    sizing.parallel = parallel;
                    sizing.smallest().ok()
                },
            )
            .prop_map(|shape| Fabric::new(shape).unwrap())
    }

    proptest! {
        #[test]
        fn both_ends_of_every_link_agree(fabric in any_fabric()) {
            let mut ends = 0;
            for switch in fabric.all_switches() {
                let ports = fabric.downlinks(switch.tier) + fabric.uplinks(switch.tier);
                prop_assert!(ports <= fabric.shape().radix);
                prop_assert_eq!((fabric.link_at(switch, ports), fabric.peer(switch, ports)), (None, None));
                for port in 0..ports {
                    let Some(link) = fabric.link_at(switch, port) else { continue };
                    ends += 1;
                    prop_assert!(fabric.has_link(link));
                    let here = End { node: Node::Switch(switch), port };
                    let peer = fabric.peer(switch, port).unwrap();
                    prop_assert!(fabric.lower_end(link) == here || fabric.upper_end(link) == here);
                    match peer.node {
                        Node::Switch(other) => prop_assert_eq!(fabric.peer(other, peer.port), Some(here)),
                        Node::Host(host) => {
                            ends += 1;
                            prop_assert_eq!(fabric.host_peer(host, peer.port), here);
                        }
                    }
                }
            }
            prop_assert_eq!(ends, 2 * fabric.links());
        }

        #[test]
        fn numbers_of_switches_and_links_are_dense_and_go_both_ways(fabric in any_fabric()) {
            for number in 0..fabric.switches() {
                prop_assert_eq!(fabric.switch_number(fabric.switch_at(number).unwrap()), number);
            }
            prop_assert_eq!(fabric.switch_at(fabric.switches()), None);
            for number in 0..fabric.links() {
                prop_assert_eq!(fabric.link_number(fabric.link(number).unwrap()), number);
            }
            prop_assert_eq!(fabric.link(fabric.links()), None);
        }

        #[test]
        fn counts_are_those_of_all_switches_links_and_blocks(fabric in any_fabric()) {
            let (planes, mut counts) = (fabric.shape().planes, fabric.counts());
            for switch in fabric.all_switches().filter(|switch| switch.plane == planes - 1) {
                counts.switches[switch.tier as usize] -= 1;
            }
            for link in (0..fabric.links()).map(|n| fabric.link(n).unwrap()).filter(|link| link.plane == 0) {
                counts.links[link.layer as usize] -= 1;
            }
            prop_assert_eq!(counts, Counts { switches: [0; 4], links: [0; 4] });
            for level in 0..fabric.tiers() {
                let blocks: HashSet<_> = (0..fabric.shape().hosts).map(|h| fabric.block_of(level, h)).collect();
                prop_assert_eq!(blocks, (0..fabric.blocks(level)).collect::<HashSet<_>>());
            }
        }

        #[test]
        fn there_is_nothing_beyond_the_last_plane_tier_switch_or_uplink(fabric in any_fabric()) {
            let Shape { hosts, planes, tiers, .. } = *fabric.shape();
            let switch = Switch { plane: planes - 1, tier: tiers - 1, index: 0 };
            prop_assert!(fabric.has_switch(switch));
            for none in [
                Switch { plane: planes, ..switch },
                Switch { tier: tiers, ..switch },
                Switch { tier: u8::MAX, ..switch },
            ] {
                prop_assert!(!fabric.has_switch(none), "{none:?}");
            }
            for layer in 0..tiers {
                let tier = layer.saturating_sub(1);
                let none = Switch { tier, index: fabric.tier_size(tier), ..switch };
                prop_assert!(!fabric.has_switch(none), "{none:?}");
                let (lowers, uplinks) =
                    if layer == 0 { (hosts, 1) } else { (fabric.tier_size(tier), fabric.uplinks(tier)) };
                let last = Link { plane: planes - 1, layer, lower: lowers - 1, uplink: uplinks - 1 };
                prop_assert!(fabric.has_link(last));
                for none in [
                    Link { plane: planes, ..last },
                    Link { lower: lowers, ..last },
                    Link { uplink: uplinks, ..last },
                    Link { layer: tiers, ..last },
                    Link { layer: u8::MAX, ..last },
                ] {
                    prop_assert!(!fabric.has_link(none), "{none:?}");
                }
            }
        }

        #[test]
        fn following_any_choice_of_routes_reaches_the_host_in_2_turn_plus_1_switches(
            fabric in any_fabric(), a in any::<u32>(), b in any::<u32>(), choice in any::<u32>()
        ) {
            let (a, b) = (a % fabric.shape().hosts, b % fabric.shape().hosts);
            let mut at = fabric.host_peer(a, choice % fabric.shape().planes).node;
            let mut switches = 0;
            while let Node::Switch(switch) = at {
                switches += 1;
                prop_assert!(switches <= 2 * fabric.turn(a, b) + 1);
                let (Route::Down { first, count } | Route::Up { first, count }) = fabric.route(switch, b);
                at = fabric.peer(switch, first + choice % count).unwrap().node;
            }
            prop_assert_eq!(at, Node::Host(b));
            prop_assert_eq!(switches, 2 * fabric.turn(a, b) + 1);
        }
    }
}
