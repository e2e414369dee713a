//! A whole captured packet, layer by layer (docs/spec/wire.md, "Stack").
//!
//! ```text
//! [link] | [outer IPv6 [SRH]] | IPv6 or IPv4 | UDP | BTH | extension headers | payload | pad | iCRC
//! ```
//!
//! [`Frame::decode`] never fails: it keeps every layer that it could read, and [`Frame::error`] says why it stopped.
//! [`crate::layers::Layers::emit`] is its inverse.

use crate::bth::Bth;
use crate::bytes::take;
use crate::difference::Differences;
use crate::dscp::DscpMap;
use crate::error::DecodeError;
use crate::icrc::{self, Icrc};
use crate::ip::{self, Ip, Ipv4, Ipv6};
use crate::link::{Ethernet, LinkType};
use crate::packet::{NackReason, Packet};
use crate::srh::Srh;
use crate::udp::{self, MRC_PORT, ROCE_PORT, Udp};

/// The outer header of SRv6 mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// The header whose destination is the path.
    pub ip: Ipv6,
    /// The rest of the path, in 256-bit mode.
    pub srh: Option<Srh>,
}

/// Result of the iCRC check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcrcVerdict {
    /// The last four bytes are the right iCRC.
    Good,
    /// They are not ([`DecodeError::BadIcrc`]).
    Bad {
        /// Computed, in wire order.
        expected: u32,
        /// Found, in wire order.
        found: u32,
    },
    /// There is no iCRC, as a switch has trimmed the packet.
    Trimmed,
    /// The capture does not contain it, or the packet could not be decoded.
    Unknown,
}

/// What a decoder must know about the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameConfig<'a> {
    /// UDP destination ports of MRC and RoCEv2.
    pub ports: &'a [u16],
    /// DSCP code points, by which trimmed packets are recognised.
    pub dscp: DscpMap,
}

impl Default for FrameConfig<'static> {
    fn default() -> Self {
        FrameConfig { ports: &[ROCE_PORT, MRC_PORT], dscp: DscpMap::DEFAULT }
    }
}

/// A captured packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Frame<'a> {
    /// Ethernet header.
    pub ethernet: Option<Ethernet>,
    /// Outer header of SRv6 mode.
    pub outer: Option<Outer>,
    /// The IP header that encloses UDP.
    pub ip: Option<Ip>,
    /// UDP header.
    pub udp: Option<Udp>,
    /// The base transport header, even if the rest of the packet is not valid.
    pub bth: Option<Bth>,
    /// The packet.
    pub packet: Option<Packet>,
    /// Its payload without padding, as far as the capture contains it.
    pub payload: &'a [u8],
    /// Set if a switch has trimmed the packet.
    pub trimmed: Option<NackReason>,
    /// Whether the capture does not contain the whole packet.
    pub cut: bool,
    /// Result of the iCRC check.
    pub icrc: IcrcVerdict,
    /// Values that differ from those that this implementation sends.
    pub differences: Differences,
    /// Why decoding ended early, or why the packet would be dropped.
    pub error: Option<DecodeError>,
}

impl<'a> Frame<'a> {
    const EMPTY: Self = Frame {
        ethernet: None,
        outer: None,
        ip: None,
        udp: None,
        bth: None,
        packet: None,
        payload: &[],
        trimmed: None,
        cut: false,
        icrc: IcrcVerdict::Unknown,
        differences: Differences::NONE,
        error: None,
    };

    /// A packet of which no layer can be read.
    pub const fn unreadable(error: DecodeError) -> Self {
        Frame { error: Some(error), ..Self::EMPTY }
    }

    /// Decodes a captured packet that had `wire_len` bytes on the wire. If the capture contains fewer, lengths beyond
    /// `bytes` are no error.
    pub fn decode(bytes: &'a [u8], wire_len: usize, link: LinkType, config: &FrameConfig) -> Self {
        let mut frame = Frame::EMPTY;
        let snapped = wire_len > bytes.len();
        if let Err(error) = frame.decode_layers(bytes, snapped, link, config) {
            frame.error = Some(match error {
                // The capture is the cause, unless it contains the whole datagram.
                DecodeError::TooShort { .. } if snapped && (frame.cut || frame.ip.is_none()) => {
                    frame.cut = true;
                    DecodeError::CaptureTruncated { have: bytes.len(), wire: wire_len }
                }
                error => error,
            });
        }
        frame
    }

