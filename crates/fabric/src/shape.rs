//! The numbers that define a fabric, and the smallest fabric for a number of hosts.
//!
//! A plane is a folded Clos of one to four tiers. A *block* of level 0 is a T0. A block of level t+1 is a group of
//! blocks of level t and the tier t+1 switches above them (with three tiers, a block of level 1 is a pod). The whole
//! plane is one block of the top level. Uplink `g` of a block, counted over its top switches, leads to switch `g /
//! parallel` of the tier above. `parallel` is 1 except below the top tier: if there are fewer blocks than a top switch
//! has ports, each block has several links to each top switch, so that fewer top switches are needed.

/// Most tiers of switches.
pub const MAX_TIERS: u8 = 4;
/// Most planes, as a NIC has at most sixteen ports.
pub const MAX_PLANES: u32 = 16;
/// Most hosts whose links in sixteen planes have 32-bit numbers.
pub const MAX_HOSTS: u32 = 1 << 24;
/// Most ports of a switch.
pub const MAX_RADIX: u32 = 1 << 13;

/// Why a shape is not valid. The message starts with the field to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShapeError {
    /// A count is out of range.
    #[error("{field}: {value} is out of range: {min} to {max}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Smallest valid value.
        min: u32,
        /// Largest valid value.
        max: u32,
    },
    /// The largest fabric with this number of tiers has fewer hosts.
    #[error("hosts: {hosts} do not fit: {tiers} {} of {radix}-port switches hold at most {max}", if *tiers == 1 { "tier" } else { "tiers" })]
    TooManyHosts {
        /// Number of hosts requested.
        hosts: u32,
        /// Number of hosts that fit.
        max: u64,
        /// Tiers.
        tiers: u8,
        /// Ports of a switch.
        radix: u32,
    },
    /// A switch has fewer ports than the fabric uses.
    #[error("{field}: a T{tier} would need {need} ports ({down} down, {up} up), a switch has {radix}")]
    Ports {
        /// The field.
        field: &'static str,
        /// Tier of the switch.
        tier: u8,
        /// Ports needed.
        need: u64,
        /// Of these, towards hosts.
        down: u64,
        /// Of these, away from hosts.
        up: u32,
        /// Ports of a switch.
        radix: u32,
    },
    /// The switches have too few ports for any fabric with this number of tiers.
    #[error("radix: {radix} ports are too few for {tiers} tiers at this oversubscription")]
    RadixTooSmall {
        /// Ports of a switch.
        radix: u32,
        /// Tiers.
        tiers: u8,
    },
    /// The uplinks cannot be divided into this number of parallel links.
    #[error(
        "parallel_links: {parallel} do not divide the {uplinks} uplinks of a T{tier} evenly over whole top switches"
    )]
    Parallel {
        /// Number of parallel links requested.
        parallel: u32,
        /// Uplinks of a switch of the tier below the top.
        uplinks: u32,
        /// The tier below the top.
        tier: u8,
    },
    /// More links than numbers.
    #[error("oversubscription: {links} links are too many, as their numbers have 32 bits")]
    Links {
        /// Links of all planes.
        links: u64,
    },
}

/// Downlink to uplink bandwidth of a switch, as a fraction: 1/1 is non-blocking, 3/1 is three to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ratio {
    /// Bandwidth towards the hosts.
    pub down: u32,
    /// Bandwidth away from the hosts, in the same unit.
    pub up: u32,
}

impl Ratio {
    /// Equal bandwidth up and down.
    pub const NON_BLOCKING: Ratio = Ratio { down: 1, up: 1 };

    /// Uplinks that `down` downlinks require.
    pub fn uplinks(self, down: u32) -> u32 {
        (u64::from(down) * u64::from(self.up)).div_ceil(u64::from(self.down)) as u32
    }

    /// Most downlinks of a switch with `radix` ports; 0 if not even one and its uplinks fit.
    fn most_down(self, radix: u32) -> u32 {
        // Largest `down` with down + down * self.up / self.down <= radix. Rounding the uplinks up changes nothing, as
        // the ports beside them are a whole number.
        (u64::from(radix) * u64::from(self.down) / (u64::from(self.down) + u64::from(self.up))) as u32
    }
}

