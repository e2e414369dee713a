//! Memory for programs that have none of their own to register: page-aligned, zeroed, freed with the last clone.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE: usize = 4096;

/// A shared buffer that the NIC may write at any time. Its methods copy bytes in and out. A copy made while a peer
/// writes may contain a part of the write, as with any RDMA buffer.
#[derive(Clone)]
pub struct Buffer(Arc<Allocation>);

struct Allocation {
    ptr: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: the memory is plain bytes, owned by the allocation, and only ever accessed by raw copies.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and this was the last reference.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

impl Buffer {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// If `len` exceeds the address space.
    pub fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), PAGE).expect("a length within the address space");
        // SAFETY: the layout has at least one byte.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        ptr.as_ptr().expose_provenance();
        Buffer(Arc::new(Allocation { ptr, len, layout }))
    }

    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "beyond the buffer");
        // SAFETY: the range lies in the allocation.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.as_ptr().add(offset), bytes.len()) };
    }

    /// A copy of `len` bytes from `offset`.
    ///
    /// # Panics
    /// If they reach beyond the end.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset <= self.len() && len <= self.len() - offset, "beyond the buffer");
        let mut out = vec![0; len];
        // SAFETY: the range lies in the allocation.
        unsafe { std::ptr::copy(self.as_ptr().add(offset), out.as_mut_ptr(), len) };
        out
    }

    /// The byte at `offset`. Every call reads memory, so a loop can wait for a peer's write.
    ///
    /// # Panics
    /// If `offset` is beyond the end.
    #[inline]
    pub fn peek(&self, offset: usize) -> u8 {
        assert!(offset < self.len(), "beyond the buffer");
        // SAFETY: the byte lies in the allocation.
        unsafe { self.as_ptr().add(offset).read_volatile() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn bytes_are_copied_in_and_out_and_never_beyond_the_end() {
        for len in [0, 1, 10, 5000] {
            let buffer = Buffer::zeroed(len);
            assert_eq!(
                (buffer.len(), buffer.is_empty(), buffer.as_ptr() as usize % PAGE),
                (len, len == 0, 0)
            );
            assert_eq!(buffer.read(0, len), vec![0; len]);
            let bytes: Vec<u8> = (1..=len).map(|n| n as u8).collect();
            buffer.write(0, &bytes);
            buffer.write(len, &[]);
            buffer.write(len / 2, &bytes[len / 2..]);
            assert_eq!(buffer.clone().read(0, len), bytes);
            assert_eq!(buffer.read(len / 2, len - len / 2), bytes[len / 2..]);
            assert_eq!((0..len).map(|at| buffer.peek(at)).collect::<Vec<_>>(), bytes);
            let refused = |what: &dyn Fn(&Buffer)| catch_unwind(AssertUnwindSafe(|| what(&buffer))).is_err();
            for (offset, beyond) in [(0, len + 1), (len / 2, len - len / 2 + 1), (len, 1), (len + 1, 0)] {
                assert!(refused(&|buffer| buffer.write(offset, &vec![0; beyond])), "{len} {offset} {beyond}");
                assert!(refused(&|buffer| drop(buffer.read(offset, beyond))), "{len} {offset} {beyond}");
            }
            assert!(refused(&|buffer| _ = buffer.peek(len)));
        }
    }

    /// Pages of the process that are in memory.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_is_freed_with_the_last_clone() {
        let before = resident();
        let pages = 64 * 512;
        for _ in 0..64 {
            let buffer = Buffer::zeroed(512 * PAGE);
            drop(buffer.clone());
            assert_eq!(buffer.peek(0), 0);
        }
        assert!(resident() < before + pages / 2);
    }
}
