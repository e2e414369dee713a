//! Headers of the reliability layer: SETH with CC_STATE, NETH, PETH (docs/spec/wire.md, "SETH").
//!
//! ```text
//! SETH      0-1   type(15:12)=0 nh(11:7)=0 m(6:5) r(4:2) pr(1) r(0)
//!           2-3   ack_psn_offset, or probe_id when pr = 1
//!           4-7   entropy             8-9   spdcid           10-11 dpdcid
//!           12    reserved            13-15 cack_psn
//!           16    cc_type(7:4)=0 cc_flags(3:0)               17    mpr
//!           18-19 sack_offset         20-27 sack_bitmap
//! CC_STATE  28-29 tx_timestamp        30-31 r(15) ooo_count(14:0)
//!           32    r_c(7) rcv_cwnd_pen(6:0)                   33-35 rcvd_bytes
//!
//! NETH      0-1   type, nh, r = 0     2     reason           3     vendor_info
//!           4-7   entropy             8-9   spdcid           10-11 dpdcid
//!           12    reserved            13-15 nack_psn
//!           16    cc_type(7:4)=2 cc_flags(3:0)               17    reserved
//!           18-19 tx_timestamp
//!
//! PETH      0-1   type, nh, r = 0     2     reserved         3     vendor_info
//!           4-5   probe_id            6-7   reserved         8-9   spdcid   10-11 dpdcid
//!           12-13 tx_timestamp        14    tsr(7)           15    ftype(3:0)
//! ```

use crate::bytes::{put, put_u24, u16_at, u24_at, u32_at, u64_at};
use crate::error::DecodeError;
use crate::packet::{CcState, Ev, Mark, Nack, NackReason, Probe, Sack, Timestamp};
use crate::rdma::{FTYPE_VALID, TSR};
use crate::seq::Psn;

/// Length of SETH and CC_STATE, which always come together.
pub const SACK_LEN: usize = 36;
/// Length of NETH.
pub const NACK_LEN: usize = 20;
/// Length of PETH.
pub const PROBE_LEN: usize = 16;

// The first two bytes, the same in SETH, NETH, PETH, ERTH and EETH.
const TYPE: usize = 0;
const NH: usize = 0;
// The same in SETH and NETH.
const ENTROPY: usize = 4;
const SPDCID: usize = 8;
const DPDCID: usize = 10;
const PSN: usize = 13;
const CC: usize = 16;

const SETH_M: usize = 1;
const SETH_PR: usize = 1;
const SETH_ACK_PSN_OFFSET: usize = 2;
const SETH_MPR: usize = 17;
const SETH_SACK_OFFSET: usize = 18;
const SETH_BITMAP: usize = 20;
const CC_TIMESTAMP: usize = 28;
const CC_OOO_COUNT: usize = 30;
const CC_PENALTY: usize = 32;
const CC_RCVD_BYTES: usize = 33;

const NETH_REASON: usize = 2;
const NETH_VENDOR: usize = 3;
const NETH_TIMESTAMP: usize = 18;

const PETH_VENDOR: usize = 3;
const PETH_PROBE_ID: usize = 4;
const PETH_SPDCID: usize = 8;
const PETH_DPDCID: usize = 10;
const PETH_TIMESTAMP: usize = 12;
const PETH_TSR: usize = 14;
const PETH_FTYPE: usize = 15;

const M_SHIFT: u32 = 5;
const PR: u8 = 1 << 1;
const RESTORE_CWND: u8 = 1 << 7;
const OOO_COUNT: u16 = 0x7FFF;
/// cc_type of a NACK. It is not checked: Keysight's template has 0.
pub(crate) const CC_TYPE_NACK: u8 = 0x2;

/// Checks type(15:12) and nh(11:7), both zero in every header defined so far.
#[inline]
pub(crate) fn check_type<const N: usize>(b: &[u8; N], field: &'static str) -> Result<(), DecodeError> {
    // nh spans the low four bits of byte 0 and the top bit of byte 1.
    let type_and_nh = b[TYPE] | b[NH + 1] & 0x80;
    if type_and_nh != 0 {
        return Err(DecodeError::BadHeaderType { field, value: type_and_nh, expected: 0 });
    }
    Ok(())
}

impl Sack {
    /// cc_type of CC_STATE as described here: NSCC.
    pub const CC_TYPE: u8 = 0x0;
}

