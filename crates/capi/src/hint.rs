//! Hints about the use of queue pairs (docs/spec/c-interface.md, sections 3 and 5). They are kept for queries: a device
//! whose resources are memory has no use for them.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::errno::EBUSY;
use crate::errno::Result;
use crate::registry::{Marked, Registry};

pub static HINTS: Registry<Hint> = Registry::new();

/// An object of which the program knows only the address.
pub type HintObject = Marked<(), Hint>;

/// Numbers of queue pairs and peers; 0 is not told.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub qps_per_peer: c_int,
    pub send_peers: c_int,
    pub remote_recv_peers: c_int,
}

/// A hint.
pub struct Hint {
    /// The address of its MRC context.
    pub parent: usize,
    pub counts: Mutex<Counts>,
    users: AtomicUsize,
}

impl Hint {
    pub fn new(parent: usize, counts: Counts) -> Self {
        Hint { parent, counts: Mutex::new(counts), users: AtomicUsize::new(0) }
    }

    /// A queue pair has it.
    pub fn acquire(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub fn release(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// # Errors
/// EBUSY while a queue pair has it; EINVAL.
pub fn destroy(hint: *mut c_void) -> Result<()> {
    let idle = |hint: &Hint| if hint.users.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(EBUSY) };
    HINTS.remove(hint, idle)?;
    // SAFETY: it was in the table, so it was made as such an object, and it was removed once.
    unsafe { HintObject::retire(hint.cast()) };
    Ok(())
}

/// What is left of an MRC context that is destroyed.
pub fn destroy_of(parent: usize) {
    for (address, hint) in HINTS.all(|hint| hint.parent == parent) {
        hint.users.store(0, Ordering::Release);
        let _ = destroy(std::ptr::with_exposed_provenance_mut(address));
    }
}
