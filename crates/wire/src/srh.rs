//! Segment routing header with one compressed segment (RFC 8754, section 2; RFC 9800): the second half of a 256-bit
//! path. The first half is the outer destination address, which a reduced SRH does not repeat (RFC 8754, section
//! 4.1.1).
//!
//! ```text
//! 0 next header    1 length in 8 bytes beyond the first 8 = 2    2 routing type = 4    3 segments left
//! 4 last entry = 0 5 flags    6-7 tag    8-23 segment
//! ```

use core::net::Ipv6Addr;

use crate::bytes::{put, u16_at};
use crate::error::DecodeError;

/// Length of an SRH with one segment.
pub const LEN: usize = 24;
const NEXT_HEADER: usize = 0;
const EXT_LEN: usize = 1;
const ROUTING_TYPE: usize = 2;
const SEGMENTS_LEFT: usize = 3;
const LAST_ENTRY: usize = 4;
const FLAGS: usize = 5;
const TAG: usize = 6;
const SEGMENT: usize = 8;

const ROUTING_TYPE_SRH: u8 = 4;
const EXT_LEN_ONE_SEGMENT: u8 = 2;

/// A segment routing header with one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Srh {
    /// Protocol of what follows.
    pub next_header: u8,
    /// 1 until the segment has become the destination, then 0.
    pub segments_left: u8,
    /// Flags; none is defined.
    pub flags: u8,
    /// Tag.
    pub tag: u16,
    /// The segment: another list of uSIDs.
    pub segment: Ipv6Addr,
}

impl Srh {
    /// Reads a header.
    ///
    /// # Errors
    /// [`DecodeError::BadSrh`] for another routing type, more segments than one, or TLVs.
    pub fn parse(b: &[u8; LEN]) -> Result<Self, DecodeError> {
        if b[ROUTING_TYPE] != ROUTING_TYPE_SRH {
            return Err(DecodeError::BadSrh("routing type is not 4"));
        }
        if b[EXT_LEN] != EXT_LEN_ONE_SEGMENT || b[LAST_ENTRY] != 0 {
            return Err(DecodeError::BadSrh("not exactly one segment"));
        }
        if b[SEGMENTS_LEFT] > 1 {
            return Err(DecodeError::BadSrh("more segments left than there are"));
        }
        let mut segment = [0; 16];
        segment.copy_from_slice(&b[SEGMENT..]);
        Ok(Srh {
            next_header: b[NEXT_HEADER],
            segments_left: b[SEGMENTS_LEFT],
            flags: b[FLAGS],
            tag: u16_at(b, TAG),
            segment: Ipv6Addr::from(segment),
        })
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; LEN]) {
        b[NEXT_HEADER] = self.next_header;
        b[EXT_LEN] = EXT_LEN_ONE_SEGMENT;
        b[ROUTING_TYPE] = ROUTING_TYPE_SRH;
        b[SEGMENTS_LEFT] = self.segments_left;
        b[LAST_ENTRY] = 0;
        b[FLAGS] = self.flags;
        put(b, TAG, self.tag.to_be_bytes());
        put(b, SEGMENT, self.segment.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_srh_has_the_layout_of_the_rfc() {
        #[rustfmt::skip]
        let bytes = [
            41, 2, 4, 1, 0, 0, 0x12, 0x34,
            0x5F, 0, 0, 0, 0, 0x12, 0xE0, 0x0C, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let srh = Srh {
            next_header: 41,
            segments_left: 1,
            flags: 0,
            tag: 0x1234,
            segment: "5f00:0:12:e00c::".parse().unwrap(),
        };
        assert_eq!(Srh::parse(&bytes), Ok(srh));
        let mut out = [0xEE; LEN];
        srh.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn other_routing_headers_are_refused() {
        let good = [41, 2, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (at, value) in
            [(EXT_LEN, 4), (EXT_LEN, 1), (ROUTING_TYPE, 0), (SEGMENTS_LEFT, 2), (LAST_ENTRY, 1)]
        {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Srh::parse(&bytes).unwrap_err().counter(), "rx_bad_srh");
        }
        assert!(Srh::parse(&good).is_ok());
    }
}
