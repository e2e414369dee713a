//! Files under /sys/class/infiniband that programs look up for a device (docs/spec/c-interface.md, section 7.9).
//! Functions of the C library are interposed for exactly that prefix with a name of ours; everything else goes to the
//! next definition, without an allocation or a lock. `OPENMRC_SYSFS=0` leaves the files out.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::device::{self, Device};
use crate::{errno, returns};

const PREFIX: &[u8] = b"/sys/class/infiniband/";

/// The device that a path is about, and the rest of the path.
fn ours<'a>(path: *const c_char) -> Option<(&'static Device, &'a [u8])> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program gives a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let rest = path.strip_prefix(PREFIX)?;
    let (name, rest) = match rest.iter().position(|&byte| byte == b'/') {
        Some(slash) => (&rest[..slash], &rest[slash + 1..]),
        None => (rest, &rest[rest.len()..]),
    };
    let device = device::by_name(name)?;
    (std::env::var_os("OPENMRC_SYSFS").is_none_or(|value| value != "0")).then_some((device, rest))
}

/// What a file says; `None` if there is no such file.
fn content(device: &Device, file: &str) -> Option<String> {
    let guid = |value: u64| {
        let bytes = value.to_ne_bytes();
        let quad = |i: usize| format!("{:02x}{:02x}", bytes[2 * i], bytes[2 * i + 1]);
        format!("{}:{}:{}:{}\n", quad(0), quad(1), quad(2), quad(3))
    };
    let text = match file {
        "node_type" => "1: CA\n".into(),
        "node_guid" | "sys_image_guid" => guid(device.guid()),
        "fw_ver" => format!("{}\n", env!("CARGO_PKG_VERSION")),
        "hca_type" | "board_id" => "openmrc\n".into(),
        _ => {
            let (port, file) = file.strip_prefix("ports/")?.split_once('/')?;
            let port: u8 = port.parse().ok()?;
            if !(1..=device.planes()).contains(&port) {
                return None;
            }
            return of_port(device, port, file);
        }
    };
    Some(text)
}

fn of_port(device: &Device, port: u8, file: &str) -> Option<String> {
    let gid_index = |text: &str| text.parse::<u32>().ok().filter(|&index| index < device::GIDS);
    Some(match file {
        "state" => "4: ACTIVE\n".into(),
        "phys_state" => "5: LinkUp\n".into(),
        "rate" => format!("{} Gb/sec\n", device.description.config.network.link_rate_bps / 1_000_000_000),
        "link_layer" => "Ethernet\n".into(),
        "lid" => "0x0\n".into(),
        "pkeys/0" => "0xffff\n".into(),
        _ => {
            if let Some(index) = file.strip_prefix("gid_attrs/types/") {
                gid_index(index)?;
                return Some("RoCE v2\n".into());
            }
            if let Some(index) = file.strip_prefix("gid_attrs/ndevs/") {
                gid_index(index)?;
                let addr = device.description.config.ports[usize::from(port) - 1].addr;
                return Some(format!("{}\n", crate::interfaces::interface_of(addr)?));
            }
            gid_index(file.strip_prefix("gids/")?)?;
            let gid = device.gid().0;
            let groups: Vec<_> = gid.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
            format!("{}\n", groups.join(":"))
        }
    })
}

/// A descriptor from which the file is read; -1 with errno ENOENT if there is no such file.
fn open_file(device: &Device, file: &[u8]) -> c_int {
    let text = std::str::from_utf8(file).ok().and_then(|file| content(device, file));
    let Some(text) = text else {
        errno::set(errno::Errno(libc::ENOENT));
        return -1;
    };
    // SAFETY: the name is a string; the write is of live bytes.
    unsafe {
        let fd = libc::memfd_create(c"openmrc-sysfs".as_ptr(), libc::MFD_CLOEXEC);
        if fd >= 0 {
            libc::write(fd, text.as_ptr().cast(), text.len());
            libc::lseek(fd, 0, libc::SEEK_SET);
        }
        fd
    }
}

/// The PCI directory of the interface of plane 1, or the place of a device that has none.
fn device_directory(device: &Device) -> String {
    let addr = device.description.config.ports[0].addr;
    let of_interface = crate::interfaces::interface_of(addr).and_then(|name| {
        let link = std::fs::canonicalize(format!("/sys/class/net/{name}/device")).ok()?;
        let path = link.to_str()?.to_owned();
        let last = path.rsplit('/').next()?;
        (last.len() == 12 && last.as_bytes()[4] == b':' && last.as_bytes()[10] == b'.').then_some(path)
    });
    of_interface.unwrap_or_else(|| "/sys/devices/pci0000:00/0000:00:00.0".into())
}

/// `text` in memory of malloc, or in the program's buffer.
fn give_path(text: &str, to: *mut c_char) -> *mut c_char {
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

/// The next definition of a function, found at its first use.
struct Next {
    name: &'static CStr,
    version: Option<&'static CStr>,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Next { name, version: None, found: AtomicPtr::new(std::ptr::null_mut()) }
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

/// Functions that open a path; the mode is passed on whether or not it was given, which is harmless in the calling
/// conventions of x86-64 and aarch64 Linux.
macro_rules! interpose_open {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            type Function = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
            static NEXT: Next = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => Next::new(name),
                Err(_) => unreachable!(),
            };
            if let Some((device, rest)) = ours(path) {
                return open_file(device, rest);
            }
            // SAFETY: the next definition of this function, with the caller's arguments.
            unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.get())(path, flags, mode) }
        }
    )*};
}

interpose_open! { open open64 __open_2 __open64_2 }

/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int;
    static NEXT: Next = Next::new(c"openat");
    if let Some((device, rest)) = ours(path) {
        return open_file(device, rest);
    }
    // SAFETY: the next definition of this function, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.get())(dir, path, flags, mode) }
}

macro_rules! interpose_fopen {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
            type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
            static NEXT: Next = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => Next::new(name),
                Err(_) => unreachable!(),
            };
            if let Some((device, rest)) = ours(path) {
                let fd = open_file(device, rest);
                // SAFETY: a descriptor of its own, for reading.
                return if fd < 0 { std::ptr::null_mut() } else { unsafe { libc::fdopen(fd, c"r".as_ptr()) } };
            }
            // SAFETY: the next definition of this function, with the caller's arguments.
            unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.get())(path, mode) }
        }
    )*};
}

interpose_fopen! { fopen fopen64 }

/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    // The version that takes NULL for the buffer.
    static NEXT: Next =
        Next { name: c"realpath", version: Some(c"GLIBC_2.3"), found: AtomicPtr::new(std::ptr::null_mut()) };
    if let Some((device, b"device")) = ours(path) {
        return give_path(&device_directory(device), resolved);
    }
    // SAFETY: the next definition of this function, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.get())(path, resolved) }
}

/// # Safety
/// As in the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    len: usize,
) -> *mut c_char {
    type Function = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    static NEXT: Next = Next::new(c"__realpath_chk");
    // A buffer that is too short ends the program in the C library, whatever the path.
    if len >= libc::PATH_MAX as usize
        && let Some((device, b"device")) = ours(path)
    {
        return give_path(&device_directory(device), resolved);
    }
    // SAFETY: the next definition of this function, with the caller's arguments.
    unsafe { std::mem::transmute::<*mut c_void, Function>(NEXT.get())(path, resolved, len) }
}

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
