//! The functions of `mrc.h` (spec: C interface, section 3).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use crate::abi::mrc::*;
use crate::abi::verbs::*;
use crate::context::{AsyncQueue, CONTEXTS, Context};
use crate::cq::{self, CHANNELS, CQS, Channel, Cq, Face, MRC_CQ, MrcChannel, MrcCq};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, e0, m1, pointer};
use crate::hint::{self, Counts, HINTS, Hint, HintObject};
use crate::memory::PDS;
use crate::modify::{self, Change};
use crate::post;
use crate::qp::{self, Init, MRC_QP, MrcQp, QPS, Qp};
use crate::registry::{Marked, Registry};
use crate::verbs::acknowledge_async;

pub static MRC_CONTEXTS: Registry<MrcContext> = Registry::new();

type MrcContextObject = Marked<(), MrcContext>;

/// The structures of which programs know only the address.
pub type Handle = *mut c_void;

/// A context of MRC on an open device: the parent of its own queues, queue pairs and hints.
pub struct MrcContext {
    pub context: Arc<Context>,
    /// The version that the program was compiled for; 0 is the newest.
    pub api_version: u32,
    queue: Arc<AsyncQueue>,
}

/// Whether an object belongs to an MRC context.
fn of(parent: usize) -> impl Fn(&Context, Face, usize) -> bool {
    move |_, face, of| face == Face::Mrc && of == parent
}

// --- device and context ---------------------------------------------------------------------------------------------

