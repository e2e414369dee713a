//! Extension headers of data packets and transport ACKs: METH, TSETH, RETH, ImmDt, AETH (docs/spec/wire.md).
//!
//! ```text
//! METH  0-1 RQMSN           2-3 MSN
//! TSETH 0-1 tx_timestamp    2 TSR(7): 0 = 128 ns, 1 = implementation-defined   3 ftype(3:0) = 1
//! RETH  0-7 virtual address 8-11 R_Key 12-15 DMA length
//! ImmDt 0-3 immediate
//! AETH  0 syndrome          1-3 MSN
//! ```

use crate::bytes::{put, put_u24, u16_at, u24_at, u32_at, u64_at};
use crate::packet::{Aeth, Timestamp};
use crate::seq::Msn;

/// Length of METH.
pub const METH_LEN: usize = 4;
const METH_RQMSN: usize = 0;
const METH_MSN: usize = 2;

/// Length of TSETH.
pub const TSETH_LEN: usize = 4;
const TSETH_TIMESTAMP: usize = 0;
const TSETH_TSR: usize = 2;
const TSETH_FTYPE: usize = 3;

/// Length of RETH.
pub const RETH_LEN: usize = 16;
const RETH_VA: usize = 0;
const RETH_RKEY: usize = 8;
const RETH_DMA_LEN: usize = 12;

/// Length of ImmDt.
pub const IMM_LEN: usize = 4;

/// Length of AETH.
pub const AETH_LEN: usize = 4;
const AETH_SYNDROME: usize = 0;
const AETH_MSN: usize = 1;

/// TSR, in the byte after a 16-bit timestamp.
pub(crate) const TSR: u8 = 1 << 7;
/// ftype of a timestamp that is present and valid, in the low four bits of its byte. It is sent and not checked: only
/// the owner of a timestamp interprets it.
pub(crate) const FTYPE_VALID: u8 = 0x1;

/// Reads METH: (RQMSN, MSN).
#[inline]
pub(crate) fn parse_meth(b: &[u8; METH_LEN]) -> (Msn, Msn) {
    (Msn(u16_at(b, METH_RQMSN)), Msn(u16_at(b, METH_MSN)))
}

#[inline]
pub(crate) fn emit_meth(b: &mut [u8; METH_LEN], rqmsn: Msn, msn: Msn) {
    put(b, METH_RQMSN, rqmsn.0.to_be_bytes());
    put(b, METH_MSN, msn.0.to_be_bytes());
}

#[inline]
pub(crate) fn parse_tseth(b: &[u8; TSETH_LEN]) -> Timestamp {
    Timestamp { ticks: u16_at(b, TSETH_TIMESTAMP), tsr: b[TSETH_TSR] & TSR != 0 }
}

#[inline]
pub(crate) fn emit_tseth(b: &mut [u8; TSETH_LEN], timestamp: Timestamp) {
    put(b, TSETH_TIMESTAMP, timestamp.ticks.to_be_bytes());
    b[TSETH_TSR] = if timestamp.tsr { TSR } else { 0 };
    b[TSETH_FTYPE] = FTYPE_VALID;
}

/// Reads RETH: (virtual address, R_Key, DMA length).
#[inline]
pub(crate) fn parse_reth(b: &[u8; RETH_LEN]) -> (u64, u32, u32) {
    (u64_at(b, RETH_VA), u32_at(b, RETH_RKEY), u32_at(b, RETH_DMA_LEN))
}

#[inline]
pub(crate) fn emit_reth(b: &mut [u8; RETH_LEN], va: u64, rkey: u32, dma_len: u32) {
    put(b, RETH_VA, va.to_be_bytes());
    put(b, RETH_RKEY, rkey.to_be_bytes());
    put(b, RETH_DMA_LEN, dma_len.to_be_bytes());
}

#[inline]
pub(crate) fn parse_aeth(b: &[u8; AETH_LEN]) -> Aeth {
    Aeth { syndrome: b[AETH_SYNDROME], msn: u24_at(b, AETH_MSN) }
}

/// The meaning of a syndrome (docs/spec/wire.md, "AETH").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// 0x00-0x1F: ACK. The low bits would be flow-control credits, which MRC does not have.
    Ack,
    /// 0x62: fatal.
    NakRemoteAccess,
    /// 0x63: fatal.
    NakRemoteOperation,
    /// 0x61, 0x65 and every other NAK code: fatal.
    NakInvalidRequest,
    /// RNR, PSN sequence error and the reserved classes: MRC has none of them. The packet is dropped.
    Undefined,
}

