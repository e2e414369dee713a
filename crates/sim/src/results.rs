//! What a run leaves behind: one record a message, and counters. Everything is added up as it happens.

use openmrc_transport::Time;

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageResult {
    /// When it was posted; [`Time::NEVER`] if it was not.
    pub posted: Time,
    /// When its last byte was in place at the responder; [`Time::NEVER`] if it is not.
    pub delivered: Time,
    /// When the requestor saw its completion; [`Time::NEVER`] if it did not.
    pub completed: Time,
    /// Its queue pair went to ERROR.
    pub failed: bool,
}

/// Counters of a run. Each packet launched ends as delivered, stray, or in one of the drops, or is still on its way.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Events processed.
    pub events: u64,
    /// Data packets that queue pairs sent, retransmissions included.
    pub data_packets: u64,
    /// Payload bytes in them.
    pub data_bytes: u64,
    /// Of these packets, retransmissions.
    pub retransmits: u64,
    /// Control packets and probes.
    pub control_packets: u64,
    /// Packets that reached their queue pair, trimmed ones included.
    pub arrived: u64,
    /// Packets for a queue pair that had finished.
    pub stray: u64,
    /// Payloads cut off inside the fabric.
    pub trimmed: u64,
    /// Payloads cut off on the last hop.
    pub trimmed_last_hop: u64,
    /// Packets marked.
    pub marked: u64,
    /// Dropped because a data queue was full.
    pub dropped_data: u64,
    /// Dropped because a control queue was full.
    pub dropped_control: u64,
    /// Dropped because a link or a switch was down.
    pub dropped_down: u64,
    /// Dropped by a lossy link, or damaged by bit errors.
    pub dropped_lossy: u64,
    /// Packets that queue pairs took for lost without a trace.
    pub losses_seen: u64,
    /// Of those, packets that had arrived.
    pub spurious: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Paths condemned.
    pub condemned: u64,
    /// Queue pairs in ERROR.
    pub fatal: u64,
    /// Most bytes that waited in a data queue of a switch.
    pub longest_queue: u64,
    /// Times a port told its peer to stop (PFC).
    pub pauses: u64,
    /// Bytes on the cable, everything counted, of all packets that queue pairs sent ...
    pub launched_bytes: u64,
    /// ... and of those that reached a host ...
    pub arrived_bytes: u64,
    /// ... were dropped ...
    pub dropped_bytes: u64,
    /// ... or cut off by trimming.
    pub cut_bytes: u64,
}

impl Totals {
    /// Every counter with its name.
    pub fn named(&self) -> [(&'static str, u64); 25] {
        [
            ("events", self.events),
            ("data_packets", self.data_packets),
            ("data_bytes", self.data_bytes),
            ("retransmits", self.retransmits),
            ("control_packets", self.control_packets),
            ("arrived", self.arrived),
            ("stray", self.stray),
            ("trimmed", self.trimmed),
            ("trimmed_last_hop", self.trimmed_last_hop),
            ("marked", self.marked),
            ("dropped_data", self.dropped_data),
            ("dropped_control", self.dropped_control),
            ("dropped_down", self.dropped_down),
            ("dropped_lossy", self.dropped_lossy),
            ("losses_seen", self.losses_seen),
            ("spurious", self.spurious),
            ("timeouts", self.timeouts),
            ("condemned", self.condemned),
            ("fatal", self.fatal),
            ("longest_queue", self.longest_queue),
            ("pauses", self.pauses),
            ("launched_bytes", self.launched_bytes),
            ("arrived_bytes", self.arrived_bytes),
            ("dropped_bytes", self.dropped_bytes),
            ("cut_bytes", self.cut_bytes),
        ]
    }

    /// Packets that queue pairs handed to the network.
    pub fn launched(&self) -> u64 {
        self.data_packets + self.control_packets
    }

    /// Packets that the network lost.
    pub fn dropped(&self) -> u64 {
        self.dropped_data + self.dropped_control + self.dropped_down + self.dropped_lossy
    }
}

/// What a run leaves behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Results {
    /// When it ended.
    pub end: Time,
    /// By message.
    pub messages: Vec<MessageResult>,
    /// Counters.
    pub totals: Totals,
    /// Packets still on their way at the end.
    pub in_flight: u64,
    /// Bytes of theirs, everything counted.
    pub in_flight_bytes: u64,
    /// Bytes accepted by each port, everything counted; host ports first (host x planes + plane), then switch by switch.
    pub port_bytes: Vec<u64>,
    /// When each port will have sent, or has sent, all it accepted.
    pub port_busy_until: Vec<Time>,
}
