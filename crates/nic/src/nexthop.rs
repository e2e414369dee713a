//! Next hops of SRv6 packets: which neighbour of an interface a path leaves by, and its MAC address, as the kernel's routes
//! and neighbour table have them.
//!
//! Frames that a packet socket sends do not keep the kernel's entry alive, and the kernel asks for a neighbour only for
//! packets of its own. So where an entry is missing, and now and then to have it confirmed, an empty datagram to the
//! neighbour's discard port makes the kernel ask.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use openmrc_transport::{Span, Time};

use crate::error::{Error, Result};
use crate::netlink::{Netlink, ROUTE_BODY, attribute};
use crate::sys::{self, SockAddr};

/// How long until a neighbour that has not answered is asked for again: at first, and doubling ...
const ASK_AGAIN: Span = Span::from_millis(50);
/// ... up to the time after which one that has answered is confirmed.
const CONFIRM: Span = Span::from_millis(10_000);

/// UDP port that swallows what is sent to it (RFC 863).
const DISCARD: u16 = 9;

/// States of a neighbour whose MAC address can be used (linux/neighbour.h): REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// A neighbour on an interface.
pub(crate) struct NextHop {
    pub interface: u32,
    pub addr: Ipv6Addr,
    /// As last seen; kept if the kernel forgets it.
    pub mac: Option<[u8; 6]>,
}

/// Every neighbour that some path leaves by.
pub(crate) struct NextHops {
    netlink: Netlink,
    /// For asking neighbours; like the other, it belongs to the network namespace in which the device was opened.
    questions: OwnedFd,
    hops: Vec<NextHop>,
    due: Time,
    /// From the last question to the next.
    pause: Span,
}

impl NextHops {
    pub fn open() -> Result<Self> {
        let netlink = Netlink::open()?;
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let questions = sys::udp_socket(any).map_err(|e| Error::os("UDP socket", e))?;
        Ok(NextHops { netlink, questions, hops: Vec::new(), due: Time::NEVER, pause: CONFIRM })
    }

    /// When [`NextHops::refresh`] is to be called though nothing has happened.
    pub fn due(&self) -> Time {
        self.due
    }

    pub fn get(&self, index: u16) -> &NextHop {
        &self.hops[usize::from(index)]
    }

    /// The next hop towards `path` by this interface. A path that ends on the link itself is its own next hop.
    ///
    /// # Errors
    /// The kernel's: no route.
    pub fn towards(&mut self, path: Ipv6Addr, interface: u32) -> io::Result<u16> {
        let addr = self.gateway(path, interface)?;
        let known = self.hops.iter().position(|hop| hop.interface == interface && hop.addr == addr);
        if let Some(index) = known {
            return Ok(index as u16);
        }
        let index = u16::try_from(self.hops.len()).map_err(|_| io::Error::other("too many next hops"))?;
        self.hops.push(NextHop { interface, addr, mac: None });
        (self.due, self.pause) = (Time::ZERO, ASK_AGAIN);
        Ok(index)
    }

    /// Looks all of them up again; when it is time, asks for those that are missing and has the others confirmed.
    pub fn refresh(&mut self, now: Time) {
        let asks = self.due <= now;
        let mut missing = false;
        for index in 0..self.hops.len() {
            let (interface, addr) = (self.hops[index].interface, self.hops[index].addr);
            let found = self.neighbour(addr, interface).unwrap_or(None);
            missing |= found.is_none();
            let hop = &mut self.hops[index];
            hop.mac = found.or(hop.mac);
            if asks {
                // If it cannot be sent, the interface is down, and its coming up is told.
                let _ = self.ask(addr, interface);
            }
        }
        if asks {
            self.due = now + if missing { self.pause } else { CONFIRM };
            self.pause = Span(self.pause.0.saturating_mul(2).min(CONFIRM.0));
        }
    }

    fn gateway(&self, path: Ipv6Addr, interface: u32) -> io::Result<Ipv6Addr> {
        let mut body = [0; ROUTE_BODY];
        (body[0], body[1]) = (libc::AF_INET6 as u8, 128);
        let oif = interface.to_ne_bytes();
        let answer = self.netlink.ask(
            libc::RTM_GETROUTE,
            body,
            &[(libc::RTA_DST, &path.octets()), (libc::RTA_OIF, &oif)],
        )?;
        let gateway =
            attribute(&answer, ROUTE_BODY, libc::RTA_GATEWAY).and_then(|a| <[u8; 16]>::try_from(a).ok());
        Ok(gateway.map_or(path, Ipv6Addr::from))
    }

    fn neighbour(&self, addr: Ipv6Addr, interface: u32) -> io::Result<Option<[u8; 6]>> {
        let mut body = [0; ROUTE_BODY];
        body[0] = libc::AF_INET6 as u8;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let answer = self.netlink.ask(libc::RTM_GETNEIGH, body, &[(NDA_DST, &addr.octets())])?;
        let state = answer.get(8..10).map_or(0, |s| u16::from_ne_bytes([s[0], s[1]]));
        let mac = attribute(&answer, ROUTE_BODY, NDA_LLADDR).and_then(|a| <[u8; 6]>::try_from(a).ok());
        Ok(mac.filter(|_| state & USABLE != 0))
    }

    /// Makes the kernel ask for a neighbour.
    fn ask(&self, addr: Ipv6Addr, interface: u32) -> io::Result<()> {
        let fd = self.questions.as_raw_fd();
        sys::set_option(fd, libc::SOL_IPV6, libc::IPV6_UNICAST_IF, interface.to_be() as i32)?;
        let dest = SockAddr::new(SocketAddr::from((addr, DISCARD)));
        // SAFETY: nothing is sent, to an address that is valid for its length.
        let sent = unsafe {
            let dest_ptr = (&raw const dest).cast();
            libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, dest_ptr, dest.len())
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
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