/// The numbers that define a fabric. [`crate::Fabric::new`] checks them; [`Sizing::smallest`] computes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Number of hosts, each with one port in every plane. They fill T0s in order, so only the last T0 can be partly
    /// filled.
    pub hosts: u32,
    /// Planes, 1 to [`MAX_PLANES`]. Planes share no switch.
    pub planes: u32,
    /// Tiers of switches, 1 to [`MAX_TIERS`].
    pub tiers: u8,
    /// Ports of a switch.
    pub radix: u32,
    /// Downlinks of a T0.
    pub hosts_per_t0: u32,
    /// Uplinks of a switch of tier 0, 1 and 2; 0 from the top tier on.
    pub uplinks: [u32; 3],
    /// Blocks of level 0 and 1 in a block of the next level, unless that is the whole plane: T0s in a pod, pods in a
    /// zone. 0 if there is no such block.
    pub group: [u32; 2],
    /// Links from one block to one top switch.
    pub parallel: u32,
}

/// Requirements from which a shape is computed. Only `hosts`, `planes`, `tiers` and `radix` must be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizing {
    /// Hosts.
    pub hosts: u32,
    /// Planes.
    pub planes: u32,
    /// Tiers.
    pub tiers: u8,
    /// Ports of a switch.
    pub radix: u32,
    /// Oversubscription of tier 0, 1 and 2.
    pub oversubscription: [Ratio; 3],
    /// Downlinks of a T0; `None`: the most that radix and oversubscription allow.
    pub hosts_per_t0: Option<u32>,
    /// Uplinks of a T0; `None`: those that the oversubscription requires.
    pub uplinks_per_t0: Option<u32>,
    /// T0s in a pod (three and four tiers); `None`: the most that fit.
    pub t0s_per_pod: Option<u32>,
    /// Links from one block to one top switch; `None`: the most that fit.
    pub parallel: Option<u32>,
}

impl Sizing {
    /// A non-blocking fabric with no other requirements.
    pub const fn new(hosts: u32, planes: u32, tiers: u8, radix: u32) -> Self {
        Sizing {
            hosts,
            planes,
            tiers,
            radix,
            oversubscription: [Ratio::NON_BLOCKING; 3],
            hosts_per_t0: None,
            uplinks_per_t0: None,
            t0s_per_pod: None,
            parallel: None,
        }
    }

    /// The smallest regular fabric with this number of tiers for the hosts: the fewest T0s, with hosts spread evenly
    /// over them; the fewest pods, with T0s spread evenly over them; then the fewest top switches, with parallel links
    /// from each block to each of them.
    ///
    /// # Errors
    /// [`ShapeError`], with the numbers, if there is no such fabric.
    pub fn smallest(&self) -> Result<Shape, ShapeError> {
        check_range("hosts", self.hosts, 1, MAX_HOSTS)?;
        check_range("planes", self.planes, 1, MAX_PLANES)?;
        check_range("tiers", u32::from(self.tiers), 1, u32::from(MAX_TIERS))?;
        check_range("radix", self.radix, 1, MAX_RADIX)?;
        for ratio in self.oversubscription {
            check_range("oversubscription", ratio.down.min(ratio.up), 1, u32::MAX)?;
        }
        if let Some(parallel) = self.parallel {
            check_range("parallel_links", parallel, 1, self.radix)?;
        }
        let top = self.tiers as usize - 1;
        let (mut uplinks, mut children) = ([0; 3], [0; 3]);
        // Blocks of the level below, which this tier's switches connect. Below T0 these are the hosts.
        let mut below = self.hosts;
        for tier in 0..top {
            let most = self.most_down(tier)?;
            let fixed = [self.hosts_per_t0, self.t0s_per_pod, None][tier];
            if let Some(fixed) = fixed {
                check_range(["hosts_per_t0", "t0s_per_pod", ""][tier], fixed, 1, self.radix)?;
            }
            children[tier] = fixed.unwrap_or_else(|| below.div_ceil(below.div_ceil(most)));
            uplinks[tier] = self.uplinks_of(tier, children[tier]);
            below = below.div_ceil(children[tier]);
        }
        let shape = |parallel, last_uplinks| {
            let mut uplinks = uplinks;
            if top > 0 {
                uplinks[top - 1] = last_uplinks;
            }
            let [hosts_per_t0, group @ ..] =
                if top == 0 { [self.hosts_per_t0.unwrap_or(self.hosts), 0, 0] } else { children };
            let Sizing { hosts, planes, tiers, radix, .. } = *self;
            Shape { hosts, planes, tiers, radix, hosts_per_t0, uplinks, group, parallel }
        };
        if below > self.radix {
            let max = self.capacity()?;
            return Err(ShapeError::TooManyHosts {
                hosts: self.hosts,
                max,
                tiers: self.tiers,
                radix: self.radix,
            });
        }
        let (parallel, last_uplinks) =
            if top == 0 { (1, 0) } else { self.bundle(top, &uplinks, children[top - 1], below) };
        let shape = shape(parallel, last_uplinks);
        shape.check()?;
        Ok(shape)
    }

