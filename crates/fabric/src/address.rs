//! The SRv6 addressing plan: uSIDs, path addresses, forwarding tables, addresses of link ends (docs/spec/fabric.md,
//! "SRv6 addressing plan").
//!
//! | what | uSID |
//! |---|---|
//! | switch | 1 + (plane, tier, index), each in as few bits as the fabric needs; at most 0xDFFF |
//! | downlink d of a T0 | 0xE000 + d, meaningful at that T0 only |
//!
//! A switch with parallel links to its neighbours has one uSID per link (its *aliases*, consecutive). So every table
//! entry has exactly one next hop, and every link has its own path.

use core::net::Ipv6Addr;

use openmrc_wire::usid::{self, UsidAddress};

use crate::fabric::{Fabric, Link, Node, Switch};
use crate::path::{Path, bits};

/// Why a fabric has no addressing plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddressError {
    /// Paths have more switches than an address holds uSIDs.
    #[error(
        "tiers: a path over {tiers} tiers needs {need} uSIDs, an address holds {}; at most 3 tiers",
        usid::MAX
    )]
    Tiers {
        /// Tiers.
        tiers: u8,
        /// uSIDs needed.
        need: usize,
    },
    /// More switches than uSIDs.
    #[error(
        "planes, tiers, hosts: the last switch would get uSID {last:#x}, the limit is {limit:#x} \
         ({plane} bits of plane, {tier} of tier, {index} of index)"
    )]
    Usids {
        /// uSID of the last switch.
        last: u64,
        /// Largest uSID of a switch.
        limit: u16,
        /// Bits of the plane.
        plane: u32,
        /// Bits of the tier.
        tier: u32,
        /// Bits of the index.
        index: u32,
    },
    /// More downlinks than local uSIDs.
    #[error("hosts_per_t0: {downlinks} downlinks, but there are {limit} local uSIDs")]
    Downlinks {
        /// Downlinks of a T0.
        downlinks: u32,
        /// Number of local uSIDs.
        limit: u32,
    },
}

/// An entry of a forwarding table: packets to `block:usid::/48` leave by `port`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The uSID after the block.
    pub usid: u16,
    /// Port by which the packet leaves.
    pub port: u32,
}

/// The uSIDs of a fabric and their block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressPlan {
    block: u32,
    tier_bits: u32,
    index_bits: u32,
}

impl AddressPlan {
    /// The default block, 5f00::/32 (RFC 9602 reserves 5f00::/16 for SRv6 SIDs).
    pub const DEFAULT_BLOCK: u32 = 0x5f00_0000;

    /// The plan for a fabric under a 32-bit block.
    ///
    /// # Errors
    /// [`AddressError`], with the numbers, if the fabric does not fit.
    pub fn new(fabric: &Fabric, block: u32) -> Result<Self, AddressError> {
        let tiers = fabric.tiers();
        let need = 2 * tiers as usize;
        if need > usid::MAX {
            return Err(AddressError::Tiers { tiers, need });
        }
        let limit = u32::from(u16::MAX - usid::LOCAL_MIN) + 1;
        let downlinks = fabric.downlinks(0);
        if downlinks > limit {
            return Err(AddressError::Downlinks { downlinks, limit });
        }
        let most = (0..tiers).map(|t| fabric.tier_size(t) * fabric.lanes(t)).max().unwrap_or(1);
        let (plane_bits, tier_bits, index_bits) =
            (bits(fabric.shape().planes), bits(tiers.into()), bits(most));
        let plan = AddressPlan { block, tier_bits, index_bits };
        let last_plane = fabric.shape().planes - 1;
        let last_of = |t: u8| plan.number(last_plane, t, fabric.tier_size(t) * fabric.lanes(t) - 1);
        let last = (0..tiers).map(last_of).max().unwrap_or(0);
        if last > u64::from(usid::GLOBAL_MAX) {
            let limit = usid::GLOBAL_MAX;
            return Err(AddressError::Usids {
                last,
                limit,
                plane: plane_bits,
                tier: tier_bits,
                index: index_bits,
            });
        }
        Ok(plan)
    }

    fn number(&self, plane: u32, tier: u8, index: u32) -> u64 {
        let plane_tier = u64::from(plane) << self.tier_bits | u64::from(tier);
        (plane_tier << self.index_bits | u64::from(index)) + u64::from(usid::GLOBAL_MIN)
    }

    /// The 32-bit block.
    pub const fn block(&self) -> u32 {
        self.block
    }

