//! The invariant CRC (docs/spec/wire.md, "iCRC"; IBTA RoCEv2 annex, A17.3.3).
//!
//! CRC-32 over eight bytes of ones; the UDP header and the IP header before it, with every field that may change on the
//! way set to ones; the BTH with byte 4 set to ones; and everything after it up to the iCRC. It is stored least
//! significant byte first.
//!
//! [`IcrcSeed`] is the part that depends on the two addresses only. A NIC keeps one per peer and port; per packet it
//! computes one pass over about 100 bytes of headers and one over the payload.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use crate::distance::Distances;
use crate::ip::{IPV4_LEN, IPV6_LEN, PROTOCOL_UDP};
use crate::{bth, udp};

/// Length of the iCRC in bytes.
pub const LEN: usize = 4;

/// The eight bytes of ones that replace a local route header.
const LRH: usize = 8;
/// Pseudo header over IPv6: ones, IPv6 header, UDP header.
const MAX_PSEUDO: usize = LRH + IPV6_LEN + udp::LEN;
/// Longest IPv4 header: 40 bytes of options.
const MAX_IPV4_LEN: usize = 60;

/// Offset of the identification in the pseudo header over IPv4.
const IDENTIFICATION: usize = LRH + 4;

/// Bytes from the BTH on that are hashed together with the pseudo header. No packet has longer headers.
const GATHER: usize = HASH_STEP + bth::VARIANT;
/// The hash is fastest over multiples of this length.
const HASH_STEP: usize = 64;

/// The iCRC's constant part for one pair of addresses.
#[derive(Clone, Copy, Debug)]
pub struct IcrcSeed {
    /// The pseudo header over IPv6, or the shorter one over IPv4.
    pseudo: [u8; MAX_PSEUDO],
    is_v4: bool,
}

impl IcrcSeed {
    /// Packets from `src` to `dst` over IPv6.
    pub const fn v6(src: Ipv6Addr, dst: Ipv6Addr) -> Self {
        let mut pseudo = [0xFF; MAX_PSEUDO];
        // Version 6; traffic class, flow label, hop limit and UDP checksum stay ones.
        pseudo[LRH] = 0x6F;
        pseudo[LRH + 6] = PROTOCOL_UDP;
        let (src, dst) = (src.octets(), dst.octets());
        let mut i = 0;
        while i < 16 {
            pseudo[LRH + 8 + i] = src[i];
            pseudo[LRH + 24 + i] = dst[i];
            i += 1;
        }
        IcrcSeed { pseudo, is_v4: false }
    }

    /// Packets from `src` to `dst` over IPv4 with identification 0, "don't fragment" and no options. This is what Linux
    /// sends from an unconnected socket with `IP_MTU_DISCOVER` at `DO`; a connected socket increments the
    /// identification. [`IcrcSeed::identified`] is for packets with another one.
    pub const fn v4(src: Ipv4Addr, dst: Ipv4Addr) -> Self {
        let mut pseudo = [0xFF; MAX_PSEUDO];
        // Version 4, header length 5; TOS, TTL, IP and UDP checksum stay ones.
        pseudo[LRH] = 0x45;
        pseudo[LRH + 4] = 0;
        pseudo[LRH + 5] = 0;
        pseudo[LRH + 6] = 0x40;
        pseudo[LRH + 7] = 0;
        pseudo[LRH + 9] = PROTOCOL_UDP;
        let (src, dst) = (src.octets(), dst.octets());
        let mut i = 0;
        while i < 4 {
            pseudo[LRH + 12 + i] = src[i];
            pseudo[LRH + 16 + i] = dst[i];
            i += 1;
        }
        IcrcSeed { pseudo, is_v4: true }
    }

