//! Functions of the C library that take a path: those about a device are answered here, everything else goes to the
//! next definition, without an allocation or a lock (docs/spec/c-interface.md, section 7.9).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::errno::{self, Errno};
use crate::sysfs::{self, Entry, Found};

/// What a path is about, if it is about a device.
#[inline]
fn ours(path: *const c_char) -> Option<Found> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program gives a string.
    let path = unsafe { CStr::from_ptr(path) };
    if sysfs::may_be_ours(path) { sysfs::find(path) } else { None }
}

fn fails(errno: c_int) -> c_int {
    errno::set(Errno(errno));
    -1
}

/// A path of the system as C has it.
fn c_string(path: &str) -> CString {
    CString::new(path).unwrap_or_default()
}

/// The next definition of a function, found at its first use.
struct Next {
    name: &'static CStr,
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr, version: Option<&'static CStr>) -> Self {
        Next { name, version, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: names that end with zero.
            found = unsafe {
                match self.version {
                    Some(version) => libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()),
                    None => libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()),
                }
            };
            if found.is_null() {
                // SAFETY: as above.
                found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            }
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// Where a C library lacks a function, as those before 2.33 lack `stat`, no program calls it.
extern "C" fn lacking() -> c_int {
    fails(libc::ENOSYS)
}

/// Defines functions of the C library. The arguments of one that is about a device of ours go to the expression, with
/// what was found; `system` calls the next definition, with the path that it is given. A function follows a symbolic
/// link at the end of the path unless it is said that it does not.
macro_rules! interpose {
    ($(fn $name:ident($($before:ident: $type:ty,)* | $path:ident | $(, $after:ident: $rest:ty)*) -> $result:ty
        $(, version $version:literal)? $(, follows $follows:expr)? => |$found:ident, $system:ident| $answer:expr;)*) => {$(
        /// # Safety
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($before: $type,)* $path: *const c_char $(, $after: $rest)*) -> $result {
            type Function = unsafe extern "C" fn($($type,)* *const c_char $(, $rest)*) -> $result;
            const VERSION: Option<&CStr> = [$(Some($version),)? None][0];
            static NEXT: Next = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => Next::new(name, VERSION),
                Err(_) => unreachable!(),
            };
            let $system = |path: *const c_char| {
                let next = NEXT.get();
                let next = if next.is_null() { lacking as *mut c_void } else { next };
                // SAFETY: the next definition of this function, with the caller's arguments.
                unsafe { std::mem::transmute::<*mut c_void, Function>(next)($($before,)* path $(, $after)*) }
            };
            match ours($path) {
                None => $system($path),
                Some(Found { entry: Entry::Elsewhere(path), link, .. }) if link.is_none() || [$($follows,)? true][0] => {
                    $system(c_string(&path).as_ptr())
                }
                // SAFETY: the caller's promise about the other arguments.
                #[allow(unused_unsafe)]
                Some($found) => unsafe { $answer },
            }
        }
    )*};
}

/// A descriptor from which the file is read.
fn open_entry(found: &Found) -> c_int {
    match &found.entry {
        Entry::Missing | Entry::Elsewhere(_) => fails(libc::ENOENT),
        // Its entries cannot be listed.
        Entry::Directory => fails(libc::EACCES),
        // It can be opened; there are no commands of the kernel's driver.
        // SAFETY: a string that ends with zero.
        Entry::Node(_) => unsafe {
            let flags = libc::O_RDWR | libc::O_CLOEXEC;
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags) as c_int
        },
        // SAFETY: the name is a string; the write is of live bytes.
        Entry::File(text) => unsafe {
            let fd = libc::memfd_create(c"openmrc-sysfs".as_ptr(), libc::MFD_CLOEXEC);
            if fd >= 0 {
                libc::write(fd, text.as_ptr().cast(), text.len());
                libc::lseek(fd, 0, libc::SEEK_SET);
            }
            fd
        },
    }
}