#[inline]
pub(crate) fn parse_sack(b: &[u8; SACK_LEN]) -> Result<Sack, DecodeError> {
    check_type(b, "SETH.type/nh")?;
    let mark = match b[SETH_M] >> M_SHIFT & 3 {
        1 => Mark::SkipOnce,
        2 => Mark::AlwaysSkip,
        // 3 is reserved.
        _ => Mark::None,
    };
    Ok(Sack {
        mark,
        probe_reply: b[SETH_PR] & PR != 0,
        ack_psn_offset: u16_at(b, SETH_ACK_PSN_OFFSET) as i16,
        entropy: Ev(u32_at(b, ENTROPY)),
        spdcid: u16_at(b, SPDCID),
        dpdcid: u16_at(b, DPDCID),
        cack_psn: Psn::new(u24_at(b, PSN)),
        cc_type: b[CC] >> 4,
        cc_flags: b[CC] & 0x0F,
        mpr: b[SETH_MPR],
        sack_offset: u16_at(b, SETH_SACK_OFFSET) as i16,
        bitmap: u64_at(b, SETH_BITMAP),
        cc: CcState {
            timestamp: u16_at(b, CC_TIMESTAMP),
            ooo_count: u16_at(b, CC_OOO_COUNT) & OOO_COUNT,
            restore_cwnd: b[CC_PENALTY] & RESTORE_CWND != 0,
            rcv_cwnd_pen: b[CC_PENALTY] & !RESTORE_CWND,
            rcvd_bytes: u24_at(b, CC_RCVD_BYTES),
        },
    })
}

#[inline]
pub(crate) fn emit_sack(b: &mut [u8; SACK_LEN], sack: &Sack) {
    let mark: u8 = match sack.mark {
        Mark::None => 0,
        Mark::SkipOnce => 1,
        Mark::AlwaysSkip => 2,
    };
    b[TYPE] = 0;
    b[SETH_M] = mark << M_SHIFT | if sack.probe_reply { PR } else { 0 };
    put(b, SETH_ACK_PSN_OFFSET, sack.ack_psn_offset.to_be_bytes());
    put(b, ENTROPY, sack.entropy.0.to_be_bytes());
    put(b, SPDCID, sack.spdcid.to_be_bytes());
    put(b, DPDCID, sack.dpdcid.to_be_bytes());
    b[PSN - 1] = 0;
    put_u24(b, PSN, sack.cack_psn.get());
    b[CC] = sack.cc_type << 4 | sack.cc_flags & 0x0F;
    b[SETH_MPR] = sack.mpr;
    put(b, SETH_SACK_OFFSET, sack.sack_offset.to_be_bytes());
    put(b, SETH_BITMAP, sack.bitmap.to_be_bytes());
    put(b, CC_TIMESTAMP, sack.cc.timestamp.to_be_bytes());
    put(b, CC_OOO_COUNT, (sack.cc.ooo_count & OOO_COUNT).to_be_bytes());
    b[CC_PENALTY] =
        sack.cc.rcv_cwnd_pen & !RESTORE_CWND | if sack.cc.restore_cwnd { RESTORE_CWND } else { 0 };
    put_u24(b, CC_RCVD_BYTES, sack.cc.rcvd_bytes);
}

impl NackReason {
    /// NETH.reason.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            NackReason::Trimmed => 0x01,
            NackReason::TrimmedLastHop => 0x02,
            NackReason::NoBitmap => 0x06,
            NackReason::NoPktBuffer => 0x07,
            NackReason::NoResource => 0x0A,
            NackReason::PsnOorWindow => 0x0B,
            NackReason::UnexpectedEvent => 0x19,
        }
    }

    /// The reason with this code; `None` if it is not defined.
    #[inline]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0x01 => NackReason::Trimmed,
            0x02 => NackReason::TrimmedLastHop,
            0x06 => NackReason::NoBitmap,
            0x07 => NackReason::NoPktBuffer,
            0x0A => NackReason::NoResource,
            0x0B => NackReason::PsnOorWindow,
            0x19 => NackReason::UnexpectedEvent,
            _ => return None,
        })
    }
}

#[inline]
pub(crate) fn parse_nack(b: &[u8; NACK_LEN]) -> Result<Nack, DecodeError> {
    check_type(b, "NETH.type/nh")?;
    Ok(Nack {
        // \[choice\]: an unknown reason refuses the packet, and tells nothing about its path.
        reason: NackReason::from_code(b[NETH_REASON]).unwrap_or(NackReason::NoResource),
        vendor_info: b[NETH_VENDOR],
        entropy: Ev(u32_at(b, ENTROPY)),
        spdcid: u16_at(b, SPDCID),
        dpdcid: u16_at(b, DPDCID),
        nack_psn: Psn::new(u24_at(b, PSN)),
        cc_flags: b[CC] & 0x0F,
        timestamp: u16_at(b, NETH_TIMESTAMP),
    })
}

