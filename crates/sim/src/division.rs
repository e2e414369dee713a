//! The division of a network into partitions, each of which is simulated by a thread of its own: some T0s of every plane
//! with their hosts, and as large a share of the switches of every other tier.

use std::ops::Range;

use openmrc_fabric::Fabric;

/// Which partition a node belongs to.
pub(crate) struct Division {
    /// First host of each partition, then one past the last host.
    first_hosts: Vec<u32>,
    /// By switch.
    of_switch: Vec<u16>,
}

impl Division {
    /// Divides a fabric into `partitions`. Where it has fewer T0s, or fewer switches of a tier, hosts and switches are
    /// divided singly.
    pub fn new(fabric: &Fabric, partitions: u32) -> Self {
        let (shape, counts) = (fabric.shape(), fabric.counts().switches);
        let share =
            |all: u32| move |part: u32| (u64::from(part) * u64::from(all)).div_ceil(u64::from(partitions));
        let first_host = |part| {
            if counts[0] < partitions {
                return share(shape.hosts)(part) as u32;
            }
            let host = share(counts[0])(part) * u64::from(shape.hosts_per_t0);
            host.min(shape.hosts.into()) as u32
        };
        let part_of =
            |number: u32, all: u32| (u64::from(number) * u64::from(partitions) / u64::from(all)) as u16;
        let of_switch = fabric.all_switches().map(|switch| {
            let count = counts[switch.tier as usize];
            if count < partitions {
                part_of(switch.plane * count + switch.index, shape.planes * count)
            } else {
                part_of(switch.index, count)
            }
        });
        Division { first_hosts: (0..=partitions).map(first_host).collect(), of_switch: of_switch.collect() }
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.first_hosts.len() as u32 - 1
    }

    /// The hosts of a partition.
    pub fn hosts(&self, partition: u32) -> Range<u32> {
        self.first_hosts[partition as usize]..self.first_hosts[partition as usize + 1]
    }

    /// The partition of a host.
    #[inline]
    pub fn of_host(&self, host: u32) -> u32 {
        self.first_hosts.partition_point(|&first| first <= host) as u32 - 1
    }

    /// The partition of a switch, by its number.
    #[inline]
    pub fn of_switch(&self, number: u32) -> u32 {
        self.of_switch[number as usize].into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_fabric::{Node, Sizing};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_node_has_one_partition_and_a_host_that_of_its_t0s(
            hosts in 2u32..300,
            planes in 1u32..5,
            tiers in 1u8..4,
            partitions in 1u32..6,
        ) {
            let Ok(shape) = Sizing::new(hosts, planes, tiers, 16).smallest() else { return Ok(()) };
            let Ok(fabric) = Fabric::new(shape) else { return Ok(()) };
            let division = Division::new(&fabric, partitions);
            prop_assert_eq!(division.partitions(), partitions);
            prop_assert_eq!(division.hosts(0).start, 0);
            prop_assert_eq!(division.hosts(partitions - 1).end, hosts);
            for partition in 0..partitions {
                for host in division.hosts(partition) {
                    prop_assert_eq!(division.of_host(host), partition);
                }
            }
            for host in 0..hosts {
                let Node::Switch(t0) = fabric.host_peer(host, 0).node else { unreachable!() };
                if fabric.counts().switches[0] >= partitions {
                    prop_assert_eq!(division.of_switch(fabric.switch_number(t0)), division.of_host(host));
                }
            }
            for number in 0..fabric.switches() {
                prop_assert!(division.of_switch(number) < partitions);
            }
        }
    }
}
