//! Addresses of this host's interfaces with the lengths of their prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// An address of an interface.
struct Address {
    addr: IpAddr,
    /// Bits of its prefix.
    prefix: u8,
    running: bool,
    loopback: bool,
    interface: String,
}

fn addresses() -> Vec<Address> {
    let mut list = ptr::null_mut();
    // SAFETY: a valid place for the list.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: a member of the list, which is freed below; its strings end with zero.
        unsafe {
            let entry = &*next;
            next = entry.ifa_next;
            let (Some(addr), Some(mask)) = (address(entry.ifa_addr), address(entry.ifa_netmask)) else {
                continue;
            };
            let flags = entry.ifa_flags as i32;
            found.push(Address {
                addr,
                prefix: bits(mask).count_ones() as u8,
                running: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
                loopback: flags & libc::IFF_LOOPBACK != 0,
                interface: std::ffi::CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned(),
            });
        }
    }
    // SAFETY: it was made by getifaddrs and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// # Safety
/// `from` is null or points to a socket address of its family.
unsafe fn address(from: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    unsafe {
        match from.as_ref().map(|a| i32::from(a.sa_family))? {
            libc::AF_INET => {
                let v4 = from.cast::<libc::sockaddr_in>().read_unaligned().sin_addr.s_addr;
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4))))
            }
            libc::AF_INET6 => {
                let v6 = from.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr;
                Some(IpAddr::V6(Ipv6Addr::from(v6)))
            }
            _ => None,
        }
    }
}

fn bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// One address of each interface that is up and not loopback: its IPv4 address, else a global IPv6 one.
pub fn usable() -> Vec<IpAddr> {
    let mut chosen: Vec<(String, IpAddr)> = Vec::new();
    let global = |addr: &IpAddr| match addr {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
    };
    let mut list = addresses();
    list.retain(|a| a.running && !a.loopback && global(&a.addr));
    list.sort_by_key(|a| a.addr.is_ipv6());
    for each in list {
        if chosen.iter().all(|(interface, _)| *interface != each.interface) {
            chosen.push((each.interface, each.addr));
        }
    }
    chosen.sort();
    chosen.into_iter().map(|(_, addr)| addr).collect()
}

/// The addresses of a peer on every plane, from that on the first: plane k's own prefix with the host part of the
/// peer's address (docs/spec/c-interface.md, Finding the peer). `None` where it does not follow.
pub fn planes_of(own: &[IpAddr], first: IpAddr) -> Option<Vec<IpAddr>> {
    if own.len() == 1 {
        return (own[0].is_ipv4() == first.is_ipv4()).then(|| vec![first]);
    }
    let list = addresses();
    // All of 127/8 is local; a loopback device has its plane in the second byte.
    let prefix = |addr: IpAddr| match list.iter().find(|a| a.addr == addr && !a.loopback) {
        Some(found) => Some(u32::from(found.prefix)),
        None if addr.is_loopback() && addr.is_ipv4() => Some(16),
        None => list.iter().find(|a| a.addr == addr).map(|a| u32::from(a.prefix)),
    };
    let host_mask = |addr: IpAddr, prefix: u32| {
        let width = if addr.is_ipv4() { 32 } else { 128 };
        if prefix >= width { 0 } else { u128::MAX >> (128 - (width - prefix)) }
    };
    let mask = host_mask(own[0], prefix(own[0])?);
    if own[0].is_ipv4() != first.is_ipv4() || bits(first) & !mask != bits(own[0]) & !mask {
        return None;
    }
    let host = bits(first) & mask;
    let on_plane = |&own: &IpAddr| {
        let mask = host_mask(own, prefix(own)?);
        let whole = (host & !mask == 0).then_some(bits(own) & !mask | host)?;
        Some(match own {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(whole as u32)),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(whole)),
        })
    };
    own.iter().map(on_plane).collect()
}

/// The interface that has this address. All of 127/8 belongs to the loopback interface.
pub fn interface_of(addr: IpAddr) -> Option<String> {
    let list = addresses();
    let found = list.iter().find(|each| each.addr == addr);
    let found = found.or_else(|| list.iter().find(|each| addr.is_loopback() && each.loopback));
    found.map(|each| each.interface.clone())
}