impl Aeth {
    /// The meaning of the syndrome.
    #[inline]
    pub const fn meaning(&self) -> Syndrome {
        meaning(self.syndrome)
    }
}

pub(crate) const fn meaning(syndrome: u8) -> Syndrome {
    match syndrome {
        0x00..=0x1F => Syndrome::Ack,
        Aeth::NAK_REMOTE_ACCESS => Syndrome::NakRemoteAccess,
        Aeth::NAK_REMOTE_OPERATIONAL => Syndrome::NakRemoteOperation,
        0x61 | 0x64..=0x7F => Syndrome::NakInvalidRequest,
        0x20..=0x60 | 0x80..=0xFF => Syndrome::Undefined,
    }
}

#[inline]
pub(crate) fn emit_aeth(b: &mut [u8; AETH_LEN], aeth: &Aeth) {
    b[AETH_SYNDROME] = aeth.syndrome;
    put_u24(b, AETH_MSN, aeth.msn);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_up_to_0x1f_are_acks_and_no_others() {
        for syndrome in 0..=255 {
            let aeth = Aeth { syndrome, msn: 0 };
            assert_eq!(aeth.is_ack(), syndrome <= 0x1F, "{syndrome:#x}");
            assert_eq!(aeth.is_ack(), aeth.meaning() == Syndrome::Ack, "{syndrome:#x}");
        }
    }

    #[test]
    fn meth_has_the_layout_of_the_figure() {
        let bytes = [0x00, 0x07, 0x01, 0x02];
        assert_eq!(parse_meth(&bytes), (Msn(7), Msn(0x0102)));
        let mut out = [0xEE; METH_LEN];
        emit_meth(&mut out, Msn(7), Msn(0x0102));
        assert_eq!(out, bytes);
    }

    #[test]
    fn tseth_has_the_layout_of_the_figure() {
        let bytes = [0xBE, 0xEF, 0x80, 0x01];
        let timestamp = Timestamp { ticks: 0xBEEF, tsr: true };
        assert_eq!(parse_tseth(&bytes), timestamp);
        let mut out = [0xEE; TSETH_LEN];
        emit_tseth(&mut out, timestamp);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_timestamp_is_read_whatever_its_resolution_and_ftype() {
        for (tsr, ftype) in [(0x00, 0), (0x00, 2), (0x80, 1), (0xFF, 0xFF)] {
            assert_eq!(
                parse_tseth(&[0x12, 0x34, tsr, ftype]),
                Timestamp { ticks: 0x1234, tsr: tsr & 0x80 != 0 }
            );
        }
    }

    #[test]
    fn reth_has_the_layout_of_the_figure() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0xA0, 0xA1, 0xA2, 0xA3, 0x00, 0x10, 0x00, 0x00];
        assert_eq!(parse_reth(&bytes), (0x0102_0304_0506_0708, 0xA0A1_A2A3, 0x10_0000));
        let mut out = [0xEE; RETH_LEN];
        emit_reth(&mut out, 0x0102_0304_0506_0708, 0xA0A1_A2A3, 0x10_0000);
        assert_eq!(out, bytes);
    }

    #[test]
    fn aeth_has_the_layout_of_the_figure() {
        let bytes = [0x62, 0x01, 0x02, 0x03];
        let aeth = Aeth { syndrome: Aeth::NAK_REMOTE_ACCESS, msn: 0x01_0203 };
        assert_eq!(parse_aeth(&bytes), aeth);
        let mut out = [0xEE; AETH_LEN];
        emit_aeth(&mut out, &aeth);
        assert_eq!(out, bytes);
    }

    #[test]
    fn every_syndrome_has_the_meaning_of_the_table() {
        for syndrome in 0..=255u8 {
            let expected = match syndrome >> 5 {
                0 => Syndrome::Ack,
                3 if syndrome == 0x60 => Syndrome::Undefined,
                3 if syndrome == 0x62 => Syndrome::NakRemoteAccess,
                3 if syndrome == 0x63 => Syndrome::NakRemoteOperation,
                3 => Syndrome::NakInvalidRequest,
                _ => Syndrome::Undefined,
            };
            assert_eq!(parse_aeth(&[syndrome, 0, 0, 0]).meaning(), expected, "syndrome 0x{syndrome:02x}");
        }
    }
}
