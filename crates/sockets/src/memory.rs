//! What the kernel says of the memory of this process.

use std::io;
use std::ptr;

/// Whether the byte at `addr` can be read. The kernel tries it, as it answers with an error where a signal would end
/// this process: nothing is mapped there, or the mapped file has become shorter.
pub fn is_readable(addr: usize) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(addr), iov_len: 1 };
    // SAFETY: the kernel writes one byte to `byte` and checks the other address itself.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    // A sandbox may forbid the call; nothing is known then.
    read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_readable_where_memory_is() {
        let byte = 7u8;
        assert!(is_readable((&raw const byte).addr()));
        assert!(!is_readable(8));
    }
}