    /// Packets between two addresses of one family; `None` if the families differ. IPv4-mapped IPv6 addresses count as
    /// IPv4, as their packets are IPv4.
    pub fn between(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(src, dst)),
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::v4(src, dst)),
            _ => None,
        }
    }

    /// For packets whose IPv4 header has this identification. Over IPv6 there is none, and nothing changes.
    #[inline]
    pub fn identified(&self, identification: u16) -> Self {
        let mut seed = *self;
        if seed.has_identification() {
            seed.pseudo[IDENTIFICATION..IDENTIFICATION + 2].copy_from_slice(&identification.to_be_bytes());
        }
        seed
    }

    /// Whether the packets are IPv4's, which have an identification.
    #[inline]
    pub fn has_identification(&self) -> bool {
        self.is_v4
    }

    /// The identification of the IPv4 header for which a UDP payload ends with the right iCRC; `None` if there is none,
    /// over IPv6 if the iCRC is wrong. There is never more than one. A UDP socket does not report the identification,
    /// so the caller decides which ones it accepts: each doubling of their number costs one of the iCRC's 32 bits.
    #[inline]
    pub fn identification(
        &self,
        sport: u16,
        dport: u16,
        udp_payload: &[u8],
        distances: &mut Distances,
    ) -> Option<u16> {
        let (covered, found) = udp_payload.split_last_chunk::<LEN>()?;
        let computed = self.of_datagram(sport, dport, covered);
        let difference = u32::from_le_bytes(computed) ^ u32::from_le_bytes(*found);
        if !self.has_identification() {
            return (difference == 0).then_some(0);
        }
        let own = u16::from_be_bytes([self.pseudo[IDENTIFICATION], self.pseudo[IDENTIFICATION + 1]]);
        match difference {
            0 => Some(own),
            _ => {
                distances.origin_of(difference, from_identification(covered.len())).map(|change| own ^ change)
            }
        }
    }

    /// Hashes the pseudo header of one packet and `head`, the first bytes of its UDP payload, in one pass: hashing 150
    /// bytes takes no longer than 50. `head` must have at most [`GATHER`] bytes.
    #[inline(always)]
    fn hash_head(&self, sport: u16, dport: u16, udp_payload_len: usize, head: &[u8]) -> Hasher {
        let mut gathered = [0; MAX_PSEUDO + GATHER];
        gathered[..MAX_PSEUDO].copy_from_slice(&self.pseudo);
        let udp_len = (udp_payload_len + udp::LEN) as u16;
        let udp = if self.has_identification() {
            let total_len = udp_len.wrapping_add(IPV4_LEN as u16);
            gathered[LRH + 2..LRH + 4].copy_from_slice(&total_len.to_be_bytes());
            LRH + IPV4_LEN
        } else {
            gathered[LRH + 4..LRH + 6].copy_from_slice(&udp_len.to_be_bytes());
            LRH + IPV6_LEN
        };
        gathered[udp..udp + 2].copy_from_slice(&sport.to_be_bytes());
        gathered[udp + 2..udp + 4].copy_from_slice(&dport.to_be_bytes());
        gathered[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        let bth = udp + udp::LEN;
        let end = bth + head.len();
        gathered[bth..end].copy_from_slice(head);
        // If `head` ends before this byte, it is not hashed here.
        gathered[bth + bth::VARIANT] = 0xFF;
        let mut hasher = Hasher::new();
        hasher.update(&gathered[..end]);
        hasher
    }

    /// Begins the iCRC of one packet. `udp_payload_len` is the length from the BTH to the end of the iCRC.
    #[inline]
    pub fn begin(&self, sport: u16, dport: u16, udp_payload_len: usize) -> Icrc {
        Icrc { hasher: self.hash_head(sport, dport, udp_payload_len, &[]), seen: 0 }
    }

    /// The iCRC of a packet in two pieces: `headers`, from the BTH on, and `payload`, to which the padding is added
    /// here.
    #[inline]
    pub fn checksum(&self, sport: u16, dport: u16, headers: &[u8], payload: &[u8]) -> [u8; LEN] {
        let pad = payload.len().wrapping_neg() & 3;
        let total = headers.len() + payload.len() + pad + LEN;
        let (head, more) = headers.split_at(headers.len().min(GATHER));
        let mut hasher = self.hash_head(sport, dport, total, head);
        for piece in [more, payload, &[0; 3][..pad]] {
            if !piece.is_empty() {
                hasher.update(piece);
            }
        }
        hasher.finalize().to_le_bytes()
    }

    /// The iCRC of a packet in one piece: `covered` is the UDP payload without its last four bytes.
    #[inline]
    pub fn of_datagram(&self, sport: u16, dport: u16, covered: &[u8]) -> [u8; LEN] {
        // The hash is fastest over a multiple of its step, so the remainder is hashed with the headers.
        let mut odd = covered.len() % HASH_STEP;
        if odd <= bth::VARIANT {
            odd = (odd + HASH_STEP).min(covered.len());
        }
        let (head, tail) = covered.split_at(odd);
        let mut hasher = self.hash_head(sport, dport, covered.len() + LEN, head);
        if !tail.is_empty() {
            hasher.update(tail);
        }
        hasher.finalize().to_le_bytes()
    }

    /// Whether a UDP payload ends with the right iCRC.
    #[inline]
    pub fn verify(&self, sport: u16, dport: u16, udp_payload: &[u8]) -> bool {
        match udp_payload.split_last_chunk::<LEN>() {
            Some((covered, found)) => self.of_datagram(sport, dport, covered) == *found,
            None => false,
        }
    }
}