#[inline]
pub(crate) fn emit_nack(b: &mut [u8; NACK_LEN], nack: &Nack) {
    *b = [0; NACK_LEN];
    b[NETH_REASON] = nack.reason.code();
    b[NETH_VENDOR] = nack.vendor_info;
    put(b, ENTROPY, nack.entropy.0.to_be_bytes());
    put(b, SPDCID, nack.spdcid.to_be_bytes());
    put(b, DPDCID, nack.dpdcid.to_be_bytes());
    put_u24(b, PSN, nack.nack_psn.get());
    b[CC] = CC_TYPE_NACK << 4 | nack.cc_flags & 0x0F;
    put(b, NETH_TIMESTAMP, nack.timestamp.to_be_bytes());
}

// The timestamp format of PETH and ERTH is sent but not checked, as the receiver only reflects the value.
#[inline]
pub(crate) fn parse_probe(b: &[u8; PROBE_LEN]) -> Result<Probe, DecodeError> {
    check_type(b, "PETH.type/nh")?;
    Ok(Probe {
        vendor_info: b[PETH_VENDOR],
        probe_id: u16_at(b, PETH_PROBE_ID),
        spdcid: u16_at(b, PETH_SPDCID),
        dpdcid: u16_at(b, PETH_DPDCID),
        timestamp: Timestamp { ticks: u16_at(b, PETH_TIMESTAMP), tsr: b[PETH_TSR] & TSR != 0 },
    })
}

