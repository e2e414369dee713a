//! Counters: packets and bytes per port, packets and time of last use per path, and drops by cause.

use openmrc_transport::node::NodeStats;
use openmrc_wire::{DecodeError, Difference, Differences, Ev};

use crate::path::{SegmentRoute, TxPath};

macro_rules! causes {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// Causes of drops and refusals, with one counter each (docs/spec/wire.md, "Bad input").
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Cause { $($(#[$doc])* $variant,)* }

        impl Cause {
            /// Every cause.
            pub const ALL: &'static [Cause] = &[$(Cause::$variant),*];

            /// Name of the counter. It does not change, as dashboards and scripts depend on it.
            pub const fn name(self) -> &'static str {
                match self { $(Cause::$variant => $name,)* }
            }
        }
    };
}

causes! {
    /// The bytes end before the headers do.
    Short => "rx_short",
    /// Longer than a datagram can be.
    Long => "rx_long",
    /// An opcode that does not exist.
    UnknownOpcode => "rx_unknown_opcode",
    /// BTH.TVer is not 0.
    BadTver => "rx_bad_tver",
    /// More padding than payload.
    BadPad => "rx_bad_pad",
    /// The length of payload and padding is not a multiple of four.
    Unaligned => "rx_unaligned",
    /// Payload after headers that allow none.
    UnexpectedPayload => "rx_unexpected_payload",
    /// A header of an unknown type.
    BadHeaderType => "rx_bad_header_type",
    /// A reserved value.
    ReservedValue => "rx_reserved_value",
    /// A malformed segment routing header, or one with segments left: the packet is not at the end of its path.
    BadSrh => "rx_bad_srh",
    /// The iCRC does not match.
    BadIcrc => "rx_bad_icrc",
    /// No queue pair has the number.
    UnknownQp => "rx_unknown_qp",
    /// The packet is not from the queue pair's peer.
    WrongPeer => "rx_wrong_peer",
    /// The queue pair is not in RTR or RTS, nor in ERROR with a NAK to repeat.
    QpNotReady => "rx_qp_not_ready",
    /// Received on a port that is down.
    PortDown => "rx_port_down",
    /// Not a packet that MRC sends to a queue pair or to an endpoint.
    Unexpected => "rx_unexpected",
    /// A datagram longer than the receive buffer.
    Truncated => "rx_truncated",
    /// A trimmed packet that was not data.
    TrimmedControl => "rx_trimmed_control",
    /// Dropped by this host because the socket's receive buffer was full.
    SocketOverflow => "rx_socket_overflow",
    /// A remote write with a key that is not registered, or no longer.
    RkeyUnknown => "refused_rkey",
    /// A remote write to a region of another protection domain.
    PdMismatch => "refused_pd",
    /// A remote write to a region without REMOTE_WRITE.
    NoRemoteWrite => "refused_access",
    /// A remote write outside its region, or beyond the end of the file that is mapped there.
    OutOfBounds => "refused_bounds",
    /// No route to the peer, or the local address is gone.
    TxUnreachable => "tx_unreachable",
    /// A firewall or the system refused to send.
    TxRefused => "tx_refused",
    /// Longer than the path's MTU.
    TxTooLong => "tx_too_long",
    /// Any other error of the socket.
    TxError => "tx_error",
    /// The send buffer or the device queue was full. The packet is sent later.
    TxHeld => "tx_held",
    /// The interface refused it for longer than a full queue needs to drain.
    TxNoBuffers => "tx_no_buffers",
    /// The MAC address of the next hop is not known, as the neighbour does not answer.
    TxNoNeighbour => "tx_no_neighbour",
    /// The port was down.
    TxNoPort => "tx_no_port",
}

impl From<&DecodeError> for Cause {
    fn from(error: &DecodeError) -> Self {
        match error {
            DecodeError::TooShort { .. } => Cause::Short,
            DecodeError::TooLong(_) => Cause::Long,
            DecodeError::UnknownOpcode(_) => Cause::UnknownOpcode,
            DecodeError::BadTver(_) => Cause::BadTver,
            DecodeError::BadPad { .. } => Cause::BadPad,
            DecodeError::Unaligned(_) => Cause::Unaligned,
            DecodeError::UnexpectedPayload { .. } => Cause::UnexpectedPayload,
            DecodeError::BadHeaderType { .. } => Cause::BadHeaderType,
            DecodeError::ReservedValue { .. } => Cause::ReservedValue,
            DecodeError::BadIcrc { .. } => Cause::BadIcrc,
            DecodeError::UnknownQp(_) => Cause::UnknownQp,
            DecodeError::WrongPeer(_) => Cause::WrongPeer,
            DecodeError::BadSrh(_) => Cause::BadSrh,
            // The other errors are about layers that the kernel removes before a socket receives the packet.
            _ => Cause::Unexpected,
        }
    }
}

/// Counters by cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Causes([u64; Cause::ALL.len()]);

impl Default for Causes {
    fn default() -> Self {
        Causes([0; Cause::ALL.len()])
    }
}

impl Causes {
    #[inline]
    pub(crate) fn add(&mut self, cause: Cause, n: u64) {
        self.0[cause as usize] += n;
    }

    /// Count of one cause.
    pub fn get(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Every cause with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Cause, u64)> + '_ {
        Cause::ALL.iter().map(|&cause| (cause, self.get(cause)))
    }
}

