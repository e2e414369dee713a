//! IPv4 and IPv6 headers (RFC 791, RFC 8200), with DSCP and ECN apart (RFC 2474, RFC 3168).
//!
//! ```text
//! IPv6  0-3   version(31:28)=6  DSCP(27:22) ECN(21:20)  flow label(19:0)
//!       4-5   payload length    6 next header           7 hop limit
//!       8-23  source            24-39 destination
//!
//! IPv4  0     version(7:4)=4 IHL(3:0)                   1 DSCP(7:2) ECN(1:0)
//!       2-3   total length      4-5 identification      6-7 DF(14) MF(13) fragment offset(12:0)
//!       8     TTL               9 protocol              10-11 header checksum
//!       12-15 source            16-19 destination       20.. options
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{put, u16_at, u32_at};
use crate::error::DecodeError;

/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// Next header of an IPv6 packet inside an IPv6 packet (RFC 2473).
pub const PROTOCOL_IPV6: u8 = 41;
/// Next header of an IPv4 packet inside an IPv6 packet (RFC 2003).
pub const PROTOCOL_IPV4: u8 = 4;
/// Next header of a routing header.
pub const PROTOCOL_ROUTING: u8 = 43;

/// Length of an IPv6 header.
pub const IPV6_LEN: usize = 40;
const V6_WORD: usize = 0;
const V6_PAYLOAD_LEN: usize = 4;
const V6_NEXT_HEADER: usize = 6;
const V6_HOP_LIMIT: usize = 7;
const V6_SRC: usize = 8;
const V6_DST: usize = 24;

/// Length of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
const V4_VERSION_IHL: usize = 0;
const V4_TOS: usize = 1;
const V4_TOTAL_LEN: usize = 2;
const V4_IDENTIFICATION: usize = 4;
const V4_FRAGMENT: usize = 6;
const V4_TTL: usize = 8;
const V4_PROTOCOL: usize = 9;
const V4_CHECKSUM: usize = 10;
const V4_SRC: usize = 12;
const V4_DST: usize = 16;

const DONT_FRAGMENT: u16 = 1 << 14;
const MORE_FRAGMENTS_AND_OFFSET: u16 = 0x3FFF;
const FLOW_LABEL: u32 = 0x000F_FFFF;

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Ecn {
    /// 00: the transport does not support ECN.
    #[default]
    NotEct,
    /// 01
    Ect1,
    /// 10: the value in MRC packets.
    Ect0,
    /// 11: a switch has seen congestion.
    Ce,
}

impl Ecn {
    /// The two low bits of a TOS or traffic class octet.
    #[inline]
    pub const fn from_bits(octet: u8) -> Self {
        match octet & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// The value, 0..=3.
    #[inline]
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// An IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// ECN.
    pub ecn: Ecn,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// What follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address; in SRv6 mode's outer header the path.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Reads a header. It does not check the payload length.
    ///
    /// # Errors
    /// [`DecodeError::BadIp`] if the version is not 6.
    #[inline]
    pub fn parse(b: &[u8; IPV6_LEN]) -> Result<Self, DecodeError> {
        let word = u32_at(b, V6_WORD);
        if word >> 28 != 6 {
            return Err(DecodeError::BadIp("version is not 6"));
        }
        Ok(Ipv6 {
            dscp: (word >> 22) as u8 & 0x3F,
            ecn: Ecn::from_bits((word >> 20) as u8),
            flow_label: word & FLOW_LABEL,
            payload_len: u16_at(b, V6_PAYLOAD_LEN),
            next_header: b[V6_NEXT_HEADER],
            hop_limit: b[V6_HOP_LIMIT],
            src: ipv6_at(b, V6_SRC),
            dst: ipv6_at(b, V6_DST),
        })
    }

    /// Writes the header. Values wider than their field lose their high bits.
    #[inline]
    pub fn emit(&self, b: &mut [u8; IPV6_LEN]) {
        let octet = self.dscp << 2 | self.ecn.bits();
        put(b, V6_WORD, (6 << 28 | u32::from(octet) << 20 | self.flow_label & FLOW_LABEL).to_be_bytes());
        put(b, V6_PAYLOAD_LEN, self.payload_len.to_be_bytes());
        b[V6_NEXT_HEADER] = self.next_header;
        b[V6_HOP_LIMIT] = self.hop_limit;
        put(b, V6_SRC, self.src.octets());
        put(b, V6_DST, self.dst.octets());
    }
}

#[inline]
fn ipv6_at(b: &[u8; IPV6_LEN], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&b[at..at + 16]);
    Ipv6Addr::from(octets)
}

