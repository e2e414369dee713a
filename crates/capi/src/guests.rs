//! Libraries that open every device which they find and need what MRC has not. They give up when an object is refused
//! later on, and the program with them; a device that does not open they skip, and take another transport.

use std::ffi::{CStr, c_void};
use std::ptr;

use crate::told;

/// Frames of the stack that are looked at: our own, and the caller's.
const FRAMES: usize = 16;

/// Part of a library's file name, its name, and what it needs.
const DEMANDING: [(&str, &str, &str); 1] =
    [("libuct_ib", "UCX", "it needs SEND, UD and shared receive queues, MRC has only WRITE")];

/// Whether the caller is such a library, which is told.
pub fn is_refused(device: &str) -> bool {
    let mut frames = [ptr::null_mut::<c_void>(); FRAMES];
    // SAFETY: the array has as many elements as it is told.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as i32) };
    let own = file_of(is_refused as *const c_void);
    let mut callers = frames[..count.clamp(0, FRAMES as i32) as usize].iter().map(|frame| file_of(*frame));
    let Some(caller) = callers.find(|file| *file != own).flatten() else { return false };
    let Some((_, name, needs)) = DEMANDING.iter().find(|(file, ..)| is_named(&caller, file)) else {
        return false;
    };
    told::once(format!("device {device}: skipped for {name}: {needs}"));
    true
}

/// Whether the last part of a path begins so.
fn is_named(path: &str, begin: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(begin))
}

/// The file of the library or program that an address is in.
fn file_of(address: *const c_void) -> Option<String> {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: it only compares the address with those of what is loaded.
    if unsafe { libc::dladdr(address, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of a library that is loaded: a C string, which lasts as long as the library.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_the_name_of_its_file() {
        assert!(is_named("/opt/hpcx/ucx/lib/ucx/libuct_ib.so.0", "libuct_ib"));
        assert!(is_named("libuct_ib_mlx5.so", "libuct_ib"));
        assert!(!is_named("/opt/libuct_ib/bin/program", "libuct_ib"));
        assert!(!is_named("/usr/lib/libuct.so.0", "libuct_ib"));
    }

    #[test]
    fn another_caller_is_not_refused() {
        assert!(!is_refused("mrc0"));
    }
}
