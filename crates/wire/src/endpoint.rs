//! Headers between endpoints, outside any queue pair: ERTH and EETH (docs/spec/wire.md, "ERTH").
//!
//! ```text
//! ERTH  0-1   type, nh, r, op(1:0)      2 reserved        3 vendor_info
//!       4-7   port_status_mask          8-11 reserved
//!       12-13 tx_timestamp              14 tsr(7)         15 ftype(3:0)
//! EETH  0-1   type, nh, r, op(3:2), r(1:0)                2-27 reserved
//!       28-29 tx_timestamp              30-35 reserved
//! ```

use crate::bytes::{put, u16_at, u32_at};
use crate::error::DecodeError;
use crate::packet::{Eeth, EndpointOp, Erth, Timestamp};
use crate::rdma::{FTYPE_VALID, TSR};
use crate::reliability::check_type;

/// Length of ERTH.
pub const ERTH_LEN: usize = 16;
const ERTH_OP: usize = 1;
const ERTH_OP_SHIFT: u32 = 0;
const ERTH_VENDOR: usize = 3;
const ERTH_PORTS: usize = 4;
const ERTH_TIMESTAMP: usize = 12;
const ERTH_TSR: usize = 14;
const ERTH_FTYPE: usize = 15;

/// Length of EETH.
pub const EETH_LEN: usize = 36;
const EETH_OP: usize = 1;
const EETH_OP_SHIFT: u32 = 2;
const EETH_TIMESTAMP: usize = 28;

impl EndpointOp {
    /// ERTH.op and EETH.op.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            EndpointOp::PortStatusUpdate => 0,
            EndpointOp::EvProbe => 1,
        }
    }
}

#[inline]
fn parse_op(value: u8, field: &'static str) -> Result<EndpointOp, DecodeError> {
    match value {
        0 => Ok(EndpointOp::PortStatusUpdate),
        1 => Ok(EndpointOp::EvProbe),
        value => Err(DecodeError::ReservedValue { field, value }),
    }
}

#[inline]
pub(crate) fn parse_erth(b: &[u8; ERTH_LEN]) -> Result<Erth, DecodeError> {
    check_type(b, "ERTH.type/nh")?;
    Ok(Erth {
        op: parse_op(b[ERTH_OP] >> ERTH_OP_SHIFT & 3, "ERTH.op")?,
        vendor_info: b[ERTH_VENDOR],
        port_status_mask: u32_at(b, ERTH_PORTS),
        timestamp: Timestamp { ticks: u16_at(b, ERTH_TIMESTAMP), tsr: b[ERTH_TSR] & TSR != 0 },
    })
}

#[inline]
pub(crate) fn emit_erth(b: &mut [u8; ERTH_LEN], erth: &Erth) {
    *b = [0; ERTH_LEN];
    b[ERTH_OP] = erth.op.code() << ERTH_OP_SHIFT;
    b[ERTH_VENDOR] = erth.vendor_info;
    put(b, ERTH_PORTS, erth.port_status_mask.to_be_bytes());
    put(b, ERTH_TIMESTAMP, erth.timestamp.ticks.to_be_bytes());
    b[ERTH_TSR] = if erth.timestamp.tsr { TSR } else { 0 };
    b[ERTH_FTYPE] = FTYPE_VALID;
}

#[inline]
pub(crate) fn parse_eeth(b: &[u8; EETH_LEN]) -> Result<Eeth, DecodeError> {
    check_type(b, "EETH.type/nh")?;
    Ok(Eeth {
        // Not checked: one public tool has the field in bits 5:4.
        op: match b[EETH_OP] >> EETH_OP_SHIFT & 3 {
            0 => EndpointOp::PortStatusUpdate,
            _ => EndpointOp::EvProbe,
        },
        timestamp: u16_at(b, EETH_TIMESTAMP),
    })
}

#[inline]
pub(crate) fn emit_eeth(b: &mut [u8; EETH_LEN], eeth: &Eeth) {
    *b = [0; EETH_LEN];
    b[EETH_OP] = eeth.op.code() << EETH_OP_SHIFT;
    put(b, EETH_TIMESTAMP, eeth.timestamp.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_request_has_the_layout_of_the_figure() {
        #[rustfmt::skip]
        let bytes = [
            0x00, 0x01, 0x00, 0x42, // op 1, vendor_info
            0x00, 0x00, 0x00, 0xFE, // every port but the first is up
            0x00, 0x00, 0x00, 0x00,
            0x12, 0x34, 0x00, 0x01, // timestamp, tsr, ftype
        ];
        let erth = Erth {
            op: EndpointOp::EvProbe,
            vendor_info: 0x42,
            port_status_mask: 0xFE,
            timestamp: Timestamp { ticks: 0x1234, tsr: false },
        };
        assert_eq!(parse_erth(&bytes), Ok(erth));
        let mut out = [0xEE; ERTH_LEN];
        emit_erth(&mut out, &erth);
        assert_eq!(out, bytes);
    }

    #[test]
    fn an_endpoint_response_has_the_layout_of_the_figure() {
        let mut bytes = [0; EETH_LEN];
        bytes[1] = 0x04; // op 1 in bits 3:2
        bytes[28] = 0x12;
        bytes[29] = 0x34;
        let eeth = Eeth { op: EndpointOp::EvProbe, timestamp: 0x1234 };
        assert_eq!(parse_eeth(&bytes), Ok(eeth));
        let mut out = [0xEE; EETH_LEN];
        emit_eeth(&mut out, &eeth);
        assert_eq!(out, bytes);
    }

    #[test]
    fn a_response_is_read_whatever_its_operation() {
        let mut bytes = [0; EETH_LEN];
        bytes[28..30].copy_from_slice(&[0x12, 0x34]);
        for op in 0..=0x7F {
            bytes[1] = op;
            assert_eq!(parse_eeth(&bytes).map(|eeth| eeth.timestamp), Ok(0x1234), "byte 1 is 0x{op:02x}");
        }
    }

    #[test]
    fn an_undefined_operation_is_refused() {
        let mut request = [0; ERTH_LEN];
        request[1] = 2;
        assert_eq!(parse_erth(&request), Err(DecodeError::ReservedValue { field: "ERTH.op", value: 2 }));
    }
}
