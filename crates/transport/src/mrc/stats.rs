//! Counters of one queue pair.

use serde::{Deserialize, Serialize};

/// Cases in which public readings of the specification differ, or a peer does not do what they say. A capture of a
/// real peer settles them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PeerCounters {
    /// SACKs with a window of 0 although dynamic MPR is on.
    pub no_mpr: u16,
    /// SACKs whose reflected timestamp fits no transmission of the packet that they answer.
    pub bad_timestamps: u16,
    /// ACKs and NAKs with a syndrome that MRC does not have.
    pub unknown_syndrome: u16,
    /// SACKs, NACKs and probes with other queue pair numbers than expected in SPDCID and DPDCID.
    pub other_ids: u16,
}

impl PeerCounters {
    /// Counts one more; stays at the largest number.
    pub(super) fn count(counter: &mut u16) {
        *counter = counter.saturating_add(1);
    }
}

/// Counters of a queue pair. Error counters wrap at 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Data packets sent, retransmissions included.
    pub data_packets: u64,
    /// Payload bytes sent, retransmissions included.
    pub data_bytes: u64,
    /// Data packets received, duplicates and trimmed packets included.
    pub data_packets_in: u64,
    /// Retransmissions.
    pub retransmits: u32,
    /// Packets taken for lost without a NACK.
    pub lost: u32,
    /// The part of `lost` that was sent before the peer reported a buffer overflow.
    pub overflowed: u32,
    /// NACKs TRIMMED and TRIMMED_LASTHOP received.
    pub trimmed: u32,
    /// Packets taken for lost that had arrived.
    pub spurious: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Reliability probes sent.
    pub probes: u32,
    /// The part of `probes` that was sent to find out whether a condemned path works again.
    pub path_probes: u32,
    /// SACKs sent.
    pub sacks_sent: u32,
    /// SACKs received.
    pub sacks_in: u32,
    /// NACKs sent.
    pub nacks_sent: u32,
    /// Paths condemned.
    pub condemned: u32,
    /// Packets dropped because they contradict the protocol (acknowledgement of a packet that was never sent).
    pub invalid: u32,
    /// What the peer does otherwise than expected.
    pub peer: PeerCounters,
}

/// Counters and gauges of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QpStats {
    /// Counters; their fields are also accessible directly.
    pub counters: Counters,
    /// As responder: duplicates.
    pub duplicates_in: u32,
    /// As responder: packets outside the window, or duplicates from more than a window ago.
    pub refused_in: u32,
    /// As responder: trimmed packets.
    pub trimmed_in: u32,
    /// The peer's spdcid and dpdcid have never been those of this connection.
    pub peer_ids_other: bool,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: i64,
    /// Smoothed round-trip time, nanoseconds.
    pub srtt_ns: u64,
    /// Reorder window, nanoseconds.
    pub reorder_window_ns: u64,
    /// SACKs and NACKs whose entropy named a path with its halves exchanged, at most 65535.
    pub peer_swapped_entropy: u16,
    /// SACKs and NACKs whose entropy named no path, at most 65535.
    pub peer_unknown_entropy: u16,
}

impl core::ops::Deref for QpStats {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        &self.counters
    }
}
