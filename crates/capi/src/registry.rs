//! Objects that programs hold by address. A control call finds its object in a table, so a stale or foreign pointer is
//! seen without being read; posting and polling read a mark behind the public part of the object.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use openmrc_sockets::Process;
use parking_lot::Mutex;

use crate::errno::{EINVAL, EIO, Errno, Result};
use crate::process;

/// Objects destroyed lately whose memory is kept, so that a late pointer reads a mark that does not fit.
const KEPT: usize = 1024;
/// The list of those is locked for less, unless its lock was held while the process forked.
const PATIENCE: Duration = Duration::from_millis(100);

/// The objects of one kind, by address. The child of a fork has a table of its own: that of its parent may be locked for
/// ever, and is left alone.
pub struct Registry<T: 'static> {
    table: AtomicPtr<Table<T>>,
}

struct Table<T> {
    process: Process,
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

/// Why an object is not known: in the child of a fork it may be one of its parent's.
fn unknown() -> Errno {
    if process::is_child() { EIO } else { EINVAL }
}

impl<T> Registry<T> {
    pub const fn new() -> Self {
        Registry { table: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn live(&self) -> &'static Mutex<BTreeMap<usize, Arc<T>>> {
        let mut found = self.table.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a table that is never freed.
            match unsafe { found.as_ref() } {
                Some(table) if table.process.is_current() => return &table.live,
                _ => {}
            }
            let table = Table { process: Process::current(), live: Mutex::new(BTreeMap::new()) };
            let made = Box::into_raw(Box::new(table));
            match self.table.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => found = made,
                Err(other) => {
                    // SAFETY: made above, and nobody else has it.
                    drop(unsafe { Box::from_raw(made) });
                    found = other;
                }
            }
        }
    }

    /// # Errors
    /// EINVAL if there is no such object; EIO in the child of a fork.
    pub fn get<P>(&self, object: *const P) -> Result<Arc<T>> {
        process::check()?;
        self.live().lock().get(&object.addr()).cloned().ok_or_else(unknown)
    }

    pub fn insert(&self, address: usize, object: Arc<T>) {
        self.live().lock().insert(address, object);
    }

    /// Removes it, if `may` allows that; both happen at once, so that only one of two destroying threads succeeds.
    ///
    /// # Errors
    /// As [`Registry::get`], and what `may` says.
    pub fn remove<P>(&self, object: *const P, may: impl FnOnce(&T) -> Result<()>) -> Result<Arc<T>> {
        process::check()?;
        let mut live = self.live().lock();
        let found = live.get(&object.addr()).ok_or_else(unknown)?;
        may(found)?;
        live.remove(&object.addr()).ok_or_else(unknown)
    }

    /// Every object for which `fits` holds, with its address.
    pub fn all(&self, fits: impl Fn(&T) -> bool) -> Vec<(usize, Arc<T>)> {
        let live = self.live().lock();
        live.iter()
            .filter(|(_, object)| fits(object))
            .map(|(&address, object)| (address, Arc::clone(object)))
            .collect()
    }
}

/// What is behind the public part of an object that is posted to or polled.
#[repr(C)]
pub struct Mark<T> {
    magic: u64,
    core: *const T,
}

/// The public part of an object, and the mark that leads to its core. The program has a pointer to the public part.
#[repr(C)]
pub struct Marked<P, T> {
    pub public: P,
    mark: Mark<T>,
}

impl<P, T> Marked<P, T> {
    /// An object in memory of its own. `core` must stay until [`Marked::retire`].
    pub fn make(public: P, core: *const T, magic: u64) -> *mut Self {
        Box::into_raw(Box::new(Marked { public, mark: Mark { magic, core } }))
    }

    /// The core of an object, if the mark fits.
    ///
    /// # Safety
    /// `object` is null or points to readable memory of this size, and nobody destroys it during `'a`.
    #[inline]
    pub unsafe fn core<'a>(object: *const P, magic: u64) -> Option<&'a T> {
        let object = object.cast::<Self>();
        if object.is_null() || !object.is_aligned() {
            return None;
        }
        // SAFETY: the caller's promise; the core lives as long as the mark is there.
        unsafe {
            let mark = &raw const (*object).mark;
            ((*mark).magic == magic).then(|| &*(*mark).core)
        }
    }

    /// Takes the mark away. The memory is freed after some more objects have gone.
    ///
    /// # Safety
    /// It was made by [`Marked::make`] and not retired before.
    pub unsafe fn retire(object: *mut Self)
    where
        P: 'static,
        T: 'static,
    {
        static GONE: Mutex<VecDeque<Gone>> = Mutex::new(VecDeque::new());
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*object).mark.magic).write_volatile(0) };
        // In the child of a fork it may be locked for ever.
        let Some(mut gone) = GONE.try_lock_for(PATIENCE) else { return };
        gone.push_back(Gone { object: object.expose_provenance(), free: free::<P, T> });
        if gone.len() > KEPT
            && let Some(oldest) = gone.pop_front()
        {
            // SAFETY: of this type, made by `make`, and retired once.
            unsafe { (oldest.free)(oldest.object) };
        }
    }
}

/// An object that was destroyed, and how its memory is freed.
struct Gone {
    object: usize,
    free: unsafe fn(usize),
}

unsafe fn free<P, T>(object: usize) {
    // SAFETY: the caller has it from `Marked::make`.
    drop(unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<Marked<P, T>>(object)) });
}
