//! Whether the library may be used in this process: not after a panic. The child of a fork may open devices of its own;
//! those of its parent are dead there (docs/spec/c-interface.md, section 9).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use openmrc_sockets::Process;

use crate::errno::{EIO, Result};

/// The first process that opened a device.
static OPENED: OnceLock<Process> = OnceLock::new();
static PANICKED: AtomicBool = AtomicBool::new(false);
/// Called after a panic.
static REPORT: OnceLock<fn()> = OnceLock::new();

/// A device is about to be opened here. `report` is called after a panic.
pub fn opens(report: fn()) {
    OPENED.get_or_init(Process::current);
    REPORT.get_or_init(|| report);
}

/// # Errors
/// EIO after a panic.
#[inline]
pub fn check() -> Result<()> {
    if PANICKED.load(Ordering::Relaxed) { Err(EIO) } else { Ok(()) }
}

/// Whether a process forked that had opened a device, and this is its child.
pub fn is_child() -> bool {
    OPENED.get().is_some_and(|process| !process.is_current())
}

/// A panic was caught: the state of objects is not known any more.
pub fn panicked() {
    PANICKED.store(true, Ordering::Relaxed);
    if let Some(report) = REPORT.get() {
        report();
    }
}

/// Blocks all signals of the calling thread while it makes threads, which inherit that.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are valid places, filled before they are read.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
