//! The results of a run: the fate of each message, the steps of jobs, and counters that are added up as events happen.

use openmrc_transport::Time;
use serde::{Deserialize, Serialize};

/// The fate of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageResult {
    /// The host that sends it.
    pub src: u32,
    /// The host that receives it.
    pub dst: u32,
    /// Its length.
    pub bytes: u32,
    /// The pattern of traffic that it is of.
    pub pattern: u32,
    /// When it was posted; [`Time::NEVER`] if it was not.
    pub posted: Time,
    /// When its last byte was in place at the responder; [`Time::NEVER`] if it is not.
    pub delivered: Time,
    /// When the requestor saw its completion; [`Time::NEVER`] if it did not.
    pub completed: Time,
    /// Its queue pair went to ERROR.
    pub failed: bool,
}

/// The end of a step of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepResult {
    /// The pattern of traffic that is the job.
    pub pattern: u32,
    /// Which step, from 0.
    pub step: u32,
    /// When the last rank reached its end; [`Time::NEVER`] if one did not.
    pub end: Time,
}

/// What became of a node of a recorded job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeResult {
    /// The pattern of traffic that is the job.
    pub pattern: u32,
    /// The rank.
    pub rank: u32,
    /// The node's number in the trace of its rank.
    pub node: u64,
    /// When it began: of a computation, a message that was posted, or an operation that its rank entered; of a receive,
    /// when its message was there. [`Time::NEVER`] if what it begins with has not ended.
    pub began: Time,
    /// When it ended; [`Time::NEVER`] if it did not.
    pub ended: Time,
}

/// Counters of a run. Every packet launched ends as arrived, stray or dropped, or is still in flight.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Events processed.
    pub events: u64,
    /// What hosts and their queue pairs counted.
    pub hosts: HostTotals,
    /// What the fabric counted.
    pub fabric: FabricTotals,
}

/// Counters of hosts and their queue pairs. Bytes are those on the cable, all headers included, where nothing else is
/// said.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HostTotals {
    /// Data packets sent, retransmissions included.
    pub data_packets: u64,
    /// Payload bytes in them.
    pub data_bytes: u64,
    /// Of the data packets, retransmissions.
    pub retransmits: u64,
    /// Control packets and probes sent.
    pub control_packets: u64,
    /// Of these, probes of condemned paths.
    pub path_probes: u64,
    /// Packets that reached their queue pair, trimmed ones included.
    pub arrived: u64,
    /// Packets that did not fit in a receive buffer.
    pub overflowed: u64,
    /// Packets that found their queue pair closed.
    pub stray: u64,
    /// Packets that queue pairs took for lost without a trace.
    pub losses_seen: u64,
    /// Of these, packets that had arrived.
    pub spurious: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Paths condemned.
    pub condemned: u64,
    /// Queue pairs in ERROR.
    pub fatal: u64,
    /// Bytes of all packets sent.
    pub launched_bytes: u64,
    /// Bytes of all packets that reached a host.
    pub arrived_bytes: u64,
}

/// Counters of the fabric. Bytes are those on the cable, all headers included.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FabricTotals {
    /// Packets trimmed inside the fabric.
    pub trimmed: u64,
    /// Packets trimmed on the last hop.
    pub trimmed_last_hop: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets dropped because a data queue was full.
    pub dropped_data: u64,
    /// Packets dropped because a control queue was full.
    pub dropped_control: u64,
    /// Packets dropped because a link or a switch was down.
    pub dropped_down: u64,
    /// Packets dropped by a lossy link, damaged by bit errors, or too long for an MTU.
    pub dropped_lossy: u64,
    /// Most bytes that waited in a data queue of a switch.
    pub longest_queue: u64,
    /// Times a port told its peer to stop (PFC).
    pub pauses: u64,
    /// Bytes of all packets dropped, in receive buffers too.
    pub dropped_bytes: u64,
    /// Bytes cut off by trimming.
    pub cut_bytes: u64,
}

