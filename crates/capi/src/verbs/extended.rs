//! Extended verbs: completions that are read one by one, requests that calls build, and the extended query of a device
//! (docs/spec/c-interface.md, sections 7.4 and 7.8). Programs find them behind a context, not by a symbol.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use openmrc_nic::Sge;
use parking_lot::MutexGuard;

use crate::abi::extended::*;
use crate::abi::verbs::*;
use crate::built::Built;
use crate::context::CONTEXTS;
use crate::cq::{self, VERBS_CQ};
use crate::errno::{self, EINVAL, EOPNOTSUPP, Result};
use crate::qp::{self, Qp, VERBS_QP};
use crate::returns::{e0, pointer};
use crate::told;

/// `query_device_ex` of a context: nothing that a plain query does not say, but how many ports there are.
pub extern "C" fn query_device_ex(
    context: *mut IbvContext,
    _input: *const c_void,
    attr: *mut c_void,
    size: usize,
) -> c_int {
    e0(|| {
        let attributes = CONTEXTS.get(context)?.device.attributes();
        let plain = size_of::<IbvDeviceAttr>();
        if attr.is_null() || size < plain {
            return Err(EINVAL);
        }
        // SAFETY: the program gives room for this many bytes.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), attr.cast(), plain);
            if size >= PORTS_IN_DEVICE_ATTR_EX + size_of::<u32>() {
                let ports = attr.byte_add(PORTS_IN_DEVICE_ATTR_EX).cast::<u32>();
                ports.write_unaligned(u32::from(attributes.phys_port_cnt));
            }
        }
        Ok(())
    })
}

// --- completions, one by one -------------------------------------------------------------------------------------------

/// `create_cq_ex` of a context.
pub extern "C" fn create_cq_ex(context: *mut IbvContext, attr: *const IbvCqInitAttrEx) -> *mut IbvCqEx {
    let functions = {
        let mut list = [ptr::null_mut::<c_void>(); pollers::COUNT];
        list[pollers::START_POLL] = start_poll as *mut c_void;
        list[pollers::NEXT_POLL] = next_poll as *mut c_void;
        list[pollers::END_POLL] = end_poll as *mut c_void;
        list[pollers::READ_OPCODE] = read_opcode as *mut c_void;
        list[pollers::READ_VENDOR_ERR] = read_vendor_err as *mut c_void;
        list[pollers::READ_BYTE_LEN] = read_byte_len as *mut c_void;
        list[pollers::READ_IMM_DATA] = read_imm_data as *mut c_void;
        list[pollers::READ_QP_NUM] = read_qp_num as *mut c_void;
        list[pollers::READ_SRC_QP] = read_src_qp as *mut c_void;
        list[pollers::READ_WC_FLAGS] = read_wc_flags as *mut c_void;
        list[pollers::READ_SLID] = read_slid as *mut c_void;
        list[pollers::READ_SL] = read_sl as *mut c_void;
        list[pollers::READ_DLID_PATH_BITS] = read_dlid_path_bits as *mut c_void;
        list
    };
    pointer(|| {
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let flags = if attr.comp_mask & CQ_ATTR_FLAGS != 0 { attr.flags } else { 0 };
        let unknown = attr.comp_mask & !CQ_ATTR_FLAGS != 0 || flags & !KNOWN_CQ_FLAGS != 0;
        if unknown || attr.wc_flags & !STANDARD_WC_FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        let cqe = c_int::try_from(attr.cqe).map_err(|_| EINVAL)?;
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| EINVAL)?;
        cq::create_verbs(context, cqe, attr.cq_context, attr.channel, vector, functions)
    })
}

