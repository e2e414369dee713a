//! The meaning of a path address in a capture: the inverse of [`crate::AddressPlan::address`].
//!
//! Switches remove their uSIDs from the list, so a capture shows the remaining list: the whole list on the sender's
//! link, the list without the sender's T0 after that T0, and so on. The remaining list determines its switches and
//! links. The removed part is known only as far as the remaining one implies it.

use core::net::Ipv6Addr;

use openmrc_wire::usid::{self, UsidAddress, UsidError};

use crate::address::AddressPlan;
use crate::fabric::{End, Fabric, Link, Node, Switch};
use crate::path::Path;

/// Why an address is not a path of this fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TraceError {
    /// The address is in another block.
    #[error("{address} is not in the fabric's block {block}/32")]
    Block {
        /// The address.
        address: Ipv6Addr,
        /// The fabric's block.
        block: Ipv6Addr,
    },
    /// The address is not a list of uSIDs.
    #[error("{address}: {source}")]
    List {
        /// The address.
        address: Ipv6Addr,
        /// The cause.
        source: UsidError,
    },
    /// A uSID that is not in use.
    #[error("{address}: uSID {position} is {usid:#06x}, which no switch or downlink of this fabric has")]
    Unknown {
        /// The address.
        address: Ipv6Addr,
        /// Position in the list, from 1.
        position: usize,
        /// The uSID.
        usid: u16,
    },
    /// A downlink that is not at the end, or an end that is not a downlink.
    #[error("{address}: uSID {position}, {usid:#06x}, is {what}")]
    Order {
        /// The address.
        address: Ipv6Addr,
        /// Position in the list, from 1.
        position: usize,
        /// The uSID.
        usid: u16,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Two switches that are not neighbours.
    #[error("{address}: no link joins {from} and {to}")]
    NoLink {
        /// The address.
        address: Ipv6Addr,
        /// A switch.
        from: Switch,
        /// The next switch in the list.
        to: Switch,
    },
    /// A downlink without a host.
    #[error("{address}: {t0} has no host at downlink {downlink}")]
    NoHost {
        /// The address.
        address: Ipv6Addr,
        /// The T0.
        t0: Switch,
        /// Its downlink.
        downlink: u32,
    },
}

/// The part of a path that an address shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    switches: [Option<Switch>; usid::MAX],
    /// By which a packet comes to the switch, or the host, with this place in the list; of the first it is unknown.
    links: [Option<Link>; usid::MAX],
    /// The downlink at the end of the list.
    pub downlink: u32,
    /// The receiver; unknown if only the downlink is left.
    pub host: Option<u32>,
    /// Whether the list is whole: it begins at a T0 and goes up. A list of one T0 and its downlink may be a whole path
    /// under that T0 or the end of a longer path; it counts as whole.
    pub whole: bool,
    /// Uplinks used at the sender's T0 and T1, as far as the list shows or implies them.
    pub uplinks: [Option<u32>; 3],
}

impl Trace {
    /// Finds out what an address means.
    ///
    /// # Errors
    /// [`TraceError`] if it is not a path, or the end of a path, of this fabric.
    pub fn new(fabric: &Fabric, plan: &AddressPlan, address: Ipv6Addr) -> Result<Self, TraceError> {
        let block = (u128::from(plan.block()) << 96, u128::MAX << 96);
        if address.to_bits() & block.1 != block.0 {
            return Err(TraceError::Block { address, block: Ipv6Addr::from_bits(block.0) });
        }
        let list = UsidAddress::parse(address).map_err(|source| TraceError::List { address, source })?;
        let last = list.len() - 1;
        let mut named = [None; usid::MAX];
        for (i, value) in list.iter().enumerate() {
            let (position, usid) = (i + 1, value);
            if i == last {
                break;
            }
            if usid::is_local(value) {
                let what = "a downlink, but the list goes on";
                return Err(TraceError::Order { address, position, usid, what });
            }
            named[i] =
                Some(plan.owner(fabric, value).ok_or(TraceError::Unknown { address, position, usid })?);
        }
        let (position, usid) = (last + 1, list.get(last));
        if usid::is_global(usid) {
            let what = "not a downlink, but the list ends";
            return Err(TraceError::Order { address, position, usid, what });
        }
        let downlink =
            AddressPlan::downlink(fabric, usid).ok_or(TraceError::Unknown { address, position, usid })?;
        let switches = named.map(|n| n.map(|(switch, _)| switch));
        let mut trace = Trace {
            switches,
            links: [None; usid::MAX],
            downlink,
            host: None,
            whole: false,
            uplinks: [None; 3],
        };
        trace.join(fabric, &named, address)?;
        if let Some(t0) = trace.switches().last() {
            let host = t0.index * fabric.shape().hosts_per_t0 + downlink;
            let link = fabric.link_at(t0, downlink).filter(|_| t0.tier == 0);
            match (t0.tier, link) {
                (0, Some(_)) => trace.host = Some(host),
                (0, None) => return Err(TraceError::NoHost { address, t0, downlink }),
                _ => {
                    let what = "a downlink of a T0, but the switch before it is not a T0";
                    return Err(TraceError::Order { address, position, usid, what });
                }
            }
            trace.links[last] = link;
        }
        Ok(trace)
    }