impl Totals {
    /// Every counter with its name.
    pub fn named(&self) -> [(&'static str, u64); 27] {
        let Totals { events, hosts, fabric } = self;
        [
            ("events", *events),
            ("data_packets", hosts.data_packets),
            ("data_bytes", hosts.data_bytes),
            ("retransmits", hosts.retransmits),
            ("control_packets", hosts.control_packets),
            ("path_probes", hosts.path_probes),
            ("arrived", hosts.arrived),
            ("stray", hosts.stray),
            ("trimmed", fabric.trimmed),
            ("trimmed_last_hop", fabric.trimmed_last_hop),
            ("marked", fabric.marked),
            ("dropped_data", fabric.dropped_data),
            ("dropped_control", fabric.dropped_control),
            ("dropped_down", fabric.dropped_down),
            ("dropped_lossy", fabric.dropped_lossy),
            ("overflowed", hosts.overflowed),
            ("losses_seen", hosts.losses_seen),
            ("spurious", hosts.spurious),
            ("timeouts", hosts.timeouts),
            ("condemned", hosts.condemned),
            ("fatal", hosts.fatal),
            ("longest_queue", fabric.longest_queue),
            ("pauses", fabric.pauses),
            ("launched_bytes", hosts.launched_bytes),
            ("arrived_bytes", hosts.arrived_bytes),
            ("dropped_bytes", fabric.dropped_bytes),
            ("cut_bytes", fabric.cut_bytes),
        ]
    }

    /// The counters of two parts of a run.
    pub fn with(self, other: Totals) -> Totals {
        let (a, b) = (self, other);
        Totals {
            events: a.events + b.events,
            hosts: a.hosts.with(&b.hosts),
            fabric: a.fabric.with(&b.fabric),
        }
    }

    /// Packets that queue pairs handed to the network.
    pub fn launched(&self) -> u64 {
        self.hosts.data_packets + self.hosts.control_packets
    }

    /// Packets that the network or a receive buffer lost.
    pub fn dropped(&self) -> u64 {
        let FabricTotals { dropped_data, dropped_control, dropped_down, dropped_lossy, .. } = self.fabric;
        dropped_data + dropped_control + dropped_down + dropped_lossy + self.hosts.overflowed
    }
}

impl HostTotals {
    fn with(&self, other: &HostTotals) -> HostTotals {
        let (a, b) = (self, other);
        HostTotals {
            data_packets: a.data_packets + b.data_packets,
            data_bytes: a.data_bytes + b.data_bytes,
            retransmits: a.retransmits + b.retransmits,
            control_packets: a.control_packets + b.control_packets,
            path_probes: a.path_probes + b.path_probes,
            arrived: a.arrived + b.arrived,
            overflowed: a.overflowed + b.overflowed,
            stray: a.stray + b.stray,
            losses_seen: a.losses_seen + b.losses_seen,
            spurious: a.spurious + b.spurious,
            timeouts: a.timeouts + b.timeouts,
            condemned: a.condemned + b.condemned,
            fatal: a.fatal + b.fatal,
            launched_bytes: a.launched_bytes + b.launched_bytes,
            arrived_bytes: a.arrived_bytes + b.arrived_bytes,
        }
    }
}

impl FabricTotals {
    fn with(&self, other: &FabricTotals) -> FabricTotals {
        let (a, b) = (self, other);
        FabricTotals {
            trimmed: a.trimmed + b.trimmed,
            trimmed_last_hop: a.trimmed_last_hop + b.trimmed_last_hop,
            marked: a.marked + b.marked,
            dropped_data: a.dropped_data + b.dropped_data,
            dropped_control: a.dropped_control + b.dropped_control,
            dropped_down: a.dropped_down + b.dropped_down,
            dropped_lossy: a.dropped_lossy + b.dropped_lossy,
            longest_queue: a.longest_queue.max(b.longest_queue),
            pauses: a.pauses + b.pauses,
            dropped_bytes: a.dropped_bytes + b.dropped_bytes,
            cut_bytes: a.cut_bytes + b.cut_bytes,
        }
    }
}

/// Counters of what connections did beside sending messages. All are zero unless the transport asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LifeTotals {
    /// Proofs of a path MTU that have ended.
    pub mtu_proofs: u64,
    /// Of these, proofs that have failed their connection: some plane carried short packets only.
    pub mtu_refused: u64,
    /// Queue pairs that were destroyed and answered their peers from then on.
    pub lingered: u64,
    /// Most of them at the same time at one host.
    pub lingering_most: u64,
    /// Packets that they sent.
    pub lingering_packets: u64,
    /// Messages that found no receive.
    pub receive_waits: u64,
    /// How long those that found one at last have waited, all together, picoseconds.
    pub receive_waited_ps: u64,
}

impl LifeTotals {
    /// Every counter with its name.
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("mtu_proofs", self.mtu_proofs),
            ("mtu_refused", self.mtu_refused),
            ("lingered", self.lingered),
            ("lingering_most", self.lingering_most),
            ("lingering_packets", self.lingering_packets),
            ("receive_waits", self.receive_waits),
            ("receive_waited_ps", self.receive_waited_ps),
        ]
    }

    /// The counters of two parts of a run.
    pub fn with(self, other: LifeTotals) -> LifeTotals {
        let (a, b) = (self, other);
        LifeTotals {
            mtu_proofs: a.mtu_proofs + b.mtu_proofs,
            mtu_refused: a.mtu_refused + b.mtu_refused,
            lingered: a.lingered + b.lingered,
            lingering_most: a.lingering_most.max(b.lingering_most),
            lingering_packets: a.lingering_packets + b.lingering_packets,
            receive_waits: a.receive_waits + b.receive_waits,
            receive_waited_ps: a.receive_waited_ps + b.receive_waited_ps,
        }
    }
}

/// What arrived without packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SkipTotals {
    /// Messages that arrived without packets, or with packets for a part of their bytes.
    pub messages: u64,
    /// Their payload bytes that no packet carried.
    pub bytes: u64,
    /// Data packets that would have carried them.
    pub packets: u64,
    /// Of the messages, those that went back to packets on their way.
    pub resumed: u64,
    /// Messages whose times were recorded.
    pub recorded: u64,
    /// Kinds of messages with recorded times.
    pub kinds: u64,
    /// Why packets carry everything from the beginning, or from the first fault on.
    pub packets_only: Option<&'static str>,
}

/// The results of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Results {
    /// When it ended.
    pub end: Time,
    /// By message, in the order of the workload. Computations are no messages.
    pub messages: Vec<MessageResult>,
    /// Steps of jobs, by pattern and number.
    pub steps: Vec<StepResult>,
    /// Nodes of recorded jobs, if they are recorded.
    pub nodes: Vec<NodeResult>,
    /// Counters.
    pub totals: Totals,
    /// Counters of what connections did beside sending messages.
    pub life: LifeTotals,
    /// Packets still in flight at the end.
    pub in_flight: u64,
    /// Their bytes, all headers included.
    pub in_flight_bytes: u64,
    /// Bytes accepted by each port, all headers included; host ports first (host x planes + plane), then switch by
    /// switch.
    pub port_bytes: Vec<u64>,
    /// By port: when it will have sent all that it accepted.
    pub port_busy_until: Vec<Time>,
    /// What arrived without packets.
    pub skips: SkipTotals,
}