    /// Whether a receiver would accept the packet, trimmed or whole.
    pub const fn is_good(&self) -> bool {
        self.packet.is_some() && self.error.is_none()
    }

    /// The outermost DSCP, which switches change.
    pub fn dscp(&self) -> Option<u8> {
        self.outer.map(|outer| outer.ip.dscp).or(self.ip.map(|ip| ip.dscp()))
    }

    fn decode_layers(
        &mut self,
        bytes: &'a [u8],
        snapped: bool,
        link: LinkType,
        config: &FrameConfig,
    ) -> Result<(), DecodeError> {
        if link == LinkType::Ethernet {
            self.ethernet = Some(Ethernet::parse(bytes)?.0);
        }
        let (_, rest) = link.strip(bytes)?;
        let (ip_header, ip_payload) = self.decode_ip(rest, snapped, config)?;
        self.decode_udp(ip_header, ip_payload, config)
    }

    /// Reads the IP headers; returns the bytes of the one that encloses UDP, and what it encloses.
    fn decode_ip(
        &mut self,
        bytes: &'a [u8],
        snapped: bool,
        config: &FrameConfig,
    ) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        let first = SplitIp::new(bytes)?;
        self.check_length(&first, snapped, config)?;
        let Ip::V6(outer) = first.ip else {
            self.ip = Some(first.ip);
            return Ok((first.header, first.payload));
        };
        let (srh, next_header, inner) = match outer.next_header {
            ip::PROTOCOL_ROUTING => {
                let (srh, rest) = Srh::parse(first.payload)?;
                (Some(srh), srh.next_header, rest)
            }
            other => (None, other, first.payload),
        };
        match next_header {
            ip::PROTOCOL_IPV6 | ip::PROTOCOL_IPV4 => {
                self.outer = Some(Outer { ip: outer, srh });
                let second = SplitIp::new(inner)?;
                if matches!(second.ip, Ip::V6(_)) != (next_header == ip::PROTOCOL_IPV6) {
                    return Err(DecodeError::BadIp("inner version is not what the next header says"));
                }
                self.check_length(&second, snapped, config)?;
                self.ip = Some(second.ip);
                Ok((second.header, second.payload))
            }
            other if srh.is_some() => {
                self.outer = Some(Outer { ip: outer, srh });
                Err(DecodeError::NotUdp(other))
            }
            _ => {
                self.ip = Some(first.ip);
                Ok((first.header, first.payload))
            }
        }
    }

    /// Reads from the DSCP whether a switch has trimmed the packet. A length beyond the bytes is no error if the
    /// capture is incomplete, or if a switch trims without correcting lengths.
    fn check_length(
        &mut self,
        split: &SplitIp<'_>,
        snapped: bool,
        config: &FrameConfig,
    ) -> Result<(), DecodeError> {
        self.trimmed = self.trimmed.or(config.dscp.trimmed_reason(split.ip.dscp()));
        self.cut |= split.short && snapped;
        if split.short && !snapped && self.trimmed.is_none() {
            return Err(DecodeError::BadIp("length is beyond the bytes"));
        }
        Ok(())
    }

    fn decode_udp(
        &mut self,
        ip_header: &[u8],
        ip_payload: &'a [u8],
        config: &FrameConfig,
    ) -> Result<(), DecodeError> {
        if let Some(protocol) = self.ip.map(|ip| ip.protocol())
            && protocol != ip::PROTOCOL_UDP
        {
            return Err(DecodeError::NotUdp(protocol));
        }
        let mut rest = ip_payload;
        let udp_header = take::<{ udp::LEN }>(&mut rest, "UDP")?;
        let udp = Udp::parse(udp_header);
        self.udp = Some(udp);
        if !config.ports.contains(&udp.dport) {
            return Err(DecodeError::OtherPort(udp.dport));
        }
        let length = usize::from(udp.length);
        let bad_length = DecodeError::BadUdpLength { length: udp.length, have: ip_payload.len() };
        let payload_len = length.checked_sub(udp::LEN).ok_or(bad_length)?;
        let datagram = match rest.get(..payload_len) {
            Some(datagram) => datagram,
            None if self.cut || self.trimmed.is_some() => rest,
            None => return Err(bad_length),
        };
        self.bth = datagram.first_chunk().map(Bth::parse);
        self.differences = Differences::of(datagram);
        if self.trimmed.is_some() {
            self.packet = Some(Packet::parse_trimmed(datagram)?);
            self.icrc = IcrcVerdict::Trimmed;
            return Ok(());
        }
        if datagram.len() < payload_len {
            return self.decode_cut(datagram, payload_len);
        }
        let (packet, payload) = Packet::parse(datagram)?;
        self.packet = Some(packet);
        self.payload = payload;
        self.check_icrc(ip_header, udp_header, datagram)
    }

    /// A packet whose end is missing: its payload length is derived from the UDP length.
    fn decode_cut(&mut self, datagram: &'a [u8], wire_len: usize) -> Result<(), DecodeError> {
        let (mut packet, rest) = Packet::parse_cut(datagram)?;
        let pad = self.bth.map_or(0, |bth| usize::from(bth.pad));
        let after_headers = wire_len.saturating_sub(packet.header_len() + icrc::LEN);
        if packet.is_data() {
            let len = after_headers
                .checked_sub(pad)
                .ok_or(DecodeError::BadPad { pad: pad as u8, have: after_headers })?;
            packet.payload_len = len as u16;
            self.payload = &rest[..rest.len().min(len)];
        }
        self.packet = Some(packet);
        Ok(())
    }

    fn check_icrc(
        &mut self,
        ip_header: &[u8],
        udp_header: &[u8; udp::LEN],
        datagram: &[u8],
    ) -> Result<(), DecodeError> {
        let (Some((covered, found)), Some(mut icrc)) =
            (datagram.split_last_chunk::<{ icrc::LEN }>(), Icrc::of_headers(ip_header, udp_header))
        else {
            return Ok(());
        };
        icrc.update(covered);
        let (expected, found) = (u32::from_be_bytes(icrc.finish()), u32::from_be_bytes(*found));
        if expected != found {
            self.icrc = IcrcVerdict::Bad { expected, found };
            return Err(DecodeError::BadIcrc { expected, found });
        }
        self.icrc = IcrcVerdict::Good;
        Ok(())
    }
}

