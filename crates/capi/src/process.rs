//! Whether the library may be used in this process: not in the child of a fork of the one that opened a device, and not
//! after a panic (docs/spec/c-interface.md, section 9).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use openmrc_sockets::Process;

use crate::errno::{EIO, Result};

static OPENED: OnceLock<Process> = OnceLock::new();
static PANICKED: AtomicBool = AtomicBool::new(false);
/// Called after a panic.
static REPORT: OnceLock<fn()> = OnceLock::new();

/// A device is about to be opened here. `report` is called after a panic.
pub fn opens(report: fn()) {
    OPENED.get_or_init(Process::current);
    REPORT.get_or_init(|| report);
}

/// To be asked before any lock is taken: in the child of a fork it may be held for ever.
///
/// # Errors
/// EIO in the child of a fork, or after a panic.
#[inline]
pub fn check() -> Result<()> {
    let alive = OPENED.get().is_none_or(|process| process.is_current());
    if alive && !PANICKED.load(Ordering::Relaxed) { Ok(()) } else { Err(EIO) }
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
