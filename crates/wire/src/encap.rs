//! The headers before the BTH of an SRv6 packet, built once per path and completed per packet (docs/spec/wire.md,
//! "Stack").
//!
//! ```text
//! 0-13 Ethernet | 14-53 outer IPv6 | [54-77 SRH] | inner IPv6, 40 bytes | UDP, 8 bytes
//! ```
//!
//! Only the traffic class of both IP headers and three lengths differ between packets of a path. The UDP checksum is 0
//! (RFC 6936), as the iCRC protects the packet. The entropy is in the inner flow label and the source port, from
//! which the receiver reflects it, and in the outer flow label, for devices that read the outer header only.

use core::net::Ipv6Addr;

use crate::error::DecodeError;
use crate::ev::Entropy;
use crate::icrc;
use crate::ip::{self, Ecn, Ipv6};
use crate::link::{ETHERNET_LEN, ETHERTYPE_IPV6, Ethernet};
use crate::srh::{self, Srh};
use crate::udp::{self, Udp};

/// The longest encapsulation: with an SRH.
pub const MAX_LEN: usize = OUTER + ip::IPV6_LEN + srh::LEN + ip::IPV6_LEN + udp::LEN;

/// Bytes that SRv6 mode adds before the inner IP header: the outer header and, with `srh`, the SRH.
pub const fn overhead(srh: bool) -> usize {
    ip::IPV6_LEN + if srh { srh::LEN } else { 0 }
}

const OUTER: usize = ETHERNET_LEN;
const PAYLOAD_LEN: usize = 4;

/// The header fields that all packets of a path have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathHeaders {
    /// MAC address of the sending port.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub next_hop_mac: [u8; 6],
    /// Source address of both IP headers.
    pub source: Ipv6Addr,
    /// Destination of the inner header: the peer.
    pub peer: Ipv6Addr,
    /// Destination of the outer header: the path.
    pub path: Ipv6Addr,
    /// The rest of the path, in an SRH.
    pub segment: Option<Ipv6Addr>,
    /// The entropy's place in the inner header.
    pub entropy: Entropy,
    /// UDP port on which the peer receives.
    pub udp_port: u16,
    /// Hop limit of both IP headers.
    pub hop_limit: u8,
}

/// The headers of a path as bytes, to be copied before each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encapsulation {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Encapsulation {
    /// The headers of this path.
    pub fn new(path: &PathHeaders) -> Self {
        let entropy = path.entropy;
        let header = |next_header, dst| Ipv6 {
            dscp: 0,
            ecn: Ecn::NotEct,
            flow_label: entropy.flow_label,
            payload_len: 0,
            next_header,
            hop_limit: path.hop_limit,
            src: path.source,
            dst,
        };
        let udp = Udp { sport: entropy.sport, dport: path.udp_port, length: 0, checksum: 0 };
        let ethernet =
            Ethernet { dst: path.next_hop_mac, src: path.source_mac, vlan: None, ethertype: ETHERTYPE_IPV6 };
        let srh = path.segment.map(|segment| Srh {
            next_header: ip::PROTOCOL_IPV6,
            segments_left: 1,
            segments: 1,
            flags: 0,
            tag: 0,
            segment,
        });

        let mut bytes = [0; MAX_LEN];
        let mut room = &mut bytes[..];
        ethernet.emit(room);
        room = &mut room[OUTER..];
        let after_outer = if srh.is_some() { ip::PROTOCOL_ROUTING } else { ip::PROTOCOL_IPV6 };
        header(after_outer, path.path).emit(cut(&mut room));
        if let Some(srh) = srh {
            srh.emit(cut(&mut room));
        }
        header(ip::PROTOCOL_UDP, path.peer).emit(cut(&mut room));
        udp.emit(cut(&mut room));
        let left = room.len();
        Encapsulation { bytes, len: MAX_LEN - left }
    }

    /// Sets the MAC address of the next hop.
    pub fn set_next_hop(&mut self, mac: [u8; 6]) {
        self.bytes[..6].copy_from_slice(&mac);
    }

    /// Length of all headers.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Writes the headers of a packet to the front of `out` and returns their length. `udp_payload` is the length from
    /// the BTH to the iCRC, which must fit the UDP length field.
    ///
    /// # Panics
    /// If `out` is shorter than [`MAX_LEN`].
    #[inline]
    pub fn write(&self, out: &mut [u8], traffic_class: u8, udp_payload: usize) -> usize {
        debug_assert!(udp_payload >= icrc::LEN && udp_payload + MAX_LEN <= usize::from(u16::MAX));
        // Copies all of it, because a constant length is faster. The bytes after `len` are overwritten next.
        let out: &mut [u8; MAX_LEN] = out.first_chunk_mut().expect("room for the longest encapsulation");
        *out = self.bytes;
        let (udp, inner) = (self.len - udp::LEN, self.len - udp::LEN - ip::IPV6_LEN);
        let length = (udp_payload + udp::LEN) as u16;
        for (at, payload) in
            [(OUTER, (self.len - OUTER - ip::IPV6_LEN + udp_payload) as u16), (inner, length)]
        {
            out[at] = 0x60 | traffic_class >> 4;
            out[at + 1] = out[at + 1] & 0x0F | traffic_class << 4;
            out[at + PAYLOAD_LEN..at + PAYLOAD_LEN + 2].copy_from_slice(&payload.to_be_bytes());
        }
        out[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
        self.len
    }
}