#[inline]
pub(crate) fn emit_probe(b: &mut [u8; PROBE_LEN], probe: &Probe) {
    *b = [0; PROBE_LEN];
    b[PETH_VENDOR] = probe.vendor_info;
    put(b, PETH_PROBE_ID, probe.probe_id.to_be_bytes());
    put(b, PETH_SPDCID, probe.spdcid.to_be_bytes());
    put(b, PETH_DPDCID, probe.dpdcid.to_be_bytes());
    put(b, PETH_TIMESTAMP, probe.timestamp.ticks.to_be_bytes());
    b[PETH_TSR] = if probe.timestamp.tsr { TSR } else { 0 };
    b[PETH_FTYPE] = FTYPE_VALID;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sack_has_the_layout_of_the_figure() {
        #[rustfmt::skip]
        let bytes = [
            0x00, 0x22,             // m = 1, pr = 1
            0xFF, 0xFE,             // ack_psn_offset -2
            0xDE, 0xAD, 0xBE, 0xEF, // entropy
            0x11, 0x22, 0x33, 0x44, // spdcid, dpdcid
            0x00, 0x0A, 0x0B, 0x0C, // cack_psn
            0x05, 0x08,             // cc_flags 5, mpr 8
            0x00, 0x03,             // sack_offset
            0x80, 0, 0, 0, 0, 0, 0, 0x01, // bitmap: bit 63 and bit 0
            0x12, 0x34,             // timestamp
            0x7F, 0xFF,             // ooo_count
            0x81,                   // r_c, penalty 1
            0x01, 0x00, 0x02,       // rcvd_bytes
        ];
        let sack = Sack {
            mark: Mark::SkipOnce,
            probe_reply: true,
            ack_psn_offset: -2,
            entropy: Ev(0xDEAD_BEEF),
            spdcid: 0x1122,
            dpdcid: 0x3344,
            cack_psn: Psn::new(0x0A_0B0C),
            cc_type: 0,
            cc_flags: 5,
            mpr: 8,
            sack_offset: 3,
            bitmap: 1 << 63 | 1,
            cc: CcState {
                timestamp: 0x1234,
                ooo_count: 0x7FFF,
                restore_cwnd: true,
                rcv_cwnd_pen: 1,
                rcvd_bytes: 0x01_0002,
            },
        };
        assert_eq!(parse_sack(&bytes), Ok(sack));
        let mut out = [0xEE; SACK_LEN];
        emit_sack(&mut out, &sack);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_nack_has_the_layout_of_the_figure() {
        #[rustfmt::skip]
        let bytes = [
            0x00, 0x00, 0x02, 0x77, // TRIMMED_LASTHOP, vendor_info
            0x00, 0x00, 0xC0, 0x01, // entropy
            0x11, 0x22, 0x33, 0x44, // spdcid, dpdcid
            0x00, 0xFF, 0xFF, 0xFF, // nack_psn
            0x23, 0x00,             // cc_type 2, cc_flags 3
            0xAB, 0xCD,             // timestamp
        ];
        let nack = Nack {
            reason: NackReason::TrimmedLastHop,
            vendor_info: 0x77,
            entropy: Ev(0xC001),
            spdcid: 0x1122,
            dpdcid: 0x3344,
            nack_psn: Psn::new(0xFF_FFFF),
            cc_flags: 3,
            timestamp: 0xABCD,
        };
        assert_eq!(parse_nack(&bytes), Ok(nack));
        let mut out = [0xEE; NACK_LEN];
        emit_nack(&mut out, &nack);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_probe_has_the_layout_of_the_figure() {
        #[rustfmt::skip]
        let bytes = [
            0x00, 0x00, 0x00, 0x55,
            0x01, 0x02, 0x00, 0x00, // probe_id
            0x11, 0x22, 0x33, 0x44, // spdcid, dpdcid
            0x99, 0x88, 0x80, 0x01, // timestamp, tsr, ftype
        ];
        let probe = Probe {
            vendor_info: 0x55,
            probe_id: 0x0102,
            spdcid: 0x1122,
            dpdcid: 0x3344,
            timestamp: Timestamp { ticks: 0x9988, tsr: true },
        };
        assert_eq!(parse_probe(&bytes), Ok(probe));
        let mut out = [0xEE; PROBE_LEN];
        emit_probe(&mut out, &probe);
        assert_eq!(out, bytes);
    }

    #[test]
    fn another_header_type_is_refused() {
        let mut sack = [0; SACK_LEN];
        sack[SETH_M] = 0x80; // lowest bit of nh
        assert_eq!(parse_sack(&sack).unwrap_err().counter(), "rx_bad_header_type");
    }

    #[test]
    fn a_reserved_mark_is_none() {
        let mut sack = [0; SACK_LEN];
        sack[SETH_M] = 3 << M_SHIFT;
        assert_eq!(parse_sack(&sack).map(|sack| sack.mark), Ok(Mark::None));
    }

    #[test]
    fn a_sack_with_another_cc_type_keeps_its_reliability_part() {
        let mut bytes = [0; SACK_LEN];
        bytes[PSN + 2] = 9;
        bytes[CC] = 0x31;
        let sack = parse_sack(&bytes).unwrap();
        assert_eq!((sack.cc_type, sack.cc_flags, sack.cack_psn), (3, 1, Psn::new(9)));
        let mut out = [0xEE; SACK_LEN];
        emit_sack(&mut out, &sack);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_nack_is_read_whatever_its_cc_type_and_vendor_info() {
        // The defaults of Keysight's template.
        let mut bytes = [0; NACK_LEN];
        (bytes[NETH_REASON], bytes[NETH_VENDOR]) = (1, 0xFF);
        for cc in [0x00, 0x2F, 0xFF] {
            bytes[CC] = cc;
            let nack = parse_nack(&bytes).unwrap();
            assert_eq!(
                (nack.reason, nack.vendor_info, nack.cc_flags),
                (NackReason::Trimmed, 0xFF, cc & 0x0F)
            );
        }
    }

    #[test]
    fn a_nack_of_unknown_reason_is_no_resource() {
        let mut bytes = [0; NACK_LEN];
        for code in (0..=255).filter(|&code| NackReason::from_code(code).is_none()) {
            bytes[NETH_REASON] = code;
            assert_eq!(parse_nack(&bytes).map(|nack| nack.reason), Ok(NackReason::NoResource));
        }
    }

    #[test]
    fn a_sack_without_dynamic_mpr_is_accepted() {
        let bytes = [0; SACK_LEN];
        assert_eq!(parse_sack(&bytes).map(|sack| sack.mpr), Ok(0));
    }

    #[test]
    fn the_bitmap_counts_from_the_last_bit_of_its_last_byte() {
        let mut bytes = [0; SACK_LEN];
        for bit in 0..64 {
            bytes[SETH_BITMAP..SETH_BITMAP + 8].fill(0);
            bytes[SETH_BITMAP + 7 - bit / 8] = 1 << (bit % 8);
            assert_eq!(parse_sack(&bytes).map(|sack| sack.bitmap), Ok(1 << bit));
        }
    }

    #[test]
    fn every_nack_reason_has_one_code() {
        let defined: Vec<u8> = (0..=255).filter(|&code| NackReason::from_code(code).is_some()).collect();
        assert_eq!(defined, [0x01, 0x02, 0x06, 0x07, 0x0A, 0x0B, 0x19]);
        for code in defined {
            assert_eq!(NackReason::from_code(code).map(NackReason::code), Some(code));
        }
    }
}
