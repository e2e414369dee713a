//! Values in a peer's packets that differ from those sent here, though a reading of MRC 1.0 allows them
//! (docs/spec/wire.md). Such packets are accepted; these counters tell which reading a peer follows. Nothing else may
//! depend on them.

use crate::bth::{self, opcode};
use crate::packet::{NackReason, Sack};
use crate::reliability::{CC_TYPE_NACK, NACK_LEN, SACK_LEN};
use crate::{endpoint, icrc, rdma, reliability};

macro_rules! differences {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// One such value.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Difference { $($(#[$doc])* $variant,)* }

        impl Difference {
            /// Every difference.
            pub const ALL: &'static [Difference] = &[$(Difference::$variant),*];

            /// Name of its counter. It does not change, as dashboards and scripts depend on it.
            pub const fn counter(self) -> &'static str {
                match self { $(Difference::$variant => $name,)* }
            }
        }
    };
}

differences! {
    /// Bit 7 of BTH byte 1 is set: M here, SE in the order of the IBTA.
    BthM => "peer_bth_m",
    /// A reserved bit of the BTH is set.
    BthReserved => "peer_bth_reserved",
    /// BTH.TS is set in a packet that has no TSETH.
    ControlTs => "peer_control_ts",
    /// TSR is 1: the timestamp's resolution is the peer's own.
    Tsr => "peer_tsr",
    /// ftype is not 1.
    Ftype => "peer_ftype",
    /// vendor_info of NETH, PETH or ERTH is not 0.
    VendorInfo => "peer_vendor_info",
    /// SETH.m is 3.
    SackMark => "peer_sack_mark",
    /// SETH.cc_type is not 0.
    SackCcType => "peer_sack_cc_type",
    /// cc_flags of SETH or NETH is not 0.
    CcFlags => "peer_cc_flags",
    /// NETH.cc_type is not 2.
    NackCcType => "peer_nack_cc_type",
    /// NETH.reason is not in the specification.
    NackReason => "peer_nack_reason",
    /// EETH has bits outside op(3:2) in byte 1.
    EndpointOpPlace => "peer_eeth_op",
    /// A syndrome of AETH that MRC does not have.
    Syndrome => "peer_syndrome",
    /// An IPv4 identification that is neither 0 nor a place in a message: known to whoever checks the iCRC.
    Identification => "peer_ipv4_identification",
    /// The DMA length of a message's first packet is that of the packet, not that of the message.
    DmaPerPacket => "peer_dma_per_packet",
}

/// A set of differences.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Differences(u16);

/// Whether the DMA length of a packet is the length of its payload. `from_reth` is the packet from the RETH on.
fn has_own_length(bth: &[u8; bth::LEN], from_reth: Option<&[u8]>) -> bool {
    let Some((reth, rest)) = from_reth.and_then(|rest| rest.split_first_chunk::<{ rdma::RETH_LEN }>()) else {
        return false;
    };
    let dma_len = u32::from_be_bytes([reth[12], reth[13], reth[14], reth[15]]);
    let pad = usize::from(bth[1] >> 4 & 3);
    rest.len().checked_sub(icrc::LEN + pad) == Some(dma_len as usize)
}

impl Differences {
    /// No difference.
    pub const NONE: Self = Differences(0);

