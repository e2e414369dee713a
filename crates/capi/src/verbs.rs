//! The verbs functions of write-only programs (spec: C interface, section 7.2), and the operations behind a context.
//! What a device without sends, reads and atomics lacks is in `refused`.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::abi::verbs::*;
use crate::context::{self, CONTEXTS};
use crate::cq::{self, CHANNELS, CQS, Face, VERBS_CQ};
use crate::device;
use crate::errno::{self, EINVAL, EOPNOTSUPP, e0, m1, minus, pointer};
use crate::modify::{self, Change};
use crate::qp::{self, QPS, VERBS_QP};
use crate::{memory, post};

// --- devices --------------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut IbvDevice {
    pointer(|| {
        let devices = device::all()?;
        let mut list: Vec<*mut IbvDevice> =
            devices.iter().map(|device| (&raw const device.public).cast_mut()).collect();
        list.push(ptr::null_mut());
        // SAFETY: the array is the program's until it calls `ibv_free_device_list`.
        unsafe {
            let bytes = size_of_val(list.as_slice());
            let array = libc::malloc(bytes).cast::<*mut IbvDevice>();
            if array.is_null() {
                return Err(errno::ENOMEM);
            }
            ptr::copy_nonoverlapping(list.as_ptr(), array, list.len());
            if let Some(num_devices) = num_devices.as_mut() {
                *num_devices = devices.len() as c_int;
            }
            Ok(array)
        }
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut IbvDevice) {
    // SAFETY: made by malloc in `ibv_get_device_list`, or null.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut IbvDevice) -> *const c_char {
    pointer(|| Ok(device::at(device)?.public.name.as_ptr().cast_mut())).cast_const()
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut IbvDevice) -> u64 {
    device::at(device).map_or(0, |device| device.guid())
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut IbvDevice) -> c_int {
    -1
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext {
    pointer(|| context::open(device::at(device)?))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut IbvContext) -> c_int {
    m1(|| context::close(context).map(|()| 0))
}

// --- queries --------------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    e0(|| {
        let attributes = CONTEXTS.get(context)?.device.attributes();
        // SAFETY: the program gives room for the structure.
        *unsafe { attr.as_mut() }.ok_or(EINVAL)? = attributes;
        Ok(())
    })
}

