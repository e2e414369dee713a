//! A probe as bytes, and the key that proves that this prober has sent it.
//!
//! ```text
//! outer IPv6 header (the kernel's) | 0-39 inner IPv6 | 40-47 UDP | 48-71 probe
//!
//! probe   0-3  "MRCp"    4-7  loop    8-11 interval    12-15 number in the interval    16-23 tag
//! ```
//!
//! The tag is a keyed hash of the three numbers. The key is drawn when the prober starts, so that neither a stranger nor
//! an earlier process can make a probe that counts.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};

use openmrc_transport::loops::Probe;
use openmrc_wire::ip::{Ecn, IPV6_LEN, Ipv6, PROTOCOL_UDP};
use openmrc_wire::udp::{self, Udp};

const MAGIC: [u8; 4] = *b"MRCp";
const LOOP: usize = 4;
const INTERVAL: usize = 8;
const NUMBER: usize = 12;
const TAG: usize = 16;
/// Length of a probe, from the magic number to the tag.
pub const PROBE_LEN: usize = Probe::LEN;
const UDP_AT: usize = IPV6_LEN;
const PROBE_AT: usize = UDP_AT + udp::LEN;
/// Length of what follows the outer IPv6 header.
pub const PACKET_LEN: usize = PROBE_AT + PROBE_LEN;
/// Of the inner header: the probe ends where the outer header is removed.
const HOP_LIMIT: u8 = 1;

/// The key of a prober: SipHash with 128 random bits, as the standard library has it.
#[derive(Clone, Debug, Default)]
pub struct Key(RandomState);

impl Key {
    fn tag(&self, probe: Probe) -> [u8; 8] {
        self.0.hash_one(probe).to_be_bytes()
    }

    /// The bytes of a probe.
    pub fn emit(&self, probe: Probe) -> [u8; PROBE_LEN] {
        let mut bytes = [0; PROBE_LEN];
        bytes[..LOOP].copy_from_slice(&MAGIC);
        bytes[LOOP..INTERVAL].copy_from_slice(&probe.index.to_be_bytes());
        bytes[INTERVAL..NUMBER].copy_from_slice(&probe.interval.to_be_bytes());
        bytes[NUMBER..TAG].copy_from_slice(&probe.number.to_be_bytes());
        bytes[TAG..].copy_from_slice(&self.tag(probe));
        bytes
    }

    /// The probe that these bytes are; `None` if this key has not made them.
    pub fn parse(&self, bytes: &[u8]) -> Option<Probe> {
        let bytes: &[u8; PROBE_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let probe = Probe { index: word(LOOP), interval: word(INTERVAL), number: word(NUMBER) };
        (bytes[..LOOP] == MAGIC && bytes[TAG..] == self.tag(probe)).then_some(probe)
    }
}

/// The packets of a host's port, from the inner IPv6 header on.
#[derive(Clone, Debug)]
pub struct Template {
    address: Ipv6Addr,
    udp_port: u16,
    bytes: [u8; PACKET_LEN],
}

impl Template {
    /// Packets from this address to itself and to this UDP port, in this traffic class.
    pub fn new(address: Ipv6Addr, udp_port: u16, traffic_class: u8) -> Self {
        let header = Ipv6 {
            dscp: traffic_class >> 2,
            ecn: Ecn::from_bits(traffic_class),
            flow_label: 0,
            payload_len: (udp::LEN + PROBE_LEN) as u16,
            next_header: PROTOCOL_UDP,
            hop_limit: HOP_LIMIT,
            src: address,
            dst: address,
        };
        let mut bytes = [0; PACKET_LEN];
        let (inner, _) = bytes.split_first_chunk_mut().expect("room for the header");
        header.emit(inner);
        Template { address, udp_port, bytes }
    }