/// Changes the iCRC, the last four bytes of `udp_payload`, from that of a packet over IPv4 with one identification to
/// that with another. `change` is the exclusive or of the two. Does nothing to fewer than four bytes.
pub fn change_identification(udp_payload: &mut [u8], change: u16, distances: &mut Distances) {
    if let Some((covered, icrc)) = udp_payload.split_last_chunk_mut::<LEN>() {
        let effect = distances.effect_of(change, from_identification(covered.len()));
        *icrc = (u32::from_le_bytes(*icrc) ^ effect).to_le_bytes();
    }
}

/// Bytes from the identification of an IPv4 header to the iCRC.
#[inline]
fn from_identification(covered: usize) -> usize {
    IPV4_LEN - (IDENTIFICATION - LRH) + udp::LEN + covered
}

/// An iCRC being computed from the UDP payload, from the BTH on, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
    /// Bytes of UDP payload seen so far, up to the masked one.
    seen: usize,
}

impl Icrc {
    /// Begins the iCRC of a captured packet from its own headers: the IP header before the UDP header, with its options
    /// if it is IPv4, and the UDP header. `None` if `ip` is neither an IPv4 nor an IPv6 header.
    pub fn of_headers(ip: &[u8], udp: &[u8; udp::LEN]) -> Option<Self> {
        let mut pseudo = [0xFF; LRH + MAX_IPV4_LEN + udp::LEN];
        let end = LRH + ip.len();
        pseudo.get_mut(LRH..end)?.copy_from_slice(ip);
        match (ip.first()? >> 4, ip.len()) {
            (4, IPV4_LEN..=MAX_IPV4_LEN) => {
                pseudo[LRH + 1] = 0xFF; // TOS
                pseudo[LRH + 8] = 0xFF; // TTL
                pseudo[LRH + 10..LRH + 12].fill(0xFF); // checksum
            }
            (6, IPV6_LEN) => {
                pseudo[LRH] = 0x6F; // traffic class and flow label
                pseudo[LRH + 1..LRH + 4].fill(0xFF);
                pseudo[LRH + 7] = 0xFF; // hop limit
            }
            _ => return None,
        }
        let masked = pseudo.get_mut(end..end + udp::LEN)?;
        masked[..6].copy_from_slice(&udp[..6]);
        masked[6..].fill(0xFF);
        let mut hasher = Hasher::new();
        hasher.update(&pseudo[..end + udp::LEN]);
        Some(Icrc { hasher, seen: 0 })
    }