    /// The uSID of a switch; `alias` numbers the parallel links from one neighbour.
    pub fn usid(&self, fabric: &Fabric, switch: Switch, alias: u32) -> u16 {
        self.number(switch.plane, switch.tier, switch.index * fabric.lanes(switch.tier) + alias) as u16
    }

    /// The switch and alias of a uSID; `None` if the uSID is not in use.
    pub fn owner(&self, fabric: &Fabric, value: u16) -> Option<(Switch, u32)> {
        if !usid::is_global(value) {
            return None;
        }
        let number = u32::from(value - usid::GLOBAL_MIN);
        let index = number & ((1 << self.index_bits) - 1);
        let tier = (number >> self.index_bits & ((1 << self.tier_bits) - 1)) as u8;
        let plane = number >> self.index_bits >> self.tier_bits;
        let lanes = fabric.lanes(tier);
        let switch = Switch { plane, tier, index: index / lanes };
        fabric.has_switch(switch).then_some((switch, index % lanes))
    }

    /// The local uSID of a T0's downlink.
    pub const fn downlink_usid(downlink: u32) -> u16 {
        usid::LOCAL_MIN + downlink as u16
    }

    /// The downlink of a local uSID.
    pub fn downlink(fabric: &Fabric, value: u16) -> Option<u32> {
        let downlink = u32::from(value.checked_sub(usid::LOCAL_MIN)?);
        (downlink < fabric.downlinks(0)).then_some(downlink)
    }

    /// The outer destination address of a path: one uSID per switch, then the receiver's downlink.
    pub fn address(&self, fabric: &Fabric, path: &Path) -> UsidAddress {
        let mut list = [0; usid::MAX];
        let mut len = 0;
        for step in path.steps(fabric) {
            list[len] = self.usid(fabric, step.switch, step.alias);
            len += 1;
        }
        list[len] = Self::downlink_usid(fabric.downlink_of(path.dst));
        UsidAddress::new(self.block, &list[..=len]).expect("a plan is only made for fabrics whose paths fit")
    }

    /// The outer destination address of a loop: from a host to its T0 on a plane and back to the host; with an uplink of
    /// the T0, over the switch at its other end and back by the same link. `None` if there is no such host, plane or
    /// uplink.
    pub fn loop_address(
        &self,
        fabric: &Fabric,
        host: u32,
        plane: u32,
        uplink: Option<u32>,
    ) -> Option<UsidAddress> {
        if host >= fabric.shape().hosts || plane >= fabric.shape().planes {
            return None;
        }
        let Node::Switch(t0) = fabric.host_peer(host, plane).node else { return None };
        let (own, downlink) = (self.usid(fabric, t0, 0), Self::downlink_usid(fabric.downlink_of(host)));
        let Some(uplink) = uplink else { return UsidAddress::new(self.block, &[own, downlink]).ok() };
        let port = fabric.downlinks(0).checked_add(uplink)?;
        let upper = fabric.peer(t0, port)?;
        let Node::Switch(t1) = upper.node else { return None };
        let by = |switch, port| self.entries(fabric, switch).find(|e| e.port == port).map(|e| e.usid);
        UsidAddress::new(self.block, &[own, by(t0, port)?, by(t1, upper.port)?, downlink]).ok()
    }

    /// The /48 that a switch matches for a uSID.
    pub const fn prefix(&self, value: u16) -> Ipv6Addr {
        UsidAddress::prefix(self.block, value)
    }

    /// The uSIDs of a switch. For each of them it shifts the address and looks up the next uSID.
    pub fn own(&self, fabric: &Fabric, switch: Switch) -> impl Iterator<Item = u16> + use<> {
        let first = self.usid(fabric, switch, 0);
        first..first + fabric.lanes(switch.tier) as u16
    }

    /// The static routes of a switch: one uSID for each connected port.
    pub fn entries(&self, fabric: &Fabric, switch: Switch) -> impl Iterator<Item = Entry> + use<> {
        let (fabric, plan) = (*fabric, *self);
        let down = fabric.downlinks(switch.tier);
        (0..down + fabric.uplinks(switch.tier)).filter_map(move |port| {
            let link = fabric.link_at(switch, port)?;
            let usid = match fabric.peer(switch, port)?.node {
                Node::Host(host) => Self::downlink_usid(fabric.downlink_of(host)),
                Node::Switch(peer) => {
                    let alias =
                        if link.layer == fabric.top() { link.uplink % fabric.lanes(link.layer) } else { 0 };
                    plan.usid(&fabric, peer, alias)
                }
            };
            Some(Entry { usid, port })
        })
    }
}