/// One IP header and what it encloses.
struct SplitIp<'a> {
    ip: Ip,
    header: &'a [u8],
    payload: &'a [u8],
    /// The length in the header is larger than the bytes.
    short: bool,
}

impl<'a> SplitIp<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes;
        let version = bytes.first().ok_or(DecodeError::TooShort { what: "IP", needed: 1, have: 0 })? >> 4;
        let (ip, header_len, total_len) = match version {
            4 => {
                let (ip, header_len) = Ipv4::parse(take(&mut rest, "IPv4")?)?;
                (Ip::V4(ip), header_len, usize::from(ip.total_len))
            }
            6 => {
                let ip = Ipv6::parse(take(&mut rest, "IPv6")?)?;
                (Ip::V6(ip), ip::IPV6_LEN, ip::IPV6_LEN + usize::from(ip.payload_len))
            }
            _ => return Err(DecodeError::BadIp("version is neither 4 nor 6")),
        };
        let Some((header, rest)) = bytes.split_at_checked(header_len) else {
            return Err(DecodeError::TooShort {
                what: "IPv4 options",
                needed: header_len,
                have: bytes.len(),
            });
        };
        match rest.get(..total_len - header_len) {
            Some(payload) => Ok(SplitIp { ip, header, payload, short: false }),
            None => Ok(SplitIp { ip, header, payload: rest, short: true }),
        }
    }
}