/// An IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// DSCP, 6 bits.
    pub dscp: u8,
    /// ECN.
    pub ecn: Ecn,
    /// Length of the header and everything after it.
    pub total_len: u16,
    /// Identification; covered by the iCRC.
    pub identification: u16,
    /// DF; covered by the iCRC.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// What follows.
    pub protocol: u8,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Reads a header; returns it and its length with options, which the caller must check against the bytes. The
    /// checksum is not checked, as many captures are taken before the hardware fills it in.
    ///
    /// # Errors
    /// [`DecodeError::BadIp`] if the version is not 4 or a length is below the minimum, [`DecodeError::Fragment`]
    /// for a fragment.
    #[inline]
    pub fn parse(b: &[u8; IPV4_LEN]) -> Result<(Self, usize), DecodeError> {
        if b[V4_VERSION_IHL] >> 4 != 4 {
            return Err(DecodeError::BadIp("version is not 4"));
        }
        let header_len = usize::from(b[V4_VERSION_IHL] & 0x0F) * 4;
        let total_len = u16_at(b, V4_TOTAL_LEN);
        if header_len < IPV4_LEN {
            return Err(DecodeError::BadIp("header length is below 5 words"));
        }
        if usize::from(total_len) < header_len {
            return Err(DecodeError::BadIp("total length is below the header length"));
        }
        let fragment = u16_at(b, V4_FRAGMENT);
        if fragment & MORE_FRAGMENTS_AND_OFFSET != 0 {
            return Err(DecodeError::Fragment);
        }
        let ip = Ipv4 {
            dscp: b[V4_TOS] >> 2,
            ecn: Ecn::from_bits(b[V4_TOS]),
            total_len,
            identification: u16_at(b, V4_IDENTIFICATION),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            ttl: b[V4_TTL],
            protocol: b[V4_PROTOCOL],
            src: Ipv4Addr::from(u32_at(b, V4_SRC)),
            dst: Ipv4Addr::from(u32_at(b, V4_DST)),
        };
        Ok((ip, header_len))
    }

    /// Writes the header with its checksum. Values wider than their field lose their high bits.
    #[inline]
    pub fn emit(&self, b: &mut [u8; IPV4_LEN]) {
        b[V4_VERSION_IHL] = 0x45;
        b[V4_TOS] = self.dscp << 2 | self.ecn.bits();
        put(b, V4_TOTAL_LEN, self.total_len.to_be_bytes());
        put(b, V4_IDENTIFICATION, self.identification.to_be_bytes());
        put(b, V4_FRAGMENT, if self.dont_fragment { DONT_FRAGMENT } else { 0 }.to_be_bytes());
        b[V4_TTL] = self.ttl;
        b[V4_PROTOCOL] = self.protocol;
        put(b, V4_SRC, self.src.octets());
        put(b, V4_DST, self.dst.octets());
        set_ipv4_checksum(b);
    }
}