    /// Those of a packet from the BTH on. Every header is read as far as the bytes go; a RoCEv2 packet has none.
    #[inline]
    pub fn of(udp_payload: &[u8]) -> Self {
        let mut found = Differences::default();
        let Some((bth, rest)) = udp_payload.split_first_chunk::<{ bth::LEN }>() else { return found };
        if !bth::is_mrc(bth[0]) {
            return found;
        }
        let ts = bth[8] & 0x10 != 0;
        found.note(Difference::BthM, bth[1] & 0x80 != 0);
        found.note(Difference::BthReserved, (bth[4] | bth[8] & 0x4F) != 0);
        match bth[0] {
            opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM => {
                if let (true, Some(tseth)) = (ts, rest.get(rdma::METH_LEN..rdma::METH_LEN + rdma::TSETH_LEN))
                {
                    found.timestamp(tseth[2], tseth[3]);
                }
                if bth[0] == opcode::WRITE_FIRST {
                    let reth = rdma::METH_LEN + if ts { rdma::TSETH_LEN } else { 0 };
                    found.note(Difference::DmaPerPacket, has_own_length(bth, rest.get(reth..)));
                }
                return found;
            }
            _ => found.note(Difference::ControlTs, ts),
        }
        match bth[0] {
            opcode::SACK => found.sack(rest),
            opcode::NACK => found.nack(rest),
            opcode::PROBE => found.request(rest.first_chunk::<{ reliability::PROBE_LEN }>()),
            opcode::ENDPOINT_REQUEST => found.request(rest.first_chunk::<{ endpoint::ERTH_LEN }>()),
            opcode::ENDPOINT_RESPONSE => {
                found.note(Difference::EndpointOpPlace, rest.get(1).is_some_and(|byte| byte & 0x73 != 0));
            }
            opcode::ACK => {
                let undefined = |&syndrome: &u8| rdma::meaning(syndrome) == rdma::Syndrome::Undefined;
                found.note(Difference::Syndrome, rest.first().is_some_and(undefined));
            }
            _ => {}
        }
        found
    }