/// Addresses of the two ends of every link: one /127 per link (RFC 6164) in one 32-bit prefix.
///
/// ```text
/// | prefix, 32 bits | plane 8, layer 8 | lower index, 32 bits | uplink, 16 bits | 30 zeros | 1 | end |
/// ```
/// End 0 is the lower end (host, or switch of the lower tier), end 1 the upper one. The bit before it is 1, so that no
/// end has the all-zeros interface identifier, which is the Subnet-Router anycast address (RFC 6164, section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkPrefix(pub u32);

impl LinkPrefix {
    /// The default, fd5f::/32, unique local addresses (RFC 4193): link addresses never leave the link.
    pub const DEFAULT: LinkPrefix = LinkPrefix(0xfd5f_0000);

    /// The address of an end of a link.
    pub const fn end(self, link: Link, upper: bool) -> Ipv6Addr {
        let kind = (link.plane << 8 | link.layer as u32) as u128;
        let place = (link.lower as u128) << 48 | (link.uplink as u128) << 32;
        let value = (self.0 as u128) << 96 | kind << 80 | place | 2 | upper as u128;
        Ipv6Addr::from_bits(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::End;
    use crate::fabric::tests::any_fabric;
    use crate::shape::Sizing;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn reference() -> (Fabric, AddressPlan) {
        let fabric = Fabric::new(Sizing::new(131_072, 8, 2, 512).smallest().unwrap()).unwrap();
        (fabric, AddressPlan::new(&fabric, AddressPlan::DEFAULT_BLOCK).unwrap())
    }

    #[test]
    fn every_switch_of_the_reference_holds_513_entries() {
        let (fabric, plan) = reference();
        for tier in [0, 1] {
            let switch = Switch { plane: 7, tier, index: 200 };
            assert_eq!(plan.own(&fabric, switch).count() + plan.entries(&fabric, switch).count(), 513);
        }
    }

    #[test]
    fn a_reference_path_is_t0_t1_t0_downlink() {
        let (fabric, plan) = reference();
        let path = Path { src: 0, dst: 131_071, plane: 3, uplinks: [200, 0, 0] };
        // 3 bits of plane, 1 of tier, 9 of index, plus one.
        let t0 = |i: u32| 1 + (3 << 10 | i);
        let expected = format!("5f00:0:{:x}:{:x}:{:x}:e0ff::", t0(0), t0(512 + 200), t0(511));
        assert_eq!(plan.address(&fabric, &path).to_ipv6(), expected.parse::<Ipv6Addr>().unwrap());
        let neighbour = Path { src: 0, dst: 1, plane: 0, uplinks: [0; 3] };
        assert_eq!(plan.address(&fabric, &neighbour).to_ipv6().to_string(), "5f00:0:1:e001::");
    }

    #[test]
    fn a_t0_has_as_many_local_usids_as_downlinks() {
        let (fabric, _) = reference();
        for downlink in 0..256 {
            let usid = AddressPlan::downlink_usid(downlink);
            assert_eq!(
                (usid, AddressPlan::downlink(&fabric, usid)),
                (0xe000 + downlink as u16, Some(downlink))
            );
        }
        assert_eq!(AddressPlan::downlink(&fabric, 0xe100), None);
        assert_eq!(AddressPlan::downlink(&fabric, 0xdfff), None);
    }

    #[test]
    fn the_address_of_a_link_is_prefix_plane_layer_lower_uplink_and_end() {
        let link = Link { plane: 3, layer: 1, lower: 0x1_0011, uplink: 5 };
        assert_eq!(LinkPrefix::DEFAULT.end(link, true).to_string(), "fd5f:0:301:1:11:5:0:3");
    }

    #[test]
    fn fabrics_that_do_not_fit_are_refused_with_the_numbers() {
        let fabric = Fabric::new(Sizing::new(300_000, 1, 4, 64).smallest().unwrap()).unwrap();
        let error = AddressPlan::new(&fabric, 0).unwrap_err();
        assert_eq!(error, AddressError::Tiers { tiers: 4, need: 8 });
        let fabric = Fabric::new(Sizing::new(1_000_000, 8, 3, 512).smallest().unwrap()).unwrap();
        let text = AddressPlan::new(&fabric, 0).unwrap_err().to_string();
        assert!(text.contains("0xdfff") && text.contains("3 bits of plane"), "{text}");
    }

    /// Forwards a packet by nothing but the tables and links of the switches; returns the host that receives it, and the
    /// links after the first.
    fn forward(
        fabric: &Fabric,
        plan: &AddressPlan,
        mut at: End,
        mut address: UsidAddress,
    ) -> Result<(u32, Vec<Link>), String> {
        let mut links = Vec::new();
        for _ in 0..16 {
            let switch = match at.node {
                Node::Host(host) => return Ok((host, links)),
                Node::Switch(switch) => switch,
            };
            if plan.own(fabric, switch).any(|own| own == address.active()) {
                address = address.shift();
            }
            let out: Vec<_> = plan.entries(fabric, switch).filter(|e| e.usid == address.active()).collect();
            let [entry] = out[..] else {
                return Err(format!("{switch:?}: {} next hops for {address:?}", out.len()));
            };
            links.extend(fabric.link_at(switch, entry.port));
            at = fabric.peer(switch, entry.port).unwrap();
        }
        Err("a loop".into())
    }

    /// The link and end that an address names.
    fn link_of(address: Ipv6Addr) -> (Link, bool) {
        let value = address.to_bits();
        let link = Link {
            plane: (value >> 88) as u32 & 0xff,
            layer: (value >> 80) as u8,
            lower: (value >> 48) as u32,
            uplink: (value >> 32) as u32 & 0xffff,
        };
        (link, value & 1 == 1)
    }

    proptest! {
        #[test]
        fn tables_lead_every_path_to_its_host(fabric in any_fabric(), a in any::<u32>(), b in any::<u32>(), n in any::<u64>()) {
            let hosts = fabric.shape().hosts;
            let (src, dst) = (a % hosts, b % hosts);
            prop_assume!(src != dst);
            let Ok(plan) = AddressPlan::new(&fabric, 0x5f00_0000) else { return Ok(()) };
            let path = Path::nth(&fabric, src, dst, n % fabric.path_count(src, dst)).unwrap().unwrap();
            let start = fabric.host_peer(src, path.plane);
            let received = forward(&fabric, &plan, start, plan.address(&fabric, &path));
            prop_assert_eq!(received.map(|(host, _)| host), Ok(dst));
        }

        #[test]
        fn a_loop_crosses_its_uplink_both_ways_and_comes_back(fabric in any_fabric(), a in any::<u32>(), b in any::<u32>()) {
            let Ok(plan) = AddressPlan::new(&fabric, 0x5f00_0000) else { return Ok(()) };
            let (host, plane) = (a % fabric.shape().hosts, b % fabric.shape().planes);
            let start = fabric.host_peer(host, plane);
            let Node::Switch(t0) = start.node else { unreachable!("a host's peer is a T0") };
            let own = Link { plane, layer: 0, lower: host, uplink: 0 };
            let address = plan.loop_address(&fabric, host, plane, None).unwrap();
            prop_assert_eq!(forward(&fabric, &plan, start, address), Ok((host, vec![own])));
            let uplinks = fabric.uplinks(0);
            for uplink in 0..uplinks {
                let address = plan.loop_address(&fabric, host, plane, Some(uplink)).unwrap();
                let link = Link { plane, layer: 1, lower: t0.index, uplink };
                prop_assert_eq!(forward(&fabric, &plan, start, address), Ok((host, vec![link, link, own])));
            }
            for (host, plane, uplink) in [
                (fabric.shape().hosts, plane, None),
                (host, fabric.shape().planes, None),
                (host, plane, Some(uplinks)),
                (host, plane, Some(u32::MAX)),
            ] {
                prop_assert_eq!(plan.loop_address(&fabric, host, plane, uplink), None);
            }
        }

        #[test]
        fn every_usid_belongs_to_one_switch(fabric in any_fabric()) {
            let Ok(plan) = AddressPlan::new(&fabric, 0x5f00_0000) else { return Ok(()) };
            let mut owners = HashMap::new();
            for switch in fabric.all_switches() {
                for (alias, usid) in plan.own(&fabric, switch).enumerate() {
                    prop_assert_eq!(owners.insert(usid, switch), None);
                    prop_assert_eq!(plan.owner(&fabric, usid), Some((switch, alias as u32)));
                }
            }
            for usid in 0..=u16::MAX {
                prop_assert_eq!(plan.owner(&fabric, usid).map(|(switch, _)| switch), owners.get(&usid).copied());
            }
        }

        #[test]
        fn a_link_address_determines_its_link(fabric in any_fabric(), n in any::<u32>(), upper in any::<bool>()) {
            let link = fabric.link(n % fabric.links()).unwrap();
            let address = LinkPrefix::DEFAULT.end(link, upper);
            prop_assert_eq!(link_of(address), (link, upper));
        }
    }
}