    /// The remaining switches.
    pub fn switches(&self) -> impl DoubleEndedIterator<Item = Switch> + '_ {
        self.switches.iter().flatten().copied()
    }

    /// The remaining links after the first switch of the list: those between its switches, and the receiver's.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.links.iter().flatten().copied()
    }

    /// The plane; unknown if only the downlink is left.
    pub fn plane(&self) -> Option<u32> {
        self.switches[0].map(|s| s.plane)
    }

    /// The path, if the list is whole and the sender is known.
    pub fn path(&self, src: u32) -> Option<Path> {
        let plane = self.plane()?;
        let dst = self.host.filter(|_| self.whole)?;
        Some(Path { src, dst, plane, uplinks: self.uplinks.map(|u| u.unwrap_or(0)) })
    }

    /// Finds the link between two neighbours in the list, by the uSID of the later one.
    fn join(
        &mut self,
        fabric: &Fabric,
        named: &[Option<(Switch, u32)>; usid::MAX],
        address: Ipv6Addr,
    ) -> Result<(), TraceError> {
        let mut falling = false;
        for i in 1..usid::MAX {
            let (Some((from, _)), Some((to, alias))) = (named[i - 1], named[i]) else { break };
            let rising = to.tier == from.tier + 1;
            let no_link = TraceError::NoLink { address, from, to };
            if from.plane != to.plane || !rising && from.tier != to.tier + 1 || rising && falling {
                return Err(no_link);
            }
            falling |= !rising;
            let (lower, upper) = if rising { (from, to) } else { (to, from) };
            let link = joining(fabric, lower, upper, alias).ok_or(no_link)?;
            self.links[i] = Some(link);
            // The way down mirrors the way up, so a link on the way down determines the uplink on the way up.
            let slot = &mut self.uplinks[lower.tier as usize];
            if slot.is_some_and(|chosen| chosen != link.uplink) {
                return Err(no_link);
            }
            *slot = Some(link.uplink);
        }
        self.whole = matches!(named[0], Some((Switch { tier: 0, .. }, _)));
        Ok(())
    }
}

