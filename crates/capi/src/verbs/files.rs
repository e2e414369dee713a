//! Files of devices, read by verbs' own functions (docs/spec/c-interface.md, section 7.2).

use std::ffi::{CStr, c_char, c_int};

use crate::errno;
use crate::interpose::open;
use crate::returns;

/// The root of sysfs, as libibverbs says it.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file, without the line break at its end; the length, or -1.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    returns::m1(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(errno::EINVAL);
        }
        // SAFETY: the program gives strings and a buffer of this size.
        unsafe {
            let path =
                [CStr::from_ptr(dir).to_bytes(), b"/", CStr::from_ptr(file).to_bytes(), b"\0"].concat();
            let fd = open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC, 0);
            if fd < 0 {
                return Err(errno::last_os_error());
            }
            let read = libc::read(fd, buf.cast(), size);
            libc::close(fd);
            let Ok(mut len) = usize::try_from(read) else { return Err(errno::EIO) };
            if len > 0 && *buf.add(len - 1) == b'\n' as c_char {
                len -= 1;
                *buf.add(len) = 0;
            } else if len < size {
                *buf.add(len) = 0;
            }
            Ok(len as c_int)
        }
    })
}
