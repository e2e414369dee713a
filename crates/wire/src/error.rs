//! Why bytes are not a valid packet (docs/spec/wire.md, "Bad input"). Every cause has its own counter name.

/// Why a packet is dropped. Such a packet is never answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the header does.
    #[error("{what} needs {needed} bytes, {have} are left")]
    TooShort {
        /// The header that does not fit.
        what: &'static str,
        /// Its length in bytes.
        needed: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// More bytes than a UDP datagram can hold.
    #[error("a datagram of {0} bytes is longer than UDP allows")]
    TooLong(usize),
    /// An opcode that is neither MRC nor RoCEv2 RC WRITE, ACK or CNP.
    #[error("unknown opcode 0x{0:02x}")]
    UnknownOpcode(u8),
    /// A transport header version other than 0.
    #[error("BTH.TVer is {0}, must be 0")]
    BadTver(u8),
    /// More padding than bytes after the headers.
    #[error("BTH.PadCnt is {pad}, but only {have} bytes follow the headers")]
    BadPad {
        /// BTH.PadCnt.
        pad: u8,
        /// Bytes between the headers and the iCRC.
        have: usize,
    },
    /// Payload and padding together are not a multiple of four bytes.
    #[error("payload and padding are {0} bytes, must be a multiple of 4")]
    Unaligned(usize),
    /// Payload after headers that allow none.
    #[error("opcode 0x{opcode:02x} carries no payload, but {len} bytes follow its headers")]
    UnexpectedPayload {
        /// BTH opcode.
        opcode: u8,
        /// Bytes that follow.
        len: usize,
    },
    /// A header type, next header, timestamp format or congestion control format that is not known.
    #[error("{field} is 0x{value:x}, must be 0x{expected:x}")]
    BadHeaderType {
        /// Header and field.
        field: &'static str,
        /// What was found.
        value: u8,
        /// The only value defined.
        expected: u8,
    },
    /// A field holds a value that the specification reserves.
    #[error("{field} holds the reserved value 0x{value:x}")]
    ReservedValue {
        /// Header and field.
        field: &'static str,
        /// What was found.
        value: u8,
    },
    /// The invariant CRC does not match.
    #[error("iCRC is {found:08x}, should be {expected:08x}")]
    BadIcrc {
        /// Computed over the packet, in wire order.
        expected: u32,
        /// Found at its end, in wire order.
        found: u32,
    },
    /// No queue pair has the destination QP number. The owner of the queue pairs finds this.
    #[error("no queue pair has the number 0x{0:06x}")]
    UnknownQp(u32),
    /// The queue pair is connected to another address. The owner of the queue pairs finds this.
    #[error("queue pair 0x{0:06x} is connected to another address")]
    WrongPeer(u32),
    /// Neither IPv4 nor IPv6, a header length below the minimum, or a total length beyond the bytes.
    #[error("malformed IP header: {0}")]
    BadIp(&'static str),
    /// An IP fragment: RoCEv2 and MRC packets are never fragmented.
    #[error("IP fragment")]
    Fragment,
    /// A malformed segment routing header, or a routing header of another type.
    #[error("malformed segment routing header: {0}")]
    BadSrh(&'static str),
    /// A protocol other than UDP.
    #[error("IP protocol {0} is not UDP")]
    NotUdp(u8),
    /// An Ethernet or loopback frame without an IP packet.
    #[error("ethertype 0x{0:04x} is not IP")]
    NotIp(u16),
    /// The UDP length does not match the bytes.
    #[error("UDP length is {length}, the packet holds {have} bytes")]
    BadUdpLength {
        /// The length field.
        length: u16,
        /// Bytes from the UDP header to the end of the IP packet.
        have: usize,
    },
    /// UDP to another port.
    #[error("UDP destination port {0} is not an MRC port")]
    OtherPort(u16),
    /// A capture link type that is not supported.
    #[error("capture link type {0} is not supported")]
    UnknownLinkType(u32),
    /// The capture kept fewer bytes than the packet had on the wire.
    #[error("the capture kept {have} of {wire} bytes")]
    CaptureTruncated {
        /// Bytes kept.
        have: usize,
        /// Bytes on the wire.
        wire: usize,
    },
}

impl DecodeError {
    /// Name of the counter for this cause. It does not change, as dashboards and scripts depend on it.
    pub const fn counter(&self) -> &'static str {
        match self {
            DecodeError::TooShort { .. } => "rx_short",
            DecodeError::TooLong(_) => "rx_long",
            DecodeError::UnknownOpcode(_) => "rx_unknown_opcode",
            DecodeError::BadTver(_) => "rx_bad_tver",
            DecodeError::BadPad { .. } => "rx_bad_pad",
            DecodeError::Unaligned(_) => "rx_unaligned",
            DecodeError::UnexpectedPayload { .. } => "rx_unexpected_payload",
            DecodeError::BadHeaderType { .. } => "rx_bad_header_type",
            DecodeError::ReservedValue { .. } => "rx_reserved_value",
            DecodeError::BadIcrc { .. } => "rx_bad_icrc",
            DecodeError::UnknownQp(_) => "rx_unknown_qp",
            DecodeError::WrongPeer(_) => "rx_wrong_peer",
            DecodeError::BadIp(_) => "rx_bad_ip",
            DecodeError::Fragment => "rx_fragment",
            DecodeError::BadSrh(_) => "rx_bad_srh",
            DecodeError::NotUdp(_) => "rx_not_udp",
            DecodeError::NotIp(_) => "rx_not_ip",
            DecodeError::BadUdpLength { .. } => "rx_bad_udp_length",
            DecodeError::OtherPort(_) => "rx_other_port",
            DecodeError::UnknownLinkType(_) => "rx_unknown_link_type",
            DecodeError::CaptureTruncated { .. } => "rx_capture_truncated",
        }
    }
}