/// What every device reports.
const DEVICE: MrcDeviceAttr = MrcDeviceAttr {
    mrc_protocol_version: MRC_PROTOCOL_VERSION_1,
    max_wimm: 16_384,
    max_wimm_dest: 16_384,
    max_mpr: 255,
    mpr_resolution: 1,
    max_qp_hint: 16_384,
    cap: MRC_DEVICE_CAP_TRIM_NACK | MRC_DEVICE_CAP_DYNAMIC_MPR | MRC_DEVICE_CAP_SVC_TIME,
};

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_device_ex(
    context: *mut IbvContext,
    mcontext: Handle,
    attr: *mut MrcDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| {
        if !mcontext.is_null() {
            let parent = MRC_CONTEXTS.get(mcontext)?;
            if !Arc::ptr_eq(&parent.context, &CONTEXTS.get(context)?) {
                return Err(EINVAL);
            }
        }
        query_device(context, attr, supported)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_device(
    context: *mut IbvContext,
    attr: *mut MrcDeviceAttr,
    supported: *mut c_int,
) -> c_int {
    m1(|| query_device(context, attr, supported))
}

/// A device of somebody else does not support MRC, which is no error.
fn query_device(context: *mut IbvContext, attr: *mut MrcDeviceAttr, supported: *mut c_int) -> Result<c_int> {
    if context.is_null() {
        return Err(EINVAL);
    }
    let ours = match CONTEXTS.get(context) {
        Ok(_) => true,
        Err(EINVAL) => false,
        Err(dead) => return Err(dead),
    };
    // SAFETY: the program gives room for both, or null.
    unsafe {
        let (attr, supported) = attr.as_mut().zip(supported.as_mut()).ok_or(EINVAL)?;
        *attr = if ours { DEVICE } else { MrcDeviceAttr::default() };
        *supported = ours.into();
    }
    Ok(0)
}

/// Fills the four versions; null pointers are skipped.
///
/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_version(
    current: *mut u32,
    last_supported: *mut u32,
    vendor: *mut u32,
    last_supported_vendor: *mut u32,
) {
    for (to, value) in [
        (current, CURRENT_VERSION),
        (last_supported, LAST_SUPPORTED_VERSION),
        (vendor, VENDOR_CURRENT_VERSION),
        (last_supported_vendor, LAST_SUPPORTED_VERSION),
    ] {
        // SAFETY: the program gives room for a number, or null.
        if let Some(to) = unsafe { to.as_mut() } {
            *to = value;
        }
    }
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_context(context: *mut IbvContext, attr: *mut MrcContextAttr) -> Handle {
    pointer(|| {
        let context = CONTEXTS.get(context)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        let accepted = |used: u32, current: u32| used <= current || used == LATEST_VERSION;
        if !accepted(attr.mrc_api_version_used, CURRENT_VERSION)
            || !accepted(attr.mrc_vendor_api_version_used, VENDOR_CURRENT_VERSION)
        {
            return Err(EOPNOTSUPP);
        }
        let queue = Arc::new(AsyncQueue::new()?);
        context.router.add_queue(&queue);
        let core = MrcContext { context, api_version: attr.mrc_api_version_used, queue };
        let object = MrcContextObject::make((), ptr::null(), 0);
        MRC_CONTEXTS.insert(object.expose_provenance(), Arc::new(core));
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_context(mrc_ctx: Handle) -> c_int {
    m1(|| destroy_context(mrc_ctx).map(|()| 0))
}

/// Takes everything on it along.
fn destroy_context(mrc_ctx: Handle) -> Result<()> {
    let core = MRC_CONTEXTS.remove(mrc_ctx, |_| Ok(()))?;
    let parent = mrc_ctx.addr();
    core.context.router.remove_queue(&core.queue);
    qp::destroy_where(of(parent));
    cq::destroy_where(of(parent));
    hint::destroy_of(parent);
    core.queue.close();
    // SAFETY: it was in the table, so it was made as such an object, and it was removed once.
    unsafe { MrcContextObject::retire(mrc_ctx.cast()) };
    Ok(())
}

/// The MRC contexts of a device that is closed.
pub fn close_of(context: &Arc<Context>) {
    for (address, _) in MRC_CONTEXTS.all(|each| Arc::ptr_eq(&each.context, context)) {
        let _ = destroy_context(ptr::with_exposed_provenance_mut(address));
    }
}

// --- completions ----------------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_comp_channel(mrc_ctx: Handle, channel: *mut Handle) -> c_int {
    e0(|| {
        // SAFETY: the program gives room for a pointer, or null.
        let to = unsafe { channel.as_mut() }.ok_or(EINVAL)?;
        *to = ptr::null_mut();
        let parent = MRC_CONTEXTS.get(mrc_ctx)?;
        let core = Arc::new(Channel::new(Arc::clone(&parent.context), Face::Mrc, mrc_ctx.addr())?);
        let object = MrcChannel::make((), Arc::as_ptr(&core), 0);
        CHANNELS.insert(object.expose_provenance(), core);
        *to = object.cast();
        Ok(())
    })
}

fn channel(channel: Handle) -> Result<Arc<Channel>> {
    CHANNELS.get(channel).and_then(|found| if found.face == Face::Mrc { Ok(found) } else { Err(EINVAL) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_comp_channel_fd(comp_channel: Handle, fd: *mut c_int) -> c_int {
    m1(|| {
        let channel = channel(comp_channel)?;
        // SAFETY: the program gives room for a number, or null.
        *unsafe { fd.as_mut() }.ok_or(EINVAL)? = channel.queue.fd();
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_comp_channel(channel: Handle) -> c_int {
    // SAFETY: channels of MRC have no public part.
    e0(|| unsafe { cq::destroy_channel(channel.cast::<()>(), Face::Mrc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
) -> Handle {
    pointer(|| create_cq(mrc_ctx, cqe, cq_context, channel, comp_vector, Cq::of_work))
}

/// A completion queue of MRC, for completions of work requests or EV events.
pub fn create_cq(
    mrc_ctx: Handle,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: Handle,
    comp_vector: c_int,
    make: impl FnOnce(&Context, usize, cq::Notifier) -> Result<cq::Source>,
) -> Result<Handle> {
    let parent = MRC_CONTEXTS.get(mrc_ctx)?;
    if comp_vector != 0 {
        return Err(EINVAL);
    }
    let context = Arc::clone(&parent.context);
    let via = cq::channel_of(channel, &context, Face::Mrc)?;
    if via.as_ref().is_some_and(|via| via.parent != mrc_ctx.addr()) {
        return Err(EINVAL);
    }
    let core = Arc::new(Cq::new(context, (Face::Mrc, mrc_ctx.addr()), cqe, cq_context, via, make)?);
    let object = MrcCq::make((), Arc::as_ptr(&core), MRC_CQ);
    core.publish(object.expose_provenance(), &parent.queue);
    Ok(object.cast())
}

/// # Safety
/// As in `mrc.h`: `wc` has room for this many completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_poll_cq(cq: Handle, num_entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { cq::core(cq.cast::<()>(), MRC_CQ)?.poll(num_entries, wc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_cq(cq: Handle) -> c_int {
    // SAFETY: completion queues of MRC have no public part.
    e0(|| unsafe { cq::destroy(cq.cast::<()>(), Face::Mrc) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_req_notify_cq(cq: Handle, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { cq::core(cq.cast::<()>(), MRC_CQ)? }.arm(solicited_only != 0))
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_cq_event(
    comp_channel: Handle,
    cq: *mut Handle,
    cq_context: *mut *mut c_void,
) -> c_int {
    m1(|| {
        if cq.is_null() || cq_context.is_null() {
            return Err(EINVAL);
        }
        let (object, context) = channel(comp_channel)?.wait()?;
        // SAFETY: checked above.
        unsafe {
            *cq = ptr::with_exposed_provenance_mut(object);
            *cq_context = ptr::with_exposed_provenance_mut(context);
        }
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ack_cq_events(cq: Handle, nevents: c_uint) {
    if let Ok(cq) = CQS.get(cq) {
        cq.acknowledge(nevents);
    }
}

// --- hints ----------------------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_qp_hint(mrc_ctx: Handle, init_attr: *mut MrcQpHintInitAttr) -> Handle {
    pointer(|| {
        MRC_CONTEXTS.get(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { init_attr.as_ref() }.ok_or(EINVAL)?;
        let counts = Counts {
            qps_per_peer: attr.num_qps_per_peer,
            send_peers: attr.num_send_peers,
            remote_recv_peers: attr.num_remote_recv_peers,
        };
        if counts.qps_per_peer < 0 || counts.send_peers < 0 || counts.remote_recv_peers < 0 {
            return Err(EINVAL);
        }
        if HINTS.all(|hint| hint.parent == mrc_ctx.addr()).len() >= DEVICE.max_qp_hint as usize {
            return Err(crate::errno::ENOMEM);
        }
        let object = HintObject::make((), ptr::null(), 0);
        HINTS.insert(object.expose_provenance(), Arc::new(Hint::new(mrc_ctx.addr(), counts)));
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_qp_hint(qp_hint: Handle) -> c_int {
    m1(|| hint::destroy(qp_hint).map(|()| 0))
}

const HINT_COUNTS: u32 =
    hint_attr::NUM_QPS_PER_PEER | hint_attr::NUM_SEND_PEERS | hint_attr::NUM_REMOTE_RECV_PEERS;

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_qp_hint(qp_hint: Handle, attr: *mut MrcQpHintAttr, mask: c_int) -> c_int {
    m1(|| {
        let counts = *HINTS.get(qp_hint)?.counts.lock();
        // SAFETY: the program gives room for a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        if mask & !(HINT_COUNTS | hint_attr::VENDOR_CFG) != 0 {
            return Err(EINVAL);
        }
        for (bit, to, value) in [
            (hint_attr::NUM_QPS_PER_PEER, &mut attr.num_qps_per_peer, counts.qps_per_peer),
            (hint_attr::NUM_SEND_PEERS, &mut attr.num_send_peers, counts.send_peers),
            (hint_attr::NUM_REMOTE_RECV_PEERS, &mut attr.num_remote_recv_peers, counts.remote_recv_peers),
        ] {
            if mask & bit != 0 {
                *to = value;
            }
        }
        if mask & hint_attr::VENDOR_CFG != 0 {
            attr.vendor_cfg = [0; _];
        }
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_modify_qp_hint(qp_hint: Handle, attr: *mut MrcQpHintAttr, mask: c_int) -> c_int {
    m1(|| {
        let hint = HINTS.get(qp_hint)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        if mask & !(HINT_COUNTS | hint_attr::VENDOR_CFG) != 0 {
            return Err(EINVAL);
        }
        modify::check_vendor_cfg(&attr.vendor_cfg, mask & hint_attr::VENDOR_CFG != 0)?;
        let mut counts = hint.counts.lock();
        let mut new = *counts;
        for (bit, to, value) in [
            (hint_attr::NUM_QPS_PER_PEER, &mut new.qps_per_peer, attr.num_qps_per_peer),
            (hint_attr::NUM_SEND_PEERS, &mut new.send_peers, attr.num_send_peers),
            (hint_attr::NUM_REMOTE_RECV_PEERS, &mut new.remote_recv_peers, attr.num_remote_recv_peers),
        ] {
            if mask & bit != 0 {
                if value < 0 {
                    return Err(EINVAL);
                }
                *to = value;
            }
        }
        *counts = new;
        Ok(0)
    })
}

// --- queue pairs ----------------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_qp(mrc_ctx: Handle, attr: *mut MrcQpInitAttr) -> Handle {
    pointer(|| {
        let parent = MRC_CONTEXTS.get(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        const OPERATIONS: u64 = 1 | 1 << 1;
        if attr.send_ops_flags & !OPERATIONS != 0 || !matches!(attr.protocol_version, 0 | 1) {
            return Err(EOPNOTSUPP);
        }
        let mut init = Init {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            pd: attr.pd,
            cap: attr.cap,
            sq_sig_all: attr.sq_sig_all,
            send_ops_flags: attr.send_ops_flags,
            protocol_version: attr.protocol_version,
        };
        for cq in [init.send_cq, init.recv_cq] {
            if CQS.get(cq)?.parent != mrc_ctx.addr() {
                return Err(EINVAL);
            }
        }
        PDS.get(init.pd)?;
        let qp = Qp::new(Face::Mrc, mrc_ctx.addr(), &parent.context, &mut init)?;
        attr.cap = init.cap;
        let object = MrcQp::make((), Arc::as_ptr(&qp), MRC_QP);
        qp.publish(object.expose_provenance(), 0, &parent.queue);
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_qp(qp: Handle) -> c_int {
    // SAFETY: queue pairs of MRC have no public part.
    e0(|| unsafe { qp::destroy(qp.cast::<()>(), Face::Mrc) })
}

fn queue_pair(qp: Handle) -> Result<Arc<Qp>> {
    QPS.get(qp).and_then(|found| if found.face == Face::Mrc { Ok(found) } else { Err(EINVAL) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_qp(
    qp: Handle,
    vattr: *mut IbvQpAttr,
    vattr_mask: c_int,
    mrc_attr: *mut MrcQpAttr,
    mrc_attr_mask: c_int,
    init_attr: *mut MrcQpInitAttr,
) -> c_int {
    e0(|| {
        let core = queue_pair(qp)?;
        if (vattr.is_null() && vattr_mask != 0) || (mrc_attr.is_null() && mrc_attr_mask != 0) {
            return Err(EINVAL);
        }
        let (verbs, mrc) = modify::query(&core);
        let init = &core.init;
        // SAFETY: the program gives structures, or null.
        unsafe {
            if let Some(to) = vattr.as_mut() {
                *to = verbs;
            }
            if let Some(to) = mrc_attr.as_mut() {
                *to = mrc;
            }
            if let Some(to) = init_attr.as_mut() {
                *to = MrcQpInitAttr {
                    qp_context: init.qp_context,
                    send_cq: init.send_cq,
                    recv_cq: init.recv_cq,
                    cap: init.cap,
                    sq_sig_all: init.sq_sig_all,
                    pd: init.pd,
                    send_ops_flags: init.send_ops_flags,
                    protocol_version: init.protocol_version,
                };
            }
        }
        Ok(())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_modify_qp(
    qp: Handle,
    vattr: *mut IbvQpAttr,
    vattr_mask: c_int,
    mrc_attr: *mut MrcQpAttr,
    mrc_attr_mask: c_int,
) -> c_int {
    e0(|| {
        let core = queue_pair(qp)?;
        let none = IbvQpAttr::default();
        // SAFETY: the program gives structures, or null.
        let (verbs, mrc) = unsafe { (vattr.as_ref(), mrc_attr.as_ref()) };
        if verbs.is_none() && vattr_mask != 0 {
            return Err(EINVAL);
        }
        let change = Change {
            verbs: verbs.unwrap_or(&none),
            verbs_mask: vattr_mask as u32,
            mrc,
            mrc_mask: mrc_attr_mask as u32,
        };
        modify::modify(&core, &change)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_qpn(qp: Handle, qpn: *mut u32) -> c_int {
    m1(|| {
        let core = queue_pair(qp)?;
        // SAFETY: the program gives room for a number, or null.
        *unsafe { qpn.as_mut() }.ok_or(EINVAL)? = core.nic.qp_num();
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_post_recv(qp: Handle, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { post::recv(qp::core(qp.cast::<()>(), MRC_QP)?, wr, bad_wr) }.map(|()| 0))
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_post_send(qp: Handle, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { post::send(qp::core(qp.cast::<()>(), MRC_QP)?, wr, bad_wr) })
}

// --- asynchronous events --------------------------------------------------------------------------------------------

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_async_event(mrc_ctx: Handle, event: *mut MrcAsyncEvent) -> c_int {
    m1(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        let queue = MRC_CONTEXTS.get(mrc_ctx)?.queue.clone();
        let got = queue.wait(|event| event.acks.iter().for_each(|acks| acks.got()))?;
        // SAFETY: checked above.
        unsafe { event.write(MrcAsyncEvent { element: got.element, event_type: got.event_type }) };
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ack_async_event(event: *mut MrcAsyncEvent) {
    // SAFETY: the program gives an event, or null.
    if let Some(event) = unsafe { event.as_ref() } {
        acknowledge_async(event.element, event.event_type);
    }
}