/// Fills in the checksum of an IPv4 header with its options. A slice that is too short is not changed.
pub fn set_ipv4_checksum(header: &mut [u8]) {
    if header.len() < IPV4_LEN {
        return;
    }
    header[V4_CHECKSUM..V4_CHECKSUM + 2].fill(0);
    let sum = !fold(sum(header));
    header[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Sum of big-endian 16-bit words (RFC 1071), not yet folded. An odd last byte counts as the high byte of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let words: u64 = pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum();
    words + odd.first().map_or(0, |&byte| u64::from(byte) << 8)
}

/// Folds a sum of words into 16 bits.
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// An IP header of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ip {
    /// Version 4.
    V4(Ipv4),
    /// Version 6.
    V6(Ipv6),
}

impl Ip {
    /// Source address.
    pub const fn src(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => IpAddr::V4(ip.src),
            Ip::V6(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Destination address.
    pub const fn dst(&self) -> IpAddr {
        match self {
            Ip::V4(ip) => IpAddr::V4(ip.dst),
            Ip::V6(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// DSCP, 6 bits.
    pub const fn dscp(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.dscp,
            Ip::V6(ip) => ip.dscp,
        }
    }

    /// ECN.
    pub const fn ecn(&self) -> Ecn {
        match self {
            Ip::V4(ip) => ip.ecn,
            Ip::V6(ip) => ip.ecn,
        }
    }

    /// Flow label; IPv4 has none.
    pub const fn flow_label(&self) -> Option<u32> {
        match self {
            Ip::V4(_) => None,
            Ip::V6(ip) => Some(ip.flow_label),
        }
    }

    /// Protocol or next header.
    pub const fn protocol(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.protocol,
            Ip::V6(ip) => ip.next_header,
        }
    }
}

/// Overwrites the DSCP of the IP header at the front of `header`, as a switch does, and keeps its ECN. The checksum of
/// an IPv4 header is updated; `header` must end after its options. Returns false, and changes nothing, if there is no
/// IP header.
pub fn rewrite_dscp(header: &mut [u8], dscp: u8) -> bool {
    match header.first().map(|byte| byte >> 4) {
        Some(4) if header.len() >= IPV4_LEN => {
            header[V4_TOS] = dscp << 2 | header[V4_TOS] & 3;
            set_ipv4_checksum(header);
            true
        }
        Some(6) if header.len() >= IPV6_LEN => {
            let dscp = dscp & 0x3F;
            header[0] = 0x60 | dscp >> 2;
            header[1] = header[1] & 0x3F | dscp << 6;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_header_has_the_layout_of_the_rfc() {
        #[rustfmt::skip]
        let bytes = [
            0x6B, 0xA1, 0xC0, 0x01, // version 6, DSCP 46, ECT(0), flow label 0x1C001
            0x10, 0x20, 17, 64,
            0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            0x20, 0x01, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
        ];
        let ip = Ipv6 {
            dscp: 46,
            ecn: Ecn::Ect0,
            flow_label: 0x1_C001,
            payload_len: 0x1020,
            next_header: PROTOCOL_UDP,
            hop_limit: 64,
            src: "2001:db8::1".parse().unwrap(),
            dst: "2001:db8::2".parse().unwrap(),
        };
        assert_eq!(Ipv6::parse(&bytes), Ok(ip));
        let mut out = [0xEE; IPV6_LEN];
        ip.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn an_ipv4_header_has_the_layout_of_the_rfc() {
        // A common example of RFC 1071: checksum 0xB861.
        #[rustfmt::skip]
        let bytes = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xB8, 0x61,
            192, 168, 0, 1, 192, 168, 0, 199,
        ];
        let ip = Ipv4 {
            dscp: 0,
            ecn: Ecn::NotEct,
            total_len: 0x73,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
        };
        assert_eq!(Ipv4::parse(&bytes), Ok((ip, 20)));
        let mut out = [0xEE; IPV4_LEN];
        ip.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn invalid_headers_and_fragments_are_refused() {
        let mut bytes = [0; IPV4_LEN];
        bytes[0] = 0x44;
        bytes[3] = 40;
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::BadIp("header length is below 5 words")));
        bytes[0] = 0x4F;
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::BadIp("total length is below the header length")));
        bytes[0] = 0x45;
        bytes[3] = 20; // nothing behind the header
        assert!(Ipv4::parse(&bytes).is_ok());
        bytes[3] = 19;
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::BadIp("total length is below the header length")));
        bytes[3] = 40;
        bytes[6] = 0x20; // more fragments
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::Fragment));
        bytes[6] = 0x00;
        bytes[7] = 0x01; // offset
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::Fragment));
        bytes[0] = 0x65;
        assert_eq!(Ipv4::parse(&bytes), Err(DecodeError::BadIp("version is not 4")));
        assert_eq!(Ipv6::parse(&[0x45; IPV6_LEN]), Err(DecodeError::BadIp("version is not 6")));
    }

    #[test]
    fn a_new_dscp_changes_no_other_field() {
        let v4 = Ipv4 {
            dscp: 4,
            ecn: Ecn::Ce,
            total_len: 100,
            identification: 7,
            dont_fragment: true,
            ttl: 63,
            protocol: PROTOCOL_UDP,
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 0, 0, 2),
        };
        let (mut changed, mut expected) = ([0; IPV4_LEN], [0; IPV4_LEN]);
        v4.emit(&mut changed);
        Ipv4 { dscp: 63, ..v4 }.emit(&mut expected);
        assert!(rewrite_dscp(&mut changed, 63));
        assert_eq!(changed, expected);

        for (ecn, flow_label, from) in [(Ecn::Ce, 0xF_FFFF, 0), (Ecn::NotEct, 0, 63), (Ecn::Ect0, 1, 4)] {
            for to in 0..64 {
                let v6 = Ipv6 {
                    dscp: from,
                    ecn,
                    flow_label,
                    payload_len: 100,
                    next_header: PROTOCOL_UDP,
                    hop_limit: 63,
                    src: Ipv6Addr::LOCALHOST,
                    dst: Ipv6Addr::LOCALHOST,
                };
                let (mut changed, mut expected) = ([0; IPV6_LEN], [0; IPV6_LEN]);
                v6.emit(&mut changed);
                Ipv6 { dscp: to, ..v6 }.emit(&mut expected);
                assert!(rewrite_dscp(&mut changed, to));
                assert_eq!(changed, expected);
            }
        }
        assert!(!rewrite_dscp(&mut [0x60; 39], 1) && !rewrite_dscp(&mut [], 1));
        assert!(!rewrite_dscp(&mut [0x45; 19], 1));
    }

    #[test]
    fn the_two_low_bits_of_an_octet_are_its_ecn_field() {
        // RFC 3168, figure 1.
        let codepoints = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
        for octet in 0..=255 {
            let ecn = Ecn::from_bits(octet);
            assert_eq!(ecn, codepoints[usize::from(octet & 3)], "{octet:#x}");
            assert_eq!(ecn.bits(), octet & 3);
        }
    }

    #[test]
    fn the_sum_is_that_of_the_big_endian_words() {
        // The example of RFC 1071, section 3.
        let example = [0x00, 0x01, 0xF2, 0x03, 0xF4, 0xF5, 0xF6, 0xF7];
        assert_eq!((sum(&example), fold(sum(&example))), (0x2_DDF0, 0xDDF2));
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600, "the last byte is the high one of its word");
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn the_checksum_covers_the_options_and_a_part_of_a_header_gets_none() {
        for len in [20, 24, 60] {
            let mut header: Vec<u8> = (11..11 + len).collect();
            let before = header.clone();
            set_ipv4_checksum(&mut header);
            assert_eq!(fold(sum(&header)), 0xFFFF, "the receiver's check of {len} bytes");
            header[10..12].copy_from_slice(&before[10..12]);
            assert_eq!(header, before);
        }
        let mut short = [7; 19];
        set_ipv4_checksum(&mut short);
        assert_eq!(short, [7; 19]);
    }
}