/// Takes the next completion; ENOENT if there is none.
///
/// # Safety
/// A completion queue of verbs, which one thread polls at a time.
unsafe fn take(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: the caller's promise.
    let taken = unsafe {
        cq::core(cq, VERBS_CQ).and_then(|core| {
            let n = core.poll(1, &raw mut (*cq).current)?;
            if n == 1 {
                (*cq).wr_id = (*cq).current.wr_id;
                (*cq).status = (*cq).current.status;
            }
            Ok(n)
        })
    };
    match taken {
        Ok(1) => 0,
        // It is no error: errno is left alone.
        Ok(_) => libc::ENOENT,
        Err(errno) => {
            errno::set(errno);
            errno.0
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut IbvCqEx, attr: *const u32) -> c_int {
    // SAFETY: the program gives a structure that begins with the mask.
    match unsafe { attr.as_ref() } {
        Some(0) => unsafe { take(cq) },
        _ => libc::EINVAL,
    }
}

unsafe extern "C" fn next_poll(cq: *mut IbvCqEx) -> c_int {
    // SAFETY: as in verbs.
    unsafe { take(cq) }
}

extern "C" fn end_poll(_cq: *mut IbvCqEx) {}

macro_rules! read {
    ($($name:ident: $field:ident as $type:ty;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut IbvCqEx) -> $type {
            // SAFETY: as in verbs: between two polls of one thread.
            unsafe { (*cq).current.$field as $type }
        }
    )*};
}

read! {
    read_opcode: opcode as c_int;
    read_vendor_err: vendor_err as u32;
    read_byte_len: byte_len as u32;
    read_imm_data: imm_data as u32;
    read_qp_num: qp_num as u32;
    read_src_qp: src_qp as u32;
    read_wc_flags: wc_flags as u32;
    read_slid: slid as u32;
    read_sl: sl as u8;
    read_dlid_path_bits: dlid_path_bits as u8;
}

// --- requests that calls build -----------------------------------------------------------------------------------------

/// `create_qp_ex` of a context.
pub extern "C" fn create_qp_ex(_context: *mut IbvContext, attr: *mut IbvQpInitAttrEx) -> *mut IbvQp {
    pointer(|| {
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        if attr.comp_mask & !(QP_ATTR_PD | QP_ATTR_CREATE_FLAGS | QP_ATTR_SEND_OPS) != 0
            || attr.comp_mask & QP_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0
        {
            return Err(EOPNOTSUPP);
        }
        if attr.comp_mask & QP_ATTR_PD == 0 {
            return Err(EINVAL);
        }
        let builds = attr.comp_mask & QP_ATTR_SEND_OPS != 0;
        let lacking = attr.send_ops_flags & !(WITH_RDMA_WRITE | WITH_RDMA_WRITE_WITH_IMM);
        if builds && lacking != 0 {
            let name = told::operation(OPERATIONS[lacking.trailing_zeros().min(12) as usize]);
            told::refused("queue pair", name, "MRC has only WRITE");
            return Err(EOPNOTSUPP);
        }
        let mut plain = IbvQpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let qp = qp::create_verbs(attr.pd, &mut plain)?;
        attr.cap = plain.cap;
        if builds {
            // SAFETY: just made.
            unsafe { (*qp.cast::<IbvQpEx>()).builders = functions(attr.send_ops_flags) };
        }
        Ok(qp)
    })
}

/// The operations that bits of `send_ops_flags` stand for.
const OPERATIONS: [c_int; 13] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1, 15];

fn functions(operations: u64) -> [*mut c_void; builders::COUNT] {
    let mut list = [ptr::null_mut::<c_void>(); builders::COUNT];
    if operations & WITH_RDMA_WRITE != 0 {
        list[builders::RDMA_WRITE] = wr_rdma_write as *mut c_void;
    }
    if operations & WITH_RDMA_WRITE_WITH_IMM != 0 {
        list[builders::RDMA_WRITE_IMM] = wr_rdma_write_imm as *mut c_void;
    }
    list[builders::SET_INLINE_DATA] = wr_set_inline_data as *mut c_void;
    list[builders::SET_INLINE_DATA_LIST] = wr_set_inline_data_list as *mut c_void;
    list[builders::SET_SGE] = wr_set_sge as *mut c_void;
    list[builders::SET_SGE_LIST] = wr_set_sge_list as *mut c_void;
    list[builders::START] = wr_start as *mut c_void;
    list[builders::COMPLETE] = wr_complete as *mut c_void;
    list[builders::ABORT] = wr_abort as *mut c_void;
    list
}

