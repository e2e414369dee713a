//! Base transport header, 12 bytes, and the opcodes (docs/spec/wire.md, "BTH" and Tables 6-3 .. 7-22).
//!
//! ```text
//! 0      opcode
//! 1      M(7) SE(6) PadCnt(5:4) TVer(3:0)         (RoCEv2: SE(7) M(6))
//! 2-3    P_Key
//! 4      variant (masked in the iCRC; RoCEv2: FECN(7) BECN(6))
//! 5-7    destination QP number
//! 8      A(7) R(6) RTX(5) TS(4) reserved(3:0)
//! 9-11   PSN
//! ```

use crate::bytes::{put, put_u24, u16_at, u24_at};
use crate::packet::Position;

/// Length of a BTH in bytes.
pub const LEN: usize = 12;

/// Offset of the byte that the iCRC counts as all ones.
pub const VARIANT: usize = 4;

const OPCODE: usize = 0;
const FLAGS: usize = 1;
const PKEY: usize = 2;
const DEST_QP: usize = 5;
const INVARIANT: usize = 8;
const PSN: usize = 9;

/// SE and M in byte 1 of an MRC packet \[choice\]: Keysight's templates and two more readings have M first.
const MRC_SE_M: (u8, u8) = (1 << 6, 1 << 7);
/// SE and M in byte 1 of a RoCEv2 packet (IBTA).
const IBTA_SE_M: (u8, u8) = (1 << 7, 1 << 6);
const PAD_SHIFT: u32 = 4;
const TVER: u8 = 0x0F;

const A: u8 = 1 << 7;
const RTX: u8 = 1 << 5;
const TS: u8 = 1 << 4;

/// The reserved QP number of Endpoint Requests and Responses.
pub const ENDPOINT_QP: u32 = 0x00_0002;

/// Opcode numbers. The low four bits of a WRITE are the IBTA's 6..11 in both families.
pub mod opcode {
    /// MRC RDMA WRITE First; Middle, Last, Last with Immediate, Only, Only with Immediate follow.
    pub const WRITE_FIRST: u8 = 0xC6;
    /// MRC RDMA WRITE Only with Immediate.
    pub const WRITE_ONLY_IMM: u8 = 0xCB;
    /// MRC RDMA transport ACK or NAK.
    pub const ACK: u8 = 0xD1;
    /// MRC Endpoint Request.
    pub const ENDPOINT_REQUEST: u8 = 0xD8;
    /// MRC Endpoint Response.
    pub const ENDPOINT_RESPONSE: u8 = 0xD9;
    /// MRC Reliability SACK.
    pub const SACK: u8 = 0xDC;
    /// MRC Reliability NACK.
    pub const NACK: u8 = 0xDD;
    /// MRC Reliability Probe Request.
    pub const PROBE: u8 = 0xDE;
    /// RoCEv2 RC RDMA WRITE First; the others follow as in MRC.
    pub const RC_WRITE_FIRST: u8 = 0x06;
    /// RoCEv2 RC RDMA WRITE Only with Immediate.
    pub const RC_WRITE_ONLY_IMM: u8 = 0x0B;
    /// RoCEv2 RC Acknowledge.
    pub const RC_ACK: u8 = 0x11;
    /// RoCEv2 congestion notification packet.
    pub const CNP: u8 = 0x81;
}

/// Whether an opcode belongs to MRC: bits 7:5 are 110, which the IBTA leaves to manufacturers.
#[inline]
pub const fn is_mrc(opcode: u8) -> bool {
    opcode >> 5 == 0b110
}

const fn se_and_m(opcode: u8) -> (u8, u8) {
    if is_mrc(opcode) { MRC_SE_M } else { IBTA_SE_M }
}

/// Distance of a WRITE's opcode from the First of its family. An immediate counts only on Last and Only.
#[inline]
pub(crate) const fn write_index(position: Position, imm: bool) -> u8 {
    match (position, imm) {
        (Position::First, _) => 0,
        (Position::Middle, _) => 1,
        (Position::Last, false) => 2,
        (Position::Last, true) => 3,
        (Position::Only, false) => 4,
        (Position::Only, true) => 5,
    }
}

/// The inverse of [`write_index`], for 0..=5.
#[inline]
pub(crate) const fn write_position(index: u8) -> (Position, bool) {
    match index {
        0 => (Position::First, false),
        1 => (Position::Middle, false),
        2 => (Position::Last, false),
        3 => (Position::Last, true),
        4 => (Position::Only, false),
        _ => (Position::Only, true),
    }
}

