//! Entropy value <-> path, both ways, by arithmetic (docs/spec/paths.md, "EV <-> path in SRv6").
//!
//! The fields of an EV, from its most significant bit down, are the plane, the uplink of the T0, the uplink of the T1
//! (three tiers) and the uplink of the T2 (four tiers); the rest is zero. Each field is as wide as the fabric needs. On
//! its way down a path uses the switch at the same index in each block as on its way up, so the uplinks determine every
//! link. Unused uplink fields are zero, so every path has exactly one EV.

use crate::fabric::{End, Fabric, Link, Node, Switch};
use openmrc_wire::Ev;

/// Why an EV is not a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EvError {
    /// The fabric has more paths than 32-bit EVs.
    #[error("EV: this fabric needs {bits} bits to name a path, an EV has 32")]
    TooWide {
        /// Bits needed.
        bits: u32,
    },
    /// A field is a plane or an uplink that the fabric does not have.
    #[error("EV {ev:#010x}: {field} is {value}, this fabric has {count}")]
    Field {
        /// The EV.
        ev: u32,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Number of valid values.
        count: u32,
    },
    /// Spare bits are set.
    #[error("EV {ev:#010x}: the low {spare} bits are spare and must be zero")]
    Spare {
        /// The EV.
        ev: u32,
        /// Number of spare bits.
        spare: u32,
    },
    /// The EV has an uplink in a tier that the path does not reach.
    #[error("EV {ev:#010x}: {field} is {value}, but the path between these hosts does not go that high")]
    Unused {
        /// The EV.
        ev: u32,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// The host does not exist.
    #[error("host h{host}: this fabric has h0 to h{last}")]
    Host {
        /// The host.
        host: u32,
        /// The last host.
        last: u32,
    },
    /// A host has no path to itself.
    #[error("host h{0}: a path leads to another host")]
    Self_(u32),
}

/// The names of the fields of an EV.
pub const EV_FIELDS: [&str; 4] = ["plane", "T0 uplink", "T1 uplink", "T2 uplink"];

/// The positions of the fields of an EV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvLayout {
    /// Width in bits of plane, T0 uplink, T1 uplink, T2 uplink; 0 for a field with one possible value.
    pub widths: [u32; 4],
    counts: [u32; 4],
}

impl EvLayout {
    /// The layout for a fabric.
    ///
    /// # Errors
    /// [`EvError::TooWide`] if the fields are wider than an EV.
    pub fn new(fabric: &Fabric) -> Result<Self, EvError> {
        let uplink = |tier| fabric.uplinks(tier).max(1);
        let counts = [fabric.shape().planes, uplink(0), uplink(1), uplink(2)];
        let widths = counts.map(bits);
        match widths.iter().sum() {
            0..=32 => Ok(EvLayout { widths, counts }),
            bits => Err(EvError::TooWide { bits }),
        }
    }

    /// Number of spare bits at the low end.
    pub fn spare(&self) -> u32 {
        32 - self.widths.iter().sum::<u32>()
    }

    /// The EV with these fields. They must be in range.
    pub fn pack(&self, fields: [u32; 4]) -> Ev {
        let mut value = 0u64;
        for (field, width) in fields.into_iter().zip(self.widths) {
            debug_assert!(u64::from(field) < 1 << width);
            value = value << width | u64::from(field);
        }
        Ev((value << self.spare()) as u32)
    }

    /// The fields of an EV.
    ///
    /// # Errors
    /// If a field is out of range or a spare bit is set.
    pub fn unpack(&self, ev: Ev) -> Result<[u32; 4], EvError> {
        let mut rest = u64::from(ev.0) << 32;
        let mut fields = [0; 4];
        for (i, width) in self.widths.into_iter().enumerate() {
            fields[i] = if width == 0 { 0 } else { (rest >> (64 - width)) as u32 };
            rest <<= width;
            if fields[i] >= self.counts[i] {
                return Err(EvError::Field {
                    ev: ev.0,
                    field: EV_FIELDS[i],
                    value: fields[i],
                    count: self.counts[i],
                });
            }
        }
        if rest != 0 {
            return Err(EvError::Spare { ev: ev.0, spare: self.spare() });
        }
        Ok(fields)
    }
}

/// Bits that distinguish `count` values.
pub(crate) const fn bits(count: u32) -> u32 {
    if count <= 1 { 0 } else { 32 - (count - 1).leading_zeros() }
}

/// A path from one host to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Path {
    /// Sender.
    pub src: u32,
    /// Receiver.
    pub dst: u32,
    /// Plane.
    pub plane: u32,
    /// Uplink used at the sender's T0, T1, T2; zero in tiers that the path does not reach.
    pub uplinks: [u32; 3],
}

