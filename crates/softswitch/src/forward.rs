//! Which port a frame leaves by (RFC 9800, End with NEXT-CSID; docs/spec/fabric.md, "SRv6 addressing plan").

use std::net::Ipv6Addr;

use openmrc_wire::ip::IPV6_LEN;
use openmrc_wire::link::{ETHERNET_LEN, ETHERTYPE_IPV6};
use openmrc_wire::usid::{self, UsidAddress};

use crate::config::Config;

const HOP_LIMIT: usize = ETHERNET_LEN + 7;
const DESTINATION: usize = ETHERNET_LEN + 24;

/// Why a frame is not forwarded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Not for this switch: another destination, or not IPv6. The kernel may need it (neighbour discovery).
    NotOurs,
    /// The uSID list ends at this switch.
    EndOfPath,
    /// The table has no entry for the next uSID.
    NoRoute,
    /// The hop limit has run out.
    HopLimit,
}

/// The table's entry for a uSID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entry {
    None,
    Own,
    Port(u16),
}

/// The forwarding table: an array with one entry for each of the 65,536 uSIDs.
pub struct Forwarding {
    block: u32,
    entries: Box<[Entry]>,
}

impl Forwarding {
    /// The table of a valid configuration.
    pub fn new(config: &Config) -> Self {
        let mut entries = vec![Entry::None; 1 << 16].into_boxed_slice();
        for &usid in &config.own {
            entries[usize::from(usid)] = Entry::Own;
        }
        for &(usid, port) in &config.routes {
            entries[usize::from(usid)] = Entry::Port(port as u16);
        }
        Forwarding { block: config.block, entries }
    }

    /// Finds the port for a frame, removes this switch's uSIDs from the destination address and decrements the hop
    /// limit. A frame that is not forwarded is not changed.
    ///
    /// # Errors
    /// [`Refusal`] if the frame is not forwarded.
    pub fn forward(&self, frame: &mut [u8]) -> Result<usize, Refusal> {
        if frame.len() < ETHERNET_LEN + IPV6_LEN
            || frame[12..ETHERNET_LEN] != ETHERTYPE_IPV6.to_be_bytes()
            || frame[ETHERNET_LEN] >> 4 != 6
        {
            return Err(Refusal::NotOurs);
        }
        let Some(address) = frame[DESTINATION..].first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
        else {
            return Err(Refusal::NotOurs);
        };
        let mut path = match UsidAddress::parse(address) {
            Ok(path) if path.block() == self.block => path,
            _ => return Err(Refusal::NotOurs),
        };
        // A list that names this switch several times ends after at most six uSIDs, all that an address holds.
        for _ in 0..=usid::MAX {
            if path.is_empty() {
                return Err(Refusal::EndOfPath);
            }
            match self.entries[usize::from(path.active())] {
                Entry::Own => path = path.shift(),
                Entry::None => return Err(Refusal::NoRoute),
                Entry::Port(port) => {
                    if frame[HOP_LIMIT] <= 1 {
                        return Err(Refusal::HopLimit);
                    }
                    frame[HOP_LIMIT] -= 1;
                    frame[DESTINATION..DESTINATION + 16].copy_from_slice(&path.to_ipv6().octets());
                    return Ok(usize::from(port));
                }
            }
        }
        Err(Refusal::EndOfPath)
    }
}
