//! The payload of a packet to be sent, where it lies: in the application's memory, which may change at any time.

use std::ptr;
use std::sync::Arc;

use openmrc_sockets::IoVec;

/// A part of a payload. It gives no reference to the application's memory, except to a checksum.
#[derive(Clone)]
pub(crate) struct Piece {
    addr: *const u8,
    len: usize,
    /// The bytes themselves, if the kernel has read them: those of a mapped file, which may become shorter.
    staged: Option<Arc<[u8]>>,
}

impl Piece {
    /// Bytes of the application.
    ///
    /// # Safety
    /// They are valid for reads while the piece, or a packet with it, is used.
    pub unsafe fn of_memory(addr: *const u8, len: usize) -> Piece {
        Piece { addr, len, staged: None }
    }

    /// Bytes that were copied.
    pub fn of_copy(bytes: Arc<[u8]>) -> Piece {
        Piece { addr: bytes.as_ptr(), len: bytes.len(), staged: Some(bytes) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies it to the front of `to`, which has room.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        let to = &mut to[..self.len];
        // SAFETY: the bytes are valid by the promise of `of_memory`'s caller, and `to` is the core's own memory.
        unsafe { ptr::copy_nonoverlapping(self.addr, to.as_mut_ptr(), self.len) };
    }

    /// The result of a checksum over it.
    #[inline]
    pub fn checksummed<R>(&self, sum: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the bytes are valid by the promise of `of_memory`'s caller. An application that changes them
        // meanwhile gets a wrong sum: the loops of a checksum read every byte once and decide nothing by it. A copy
        // first would be a pass over the memory for every packet.
        sum(unsafe { std::slice::from_raw_parts(self.addr, self.len) })
    }

    /// It, for the kernel.
    #[inline]
    pub fn iovec(&self) -> IoVec {
        IoVec { iov_base: self.addr.cast_mut().cast(), iov_len: self.len }
    }

    /// What must live until the packet is sent.
    #[inline]
    pub fn staged(&self) -> Option<&Arc<[u8]>> {
        self.staged.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_the_bytes_of_memory_or_of_its_copy() {
        let memory = [3u8, 1, 4, 1, 5];
        // SAFETY: it lives longer than the piece.
        let lent = unsafe { Piece::of_memory(memory.as_ptr(), memory.len()) };
        let copied = Piece::of_copy(Arc::from(memory));
        for piece in [&lent, &copied] {
            let mut to = [9; 7];
            piece.copy_to(&mut to);
            assert_eq!(to, [3, 1, 4, 1, 5, 9, 9]);
            assert_eq!(piece.checksummed(<[u8]>::to_vec), memory);
            assert_eq!((piece.len(), piece.iovec().iov_len), (5, 5));
            assert_eq!(piece.iovec().iov_base.cast_const().cast(), piece.addr);
        }
        assert!(lent.staged().is_none() && lent.addr == memory.as_ptr());
        assert_eq!(copied.staged().map(|bytes| bytes.as_ptr()), Some(copied.addr));
    }
}