/// A switch on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The switch.
    pub switch: Switch,
    /// Which of its uSIDs the path uses; 0 unless the links to it are parallel.
    pub alias: u32,
    /// Port by which the packet leaves.
    pub port: u32,
    /// The link on that port.
    pub link: Link,
}

impl Path {
    /// The path of an EV between two hosts.
    ///
    /// # Errors
    /// [`EvError`] if a host does not exist, or the EV is not a path between them.
    pub fn from_ev(fabric: &Fabric, layout: &EvLayout, src: u32, dst: u32, ev: Ev) -> Result<Self, EvError> {
        check_hosts(fabric, src, dst)?;
        let [plane, uplinks @ ..] = layout.unpack(ev)?;
        let turn = fabric.turn(src, dst) as usize;
        if let Some(i) = (turn..3).find(|&i| uplinks[i] != 0) {
            return Err(EvError::Unused { ev: ev.0, field: EV_FIELDS[i + 1], value: uplinks[i] });
        }
        Ok(Path { src, dst, plane, uplinks })
    }

    /// The `n`-th path between two hosts, ordered by plane, T0 uplink, T1 uplink; `None` after the last.
    ///
    /// # Errors
    /// [`EvError`] if a host does not exist.
    pub fn nth(fabric: &Fabric, src: u32, dst: u32, n: u64) -> Result<Option<Self>, EvError> {
        check_hosts(fabric, src, dst)?;
        let (mut rest, mut uplinks) = (n, [0; 3]);
        for tier in (0..fabric.turn(src, dst)).rev() {
            let count = u64::from(fabric.uplinks(tier));
            uplinks[tier as usize] = (rest % count) as u32;
            rest /= count;
        }
        let plane = rest as u32;
        Ok((rest < u64::from(fabric.shape().planes)).then_some(Path { src, dst, plane, uplinks }))
    }

    /// Its EV.
    pub fn ev(&self, layout: &EvLayout) -> Ev {
        let [t0, t1, t2] = self.uplinks;
        layout.pack([self.plane, t0, t1, t2])
    }

    /// Its switches, in order, with the link by which it leaves each.
    pub fn steps(&self, fabric: &Fabric) -> impl Iterator<Item = Step> + use<'_> {
        let fabric = *fabric;
        let turn = fabric.turn(self.src, self.dst);
        let lane = move |layer: u8, uplink: u32| {
            if layer == fabric.top() { uplink % fabric.lanes(layer) } else { 0 }
        };
        let first = Some((fabric.t0_of(self.plane, self.src), 0, true));
        core::iter::successors(first, move |&(switch, _, rising)| {
            let tier = switch.tier;
            if rising && tier < turn {
                let uplink = self.uplinks[tier as usize];
                return Some((fabric.above(switch, uplink), lane(tier + 1, uplink), true));
            }
            let below = self.descend(&fabric, switch)?;
            Some((below, lane(tier, self.uplinks[tier as usize - 1]), false))
        })
        .map(move |(switch, alias, rising)| {
            let port = if rising && switch.tier < turn {
                fabric.downlinks(switch.tier) + self.uplinks[switch.tier as usize]
            } else {
                self.port_down(&fabric, switch)
            };
            let link = fabric.link_at(switch, port).expect("a path uses links that exist");
            Step { switch, alias, port, link }
        })
    }

    /// Its links, from the sender's to the receiver's.
    pub fn links(&self, fabric: &Fabric) -> impl Iterator<Item = Link> + use<'_> {
        let first = Link { plane: self.plane, layer: 0, lower: self.src, uplink: 0 };
        core::iter::once(first).chain(self.steps(fabric).map(|step| step.link))
    }

    /// The port by which a switch forwards on the way down, which mirrors the way up.
    fn port_down(&self, fabric: &Fabric, switch: Switch) -> u32 {
        if switch.tier == 0 {
            return fabric.downlink_of(self.dst);
        }
        let below = switch.tier - 1;
        let mut mirror = fabric.t0_of(self.plane, self.dst);
        for tier in 0..below {
            mirror = fabric.above(mirror, self.uplinks[tier as usize]);
        }
        let link = Link {
            plane: self.plane,
            layer: switch.tier,
            lower: mirror.index,
            uplink: self.uplinks[below as usize],
        };
        fabric.upper_end(link).port
    }

    fn descend(&self, fabric: &Fabric, switch: Switch) -> Option<Switch> {
        if switch.tier == 0 {
            return None;
        }
        match fabric.peer(switch, self.port_down(fabric, switch)) {
            Some(End { node: Node::Switch(below), .. }) => Some(below),
            _ => None,
        }
    }
}

