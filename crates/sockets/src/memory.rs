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

/// Copies memory of this process, and returns whether all of it was there: the kernel copies, which answers with an error
/// where a plain copy would end the process, such as beyond the end of a mapped file. On `false` a part may be copied.
///
/// # Safety
/// Both ranges are mappings of the program, `from` for reads and `to` for writes, and do not overlap. Files that are mapped
/// there may be shorter.
pub unsafe fn try_copy(from: *const u8, to: *mut u8, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        // SAFETY: both stay within the ranges.
        let (from, to) = unsafe { (from.add(done), to.add(done)) };
        let local = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: to.cast(), iov_len: len - done };
        // SAFETY: the kernel checks both ranges itself.
        let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => return false,
            Ok(copied) => done += copied,
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => return false,
            Err(_) => {
                // A sandbox forbids the call. SAFETY: the caller's promise; a file that is shorter is a SIGBUS, as anywhere.
                unsafe { ptr::copy_nonoverlapping(from, to, len - done) };
                return true;
            }
        }
    }
    true
}

/// Whether a file is mapped anywhere in a range, be it of a file system or of memory (memfd). `false` where /proc is not
/// mounted.
pub fn maps_file(addr: usize, len: usize) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let (end, hex) = (addr.saturating_add(len), |text| usize::from_str_radix(text, 16));
    // "55d0c0de1000-55d0c0de3000 rw-p 00000000 fd:01 1234   /usr/lib/name"; inode 0: no file.
    maps.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        let Some((from, to)) = words.next().and_then(|range| range.split_once('-')) else { return false };
        let (Ok(from), Ok(to)) = (hex(from), hex(to)) else { return false };
        let (inode, path) = (words.nth(3), words.next());
        // Shared memory and huge pages without a name have files that nobody can open.
        let nameless = matches!(path, Some("/dev/zero" | "/anon_hugepage"));
        from < end && to > addr && inode != Some("0") && !nameless
    })
}

/// Whether every byte of a range is mapped and can be read, and written if `write`; what the kernel says now. The kernel
/// does not look at the pages themselves: a file that has become shorter than its mapping is not noticed. `true` where
/// /proc is not mounted.
pub fn is_mapped(addr: usize, len: usize, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let end = addr.saturating_add(len);
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
        assert!(!is_mapped(usize::MAX - 9, 11, false) && !maps_file(usize::MAX - 9, 11), "no such address");
    }

    #[test]
    fn a_byte_is_readable_where_memory_is() {
        let byte = 7u8;
        assert!(is_readable((&raw const byte).addr()));
        assert!(!is_readable(8));
    }

    #[test]
    fn a_copy_beyond_the_end_of_a_mapped_file_fails_and_the_process_goes_on() {
        const PAGE: usize = 4096;
        // SAFETY: a new file and mapping of two pages, used only here.
        unsafe {
            let file = libc::memfd_create(c"mapped".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, 2 * PAGE as i64), 0);
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(ptr::null_mut(), 2 * PAGE, prot, libc::MAP_SHARED, file, 0).cast::<u8>();
            assert_ne!(base.cast(), libc::MAP_FAILED);
            let bytes = [7u8; 100];
            let mut back = [0u8; 100];
            assert!(maps_file(base.addr(), 2 * PAGE) && !maps_file((&raw const bytes).addr(), 100));
            assert!(try_copy(bytes.as_ptr(), base.add(PAGE), 100));
            assert!(try_copy(base.add(PAGE), back.as_mut_ptr(), 100) && back == bytes);
            assert_eq!(libc::ftruncate(file, PAGE as i64), 0);
            assert!(!try_copy(bytes.as_ptr(), base.add(PAGE), 100));
            assert!(!try_copy(base.add(PAGE), back.as_mut_ptr(), 100));
            assert!(!try_copy(bytes.as_ptr(), base.add(PAGE - 50), 100), "half of it is there");
            assert!(try_copy(bytes.as_ptr(), base.add(PAGE - 100), 100));
            libc::munmap(base.cast(), 2 * PAGE);
            libc::close(file);
        }
    }
}