fn stream(found: &Found) -> *mut libc::FILE {
    let fd = open_entry(found);
    // SAFETY: a descriptor of its own, for reading.
    if fd < 0 { std::ptr::null_mut() } else { unsafe { libc::fdopen(fd, c"r".as_ptr()) } }
}

/// Mode, size and device number.
fn status(found: &Found, follow: bool) -> Result<(u32, i64, u64), c_int> {
    if let Some(link) = found.link.as_ref().filter(|_| !follow) {
        return Ok((libc::S_IFLNK | 0o777, link.len() as i64, 0));
    }
    match &found.entry {
        // As the kernel says it for every file of sysfs.
        Entry::File(_) => Ok((libc::S_IFREG | 0o444, 4096, 0)),
        Entry::Directory => Ok((libc::S_IFDIR | 0o755, 0, 0)),
        Entry::Node(number) => {
            let minor = sysfs::UVERBS_FIRST_MINOR + number;
            Ok((libc::S_IFCHR | 0o666, 0, libc::makedev(sysfs::UVERBS_MAJOR, minor)))
        }
        Entry::Missing | Entry::Elsewhere(_) => Err(libc::ENOENT),
    }
}

/// # Safety
/// `to` is null or has room for the structure.
unsafe fn fill_stat(found: &Found, follow: bool, to: *mut libc::stat) -> c_int {
    let (mode, size, number) = match status(found, follow) {
        Ok(status) => status,
        Err(errno) => return fails(errno),
    };
    // SAFETY: the caller's promise; zeros are a valid structure.
    unsafe {
        let Some(to) = to.as_mut() else { return fails(libc::EFAULT) };
        *to = std::mem::zeroed();
        to.st_mode = mode;
        to.st_size = size;
        to.st_rdev = number;
        to.st_nlink = 1;
        to.st_blksize = 4096;
    }
    0
}

/// # Safety
/// As [`fill_stat`].
unsafe fn fill_statx(found: &Found, follow: bool, to: *mut libc::statx) -> c_int {
    let (mode, size, number) = match status(found, follow) {
        Ok(status) => status,
        Err(errno) => return fails(errno),
    };
    // SAFETY: the caller's promise; zeros are a valid structure.
    unsafe {
        let Some(to) = to.as_mut() else { return fails(libc::EFAULT) };
        *to = std::mem::zeroed();
        to.stx_mask = libc::STATX_BASIC_STATS;
        to.stx_mode = mode as u16;
        to.stx_size = size as u64;
        to.stx_rdev_major = libc::major(number);
        to.stx_rdev_minor = libc::minor(number);
        to.stx_nlink = 1;
        to.stx_blksize = 4096;
    }
    0
}

fn access_entry(found: &Found, mode: c_int) -> c_int {
    match &found.entry {
        Entry::Missing | Entry::Elsewhere(_) => fails(libc::ENOENT),
        Entry::Node(_) if mode & libc::X_OK == 0 => 0,
        Entry::Directory if mode & libc::W_OK == 0 => 0,
        Entry::File(_) if mode & (libc::W_OK | libc::X_OK) == 0 => 0,
        _ => fails(libc::EACCES),
    }
}

/// `text` in memory of malloc, or in the program's buffer.
fn give_path(found: &Found, to: *mut c_char) -> *mut c_char {
    if let Entry::Missing = found.entry {
        errno::set(Errno(libc::ENOENT));
        return std::ptr::null_mut();
    }
    let text = &found.canonical;
    // SAFETY: a buffer for realpath has PATH_MAX bytes; the memory of malloc has as many as are copied.
    unsafe {
        let to = if to.is_null() { libc::malloc(text.len() + 1).cast() } else { to };
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
            *to.add(text.len()) = 0;
        }
        to
    }
}

/// # Safety
/// `to` has room for `len` bytes.
unsafe fn give_link(found: &Found, to: *mut c_char, len: usize) -> isize {
    let Some(link) = &found.link else {
        let missing = matches!(found.entry, Entry::Missing);
        return fails(if missing { libc::ENOENT } else { libc::EINVAL }) as isize;
    };
    let n = link.len().min(len);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(link.as_ptr().cast(), to, n) };
    n as isize
}

fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

// The mode of `open` is passed on whether or not it was given, which is harmless in the calling conventions of x86-64
// and aarch64 Linux. Structures of the functions with 64 in their names are the same as of those without.
interpose! {
    fn open(|path|, flags: c_int, mode: libc::mode_t) -> c_int => |found, system| open_entry(&found);
    fn open64(|path|, flags: c_int, mode: libc::mode_t) -> c_int => |found, system| open_entry(&found);
    fn __open_2(|path|, flags: c_int) -> c_int => |found, system| open_entry(&found);
    fn __open64_2(|path|, flags: c_int) -> c_int => |found, system| open_entry(&found);
    fn openat(dir: c_int, |path|, flags: c_int, mode: libc::mode_t) -> c_int => |found, system| open_entry(&found);
    fn openat64(dir: c_int, |path|, flags: c_int, mode: libc::mode_t) -> c_int => |found, system| open_entry(&found);
    fn fopen(|path|, mode: *const c_char) -> *mut libc::FILE => |found, system| stream(&found);
    fn fopen64(|path|, mode: *const c_char) -> *mut libc::FILE => |found, system| stream(&found);
    fn access(|path|, mode: c_int) -> c_int => |found, system| access_entry(&found, mode);
    fn faccessat(dir: c_int, |path|, mode: c_int, flags: c_int) -> c_int
        => |found, system| access_entry(&found, mode);
    fn stat(|path|, to: *mut libc::stat) -> c_int => |found, system| fill_stat(&found, true, to);
    fn stat64(|path|, to: *mut libc::stat) -> c_int => |found, system| fill_stat(&found, true, to);
    fn lstat(|path|, to: *mut libc::stat) -> c_int, follows false => |found, system| fill_stat(&found, false, to);
    fn lstat64(|path|, to: *mut libc::stat) -> c_int, follows false => |found, system| fill_stat(&found, false, to);
    fn fstatat(dir: c_int, |path|, to: *mut libc::stat, flags: c_int) -> c_int, follows follows(flags)
        => |found, system| fill_stat(&found, follows(flags), to);
    fn fstatat64(dir: c_int, |path|, to: *mut libc::stat, flags: c_int) -> c_int, follows follows(flags)
        => |found, system| fill_stat(&found, follows(flags), to);
    fn __xstat(version: c_int, |path|, to: *mut libc::stat) -> c_int => |found, system| fill_stat(&found, true, to);
    fn __xstat64(version: c_int, |path|, to: *mut libc::stat) -> c_int => |found, system| fill_stat(&found, true, to);
    fn __lxstat(version: c_int, |path|, to: *mut libc::stat) -> c_int, follows false => |found, system| fill_stat(&found, false, to);
    fn __lxstat64(version: c_int, |path|, to: *mut libc::stat) -> c_int, follows false
        => |found, system| fill_stat(&found, false, to);
    fn statx(dir: c_int, |path|, flags: c_int, mask: u32, to: *mut libc::statx) -> c_int, follows follows(flags)
        => |found, system| fill_statx(&found, follows(flags), to);
    fn readlink(|path|, to: *mut c_char, len: usize) -> isize, follows false => |found, system| give_link(&found, to, len);
    fn readlinkat(dir: c_int, |path|, to: *mut c_char, len: usize) -> isize, follows false
        => |found, system| give_link(&found, to, len);
    // The version that takes NULL for the buffer.
    fn realpath(|path|, resolved: *mut c_char) -> *mut c_char, version c"GLIBC_2.3"
        => |found, system| give_path(&found, resolved);
    // A buffer that is too short ends the program in the C library, whatever the path.
    fn __realpath_chk(|path|, resolved: *mut c_char, len: usize) -> *mut c_char
        => |found, system| if len < libc::PATH_MAX as usize { system(path) } else { give_path(&found, resolved) };
}
