//! Network interfaces: their addresses, index, MTU and MAC address.

use std::ffi::CString;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::{Socket, done};

/// An address of an interface of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InterfaceAddr {
    /// Name of the interface.
    pub name: String,
    /// Index of the interface in its network namespace.
    pub index: u32,
    /// The address.
    pub addr: IpAddr,
    /// Whether the interface is administratively up and has a carrier.
    pub running: bool,
    /// Whether it is a loopback interface.
    pub loopback: bool,
}

/// The interface that has the address `addr`. All of 127/8 belongs to a loopback interface that has 127.0.0.1.
pub fn interface_of(addr: IpAddr, list: &[InterfaceAddr]) -> Option<&InterfaceAddr> {
    list.iter().find(|i| i.addr == addr).or_else(|| {
        let loopback = matches!(addr, IpAddr::V4(a) if a.is_loopback());
        list.iter().find(|i| loopback && i.loopback && i.addr == IpAddr::V4(Ipv4Addr::LOCALHOST))
    })
}

/// Index of an interface in the calling thread's network namespace.
///
/// # Errors
/// The kernel's: no interface has this name.
pub fn index_of(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: a terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

impl Socket {
    /// MTU of an interface in the network namespace of this socket; `None` if there is no such interface.
    pub fn mtu_of(&self, interface: &str) -> Option<usize> {
        let mut request = request_about(interface);
        // SAFETY: the request is valid for the call.
        done(unsafe { libc::ioctl(self.fd(), libc::SIOCGIFMTU, &raw mut request) }).ok()?;
        // SAFETY: the kernel has filled in the MTU.
        Some(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize)
    }

    /// MAC address of an interface in the network namespace of this socket; `None` if there is no such interface or it
    /// is not Ethernet.
    pub fn mac_of(&self, interface: &str) -> Option<[u8; 6]> {
        let mut request = request_about(interface);
        // SAFETY: the request is valid for the call.
        done(unsafe { libc::ioctl(self.fd(), libc::SIOCGIFHWADDR, &raw mut request) }).ok()?;
        // SAFETY: the kernel has filled in the address.
        let addr = unsafe { request.ifr_ifru.ifru_hwaddr };
        (addr.sa_family == libc::ARPHRD_ETHER).then(|| std::array::from_fn(|i| addr.sa_data[i] as u8))
    }
}

fn request_about(interface: &str) -> libc::ifreq {
    // SAFETY: zeros are valid for plain integers and for the pointer, which is not used.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero: the name ends there at the latest.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request
}
