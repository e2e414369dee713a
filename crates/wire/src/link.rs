//! Link layers below IP: Ethernet with at most one 802.1Q tag, and the link types of captures.
//!
//! ```text
//! Ethernet    0-5 destination    6-11 source    [12-13 0x8100    14-15 TCI]    12-13 / 16-17 ethertype
//! Null, loop  0-3 address family, in the byte order of the capturing host / big-endian
//! Linux SLL   14-15 ethertype, 16 bytes in all
//! Linux SLL2  0-1 ethertype, 20 bytes in all
//! ```

use crate::bytes::{put, take, u16_at};
use crate::error::DecodeError;

/// Length of an untagged Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Length of an 802.1Q tag.
pub const VLAN_LEN: usize = 4;

const DST: usize = 0;
const SRC: usize = 6;
const ETHERTYPE: usize = 12;

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;

/// An Ethernet header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ethernet {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// 802.1Q tag control information: PCP(15:13) DEI(12) VLAN id(11:0).
    pub vlan: Option<u16>,
    /// Ethertype of what follows.
    pub ethertype: u16,
}

impl Ethernet {
    /// Reads the header at the front of `bytes`; returns it and the bytes after it.
    ///
    /// # Errors
    /// [`DecodeError::TooShort`].
    pub fn parse(mut bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let b = take::<ETHERNET_LEN>(&mut bytes, "Ethernet")?;
        let (mut dst, mut src) = ([0; 6], [0; 6]);
        dst.copy_from_slice(&b[DST..SRC]);
        src.copy_from_slice(&b[SRC..ETHERTYPE]);
        let mut header = Ethernet { dst, src, vlan: None, ethertype: u16_at(b, ETHERTYPE) };
        if header.ethertype == ETHERTYPE_VLAN {
            let tag = take::<VLAN_LEN>(&mut bytes, "802.1Q tag")?;
            header.vlan = Some(u16_at(tag, 0));
            header.ethertype = u16_at(tag, 2);
        }
        Ok((header, bytes))
    }

    /// Length of this header.
    pub const fn header_len(&self) -> usize {
        ETHERNET_LEN + if self.vlan.is_some() { VLAN_LEN } else { 0 }
    }

    /// Writes the header to the front of `buf`; `None` if it does not fit.
    pub fn emit(&self, buf: &mut [u8]) -> Option<usize> {
        let (b, rest) = buf.split_first_chunk_mut::<ETHERNET_LEN>()?;
        put(b, DST, self.dst);
        put(b, SRC, self.src);
        match self.vlan {
            None => put(b, ETHERTYPE, self.ethertype.to_be_bytes()),
            Some(tci) => {
                put(b, ETHERTYPE, ETHERTYPE_VLAN.to_be_bytes());
                let tag = rest.first_chunk_mut::<VLAN_LEN>()?;
                put(tag, 0, tci.to_be_bytes());
                put(tag, 2, self.ethertype.to_be_bytes());
            }
        }
        Some(self.header_len())
    }
}

/// The first header of captured packets (the LINKTYPE_ numbers of tcpdump.org).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkType {
    /// 1: Ethernet.
    Ethernet,
    /// 101, 228, 229 and BSD's 12 and 14: an IP header.
    Ip,
    /// 0 and 108: an address family.
    Loopback,
    /// 113: Linux cooked capture.
    LinuxSll,
    /// 276: Linux cooked capture, second version, which `tcpdump -i any` writes.
    LinuxSll2,
}

impl LinkType {
    /// From the number in a capture file.
    ///
    /// # Errors
    /// [`DecodeError::UnknownLinkType`].
    pub const fn from_number(number: u32) -> Result<Self, DecodeError> {
        Ok(match number {
            1 => LinkType::Ethernet,
            12 | 14 | 101 | 228 | 229 => LinkType::Ip,
            0 | 108 => LinkType::Loopback,
            113 => LinkType::LinuxSll,
            276 => LinkType::LinuxSll2,
            other => return Err(DecodeError::UnknownLinkType(other)),
        })
    }

    /// Removes the link header; returns the Ethernet header, if it is one, and the IP packet with any padding after it.
    ///
    /// # Errors
    /// [`DecodeError::TooShort`], or [`DecodeError::NotIp`] if no IP packet follows. The error does not contain the
    /// Ethernet header; [`Ethernet::parse`] returns it.
    pub fn strip(self, bytes: &[u8]) -> Result<(Option<Ethernet>, &[u8]), DecodeError> {
        let mut rest = bytes;
        let (ethernet, ethertype) = match self {
            LinkType::Ethernet => {
                let (header, after) = Ethernet::parse(bytes)?;
                rest = after;
                (Some(header), header.ethertype)
            }
            LinkType::Ip => return Ok((None, bytes)),
            LinkType::Loopback => {
                // Number and byte order of the family depend on the capturing host. The IP version does not.
                take::<4>(&mut rest, "loopback header")?;
                return Ok((None, rest));
            }
            LinkType::LinuxSll => (None, u16_at(take::<16>(&mut rest, "Linux SLL header")?, 14)),
            LinkType::LinuxSll2 => (None, u16_at(take::<20>(&mut rest, "Linux SLL2 header")?, 0)),
        };
        match ethertype {
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Ok((ethernet, rest)),
            other => Err(DecodeError::NotIp(other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_header_has_the_layout_of_the_standard() {
        let plain = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xDD, 0x60];
        let header = Ethernet {
            dst: [1, 2, 3, 4, 5, 6],
            src: [7, 8, 9, 10, 11, 12],
            vlan: None,
            ethertype: ETHERTYPE_IPV6,
        };
        assert_eq!(Ethernet::parse(&plain), Ok((header, &[0x60][..])));
        let mut out = [0; ETHERNET_LEN];
        assert_eq!(header.emit(&mut out), Some(ETHERNET_LEN));
        assert_eq!(out, plain[..14]);

        let tagged = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0x00, 0xE0, 0x05, 0x08, 0x00, 0x45];
        let header = Ethernet { vlan: Some(0xE005), ethertype: ETHERTYPE_IPV4, ..header };
        assert_eq!(Ethernet::parse(&tagged), Ok((header, &[0x45][..])));
        let mut out = [0; ETHERNET_LEN + VLAN_LEN];
        assert_eq!(header.emit(&mut out), Some(18));
        assert_eq!(out, tagged[..18]);
        assert_eq!(header.emit(&mut [0; 17]), None);
    }

    #[test]
    fn every_link_type_leads_to_the_ip_header() {
        let sll = [&[0; 14][..], &[0x86, 0xDD, 0x60]].concat();
        let sll2 = [&[0x86, 0xDD][..], &[0; 18], &[0x60]].concat();
        for (number, bytes) in [(113, &sll[..]), (276, &sll2), (0, &[30, 0, 0, 0, 0x60]), (101, &[0x60])] {
            let (ethernet, ip) = LinkType::from_number(number).unwrap().strip(bytes).unwrap();
            assert_eq!((ethernet, ip), (None, &[0x60][..]), "link type {number}");
        }
        assert_eq!(LinkType::from_number(147), Err(DecodeError::UnknownLinkType(147)));
        assert_eq!(LinkType::Ethernet.strip(&[0; 14]), Err(DecodeError::NotIp(0)));
    }
}
