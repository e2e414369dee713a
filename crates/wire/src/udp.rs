//! UDP header (RFC 768), and its checksum over IPv4 and IPv6 (RFC 8200, section 8.1; RFC 6936).
//!
//! ```text
//! 0-1 source port    2-3 destination port    4-5 length    6-7 checksum
//! ```

use core::net::IpAddr;

use crate::bytes::{put, u16_at};
use crate::ip::{PROTOCOL_UDP, fold, sum};

/// Length of a UDP header.
pub const LEN: usize = 8;
const SPORT: usize = 0;
const DPORT: usize = 2;
const LENGTH: usize = 4;
const CHECKSUM: usize = 6;

/// Destination port of RoCEv2 (IANA), and the default of MRC here. \[choice\]: the MRC 1.0 text has 4971 as its
/// default.
pub const ROCE_PORT: u16 = 4791;

/// UDP destination port that MRC 1.0 prints as its default, and three foreign tools use.
pub const MRC_PORT: u16 = 4971;

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port; carries entropy.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Length of header and payload.
    pub length: u16,
    /// Checksum; 0 = none, which RFC 6936 allows over IPv6 where another checksum, here the iCRC, protects the packet.
    pub checksum: u16,
}

impl Udp {
    /// Reads a header. It does not check the length.
    #[inline]
    pub const fn parse(b: &[u8; LEN]) -> Self {
        Udp {
            sport: u16_at(b, SPORT),
            dport: u16_at(b, DPORT),
            length: u16_at(b, LENGTH),
            checksum: u16_at(b, CHECKSUM),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; LEN]) {
        put(b, SPORT, self.sport.to_be_bytes());
        put(b, DPORT, self.dport.to_be_bytes());
        put(b, LENGTH, self.length.to_be_bytes());
        put(b, CHECKSUM, self.checksum.to_be_bytes());
    }

    /// The checksum of this header and `payload` between two addresses, with the checksum field taken as zero. It is
    /// never 0, which means "none".
    pub fn checksum_between(&self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> u16 {
        let address = |address: IpAddr| match address {
            IpAddr::V4(address) => sum(&address.octets()),
            IpAddr::V6(address) => sum(&address.octets()),
        };
        let pseudo = address(src) + address(dst) + u64::from(PROTOCOL_UDP) + u64::from(self.length);
        let header = u64::from(self.sport) + u64::from(self.dport) + u64::from(self.length);
        match !fold(pseudo + header + sum(payload)) {
            0 => 0xFFFF,
            checksum => checksum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_udp_header_has_the_layout_of_the_rfc() {
        let bytes = [0xC0, 0x01, 0x12, 0xB7, 0x00, 0x10, 0xAB, 0xCD];
        let udp = Udp { sport: 0xC001, dport: ROCE_PORT, length: 16, checksum: 0xABCD };
        assert_eq!(Udp::parse(&bytes), udp);
        let mut out = [0; LEN];
        udp.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn the_checksum_makes_the_sum_all_ones() {
        let (src, dst) = (IpAddr::V4([10, 0, 0, 1].into()), IpAddr::V4([10, 0, 0, 2].into()));
        for payload in [&b""[..], b"a", b"ab", b"odd", &[0xFF; 301]] {
            let udp = Udp { sport: 1, dport: 2, length: (LEN + payload.len()) as u16, checksum: 0 };
            let checksum = udp.checksum_between(src, dst, payload);
            let mut bytes = vec![10, 0, 0, 1, 10, 0, 0, 2, 0, 17];
            bytes.extend(udp.length.to_be_bytes());
            let mut header = [0; LEN];
            Udp { checksum, ..udp }.emit(&mut header);
            bytes.extend(header);
            bytes.extend(payload);
            assert_eq!(fold(sum(&bytes)), 0xFFFF, "{payload:?}");
        }
    }
}