    /// Most downlinks of a switch below the top tier.
    fn most_down(&self, tier: usize) -> Result<u32, ShapeError> {
        let ratio = self.oversubscription[tier];
        let most = match self.uplinks_per_t0.filter(|_| tier == 0) {
            None => ratio.most_down(self.radix),
            // With given uplinks, their bandwidth and the remaining ports limit the downlinks.
            Some(up) => {
                let carried = u64::from(up) * u64::from(ratio.down) / u64::from(ratio.up);
                carried.min(u64::from(self.radix.saturating_sub(up))) as u32
            }
        };
        if most == 0 {
            return Err(ShapeError::RadixTooSmall { radix: self.radix, tiers: self.tiers });
        }
        Ok(most)
    }

    /// Uplinks that a switch below the top tier needs.
    fn uplinks_of(&self, tier: usize, down: u32) -> u32 {
        self.uplinks_per_t0.filter(|_| tier == 0).unwrap_or_else(|| self.oversubscription[tier].uplinks(down))
    }

    /// Links from each of `blocks` blocks to one top switch, and the resulting uplinks of the switches below the top
    /// tier. They may be a few more than required, so that they can be divided evenly.
    fn bundle(&self, top: usize, uplinks: &[u32; 3], down: u32, blocks: u32) -> (u32, u32) {
        let need = uplinks[top - 1];
        let most = self.radix / blocks;
        let fixed_uplinks = top == 1 && self.uplinks_per_t0.is_some();
        if let Some(parallel) = self.parallel {
            let rounded = need.div_ceil(parallel) * parallel;
            return (parallel, if fixed_uplinks || rounded + down > self.radix { need } else { rounded });
        }
        if fixed_uplinks {
            let even = (1..=most.min(need)).rev().find(|p| need.is_multiple_of(*p));
            return (even.unwrap_or(1), need);
        }
        // All uplinks of a switch, and those of its neighbours in the block, lead to the same top switch.
        let width = uplinks[..top - 1].iter().fold(1u32, |width, up| width.saturating_mul(*up));
        if let Some(switches) = (2..=width.min(most / need)).rev().find(|s| width.is_multiple_of(*s)) {
            return (switches * need, need);
        }
        // The fewest top switches per switch below that their ports allow.
        for tops in need.div_ceil(most)..need {
            let parallel = need.div_ceil(tops);
            if tops * parallel + down <= self.radix {
                return (parallel, tops * parallel);
            }
        }
        (1, need)
    }

    /// Number of hosts of the largest fabric with these tiers, ports and oversubscription. `hosts` is ignored.
    ///
    /// # Errors
    /// [`ShapeError::RadixTooSmall`] if there is no such fabric.
    pub fn capacity(&self) -> Result<u64, ShapeError> {
        let top = self.tiers as usize - 1;
        let fixed = [self.hosts_per_t0, self.t0s_per_pod, None];
        let mut hosts =
            u64::from(if top == 0 { self.hosts_per_t0.unwrap_or(self.radix) } else { self.radix });
        for (tier, fixed) in fixed.into_iter().enumerate().take(top) {
            hosts = hosts.saturating_mul(u64::from(fixed.map_or_else(|| self.most_down(tier), Ok)?));
        }
        Ok(hosts)
    }
}