fn cut<'a, const N: usize>(room: &mut &'a mut [u8]) -> &'a mut [u8; N] {
    crate::bytes::room(room).expect("room for every header")
}

/// What the receiver of an SRv6 frame reads from its headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decapsulated<'a> {
    /// DSCP of the outer header, which switches rewrite when they trim.
    pub dscp: u8,
    /// ECN of both headers joined; `None` if the packet must be dropped ([`join_ecn`]).
    pub ecn: Option<Ecn>,
    /// Source address of the inner header.
    pub source: Ipv6Addr,
    /// UDP source port, which the iCRC covers, and flow label of the inner header.
    pub entropy: Entropy,
    /// UDP destination port, which the iCRC covers.
    pub dest_port: u16,
    /// The UDP payload, from the BTH on; incomplete if `short`.
    pub payload: &'a [u8],
    /// The frame ends before its lengths say, as after a switch that trims without correcting them.
    pub short: bool,
}

/// The ECN field of a decapsulated packet (RFC 6040, section 4.2); `None` if the packet must be dropped: a switch has
/// marked a packet whose transport does not understand marks.
#[inline]
pub const fn join_ecn(outer: Ecn, inner: Ecn) -> Option<Ecn> {
    Some(match (inner, outer) {
        (Ecn::NotEct, Ecn::Ce) => return None,
        (_, Ecn::Ce) => Ecn::Ce,
        (Ecn::Ect0, Ecn::Ect1) => Ecn::Ect1,
        _ => inner,
    })
}

