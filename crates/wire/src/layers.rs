//! The headers before a packet, and encoding of whole packets: for captures, tests, and raw sockets.

use core::net::IpAddr;

use crate::frame::Outer;
use crate::icrc::Icrc;
use crate::ip::{self, Ip, Ipv4, Ipv6};
use crate::link::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, Ethernet};
use crate::packet::Packet;
use crate::srh::{self, Srh};
use crate::udp::{self, ROCE_PORT, Udp};

/// The headers before a packet, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    /// Ethernet header; its ethertype is filled in.
    pub ethernet: Option<Ethernet>,
    /// Outer header of SRv6 mode; lengths and next headers are filled in.
    pub outer: Option<Outer>,
    /// Inner header; length and protocol are filled in.
    pub ip: Ip,
    /// UDP header; its length is filled in.
    pub udp: Udp,
    /// Whether to fill in the UDP checksum; if not, `udp.checksum` is written as it is.
    pub udp_checksum: bool,
}

impl Layers {
    /// Length of all headers up to UDP.
    pub const fn header_len(&self) -> usize {
        let ethernet = match &self.ethernet {
            Some(ethernet) => ethernet.header_len(),
            None => 0,
        };
        let outer = match &self.outer {
            Some(outer) => ip::IPV6_LEN + if outer.srh.is_some() { srh::LEN } else { 0 },
            None => 0,
        };
        let ip = match &self.ip {
            Ip::V4(_) => ip::IPV4_LEN,
            Ip::V6(_) => ip::IPV6_LEN,
        };
        ethernet + outer + ip + udp::LEN
    }

    /// Writes the whole packet, from the first layer to the iCRC, to the front of `buf`; returns its length. `None` if
    /// it does not fit `buf` or a length field, or has an SRH of more segments than one. `packet.payload_len` is taken from `payload`.
    pub fn emit(&self, packet: &Packet, payload: &[u8], buf: &mut [u8]) -> Option<usize> {
        let packet = Packet { payload_len: u16::try_from(payload.len()).ok()?, ..*packet };
        if !packet.is_data() && !payload.is_empty() {
            return None;
        }
        let total = self.header_len() + packet.wire_len();
        let buf = buf.get_mut(..total)?;
        let udp_len = udp::LEN + packet.wire_len();
        let mut at = 0;
        if let Some(ethernet) = self.ethernet {
            let v6 = self.outer.is_some() || matches!(self.ip, Ip::V6(_));
            let ethertype = if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
            at += Ethernet { ethertype, ..ethernet }.emit(buf)?;
        }
        if let Some(outer) = self.outer {
            at += self.emit_outer(&outer, udp_len, &mut buf[at..])?;
        }
        let ip_at = at;
        at += self.emit_ip(udp_len, &mut buf[at..])?;
        let ip_header = ip_at..at;

        let udp_at = at;
        let bth_at = udp_at + udp::LEN;
        let headers_end = bth_at + packet.emit(&mut buf[bth_at..]);
        let payload_end = headers_end + payload.len();
        buf[headers_end..payload_end].copy_from_slice(payload);
        let icrc_at = payload_end + packet.pad_len();
        buf[payload_end..icrc_at].fill(0);

        let udp = Udp { length: u16::try_from(udp_len).ok()?, ..self.udp };
        udp.emit(buf[udp_at..].first_chunk_mut()?);
        let mut icrc = Icrc::of_headers(&buf[ip_header], buf[udp_at..].first_chunk()?)?;
        icrc.update(&buf[bth_at..icrc_at]);
        buf[icrc_at..].copy_from_slice(&icrc.finish());
        if self.udp_checksum {
            let checksum = udp.checksum_between(self.ip.src(), self.ip.dst(), &buf[bth_at..]);
            Udp { checksum, ..udp }.emit(buf[udp_at..].first_chunk_mut()?);
        }
        Some(total)
    }

    fn emit_outer(&self, outer: &Outer, udp_len: usize, buf: &mut [u8]) -> Option<usize> {
        let (inner_len, next_header) = match self.ip {
            Ip::V4(_) => (ip::IPV4_LEN + udp_len, ip::PROTOCOL_IPV4),
            Ip::V6(_) => (ip::IPV6_LEN + udp_len, ip::PROTOCOL_IPV6),
        };
        let srh_len = if outer.srh.is_some() { srh::LEN } else { 0 };
        let header = Ipv6 {
            payload_len: u16::try_from(srh_len + inner_len).ok()?,
            next_header: if outer.srh.is_some() { ip::PROTOCOL_ROUTING } else { next_header },
            ..outer.ip
        };
        header.emit(buf.first_chunk_mut()?);
        if let Some(srh) = outer.srh {
            if srh.segments != 1 {
                return None;
            }
            Srh { next_header, ..srh }.emit(buf.get_mut(ip::IPV6_LEN..)?.first_chunk_mut()?);
        }
        Some(ip::IPV6_LEN + srh_len)
    }

    fn emit_ip(&self, udp_len: usize, buf: &mut [u8]) -> Option<usize> {
        match self.ip {
            Ip::V4(ip) => {
                let total_len = u16::try_from(ip::IPV4_LEN + udp_len).ok()?;
                Ipv4 { total_len, protocol: ip::PROTOCOL_UDP, ..ip }.emit(buf.first_chunk_mut()?);
                Some(ip::IPV4_LEN)
            }
            Ip::V6(ip) => {
                let payload_len = u16::try_from(udp_len).ok()?;
                Ipv6 { payload_len, next_header: ip::PROTOCOL_UDP, ..ip }.emit(buf.first_chunk_mut()?);
                Some(ip::IPV6_LEN)
            }
        }
    }

    /// IP and UDP headers between two addresses, with defaults in all other fields; `None` if the address families
    /// differ.
    pub fn between(src: IpAddr, dst: IpAddr, sport: u16) -> Option<Self> {
        let ecn = ip::Ecn::Ect0;
        let ip = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ip::V4(Ipv4 {
                dscp: 0,
                ecn,
                total_len: 0,
                identification: 0,
                dont_fragment: true,
                ttl: 64,
                protocol: ip::PROTOCOL_UDP,
                src,
                dst,
            }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ip::V6(Ipv6 {
                dscp: 0,
                ecn,
                flow_label: 0,
                payload_len: 0,
                next_header: ip::PROTOCOL_UDP,
                hop_limit: 64,
                src,
                dst,
            }),
            _ => return None,
        };
        let udp = Udp { sport, dport: ROCE_PORT, length: 0, checksum: 0 };
        Some(Layers { ethernet: None, outer: None, ip, udp, udp_checksum: true })
    }
}
