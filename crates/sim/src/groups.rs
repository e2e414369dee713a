//! Groups of neighbouring nodes: the events of a group's nodes share the pages of the calendar.
//!
//! Nodes are numbered hosts first, then switches. The events of one page should fit the cache of a processor core.

/// Events in a page at full load: 128 KiB of them.
const PAGE_EVENTS: u64 = 4096;
/// Each group has a page that is being written; more pages than this do not fit the cache.
const MAX_GROUPS: u64 = 256;

/// The division of all nodes into groups.
pub(crate) struct NodeGroups {
    /// First node of each group, then one past the last node.
    first_nodes: Vec<u32>,
    /// Binary logarithm of the hosts in a group.
    host_log: u32,
}

impl NodeGroups {
    /// The group of events that concern all nodes. It holds no node and comes first.
    pub const EVERYWHERE: u32 = 0;

    /// Groups for `hosts` hosts with `planes` ports each and for switches with `switch_ports` ports each. A port has at
    /// most `events_per_port` events in a calendar slot.
    pub fn new(
        hosts: u32,
        planes: u32,
        switch_ports: impl Iterator<Item = u32> + Clone,
        events_per_port: u64,
    ) -> Self {
        let all_ports = u64::from(hosts * planes) + switch_ports.clone().map(u64::from).sum::<u64>();
        let max_ports = (PAGE_EVENTS / events_per_port).max(all_ports / MAX_GROUPS).max(1);
        let host_log = (max_ports / u64::from(planes)).max(1).ilog2().min(31);
        let mut first_nodes = vec![0];
        first_nodes.extend((0..hosts).step_by(1 << host_log));
        let mut end = hosts;
        let mut ports = u64::MAX;
        for (node, more) in (hosts..).zip(switch_ports.map(u64::from)) {
            if ports.saturating_add(more) > max_ports {
                first_nodes.push(node);
                ports = 0;
            }
            ports += more;
            end = node + 1;
        }
        first_nodes.push(end);
        NodeGroups { first_nodes, host_log }
    }

    /// First node of each group, then one past the last node.
    pub fn first_nodes(&self) -> &[u32] {
        &self.first_nodes
    }

    /// The group of a host.
    #[inline]
    pub fn of_host(&self, host: u32) -> u32 {
        1 + (host >> self.host_log)
    }

    /// The group of a switch, by its node number.
    pub fn of_switch(&self, node: u32) -> u32 {
        self.first_nodes.partition_point(|&first| first <= node) as u32 - 1
    }
}
