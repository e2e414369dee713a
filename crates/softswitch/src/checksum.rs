//! Checksums that the sending kernel left to its interface (RFC 1071). A packet socket receives such frames from a veth
//! before any hardware could complete them, so the switch does.

use openmrc_wire::ip;

/// Sums the frame from `start` to its end and stores the checksum at `start + offset`. That field already holds the sum
/// of the pseudo-header. A field outside the frame is left alone.
pub fn finish_checksum(frame: &mut [u8], start: usize, offset: usize) {
    if start + offset + 2 > frame.len() {
        return;
    }
    let sum = ip::fold(ip::sum(&frame[start..]));
    // In UDP a checksum of zero means "none"; all ones is the same number.
    let checksum = if sum == 0xFFFF { 0xFFFF } else { !sum };
    frame[start + offset..start + offset + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_checksum_makes_the_sum_all_ones() {
        // An odd length, and the seed of the pseudo-header in the field.
        let mut frame = [0xAA, 0xBB, 1, 2, 3, 4, 0x12, 0x34, 9, 8, 7];
        finish_checksum(&mut frame, 2, 4);
        let sum = |bytes: &[u8]| -> u32 {
            let total: u32 = bytes
                .chunks(2)
                .map(|p| u32::from(p[0]) << 8 | u32::from(p.get(1).copied().unwrap_or(0)))
                .sum();
            (total & 0xFFFF) + (total >> 16)
        };
        // The sum with the seed in place of the checksum: 0x0102 + 0x0304 + 0x0908 + 0x0700 and the seed.
        let expected = !(0x0102u32 + 0x0304 + 0x1234 + 0x0908 + 0x0700) & 0xFFFF;
        assert_eq!(u32::from(u16::from_be_bytes([frame[6], frame[7]])), expected);
        assert_eq!(sum(&frame[2..]), 0xFFFF - 0x1234);
        assert_eq!(frame[..2], [0xAA, 0xBB]);
    }

    #[test]
    fn a_checksum_field_outside_the_frame_is_left_alone() {
        let mut frame = [1, 2, 3, 4];
        finish_checksum(&mut frame, 2, 1);
        finish_checksum(&mut frame, 100, 0);
        assert_eq!(frame, [1, 2, 3, 4]);
    }
}