/// Packets received whose values differ from those that this device sends, although a reading of MRC allows them. They
/// tell how a peer reads the specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerDifferences([u64; Difference::ALL.len()]);

impl Default for PeerDifferences {
    fn default() -> Self {
        PeerDifferences([0; Difference::ALL.len()])
    }
}

impl PeerDifferences {
    #[cold]
    pub(crate) fn add(&mut self, found: Differences) {
        for each in found.iter() {
            self.0[each as usize] += 1;
        }
    }

    /// Every difference with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Difference, u64)> + '_ {
        Difference::ALL.iter().map(|&each| (each, self.0[each as usize]))
    }
}

/// Counters of one port.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PortStats {
    /// Packets sent.
    pub tx_packets: u64,
    /// UDP payload bytes sent.
    pub tx_bytes: u64,
    /// Runs of packets handed to the kernel; several of one device may share a system call.
    pub tx_calls: u64,
    /// Packets received, including bad ones.
    pub rx_packets: u64,
    /// UDP payload bytes received.
    pub rx_bytes: u64,
    /// Messages that the kernel delivered, of one or several packets each.
    pub rx_datagrams: u64,
    /// Packets received with ECN "congestion experienced".
    pub rx_ecn_marked: u64,
    /// Packets lost because the socket's receive buffer was full.
    pub rx_overflow: u64,
}

/// Counters of one path: one entropy value on one port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathStats {
    /// Port (plane).
    pub port: u8,
    /// Entropy value.
    pub ev: Ev,
    /// SRv6 mode: its route.
    pub route: Option<SegmentRoute>,
    /// Packets sent with it.
    pub tx_packets: u64,
    /// UDP payload bytes sent with it.
    pub tx_bytes: u64,
    /// Time of the last data packet or probe sent with it, nanoseconds of `CLOCK_MONOTONIC`; 0 if there was none. Feedback
    /// and answers to requests are not counted: nothing tells whether they arrive.
    pub last_tx_ns: u64,
}

impl PathStats {
    pub(crate) fn new(path: &TxPath) -> Self {
        PathStats {
            port: path.port,
            ev: path.ev,
            route: path.route(),
            tx_packets: path.packets,
            tx_bytes: path.bytes,
            last_tx_ns: path.last_tx_ns,
        }
    }
}

/// A snapshot of the counters of a context.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ContextStats {
    /// Counters by port.
    pub ports: Vec<PortStats>,
    /// Drops and refusals by cause.
    pub causes: Causes,
    /// How the packets of peers differ from those of this device.
    pub differences: PeerDifferences,
    /// Counters of the node: port status updates, EV probes, overflows.
    pub node: NodeStats,
    /// Turns of the engine.
    pub iterations: u64,
    /// Number of times the engine slept.
    pub sleeps: u64,
    /// Descriptors of what sends: one of a ring that has all sockets, else one for each socket.
    pub send_descriptors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_the_wire_keep_their_names() {
        let errors = [
            DecodeError::TooShort { what: "BTH", needed: 12, have: 1 },
            DecodeError::UnknownOpcode(1),
            DecodeError::BadTver(1),
            DecodeError::BadPad { pad: 3, have: 0 },
            DecodeError::Unaligned(1),
            DecodeError::UnexpectedPayload { opcode: 0xDC, len: 4 },
            DecodeError::BadIcrc { expected: 0, found: 1 },
            DecodeError::UnknownQp(1),
            DecodeError::WrongPeer(1),
            DecodeError::BadSrh("segments are left"),
        ];
        for error in &errors {
            assert_eq!(Cause::from(error).name(), error.counter());
        }
    }

    #[test]
    fn no_two_causes_share_a_name() {
        let mut names: Vec<_> = Cause::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Cause::ALL.len());
    }
}