/// The link between two neighbours with this alias.
fn joining(fabric: &Fabric, lower: Switch, upper: Switch, alias: u32) -> Option<Link> {
    let layer = upper.tier;
    (0..fabric.uplinks(lower.tier))
        .map(|uplink| Link { plane: lower.plane, layer, lower: lower.index, uplink })
        .filter(|link| alias == if layer == fabric.top() { link.uplink % fabric.lanes(layer) } else { 0 })
        .find(|link| matches!(fabric.upper_end(*link), End { node: Node::Switch(s), .. } if s == upper))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tests::any_fabric;
    use crate::shape::Sizing;
    use proptest::prelude::*;

    fn small() -> (Fabric, AddressPlan) {
        let fabric =
            Fabric::new(Sizing { parallel: Some(1), ..Sizing::new(15, 2, 2, 8) }.smallest().unwrap())
                .unwrap();
        (fabric, AddressPlan::new(&fabric, 0x5f00_0000).unwrap())
    }

    #[test]
    fn wrong_addresses_are_refused_with_the_reason() {
        let (fabric, plan) = small();
        let trace = |text: &str| Trace::new(&fabric, &plan, text.parse().unwrap()).unwrap_err().to_string();
        // Four T0 (0x1..0x4) and four T1 (0x5..0x8) in plane 0; plane 1 follows from 0x9.
        assert_eq!(trace("2001:db8:1:e000::"), "2001:db8:1:e000:: is not in the fabric's block 5f00::/32");
        assert_eq!(trace("5f00::"), "5f00::: a path needs at least one uSID");
        assert_eq!(trace("5f00:0:1::e000"), "5f00:0:1::e000: uSID 2 is 0, but another one follows it");
        assert_eq!(
            trace("5f00:0:1:ffff::"),
            "5f00:0:1:ffff::: uSID 2 is 0xffff, which no switch or downlink of this fabric has"
        );
        assert_eq!(
            trace("5f00:0:e000:1::"),
            "5f00:0:e000:1::: uSID 1, 0xe000, is a downlink, but the list goes on"
        );
        assert_eq!(
            trace("5f00:0:1:5::"),
            "5f00:0:1:5::: uSID 2, 0x0005, is not a downlink, but the list ends"
        );
        assert_eq!(trace("5f00:0:1:2:e000::"), "5f00:0:1:2:e000::: no link joins p0/t0-0 and p0/t0-1");
        assert_eq!(trace("5f00:0:1:d:a:e000::"), "5f00:0:1:d:a:e000::: no link joins p0/t0-0 and p1/t1-0");
        // Down and up again, by the same uplinks.
        assert_eq!(
            trace("5f00:0:1:5:2:5:3:e000"),
            "5f00:0:1:5:2:5:3:e000: no link joins p0/t0-1 and p0/t1-0"
        );
        assert_eq!(trace("5f00:0:4:e003::"), "5f00:0:4:e003::: p0/t0-3 has no host at downlink 3");
    }

    #[test]
    fn the_remaining_list_determines_where_the_packet_goes() {
        let (fabric, plan) = small();
        let trace = |text: &str| Trace::new(&fabric, &plan, text.parse().unwrap()).unwrap();
        let behind_t0 = trace("5f00:0:6:3:e001::");
        assert_eq!((behind_t0.host, behind_t0.whole, behind_t0.uplinks[0]), (Some(9), false, Some(1)));
        let behind_all = trace("5f00:0:e001::");
        assert_eq!((behind_all.host, behind_all.plane(), behind_all.downlink), (None, None, 1));
    }

    proptest! {
        #[test]
        fn an_address_determines_its_path(fabric in any_fabric(), a in any::<u32>(), b in any::<u32>(), n in any::<u64>()) {
            let hosts = fabric.shape().hosts;
            let (src, dst) = (a % hosts, b % hosts);
            prop_assume!(src != dst);
            let Ok(plan) = AddressPlan::new(&fabric, 0x5f00_0000) else { return Ok(()) };
            let path = Path::nth(&fabric, src, dst, n % fabric.path_count(src, dst)).unwrap().unwrap();
            let mut address = plan.address(&fabric, &path);
            let trace = Trace::new(&fabric, &plan, address.to_ipv6()).unwrap();
            prop_assert_eq!(trace.path(src), Some(path));
            prop_assert_eq!(trace.switches().collect::<Vec<_>>(), path.steps(&fabric).map(|s| s.switch).collect::<Vec<_>>());
            prop_assert_eq!(trace.links().collect::<Vec<_>>(), path.links(&fabric).skip(1).collect::<Vec<_>>());
            while address.len() > 1 {
                let trace = Trace::new(&fabric, &plan, address.to_ipv6()).unwrap();
                prop_assert_eq!((trace.host, trace.plane()), (Some(dst), Some(path.plane)));
                address = address.shift();
            }
        }

        #[test]
        fn any_address_is_a_path_or_an_error(low in any::<[u16; 6]>(), len in 0usize..7) {
            let (fabric, plan) = small();
            let mut bits = 0x5f00_0000u128 << 96;
            for (i, value) in low.iter().take(len).enumerate() {
                // Mostly small uSIDs, so that many of them are in use.
                let value = if value % 5 == 0 { 0xe000 | value & 7 } else { value % 20 };
                bits |= u128::from(value) << (80 - 16 * i);
            }
            if let Ok(trace) = Trace::new(&fabric, &plan, Ipv6Addr::from_bits(bits)) {
                prop_assert!(trace.downlink < 4);
            }
        }
    }
}