    /// Adds the next piece of the UDP payload: headers, payload, padding, but not the iCRC itself.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        let masked = bth::VARIANT.wrapping_sub(self.seen);
        if masked < bytes.len() {
            self.hasher.update(&bytes[..masked]);
            self.hasher.update(&[0xFF]);
            self.hasher.update(&bytes[masked + 1..]);
        } else {
            self.hasher.update(bytes);
        }
        self.seen = self.seen.saturating_add(bytes.len());
    }

    /// The iCRC, as its four bytes on the wire.
    #[inline]
    pub fn finish(self) -> [u8; LEN] {
        self.hasher.finalize().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // CRC-32 bit by bit, from the polynomial.
    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |mut crc, &byte| {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 != 0 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
            }
            crc
        })
    }

    const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 2);

    // The masked bytes of the spec, written out. Every shortcut above must give the same result.
    fn masked_v6(sport: u16, dport: u16, covered: &[u8]) -> Vec<u8> {
        let udp_len = (covered.len() + 12) as u16;
        let mut bytes = vec![0xFF; 8];
        bytes.extend([0x6F, 0xFF, 0xFF, 0xFF]);
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([17, 0xFF]);
        bytes.extend(SRC.octets());
        bytes.extend(DST.octets());
        bytes.extend(sport.to_be_bytes());
        bytes.extend(dport.to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0xFF, 0xFF]);
        let bth = bytes.len();
        bytes.extend(covered);
        if covered.len() > 4 {
            bytes[bth + 4] = 0xFF;
        }
        bytes
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + 3) as u8).collect()
    }

    #[test]
    fn every_way_to_compute_the_icrc_agrees_with_the_polynomial() {
        let seed = IcrcSeed::v6(SRC, DST);
        for len in [0, 3, 4, 5, 12, 16, 28, 40, 63, 64, 65, 128, 200, 1000, 4136] {
            let covered = pattern(len);
            let expected = crc32(&masked_v6(0xC001, 4791, &covered)).to_le_bytes();
            assert_eq!(seed.of_datagram(0xC001, 4791, &covered), expected, "of_datagram, {len} bytes");
            let mut icrc = seed.begin(0xC001, 4791, len + LEN);
            for piece in covered.chunks(3) {
                icrc.update(piece);
            }
            assert_eq!(icrc.finish(), expected, "in pieces, {len} bytes");
            if len % 4 == 0 {
                let (headers, payload) = covered.split_at(len.min(40));
                assert_eq!(seed.checksum(0xC001, 4791, headers, payload), expected, "checksum, {len} bytes");
            }
        }
    }

    #[test]
    fn padding_is_covered() {
        let seed = IcrcSeed::v6(SRC, DST);
        let (headers, payload) = (pattern(40), pattern(5));
        let mut whole = [headers.clone(), payload.clone(), vec![0; 3]].concat();
        let icrc = seed.checksum(1, 4791, &headers, &payload);
        assert_eq!(icrc, seed.of_datagram(1, 4791, &whole));
        whole.extend(icrc);
        assert!(seed.verify(1, 4791, &whole));
        assert!(!seed.verify(2, 4791, &whole), "the source port is covered");
        whole[4] ^= 0xFF;
        assert!(seed.verify(1, 4791, &whole), "BTH byte 4 may change on the way");
        whole[5] ^= 1;
        assert!(!seed.verify(1, 4791, &whole));
        assert!(!seed.verify(1, 4791, &[0; 3]));
    }

    #[test]
    fn real_headers_and_the_seed_agree() {
        let covered = pattern(52);
        let udp_len = ((covered.len() + 12) as u16).to_be_bytes();
        let udp = [0xC0, 0x01, 0x12, 0xB7, udp_len[0], udp_len[1], 0xAB, 0xCD];

        let mut ip = [0; 40];
        ip[..4].copy_from_slice(&[0x61, 0x23, 0x45, 0x67]);
        ip[4..6].copy_from_slice(&udp_len);
        ip[6..8].copy_from_slice(&[17, 64]);
        ip[8..24].copy_from_slice(&SRC.octets());
        ip[24..].copy_from_slice(&DST.octets());
        let mut icrc = Icrc::of_headers(&ip, &udp).unwrap();
        icrc.update(&covered);
        assert_eq!(icrc.finish(), IcrcSeed::v6(SRC, DST).of_datagram(0xC001, 4791, &covered));

        let total = (covered.len() as u16 + 32).to_be_bytes();
        #[rustfmt::skip]
        let ip = [
            0x45, 0x10, total[0], total[1], 0, 0, 0x40, 0, 63, 17, 0x12, 0x34,
            10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let mut icrc = Icrc::of_headers(&ip, &udp).unwrap();
        icrc.update(&covered);
        let seed = IcrcSeed::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(icrc.finish(), seed.of_datagram(0xC001, 4791, &covered));
    }

    fn v4_headers(covered: usize, identification: u16) -> ([u8; 20], [u8; 8]) {
        let total = (covered as u16 + 32).to_be_bytes();
        let [high, low] = identification.to_be_bytes();
        #[rustfmt::skip]
        let ip = [
            0x45, 0, total[0], total[1], high, low, 0x40, 0, 63, 17, 0x12, 0x34,
            10, 0, 0, 1, 10, 0, 0, 2,
        ];
        let len = (covered as u16 + 12).to_be_bytes();
        (ip, [0xC0, 0x01, 0x12, 0xB7, len[0], len[1], 0, 0])
    }

    // The headers as a capture has them are the judge.
    #[test]
    fn the_icrc_names_the_identification_of_an_ipv4_header() {
        let seed = IcrcSeed::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut distances = Distances::default();
        for len in [12, 40, 41, 63, 128, 1060, 4136, 9000] {
            for identification in [0, 1, 2, 63, 127, 128, 0x1234, 0x8000, 0xFF00, 0xFFFF] {
                let mut bytes = pattern(len);
                let (ip, udp) = v4_headers(len, identification);
                let mut icrc = Icrc::of_headers(&ip, &udp).unwrap();
                icrc.update(&bytes);
                let icrc = icrc.finish();
                assert_eq!(seed.identified(identification).of_datagram(0xC001, 4791, &bytes), icrc);
                bytes.extend(icrc);
                for guess in [0, identification, 77] {
                    let found = seed.identified(guess).identification(0xC001, 4791, &bytes, &mut distances);
                    assert_eq!(found, Some(identification), "{len} bytes");
                }
                change_identification(&mut bytes, identification, &mut distances);
                assert!(seed.verify(0xC001, 4791, &bytes), "back to 0: {len} bytes, {identification:#x}");
            }
        }
    }

    #[test]
    fn a_corrupted_packet_has_an_identification_only_by_chance() {
        let v4 = IcrcSeed::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let v6 = IcrcSeed::v6(SRC, DST);
        let mut distances = Distances::default();
        let mut chance = 0;
        for seed in [v4, v6] {
            let mut bytes = pattern(1060);
            let icrc = seed.of_datagram(7, 4791, &bytes);
            bytes.extend(icrc);
            for bit in 0..bytes.len() * 8 {
                let masked = bit / 8 == bth::VARIANT;
                bytes[bit / 8] ^= 1 << (bit % 8);
                let found = seed.identification(7, 4791, &bytes, &mut distances);
                assert_eq!(found == Some(0), masked, "bit {bit}");
                chance += u32::from(!masked && found.is_some());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(chance <= 2, "{chance} of 17,000, one in 65,536 expected");
        assert_eq!(v4.identification(7, 4791, &[0; 3], &mut distances), None);
        assert_eq!(v6.identified(5).of_datagram(1, 2, &[0; 16]), v6.of_datagram(1, 2, &[0; 16]));
    }

    #[test]
    fn headers_of_no_ip_version_have_no_icrc() {
        for ip in [&[][..], &[0x45; 19], &[0x60; 39], &[0x60; 41], &[0x50; 20], &[0x45; 61]] {
            assert!(Icrc::of_headers(ip, &[0; 8]).is_none());
        }
    }

    #[test]
    fn mapped_addresses_count_as_ipv4() {
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mapped = IcrcSeed::between(a.to_ipv6_mapped().into(), b.into()).unwrap();
        assert_eq!(mapped.of_datagram(1, 2, &[0; 16]), IcrcSeed::v4(a, b).of_datagram(1, 2, &[0; 16]));
        assert!(IcrcSeed::between(a.into(), DST.into()).is_none());
        let between = IcrcSeed::between(SRC.into(), DST.into()).unwrap();
        assert_eq!(between.of_datagram(1, 2, &[0; 16]), IcrcSeed::v6(SRC, DST).of_datagram(1, 2, &[0; 16]));
    }
}
