//! Packet trimming (docs/spec/wire.md, "DSCP"): a switch with a full queue cuts a packet to its headers, sets a DSCP
//! that says so, and forwards it with priority.
//!
//! The public texts do not say whether lengths are corrected. Here every length and checksum is, so that the packet is
//! a valid datagram that any host stack delivers; a UDP checksum of zero stays zero. In SRv6 mode both IP headers get
//! the new DSCP, so that the receiver sees it whether or not its decapsulation keeps the inner code point.

use core::ops::Range;

use crate::bth::{self, Bth, opcode, write_position};
use crate::dscp::{DscpClass, DscpMap};
use crate::error::DecodeError;
use crate::ip::{self, Ip, Ipv4, Ipv6};
use crate::link::LinkType;
use crate::rdma;
use crate::srh::Srh;
use crate::udp::{self, Udp};

/// Why a packet cannot be trimmed. A switch then drops it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrimError {
    /// Its DSCP does not allow it.
    #[error("DSCP {0} is not trimmable")]
    Class(u8),
    /// It is not a WRITE.
    #[error("opcode 0x{0:02x} carries no payload to trim")]
    NoPayload(u8),
    /// It is not a valid packet.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Offsets of the headers of a packet.
struct HeaderOffsets {
    outer: Option<usize>,
    ip: usize,
    udp: usize,
    /// Offset after the last byte that is kept.
    end: usize,
}

/// Trims a packet in place and returns its new length. The bytes after it have no meaning. `last_hop` says that the
/// full queue is that of the receiver's downlink. The packet is changed only if the result is `Ok`.
///
/// An MRC WRITE keeps BTH, METH, TSETH and RETH; a RoCEv2 WRITE keeps BTH and, if it has one, RETH. An immediate is cut
/// off with the payload.
///
/// # Errors
/// [`TrimError`] if the packet is not a WRITE or its class is not trimmable.
pub fn trim(
    bytes: &mut [u8],
    link: LinkType,
    port: u16,
    map: &DscpMap,
    last_hop: bool,
) -> Result<usize, TrimError> {
    let offsets = locate_headers(bytes, link, port, map)?;
    let class = if last_hop { DscpClass::TrimmedLastHop } else { DscpClass::Trimmed };
    for at in [offsets.outer, Some(offsets.ip)].into_iter().flatten() {
        rewrite_ip(&mut bytes[at..offsets.end], map.code(class));
    }
    rewrite_udp(bytes, offsets.ip..offsets.udp, offsets.udp..offsets.end);
    Ok(offsets.end)
}

fn locate_headers(
    bytes: &[u8],
    link: LinkType,
    port: u16,
    map: &DscpMap,
) -> Result<HeaderOffsets, TrimError> {
    let (_, packet) = link.strip(bytes)?;
    let mut ip_at = bytes.len() - packet.len();
    let mut outer = None;
    let (mut ip, mut next) = split(bytes, ip_at)?;
    // The class is that of the outermost header, the one that switches read.
    match map.class(ip.dscp()) {
        Some(DscpClass::Trimmable | DscpClass::TrimmableRetx) => {}
        _ => return Err(TrimError::Class(ip.dscp())),
    }
    let mut protocol = ip.protocol();
    if matches!(ip, Ip::V6(_)) {
        if protocol == ip::PROTOCOL_ROUTING {
            let (srh, rest) = Srh::parse(&bytes[next..])?;
            protocol = srh.next_header;
            next = bytes.len() - rest.len();
        }
        if protocol == ip::PROTOCOL_IPV6 || protocol == ip::PROTOCOL_IPV4 {
            outer = Some(ip_at);
            ip_at = next;
            (ip, next) = split(bytes, ip_at)?;
            if matches!(ip, Ip::V6(_)) != (protocol == ip::PROTOCOL_IPV6) {
                return Err(DecodeError::BadIp("inner version is not what the next header says").into());
            }
            protocol = ip.protocol();
        }
    }
    if protocol != ip::PROTOCOL_UDP {
        return Err(DecodeError::NotUdp(protocol).into());
    }
    let udp = Udp::parse(header_at(bytes, next, "UDP")?);
    if udp.dport != port {
        return Err(DecodeError::OtherPort(udp.dport).into());
    }
    let bth_at = next + udp::LEN;
    let bth = Bth::parse(header_at(bytes, bth_at, "BTH")?);
    let end = bth_at + bth::LEN + kept_len(&bth)?;
    if end > bytes.len() || end > next + usize::from(udp.length) {
        return Err(DecodeError::TooShort { what: "trimmed headers", needed: end, have: bytes.len() }.into());
    }
    Ok(HeaderOffsets { outer, ip: ip_at, udp: next, end })
}

/// Length of the extension headers that trimming keeps.
fn kept_len(bth: &Bth) -> Result<usize, TrimError> {
    match bth.opcode {
        opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM => {
            Ok(rdma::METH_LEN + if bth.ts { rdma::TSETH_LEN } else { 0 } + rdma::RETH_LEN)
        }
        opcode::RC_WRITE_FIRST..=opcode::RC_WRITE_ONLY_IMM => {
            let (position, _) = write_position(bth.opcode - opcode::RC_WRITE_FIRST);
            Ok(if position.is_first() { rdma::RETH_LEN } else { 0 })
        }
        other => Err(TrimError::NoPayload(other)),
    }
}

/// The IP header at `at`, and the offset of the next header.
fn split(bytes: &[u8], at: usize) -> Result<(Ip, usize), DecodeError> {
    match bytes.get(at).map(|byte| byte >> 4) {
        Some(4) => {
            let (ip, len) = Ipv4::parse(header_at(bytes, at, "IPv4")?)?;
            Ok((Ip::V4(ip), at + len))
        }
        Some(6) => Ok((Ip::V6(Ipv6::parse(header_at(bytes, at, "IPv6")?)?), at + ip::IPV6_LEN)),
        _ => Err(DecodeError::BadIp("version is neither 4 nor 6")),
    }
}

fn header_at<'a, const N: usize>(
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
) -> Result<&'a [u8; N], DecodeError> {
    let rest = bytes.get(at..).unwrap_or_default();
    rest.first_chunk().ok_or(DecodeError::TooShort { what, needed: N, have: rest.len() })
}

/// Sets length, DSCP and checksum of the IP header at the front of the remaining packet.
fn rewrite_ip(packet: &mut [u8], dscp: u8) {
    let len = packet.len();
    if packet[0] >> 4 == 4 {
        packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        let header_len = usize::from(packet[0] & 0x0F) * 4;
        ip::rewrite_dscp(&mut packet[..header_len], dscp);
    } else {
        packet[4..6].copy_from_slice(&((len - ip::IPV6_LEN) as u16).to_be_bytes());
        ip::rewrite_dscp(packet, dscp);
    }
}

/// Sets length and checksum of the UDP header.
fn rewrite_udp(bytes: &mut [u8], ip: Range<usize>, datagram: Range<usize>) {
    let Ok((ip, _)) = split(bytes, ip.start) else { return };
    let Some((header, payload)) = bytes[datagram].split_first_chunk_mut::<{ udp::LEN }>() else { return };
    let mut udp = Udp::parse(header);
    udp.length = (udp::LEN + payload.len()) as u16;
    if udp.checksum != 0 {
        udp.checksum = udp.checksum_between(ip.src(), ip.dst(), payload);
    }
    udp.emit(header);
}