fn check_hosts(fabric: &Fabric, src: u32, dst: u32) -> Result<(), EvError> {
    let last = fabric.shape().hosts - 1;
    match [src, dst].into_iter().find(|&host| host > last) {
        Some(host) => Err(EvError::Host { host, last }),
        None if src == dst => Err(EvError::Self_(src)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tests::any_fabric;
    use crate::shape::Sizing;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn the_reference_ev_is_3_bits_of_plane_and_8_of_uplink() {
        let fabric = Fabric::new(Sizing::new(131_072, 8, 2, 512).smallest().unwrap()).unwrap();
        let layout = EvLayout::new(&fabric).unwrap();
        assert_eq!(layout.widths, [3, 8, 0, 0]);
        assert_eq!(layout.pack([5, 200, 0, 0]).0, 5 << 29 | 200 << 21);
        assert_eq!(layout.unpack(Ev(5 << 29 | 200 << 21)), Ok([5, 200, 0, 0]));
        assert_eq!(layout.unpack(Ev(1)), Err(EvError::Spare { ev: 1, spare: 21 }));
    }

    #[test]
    fn what_is_no_path_between_two_hosts_is_refused_with_the_reason() {
        let fabric = Fabric::new(Sizing::new(128, 2, 3, 8).smallest().unwrap()).unwrap();
        let layout = EvLayout::new(&fabric).unwrap();
        let path = |src, dst, fields| Path::from_ev(&fabric, &layout, src, dst, layout.pack(fields));
        for (src, dst, host) in [(128, 0, 128), (0, 128, 128), (u32::MAX, 0, u32::MAX)] {
            let error = EvError::Host { host, last: 127 };
            assert_eq!(path(src, dst, [0; 4]), Err(error));
            assert_eq!(Path::nth(&fabric, src, dst, 0), Err(error));
        }
        assert_eq!(path(5, 5, [0; 4]), Err(EvError::Self_(5)));
        // Four hosts have a T0, and four T0s a pod.
        for (dst, uplinks, unused) in [
            (1, [0, 0, 0], None),
            (1, [3, 2, 0], Some(("T0 uplink", 3))),
            (1, [0, 2, 0], Some(("T1 uplink", 2))),
            (4, [3, 2, 0], Some(("T1 uplink", 2))),
            (127, [3, 2, 0], None),
        ] {
            let [t0, t1, t2] = uplinks;
            let fields = [1, t0, t1, t2];
            let expected = match unused {
                None => Ok(Path { src: 0, dst, plane: 1, uplinks }),
                Some((field, value)) => Err(EvError::Unused { ev: layout.pack(fields).0, field, value }),
            };
            assert_eq!(path(0, dst, fields), expected);
        }
    }

    proptest! {
        #[test]
        fn every_path_has_one_ev_and_its_links_are_connected(fabric in any_fabric(), a in any::<u32>(), b in any::<u32>()) {
            let hosts = fabric.shape().hosts;
            prop_assume!(hosts > 1);
            let (src, dst) = (a % hosts, b % hosts);
            prop_assume!(src != dst);
            let layout = EvLayout::new(&fabric).unwrap();
            let mut evs = HashSet::new();
            let mut routes = HashSet::new();
            let count = fabric.path_count(src, dst);
            for n in 0..count.min(300) {
                let path = Path::nth(&fabric, src, dst, n).unwrap().unwrap();
                let ev = path.ev(&layout);
                prop_assert!(evs.insert(ev));
                prop_assert_eq!(Path::from_ev(&fabric, &layout, src, dst, ev), Ok(path));
                let links: Vec<_> = path.links(&fabric).collect();
                prop_assert_eq!(links.len(), 2 * fabric.turn(src, dst) as usize + 2);
                prop_assert!(routes.insert(links.clone()));
                let mut at = End { node: Node::Host(src), port: path.plane };
                for link in links {
                    let (lower, upper) = (fabric.lower_end(link), fabric.upper_end(link));
                    prop_assert!(lower.node == at.node || upper.node == at.node);
                    at = if lower.node == at.node { upper } else { lower };
                }
                prop_assert_eq!(at.node, Node::Host(dst));
            }
            prop_assert_eq!(Path::nth(&fabric, src, dst, count), Ok(None));
        }

        #[test]
        fn an_ev_is_an_error_or_the_only_ev_of_its_path(fabric in any_fabric(), ev in any::<u32>()) {
            let layout = EvLayout::new(&fabric).unwrap();
            if let Ok(fields) = layout.unpack(Ev(ev)) {
                prop_assert_eq!(layout.pack(fields), Ev(ev));
            }
        }
    }
}