/// The fields of a BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// See [`opcode`].
    pub opcode: u8,
    /// SE: solicited event.
    pub solicited: bool,
    /// M: migration state.
    pub migrated: bool,
    /// PadCnt, 2 bits.
    pub pad: u8,
    /// TVer, 4 bits; 0.
    pub tver: u8,
    /// P_Key.
    pub pkey: u16,
    /// Byte 4.
    pub variant: u8,
    /// Destination QP number, 24 bits.
    pub dest_qp: u32,
    /// A: the sender requests feedback.
    pub ack_req: bool,
    /// RTX: this is a retransmission (MRC).
    pub rtx: bool,
    /// TS: TSETH follows (MRC).
    pub ts: bool,
    /// PSN, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Reads a BTH. It accepts every value of every field; the caller checks them.
    #[inline]
    pub const fn parse(b: &[u8; LEN]) -> Self {
        let (se, m) = se_and_m(b[OPCODE]);
        Bth {
            opcode: b[OPCODE],
            solicited: b[FLAGS] & se != 0,
            migrated: b[FLAGS] & m != 0,
            pad: b[FLAGS] >> PAD_SHIFT & 3,
            tver: b[FLAGS] & TVER,
            pkey: u16_at(b, PKEY),
            variant: b[VARIANT],
            dest_qp: u24_at(b, DEST_QP),
            ack_req: b[INVARIANT] & A != 0,
            rtx: b[INVARIANT] & RTX != 0,
            ts: b[INVARIANT] & TS != 0,
            psn: u24_at(b, PSN),
        }
    }

    /// Writes the BTH. Values wider than their field lose their high bits.
    #[inline]
    pub fn emit(&self, b: &mut [u8; LEN]) {
        let (se, m) = se_and_m(self.opcode);
        b[OPCODE] = self.opcode;
        b[FLAGS] = flag(self.solicited, se)
            | flag(self.migrated, m)
            | (self.pad & 3) << PAD_SHIFT
            | self.tver & TVER;
        put(b, PKEY, self.pkey.to_be_bytes());
        b[VARIANT] = self.variant;
        put_u24(b, DEST_QP, self.dest_qp);
        b[INVARIANT] = flag(self.ack_req, A) | flag(self.rtx, RTX) | flag(self.ts, TS);
        put_u24(b, PSN, self.psn);
    }
}

#[inline(always)]
const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bth_has_the_layout_of_the_figure() {
        let bytes = [0xCA, 0x70, 0x12, 0x34, 0x40, 0xAB, 0xCD, 0xEF, 0xB0, 0x01, 0x02, 0x03];
        let bth = Bth {
            opcode: 0xCA,
            solicited: true,
            migrated: false,
            pad: 3,
            tver: 0,
            pkey: 0x1234,
            variant: 0x40,
            dest_qp: 0xAB_CDEF,
            ack_req: true,
            rtx: true,
            ts: true,
            psn: 0x01_0203,
        };
        assert_eq!(Bth::parse(&bytes), bth);
        let mut out = [0; LEN];
        bth.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_rocev2_bth_has_the_bits_of_the_ibta() {
        let bytes = [0x0A, 0x80, 0xFF, 0xFF, 0, 0, 0, 2, 0, 0, 0, 7];
        let bth = Bth::parse(&bytes);
        assert!(bth.solicited && !bth.migrated);
        let mut out = [0; LEN];
        bth.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn every_opcode_of_mrc_is_in_the_range_of_manufacturers() {
        for code in opcode::WRITE_FIRST..=opcode::WRITE_ONLY_IMM {
            assert!(is_mrc(code));
        }
        for code in [
            opcode::ACK,
            opcode::ENDPOINT_REQUEST,
            opcode::ENDPOINT_RESPONSE,
            opcode::SACK,
            opcode::NACK,
            opcode::PROBE,
        ] {
            assert!(is_mrc(code));
        }
        for code in [opcode::RC_WRITE_FIRST, opcode::RC_WRITE_ONLY_IMM, opcode::RC_ACK, opcode::CNP, 0xE0] {
            assert!(!is_mrc(code));
        }
    }

    #[test]
    fn reserved_bits_are_sent_as_zero_and_ignored_when_received() {
        let mut bytes = [0xFF; LEN];
        let bth = Bth::parse(&bytes);
        bth.emit(&mut bytes);
        assert_eq!(bytes[INVARIANT], 0b1011_0000);
    }
}
