//! Segment routing header (RFC 8754, section 2; RFC 9800). MRC writes one compressed segment, the second half of a
//! 256-bit path. The first half is the outer destination address, which a reduced SRH does not repeat (RFC 8754,
//! section 4.1.1). A reader skips longer lists and TLVs, which other encapsulations write.
//!
//! ```text
//! 0 next header    1 length in 8 bytes beyond the first 8    2 routing type = 4    3 segments left
//! 4 last entry     5 flags    6-7 tag    8- segments, the path's last one first    then TLVs
//! ```

use core::net::Ipv6Addr;

use crate::bytes::{put, u16_at};
use crate::error::DecodeError;

/// Length of an SRH with one segment.
pub const LEN: usize = 24;
/// Length of the part before the segments.
const FIXED_LEN: usize = 8;
const SEGMENT_LEN: usize = 16;
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

/// A segment routing header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Srh {
    /// Protocol of what follows.
    pub next_header: u8,
    /// Segments that have not become the destination yet. It is 0 at the end of the path.
    pub segments_left: u8,
    /// How many segments the list has. [`Srh::emit`] writes one.
    pub segments: u8,
    /// Flags; none is defined.
    pub flags: u8,
    /// Tag.
    pub tag: u16,
    /// The last segment of the path: another list of uSIDs.
    pub segment: Ipv6Addr,
}

impl Srh {
    /// Reads a header, and returns what follows it and its TLVs.
    ///
    /// # Errors
    /// [`DecodeError::BadSrh`] for another routing type or a list longer than the header, and
    /// [`DecodeError::TooShort`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let short = |needed| DecodeError::TooShort { what: "SRH", needed, have: bytes.len() };
        let b: &[u8; FIXED_LEN] = bytes.first_chunk().ok_or_else(|| short(LEN))?;
        if b[ROUTING_TYPE] != ROUTING_TYPE_SRH {
            return Err(DecodeError::BadSrh("routing type is not 4"));
        }
        let len = FIXED_LEN + 8 * usize::from(b[EXT_LEN]);
        let segments = usize::from(b[LAST_ENTRY]) + 1;
        if FIXED_LEN + SEGMENT_LEN * segments > len {
            return Err(DecodeError::BadSrh("the segments are longer than the header"));
        }
        // A reduced SRH lacks the path's first segment, so that there may be as many left as it lists.
        if usize::from(b[SEGMENTS_LEFT]) > segments {
            return Err(DecodeError::BadSrh("more segments left than there are"));
        }
        let rest = bytes.get(len..).ok_or_else(|| short(len))?;
        let segment: [u8; SEGMENT_LEN] = *bytes[SEGMENT..].first_chunk().ok_or_else(|| short(LEN))?;
        let srh = Srh {
            next_header: b[NEXT_HEADER],
            segments_left: b[SEGMENTS_LEFT],
            // The length field limits a list to 127 segments.
            segments: segments as u8,
            flags: b[FLAGS],
            tag: u16_at(b, TAG),
            segment: Ipv6Addr::from(segment),
        };
        Ok((srh, rest))
    }

    /// Writes a header with one segment.
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
            segments: 1,
            flags: 0,
            tag: 0x1234,
            segment: "5f00:0:12:e00c::".parse().unwrap(),
        };
        assert_eq!(Srh::parse(&bytes), Ok((srh, &[][..])));
        let mut out = [0xEE; LEN];
        srh.emit(&mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn other_routing_headers_are_refused() {
        let good = [41, 2, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (at, value) in
            [(EXT_LEN, 0), (EXT_LEN, 1), (ROUTING_TYPE, 0), (SEGMENTS_LEFT, 2), (LAST_ENTRY, 1)]
        {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Srh::parse(&bytes).unwrap_err().counter(), "rx_bad_srh");
        }
        let mut longer = good;
        longer[EXT_LEN] = 4;
        assert_eq!(Srh::parse(&longer).unwrap_err().counter(), "rx_short");
        for end in 0..LEN {
            assert_eq!(Srh::parse(&good[..end]).unwrap_err().counter(), "rx_short", "{end} bytes");
        }
        assert!(Srh::parse(&good).is_ok());
    }

    #[test]
    fn longer_lists_and_tlvs_are_skipped() {
        // Linux's encapsulation with two segments, then a padding TLV of eight bytes (RFC 8754, section 2.1.1).
        let mut bytes = vec![41, 5, 4, 0, 1, 0, 0, 0];
        bytes.extend("5f00:0:12:e00c::".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend("5f00:0:11:102::".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend([4, 6, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0x60, 1, 2]);
        let (srh, rest) = Srh::parse(&bytes).unwrap();
        assert_eq!((srh.segments, srh.segments_left, srh.next_header), (2, 0, 41));
        assert_eq!(srh.segment, "5f00:0:12:e00c::".parse::<Ipv6Addr>().unwrap());
        assert_eq!(rest, [0x60, 1, 2]);
    }
}
