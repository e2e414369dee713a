//! The sockets of a host's port: the kernel adds the outer header, finds the next hop and sends; a packet socket sees
//! what comes back, whether or not the kernel would take it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use openmrc_sockets::filter::udp_in_ipv6;
use openmrc_sockets::{InterfaceAddr, SendError, SockAddr, Socket, receive_bytes, send_bytes};
use openmrc_wire::{encap, ip};

use crate::packet::{PACKET_LEN, PROBE_LEN, Template};

/// EtherType of IPv6.
const IPV6: u16 = 0x86DD;
/// Kernel memory for probes that wait to be read: more than a thousand of them.
const RECEIVE_BUFFER: usize = 2 << 20;
/// Longer than any frame with a probe.
const ROOM: usize = encap::MAX_LEN + PACKET_LEN;

/// The sockets of a port.
pub(crate) struct Port {
    rx: Socket,
    tx: Socket,
    /// Keeps the UDP port.
    _reserved: Socket,
    interface: String,
    template: Template,
    /// Packets that the receive queue had dropped when it was asked last.
    dropped: u32,
}

impl Port {
    /// The sockets on the interface that has this address.
    pub fn open(address: Ipv6Addr, interface: &InterfaceAddr, traffic_class: u8) -> io::Result<Self> {
        let any_port = SocketAddr::new(IpAddr::V6(address), 0);
        let tx = Socket::raw_ipv6(ip::PROTOCOL_IPV6)?;
        tx.set_traffic_class(traffic_class)?;
        tx.never_fragment()?;
        tx.bind(any_port)?;
        tx.send_by_interface(interface.index)?;
        let reserved = Socket::reserve_udp(any_port)?;
        let udp_port = reserved.local_port()?;
        let rx = Socket::packet()?;
        rx.attach_filter(&udp_in_ipv6(address, &[udp_port]))?;
        rx.set_receive_buffer(RECEIVE_BUFFER)?;
        rx.bind_interface(interface.index, IPV6)?;
        let dropped = rx.receive_queue().dropped;
        let template = Template::new(address, udp_port, traffic_class);
        Ok(Port { rx, tx, _reserved: reserved, interface: interface.name.clone(), template, dropped })
    }

    /// Sends a probe on a path.
    pub fn send(&mut self, path: &SockAddr, probe: &[u8; PROBE_LEN]) -> Result<(), SendError> {
        let packet = self.template.packet(probe);
        send_bytes(self.tx.fd(), path, packet, None, None).map_err(|error| SendError::from(&error))
    }

    /// Reads what has come back, at most `limit` packets, and gives `each` what they carry; whether it was all.
    pub fn receive(&mut self, limit: usize, mut each: impl FnMut(&[u8])) -> bool {
        let mut room = [0; ROOM];
        for _ in 0..limit {
            match receive_bytes(self.rx.fd(), &mut room) {
                Ok(len) => {
                    let payload = encap::decapsulate(&room[..len]).map_or(&[][..], |seen| seen.payload);
                    each(payload);
                }
                // Nothing is left; or the interface is down or has been, and nothing can be read until the next call.
                Err(_) => return true,
            }
        }
        false
    }

    /// Whether the kernel has dropped packets that this host had received, since the last call.
    pub fn has_dropped(&mut self) -> bool {
        let dropped = self.rx.receive_queue().dropped;
        std::mem::replace(&mut self.dropped, dropped) != dropped
    }

    /// Whether its interface still exists.
    pub fn exists(&self) -> bool {
        self.tx.mtu_of(&self.interface).is_some()
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }
}
