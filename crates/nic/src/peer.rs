//! Peers: nodes that queue pairs are connected to or that endpoint requests go to, known by their addresses.

use std::net::{IpAddr, SocketAddr};

use openmrc_sockets::SockAddr;
use openmrc_transport::PortSet;
use openmrc_transport::node::PeerId;
use openmrc_wire::IcrcSeed;

use crate::error::{Error, Result};
use crate::identification::Numbering;

/// One port of a peer, as seen from our port of the same number.
struct Plane {
    addr: IpAddr,
    udp_port: u16,
    dest: SockAddr,
    /// iCRC of packets to and from the peer.
    seed_tx: IcrcSeed,
    seed_rx: IcrcSeed,
}

/// A node, found by its address on each plane.
pub(crate) struct Peer {
    pub addrs: Vec<SocketAddr>,
    planes: Vec<Plane>,
    /// Over IPv4: how it numbers its packets.
    pub numbering: Numbering,
    /// Queue pairs connected to it, and whether it was added by name.
    users: u32,
    /// SRv6 mode: paths to it, by port, for packets that may take any path, and the index of the next one.
    paths: Vec<Vec<u16>>,
    next_path: usize,
}

impl Peer {
    fn new(addrs: &[SocketAddr], local: &[IpAddr]) -> Result<Self> {
        if addrs.is_empty() {
            return Err(Error::invalid("a peer needs the address of at least one port"));
        }
        let mut planes = Vec::with_capacity(addrs.len());
        for (addr, &ours) in addrs.iter().zip(local) {
            let (seed_tx, seed_rx) =
                IcrcSeed::between(ours, addr.ip()).zip(IcrcSeed::between(addr.ip(), ours)).ok_or_else(
                    || Error::invalid(format!("the peer's {} cannot be reached from {ours}", addr.ip())),
                )?;
            if addr.port() == 0 || addr.ip().is_unspecified() || addr.ip().is_multicast() {
                return Err(Error::invalid(format!("{addr} is not the address of a port")));
            }
            planes.push(Plane {
                addr: addr.ip(),
                udp_port: addr.port(),
                dest: SockAddr::new(*addr),
                seed_tx,
                seed_rx,
            });
        }
        Ok(Peer {
            addrs: addrs.to_vec(),
            planes,
            numbering: Numbering::default(),
            users: 0,
            paths: Vec::new(),
            next_path: 0,
        })
    }

    /// Ports at which it has an address.
    pub fn ports(&self) -> PortSet {
        PortSet::first(self.planes.len())
    }

    /// These are paths to it, as (port, number).
    pub fn set_paths(&mut self, paths: impl IntoIterator<Item = (u8, u16)>) {
        self.paths = vec![Vec::new(); self.planes.len()];
        for (port, path) in paths {
            if let Some(of_port) = self.paths.get_mut(usize::from(port)) {
                of_port.push(path);
            }
        }
    }

    /// Paths to it by a port, if it has any of its own.
    pub fn paths(&self, port: u8) -> &[u16] {
        self.paths.get(usize::from(port)).map_or(&[], Vec::as_slice)
    }

    /// The next path, in rotation, for a packet that may take any. `None` if the peer has no paths of its own.
    pub fn any_path(&mut self, port: u8) -> Option<u16> {
        self.next_path = self.next_path.wrapping_add(1);
        let paths = self.paths(port);
        paths.get(self.next_path % paths.len().max(1)).copied()
    }

    /// Where to send on plane `port`, the UDP port, and the iCRC's constant part.
    #[inline]
    pub fn route(&self, port: u8) -> Option<(&SockAddr, u16, &IcrcSeed)> {
        self.planes.get(usize::from(port)).map(|p| (&p.dest, p.udp_port, &p.seed_tx))
    }

    /// Whether `source` is one of its addresses.
    pub fn owns(&self, source: IpAddr) -> bool {
        self.planes.iter().any(|p| p.addr == source)
    }

    /// The iCRC's constant part for packets from `source` on port `port`; `None` if `source` is not the peer's
    /// address on this plane.
    #[inline]
    pub fn seed_rx(&self, port: u8, source: IpAddr) -> Option<&IcrcSeed> {
        self.planes.get(usize::from(port)).filter(|p| p.addr == source).map(|p| &p.seed_rx)
    }
}

/// Every peer of a context.
#[derive(Default)]
pub(crate) struct Peers {
    slots: Vec<Option<Peer>>,
}

impl Peers {
    /// Adds a user of the peer with these addresses; makes the peer if it is new.
    pub fn acquire(&mut self, addrs: &[SocketAddr], local: &[IpAddr]) -> Result<PeerId> {
        let known = self.slots.iter().position(|p| p.as_ref().is_some_and(|p| p.addrs == addrs));
        let index = match known {
            Some(index) => index,
            None => {
                let peer = Peer::new(addrs, local)?;
                let index = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.slots.push(None);
                    self.slots.len() - 1
                });
                self.slots[index] = Some(peer);
                index
            }
        };
        if let Some(peer) = &mut self.slots[index] {
            peer.users += 1;
        }
        Ok(index as PeerId)
    }

    /// Releases one use; the last one removes the peer.
    pub fn release(&mut self, index: PeerId) {
        let slot = &mut self.slots[index as usize];
        if let Some(peer) = slot {
            peer.users -= 1;
            if peer.users == 0 {
                *slot = None;
            }
        }
    }

    #[inline]
    pub fn get(&self, index: PeerId) -> Option<&Peer> {
        self.slots.get(index as usize).and_then(Option::as_ref)
    }

    pub fn get_mut(&mut self, index: PeerId) -> Option<&mut Peer> {
        self.slots.get_mut(index as usize).and_then(Option::as_mut)
    }

    /// The peer that an endpoint packet from `source`, received on `port`, comes from. With several nodes at one
    /// address (loopback) the plane decides.
    pub fn by_source(&self, port: u8, source: IpAddr) -> Option<PeerId> {
        let find = |fits: &dyn Fn(&Peer) -> bool| {
            self.slots.iter().position(|p| p.as_ref().is_some_and(fits)).map(|i| i as PeerId)
        };
        find(&|p| p.seed_rx(port, source).is_some()).or_else(|| find(&|p| p.owns(source)))
    }
}
