//! Queue pairs of verbs, and the operations behind a context (docs/spec/c-interface.md, sections 7.4 and 7.6).

use std::ffi::c_int;
use std::ptr;

use crate::abi::extended::{IbvQpEx, builders};
use crate::abi::verbs::*;
use crate::cq::Api;
use crate::errno::{self, EINVAL, EOPNOTSUPP};
use crate::modify::{self, Change};
use crate::post;
use crate::qp::{self, QPS, VERBS_QP};
use crate::returns::{e0, pointer};

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
    e0(|| unsafe { qp::destroy(qp.cast::<IbvQpEx>(), Api::Verbs) })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut IbvQp, attr: *mut IbvQpAttr, mask: c_int) -> c_int {
    e0(|| {
        let core = QPS.get(qp)?;
        // SAFETY: the program gives a structure, or null.
        let verbs = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        if core.api != Api::Verbs {
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
        if core.api != Api::Verbs {
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

/// NULL unless it was made for requests that are built by calls.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut IbvQp) -> *mut IbvQpEx {
    pointer(|| {
        if QPS.get(qp)?.api != Api::Verbs {
            return Err(EINVAL);
        }
        let extended = qp.cast::<IbvQpEx>();
        // SAFETY: a queue pair of verbs that is in the table.
        match unsafe { (*extended).builders[builders::START] }.is_null() {
            true => Err(EOPNOTSUPP),
            false => Ok(extended),
        }
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
    e0(|| unsafe { post::send(qp::core(qp.cast::<IbvQpEx>(), VERBS_QP)?, wr, bad) })
}

/// `post_recv` of a context.
///
/// # Safety
/// As in verbs.
pub unsafe extern "C" fn post_recv(qp: *mut IbvQp, wr: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { post::recv(qp::core(qp.cast::<IbvQpEx>(), VERBS_QP)?, wr, bad) })
}

/// An operation of a context that this device lacks.
pub extern "C" fn refuse() -> c_int {
    errno::set(EOPNOTSUPP);
    libc::EOPNOTSUPP
}