    /// The packet of a probe. It has a UDP checksum: a host that decapsulates in its kernel would log one without.
    pub fn packet(&mut self, probe: &[u8; PROBE_LEN]) -> &[u8; PACKET_LEN] {
        let port = self.udp_port;
        let udp = Udp { sport: port, dport: port, length: (udp::LEN + PROBE_LEN) as u16, checksum: 0 };
        let address = IpAddr::V6(self.address);
        let checksum = udp.checksum_between(address, address, probe);
        let (header, payload) = self.bytes[UDP_AT..].split_first_chunk_mut().expect("room for the header");
        Udp { checksum, ..udp }.emit(header);
        payload.copy_from_slice(probe);
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_wire::encap;
    use proptest::prelude::*;

    const PROBE: Probe = Probe { index: 7, interval: 1_000, number: 3 };

    /// A frame as it comes back: the outer header's path has ended.
    fn frame(packet: &[u8]) -> Vec<u8> {
        let address: Ipv6Addr = "fd5f::1".parse().unwrap();
        let outer = Ipv6 {
            dscp: 46,
            ecn: Ecn::NotEct,
            flow_label: 0,
            payload_len: packet.len() as u16,
            next_header: 41,
            hop_limit: 60,
            src: address,
            dst: "5f00:0:e001::".parse().unwrap(),
        };
        let mut bytes = vec![0; 12];
        bytes.extend([0x86, 0xDD]);
        let mut header = [0; IPV6_LEN];
        outer.emit(&mut header);
        bytes.extend(header);
        bytes.extend(packet);
        bytes
    }

    #[test]
    fn a_probe_has_the_layout_of_the_figure() {
        let bytes = Key::default().emit(PROBE);
        assert_eq!(bytes[..16], *b"MRCp\0\0\0\x07\0\0\x03\xE8\0\0\0\x03");
    }

    #[test]
    fn a_probe_comes_back_in_a_frame() {
        let key = Key::default();
        let mut template = Template::new("fd5f::1".parse().unwrap(), 50_000, 46 << 2);
        let whole = frame(template.packet(&key.emit(PROBE)));
        let seen = encap::decapsulate(&whole).unwrap();
        assert_eq!((seen.dest_port, seen.source.to_string()), (50_000, "fd5f::1".to_owned()));
        assert_eq!((seen.dscp, seen.short), (46, false));
        assert_eq!(key.parse(seen.payload), Some(PROBE));
        // Cut anywhere, it is no probe, and nothing panics.
        for len in 0..whole.len() {
            let payload = encap::decapsulate(&whole[..len]).map(|seen| seen.payload.to_vec());
            assert_eq!(payload.ok().and_then(|bytes| key.parse(&bytes)), None);
        }
    }

    #[test]
    fn the_kernel_accepts_the_checksum() {
        let key = Key::default();
        let address: Ipv6Addr = "fd5f::1".parse().unwrap();
        let mut template = Template::new(address, 50_000, 0);
        let bytes = *template.packet(&key.emit(PROBE));
        let udp = Udp::parse(bytes[UDP_AT..].first_chunk().unwrap());
        assert_ne!(udp.checksum, 0);
        let own = IpAddr::V6(address);
        assert_eq!(Udp { checksum: 0, ..udp }.checksum_between(own, own, &bytes[PROBE_AT..]), udp.checksum);
    }

    #[test]
    fn an_earlier_process_and_a_stranger_make_no_probe() {
        let (key, other) = (Key::default(), Key::default());
        assert_eq!(key.parse(&other.emit(PROBE)), None);
        assert_eq!(key.parse(&[0; PROBE_LEN]), None);
        assert_eq!(key.parse(b"MRCp"), None);
        let mut longer = key.emit(PROBE).to_vec();
        longer.push(0);
        assert_eq!(key.parse(&longer), None);
    }

    proptest! {
        #[test]
        fn every_probe_comes_back(index: u32, interval: u32, number: u32) {
            let key = Key::default();
            let probe = Probe { index, interval, number };
            prop_assert_eq!(key.parse(&key.emit(probe)), Some(probe));
        }

        #[test]
        fn a_changed_bit_is_noticed(bit in 0..PROBE_LEN * 8) {
            let key = Key::default();
            let mut bytes = key.emit(PROBE);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(key.parse(&bytes), None);
        }

        #[test]
        fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(Key::default().parse(&bytes), None);
        }
    }
}