    /// Whether there is none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Difference> {
        Difference::ALL.iter().copied().filter(move |&each| self.0 & 1 << each as u8 != 0)
    }

    /// Adds a difference if it is `present`.
    #[inline]
    pub fn note(&mut self, difference: Difference, present: bool) {
        self.0 |= u16::from(present) << difference as u8;
    }

    fn timestamp(&mut self, tsr: u8, ftype: u8) {
        self.note(Difference::Tsr, tsr & rdma::TSR != 0);
        self.note(Difference::Ftype, ftype & 0x0F != rdma::FTYPE_VALID);
    }

    /// PETH and ERTH have these fields in the same places.
    fn request(&mut self, header: Option<&[u8; 16]>) {
        if let Some(header) = header {
            self.note(Difference::VendorInfo, header[3] != 0);
            self.timestamp(header[14], header[15]);
        }
    }

    fn sack(&mut self, rest: &[u8]) {
        let Some(sack) = rest.first_chunk::<SACK_LEN>() else { return };
        self.note(Difference::SackMark, sack[1] >> 5 & 3 == 3);
        self.note(Difference::SackCcType, sack[16] >> 4 != Sack::CC_TYPE);
        self.note(Difference::CcFlags, sack[16] & 0x0F != 0);
    }

    fn nack(&mut self, rest: &[u8]) {
        let Some(nack) = rest.first_chunk::<NACK_LEN>() else { return };
        self.note(Difference::NackReason, NackReason::from_code(nack[2]).is_none());
        self.note(Difference::VendorInfo, nack[3] != 0);
        self.note(Difference::NackCcType, nack[16] >> 4 != CC_TYPE_NACK);
        self.note(Difference::CcFlags, nack[16] & 0x0F != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(opcode: u8, bth: &[(usize, u8)], headers: &[u8]) -> Vec<&'static str> {
        let mut bytes = vec![0; bth::LEN];
        bytes[0] = opcode;
        for &(at, value) in bth {
            bytes[at] = value;
        }
        bytes.extend(headers);
        let found = Differences::of(&bytes);
        let counters: Vec<_> = found.iter().map(Difference::counter).collect();
        assert_eq!(found.is_empty(), counters.is_empty());
        counters
    }

    fn with<const N: usize>(changes: &[(usize, u8)]) -> [u8; N] {
        let mut bytes = [0; N];
        for &(at, value) in changes {
            bytes[at] = value;
        }
        bytes
    }

    #[test]
    fn each_difference_is_found_in_literal_bytes() {
        let write = with::<24>(&[(7, 1)]);
        assert_eq!(seen(0xCA, &[(8, 0x90)], &write), [""; 0]);
        assert_eq!(seen(0xCA, &[(1, 0x80)], &write), ["peer_bth_m"]);
        assert_eq!(seen(0xCA, &[(8, 0x41)], &write), ["peer_bth_reserved"]);
        assert_eq!(seen(0xCA, &[(4, 0x01)], &write), ["peer_bth_reserved"]);
        assert_eq!(seen(0xCA, &[(8, 0x10)], &with::<24>(&[(6, 0x80), (7, 1)])), ["peer_tsr"]);
        assert_eq!(seen(0xCA, &[(8, 0x10)], &with::<24>(&[(7, 2)])), ["peer_ftype"]);
        assert_eq!(
            seen(0xCA, &[(8, 0x10)], &with::<8>(&[(7, 2)])),
            ["peer_ftype"],
            "no byte behind the TSETH"
        );
        // A First of eight bytes: METH, RETH with the DMA length 8, payload, iCRC.
        let own = |dma| with::<32>(&[(19, dma)]);
        assert_eq!(seen(0xC6, &[], &own(8)), ["peer_dma_per_packet"]);
        assert_eq!(seen(0xC6, &[], &own(9)), [""; 0]);
        assert_eq!(seen(0xC6, &[(1, 0x10)], &own(7)), ["peer_dma_per_packet"], "one byte of padding");
        // With a TSETH behind the METH.
        let timed = |dma| with::<36>(&[(7, 1), (23, dma)]);
        assert_eq!(seen(0xC6, &[(8, 0x10)], &timed(8)), ["peer_dma_per_packet"]);
        assert_eq!(seen(0xC6, &[(8, 0x10)], &timed(9)), [""; 0]);
        assert_eq!(seen(0xC7, &[], &own(8)), [""; 0], "later packets may have either");
        assert_eq!(seen(0xD1, &[(8, 0x10)], &[0x1F, 0, 0, 0]), ["peer_control_ts"]);
        assert_eq!(seen(0xD1, &[], &[0x60, 0, 0, 0]), ["peer_syndrome"]);
        assert_eq!(seen(0xDC, &[], &with::<36>(&[(1, 0x60)])), ["peer_sack_mark"]);
        assert_eq!(seen(0xDC, &[], &with::<36>(&[(16, 0x10)])), ["peer_sack_cc_type"]);
        assert_eq!(seen(0xDC, &[], &with::<36>(&[(16, 0x01)])), ["peer_cc_flags"]);
        assert_eq!(seen(0xDD, &[], &with::<20>(&[(2, 1), (16, 0x20)])), [""; 0]);
        assert_eq!(
            seen(0xDD, &[], &with::<20>(&[(2, 1), (3, 0xFF)])),
            ["peer_vendor_info", "peer_nack_cc_type"],
            "the defaults of Keysight's template"
        );
        assert_eq!(seen(0xDD, &[], &with::<20>(&[(2, 3), (16, 0x20)])), ["peer_nack_reason"]);
        assert_eq!(seen(0xDE, &[], &with::<16>(&[(15, 1)])), [""; 0]);
        assert_eq!(seen(0xDE, &[], &with::<16>(&[(3, 7), (15, 1)])), ["peer_vendor_info"]);
        assert_eq!(seen(0xD8, &[], &with::<16>(&[(14, 0x80), (15, 1)])), ["peer_tsr"]);
        assert_eq!(seen(0xD9, &[], &with::<36>(&[(1, 0x04)])), [""; 0]);
        assert_eq!(seen(0xD9, &[], &with::<36>(&[(1, 0x10)])), ["peer_eeth_op"]);
        assert_eq!(seen(0x0A, &[(1, 0x80), (8, 0x7F)], &[0; 16]), [""; 0], "RoCEv2");
    }

    #[test]
    fn packets_that_end_early_are_read_as_far_as_they_go() {
        for opcode in 0..=255 {
            for len in 0..64 {
                let mut bytes = vec![0xFF; len];
                if let Some(first) = bytes.first_mut() {
                    *first = opcode;
                }
                let _ = Differences::of(&bytes);
            }
        }
    }

    #[test]
    fn there_is_a_bit_for_each() {
        assert!(Difference::ALL.len() <= 16);
    }
}
