//! Whether the addresses of the ports can be used: which interface has each, whether it is up, and its MTU. A netlink
//! subscription says when to look again.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::error::{Error, Result};
use crate::sys::{self, SockAddr};

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

/// Every address of every interface of this network namespace.
pub(crate) fn interface_addrs() -> Result<Vec<InterfaceAddr>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: on success `list` is a list that we free below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(Error::last_os("list of interface addresses"));
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list, which lives until it is freed; its address, if any, is as long as its
        // family says.
        unsafe {
            let entry = &*next;
            next = entry.ifa_next;
            let Some(family) = entry.ifa_addr.as_ref().map(|a| i32::from(a.sa_family)) else { continue };
            if family != libc::AF_INET && family != libc::AF_INET6 {
                continue;
            }
            let mut addr = SockAddr::zeroed();
            let len = if family == libc::AF_INET { size_of::<libc::sockaddr_in>() } else { SockAddr::LEN };
            std::ptr::copy_nonoverlapping(entry.ifa_addr.cast::<u8>(), (&raw mut addr).cast(), len);
            let Some((addr, _)) = addr.ip_port() else { continue };
            let flags = entry.ifa_flags as i32;
            let up = libc::IFF_UP | libc::IFF_RUNNING;
            found.push(InterfaceAddr {
                name: CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned(),
                index: libc::if_nametoindex(entry.ifa_name),
                addr,
                running: flags & up == up,
                loopback: flags & libc::IFF_LOOPBACK != 0,
            });
        }
    }
    // SAFETY: the list came from getifaddrs and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
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
    fn every_loopback_address_belongs_to_the_loopback_interface() {
        let list = interface_addrs().unwrap();
        let lo = interface_of("127.77.1.2".parse().unwrap(), &list).unwrap();
        let socket = sys::udp_socket(lo.addr).unwrap();
        assert!(lo.loopback && mtu_of(socket.as_raw_fd(), &lo.name).is_some_and(|mtu| mtu >= 1500));
        assert_eq!(mtu_of(socket.as_raw_fd(), "no-such-if"), None);
        assert_eq!(interface_of("203.0.113.77".parse().unwrap(), &list), None);
    }
}
