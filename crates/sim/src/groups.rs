//! Groups of neighbouring nodes of a partition: the events of a group's nodes share the pages of the calendar.
//!
//! Nodes are numbered hosts first, then switches. The events of one page should fit the cache of a processor core.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;

use crate::division::Division;

/// Events in a page at full load: 128 KiB of them.
const PAGE_EVENTS: u64 = 4096;
/// Each group has a page that is being written; more pages than this do not fit the cache.
const MAX_GROUPS: u64 = 256;

/// Where an event goes: a group of the own partition, or another partition and a group there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Address(u32);

impl Address {
    /// Events that concern all nodes. The group holds no node and comes first; every partition schedules them for itself.
    pub const EVERYWHERE: Address = Address(0);

    const ELSEWHERE: u32 = 1 << 31;
    const GROUP_BITS: u32 = 16;

    fn elsewhere(partition: u32, group: u32) -> Self {
        Address(Self::ELSEWHERE | partition << Self::GROUP_BITS | group)
    }

    /// Whether it is in another partition.
    #[inline(always)]
    pub const fn is_elsewhere(self) -> bool {
        self.0 & Self::ELSEWHERE != 0
    }

    /// The other partition, if it is one.
    #[inline(always)]
    pub const fn partition(self) -> usize {
        ((self.0 & !Self::ELSEWHERE) >> Self::GROUP_BITS) as usize
    }

    /// The group there.
    #[inline(always)]
    pub const fn group(self) -> u32 {
        self.0 & ((1 << Self::GROUP_BITS) - 1)
    }
}

/// The groups of all partitions.
pub(crate) struct Groups {
    pub division: Arc<Division>,
    /// Number of hosts of the network.
    hosts: u32,
    /// Binary logarithm of the hosts in a group.
    host_log: u32,
    /// By partition: the nodes of each group.
    nodes: Vec<Vec<Range<u32>>>,
    /// By switch: its group.
    of_switch: Vec<u16>,
}

impl Groups {
    /// Groups for hosts with `planes` ports each and for switches with `switch_ports` ports each. A port has at most
    /// `events_per_port` events in a calendar slot.
    pub fn new(
        division: Arc<Division>,
        planes: u32,
        switch_ports: impl Iterator<Item = u32> + Clone,
        events_per_port: u64,
    ) -> Self {
        let partitions = division.partitions();
        let hosts = division.hosts(partitions - 1).end;
        let all_ports = u64::from(hosts * planes) + switch_ports.clone().map(u64::from).sum::<u64>();
        let max_ports = (PAGE_EVENTS / events_per_port).max(all_ports / MAX_GROUPS).max(1);
        let host_log = (max_ports / u64::from(planes)).max(1).ilog2().min(31);
        let mut nodes: Vec<Vec<Range<u32>>> = (0..partitions)
            .map(|partition| {
                let own = division.hosts(partition);
                let end = own.end;
                let groups = own.step_by(1 << host_log).map(|first| first..end.min(first + (1 << host_log)));
                std::iter::once(0..0).chain(groups).collect()
            })
            .collect();
        // Ports of the switches in each partition's last group; a group of hosts takes no switch.
        let mut ports = vec![u64::MAX; partitions as usize];
        let of_switch = (0..).zip(switch_ports.map(u64::from)).map(|(number, more)| {
            let (node, partition) = (hosts + number, division.of_switch(number) as usize);
            let (groups, ports) = (&mut nodes[partition], &mut ports[partition]);
            match groups.last_mut() {
                Some(last) if last.end == node && ports.saturating_add(more) <= max_ports => last.end += 1,
                _ => {
                    groups.push(node..node + 1);
                    *ports = 0;
                }
            }
            *ports += more;
            groups.len() as u16 - 1
        });
        let of_switch = of_switch.collect();
        Groups { division, hosts, host_log, nodes, of_switch }
    }

    /// The nodes of each group of a partition.
    pub fn nodes(&self, partition: u32) -> &[Range<u32>] {
        &self.nodes[partition as usize]
    }

    /// The address of a host, as seen from a partition.
    #[inline]
    pub fn of_host(&self, from: u32, host: u32) -> Address {
        let own = self.division.hosts(from);
        if own.contains(&host) {
            return Address(1 + ((host - own.start) >> self.host_log));
        }
        let partition = self.division.of_host(host);
        let first = self.division.hosts(partition).start;
        Address::elsewhere(partition, 1 + ((host - first) >> self.host_log))
    }

    /// The address of a switch, by its number, as seen from a partition.
    pub fn of_switch(&self, from: u32, number: u32) -> Address {
        let (partition, group) = (self.division.of_switch(number), self.of_switch[number as usize].into());
        if partition == from { Address(group) } else { Address::elsewhere(partition, group) }
    }

    /// The partition of a node, by its number among all nodes.
    pub fn partition_of(&self, node: u32) -> usize {
        match node.checked_sub(self.hosts) {
            Some(switch) => self.division.of_switch(switch) as usize,
            None => self.division.of_host(node) as usize,
        }
    }
}
