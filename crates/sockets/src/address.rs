//! Socket addresses in the kernel's layout.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An IPv4 or IPv6 socket address as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub union SockAddr {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// Bytes that hold any address of a UDP socket.
    pub const LEN: usize = mem::size_of::<SockAddr>();

    /// No address yet: all zeros, for a system call to fill in.
    #[inline]
    pub fn zeroed() -> Self {
        // SAFETY: every member consists of plain integers, for which zeros are valid.
        unsafe { mem::zeroed() }
    }

    /// The kernel's form of `addr`, with flow label 0.
    pub fn new(addr: SocketAddr) -> Self {
        let mut s = Self::zeroed();
        match addr {
            SocketAddr::V4(a) => {
                s.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: a.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(a) => {
                s.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: a.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                    sin6_scope_id: a.scope_id(),
                };
            }
        }
        s
    }

    /// The same address with an IPv6 flow label, of which the low 20 bits count. IPv4 has none.
    #[inline]
    pub fn with_flow_label(mut self, label: u32) -> Self {
        if !self.is_v4() {
            self.v6.sin6_flowinfo = (label & 0xF_FFFF).to_be();
        }
        self
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub fn is_v4(&self) -> bool {
        // SAFETY: the family is the first field of every member and always initialised.
        unsafe { self.family == libc::AF_INET as libc::sa_family_t }
    }

    /// Length of the member in use.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // The length that system calls ask for; no address is empty.
    pub fn len(&self) -> libc::socklen_t {
        if self.is_v4() {
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        } else {
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }

    /// Address and port; `None` for a family that is neither IPv4 nor IPv6.
    #[inline]
    pub fn ip_port(&self) -> Option<(IpAddr, u16)> {
        // SAFETY: the family says which member was written; both consist of plain integers.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => Some((
                    IpAddr::V4(Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes())),
                    u16::from_be(self.v4.sin_port),
                )),
                libc::AF_INET6 => Some((
                    IpAddr::V6(Ipv6Addr::from(self.v6.sin6_addr.s6_addr)),
                    u16::from_be(self.v6.sin6_port),
                )),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_addresses_survive_the_kernel_s_format() {
        for text in ["127.1.2.3:4791", "[fd00::2:9]:65535", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SockAddr::new(addr).ip_port(), Some((addr.ip(), addr.port())));
        }
    }
}