/// Writes the first `len` bytes of a port's attributes.
fn query_port(context: *mut IbvContext, port_num: u8, attr: *mut c_void, len: usize) -> c_int {
    e0(|| {
        let attributes = CONTEXTS.get(context)?.port_attributes(port_num)?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        let known = len.min(size_of::<IbvPortAttr>());
        // SAFETY: the program gives room for this many bytes; the structure has no padding but at its end.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, len);
            ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut IbvContext, port_num: u8, attr: *mut c_void) -> c_int {
    query_port(context, port_num, attr, COMPAT_PORT_ATTR)
}

/// `query_port` of an extended context.
pub extern "C" fn query_port_extended(
    context: *mut IbvContext,
    port_num: u8,
    attr: *mut c_void,
    len: usize,
) -> c_int {
    query_port(context, port_num, attr, len)
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut IbvContext,
    port_num: u8,
    index: c_int,
    gid: *mut IbvGid,
) -> c_int {
    m1(|| {
        let context = CONTEXTS.get(context)?;
        context.plane(port_num.into())?;
        if !(0..device::GIDS as c_int).contains(&index) {
            return Err(EINVAL);
        }
        // SAFETY: the program gives room for a GID.
        *unsafe { gid.as_mut() }.ok_or(EINVAL)? = context.device.gid();
        Ok(0)
    })
}

fn gid_entry(context: &context::Context, port_num: u32, gid_index: u32) -> errno::Result<IbvGidEntry> {
    let plane = context.plane(port_num)?;
    if gid_index >= device::GIDS {
        return Err(EINVAL);
    }
    let ports = context.nic.port_states()?;
    let interface = ports.get(plane).and_then(|port| port.interface.as_deref());
    let index = interface.and_then(|name| openmrc_sockets::interface::index_of(name).ok());
    Ok(IbvGidEntry {
        gid: context.device.gid(),
        gid_index,
        port_num,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: index.unwrap_or(0),
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut IbvContext,
    port_num: u32,
    gid_index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    e0(|| {
        let context = CONTEXTS.get(context)?;
        if flags != 0 || entry_size < size_of::<IbvGidEntry>() || entry.is_null() {
            return Err(EINVAL);
        }
        let found = gid_entry(&context, port_num, gid_index)?;
        // SAFETY: the program gives room for an entry of this size.
        unsafe {
            ptr::write_bytes(entry.cast::<u8>(), 0, entry_size);
            entry.write(found);
        }
        Ok(())
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut IbvContext,
    entries: *mut IbvGidEntry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let written = minus(|| {
        let context = CONTEXTS.get(context)?;
        if flags != 0 || entry_size < size_of::<IbvGidEntry>() || entries.is_null() {
            return Err(EINVAL);
        }
        let n = max_entries.min(device::GIDS as usize);
        for index in 0..n {
            let found = gid_entry(&context, 1, index as u32)?;
            // SAFETY: the program gives an array of entries of this size.
            unsafe {
                let entry = entries.byte_add(index * entry_size);
                ptr::write_bytes(entry.cast::<u8>(), 0, entry_size);
                entry.write_unaligned(found);
            }
        }
        Ok(n as c_int)
    });
    written as isize
}

/// The type in the numbers of sysfs.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut IbvContext,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_int,
) -> c_int {
    /// RoCE v2.
    const SYSFS_ROCE_V2: c_int = 1;
    m1(|| {
        gid_entry(&*CONTEXTS.get(context)?, port_num.into(), index)?;
        // SAFETY: the program gives room for a number.
        *unsafe { gid_type.as_mut() }.ok_or(EINVAL)? = SYSFS_ROCE_V2;
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut IbvContext,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    m1(|| {
        CONTEXTS.get(context)?.plane(port_num.into())?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the program gives room for a key.
        *unsafe { pkey.as_mut() }.ok_or(EINVAL)? = 0xFFFF;
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut IbvContext, port_num: u8, pkey: u16) -> c_int {
    m1(|| {
        CONTEXTS.get(context)?.plane(port_num.into())?;
        if pkey == 0xFFFF { Ok(0) } else { Err(EINVAL) }
    })
}

// --- memory ---------------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut IbvContext) -> *mut IbvPd {
    pointer(|| memory::alloc_pd(context))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut IbvPd) -> c_int {
    e0(|| memory::dealloc_pd(pd))
}

/// # Safety
/// As in verbs: the memory stays until the region is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut IbvMr {
    pointer(|| memory::register(pd, addr, length, access as u32))
}

/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut IbvMr {
    // SAFETY: the caller's promise.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// # Safety
/// As [`ibv_reg_mr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut IbvPd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut IbvMr {
    pointer(|| match iova == addr.addr() as u64 {
        true => memory::register(pd, addr, length, access),
        false => Err(EOPNOTSUPP),
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut IbvMr) -> c_int {
    e0(|| memory::deregister(mr))
}

// --- completions ----------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut IbvCompChannel {
    pointer(|| cq::create_verbs_channel(context))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut IbvCompChannel) -> c_int {
    // SAFETY: the public part of channels of verbs.
    e0(|| unsafe { cq::destroy_channel(channel, Face::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    pointer(|| cq::create_verbs(context, cqe, cq_context, channel, comp_vector))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: the public part of completion queues of verbs.
    e0(|| unsafe { cq::destroy(cq, Face::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut IbvCompChannel,
    cq: *mut *mut IbvCq,
    cq_context: *mut *mut c_void,
) -> c_int {
    m1(|| {
        if cq.is_null() || cq_context.is_null() {
            return Err(EINVAL);
        }
        let channel = CHANNELS.get(channel)?;
        if channel.face != Face::Verbs {
            return Err(EINVAL);
        }
        let (object, context) = channel.wait()?;
        // SAFETY: checked above.
        unsafe {
            *cq = ptr::with_exposed_provenance_mut(object);
            *cq_context = ptr::with_exposed_provenance_mut(context);
        }
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut IbvCq, events: c_uint) {
    if let Ok(cq) = CQS.get(cq) {
        cq.acknowledge(events);
    }
}

/// `poll_cq` of a context.
///
/// # Safety
/// As in verbs: `wc` has room for `entries` completions.
pub unsafe extern "C" fn poll_cq(cq: *mut IbvCq, entries: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { cq::core(cq, VERBS_CQ)?.poll(entries, wc) })
}

/// `req_notify_cq` of a context.
///
/// # Safety
/// As in verbs.
pub unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { cq::core(cq, VERBS_CQ)? }.arm(solicited_only != 0))
}

// --- queue pairs ----------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut IbvPd, attr: *mut IbvQpInitAttr) -> *mut IbvQp {
    // SAFETY: the program gives a structure, or null.
    pointer(|| qp::create_verbs(pd, unsafe { attr.as_mut() }.ok_or(EINVAL)?))
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut IbvQp) -> c_int {
    // SAFETY: the public part of queue pairs of verbs.
    e0(|| unsafe { qp::destroy(qp, Face::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    e0(|| {
        let core = QPS.get(qp)?;
        // SAFETY: the program gives a structure, or null.
        let verbs = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if core.face != Face::Verbs {
            return Err(EINVAL);
        }
        modify::modify(&core, &Change { verbs, verbs_mask: mask as u32, mrc: None, mrc_mask: 0 })
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut IbvQp,
    attr: *mut IbvQpAttr,
    _mask: c_int,
    init_attr: *mut IbvQpInitAttr,
) -> c_int {
    e0(|| {
        let core = QPS.get(qp)?;
        if core.face != Face::Verbs {
            return Err(EINVAL);
        }
        let (verbs, _) = modify::query(&core);
        core.show_state();
        let init = &core.init;
        // SAFETY: the program gives structures, or null.
        unsafe {
            *attr.as_mut().ok_or(EINVAL)? = verbs;
            *init_attr.as_mut().ok_or(EINVAL)? = IbvQpInitAttr {
                qp_context: init.qp_context,
                send_cq: init.send_cq.cast(),
                recv_cq: init.recv_cq.cast(),
                srq: ptr::null_mut(),
                cap: init.cap,
                qp_type: IBV_QPT_RC,
                sq_sig_all: init.sq_sig_all,
            };
        }
        Ok(())
    })
}

/// MRC places data out of order.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut IbvQp, _op: c_int, _flags: u32) -> c_int {
    0
}

/// `post_send` of a context.
///
/// # Safety
/// As in verbs.
pub unsafe extern "C" fn post_send(qp: *mut IbvQp, wr: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { post::send(qp::core(qp, VERBS_QP)?, wr, bad) })
}

/// `post_recv` of a context.
///
/// # Safety
/// As in verbs.
pub unsafe extern "C" fn post_recv(qp: *mut IbvQp, wr: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { post::recv(qp::core(qp, VERBS_QP)?, wr, bad) })
}

/// An operation of a context that this device lacks.
pub extern "C" fn refuse() -> c_int {
    errno::set(EOPNOTSUPP);
    libc::EOPNOTSUPP
}

// --- asynchronous events --------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut IbvContext, event: *mut IbvAsyncEvent) -> c_int {
    m1(|| {
        if event.is_null() {
            return Err(EINVAL);
        }
        let queue = CONTEXTS.get(context)?.events.clone();
        let got = queue.wait(|event| event.acks.iter().for_each(|acks| acks.got()))?;
        // SAFETY: checked above.
        unsafe { event.write(IbvAsyncEvent { element: got.element, event_type: got.event_type }) };
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut IbvAsyncEvent) {
    // SAFETY: the program gives an event, or null.
    if let Some(event) = unsafe { event.as_ref() } {
        acknowledge_async(event.element, event.event_type);
    }
}

/// Counts an asynchronous event of a queue pair or completion queue as acknowledged.
pub fn acknowledge_async(element: u64, event_type: c_int) {
    let object = ptr::with_exposed_provenance::<c_void>(element as usize);
    match event_type {
        IBV_EVENT_CQ_ERR => {
            if let Ok(cq) = CQS.get(object) {
                cq.async_events.acknowledge(1);
            }
        }
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            if let Ok(qp) = QPS.get(object) {
                qp.async_events.acknowledge(1);
            }
        }
        _ => {}
    }
}

// --- the process ----------------------------------------------------------------------------------------------------

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Not needed: no memory is pinned.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
