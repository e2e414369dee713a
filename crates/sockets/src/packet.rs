//! The header that a packet socket puts before every frame if [`crate::Socket::use_vnet_headers`] asks for it
//! (`struct virtio_net_hdr`, linux/virtio_net.h).

const FLAGS: usize = 0;
const HDR_LEN: usize = 2;
const CSUM_START: usize = 6;
const CSUM_OFFSET: usize = 8;
const NEEDS_CSUM: u8 = 1;

/// A virtio-net header, in the byte order of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VnetHeader(pub [u8; VnetHeader::LEN]);

impl VnetHeader {
    /// Its length.
    pub const LEN: usize = 10;

    /// Asks the kernel to store the first `len` bytes of the frame in one piece.
    #[inline]
    pub fn linear(len: u16) -> Self {
        let mut header = [0; Self::LEN];
        header[HDR_LEN..HDR_LEN + 2].copy_from_slice(&len.to_ne_bytes());
        VnetHeader(header)
    }

    /// A received frame whose checksum the sender left to its interface: the offset from which to sum, and the offset
    /// from there at which to store the result. `None` if the checksum is complete.
    #[inline]
    pub fn missing_checksum(&self) -> Option<(usize, usize)> {
        let at = |offset: usize| usize::from(u16::from_ne_bytes([self.0[offset], self.0[offset + 1]]));
        (self.0[FLAGS] & NEEDS_CSUM != 0).then(|| (at(CSUM_START), at(CSUM_OFFSET)))
    }
}
