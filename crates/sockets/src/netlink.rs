//! Routing netlink (rtnetlink(7)): addresses of interfaces, routes, neighbours, and a subscription to their changes.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::RawFd;

use crate::interface::InterfaceAddr;
use crate::{Socket, count, done};

/// Length of `struct nlmsghdr`.
const HEADER: usize = size_of::<libc::nlmsghdr>();
/// Length of `struct rtmsg` and of `struct ndmsg`.
const ROUTE_BODY: usize = 12;
/// Length of `struct ifinfomsg`.
const LINK_BODY: usize = 16;
/// Length of `struct ifaddrmsg`.
const ADDR_BODY: usize = 8;
/// Longer than any part of a list that the kernel sends as one message.
const PART: usize = 1 << 15;

// Attributes and states of a neighbour (linux/neighbour.h).
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Flag of an address (linux/if_addr.h, IFA_F_TENTATIVE).
const TENTATIVE: u8 = 0x40;
/// States in which its MAC address can be used: REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;

/// A netlink socket. It asks about the network namespace in which it was opened, whichever thread uses it.
pub struct Netlink(Socket);

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Socket::netlink_route().map(Netlink)
    }

    /// Every address of every interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interface_addrs(&self) -> io::Result<Vec<InterfaceAddr>> {
        let mut links = Vec::new();
        self.list(libc::RTM_GETLINK, LINK_BODY, |link| {
            let (Some(index), Some(flags)) = (u32_at(link, 4), u32_at(link, 8)) else { return };
            let name = attribute(link, LINK_BODY, libc::IFLA_IFNAME).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            links.push((index, flags as i32, String::from_utf8_lossy(name).into_owned()));
        })?;
        let mut found = Vec::new();
        self.list(libc::RTM_GETADDR, ADDR_BODY, |entry| {
            // IFA_ADDRESS is the peer's address on a point-to-point link, and the only one on others.
            let local = attribute(entry, ADDR_BODY, libc::IFA_LOCAL);
            let bytes = local.or_else(|| attribute(entry, ADDR_BODY, libc::IFA_ADDRESS)).unwrap_or_default();
            let addr = match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
                (Ok(v4), _) => IpAddr::from(v4),
                (_, Ok(v6)) => IpAddr::from(v6),
                _ => return,
            };
            let index = u32_at(entry, 4);
            let Some((index, flags, name)) = links.iter().find(|link| Some(link.0) == index) else { return };
            let up = libc::IFF_UP | libc::IFF_RUNNING;
            // Until duplicate address detection has ended, nothing can be sent from an IPv6 address.
            let is_tentative = entry.get(2).is_some_and(|&flags| flags & TENTATIVE != 0);
            found.push(InterfaceAddr {
                name: name.clone(),
                index: *index,
                addr,
                running: flags & up == up && !is_tentative,
                loopback: flags & libc::IFF_LOOPBACK != 0,
            });
        })?;
        Ok(found)
    }

    /// The neighbour to which packets for `dest` go by the interface with this index: the route's gateway, or `dest`
    /// itself if it is on the link.
    ///
    /// # Errors
    /// The kernel's: there is no route.
    pub fn next_hop(&self, dest: Ipv6Addr, interface: u32) -> io::Result<Ipv6Addr> {
        let mut body = [0; ROUTE_BODY];
        (body[0], body[1]) = (libc::AF_INET6 as u8, 128);
        let oif = interface.to_ne_bytes();
        let attributes: [(u16, &[u8]); 2] = [(libc::RTA_DST, &dest.octets()), (libc::RTA_OIF, &oif)];
        let route = self.ask(libc::RTM_GETROUTE, body, &attributes)?;
        let gateway = attribute(&route, ROUTE_BODY, libc::RTA_GATEWAY);
        let gateway = gateway.and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        Ok(gateway.map_or(dest, Ipv6Addr::from))
    }

    /// MAC address of a neighbour on the interface with this index; `None` if the kernel has none that can be used.
    ///
    /// # Errors
    /// The kernel's: its table has no such neighbour.
    pub fn neighbour(&self, addr: Ipv6Addr, interface: u32) -> io::Result<Option<[u8; 6]>> {
        let mut body = [0; ROUTE_BODY];
        body[0] = libc::AF_INET6 as u8;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let entry = self.ask(libc::RTM_GETNEIGH, body, &[(NDA_DST, &addr.octets())])?;
        let state = entry.get(8..10).map_or(0, |s| u16::from_ne_bytes([s[0], s[1]]));
        let mac = attribute(&entry, ROUTE_BODY, NDA_LLADDR).and_then(|a| <[u8; 6]>::try_from(a).ok());
        Ok(mac.filter(|_| state & USABLE != 0))
    }

    /// Asks for one route or neighbour; returns the entry without its header.
    fn ask(&self, kind: u16, body: [u8; ROUTE_BODY], attributes: &[(u16, &[u8])]) -> io::Result<Vec<u8>> {
        let mut message = body.to_vec();
        for (kind, value) in attributes {
            message.extend((4 + value.len() as u16).to_ne_bytes());
            message.extend(kind.to_ne_bytes());
            message.extend(*value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        self.send(kind, libc::NLM_F_REQUEST, &message)?;
        let answer = self.receive()?;
        match messages(&answer).next() {
            Some((kind, rest)) => error_of(kind, rest).map(|()| rest.to_vec()),
            None => Err(io::Error::other("netlink answered with less than a message")),
        }
    }

    /// Calls `each` with every entry of a list, without its header.
    fn list(&self, kind: u16, body: usize, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[0; LINK_BODY][..body])?;
        loop {
            let part = self.receive()?;
            for (kind, rest) in messages(&part) {
                if i32::from(kind) == libc::NLMSG_DONE {
                    return Ok(());
                }
                error_of(kind, rest)?;
                each(rest);
            }
        }
    }

    fn send(&self, kind: u16, flags: i32, body: &[u8]) -> io::Result<()> {
        let header = libc::nlmsghdr {
            nlmsg_len: (HEADER + body.len()) as u32,
            nlmsg_type: kind,
            nlmsg_flags: flags as u16,
            nlmsg_seq: 0,
            nlmsg_pid: 0,
        };
        let mut message = vec![0; HEADER];
        message.extend(body);
        // SAFETY: the message begins with room for a header, and is valid for its length.
        let sent = unsafe {
            message.as_mut_ptr().cast::<libc::nlmsghdr>().write_unaligned(header);
            libc::send(self.0.fd(), message.as_ptr().cast(), message.len(), 0)
        };
        count(sent as _).map(drop)
    }

    /// Receives an answer, or the next part of a list. The kernel has it ready when `send` returns.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0u8; PART];
        // SAFETY: the buffer has room for its length.
        let len = unsafe { libc::recv(self.0.fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        answer.truncate(count(len as _)?);
        Ok(answer)
    }
}

/// The netlink messages in a received buffer: type, and contents after the header.
fn messages(mut part: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32_at(part, 0)? as usize;
        let kind = u16::from_ne_bytes(*part.get(4..)?.first_chunk()?);
        let rest = part.get(HEADER..len)?;
        part = part.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, rest))
    })
}