/// The queue pair of a call.
///
/// # Safety
/// As in verbs.
unsafe fn core<'a>(qp: *mut IbvQpEx) -> Result<&'a Qp> {
    // SAFETY: the caller's promise.
    unsafe { qp::core(qp, VERBS_QP) }
}

/// What is built: by one thread, from `wr_start` to `wr_complete` or `wr_abort`.
///
/// # Safety
/// As in verbs: the calling thread has called `wr_start`.
unsafe fn building<'a>(qp: *mut IbvQpEx) -> Option<&'a mut Built> {
    // SAFETY: the caller's promise, so the lock is held.
    unsafe { core(qp).ok().filter(|core| core.built.is_locked()).map(|core| &mut *core.built.data_ptr()) }
}

/// Other threads wait until this one has completed.
unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: as in verbs.
    if let Ok(core) = unsafe { core(qp) } {
        let mut built = core.built.lock();
        built.start();
        std::mem::forget::<MutexGuard<'_, Built>>(built);
    }
}

unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    e0(|| {
        // SAFETY: as in verbs: this thread has called `wr_start`, which holds the lock.
        unsafe {
            let core = core(qp)?;
            let result = building(qp).ok_or(EINVAL)?.complete(&core.nic);
            core.built.force_unlock();
            result
        }
    })
}

unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: as for `wr_complete`.
    unsafe {
        if let Some(built) = building(qp) {
            built.start();
            if let Ok(core) = core(qp) {
                core.built.force_unlock();
            }
        }
    }
}

/// # Safety
/// As for `building`.
unsafe fn write(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64, imm: Option<u32>) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(built) = building(qp) {
            built.write(((*qp).wr_id, (*qp).wr_flags), rkey, remote_addr, imm);
        }
    }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64) {
    // SAFETY: as in verbs.
    unsafe { write(qp, rkey, remote_addr, None) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut IbvQpEx, rkey: u32, remote_addr: u64, imm: u32) {
    // SAFETY: as in verbs. The immediate is in the byte order of the network.
    unsafe { write(qp, rkey, remote_addr, Some(u32::from_be(imm))) }
}

unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, len: u32) {
    // SAFETY: as in verbs.
    if let Some(built) = unsafe { building(qp) } {
        built.set_pieces(&[Sge { addr, len, lkey }]);
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, n: usize, list: *const IbvSge) {
    // SAFETY: as in verbs: the list has `n` segments.
    unsafe {
        let Some(built) = building(qp) else { return };
        match list.is_null() {
            true if n > 0 => built.fail(EINVAL),
            true => built.set_pieces(&[]),
            false => built.set_pieces(slice::from_raw_parts(list, n)),
        }
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, addr: *const u8, length: usize) {
    // SAFETY: as in verbs.
    unsafe { wr_set_inline_data_list(qp, 1, &IbvDataBuf { addr, length }) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut IbvQpEx, n: usize, list: *const IbvDataBuf) {
    // SAFETY: as in verbs: the list has `n` buffers of readable memory.
    unsafe {
        let (Some(built), Ok(core)) = (building(qp), core(qp)) else { return };
        let list = if n == 0 || list.is_null() { &[] } else { slice::from_raw_parts(list, n) };
        let length = list.iter().fold(0usize, |sum, each| sum.saturating_add(each.length));
        if length > core.init.cap.max_inline_data as usize {
            return built.fail(EINVAL);
        }
        let mut bytes = Vec::with_capacity(length);
        for each in list.iter().filter(|each| each.length > 0) {
            bytes.extend_from_slice(slice::from_raw_parts(each.addr, each.length));
        }
        built.set_inline(bytes);
    }
}
