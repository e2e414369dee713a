//! Protection domains and memory regions (docs/spec/c-interface.md, sections 7.2 and 7.7).

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use openmrc_nic::{self as nic, Access};
use openmrc_sockets::memory::is_mapped;
use parking_lot::Mutex;

use crate::abi::verbs::*;
use crate::context::{CONTEXTS, Context};
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, Result};
use crate::registry::{Marked, Registry};
use crate::told;

pub static PDS: Registry<Pd> = Registry::new();
pub static MRS: Registry<Mr> = Registry::new();

type VerbsPd = Marked<IbvPd, Pd>;
type VerbsMr = Marked<IbvMr, Mr>;

/// For marks that are not looked at: these objects are found in their tables.
const NO_MARK: u64 = 0;

/// A protection domain.
pub struct Pd {
    pub context: Arc<Context>,
    pub nic: nic::ProtectionDomain,
    /// Regions and queue pairs in it.
    pub users: AtomicUsize,
}

/// A registered region.
pub struct Mr {
    region: Mutex<nic::MemoryRegion>,
    pd: Arc<Pd>,
}

/// # Errors
/// EINVAL, EIO.
pub fn alloc_pd(context: *mut IbvContext) -> Result<*mut IbvPd> {
    let core = CONTEXTS.get(context)?;
    let nic = core.nic.alloc_pd()?;
    let public = IbvPd { context, handle: nic.handle() };
    let object = VerbsPd::make(public, std::ptr::null(), NO_MARK);
    let pd = Pd { context: core, nic, users: AtomicUsize::new(0) };
    PDS.insert(object.expose_provenance(), Arc::new(pd));
    Ok(object.cast())
}

/// # Errors
/// EBUSY while anything is in it.
pub fn dealloc_pd(pd: *mut IbvPd) -> Result<()> {
    let idle = |pd: &Pd| if pd.users.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(EBUSY) };
    PDS.remove(pd, idle)?;
    // SAFETY: made by `alloc_pd` and removed once.
    unsafe { VerbsPd::retire(pd.cast()) };
    Ok(())
}

/// The rights that the flags ask for.
fn access_of(flags: u32) -> Result<Access> {
    /// Without effect: what these allow cannot be asked for, or is only advice.
    const ACCEPTED: u32 =
        IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
    let writes = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    if flags & !(ACCEPTED | writes) != 0 {
        let flags = flags & !(ACCEPTED | writes);
        told::refused("memory region", &format!("access flags {flags:#x}"), "MRC has no such regions");
        return Err(EOPNOTSUPP);
    }
    if flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0
        && flags & IBV_ACCESS_LOCAL_WRITE == 0
    {
        return Err(EINVAL);
    }
    Access::from_bits((flags & writes) as u8).ok_or(EINVAL)
}

/// Registers `length` bytes at `addr`.
///
/// # Errors
/// EFAULT if a byte is not there, or cannot be written though the flags say so; EINVAL, EOPNOTSUPP for the access
/// flags.
pub fn register(pd: *mut IbvPd, addr: *mut c_void, length: usize, flags: u32) -> Result<*mut IbvMr> {
    let core = PDS.get(pd)?;
    let access = access_of(flags)?;
    if addr.addr().checked_add(length).is_none() {
        return Err(EINVAL);
    }
    if length > 0 && !is_mapped(addr.addr(), length, flags & IBV_ACCESS_LOCAL_WRITE != 0) {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: as with any verbs device, the program keeps the memory until it deregisters the region.
    let region = unsafe { core.nic.register_raw(addr.cast(), length, access, Box::new(())) }?;
    let (lkey, rkey) = (region.lkey(), region.rkey());
    // SAFETY: the domain is in the table, so its public part is there.
    let context = unsafe { (*pd).context };
    let public = IbvMr { context, pd, addr, length, handle: lkey, lkey, rkey };
    core.users.fetch_add(1, Ordering::AcqRel);
    let object = VerbsMr::make(public, std::ptr::null(), NO_MARK);
    MRS.insert(object.expose_provenance(), Arc::new(Mr { region: Mutex::new(region), pd: core }));
    Ok(object.cast())
}

/// Afterwards no byte of the region is read or written.
///
/// # Errors
/// EINVAL.
pub fn deregister(mr: *mut IbvMr) -> Result<()> {
    let core = MRS.remove(mr, |_| Ok(()))?;
    core.region.lock().deregister();
    core.pd.users.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: made by `register` and removed once.
    unsafe { VerbsMr::retire(mr.cast()) };
    Ok(())
}

/// What is left on a context that is closed.
pub fn destroy_of(context: &Arc<Context>) {
    for (address, _) in MRS.all(|mr| Arc::ptr_eq(&mr.pd.context, context)) {
        let _ = deregister(std::ptr::with_exposed_provenance_mut(address));
    }
    for (address, pd) in PDS.all(|pd| Arc::ptr_eq(&pd.context, context)) {
        pd.users.store(0, Ordering::Release);
        let _ = dealloc_pd(std::ptr::with_exposed_provenance_mut(address));
    }
}
