//! Whether the addresses of the ports can be used: which interface has each, whether it is up, and its MTU. A netlink
//! subscription says when to look again.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::error::{Error, Result};
use crate::sys;

/// An interface address of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InterfaceAddr {
    pub name: String,
    /// Its number in the network namespace.
    pub index: u32,
    pub addr: IpAddr,
    /// Administratively up and with carrier.
    pub running: bool,
    loopback: bool,
}

/// Asks the kernel about the network namespace in which it was opened, whichever thread asks.
pub(crate) struct Netlink(OwnedFd);

/// Length of `struct nlmsghdr`, and of `struct rtmsg` and `struct ndmsg`, `struct ifinfomsg`, `struct ifaddrmsg`.
const HEADER: usize = size_of::<libc::nlmsghdr>();
pub(crate) const ROUTE_BODY: usize = 12;
const LINK_BODY: usize = 16;
const ADDR_BODY: usize = 8;
/// More than the kernel puts into one piece of a list.
const PIECE: usize = 1 << 15;

impl Netlink {
    pub fn open() -> Result<Self> {
        sys::netlink_socket().map(Netlink).map_err(|e| Error::os("netlink socket", e))
    }

    /// Asks one thing about a route or a neighbour; the answer behind its header.
    ///
    /// # Errors
    /// The kernel's: there is none, for example.
    pub fn ask(&self, kind: u16, body: [u8; ROUTE_BODY], attributes: &[(u16, &[u8])]) -> io::Result<Vec<u8>> {
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

    /// Every address of every interface.
    pub fn interface_addrs(&self) -> Result<Vec<InterfaceAddr>> {
        let failed = |e| Error::os("list of interface addresses", e);
        let mut links = Vec::new();
        self.list(libc::RTM_GETLINK, LINK_BODY, |link| {
            let (Some(index), Some(flags)) = (u32_at(link, 4), u32_at(link, 8)) else { return };
            let name = attribute(link, LINK_BODY, libc::IFLA_IFNAME).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            links.push((index, flags as i32, String::from_utf8_lossy(name).into_owned()));
        })
        .map_err(failed)?;
        let mut found = Vec::new();
        self.list(libc::RTM_GETADDR, ADDR_BODY, |entry| {
            // The local end; of a link that has no other it is the only one.
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
            found.push(InterfaceAddr {
                name: name.clone(),
                index: *index,
                addr,
                running: flags & up == up,
                loopback: flags & libc::IFF_LOOPBACK != 0,
            });
        })
        .map_err(failed)?;
        Ok(found)
    }

    /// Gives every entry of a list to `each`.
    fn list(&self, kind: u16, body: usize, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[0; LINK_BODY][..body])?;
        loop {
            let piece = self.receive()?;
            for (kind, rest) in messages(&piece) {
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
            libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// An answer, or the next piece of a list. The kernel has it ready before `send` returns, or makes it here.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0u8; PIECE];
        // SAFETY: the buffer has room for its length.
        let len = unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        answer.truncate(len as usize);
        Ok(answer)
    }
}

/// The messages of a piece: the kind of each, and what is behind its header.
fn messages(mut piece: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u32_at(piece, 0)? as usize;
        let kind = u16::from_ne_bytes(*piece.get(4..)?.first_chunk()?);
        let rest = piece.get(HEADER..len)?;
        piece = piece.get(len.next_multiple_of(4)..).unwrap_or_default();
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

/// The value of an attribute behind the `body` bytes of an entry's fixed part.
pub(crate) fn attribute(entry: &[u8], body: usize, wanted: u16) -> Option<&[u8]> {
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

/// The interface that `addr` belongs to. All of 127/8 belongs to a loopback interface that has 127.0.0.1.
pub(crate) fn interface_of(addr: IpAddr, list: &[InterfaceAddr]) -> Option<&InterfaceAddr> {
    list.iter().find(|i| i.addr == addr).or_else(|| {
        let loopback = matches!(addr, IpAddr::V4(a) if a.is_loopback());
        list.iter().find(|i| loopback && i.loopback && i.addr == IpAddr::V4(Ipv4Addr::LOCALHOST))
    })
}

/// The MTU of an interface in the network namespace of the socket `fd`; `None` if it is gone.
pub(crate) fn mtu_of(fd: RawFd, interface: &str) -> Option<usize> {
    let mut request = request_about(interface);
    // SAFETY: the request is valid, and the kernel fills in the MTU on success.
    unsafe {
        let done = libc::ioctl(fd, libc::SIOCGIFMTU, &raw mut request) == 0;
        done.then(|| request.ifr_ifru.ifru_mtu.max(0) as usize)
    }
}

/// The Ethernet address of an interface in the network namespace of the socket `fd`; `None` if it is gone or has none.
pub(crate) fn mac_of(fd: RawFd, interface: &str) -> Option<[u8; 6]> {
    let mut request = request_about(interface);
    // SAFETY: the request is valid, and the kernel fills in the address, of which six bytes count, on success.
    unsafe {
        let done = libc::ioctl(fd, libc::SIOCGIFHWADDR, &raw mut request) == 0;
        let addr = request.ifr_ifru.ifru_hwaddr;
        let known = done && addr.sa_family == libc::ARPHRD_ETHER;
        known.then(|| std::array::from_fn(|i| addr.sa_data[i] as u8))
    }
}

fn request_about(interface: &str) -> libc::ifreq {
    // SAFETY: zeros are valid for plain integers and a pointer that is not used.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: the name ends there at the latest.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// A subscription to changes of interfaces, their addresses and neighbours.
pub(crate) struct LinkWatch(OwnedFd);

impl LinkWatch {
    pub fn open(neighbours: bool) -> Result<Self> {
        let fd = sys::netlink_socket().map_err(|e| Error::os("netlink socket", e))?;
        // SAFETY: zeros are valid for plain integers.
        let mut addr: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        addr.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        addr.nl_groups = (groups | if neighbours { libc::RTMGRP_NEIGH } else { 0 }) as u32;
        // SAFETY: `addr` is valid for its length.
        let r = unsafe {
            libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as libc::socklen_t)
        };
        if r != 0 {
            return Err(Error::last_os("subscription to link changes"));
        }
        Ok(LinkWatch(fd))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes everything that waits. Whatever it says, and even if some was lost, the answer is to look again.
    pub fn drain(&self) {
        let mut buffer = [0u8; 8192];
        // SAFETY: the buffer has room for its length. It ends at the first error but ENOBUFS, which means "some was lost".
        while unsafe { libc::recv(self.fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) }
            > 0
            || std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS)
        {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let socket = sys::udp_socket(lo.addr).unwrap();
        assert!(lo.loopback && mtu_of(socket.as_raw_fd(), &lo.name).is_some_and(|mtu| mtu >= 1500));
        assert_eq!(mtu_of(socket.as_raw_fd(), "no-such-if"), None);
        assert_eq!(interface_of("203.0.113.77".parse().unwrap(), &list), None);
    }
}