fn error_of(kind: u16, rest: &[u8]) -> io::Result<()> {
    match u32_at(rest, 0) {
        Some(code) if i32::from(kind) == libc::NLMSG_ERROR && code != 0 => {
            Err(io::Error::from_raw_os_error((code as i32).wrapping_neg()))
        }
        _ => Ok(()),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The value of an attribute of an entry whose fixed part has `body` bytes.
fn attribute(entry: &[u8], body: usize, wanted: u16) -> Option<&[u8]> {
    let mut rest = entry.get(body..)?;
    loop {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..len)?;
        if u16::from_ne_bytes([header[2], header[3]]) == wanted {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

/// A subscription to changes of interfaces and their addresses, and of neighbours if wanted.
pub struct LinkWatch(Socket);

impl LinkWatch {
    /// Subscribes in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(neighbours: bool) -> io::Result<Self> {
        let socket = Socket::netlink_route()?;
        // SAFETY: zeros are valid for plain integers.
        let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        addr.nl_groups = (groups | if neighbours { libc::RTMGRP_NEIGH } else { 0 }) as u32;
        let len = size_of_val(&addr) as libc::socklen_t;
        // SAFETY: `addr` is valid for its length.
        done(unsafe { libc::bind(socket.fd(), (&raw const addr).cast(), len) })?;
        Ok(LinkWatch(socket))
    }

    /// A descriptor that is readable after a change.
    pub fn fd(&self) -> RawFd {
        self.0.fd()
    }

    /// Discards all queued notifications. Some may have been lost, so the caller lists everything again.
    pub fn drain(&self) {
        let mut buffer = [0u8; 8192];
        // SAFETY: the buffer has room for its length. Every error ends the loop but ENOBUFS: notifications were lost.
        while unsafe { libc::recv(self.fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) }
            > 0
            || io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS)
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface_of;

    #[test]
    fn attributes_are_found_behind_others_and_bad_ones_end_the_search() {
        let mut entry = vec![0; ROUTE_BODY];
        entry.extend([5, 0, 9, 0, 0xAA, 0, 0, 0]);
        entry.extend([8, 0, 2, 0, 1, 2, 3, 4]);
        assert_eq!(attribute(&entry, ROUTE_BODY, 9), Some(&[0xAA][..]));
        assert_eq!(attribute(&entry, ROUTE_BODY, 2), Some(&[1, 2, 3, 4][..]));
        assert_eq!(attribute(&entry, ROUTE_BODY, 3), None);
        let zero = [&entry[..ROUTE_BODY], &[0, 0, 1, 0, 0, 0, 0, 0]].concat();
        assert_eq!(attribute(&zero, ROUTE_BODY, 2), None);
    }

    #[test]
    fn every_loopback_address_belongs_to_the_loopback_interface() {
        let list = Netlink::open().unwrap().interface_addrs().unwrap();
        let lo = interface_of("127.77.1.2".parse().unwrap(), &list).unwrap();
        let socket = Socket::udp(lo.addr).unwrap();
        assert!(lo.loopback && socket.mtu_of(&lo.name).is_some_and(|mtu| mtu >= 1500));
        assert_eq!(socket.mtu_of("no-such-if"), None);
        assert_eq!(socket.mac_of(&lo.name), None);
        assert_eq!(interface_of("203.0.113.77".parse().unwrap(), &list), None);
    }

    #[test]
    fn an_interface_that_does_not_exist_has_no_route_and_no_neighbour() {
        let netlink = Netlink::open().unwrap();
        let addr = "2001:db8::1".parse().unwrap();
        assert!(netlink.next_hop(addr, 0x7FFF_FFFF).is_err());
        assert!(netlink.neighbour(addr, 0x7FFF_FFFF).is_err());
    }
}