/// Reads the headers of an Ethernet frame that holds UDP over IPv6 in IPv6, with or without an SRH.
///
/// # Errors
/// [`DecodeError`] for any other, and for an SRH with segments left: its path does not end here.
#[inline]
pub fn decapsulate(frame: &[u8]) -> Result<Decapsulated<'_>, DecodeError> {
    let short = || DecodeError::TooShort { what: "frame", needed: MAX_LEN, have: frame.len() };
    let outer: &[u8; ip::IPV6_LEN] =
        frame.get(OUTER..).and_then(|rest| rest.first_chunk()).ok_or_else(short)?;
    let behind = &frame[OUTER + ip::IPV6_LEN..];
    let (next_header, inside) = match outer[6] {
        ip::PROTOCOL_ROUTING => {
            let (srh, rest) = Srh::parse(behind)?;
            if srh.segments_left > 0 {
                return Err(DecodeError::BadSrh("segments are left at the end of the path"));
            }
            (srh.next_header, rest)
        }
        protocol => (protocol, behind),
    };
    if next_header != ip::PROTOCOL_IPV6 {
        return Err(DecodeError::BadIp("no IPv6 header in the outer one"));
    }
    let (inner, rest) = inside.split_first_chunk::<{ ip::IPV6_LEN }>().ok_or_else(short)?;
    if outer[0] >> 4 != 6 || inner[0] >> 4 != 6 {
        return Err(DecodeError::BadIp("version is not 6"));
    }
    if inner[6] != ip::PROTOCOL_UDP {
        return Err(DecodeError::NotUdp(inner[6]));
    }
    let (udp, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let udp = Udp::parse(udp);
    let bad_length = DecodeError::BadUdpLength { length: udp.length, have: udp::LEN + rest.len() };
    let len = usize::from(udp.length).checked_sub(udp::LEN).ok_or(bad_length)?;
    let label = u32::from_be_bytes([0, inner[1] & 0x0F, inner[2], inner[3]]);
    let class = |header: &[u8; ip::IPV6_LEN]| header[0] << 4 | header[1] >> 4;
    let source: [u8; 16] = *inner[8..].first_chunk().ok_or_else(short)?;
    Ok(Decapsulated {
        dscp: class(outer) >> 2,
        ecn: join_ecn(Ecn::from_bits(class(outer)), Ecn::from_bits(class(inner))),
        source: Ipv6Addr::from(source),
        entropy: Entropy { sport: udp.sport, flow_label: label },
        dest_port: udp.dport,
        payload: rest.get(..len).unwrap_or(rest),
        short: rest.len() < len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc::IcrcSeed;
    use crate::{Body, Frame, FrameConfig, IcrcVerdict, LinkType, Msn, Packet, Position, Psn, Write};

    /// Offset of "segments left" in a frame with an SRH.
    const SEGMENTS_LEFT: usize = OUTER + ip::IPV6_LEN + 3;

    fn path(segment: Option<Ipv6Addr>) -> PathHeaders {
        PathHeaders {
            source_mac: [2, 0, 0, 0, 0, 1],
            next_hop_mac: [2, 0, 0, 0, 0, 2],
            source: "fd5f::1".parse().unwrap(),
            peer: "fd5f::2".parse().unwrap(),
            path: "5f00:0:11:102:12:e00c::".parse().unwrap(),
            segment,
            entropy: Entropy { sport: 0x4321, flow_label: 0xA_8765 },
            udp_port: 4791,
            hop_limit: 64,
        }
    }

    #[test]
    fn srv6_mode_adds_an_ipv6_header_and_an_srh_of_one_segment() {
        assert_eq!((overhead(false), overhead(true)), (40, 40 + 8 + 16));
        // Ethernet, both IP headers, the SRH and UDP are all that is written.
        let mut frame = vec![0; MAX_LEN];
        let length = |segment, frame: &mut [u8]| Encapsulation::new(&path(segment)).write(frame, 0, 100);
        assert_eq!(length(None, &mut frame), 14 + overhead(false) + 40 + 8);
        assert_eq!(length(Some(Ipv6Addr::LOCALHOST), &mut frame), 14 + overhead(true) + 40 + 8);
    }

    fn whole(path: &PathHeaders, class: u8, payload: &[u8]) -> Vec<u8> {
        let body = Body::Write(Write {
            position: Position::Only,
            rqmsn: Msn(0),
            msn: Msn(1),
            timestamp: None,
            va: 0x1000,
            rkey: 7,
            dma_len: payload.len() as u32,
            imm: None,
        });
        let packet =
            Packet { payload_len: payload.len() as u16, ..Packet::new(0x12_3456, Psn::new(9), body) };
        let mut datagram = vec![0; packet.header_len()];
        packet.emit(&mut datagram);
        datagram.extend(payload);
        datagram.resize(datagram.len() + packet.pad_len(), 0);
        let crc = IcrcSeed::v6(path.source, path.peer).of_datagram(0x4321, path.udp_port, &datagram);
        datagram.extend(crc);
        let mut frame = vec![0; MAX_LEN];
        let len = Encapsulation::new(path).write(&mut frame, class, datagram.len());
        frame.truncate(len);
        frame.extend(datagram);
        frame
    }

    #[test]
    fn the_decoder_finds_no_error_in_the_frame() {
        for segment in [None, Some("5f00:0:12:e00c::".parse().unwrap())] {
            let path = path(segment);
            let frame = whole(&path, 0x12, &[7; 101]);
            let seen = Frame::decode(&frame, frame.len(), LinkType::Ethernet, &FrameConfig::default());
            assert!(seen.is_good(), "{:?}", seen.error);
            assert_eq!(seen.icrc, IcrcVerdict::Good);
            let outer = seen.outer.unwrap();
            assert_eq!((outer.ip.dst, outer.srh.map(|srh| srh.segment)), (path.path, segment));
            assert_eq!((outer.ip.dscp, outer.ip.ecn, outer.ip.hop_limit), (4, Ecn::Ect0, 64));
            assert_eq!(usize::from(outer.ip.payload_len), frame.len() - 54);
            let inner = seen.ip.unwrap();
            assert_eq!((inner.dscp(), inner.ecn(), inner.flow_label()), (4, Ecn::Ect0, Some(0xA_8765)));
            assert_eq!(outer.ip.flow_label, 0xA_8765);
            assert_eq!((inner.src(), inner.dst()), (path.source.into(), path.peer.into()));
            let udp = seen.udp.unwrap();
            assert_eq!((udp.sport, udp.dport, udp.checksum), (0x4321, 4791, 0));
            assert_eq!(seen.ethernet.unwrap().dst, path.next_hop_mac);
            assert_eq!(seen.payload, [7; 101]);
        }
    }

    #[test]
    fn the_receiver_reads_what_the_sender_wrote() {
        for segment in [None, Some("5f00:0:12:e00c::".parse().unwrap())] {
            let mut frame = whole(&path(segment), 0x12, &[7; 100]);
            if segment.is_some() {
                assert_eq!(decapsulate(&frame).unwrap_err().counter(), "rx_bad_srh");
                // A switch has made the segment the destination.
                frame[SEGMENTS_LEFT] = 0;
            }
            // A switch has marked the outer header.
            frame[15] |= 0x30;
            let seen = decapsulate(&frame).unwrap();
            assert_eq!((seen.dscp, seen.ecn), (4, Some(Ecn::Ce)));
            assert_eq!((seen.entropy, seen.dest_port, seen.short), (path(None).entropy, 4791, false));
            assert_eq!(seen.source, path(None).source);
            assert_eq!(Packet::parse(seen.payload).unwrap().1, [7; 100]);
            let payload = decapsulate(&frame).unwrap().payload.len();
            // Ethernet pads short frames. The padding is not part of the datagram.
            frame.extend([0; 8]);
            assert_eq!(decapsulate(&frame).unwrap().payload.len(), payload);
            assert!(decapsulate(&frame[..frame.len() - 20]).unwrap().short);
        }
    }

    #[test]
    fn a_switch_that_trims_or_marks_the_outer_header_only_is_understood() {
        let mut frame = whole(&path(None), 0x12, &[7; 100]);
        // DSCP 12, the class of trimmed packets, and ECT(0) become DSCP 12 and CE in bytes 14 and 15.
        (frame[14], frame[15]) = (0x63, 0x30);
        let seen = decapsulate(&frame).unwrap();
        assert_eq!((seen.dscp, seen.ecn), (12, Some(Ecn::Ce)));
        // The inner header still has DSCP 4 and ECT(0).
        assert_eq!((frame[54], frame[55] >> 4), (0x61, 0x2));
    }

    #[test]
    fn ecn_is_joined_as_in_the_table_of_the_rfc() {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        // RFC 6040, figure 4: a row per inner codepoint, a column per outer one: Not-ECT, ECT(0), ECT(1), CE.
        let table = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [NotEct, Ect0, Ect1, Ce].into_iter().zip(row) {
                assert_eq!(join_ecn(outer, inner), expected, "outer {outer:?}, inner {inner:?}");
            }
        }
    }

    #[test]
    fn other_frames_are_refused() {
        for segment in [None, Some("5f00:0:12:e00c::".parse().unwrap())] {
            let mut frame = whole(&path(segment), 0x12, &[]);
            if segment.is_some() {
                frame[SEGMENTS_LEFT] = 0;
            }
            assert!(decapsulate(&frame).is_ok());
            for end in 0..Encapsulation::new(&path(segment)).len() {
                assert!(decapsulate(&frame[..end]).is_err(), "{end} bytes");
            }
            let inner = Encapsulation::new(&path(segment)).len() - 48;
            for (at, value) in [(14, 0x40), (20, 17), (inner, 0x40), (inner + 6, 6), (inner + 44, 0)] {
                let mut other = frame.clone();
                other[at] = value;
                if at == inner + 44 {
                    other[at + 1] = 7;
                }
                assert!(decapsulate(&other).is_err(), "byte {at}");
            }
            // Shorter than its own header; of the UDP datagram there are eight bytes and what follows.
            (frame[inner + 44], frame[inner + 45]) = (0, 7);
            let have = frame.len() - inner - 40;
            assert_eq!(decapsulate(&frame), Err(DecodeError::BadUdpLength { length: 7, have }));
        }
    }

    #[test]
    fn a_new_next_hop_changes_only_the_destination_of_the_ethernet_header() {
        let written = |headers: &Encapsulation| {
            let mut frame = vec![0; MAX_LEN];
            let len = headers.write(&mut frame, 0x12, 100);
            frame.truncate(len);
            frame
        };
        let mut headers = Encapsulation::new(&path(None));
        let before = written(&headers);
        headers.set_next_hop([6, 5, 4, 3, 2, 1]);
        let after = written(&headers);
        assert_eq!((&before[..6], &after[..6]), (&[2, 0, 0, 0, 0, 2][..], &[6, 5, 4, 3, 2, 1][..]));
        assert_eq!(before[6..], after[6..]);
    }
}
