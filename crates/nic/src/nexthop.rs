//! Next hops of SRv6 paths: the neighbour by which a path leaves, and its MAC address, from the kernel's routes and
//! neighbour table.
//!
//! The kernel resolves a neighbour only for packets that it sends itself, and frames from a packet socket do not keep
//! an entry alive. So an empty datagram to the neighbour's discard port makes the kernel ask: at once if the entry is
//! missing, and periodically to confirm it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use openmrc_sockets::{Netlink, SockAddr, Socket, send_bytes};
use openmrc_transport::{Span, Time};

use crate::error::{Error, Result};

/// Interval between requests while a neighbour is missing: this long at first, doubling ...
const ASK_AGAIN: Span = Span::from_millis(50);
/// ... up to this, which is also the interval between confirmations.
const CONFIRM: Span = Span::from_millis(10_000);

/// UDP port that discards what is sent to it (RFC 863).
const DISCARD: u16 = 9;

/// A neighbour on an interface.
pub(crate) struct NextHop {
    pub interface: u32,
    pub addr: Ipv6Addr,
    /// Its last known MAC address. It is kept if the kernel forgets the neighbour.
    pub mac: Option<[u8; 6]>,
}

/// The next hops of all paths.
pub(crate) struct NextHops {
    netlink: Netlink,
    /// Sends the datagrams that make the kernel ask. Both sockets belong to the network namespace in which the device
    /// was opened.
    socket: Socket,
    hops: Vec<NextHop>,
    due: Time,
    /// Interval until the next request while a neighbour is missing.
    interval: Span,
}

impl NextHops {
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open().map_err(|e| Error::os("netlink socket", e))?;
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let socket = Socket::udp(any).map_err(|e| Error::os("UDP socket", e))?;
        Ok(NextHops { netlink, socket, hops: Vec::new(), due: Time::NEVER, interval: CONFIRM })
    }

    /// When [`NextHops::refresh`] must be called even if nothing has changed.
    pub fn due(&self) -> Time {
        self.due
    }

    pub fn get(&self, index: u16) -> &NextHop {
        &self.hops[usize::from(index)]
    }

    /// The next hop of packets to `path` by this interface: the route's gateway, or `path` itself if it is on the link.
    ///
    /// # Errors
    /// The kernel's: there is no route.
    pub fn towards(&mut self, path: Ipv6Addr, interface: u32) -> io::Result<u16> {
        let addr = self.netlink.next_hop(path, interface)?;
        let known = self.hops.iter().position(|hop| hop.interface == interface && hop.addr == addr);
        if let Some(index) = known {
            return Ok(index as u16);
        }
        let index = u16::try_from(self.hops.len()).map_err(|_| io::Error::other("too many next hops"))?;
        self.hops.push(NextHop { interface, addr, mac: None });
        (self.due, self.interval) = (Time::ZERO, ASK_AGAIN);
        Ok(index)
    }

    /// Looks up every next hop again. If it is time, makes the kernel ask for the missing ones and confirm the others.
    pub fn refresh(&mut self, now: Time) {
        let asks = self.due <= now;
        let mut missing = false;
        for hop in &mut self.hops {
            let found = self.netlink.neighbour(hop.addr, hop.interface).unwrap_or(None);
            missing |= found.is_none();
            hop.mac = found.or(hop.mac);
            if asks {
                // It fails if the interface is down. The engine refreshes again when the interface comes up.
                let _ = ask(&self.socket, hop.addr, hop.interface);
            }
        }
        if asks {
            self.due = now + if missing { self.interval } else { CONFIRM };
            self.interval = Span(self.interval.0.saturating_mul(2).min(CONFIRM.0));
        }
    }
}

/// Makes the kernel ask for a neighbour.
fn ask(socket: &Socket, addr: Ipv6Addr, interface: u32) -> io::Result<()> {
    socket.send_by_interface(interface)?;
    let dest = SockAddr::new(SocketAddr::from((addr, DISCARD)));
    send_bytes(socket.fd(), &dest, &[], None, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_has_no_route_to_is_an_error() {
        let mut hops = NextHops::open().unwrap();
        // An interface that does not exist.
        assert!(hops.towards("2001:db8::1".parse().unwrap(), 0x7FFF_FFFF).is_err());
        assert_eq!(hops.due(), Time::NEVER);
    }
}
