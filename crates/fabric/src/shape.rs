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
        // Largest `down` with down + ceil(down * self.up / self.down) <= radix. The search starts from the value
        // without the ceiling, plus one.
        let share = u64::from(self.down) + u64::from(self.up);
        let mut down = (u64::from(radix) * u64::from(self.down) / share) as u32 + 1;
        while down > 0 && down + self.uplinks(down) > radix {
            down -= 1;
        }
        down
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
            let rounded = if parallel == 0 || need == 0 { need } else { need.div_ceil(parallel) * parallel };
            return (parallel, if fixed_uplinks || rounded + down > self.radix { need } else { rounded });
        }
        if fixed_uplinks {
            let even = (1..=most.min(need)).rev().find(|p| need.is_multiple_of(*p));
            return (even.unwrap_or(1), need);
        }
        // All uplinks of a switch, and those of its neighbours in the block, lead to the same top switch.
        let width: u32 = uplinks[..top - 1].iter().product();
        if let Some(switches) = (2..=width).rev().find(|s| width.is_multiple_of(*s) && s * need <= most) {
            return (switches * need, need);
        }
        // The fewest top switches per switch below that their ports allow.
        for tops in need.div_ceil(most)..need {
            let parallel = need.div_ceil(tops);
            if tops * parallel + down <= self.radix && parallel <= most {
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
        self.check_top()
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
        let up = self.uplinks.get(tier).copied().filter(|_| tier + 1 < self.tiers as usize).unwrap_or(0);
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
