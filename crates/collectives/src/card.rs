//! What a rank needs to connect to another: addresses of its memory, its queue pair and its planes. A card is a few
//! hundred bytes. It is secret: its holder can write to the rank's memory. Cards travel through the rendezvous.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use openmrc_schedule::Rank;

use crate::error::{Error, Result};
use crate::layout::{NONCE, RING, SLOTS};

const MAGIC: [u8; 4] = *b"MRCc";
const VERSION: u16 = 3;

/// How two ranks of one host share memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalCard {
    /// Which machine and which network namespace: both must be the same.
    pub host: [u8; 16],
    /// Process number.
    pub pid: u32,
    /// Descriptor of its segment.
    pub fd: i32,
    /// Secret at the segment's beginning.
    pub nonce: [u8; NONCE],
    /// Where the process has mapped it.
    pub base: u64,
    /// Name of its doorbell, an abstract socket.
    pub doorbell: String,
}

/// One rank's card for one other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// Whose.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: usize,
    /// Name of the host, for errors.
    pub host_name: String,
    /// For ranks of the same host.
    pub local: LocalCard,
    /// Queue pair for this peer.
    pub qp_num: u32,
    /// First PSN that it sends.
    pub psn: u32,
    /// Largest path MTU it wants.
    pub path_mtu: u16,
    /// Key of its rings for this peer.
    pub rkey: u32,
    /// Addresses of those rings, by lane.
    pub rings: [u64; 2],
    /// Addresses of its planes.
    pub planes: Vec<SocketAddr>,
}

impl Card {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend(MAGIC);
        out.extend(VERSION.to_be_bytes());
        // Integers of messages are in the machine's order: the other end must have the same.
        out.push(u8::from(cfg!(target_endian = "little")));
        out.push(SLOTS as u8);
        out.extend((RING as u32).to_be_bytes());
        out.extend((self.rank as u32).to_be_bytes());
        out.extend((self.ranks as u32).to_be_bytes());
        text(&mut out, &self.host_name);
        out.extend(self.local.host);
        out.extend(self.local.pid.to_be_bytes());
        out.extend(self.local.fd.to_be_bytes());
        out.extend(self.local.nonce);
        out.extend(self.local.base.to_be_bytes());
        text(&mut out, &self.local.doorbell);
        out.extend(self.qp_num.to_be_bytes());
        out.extend(self.psn.to_be_bytes());
        out.extend(self.path_mtu.to_be_bytes());
        out.extend(self.rkey.to_be_bytes());
        self.rings.iter().for_each(|ring| out.extend(ring.to_be_bytes()));
        out.push(self.planes.len() as u8);
        for plane in &self.planes {
            match plane.ip() {
                IpAddr::V4(ip) => {
                    out.push(4);
                    out.extend(ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.push(6);
                    out.extend(ip.octets());
                }
            }
            out.extend(plane.port().to_be_bytes());
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they are no card, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Card> {
        let mut reader = Reader(bytes);
        let card = reader
            .card()
            .ok_or_else(|| Error::invalid("what the rendezvous gave is no card of a rank"))??;
        if reader.0.is_empty() { Ok(card) } else { Err(Error::invalid("a card has bytes behind its end")) }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend(&text.as_bytes()[..end]);
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn card(&mut self) -> Option<Result<Card>> {
        if self.array::<4>()? != MAGIC {
            return None;
        }
        let version = u16::from_be_bytes(self.array()?);
        if version != VERSION {
            return Some(Err(Error::invalid(format!(
                "a rank speaks version {version} of the protocol of collectives, this one {VERSION}: \
                 all need the same openmrc"
            ))));
        }
        let little = self.byte()?;
        let shape = (self.byte()?, self.u32()?);
        if little != u8::from(cfg!(target_endian = "little")) || shape != (SLOTS as u8, RING as u32) {
            return Some(Err(Error::invalid("a rank has another byte order or other rings than this one")));
        }
        Some(Ok(Card {
            rank: self.u32()? as Rank,
            ranks: self.u32()? as usize,
            host_name: self.text()?,
            local: LocalCard {
                host: self.array()?,
                pid: self.u32()?,
                fd: self.u32()? as i32,
                nonce: self.array()?,
                base: u64::from_be_bytes(self.array()?),
                doorbell: self.text()?,
            },
            qp_num: self.u32()?,
            psn: self.u32()?,
            path_mtu: u16::from_be_bytes(self.array()?),
            rkey: self.u32()?,
            rings: [u64::from_be_bytes(self.array()?), u64::from_be_bytes(self.array()?)],
            planes: (0..self.byte()?).map(|_| self.address()).collect::<Option<_>>()?,
        }))
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.byte()?);
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).ok()
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let ip = match self.byte()? {
            4 => IpAddr::V4(Ipv4Addr::from(self.array::<4>()?)),
            6 => IpAddr::V6(Ipv6Addr::from(self.array::<16>()?)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            rank: 3,
            ranks: 9,
            host_name: "h3".into(),
            local: LocalCard {
                host: [1; 16],
                pid: 77,
                fd: -1,
                nonce: [9; NONCE],
                base: 1 << 47,
                doorbell: "bell".into(),
            },
            qp_num: 0x123456,
            psn: 0xfffffe,
            path_mtu: 4096,
            rkey: 5,
            rings: [1 << 40, 2],
            planes: vec!["127.0.0.1:4791".parse().unwrap(), "[fd00::1]:9".parse().unwrap()],
        }
    }

    #[test]
    fn a_card_comes_back_from_its_bytes() {
        assert_eq!(Card::decode(&card().encode()).unwrap(), card());
    }

    #[test]
    fn a_cut_or_prolonged_card_is_refused() {
        let bytes = card().encode();
        for len in 0..bytes.len() {
            assert!(Card::decode(&bytes[..len]).is_err(), "{len}");
        }
        assert!(Card::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}
