//! The kernel's view of this process's memory.

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

/// Whether every byte of a range is mapped and can be read, and written if `write`; what the kernel says now. The kernel
/// does not look at the pages themselves: a file that has become shorter than its mapping is not noticed. `true` where
/// /proc is not mounted.
pub fn is_mapped(addr: usize, len: usize, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let end = addr + len;
    let mut covered = addr;
    // Sorted by address: "55d0c0de1000-55d0c0de3000 rw-p ...".
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)) else {
            continue;
        };
        if covered >= end || from > covered {
            break;
        }
        if to <= covered {
            continue;
        }
        if !rest.starts_with(if write { "rw" } else { "r" }) {
            return false;
        }
        covered = to;
    }
    covered >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_mapped_if_all_of_it_can_be_read_or_written() {
        const PAGE: usize = 4096;
        // SAFETY: a new mapping of four pages, of which some are changed; it is used by address only.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base =
                libc::mmap(ptr::null_mut(), 6 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            libc::mprotect(base.byte_add(2 * PAGE), PAGE, libc::PROT_READ);
            libc::munmap(base.byte_add(4 * PAGE), PAGE);
            base.addr()
        };
        assert!(is_mapped(base + 1, 2 * PAGE - 1, true));
        assert!(
            is_mapped(base, 4 * PAGE, false) && !is_mapped(base, 4 * PAGE, true),
            "one page is read-only"
        );
        assert!(!is_mapped(base, 4 * PAGE + 1, false), "beyond the end");
        assert!(!is_mapped(base, 6 * PAGE, false), "a hole");
        assert!(!is_mapped(8, 1, false));
    }

    #[test]
    fn a_byte_is_readable_where_memory_is() {
        let byte = 7u8;
        assert!(is_readable((&raw const byte).addr()));
        assert!(!is_readable(8));
    }
}