impl Shape {
    /// Number of hosts if the top switches use all their ports, one per block.
    pub fn most_hosts(&self) -> u64 {
        let d = u64::from(self.hosts_per_t0);
        let k = u64::from(self.radix);
        let [g0, g1] = self.group.map(u64::from);
        match self.tiers {
            1 => d,
            2 => d * k,
            3 => d * g0 * k,
            _ => d * g0 * g1 * k,
        }
    }

    /// Blocks of each level in a plane: T0s, pods, zones. There is one of the top level.
    pub fn blocks(&self) -> [u32; 4] {
        let mut blocks = [1; 4];
        let top = self.tiers as usize - 1;
        let mut count = self.hosts.div_ceil(self.hosts_per_t0);
        for (level, slot) in blocks.iter_mut().enumerate().take(top) {
            *slot = count;
            if level + 1 < top {
                count = count.div_ceil(self.group[level]);
            }
        }
        blocks
    }

    /// Top switches of a block of each level; for the top level, of the plane.
    pub fn width(&self) -> [u32; 4] {
        let mut width = [1u32; 4];
        for tier in 1..self.tiers as usize {
            let uplinks = width[tier - 1].saturating_mul(self.uplinks[tier - 1]);
            width[tier] = uplinks / if tier + 1 == self.tiers as usize { self.parallel } else { 1 };
        }
        width
    }

    /// Checks every count and the ports of every switch.
    ///
    /// # Errors
    /// [`ShapeError`] for the first mistake found.
    pub fn check(&self) -> Result<(), ShapeError> {
        check_range("hosts", self.hosts, 1, MAX_HOSTS)?;
        check_range("planes", self.planes, 1, MAX_PLANES)?;
        check_range("tiers", u32::from(self.tiers), 1, u32::from(MAX_TIERS))?;
        check_range("radix", self.radix, 1, MAX_RADIX)?;
        check_range("hosts_per_t0", self.hosts_per_t0, 1, self.radix)?;
        let top = self.tiers as usize - 1;
        for tier in 0..top {
            let field = ["uplinks_per_t0", "uplinks of a T1", "uplinks of a T2"][tier];
            check_range(field, self.uplinks[tier], 1, self.radix)?;
        }
        for level in 0..top.saturating_sub(1) {
            check_range(["t0s_per_pod", "pods per zone"][level], self.group[level], 1, self.radix)?;
        }
        let max = self.most_hosts();
        if u64::from(self.hosts) > max {
            return Err(ShapeError::TooManyHosts {
                hosts: self.hosts,
                max,
                tiers: self.tiers,
                radix: self.radix,
            });
        }
        for tier in 0..top {
            let down = if tier == 0 { self.hosts_per_t0 } else { self.group[tier - 1] };
            self.check_ports(["hosts_per_t0", "t0s_per_pod", "pods per zone"][tier], tier, down.into())?;
        }
        self.check_top()?;
        let links = self.links();
        u32::try_from(links).map(|_| ()).map_err(|_| ShapeError::Links { links })
    }

    /// Links of all planes.
    fn links(&self) -> u64 {
        let (blocks, width) = (self.blocks(), self.width());
        let up = (0..self.tiers as usize - 1).map(|tier| {
            let switches = u64::from(blocks[tier]) * u64::from(width[tier]);
            switches.saturating_mul(self.uplinks[tier].into())
        });
        up.fold(u64::from(self.hosts), u64::saturating_add).saturating_mul(self.planes.into())
    }

    /// The top tier: parallel links divide the uplinks, and the top switches have ports for all blocks.
    fn check_top(&self) -> Result<(), ShapeError> {
        check_range("parallel_links", self.parallel, 1, self.radix)?;
        let top = self.tiers as usize - 1;
        if top == 0 {
            return self.check_ports("hosts_per_t0", 0, self.hosts_per_t0.into());
        }
        let (uplinks, width) = (self.uplinks[top - 1], self.width()[top - 1]);
        let whole = uplinks.is_multiple_of(self.parallel) || self.parallel.is_multiple_of(uplinks);
        if !whole || !(u64::from(width) * u64::from(uplinks)).is_multiple_of(self.parallel.into()) {
            return Err(ShapeError::Parallel { parallel: self.parallel, uplinks, tier: top as u8 - 1 });
        }
        self.check_ports("parallel_links", top, u64::from(self.blocks()[top - 1]) * u64::from(self.parallel))
    }

    fn check_ports(&self, field: &'static str, tier: usize, down: u64) -> Result<(), ShapeError> {
        let up = self.uplinks.get(tier).copied().unwrap_or(0);
        let need = down + u64::from(up);
        if need > u64::from(self.radix) {
            return Err(ShapeError::Ports { field, tier: tier as u8, need, down, up, radix: self.radix });
        }
        Ok(())
    }
}

fn check_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), ShapeError> {
    if value < min || value > max {
        return Err(ShapeError::Range { field, value, min, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_fabric_has_512_t0_and_256_t1_per_plane() {
        let shape = Sizing::new(131_072, 8, 2, 512).smallest().unwrap();
        assert_eq!((shape.blocks()[0], shape.width()[1]), (512, 256));
        assert_eq!((shape.hosts_per_t0, shape.uplinks[0], shape.parallel), (256, 256, 1));
    }

    #[test]
    fn full_fabrics_have_the_published_number_of_hosts() {
        for (planes, tiers, radix, hosts) in
            [(8, 2, 512, 131_072), (4, 2, 256, 32_768), (1, 2, 64, 2_048), (1, 3, 64, 65_536)]
        {
            assert!(Sizing::new(hosts, planes, tiers, radix).smallest().is_ok());
            let error = Sizing::new(hosts + 1, planes, tiers, radix).smallest().unwrap_err();
            assert_eq!(error, ShapeError::TooManyHosts { hosts: hosts + 1, max: hosts.into(), tiers, radix });
        }
    }

    #[test]
    fn a_partly_filled_fabric_has_parallel_links_instead_of_unused_top_switches() {
        let shape = Sizing::new(1024, 8, 2, 512).smallest().unwrap();
        assert_eq!((shape.blocks()[0], shape.parallel, shape.width()[1]), (4, 128, 2));
        let shape = Sizing { parallel: Some(1), ..Sizing::new(1024, 8, 2, 512) }.smallest().unwrap();
        assert_eq!(shape.width()[1], 256);
    }

    #[test]
    fn four_tiers_of_64_ports_at_131072_hosts_take_seven_switches_per_32_ports() {
        let shape = Sizing::new(131_072, 1, 4, 64).smallest().unwrap();
        let (blocks, width) = (shape.blocks(), shape.width());
        let switches: u32 = (0..4).map(|t| blocks[t] * width[t]).sum();
        assert_eq!(switches, 7 * 131_072 / 64);
    }

    #[test]
    fn oversubscription_trades_uplinks_for_downlinks() {
        let mut sizing = Sizing::new(100, 1, 2, 64);
        sizing.oversubscription[0] = Ratio { down: 3, up: 1 };
        let shape = sizing.smallest().unwrap();
        // Three T0s share 100 hosts evenly, and all 12 uplinks of a T0 lead to one T1.
        assert_eq!(
            (shape.blocks()[0], shape.hosts_per_t0, shape.uplinks[0], shape.width()[1]),
            (3, 34, 12, 1)
        );
        sizing.hosts = 48 * 64;
        let shape = sizing.smallest().unwrap();
        assert_eq!(
            (shape.blocks()[0], shape.hosts_per_t0, shape.uplinks[0], shape.width()[1]),
            (64, 48, 16, 16)
        );
        sizing.hosts += 1;
        assert!(matches!(sizing.smallest(), Err(ShapeError::TooManyHosts { max: 3072, .. })));
    }

    #[test]
    fn a_ratio_gives_the_fewest_uplinks_and_the_most_downlinks() {
        for (down, up) in (1..=6).flat_map(|down| (1..=6).map(move |up| (down, up))) {
            let ratio = Ratio { down, up };
            for ports in 1..=40 {
                let uplinks = (0..).find(|uplinks| uplinks * down >= ports * up).unwrap();
                assert_eq!(ratio.uplinks(ports), uplinks, "{ratio:?} {ports}");
                let most = (0..=ports).rev().find(|down| down + ratio.uplinks(*down) <= ports).unwrap();
                assert_eq!(ratio.most_down(ports), most, "{ratio:?} {ports}");
            }
        }
    }

    /// Requirements of small fabrics of two and three tiers.
    fn small() -> impl Iterator<Item = Sizing> {
        let ratios = [Ratio::NON_BLOCKING, Ratio { down: 3, up: 1 }, Ratio { down: 2, up: 3 }];
        let sizes = (2..=3).flat_map(|tiers| (3..=10).map(move |radix| (tiers, radix)));
        let oversubscribed = sizes.flat_map(move |(tiers, radix)| {
            ratios.into_iter().flat_map(move |a| {
                ratios.map(|b| Sizing { oversubscription: [a, b, b], ..Sizing::new(0, 2, tiers, radix) })
            })
        });
        oversubscribed.flat_map(|sizing| {
            let capacity = sizing.capacity().unwrap_or(0) as u32;
            (1..=capacity).step_by(1 + capacity as usize / 12).map(move |hosts| Sizing { hosts, ..sizing })
        })
    }

    /// Downlinks of the switches below the top.
    fn last_down(shape: &Shape) -> u32 {
        if shape.tiers == 2 { shape.hosts_per_t0 } else { shape.group[0] }
    }

    /// Of the valid shapes that differ from this one in these uplinks and parallel links, the one with the fewest top
    /// switches, and then the fewest uplinks.
    fn fewest(
        shape: &Shape,
        uplinks: std::ops::RangeInclusive<u32>,
        parallel: std::ops::RangeInclusive<u32>,
    ) -> Option<Shape> {
        let top = shape.tiers as usize - 1;
        let both = uplinks.flat_map(|up| parallel.clone().map(move |parallel| (up, parallel)));
        let shapes = both.map(|(up, parallel)| {
            let mut uplinks = shape.uplinks;
            uplinks[top - 1] = up;
            Shape { uplinks, parallel, ..*shape }
        });
        shapes.filter(|s| s.check().is_ok()).min_by_key(|s| (s.width()[top], s.uplinks[top - 1]))
    }

    #[test]
    fn the_smallest_fabric_has_the_fewest_top_switches() {
        let mut seen = 0;
        for sizing in small() {
            for uplinks_per_t0 in [None, Some(2)].into_iter().take(sizing.tiers as usize - 1) {
                let sizing = Sizing { uplinks_per_t0, ..sizing };
                let Ok(shape) = sizing.smallest() else { continue };
                let need = sizing.oversubscription[sizing.tiers as usize - 2].uplinks(last_down(&shape));
                let found = fewest(&shape, need..=sizing.radix, 1..=sizing.radix);
                assert_eq!(found, Some(shape), "{sizing:?}");
                seen += 1;
            }
        }
        assert!(seen > 1000, "{seen}");
        // The three T1s of a pod have two uplinks each: four links of a pod to one T2 would not divide these six.
        let sizing = Sizing { hosts_per_t0: Some(3), t0s_per_pod: Some(2), ..Sizing::new(12, 1, 3, 10) };
        let shape = sizing.smallest().unwrap();
        assert_eq!((shape.uplinks, shape.parallel, shape.width()[2]), ([3, 2, 0], 2, 3));
    }

    #[test]
    fn uplinks_that_are_given_stay_and_carry_as_many_hosts_as_they_can() {
        for sizing in small().filter(|sizing| sizing.tiers == 2) {
            let ratio = sizing.oversubscription[0];
            for up in 1..sizing.radix {
                let most =
                    (0..=sizing.radix - up).rev().find(|down| down * ratio.up <= up * ratio.down).unwrap();
                let found = Sizing { uplinks_per_t0: Some(up), ..sizing }.smallest();
                if most == 0 {
                    let (radix, tiers) = (sizing.radix, 2);
                    assert_eq!(found, Err(ShapeError::RadixTooSmall { radix, tiers }));
                } else if sizing.hosts > most * sizing.radix {
                    assert!(matches!(found, Err(ShapeError::TooManyHosts { .. })), "{sizing:?} {up}");
                } else {
                    let shape = found.unwrap();
                    assert_eq!(shape.blocks()[0], sizing.hosts.div_ceil(most), "{sizing:?} {up}");
                    assert_eq!(fewest(&shape, up..=up, 1..=sizing.radix), Some(shape), "{sizing:?} {up}");
                }
            }
        }
    }

    #[test]
    fn parallel_links_that_are_given_stay_and_the_uplinks_are_the_fewest_that_they_divide() {
        for sizing in small().filter(|sizing| sizing.tiers == 2) {
            let Ok(shape) = sizing.smallest() else { continue };
            let need = sizing.oversubscription[0].uplinks(shape.hosts_per_t0);
            for parallel in 1..=sizing.radix {
                let given = Sizing { parallel: Some(parallel), ..sizing };
                let valid = |up| fewest(&shape, up..=up, parallel..=parallel);
                assert_eq!(given.smallest().ok(), (need..=sizing.radix).find_map(valid), "{given:?}");
                let given = Sizing { uplinks_per_t0: Some(need), ..given };
                assert_eq!(given.smallest().ok(), valid(need), "{given:?}");
            }
        }
    }

    #[test]
    fn the_largest_fabric_has_as_many_hosts_as_its_capacity() {
        for tiers in 1..=4 {
            for (hosts_per_t0, t0s_per_pod) in [(None, None), (Some(3), None), (Some(2), Some(3))] {
                let sizing = Sizing { hosts_per_t0, t0s_per_pod, ..Sizing::new(1, 1, tiers, 8) };
                let (hosts_per_t0, t0s_per_pod) = (hosts_per_t0.unwrap_or(4), t0s_per_pod.unwrap_or(4));
                let hosts = match tiers {
                    1 => sizing.hosts_per_t0.unwrap_or(8),
                    2 => hosts_per_t0 * 8,
                    3 => hosts_per_t0 * t0s_per_pod * 8,
                    _ => hosts_per_t0 * t0s_per_pod * 4 * 8,
                };
                assert_eq!(sizing.capacity(), Ok(hosts.into()));
                let shape = Sizing { hosts, ..sizing }.smallest().unwrap();
                assert_eq!(shape.most_hosts(), hosts.into(), "{shape:?}");
                assert!(Sizing { hosts: hosts + 1, ..sizing }.smallest().is_err());
            }
        }
    }

    #[test]
    fn links_without_numbers_are_refused() {
        let mut sizing = Sizing::new(2, 1, 4, MAX_RADIX);
        sizing.oversubscription = [Ratio { down: 1, up: MAX_RADIX - 1 }; 3];
        let up = u64::from(MAX_RADIX - 1);
        let links = 2 + 2 * up + 2 * up * up + 2 * up * up * up;
        assert_eq!(sizing.smallest(), Err(ShapeError::Links { links }));
        // Of one T0 all uplinks lead to one T1.
        let shape = Sizing { oversubscription: sizing.oversubscription, ..Sizing::new(1, 16, 2, 8192) };
        assert_eq!(shape.smallest().unwrap().links(), 16 * (1 + up));
    }

    #[test]
    fn errors_name_the_field_and_the_numbers() {
        let mut sizing = Sizing::new(100, 1, 2, 64);
        sizing.hosts_per_t0 = Some(40);
        sizing.uplinks_per_t0 = Some(32);
        let text = sizing.smallest().unwrap_err().to_string();
        assert_eq!(text, "hosts_per_t0: a T0 would need 72 ports (40 down, 32 up), a switch has 64");
        let sizing = Sizing { parallel: Some(3), uplinks_per_t0: Some(32), ..Sizing::new(100, 1, 2, 64) };
        let text = sizing.smallest().unwrap_err().to_string();
        assert_eq!(
            text,
            "parallel_links: 3 do not divide the 32 uplinks of a T0 evenly over whole top switches"
        );
        let text =
            Sizing { parallel: Some(40), ..Sizing::new(100, 1, 2, 64) }.smallest().unwrap_err().to_string();
        assert_eq!(
            text,
            "parallel_links: 40 do not divide the 25 uplinks of a T0 evenly over whole top switches"
        );
        let text = Sizing::new(0, 1, 2, 64).smallest().unwrap_err().to_string();
        assert_eq!(text, "hosts: 0 is out of range: 1 to 16777216");
    }
}
